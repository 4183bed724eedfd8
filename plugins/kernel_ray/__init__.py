"""kernel_ray: placement `ray`: models of any backend that are executed by kernels in actors of a Ray cluster.

Ray starts and ends them, and tells of deaths; requests go over gRPC, by `kernel_remote.elastic`. Nothing of Ray is imported
before a model wants it. What runs in an actor is in `actor` and `files` alone.
"""

from __future__ import annotations

from kernel import Backend, Kernel, hookimpl
from kernel_ray.backend import RayBackend

__all__ = ["RayBackend", "register_backends"]


@hookimpl
def register_backends(kernel: Kernel) -> dict[str, Backend]:
    return {"ray": RayBackend(kernel)}

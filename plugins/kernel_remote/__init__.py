"""kernel_remote: a backend whose models are executed by other servers, reached over gRPC.

The bytes of HTTP/2 and the messages are those of the two lowest rooms of kernel_grpc, `http2` and `schemas`, which know
nothing of the rest of that plugin; what differs on the client's side stands in `client`. None of it is imported
before a model wants it.
"""

from __future__ import annotations

from kernel import Backend, Kernel, hookimpl
from kernel_remote.backend import RemoteBackend

__all__ = ["RemoteBackend", "register_backends"]


@hookimpl
def register_backends(kernel: Kernel) -> dict[str, Backend]:
    return {"remote": RemoteBackend(kernel)}

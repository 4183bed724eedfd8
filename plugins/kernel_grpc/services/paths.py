"""Where the methods of Triton's own service are found."""

from __future__ import annotations

__all__ = ["triton"]


def triton(name: str) -> str:
    """Return the path of a method of the service that all of Triton's RPCs belong to."""
    return f"/inference.GRPCInferenceService/{name}"

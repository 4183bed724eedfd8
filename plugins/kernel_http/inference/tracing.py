"""Tells the kernel of requests to traced models: when they began to come in, and whose trace they continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel import InferenceRequest
    from kernel_http.connection.exchange import ClientConnection
    from kernel_http.connection.heads import Head

__all__ = ["arrived"]


def arrived(connection: ClientConnection, head: Head, request: InferenceRequest) -> None:
    """Tell of a checked request whose model's `tracing` is not None."""
    parent = ""
    for name, value in head.headers:
        if name.lower() == b"traceparent":
            parent = value.decode("latin-1").strip()
    request.model.tracing.arrived(request, "HTTP", connection.began, parent)

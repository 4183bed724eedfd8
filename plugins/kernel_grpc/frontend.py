"""The front end as the kernel sees it: listening, drain. Puts the parts of this package together."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernel import Listener, Place
from kernel_grpc import service
from kernel_grpc.options import keepalive, tls_context
from kernel_grpc.protocol import Peer
from kernel_grpc.server import Server

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["GrpcFrontend"]


class GrpcFrontend:
    """KServe v2 over gRPC on the kernel's loop. Raises ServingError where the options for TLS don't fit."""

    def __init__(self, kernel: Kernel, options: argparse.Namespace) -> None:
        self._kernel = kernel
        self._place = Place(options.grpc_address, options.grpc_port)
        tls = tls_context(options)
        self._scheme = "grpc" if tls is None else "grpcs"
        self._listener = Listener(self._place, "GRPC", reuse_port=options.reuse_grpc_port, tls=tls)
        self.server = Server(
            kernel,
            service.methods(kernel, options),
            keepalive=keepalive(options),
            restrictions=options.grpc_restricted_protocol,
            forward_pattern=options.grpc_header_forward_pattern or "",
            compression=options.grpc_infer_response_compression_level,
        )

    async def start(self) -> None:
        """Listen. Raises OSError, in the reference's words when the port is taken."""
        await self._listener.start(self._kernel.loop, lambda: Peer(self.server))

    async def drain(self) -> None:
        """Stop listening, finish the calls that run, close the connections; returns when none is left."""
        self._listener.close()
        await self.server.drain()

    async def stop(self) -> None:
        """Close everything at once."""
        self._listener.close()
        self.server.abort()

    @property
    def address(self) -> str:
        """Such as `grpc://0.0.0.0:8001`, or `grpc://unix:/run/kernel.sock`; `grpcs` with TLS."""
        return f"{self._scheme}://{self._place.netloc}"

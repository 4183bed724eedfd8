"""The front end as the kernel sees it: listening, drain. Puts the parts of this package together."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernel import Listener, ListeningFrontend, Place, frontend_options, is_restricted, local_categories
from kernel_grpc.options import keepalive, limits
from kernel_grpc.rpc.calls import open_call
from kernel_grpc.rpc.protocol import Peer
from kernel_grpc.rpc.server import Server
from kernel_grpc.services.local import kept_local
from kernel_grpc.services.methods import methods

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["GrpcFrontend"]


class GrpcFrontend(ListeningFrontend):
    """KServe v2 over gRPC on the kernel's loop. Raises ServingError where the options for TLS don't fit."""

    def __init__(self, kernel: Kernel, options: argparse.Namespace) -> None:
        place = Place(options.grpc_address, options.grpc_port)
        tls = frontend_options.tls_context(options, "grpc", ("h2",))
        self.server = Server(
            kernel,
            kept_local(methods(kernel, options), local_categories(options, options.grpc_restricted_protocol)),
            open_call,
            keepalive=keepalive(options),
            restrictions=options.grpc_restricted_protocol,
            forward_pattern=options.grpc_header_forward_pattern or "",
            compression=options.grpc_infer_response_compression_level,
            limits=limits(options),
        )
        listener = Listener(place, "GRPC", reuse_port=options.reuse_grpc_port, tls=tls)
        scheme = "grpc" if tls is None else "grpcs"
        exposed = place.is_public and not is_restricted(options, "grpc", options.grpc_restricted_protocol)
        super().__init__(kernel, listener, self.server, lambda: Peer(self.server), scheme, open_to_all=exposed)

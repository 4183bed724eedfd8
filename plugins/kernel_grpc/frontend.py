"""The front end as the kernel sees it: listening, drain. Puts the parts of this package together."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kernel import Endpoint, Gate, Listener, ListeningFrontend, frontend_options, is_restricted, local_categories
from kernel_grpc.options import keepalive, limits
from kernel_grpc.rpc.calls import open_call
from kernel_grpc.rpc.gated import GatedMeanings, open_gated_call
from kernel_grpc.rpc.meanings import Meanings
from kernel_grpc.rpc.protocol import Peer
from kernel_grpc.rpc.server import Server
from kernel_grpc.services.gated import CHANGING, MODEL_FIELDS
from kernel_grpc.services.local import kept_local
from kernel_grpc.services.methods import methods

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["GrpcFrontend"]


def meanings(gate: Gate | None) -> Callable[..., Meanings]:
    """Return what makes the server's Meanings: with doors, where there is a gate."""
    if gate is None:
        return Meanings
    return partial(GatedMeanings, gate=gate, changing=CHANGING, modelled=MODEL_FIELDS)


class GrpcFrontend(ListeningFrontend):
    """KServe v2 over gRPC on the kernel's loop. Raises ServingError where the options for TLS don't fit."""

    def __init__(self, kernel: Kernel, options: argparse.Namespace) -> None:
        endpoint = Endpoint(options.grpc_address, options.grpc_port)
        tls = frontend_options.tls_context(options, "grpc", ("h2",))
        # Where there is a gate, changes are for those that it lets pass.
        local = local_categories(options, options.grpc_restricted_protocol) if kernel.gate is None else ()
        self.server = Server(
            kernel,
            kept_local(methods(kernel, options), local),
            open_call if kernel.gate is None else open_gated_call,
            keepalive=keepalive(options),
            restrictions=options.grpc_restricted_protocol,
            forward_pattern=options.grpc_header_forward_pattern or "",
            compression=options.grpc_infer_response_compression_level,
            limits=limits(options),
            meanings=meanings(kernel.gate),
        )
        listener = Listener(endpoint, "GRPC", reuse_port=options.reuse_grpc_port, tls=tls)
        scheme = "grpc" if tls is None else "grpcs"
        restricted = is_restricted(options, "grpc", options.grpc_restricted_protocol)
        exposed = endpoint.is_public and kernel.gate is None and not restricted
        super().__init__(kernel, listener, self.server, lambda: Peer(self.server), scheme, open_to_all=exposed)

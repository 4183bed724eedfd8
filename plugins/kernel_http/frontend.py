"""The front end as the kernel sees it: listening, drain. Puts the parts of this package together."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from kernel import (
    Endpoint,
    Listener,
    ListeningFrontend,
    __version__,
    frontend_options,
    is_restricted,
    local_categories,
    steered,
)
from kernel_http.connection import replies
from kernel_http.connection.gated import GatedRouter
from kernel_http.connection.protocol import Connection
from kernel_http.connection.routes import Handler, Router
from kernel_http.connection.server import IDLE_SECONDS, MAX_MESSAGE_SIZE, Server
from kernel_http.inference.generate import Generate
from kernel_http.inference.infer import Inference
from kernel_http.operations.admin import Admin
from kernel_http.operations.on_demand import on_demand
from kernel_http.operations.settings import Settings
from kernel_http.operations.shared_memory import SharedMemoryRoutes
from kernel_http.options import MAX_INPUT_SIZE

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["MAX_INPUT_SIZE", "HttpFrontend", "make_server"]


def make_server(
    kernel: Kernel,
    *,
    server_name: str = "triton",
    max_input_size: int = MAX_INPUT_SIZE,
    max_message_size: int = MAX_MESSAGE_SIZE,
    idle_seconds: float = IDLE_SECONDS,
    forward_pattern: str = "",
    restrictions: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    local: Collection[str] = (),
) -> Server:
    """Put routes and handlers together; `Connection(server)` is then the protocol object of a connection.

    `restrictions`: category of requests -> the name and value of the header that they must have. `local`: the categories whose
    changes are for clients of this machine alone; where there is a gate, they are for those that it lets pass.
    """
    all_replicas = steered(kernel)
    handlers: dict[str, Handler] = {
        **Admin(all_replicas, server_name=server_name, server_version=__version__).handlers(),
        **SharedMemoryRoutes(all_replicas).handlers(),
        **Settings(all_replicas).handlers(),
        "infer": Inference(kernel, max_input_size),
        "generate": Generate(kernel, max_input_size, stream=False),
        "generate_stream": Generate(kernel, max_input_size, stream=True),
    }
    if kernel.options.on_demand:
        handlers = on_demand(kernel, handlers)
    gate = kernel.gate
    router = Router(handlers, restrictions, local) if gate is None else GatedRouter(handlers, restrictions, gate)
    return Server(
        kernel,
        router,
        max_input_size=max_input_size,
        max_message_size=max_message_size,
        idle_seconds=idle_seconds,
        forward_pattern=forward_pattern,
    )


class HttpFrontend(ListeningFrontend):
    """KServe v2 over HTTP/1.1 on the kernel's loop. Raises ServingError where the options for TLS don't fit."""

    def __init__(self, kernel: Kernel, options: argparse.Namespace) -> None:
        endpoint = Endpoint(options.http_address, options.http_port)
        tls = frontend_options.tls_context(options, "http", ("http/1.1",))
        replies.overload.status = options.overload_status
        self.server = make_server(
            kernel,
            server_name=getattr(options, "id", None) or "triton",
            max_input_size=options.http_max_input_size,
            max_message_size=options.http_max_message_size,
            idle_seconds=options.http_idle_timeout,
            forward_pattern=options.http_header_forward_pattern or "",
            restrictions=options.http_restricted_api,
            local=local_categories(options, options.http_restricted_api),
        )
        listener = Listener(endpoint, "HTTP", reuse_port=options.reuse_http_port, tls=tls)
        scheme = "http" if tls is None else "https"
        exposed = endpoint.is_public and kernel.gate is None and not is_restricted(options, "http", options.http_restricted_api)
        super().__init__(kernel, listener, self.server, lambda: Connection(self.server), scheme, open_to_all=exposed)

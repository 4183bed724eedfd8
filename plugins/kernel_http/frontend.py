"""The front end as the kernel sees it: listening, drain. Puts the parts of this package together."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
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
from kernel_http.connection.browsers import ANY, Browsers
from kernel_http.connection.gated import GatedRouter
from kernel_http.connection.protocol import Connection
from kernel_http.connection.routes import Handler, Router
from kernel_http.connection.server import IDLE_SECONDS, MAX_MESSAGE_SIZE, Server
from kernel_http.inference.generate import Generate
from kernel_http.inference.infer import Inference
from kernel_http.operations.admin import Admin
from kernel_http.operations.on_demand import on_demand
from kernel_http.operations.openapi import OpenApi
from kernel_http.operations.settings import Settings
from kernel_http.operations.shared_memory import SharedMemoryRoutes
from kernel_http.operations.sites import serve_sites
from kernel_http.options import MAX_INPUT_SIZE

if TYPE_CHECKING:
    from kernel import Kernel, Site

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
    sites: Sequence[Site] = (),
    browsers: Browsers | None = None,
) -> Server:
    """Put routes and handlers together; `Connection(server)` is then the protocol object of a connection.

    `restrictions`: category of requests -> the name and value of the header that they must have. `local`: the categories whose
    changes are for clients of this machine alone; where there is a gate, they are for those that it lets pass. `sites`: pages for
    people, besides. `browsers`: what is asked of requests that come from pages; by default they have to come from one of ours.
    """
    browsers = browsers or Browsers([ANY], control=True)
    all_replicas = steered(kernel)
    handlers: dict[str, Handler] = {
        **Admin(all_replicas, server_name=server_name, server_version=__version__).handlers(),
        **SharedMemoryRoutes(all_replicas).handlers(),
        **Settings(all_replicas).handlers(),
        **OpenApi(kernel, server_name).handlers(),
        "infer": Inference(kernel, max_input_size),
        "generate": Generate(kernel, max_input_size, stream=False),
        "generate_stream": Generate(kernel, max_input_size, stream=True),
    }
    if kernel.options.on_demand:
        handlers = on_demand(kernel, handlers)
    rows, shown = serve_sites(sites)
    handlers.update(shown)
    gate = kernel.gate
    if gate is None:
        router = Router(handlers, restrictions, local, rows, browsers)
    else:
        router = GatedRouter(handlers, restrictions, gate, rows, browsers)
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
        self._sites = kernel.plugins.sites(kernel, options)
        browsers = Browsers(options.http_allowed_host, control=any(site.controls for site in self._sites))
        self.server = make_server(
            kernel,
            server_name=getattr(options, "id", None) or "triton",
            max_input_size=options.http_max_input_size,
            max_message_size=options.http_max_message_size,
            idle_seconds=options.http_idle_timeout,
            forward_pattern=options.http_header_forward_pattern or "",
            restrictions=options.http_restricted_api,
            local=local_categories(options, options.http_restricted_api),
            sites=self._sites,
            browsers=browsers,
        )
        listener = Listener(endpoint, "HTTP", reuse_port=options.reuse_http_port, tls=tls)
        scheme = "http" if tls is None else "https"
        exposed = endpoint.is_public and kernel.gate is None and not is_restricted(options, "http", options.http_restricted_api)
        super().__init__(kernel, listener, self.server, lambda: Connection(self.server), scheme, open_to_all=exposed)

    def refuse(self) -> None:
        """Stop listening, and end what only ends when the client wants it."""
        self._close_sites()
        super().refuse()

    async def drain(self) -> None:
        """Stop listening, finish what is in flight, close the connections; returns when none is left."""
        self._close_sites()
        await super().drain()

    def _close_sites(self) -> None:
        for site in self._sites:
            site.close()

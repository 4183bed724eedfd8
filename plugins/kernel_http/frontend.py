"""The front end as the kernel sees it: options, listening, drain. Puts the parts of this package together."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import re
from typing import TYPE_CHECKING, Any

from kernel import __version__
from kernel_http.admin import Admin
from kernel_http.generate import Generate
from kernel_http.infer import Inference
from kernel_http.protocol import Connection
from kernel_http.routes import Router
from kernel_http.server import Server

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["MAX_INPUT_SIZE", "HttpFrontend", "add_options", "make_server"]

MAX_INPUT_SIZE = 64 * 1024 * 1024

#: Connections that may wait to be accepted.
BACKLOG = 1024


def boolean(text: str) -> bool:
    """Read a boolean as tritonserver does."""
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise argparse.ArgumentTypeError(f"'{text}' is not a boolean: true, false, 1 or 0")


def pattern(text: str) -> str:
    """Check a regular expression."""
    try:
        re.compile(text.removeprefix("(?-i)"))
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a regular expression: {error}") from None
    return text


def size(text: str) -> int:
    """Read a positive number of bytes."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number of bytes")
    return int(text)


def port(text: str) -> int:
    """Read a port number."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: 0 to 65535")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add tritonserver's HTTP options."""
    group = parser.add_argument_group("HTTP")
    switch: dict[str, Any] = {"type": boolean, "nargs": "?", "const": True, "metavar": "BOOL"}
    group.add_argument("--allow-http", default=True, help="serve HTTP (default true)", **switch)
    group.add_argument("--http-address", default="0.0.0.0", metavar="ADDRESS", help="where to listen (default 0.0.0.0)")
    group.add_argument("--http-port", type=port, default=8000, metavar="PORT", help="port (default 8000; 0: any)")
    group.add_argument("--reuse-http-port", default=False, help="let several processes share the port", **switch)
    group.add_argument(
        "--http-thread-count", type=int, default=8, metavar="N", help="accepted and ignored: HTTP runs on the one loop"
    )
    group.add_argument(
        "--http-header-forward-pattern",
        type=pattern,
        default="",
        metavar="REGEX",
        help="request headers whose names match become request parameters",
    )
    group.add_argument(
        "--http-max-input-size",
        type=size,
        default=MAX_INPUT_SIZE,
        metavar="BYTES",
        help="the largest JSON part, JSON tensor or raw binary body (default 64 MiB)",
    )


def make_server(
    kernel: Kernel, *, server_name: str = "triton", max_input_size: int = MAX_INPUT_SIZE, forward_pattern: str = ""
) -> Server:
    """Put routes and handlers together; `Connection(server)` is then the protocol object of a connection."""
    admin = Admin(kernel, server_name=server_name, server_version=__version__)
    router = Router(
        {
            **admin.handlers(),
            "infer": Inference(kernel, max_input_size),
            "generate": Generate(kernel, max_input_size, stream=False),
            "generate_stream": Generate(kernel, max_input_size, stream=True),
        }
    )
    return Server(kernel, router, max_input_size=max_input_size, forward_pattern=forward_pattern)


class HttpFrontend:
    """KServe v2 over HTTP/1.1 on the kernel's loop."""

    def __init__(self, kernel: Kernel, options: argparse.Namespace) -> None:
        self._kernel = kernel
        self._host: str = options.http_address
        self._port: int = options.http_port
        self._reuse_port: bool = options.reuse_http_port
        self.server = make_server(
            kernel,
            server_name=getattr(options, "id", None) or "triton",
            max_input_size=options.http_max_input_size,
            forward_pattern=options.http_header_forward_pattern or "",
        )
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises OSError, in the reference's words when the port is taken."""
        try:
            self._listener = await self._kernel.loop.create_server(
                lambda: Connection(self.server),
                self._host,
                self._port,
                reuse_port=self._reuse_port or None,
                backlog=BACKLOG,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason = f"Socket '{self._host}:{self._port}' already in use "
            else:
                reason = f"can't listen on '{self._host}:{self._port}': {os.strerror(error.errno or 0)}"
            failure = OSError(f"failed to start HTTP service: Unavailable - {reason}")
            failure.errno = error.errno
            raise failure from error
        self._port = self._listener.sockets[0].getsockname()[1]

    async def drain(self) -> None:
        """Stop listening, answer what is in flight, close the connections; returns when none is left."""
        if self._listener is not None:
            self._listener.close()
        await self.server.drain()

    async def stop(self) -> None:
        """Close everything at once."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.server.abort()

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

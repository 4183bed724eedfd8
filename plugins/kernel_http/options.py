"""tritonserver's HTTP options, and ours for what it hasn't over HTTP (TLS), read and checked."""

from __future__ import annotations

import argparse

from kernel import frontend_options
from kernel_http.connection.server import IDLE_SECONDS, MAX_MESSAGE_SIZE

__all__ = ["MAX_INPUT_SIZE", "add_options"]

MAX_INPUT_SIZE = 64 * 1024 * 1024


def size(text: str) -> int:
    """Read a positive number of bytes."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number of bytes")
    return int(text)


def seconds(text: str) -> int:
    """Read a number of seconds."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command line."""
    group = parser.add_argument_group("HTTP")
    frontend_options.add_endpoint_options(group, "http", "HTTP", 8000)
    group.add_argument(
        "--http-thread-count", type=int, default=8, metavar="N", help="accepted and ignored: HTTP runs on the one loop"
    )
    group.add_argument(
        "--http-header-forward-pattern",
        type=frontend_options.pattern,
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
    group.add_argument(
        "--http-max-message-size",
        type=size,
        default=MAX_MESSAGE_SIZE,
        metavar="BYTES",
        help="the largest body of a request, binary tensors counted; a larger one is refused before it comes (default 2 GiB)",
    )
    group.add_argument(
        "--http-idle-timeout",
        type=seconds,
        default=int(IDLE_SECONDS),
        metavar="SECONDS",
        help=f"close connections that nothing has come on for so long (default {IDLE_SECONDS:.0f}; 0: never)",
    )
    group.add_argument(
        "--http-restricted-api",
        action=frontend_options.Restrict,
        default={},
        metavar="APIS:KEY=VALUE",
        help="serve these categories of requests (a comma between them) only to who sends this header; may be given repeatedly",
    )
    group.add_argument(
        "--http-allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which browsers may know this server, besides its addresses, localhost and the machine's own name: for "
        "its page, and for what changes it; * for any; may be given repeatedly",
    )
    group.add_argument(
        "--overload-status",
        type=int,
        choices=(429, 503),
        default=503,
        help="the status of a request that is refused as too many are in flight; either has Retry-After (default 503)",
    )
    frontend_options.add_tls_options(group, "http", "serve HTTPS", "serve HTTPS to clients with certificates")

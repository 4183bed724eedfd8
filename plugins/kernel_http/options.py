"""tritonserver's HTTP options, and ours for what it hasn't over HTTP (TLS), read and checked."""

from __future__ import annotations

import argparse
import re
import ssl
from typing import Any

from kernel import parse_restrictions, server_context

__all__ = ["MAX_INPUT_SIZE", "add_options", "tls_context"]

MAX_INPUT_SIZE = 64 * 1024 * 1024


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


def address(text: str) -> str:
    """Check an address to listen at."""
    if text == "unix:":
        raise argparse.ArgumentTypeError("'unix:' lacks the path of the socket, as in unix:/run/kernel.sock")
    return text


class _Restrict(argparse.Action):
    """Collects the values of a flag that may come several times, and checks them together."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        texts = [*getattr(namespace, self.dest + "_texts", ()), values]
        try:
            restrictions = parse_restrictions(texts, option or "")
        except ValueError as error:
            parser.error(str(error))
        setattr(namespace, self.dest + "_texts", texts)
        setattr(namespace, self.dest, restrictions)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command line."""
    group = parser.add_argument_group("HTTP")
    switch: dict[str, Any] = {"type": boolean, "nargs": "?", "const": True, "metavar": "BOOL"}
    group.add_argument("--allow-http", default=True, help="serve HTTP (default true)", **switch)
    group.add_argument(
        "--http-address",
        type=address,
        default="0.0.0.0",
        metavar="ADDRESS",
        help="where to listen: an address, or unix:/path for a Unix-domain socket (default 0.0.0.0)",
    )
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
    group.add_argument(
        "--http-restricted-api",
        action=_Restrict,
        default={},
        metavar="APIS:KEY=VALUE",
        help="serve these categories of requests (a comma between them) only to who sends this header; may be given repeatedly",
    )
    group.add_argument("--http-use-ssl", default=False, help="serve HTTPS (default false)", **switch)
    group.add_argument(
        "--http-use-ssl-mutual", default=False, help="serve HTTPS to clients with certificates (default false)", **switch
    )
    group.add_argument("--http-server-cert", default="", metavar="FILE", help="the server's certificate and its chain, PEM")
    group.add_argument("--http-server-key", default="", metavar="FILE", help="the private key of the certificate, PEM")
    group.add_argument(
        "--http-root-cert", default="", metavar="FILE", help="the authorities that client certificates come from, PEM"
    )


def tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the context for HTTPS, None for HTTP. Raises ServingError where a file can't be used."""
    if not (options.http_use_ssl or options.http_use_ssl_mutual):
        return None
    return server_context(
        options.http_server_cert,
        options.http_server_key,
        options.http_root_cert,
        mutual=options.http_use_ssl_mutual,
        alpn=("http/1.1",),
    )

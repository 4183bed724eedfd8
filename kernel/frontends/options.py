"""What the command lines of front ends have in common: how values are read, where they listen, TLS, who is restricted.

Public as the module `kernel.frontend_options`, since names such as `port` and `address` say what they are for only there. Each
front end gives its flags its own names and prefix; what a mistake is called is the same for all.
"""

from __future__ import annotations

import argparse
import re
import ssl
from collections.abc import Sequence
from typing import Any

from kernel.frontends.addresses import read_address
from kernel.frontends.restriction import parse_restrictions
from kernel.frontends.tls import server_context

__all__ = [
    "SWITCH",
    "Restrict",
    "add_endpoint_options",
    "add_tls_options",
    "address",
    "boolean",
    "pattern",
    "port",
    "tls_context",
]


def boolean(text: str) -> bool:
    """Read a boolean as tritonserver does. Raises ArgumentTypeError, as the next three do."""
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    raise argparse.ArgumentTypeError(f"invalid value for bool option: {text} — '{text}' is not a boolean: true, false, 1 or 0")


def pattern(text: str) -> str:
    """Check a regular expression, and return it."""
    try:
        re.compile(text.removeprefix("(?-i)"))
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a regular expression: {error}") from None
    return text


def port(text: str) -> int:
    """Read a port number, 0 to 65535."""
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — '{text}' is not a port: 0 to 65535")
    return int(text)


def address(text: str) -> str:
    """Check an address to listen at, and return it: an interface, or `unix:/path`."""
    if text == "unix:":
        raise argparse.ArgumentTypeError("'unix:' lacks the path of the socket, as in unix:/run/kernel.sock")
    if not text.startswith("unix:"):
        try:
            read_address(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


#: The arguments of `add_argument` for a boolean that alone means true.
SWITCH: dict[str, Any] = {"type": boolean, "nargs": "?", "const": True, "metavar": "BOOL"}


class Restrict(argparse.Action):
    """Collects the values of a flag that may come several times, and checks them together."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        texts = [*getattr(namespace, self.dest + "_texts", ()), values]
        try:
            restrictions = parse_restrictions(texts, option or "")
        except ValueError as error:
            parser.error(str(error))
        setattr(namespace, self.dest + "_texts", texts)
        setattr(namespace, self.dest, restrictions)


def add_endpoint_options(group: Any, prefix: str, service: str, default_port: int) -> None:
    """Add the flags that say whether and where `service` listens, such as `--http-port` for the prefix `http`."""
    group.add_argument(f"--allow-{prefix}", default=True, help=f"serve {service} (default true)", **SWITCH)
    group.add_argument(
        f"--{prefix}-address",
        type=address,
        default="0.0.0.0",
        metavar="ADDRESS",
        help="where to listen: an address, such as 127.0.0.1 or [::1], or unix:/path for a Unix-domain socket (default 0.0.0.0, "
        "which is every interface, of IPv4 and IPv6; ipv4:0.0.0.0: of IPv4 alone)",
    )
    words = f"port (default {default_port}; 0: any)"
    group.add_argument(f"--{prefix}-port", type=port, default=default_port, metavar="PORT", help=words)
    group.add_argument(f"--reuse-{prefix}-port", default=False, help="let several processes share the port", **SWITCH)


def add_tls_options(group: Any, prefix: str, use: str, mutual: str) -> None:
    """Add the flags for TLS. `use`, `mutual`: what the two switches are for."""
    file: dict[str, Any] = {"default": "", "metavar": "FILE"}
    group.add_argument(f"--{prefix}-use-ssl", default=False, help=f"{use} (default false)", **SWITCH)
    group.add_argument(f"--{prefix}-use-ssl-mutual", default=False, help=f"{mutual} (default false)", **SWITCH)
    group.add_argument(f"--{prefix}-server-cert", help="the server's certificate and its chain, PEM", **file)
    group.add_argument(f"--{prefix}-server-key", help="the private key of the certificate, PEM", **file)
    group.add_argument(f"--{prefix}-root-cert", help="the authorities that client certificates come from, PEM", **file)


def tls_context(options: argparse.Namespace, prefix: str, alpn: Sequence[str]) -> ssl.SSLContext | None:
    """Return the context that the flags of `add_tls_options` ask for, None for none.

    Raises ServingError where a file can't be used.
    """

    def said(name: str) -> Any:
        return getattr(options, f"{prefix}_{name}")

    if not (said("use_ssl") or said("use_ssl_mutual")):
        return None
    return server_context(
        said("server_cert"), said("server_key"), said("root_cert"), mutual=said("use_ssl_mutual"), alpn=alpn
    )

"""tritonserver's gRPC options, read and checked: what they are called, what they may say, what becomes of them."""

from __future__ import annotations

import argparse
import math
import re
import ssl
from typing import Any

from kernel import parse_restrictions, server_context
from kernel_grpc.compression import LEVELS
from kernel_grpc.keepalive import Keepalive

__all__ = ["add_options", "keepalive", "tls_context"]

#: The largest number of milliseconds that counts; from there on it means never.
NEVER = 2**31 - 1


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


def port(text: str) -> int:
    """Read a port number."""
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: 0 to 65535")
    return int(text)


def count(text: str) -> int:
    """Read an integer of at least 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"'{text}' is no integer of at least 0")
    return int(text)


def milliseconds(text: str) -> int:
    """Read a number of milliseconds, at least 1."""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of milliseconds, an integer greater than 0")
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
    group = parser.add_argument_group("gRPC")
    switch: dict[str, Any] = {"type": boolean, "nargs": "?", "const": True, "metavar": "BOOL"}
    file: dict[str, Any] = {"default": "", "metavar": "FILE"}
    group.add_argument("--allow-grpc", default=True, help="serve gRPC (default true)", **switch)
    group.add_argument(
        "--grpc-address",
        type=address,
        default="0.0.0.0",
        metavar="ADDRESS",
        help="where to listen: an address, or unix:/path for a Unix-domain socket (default 0.0.0.0)",
    )
    group.add_argument("--grpc-port", type=port, default=8001, metavar="PORT", help="port (default 8001; 0: any)")
    group.add_argument("--reuse-grpc-port", default=False, help="let several processes share the port", **switch)
    group.add_argument(
        "--grpc-header-forward-pattern",
        type=pattern,
        default="",
        metavar="REGEX",
        help="metadata whose names match become request parameters",
    )
    group.add_argument(
        "--grpc-infer-response-compression-level",
        choices=tuple(LEVELS),
        default="none",
        help="how well inference responses are compressed for clients that take that (default none)",
    )
    group.add_argument(
        "--grpc-restricted-protocol",
        action=_Restrict,
        default={},
        metavar="PROTOCOLS:KEY=VALUE",
        help="serve these categories of methods (a comma between them) only to who sends the metadata "
        "triton-grpc-protocol-KEY with this value; may be given repeatedly",
    )
    group.add_argument("--grpc-use-ssl", default=False, help="use TLS (default false)", **switch)
    group.add_argument(
        "--grpc-use-ssl-mutual", default=False, help="use TLS with client certificates (default false)", **switch
    )
    group.add_argument("--grpc-server-cert", help="the server's certificate and its chain, PEM", **file)
    group.add_argument("--grpc-server-key", help="the private key of the certificate, PEM", **file)
    group.add_argument("--grpc-root-cert", help="the authorities that client certificates come from, PEM", **file)
    _add_keepalive(group, switch)


def _add_keepalive(group: Any, switch: dict[str, Any]) -> None:
    time: dict[str, Any] = {"type": milliseconds, "metavar": "MS"}
    number: dict[str, Any] = {"type": count, "metavar": "N"}
    group.add_argument(
        "--grpc-keepalive-time", default=7200000, help="send a PING after so long a silence (default 7200000)", **time
    )
    group.add_argument(
        "--grpc-keepalive-timeout", default=20000, help="close where it is not answered in time (default 20000)", **time
    )
    group.add_argument(
        "--grpc-keepalive-permit-without-calls",
        default=False,
        help="PINGs, both ways, also while no call runs (default false)",
        **switch,
    )
    group.add_argument(
        "--grpc-http2-max-pings-without-data",
        default=2,
        help="PINGs to send before there has been data to send (default 2; 0: any number)",
        **number,
    )
    group.add_argument(
        "--grpc-http2-min-recv-ping-interval-without-data",
        default=300000,
        help="a client's PINGs must not come faster, unless it has been sent data in between (default 300000)",
        type=count,
        metavar="MS",
    )
    group.add_argument(
        "--grpc-http2-max-ping-strikes",
        default=2,
        help="close when a client has sent more than so many PINGs too fast (default 2; 0: never)",
        **number,
    )
    group.add_argument(
        "--grpc-max-connection-age",
        default=0,
        type=count,
        metavar="MS",
        help="let clients connect anew after so long (default 0: never)",
    )
    group.add_argument(
        "--grpc-max-connection-age-grace",
        default=0,
        type=count,
        metavar="MS",
        help="how long the calls of an old connection may go on (default 0: for ever)",
    )


def keepalive(options: argparse.Namespace) -> Keepalive:
    """Return what the options say of PINGs and the age of connections."""

    def seconds(value: int) -> float:
        return value / 1000 if 0 < value < NEVER else math.inf

    return Keepalive(
        time=seconds(options.grpc_keepalive_time),
        timeout=seconds(options.grpc_keepalive_timeout),
        permit_without_calls=options.grpc_keepalive_permit_without_calls,
        max_pings_without_data=options.grpc_http2_max_pings_without_data,
        min_recv_interval=options.grpc_http2_min_recv_ping_interval_without_data / 1000,
        max_strikes=options.grpc_http2_max_ping_strikes,
        max_age=seconds(options.grpc_max_connection_age),
        age_grace=seconds(options.grpc_max_connection_age_grace),
    )


def tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the context for TLS, None for none. Raises ServingError where a file can't be used."""
    if not (options.grpc_use_ssl or options.grpc_use_ssl_mutual):
        return None
    return server_context(
        options.grpc_server_cert,
        options.grpc_server_key,
        options.grpc_root_cert,
        mutual=options.grpc_use_ssl_mutual,
        alpn=("h2",),
    )

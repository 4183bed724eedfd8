"""tritonserver's gRPC options, read and checked: what they are called, what they may say, what becomes of them."""

from __future__ import annotations

import argparse
import math
from typing import Any

from kernel import frontend_options
from kernel_grpc.rpc.assembly import MAX_MESSAGE
from kernel_grpc.rpc.compression import LEVELS
from kernel_grpc.rpc.keepalive import Keepalive
from kernel_grpc.rpc.limits import Limits

__all__ = ["add_options", "keepalive", "limits"]

#: The largest number of milliseconds that counts; from there on it means never.
NEVER = 2**31 - 1


#: What `--grpc-max-NAME` limits.
LIMITS = {
    "tensors": "the most inputs of a request, and outputs, and pieces of raw data",
    "parameters": "the most parameters of a request and its tensors",
}


def count(text: str) -> int:
    """Read an integer of at least 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"Invalid option value. Got {text} — '{text}' is no integer of at least 0")
    return int(text)


def milliseconds(text: str) -> int:
    """Read a number of milliseconds, at least 1."""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of milliseconds, an integer greater than 0")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command line."""
    group = parser.add_argument_group("gRPC")
    frontend_options.add_endpoint_options(group, "grpc", "gRPC", 8001)
    group.add_argument(
        "--grpc-header-forward-pattern",
        type=frontend_options.pattern,
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
        action=frontend_options.Restrict,
        default={},
        metavar="PROTOCOLS:KEY=VALUE",
        help="serve these categories of methods (a comma between them) only to who sends the metadata "
        "triton-grpc-protocol-KEY with this value; may be given repeatedly",
    )
    frontend_options.add_tls_options(group, "grpc", "use TLS", "use TLS with client certificates")
    _add_keepalive(group)
    _add_limits(group)


def _add_limits(group: Any) -> None:
    group.add_argument(
        "--grpc-max-message-size",
        default=MAX_MESSAGE,
        type=message_size,
        metavar="BYTES",
        help=f"the largest message that is taken, also unpacked (default {MAX_MESSAGE})",
    )
    size: dict[str, Any] = {"type": count, "metavar": "BYTES"}
    time: dict[str, Any] = {"type": count, "metavar": "MS"}
    group.add_argument(
        "--grpc-max-connection-queue",
        default=Limits().queue,
        help=f"what may wait for one client before its further inferences do, until it has read half (default {Limits().queue})",
        **size,
    )
    group.add_argument(
        "--grpc-request-timeout",
        default=60000,
        help="how long a request may take to come, longer while it does (default 60000; 0: for ever)",
        **time,
    )
    group.add_argument(
        "--grpc-send-timeout",
        default=300000,
        help="close where a client has taken nothing of what waits for so long (default 300000; 0: never)",
        **time,
    )
    group.add_argument(
        "--grpc-max-connection-idle",
        default=3600000,
        help="let clients connect anew after so long without a call (default 3600000; 0: never)",
        **time,
    )
    group.add_argument(
        "--grpc-least-rate",
        default=1024,
        help="bytes a second that requests must come with, and large answers be taken with (default 1024)",
        **size,
    )
    for name, what in LIMITS.items():
        default = getattr(Limits(), name)
        group.add_argument(
            f"--grpc-max-{name}", default=default, type=count, metavar="N", help=f"{what} (default {default})"
        )


def message_size(text: str) -> int:
    """Read the size of the largest message: a gRPC message can have no more than 2 GiB."""
    size = count(text)
    if not 0 < size <= MAX_MESSAGE:
        raise argparse.ArgumentTypeError(f"'{text}' is no size of a message, 1 to {MAX_MESSAGE}")
    return size


def limits(options: argparse.Namespace) -> Limits:
    """Return what the options say of the size of requests."""
    counts = {name: getattr(options, f"grpc_max_{name}") for name in LIMITS}
    return Limits(
        **counts,
        message_size=options.grpc_max_message_size,
        queue=options.grpc_max_connection_queue,
        request_timeout=seconds(options.grpc_request_timeout),
        send_timeout=seconds(options.grpc_send_timeout),
        idle=seconds(options.grpc_max_connection_idle),
        least_rate=options.grpc_least_rate,
    )


def _add_keepalive(group: Any) -> None:
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
        **frontend_options.SWITCH,
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


def seconds(value: int) -> float:
    """Return a number of milliseconds in seconds, inf where it means never."""
    return value / 1000 if 0 < value < NEVER else math.inf


def keepalive(options: argparse.Namespace) -> Keepalive:
    """Return what the options say of PINGs and the age of connections."""
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

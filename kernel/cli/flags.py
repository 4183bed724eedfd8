"""tritonserver's flags: which of them `kernel serve` has, which have nothing to act on here, and which are still missing.

All names of Triton's command line are known: a flag that is missing says so instead of being taken for a slip of the pen.
Front ends bring their own flags along (hook `add_options`); what they have added is left to them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from kernel.cli.backend_config import add_backend_flags
from kernel.cli.cache_config import add_cache_flags
from kernel.cli.group_flags import add_group_flags
from kernel.cli.parser import Parser, boolean, positive, seconds, size
from kernel.cli.record_config import add_record_flags
from kernel.cli.trace_config import add_trace_flags
from kernel.config import parse_refuse_late
from kernel.observability import LOG_FORMATS, LogOptions
from kernel.options import StorageOptions
from kernel.rules import ResourceLimit

__all__ = [
    "add_config_flags",
    "add_log_flags",
    "add_other_flags",
    "add_rate_flags",
    "add_repository_flags",
    "add_serve_flags",
    "add_storage_flags",
    "add_strict_flag",
    "auto_complete",
    "is_missing",
    "is_without_effect",
    "log_options",
    "repositories",
    "storage_options",
]

#: They tune what this server doesn't have (memory pools, thread pools, shared-memory regions of model processes, plug-in
#: folders): accepted, so that a start script needs no change, and answered with a warning.
WITHOUT_EFFECT = """
    backend-directory repoagent-directory cache-directory host-policy min-supported-compute-capability
    model-load-gpu-limit pinned-memory-pool-byte-size cuda-memory-pool-byte-size buffer-manager-thread-count
    http-thread-count grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size
    metrics-interval-ms allow-gpu-metrics allow-cpu-metrics
""".split()

#: What a flag may say although the feature is missing: that it isn't wanted.
MISSING: dict[str, Sequence[str]] = {
    "allow-http": ("false", "0"),
    "http-address": (),
    "http-port": (),
    "reuse-http-port": ("false", "0"),
    "http-header-forward-pattern": ("",),
    "http-max-input-size": (),
    "http-restricted-api": (),
    "allow-grpc": ("false", "0"),
    "grpc-address": (),
    "grpc-port": (),
    "reuse-grpc-port": ("false", "0"),
    "grpc-header-forward-pattern": ("",),
    "grpc-restricted-protocol": (),
    "grpc-use-ssl": ("false", "0"),
    "grpc-use-ssl-mutual": ("false", "0"),
    "grpc-server-cert": (),
    "grpc-server-key": (),
    "grpc-root-cert": (),
    "grpc-infer-response-compression-level": ("none",),
    "grpc-keepalive-time": (),
    "grpc-keepalive-timeout": (),
    "grpc-keepalive-permit-without-calls": (),
    "grpc-http2-max-pings-without-data": (),
    "grpc-http2-min-recv-ping-interval-without-data": (),
    "grpc-http2-max-ping-strikes": (),
    "grpc-max-connection-age": (),
    "grpc-max-connection-age-grace": (),
    "allow-metrics": ("false", "0"),
    "metrics-address": (),
    "metrics-port": (),
    "metrics-config": (),
}

#: Missing flags that are booleans, alone the same as `true`.
_SWITCHES = frozenset(flag for flag, values in MISSING.items() if "false" in values)


class _Refuse(argparse.Action):
    """A flag whose feature is missing."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        name = (option or "").removeprefix("--")
        if str(values).lower() not in map(str.lower, MISSING[name]):
            allowed = [f"--{name}={value}" for value in MISSING[name][:1] if value]
            hint = f"; {allowed[0]} is accepted" if allowed else ""
            parser.error(f"tritonserver's --{name} is not implemented in this version{hint}")


class _Ignore(argparse.Action):
    """A flag that has nothing to act on. What it said is kept: the metrics show a size that is asked for."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, values)
        namespace.without_effect = [*getattr(namespace, "without_effect", ()), option]


def add_repository_flags(parser: Parser) -> None:
    parser.add_argument(
        "repositories",
        nargs="*",
        metavar="REPO",
        help="folder that holds a folder for each model, or a location: s3://, gs://, az:// or as://",
    )
    parser.add_argument(
        "--model-repository", "--model-store", action="append", default=[], metavar="REPO", help="the same, as in Triton"
    )


def add_storage_flags(parser: Parser) -> None:
    parser.add_argument(
        "--storage-cache",
        default="",
        metavar="DIR",
        help="where files of object stores are kept (default: kernel-serve/storage in $XDG_CACHE_HOME or ~/.cache)",
    )
    parser.add_argument(
        "--storage-cache-size",
        type=size,
        default=0,
        metavar="BYTES",
        help="how much may be kept there; what was used least recently goes (default: 0, half of what the file system has)",
    )
    parser.add_argument(
        "--storage-max-objects",
        type=positive,
        default=100_000,
        metavar="N",
        help="how many objects one repository in a store may have (default: 100000)",
    )


def storage_options(options: argparse.Namespace) -> StorageOptions:
    return StorageOptions(
        cache=options.storage_cache, cache_size=options.storage_cache_size, max_objects=options.storage_max_objects
    )


def repositories(parser: Parser, options: argparse.Namespace) -> list[str]:
    """Return the repositories named in either way; one at least."""
    paths = [*options.repositories, *options.model_repository]
    if not paths:
        parser.error("--model-repository must be specified")
    return paths


def add_config_flags(parser: Parser) -> None:
    parser.add_switch("--disable-auto-complete-config", False, "take configs as they are, ask models for nothing")
    parser.add_argument("--strict-model-config", nargs="?", const=True, type=boolean, help=argparse.SUPPRESS)
    parser.add_argument(
        "--model-config-name", default="", metavar="NAME", help="use configs/NAME.pbtxt of a model where it has one"
    )


def add_strict_flag(parser: Parser, default: bool) -> None:
    parser.add_switch(
        "--strict-outputs", default, "outputs that differ from a model's config are errors, not just worth a warning"
    )


def auto_complete(options: argparse.Namespace) -> bool:
    """Whether configs may be completed; `--strict-model-config` is the old name of the opposite."""
    return not (options.disable_auto_complete_config or options.strict_model_config)


def add_log_flags(parser: Parser, *, info: bool = True) -> None:
    parser.add_argument(
        "--log-verbose", type=seconds, default=0, metavar="N", help="above 0: log everything (default: 0)"
    )
    parser.add_switch("--log-info", info, "log information")
    parser.add_switch("--log-warning", True, "log warnings")
    parser.add_switch("--log-error", True, "log errors")
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, default="default", help="form of log lines; json: one object each (default: default)"
    )
    parser.add_argument("--log-file", default="", metavar="FILE", help="log to a file instead of the console")


def add_access_flag(parser: Parser) -> None:
    parser.add_argument(
        "--access-log",
        default="",
        metavar="FILE",
        help="write a line of JSON about each inference request that is answered; - for the standard output (default: none)",
    )


def log_options(options: argparse.Namespace) -> LogOptions:
    return LogOptions(
        info=options.log_info,
        warning=options.log_warning,
        error=options.log_error,
        verbose=options.log_verbose,
        format=options.log_format,
        file=options.log_file,
    )


def add_serve_flags(parser: Parser) -> None:
    """Add the flags of `kernel serve` that no front end brings along, in the order in which the help has them."""
    add_repository_flags(parser)
    add_storage_flags(parser)
    _add_residency_flags(parser)
    _add_loading_flags(parser)
    add_config_flags(parser)
    add_strict_flag(parser, False)
    _add_start_flags(parser)
    add_group_flags(parser)
    _add_stop_flags(parser)
    _add_execution_flags(parser)
    _add_access_flags(parser)
    _add_limit_flags(parser)
    add_backend_flags(parser)
    add_rate_flags(parser)
    add_cache_flags(parser)
    add_log_flags(parser)
    add_access_flag(parser)
    add_trace_flags(parser)
    add_record_flags(parser)


def _add_residency_flags(parser: Parser) -> None:
    """Which models are there, and for how long."""
    parser.add_argument("--id", default="triton", help="name of the server in its metadata (default: triton)")
    parser.add_argument(
        "--model-control-mode",
        choices=("none", "poll", "explicit", "on-demand"),
        default="none",
        help="none: load all models at start; poll: follow the repositories as well; explicit: load those of --load-model, "
        "more on request; on-demand: load a model when it is first asked for (default: none)",
    )
    parser.add_argument(
        "--model-budget",
        type=size,
        default=0,
        metavar="N",
        help="how many models may be there at a time in mode on-demand; the least recently used ones go (default: 0, any number)",
    )
    parser.add_argument(
        "--memory-budget",
        type=size,
        default=0,
        metavar="BYTES",
        help="how much memory the server and its models' processes may take in mode on-demand before models go (default: 0, any)",
    )
    parser.add_argument(
        "--model-idle-timeout",
        type=seconds,
        default=0,
        metavar="SECONDS",
        help="how long a model stays that is not asked for, in mode on-demand; parameter idle_timeout goes before it (default: "
        "0, any time)",
    )


def _add_loading_flags(parser: Parser) -> None:
    """How they are found and loaded."""
    parser.add_argument(
        "--repository-poll-secs",
        type=seconds,
        default=15,
        metavar="SECONDS",
        help="how often to look at the repositories in mode poll; 0: never again (default: 15)",
    )
    parser.add_argument(
        "--load-model", action="append", default=[], metavar="NAME", help="load at start in explicit mode; * for all"
    )
    parser.add_argument(
        "--model-load-thread-count", type=positive, default=4, metavar="N", help="models that load at a time (default: 4)"
    )
    parser.add_argument(
        "--model-load-retry-count",
        type=seconds,
        default=0,
        metavar="N",
        help="how often a model that fails to load is tried again (default: 0)",
    )
    parser.add_switch(
        "--model-namespacing", False, "several repositories may have models of one name; ensembles use those beside them"
    )


def _add_start_flags(parser: Parser) -> None:
    """What a model that fails to load means."""
    parser.add_switch(
        "--watch", False, "for development: reload models when they are saved; implies --strict-outputs, --exit-on-error=false"
    )
    parser.add_switch("--exit-on-error", True, "exit when a model fails to load at start")
    parser.add_switch("--strict-readiness", True, "not ready while a model has failed")


def _add_stop_flags(parser: Parser) -> None:
    """How long a stop takes."""
    parser.add_argument(
        "--exit-timeout-secs",
        type=seconds,
        default=30,
        metavar="SECONDS",
        help="how long a stop may wait for requests in flight (default: 30)",
    )
    parser.add_argument(
        "--drain-delay",
        type=seconds,
        metavar="SECONDS",
        help="how long a stop leaves the ports open and serves what comes, while health checks say already that the server is "
        "not ready; as long as a load balancer may take to notice (default: half a second)",
    )


def _add_execution_flags(parser: Parser) -> None:
    """Which requests are refused, and how long executions may last."""
    parser.add_argument(
        "--max-inflight",
        type=size,
        default=0,
        metavar="N",
        help="how many requests may be in flight before further ones are refused (UNAVAILABLE; over HTTP 503 with Retry-After); "
        "a model's parameter max_inflight is for it alone (default: 0, any number)",
    )
    parser.add_argument(
        "--execution-timeout",
        type=seconds,
        default=0,
        metavar="SECONDS",
        help="how long an execution may last before its requests are answered with the place in the model's code; a model's "
        "process is ended and begins anew where it lasts twice as long; parameter execution_timeout goes before it (default: 0, "
        "any time)",
    )
    parser.add_argument(
        "--refuse-late",
        nargs="?",
        const=0.0,
        default=None,
        type=refuse_late,
        metavar="HEADROOM",
        help="refuse requests at once whose deadline (gRPC) or parameter timeout can't be met, as the queue and the measured "
        "times of executions predict; HEADROOM: the share of its time that a request has to have left then, from 0 to below 1; a "
        "model's parameter refuse_late goes before it (default: off)",
    )


def _add_access_flags(parser: Parser) -> None:
    """What is for clients of this machine."""
    parser.add_argument(
        "--allow-client-shm",
        nargs="?",
        const=True,
        default="local",
        type=client_shm,
        metavar="BOOL|local",
        help="let clients register shared memory; local: those of this machine, by a loopback address or a Unix socket "
        "(default: local)",
    )
    parser.add_switch(
        "--safe",
        False,
        "keep what changes something for everybody (loading, shared memory, settings of log and traces), and /v2/inflight, for "
        "clients of this machine, and for those with a key of a restricted API",
    )


def _add_limit_flags(parser: Parser) -> None:
    """How much clients may take."""
    parser.add_argument(
        "--memory-limit-receive",
        type=size,
        default=0,
        metavar="BYTES",
        help="how much requests may hold, from their first byte to their answer; above it new ones are refused (default: 0, a "
        "quarter of the machine's or the container's memory)",
    )
    parser.add_argument(
        "--memory-limit-send",
        type=size,
        default=0,
        metavar="BYTES",
        help="how much answers may hold that clients have not taken; above it new requests are refused (default: 0, as above)",
    )
    parser.add_argument(
        "--max-connections",
        type=size,
        default=0,
        metavar="N",
        help="how many connections clients may have, at all ports; further ones may ask for health alone (default: 0, as many as "
        "there are files that may be open)",
    )
    parser.add_argument(
        "--max-connections-per-address",
        type=size,
        default=0,
        metavar="N",
        help="how many connections may come from one address; further ones are closed (default: 0, no limit)",
    )
    parser.add_argument(
        "--max-request-values",
        type=size,
        default=0,
        metavar="N",
        help="how many JSON values, and strings of a BYTES tensor, one request may have; arrays of numbers, in regular lists or "
        "flat, and binary data are not counted (default: 0, 1048576)",
    )


def add_rate_flags(parser: Parser) -> None:
    parser.add_argument(
        "--rate-limit",
        type=str.lower,
        choices=("off", "execution_count"),
        default="off",
        help="execution_count: an instance starts only when the resources of its rate_limiter are free, and the one with the "
        "fewest executions is the next; off: as soon as it is idle (default: off)",
    )
    parser.add_argument(
        "--rate-limit-resource",
        type=resource,
        action="append",
        default=[],
        metavar="NAME:COUNT[:DEVICE]",
        help="how much there is of a resource; by default as much as the instance needs that needs most",
    )


def client_shm(text: str) -> bool | str:
    """Read a value of --allow-client-shm."""
    return "local" if text.lower() == "local" else boolean(text)


def refuse_late(text: str) -> float:
    """Check a value of --refuse-late."""
    try:
        headroom = parse_refuse_late(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if headroom is None:
        raise argparse.ArgumentTypeError("off is the default: leave the flag out")
    return headroom


def resource(text: str) -> str:
    """Check a value of --rate-limit-resource."""
    try:
        ResourceLimit.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def is_missing(action: argparse.Action) -> bool:
    """Whether it is a flag of tritonserver's whose feature is missing."""
    return isinstance(action, _Refuse)


def is_without_effect(action: argparse.Action) -> bool:
    """Whether it is a flag of tritonserver's that has nothing to act on: one that nobody has, or that a front end only takes."""
    return isinstance(action, _Ignore) or (action.help or "").startswith("accepted and ignored")


def add_other_flags(parser: Parser) -> None:
    """Add the rest of tritonserver's flags, those that the plugins have not added: to be ignored, or refused with the reason."""
    parser.set_defaults(without_effect=[])
    for name in WITHOUT_EFFECT:
        if not parser.knows(f"--{name}"):
            parser.add_argument(f"--{name}", action=_Ignore, help=argparse.SUPPRESS)
    for name in MISSING:
        if not parser.knows(f"--{name}"):
            nargs = "?" if name in _SWITCHES else None
            const = True if name in _SWITCHES else None
            parser.add_argument(f"--{name}", action=_Refuse, nargs=nargs, const=const, help=argparse.SUPPRESS)

"""`--trace-config` and its older forms: the trace settings at start, as tritonserver takes them.

A setting stands alone (`rate=5`), or behind the mode that it is for (`triton,file=trace.json`). One that isn't there is refused;
the reference ignores it. What the settings of a plugin's mode mean is the business of its sink (hook `make_trace_sink`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernel.cli.parser import Parser
from kernel.observability import LEVELS, OFF, OPENTELEMETRY, RANGES, TRITON, TraceOptions

__all__ = ["OLD", "add_trace_flags", "trace_options"]

#: Setting in `--trace-config` -> the option's name, the smallest and the largest number.
NUMBERS = {
    "rate": ("rate", *RANGES["trace_rate"]),
    "count": ("count", *RANGES["trace_count"]),
    "triton,log-frequency": ("log_frequency", *RANGES["log_frequency"]),
    "opentelemetry,bsp_max_queue_size": ("bsp_max_queue_size", 1, 2**31 - 1),
    "opentelemetry,bsp_schedule_delay": ("bsp_schedule_delay", 1, 2**31 - 1),
    "opentelemetry,bsp_max_export_batch_size": ("bsp_max_export_batch_size", 1, 2**31 - 1),
}

#: The older flags: how their settings are called in `--trace-config`.
OLD = {
    "--trace-file": "triton,file",
    "--trace-level": "level",
    "--trace-rate": "rate",
    "--trace-count": "count",
    "--trace-log-frequency": "triton,log-frequency",
}

#: The levels that tritonserver had before, of which both mean the moments.
OLD_LEVELS = ("MIN", "MAX")

THERE = (
    "level, rate, count, mode, triton,file, triton,log-frequency, opentelemetry,url, opentelemetry,resource and "
    "opentelemetry,bsp_max_queue_size, …bsp_schedule_delay, …bsp_max_export_batch_size"
)


class _Trace(argparse.Action):
    """A trace setting: `--trace-config rate=5`, or in the older form `--trace-rate 5`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        flag = option or ""
        name, equals, value = OLD.get(flag, ""), "=", values
        if not name:
            name, equals, value = values.partition("=")
        name = name.strip().lower()
        if not equals:
            words = f"{flag} option format is '<trace mode>,<setting>=<value>'. Got {values}"
            parser.error(f"{words} — {flag} '{values}' is not of the form <setting>=<value> or <mode>,<setting>=<value>")
        try:
            namespace.trace = _changed(namespace.trace, {"log-frequency": "triton,log-frequency"}.get(name, name), value)
        except ValueError as error:
            parser.error(f"{flag} '{values}': {error}")


def _changed(options: TraceOptions, name: str, value: str) -> TraceOptions:
    """Return the options with one of them set. Raises ValueError with what is wrong."""
    if name in NUMBERS:
        field, low, high = NUMBERS[name]
        if not re.fullmatch(r"-?[0-9]{1,20}", value) or not low <= int(value) <= high:
            raise ValueError(f"{name} is an integer from {low} to {high}")
        number: dict[str, Any] = {field: int(value)}
        return replace(options, **number)
    setter = SETTERS.get(name)
    if setter is not None:
        return setter(options, value)
    mode, comma, key = name.partition(",")
    if key and mode == options.mode and mode not in (TRITON, OPENTELEMETRY):
        return replace(options, settings=(*(pair for pair in options.settings if pair[0] != key), (key, value)))
    hint = f"; those of a plugin's mode stand behind mode={mode}" if comma and mode not in (TRITON, OPENTELEMETRY) else ""
    raise ValueError(f"there is no trace setting '{name}'; there are {THERE}{hint}")


def _level(options: TraceOptions, value: str) -> TraceOptions:
    level = value.strip().upper()
    if level in OLD_LEVELS:
        level = LEVELS[0]
    if level == OFF:
        return replace(options, level=(OFF,))
    if level not in LEVELS:
        raise ValueError(f"level is one of {', '.join((OFF, *LEVELS))}")
    return replace(options, level=tuple(one for one in LEVELS if one == level or one in options.level))


def _mode(options: TraceOptions, value: str) -> TraceOptions:
    if not re.fullmatch(r"[a-z][a-z0-9_.-]*", value, re.IGNORECASE):  # whether it is a plugin's is known at the start only
        raise ValueError(f"mode is {TRITON}, {OPENTELEMETRY} or that of a plugin's trace sink")
    return replace(options, mode=value.lower())


def _url(options: TraceOptions, value: str) -> TraceOptions:
    if not re.fullmatch(r"https?://[^/]+.*", value):
        raise ValueError("url is the whole address that spans are posted to, as in http://localhost:4318/v1/traces")
    return replace(options, url=value)


def _resource(options: TraceOptions, value: str) -> TraceOptions:
    key, equals, text = value.partition("=")
    if not (key and equals):
        raise ValueError("resource is <key>=<value>")
    return replace(options, resource=(*(pair for pair in options.resource if pair[0] != key), (key, text)))


SETTERS: dict[str, Callable[[TraceOptions, str], TraceOptions]] = {
    "level": _level,
    "mode": _mode,
    "triton,file": lambda options, value: replace(options, file=value),
    "opentelemetry,url": _url,
    "opentelemetry,resource": _resource,
}


def add_trace_flags(parser: Parser) -> None:
    """Add `--trace-config` and its older forms."""
    parser.set_defaults(trace=TraceOptions())
    parser.add_argument(
        "--trace-config",
        action=_Trace,
        metavar="SETTING=VALUE",
        help="trace settings at start, each with a flag of its own: level=TIMESTAMPS (or TENSORS, OFF), rate=N, count=N, "
        "mode=triton with triton,file=PATH and triton,log-frequency=N, mode=opentelemetry with opentelemetry,url=URL",
    )
    for flag in OLD:
        parser.add_argument(flag, action=_Trace, help=argparse.SUPPRESS)


def trace_options(options: argparse.Namespace) -> TraceOptions:
    trace: TraceOptions = options.trace
    role = getattr(options, "replica", None)
    if role is not None and trace.file:
        trace = replace(trace, file=f"{trace.file}.replica{role.index}")  # each writes a file of its own, from its beginning
    return trace

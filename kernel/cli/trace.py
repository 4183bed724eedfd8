"""`--trace-config` and its older forms: the trace settings at start.

Nothing is traced in this version: what would switch tracing on is refused here, and later by the settings themselves.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

from kernel.cli.parser import Parser
from kernel.settings import RANGES, TraceOptions

__all__ = ["add_trace_flags", "trace_options"]

#: What is accepted of tracing: the setting's name in `--trace-config` -> the option's and the protocol's.
TRACE_NUMBERS = {
    "rate": ("rate", "trace_rate"),
    "count": ("count", "trace_count"),
    "triton,log-frequency": ("log_frequency", "log_frequency"),
    "log-frequency": ("log_frequency", "log_frequency"),
}


class _Trace(argparse.Action):
    """A trace setting: `--trace-config rate=5`, or in the older form `--trace-rate 5`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        flag = option or ""
        name, equals, value = values.partition("=")
        if flag != "--trace-config":
            name, equals, value = flag.removeprefix("--trace-"), "=", values
        name = name.strip().lower()
        if not equals:
            parser.error(f"{flag} '{values}' is not of the form <setting>=<value> or <mode>,<setting>=<value>")
        if name in TRACE_NUMBERS:
            field, setting = TRACE_NUMBERS[name]
            low, high = RANGES[setting]
            if not re.fullmatch(r"-?[0-9]{1,20}", value) or not low <= int(value) <= high:
                parser.error(f"{flag} '{values}': {name} is an integer from {low} to {high}")
            namespace.trace = replace(namespace.trace, **{field: int(value)})
        elif (name, value.lower()) not in (("level", "off"), ("mode", "triton")):
            there = "level=OFF, mode=triton, rate, count and triton,log-frequency"
            parser.error(f"tritonserver's {flag} {values} is not implemented in this version; there are {there}")


def add_trace_flags(parser: Parser) -> None:
    """Add `--trace-config` and its older forms. Only the settings are there: nothing is traced in this version."""
    parser.set_defaults(trace=TraceOptions())
    parser.add_argument(
        "--trace-config",
        action=_Trace,
        metavar="SETTING=VALUE",
        help="rate=N, count=N, triton,log-frequency=N: trace settings at start; level=OFF (nothing is traced in this version)",
    )
    for name in ("trace-level", "trace-rate", "trace-count", "trace-log-frequency"):
        parser.add_argument(f"--{name}", action=_Trace, help=argparse.SUPPRESS)


def trace_options(options: argparse.Namespace) -> TraceOptions:
    trace: TraceOptions = options.trace
    return trace

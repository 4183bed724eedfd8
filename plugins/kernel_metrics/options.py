"""tritonserver's metrics options, read and checked, and the record of what they ask for.

A setting of `--metrics-config` that isn't known is a mistake here: the reference takes a misspelt one without a word.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kernel import frontend_options

__all__ = ["MetricsSettings", "add_options", "settings"]

DEFAULT_ADDRESS = "0.0.0.0"
DEFAULT_PORT = 8002
DEFAULT_INTERVAL_MS = 2000

#: Of the reference, in bytes; here the option has no other use than to be shown.
POOL = 1 << 28

#: quantile -> how far the rank may be off.
QUANTILES: Mapping[float, float] = MappingProxyType({0.5: 0.05, 0.9: 0.01, 0.95: 0.001, 0.99: 0.001, 0.999: 0.001})

SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")
NAMES = (*SWITCHES, "summary_quantiles")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What the page shows. `interval`: seconds for which what the machine was asked is good enough."""

    counter_latencies: bool = True
    summary_latencies: bool = False
    histogram_latencies: bool = False
    summary_quantiles: Mapping[float, float] = field(default_factory=lambda: QUANTILES)
    cpu: bool = True
    gpu: bool = True
    interval: float = DEFAULT_INTERVAL_MS / 1000
    pinned_bytes: int = POOL


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command line."""
    group = parser.add_argument_group("metrics")
    group.add_argument(
        "--allow-metrics", default=True, help="serve the Prometheus page (default true)", **frontend_options.SWITCH
    )
    group.add_argument(
        "--metrics-address",
        type=frontend_options.address,
        default=None,
        metavar="ADDRESS",
        help="where to listen: an address, such as 127.0.0.1 or [::1], or unix:/path for a Unix-domain socket "
        "(default: the one of HTTP)",
    )
    group.add_argument(
        "--metrics-port",
        type=frontend_options.port,
        default=DEFAULT_PORT,
        metavar="PORT",
        help=f"port (default {DEFAULT_PORT}; 0: any)",
    )
    group.add_argument(
        "--metrics-interval-ms",
        type=_milliseconds,
        default=DEFAULT_INTERVAL_MS,
        metavar="MS",
        help=f"how old the figures of CPU, memory and GPUs may be (default {DEFAULT_INTERVAL_MS})",
    )
    group.add_argument(
        "--metrics-config",
        action=_Setting,
        default={},
        metavar="SETTING=VALUE",
        help="counter_latencies=BOOL, summary_latencies=BOOL, summary_quantiles=Q:ERROR,…, histogram_latencies=BOOL; "
        "may be given repeatedly",
    )
    for name, what in (("cpu", "CPU and memory"), ("gpu", "GPUs")):
        group.add_argument(
            f"--allow-{name}-metrics", default=True, help=f"show figures of {what} (default true)", **frontend_options.SWITCH
        )


def settings(options: argparse.Namespace) -> MetricsSettings:
    """Return what the options ask for."""
    return MetricsSettings(
        cpu=options.allow_cpu_metrics,
        gpu=options.allow_gpu_metrics,
        interval=options.metrics_interval_ms / 1000,
        pinned_bytes=_pool(getattr(options, "pinned_memory_pool_byte_size", None)),
        **options.metrics_config,
    )


class _Setting(argparse.Action):
    """Collects the settings of `--metrics-config`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        name, equals, value = (part.strip() for part in values.partition("="))
        if not (name and equals and value):
            words = f"{option} option format is <setting>=<value>. Got {values}"
            parser.error(f"{words} — argument {option}: '{values}' is not of the form <setting>=<value>")
        if name in SWITCHES:
            try:
                read: Any = frontend_options.boolean(value)
            except argparse.ArgumentTypeError as error:
                parser.error(f"argument {option}: {name}: {error}")
        elif name == "summary_quantiles":
            try:
                read = _quantiles(value)
            except ValueError as error:
                parser.error(f"argument {option}: {error}")
        else:
            near = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
            parser.error(f"argument {option}: unknown setting '{name}'; {hint}")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: read})


def _pool(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else POOL


def _milliseconds(text: str) -> int:
    """Read a number of milliseconds."""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number of milliseconds")
    return int(text)


def _quantiles(text: str) -> dict[float, float]:
    """Read pairs of a quantile and its error. Raises ValueError."""
    found = {}
    for pair in text.split(","):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*:\s*([0-9]*\.?[0-9]+)\s*", pair)
        quantile, error = map(float, match.groups()) if match else (-1.0, -1.0)
        if not (0 <= quantile <= 1 and 0 <= error <= 1):
            raise ValueError(f"summary_quantiles '{pair}' is not a quantile and its error, both from 0 to 1, as in 0.9:0.01")
        found[quantile] = error
    return found

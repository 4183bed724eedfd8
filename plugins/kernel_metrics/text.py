"""The Prometheus text format, byte for byte as the reference writes it. Pure: no model, no clock.

prometheus_client can't: it puts `_total` behind every counter's name, a count of microseconds into a float, and holds one object
with a lock for each series, of which a large repository has tens of thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "CONTENT_TYPE", "COUNTS", "Family", "counts_line", "histogram_lines", "labelled", "number", "series", "summary_lines",
]  # fmt: skip

CONTENT_TYPE = "text/plain; charset=utf-8"

#: How a line begins that has the counts behind a summary's quantiles: for other replicas, and to Prometheus a comment.
COUNTS = "# COUNTS "

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def labelled(labels: Mapping[str, str]) -> str:
    """Return `a="x",b="y"`, sorted by name."""
    return ",".join(f'{name}="{str(labels[name]).translate(_ESCAPES)}"' for name in sorted(labels))


def series(name: str, labels: str) -> str:
    """Return what stands before the value: the name, its labels (made by `labelled`) if any, and a space."""
    return f"{name}{{{labels}}} " if labels else f"{name} "


def number(value: float) -> str:
    """Return a value as the reference prints it: sixteen digits at most, no point where there is nothing behind it."""
    if type(value) is int:
        return str(value)
    if not math.isfinite(value):
        return "Nan" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return format(value, ".16g")


class Family:
    """A metric's name, type and HELP text, and the lines of its series as far as they have been added."""

    __slots__ = ("head", "kind", "lines", "name")

    def __init__(self, name: str, kind: str, help: str) -> None:
        self.name = name
        self.kind = kind
        self.head = f"# HELP {name} {help.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}"
        self.lines: list[str] = []

    def add(self, labels: str, value: float) -> None:
        self.lines.append(series(self.name, labels) + number(value))

    def take(self) -> list[str]:
        """Return all lines, none where there are no series, and forget the series."""
        lines = [self.head, *self.lines] if self.lines else []
        self.lines.clear()  # the list stays: series add to it directly
        return lines


def histogram_lines(name: str, labels: str, bounds: Sequence[float]) -> list[str]:
    """Return what stands before the values of a histogram: count, sum, and the buckets, the last one `+Inf`."""
    comma = "," if labels else ""
    buckets = [f'{labels}{comma}le="{number(bound)}"' for bound in (*bounds, math.inf)]
    return [
        series(f"{name}_count", labels),
        series(f"{name}_sum", labels),
        *(series(f"{name}_bucket", each) for each in buckets),
    ]


def summary_lines(name: str, labels: str, quantiles: Iterable[float]) -> list[str]:
    """Return what stands before the values of a summary: count, sum, and the quantiles."""
    comma = "," if labels else ""
    return [
        series(f"{name}_count", labels),
        series(f"{name}_sum", labels),
        *(series(name, f'{labels}{comma}quantile="{number(quantile)}"') for quantile in quantiles),
    ]


def counts_line(name: str, labels: str, counts: Mapping[int, int]) -> str:
    """Return what tells another replica the counts of a summary, by bucket."""
    return f"{COUNTS}{series(name, labels)}{','.join(f'{bucket}:{count}' for bucket, count in counts.items())}"

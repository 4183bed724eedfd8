"""The metrics that models make of their own: families of counters, gauges and histograms, and the series in them.

A family belongs to whoever has opened it; several may share one by its name, and a series by its labels. A series goes with the
last holder of its family that has asked for it. Knows no model and no page; the refusals are in the reference's words. From any
thread.
"""

from __future__ import annotations

import enum
import math
import operator
import re
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel.errors import Code, ServingError

__all__ = ["CustomMetrics", "FamilySnapshot", "Metric", "MetricFamily", "MetricKind", "SeriesSnapshot"]

Labels = tuple[tuple[str, str], ...]

_FAMILY_NAME = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class MetricKind(enum.IntEnum):
    """What the series of a family are; the numbers are the reference's."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


@dataclass(frozen=True, slots=True)
class SeriesSnapshot:
    """One series: of a counter or gauge its `value`; of a histogram the sum as `value`, and `counts`.

    `labels`: pairs of name and value, by name.
    `counts`: of the values up to each of `bounds`, and in the end of all values: cumulative, so the last is their number.
    """

    labels: Labels
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FamilySnapshot:
    """A family that has series, at one moment: `name`, `help` (its text) and `kind`."""

    name: str
    help: str
    kind: MetricKind
    series: tuple[SeriesSnapshot, ...]  # in the order in which they came


class CustomMetrics:
    """All families of one kernel (`Kernel.custom_metrics`). `reserved`: names that are somebody else's, such as those of the
    server's own metrics.
    """

    def __init__(self) -> None:
        self.reserved: set[str] = set()
        self._families: dict[str, _Family] = {}
        # The garbage collector may call a model's code, which counts something, in the midst of ours: so it is an RLock.
        self._lock = threading.RLock()
        self._given_up: deque[MetricFamily] = deque()

    def family(self, name: str, help: str, kind: MetricKind | int) -> MetricFamily:
        """Open a family, which is made where there is none of that name; `close` it when it is wanted no more.

        Raises ServingError(INVALID_ARG) for what is no name, for a reserved one, and where there is one of another kind.
        """
        kind = MetricKind(kind)
        if not _FAMILY_NAME.fullmatch(name):
            raise _invalid(
                f"Invalid metric name '{name}': letters, digits, '_' and ':' are wanted, no digit in front, no '__'"
            )
        if name in self.reserved:
            raise _invalid(f"Family name '{name}' is that of one of the server's own metrics")
        with self._lock:
            self._clear_up()
            found = self._families.get(name)
            if found is None:
                found = self._families[name] = _Family(name, help, kind)
            elif found.kind is not kind:
                words = f"Family name already exists with different type: '{name}' is a {found.kind.name}, not a {kind.name}"
                raise _invalid(words)
            found.holders += 1
        return MetricFamily(self, found)

    def snapshot(self) -> list[FamilySnapshot]:
        """Return the families that have series, in the order they came, and the series in theirs."""
        with self._lock:
            self._clear_up()
            return [
                FamilySnapshot(one.name, one.help, one.kind, tuple(series.snapshot() for series in one.series.values()))
                for one in self._families.values()
                if one.series
            ]

    def _give_up(self, family: MetricFamily) -> None:
        """Note that nobody holds the family's object any more. Without the lock: whoever is told so may be in the midst of
        it.
        """
        self._given_up.append(family)

    def _clear_up(self) -> None:
        while self._given_up:
            self._given_up.popleft()._release(self._families)


class MetricFamily:
    """One holder's view of a family. Once it is closed, its metrics are of no use. Made by `CustomMetrics.family`."""

    __slots__ = ("_family", "_held", "_registry", "closed")

    def __init__(self, registry: CustomMetrics, family: _Family) -> None:
        self._registry = registry
        self._family = family
        self._held: set[Labels] = set()
        self.closed = False

    @property
    def kind(self) -> MetricKind:
        """What its series are."""
        return self._family.kind

    def metric(self, labels: Mapping[str, str], bounds: Sequence[float] | None = None) -> Metric:
        """Return the metric of these labels; `bounds`: of a histogram's buckets, ascending, those of the first who asks.

        Raises ServingError(INVALID_ARG) for labels and bounds that can't be.
        """
        kind = self.kind
        for name in labels:
            if not _LABEL_NAME.fullmatch(name) or (kind is MetricKind.HISTOGRAM and name == "le"):
                raise _invalid(f"Invalid label name '{name}' in a {kind.name} of family '{self._family.name}'")
        if kind is not MetricKind.HISTOGRAM and bounds is not None:
            raise _invalid(f"Unexpected args found in {kind.name.lower()} Metric constructor.")
        if kind is MetricKind.HISTOGRAM and bounds is None:
            raise _invalid("Bucket boundaries not found in Metric args.")
        edges = None if bounds is None else tuple(map(float, bounds))
        if edges and edges[-1] == math.inf:
            edges = edges[:-1]  # every histogram has that bucket
        if edges and not all(map(operator.lt, edges, (*edges[1:], math.inf))):
            raise _invalid(
                f"Bucket Boundaries must be strictly sorted: {list(edges)} of family '{self._family.name}' are not"
            )
        key = tuple(sorted(labels.items()))
        with self._registry._lock:
            self._registry._clear_up()
            self._check("could not be created")
            series = self._family.series.get(key)
            if series is None:
                series = self._family.series[key] = _Series(key, edges)
            if key not in self._held:
                self._held.add(key)
                series.holders += 1
        return Metric(self, series)

    def close(self) -> None:
        """Hold the family no more. May be called from anywhere at any time, also by the garbage collector."""
        if not self.closed:
            self.closed = True
            self._registry._give_up(self)

    def _check(self, what: str) -> None:
        if self.closed:
            raise ServingError(Code.INTERNAL, f"Metric {what}. Its family '{self._family.name}' has been deleted.")

    def _release(self, families: dict[str, _Family]) -> None:
        family = self._family
        for key in self._held:
            series = family.series[key]
            series.holders -= 1
            if not series.holders:
                del family.series[key]
        family.holders -= 1
        if not family.holders:
            del families[family.name]


class Metric:
    """One series, as a holder of its family sees it. Made by `MetricFamily.metric`.

    Each method raises ServingError(UNSUPPORTED) for what its kind can't do, INTERNAL once the family has been closed.
    """

    __slots__ = ("_kind", "_lock", "_series", "family")

    def __init__(self, family: MetricFamily, series: _Series) -> None:
        self.family = family
        self._series = series
        self._kind = family.kind
        self._lock = family._registry._lock

    def increment(self, value: float) -> None:
        """Add to a counter, or to a gauge, where `value` may be negative: for a counter that raises INVALID_ARG."""
        kind = self._kind
        if kind is MetricKind.HISTOGRAM:
            raise self._unsupported("Increment")
        if kind is MetricKind.COUNTER and value < 0:
            raise _invalid(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            )
        with self._lock:
            self.family._check("could not be incremented")
            self._series.value += value

    def set(self, value: float) -> None:
        """Set a gauge."""
        if self._kind is not MetricKind.GAUGE:
            raise self._unsupported("Set")
        with self._lock:
            self.family._check("could not be set")
            self._series.value = value

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        if self._kind is not MetricKind.HISTOGRAM:
            raise self._unsupported("Observe")
        with self._lock:
            self.family._check("could not be set")
            self._series.observe(value)

    def value(self) -> float:
        """Return what a counter or gauge stands at."""
        if self._kind is MetricKind.HISTOGRAM:
            raise self._unsupported("Value")
        self.family._check("value could not be read")
        return self._series.value

    def _unsupported(self, what: str) -> ServingError:
        return ServingError(Code.UNSUPPORTED, f"TRITONSERVER_METRIC_KIND_{self._kind.name} does not support {what}")


class _Family:
    """What the holders of a family share. Its help text is the first holder's, as in the reference."""

    __slots__ = ("help", "holders", "kind", "name", "series")

    def __init__(self, name: str, help: str, kind: MetricKind) -> None:
        self.name = name
        self.help = help
        self.kind = kind
        self.holders = 0
        self.series: dict[Labels, _Series] = {}


class _Series:
    __slots__ = ("_bounds", "_counts", "holders", "labels", "value")

    def __init__(self, labels: Labels, bounds: tuple[float, ...] | None) -> None:
        self.labels = labels
        self.holders = 0
        self.value = 0.0
        self._bounds = bounds or ()
        self._counts = [0] * (0 if bounds is None else len(bounds) + 1)  # of each bucket alone, not cumulative

    def observe(self, value: float) -> None:
        # NaN is in no bucket but the last.
        self._counts[bisect_left(self._bounds, value) if value == value else -1] += 1
        self.value += value

    def snapshot(self) -> SeriesSnapshot:
        total, counts = 0, []
        for count in self._counts:
            total += count
            counts.append(total)
        return SeriesSnapshot(self.labels, self.value, self._bounds, tuple(counts))


def _invalid(words: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, words)

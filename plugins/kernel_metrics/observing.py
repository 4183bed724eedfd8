"""What is kept of the requests of one model version besides sums: histograms, and quantiles of the last minute.

Pure: times come with the records. A summary's quantiles are kept as counts in buckets whose bounds grow by a fixed factor, so
a quantile is within one per cent of a value that was there, whatever error of its rank the configuration allows; that takes the
same memory for ten requests a second and for a hundred thousand.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from kernel import Record

__all__ = ["Histogram", "RequestObserver", "Summary", "quantiles_of"]

GROWTH = 1.01  # of the bounds of a summary's buckets
_PER_LOG = 1 / math.log(GROWTH)

#: A summary looks back over a minute, in five slots, as the reference's does.
SLOTS = 5
SLOT_SECONDS = 12.0

#: Seconds; finer at the bottom, where a queue that works well is.
QUEUE_BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
RESPONSE_BOUNDS = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


class Histogram:
    """How many values there were at or below each of `bounds`, which are ascending, and how many in all."""

    __slots__ = ("below", "bounds", "count", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.below = [0] * len(self.bounds)
        self.count = 0
        self.sum = 0.0

    def add(self, values: list[float]) -> None:
        """Add values; the list is sorted on the way, which makes many of them cheaper than one search for each."""
        values.sort()
        self.count += len(values)
        self.sum += sum(values)
        below = self.below
        for k, bound in enumerate(self.bounds):
            below[k] += bisect_right(values, bound)

    def values(self) -> list[float]:
        """Return what the page shows: count, sum, and the buckets, the last of them infinite."""
        return [self.count, self.sum, *self.below, self.count]


class Summary:
    """Count and sum since the beginning, and quantiles of what the last minute has brought. Values are integers."""

    __slots__ = ("_newest", "_slots", "count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self._slots: list[dict[int, int]] = [{} for _ in range(SLOTS)]
        self._newest = 0  # the number of the newest slot, counted from time 0

    def add(self, value: int, now: float) -> None:
        self.count += 1
        self.sum += value
        slot = int(now / SLOT_SECONDS)
        if slot != self._newest:
            if slot <= self._newest - SLOTS:
                return  # too long ago
            self._advance(slot)
        bucket = int(math.log(value) * _PER_LOG) + 1 if value > 0 else 0
        counts = self._slots[slot % SLOTS]
        counts[bucket] = counts.get(bucket, 0) + 1

    def _advance(self, slot: int) -> None:
        for passed in range(max(self._newest + 1, slot - SLOTS + 1), slot + 1):
            self._slots[passed % SLOTS].clear()
        self._newest = max(self._newest, slot)

    def counts(self, now: float) -> dict[int, int]:
        """Return how many values of the last minute there were, by bucket. Those of several summaries may be added."""
        self._advance(int(now / SLOT_SECONDS))
        found: dict[int, int] = {}
        for counts in self._slots:
            for bucket, count in counts.items():
                found[bucket] = found.get(bucket, 0) + count
        return found

    def quantiles(self, wanted: Iterable[float], now: float) -> list[float]:
        """Return the quantiles of the last minute, NaN where it has brought nothing."""
        return quantiles_of(self.counts(now), wanted)


def quantiles_of(counts: Mapping[int, int], wanted: Iterable[float]) -> list[float]:
    """Return quantiles of values that were counted by bucket, NaN where there are none."""
    if not counts:
        return [math.nan for _ in wanted]
    buckets = sorted(counts)
    ranks = list(accumulate(counts[bucket] for bucket in buckets))
    total = ranks[-1]
    return [_middle(buckets[bisect_left(ranks, max(1, math.ceil(quantile * total)))]) for quantile in wanted]


def _middle(bucket: int) -> float:
    """Return a value that is near every one in a bucket."""
    return round(math.exp((bucket - 0.5) / _PER_LOG)) if bucket else 0.0


class RequestObserver:
    """The Observer of one model version. `summaries`: in the order of the page; none unless they are asked for.

    `first`: time to the first response, which for a model that isn't decoupled is the only one.
    """

    def __init__(self, decoupled: bool, *, summaries: bool = False, first_ms: Sequence[float] | None = None) -> None:
        self.queue = Histogram(QUEUE_BOUNDS)
        self.first = Histogram(RESPONSE_BOUNDS)
        #: The reference's own histogram, in milliseconds; for decoupled models alone.
        self.first_ms = Histogram(first_ms) if first_ms is not None and decoupled else None
        self.summaries = tuple(Summary() for _ in range(5)) if summaries else ()
        self.hits, self.misses = Summary(), Summary()
        self._decoupled = decoupled

    def answered(self, records: Sequence[Record]) -> None:
        self.queue.add([record[2] - record[1] for record in records])
        if not self._decoupled:
            self.first.add([record[6] - record[1] for record in records])
        if self.summaries:
            self._summarise(records)

    def _summarise(self, records: Sequence[Record]) -> None:
        request, queue, compute_input, compute_infer, compute_output = self.summaries
        for rows, enqueued, started, input_ended, output_started, ended, now, *_ in records:
            request.add(_us(now - enqueued), now)
            queue.add(_us(started - enqueued), now)
            if rows:
                compute_input.add(_us(input_ended - started), now)
                compute_infer.add(_us(output_started - input_ended), now)
                compute_output.add(_us(ended - output_started), now)

    def first_response(self, seconds: float) -> None:
        self.first.add([seconds])
        if self.first_ms is not None:
            self.first_ms.add([seconds * 1000])

    def looked_up(self, hit: bool, seconds: float, now: float) -> None:
        if self.summaries:
            (self.hits if hit else self.misses).add(_us(seconds), now)


def _us(seconds: float) -> int:
    return int(seconds * 1e6)

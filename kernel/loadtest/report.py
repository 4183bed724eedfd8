"""What windows say together: rates, latencies, a histogram, two targets beside each other; whether the client was slow. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.loadtest.windows import LOOKED_AT, Window

__all__ = ["PERCENTILES", "Histogram", "Ratio", "Result", "histogram", "ratios"]

PERCENTILES = (50, 90, 95, 99)

#: From this part of a core on the client is said to be what is slow.
BUSY = 0.9
LAG = 0.001  # seconds that the client may send late; or a tenth of the median, where that is more
KEEPS_UP = 0.95  # of an open loop's rate

#: Steps of a histogram in each power of ten: 1, 1.5, 2, 3, 5, 7.
STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)


@dataclass(frozen=True)
class Histogram:
    """`counts[k]` latencies lie above `edges[k]` and up to `edges[k + 1]`, in seconds."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Ratio:
    """The second target's figure divided by the first one's: the median of the rounds, and between what they lie."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """What became of one load on one target. `windows`: all; the last three count. `offered`: a second, 0.0 in a closed loop."""

    target: str
    load: str
    windows: tuple[Window, ...]
    is_steady: bool
    offered: float = 0.0

    @property
    def last(self) -> tuple[Window, ...]:
        return self.windows[-LOOKED_AT:]

    @property
    def latencies(self) -> NDArray[np.float64]:
        """In seconds."""
        return np.concatenate([one.latencies for one in self.last])

    @property
    def firsts(self) -> NDArray[np.float64]:
        """Seconds until the first of several responses."""
        return np.concatenate([one.firsts for one in self.last])

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.last)

    @property
    def rate(self) -> float:
        """Requests answered in a second."""
        return self.latencies.size / self.seconds

    @property
    def responses(self) -> float:
        """Of all requests, in a second."""
        return sum(one.responses for one in self.last) / self.seconds

    @property
    def errors(self) -> Counter[str]:
        return sum((one.errors for one in self.last), Counter())

    def latency(self, percent: float) -> float:
        """Return the latency that so many percent do not exceed, in seconds; NaN where nothing was answered."""
        found = self.latencies
        return float(np.percentile(found, percent)) if found.size else math.nan

    @property
    def notes(self) -> list[str]:
        """What has to be known of these figures."""
        return [*_client(self), *_load(self)]

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a program."""
        found, firsts = self.latencies, self.firsts
        document: dict[str, Any] = {
            "target": self.target,
            "load": self.load,
            "steady": self.is_steady,
            "seconds": self.seconds,
            "answered": int(found.size),
            "failed": self.errors.total(),
            "errors": dict(self.errors.most_common()),
            "rate": self.rate,
            "latency_seconds": _figures(found),
            "client": {
                "cores": max(one.busy for one in self.last),
                "send_lag_seconds": _figures(np.concatenate([one.lags for one in self.last])),
                "held_seconds": max(one.held for one in self.last),
            },
            "windows": [{"rate": one.rate, "median_seconds": one.median} for one in self.windows],
            "histogram": [list(row) for row in _rows(histogram(found))],
            "notes": self.notes,
        }
        if self.offered:
            document["offered_rate"] = self.offered
        if firsts.size:
            document |= {"first_response_seconds": _figures(firsts), "response_rate": self.responses}
        return document


def _figures(values: NDArray[np.float64]) -> dict[str, float]:
    if not values.size:
        return {}
    percentiles = {f"p{percent}": float(np.percentile(values, percent)) for percent in PERCENTILES}
    return {"mean": float(values.mean()), **percentiles, "max": float(values.max())}


def _client(result: Result) -> list[str]:
    """Return whether the client was what was slow."""
    notes = []
    busy, median = max(one.busy for one in result.last), result.latency(50)
    lags = np.concatenate([one.lags for one in result.last])
    allowed = max(LAG, 0.0 if math.isnan(median) else median / 10)
    if busy >= BUSY:
        notes.append(f"the client used {busy:.2f} of a core, so it may be what is slow: run several, or on a machine of its own")
    elif lags.size and (lag := float(np.percentile(lags, 99))) > allowed:
        notes.append(f"the client sent up to {_ms(lag)} late (p99), so it may be what is slow; the latencies have that in them")
    elif (held := statistics.median(one.held for one in result.last)) > max(10 * LAG, allowed):
        words = f"the client had to wait for its processor, up to {_ms(held)} at a time"
        notes.append(f"{words}: the machine is busy with other work")
    return notes


def _load(result: Result) -> list[str]:
    notes = []
    if not result.latencies.size:
        return ["no request was answered"]
    if result.offered and result.rate + result.errors.total() / result.seconds < KEEPS_UP * result.offered:
        waiting = result.last[-1].waiting
        words = f"of {result.offered:.0f} requests a second {result.rate:.0f} were answered; {waiting} had no answer at the end"
        notes.append(f"{words}: the latencies grow for as long as this goes on")
    elif not result.is_steady:
        rates = " ".join(f"{one.rate:.0f}" for one in result.last)
        medians = " ".join(_ms(one.median) for one in result.last)
        notes.append(f"not steady: the last windows have {rates} requests a second, medians {medians}")
    return notes


def ratios(first: Result, second: Result) -> dict[str, Ratio]:
    """Compare two targets whose windows were measured in turns: figure -> ratio, of those that there are."""
    pairs = [(one, two) for one, two in zip(first.last, second.last) if one.latencies.size and two.latencies.size]
    if not pairs:
        return {}
    found = {"rate": _ratio([two.rate / one.rate for one, two in pairs])}
    for percent in PERCENTILES:
        values = [np.percentile(two.latencies, percent) / np.percentile(one.latencies, percent) for one, two in pairs]
        found[f"p{percent}"] = _ratio([float(value) for value in values])
    return found


def _ratio(values: Sequence[float]) -> Ratio:
    return Ratio(statistics.median(values), min(values), max(values))


def histogram(latencies: NDArray[np.float64]) -> Histogram:
    """Count latencies in steps that grow with them, so that what is rare and late is seen as well as what is common."""
    if not latencies.size:
        return Histogram((), ())
    low, high = max(float(latencies.min()), 1e-6), max(float(latencies.max()), 1e-6)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1
    edges = [round(step * 10.0**power, 9) for power in range(first - 1, last + 1) for step in STEPS]
    begin = max(place for place, edge in enumerate(edges) if edge < low)
    end = min(place for place, edge in enumerate(edges) if edge >= high)
    edges = edges[begin : end + 1]
    places = np.searchsorted(edges, latencies, "left").clip(1, len(edges) - 1)
    counts = np.bincount(places, minlength=len(edges))[1:]
    return Histogram(tuple(edges), tuple(int(count) for count in counts))


def _rows(found: Histogram) -> list[tuple[float, float, int]]:
    return list(zip(found.edges, found.edges[1:], found.counts))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"

"""What came within a span of time, and whether several such spans say the same. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOOKED_AT", "Window", "steady"]

#: So many windows in a row have to be alike, and are what is told.
LOOKED_AT = 3


@dataclass(frozen=True)
class Window:
    """One span. Times are in seconds.

    `latencies`: of the requests answered in it, from when each was meant to be sent; `firsts`: until their first responses, where
    they may have several. `errors`: why others failed -> how many. `responses`: all that came. `waiting`: requests without
    an answer at its end. `busy`: cores that the client used. `lags`: how late it sent; `held`: how late its loop was at most.
    """

    seconds: float
    latencies: NDArray[np.float64]
    firsts: NDArray[np.float64]
    errors: Counter[str]
    responses: int
    waiting: int
    busy: float
    lags: NDArray[np.float64]
    held: float

    @property
    def rate(self) -> float:
        """Requests answered in a second."""
        return self.latencies.size / self.seconds

    @property
    def median(self) -> float:
        """Of the latencies, in seconds; 0.0 where there are none."""
        return float(np.median(self.latencies)) if self.latencies.size else 0.0


def steady(windows: Sequence[Window], tolerance: float) -> bool:
    """Whether rate and median of the last ones lie within `tolerance`, a part of 1, of their means."""
    last = windows[-LOOKED_AT:]
    if len(last) < LOOKED_AT or not all(one.latencies.size for one in last):
        return False
    return all(_alike(values, tolerance) for values in ([one.rate for one in last], [one.median for one in last]))


def _alike(values: Sequence[float], tolerance: float) -> bool:
    mean = sum(values) / len(values)
    return all(abs(one - mean) <= tolerance * mean for one in values)

"""When an execution that has yet to wait may begin at the earliest. Pure: what is known and `now` in, a moment out.

The law: never too late. Executions are taken to last as long as those before them on average, batches to be as full as they may
be, instances to pause for nothing. So where they all last the same, nobody begins sooner than is said here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["ExecutionTime", "earliest_start"]

NEWEST = 8  # executions that the average is of: one that was slow for once is forgotten soon


class ExecutionTime:
    """How long the executions of one model last: a moving average. `seconds`: 0.0 while nothing has been measured."""

    __slots__ = ("_newest", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._newest: deque[float] = deque(maxlen=NEWEST)

    def measured(self, seconds: float) -> None:
        """An execution has lasted so long."""
        self._newest.append(seconds)
        self.seconds = sum(self._newest) / len(self._newest)


def earliest_start(now: float, seconds: float, begun: Sequence[float], capacity: int, nth: int) -> float:
    """Return when the `nth` execution, counted from 1, of those that have not begun may begin at the earliest.

    `seconds`: how long one lasts; `begun`: when those began that last now; `capacity`: how many may last at a time.
    """
    free = sorted([max(now, one + seconds) for one in begun] + [now] * (capacity - len(begun)))
    rounds, nth = divmod(nth - 1, capacity)
    return min(free[nth], now + seconds) + rounds * seconds

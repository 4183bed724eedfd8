"""The deadlines of all calls of a front end: one timer, and a memory that does not grow with the calls that were in time.

Deadlines that lie close together, less than a hundredth of the time until then or TICK, are one moment: the end of that stretch.
So there are never more than a few thousand moments, however many calls come and go. Nobody is told before its deadline.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

__all__ = ["Deadlines"]

#: Seconds; the finest distinction.
TICK = 0.005

#: How many calls are told in one turn of the loop: each is answered, and its request cancelled.
AT_ONCE = 64

#: How many stretches there are at least between now and a deadline, where TICK allows it.
FINENESS = 128


class Deadlines:
    """`arm(delay)` sets the one timer, instead of what it was set to; it then calls `expire(now)`."""

    __slots__ = ("_arm", "_armed", "_calls", "_moments")

    def __init__(self, arm: Callable[[float], None]) -> None:
        self._arm = arm
        self._armed = math.inf  # the moment that the timer is set for
        self._calls: dict[float, set[Any]] = {}  # moment -> the calls to tell; none once all were in time
        self._moments: list[float] = []  # its keys, as a heap

    def add(self, call: Any, deadline: float, now: float) -> float:
        """Have `call.expired()` called when `deadline` has passed. Returns the moment at which that will be."""
        stretch = TICK
        if deadline - now > TICK * FINENESS:
            stretch = TICK * 2.0 ** math.frexp((deadline - now) / (TICK * FINENESS))[1] / 2
        moment = (math.floor(deadline / stretch) + 1) * stretch
        calls = self._calls.get(moment)
        if calls is not None:
            calls.add(call)
            return moment
        self._calls[moment] = {call}
        heapq.heappush(self._moments, moment)
        if moment < self._armed:
            self._set(moment, now)
        return moment

    def discard(self, call: Any, moment: float) -> None:
        """Forget a call that has been answered."""
        calls = self._calls.get(moment)
        if calls is not None:
            calls.discard(call)

    def expire(self, now: float) -> None:
        """Tell the calls whose moment has come, AT_ONCE of them at most; set the timer for the next ones."""
        self._armed = math.inf
        moments, left = self._moments, AT_ONCE
        while moments and (moments[0] <= now or not self._calls[moments[0]]):
            calls = self._calls[moments[0]]
            while calls and left:
                left -= 1
                calls.pop().expired()
            if calls:
                break  # the timer goes off again at once
            del self._calls[heapq.heappop(moments)]
        if moments and moments[0] < self._armed:
            self._set(moments[0], now)

    def _set(self, moment: float, now: float) -> None:
        self._armed = moment
        self._arm(max(0.0, moment - now))

"""How late the loop's timers are: what holds the loop, whoever it is, holds up everybody's requests.

A timer every quarter of a second while the page is served, and nothing on the path of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kernel_metrics.observing import Histogram

__all__ = ["LoopLag"]

PERIOD = 0.25
BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LoopLag:
    """Measures from `start` to `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.histogram = Histogram(BOUNDS)
        self._loop = loop
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._due = self._clock() + PERIOD
        self._timer = self._loop.call_later(PERIOD, self._ring)

    def _ring(self) -> None:
        self.histogram.add([max(0.0, self._clock() - self._due)])
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""The one timer of a scheduler: rings at the earliest of the moments that it was set to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Timer"]


class Timer:
    """Calls `ring()` on the loop, once for however many moments were asked for since it rang last. On the loop."""

    __slots__ = ("_clock", "_handle", "_loop", "_ring", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], ring: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0

    def arm(self, when: float) -> None:
        """Ring at `when` or before. `when`: on the kernel's clock, in seconds."""
        handle = self._handle
        if handle is not None:
            if self._when <= when:
                return
            handle.cancel()
        self._when = when
        # Relative: the loop's own clock may be coarser than ours.
        self._handle = self._loop.call_later(max(0.0, when - self._clock()), self._rung)

    def _rung(self) -> None:
        self._handle = None
        self._ring()

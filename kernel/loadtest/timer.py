"""Calls at moments of the clock, to some 50 microseconds; the loop's own timers count in milliseconds.

On Linux a descriptor of the system's says when, if moments are of time.perf_counter; otherwise it is the loop's timers.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable

__all__ = ["Alarm"]

_MONOTONIC, _NONBLOCK, _CLOEXEC, _ABSOLUTE = 1, os.O_NONBLOCK, getattr(os, "O_CLOEXEC", 0), 1
_TIMES = struct.Struct("@qqqq")  # interval and moment, each in seconds and nanoseconds


class Alarm:
    """Calls `ring()` at the moment that was set last."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None], clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._handle: asyncio.Handle | None = None
        self._descriptor = -1
        if sys.platform == "linux" and clock is time.perf_counter:
            self._library = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._library.timerfd_create(_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._due)

    def at(self, moment: float) -> None:
        """Ring then; at once where that is over."""
        wait = moment - self._clock()
        if wait <= 0 or self._descriptor < 0:
            self._handle = self._loop.call_later(max(0.0, wait), self._ring)
            return
        seconds = int(moment)
        times = _TIMES.pack(0, 0, seconds, int((moment - seconds) * 1e9))
        self._library.timerfd_settime(self._descriptor, _ABSOLUTE, times, None)

    def _due(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        self._ring()

    def close(self) -> None:
        """It rings no more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

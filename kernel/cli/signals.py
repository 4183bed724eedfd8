"""What SIGTERM and SIGINT do to `kernel serve`: the first stops it, the second ends it, whatever its loop is busy with.

The loop's own signal handlers are called by the loop, so not at all while a model holds it. These are Python's, which run between
any two steps of the main thread; and where even those don't come about, as in C code that never returns, the second SIGINT does
what it does to any process. Not so SIGTERM: `timeout`, make and whoever stops a group of processes send it twice at once, which
is one stop and must not cost the requests in flight. Who sends it and gets no end goes on to SIGKILL.
"""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from kernel.forking import guard

__all__ = ["PATIENCE", "TOGETHER", "Signals"]

log = logging.getLogger("kernel.serve")

#: As it is: the handler may be called in the midst of a model's code, to which this is refused.
_set_signal = signal.signal

#: How long the loop has to hear of a second signal before the process ends without it; seconds.
PATIENCE = 1.0

#: Signals that come within this time of the first are the same stop, told by several; seconds.
TOGETHER = 0.1


class Signals:
    """Handles signals of the process from `start` on. On the main thread, in which `loop` runs.

    `on_signal(signal)` is called on the loop for each; `leave()` ends the process at once. Where the process has not ended
    `limit` seconds after the first one, it is ended: the loop, which should have, is held. `once`: those after the first
    do nothing, as several tell of one stop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_signal: Callable[[signal.Signals], None],
        leave: Callable[[], NoReturn],
        limit: float,
        once: bool = False,
    ) -> None:
        self._loop = loop
        self._on_signal = on_signal
        self._leave = leave
        self._limit = limit
        self._came = 0
        self._first = 0.0  # when the first came
        self._told = 0  # signals that the loop has been told of
        self._once = once

    def start(self, *numbers: signal.Signals) -> None:
        """Handle these from now on."""
        for number in numbers:
            self._arm(number)
        guard(self)

    @property
    def came(self) -> bool:
        """Whether there was one."""
        return self._came > 0

    def forked(self) -> None:
        """A terminal sends SIGINT to the children of models as well, and it is the server's to heed.

        Else a drain would wait for what workers were computing that have ended. It is not ignored, or the programs that a child
        starts would ignore it, too.
        """
        _set_signal(signal.SIGINT, _nothing)

    def _arm(self, number: int) -> None:
        _set_signal(number, self._handle)
        if number != signal.SIGTERM:
            _once(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs on the main thread between any two instructions, so it takes no lock: the code that it interrupts may hold it."""
        self._arm(number)
        now = time.monotonic()
        if self._came and (self._once or now - self._first < TOGETHER):
            return
        self._first = self._first or now
        self._came += 1
        try:
            self._loop.call_soon_threadsafe(self._tell, signal.Signals(number))
        except RuntimeError:  # the loop is closed: the process is about to end
            pass
        if self._came == 1:
            _thread.start_new_thread(self._wait, ())
        else:
            _thread.start_new_thread(self._end, (signal.Signals(number), self._came))

    def _tell(self, number: signal.Signals) -> None:
        self._told += 1
        self._on_signal(number)

    def _end(self, number: signal.Signals, count: int) -> None:
        """End the process unless the loop hears of the signal and does."""
        time.sleep(PATIENCE)
        if self._told < count:
            self._end_now(f"{number.name} again, while the loop is held: ending at once")

    def _wait(self) -> None:
        """End the process if it is still there when the time to end by itself is over."""
        time.sleep(self._limit)
        self._end_now("failed to stop server: Internal - Exit timeout expired while the loop is held. Exiting immediately.")

    def _end_now(self, words: str) -> NoReturn:
        _thread.start_new_thread(self._say, (words,))
        time.sleep(PATIENCE / 10)  # for the line, if the log takes one
        _thread.start_new_thread(self._leave, ())
        time.sleep(PATIENCE)
        os._exit(1)

    @staticmethod
    def _say(words: str) -> None:
        log.error("%s", words)


def _nothing(*_: object) -> None:
    """What SIGINT does in a child."""


def _once(number: int) -> None:
    """Have the handler that is installed be called once, and the signal do its default after that, until it is armed again.

    Without effect where the C library has no System V `signal`.
    """
    try:
        install = ctypes.CDLL(None).sysv_signal
    except (AttributeError, OSError):
        return
    install.restype = ctypes.c_void_p
    install.argtypes = (ctypes.c_int, ctypes.c_void_p)
    handler = install(number, None)
    install(number, handler)

"""The loop that a kit runs models on: it knows when nothing can happen any more, and its time may be virtual.

When the loop has nothing to do it asks what else may still bring something: threads at work, sockets, child processes. If nothing
can, what is waited for will never come, and that is a Deadlock at once. Virtual time passes only while nothing is at work, so a
thread that computes takes no time at all. Decides nothing about models: the kit tells it what is at work and what to explain.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import selectors
import time
from collections.abc import Callable, Iterator
from typing import Any

from kernel.testing.errors import Deadlock, Unanswered

__all__ = ["Elsewhere", "KitLoop", "patience", "running_loop"]

LOAD_LIMIT = 300.0  # real seconds that loading and finalizing may take
WAKING = 0.0005  # real seconds in which a thread that was given something has begun with it
SLICE = 0.005  # how long the loop sleeps before it looks again whether a thread is still at work
GRACE = 0.05  # real seconds in which something of which we can't tell may still come, before virtual time goes on …
LAST_GRACE = 1.0  # … and before there is no other explanation than a deadlock

Ready = list[tuple[selectors.SelectorKey, int]]


class Elsewhere(enum.IntEnum):
    """What goes on outside of the loop."""

    NOTHING = 0
    IDLE = 1  # threads that have nothing to do, unless they have been given something this very moment
    PERHAPS = 2  # there are threads or sockets, and no telling whether they will ever bring anything
    WORK = 3


class _Selector(selectors.DefaultSelector):
    loop: KitLoop

    def select(self, timeout: float | None = None) -> Ready:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return self.loop.wait(timeout, super().select)


class KitLoop(asyncio.SelectorEventLoop):
    """An asyncio loop for tests. `limit`: real seconds that one `run` may take.

    `elsewhere`: what goes on outside. `explain`: who holds what is waited for, in lines. `patient`: something is at work,
    whatever `elsewhere` says.
    """

    def __init__(self, *, virtual: bool = False, limit: float = 30.0) -> None:
        self.virtual = virtual
        self.limit = limit
        self._began = time.monotonic()
        self._limit_at = self._began + limit
        self.elsewhere: Callable[[], Elsewhere] = lambda: Elsewhere.NOTHING
        self.explain: Callable[[], str] = lambda: ""
        self.patient = False
        self._now = 1000.0
        self._on_threads = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._own_files = len(selector.get_map())

    def time(self) -> float:
        return self._now if self.virtual else super().time()

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine to its end. Raises Deadlock or Unanswered where it has none."""
        self.renew()
        return self.run_until_complete(coroutine)

    def renew(self, limit: float | None = None) -> None:
        """Count the limit from now on."""
        self._began = time.monotonic()
        self._limit_at = self._began + (self.limit if limit is None else limit)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, function, *args)
        self._on_threads += 1
        future.add_done_callback(self._off_thread)
        return future

    def _off_thread(self, future: object) -> None:
        self._on_threads -= 1

    def _look(self) -> Elsewhere:
        if self._on_threads:
            return Elsewhere.WORK
        found = self.elsewhere()
        selector: Any = self._selector  # type: ignore[attr-defined]
        if found < Elsewhere.PERHAPS and len(selector.get_map()) > self._own_files:
            return Elsewhere.PERHAPS
        return found

    def wait(self, timeout: float | None, select: Callable[[float | None], Ready]) -> Ready:
        """Nothing is ready: wait for what may come, let virtual time pass, or raise that nothing will come."""
        began = time.monotonic()
        found = before = Elsewhere.NOTHING
        while True:
            before, found = found, Elsewhere.WORK if self.patient else self._look()
            ready = select(0)  # in this order: whoever has finished before we looked has told the loop so
            if ready:
                return ready
            now = time.monotonic()
            waited = now - began
            nothing = found is Elsewhere.NOTHING or found is Elsewhere.IDLE is before
            perhaps = found is Elsewhere.PERHAPS
            if now > self._limit_at:  # also where virtual time goes on and on, and nothing comes of it
                raise self._overdue(now)
            pause = WAKING if found is Elsewhere.IDLE else SLICE
            if timeout is None:
                if nothing or (self.virtual and perhaps and waited > LAST_GRACE):
                    raise Deadlock(f"deadlock: nothing is left that could happen\n{self.explain()}".rstrip())
            elif self.virtual:
                # While models load or go, time is real: they may be doing anything.
                if nothing or (perhaps and waited > GRACE) or (self.patient and waited > timeout):
                    self._now += timeout
                    return []
            else:
                pause = timeout - waited
                if pause <= 0:
                    return []
            ready = select(min(pause, max(SLICE, self._limit_at - now)))
            if ready:
                return ready

    def _overdue(self, now: float) -> Unanswered:
        return Unanswered(f"no end after {now - self._began:.1f} s of real time\n{self.explain()}".rstrip())


@contextlib.contextmanager
def patience(loop: object) -> Iterator[None]:
    """While models load or go: what can't be looked into counts as work, and takes as long as it takes."""
    if not isinstance(loop, KitLoop):
        yield
        return
    loop.patient = True
    loop.renew(LOAD_LIMIT)
    try:
        yield
    finally:
        loop.patient = False
        loop.renew()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs on this thread, None where none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

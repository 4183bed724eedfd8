"""Sends requests: so many at a time, or at moments that wait for no answers. Keeps when each was to be sent, and when it ended.

In an open loop a request that is sent late, as the client was busy or the one before it in its sequence had no answer, still
begins at the moment that it was meant to be sent: who waits there would have waited.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernel.loadtest.target import LoadTarget
from kernel.loadtest.timer import Alarm
from kernel.loadtest.windows import Window
from kernel.tensor import Tensor

__all__ = ["ClosedLoop", "Load", "OpenLoop", "Plain", "RunningLoad", "Sequences", "Source"]

PAUSE = 0.01  # seconds after a failure until a client of a closed loop tries again
PROBE = 0.02  # seconds between two looks at how late the loop is
REASONS = 50  # that are told apart


@dataclass(frozen=True)
class ClosedLoop:
    """`clients` requests at a time: each client sends its next one when it has an answer."""

    clients: int

    @property
    def label(self) -> str:
        return f"{self.clients} at a time"


@dataclass(frozen=True)
class OpenLoop:
    """`rate` requests a second, however long answers take. `kind`: "poisson" or "constant"."""

    kind: str
    rate: float

    @property
    def label(self) -> str:
        return f"{self.rate:g} a second ({self.kind})"


Load = ClosedLoop | OpenLoop


class Source(Protocol):
    """What one client sends, one after the other."""

    def next(self) -> bytes:
        """Return its next request."""

    def failed(self) -> None:
        """The last one was not answered."""

    def last(self) -> bytes | None:
        """Return a request that has still to be sent so that nothing is left behind; None for none."""


class Plain:
    """Requests that stand alone, over and over."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.next = itertools.cycle(messages).__next__

    def failed(self) -> None:
        return

    def last(self) -> bytes | None:
        return None


class Sequences:
    """One sequence after the other, each of `length` requests, with ids that nobody else is likely to have."""

    def __init__(self, target: LoadTarget, requests: Sequence[Mapping[str, Tensor]], length: int) -> None:
        self._target = target
        self._requests = itertools.cycle(requests)
        self._length = length
        self._place = 0
        self._id = random.getrandbits(47) + 1

    def next(self) -> bytes:
        start, end = self._place == 0, self._place == self._length - 1
        message = self._made(start, end)
        self._place = 0 if end else self._place + 1
        if end:
            self._id += 1
        return message

    def failed(self) -> None:
        """The sequence can't be gone on with."""
        if self._place:
            self._place = 0
            self._id += 1

    def last(self) -> bytes | None:
        if not self._place:
            return None
        self._place = 0
        return self._made(False, True)

    def _made(self, start: bool, end: bool) -> bytes:
        parameters = {"sequence_id": self._id, "sequence_start": start, "sequence_end": end}
        return self._target.encode(next(self._requests), parameters)


class RunningLoad:
    """One load on one target, from `start` to `stop`.

    `sources`: of the clients; in an open loop of lanes, in each of which a request waits for the one before it, unless `free`.
    `moments`: of an open loop, seconds from the start.
    """

    def __init__(
        self,
        target: LoadTarget,
        sources: Sequence[Source],
        *,
        moments: NDArray[np.float64] | None = None,
        free: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target = target
        self.waiting = 0
        self._sources = sources
        self._moments = moments.tolist() if moments is not None else None
        self._lanes = None if free or moments is None else [_Lane(self, one) for one in sources]
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._firsts: list[float] = []
        self._errors: list[str] = []
        self._lags: list[float] = []
        self._held = 0.0
        self._stopping = False
        self._idle = asyncio.Event()
        self._alarm: Alarm | None = None
        self._next = 0
        self._origin = 0.0
        self._probe: asyncio.TimerHandle | None = None
        self._expected = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether an open loop has no moment left."""
        return self._moments is not None and self._next == len(self._moments)

    def start(self) -> None:
        self._origin = self._clock()
        self._look()
        if self._moments is None:
            for source in self._sources:
                self._again(source)
        else:
            self._alarm = Alarm(self._loop, self._due, self._clock)
            self._due()

    async def stop(self, patience: float) -> None:
        """Send nothing more that counts, and wait so long for answers."""
        self._stopping = True
        if self._alarm is not None:
            self._alarm.close()
        if self._probe is not None:
            self._probe.cancel()
        for lane in self._lanes or ():
            lane.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self.waiting:
                    self._idle.clear()
                    await self._idle.wait()

    # -- closed --------------------------------------------------------------------------------------------------------

    def _again(self, source: Source) -> None:
        if self._stopping:
            return
        self.waiting += 1
        self.target.send(source.next(), partial(self._client_done, source, self._clock()))

    def _client_done(self, source: Source, begin: float, reason: str, first: float) -> None:
        if reason:
            source.failed()
        if self._stopping:
            self.finish(source)
        self.ended(begin, reason, first)
        if reason:
            self._loop.call_later(PAUSE, self._again, source)
        else:
            self._again(source)

    def finish(self, source: Source) -> None:
        """Send what leaves nothing behind."""
        message = source.last()
        if message is not None:
            self.waiting += 1
            self.target.send(message, self._finished)

    def _finished(self, reason: str, first: float) -> None:
        self.waiting -= 1
        if not self.waiting:
            self._idle.set()

    # -- open ----------------------------------------------------------------------------------------------------------

    def _due(self) -> None:
        """Send all whose moment has come."""
        moments, origin, send = self._moments, self._origin, self.target.send
        assert moments is not None and self._alarm is not None
        if self._stopping:
            return
        source = self._sources[0]
        lags = self._lags
        while self._next < len(moments):
            moment = origin + moments[self._next]
            now = self._clock()
            if moment > now:
                self._alarm.at(moment)
                return
            lags.append(now - moment)
            self.waiting += 1
            if self._lanes is None:
                send(source.next(), partial(self.ended, moment))
            else:
                self._lanes[self._next % len(self._lanes)].take(moment)
            self._next += 1

    def ended(self, begin: float, reason: str, first: float) -> None:
        """A request that counts has its answer."""
        self.waiting -= 1
        now = self._clock()
        if reason:
            self._errors.append(reason)
        else:
            self._begins.append(begin)
            self._ends.append(now)
            if first:
                self._firsts.append(first - begin)
        if self._stopping and not self.waiting:
            self._idle.set()

    # -- what is measured ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = self._clock()
        if self._expected:
            self._held = max(self._held, now - self._expected)
        self._expected = now + PROBE
        self._probe = self._loop.call_later(PROBE, self._look)

    def answered(self) -> int:
        """How many have succeeded or failed since the last `mark`."""
        return len(self._ends) + len(self._errors)

    def mark(self) -> _Mark:
        """Begin a window."""
        for kept in (self._begins, self._ends, self._firsts, self._errors, self._lags):
            kept.clear()
        self._held = 0.0
        return _Mark(self._clock(), time.process_time(), self.target.responses)

    def window(self, mark: _Mark) -> Window:
        """End the window that has begun there."""
        seconds = self._clock() - mark.moment
        errors: Counter[str] = Counter()
        for reason in self._errors:
            errors[reason if reason in errors or len(errors) < REASONS else "other reasons"] += 1
        return Window(
            seconds,
            np.array(self._ends) - np.array(self._begins),
            np.array(self._firsts),
            errors,
            self.target.responses - mark.responses,
            self.waiting,
            (time.process_time() - mark.used) / seconds,
            np.array(self._lags),
            self._held,
        )


@dataclass(frozen=True)
class _Mark:
    moment: float
    used: float
    responses: int


class _Lane:
    """A sequence of an open loop: each request is sent when the one before it has its answer."""

    def __init__(self, traffic: RunningLoad, source: Source) -> None:
        self.source = source
        self._traffic = traffic
        self._due: deque[float] = deque()
        self._busy = self._stopped = False

    def take(self, moment: float) -> None:
        self._due.append(moment)
        if not self._busy:
            self._send()

    def _send(self) -> None:
        self._busy = True
        self._traffic.target.send(self.source.next(), partial(self._done, self._due.popleft()))

    def _done(self, begin: float, reason: str, first: float) -> None:
        self._busy = False
        if reason:
            self.source.failed()
        if self._stopped:
            self._traffic.finish(self.source)
        self._traffic.ended(begin, reason, first)
        if self._due:
            self._send()

    def stop(self) -> None:
        """Send nothing more but the end of what has begun."""
        self._stopped = True
        self._traffic.waiting -= len(self._due)
        self._due.clear()
        if not self._busy:
            self._traffic.finish(self.source)

"""The loop that a simulation runs on: virtual time, on which requests come by themselves, and little that costs time of its own.

What the kernel asks of a loop is what asyncio's gives, in asyncio's order; a moment that is over before the next thing happens is
passed at once. Code that holds the loop moves the time on by itself (`hold`): what should have come meanwhile comes late.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from itertools import count
from typing import Any

from kernel.testing import Deadlock, VirtualLoop

__all__ = ["SimulationLoop"]


class _Call:
    """What is to be called; as much of an asyncio.Handle as is used."""

    __slots__ = ("args", "callback", "context", "time")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, time: float) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.time = time

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.time

    def run(self) -> None:
        callback = self.callback
        if callback is None:
            return
        if self.context is None:
            callback(*self.args)
        else:
            self.context.run(callback, *self.args)


class SimulationLoop(VirtualLoop):
    """Virtual time from 1000 s on. `come`: has requests come."""

    def __init__(self) -> None:
        self._soon: deque[_Call] = deque()
        self._later: list[tuple[float, int, _Call]] = []
        self._number = count().__next__
        self._moments: Sequence[float] = ()  # when requests come
        self._come = 0  # how many have
        self._next = math.inf
        self._arrive: Callable[[int], object] = lambda index: None
        super().__init__()

    def come(self, moments: Sequence[float], arrive: Callable[[int], object]) -> None:
        """Call `arrive(index)` at each of these moments, which do not decrease; index: which of them it is, from 0 on."""
        self._moments, self._come, self._arrive = moments, 0, arrive
        self._next = moments[0] if moments else math.inf

    def hold(self, seconds: float) -> None:
        """Let so much time go by in which the loop does nothing else."""
        self.now += seconds

    # -- as asyncio calls it -------------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        call = _Call(callback, args, context, 0.0)
        self._soon.append(call)
        return call

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        self.call_soon(callback, *args, context=context)
        return super().call_soon_threadsafe(_nothing)  # no thread is waited for: the next turn sees it

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        call = _Call(callback, args, context, when)
        heapq.heappush(self._later, (when, self._number(), call))
        return call

    def _run_once(self) -> None:
        """Live until somebody stops the loop: asyncio calls this for each turn, and has no other place where turns are made."""
        soon, later, pop = self._soon, self._later, heapq.heappop
        while not self._stopping:  # type: ignore[attr-defined]
            if self._next <= self.now or not soon:
                due = later[0][0] if later else math.inf
                if due <= self._next:
                    if due > self.now:
                        if due == math.inf:
                            raise Deadlock("deadlock: nothing is ready, no timer is due and no request is to come")
                        self.now = due
                    while later and later[0][0] <= self.now:
                        soon.append(pop(later)[2])
                else:
                    self._receive(due)
            for _ in range(len(soon)):
                soon.popleft().run()

    def _receive(self, until: float) -> None:
        """Have requests come for as long as nothing else happens: before `until`, or before what is to be called soon."""
        soon, later, arrive, moments = self._soon, self._later, self._arrive, self._moments
        index, last, following = self._come, len(moments), self._next
        try:
            while following < until:
                if following > self.now:
                    if soon or (later and later[0][0] <= following):
                        return
                    self.now = following
                arrive(index)
                index += 1
                following = moments[index] if index < last else math.inf
        finally:
            self._come, self._next = index, following


def _nothing() -> None:
    pass

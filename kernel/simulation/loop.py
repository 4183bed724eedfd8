"""The loop that a simulation runs on: virtual time, on which requests come by themselves, and little that costs time of its own.

What the kernel asks of a loop is what asyncio's gives, in asyncio's order; a moment that is over before the next thing happens is
passed at once. Code that holds the loop moves the time on by itself (`now`): what should have come meanwhile comes late.
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


class _Call(list[Any]):
    """What is to be called: [callback or None, arguments, context or None, when]; as much of an asyncio.Handle as is used.

    A list, as to make one takes no Python code.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[0], self[1] = None, ()

    def cancelled(self) -> bool:
        return self[0] is None

    def when(self) -> float:
        return float(self[3])

    def run(self) -> None:
        callback, args, context, _ = self
        if callback is None:
            return
        if context is None:
            callback(*args)
        else:
            context.run(callback, *args)


class SimulationLoop(VirtualLoop):
    """Virtual time from 1000 s on. `come`: has requests come. `later`: what is to be called when; `number()`: its order."""

    def __init__(self) -> None:
        self._soon: deque[_Call] = deque()
        self.later: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self.number = count().__next__
        self._moments: Sequence[float] = ()  # when requests come
        self._come = 0  # how many have
        self._next = math.inf
        self._effort = self._wake = 0.0
        self._arrive: Callable[[int], object] = lambda index: None
        super().__init__()

    def come(self, moments: Sequence[float], arrive: Callable[[int], object]) -> None:
        """Call `arrive(index)` at each of these moments, which do not decrease; index: which of them it is, from 0 on."""
        self._moments, self._come, self._arrive = moments, 0, arrive
        self._next = moments[0] if moments else math.inf

    def take_time(self, effort: float, wake: float) -> None:
        """Be busy for `effort` seconds with each request; what ends idleness is noticed `wake` seconds later."""
        self._effort, self._wake = effort, wake

    # -- as asyncio calls it -------------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        call = _Call((callback, args, context, 0.0))
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
        call = _Call((callback, args, context, when))
        heapq.heappush(self.later, (when, self.number(), _Call.run, call))
        return call

    def end_at(self, when: float, callback: Callable[[Any], object], argument: Any) -> None:
        """As `call_at`, of what nobody cancels: for the ends of executions, of which there are as many as requests."""
        heapq.heappush(self.later, (when, self.number(), callback, argument))

    def _run_once(self) -> None:
        """Live until somebody stops the loop: asyncio calls this for each turn, and has no other place where turns are made."""
        soon, later, pop = self._soon, self.later, heapq.heappop
        while not self._stopping:  # type: ignore[attr-defined]
            turn = self.now
            if not soon:
                moment = self._next
                if later and later[0][0] < moment:
                    moment = later[0][0]
                if moment > turn:
                    if moment == math.inf:
                        raise Deadlock("deadlock: nothing is ready, no timer is due and no request is to come")
                    self.now = turn = moment + self._wake
            # What is there now is all that this turn sees, in asyncio's order: what was put off, requests, timers.
            late = [pop(later)] if later and later[0][0] <= turn else None
            if late is not None:
                while later and later[0][0] <= turn:
                    late.append(pop(later))
            if soon:
                for _ in range(len(soon)):
                    callback, args, context, _ = soon.popleft()
                    if context is None:
                        if callback is not None:
                            callback(*args)
                    elif callback is not None:
                        context.run(callback, *args)
            if self._next <= turn:
                self._receive(turn)
            if late is not None:
                for _, _, callback, argument in late:
                    callback(argument)

    def _receive(self, turn: float) -> None:
        """Have the requests come that are there."""
        moments, index, effort = self._moments, self._come, self._effort
        while True:
            self._come = following = index + 1
            self._next = moments[following] if following < len(moments) else math.inf
            self._arrive(index)
            if effort:
                self.now += effort
            if self._next > turn:
                return
            index = following


def _nothing() -> None:
    pass

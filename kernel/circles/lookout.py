"""Calls that have to wait are looked at again, for as long as they wait: what is not seen when a call is made may turn out later.

Whether an `async def execute` does nothing but wait for its calls, or a thread waits for another one that calls, shows some time
after the call was made, and nobody is told. So each call that had to wait is looked at after 20 ms, and then at growing
intervals; who is answered sooner costs an entry in a list. The decision is deadlock.py's; what threads and tasks wait for is read
by awaiting.py. Where requests are handed over between replicas, who has one asks those who have what it waits for (`look_beyond`
is their answer); that takes a moment, and is not of one moment. But who waits for a request does so until it is answered, so what
was told holds for as long as all that it ended in is open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf

from kernel.circles import deadlock
from kernel.circles.awaiting import AwaitedHere, Awaiting
from kernel.circles.deadlock import Target, behind, closes_circle
from kernel.requests import InferenceRequest, RequestState

__all__ = ["AFTER_SECONDS", "Behind", "Lookout", "circular_wait"]

EXECUTING, RELEASED = RequestState.EXECUTING, RequestState.RELEASED

#: What `deadlock.behind` returns.
Behind = list[tuple[InferenceRequest, list[str]]] | None

#: How long after one look the next one comes; after the last one nothing more is expected of looking.
AFTER_SECONDS = (0.02, 0.08, 0.3, 1.2, 5.0, 20.0, 80.0)


def circular_wait(request: InferenceRequest, target: Target) -> list[str] | None:
    """As deadlock.circular_wait; what is not refused is looked at again."""
    found = deadlock.circular_wait(request, target)
    if found is None:
        request.model.kernel.supervision.lookout.keep_looking_at(request)
    return found


class Lookout:
    """Looks after calls of models that wait. One per kernel; on its loop. `later`: by how many seconds it looks later than others
    would who have a part in the same circle: one of them is to break it.
    """

    later = 0.0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[deque[tuple[float, InferenceRequest, bool]]] = [deque() for _ in AFTER_SECONDS]
        self._asking: dict[InferenceRequest, None] = {}  # looked at in vain, since somebody elsewhere has first to say how it is
        self._beyond: list[tuple[InferenceRequest, Callable[[Behind], None]]] = []  # likewise, and who wants to hear of it
        self._timer: asyncio.Handle | None = None
        self._look_at = inf
        self._facts: Awaiting | None = None  # only while it looks: they keep tasks, and the frames of threads

    def keep_looking_at(self, request: InferenceRequest, level: int = 0, taken: bool = False) -> None:
        """Look at a call now and then until it has its answer. `level`: how often that has been done. `taken`: it is the call of
        a model at another replica, and looked at until it begins; what it calls then, others look at.
        """
        if level < len(AFTER_SECONDS):
            due = self._loop.time() + AFTER_SECONDS[level] + self.later
            self._waiting[level].append((due, request, taken))
            if due < self._look_at:
                self._arm(due)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._look_at = due
        self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer, self._look_at = None, inf
        now = self._loop.time()
        self._asking = {request: None for request in self._asking if request.state is not RELEASED}
        for level, line in enumerate(self._waiting):
            while line and line[0][0] <= now:
                _, request, taken = line.popleft()
                if taken and request.state is EXECUTING and request.batch is not None and request.batch.started:
                    continue
                if request.state is not RELEASED and not self._refused(request):
                    self.keep_looking_at(request, level + 1, taken)
        self._facts = None
        due = min((line[0][0] for line in self._waiting if line), default=inf)
        if due < self._look_at:
            self._arm(due)

    def told(self) -> None:
        """An instance elsewhere has said what an execution waits for, having been asked."""
        asking, self._asking = self._asking, {}
        for request in asking:
            if request.state is not RELEASED:
                self._refused(request)
        self._facts = None
        beyond, self._beyond = self._beyond, []
        for request, then in beyond:
            self.look_beyond(request, then)

    def look_beyond(self, request: InferenceRequest, then: Callable[[Behind], None]) -> None:
        """Tell `then`, now or once it is known, what `deadlock.behind` says of a request."""
        facts = AwaitedHere(self.told)
        found = None if request.state is RELEASED else behind(request, facts)
        if found is None and facts.asked:
            self._beyond.append((request, then))
        else:
            then(None if facts.may_give_up() else found)

    def _refused(self, request: InferenceRequest) -> bool:
        """Refuse a request if it waits for itself; return whether it does."""
        facts = self._facts = self._facts or Awaiting(self.told)
        facts.asked = False
        cycle = closes_circle(request, facts)
        if facts.asked:
            self._asking[request] = None
        if cycle is None or facts.may_give_up():
            return False
        scheduler = request.model.scheduler
        scheduler.cancel(request, scheduler.circular(request, cycle))
        self._facts = None  # others go on by now
        return True

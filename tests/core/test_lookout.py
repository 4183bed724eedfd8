"""The look at calls that wait: when it comes, by a loop whose handles can't say when they ring, as uvloop's can't."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from kernel.circles import lookout
from kernel.circles.lookout import AFTER_SECONDS, Lookout
from kernel.requests.request import InferenceRequest, RequestState, nobody


class Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None], Handle]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        self.timers.append((when, callback, Handle()))
        return self.timers[-1][2]

    def advance(self, to: float) -> None:
        self.now = to
        due = [timer for timer in self.timers if timer[0] <= to and not timer[2].cancelled]
        self.timers = [timer for timer in self.timers if timer[0] > to and not timer[2].cancelled]
        for _, callback, _ in due:
            callback()


def test_each_call_is_looked_at_at_growing_intervals_until_it_is_answered(monkeypatch: Any) -> None:
    looks: list[tuple[float, str]] = []
    loop = FakeLoop()
    monkeypatch.setattr(lookout, "closes_circle", lambda request, facts: looks.append((round(loop.now, 3), request.id)))
    made = Lookout(loop)  # type: ignore[arg-type]
    first, second = (InferenceRequest("m", {}, nobody, id=name) for name in "ab")
    made.keep_looking_at(first)
    loop.advance(0.01)
    made.keep_looking_at(second)
    loop.advance(AFTER_SECONDS[0])
    loop.advance(0.03)
    first.state = RequestState.RELEASED
    loop.advance(0.2)
    assert looks == [(0.02, "a"), (0.03, "b"), (0.2, "b")]
    second.state = RequestState.RELEASED
    loop.advance(1000.0)
    assert len(looks) == 3 and not loop.timers, "nobody is looked at any more"


def test_what_a_look_has_seen_is_dropped_with_it(monkeypatch: Any) -> None:
    """It has tasks, and the frames of all threads: the next look may be minutes away, or never come."""
    seen: list[weakref.ref[Any]] = []
    loop = FakeLoop()
    monkeypatch.setattr(lookout, "closes_circle", lambda request, facts: seen.append(weakref.ref(facts)))
    made = Lookout(loop)  # type: ignore[arg-type]
    made.keep_looking_at(InferenceRequest("m", {}, nobody))
    gc.disable()
    try:
        loop.advance(0.02)
        assert len(seen) == 1 and seen[0]() is None
        made._asking = {InferenceRequest("m", {}, nobody): None}
        made.told()
        assert len(seen) == 2 and seen[1]() is None
    finally:
        gc.enable()

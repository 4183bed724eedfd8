"""What the watchdog has seen of models while they ran in the server, and which placement follows from that.

A verdict is about code: it is gone once the file in question has changed. Keeps notes, moves no model. On the loop; the two
questions may be asked by any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Conduct"]

WINDOW_SECONDS = 60.0  # a model that holds the loop twice within this leaves it


@dataclass(frozen=True, slots=True)
class _Verdict:
    reason: str
    file: str
    changed: float

    @property
    def holds(self) -> bool:
        return _changed(self.file) == self.changed


class Conduct:
    """The notes of one kernel. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[str, float] = {}  # model -> when it held the loop last
        self._off_loop: dict[str, _Verdict] = {}
        self._apart: dict[str, _Verdict] = {}

    def held(self, model: str, seconds: float, place: str, file: str) -> str | None:
        """Note that a model has held the loop. Return why it should not run there; None if it may, or it was said before."""
        now = self._clock()
        before, self._held[model] = self._held.get(model), now
        if before is None or now - before > WINDOW_SECONDS:
            return None
        reason = f"held the event loop twice, for {seconds * 1e3:.0f} ms at {place} the second time"
        return _noted(self._off_loop, model, reason, file)

    def blocked(self, model: str, seconds: float, place: str, file: str) -> str | None:
        """Note that a model has kept the interpreter lock. Return as `held` does."""
        reason = f"kept the interpreter from everybody else for {seconds * 1e3:.0f} ms at {place}"
        return _noted(self._apart, model, reason, file)

    def stayed(self, model: str, count: int, place: str, file: str) -> str | None:
        """Note that a model was unloaded and has left `count` threads in the server. Return as `held` does."""
        reason = f"left {count} of its threads running when it was unloaded, one at {place}"
        return _noted(self._apart, model, reason, file)

    def must_leave_loop(self, model: str) -> str | None:
        """Return why a model should not run on the loop, None where nothing speaks against that."""
        return _reason(self._off_loop, model)

    def must_isolate(self, model: str) -> str | None:
        """Return why a model should not run in the server's process, None where nothing speaks against that."""
        return _reason(self._apart, model)


def _noted(verdicts: dict[str, _Verdict], model: str, reason: str, file: str) -> str | None:
    if _reason(verdicts, model) is not None:
        return None
    verdicts[model] = _Verdict(reason, file, _changed(file))
    return reason


def _reason(verdicts: dict[str, _Verdict], model: str) -> str | None:
    verdict = verdicts.get(model)
    return verdict.reason if verdict is not None and verdict.holds else None


def _changed(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0

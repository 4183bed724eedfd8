"""What the watchdog says of code that holds the event loop, and of code that keeps the interpreter lock. Pure.

The loop is asked for a sign of life every now and then; while it gives none, somebody looks at what its thread is busy with. The
law: who is blamed was seen at the same piece of work twice, with no sign of life in between. How one looks, and what becomes of
what is said, is the watchdog's business.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BUSY_SHARE", "Blocked", "Held", "Holding", "Notice", "Sight", "WatchdogRules"]

LONG_SECONDS = 2.0  # for which the loop has been held when that is logged …
AGAIN_SECONDS = 30.0  # … and logged again, while it lasts
BLOCKED_SECONDS = 0.25  # for which one thread has kept the interpreter lock when that is logged
HELD_LEAST = 0.05  # seconds; what has held the loop for less is not noted
BUSY_SHARE = 0.3  # of that time has to have been computed, by this process: else the machine was short of time, or asleep


@dataclass(frozen=True, slots=True)
class Sight:
    """What a thread is busy with. `work`: the same object for as long as it is the same piece of work.

    `model` and `instance`: whose code it is, "" where it is nobody's; `place`: such as `model.py:9`, in the file `file`; `stack`:
    the thread's.
    """

    work: object
    model: str = ""
    instance: str = ""
    place: str = ""
    file: str = ""
    stack: object = None


@dataclass(frozen=True, slots=True)
class Holding:
    """The loop is held, for `seconds` so far."""

    seconds: float
    sight: Sight


@dataclass(frozen=True, slots=True)
class Held:
    """One piece of work has held the loop for `seconds`, and does no longer."""

    seconds: float
    sight: Sight


@dataclass(frozen=True, slots=True)
class Blocked:
    """For `seconds` no other thread got the interpreter: code that keeps its lock."""

    seconds: float
    sight: Sight


Notice = Holding | Held | Blocked


class WatchdogRules:
    """Is told of each look, and says what is to be logged. Times are seconds on any clock that goes forward."""

    def __init__(self) -> None:
        self._asked: float | None = None  # when the loop was asked for a sign of life that it has not given
        self._say_at = LONG_SECONDS
        self._first: tuple[float, Sight] | None = None  # what it is at, and when that was seen first
        self._last = 0.0
        self._waited = self._waited_last = 0.0  # how long it had waited for a processor when `_first` and `_last` were seen
        self._alone = True  # it has been seen at one piece of work only since it was asked

    def asked(self, now: float) -> None:
        """Note that the loop has been asked for a sign of life."""
        self._asked = now
        self._say_at = LONG_SECONDS
        self._first = None
        self._alone = True

    def looked(
        self, now: float, answered: float | None, sight: Sight | None, fair: bool = True, waited: float = 0.0
    ) -> list[Notice]:
        """Note one look at the loop's thread, and return what is to be logged.

        `answered`: when the sign came, None while it hasn't; `sight`: what the thread is busy with then. `fair`: whether the
        thread had the interpreter lock since the last look, as far as it wanted it; `waited`: seconds that it has waited for a
        processor in its whole life. Code on the loop is not blamed for either.
        """
        if self._asked is None:
            return []
        if answered is not None:
            return self._over(answered)
        said: list[Notice] = []
        if sight is None or self._first is None or sight.work is not self._first[1].work:
            if self._first is not None:
                said = self._over(self._last)
                self._alone = False
            self._first = None if sight is None else (now, sight)
            self._waited = waited
        elif not fair:
            self._first, self._alone, self._waited = (now, sight), False, waited
        self._last, self._waited_last = now, waited
        held = now - self._asked
        if sight is not None and held >= self._say_at:
            self._say_at = held + AGAIN_SECONDS
            said.append(Holding(held, sight))
        return said

    def _over(self, when: float) -> list[Notice]:
        """Return what is to be logged of the piece of work that was seen last, which is over."""
        first, self._first = self._first, None
        if first is None or self._last <= first[0]:
            return []
        assert self._asked is not None
        held = when - (self._asked if self._alone else first[0]) - (self._waited_last - self._waited)
        return [Held(held, first[1])] if held >= HELD_LEAST else []

    def slept(self, late: float, busy: float, loop_busy: float, of_loop: Sight | None, others: list[Sight]) -> list[Notice]:
        """Return who kept the interpreter lock, after a thread that slept has woken up `late` seconds too late.

        `busy`, `loop_busy`: seconds of processor time that the process and the loop's thread have used meanwhile; `of_loop`,
        `others`: what models do on the loop and on other threads. Where it could be one or another, nobody is blamed.
        """
        if late < BLOCKED_SECONDS or busy < BUSY_SHARE * late:
            if busy < BUSY_SHARE * late and self._asked is not None:
                self.asked(self._asked + late)  # nobody could have given a sign
            return []
        if loop_busy >= BUSY_SHARE * late:
            return [Blocked(late, of_loop)] if of_loop is not None and of_loop.model else []
        return [Blocked(late, others[0])] if len(others) == 1 else []

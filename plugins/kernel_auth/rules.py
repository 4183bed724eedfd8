"""The rules: what a client may, how often, and how much at a time. Pure: the time is an argument, and nobody is asked or told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

__all__ = ["Bucket", "Grant", "Identity", "Usage"]

#: How many answers about models are remembered of one client, and how long their names may be.
VERDICTS = 1024
LONGEST = 256

#: What sums of floats lose, in seconds: who waits as long as he was told gets a token.
LOST = 1e-9


class Bucket:
    """A token bucket: `rate` tokens come in a second, 0 for as many as are wanted; `burst` of them are kept; full at first.

    Kept as the time at which it will be full again (the generic cell rate algorithm): who takes fewer than come costs one sum.
    """

    __slots__ = ("_full", "_interval", "_window", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._full = float("-inf")
        self._set(rate, burst)

    def _set(self, rate: float, burst: float) -> None:
        self.rate = rate
        self._interval = 1.0 / rate if rate else 0.0  # in which a token comes, in seconds
        self._window = burst / rate if rate else float("inf")  # in which all of them come

    def take(self, now: float) -> float:
        """Take a token and return 0.0; where there is none, return the seconds until there will be one."""
        full = self._full
        if full <= now:
            self._full = now + self._interval
            return 0.0
        full += self._interval
        wait = full - self._window - now
        if wait > LOST:
            return wait
        self._full = full
        return 0.0

    def change(self, rate: float, burst: float, now: float) -> None:
        """Go on with other limits; what has been taken stays taken, as far as there can be as much."""
        missing = max(0.0, self._full - now) * self.rate
        self._set(rate, burst)
        self._full = now + min(missing, burst) * self._interval


class Usage:
    """What one client uses: outlives the file that says how much it may.

    `rate`: requests a second, and `concurrency`: at a time, 0 for any number. `most`: the latter, inf for any number. `running`:
    how many are under way: those that are answered as soon as they come never count.
    """

    __slots__ = ("bucket", "limited", "most", "running")

    def __init__(self, rate: float, burst: float, concurrency: int) -> None:
        self.bucket = Bucket(rate, burst)
        self.running = 0
        self._limit(rate, concurrency)

    def _limit(self, rate: float, concurrency: int) -> None:
        self.most = concurrency or float("inf")
        self.limited = bool(rate or concurrency)

    def change(self, rate: float, burst: float, concurrency: int, now: float) -> None:
        """Go on with other limits."""
        self.bucket.change(rate, burst, now)
        self._limit(rate, concurrency)

    def stay(self) -> Callable[[], None]:
        """A request is under way; return what is to be called when it is over."""
        self.running += 1
        return self._leave

    def _leave(self) -> None:
        self.running -= 1


class Grant(NamedTuple):
    """`models`: patterns as the shell's, `*` and `?`. `categories`: those of restricted APIs."""

    models: tuple[str, ...]
    categories: frozenset[str]


class Identity:
    """A client as the file, or its token, has it. `until`: when that ends, on the kernel's clock."""

    __slots__ = ("_verdicts", "grants", "name", "until", "usage")

    def __init__(self, name: str, grants: Sequence[Grant], usage: Usage, until: float = float("inf")) -> None:
        self.name = name
        self.grants = grants
        self.usage = usage
        self.until = until
        self._verdicts: dict[tuple[str, str | None], bool] = {}

    def may(self, category: str, model: str | None) -> bool:
        """Whether it may what is of this category. `model`: "" for what belongs to no model, which wants a grant for all of
        them; None where it is not known yet, so that a grant for any is enough.
        """
        verdict = self._verdicts.get((category, model))
        if verdict is None:
            verdict = any(category in grant.categories and covers(grant.models, model) for grant in self.grants)
            if model is None or len(model) <= LONGEST:
                if len(self._verdicts) >= VERDICTS:
                    self._verdicts.clear()
                self._verdicts[category, model] = verdict
        return verdict


def covers(patterns: Sequence[str], model: str | None) -> bool:
    if model is None:
        return True
    return any(pattern == "*" or (model != "" and fnmatchcase(model, pattern)) for pattern in patterns)

"""The rules: what a client may, how often, and how much at a time. Pure: the time is an argument, and nobody is asked or told."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

__all__ = ["Account", "Bucket", "Grant", "Identity"]

#: How many answers about models are remembered of one client, and how long their names may be.
VERDICTS = 1024
LONGEST = 256

#: A token, but for what sums of floats lose: who waits as long as he was told gets one.
NEARLY_ONE = 1.0 - 1e-9


class Bucket:
    """A token bucket: `rate` tokens come in a second, `burst` of them are kept; full at first."""

    __slots__ = ("_tokens", "_when", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self._tokens = burst
        self._when = float("-inf")

    def take(self, now: float) -> float:
        """Take a token and return 0.0; where there is none, return the seconds until there will be one."""
        tokens = self._tokens
        if now > self._when:
            tokens += (now - self._when) * self.rate
            if tokens > self.burst:
                tokens = self.burst
            self._when = now
        if tokens < NEARLY_ONE:
            self._tokens = tokens
            return (1.0 - tokens) / self.rate
        self._tokens = tokens - 1.0 if tokens > 1.0 else 0.0
        return 0.0

    def change(self, rate: float, burst: float) -> None:
        """Go on with other limits; what has been taken stays taken."""
        self.rate = rate
        self.burst = burst
        self._tokens = min(self._tokens, burst)


class Account:
    """What one client uses: outlives the file that says how much it may.

    `bucket`: None for as often as it likes. `concurrency`: requests at a time, 0 for any number. `running`: how many there are.
    """

    __slots__ = ("bucket", "concurrency", "limited", "running")

    def __init__(self, rate: float, burst: float, concurrency: int) -> None:
        self.bucket: Bucket | None = None
        self.concurrency = 0
        self.limited = False
        self.running = 0
        self.change(rate, burst, concurrency)

    def change(self, rate: float, burst: float, concurrency: int) -> None:
        """Set the limits. `rate`: requests a second, 0 for any number."""
        if not rate:
            self.bucket = None
        elif self.bucket is None:
            self.bucket = Bucket(rate, burst)
        else:
            self.bucket.change(rate, burst)
        self.concurrency = concurrency
        self.limited = bool(rate or concurrency)

    def leave(self) -> None:
        """A request is over that was counted in `running`."""
        self.running -= 1


class Grant(NamedTuple):
    """`models`: patterns as the shell's, `*` and `?`. `categories`: those of restricted APIs."""

    models: tuple[str, ...]
    categories: frozenset[str]


class Identity:
    """A client as the file, or its token, has it. `until`: when that ends, on the kernel's clock."""

    __slots__ = ("_verdicts", "account", "grants", "name", "until")

    def __init__(self, name: str, grants: Sequence[Grant], account: Account, until: float = float("inf")) -> None:
        self.name = name
        self.grants = grants
        self.account = account
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

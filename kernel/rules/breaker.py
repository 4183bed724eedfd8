"""Whether a model that keeps failing is given more to do. Pure: state and `now` in, a decision out.

The law: after so many failures in a row nobody is let in for a while; then one is, to see. His success lets all in again, his
failure nobody for as long once more; what is neither (it was cancelled, or never began) leaves the next one to see.
"""

from __future__ import annotations

from kernel.config import BreakerRule

__all__ = ["Breaker"]


class Breaker:
    """What is known of one model. `failures`: in a row, up to now; `why`: the last of them said."""

    def __init__(self, rule: BreakerRule) -> None:
        self.rule = rule
        self.failures = 0
        self.why = ""
        self._until: float | None = None  # nobody is let in before; None while all are
        self._trying: object = None  # who has been let in to see

    @property
    def is_open(self) -> bool:
        """Whether requests are kept out, but for one now and then."""
        return self._until is not None

    def wait(self, now: float) -> float:
        """Return for how many seconds nobody is let in; 0.0: the next one is."""
        if self._until is None:
            return 0.0
        if self._trying is not None:
            return self.rule.seconds  # at most, as far as one can tell
        return max(0.0, self._until - now)

    def enter(self, who: object) -> None:
        """Somebody is let in, as `wait` has said."""
        if self._until is not None:
            self._trying = who

    def succeeded(self, who: object) -> None:
        """What was let in has come to something. From before the failures it says nothing of now."""
        if self._until is None or who is self._trying:
            self.failures, self._until, self._trying = 0, None, None

    def failed(self, who: object, why: str, now: float) -> None:
        """What was let in has failed."""
        self.why = why
        self.failures += 1
        if who is self._trying or (self._until is None and self.failures >= self.rule.failures):
            self._until, self._trying = now + self.rule.seconds, None

    def left(self, who: object) -> None:
        """What was let in has ended, and says nothing of the model."""
        if who is self._trying:
            self._trying = None

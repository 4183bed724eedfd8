"""How much may wait for a client that is slow to take its answers, and for how long. Pure: `now` is an argument."""

from __future__ import annotations

__all__ = ["MAX_WAITING", "MOST_WAITING", "PATIENCE", "Patience"]

#: The bytes of one call that may wait for its client when a further message is sent.
MAX_WAITING = 64 * 1024 * 1024

#: More may wait while the client reads: it must not have taken nothing for so many seconds.
PATIENCE = 5.0

#: What may wait at most, however fast the client reads: a model may be faster.
MOST_WAITING = 1024 * 1024 * 1024


class Patience:
    """What one call's client has been given, and when it has last taken some of it."""

    __slots__ = ("_given", "_since", "_taken")

    def __init__(self) -> None:
        self._given = 0  # the bytes that have had to wait for the client, ever
        self._taken = 0  # how many of them it had taken when that was last looked at
        self._since: float | None = None  # since when it has not taken more; None before the first look

    def give(self, size: int) -> None:
        """Count a message of `size` bytes that waits for the client, if only for a moment."""
        self._given += size

    def is_over(self, queued: int, now: float) -> bool:
        """Whether a further message is one too many, where `queued` bytes still wait. Looked at only while messages come."""
        if queued <= MAX_WAITING:
            return False
        taken = self._given - queued
        if taken != self._taken or self._since is None:
            self._taken, self._since = taken, now
        return now - self._since > PATIENCE or queued > MOST_WAITING

"""How much may wait for a client that is slow to take its answers, and for how long. Pure: `now` is an argument.

Patience is with one call, Reading with the client, all its calls together.
"""

from __future__ import annotations

__all__ = ["HOG", "LITTLE", "MAX_WAITING", "MOST_WAITING", "PATIENCE", "PERIOD", "SOON", "Patience", "Reading"]

#: The bytes of one call that may wait for its client when a further message is sent.
MAX_WAITING = 64 * 1024 * 1024

#: More may wait while the client reads: it must not have taken nothing for so many seconds.
PATIENCE = 5.0

#: For how long a client may take nothing that lets twice as much wait as holds up its further requests (Limits.queue), where an
#: answer is made for it; after PATIENCE its connection ends.
SOON = 2.0

#: What may wait at most, however fast the client reads: a model may be faster.
MOST_WAITING = 1024 * 1024 * 1024

#: Seconds after which the connection of a client ends for which more than MAX_WAITING waits, and that takes none of it.
HOG = 30.0

#: What may wait for a client that reads as slowly as it likes; where more waits, it has a least rate, measured over PERIOD.
LITTLE = 1024 * 1024
PERIOD = 60.0


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


class Reading:
    """How one client takes what waits for it; looked at every second or so. `delivered`: how much it has taken, ever."""

    __slots__ = ("_began", "_delivered", "_delivered_then", "_since")

    def __init__(self, now: float) -> None:
        self._since = self._began = now
        self._delivered = self._delivered_then = 0

    def still(self, delivered: int, now: float) -> float:
        """Return for how many seconds it has taken nothing."""
        if delivered != self._delivered:
            self._delivered, self._since = delivered, now
        return now - self._since

    def rest(self, delivered: int, now: float) -> None:
        """Nothing waits."""
        self._since = self._began = now
        self._delivered = self._delivered_then = delivered

    def is_slow(self, delivered: int, queued: int, now: float, rate: float) -> bool:
        """Whether it has taken less than `rate` bytes a second in the last PERIOD, where much waits."""
        if queued <= LITTLE:
            self._began, self._delivered_then = now, delivered
            return False
        seconds = now - self._began
        if seconds < PERIOD:
            return False
        slow = delivered - self._delivered_then < rate * seconds
        self._began, self._delivered_then = now, delivered
        return slow

"""When a replica that has died begins anew. Pure: moments in, a delay out.

The law: at once where it has served for a while; who dies again and again waits, each time twice as long, up to a limit. So one
that is killed is back as soon as it has loaded, and one that can't start, or dies of each request, doesn't take the machine.
"""

from __future__ import annotations

__all__ = ["FIRST_SECONDS", "LONGEST_SECONDS", "QUIET_SECONDS", "STEADY_SECONDS", "Backoff"]

#: Who has served for so long has not died of its start.
STEADY_SECONDS = 1.0

#: How long all have to serve before a spare is started, which takes the processor's time from them.
QUIET_SECONDS = 1.0

#: What the second of several early deaths waits, and what none waits longer than.
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 30.0


class Backoff:
    """The deaths of one replica. `count`: of those in a row that came early."""

    def __init__(self) -> None:
        self.count = 0

    def delay(self, served: float) -> float:
        """Return how many seconds to wait before it begins anew. `served`: for how many it has, 0.0 where it never did."""
        if served >= STEADY_SECONDS:
            self.count = 0
            return 0.0
        self.count += 1
        if self.count == 1 and served:
            return 0.0
        exponent = min(self.count - 1, 64)  # a float has no more room than for some 1 000
        return float(min(FIRST_SECONDS * 2**exponent, LONGEST_SECONDS))

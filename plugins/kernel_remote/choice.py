"""Which endpoint a request goes to. Pure: time, chance and what is known of endpoints come as arguments.

Power of two choices by outstanding requests, weighted by the load that answers report; endpoints that fail in a row are left out
for a while, and come back slowly. A sequence belongs to one endpoint by rendezvous hash, as long as that one exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

__all__ = ["Standing", "choose", "owner", "reported"]

#: Failures in a row that eject; seconds of the first ejection, doubled each time up to the longest; seconds of the slow start.
FAILURES = 3
EJECTED = 0.5
LONGEST = 8.0
SLOW_START = 2.0


class Standing:
    """What is known of one endpoint. `outstanding`: calls that have not ended. `load`: reported, 0.0 to 1.0 and above."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outstanding = 0
        self.load = 0.0
        self.until = 0.0  # when its ejection ends
        self.failures = 0
        self._ejections = 0

    def succeeded(self, now: float) -> None:
        """It has answered."""
        self.failures = 0
        if now > self.until + SLOW_START:
            self._ejections = 0

    def failed(self, now: float) -> None:
        """It could not be reached, or has broken off."""
        self.failures += 1
        if self.failures >= FAILURES and now >= self.until:
            self.until = now + min(LONGEST, EJECTED * 2**self._ejections)
            self._ejections = min(self._ejections + 1, 8)

    def ejected(self, now: float) -> bool:
        """Whether it is left out."""
        return now < self.until

    def cost(self, now: float) -> float:
        """How little it is wanted: what waits there, and more for one that is loaded or has just come back."""
        cost = (self.outstanding + 1) * (1.0 + self.load)
        since = now - self.until
        if self._ejections and since < SLOW_START:
            cost /= max(0.1, since / SLOW_START)
        return cost


def choose(
    standings: Sequence[Standing], now: float, random: Callable[[], float], tried: Sequence[Standing] = ()
) -> Standing | None:
    """Return the endpoint for a request that was `tried` on some; None where all were. Where all are ejected, none is."""
    left = [one for one in standings if one not in tried]
    able = [one for one in left if not one.ejected(now)] or left
    if len(able) < 2:
        return able[0] if able else None
    first = int(random() * len(able))
    second = int(random() * (len(able) - 1))
    second += second >= first
    return min(able[first], able[second], key=lambda one: one.cost(now))


def owner(standings: Sequence[Standing], sequence: int | str) -> Standing:
    """Return the endpoint of a sequence: the same for the same endpoints, in whatever order they stand."""
    return max(standings, key=lambda one: hashlib.blake2b(f"{one.name}\0{sequence!r}".encode(), digest_size=8).digest())


def reported(text: str) -> float | None:
    """Return the load in a report in ORCA's text form: `application_utilization`, else `cpu_utilization`; None for neither."""
    values: dict[str, float] = {}
    for part in text.removeprefix("TEXT").split(","):
        name, _, value = part.strip().partition("=")
        try:
            values[name] = float(value)
        except ValueError:
            continue
    load = values.get("application_utilization", values.get("cpu_utilization"))
    return None if load is None or not 0.0 <= load < 1e6 else load

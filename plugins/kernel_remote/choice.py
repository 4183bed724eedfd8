"""Which endpoint a request goes to. Pure: time, chance and what is known of endpoints come as arguments.

Power of two choices by outstanding requests, weighted by the load that answers report; endpoints that fail in a row are left out
for a while, and come back slowly. A sequence belongs to one endpoint by rendezvous hash, of those that can be had as it begins.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

__all__ = ["Sequences", "Standing", "choose", "home", "reported"]

#: Failures in a row that eject; seconds of the first ejection, doubled each time up to the longest; seconds of the slow start,
#: and the part of its requests that an endpoint gets at the beginning of it.
FAILURES = 3
EJECTED = 0.5
LONGEST = 8.0
SLOW_START = 2.0
LEAST = 0.1

#: Seconds in which what an answer has reported of the load comes to count for nothing.
LOAD_LASTS = 2.0

#: Sequences that began away from their own endpoint and are remembered.
MOVED = 4096

#: Sequences that are remembered where endpoints come and go.
KEPT = 65536


class Standing:
    """What is known of one endpoint. `outstanding`: calls that have not ended. `suspect`: its connections give no answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outstanding = 0
        self.suspect = False
        self.until = 0.0  # when its ejection ends
        self.failures = 0
        self.ejections = 0  # its number is how long the next one is; none since it is what it was
        self._load = 0.0
        self._reported = 0.0

    def succeeded(self, now: float) -> None:
        """It has answered."""
        self.failures = 0
        if now > self.until + SLOW_START:
            self.ejections = 0

    def failed(self, now: float) -> bool:
        """It could not be reached, or has broken off. Return whether it is left out for that from now on."""
        self.failures += 1
        if self.failures < FAILURES or now < self.until:
            return False
        self.until = now + min(LONGEST, EJECTED * 2**self.ejections)
        self.ejections = min(self.ejections + 1, 8)
        return True

    def doubt(self, suspect: bool, now: float) -> None:
        """It gives no answer, or does again: then it comes back slowly."""
        if self.suspect and not suspect:
            self.until = max(self.until, now)
            self.ejections = max(self.ejections, 1)
        self.suspect = suspect

    def report(self, load: float, now: float) -> None:
        """An answer has reported its load, 0.0 to 1.0 and above."""
        self._load, self._reported = load, now

    def load(self, now: float) -> float:
        """Return the load as far as it still counts: who is not asked because of it must not stay so."""
        return self._load * max(0.0, 1.0 - (now - self._reported) / LOAD_LASTS)

    def ejected(self, now: float) -> bool:
        """Whether it is left out."""
        return self.suspect or now < self.until

    def share(self, now: float) -> float:
        """Return the part of its requests that it gets: all, and less while it has only just come back."""
        since = now - self.until
        return max(LEAST, since / SLOW_START) if self.ejections and since < SLOW_START else 1.0

    def cost(self, now: float) -> float:
        """How little it is wanted: what waits there, and more for one that is loaded."""
        return (self.outstanding + 1) * (1.0 + self.load(now))


def choose(
    standings: Sequence[Standing], now: float, random: Callable[[], float], tried: Sequence[Standing] = ()
) -> Standing | None:
    """Return the endpoint for a request that was `tried` on some; None where all were. Where all are ejected, none is."""
    left = [one for one in standings if one not in tried]
    able = [one for one in left if not one.ejected(now)] or left
    if len(able) > 1:
        able = [one for one in able if (share := one.share(now)) == 1.0 or random() < share] or able
    if len(able) < 2:
        return able[0] if able else None
    first = int(random() * len(able))
    second = int(random() * (len(able) - 1))
    second += second >= first
    return min(able[first], able[second], key=lambda one: one.cost(now))


def home(standings: Sequence[Standing], sequence: int | str) -> Standing:
    """Return the home of a sequence, an endpoint: the same for the same endpoints, in whatever order they stand."""
    return max(standings, key=lambda one: hashlib.blake2b(f"{one.name}\0{sequence!r}".encode(), digest_size=8).digest())


class Sequences:
    """Where sequences go on: with their home, or with the endpoint that they began with while their home could not be had.

    `kept`: endpoints come and go, and homes with them: all sequences are remembered.
    """

    def __init__(self, kept: bool = False) -> None:
        self.kept = kept
        self._moved: OrderedDict[int | str, Standing] = OrderedDict()

    def find(
        self,
        standings: Sequence[Standing],
        sequence: int | str,
        starts: bool,
        ends: bool,
        now: float,
        tried: Sequence[Standing] = (),
    ) -> Standing:
        """Return the endpoint for a request of a sequence. `tried`: those that have not taken its first one."""
        own = home(standings, sequence)
        found = self._moved.pop(sequence, own)
        if starts:
            left = [one for one in standings if one not in tried] or standings
            found = home([one for one in left if not one.ejected(now)] or left, sequence)
        if (self.kept or found is not own) and not ends:
            self._moved[sequence] = found
            if len(self._moved) > (KEPT if self.kept else MOVED):
                self._moved.popitem(last=False)
        return found

    def forget(self, standing: Standing) -> None:
        """What went on there can't any more."""
        for sequence in [sequence for sequence, found in self._moved.items() if found is standing]:
            del self._moved[sequence]


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

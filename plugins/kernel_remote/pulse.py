"""When a connection is asked whether anybody is there, and what its silence means. Pure: time comes as an argument.

Where calls are open and nothing comes, a PING is sent. Its answer may take long where a model holds the far end up, so silence
has two steps: first no further call goes there, and only much later those that are open are given up. Servers of the C core end a
connection on which more than two PINGs come too early, within five minutes and without data of theirs in between: so these come
ever more seldom.
"""

from __future__ import annotations

import enum
import math

__all__ = ["ANSWER", "PATIENCE", "QUIET", "Action", "Pulse"]

#: Seconds without a byte before the first PING, the second and the third since data has come; and before each further one.
QUIET = (0.5, 5.0, 50.0)
SELDOM = 310.0

#: Seconds after which a PING without an answer makes a connection suspect.
ANSWER = 0.5

#: Seconds after which a suspect one is given up, where the config names none.
PATIENCE = 10.0


class Action(enum.Enum):
    NOTHING = enum.auto()
    PING = enum.auto()
    SUSPECT = enum.auto()  # no further call should go there
    GIVE_UP = enum.auto()


class Pulse:
    """What is known of one connection. `suspect`: its last PING has had no answer in time. `patience`: in seconds."""

    def __init__(self, now: float, patience: float = PATIENCE) -> None:
        self.suspect = False
        self.patience = patience
        self._heard = now
        self._asked: float | None = None  # when the PING was sent that has no answer
        self._since = now  # what waits, waits at least since then
        self._pings = 0  # since something of an answer has come
        self._came = 0

    def begin(self, now: float) -> None:
        """Calls are open from now on; there were none."""
        self._since = now

    def heard(self, now: float) -> bool:
        """Something has come. Return whether that ends a suspicion."""
        self._heard = now
        self._asked = None
        was, self.suspect = self.suspect, False
        return was

    def look(self, now: float, calls: bool, came: int) -> tuple[Action, float]:
        """Return what is to be done at `now`, and when to look again: never, as long as there are no calls.

        `came` grows with what comes of answers: from then on the far end counts our PINGs anew.
        """
        if came != self._came:
            self._came = came
            self._pings = 0
        if self._asked is not None:
            return self._wait(now, self._asked)
        if not calls:
            return Action.NOTHING, math.inf
        quiet = QUIET[self._pings] if self._pings < len(QUIET) else SELDOM
        due = max(self._heard, self._since) + quiet
        if now < due:
            return Action.NOTHING, due
        self._asked = now
        self._pings += 1
        return Action.PING, now + ANSWER

    def _wait(self, now: float, asked: float) -> tuple[Action, float]:
        if now >= asked + self.patience:
            return Action.GIVE_UP, math.inf
        if self.suspect or now < asked + ANSWER:
            return Action.NOTHING, asked + (self.patience if self.suspect else ANSWER)
        self.suspect = True
        return Action.SUSPECT, asked + self.patience

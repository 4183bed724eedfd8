"""Whether a request is better off at another replica, and at which. Pure: what is known of all and `now` in, a choice out.

The law: a request goes where it begins sooner, the way there counted, and never to one of whom nothing has been heard for a
while. Whoever is sent one has it on top of what it has reported, and as many from everybody else who is as busy as we are: else
all who see an idle replica would send it all they have. Two that are as busy do not hand each other what both might keep: a
report is of a moment, and where executions end several together the other one seems to have less. What it costs us counts as
well: where this loop is busy for longer with handing a request over than with executing it, those that wait behind it would pay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sized
from dataclasses import dataclass
from math import inf

__all__ = ["COST_SECONDS", "HOP_SECONDS", "Own", "PeerLoad", "Reported", "UsualTime", "better_off", "worth_telling"]

#: What a hop is taken to last, and what handing over costs the loop, before they were measured, and when measurements are old,
#: which takes so long.
HOP_SECONDS = 0.0003
COST_SECONDS = 0.0001
USUAL_LASTS = 2.0
LESS, MORE = 1 / 4, 1 / 32  # what the newest of the measurements counts for: a slow one may be chance, a quick one is none

#: Who has requests here has handed them over because we had less, but for those of sequences: it gets some of ours only where the
#: wait there, so many times, is less than ours.
AGAINST = 2

#: How old a report may be; who reports does so far more often, whatever it has to say.
STALE_SECONDS = 1.0

#: For how long one that has refused a model's requests, as it does not serve it, is not asked for that.
REFUSED_SECONDS = 1.0

#: How often who has something to do says so where it has changed by much, and how often everybody does.
TELL_SECONDS = 0.005
BEAT_SECONDS = 0.25
LEAST = 0.0005  # a change of less is none


@dataclass(frozen=True, slots=True)
class Reported:
    """What a replica says of itself. `shared`: seconds that its loop has to do, of executions that have not ended; `waits`:
    seconds that one more request would wait, by model, 0.0 of those that are not there. `seen`: the number of the last request
    that it has received of the one that it tells.
    """

    seen: int = 0
    shared: float = 0.0
    waits: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Own:
    """What is known here as a request comes. All in seconds, but for `count`.

    `wait`: until it would begin here. `seconds`: that an execution takes; `cost`: that this loop is busy with handing one over.
    `hop`: to another replica and back. `count`: of requests that wait here. `on_loop`: the model is executed on the loop.
    """

    wait: float
    seconds: float
    cost: float
    hop: float
    count: int
    on_loop: bool


class PeerLoad:
    """What is known of one other replica: what it has reported, and what it was sent since. `name`: of all of its kind.

    `leaving`: it takes no more. `unseen`: seconds of what it was sent and has not reported yet. `here`: what it has handed over
    to us, as far as that goes on.
    """

    __slots__ = ("_refused", "_sent", "here", "leaving", "name", "shared", "unseen", "waits", "when")

    def __init__(self, name: str) -> None:
        self.name = name
        self.leaving = False
        self.here: Sized = ()
        self.shared = 0.0
        self.waits: dict[str, float] = {}
        self.unseen = 0.0
        self.when = -inf
        self._sent: deque[tuple[int, float]] = deque()
        self._refused: dict[str, float] = {}

    def sent(self, number: int, seconds: float) -> None:
        """It was sent the request of that number, which will take it so long."""
        self._sent.append((number, seconds))
        self.unseen += seconds

    def report(self, told: Reported, now: float, all_models: bool) -> None:
        """It has reported. `all_models`: of each model that has something to do; else of those that are named."""
        self.when = now
        self.shared = told.shared
        if all_models:
            self.waits.clear()
        if told.waits:
            self.waits.update(told.waits)
        sent = self._sent
        while sent and sent[0][0] <= told.seen:
            self.unseen -= sent.popleft()[1]
        if not sent:
            self.unseen = 0.0

    def refused(self, model: str, now: float) -> None:
        """It does not take requests to a model at the moment."""
        self._refused[model] = now + REFUSED_SECONDS

    def takes(self, model: str, now: float) -> bool:
        """Whether it may be sent a request to a model."""
        if self.leaving or now - self.when > STALE_SECONDS:
            return False
        until = self._refused.get(model)
        if until is not None and now >= until:
            del self._refused[model]
            until = None
        return until is None

    def wait(self, model: str, on_loop: bool) -> float:
        """Return how long a request would have waited there as of its report."""
        wait = self.waits.get(model, 0.0)
        return max(wait, self.shared) if on_loop else wait


def better_off(
    peers: Collection[PeerLoad], model: str, own: Own, now: float, random: Callable[[], float]
) -> PeerLoad | None:
    """Return who is to take a request that has just come, None where it begins sooner here. `random()`: from 0.0 to below 1.0.

    A request that has been handed over is not asked about: it stays.
    """
    limit = own.wait - own.hop - max(0.0, own.cost - own.seconds) * own.count
    if limit <= 0.0:
        return None
    able = [peer for peer in peers if peer.takes(model, now)]
    if not able:
        return None
    busy = sum([peer.wait(model, own.on_loop) >= limit for peer in able])
    if len(able) > 2:  # two by chance, so that not all choose the same one
        first = int(random() * len(able))
        second = int(random() * (len(able) - 1))
        able = [able[first], able[second + (second >= first)]]
    found, least = None, limit
    for peer in able:
        there = peer.wait(model, own.on_loop) + peer.unseen * (1 + busy)
        if peer.here:
            there *= AGAINST
        if there < least:
            found, least = peer, there
    return found


class UsualTime:
    """How long something takes where nothing comes in between: near the quickest of those that were measured lately.

    One that is slow by chance, as the processor was somebody else's, must not end the handing over, without which nothing is
    measured any more.
    """

    __slots__ = ("_first", "_seconds", "_when")

    def __init__(self, first: float) -> None:
        """`first`: in seconds, before one was measured."""
        self._first = self._seconds = first
        self._when = -inf

    def measured(self, seconds: float, now: float) -> None:
        """One has lasted so long."""
        more = max(0.0, seconds) - self._seconds
        self._seconds += more * (MORE if more > 0.0 else LESS)
        self._when = now

    def seconds(self, now: float) -> float:
        """Return how long the next one will take. What was slow once is tried again by and by."""
        age = now - self._when
        first = self._first
        return first + (self._seconds - first) * (1.0 - age / USUAL_LASTS) if age < USUAL_LASTS else first


def worth_telling(told: float, load: float, since: float) -> bool:
    """Whether to report a load in seconds. `told`: the one before, `since` seconds ago."""
    if since >= BEAT_SECONDS:
        return True
    if since < TELL_SECONDS:
        return False
    return abs(load - told) > max(LEAST, told / 2) or (told > 0.0) != (load > 0.0)

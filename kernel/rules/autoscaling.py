"""How many workers there are to be: instances of a model, replicas of a server, actors of a cluster. Pure: load and `now` in.

The law: never outside of the limits; more at once, less only after a while. Need is counted from what is in flight, averaged over
a second, and from how long the oldest request waits while all workers are busy. Who has grown may shrink only when a whole
cooldown has asked for less; a shrink that turns out to have been a mistake makes the next one wait twice as long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from kernel.errors import Code, ServingError

__all__ = ["Autoscaler", "ScaleDecision", "ScaleLoad", "ScaleRule"]

#: Over how many seconds what is in flight is averaged.
WINDOW = 1.0

#: How long after a growth the next one comes, at the earliest, in seconds; and how many times as many there are then, at most.
SETTLE = 1.0
FACTOR = 2

#: By which share more, or less, has to be in flight than is wanted before anything is changed: between them lies what is right.
TOLERANCE = 0.1

#: How many times as long as the cooldown a shrink may have to wait, where shrinks have been mistakes.
MOST_PATIENCE = 8

#: What is waited after a worker that could not be had: doubled each time, in seconds.
FIRST_RETRY = 1.0
LAST_RETRY = 60.0


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """`least` and `most` workers. `target`: requests in flight that one is to have. `queue_age`: for how many seconds a request
    may wait while all are busy. `cooldown`: seconds for which less has to be enough. Raises ServingError(INVALID_ARG).
    """

    least: int
    most: int
    target: float = 0.7
    queue_age: float = 0.5
    cooldown: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise _wrong(f"between {self.least} and {self.most} workers were asked for, wanted 1 <= least <= most")
        if not self.target > 0:
            raise _wrong(f"the target is {self.target:g} requests in flight for each worker, wanted more than 0")
        if not (self.queue_age > 0 and self.cooldown >= 0):
            raise _wrong(f"the queue age is {self.queue_age:g} s and the cooldown {self.cooldown:g} s, wanted > 0 and >= 0")


@dataclass(frozen=True, slots=True)
class ScaleLoad:
    """What is seen at one moment. `current`: workers that serve. `in_flight`: requests that wait or execute; sequences, where
    those hold workers. `queue_age`: for how many seconds the oldest waits though no worker could take it, 0.0 where none does.
    `held`: why further workers would be of no use, "" where they would.
    """

    current: int
    in_flight: float
    queue_age: float = 0.0
    held: str = ""


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """How many there are to be, and why, in words."""

    wanted: int
    reason: str


class Autoscaler:
    """The rule with what it remembers. `decision`: its last one."""

    def __init__(self, rule: ScaleRule, current: int, now: float) -> None:
        self.rule = rule
        self.decision = ScaleDecision(min(max(current, rule.least), rule.most), "as at the start")
        self._seen: deque[tuple[float, float]] = deque()  # (moment, in flight), of the last WINDOW seconds
        self._needs: deque[tuple[float, int]] = deque()  # (moment, need), falling: the peaks of the cooldown
        self._grown = now  # nobody has asked for less for a cooldown yet
        self._shrunk: float | None = None
        self._regretted = True  # the last shrink, or there was none
        self._patience = 1  # times the cooldown
        self._failures = 0
        self._not_again = now  # it has only just grown
        self._not_before = now  # where workers could not be had

    def look(self, load: ScaleLoad, now: float) -> ScaleDecision:
        """Return how many there are to be. To be called several times a second."""
        rule, wanted = self.rule, self.decision.wanted
        average = self._averaged(load.in_flight, now)
        need, why = self._need(load, average)
        self._note(need, now)
        if need > wanted:
            if load.held:
                return self._stay(f"{why}, but {load.held}")
            if now < max(self._not_before, self._not_again):
                return self._stay(f"{why}; the last change has to show first")
            return self._become(min(need, wanted * FACTOR), why, now)
        peak = self._needs[0][1]
        cooldown = rule.cooldown * self._patience
        if peak < wanted and now - self._grown >= cooldown:
            return self._become(peak, f"{peak} would have done for {cooldown:g} s", now)
        if need < wanted:
            return self._stay(f"{why}; fewer when that is so for {cooldown:g} s")
        return self._stay(why)

    def failed(self, current: int, why: str, now: float) -> None:
        """A worker that was wanted could not be had: there are `current`, and it is tried again after a while."""
        self._failures += 1
        wait = min(LAST_RETRY, FIRST_RETRY * 2.0 ** (min(self._failures, 16) - 1))
        self._not_before = now + wait
        self.decision = ScaleDecision(min(max(current, self.rule.least), self.rule.most), f"no more could be had: {why}")

    def succeeded(self) -> None:
        """What was wanted is there."""
        self._failures = 0

    # -- what is needed ------------------------------------------------------------------------------------------------

    def _averaged(self, in_flight: float, now: float) -> float:
        seen = self._seen
        seen.append((now, in_flight))
        while len(seen) > 1 and seen[1][0] <= now - WINDOW:
            seen.popleft()
        total = span = 0.0
        for (begin, value), (end, _) in pairwise(seen):
            begin = max(begin, now - WINDOW)
            total, span = total + value * (end - begin), span + end - begin
        return total / span if span else in_flight

    def _need(self, load: ScaleLoad, average: float) -> tuple[int, str]:
        """Return how many are needed now, within the limits, and why."""
        rule, wanted = self.rule, self.decision.wanted
        share = min(average / rule.target, 1e9)  # of so many workers, however small the target is
        # Between the two there are as many as are wanted already.
        low, high = ceil(share / (1 + TOLERANCE)), ceil(share / (1 - TOLERANCE))
        need = low if wanted < low else high if wanted > high else wanted
        why = f"{average:.4g} in flight, of {rule.target:.4g} for each"
        if load.queue_age > rule.queue_age and load.current >= wanted:  # those on their way have yet to help
            later = max(wanted + 1, ceil(wanted * min(FACTOR, load.queue_age / rule.queue_age)))
            if later > need:
                need, why = later, f"a request has waited for {load.queue_age:.3g} s, of {rule.queue_age:g} s that it may"
        if need > rule.most:
            return rule.most, f"{why}: {need} were needed, {rule.most} are the most"
        return max(need, rule.least), why

    def _note(self, need: int, now: float) -> None:
        """Keep the peaks of the last cooldown, the highest first."""
        needs = self._needs
        while needs and needs[-1][1] <= need:
            needs.pop()
        needs.append((now, need))
        while needs[0][0] < now - self.rule.cooldown * self._patience:
            needs.popleft()

    # -- what is decided -----------------------------------------------------------------------------------------------

    def _stay(self, why: str) -> ScaleDecision:
        self.decision = ScaleDecision(self.decision.wanted, why)
        return self.decision

    def _become(self, wanted: int, why: str, now: float) -> ScaleDecision:
        before = self.decision.wanted
        cooldown = self.rule.cooldown * self._patience
        if wanted > before:
            self._grown, self._not_again = now, now + SETTLE
            if not self._regretted and self._shrunk is not None and now - self._shrunk < cooldown:
                self._patience = min(2 * self._patience, MOST_PATIENCE)
            self._regretted = True
        else:
            if not self._regretted and self._shrunk is not None and now - self._shrunk >= cooldown:
                # The one before this was right.
                self._patience = max(1, self._patience // 2)
            self._shrunk, self._regretted = now, False
        self.decision = ScaleDecision(wanted, f"{before} -> {wanted}: {why}")
        return self.decision


def _wrong(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)

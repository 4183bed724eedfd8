"""What is kept of requests that have had their answers: the newest of all, the slowest, and those that failed.

The law: bounded, whatever comes. Records are taken many at a time, as the statistics add them up, so that keeping them costs a
request next to nothing; nobody reads them but to explain (explanation.py).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from operator import itemgetter
from typing import Final

from kernel.errors import ServingError, clipped
from kernel.interfaces import Record
from kernel.observability.explanation import Ran, Waited, wait

__all__ = ["CALLER", "ENQUEUED", "ID", "FailedRequest", "History", "Kept", "ModelHistory", "Surroundings"]

#: How many of the newest records are kept, of all models; some 4 MB.
NEWEST = 8192

#: Of how many of the slowest requests, and of how many failures at most, the records are kept, and for how long; seconds.
SLOWEST = 100
FAILURES = 10_000
KEPT_SECONDS = 3600.0

#: Of how many requests that were never accepted: whoever sends too many must not push out what has failed.
REFUSALS = 1000

#: How many characters are kept of why a request failed.
LONGEST_WORDS = 500

#: How many of the slowest of one delivery are looked at.
LOOKED_AT = 4

#: Places in a Record.
ENQUEUED: Final = 1
STARTED: Final = 2
ENDED: Final = 5
ANSWERED: Final = 6
ID: Final = 7
INSTANCE: Final = 8
CALLER: Final = 10


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that was accepted, or refused, and has failed. `started`, `ended`: of its execution, 0.0 for none."""

    enqueued: float
    started: float
    ended: float
    answered: float
    id: str
    instance: str
    code: str
    words: str
    refused: bool


class _Delivery:
    """Records that came together. `slow`: those of them that are among the slowest. What is found in them is found once."""

    def __init__(self, model: ModelHistory, records: list[Record]) -> None:
        self.model = model
        self.records = records
        self.slow: list[Kept] = []

    @cached_property
    def began(self) -> float:
        """When the first of the executions began."""
        return min(record[STARTED] for record in self.records)

    @cached_property
    def over(self) -> float:
        """When the last of them was over."""
        return max(record[ENDED] for record in self.records)

    @cached_property
    def calls(self) -> dict[tuple[str, float], list[Record]]:
        """The calls among them, by who has made them."""
        found: dict[tuple[str, float], list[Record]] = {}
        for record in self.records:
            if record[CALLER] is not None:
                found.setdefault(record[CALLER], []).append(record)
        return found


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else is known of a request. `waited`: what it waited for; `company`: when those came that were executed with it."""

    waited: Waited
    company: tuple[float, ...]


@dataclass(slots=True)
class Kept:
    """One of the slowest requests. `context`: None as long as the newest records tell."""

    model: ModelHistory
    record: Record
    context: Surroundings | None = None

    @property
    def seconds(self) -> float:
        return self.record[ANSWERED] - self.record[ENQUEUED]


class History:
    """The records of one kernel's requests. On the loop. Who asks has those settled who count requests, first."""

    def __init__(self) -> None:
        self._deliveries: deque[_Delivery] = deque()
        self._size = 0
        self._slowest: list[tuple[float, int, Kept]] = []  # a heap, the quickest of them first
        self._prune_at = math.inf  # when the oldest of them is too old
        self._failures: deque[tuple[ModelHistory, FailedRequest]] = deque(maxlen=FAILURES)
        self._refusals: deque[tuple[ModelHistory, FailedRequest]] = deque(maxlen=REFUSALS)
        self._number = count().__next__

    # -- in ------------------------------------------------------------------------------------------------------------

    def take(self, model: ModelHistory, records: list[Record]) -> None:
        """Keep the records, which are nobody else's from here on."""
        delivery = _Delivery(model, records)
        self._deliveries.append(delivery)
        self._size += len(records)
        newest = records[-1][ANSWERED]
        if newest >= self._prune_at:
            self._prune(newest)
        least = self._slowest[0][0] if len(self._slowest) >= SLOWEST else -1.0
        # By the latest of two moments less the earliest, which no request was slower than, most deliveries are done with.
        if newest - min(map(itemgetter(ENQUEUED), records)) > least:
            for record in heapq.nlargest(LOOKED_AT, records, key=_seconds):
                if _seconds(record) > least:
                    self._keep(delivery, record)
        while self._size > NEWEST:
            self._let_go(self._deliveries.popleft())

    def _prune(self, now: float) -> None:
        """Let those of the slowest go that are too old."""
        since = now - KEPT_SECONDS
        self._slowest = [entry for entry in self._slowest if entry[2].record[ANSWERED] >= since]
        heapq.heapify(self._slowest)
        self._prune_at = min((kept.record[ANSWERED] for _, _, kept in self._slowest), default=math.inf) + KEPT_SECONDS

    def _keep(self, delivery: _Delivery, record: Record) -> None:
        kept = Kept(delivery.model, record)
        slowest = self._slowest
        if len(slowest) >= SLOWEST:
            if slowest[0][0] >= kept.seconds:
                return
            heapq.heappop(slowest)
        heapq.heappush(slowest, (kept.seconds, self._number(), kept))
        self._prune_at = min(self._prune_at, record[ANSWERED] + KEPT_SECONDS)
        delivery.slow.append(kept)

    def _let_go(self, delivery: _Delivery) -> None:
        """Forget a delivery, but for what the slowest of it waited for."""
        self._size -= len(delivery.records)
        there = {id(kept) for _, _, kept in self._slowest} if delivery.slow else ()
        for kept in delivery.slow:
            if id(kept) in there:
                kept.context = self._context(kept, (delivery, *self._deliveries))

    def failed(self, model: ModelHistory, failure: FailedRequest) -> None:
        failures = self._refusals if failure.refused else self._failures
        failures.append((model, failure))
        since = failure.answered - KEPT_SECONDS
        while failures and failures[0][1].answered < since:
            failures.popleft()

    # -- out -----------------------------------------------------------------------------------------------------------

    def records(self) -> Iterator[tuple[ModelHistory, Record]]:
        """Yield all that is kept of requests that succeeded, each once, the newest delivery first."""
        for delivery in reversed(self._deliveries):
            for record in reversed(delivery.records):
                yield delivery.model, record
        for _, _, kept in self._slowest:
            if kept.context is not None:
                yield kept.model, kept.record

    def slowest(self, count: int, now: float) -> list[Kept]:
        """Return the slowest requests of the last hour that succeeded, the slowest first."""
        since = now - KEPT_SECONDS
        kept = [one for _, _, one in self._slowest if one.record[ANSWERED] >= since]
        return sorted(kept, key=lambda one: -one.seconds)[:count]

    def failures(self, now: float) -> list[tuple[ModelHistory, FailedRequest]]:
        """Return the requests of the last hour that failed."""
        return [each for each in (*self._failures, *self._refusals) if each[1].answered >= now - KEPT_SECONDS]

    def context(self, model: ModelHistory, record: Record) -> Surroundings:
        """Return what a model executed while one of its requests waited, and with it."""
        for _, _, kept in self._slowest:
            if kept.record is record and kept.context is not None:
                return kept.context
        return self._context(Kept(model, record), self._deliveries)

    def _context(self, kept: Kept, deliveries: Iterable[_Delivery]) -> Surroundings:
        model, record = kept.model, kept.record
        enqueued, started, ended, instance = record[ENQUEUED], record[STARTED], record[ENDED], record[INSTANCE]
        meanwhile, company = [], []
        for delivery in deliveries:
            if delivery.model is model and delivery.began <= started and delivery.over > enqueued:
                for one in delivery.records:
                    if one[STARTED] < started and one[ENDED] > enqueued:
                        meanwhile.append(one)
                    elif one[STARTED] == started and one[INSTANCE] == instance and one[ENDED] == ended and one is not record:
                        company.append(one[ENQUEUED])
        waited = wait(enqueued, started, executions_of(meanwhile), model.capacity()[1])
        return Surroundings(waited, tuple(company))

    def meanwhile(self, model: ModelHistory, since: float, until: float) -> list[Ran]:
        """Return what a model has executed in a time, as far as that has ended."""
        ours = (one for one in self._deliveries if one.model is model and one.began < until and one.over > since)
        return executions_of(
            record for one in ours for record in one.records if record[STARTED] < until and record[ENDED] > since
        )

    def calls(self, instance: str, arrivals: Collection[float]) -> list[tuple[ModelHistory, Record]]:
        """Return the calls that an execution has made, as far as they are kept, the first one first.

        `arrivals`: when the requests of the execution came.
        """
        made = [
            (delivery.model, record)
            for delivery in self._deliveries
            for arrival in arrivals
            for record in delivery.calls.get((instance, arrival), ())
        ]
        return sorted(made, key=lambda each: each[1][ENQUEUED])


class ModelHistory:
    """Where the records of one version of a model are kept.

    `capacity`: how many instances it has, and how many executions at a time they may have in all. `is_ensemble`: its times
    between start and end are sums. `in_order`: answers go out in the order of the requests.
    """

    __slots__ = ("capacity", "history", "in_order", "is_ensemble", "model", "version")

    def __init__(self, history: History, model: str, version: int, *, is_ensemble: bool, in_order: bool) -> None:
        self.history = history
        self.model = model
        self.version = version
        self.is_ensemble = is_ensemble
        self.in_order = in_order
        self.capacity: Callable[[], tuple[int, int]] = lambda: (1, 1)

    def take(self, records: list[Record]) -> None:
        self.history.take(self, records)

    def failed(
        self, id: str, error: ServingError, enqueued: float, now: float,
        execution: tuple[str, float, float] = ("", 0.0, 0.0), *, refused: bool = False,
    ) -> None:  # fmt: skip
        """Keep a request that failed. `execution`: the instance, when it started and when it ended, 0.0 for not yet."""
        instance, started, ended = execution
        words = error.message if len(error.message) <= LONGEST_WORDS else f"{error.message[:LONGEST_WORDS]}…"
        failure = FailedRequest(enqueued, started, ended, now, clipped(id), instance, error.code.name, words, refused)
        self.history.failed(self, failure)


def _seconds(record: Record) -> float:
    return record[ANSWERED] - record[ENQUEUED]


def executions_of(records: Iterable[Record]) -> list[Ran]:
    """Return the executions that records are of."""
    found: dict[tuple[str, float, float], int] = {}
    for record in records:
        execution = record[INSTANCE], record[STARTED], record[ENDED]
        found[execution] = found.get(execution, 0) + 1
    return [Ran(*execution, requests) for execution, requests in found.items()]

"""What is kept of requests that have had their answers: the newest of all, the slowest, and those that failed.

The law: bounded, whatever comes. Records are taken many at a time, as the statistics add them up, so that keeping them costs a
request next to nothing; nobody reads them but to explain (explanation.py).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from operator import attrgetter, itemgetter
from typing import Any, Final, Protocol

from kernel.errors import SHOWN, ServingError, clipped
from kernel.interfaces import Record
from kernel.observability.explanation import NO_TRAITS, Ran, Traits, Waited, wait
from kernel.observability.statistics import record_of
from kernel.requests import Batch, InferenceRequest, InferenceResponse

__all__ = ["CALLER", "ENQUEUED", "ID", "FailedRequest", "History", "Kept", "ModelHistory", "Surroundings"]

#: How many of the newest records are kept, of all models; some 4 MB.
NEWEST = 8192

#: Of how many of the slowest requests, and of how many failures at most, the records are kept, and for how long; seconds.
SLOWEST = 100
FAILURES = 10_000
KEPT_SECONDS = 3600.0

#: Of how many requests that were never accepted: whoever sends too many must not push out what has failed.
REFUSALS = 1000

#: Of how many executions it is kept when they were that have failed, or that nobody waited for any more.
OTHERS = 1024

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
    """A request that was accepted, or refused, and has failed. `started`, `ended`: of its execution, 0.0 for none. `called`: by a
    model.
    """

    enqueued: float
    started: float
    ended: float
    answered: float
    id: str
    instance: str
    code: str
    words: str
    refused: bool
    called: bool = False


class _Delivery:
    """Records that came together. `latest`: when the last answer went out of these, and of what came before of their model;
    `slow`: those of them that are among the slowest. What is found in them is found once.
    """

    def __init__(self, model: ModelHistory, records: list[Record]) -> None:
        self.model = model
        self.records = records
        before = model.deliveries
        self.latest: float = max(records[-1][ANSWERED], before[-1].latest if before else 0.0)
        self.slow: list[Kept] = []

    @cached_property
    def began(self) -> float:
        """When the first of the executions began."""
        return min(record[STARTED] for record in self.records)

    @cached_property
    def over(self) -> float:
        """When the last of them was over."""
        return max(record[ENDED] for record in self.records)


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


class RecordListener(Protocol):
    """Who is told of all that the history is told of."""

    def answered(self, model: ModelHistory, records: Sequence[Record]) -> None:
        """Requests have succeeded. The records are the history's: they are to stay as they are."""

    def failed(self, model: ModelHistory, failure: FailedRequest) -> None:
        """A request has failed, or was refused."""


class History:
    """The records of one kernel's requests. On the loop. Who asks has those settled who count requests, first.

    `listeners`: who is told of all records as they come.
    """

    def __init__(self) -> None:
        self.listeners: tuple[RecordListener, ...] = ()
        self._deliveries: deque[_Delivery] = deque()
        self._size = 0
        self._slowest: list[tuple[float, int, Kept]] = []  # a heap, the quickest of them first
        self._prune_at = math.inf  # when the oldest of them is too old
        self._failures: deque[tuple[ModelHistory, FailedRequest]] = deque(maxlen=FAILURES)
        self._refusals: deque[tuple[ModelHistory, FailedRequest]] = deque(maxlen=REFUSALS)
        self._others: deque[tuple[ModelHistory, Ran]] = deque(maxlen=OTHERS)
        self._number = count().__next__

    # -- in ------------------------------------------------------------------------------------------------------------

    def take(self, model: ModelHistory, records: list[Record]) -> None:
        """Keep the records, which are nobody else's from here on."""
        if max(map(len, map(itemgetter(ID), records))) > SHOWN:  # what a client has made up is not kept as it is
            records = [_shorter(*one) for one in records]
        for listener in self.listeners:
            listener.answered(model, records)
        delivery = _Delivery(model, records)
        self._deliveries.append(delivery)
        model.deliveries.append(delivery)
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
                kept.context = self._context(kept)
        delivery.model.deliveries.popleft()

    def failed(self, model: ModelHistory, failure: FailedRequest) -> None:
        for listener in self.listeners:
            listener.failed(model, failure)
        failures = self._refusals if failure.refused else self._failures
        failures.append((model, failure))
        if failure.started and failure.ended:
            self.ran(model, Ran(failure.instance, failure.started, failure.ended, 1))
        since = failure.answered - KEPT_SECONDS
        while failures and failures[0][1].answered < since:
            failures.popleft()

    def ran(self, model: ModelHistory, execution: Ran) -> None:
        """An execution of a model is over of which no record comes, or not soon."""
        self._others.append((model, execution))

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
        there = {(one.record[INSTANCE], one.record[ENQUEUED]) for one in kept}
        kept = [one for one in kept if one.record[CALLER] not in there]  # calls and steps are told under who has made them
        return sorted(kept, key=lambda one: -one.seconds)[:count]

    def failures(self, now: float) -> list[tuple[ModelHistory, FailedRequest]]:
        """Return the requests of the last hour that failed."""
        return [each for each in (*self._failures, *self._refusals) if each[1].answered >= now - KEPT_SECONDS]

    def context(self, model: ModelHistory, record: Record) -> Surroundings:
        """Return what a model executed while one of its requests waited, and with it."""
        for _, _, kept in self._slowest:
            if kept.record is record and kept.context is not None:
                return kept.context
        return self._context(Kept(model, record))

    def _context(self, kept: Kept) -> Surroundings:
        model, record = kept.model, kept.record
        enqueued, started, ended, instance = record[ENQUEUED], record[STARTED], record[ENDED], record[INSTANCE]
        meanwhile, company = [], []
        for delivery in _since(model, enqueued):
            if delivery.began <= started and delivery.over > enqueued:
                for one in delivery.records:
                    if one[STARTED] < started and one[ENDED] > enqueued:
                        meanwhile.append(one)
                    elif one[STARTED] == started and one[INSTANCE] == instance and one[ENDED] == ended and one is not record:
                        company.append(one[ENQUEUED])
        ran = self._with_others(executions_of(meanwhile), model, enqueued, started)
        waited = wait(enqueued, started, ran, model.capacity()[1])
        return Surroundings(waited, tuple(company))

    def meanwhile(self, model: ModelHistory, since: float, until: float) -> list[Ran]:
        """Return what a model has executed in a time, as far as that has ended."""
        ours = (one for one in _since(model, since) if one.began < until and one.over > since)
        found = executions_of(
            record for one in ours for record in one.records if record[STARTED] < until and record[ENDED] > since
        )
        return self._with_others(found, model, since, until)

    def _with_others(self, ran: list[Ran], model: ModelHistory, since: float, until: float) -> list[Ran]:
        """Return executions with those that have brought no record, each once."""
        known = {(one.instance, one.started) for one in ran}
        for whose, one in self._others:
            if whose is model and one.started < until and one.ended > since and (one.instance, one.started) not in known:
                known.add((one.instance, one.started))
                ran.append(one)
        return ran

    def calls(self, since: float = 0.0) -> dict[tuple[str, float], list[tuple[ModelHistory, Record]]]:
        """Return the calls that are kept of those made `since`, by who has made them: the instance, and when the first of its
        requests came.
        """
        found: dict[tuple[str, float], list[tuple[ModelHistory, Record]]] = {}
        for delivery in self._deliveries:
            if delivery.latest < since:
                continue
            for record in delivery.records:
                if record[CALLER] is not None:
                    found.setdefault(record[CALLER], []).append((delivery.model, record))
        return found


class ModelHistory:
    """Where the records of one version of a model are kept.

    `capacity`: how many instances it has, and how many executions at a time they may have in all.
    """

    __slots__ = ("capacity", "deliveries", "history", "model", "traits", "version")

    def __init__(self, history: History, model: str, version: int, traits: Traits = NO_TRAITS) -> None:
        self.history = history
        self.model = model
        self.version = version
        self.traits = traits
        self.deliveries: deque[_Delivery] = deque()  # its own among those of the history
        self.capacity: Callable[[], tuple[int, int]] = lambda: (1, 1)

    def take(self, records: list[Record]) -> None:
        self.history.take(self, records)

    def newest(self, count: int, since: float) -> list[Record]:
        """Return so many records at most, the newest, of requests that succeeded and were answered after a moment."""
        found: list[Record] = []
        for delivery in reversed(self.deliveries):
            if delivery.records[-1][ANSWERED] <= since or len(found) >= count:
                break
            found += delivery.records[len(found) - count :]
        return found

    def answered(self, request: InferenceRequest, response: InferenceResponse | None, now: float) -> None:
        """A request is about to have its final answer that was counted, if it was, when its execution ended."""
        batch = request.batch
        if batch is None or not batch.started:
            return
        error = response.error if response is not None else None
        if error is None:
            self.take([record_of(request, batch, now)])
        elif request.counted:
            execution = batch.instance.name, batch.started, batch.ended
            self.failed(request.id, error, request.enqueued, now, execution, called=request.parent is not None)

    def ran(self, batch: Batch) -> None:
        """An execution is over of which no record comes, or not soon."""
        if batch.started and batch.ended:
            self.history.ran(self, Ran(batch.instance.name, batch.started, batch.ended, len(batch.requests)))

    def failed(
        self, id: str, error: ServingError, enqueued: float, now: float,
        execution: tuple[str, float, float] = ("", 0.0, 0.0), *, refused: bool = False, called: bool = False,
    ) -> None:  # fmt: skip
        """Keep a request that failed. `execution`: the instance, when it started and when it ended, 0.0 for not yet; `called`: by
        a model.
        """
        instance, started, ended = execution
        words = error.message if len(error.message) <= LONGEST_WORDS else f"{error.message[:LONGEST_WORDS]}…"
        failure = FailedRequest(enqueued, started, ended, now, known_as(id), instance, error.code.name, words, refused, called)
        self.history.failed(self, failure)


def known_as(id: str) -> str:
    """Return a request's id as it is kept: one without end is not."""
    return id if len(id) <= SHOWN else clipped(id)


def _shorter(
    rows: int, enqueued: float, started: float, begun: float, output: float, ended: float, answered: float,
    id: str, instance: str, why: Any, caller: tuple[str, float] | None,
) -> Record:  # fmt: skip
    return rows, enqueued, started, begun, output, ended, answered, known_as(id), instance, why, caller


def _since(model: ModelHistory, moment: float) -> Iterator[_Delivery]:
    """Return the deliveries of a model, but for the first ones, which were all over by a moment."""
    return islice(model.deliveries, bisect_right(model.deliveries, moment, key=attrgetter("latest")), None)


def _seconds(record: Record) -> float:
    return record[ANSWERED] - record[ENQUEUED]


def executions_of(records: Iterable[Record]) -> list[Ran]:
    """Return the executions that records are of."""
    found: dict[tuple[str, float, float], int] = {}
    for record in records:
        execution = record[INSTANCE], record[STARTED], record[ENDED]
        found[execution] = found.get(execution, 0) + 1
    return [Ran(*execution, requests) for execution, requests in found.items()]

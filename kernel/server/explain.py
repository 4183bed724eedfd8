"""Explanations of requests, from what the history keeps and what the schedulers hold. Looks, changes nothing.

What the words are is explanation.py's; here is found what they are of.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence

from kernel.interfaces import Record
from kernel.models import Model
from kernel.observability import (
    Explanation,
    FailedRequest,
    History,
    ModelHistory,
    PastExecution,
    Ran,
    duration,
    explained,
)
from kernel.requests import Batch, InferenceRequest, RequestState
from kernel.scheduling import Scheduler
from kernel.server.inflight import why

__all__ = ["explain", "keep_records"]

#: How many requests of one id are explained.
MOST_OF_ID = 10

#: How deep calls of calls are told.
DEEPEST = 8

RELEASED = RequestState.RELEASED


def keep_records(history: History, model: Model) -> None:
    """Have what becomes of a model's requests kept. The history outlives the model, which it must not hold."""
    scheduler, config = model.scheduler, model.config
    in_order = scheduler.life.ordering is not None
    kept = ModelHistory(history, model.name, model.version, is_ensemble=config.is_ensemble, in_order=in_order)
    there = weakref.ref(scheduler)

    def capacity() -> tuple[int, int]:
        instances = scheduler.instances if (scheduler := there()) is not None else ()
        return len(instances) or 1, sum(instance.capacity for instance in instances) or 1

    kept.capacity = capacity
    scheduler.life.history = kept
    scheduler.statistics.keep = kept.take


def explain(
    history: History, models: Collection[Model], now: float, id: str, slowest: int, failed: int
) -> list[Explanation]:
    """As Kernel.explain. `models`: that have, or may still get, requests."""
    explainer = Explainer(history, [model.scheduler for model in models], now)
    if slowest:
        return explainer.slowest(slowest)
    return explainer.failed(failed) if failed else explainer.of_id(id)


class Explainer:
    """Explains the requests of one kernel, `now`."""

    def __init__(self, history: History, schedulers: Sequence[Scheduler], now: float) -> None:
        self._history = history
        self._schedulers = schedulers
        self._now = now
        for scheduler in schedulers:
            scheduler.statistics.settle()

    # -- which ---------------------------------------------------------------------------------------------------------

    def of_id(self, id: str) -> list[Explanation]:
        found = [(request.enqueued, self._alive(scheduler, request, place)) for scheduler, place, request in self._waiting(id)]
        found += [
            (failure.enqueued, self._failure(model, failure))
            for model, failure in self._history.failures(self._now)
            if failure.id == id
        ]
        kept = [each for each in self._history.records() if each[1][7] == id]
        asked = [each for each in kept if each[1][10] is None]  # calls and steps that took over the id are told under these
        kept = sorted(asked or kept, key=lambda each: -each[1][1])[:MOST_OF_ID]
        found += [(record[1], self._record(model, record)) for model, record in kept]
        return [one for _, one in sorted(found, key=lambda each: -each[0])[:MOST_OF_ID]]

    def slowest(self, count: int) -> list[Explanation]:
        return [self._record(kept.model, kept.record) for kept in self._history.slowest(count, self._now)]

    def failed(self, count: int) -> list[Explanation]:
        return [self._failure(*each) for each in self._history.failures(self._now)[:count]]

    def _waiting(self, id: str) -> Iterable[tuple[Scheduler, int, InferenceRequest]]:
        for scheduler in self._schedulers:
            alive = dict.fromkeys(request for request in scheduler.alive() if request.state is not RELEASED)
            for place, request in enumerate(alive):
                if request.id == id:
                    yield scheduler, place, request

    # -- why -----------------------------------------------------------------------------------------------------------

    def _record(self, model: ModelHistory, record: Record, depth: int = 0) -> Explanation:
        rows, enqueued, started, _, _, ended, answered, id, instance, reason, _ = record
        around = self._history.context(model, record)
        end = answered if model.is_ensemble else ended
        execution = PastExecution(instance, started, end, reason, len(around.company))
        intervals, words = explained(
            enqueued, answered, execution, _executions(around.meanwhile), *model.capacity(),
            cached=not rows, in_order=model.in_order,
        )  # fmt: skip
        arrivals = {enqueued, *(one[1] for one in around.company)}
        made = self._history.calls(instance, arrivals, started, answered) if depth < DEEPEST and rows else []
        calls = tuple(self._record(*call, depth=depth + 1) for call in made)
        batch = 1 + len(around.company) if rows else 0
        seconds = answered - enqueued
        return Explanation(
            model.model, model.version, id, "ANSWERED", seconds, intervals, batch, words + _of_calls(calls), calls=calls
        )

    def _failure(self, model: ModelHistory, failure: FailedRequest) -> Explanation:
        enqueued, answered = failure.enqueued, failure.answered
        seconds = answered - enqueued if enqueued else 0.0
        error = f"{failure.code}: {failure.words}"
        if failure.refused:
            words = f"refused as it came: {error}"
            return Explanation(model.model, model.version, failure.id, "FAILED", 0.0, (), 0, words, error)
        execution = PastExecution(failure.instance, failure.started, failure.ended) if failure.started else None
        until = failure.started or answered
        ran = _executions(self._history.meanwhile(model, enqueued, until))
        intervals, words = explained(enqueued, answered, execution, ran, *model.capacity(), pending="")
        words = f"{words}; failed after " if intervals else "failed after "
        words += f"{duration(seconds)}: {error}"
        return Explanation(model.model, model.version, failure.id, "FAILED", seconds, intervals, 0, words, error)

    def _alive(self, scheduler: Scheduler, request: InferenceRequest, place: int) -> Explanation:
        batch, now = request.batch, self._now
        model = scheduler.life.history
        assert model is not None
        execution = None
        if batch is not None and batch.started:
            reason = batch.why.get(request) if type(batch.why) is dict else batch.why
            execution = PastExecution(batch.instance.name, batch.started, 0.0, reason, len(batch.requests) - 1)
        until = execution.started if execution is not None else now
        done = self._history.meanwhile(model, request.enqueued, until)
        going = [
            Ran(other.instance.name, other.started, now, len(other.requests), other.size)
            for instance in scheduler.instances
            for other in instance.running
            if other.started and other is not batch
        ]
        pending = why(request, scheduler, place, now)
        if pending.startswith("it is executed"):
            pending = ""
        ran = [*_executions(done), *going]
        intervals, words = explained(request.enqueued, now, execution, ran, *model.capacity(), pending=pending)
        state = "EXECUTING" if execution is not None else "PENDING"
        calls = tuple(self._alive(child.model.scheduler, child, 0) for child in _children(batch))
        size = len(batch.requests) if batch is not None else 0
        return Explanation(
            scheduler.name, scheduler.version, request.id, state, now - request.enqueued, intervals, size, words, calls=calls
        )


def _children(batch: Batch | None) -> list[InferenceRequest]:
    alive = (child for child in (batch.children or () if batch is not None else ()) if child.state is not RELEASED)
    return sorted(alive, key=lambda child: child.enqueued)


def _executions(records: Iterable[Record]) -> list[Ran]:
    """Return the executions that records are of."""
    found: dict[tuple[str, float, float], list[int]] = {}
    for rows, _, started, _, _, ended, _, _, instance, *_ in records:
        found.setdefault((instance, started, ended), []).append(rows)
    return [Ran(*execution, requests=len(rows), rows=sum(rows)) for execution, rows in found.items()]


def _of_calls(calls: Sequence[Explanation]) -> str:
    """Return how much of an execution went to what it called."""
    if not calls:
        return ""
    names = sorted({f"'{call.model}'" for call in calls})
    named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    times = f"{len(calls)} calls" if len(calls) > 1 else "a call"
    return f", with {times} of {named} that took {duration(sum(call.seconds for call in calls))}"

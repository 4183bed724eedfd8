"""Explanations of requests, from what the history keeps and what the schedulers hold. Looks, changes nothing.

What the words are is explanation.py's; here is found what they are of.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from kernel.interfaces import Record
from kernel.models import Model
from kernel.observability import (
    CALLER,
    ENQUEUED,
    ID,
    Explanation,
    FailedRequest,
    History,
    Interval,
    ModelHistory,
    PastExecution,
    Ran,
    Traits,
    duration,
    explained,
    known_as,
    waited,
)
from kernel.requests import Batch, InferenceRequest, RequestState
from kernel.scheduling import Scheduler
from kernel.server.inflight import Pending, Stage, pending, unanswered

__all__ = ["explain", "keep_records"]

#: How many requests of one id are explained.
MOST_OF_ID = 10

#: How deep calls of calls are told.
DEEPEST = 8

RELEASED = RequestState.RELEASED


def keep_records(history: History, model: Model) -> None:
    """Have what becomes of a model's requests kept. The history outlives the model, which it must not hold."""
    scheduler, config = model.scheduler, model.config
    life, batching = scheduler.life, config.sequence_batching
    traits = Traits(
        is_ensemble=config.is_ensemble, in_order=life.ordering is not None, decoupled=config.decoupled,
        in_sequences=batching is not None, delay=0.0 if batching is None else batching.max_queue_delay_us / 1e6,
    )  # fmt: skip
    kept = ModelHistory(history, model.name, model.version, traits)
    there = weakref.ref(scheduler)

    def capacity() -> tuple[int, int]:
        instances = scheduler.instances if (scheduler := there()) is not None else ()
        return len(instances) or 1, sum(instance.capacity for instance in instances) or 1

    kept.capacity = capacity
    life.history = kept
    if not config.decoupled:  # whose requests are counted before they have their answers
        scheduler.statistics.keep = kept.take


def explain(
    history: History,
    models: Callable[[], Collection[Model]],
    clock: tuple[float, float],
    asked: str | InferenceRequest,
    slowest: int,
    failed: int,
) -> list[Explanation]:
    """As Kernel.explain. `models`: returns those with requests. `clock`: now, and what makes it time of the epoch."""
    explainer = Explainer(history, models, *clock)
    if not isinstance(asked, str):
        return [explainer.of_request(asked)]
    if slowest:
        return explainer.slowest(slowest)
    return explainer.failed(failed) if failed else explainer.of_id(asked)


class Explainer:
    """Explains the requests of one kernel, `now`. `offset`: what makes the kernel's clock seconds since the epoch."""

    def __init__(self, history: History, models: Callable[[], Collection[Model]], now: float, offset: float) -> None:
        self._unsettled = history
        self._models = models
        self._now = now
        self._offset = offset
        self._since = 0.0  # no earlier request is asked for

    @cached_property
    def _schedulers(self) -> list[Scheduler]:
        return [model.scheduler for model in self._models()]

    @cached_property
    def _history(self) -> History:
        """With all that the statistics have still to deliver: most requests are explained without it."""
        for scheduler in self._schedulers:
            scheduler.statistics.settle()
        return self._unsettled

    # -- which ---------------------------------------------------------------------------------------------------------

    def of_id(self, id: str) -> list[Explanation]:
        """Return those of that id, the newest first, ten at most."""
        found: list[tuple[float, Callable[[], Explanation]]] = []
        waiting = list(self._unanswered(id))
        for scheduler, position, request in [one for one in waiting if one[2].parent is None] or waiting:
            found.append((request.enqueued, partial(self._waits, scheduler, request, position)))
        id = known_as(id)
        for model, failure in self._history.failures(self._now):
            if failure.id == id:
                found.append((failure.enqueued, partial(self._failure, model, failure)))
        kept = [each for each in self._history.records() if each[1][ID] == id]
        asked = [each for each in kept if each[1][CALLER] is None]  # calls and steps that took over the id are told under these
        found += [(record[ENQUEUED], partial(self._record, model, record)) for model, record in asked or kept]
        return [explain() for _, explain in sorted(found, key=lambda each: -each[0])[:MOST_OF_ID]]

    def of_request(self, request: InferenceRequest) -> Explanation:
        """Return that of a request that has no answer yet, or whose answer is just being given out."""
        if request.state is not RELEASED and isinstance(request.model.scheduler, Scheduler):
            scheduler = request.model.scheduler
            for position, one in enumerate(unanswered(scheduler)):
                if one is request:
                    return self._waits(scheduler, request, position)
        return self._answered(request)

    def slowest(self, count: int) -> list[Explanation]:
        chosen = self._history.slowest(count, self._now)
        return [self._record(kept.model, kept.record) for kept in chosen]

    def failed(self, count: int) -> list[Explanation]:
        last = heapq.nlargest(count, self._history.failures(self._now), key=lambda each: each[1].answered)
        return [self._failure(*each) for each in last]

    def _unanswered(self, id: str) -> Iterator[tuple[Scheduler, int, InferenceRequest]]:
        for scheduler in self._schedulers:
            for position, request in enumerate(unanswered(scheduler)):
                if request.id == id:
                    yield scheduler, position, request

    # -- why -----------------------------------------------------------------------------------------------------------

    def _record(self, model: ModelHistory, record: Record, depth: int = 0) -> Explanation:
        rows, enqueued, started, _, _, ended, answered, id, instance, reason, _ = record
        around = self._history.context(model, record)
        end = answered if model.traits.is_ensemble else ended
        execution = PastExecution(instance, started, end, reason, len(around.company))
        instances, _ = model.capacity()
        intervals, words = explained(
            enqueued, answered, execution, around.waited, instances, cached=not rows, traits=model.traits
        )
        arrivals = {enqueued, *around.company}
        made = self._made(instance, arrivals) if depth < DEEPEST and rows else []
        calls = tuple(self._record(*call, depth=depth + 1) for call in made)
        batch = 1 + len(around.company) if rows else 0
        seconds = answered - enqueued
        arrived = enqueued + self._offset
        return Explanation(
            model.model, model.version, id, arrived, "ANSWERED", seconds, intervals, instance, batch,
            words + _of_calls(calls, model.traits), calls=calls
        )

    @cached_property
    def _calls(self) -> dict[tuple[str, float], list[tuple[ModelHistory, Record]]]:
        return self._history.calls(self._since)

    def _made(self, instance: str, arrivals: Collection[float]) -> list[tuple[ModelHistory, Record]]:
        """Return the calls that an execution has made, the first one first. `arrivals`: when the requests of it came."""
        made = [call for arrival in arrivals for call in self._calls.get((instance, arrival), ())]
        return sorted(made, key=lambda call: call[1][ENQUEUED])

    def _answered(self, request: InferenceRequest) -> Explanation:
        """Return the explanation of a request whose answer is just being given out."""
        scheduler, batch, now = request.model.scheduler, request.batch, self._now
        if not isinstance(scheduler, Scheduler):
            return self._handed_over(request)
        model = scheduler.life.history
        assert model is not None
        enqueued, error = request.enqueued, request.error
        execution = _execution_of(request, now if batch is None or model.traits.is_ensemble or not batch.ended else batch.ended)
        intervals, words = self._explained(model, enqueued, now, execution, cached=execution is None and error is None)
        calls: tuple[Explanation, ...] = ()
        if execution is not None and batch is not None and batch.children is not None:
            arrivals = {one.enqueued for one in batch.requests}
            self._since = min(arrivals)
            made = self._made(execution.instance, arrivals)
            calls = tuple(self._record(*call, depth=1) for call in made)
            words += _of_calls(calls, model.traits)
        told = "" if error is None else f"{error.code.name}: {error.message}"
        if told:
            words = f"{words}; " * bool(words) + f"failed after {duration(now - enqueued)}: {told}"
        instance, size = (execution.instance, 1 + execution.others) if execution is not None else ("", 0)
        return Explanation(
            scheduler.name, scheduler.version, request.id, enqueued + self._offset, "FAILED" if told else "ANSWERED",
            now - enqueued, intervals, instance, size, words, told, calls,
        )  # fmt: skip

    def _handed_over(self, request: InferenceRequest) -> Explanation:
        """Return that of a request that another replica has executed, which keeps the record of it."""
        seconds, error = self._now - request.enqueued, request.error
        told = "" if error is None else f"{error.code.name}: {error.message}"
        words = f"handed over to another replica, which took {duration(seconds)}"
        intervals = (Interval("wait", 0.0, seconds, words),)
        words += f"; failed: {told}" if told else ""
        return Explanation(
            request.model.name, request.model.version, request.id, request.enqueued + self._offset,
            "FAILED" if told else "ANSWERED", seconds, intervals, "", 0, words, told,
        )  # fmt: skip

    def _failure(self, model: ModelHistory, failure: FailedRequest) -> Explanation:
        enqueued, answered = failure.enqueued, failure.answered
        error = f"{failure.code}: {failure.words}"
        arrived = (enqueued or answered) + self._offset
        if failure.refused:
            words = f"refused as it came: {error}"
            return Explanation(model.model, model.version, failure.id, arrived, "FAILED", 0.0, (), "", 0, words, error)
        execution = PastExecution(failure.instance, failure.started, failure.ended) if failure.started else None
        intervals, words = self._explained(model, enqueued, answered, execution)
        seconds = answered - enqueued if enqueued else 0.0
        words = f"{words}; " * bool(intervals) + f"failed after {duration(seconds)}: {error}"
        return Explanation(
            model.model, model.version, failure.id, arrived, "FAILED", seconds, intervals, failure.instance, 0, words, error
        )

    def _waits(self, scheduler: Scheduler, request: InferenceRequest, position: int) -> Explanation:
        """Return the explanation of a request without an answer. `position`: as `why` has it."""
        batch, now = request.batch, self._now
        model = scheduler.life.history
        assert model is not None
        execution = _execution_of(request, 0.0 if batch is None or model.traits.is_ensemble else batch.ended)
        going = [
            Ran(other.instance.name, other.started, now, len(other.requests))
            for instance in scheduler.instances
            for other in instance.running
            if other.started and other is not batch
        ]
        still = _still(pending(request, scheduler, position, now), batch, now)
        intervals, words = self._explained(model, request.enqueued, now, execution, going, pending=still)
        state = "EXECUTING" if execution is not None else "PENDING"
        calls = tuple(self._waits(child.model.scheduler, child, 0) for child in _children(batch))
        words += _of_calls(calls, model.traits, going=True)
        instance, size = (batch.instance.name, len(batch.requests)) if batch is not None else ("", 0)
        arrived, age = request.enqueued + self._offset, now - request.enqueued
        return Explanation(
            scheduler.name, scheduler.version, request.id, arrived, state, age, intervals, instance, size, words, calls=calls
        )

    def _explained(
        self, model: ModelHistory, enqueued: float, answered: float, execution: PastExecution | None,
        going: Iterable[Ran] = (), **how: Any,
    ) -> tuple[tuple[Interval, ...], str]:  # fmt: skip
        """As `explained`, by what the model has executed meanwhile. `going`: executions that have not ended."""
        until = answered if execution is None else execution.started
        instances, slots = model.capacity()
        waiting = waited(enqueued, until, lambda: [*self._history.meanwhile(model, enqueued, until), *going], slots)
        return explained(enqueued, answered, execution, waiting, instances, traits=model.traits, **how)


def _execution_of(request: InferenceRequest, ended: float) -> PastExecution | None:
    """Return the execution of a request, None where it has not begun. `ended`: 0.0 for not yet."""
    batch = request.batch
    if batch is None or not batch.started:
        return None
    return PastExecution(batch.instance.name, batch.started, ended, batch.why_of(request), len(batch.requests) - 1)


def _still(what: Pending, batch: Batch | None, now: float) -> str:
    """Return what is to be said of a request without an answer beside how long it is executed, and what it has called."""
    if what.stage in (Stage.EXECUTING, Stage.CALLING):
        return ""
    if what.stage is Stage.SENDING and batch is not None:
        return f"its sender has still to answer, {duration(now - batch.ended)} later"
    return what.words


def _children(batch: Batch | None) -> list[InferenceRequest]:
    alive = (child for child in (batch.children or () if batch is not None else ()) if child.state is not RELEASED)
    return sorted(alive, key=lambda child: child.enqueued)


def _of_calls(calls: Sequence[Explanation], traits: Traits, *, going: bool = False) -> str:
    """Return how much of an execution went to what it called. `going`: these have no answers yet."""
    if not calls:
        return ""
    names = list(dict.fromkeys(f"'{call.model}'" for call in calls))
    last = f"{len(names) - 2} more" if len(names) > 3 else names[-1]
    named = ", ".join(names[: min(len(names) - 1, 2)]) + f" and {last}" if len(names) > 1 else last
    what = "step" if traits.is_ensemble else "call"
    times = f"{len(calls)} {what}s" if len(calls) > 1 else f"a {what}"
    took, until = 0.0, 0.0
    for begun, ended in sorted((call.arrived, call.arrived + call.seconds) for call in calls):  # some at the same time
        took, until = took + max(0.0, ended - max(begun, until)), max(until, ended)
    verb = ("has" if len(calls) == 1 else "have") + " taken" if going else "took"
    return f", with {times} of {named} that {verb} {duration(took)}{' so far' if going else ''}"

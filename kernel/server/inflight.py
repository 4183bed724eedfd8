"""Every request alive: whose it is, what state it is in, for how long, and why it has no answer yet. Looks, changes nothing.

Asked for by people who wonder why a server hangs, so the sentences name models, instances and requests. Costs the requests
nothing: all of it is read off what the schedulers hold anyway, at the moment of the question.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kernel.requests import Batch, InferenceRequest, RequestState
from kernel.scheduling import Scheduler

__all__ = ["InflightRequest", "Pending", "Stage", "client_of", "each_inflight", "inflight", "pending", "unanswered"]

PENDING, RELEASED = RequestState.PENDING, RequestState.RELEASED

#: What continuations call the one that they stand in front of.
_INNER = ("inner", "_respond", "_collect")


class Stage(enum.Enum):
    """How far a request without an answer has come. EXECUTING: with nothing besides; CALLING: with calls that it has made."""

    WAITING = enum.auto()
    EXECUTING = enum.auto()
    CALLING = enum.auto()
    IN_ORDER = enum.auto()  # its answer is there, and waits for those of others
    SENDING = enum.auto()  # its execution has ended, and a sender has still to answer


@dataclass(frozen=True, slots=True)
class Pending:
    """What a request without an answer waits for, in `words`."""

    stage: Stage
    words: str


@dataclass(frozen=True, slots=True)
class InflightRequest:
    """A request that has not had its final answer, of version `version` of `model`.

    `state`: PENDING or EXECUTING. `age`: seconds since it was accepted. `client`: who waits for the answer: a connection, another
    model's execution, or the app. `owner`: who has to see to it that there is one. `deadline`: seconds until it is given up, None
    for no limit. `why`: what it waits for.
    """

    model: str
    version: int
    id: str  # the client's, "" for none
    state: str
    age: float
    client: str
    owner: str
    deadline: float | None
    why: str
    batch_size: int  # rows
    priority: int  # 0 for the model's default
    correlation_id: int | str  # of its sequence, 0 for none


def inflight(schedulers: Iterable[Scheduler], now: float, most: int = 0) -> list[InflightRequest]:
    """Return the requests of so many model versions, the oldest first. `most`: of all, the oldest; 0 for all."""
    found = _each(schedulers)
    if most:
        return [_record(*one, now) for one in heapq.nsmallest(most, found, key=lambda one: one[0].enqueued)]
    return sorted([_record(*one, now) for one in found], key=lambda record: -record.age)


def each_inflight(kernel: Any) -> Iterator[InflightRequest]:
    """Return what gives the same as `inflight` one by one, when it is asked for it: those are left out that have their answers by
    then. On the loop.
    """
    found = sorted(_each(model.scheduler for model in kernel._registry.catalog.alive()), key=lambda one: one[0].enqueued)
    return (_record(*one, kernel.clock()) for one in found if one[0].state is not RELEASED)


def _each(schedulers: Iterable[Scheduler]) -> Iterator[tuple[InferenceRequest, Scheduler, int]]:
    for scheduler in schedulers:
        if scheduler.is_idle:
            continue  # of ten thousand models most are
        yield from ((request, scheduler, position) for position, request in enumerate(unanswered(scheduler)))


def unanswered(scheduler: Scheduler) -> Collection[InferenceRequest]:
    """Return the requests of a model version that have no answer, each once; those that wait come first, in their order."""
    return dict.fromkeys(request for request in scheduler.alive() if request.state is not RELEASED)


def _record(request: InferenceRequest, scheduler: Scheduler, position: int, now: float) -> InflightRequest:
    """`position`: among those that are alive, of which those that wait come first, in their order."""
    batch = request.batch
    limits = [moment for moment in (request.deadline, request.expires) if moment is not None]
    owner = f"the queue of model '{scheduler.name}'" if batch is None else f"instance '{batch.instance.name}'"
    return InflightRequest(
        model=scheduler.name,
        version=scheduler.version,
        id=request.id,
        state=request.state.name,
        age=max(0.0, now - request.enqueued),
        client=client_of(request),
        owner=owner,
        deadline=min(limits) - now if limits else None,
        why=pending(request, scheduler, position, now).words,
        batch_size=request.batch_size,
        priority=request.priority,
        correlation_id=request.correlation_id,
    )


def pending(request: InferenceRequest, scheduler: Scheduler, position: int, now: float) -> Pending:
    """Return what a request without an answer waits for. `position`: among those of its model that are alive."""
    if request.batch is None:
        return Pending(Stage.WAITING, _why_queued(request, scheduler, position, now))
    return _why_executing(request, request.batch, scheduler, now)


def _why_queued(request: InferenceRequest, scheduler: Scheduler, position: int, now: float) -> str:
    special = scheduler.pool.why_waiting() or scheduler.queue.why_waiting(request)
    if special is not None:
        return special.now
    running = [batch for instance in scheduler.instances for batch in instance.running]
    down = [instance for instance in scheduler.instances if not instance.healthy]
    if len(down) == len(scheduler.instances):
        return f"no instance of the model is up (of {len(down)})"
    if all(instance.outstanding >= instance.limit for instance in scheduler.instances):
        busy = f"all instances are busy ({_count(len(running), 'execution')}"
        begun = [batch.started for batch in running if batch.started]
        busy += f", the oldest for {now - min(begun):.3f} s)" if begun else ")"
        return f"{busy}; {_count(position, 'request')} in front of it" if position else busy
    if scheduler.rule is not None:
        there = _count(len(scheduler.queue), "request")
        return f"for a larger batch: {there} in the queue, wanted {scheduler.rule.largest} rows"
    return "for the next turn of the loop"


def _why_executing(request: InferenceRequest, batch: Batch, scheduler: Scheduler, now: float) -> Pending:
    if not batch.started:
        others = _count(len(batch.instance.running) - 1, "other execution")
        return Pending(Stage.WAITING, f"handed to its instance, behind {others}")
    blocked = batch.blocked_on
    if blocked is not None and blocked.state is not RELEASED:
        return Pending(Stage.CALLING, f"its execution waits for {_named(blocked)}")
    since = f"{now - batch.started:.3f} s"
    children = sorted(_named(child) for child in batch.children or () if child.state is not RELEASED)
    if children:
        more = f" and {len(children) - 1} more" if len(children) > 1 else ""
        return Pending(Stage.CALLING, f"its execution, for {since}, has called {children[0]}{more}")
    ordering = scheduler.life.ordering
    if ordering is not None and ordering.holds(request):
        words = "its answer is there, and waits for those of requests before it (preserve_ordering)"
        return Pending(Stage.IN_ORDER, words)
    if batch.ended:
        words = f"its execution ended {now - batch.ended:.3f} s ago; a sender has still to answer it"
        return Pending(Stage.SENDING, words)
    return Pending(Stage.EXECUTING, f"it is executed, for {since}")


def _named(request: InferenceRequest) -> str:
    return f"model '{request.model_name}'" + (f" (request '{request.id}')" if request.id else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def client_of(request: InferenceRequest) -> str:
    """Return who waits for the answer. A front end's continuation says so in `client`."""
    parent = request.parent
    if parent is not None:
        instance = parent.instance
        callers = ", ".join(repr(one.id) for one in parent.requests if one.id)
        return f"model '{instance.owner.name}', instance '{instance.name}'" + (f", request {callers}" if callers else "")
    respond: Any = request.respond
    for _ in range(8):
        respond = getattr(respond, "__self__", respond)
        client = getattr(respond, "client", None)
        if isinstance(client, str):
            return client
        respond = next((inner for name in _INNER if (inner := getattr(respond, name, None)) is not None), None)
        if respond is None:
            break
    return "the app"

"""The scheduler of a model whose executions need resources of which there are only so many, under `--rate-limit`.

What is decided, and why, is the limiter's (rate_limiter.py). Here it is asked before an execution starts, told when it has ended,
and everybody who waits is looked at again when something has changed that may let them start: once a turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from kernel.errors import Code, ServingError
from kernel.instances.instance import ModelInstance
from kernel.requests.request import Batch, InferenceRequest, RequestState
from kernel.rules.instance_groups import Slot
from kernel.rules.rate_limiter import Claimant, RateLimiter, ResourceLimit, needs_of
from kernel.scheduling.scheduler import Scheduler
from kernel.scheduling.sequences import SequenceScheduler

__all__ = ["LimitedScheduler", "LimitedSequenceScheduler", "Limits", "limited"]

PENDING, RELEASED = RequestState.PENDING, RequestState.RELEASED


class Limits:
    """The resources of one kernel, and who waits for them. `loop` is set when the kernel starts."""

    def __init__(self, limits: Sequence[ResourceLimit] = ()) -> None:
        self.limiter = RateLimiter(limits)
        self.loop: asyncio.AbstractEventLoop
        self._on_its_way = False

    def changed(self) -> None:
        """Somebody who waits may be able to start now."""
        if self.limiter.waiting and not self._on_its_way:
            self._on_its_way = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._on_its_way = False
        for claimant in self.limiter.ready():
            claimant.look()

    def let_go(self, instance: ModelInstance) -> None:
        """An instance is gone for good, with whatever its executions still held."""
        claim, instance.claim = instance.claim, None
        if claim is not None:
            self.limiter.leave(claim)
            self.changed()


class LimitedScheduler(Scheduler):
    """Starts executions as its limiter allows. Stands in front of what the model's scheduler does otherwise."""

    def __init__(self, *args: Any, limits: Limits, slot_of: Callable[[ModelInstance], Slot]) -> None:
        """`slot_of`: what an instance's group says about it."""
        self.limits = limits
        self.limiter = limits.limiter
        self._slot_of = slot_of
        self._urgent: set[InferenceRequest] = set()  # those among the waiting that an execution waits for
        super().__init__(*args)

    # -- instances -----------------------------------------------------------------------------------------------------

    def _let_in(self, instances: Sequence[ModelInstance]) -> None:
        super()._let_in(instances)
        for instance in instances:
            if instance.claim is None:
                slot = self._slot_of(instance)
                needs, wants = needs_of(slot.resources, slot.device_id), self._wanting(instance)
                instance.claim = Claimant(self.limiter, needs, slot.priority, wants, self._hurries, self._look)
                self.limiter.enter(instance.claim)
            if instance.claim.needs:
                instance.runs = False  # what waits in an inbox would hold resources, too
        if len(self.instances) > 1 or any(self._claim(instance).needs for instance in self.instances):
            self._single = None

    def _wanting(self, instance: ModelInstance) -> Callable[[], bool]:
        def wants() -> bool:
            return bool(self.queue.size) and instance.outstanding < instance.limit and instance in self.instances

        return wants

    def _hurries(self) -> bool:
        return bool(self._urgent)

    def _look(self) -> None:
        if self.queue.size:
            self._dispatch()

    @staticmethod
    def _claim(instance: ModelInstance) -> Claimant:
        assert instance.claim is not None, "every instance that takes requests has one"
        return instance.claim

    def rearrange(self, come: Sequence[ModelInstance], go: Collection[ModelInstance]) -> list[asyncio.Future[None]]:
        gone = super().rearrange(come, go)
        for instance in go:
            self.limiter.waiting.pop(self._claim(instance), None)
        self.limits.changed()
        return gone

    # -- who starts ----------------------------------------------------------------------------------------------------

    def _free_instance(self) -> ModelInstance | None:
        """Return the instance that has had the least of those that may start; the others are told when they may."""
        free = [instance for instance in self.instances if instance.outstanding < instance.limit]
        free.sort(key=lambda instance: (self._claim(instance).rank, instance.outstanding))
        for instance in free:
            if self.limiter.may_start(self._claim(instance)):
                return instance
        for instance in free:
            self.limiter.wait(self._claim(instance))
        return None

    def _start(self, instance: ModelInstance, batch: Batch) -> None:
        self.limiter.start(self._claim(instance), batch)
        if self._urgent:
            self._urgent.difference_update(batch.requests)
        super()._start(instance, batch)
        self.limits.changed()

    def finished(self, instance: ModelInstance, batch: Batch, result: Any) -> None:
        self.limiter.finish(batch)
        super().finished(instance, batch, result)
        self.limits.changed()

    def put_back(self, instance: ModelInstance, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self.limiter.finish(batch)
        super().put_back(instance, batches)
        self.limits.changed()

    # -- requests ------------------------------------------------------------------------------------------------------

    def why_waiting(self, request: InferenceRequest) -> str:
        if any(self._claim(instance) in self.limiter.waiting for instance in self.instances):
            return "for resources of the rate limiter, which other executions hold"
        return super().why_waiting(request)

    def enqueue(self, request: InferenceRequest) -> None:
        if request.parent is None or not _made_by_model(request):
            super().enqueue(request)
            return
        self._urgent.add(request)
        super().enqueue(request)
        if request.state is not PENDING:
            self._urgent.discard(request)
        else:
            self.limits.changed()  # it need not wait behind others any more

    def release(self, request: InferenceRequest, response: Any) -> None:
        super().release(request, response)
        if self._urgent:
            self._urgent.discard(request)
        if not self.queue.size:
            self.limits.changed()  # others may have waited behind what does not wait any more

    def _circular(self, request: InferenceRequest, cycle: Sequence[str]) -> ServingError:
        error = super()._circular(request, cycle)
        held = sorted({name for instance in self.instances for _, name in self._claim(instance).needs})
        if not held or any(instance.outstanding >= instance.capacity for instance in self.instances):
            return error
        return ServingError(
            Code.UNAVAILABLE,
            f"{request.log_id}request to model '{self.name}' could only wait for itself: what it needs of "
            f"{', '.join(repr(name) for name in held)} is held by the requests that made it ({' -> '.join(cycle)}); give the "
            "server more of it (--rate-limit-resource) or the models less to ask for",
        )


def _made_by_model(request: InferenceRequest) -> bool:
    """Whether an execution waits, or may wait, for the answer: what that one holds, somebody else may be waiting for.

    An ensemble's execution holds nothing and nobody waits for it but its own maker.
    """
    batch = request.parent
    seen = set()
    while batch is not None and batch not in seen:
        if not batch.instance.only_calls:
            return True
        seen.add(batch)
        batch = batch.requests[0].parent if batch.requests else None
    return False


class LimitedSequenceScheduler(LimitedScheduler, SequenceScheduler):
    """The same for a model with sequences, whose requests are bound to instances: each asks for itself."""

    def _wanting(self, instance: ModelInstance) -> Callable[[], bool]:
        def wants() -> bool:
            there = instance in self.instances or instance in self.leaving
            return there and self.queue.is_ready(instance) and SequenceScheduler._has_room(self, instance)

        return wants

    def _has_room(self, instance: ModelInstance) -> bool:
        if not super()._has_room(instance):
            return False
        claim = self._claim(instance)
        if self.limiter.may_start(claim):
            return True
        self.limiter.wait(claim)
        return False


def limited(kind: type[Scheduler]) -> type[LimitedScheduler]:
    """Return the kind of scheduler that does what `kind` does, as far as a limiter allows."""
    return LimitedSequenceScheduler if issubclass(kind, SequenceScheduler) else LimitedScheduler

"""The instances of a model whose executions need resources of which there are only so many, under `--rate-limit`.

What is decided, and why, is the limiter's (rate_limiter.py). Here it is asked before an execution starts, told when it has ended,
and everybody who waits is looked at again when something has changed that may let them start: once a turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from kernel.instances import ModelInstance
from kernel.requests import Batch, InferenceRequest
from kernel.rules import Contender, InstanceSpec, RateLimiter, ResourceLimit, WaitReason, needs_of
from kernel.scheduling.pool import Pool
from kernel.scheduling.queues import Queue
from kernel.scheduling.sequences import SequenceQueue

__all__ = ["LimitedPool", "Limits"]


class Limits:
    """The resources of one kernel, and who waits for them. `loop` is set when the kernel starts."""

    def __init__(self, limits: Sequence[ResourceLimit] = ()) -> None:
        self.limiter = RateLimiter(limits)
        self.loop: asyncio.AbstractEventLoop
        self._on_its_way = False

    def changed(self) -> None:
        """Somebody who waits, or is about to, may be able to start: look once this turn of the loop is over."""
        if not self._on_its_way:
            self._on_its_way = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._on_its_way = False
        for contender in self.limiter.ready():
            contender.look()

    def let_go(self, instance: ModelInstance) -> None:
        """An instance is gone for good, with whatever its executions still held."""
        contender, instance.contender = instance.contender, None
        if contender is not None:
            self.limiter.leave(contender)
            self.changed()


#: For what requests wait that could start but for the limiter.
RESOURCES = WaitReason(
    "for resources of the rate limiter, which other executions hold",
    "for resources of the rate limiter, which other executions held",
)


class LimitedPool(Pool):
    """Lets executions start as its limiter allows. `dispatch`: called when what waits may start now."""

    limited = True

    def __init__(
        self,
        queue: Queue | SequenceQueue,
        runs: bool,
        limits: Limits,
        spec_of: Callable[[ModelInstance], InstanceSpec],
        dispatch: Callable[[], None],
    ) -> None:
        """`spec_of`: what an instance's group says about it."""
        super().__init__(queue, runs)
        self._limits = limits
        self._limiter = limits.limiter
        self._spec_of = spec_of
        self._dispatch = dispatch
        self._held_up: set[ModelInstance] = set()  # those that could not start for want of resources, and have not since
        self._urgent: set[InferenceRequest] = set()  # those among the waiting that an execution waits for

    def let_in(self, instances: Sequence[ModelInstance]) -> None:
        for instance in instances:
            if instance.contender is None:
                spec = self._spec_of(instance)
                needs, wants = needs_of(spec.resources, spec.device_id), self._wanting(instance)
                instance.contender = Contender(self._limiter, needs, spec.priority, wants, self._hurries, self._look)
                self._limiter.enter(instance.contender)
        super().let_in(instances)

    def see_out(self, instances: Collection[ModelInstance], loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[None]]:
        gone = super().see_out(instances, loop)
        for instance in instances:
            self._limiter.waiting.pop(_contender(instance), None)
            self._held_up.discard(instance)
        self._limits.changed()
        return gone

    def _arrange(self, instances: tuple[ModelInstance, ...]) -> None:
        for instance in instances:
            if _contender(instance).needs:
                instance.runs = False  # one batch at a time: those behind it in a run would hold resources while they wait
        super()._arrange(instances)
        if any(_contender(instance).needs for instance in instances):
            self.single = None

    def _wanting(self, instance: ModelInstance) -> Callable[[], bool]:
        def wants() -> bool:
            there = instance in self.instances or (self._queue.bound and instance in self.leaving)
            return there and instance.outstanding < instance.limit and self._queue.is_ready(instance)

        return wants

    def _hurries(self) -> bool:
        return bool(self._urgent)

    def _look(self) -> None:
        if self._queue.size:
            self._dispatch()

    # -- who starts ----------------------------------------------------------------------------------------------------

    def best(self) -> ModelInstance | None:
        """Return the instance that has had the least of those that may start; the others are told when they may."""
        free = [instance for instance in self.instances if instance.outstanding < instance.limit]
        free.sort(key=lambda instance: (_contender(instance).rank, instance.outstanding))
        for instance in free:
            if self._limiter.may_start(_contender(instance)):
                return instance
        for instance in free:
            self._limiter.wait(_contender(instance))
            self._held_up.add(instance)
        return None

    def best_for(self, request: InferenceRequest) -> ModelInstance | None:
        self.arriving(request)
        return self.best()

    def may_start(self, instance: ModelInstance) -> bool:
        contender = _contender(instance)
        if self._limiter.may_start(contender):
            return True
        self._limiter.wait(contender)
        self._held_up.add(instance)
        return False

    def started(self, instance: ModelInstance, batch: Batch) -> None:
        if instance.in_warmup:
            return
        self._limiter.start(_contender(instance), batch)
        if instance in self._held_up:
            self._held_up.discard(instance)
            batch.why = RESOURCES
        if self._urgent:
            self._urgent.difference_update(batch.requests)
        self._limits.changed()

    def ended(self, batch: Batch, result: Any) -> Any:
        """An execution has ended: the stage that sees every result."""
        self._limiter.finish(batch)
        self._limits.changed()
        return result

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Executions have not begun after all."""
        for batch in batches:
            self._limiter.finish(batch)
        self._limits.changed()

    # -- requests ------------------------------------------------------------------------------------------------------

    def arriving(self, request: InferenceRequest) -> None:
        """A call that an execution waits for need not wait behind others: what that one holds, they may be waiting for."""
        if request.parent is not None and _made_by_model(request):
            self._urgent.add(request)
            self._limits.changed()

    def released(self, request: InferenceRequest) -> None:
        """A request has its final answer: the stage that hears of each."""
        if self._urgent:
            self._urgent.discard(request)
        if not self._queue.size:
            self._limits.changed()  # others may have waited behind what does not wait any more

    def why_waiting(self) -> WaitReason | None:
        if any(_contender(instance) in self._limiter.waiting for instance in self.instances):
            return RESOURCES
        return None

    def circle(self, name: str, cycle: str) -> str:
        held = sorted({resource for instance in self.instances for _, resource in _contender(instance).needs})
        if not held or any(instance.outstanding >= instance.capacity for instance in self.instances):
            return super().circle(name, cycle)
        names = ", ".join(map(repr, held))
        return (
            f"what it needs of {names} is held by the requests that made it ({cycle}); give the server more of it "
            "(--rate-limit-resource) or the models less to ask for"
        )


def _contender(instance: ModelInstance) -> Contender:
    assert instance.contender is not None, "every instance that takes requests has one"
    return instance.contender


def _made_by_model(request: InferenceRequest) -> bool:
    """Whether an execution waits, or may wait, for the answer.

    An ensemble's execution holds nothing and nobody waits for it but its own maker.
    """
    batch = request.parent
    seen = set()
    while batch is not None and batch not in seen:
        if not batch.instance.waits_only:
            return True
        seen.add(batch)
        batch = batch.requests[0].parent if batch.requests else None
    return False

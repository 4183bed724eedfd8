"""The instances of one model version: who takes requests, who may start an execution, and who is on the way out.

The law: of those that may take one more the one with the fewest executions is next; an instance that goes finishes what it has.
Moves no request. The pool of a model whose executions need resources is limited_pool.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from kernel.instances import ModelInstance
from kernel.requests import Batch, InferenceRequest, RequestState
from kernel.rules import WaitReason
from kernel.scheduling.queues import Queue
from kernel.scheduling.sequences import SequenceQueue

__all__ = ["Pool"]


class Pool:
    """`instances` take requests; `leaving` only finish what they have, and the future of each is done when it has.

    `single`: the one instance that takes requests, where nothing but its room decides whether it may; `inline`: none of them
    costs the wake-up of another thread; `apart`: all of them execute beside this process. `gathers`: whoever has others to hand
    requests over to wants to see how many wait: none begins the moment it comes.
    """

    def __init__(self, queue: Queue | SequenceQueue, runs: bool) -> None:
        """`runs`: instances off the loop may be handed more than they can begin at once."""
        self.instances: tuple[ModelInstance, ...] = ()
        self.leaving: dict[ModelInstance, asyncio.Future[None]] = {}
        self.single: ModelInstance | None = None
        self.inline = True
        self.apart = False
        self.gathers = False
        self._queue = queue
        self._runs = runs

    def let_in(self, instances: Sequence[ModelInstance]) -> None:
        """Have `instances` take requests from now on, besides those that do."""
        for instance in instances:
            instance.allow_runs(self._runs and not instance.inline)
        self._arrange((*self.instances, *instances))

    def see_out(self, instances: Collection[ModelInstance], loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[None]]:
        """Have `instances` take no more requests; return for each what is done when it has nothing left to do."""
        for instance in instances:
            self.leaving[instance] = loop.create_future()
        self._arrange(tuple(instance for instance in self.instances if instance not in instances))
        return [self.leaving[instance] for instance in instances]

    def let_go(self, instance: ModelInstance) -> None:
        """Wait no longer for an instance that is on its way out."""
        self.leaving.pop(instance).set_result(None)

    def changed(self) -> None:
        """An instance has gone down, or is up again."""
        self._arrange(self.instances)

    def leave_behind(self) -> None:
        """Wait no longer for any that is on its way out."""
        for instance in list(self.leaving):
            self.let_go(instance)

    def _arrange(self, instances: tuple[ModelInstance, ...]) -> None:
        self.instances = instances
        self.inline = all(instance.inline for instance in instances)
        self.apart = all(instance.apart for instance in instances)
        self.single = instances[0] if len(instances) == 1 and instances[0].healthy else None
        for instance in (*instances, *self.leaving):
            instance.alone = instance.runs and instance is self.single

    def best(self) -> ModelInstance | None:
        """Return the instance with the fewest executions that may start one more."""
        single = self.single
        if single is not None:
            return single if len(single.running) < single.limit else None
        best, least = None, 0
        for instance in self.instances:  # not by `outstanding`: this is asked twice for each request
            count = len(instance.running)
            if count < instance.limit and (best is None or count < least):
                if not count:
                    return instance
                best, least = instance, count
        return best

    def free(self) -> Sequence[ModelInstance]:
        """Return those that may start an execution of what waits, where a request may be executed by one of them only."""
        there = (*self.instances, *self.leaving) if self.leaving else self.instances
        return [one for one in there if one.outstanding < one.limit and self._queue.is_ready(one)]

    def handed_over(self) -> list[InferenceRequest]:
        """Return the requests that an instance was handed and has not begun."""
        return [
            request
            for instance in (*self.instances, *self.leaving)
            for batch in instance.running
            if not batch.started
            for request in batch.requests
            if request.state is not RequestState.RELEASED
        ]

    # -- what a pool with resources has more to say to -----------------------------------------------------------------

    def best_for(self, request: InferenceRequest) -> ModelInstance | None:
        """Return the instance that may begin with `request` at once."""
        return self.best()

    #: Whether somebody else has a say in who starts.
    limited = False

    def may_start(self, instance: ModelInstance) -> bool:
        """Whether an instance that was free a moment ago still is."""
        return True

    def arriving(self, request: InferenceRequest) -> None:
        """A request is about to wait."""

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Executions have not begun after all."""

    def why_waiting(self) -> WaitReason | None:
        """Return why requests wait where that is not because the instances are busy, else None."""
        return None

    def circle(self, name: str, cycle: str) -> str:
        """Return why a call of model `name` could only wait for itself, through the models of `cycle`, and the way out."""
        return (
            f"every instance is held by the requests that made it ({cycle}); give '{name}' more instances "
            "(instance_group count) or an `async def execute` with a higher max_concurrency"
        )

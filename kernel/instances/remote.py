"""Instances whose executions are carried out elsewhere, such as in a process of their own.

The executor hands them over and tells, on the loop, what came of each; it may go down and come up again. This is what the
scheduler sees of that: how many executions may be handed over at once (a run, as for threads), none while the executor is
down, and who is refused when there is no hope. Knows nothing of processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kernel.errors import ServingError
from kernel.instances.instance import ModelInstance
from kernel.instances.run_length import RunLength
from kernel.interfaces import RemoteExecutor
from kernel.requests import LATER, SKIPPED, Batch

if TYPE_CHECKING:
    from kernel.requests import InferenceRequest

__all__ = ["RemoteInstance"]

log = logging.getLogger("kernel")


class RemoteInstance(ModelInstance):
    """Hands executions to an executor that carries them out elsewhere.

    `healthy`: the executor can take executions. `problem`: why there is little hope that it soon can again, else None.
    """

    inline = False
    apart = True
    may_be_killed = True
    executor: RemoteExecutor

    def __init__(self, name: str, executor: RemoteExecutor, clock: Callable[[], float]) -> None:
        super().__init__(name, executor, clock)
        self.problem: ServingError | None = None
        self.answers_together = executor.capacity == 1
        self._length = RunLength()
        executor.attach(self)

    def start(self, batch: Batch) -> object:
        try:
            self.executor.execute(batch)
        except Exception as error:  # it was not handed over: nobody else will tell how it has ended
            batch.started = batch.ended = self.clock()
            return error
        return LATER

    def allow_runs(self, allowed: bool) -> None:
        super().allow_runs(allowed)
        self._length.forget()

    def take_back(self) -> list[Batch]:
        self._length.forget()
        self.limit = self.capacity
        return self.executor.take_back()

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        self.executor.cancelled(batch, request)

    def finished(self, batch: Batch, result: object) -> None:
        if result is not SKIPPED and self.runs and self.capacity == 1:
            if self._length.learn(batch.ended - batch.started) and self.healthy:
                self.limit = self._length.now
        super().finished(batch, result)

    # -- told by the executor ------------------------------------------------------------------------------------------

    def down(self) -> None:
        """The executor takes no more executions until `up`."""
        self.healthy, self.limit = False, 0
        if self.owner is not None:
            self.owner.changed()

    def give_back(self, batches: Sequence[Batch]) -> None:
        """What was handed over and has not begun waits again. Called while down."""
        assert self.owner is not None
        self.owner.put_back(self, batches)
        self.owner.look_again()

    def lost(self, why: ServingError) -> None:
        """What executions have left in the executor is lost. Called while down, after `give_back`."""
        if self.owner is not None:
            self.owner.lose(self, why)

    def up(self) -> None:
        """The executor takes executions again."""
        self.healthy, self.limit, self.problem = True, self.capacity, None
        self._length.forget()
        if self.owner is not None:
            self.owner.changed()
            self.owner.refuse_all(None)
            self.owner.look_again()

    def hopeless(self, problem: ServingError) -> None:
        """The executor goes on trying, but nobody should wait for it: where no instance is up, requests are refused."""
        self.problem = problem
        owner = self.owner
        if owner is not None and all(
            isinstance(one, RemoteInstance) and one.problem is not None for one in owner.instances
        ):
            owner.refuse_all(problem)

    async def close(self) -> None:
        if self.outstanding:
            assert self.owner is not None
            log.warning(
                "instance '%s' of model '%s' is ended in the middle of an execution", self.name, self.owner.name
            )
            self.executor.kill()
        try:
            await self.executor.close()
        except BaseException:  # nobody waits any longer
            self.executor.kill()
            raise

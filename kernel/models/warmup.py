"""Warms instances up: has each execute its model's samples before it takes requests. On the loop.

The law: the executions count like real ones, go past the queue and out of everybody's order, and an instance takes its next one
when the last has ended and all its requests have their answers. The first sample that fails ends it. (Contract: model_config,
section 9; what the samples are: warmup_samples.py.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from kernel.errors import ServingError
from kernel.instances import ModelInstance
from kernel.models.warmup_samples import Outcome, Sample, failure
from kernel.requests import Batch, InferenceRequest
from kernel.scheduling import Scheduler

__all__ = ["InstanceWarmup", "give_up", "run_warmup", "warmup_of"]

log = logging.getLogger("kernel")


class InstanceWarmup:
    """What one instance executes while it is warmed up, and whether that is over."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._over: asyncio.Future[None] | None = None
        self._given_up = False
        self._outcome: Outcome | None = None

    def look(self, instance: ModelInstance) -> None:
        """See whether the execution is over."""
        over, outcome = self._over, self._outcome
        if over is not None and outcome is not None and not over.done():
            if self._given_up or (outcome.complete and not instance.outstanding):
                over.set_result(None)

    def give_up(self, instance: ModelInstance) -> None:
        """Wait no longer for what the instance executes: nobody is going to be served."""
        self._given_up = True
        self.look(instance)

    async def execute(
        self, instance: ModelInstance, sample: Sample, prepare: Callable[[InferenceRequest, Sample], None]
    ) -> list[str]:
        """Have a sample executed once; return why requests of it have failed."""
        over = self._over = asyncio.get_running_loop().create_future()
        outcome = self._outcome = Outcome(sample.batch_size, lambda: self.look(instance))
        requests = [sample.request(self._scheduler.name, outcome.respond) for _ in range(sample.batch_size)]
        for request in requests:
            prepare(request, sample)
        self._scheduler.start_warmup(instance, Batch(requests, sum(request.batch_size for request in requests)))
        await over
        if self._given_up and not outcome.errors:
            return ["Server exiting"]
        return [error.message for error in outcome.errors]


async def run_warmup(
    scheduler: Scheduler,
    instances: Sequence[ModelInstance],
    samples: Sequence[Sample],
    prepare: Callable[[InferenceRequest, Sample], None],
    largest: int,
) -> None:
    """Have each instance execute all samples, side by side. `prepare` checks a request and has it shaped as the model sees it.

    `largest`: how many requests the model takes at a time. Raises ServingError with the first failure, once all have ended.
    """
    if not samples:
        return
    work = [_execute_all(scheduler, instance, samples, prepare, largest) for instance in instances]
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _execute_all(
    scheduler: Scheduler,
    instance: ModelInstance,
    samples: Sequence[Sample],
    prepare: Callable[[InferenceRequest, Sample], None],
    largest: int,
) -> None:
    warmup = InstanceWarmup(scheduler)
    scheduler.warmups.begin(instance, scheduler, warmup)
    try:
        for sample in samples:
            if sample.batch_size > largest:
                words = f"batch size {sample.batch_size} for '{instance.name}', max allowed is {largest}"
                raise failure(sample, [words] * sample.batch_size)
            for iteration in range(1, sample.count + 1):
                log.debug(
                    "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                    scheduler.name, instance.name, sample.name, iteration,
                )  # fmt: skip
                if errors := await warmup.execute(instance, sample, prepare):
                    raise failure(sample, errors)
    finally:
        scheduler.warmups.end(instance)


def give_up(scheduler: Scheduler, error: ServingError) -> None:
    """End the warmup of a model that is not going to serve, whatever its instances are at."""
    scheduler.abort(error)
    scheduler.warmups.give_up()


def warmup_of(request: InferenceRequest) -> str | None:
    """Return the name of the model whose warmup has made this call, directly or through others; None for all others."""
    batch, seen = request.parent, set[Batch]()
    while batch is not None and batch not in seen:
        seen.add(batch)
        if batch.instance.in_warmup:
            name: str = batch.instance.owner.name
            return name
        batch = batch.requests[0].parent if batch.requests else None
    return None

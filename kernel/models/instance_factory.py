"""From a spec to an instance, and from an instance to its end: has the backend make executors, and puts each where it runs.

Decides by the executor's placement what kind of instance it gets, and nothing else; which instances a model has is the model's
business, and when they execute the scheduler's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from kernel.config import ModelConfig
from kernel.errors import Code, ServingError
from kernel.instances import (
    CallbackInstance,
    InstanceThread,
    LoopInstance,
    ModelInstance,
    RemoteInstance,
    TaskInstance,
    ThreadInstance,
    ThreadTaskInstance,
)
from kernel.interfaces import Backend, Executor, InstanceContext, Placement, PlacementChoice, RemoteExecutor
from kernel.models.runtime import Runtime
from kernel.rules import InstanceSpec
from kernel.supplied import check_executor, never_answers

__all__ = ["InstanceFactory"]

log = logging.getLogger("kernel")


class InstanceFactory:
    """Makes the instances of one model version. `specs`: instance -> what its group says about it, as long as it is there.

    `since`: when it was made, as its model began to start; seconds on the kernel's clock. `number`: how many instances there
    are to be, where that is not what the config's group says: it follows the load then.
    """

    def __init__(self, kernel: Runtime, backend: Backend, name: str, version: int, model_folder: Path) -> None:
        self.backend = backend
        self.specs: dict[ModelInstance, InstanceSpec] = {}
        self.since = kernel.clock()
        self.number: int | None = None
        self._kernel = kernel
        self._name = name
        self._version = version
        self._model_folder = model_folder

    async def make(
        self, config: ModelConfig, specs: Sequence[InstanceSpec], choice: PlacementChoice | None
    ) -> list[ModelInstance]:
        """Make an instance for each spec, some at a time. Raises what one of them raises; the others are finalized then.

        `choice`: what the backend has chosen, if it does.
        """
        limit = asyncio.Semaphore(self._kernel.options.load_threads)

        async def make(spec: InstanceSpec) -> ModelInstance:
            async with limit:
                return await self._make_one(self._context(config, spec, choice))

        results = await asyncio.gather(*map(make, specs), return_exceptions=True)
        instances = [result for result in results if isinstance(result, ModelInstance)]
        problems = [result for result in results if isinstance(result, BaseException)]
        if problems:
            for instance in instances:
                await self.close(instance)
            raise problems[0]
        self.specs.update(zip(instances, specs))
        if instances and (words := never_answers(instances[0].executor, f"model '{self._name}'")):
            log.warning("%s", words)
        return instances

    def _context(self, config: ModelConfig, spec: InstanceSpec, choice: PlacementChoice | None) -> InstanceContext:
        return InstanceContext(
            kernel=self._kernel,
            config=config,
            version=self._version,
            instance_name=spec.name,
            kind=spec.kind,
            device_id=spec.device_id,
            model_folder=self._model_folder,
            version_folder=self._model_folder / str(self._version),
            placement_choice=choice,
        )

    async def _make_one(self, context: InstanceContext) -> ModelInstance:
        kernel, backend, name = self._kernel, self.backend, context.instance_name
        thread = None
        if backend.creates_on_loop:
            executor = backend.create(context)
        else:
            thread = self._thread(name)
            try:
                executor = await thread.call(backend.create, context)
            except BaseException:
                thread.stop()
                kernel.on_unload()
                raise
        try:
            check_executor(executor, f"model '{self._name}' of backend '{context.config.backend or 'ensemble'}'")
        except ServingError:
            if thread is not None:
                thread.stop()
            raise
        if executor.placement in (Placement.THREAD, Placement.THREAD_TASK):
            return await self._on_thread(name, executor, thread or self._thread(name))
        if thread is not None:
            thread.stop()
        return self._off_thread(name, executor)

    async def _on_thread(self, name: str, executor: Executor, thread: InstanceThread) -> ModelInstance:
        """Return an instance that executes on `thread`, which is the one that has made the executor, if one has."""
        kind = ThreadInstance if executor.placement is Placement.THREAD else ThreadTaskInstance
        try:
            return kind(name, executor, self._kernel.clock, thread, self._kernel.mailbox)
        except OSError as error:  # no more files
            await thread.call(executor.finalize)
            thread.stop()
            raise self._lacking(name, "a loop", error) from None

    def _thread(self, name: str) -> InstanceThread:
        try:
            return InstanceThread(name)
        except (OSError, RuntimeError) as error:  # no more files for its pipe, or no more threads
            raise self._lacking(name, "a thread", error) from None

    def _lacking(self, name: str, what: str, error: Exception) -> ServingError:
        return ServingError(Code.INTERNAL, f"instance '{name}' of model '{self._name}' can't have {what} of its own: {error}")

    def _off_thread(self, name: str, executor: Executor) -> ModelInstance:
        """Return an instance that has no thread of its own."""
        kernel, placement = self._kernel, executor.placement
        if placement is Placement.TASK:
            return TaskInstance(name, executor, kernel.clock, kernel.loop)
        if placement is Placement.LOOP:
            return LoopInstance(name, executor, kernel.clock, kernel.turn)
        if placement is Placement.REMOTE:
            return RemoteInstance(name, cast("RemoteExecutor", executor), kernel.clock)
        return CallbackInstance(name, executor, kernel.clock)

    async def close_all(self, instances: Iterable[ModelInstance]) -> None:
        """Finalize instances, side by side."""
        await asyncio.gather(*map(self.close, instances))

    async def close(self, instance: ModelInstance) -> None:
        """Finalize an instance that executes nothing more; one that can't be interrupted is left where it is."""
        if (limits := self._kernel.supervision.limits) is not None:
            limits.let_go(instance)
        if instance.outstanding and not instance.inline and not instance.may_be_killed:
            log.warning("instance '%s' of model '%s' is left in the middle of an execution", instance.name, self._name)
            instance.abandon()
            return
        try:
            await instance.close()
        except Exception:  # threads turn what is worse into one (thread.py)
            log.exception("finalize of instance '%s' of model '%s' failed", instance.name, self._name)
        self._kernel.on_unload()

"""Placement `process`: keeps one model instance alive in a child, through as many lives as it takes.

A child that ends by itself is followed by another: at once the first time, then after waits that double as long as no life
does any work. While there is none the model is not ready and its requests wait; once a life could not even begin, they are
refused with the reason, until one has.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from kernel import (
    Batch,
    Code,
    InferenceRequest,
    InstanceContext,
    Kernel,
    ModelConfig,
    Placement,
    Reason,
    RemoteOwner,
    ServingError,
)
from kernel_python.loading.lifecycle import arguments_of, async_capacity
from kernel_python.process.handed import Hops
from kernel_python.process.life import Life
from kernel_python.process.pulse import LOOKS
from kernel_python.process.spawn import Launcher

__all__ = ["ProcessExecutor", "setup_of"]

log = logging.getLogger("kernel_python")

ADVICE_SECONDS = 60.0  # how long an instance has run before its process's cost is looked at
ADVICE_COUNT = 100  # executions that must have been measured by then
ADVICE_SHARE = 0.1  # of the whole time: where the way to the process takes more, the log says so
FIRST_WAIT = 0.1  # before the second attempt to start again
LONGEST_WAIT = 10.0


class ProcessExecutor:
    """One model instance in a process of its own. Make it with `start`, on any thread; the rest happens on the loop."""

    placement = Placement.REMOTE
    may_wait = True

    def __init__(self, context: InstanceContext, file: Path, launcher: Launcher, patience: float, hang: float = 0.0) -> None:
        self.capacity = 1
        self._kernel = cast(Kernel, context.kernel)  # lives ask more of it than a Host has: loads, metrics of models
        self._name = context.instance_name
        self._model_name = context.config.name
        self._setup = setup_of(context.config, context.version_folder, context.model_folder, file, launcher) | {
            "instance": self._name,
            "phase": "initialize",
            "arguments": arguments_of(context),
            "strict_outputs": context.kernel.strict_outputs,
            "patience": patience,
            "beat": hang / LOOKS,
            "limit": self._kernel.supervision.overtime.limit_of(context.config),
        }
        self._launcher = launcher
        self._async_capacity = async_capacity(context.config)
        self._instance: RemoteOwner | None = None
        self._life: Life | None = None  # the one that takes executions
        self._coming: Life | None = None  # the one that has not initialized yet
        self._first: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.is_ready: Callable[[], Awaitable[bool]] | None = None
        self._idle_lives = 0  # lives in a row that did no work
        self._timer: asyncio.TimerHandle | None = None
        self._closing = self._killed = False
        self._gone: asyncio.Future[None] | None = None
        self.restarts = 0
        self._hops = Hops()
        self._choice = context.placement_choice
        self._advisor: asyncio.TimerHandle | None = None

    @property
    def hops(self) -> tuple[int, float]:
        """See kernel.RemoteExecutor."""
        return self._hops.count, self._hops.seconds

    @classmethod
    def start(
        cls, context: InstanceContext, file: Path, launcher: Launcher, patience: float, hang: float = 0.0
    ) -> ProcessExecutor:
        """Return the executor once its model has initialized, or raise the ServingError that says why it has not.

        `patience`: seconds in which a process has to have begun, before any code of the model's runs. `hang`: seconds without a
        sign of life after which it is ended; 0: never.
        """
        executor = cls(context, file, launcher, patience, hang)
        context.kernel.call_soon(executor._begin)
        executor._first.result()
        return executor

    # -- kernel.RemoteExecutor -------------------------------------------------------------------------------------------

    def attach(self, instance: RemoteOwner) -> None:
        self._instance = instance
        if self._life is None:  # the process has ended since it was ready
            instance.down()

    def execute(self, batch: Batch) -> None:
        assert self._life is not None, "an instance that is down is given nothing"
        self._life.execute(batch)

    def take_back(self) -> list[Batch]:
        return [] if self._life is None else self._life.take_back()

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        if self._life is not None:
            self._life.cancelled(batch, request)

    def awaited(self, batch: Batch, told: Callable[[], None]) -> Sequence[InferenceRequest] | None:
        return None if self._life is None else self._life.awaited(batch, told)

    def holding(self) -> InferenceRequest | None:
        return None if self._life is None else self._life.holding()

    def place(self, batch: Batch) -> str:
        return "" if self._life is None else self._life.place(batch)

    def end(self, reason: str) -> None:
        if self._life is not None:
            self._life.end(reason)

    def finalize(self) -> None:
        """Not called; see `close`."""

    async def close(self) -> None:
        """Finalize the model, and return when its process is gone."""
        self._closing = True
        self._stop_timers()
        if self._life is None and self._coming is None:
            return
        self._gone = asyncio.get_running_loop().create_future()
        if self._life is None:
            self.kill()
        elif not self._killed:
            self._life.finalize()
        await self._gone

    def kill(self) -> None:
        self._closing = self._killed = True
        self._stop_timers()
        for life in (self._life, self._coming):
            if life is not None:
                life.kill()

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._advisor):
            if timer is not None:
                timer.cancel()

    # -- what the process costs ----------------------------------------------------------------------------------------

    def _advise_later(self) -> None:
        if self._choice is not None and not self._choice.asked:
            self._advisor = self._kernel.loop.call_later(ADVICE_SECONDS, self._advise)

    def _advise(self) -> None:
        """Tell once what the process costs, where that is much, and why the model has one."""
        assert self._choice is not None
        self._advisor = None
        hops = self._hops
        if hops.count < ADVICE_COUNT:
            self._advise_later()
        elif hops.seconds > ADVICE_SHARE * (hops.seconds + hops.executing):
            log.info(
                "model '%s', instance '%s', runs in a process (%s): the way there and back takes %.2f ms beside %.2f ms of "
                "executing. Where the model gets along with others, parameter 'placement' with 'thread' or 'loop' saves that",
                self._model_name,
                self._name,
                self._choice.reason,
                hops.seconds / hops.count * 1e3,
                hops.executing / hops.count * 1e3,
            )

    # -- lives ---------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._timer = None
        try:
            self._coming = Life(self._kernel, self._name, self._setup, self._launcher, self, self._hops)
        except OSError as error:
            self._failed(ServingError(Code.INTERNAL, f"the process of instance '{self._name}' can't be started: {error}"))

    def ready(self, life: Life, is_async: bool) -> None:
        self._life, self._coming = life, None
        self.is_ready = life.is_ready if life.may_be_asked else None
        self.capacity = self._async_capacity if is_async else 1
        if not self._first.done():
            self._first.set_result(None)
            self._advise_later()
            return
        self.restarts += 1
        log.info("model '%s', instance '%s', is back, as process %d", self._model_name, self._name, life.pid)
        if self._instance is not None:
            self._instance.capacity = self.capacity
            self._instance.up()

    def completed(self, life: Life, config: str | None) -> None:
        raise AssertionError("nothing was to be completed")

    def ending(self, life: Life) -> None:
        if self._instance is not None and life is self._life:
            self._instance.down()

    def ended(self, life: Life, not_begun: list[Batch]) -> None:
        assert life.why is not None
        coming = life is self._coming
        self.is_ready = None
        self._life = self._coming = None
        if not_begun:
            assert self._instance is not None
            self._instance.give_back(not_begun)
        if self._instance is not None and not coming:
            self._instance.lost(life.why)
        if self._closing:
            if not life.finalized and not self._killed:
                log.error("finalize of model instance '%s' did not come to its end: %s", self._name, life.why.message)
            if self._gone is not None and not self._gone.done():
                self._gone.set_result(None)
        elif coming:
            self._failed(life.why)
        else:
            if life.has_worked:
                self._idle_lives = 0
            self._again(life.why)

    def _failed(self, why: ServingError) -> None:
        """A life did not begin."""
        if not self._first.done():
            self._first.set_exception(why)
            return
        if self._instance is not None:
            self._instance.hopeless(
                ServingError(
                    Code.UNAVAILABLE,
                    f"model '{self._model_name}' is not ready: instance '{self._name}' ended and can't be started again, "
                    f"which is tried on: {why.message}",
                    Reason.REJECTED,
                )
            )
        self._again(why)

    def _again(self, why: ServingError) -> None:
        """Start another life, soon."""
        wait = 0.0 if not self._idle_lives else min(LONGEST_WAIT, FIRST_WAIT * 2 ** (self._idle_lives - 1))
        self._idle_lives += 1
        log.error(
            "model '%s', instance '%s': %s; it is started again %s",
            self._model_name,
            self._name,
            why.message,
            f"in {wait:.1f} s" if wait else "now",
        )
        self._timer = self._kernel.loop.call_later(wait, self._begin)


def setup_of(
    config: ModelConfig, version_folder: Path, model_folder: Path, file: Path, launcher: Launcher
) -> dict[str, Any]:
    """Return what a child has to know of its model, but for what it is to do."""
    return {
        "model": config.name,
        "version_folder": str(version_folder.absolute()),
        "model_folder": str(model_folder.absolute()),
        "file": str(file),
        "path": list(sys.path) if launcher.own else None,
        "decoupled": config.decoupled,
        "zero_copy": config.parameters.get("zero_copy", "").lower() == "true",
        "iterative": config.sequence_batching is not None and config.sequence_batching.iterative,
        "outputs": [spec.name for spec in config.outputs],
        "kept": [spec.name for spec in config.kept_outputs],
        "async_capacity": async_capacity(config),
        "strict_outputs": False,
        "limit": 0.0,
    }

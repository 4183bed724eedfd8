"""The backend of a simulated server: executors of every placement that do what a seed says, well or badly.

While faults last, an execution may fail in any way that an executor can: raise, answer with too few or too many or with what is
no answer, answer late, one by one, twice, or have its process die. Each fault that it commits it tells the world, so that an
error that nobody has committed is a violation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from simulation.plans import Plan

from kernel import (
    Batch,
    Code,
    InferenceRequest,
    InferenceResponse,
    InstanceContext,
    ModelConfig,
    Placement,
    RemoteOwner,
    RequestState,
    ServingError,
    Tensor,
    hookimpl,
)

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Planned", "Scripted", "number_of"]

RELEASED = RequestState.RELEASED
FAULTS = ("raise", "raise", "memory", "serving", "cancelled", "garbage", "few", "many", "none", "odd", "partly", "partly")


class Planned(Exception):
    """What a model raises because the seed says so."""


def number_of(request: InferenceRequest) -> int:
    return int(request.inputs["X"].array.flat[0])


class Scripted:
    """Serves `backend: "test"`."""

    name = "test"
    creates_on_loop = True

    def __init__(self, world: World) -> None:
        self.world = world

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        return

    def create(self, context: InstanceContext) -> Any:
        world = self.world
        if world.faults and world.rng.random() < world.load_faults:
            raise Planned("planned: the model can't be loaded")
        plan = world.plans[context.config.name]
        made = {"task": OnTask, "remote": Elsewhere}.get(plan.style, OnLoop)(world, plan, context)
        world.executors.append(made)
        return made

    @hookimpl
    def register_backends(self, kernel: Any) -> Mapping[str, Any]:
        return {"test": self}


class Executor:
    """What all placements share: how a batch is looked at, what is to happen to it, and the answers."""

    may_wait = True
    placement = Placement.LOOP

    def __init__(self, world: World, plan: Plan, context: InstanceContext) -> None:
        self.world = world
        self.plan = plan
        self.kernel: Any = context.kernel
        self.capacity = plan.concurrency
        self.running = 0
        self.closed = 0
        self.name = context.instance_name

    def finalize(self) -> None:
        self.closed += 1

    # -- what is looked at ---------------------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> list[int]:
        """Look at an execution that begins. Return the sequences that it goes on with."""
        world, plan = self.world, self.plan
        world.executions += 1
        self.running += 1
        world.expect(self.running <= self.capacity, "an instance has more executions than its capacity", plan)
        world.expect(not self.closed, "an instance executes after its end", plan)
        world.expect(batch.size == sum(one.batch_size for one in batch.requests), "rows are miscounted", plan)
        world.expect(any(one.state is not RELEASED for one in batch.requests), "an execution for nobody", plan)
        if plan.kind == "batching":
            world.expect(batch.size <= plan.rows, "a batch exceeds its size", plan)
        elif not plan.sequential:
            world.expect(len(batch.requests) == 1, "requests are merged without a batcher", plan)
        if plan.fifo:
            world.look_at_order(batch, plan)
        return world.look_at_sequences(batch, plan) if plan.sequential else []

    def end(self, sequences: list[int]) -> None:
        self.running -= 1
        self.world.going_on.difference_update(sequences)

    # -- what is done --------------------------------------------------------------------------------------------------

    def action(self) -> str:
        world = self.world
        if world.faults and world.rng.random() < world.fault_rate:
            action = world.rng.choice(FAULTS)
            if action != "partly":
                world.committed[self.plan.name] += 1
            return action
        return "later" if world.rng.random() < world.late_rate else "ok"

    def answer(self, request: InferenceRequest, values: Any = None, more: float = 0.0) -> InferenceResponse:
        array = request.inputs["X"].array if values is None else values
        outputs = [Tensor("Y", "FP32", array + np.float32(self.plan.add + more))]
        if self.plan.sequential:
            sequence, place = self.world.places_of.get(number_of(request), (0, 0))
            outputs.append(Tensor("S_NEXT", "INT32", np.array([[sequence, place + 1]], np.int32)))
        return InferenceResponse(outputs)

    def carry_out(self, batch: Batch, action: str, values: list[Any] | None = None) -> Any:
        """Return the result of an execution, or raise; `values`: what calls have made of X, request by request."""
        requests, world = batch.requests, self.world
        if action == "raise":
            raise Planned("planned")
        if action == "memory":
            raise MemoryError("planned")
        if action == "serving":
            raise ServingError(Code.NOT_FOUND, "planned: nothing was found")
        if action == "cancelled":
            raise asyncio.CancelledError
        if action == "garbage":
            return world.rng.choice((7, "planned", {"Y": 1}, object(), [3] * len(requests), ["planned"] * len(requests)))
        if self.plan.decoupled and action in ("ok", "later", "partly", "none"):
            return self.stream(batch, action)
        answers = [self.answer(one, values[k] if values else None) if one.inputs else None
                   for k, one in enumerate(requests)]  # fmt: skip
        if action == "few":
            return answers[:-1]
        if action == "many":
            return [*answers, InferenceResponse([])]
        if action == "odd":
            return [InferenceResponse([], error=ServingError(Code.INVALID_ARG, "planned: odd")) for _ in requests]
        if action == "none":  # some are answered by an error, later
            for one in requests:
                self.send_later(one, InferenceResponse.failure(Code.UNKNOWN, "planned: late"))
            return None
        if action in ("later", "partly"):
            return [self._sent(one, response, action) for one, response in zip(requests, answers)]
        return answers

    def _sent(self, request: InferenceRequest, response: InferenceResponse | None, action: str) -> InferenceResponse | None:
        """Answer a request now, soon, or by the result; with `partly` some of them by an error."""
        world = self.world
        if request.state is RELEASED or response is None:
            return InferenceResponse([])
        if action == "partly" and world.rng.random() < 0.3:
            world.committed[self.plan.name] += 1
            response = InferenceResponse.failure(Code.UNAVAILABLE, "planned: one of them")
        how = world.rng.random()
        if how < 0.3:
            return response
        if how < 0.6 and not self.plan.sequential:
            self.kernel.send(request, response, True)
            return None
        self.send_later(request, response)
        return None

    def send_later(self, request: InferenceRequest, response: InferenceResponse | None) -> None:
        loop, rng = self.kernel.loop, self.world.rng
        wait = rng.choice((0.0, 0.0005, 0.01, 0.05))
        loop.call_later(wait, self.kernel.send, request, response, True)
        if rng.random() < 0.1:  # once more: nobody may hear of it
            loop.call_later(wait + 0.001, self.kernel.send, request, InferenceResponse.failure(Code.UNKNOWN, "twice"), True)

    def stream(self, batch: Batch, action: str) -> None:
        """Answer by none or more responses and a final flag, now and later."""
        loop, rng, send = self.kernel.loop, self.world.rng, self.kernel.send
        for request in batch.requests:
            when = 0.0
            values = request.inputs["X"].array if request.inputs else np.zeros(1, np.float32)
            for index in range(rng.randint(0, 4)):
                response = self.answer(request, values, index / 16)
                if action == "ok":
                    send(request, response, False)
                    continue
                when += rng.choice((1e-6, 0.001, 0.02))  # never two at a time: asyncio's timers have no order then
                loop.call_later(when, send, request, response, False)
            last = None
            if action in ("partly", "none"):
                self.world.committed[self.plan.name] += 1
                last = InferenceResponse.failure(Code.INTERNAL, "planned: in the middle")
            if action == "ok":
                send(request, last, True)
            else:
                loop.call_later(when + 0.0005, send, request, last, True)
        return

    def child(self, plan: Plan, batch: Batch, request: InferenceRequest, values: Any) -> InferenceRequest:
        world = self.world
        if plan.rows:
            values = values.reshape(1, -1) if values.ndim == 1 else values
        return world.request_type(
            plan.name, {"X": Tensor("X", "FP32", values.copy())}, _nobody, "", f"of {request.id}", parent=batch
        )


def _nobody(response: InferenceResponse | None, final: bool) -> None:
    pass


class OnLoop(Executor):
    """Executes on the loop: without a greenlet, or in one that may be left for a while."""

    def __init__(self, world: World, plan: Plan, context: InstanceContext) -> None:
        super().__init__(world, plan, context)
        self.may_wait = plan.style == "greenlet"

    def execute(self, batch: Batch) -> Any:
        sequences = self.begin(batch)
        try:
            world, rng = self.world, self.world.rng
            if rng.random() < 0.1:
                world.jump(rng.choice((0.0001, 0.002, 0.15)))  # it computes; the loop is held
            action = self.action()
            if self.may_wait and rng.random() < 0.3:
                self.sleep(rng.choice((0.0, 0.001, 0.03)))
            values = [self.call(batch, one) for one in batch.requests] if self.plan.calls else None
            return self.carry_out(batch, action, values)
        finally:
            self.end(sequences)

    def sleep(self, seconds: float) -> None:
        loop = self.kernel.loop
        self.kernel.wait_for(lambda wake: loop.call_later(seconds, wake))

    def call(self, batch: Batch, request: InferenceRequest) -> Any:
        values = request.inputs["X"].array if request.inputs else np.zeros(1, np.float32)
        for plan in self.plan.calls:
            response = self.kernel.wait(self.child(plan, batch, request, values), batch)
            if response.error is not None:
                raise response.error
            values = response["Y"].reshape(values.shape)
        return values


class Call(asyncio.Future):  # type: ignore[type-arg]
    """The future of a call's answer. `request`: the call."""


class OnTask(Executor):
    placement = Placement.TASK

    async def execute(self, batch: Batch) -> Any:
        sequences = self.begin(batch)
        try:
            rng = self.world.rng
            action = self.action()
            if rng.random() < 0.6:
                await asyncio.sleep(rng.choice((0.0, 0.0005, 0.004, 0.04)))
            values = [await self.call(batch, one) for one in batch.requests] if self.plan.calls else None
            return self.carry_out(batch, action, values)
        finally:
            self.end(sequences)

    async def call(self, batch: Batch, request: InferenceRequest) -> Any:
        values = request.inputs["X"].array if request.inputs else np.zeros(1, np.float32)
        for plan in self.plan.calls:
            child = self.child(plan, batch, request, values)
            done: Any = Call(loop=self.kernel.loop)
            done.request = child  # so that it can be told what the task waits for
            child.respond = lambda response, final, done=done: final and not done.done() and done.set_result(response)
            self.kernel.submit(child)
            response = await done
            if response.error is not None:
                raise response.error
            values = response["Y"].reshape(values.shape)
        return values


class Elsewhere(Executor):
    """Executions in a process that does not exist: one after another, with runs that can be taken back, and deaths."""

    placement = Placement.REMOTE
    instance: RemoteOwner

    def __init__(self, world: World, plan: Plan, context: InstanceContext) -> None:
        super().__init__(world, plan, context)
        self.handed: list[Batch] = []  # not begun
        self.begun: dict[Batch, tuple[Any, list[int]]] = {}  # -> the timer of its end
        self.down = False
        self._gone: asyncio.Future[None] | None = None

    def attach(self, instance: RemoteOwner) -> None:
        self.instance = instance

    def execute(self, batch: Batch) -> None:
        self.world.expect(not self.down, "an instance that is down is handed something", self.plan)
        self.handed.append(batch)
        self._go_on()

    def _go_on(self) -> None:
        loop, rng = self.kernel.loop, self.world.rng
        while self.handed and len(self.begun) < self.capacity:
            batch = self.handed.pop(0)
            batch.started = self.kernel.clock()
            if all(one.state is RELEASED for one in batch.requests):
                loop.call_soon(self._skip, batch)
                self.begun[batch] = None, []
                continue
            sequences = self.begin(batch)
            self.begun[batch] = loop.call_later(rng.choice((0.0, 1e-6, 0.0005, 0.003, 0.03)), self._end, batch), sequences

    def _skip(self, batch: Batch) -> None:
        if batch in self.begun:
            del self.begun[batch]
            self._tell(batch, [InferenceResponse([]) for _ in batch.requests])
            self._go_on()

    def _end(self, batch: Batch) -> None:
        _, sequences = self.begun.pop(batch)
        self.end(sequences)
        try:
            result = self.carry_out(batch, self.action())
        except (Exception, asyncio.CancelledError) as error:
            result = error
        self._tell(batch, result)
        self._go_on()

    def _tell(self, batch: Batch, result: Any) -> None:
        batch.input_ended = batch.started
        batch.output_started = batch.ended = self.kernel.clock()
        self.instance.finished(batch, result)

    def take_back(self) -> list[Batch]:
        taken, self.handed = self.handed, []
        return taken

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        self.world.expect(batch.instance is self.instance, "told of what it has not", self.plan)

    # -- deaths --------------------------------------------------------------------------------------------------------

    def die(self, seconds: float) -> None:
        """Have the process die, and another one begin after `seconds`; a first try may fail."""
        if self.down or self.closed:
            return
        world = self.world
        world.committed[self.plan.name] += 1
        self.down = True
        self.instance.down()
        why = ServingError(Code.UNAVAILABLE, "planned: the process of the instance has died")
        begun, self.begun = self.begun, {}
        for batch, (timer, sequences) in begun.items():
            if timer is not None:
                timer.cancel()
                self.end(sequences)
            self._tell(batch, why)
        not_begun = self.take_back()
        if not_begun:
            self.instance.give_back(not_begun)
        self.instance.lost(why)
        if world.rng.random() < 0.3:
            words = ServingError(Code.UNAVAILABLE, "planned: the process can't be started again")
            self.kernel.loop.call_later(seconds / 2, self._hopeless, words)
        self.kernel.loop.call_later(seconds, self._live)

    def _hopeless(self, words: ServingError) -> None:
        if self.down and not self.closed:
            self.instance.hopeless(words)

    def _live(self) -> None:
        if not self.closed:
            self.down = False
            self.instance.up()

    async def close(self) -> None:
        self.world.expect(not self.begun and not self.handed, "an instance is closed in the middle", self.plan)
        self.closed += 1

    def kill(self) -> None:
        self.closed += 1
        for batch, (timer, sequences) in list(self.begun.items()):
            if timer is not None:
                timer.cancel()
                self.end(sequences)
            del self.begun[batch]
        self.handed.clear()



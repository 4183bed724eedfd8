"""What stands for the models: executors that take the time which an execution is said to cost, and compute nothing.

A model keeps its config, and its backend says where it would run. One that the config puts on the loop holds that while it
executes; one that runs there as it only waits, or elsewhere, goes on while the loop does other work. Ensembles are real.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kernel.config import ModelConfig
from kernel.interfaces import Backend, Executor, Host, InstanceContext, Placement, PlacementChoice, RemoteOwner
from kernel.plugins import Plugins
from kernel.requests import SKIPPED, Batch, InferenceRequest, InferenceResponse, RequestState
from kernel.simulation.cost import Costs
from kernel.simulation.loop import SimulationLoop
from kernel.tensor import DATATYPES, Tensor

__all__ = ["StandIns", "Worked", "tensor_of"]

ENSEMBLE = "ensemble"

WAITING = 64  # executions of an `async def execute` at a time, where its config does not say


class Worked:
    """What the instances of one model have done. `batches`: rows -> executions. `seconds`: that these took in all."""

    def __init__(self) -> None:
        self.instances = 0
        self.capacity = 0  # executions that they may have at a time
        self.batches: dict[int, int] = {}
        self.seconds = 0.0

    def note(self, rows: int, seconds: float) -> None:
        """Count one execution."""
        self.batches[rows] = self.batches.get(rows, 0) + 1
        self.seconds += seconds


class StandIns(Plugins):
    """The plugins of a kernel that simulates. `worked`: by the name of the model. `nested`: an ensemble takes the answers."""

    def __init__(self, costs: Costs, loop: SimulationLoop, seed: int) -> None:
        super().__init__()
        self.costs = costs
        self.loop = loop
        self.seed = seed
        self.worked: dict[str, Worked] = {}
        self.nested = False

    def backends(self, kernel: Host) -> dict[str, Backend]:
        found = super().backends(kernel)
        return {name: backend if name == ENSEMBLE else _StandIn(self, name, backend) for name, backend in found.items()}


class _StandIn:
    """Stands for one backend."""

    creates_on_loop = True

    def __init__(self, all: StandIns, name: str, backend: Backend) -> None:
        self.name = name
        self._all = all
        self._backend = backend
        self.uses_gpus = getattr(backend, "uses_gpus", True)

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        """A model is only looked into for what its config does not say."""
        if config.inputs and config.outputs:
            return config
        return self._backend.complete_config(config, model_folder, version_folder)

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        """The files are not needed."""

    def choose_placement(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> PlacementChoice:
        choose = getattr(self._backend, "choose_placement", None)
        if choose is None:
            return PlacementChoice("thread", f"it is a model of backend {self.name}")
        choice: PlacementChoice = choose(config, model_folder, version_folder)
        return choice

    def create(self, context: InstanceContext) -> Executor:
        config = context.config
        worked = self._all.worked.setdefault(config.name, Worked())
        worked.instances += 1
        takes = self._all.costs.of(config.name).drawing((self._all.seed, worked.instances, *config.name.encode()))
        choice = context.placement_choice
        waits = choice is not None and choice.where == "loop"
        if choice is not None and choice.asked and waits:
            worked.capacity += 1
            return _OnLoop(_Answers(config, self._all), worked, takes, self._all.loop)
        elsewhere = _Beside(_Answers(config, self._all), worked, takes, self._all.loop, _at_a_time(config, waits))
        worked.capacity += elsewhere.capacity
        return elsewhere


def _at_a_time(config: ModelConfig, waits: bool) -> int:
    """Return how many executions an instance has at a time. `waits`: it does nothing but wait (`async def execute`)."""
    batches = config.dynamic_batching is not None and not config.decoupled
    return int(config.parameters.get("max_concurrency", WAITING if waits and not batches else 1))


class _Answers:
    """The answers of a model: zeros of the right form. One for all requests of as many rows, where nobody takes it to pieces."""

    def __init__(self, config: ModelConfig, all: StandIns) -> None:
        self._config = config
        self._all = all
        self._kept: dict[int, InferenceResponse] = {}

    def __call__(self, batch: Batch) -> list[InferenceResponse]:
        requests = batch.requests
        if self._all.nested:
            return [self._made(request.batch_size) for request in requests]
        if batch.size == len(requests):
            return [self._of(1)] * batch.size
        return [self._of(request.batch_size) for request in requests]

    def _of(self, rows: int) -> InferenceResponse:
        response = self._kept.get(rows)
        if response is None:
            response = self._kept[rows] = self._made(rows)
        return response

    def _made(self, rows: int) -> InferenceResponse:
        config = self._config
        first = rows if config.max_batch_size else 0
        return InferenceResponse([
            tensor_of(spec.name, spec.datatype, spec.dims if spec.reshape is None else spec.reshape, first)
            for spec in config.outputs
        ])  # fmt: skip


def tensor_of(name: str, datatype: str, dims: Sequence[int], rows: int) -> Tensor:
    """Return zeros of a form; -1 becomes 1. `rows`: 0 where there is no batch dimension."""
    shape = [max(1, size) for size in dims]
    array = np.zeros([rows, *shape] if rows else shape, DATATYPES[datatype])
    if array.dtype == object:
        array[...] = b""
    return Tensor(name, datatype, array)


class _OnLoop:
    """Executes on the loop, which does nothing else meanwhile."""

    placement = Placement.LOOP
    capacity = 1
    may_wait = False

    def __init__(self, answers: _Answers, worked: Worked, takes: Callable[[int], float], loop: SimulationLoop) -> None:
        self._answers = answers
        self._worked = worked
        self._takes = takes
        self._loop = loop

    def execute(self, batch: Batch) -> list[InferenceResponse]:
        seconds = self._takes(batch.size)
        self._worked.note(batch.size, seconds)
        self._loop.now += seconds
        return self._answers(batch)

    def finalize(self) -> None:
        return


class _Beside:
    """Executes beside the loop: `capacity` at a time, in the order in which they come."""

    placement = Placement.REMOTE
    may_wait = False

    def __init__(
        self, answers: _Answers, worked: Worked, takes: Callable[[int], float], loop: SimulationLoop, capacity: int
    ) -> None:
        self.capacity = capacity
        self._answers = answers
        self._worked = worked
        self._takes = takes
        self._loop = loop
        self._running = 0
        self._waiting: deque[Batch] = deque()

    def attach(self, instance: RemoteOwner) -> None:
        """It never goes down."""

    def execute(self, batch: Batch) -> None:
        if self._running < self.capacity:
            self._begin(batch)
        else:
            self._waiting.append(batch)

    def _begin(self, batch: Batch) -> None:
        loop = self._loop
        self._running += 1
        seconds = self._takes(batch.size)
        batch.started = now = loop.now
        self._worked.note(batch.size, seconds)
        loop.call_at(now + seconds, self._end, batch)

    def _end(self, batch: Batch) -> None:
        self._running -= 1
        batch.ended = self._loop.now
        while self._waiting and self._running < self.capacity:
            self._follow(self._waiting.popleft())
        batch.instance.finished(batch, self._answers(batch))

    def _follow(self, batch: Batch) -> None:
        if all(one.state is RequestState.RELEASED for one in batch.requests):
            batch.started = batch.ended = self._loop.now
            self._loop.call_soon(batch.instance.finished, batch, SKIPPED)
        else:
            self._begin(batch)

    def take_back(self) -> list[Batch]:
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """What goes on is finished all the same."""

    def kill(self) -> None:
        """There is no process."""

    async def close(self) -> None:
        return

    def finalize(self) -> None:
        return

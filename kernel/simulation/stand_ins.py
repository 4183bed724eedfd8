"""What stands for the models: their backends, which look at no model's code, and make executors that only take their time.

A model keeps its config, and its backend says where it would run. Ensembles are real.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernel.config import ModelConfig
from kernel.interfaces import Backend, Executor, Host, InstanceContext, PlacementChoice
from kernel.plugins import Plugins
from kernel.simulation.cost import Cost, Costs, Steps
from kernel.simulation.executors import (
    Beside,
    Caller,
    CallsBeside,
    CallsOnLoop,
    CallsOnThread,
    OnLoop,
    OnThread,
    Worked,
    Zeros,
)
from kernel.simulation.forms import Shapes
from kernel.simulation.loop import SimulationLoop

__all__ = ["StandIns"]

ENSEMBLE = "ensemble"

WAITING = 64  # executions of an `async def execute` at a time, where its config does not say


class StandIns(Plugins):
    """The plugins of a kernel that simulates. `worked`: by the name of the model. `answers`: of the instances of all models."""

    def __init__(self, costs: Costs, loop: SimulationLoop, seed: int, shapes: Shapes) -> None:
        super().__init__()
        self.costs = costs
        self.loop = loop
        self.seed = seed
        self.shapes = shapes
        self.worked: dict[str, Worked] = {}
        self.answers: list[Zeros] = []

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
        config, all = context.config, self._all
        worked, answers = all.worked.setdefault(config.name, Worked()), Zeros(config, all.shapes)
        worked.instances += 1
        all.answers.append(answers)
        cost, seed = all.costs.of(config.name), (all.seed, worked.instances, *config.name.encode())
        choice = context.placement_choice
        waits, asked = choice is not None and choice.where == "loop", choice is not None and choice.asked
        on_thread = choice is not None and choice.where == "thread"
        capacity = 1 if waits and asked else _at_a_time(config, waits)
        worked.capacity += capacity
        if isinstance(cost, Steps):
            steps = [one.drawing((*seed, place)) if isinstance(one, Cost) else one for place, one in enumerate(cost.steps)]
            caller = Caller(context.kernel, all.shapes, steps)
            if waits and asked:
                return CallsOnLoop(answers, worked, caller, all.loop)
            return (CallsOnThread if on_thread else CallsBeside)(answers, worked, caller, all.loop, capacity)
        takes = cost.drawing(seed)
        if waits and asked:
            return OnLoop(answers, worked, takes, all.loop)
        return (OnThread if on_thread else Beside)(answers, worked, takes, all.loop, capacity)


def _at_a_time(config: ModelConfig, waits: bool) -> int:
    """Return how many executions an instance has at a time. `waits`: it does nothing but wait (`async def execute`)."""
    batches = config.dynamic_batching is not None and not config.decoupled
    return int(config.parameters.get("max_concurrency", WAITING if waits and not batches else 1))

"""The graph of an ensemble, compiled: which tensor goes where, for one set of wanted outputs. Pure; knows no request.

Names become positions once, at load, so that a request only counts down and hands on. Each tensor has one route: all who
take it, in order; everyone but the last gets a copy (memory is private), so a tensor with one taker is never copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from kernel import Code, EnsembleStep, ModelConfig, ServingError

__all__ = ["Feed", "Plan", "Step", "compile_plan", "fit"]

#: Who takes a tensor, and under which name: a step by its index, or the answer by an index p, as ~p.
Taker: TypeAlias = "tuple[int, str]"


class Feed:
    """What a step's response, or the request, gives: `routes` are (its own name of the tensor, the takers).

    `apart`: its tensors go to different takers, so two of them must not lie in the same memory. `single`: the name, the taker
    and its name, where one tensor goes to one taker, as in a chain.
    """

    __slots__ = ("apart", "routes", "single")

    def __init__(self, routes: Sequence[tuple[str, tuple[Taker, ...]]]) -> None:
        self.routes = tuple(routes)
        # The last taker of a tensor gets its memory itself, so only those who come last can meet in one memory.
        self.apart = len({max(route[-1][0], -1) for _, route in self.routes}) > 1
        self.single: tuple[str, int, str] | None = None
        if len(self.routes) == 1 and len(self.routes[0][1]) == 1:
            self.single = (self.routes[0][0], *self.routes[0][1][0])


class Step:
    """One step that a plan runs. `index`: in the config, `depth` the number of decoupled steps before it.

    `version`: what to look the model up with. `inputs` and `outputs` map the model's names to tensors of the ensemble.
    `sources`: the steps its inputs come from. `spawns`: its model is decoupled, each response begins an iteration.
    """

    __slots__ = ("depth", "feed", "index", "inputs", "key", "model_name", "outputs", "sources", "spawns", "version")

    def __init__(self, ensemble: str, index: int, config: EnsembleStep, spawns: bool) -> None:
        self.index = index
        self.model_name = config.model_name
        self.version = "" if config.model_version == -1 else str(config.model_version)
        self.key = f"ensemble '{ensemble}' step {index}"
        self.inputs = config.input_map
        self.outputs = config.output_map
        self.spawns = spawns
        self.depth = 0
        self.sources: tuple[int, ...] = ()
        self.feed = Feed(())

    def __str__(self) -> str:
        return f"step {self.index} (model '{self.model_name}')"


class Plan:
    """How to answer requests for one set of outputs.

    `steps`: those that contribute to the outputs, in the config's order; `at`: the same by index. `waiting`: by step index,
    how many inputs have to be settled before it runs. `feed`: the request's own tensors. `outputs`: names in the config's
    order; `dims` and `sources`: their shapes and the steps they come from. `writers`: tensor -> the step that writes it, and
    the model's name of it. `depth`: how many decoupled steps lie on the way to the outputs; 0: exactly one response. `follows`:
    behind the last of them come further steps.
    """

    __slots__ = ("at", "depth", "dims", "feed", "follows", "outputs", "sources", "steps", "waiting", "writers")

    def __init__(self, steps: tuple[Step, ...], outputs: tuple[str, ...], writers: dict[str, tuple[Step, str]]) -> None:
        self.steps = steps
        self.at = {step.index: step for step in steps}
        self.outputs = outputs
        self.writers = writers
        # Outputs that no step writes are inputs of the request, passed on.
        self.sources = tuple(writers[name][0].index for name in outputs if name in writers)
        self.waiting: tuple[int, ...] = ()
        self.feed = Feed(())
        self.dims: tuple[tuple[int, ...], ...] = ()
        self.depth = 0
        self.follows = False


def compile_plan(config: ModelConfig, decoupled: Sequence[bool], wanted: Collection[str]) -> Plan:
    """Return the plan for the outputs `wanted`; `decoupled` tells by step whether its model is.

    The config has passed its checks. Raises ServingError(INVALID_ARG) when tensors of different decoupled origin would
    have to be put together, which depends on the models.
    """
    every = [Step(config.name, index, step, decoupled[index]) for index, step in enumerate(config.ensemble or ())]
    writers = {tensor: (step, name) for step in every for name, tensor in step.outputs.items()}
    outputs = tuple(spec.name for spec in config.outputs if spec.name in wanted)
    steps = _contributing(every, writers, outputs)
    plan = Plan(steps, outputs, writers)
    takers: dict[str, list[Taker]] = {}
    for step in steps:
        for name, tensor in step.inputs.items():
            takers.setdefault(tensor, []).append((step.index, name))
        step.sources = tuple({writers[tensor][0].index: None for tensor in step.inputs.values() if tensor in writers})
    for index, tensor in enumerate(outputs):
        takers.setdefault(tensor, []).append((~index, tensor))
    for step in steps:
        step.feed = Feed([(name, tuple(takers[tensor])) for name, tensor in step.outputs.items() if tensor in takers])
    plan.feed = Feed([(spec.name, tuple(takers[spec.name])) for spec in config.inputs if spec.name in takers])
    active = {step.index: len(step.inputs) for step in steps}
    plan.waiting = tuple(active.get(index, 0) for index in range(len(every)))
    plan.dims = tuple(
        spec.dims if spec.reshape is None else spec.reshape for spec in config.outputs if spec.name in outputs
    )
    plan.depth = _set_depths(config.name, plan)
    plan.follows = any(step.depth == plan.depth for step in steps)
    return plan


def _contributing(
    every: Sequence[Step], writers: dict[str, tuple[Step, str]], outputs: Sequence[str]
) -> tuple[Step, ...]:
    """Return the steps without which one of the outputs could not be made."""
    needed: set[int] = set()
    search = list(outputs)
    while search:
        tensor = search.pop()
        if tensor in writers and writers[tensor][0].index not in needed:
            step = writers[tensor][0]
            needed.add(step.index)
            search.extend(step.inputs.values())
    return tuple(step for step in every if step.index in needed)


def _set_depths(ensemble: str, plan: Plan) -> int:
    """Set how many decoupled steps lie before each step; return how many before the outputs.

    Each tensor descends from at most one decoupled step, and what is put together descends from the same one; so the
    decoupled steps that contribute form one chain, and a depth names one of them. (Reference: ValidateEnsembleConfig.)
    """
    origin: dict[str, int] = {name: -1 for name, _ in plan.feed.routes}
    depth = {-1: 0}

    def common(tensors: Collection[str], model: str) -> int:
        origins = {origin[tensor] for tensor in tensors}
        if len(origins) > 1:
            raise ServingError(
                Code.INVALID_ARG,
                f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled "
                "models",
            )
        return origins.pop() if origins else -1

    readers: dict[str, list[Step]] = {}
    lacks: dict[int, int] = {}
    for step in plan.steps:
        lacking = set(step.inputs.values()) - origin.keys()
        lacks[step.index] = len(lacking)
        for tensor in lacking:
            readers.setdefault(tensor, []).append(step)
    ready = [step for step in plan.steps if not lacks[step.index]]
    for step in ready:  # which grows meanwhile
        source = common(step.inputs.values(), step.model_name)
        step.depth = depth[source]
        if step.spawns:
            source = step.index
            depth[source] = step.depth + 1
        for tensor in step.outputs.values():
            origin[tensor] = source
            for reader in readers.pop(tensor, ()):
                lacks[reader.index] -= 1
                if not lacks[reader.index]:
                    ready.append(reader)
    assert len(ready) == len(plan.steps), f"the steps of ensemble '{ensemble}' wait for each other"
    return depth[common(plan.outputs, ensemble)]


def fit(array: Any, dims: tuple[int, ...], batched: bool, batching: bool) -> Any:
    """Return `array` as its taker wants it, where only one of giver (`batched`) and taker (`batching`) has a batch dimension.

    `dims` are the taker's, without batch dimension. What doesn't fit is passed on as it is, for the taker's own check to
    refuse. (Reference: EnsembleContext::ReshapeTensorDims.)
    """
    shape = array.shape
    if batched is batching or not shape:
        return array
    alike = len(shape) == len(dims) and all(want in (-1, size) for want, size in zip(dims, shape))
    if batching:
        return array.reshape((1, *shape)) if alike else array
    return array.reshape(shape[1:]) if not alike and shape[0] == 1 else array

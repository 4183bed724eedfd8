"""One simulation: from a repository and arrivals to what became of the requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.config import did_you_mean
from kernel.errors import ServingError
from kernel.models import Model
from kernel.server import Kernel
from kernel.simulation.arrivals import Arrivals, Closed
from kernel.simulation.cost import Costs, ModelCall
from kernel.simulation.executors import Worked
from kernel.simulation.forms import Forms, Shapes
from kernel.simulation.loop import SimulationLoop
from kernel.simulation.numbers import wrong
from kernel.simulation.stand_ins import StandIns
from kernel.simulation.traffic import Mix, SimulatedTraffic
from kernel.simulation.workload import Workload

__all__ = ["ModelWork", "Simulated", "simulate"]

@dataclass(frozen=True)
class ModelWork:
    """What one model has executed. `batches`: rows -> executions; `busy`: the share of the time that its instances worked;
    `hits`: requests that the response cache has answered."""

    model: str
    instances: int
    batches: dict[int, int]
    busy: float
    hits: int = 0


@dataclass(frozen=True)
class Simulated:
    """What became of the requests.

    `arrivals`, `latencies`: of those that succeeded, when they came, in seconds from the start, and how many seconds their
    answers took; `priorities`: theirs, None where none was said. `refused`: why the others failed -> how many. `seconds`: from
    the first arrival to the last answer. `works`: of the model and all that it consists of, or calls. `took`: seconds of this
    computer's processor, for what came between the first and the last.
    """

    model: str
    version: int
    requests: int
    arrivals: NDArray[np.float64]
    latencies: NDArray[np.float64]
    refused: dict[str, int]
    seconds: float
    works: tuple[ModelWork, ...]
    took: float = field(compare=False)
    priorities: NDArray[np.int64] | None = None

    def latency(self, percent: float) -> float:
        """Return the latency in seconds that so many percent of those that succeeded do not exceed; NaN where none did."""
        return float(np.percentile(self.latencies, percent)) if self.latencies.size else math.nan


def simulate(
    repository: str, model: str, arrivals: Arrivals | Closed, costs: Costs, *, version: str = "", rows: int = 1, seed: int = 0,
    effort: float = 0.0, wake: float = 0.0, mix: Mix | None = None, **options: Any,
) -> Simulated:  # fmt: skip
    """Have requests come to a model of a repository, on virtual time. Raises ServingError.

    `model`: "" where there is only one besides the steps of an ensemble and what is called; `rows`: of each request, where the
    arrivals do not say; `effort`: seconds that the server's loop is busy with each; `wake`: after which it
    notices what ends its idleness; `mix`: what requests are like besides that; `options`: of class Kernel.
    """
    loop = SimulationLoop()
    mix = mix or Mix(rows=rows)
    stand_ins = StandIns(costs, loop, seed, mix.shapes)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_simulate(repository, model, arrivals, stand_ins, version, mix, (effort, wake), options))


async def _simulate(
    repository: str, name: str, arrivals: Arrivals | Closed, stand_ins: StandIns, version: str, mix: Mix,
    takes: tuple[float, float], options: Mapping[str, Any],
) -> Simulated:  # fmt: skip
    calls = stand_ins.costs.calls
    called = {call.model for call in calls}
    wanted = [name, *sorted(called - {name})] if name else ["*"]
    given = {"control_mode": "explicit", "load_models": wanted, "exit_on_error": False, **options}
    async with Kernel(repository, plugins=stand_ins, **given) as kernel:
        model = _model(kernel, name, version, called)
        _look_at(kernel, calls, mix.shapes)
        _look_for(kernel, stand_ins.costs.models, mix.shapes)
        loaded = [kernel.model(one.name, one.version) for one in kernel.models()]
        for one in loaded:
            one.accept_any_output()
            one.scheduler.statistics.keep = None
        if any(one.config.is_ensemble for one in loaded):
            for answers in stand_ins.answers:
                answers.apart = True
        stream = arrivals if isinstance(arrivals, Arrivals) else None
        traffic = SimulatedTraffic(model, stream, mix, stand_ins.seed, _sequential(kernel, model))
        stand_ins.loop.take_time(*takes)
        workload = Workload(stand_ins.loop, traffic, arrivals, takes[0])
        await workload.all_answered()
        hits = {one.name: one.scheduler.statistics.hits for one in loaded}
        return _simulated(workload, traffic, stand_ins.worked, hits)


def _sequential(kernel: Kernel, model: Model) -> bool:
    """Whether requests for a model have to be of sequences."""
    steps = [kernel.model(step.model_name, step.model_version) for step in model.config.ensemble or ()]
    return model.config.sequence_batching is not None or any(_sequential(kernel, one) for one in steps)


def _model(kernel: Kernel, name: str, version: str, called: set[str]) -> Model:
    """Return the model that is asked for. Raises ServingError with why it is not there, or can't be simulated."""
    if kernel.broken is not None:
        raise kernel.broken
    models = kernel.models()
    names = sorted({one.name for one in models})
    failed = [f"{line.name}: {line.reason.strip()}" for line in kernel.index() if line.reason and line.state != "READY"]
    if not name:
        steps = {step.model_name for one in models for step in one.config.ensemble or ()} | called
        if len(tops := [one for one in names if one not in steps]) != 1:
            words = f"the repository has the models {', '.join(names)}; say which one the requests are for" if names else (
                "the repository has no model that can be served"
            )
            raise wrong("; ".join([words, *failed]))
        name = tops[0]
    model = _found(kernel, name, version)
    for one in models:
        if (batching := one.config.sequence_batching) is not None and batching.iterative:
            words = "has iterative_sequence: how often a request is executed is for its code to say, so it can't be simulated"
            raise wrong(f"model '{one.name}' {words}")
    return model


def _look_at(kernel: Kernel, calls: set[ModelCall], shapes: Shapes) -> None:
    """Raise ServingError if one of the calls can't be made."""
    for call in calls:
        try:
            Forms(_found(kernel, call.model, ""), shapes).of(call.rows or 1)
        except ServingError as error:
            raise wrong(f"--cost says that model '{call.model}' is called: {error.message}") from None


def _look_for(kernel: Kernel, models: set[str], shapes: Shapes) -> None:
    """Raise ServingError for names that nobody has: of models with a cost, of tensors with a shape."""
    there = {line.name for line in kernel.index()}
    for name in sorted(models - there):
        raise wrong(f"--cost is said of model '{name}', which the repository has not{did_you_mean(name, sorted(there))}")
    configs = [one.config for one in kernel.models()]
    tensors = {spec.name for config in configs for spec in (*config.inputs, *config.outputs)}
    for name in sorted(shapes.keys() - tensors):
        raise wrong(f"--shape is said of '{name}', which no model has{did_you_mean(name, sorted(tensors))}")


def _found(kernel: Kernel, name: str, version: str) -> Model:
    """Return a model. Raises ServingError with why it is not there."""
    try:
        return kernel.model(name, version)
    except ServingError as error:
        index = kernel.index()
        reasons = [line.reason.strip() for line in index if line.name == name and line.reason]
        near = "" if reasons else did_you_mean(name, [line.name for line in index])
        raise ServingError(error.code, "; ".join([error.message + near, *reasons])) from None


def _simulated(workload: Workload, traffic: SimulatedTraffic, worked: Mapping[str, Worked], hits: Mapping[str, int]) -> Simulated:
    came, answered = np.frombuffer(workload.came), np.frombuffer(workload.answered)
    well = ~np.isnan(answered)
    seconds = float(max(np.max(answered[well], initial=workload.last), came[-1]) - workload.began)
    works = tuple(
        ModelWork(
            name, work.instances, dict(sorted(work.batches.items())), work.seconds / max(seconds * work.capacity, 1e-9),
            hits.get(name, 0),
        )
        for name, work in sorted(worked.items())
        if work.batches or name == traffic.model.name
    )  # fmt: skip
    levels = None if traffic.levels is None else np.array(traffic.levels, np.int64)[well]
    refused = dict(workload.refused.most_common())
    return Simulated(
        traffic.model.name, traffic.model.version, len(came), came[well] - workload.began, (answered - came)[well], refused,
        seconds, works, workload.took, levels,
    )  # fmt: skip

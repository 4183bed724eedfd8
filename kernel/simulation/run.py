"""One simulation: from a repository and arrivals to what became of the requests."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel.config import did_you_mean
from kernel.errors import ServingError
from kernel.models import Form, Model
from kernel.requests import InferenceRequest, InferenceResponse
from kernel.server import Kernel
from kernel.simulation.arrivals import Arrivals
from kernel.simulation.cost import Costs
from kernel.simulation.loop import SimulationLoop
from kernel.simulation.numbers import wrong
from kernel.simulation.stand_ins import StandIns, Worked, tensor_of
from kernel.tensor import Tensor

__all__ = ["ModelWork", "Simulated", "simulate"]

PATIENCE = 3600.0  # virtual seconds without any answer after which nobody waits any longer
LOOKED = 0.05  # virtual seconds between two looks at whether all have their answers

#: Where the response has no error that says more.
NO_DATA = "a response without data"


@dataclass(frozen=True)
class ModelWork:
    """What one model has executed. `batches`: rows -> executions; `busy`: the share of the time that its instances worked."""

    model: str
    instances: int
    batches: dict[int, int]
    busy: float


@dataclass(frozen=True)
class Simulated:
    """What became of the requests.

    `arrivals`, `latencies`: of those that succeeded, when they came, in seconds from the start, and how many seconds their
    answers took. `refused`: why the others failed -> how many. `seconds`: from the first arrival to the last answer. `works`: of
    the model and all that it consists of. `took`: seconds of this computer, for what came between the first and the last.
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

    def latency(self, percent: float) -> float:
        """Return the latency in seconds that so many percent of those that succeeded do not exceed; NaN where none did."""
        return float(np.percentile(self.latencies, percent)) if self.latencies.size else math.nan


def simulate(
    repository: str, model: str, arrivals: Arrivals, costs: Costs, *, version: str = "", rows: int = 1, seed: int = 0,
    effort: float = 0.0, **options: Any,
) -> Simulated:  # fmt: skip
    """Have requests come to a model of a repository, on virtual time. Raises ServingError.

    `model`: "" where there is only one besides the steps of an ensemble; `rows`: of each request, where the arrivals do not say;
    `effort`: seconds that the server's loop is busy with each; `options`: of class Kernel.
    """
    loop = SimulationLoop()
    stand_ins = StandIns(costs, loop, seed)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_simulate(repository, model, arrivals, stand_ins, version, rows, effort, options))


async def _simulate(
    repository: str, name: str, arrivals: Arrivals, stand_ins: StandIns, version: str, rows: int, effort: float,
    options: dict[str, Any],
) -> Simulated:  # fmt: skip
    given = {"control_mode": "explicit", "load_models": [name or "*"], "exit_on_error": False, **options}
    async with Kernel(repository, plugins=stand_ins, **given) as kernel:
        model = _model(kernel, name, version)
        for one in kernel.models():
            found = kernel.model(one.name, one.version)
            found.accept_any_output()
            found.scheduler.statistics.keep = None
        stand_ins.nested = model.config.is_ensemble
        tally = _Tally(stand_ins.loop, model, arrivals, rows)
        took = await tally.all_answered(effort)
        return tally.simulated(stand_ins.worked, took)


def _model(kernel: Kernel, name: str, version: str) -> Model:
    """Return the model that is asked for. Raises ServingError with why it is not there, or can't be simulated."""
    if kernel.broken is not None:
        raise kernel.broken
    models = kernel.models()
    names = sorted({one.name for one in models})
    failed = [f"{line.name}: {line.reason.strip()}" for line in kernel.index() if line.reason and line.state != "READY"]
    if not name:
        steps = {step.model_name for one in models for step in one.config.ensemble or ()}
        if len(tops := [one for one in names if one not in steps]) != 1:
            words = f"the repository has the models {', '.join(names)}; say which one the requests are for" if names else (
                "the repository has no model that can be served"
            )
            raise wrong("; ".join([words, *failed]))
        name = tops[0]
    try:
        model = kernel.model(name, version)
    except ServingError as error:
        index = kernel.index()
        reasons = [line.reason.strip() for line in index if line.name == name and line.reason]
        near = "" if reasons else did_you_mean(name, [line.name for line in index])
        raise ServingError(error.code, "; ".join([error.message + near, *reasons])) from None
    if model.config.sequence_batching is not None:
        raise wrong(f"model '{name}' is one for sequences; requests that stand alone are all that is simulated")
    return model


class _Tally:
    """Sends the requests, and keeps what became of them. `answered`: when, NaN for those that failed or wait."""

    def __init__(self, loop: SimulationLoop, model: Model, arrivals: Arrivals, rows: int) -> None:
        self.loop = loop
        self.model = model
        self.began = loop.now
        self.moments = arrivals.offsets - arrivals.offsets[0] + self.began
        self.answered = [math.nan] * len(self.moments)
        self.refused: Counter[str] = Counter()
        self.last = loop.now  # when the last one has failed
        self._rows: Sequence[int] = [] if arrivals.rows is None else arrivals.rows.tolist()
        self._forms = {count: _form(model, count) for count in set(self._rows) or {rows}}
        self._one = _form(model, rows) if not self._rows else None

    def failed(self, error: ServingError) -> None:
        """Count a request that has failed, by its reason."""
        words = error.message
        if words.startswith("[request id"):
            words = words.partition("] ")[2]
        self.refused[words] += 1
        self.last = self.loop.now

    async def all_answered(self, effort: float) -> float:
        """Have the requests come, and wait for their answers; return how many real seconds that took.

        Raises ServingError for such as never have one.
        """
        loop = self.loop
        loop.come(self.moments.tolist(), self._arrival(), effort)
        gc.collect()
        gc.freeze()
        gc.disable()
        began = time.perf_counter()
        try:
            await asyncio.sleep(self.moments[-1] - self.began)
            left, since = 0, loop.now
            while missing := sum(map(math.isnan, self.answered)) - self.refused.total():
                if missing != left:
                    left, since = missing, loop.now
                elif loop.now - since > PATIENCE:
                    raise wrong(f"{missing} requests had no answer {PATIENCE:.0f} s after all others")
                await asyncio.sleep(max(LOOKED, 0.1 * (loop.now - since)))
            return time.perf_counter() - began
        finally:
            gc.enable()
            gc.unfreeze()

    def _arrival(self) -> Any:
        """Return what makes the request with this index, and hands it to the model."""
        name, enqueue, rows, forms, one = self.model.name, self.model.enqueue, self._rows, self._forms, self._one
        nested, answered, loop = self.model.config.is_ensemble, self.answered, self.loop

        def respond(index: int, response: InferenceResponse | None, final: bool) -> None:
            if response is not None and response.error is not None:
                self.failed(response.error)
            elif final:
                answered[index] = loop.now

        def arrive(index: int) -> None:
            inputs, form = one or forms[rows[index]]
            if nested:  # it takes them over
                inputs = {key: Tensor(key, each.datatype, each.array) for key, each in inputs.items()}
            answer = partial(respond, index)
            enqueue(InferenceRequest(name, inputs, answer, "", "", None, None, 0, 0, None, 0, 0, None, None, form))

        return arrive

    def simulated(self, worked: dict[str, Worked], took: float) -> Simulated:
        answered = np.array(self.answered)
        well = ~np.isnan(answered)
        seconds = float(max(np.max(answered[well], initial=self.last), self.moments[-1]) - self.began)
        works = tuple(
            ModelWork(name, work.instances, dict(sorted(work.batches.items())), work.seconds / max(seconds * work.capacity, 1e-9))
            for name, work in sorted(worked.items())
            if work.batches or name == self.model.name
        )
        model, came = self.model, self.moments[well]
        refused = dict(self.refused.most_common())
        return Simulated(
            model.name, model.version, len(answered), came - self.began, answered[well] - came, refused, seconds, works, took
        )


def _form(model: Model, rows: int) -> tuple[dict[str, Any], Form]:
    """Return the inputs of a request of so many rows, and what the model's check says of it. Raises ServingError."""
    config = model.config
    if rows > 1 and not config.max_batch_size:
        raise wrong(f"model '{model.name}' does not batch, so its requests have no {rows} rows")
    inputs = {
        spec.name: tensor_of(spec.name, spec.datatype, spec.dims, rows if config.max_batch_size else 0) for spec in config.inputs
    }
    request = InferenceRequest(model.name, inputs, lambda response, final: None)
    model.check(request)
    return inputs, Form(request)

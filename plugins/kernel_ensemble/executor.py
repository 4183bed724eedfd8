"""An ensemble as a model: its plans, which models its steps mean right now, and the backend that makes it.

An ensemble has no computation and no queue of its own: its capacity is unlimited, and each request becomes a Run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from kernel import (
    Batch,
    InferenceRequest,
    InferenceResponse,
    InstanceContext,
    Kernel,
    Model,
    ModelConfig,
    Placement,
    ServingError,
)
from kernel_ensemble.bound import Bound
from kernel_ensemble.graph import Plan, compile_plan
from kernel_ensemble.run import Run
from kernel_ensemble.words import step_error

__all__ = ["Ensemble", "EnsembleBackend"]

log = logging.getLogger("kernel")

PLANS = 64  # sets of wanted outputs whose plans are kept


class Ensemble:
    """The executor of one ensemble."""

    placement = Placement.CALLBACK
    capacity = 1 << 30
    may_wait = False

    def __init__(self, kernel: Kernel, config: ModelConfig) -> None:
        self.name = config.name
        self.batches = config.max_batch_size > 0
        self.soon = kernel.call_soon
        self._kernel = kernel
        self._config = config
        self._outputs = frozenset(spec.name for spec in config.outputs)
        self._plans: dict[frozenset[str], Plan] = {}
        #: What runs the steps of the plans used since `_generation` of the kernel; stale once another model serves some name.
        self._bound: dict[Plan, dict[int, Bound]] = {}
        self._generation = -1
        self._told: set[str] = set()
        self._plan(self._outputs)

    def execute(self, batch: Batch) -> None:
        """Begin the walk of the batch's one request; the run reports its end itself.

        All models are looked up now: a request meets one version of each, and fails at once where one is missing.
        """
        (request,) = batch.requests
        plan = self._plans.get(request.wanted) or self._plan(request.wanted)
        if self._generation != self._kernel.generation:
            self._generation = self._kernel.generation
            self._bound.clear()
        bound = self._bound.get(plan)
        if bound is None:
            bound = self._bind(plan)
            if bound is None:  # a step's model was replaced by one that is decoupled where the old one was not, or the reverse
                self._plans.clear()
                plan = self._plan(request.wanted)
                bound = self._bind(plan)
                assert bound is not None
            self._bound[plan] = bound
        Run(self, batch, plan, bound).begin()

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """Answer a request whose execution has not ended, or is about to.

        At once: what a step has answered had its turn on the loop, and what others have told the loop since, the step's end say,
        is not to come before what follows from it, as it would by `Kernel.send`.
        """
        request.model.scheduler.send(request, response, final)

    def submit(self, model: Model, request: InferenceRequest) -> None:
        """Give a step its request: to the copy of the model that was bound, or, once that is gone, to who has its name now."""
        if model.closed:
            self._kernel.submit(request)
        else:
            self._kernel.submit_to(model, request)

    def finalize(self) -> None:
        self._plans.clear()
        self._bound.clear()

    def tell_once(self, output: str, message: str) -> None:
        """Log that an output is missing, the first time that this one is."""
        if output not in self._told:
            self._told.add(output)
            log.warning("ensemble '%s' answered without an output; further ones are not logged: %s", self.name, message)

    def _plan(self, wanted: frozenset[str]) -> Plan:
        decoupled = [
            self._kernel.model(step.model_name, step.model_version).decoupled for step in self._config.ensemble or ()
        ]
        plan = compile_plan(self._config, decoupled, wanted)
        if len(self._plans) >= PLANS:
            self._plans.clear()
        self._plans[wanted] = plan
        return plan

    def _bind(self, plan: Plan) -> dict[int, Bound] | None:
        """Return what runs each step, by step index; None where the plan was made for other kinds of models."""
        bound: dict[int, Bound] = {}
        find = self._kernel.model
        for step in plan.steps:
            try:
                model = find(step.model_name, step.version)
            except ServingError as error:
                raise step_error(self.name, plan, step, error, None) from error
            if model.decoupled is not step.spawns:
                return None
            one = model.attachments.get(step.key)
            if type(one) is not Bound or one.step is not step:
                one = model.attachments[step.key] = Bound(step, model)
            bound[step.index] = one
        return bound


class EnsembleBackend:
    """Serves the models whose config has `ensemble_scheduling`. All checks of such configs are the core's."""

    name = "ensemble"
    creates_on_loop = True

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        return None

    def create(self, context: InstanceContext) -> Ensemble:
        """Compile the graph. Raises ServingError when a step's model is not there, or joins what can't be joined."""
        return Ensemble(self._kernel, context.config)

"""What an ensemble says when something is missing or fails: which step, which tensor, whose fault. Pure.

Every sentence begins with the reference's prefix `in ensemble '<e>', `; the step and its own message follow.
"""

from __future__ import annotations

from collections.abc import Collection

from kernel import Code, InferenceRequest, ServingError
from kernel_ensemble.graph import Plan, Step

__all__ = ["absent_output", "deadlock", "step_error"]


def step_error(
    ensemble: str, plan: Plan, step: Step, error: ServingError, request: InferenceRequest | None
) -> ServingError:
    """Return the ensemble's error for a step's `error`; `request`: what the step was asked, None where it wasn't.

    The code is kept. A step that refused its request for inputs that earlier steps did not produce gets them told.
    """
    message = f"in ensemble '{ensemble}', {step}: {error.message}"
    if request is not None and request.model is None and error.code is Code.INVALID_ARG:
        for name, tensor in step.inputs.items():
            if name not in request.inputs:
                message += f" Ensemble tensor '{tensor}' for input '{name}' is missing: {_why_absent(plan, tensor)}."
    return ServingError(error.code, message)


def absent_output(plan: Plan, names: Collection[str]) -> str:
    """Return why these outputs of the ensemble are not in its answer."""
    return "; ".join(f"output '{name}' was not produced: {_why_absent(plan, name)}" for name in names)


def deadlock(ensemble: str, request: InferenceRequest, names: Collection[str]) -> ServingError:
    """Return the error for outputs that nothing can produce any more. (Reference: FinishEnsemble.)"""
    listed = ", ".join(f"'{name}'" for name in names)
    return ServingError(
        Code.INVALID_ARG,
        f"in ensemble '{ensemble}', {request.log_id}unexpected deadlock, at least one output is not set while no more "
        f"ensemble steps can be made: {listed}",
    )


def _why_absent(plan: Plan, tensor: str) -> str:
    if tensor not in plan.writers:
        return "the request has no such input"
    step, name = plan.writers[tensor]
    return f"{step} succeeded without its output '{name}'"

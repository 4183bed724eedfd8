"""What a request wants done to its model's outputs before they are sent, and what its client is told where that fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kernel import Code, InferenceResponse, ServingError, classify
from kernel_grpc.encode import data_of

if TYPE_CHECKING:
    from kernel import Model
    from kernel_grpc.plan import Plan

__all__ = ["failed", "finished_response", "no_response"]

log = logging.getLogger(__name__)


def finished_response(response: InferenceResponse, plan: Plan) -> frozenset[str]:
    """Do to a response's outputs what its request wants. Return those whose data is in shared memory now. Raises ServingError."""
    if plan.classes:
        classify(response, plan.classes, plan.model)
    sinks = plan.sinks
    if not sinks:
        return frozenset()
    written = []
    for tensor in response.outputs:
        region = sinks.get(tensor.name)
        if region is None:
            continue
        plan.model.kernel.shared_memory.span(*region).write_output(tensor.name, data_of(tensor))
        written.append(tensor.name)
    return frozenset(written)


def no_response(model: Model) -> ServingError:
    return ServingError(Code.INTERNAL, f"model '{model.name}' ended the request without a response")


def failed(error: Exception, model: Model) -> ServingError:
    """Return what a client is told of a response that can't be sent."""
    if isinstance(error, ServingError):
        return error
    log.error("a response of model '%s' can't be encoded", model.name, exc_info=error)
    return ServingError(Code.INTERNAL, f"the response can't be encoded: {type(error).__name__}: {error}")

"""What a request wants done to its model's outputs before they are sent, and what its client is told where that fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kernel import Code, InferenceResponse, ServingError, Span, classify, is_much_text
from kernel_grpc.inference.encode import data_of
from kernel_grpc.inference.large import COPIED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernel import Kernel, Model
    from kernel_grpc.inference.recipe import Recipe

__all__ = ["failed", "finished_response", "is_large", "no_response", "opened"]

log = logging.getLogger(__name__)

#: The largest output, in elements, of which classes are found on the loop.
CLASSED_ON_LOOP = 64 * 1024


def opened(recipe: Recipe, kernel: Kernel) -> dict[str, Span]:
    """Return where in shared memory the outputs of one request go, whatever becomes of the regions meanwhile.

    To be called before its model runs. Raises ServingError.
    """
    span_of = kernel.shared_memory.span
    return {name: span_of(*region) for name, region in recipe.sinks.items()}


def finished_response(response: InferenceResponse, recipe: Recipe, sinks: Mapping[str, Span]) -> frozenset[str]:
    """Do to a response's outputs what its request wants. Return those whose data is in shared memory now. Raises ServingError.

    `sinks`: as `opened` for the request.
    """
    if recipe.classes:
        classify(response, recipe.classes, recipe.model, recipe.values)
    if not sinks:
        return frozenset()
    written = []
    for tensor in response.outputs:
        span = sinks.get(tensor.name)
        if span is None:
            continue
        span.write_output(tensor.name, data_of(tensor))
        written.append(tensor.name)
    return frozenset(written)


def is_large(response: InferenceResponse, recipe: Recipe) -> bool:
    """Whether what is to be done to a response's outputs is more work than is done on the loop."""
    return any(
        is_much_text(tensor.array) if tensor.datatype == "BYTES" else tensor.array.size > CLASSED_ON_LOOP
        for tensor in response.outputs
        if tensor.datatype == "BYTES" or tensor.name in recipe.classes
    ) or any(tensor.array.nbytes > COPIED for tensor in response.outputs if tensor.name in recipe.sinks)


def no_response(model: Model) -> ServingError:
    return ServingError(Code.INTERNAL, f"model '{model.name}' ended the request without a response")


def failed(error: Exception, model: Model) -> ServingError:
    """Return what a client is told of a response that can't be sent."""
    if isinstance(error, ServingError):
        return error
    log.error("a response of model '%s' can't be encoded", model.name, exc_info=error)
    return ServingError(Code.INTERNAL, f"the response can't be encoded: {type(error).__name__}: {error}")

"""Batches of requests whose inputs differ in shape: `allow_ragged_batch`, `batch_input` and `batch_output` of a config.

Ragged inputs are laid end to end as one vector; batch inputs tell the model where each request's part lies; batch outputs are
cut by the shape of an input instead of by rows. (Contract: model_config, section 8.) Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from kernel import DATATYPES, Code, InferenceRequest, ModelConfig, ServingError

__all__ = ["BatchInputs", "Cut", "cuts", "laid_out"]

Array = np.ndarray[Any, Any]
Requests = Sequence[InferenceRequest]


def laid_out(requests: Requests, name: str) -> Array:
    """Return the elements of the input `name` of all requests as one vector."""
    parts = [request.inputs[name].array.ravel() for request in requests]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class BatchInputs:
    """The inputs that are made of a batch instead of brought by its requests."""

    def __init__(self, config: ModelConfig) -> None:
        self._made = [
            (
                type(made).Kind.Name(made.kind),
                tuple(made.target_name),
                made.source_input[0],
                DATATYPES["FP32" if made.data_type == _FP32 else "INT32"],
            )
            for made in config.message.batch_input
        ]

    def add(self, requests: Requests, feeds: dict[str, Any]) -> None:
        """Put the made inputs of a batch into `feeds`."""
        for kind, names, source, dtype in self._made:
            array = _made(kind, [request.inputs[source].array.shape for request in requests], dtype)
            for name in names:
                feeds[name] = array


_FP32 = 11  # of DataType


def _made(kind: str, shapes: list[tuple[int, ...]], dtype: np.dtype[Any]) -> Array:
    counts = [prod(shape) for shape in shapes]
    if kind == "BATCH_ELEMENT_COUNT":
        return np.array(counts, dtype)
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT":
        return np.cumsum(counts).astype(dtype)
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
        return np.cumsum([0, *counts]).astype(dtype)
    if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        return np.zeros(max(counts), dtype)
    # One row for each item of each request, without the batch dimension.
    rows = [shape[1:] for shape in shapes for _ in range(shape[0])]
    items = np.array(rows, dtype).reshape(len(rows), -1)
    return items.ravel() if kind == "BATCH_ITEM_SHAPE_FLATTEN" else items


class Cut:
    """How one output is cut for the requests of a batch: by the shape of `source`, one of their inputs."""

    __slots__ = ("dims", "name", "source")

    def __init__(self, name: str, source: str, dims: tuple[int, ...]) -> None:
        self.name = name
        self.source = source
        self.dims = dims

    def split(self, requests: Requests, array: Array, model: str) -> list[Array]:
        """Return each request's part, as a view. Raises ServingError(INTERNAL) where the parts don't add up."""
        flat = array.reshape(-1)
        parts: list[Array] = []
        at = 0
        for request in requests:
            shape = request.inputs[self.source].array.shape
            # What varies in the output is taken to be as in the input, dimension by dimension (reference behaviour).
            own = tuple(
                shape[axis] if size == -1 and axis < len(shape) else size for axis, size in enumerate(self.dims)
            )
            size = prod(own)
            parts.append(flat[at : at + size].reshape(own) if at + size <= flat.size else flat[:0])
            at += size
        if at != flat.size:
            raise ServingError(
                Code.INTERNAL,
                f"output '{self.name}' of model '{model}' has {flat.size} elements for a batch whose '{self.source}' "
                f"inputs ask for {at}",
            )
        return parts


def cuts(config: ModelConfig) -> dict[str, Cut]:
    """Return the outputs that are cut by an input's shape, by name."""
    specs = {spec.name: spec for spec in config.outputs}
    found: dict[str, Cut] = {}
    for split in config.message.batch_output:
        for name in split.target_name:
            dims = specs[name].dims
            found[name] = Cut(name, split.source_input[0], (-1, *dims) if config.max_batch_size else dims)
    return found

"""What requests carry in a simulation: zeros of the form that a model's config says, and what its check has said of them once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernel.config import TensorSpec
from kernel.errors import ServingError
from kernel.models import Form, Model
from kernel.requests import InferenceRequest, RequestState, Respond, nobody
from kernel.simulation.numbers import wrong
from kernel.tensor import DATATYPES, Tensor

__all__ = ["Forms", "Shapes", "same_requests", "tensor_of"]

#: Sizes of a tensor's dimensions, without that of the batch, by its name.
Shapes = Mapping[str, Sequence[int]]

INITIALIZED = RequestState.INITIALIZED

#: What nobody changes of a request that is executed as it is: it may be its class's.
SAME = (
    "batch_size", "correlation_id", "deadline", "flags", "id", "model", "model_name", "model_version", "parameters", "parent",
    "priority", "requested_outputs", "responded", "timeout_us", "trace", "wanted",
)  # fmt: skip

ELEMENTS = 100_000_000  # of a tensor, at most
MOST = 4096  # contents that are kept; others are made again


def tensor_of(spec: TensorSpec, rows: int, shapes: Shapes, *, inside: bool = False) -> Tensor:
    """Return zeros of a form; -1 becomes 1, where `shapes` says nothing else. `rows`: 0 where there is no batch dimension.

    `inside`: as the model has it, not the client.
    """
    dims = spec.reshape if inside and spec.reshape is not None else shapes.get(spec.name, spec.dims)
    shape = [max(1, size) for size in dims]
    if rows:
        shape.insert(0, rows)
    if (count := math.prod(shape)) > ELEMENTS:
        raise wrong(f"tensor '{spec.name}' of a request would have {count} elements, {ELEMENTS} at most are simulated")
    array = np.zeros(shape, DATATYPES[spec.datatype])
    if array.dtype == object:
        array[...] = b""
    return Tensor(spec.name, spec.datatype, array)


def same_requests(model: Model, inputs: Mapping[str, Tensor], form: Form) -> Callable[[Respond], InferenceRequest]:
    """Return what makes requests that are all alike: only what the core changes of one is made anew for each."""

    def made(self: InferenceRequest, respond: Respond) -> None:
        self.respond = respond
        self.inputs = inputs  # type: ignore[assignment]
        self.state = INITIALIZED
        self.batch = self.expires = self.error = None
        self.enqueued = 0.0
        self.order = 0
        self.counted = False

    same = InferenceRequest(model.name, {}, nobody, form=form)
    alike = {name: getattr(same, name) for name in SAME}
    kind: Any = type("Same", (InferenceRequest,), {"__slots__": (), "__init__": made, **alike})
    return kind  # type: ignore[no-any-return]


class Forms:
    """The requests of one model. `batches`: they have rows.

    `of(rows, content)`: the inputs of one, and what the model's check says of it. Raises ServingError.
    """

    def __init__(self, model: Model, shapes: Shapes) -> None:
        config = model.config
        self.model = model
        self._shapes = shapes
        self.batches = config.max_batch_size > 0
        self._known: dict[tuple[int, int], tuple[dict[str, Tensor], Form]] = {}
        changed = config.is_ensemble or config.sequence_batching is not None
        #: Whether a request's inputs are changed on its way, so that each needs its own.
        self.owned = changed or any(spec.reshape is not None for spec in config.inputs)

    def of(self, rows: int, content: int = 0) -> tuple[dict[str, Tensor], Form]:
        key = rows, content
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST:
                self._known.clear()
            found = self._known[key] = self._made(rows, content)
        if self.owned:
            return {name: Tensor(name, each.datatype, each.array) for name, each in found[0].items()}, found[1]
        return found

    def _made(self, rows: int, content: int) -> tuple[dict[str, Tensor], Form]:
        most = self.model.config.max_batch_size
        if rows > 1 and not self.batches:
            raise wrong(f"model '{self.model.name}' does not batch, so its requests have no {rows} rows")
        if rows > 1 and rows > most:
            raise wrong(f"a request has {rows} rows, model '{self.model.name}' takes {most} at most (max_batch_size)")
        inputs = {
            spec.name: tensor_of(spec, rows if self.batches else 0, self._shapes) for spec in self.model.config.inputs
        }
        if content:
            self._stamp(inputs, content)
        request = InferenceRequest(self.model.name, inputs, lambda response, final: None)
        try:
            self.model.check(request)
        except ServingError as error:
            raise wrong(error.message.removeprefix(request.log_id)) from None
        return inputs, Form(request)

    def _stamp(self, inputs: Mapping[str, Tensor], content: int) -> None:
        """Have the inputs differ from those of other contents."""
        told = content.to_bytes(8, "little").rstrip(b"\0")
        for tensor in inputs.values():
            array: Any = tensor.array
            if array.dtype == object:
                array.flat[0] = told
            elif array.dtype != bool and array.nbytes >= len(told):
                array.reshape(-1).view(np.uint8)[: len(told)] = np.frombuffer(told, np.uint8)
            else:
                continue
            return
        raise wrong(f"the inputs of model '{self.model.name}' are too small for {content} different contents")

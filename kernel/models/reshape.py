"""`reshape`: the client sees `dims`, the model sees `reshape`. Gives arrays the one shape or the other, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel.config import ModelConfig
from kernel.requests import InferenceRequest, InferenceResponse, Respond

__all__ = ["Reshape"]


class Reshape:
    """The reshaping of one model version. False where its config asks for none."""

    def __init__(self, config: ModelConfig) -> None:
        self._batches = config.max_batch_size > 0
        self._inputs = [spec for spec in config.inputs if spec.reshape is not None]
        self._outputs = {spec.name: spec for spec in config.outputs if spec.reshape is not None}

    def __bool__(self) -> bool:
        return bool(self._inputs or self._outputs)

    def before(self, enqueue: Callable[[InferenceRequest], None]) -> Callable[[InferenceRequest], None]:
        """Return an `enqueue` that has requests reshaped, and their answers shaped back."""

        def enqueue_reshaped(request: InferenceRequest) -> None:
            self.inputs(request)
            if self._outputs:
                request.respond = _Reshaping(self, request.respond)
            enqueue(request)

        return enqueue_reshaped

    def inputs(self, request: InferenceRequest) -> None:
        """Give the inputs the shapes that the model is to see."""
        for spec in self._inputs:
            tensor = request.inputs.get(spec.name)
            if tensor is not None:
                tensor.array = self._reshaped(tensor.array, spec.dims, spec.reshape or ())

    def outputs(self, response: InferenceResponse) -> None:
        """Give the outputs the shapes that the client is promised."""
        for tensor in response.outputs:
            spec = self._outputs.get(tensor.name)
            if spec is not None:
                tensor.array = self._reshaped(tensor.array, spec.reshape or (), spec.dims)

    def _reshaped(self, array: Any, before: tuple[int, ...], after: tuple[int, ...]) -> Any:
        """Return `array` with its dims as in `after`; the variable ones keep their sizes, in order."""
        rows = array.shape[:1] if self._batches else ()
        own = array.shape[len(rows) :]
        if len(own) != len(before):
            return array  # not what the config promises: passed on as it is, like everything the reference doesn't check
        variable = iter(size for want, size in zip(before, own) if want == -1)
        shape = tuple(next(variable) if size == -1 else size for size in after)
        try:
            return array.reshape(rows + shape)
        except ValueError:
            return array


class _Reshaping:
    """The continuation of a request whose outputs are to be reshaped."""

    __slots__ = ("_reshape", "_respond")

    def __init__(self, reshape: Reshape, respond: Respond) -> None:
        self._reshape = reshape
        self._respond = respond

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        if response is not None and response.error is None:
            self._reshape.outputs(response)
        self._respond(response, final)

"""What a model is warmed up with: from the samples of its config to requests.

The law: `batch_size` requests of one row each make one execution, repeated `count` times, on every instance, past the queue; what
can't be made into a request is refused in the reference's words before any instance is made. Reads files; which instance executes
what, and what comes of it, is the model's business. (Contract: model_config, section 9.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernel.config import ModelConfig, WarmupInput, WarmupSample
from kernel.errors import Code, ServingError
from kernel.requests import InferenceRequest, InferenceResponse, Respond
from kernel.tensor import DATATYPES, Array, Tensor, unpack_bytes

__all__ = ["Outcome", "Sample", "failure", "read_samples"]

_WHO = "[request id: <id_unknown>] "


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample with its data. `surplus`: inputs that the config does not know; the model gets them unchecked, such as the
    controls of a sequence.
    """

    name: str
    batch_size: int
    count: int
    tensors: tuple[Tensor, ...]
    surplus: tuple[Tensor, ...]

    def request(self, model: str, respond: Respond) -> InferenceRequest:
        """Make one request of it, with data of its own; the surplus is still to be added."""
        return InferenceRequest(model, {tensor.name: _copy(tensor) for tensor in self.tensors}, respond)

    def add_surplus(self, request: InferenceRequest) -> None:
        """Add what the model's check would have refused."""
        request.inputs.update((tensor.name, _copy(tensor)) for tensor in self.surplus)


class Outcome:
    """What came of one execution: `errors`, one for each request that failed; `done` is called once all have their answers."""

    def __init__(self, requests: int, done: Callable[[], None]) -> None:
        self.errors: list[ServingError] = []
        self._left = requests
        self._done = done

    @property
    def complete(self) -> bool:
        return not self._left

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        if response is not None and response.error is not None:
            self.errors.append(response.error)
        if final:
            self._left -= 1
            if not self._left:
                self._done()


def failure(sample: Sample, errors: Sequence[str]) -> ServingError:
    """Return why a load fails whose sample did: in the reference's words, its punctuation included."""
    told = "".join(f"{error}; " for error in errors)
    return ServingError(Code.INVALID_ARG, f"failed to run warmup sample '{sample.name}': {told}")


def read_samples(config: ModelConfig, model_folder: Path) -> list[Sample]:
    """Return the samples of a config with their data. Raises ServingError."""
    return [_read(sample, config, model_folder / "warmup") for sample in config.warmup]


def _read(sample: WarmupSample, config: ModelConfig, folder: Path) -> Sample:
    known = {spec.name for spec in config.inputs}
    rows = (1,) if config.max_batch_size > 0 else ()
    tensors: list[Tensor] = []
    surplus: list[Tensor] = []
    for one in sample.inputs:
        if -1 in one.dims:
            words = f"warmup setting expects all variable-size dimensions are specified for input '{one.name}'"
            raise ServingError(Code.INVALID_ARG, words)
        if one.datatype not in DATATYPES:
            words = f"{_WHO}warmup setting of input '{one.name}' for model '{config.name}' has no data_type"
            raise ServingError(Code.INVALID_ARG, words)
        tensor = Tensor(one.name, one.datatype, _data(one, config, folder).reshape((*rows, *one.dims)))
        (tensors if one.name in known else surplus).append(tensor)
    return Sample(sample.name, sample.batch_size, sample.count, tuple(tensors), tuple(surplus))


def _data(one: WarmupInput, config: ModelConfig, folder: Path) -> Array:
    """Return the elements of an input in one row."""
    count = 1
    for size in one.dims:
        count *= size
    dtype = DATATYPES[one.datatype]
    if one.file:
        return _from_file(one, count, config, folder)
    if one.datatype == "BYTES":
        return np.full(count, b"", dtype)
    if not one.random:
        return np.zeros(count, dtype)
    if one.datatype == "BOOL":
        return np.frombuffer(os.urandom(count), np.uint8) > 127
    return np.frombuffer(os.urandom(count * dtype.itemsize), dtype)  # any bits at all, as the reference gives them


def _from_file(one: WarmupInput, count: int, config: ModelConfig, folder: Path) -> Array:
    """Return the first `count` elements of a file. More than that may be there."""
    path = folder / one.file
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ServingError(Code.INTERNAL, f"failed to open text file for read {path}: {reason}") from error
    dtype = DATATYPES[one.datatype]
    if one.datatype == "BYTES":
        return _strings(one, content, count, config)
    wanted = count * dtype.itemsize
    if len(content) < wanted:
        words = f"{_WHO}warmup setting expects {wanted} bytes, but the data provided from {one.file}only has {len(content)} bytes"
        raise ServingError(Code.INVALID_ARG, words)
    return np.frombuffer(content[:wanted], dtype)


def _strings(one: WarmupInput, content: bytes, count: int, config: ModelConfig) -> Array:
    try:
        items = unpack_bytes(content)
    except ValueError as error:
        words = f"incomplete string {error.args[0]} for inference input '{one.name}' for model '{config.name}'"
        raise ServingError(Code.INVALID_ARG, f"{_WHO}{words}, got {error.args[-1]} bytes of it in {one.file}") from error
    if len(items) < count:
        words = f"expected {count} string elements for inference input '{one.name}' for model '{config.name}', got {len(items)}"
        raise ServingError(Code.INVALID_ARG, f"{_WHO}{words}")
    if len(items) > count:
        what = f"inference input '{one.name}' for model '{config.name}'"
        words = f"unexpected number of string elements {len(items)} for {what}, expecting {count}"
        raise ServingError(Code.INVALID_ARG, f"{_WHO}{words}")
    array = np.empty(count, np.object_)
    array[:] = items
    return array


def _copy(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tensor.array.copy())

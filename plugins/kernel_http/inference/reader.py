"""Reads one inference request: JSON part and tail to tensors and parameters, in the reference's order.

The model's check comes after it. What the reference finds only then (sizes and counts) is kept in `deferred` until the
model has checked the rest. Nothing is allocated on the strength of a shape alone.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernel import (
    DATATYPES,
    Code,
    InferenceRequest,
    MemoryBudget,
    ServingError,
    Span,
    Tensor,
    check_strings,
    clipped,
    size_mismatch,
    stand_in,
    strings_of,
    unpacked,
)
from kernel_http.connection.bodies import BodyMemory
from kernel_http.connection.heads import Head
from kernel_http.inference.body import Parameters, custom_of, decode, read_parameters, read_shape, source_of
from kernel_http.inference.outputs import read_outputs, read_region
from kernel_http.inference.raw import raw_inputs
from kernel_http.json.arrays import array_of
from kernel_http.json.errors import ABSENT, NON_ARRAY, malformed
from kernel_http.json.large import LARGE, LongArray
from kernel_http.json.members import text_of, unsigned_of

if TYPE_CHECKING:
    from kernel import Kernel, Model, Respond

__all__ = ["Reader", "Step", "TooLarge"]

#: The most bytes, of a shared memory region or of a body, that are copied on the loop.
COPIED = MemoryBudget.COPIED


class Step(NamedTuple):
    """How to make one input of the tail. `dtype`: None for strings. `offset`, `size`: where in the tail it lies, in bytes."""

    name: str
    datatype: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    offset: int
    size: int


class TooLarge(Exception):
    """There are too many strings to be read on the loop."""


class Reader:
    """Reads one request. `steps`: of the inputs that another tail would give in the same way.

    `classes`, `spans`: the outputs that are wanted as classes, and those that go to shared memory. `deferred`: a mistake that the
    reference only finds after the model's check. `repeatable`: a Recipe can be made of it. `on_loop`: what would take long raises
    TooLarge; False where `read` is called on another thread.
    """

    def __init__(self, kernel: Kernel, model: Model, head: Head, max_input_size: int) -> None:
        self.kernel = kernel
        self.model = model
        self.head = head
        self.max_input_size = max_input_size
        self.id = ""
        self.inputs: dict[str, Tensor] = {}
        self.steps: list[Step] = []
        self.requested: list[str] | None = None
        self.binary: bool | frozenset[str] = True
        self.classes: dict[str, int] = {}
        self.spans: dict[str, Span] = {}
        self.deferred: ServingError | None = None
        self.repeatable = False
        self.parameters = Parameters()
        self.on_loop = True
        self.begun = False  # to read: what is wrong from then on is told as application/json

    def read(self, json: Any, tail: Any) -> None:
        """Read the members in the reference's order: id, parameters, inputs, outputs; the first fault wins."""
        self.begun = True
        record: dict[str, Any] = decode(json, self.kernel.memory.values) if len(json) else {}
        if "id" in record:
            self.id = text_of(record, "id")
        self.parameters = read_parameters(record)
        if self.head.forward_error:
            raise ServingError(Code.INVALID_ARG, self.head.forward_error)
        if not len(json):
            if len(tail) > COPIED and self.on_loop and any(spec.datatype == "BYTES" for spec in self.model.config.inputs):
                raise TooLarge
            self.inputs = raw_inputs(self.model, tail, self.max_input_size, announced=self.head.json_length is not None)
            return
        self._read_inputs(record, tail)
        outputs = read_outputs(record)
        if outputs is None:
            self.binary = self.parameters.binary_output or frozenset()
        else:
            self.requested = list(outputs)
            self.binary = frozenset(name for name, output in outputs.items() if output.binary)
            self.classes = {name: output.classes for name, output in outputs.items() if output.classes}
            span_of = self.kernel.shared_memory.span
            self.spans = {name: span_of(*output.region) for name, output in outputs.items() if output.region is not None}
        self.repeatable = (
            not (self.id or self.classes or self.spans) and len(self.steps) == len(self.inputs) and self.deferred is None
        )

    def _read_inputs(self, record: dict[str, Any], tail: Any) -> None:
        inputs = record.get("inputs")
        if type(inputs) is not list:
            raise malformed("inputs", NON_ARRAY if "inputs" in record else ABSENT.format("inputs"))
        offset = 0
        for index, item in enumerate(inputs):
            kind, value = source_of(item, index)
            name = text_of(item, "name", f"inputs[{index}]")
            where = f"input '{name}'"
            datatype = text_of(item, "datatype", where)
            if datatype not in DATATYPES:
                raise ServingError(Code.INVALID_ARG, f"invalid datatype for input {name} ('{clipped(datatype)}')")
            shape = read_shape(item, name)
            if name in self.inputs:
                raise ServingError(Code.INVALID_ARG, f"{self._prefix}input '{name}' already exists in request")
            if kind == "data":
                array = self._from_json(name, datatype, shape, value)
            elif kind == "binary_data_size":
                size = unsigned_of(value, kind, where)
                if size > len(tail) - offset:
                    raise ServingError(
                        Code.INVALID_ARG,
                        f"unexpected size for input '{name}', expecting {size - len(tail) + offset} additional bytes "
                        f"for model '{self.model.name}'",
                    )
                array = self._from_tail(name, datatype, shape, tail, offset, size)
                offset += size
            else:
                array = self._from_region(name, datatype, shape, read_region(item["parameters"], where))
            self.inputs[name] = Tensor(name, datatype, array)
        if offset != len(tail):
            raise ServingError(Code.INVALID_ARG, f"unexpected additional input data for model '{self.model.name}'")

    @property
    def _prefix(self) -> str:
        return f"[request id: {self.id or '<id_unknown>'}] "

    def _from_json(self, name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Any:
        count = prod(shape) if shape else 0
        if type(data) is LongArray and not (data.strings or data.nested) and data.count() == count:  # before there is an array
            self._check_size(name, count * DATATYPES[datatype].itemsize)
        array = array_of(name, datatype, shape, count, data)
        if isinstance(array, list):
            return self._strings(array, name, shape)
        self._check_size(name, array.nbytes)
        return array

    def _check_size(self, name: str, size: int) -> None:
        if size > self.max_input_size:
            raise ServingError(
                Code.INVALID_ARG,
                f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
                f"{self.max_input_size} bytes. Use --http-max-input-size to increase the limit.",
            )

    def _from_tail(self, name: str, datatype: str, shape: tuple[int, ...], tail: Any, offset: int, size: int) -> Any:
        if datatype == "BYTES":
            if size <= LARGE:  # more of them are never unpacked on the loop
                self.steps.append(Step(name, datatype, None, shape, offset, size))
            return self._unpacked(name, shape, tail, offset, size)
        dtype = DATATYPES[datatype]
        expected = prod(shape) * dtype.itemsize
        if expected != size:
            return self._mismatch(name, datatype, shape, expected, size)
        if offset % dtype.itemsize or not size:
            # Not aligned, so a copy, and no step to repeat. An empty input has no bytes that a view could be made of.
            if size > COPIED and self.on_loop:
                raise TooLarge
            memory = BodyMemory(size, np.uint8)
            memory[:] = np.frombuffer(tail, np.uint8)[offset : offset + size] if size else 0
            return memory.view(dtype).reshape(shape)
        self.steps.append(Step(name, datatype, dtype, shape, offset, size))
        return np.ndarray(shape, dtype, tail, offset)

    def _from_region(self, name: str, datatype: str, shape: tuple[int, ...], region: tuple[str, int, int]) -> Any:
        """Return the input's array, a copy: models may write to it, and the client to its region."""
        span = self.kernel.shared_memory.span(*region)
        dtype = DATATYPES[datatype]
        expected = prod(shape) * dtype.itemsize
        if datatype != "BYTES" and expected != span.byte_size:
            return self._mismatch(name, datatype, shape, expected, span.byte_size)
        if span.byte_size > COPIED and self.on_loop:
            raise TooLarge
        memory = span.read(BodyMemory)
        if datatype != "BYTES":
            return np.ndarray(shape, dtype, memory)
        return self._unpacked(name, shape, memory, 0, span.byte_size)

    def _unpacked(self, name: str, shape: tuple[int, ...], data: Any, offset: int, size: int) -> Any:
        if size > LARGE and self.on_loop:
            raise TooLarge
        count = check_strings(name, shape, self.kernel.memory.values) if size > LARGE else size
        try:
            items = unpacked(name, self.model.name, self.id, data, offset, size, count)
        except ServingError as error:
            self.deferred = self.deferred or error
            return stand_in("BYTES", shape, error)
        return self._strings(items, name, shape)

    def _mismatch(self, name: str, datatype: str, shape: tuple[int, ...], expected: int, got: int) -> Any:
        error = size_mismatch(name, self.model.name, self.id, expected, got)
        self.deferred = self.deferred or error
        return stand_in(datatype, shape, error)

    def _strings(self, items: list[bytes], name: str, shape: tuple[int, ...]) -> Any:
        try:
            return strings_of(items, name, self.model, shape, self.id)
        except ServingError as error:
            self.deferred = self.deferred or error
            return stand_in("BYTES", shape, error)

    def request(self, respond: Respond) -> InferenceRequest:
        """Make the request, with parameters of its own."""
        parameters = self.parameters
        return InferenceRequest(
            self.head.model,
            self.inputs,
            respond,
            model_version=self.head.version,
            id=self.id,
            requested_outputs=self.requested,
            parameters=custom_of(parameters.custom, self.head.forwarded),
            priority=parameters.priority,
            timeout_us=parameters.timeout_us,
            correlation_id=parameters.correlation_id,
            flags=parameters.flags,
        )

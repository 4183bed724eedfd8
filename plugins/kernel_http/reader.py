"""Reads one inference request: JSON part and tail to tensors and parameters, in the reference's order.

The model's check comes after it. What the reference finds only then (sizes and counts) is kept in `deferred` until the
model has checked the rest. Nothing is allocated on the strength of a shape alone.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel import DATATYPES, Code, InferenceRequest, ServingError, Tensor, unpack_bytes
from kernel_http.body_json import (
    Parameters,
    decode,
    no_region,
    read_outputs,
    read_parameters,
    read_shape,
    source_of,
    text_of,
    unsigned_of,
)
from kernel_http.heads import Head
from kernel_http.json_data import array_of
from kernel_http.json_errors import ABSENT, NON_ARRAY, malformed
from kernel_http.raw import raw_inputs

if TYPE_CHECKING:
    from kernel import Model, Respond

__all__ = ["Reader", "strings_of", "unpacked"]


class Reader:
    """Reads one request. `deferred`: a fault that the reference only finds after the model's check."""

    def __init__(self, model: Model, head: Head, max_input_size: int) -> None:
        self.model = model
        self.head = head
        self.max_input_size = max_input_size
        self.id = ""
        self.inputs: dict[str, Tensor] = {}
        self.plan: list[tuple[str, str, Any, tuple[int, ...], int, int]] = []
        self.requested: list[str] | None = None
        self.binary: bool | frozenset[str] = True
        self.classes: dict[str, int] = {}
        self.deferred: ServingError | None = None
        self.repeatable = False
        self.parameters = Parameters()

    def read(self, json: bytes, tail: Any) -> None:
        """Read the members in the reference's order: id, parameters, inputs, outputs; the first fault wins."""
        record: dict[str, Any] = decode(json) if json else {}
        if "id" in record:
            self.id = text_of(record, "id")
        self.parameters = read_parameters(record)
        if self.head.forward_error:
            raise ServingError(Code.INVALID_ARG, self.head.forward_error)
        if not json:
            self.inputs = raw_inputs(self.model, tail, self.max_input_size, announced=self.head.json_length is not None)
            return
        self._read_inputs(record, tail)
        outputs = read_outputs(record)
        if outputs is None:
            self.binary = self.parameters.binary_output or frozenset()
        else:
            self.requested = list(outputs)
            self.binary = frozenset(name for name, (binary, _) in outputs.items() if binary)
            self.classes = {name: count for name, (_, count) in outputs.items() if count}
        self.repeatable = not self.id and not self.classes and len(self.plan) == len(self.inputs) and self.deferred is None

    def _read_inputs(self, record: dict[str, Any], tail: Any) -> None:
        inputs = record.get("inputs")
        if type(inputs) is not list:
            raise malformed("inputs", NON_ARRAY if "inputs" in record else ABSENT.format("inputs"))
        offset = 0
        for item in inputs:
            kind, value = source_of(item)
            name = text_of(item, "name")
            where = f"input '{name}'"
            datatype = text_of(item, "datatype", where)
            if datatype not in DATATYPES:
                raise ServingError(Code.INVALID_ARG, f"invalid datatype for input {name}")
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
                raise no_region(text_of(item["parameters"], kind, where))
            self.inputs[name] = Tensor(name, datatype, array)
        if offset != len(tail):
            raise ServingError(Code.INVALID_ARG, f"unexpected additional input data for model '{self.model.name}'")

    @property
    def _prefix(self) -> str:
        return f"[request id: {self.id or '<id_unknown>'}] "

    def _from_json(self, name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Any:
        array = array_of(name, datatype, shape, prod(shape) if shape else 0, data)
        if isinstance(array, list):
            return self._strings(array, name, shape)
        if array.nbytes > self.max_input_size:
            raise ServingError(
                Code.INVALID_ARG,
                f"JSON input '{name}' has a byte_size ({array.nbytes} bytes) that exceeds the maximum allowed value of "
                f"{self.max_input_size} bytes. Use --http-max-input-size to increase the limit.",
            )
        return array

    def _from_tail(self, name: str, datatype: str, shape: tuple[int, ...], tail: Any, offset: int, size: int) -> Any:
        if datatype == "BYTES":
            self.plan.append((name, datatype, None, shape, offset, size))
            try:
                items = unpacked(name, self.model.name, self.id, tail, offset, size)
            except ServingError as error:
                self.deferred = self.deferred or error
                return stand_in(datatype, shape, error)
            return self._strings(items, name, shape)
        dtype = DATATYPES[datatype]
        expected = prod(shape) * dtype.itemsize
        if expected != size:
            mismatch = ServingError(
                Code.INVALID_ARG,
                f"{self._prefix}input byte size mismatch for input '{name}' for model '{self.model.name}'. "
                f"Expected {expected}, got {size}",
            )
            self.deferred = self.deferred or mismatch
            return stand_in(datatype, shape, mismatch)
        if offset % dtype.itemsize or not size:
            # Not aligned: a copy, and no template. (An empty one would be a view on nothing.)
            return np.frombuffer(bytearray(tail[offset : offset + size]), dtype).reshape(shape)
        self.plan.append((name, datatype, dtype, shape, offset, size))
        return np.ndarray(shape, dtype, tail, offset)

    def _strings(self, items: list[bytes], name: str, shape: tuple[int, ...]) -> Any:
        try:
            return strings_of(items, name, self.model, shape, self.id)
        except ServingError as error:
            self.deferred = self.deferred or error
            return stand_in("BYTES", shape, error)

    def request(self, respond: Respond) -> InferenceRequest:
        """Make the request, with parameters of its own."""
        parameters = self.parameters
        custom = {**parameters.custom, **dict(self.head.forwarded)}
        return InferenceRequest(
            self.head.model,
            self.inputs,
            respond,
            model_version=self.head.version,
            id=self.id,
            requested_outputs=self.requested,
            parameters=custom or None,
            priority=parameters.priority,
            timeout_us=parameters.timeout_us,
            correlation_id=parameters.correlation_id,
            flags=parameters.flags,
        )


def unpacked(name: str, model: str, id: str, tail: Any, offset: int, size: int) -> list[bytes]:
    """Return the elements of a BYTES input in the tail."""
    try:
        return unpack_bytes(memoryview(tail)[offset : offset + size])
    except ValueError as error:
        if error.args[0] == "length":
            raise ServingError(
                Code.INVALID_ARG,
                f"[request id: {id or '<id_unknown>'}] incomplete string length indicator for inference input '{name}' "
                f"for model '{model}', expecting 4 bytes but only {error.args[1]} bytes available. "
                "Please make sure the string length indicator is in one buffer.",
            ) from None
        raise ServingError(
            Code.INVALID_ARG,
            f"incomplete string data for inference input '{name}', expecting string of length {error.args[1]} "
            f"but only {error.args[2]} bytes available",
        ) from None


def strings_of(items: list[bytes], name: str, model: Model, shape: tuple[int, ...], id: str) -> Any:
    """Return the object array of a BYTES input whose elements these are, if their number is that of `shape`."""
    count = prod(shape)
    if len(items) != count:
        prefix = f"[request id: {id or '<id_unknown>'}] "
        subject = f"for inference input '{name}' for model '{model.name}'"
        if len(items) < count:
            text = f"{prefix}expected {count} string elements {subject}, got {len(items)}"
        else:
            text = f"{prefix}unexpected number of string elements {count + 1} {subject}, expecting {count}"
        raise ServingError(Code.INVALID_ARG, text)
    array = np.empty(count, np.object_)
    array[:] = items
    return array.reshape(shape)


def stand_in(datatype: str, shape: tuple[int, ...], error: ServingError) -> Any:
    """Return an array of that shape that takes no memory, so that the model can check a request that is refused anyway.

    Raises `error` at once for a shape that no array can have.
    """
    try:
        return np.broadcast_to(np.zeros((), DATATYPES[datatype]), shape)
    except ValueError:
        raise error from None

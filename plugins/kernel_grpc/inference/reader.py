"""Reads one inference request: a parsed message and its raw data to tensors, outputs and the recipe to do it again.

In the reference's order: names given twice, then where each input's data comes from, then what is wanted of the outputs. The
model's check comes after it. What the reference finds only then (sizes and counts) is kept in `deferred` until the model has
checked the rest. Nothing is allocated on the strength of a shape alone.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernel import (
    DATATYPES,
    ServingError,
    Span,
    Tensor,
    check_rank,
    check_strings,
    cut_off,
    size_mismatch,
    strings_of,
    unpacked,
)
from kernel_grpc.inference.contents import typed_contents
from kernel_grpc.inference.large import ON_LOOP, Large, check_region, is_askew, is_work
from kernel_grpc.inference.parameters import invalid, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernel import Kernel, Model

__all__ = ["Reader", "Region", "Step", "array_of"]

#: What the reference calls a datatype that it does not know.
UNKNOWN = "<invalid>"


class Region(NamedTuple):
    """A part of a shared memory region."""

    name: str
    offset: int
    byte_size: int


class Step(NamedTuple):
    """How to make one input. `dtype`: None for strings. `size`: its bytes, where they are fixed. `region`: None for raw data."""

    name: str
    datatype: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    size: int
    region: Region | None


class Placeholder:
    """Stands in for an array that there can't be, so that the model can check a request that is refused anyway."""

    __slots__ = ("itemsize", "shape")

    def __init__(self, shape: tuple[int, ...], datatype: str) -> None:
        self.shape = shape
        self.itemsize = DATATYPES[datatype].itemsize if datatype in DATATYPES else 1


class Reader:
    """Reads one request. `deferred`: a fault that the reference only finds after the model's check.

    `steps`: of the inputs whose next data can be had in the same way. `classes`: output -> how many. `sinks`: output -> where
    in shared memory its data goes. `ready`: the elements of typed contents by the index of their input, and what lay in shared
    memory by its name, where a thread has read them (`large.Prepared`); then large strings are taken apart, too.
    """

    def __init__(
        self,
        kernel: Kernel,
        model: Model,
        record: Any,
        raws: Sequence[Any],
        ready: Mapping[int | str, Any] | None = None,
    ) -> None:
        self.kernel = kernel
        self.model = model
        self.record = record
        self.raws = raws
        self.ready = ready
        self.inputs: dict[str, Tensor] = {}
        self.steps: list[Step] = []
        self.requested: tuple[str, ...] | None = None
        self.classes: dict[str, int] = {}
        self.sinks: dict[str, Region] = {}
        self.deferred: ServingError | None = None
        self._used = 0  # how many of the raw entries inputs have taken

    @property
    def repeatable(self) -> bool:
        """Whether the steps make all of the inputs."""
        return self.deferred is None and len(self.steps) == len(self.inputs)

    def read(self) -> None:
        """Read inputs and outputs; the first fault wins. Raises ServingError."""
        seen = set()
        for item in self.record.inputs:
            if item.name in seen:
                raise invalid(f"{self._prefix}input '{item.name}' already exists in request")
            seen.add(item.name)
        for index, item in enumerate(self.record.inputs):
            self.inputs[item.name] = self._input(item, index)
        outputs = self.record.outputs
        for item in outputs:
            self._read_output(item.name, item.parameters)
        if outputs:
            self.requested = tuple(dict.fromkeys(item.name for item in outputs))

    @property
    def _prefix(self) -> str:
        return f"[request id: {self.record.id or '<id_unknown>'}] "

    def _defer(self, error: ServingError) -> None:
        self.deferred = self.deferred or error

    def _input(self, item: Any, index: int) -> Tensor:
        name = item.name
        check_rank(name, self.model.name, self.record.id, len(item.shape))
        shape = tuple(item.shape)
        datatype = item.datatype if item.datatype in DATATYPES else UNKNOWN
        region = region_of(item.parameters, name)
        if region is not None:
            if item.HasField("contents"):
                raise invalid(
                    f"unexpected 'content' provided when using shared memory for input tensor '{name}' "
                    f"for model '{self.model.name}'"
                )
            data = self.kernel.shared_memory.span(*region)
            if self.ready is not None:
                data = self.ready.get(name, data)
        elif item.HasField("contents"):
            if self.raws:
                raise invalid(
                    f"contents field must not be specified when using raw_input_contents for '{name}' "
                    f"for model '{self.model.name}'"
                )
            if self.ready is None:
                data = typed_contents(item.contents, name, datatype, self.model.name)
            else:
                data = self.ready[index]
                if isinstance(data, ServingError):
                    raise data
        elif self._used < len(self.raws):
            data = self.raws[self._used]
            self._used += 1
        else:
            raise invalid(f"unable to find data for input tensor '{name}' for model '{self.model.name}' in request.")
        if any(size < 0 for size in shape):
            return self._unspecified(name, datatype, shape)
        if datatype == UNKNOWN:
            self._defer(invalid(f"invalid datatype for input {name}"))  # the model's check, which comes first, says more
            return Tensor(name, datatype, Placeholder(shape, datatype))  # type: ignore[arg-type]
        try:
            array = self._array(name, datatype, shape, data)
        except ServingError as error:
            self._defer(error)
            return Tensor(name, datatype, Placeholder(shape, datatype))  # type: ignore[arg-type]
        if not item.HasField("contents"):
            dtype = None if datatype == "BYTES" else DATATYPES[datatype]
            self.steps.append(Step(name, datatype, dtype, shape, size_of(data), region))
        return Tensor(name, datatype, array)

    def _array(self, name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Any:
        """Return the array of an input.

        `data`: its bytes, or where they lie in shared memory, or the elements where they are strings from `bytes_contents`.
        """
        dtype = DATATYPES[datatype]
        if isinstance(data, ServingError):
            raise data
        if datatype != "BYTES" and (expected := prod(shape) * dtype.itemsize) != (size := size_of(data)):
            raise size_mismatch(name, self.model.name, self.record.id, expected, size)
        if datatype == "BYTES" and size_of(data) > ON_LOOP:
            check_strings(name, shape, self.kernel.memory.values)
        if isinstance(data, Span):
            check_region(name, data, shape, strings=datatype == "BYTES")
            data = data.read()
        try:
            if datatype != "BYTES":
                if self.ready is None and is_askew(data, dtype):
                    raise Large
                return array_of(shape, dtype, data)
            items = data
            if isinstance(data, ValueError):
                raise cut_off(data, name, self.model.name, self.record.id)
            if not (isinstance(data, list) or getattr(data, "dtype", None) == np.object_):
                if self.ready is None and is_work(shape, len(data)):
                    raise Large
                items = unpacked(name, self.model.name, self.record.id, data, 0, len(data), prod(shape))
            return strings_of(items, name, self.model, shape, self.record.id)
        except ValueError as error:  # the size is right, 0 bytes, but numpy has no array of that shape
            sizes = ",".join(map(str, shape))
            subject = f"{self._prefix}input '{name}' for model '{self.model.name}'"
            raise invalid(f"{subject} has shape [{sizes}], which no array can have: {error}") from None

    def _unspecified(self, name: str, datatype: str, shape: tuple[int, ...]) -> Tensor:
        """A negative size. Refused for that, unless the model finds fault with something that the reference looks at before."""
        sizes = ",".join(map(str, shape))
        self._defer(
            invalid(
                f"{self._prefix}All input dimensions should be specified for input '{name}' for model '{self.model.name}', "
                f"got [{sizes}]"
            )
        )
        spec = self.model.input_specs.get(name)
        first = 1 if self.model.config.max_batch_size > 0 else 0
        if spec is not None and len(shape) == first + len(spec.dims):
            dims = [dim if size == -1 else size for size, dim in zip(shape[first:], spec.dims)]
            shape = (*shape[:first], *dims)
        return Tensor(name, datatype, Placeholder(shape, datatype))  # type: ignore[arg-type]

    def _read_output(self, name: str, parameters: Mapping[str, Any]) -> None:
        region = region_of(parameters, name)
        count = classes_of(parameters)
        if region is not None:
            if "classification" in parameters:
                raise invalid("output can't set both 'shared_memory_region' and 'classification'")
            self.kernel.shared_memory.span(*region)
            self.sinks.setdefault(name, region)
        elif count:
            self.classes.setdefault(name, count)


def size_of(data: Any) -> int:
    """Return how many bytes an input has that aren't typed contents."""
    if isinstance(data, (ValueError, ServingError)):
        return 0
    return data.byte_size if isinstance(data, Span) else len(data)


def array_of(shape: tuple[int, ...], dtype: np.dtype[Any], data: Any) -> Any:
    """Return an array of a request's own, over as many bytes as it takes: writable and aligned, in place where possible.

    `data`: bytes, which are copied, or a part of memory that the request owns.
    """
    if not len(data):
        return np.empty(shape, dtype)
    if type(data) is bytes:
        return np.ndarray(shape, dtype, bytearray(data))
    array: Any = np.ndarray(shape, dtype, data)
    return array if array.flags.aligned else array.copy()


def region_of(parameters: Mapping[str, Any], tensor: str) -> Region | None:
    """Return the part of shared memory that a tensor's parameters name, if they do. Raises ServingError(INVALID_ARG)."""
    if not parameters:
        return None
    if "shared_memory_region" not in parameters:
        for key in ("shared_memory_offset", "shared_memory_byte_size"):
            if key in parameters:
                raise invalid(
                    f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor}'"
                )
        return None
    name = _value(parameters, "shared_memory_region", "string_param", tensor)
    offset = _value(parameters, "shared_memory_offset", "int64_param", tensor) if "shared_memory_offset" in parameters else 0
    if "shared_memory_byte_size" not in parameters:
        raise invalid(
            f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '{tensor}'"
        )
    return Region(name, offset, _value(parameters, "shared_memory_byte_size", "int64_param", tensor))


def _value(parameters: Mapping[str, Any], key: str, kind: str, tensor: str) -> Any:
    if kind_of(parameters[key]) != kind:
        raise invalid(f"invalid value type for '{key}' parameter for tensor '{tensor}', expected {kind}.")
    return getattr(parameters[key], kind)


def classes_of(parameters: Mapping[str, Any]) -> int:
    """Return how many classes are wanted of an output, 0 for its values. Raises ServingError(INVALID_ARG)."""
    if "classification" not in parameters:
        return 0
    parameter = parameters["classification"]
    if kind_of(parameter) != "int64_param":
        raise invalid("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:  # 0 is none over HTTP, and refused here (reference behaviour)
        raise invalid("invalid value for 'classification' parameter, expected >= 0")
    return int(parameter.int64_param)

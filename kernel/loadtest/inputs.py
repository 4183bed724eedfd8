"""What is sent: made from what the model says of its inputs, written down, or read from a file of perf_analyzer's. No network.

A dataset is a list of requests, each an input's name -> Tensor; they are sent one after the other, and then again.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernel.config import TensorSpec
from kernel.errors import Code, ServingError
from kernel.loadtest.described import Described
from kernel.tensor import DATATYPES, Array, Tensor, as_bytes_array, unpack_bytes

__all__ = ["Shapes", "datasets_of", "given_inputs", "made_inputs"]

Request = dict[str, Tensor]

#: Names of inputs -> the shape to send, without the batch dimension.
Shapes = Mapping[str, Sequence[int]]

VARIANTS = 16  # requests with different values, where these are by chance
MOST_BYTES = 1024 * 1024 * 1024  # of a request, and of all that are made
STRING = 16  # characters of a string by chance
SMALL = 100  # integers by chance are smaller, as they often are indices


def made_inputs(model: Described, shapes: Shapes, batch: int, kind: str, seed: int) -> tuple[list[Request], list[str]]:
    """Make requests for a model, and say what was chosen for it. `batch`: rows of each; `kind`: "random" or "zero".

    Raises ServingError where the model does not take so many rows, or a shape is given that it does not have.
    """
    check_batch(model, batch)
    for name in shapes:
        model.spec(name)
    notes, dims = [], {}
    wanted = [*model.inputs, *(one for one in model.optional if one.name in shapes)]
    for spec in wanted:
        dims[spec.name] = _dims(spec, shapes.get(spec.name))
        if spec.name not in shapes and -1 in spec.dims:
            there = f"input '{spec.name}' has dims {list(spec.dims)}; {list(dims[spec.name])} is sent"
            larger = ",".join("16" if one < 0 else str(one) for one in spec.dims)
            notes.append(f"{there}, --shape {spec.name}:{larger} sends more")
    generator = np.random.default_rng(seed)
    lead = (batch,) if model.max_batch_size else ()
    size = sum(math.prod(lead + dims[one.name]) * DATATYPES[one.datatype].itemsize for one in wanted)
    if size > MOST_BYTES:
        words = f"would have {size} bytes, {MOST_BYTES} at most are made; --shape says less"
        raise _wrong(f"a request for model '{model.name}' {words}")
    count = min(VARIANTS, max(1, MOST_BYTES // max(1, size))) if kind == "random" else 1

    def made(spec: TensorSpec) -> Tensor:
        return Tensor(spec.name, spec.datatype, _values(spec.datatype, lead + dims[spec.name], kind, generator))

    return [{one.name: made(one) for one in wanted} for _ in range(count)], notes


def given_inputs(model: Described, given: Sequence[Tensor], made: Sequence[Request], batch: int) -> list[Request]:
    """Return the requests `made` with these tensors in them. One without a batch dimension is repeated `batch` times."""
    check_batch(model, batch)
    there = {one.name: batched(model, one, batch) for one in given}
    missing = [one.name for one in model.inputs if one.name not in there]
    return [{**one, **there} for one in made] if missing else [dict(there)]


def batched(model: Described, tensor: Tensor, batch: int) -> Tensor:
    """Return the tensor as a request has it. Raises ServingError where its shape fits no way."""
    spec = model.spec(tensor.name)
    array = tensor.array
    if model.max_batch_size and _fits(array.shape, spec.dims):
        array = np.repeat(array[np.newaxis], batch, axis=0)
    lead = array.shape[:1] if model.max_batch_size else ()
    if not _fits(array.shape[len(lead) :], spec.dims) or (model.max_batch_size and not lead):
        whole = [*(["batch"] if model.max_batch_size else []), *spec.dims]
        raise _wrong(f"input '{tensor.name}' of model '{model.name}' has shape {list(array.shape)}, wanted is {_list(whole)}")
    return Tensor(tensor.name, tensor.datatype, np.ascontiguousarray(array))


def check_batch(model: Described, batch: int) -> None:
    """Raise ServingError where the model takes no requests of so many rows."""
    most = model.max_batch_size or 1
    if batch > most:
        why = f"its max_batch_size is {most}" if model.max_batch_size else "it has no batch dimension"
        raise _wrong(f"model '{model.name}' takes no requests of {batch} rows: {why}")


# -- perf_analyzer's files ---------------------------------------------------------------------------------------------


def datasets_of(path: Path, model: Described, shapes: Shapes, batch: int) -> list[list[Request]]:
    """Read a file as perf_analyzer's --input-data has them: one dataset, or one for each sequence.

    `{"data": [{"A": [1, 2]}, …]}`; a value is a list, `{"content": […], "shape": […]}` or `{"b64": "…"}`, the tensor's bytes.
    `batch` entries one after the other are one request. Raises ServingError with the entry's place.
    """
    check_batch(model, batch)
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(f"--input-data: {path} can't be read as JSON: {error}") from None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise _wrong(f'--input-data: {path} has no entries; wanted is {{"data": [{{"INPUT": […]}}, …]}}')
    nested = isinstance(entries[0], list)
    streams = entries if nested else [entries]
    found = []
    for place, stream in enumerate(streams):
        if not isinstance(stream, list) or not stream:
            raise _wrong(f"--input-data: {path}: data[{place}] is no list of entries, as data[0] is one")
        at = f"data[{place}]" if nested else "data"
        rows = [_entry(f"{path}: {at}[{number}]", entry, model, shapes) for number, entry in enumerate(stream)]
        found.append(_joined(path, model, rows, batch))
    return found


def _entry(place: str, entry: Any, model: Described, shapes: Shapes) -> Request:
    if not isinstance(entry, dict):
        raise _wrong(f"--input-data: {place} is {json.dumps(entry)[:60]}, wanted is an object of inputs")
    missing = [one.name for one in model.inputs if one.name not in entry]
    if missing:
        raise _wrong(f"--input-data: {place} has no input '{missing[0]}', which model '{model.name}' needs")
    return {name: _tensor(f"{place}.{name}", model.spec(name), value, shapes.get(name)) for name, value in entry.items()}


def _tensor(place: str, spec: TensorSpec, value: Any, shape: Sequence[int] | None) -> Tensor:
    """Read one input of one entry, without a batch dimension."""
    if isinstance(value, dict) and "content" in value:
        shape = value.get("shape", shape)
        if not isinstance(shape, list | tuple | None):
            raise _wrong(f"--input-data: {place} has the shape {json.dumps(shape)[:60]}, wanted is a list of sizes")
        value = value["content"]
    if isinstance(value, dict) and set(value) == {"b64"}:
        flat = _raw(place, spec.datatype, value["b64"])
    else:
        flat = _flat(place, spec, value if isinstance(value, list) else [value])
    if shape is None:
        shape = _guessed(spec.dims, flat.size)
    if not all(type(one) is int and one >= 0 for one in shape):
        raise _wrong(f"--input-data: {place} has the shape {json.dumps(shape)[:60]}, wanted is a list of sizes")
    if not _fits(tuple(shape), spec.dims):
        raise _wrong(f"--input-data: {place} has shape {list(shape)}, wanted is {list(spec.dims)}")
    if math.prod(shape) != flat.size:
        raise _wrong(f"--input-data: {place} has {flat.size} elements, its shape {list(shape)} has {math.prod(shape)}")
    return Tensor(spec.name, spec.datatype, flat.reshape(shape))


def _guessed(dims: Sequence[int], size: int) -> tuple[int, ...]:
    """Return a shape for so many elements where only one dimension is open, else the dims with 1 for it."""
    known = math.prod(one for one in dims if one >= 0)
    if sum(one < 0 for one in dims) == 1 and known and size % known == 0:
        return tuple(size // known if one < 0 else one for one in dims)
    return tuple(max(one, 1) if one < 0 else one for one in dims)


def _flat(place: str, spec: TensorSpec, value: list[Any]) -> Array:
    while value and all(isinstance(one, list) for one in value):
        value = [inner for one in value for inner in one]
    datatype = spec.datatype
    try:
        if datatype == "BYTES":
            return as_bytes_array(np.array([*map(_string, value), None], dtype=object)[:-1])
        if datatype == "BF16":
            return (np.array(value, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if datatype == "BOOL":
            return np.array(value, np.bool_)
        array = np.array(value)
        if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and "INT" in datatype):
            raise ValueError("wanted are numbers" if "FP" in datatype else "wanted are integers")
        whole = np.array(value, DATATYPES[datatype])  # raises where an integer does not fit
        return whole
    except (ValueError, TypeError, OverflowError) as error:
        raise _wrong(f"--input-data: {place} is no {datatype}: {error}") from None


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{json.dumps(value)[:40]} is no string")
    return value.encode()


def _raw(place: str, datatype: str, text: Any) -> Array:
    """Read the bytes of a tensor. Of BYTES they are one string, unless they are strings with their lengths in front."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise _wrong(f"--input-data: {place} is no base64: {error}") from None
    if datatype == "BYTES":
        with_lengths = _strings(data)
        return with_lengths if with_lengths is not None else as_bytes_array(np.array([data, None], dtype=object)[:-1])
    dtype = DATATYPES[datatype]
    if len(data) % dtype.itemsize:
        raise _wrong(f"--input-data: {place} has {len(data)} bytes, an element of {datatype} has {dtype.itemsize}")
    return np.frombuffer(data, dtype)


def _strings(data: bytes) -> Array | None:
    try:
        items = unpack_bytes(data)
    except ValueError:
        return None
    return as_bytes_array(np.array([*items, None], dtype=object)[:-1]) if items else None


def _joined(path: Path, model: Described, rows: list[Request], batch: int) -> list[Request]:
    """Return requests of `batch` entries each, the last one filled up from the first ones."""
    if not model.max_batch_size:
        return rows
    requests = []
    for first in range(0, len(rows), batch):
        some = [rows[(first + number) % len(rows)] for number in range(batch)]
        if any(one.keys() != some[0].keys() for one in some):
            raise _wrong(f"--input-data: {path}: entries {first} to {first + batch - 1} have different inputs, so are no batch")
        request = {}
        for name, tensor in some[0].items():
            if len({one[name].shape for one in some}) > 1:
                raise _wrong(f"--input-data: {path}: '{name}' of entries {first} to {first + batch - 1} has different shapes")
            request[name] = Tensor(name, tensor.datatype, np.stack([one[name].array for one in some]))
        requests.append(request)
    return requests


# -- values and shapes -------------------------------------------------------------------------------------------------


def _dims(spec: TensorSpec, given: Sequence[int] | None) -> tuple[int, ...]:
    if given is None:
        return tuple(1 if one < 0 else one for one in spec.dims)
    if not _fits(tuple(given), spec.dims):
        words = f"--shape {spec.name}:{','.join(map(str, given))}"
        raise _wrong(f"{words}: its dims are {list(spec.dims)}, without the batch dimension")
    return tuple(given)


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(want in (-1, size) for size, want in zip(shape, dims))


def _values(datatype: str, shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> Array:
    dtype = DATATYPES[datatype]
    if datatype == "BYTES":
        size = math.prod(shape)
        letters = generator.integers(97, 123, (size, STRING), np.uint8) if kind == "random" else np.zeros((size, 0), np.uint8)
        return as_bytes_array(np.array([*(row.tobytes() for row in letters), None], dtype=object)[:-1]).reshape(shape)
    if kind == "zero":
        return np.zeros(shape, dtype)
    if datatype == "BOOL":
        return generator.integers(0, 2, shape).astype(np.bool_)
    if datatype == "BF16":
        return (generator.random(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.kind == "f":
        return generator.random(shape).astype(dtype)
    return generator.integers(0, SMALL, shape).astype(dtype)


def _list(values: Sequence[object]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _wrong(words: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, words)

"""Tensors as people write them: from an argument of the command line or a file into an array, and from an array into JSON.

Strict where a mistake could hide: no number is rounded, wrapped or cut to fit the datatype.
"""

from __future__ import annotations

import base64
import io
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kernel.config import TensorSpec
from kernel.errors import Code, ServingError
from kernel.tensor import DATATYPES, Array, Tensor, as_bytes_array, datatype_of

__all__ = ["as_json", "read_tensor"]

_NPY = b"\x93NUMPY"


def read_tensor(spec: TensorSpec, text: str) -> Tensor:
    """Return the tensor that `text` stands for.

    JSON, `@file.npy`, `@file.json`, `@-` (JSON from stdin); for BYTES also a bare string, and `@file` for a file's content.

    Raises ServingError(INVALID_ARG) that names the input, what came and what was wanted.
    """
    if not text.startswith("@"):
        return _from_json_text(spec, text, bare=True)
    if text == "@-":
        return _from_json_text(spec, sys.stdin.read())
    path = Path(text[1:])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _wrong(spec, f"can't read {path}: {error.strerror}") from None
    if data.startswith(_NPY):
        return _from_npy(spec, path, data)
    if path.suffix == ".json":
        return _from_json_text(spec, data.decode("utf-8", "replace"))
    if spec.datatype == "BYTES":
        return Tensor(spec.name, "BYTES", as_bytes_array(np.array([data], dtype=object)))
    raise _wrong(spec, f"{path} is neither a .npy nor a .json file")


def _from_npy(spec: TensorSpec, path: Path, data: bytes) -> Tensor:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError as error:
        raise _wrong(spec, f"can't read {path}: {error}") from None
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    datatype = datatype_of(array.dtype)
    if datatype == "UINT16" and spec.datatype == "BF16":  # numpy has no BF16; its bits travel as uint16
        datatype = "BF16"
    if datatype is None:
        raise _wrong(spec, f"{path} has numpy dtype '{array.dtype}', which is no tensor datatype")
    return Tensor(spec.name, datatype, as_bytes_array(array) if datatype == "BYTES" else array)


def _from_json_text(spec: TensorSpec, text: str, bare: bool = False) -> Tensor:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if not (bare and spec.datatype == "BYTES"):
            raise _wrong(spec, f"not JSON: {error}") from None
        value = text
    if not isinstance(value, list):
        value = [value]  # a scalar is a tensor of one element, as no model has tensors without dimensions
    shape, items = _flatten(spec, value)
    return Tensor(spec.name, spec.datatype, _array(spec, items).reshape(shape))


def _flatten(spec: TensorSpec, value: list[Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape and the elements, row by row, of nested lists."""
    shape: list[int] = []
    items: list[Any] = value
    while True:
        shape.append(len(items) // max(1, math.prod(shape)) if shape else len(items))
        nested = [isinstance(item, list) for item in items]
        if not any(nested):
            return tuple(shape), items
        lengths = {len(item) for item in items if isinstance(item, list)}
        if not all(nested) or len(lengths) > 1:
            raise _wrong(spec, "the lists in it have different lengths or depths, so it has no shape")
        items = [inner for item in items for inner in item]


def _array(spec: TensorSpec, items: list[Any]) -> Array:
    datatype = spec.datatype
    for item in items:
        if not _fits(item, datatype):
            raise _wrong(spec, f"{json.dumps(item)[:80]} is no {datatype}{_range(datatype)}")
    if datatype == "BYTES":
        return as_bytes_array(np.array([*items, None], dtype=object)[:-1])
    if datatype == "BF16":
        return np.array([_bf16(float(item)) for item in items], dtype=np.uint16)
    return np.array(items, dtype=DATATYPES[datatype])


def _fits(item: Any, datatype: str) -> bool:
    if datatype == "BYTES":
        return isinstance(item, str)
    if datatype == "BOOL":
        return isinstance(item, bool)
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    if datatype.startswith(("FP", "BF")):
        return True
    limits = np.iinfo(DATATYPES[datatype])
    return isinstance(item, int) and limits.min <= item <= limits.max


def _range(datatype: str) -> str:
    if datatype.startswith(("INT", "UINT")):
        limits = np.iinfo(DATATYPES[datatype])
        return f" (an integer from {limits.min} to {limits.max})"
    return {"BYTES": " (a string)", "BOOL": " (true or false)"}.get(datatype, " (a number)")


def _bf16(value: float) -> int:
    """Return the bits of the nearest BF16; ties go to the even one."""
    (bits,) = struct.unpack("<I", np.float32(value).tobytes())
    if math.isnan(value):
        return 0x7FC0
    return int((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def as_json(tensor: Tensor) -> dict[str, Any]:
    """Return the tensor as KServe's JSON does, `data` flat and row by row.

    Bytes that aren't UTF-8 are shown as `{"base64": …}`, floats that JSON lacks as the strings NaN, Infinity and -Infinity.
    """
    array = tensor.array
    if tensor.datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    data = [_element(item) for item in array.ravel().tolist()]
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": data}


def _element(item: Any) -> Any:
    if isinstance(item, bytes):
        try:
            return item.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(item).decode()}
    if isinstance(item, float) and not math.isfinite(item):
        return "NaN" if math.isnan(item) else "Infinity" if item > 0 else "-Infinity"
    return item


def _wrong(spec: TensorSpec, what: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, f"input '{spec.name}': {what}")

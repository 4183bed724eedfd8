"""Between the kernel's arrays and onnxruntime's: strings, bfloat16, scalars, memory that numpy alone would accept.

Says nothing of batches. Strings are the one kind where a client can send what the model can't take: ONNX's are UTF-8.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["NotText", "decoded", "encoded", "from_value", "readable", "to_value"]

Array = np.ndarray[Any, Any]

BFLOAT16 = 16  # ONNX's number of the type


class NotText(Exception):
    """An element of a BYTES tensor is not UTF-8; `args` hold its index and why."""


def readable(array: Array) -> Array:
    """Return the array, or a copy where it lies where the processor must not read it: a tensor behind text in a message."""
    return array if array.flags.aligned else array.copy()


def decoded(array: Array) -> Array:
    """Return `bytes` elements as `str`. Raises NotText."""
    items = array.ravel().tolist()
    result = np.empty(len(items), dtype=np.object_)
    try:
        result[:] = [item.decode() for item in items]
    except UnicodeDecodeError:
        for index, item in enumerate(items):
            try:
                item.decode()
            except UnicodeDecodeError as error:
                raise NotText(index, str(error)) from None
    return result.reshape(array.shape)


def encoded(array: Array) -> Array:
    """Return `str` elements as `bytes`."""
    result = np.empty(array.size, dtype=np.object_)
    result[:] = [item.encode() for item in array.ravel().tolist()]
    return result.reshape(array.shape)


def to_value(runtime: Any, array: Array, datatype: str) -> Any:
    """Return an OrtValue over the array's own memory, which has to stay as long as the value does."""
    array = np.ascontiguousarray(array) if array.ndim else array  # which would make a vector of a scalar
    if datatype == "BF16":
        return runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, BFLOAT16)
    return runtime.OrtValue.ortvalue_from_numpy(array)


def from_value(value: Any, datatype: str) -> Array:
    """Return the array of an OrtValue: the raw bits for BF16, of which numpy knows no type."""
    if datatype != "BF16":
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    if not size:
        return np.empty(shape, np.uint16)
    memory = (ctypes.c_uint16 * (size // 2)).from_address(value.data_ptr())
    memory.held = value  # with which the memory would go
    return np.frombuffer(memory, np.uint16).reshape(shape)

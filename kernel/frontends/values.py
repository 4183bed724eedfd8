"""Values as people write them in Python, into tensors of the declared datatype: lists, and arrays of numpy's default dtypes.

Strict where a mistake could hide: no number wraps, is cut or becomes infinite to fit the datatype; only that floats are rounded
to the declared precision is taken for granted. Knows the datatype and the words of whoever asks, no model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernel.tensor import DATATYPES, Array, Tensor, as_bytes_array, datatype_of

__all__ = ["as_tensor", "declared_tensor"]

_FLOATS = frozenset({"FP16", "FP32", "FP64", "BF16"})


def as_tensor(name: str, value: Any, datatype: str | None, whose: str) -> Tensor:
    """Return a tensor with memory of its own. `datatype`: the declared one, None where there is none.

    A numpy array is taken as it is. Raises ValueError that says whose tensor it is, what came and what was wanted.
    """
    __tracebackhide__ = True
    if isinstance(value, Tensor):
        return Tensor(name, value.datatype, value.array.copy())
    if isinstance(value, np.ndarray):
        array = np.array(value, order="C")
    elif datatype is None:
        array = _array_of(name, value, whose)
    else:
        return Tensor(name, datatype, _declared(name, value, datatype, whose))
    found = datatype_of(array.dtype)
    if found is None:
        raise ValueError(f"'{name}' of {whose} has numpy dtype '{array.dtype}', which is no tensor datatype")
    if found == "UINT16" and datatype == "BF16":  # numpy has no BF16; its bits travel as uint16
        found = "BF16"
    if found == "BF16":
        array = array.view(np.uint16)
    return Tensor(name, found, as_bytes_array(array) if found == "BYTES" else array)


def declared_tensor(name: str, value: Any, datatype: str | None, whose: str) -> Tensor:
    """As `as_tensor`, but an array of float64, which numpy makes of floats by itself, becomes the float datatype declared."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64 and datatype in _FLOATS and datatype != "FP64":
        return Tensor(name, datatype, _declared(name, value, datatype, whose))
    return as_tensor(name, value, datatype, whose)


def _array_of(name: str, value: Any, whose: str) -> Array:
    __tracebackhide__ = True
    try:
        return np.atleast_1d(np.array(value))
    except ValueError as error:
        raise ValueError(f"'{name}' of {whose} has no shape: {error}") from None


def _declared(name: str, value: Any, datatype: str, whose: str) -> Array:
    __tracebackhide__ = True
    strings = datatype == "BYTES"
    try:
        array = np.array(value, dtype=np.object_) if strings else np.array(value)
    except ValueError as error:
        raise ValueError(f"'{name}' of {whose} has no shape: {error}") from None
    if not isinstance(value, np.ndarray):
        array = np.atleast_1d(array)  # no model has tensors without dimensions
    if strings:
        wrong = [item for item in array.ravel().tolist() if not isinstance(item, str | bytes)]
        if wrong:
            raise ValueError(f"'{name}' of {whose} wants strings (BYTES), {_short(wrong[0])} is none")
        return as_bytes_array(array)
    if not array.size:
        return array.astype(DATATYPES[datatype])
    if array.dtype.kind not in {"B": "b", "F": "iuf"}.get(datatype[0], "iu") and datatype != "BF16":
        raise ValueError(f"'{name}' of {whose} wants {datatype}, got {_short(value)} ({array.dtype})")
    if datatype == "BF16":
        return _bf16(array.astype(np.float32))
    if array.dtype.kind in "iu" and datatype[0] in "IU":
        limits = np.iinfo(DATATYPES[datatype])
        for item in (array.min(), array.max()):
            if not limits.min <= int(item) <= limits.max:
                raise ValueError(f"'{name}' of {whose} wants {datatype} ({limits.min} to {limits.max}), got {item}")
    with np.errstate(over="ignore"):
        made = array.astype(DATATYPES[datatype])
    if datatype[0] == "F" and (lost := np.isinf(made) & np.isfinite(array)).any():
        raise ValueError(f"'{name}' of {whose} wants {datatype}, which {array[lost].ravel()[0]} does not fit")
    return made


def _bf16(array: Array) -> Array:
    """Return the bits of the nearest BF16 values; ties go to the even one."""
    bits = array.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

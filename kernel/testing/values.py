"""Values as people write them in tests: lists into tensors of the declared datatype, and the comparison of results.

Strict where a mistake could hide: no number is rounded, wrapped or cut to fit the datatype. A numpy array is taken as it is: what
the server says about its dtype may be just what a test wants to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernel.request import InferenceResponse
from kernel.tensor import DATATYPES, Array, Tensor, as_bytes_array, datatype_of

__all__ = ["as_tensor", "assert_close"]


def as_tensor(name: str, value: Any, datatype: str | None, whose: str) -> Tensor:
    """Return a tensor with memory of its own. `datatype`: the declared one, None where there is none.

    Raises ValueError that says whose tensor it is, what came and what was wanted.
    """
    __tracebackhide__ = True
    if isinstance(value, Tensor):
        return Tensor(name, value.datatype, value.array.copy())
    if isinstance(value, np.ndarray):
        array = np.array(value, order="C")
    elif datatype is None:
        array = _plain(name, value, whose)
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


def _plain(name: str, value: Any, whose: str) -> Array:
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
    return array.astype(DATATYPES[datatype])


def _bf16(array: Array) -> Array:
    """Return the bits of the nearest BF16 values; ties go to the even one."""
    bits = array.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def assert_close(actual: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Assert that an output is what was expected, numbers within a tolerance, everything else exactly.

    `actual`: an array, or a whole response; then `expected` maps names of outputs to values. Strings and bytes (UTF-8) are the
    same. The message names the first difference and its place.
    """
    __tracebackhide__ = True
    if isinstance(actual, InferenceResponse):
        if not isinstance(expected, Mapping):
            raise TypeError("what a whole response is compared with has to be a mapping: {'NAME': values, ...}")
        datatypes = {tensor.name: tensor.datatype for tensor in actual.outputs}
        for name, value in expected.items():
            array = actual[name]
            if datatypes[name] == "BF16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            _compare(f"output '{name}'", array, value, rtol, atol)
        return
    _compare("the array", actual, expected, rtol, atol)


def _compare(what: str, actual: Any, expected: Any, rtol: float, atol: float) -> None:
    __tracebackhide__ = True
    got, wanted = _comparable(actual), _comparable(expected)
    if got.shape != wanted.shape:
        raise AssertionError(f"{what} has shape {list(got.shape)}, expected {list(wanted.shape)}")
    if _is_number(got) and _is_number(wanted):
        same = np.isclose(got.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)
        if got.dtype.kind in "iu" and wanted.dtype.kind in "iu":
            same = got == wanted  # no tolerance, and no rounding beyond 2**53
    else:
        same = np.array(got == wanted)
    if same.all():
        return
    places = np.argwhere(~np.atleast_1d(same))
    place = tuple(int(k) for k in places[0])
    first = place if got.shape else ()
    index = f"[{', '.join(map(str, first))}]" if first else ""
    others = f"; {len(places)} of {got.size} elements differ" if got.size > 1 else ""
    raise AssertionError(f"{what}{index} is {_plainly(got[first])}, expected {_plainly(wanted[first])}{others}")


def _plainly(item: Any) -> str:
    return repr(item.item() if isinstance(item, np.generic | np.ndarray) else item)


def _is_number(array: Array) -> bool:
    return array.dtype.kind in "iuf"


def _comparable(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        text = np.empty(array.size, dtype=np.object_)
        text[:] = [
            item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else item for item in array.ravel().tolist()
        ]
        return text.reshape(array.shape)
    return array

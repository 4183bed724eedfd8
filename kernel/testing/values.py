"""Values as people write them in tests: into tensors (kernel/frontends/values.py), and the comparison of results.

A numpy array is taken as it is: what the server says about its dtype may be just what a test wants to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernel.frontends import as_tensor
from kernel.requests import InferenceResponse
from kernel.tensor import Array

__all__ = ["as_tensor", "assert_close"]


def assert_close(actual: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    """Assert that an output is what was expected, numbers within a tolerance, everything else exactly.

    `actual`: an array, or a whole response; then `expected` maps names of outputs to values. Strings and bytes (UTF-8) are the
    same. The message names the first difference and its index.
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
    differing = np.argwhere(~np.atleast_1d(same))
    first = tuple(int(k) for k in differing[0]) if got.shape else ()
    index = f"[{', '.join(map(str, first))}]" if first else ""
    others = f"; {len(differing)} of {got.size} elements differ" if got.size > 1 else ""
    raise AssertionError(f"{what}{index} is {_shown(got[first])}, expected {_shown(wanted[first])}{others}")


def _shown(item: Any) -> str:
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

"""Whether answers are the same, and how they differ. Pure.

Numbers with a fraction are the same within a tolerance, all else is the same or not. What is told of a difference has an end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernel.errors import clipped
from kernel.tensor import Array, Tensor

__all__ = ["Difference", "Tolerance", "differences"]

#: How many elements are compared at a time: what they become meanwhile takes memory.
AT_ONCE = 1024 * 1024

#: How many characters of an element are told.
SHOWN = 80

_FRACTIONS = frozenset({"FP16", "FP32", "FP64", "BF16"})


@dataclass(frozen=True)
class Tolerance:
    """Two numbers are the same where they differ by no more than `absolute` + `relative` times that which was expected."""

    relative: float = 1e-5
    absolute: float = 1e-6


@dataclass(frozen=True)
class Difference:
    """Of one output, "" for the answer as a whole: what was expected, what came, and a sentence."""

    output: str
    expected: str
    actual: str
    words: str


def differences(expected: Sequence[Tensor], actual: Sequence[Tensor], tolerance: Tolerance) -> list[Difference]:
    """Return how the outputs of an answer differ; in which order they stand does not matter."""
    there = {tensor.name: tensor for tensor in actual}
    found = []
    for tensor in expected:
        other = there.pop(tensor.name, None)
        name = clipped(tensor.name)
        if other is None:
            found.append(Difference(name, _form(tensor), "none", f"output '{name}' is missing"))
        elif _form(tensor) != _form(other):
            words = f"output '{name}' is {_form(other)}, expected was {_form(tensor)}"
            found.append(Difference(name, _form(tensor), _form(other), words))
        elif (difference := _of_elements(name, tensor, other, tolerance)) is not None:
            found.append(difference)
    for name, tensor in there.items():
        shown = clipped(name)
        found.append(Difference(shown, "none", _form(tensor), f"output '{shown}' was not expected"))
    return found


def _form(tensor: Tensor) -> str:
    return f"{tensor.datatype}{list(tensor.shape)}"


def _of_elements(name: str, expected: Tensor, actual: Tensor, tolerance: Tolerance) -> Difference | None:
    left, right = expected.array.reshape(-1), actual.array.reshape(-1)
    differing, worst, where = 0, -1.0, 0
    for begin in range(0, left.size, AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        wrong, how_far = _compared(expected.datatype, left[part], right[part], tolerance)
        count = int(wrong.sum())
        if count:
            differing += count
            place = int(np.argmax(np.where(wrong, how_far, -1.0)))
            if how_far[place] > worst:
                worst, where = float(how_far[place]), begin + place
    if not differing:
        return None
    wanted, came = _shown(expected.datatype, left[where]), _shown(expected.datatype, right[where])
    at = [int(one) for one in np.unravel_index(where, expected.shape)] if expected.shape else []
    first = "the first one" if math.isinf(worst) or expected.datatype not in _FRACTIONS else "the worst one"
    words = f"output '{name}': {differing} of {left.size} elements differ; {first} is {came} at {at}, expected was {wanted}"
    return Difference(name, wanted, came, words)


def _compared(datatype: str, left: Array, right: Array, tolerance: Tolerance) -> tuple[Array, Array]:
    """Return which elements differ, and how far they are apart."""
    if datatype not in _FRACTIONS:
        wrong = np.asarray(left != right, dtype=np.bool_)
        return wrong, wrong.astype(np.float64)
    one, other = _numbers(datatype, left), _numbers(datatype, right)
    with np.errstate(invalid="ignore", over="ignore"):
        far = np.abs(one - other)
        same = (far <= tolerance.absolute + tolerance.relative * np.abs(one)) & np.isfinite(far)
    same |= (one == other) | (np.isnan(one) & np.isnan(other))
    return ~same, np.where(np.isnan(far), np.inf, far)


def _numbers(datatype: str, array: Array) -> Array:
    if datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _shown(datatype: str, item: object) -> str:
    if datatype == "BF16":
        item = _numbers("BF16", np.array([item], np.uint16))[0]
    if isinstance(item, bytes):
        return repr(item[:SHOWN]) + ("…" if len(item) > SHOWN else "")
    return clipped(str(item), SHOWN)

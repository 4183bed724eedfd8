"""Memory is private: who may pass on an array as it is, and when it has to be copied.

An array that a model hands over is copied unless nobody but us can see its memory any more. Small ones are copied always,
which is cheaper than to reason about. For large ones the reference counts tell: of the tensor, of what holds it, of the
array, and of the arrays that it is a view of. What counts mean "nobody else" differs between Python versions, so they are
measured when the package is imported. What is copied is counted, by the handover (copies.py); tests hold it.
"""

from __future__ import annotations

import sys
from sys import getrefcount
from typing import Any

import numpy as np

from kernel import Tensor as CoreTensor
from kernel import as_bytes_array
from kernel_python.api.copies import COPIES
from kernel_python.api.tensors import Tensor

__all__ = ["NEVER", "SMALL", "Handover", "hand_over", "measure"]

Array = np.ndarray[Any, Any]

#: Arrays up to this many bytes are always copied.
SMALL = 4096
_ndarray = np.ndarray


class Handover:
    """Code where arrays change hands: its name in COPIES, and the counts that mean "nobody but us" there.

    `holder`: of what holds the tensors. `tensor`: of a tensor. None until measured (see calibration.py), NEVER where the
    counts can't tell, as without the interpreter lock. `takes`: the tensor lives on, unseen by the model, and gives its array
    away: or it would look like somebody who still holds it.
    """

    __slots__ = ("holder", "name", "takes", "tensor")

    def __init__(self, name: str, takes: bool = False) -> None:
        self.name = name
        self.takes = takes
        self.holder: int | None = None
        self.tensor = 0


NEVER = -1
_TAKEN: Array = np.empty(0, np.uint8)


def hand_over(tensor: Tensor, holders: int, handover: Handover, own: dict[str, CoreTensor] | None, zero_copy: bool) -> Array:
    """Return the tensor's array for somebody else to own: itself where nobody else sees its memory, else a copy.

    For large arrays and strings; small ones are copied by the caller. `holders`: the reference count of what holds the
    tensor, at most `handover.holder` when it is only us. `own`: the inputs of the request that is being answered; one of them may
    go out as it came in. Called with the tensor in one local variable of the caller.
    """
    array = tensor._array
    if array.dtype.kind == "O":
        if zero_copy or array.nbytes <= SMALL or set(map(type, array.ravel().tolist())) != {bytes}:
            return as_bytes_array(array)
    elif array.dtype.kind in "SU":
        return as_bytes_array(array)
    if zero_copy:
        array = array.view()
        array.flags.writeable = False
        COPIES.passed += 1
        return array
    del array
    if handover.holder is None:
        handover.holder, handover.tensor = holders, getrefcount(tensor)
    if holders <= handover.holder and getrefcount(tensor) <= handover.tensor and _unseen(tensor, own):
        COPIES.passed += 1
        array = tensor._array
        if handover.takes:
            tensor._array = _TAKEN
        return array
    setattr(COPIES, handover.name, getattr(COPIES, handover.name) + 1)
    return tensor._array.copy()


def _unseen(tensor: Tensor, own: dict[str, CoreTensor] | None) -> bool:
    """Whether nobody but the tensor (and the request that is being answered) can see the memory of its array."""
    received = own is not None and any(one.array is tensor._array for one in own.values())
    if getrefcount(tensor._array) > _ARRAY_ALONE + received:
        return False
    base: Any = tensor._array.base
    while base is not None:
        if type(base) is not _ndarray:
            # The memory belongs to another object (a torch tensor, a mapped file, a buffer), and who sees that can't be counted.
            # Two cases are safe: it came with the request, which owns the memory of its arrays; or it is bytes, which nobody
            # can write to.
            return received or type(base) is bytes
        if getrefcount(base) > _BASE_ALONE:
            return False
        base = base.base
    return True


# The reference counts of an array, and of an array that another is a view of, when nobody else holds them. `measure` takes each
# by the same expression that `_unseen` compares with it, since what an expression itself holds differs between Pythons.
_ARRAY_ALONE = _BASE_ALONE = sys.maxsize


def measure(tensor: Any) -> None:
    """Measure the counts with a fresh tensor whose array is a view of a fresh array."""
    global _ARRAY_ALONE, _BASE_ALONE
    _ARRAY_ALONE = getrefcount(tensor._array)
    base = tensor._array.base
    while base is not None:
        _BASE_ALONE = getrefcount(base)
        base = base.base

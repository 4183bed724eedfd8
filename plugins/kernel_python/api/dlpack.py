"""DLPack and dtypes: what arrays of others a Tensor can be made of, and the words for those it can't.

numpy speaks DLPack, except for bfloat16, which travels as uint16 with the type code rewritten in the capsule.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from kernel import datatype_of
from kernel_python.faults import TritonModelException, as_text

__all__ = ["array_of", "mark_bf16", "unsupported"]

Array = np.ndarray[Any, Any]

NOT_DLPACK = (
    "Provided tensor is not supported. Tensor must be a DLPack capsule         "
    "or have `__dlpack__` and `__dlpack_device__` attributes"
)

_UINT, _BFLOAT = 1, 4
_DEVICES = (1, 3)  # CPU, and pinned CPU memory


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


# A prototype of our own: the attributes of ctypes.pythonapi's functions belong to everybody.
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _dl_tensor(capsule: Any) -> _DLTensor:
    return _DLTensor.from_address(_pointer(capsule, b"dltensor"))


def mark_bf16(capsule: Any) -> None:
    """Say in the capsule of a uint16 array that its elements are bfloat16."""
    _dl_tensor(capsule).code = _BFLOAT


class _Exporter:
    """Gives a capsule to numpy, which only takes objects that have the two methods."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def array_of(obj: Any) -> tuple[Array, str]:
    """Return the array that `obj` is, and its datatype."""
    if isinstance(obj, np.ndarray) and datatype_of(obj.dtype) == "BF16":  # of ml_dtypes, for which numpy has no capsule
        _check_contiguous(obj)
        return obj.view(np.uint16), "BF16"
    if type(obj).__name__ == "PyCapsule":
        capsule = obj
    elif hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        _check_device(int(obj.__dlpack_device__()[0]))
        capsule = obj.__dlpack__()
    else:
        raise TritonModelException(NOT_DLPACK)
    try:
        head = _dl_tensor(capsule)
    except ValueError as error:
        raise TritonModelException(NOT_DLPACK) from error
    _check_device(head.device_type)
    is_bf16 = head.code == _BFLOAT and head.bits == 16
    if is_bf16:
        head.code = _UINT
    array = np.from_dlpack(_Exporter(capsule, (1, 0)))
    _check_contiguous(array)
    datatype = "BF16" if is_bf16 else datatype_of(array.dtype)
    if datatype is None:
        raise TritonModelException(unsupported("from_dlpack", array.dtype))
    return _writable(array), datatype


def _writable(array: Array) -> Array:
    """Return an array of the same memory that can be written to: numpy can't know that and imports it read-only."""
    if array.flags.writeable or not array.nbytes:
        return array
    memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory.held = array  # type: ignore[attr-defined]
    writable: Array = np.frombuffer(memory, array.dtype).reshape(array.shape)  # type: ignore[call-overload]
    return writable


def _check_contiguous(array: Array) -> None:
    if not array.flags.c_contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )


def _check_device(kind: int) -> None:
    if kind not in _DEVICES:
        raise TritonModelException(f"DLDevice type {kind} is not support by Python backend.")


def unsupported(name: str | bytes, dtype: np.dtype[Any]) -> str:
    """Return the reference's sentence, with what came and what to do about it."""
    if dtype.kind == "c":
        fix = "send the real and imaginary parts as two tensors, or as a last dimension of 2"
    elif dtype.kind in "mM":
        fix = "convert it, e.g. with .astype('int64')"
    elif not dtype.isnative:
        fix = f"convert it to native byte order with .astype('{dtype.newbyteorder('=').str[1:]}')"
    else:
        fix = "convert it with .astype() to one of bool, int8-64, uint8-64, float16-64 or object (strings)"
    return f"NumPy dtype is not supported. Tensor '{as_text(name)}' has dtype '{dtype}' ({dtype.str}); {fix}."

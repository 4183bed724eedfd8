"""pb_utils.Tensor: a name and a numpy array, as models make them and as they receive them (contract: python_backend, 1.2).

Holds the rule of what a received array may be used for; who may pass an array on without a copy is memory.py's business.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernel import DATATYPES, datatype_of
from kernel import Tensor as CoreTensor
from kernel_python.api.copies import COPIES
from kernel_python.api.dlpack import array_of, mark_bf16, unsupported
from kernel_python.faults import TritonModelException, as_text, incompatible

__all__ = ["DATATYPE_NUMBERS", "Tensor", "received"]

Array = np.ndarray[Any, Any]

_NAMES = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 BYTES BF16"
#: Datatype -> number in the reference's enum, 1 to 14.
DATATYPE_NUMBERS = {name: number for number, name in enumerate(_NAMES.split(), 1)}

SIGNATURE = "c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)"
_ndarray = np.ndarray
_DATATYPES = {dtype: name for name, dtype in DATATYPES.items() if name != "BF16"}
_new = object.__new__
_MISSING: Any = object()

# What `as_numpy` still has to do: nothing; look at a received array; give a read-only view of it; refuse (BF16).
_PLAIN, _RECEIVED, _VIEW, _BF16 = range(4)


class Tensor:
    """`Tensor(name, array)`. Shares memory with `array`, unless that is not C-contiguous.

    Raises TritonModelException for an empty name and for dtypes that no datatype stands for. String arrays may hold `str`,
    `bytes` or any objects (their `str()` counts); `<U` and `S` arrays are strings too. Arrays of `ml_dtypes.bfloat16` are BF16.
    """

    __slots__ = ("_array", "_datatype", "_name", "_state")
    __module__ = "c_python_backend_utils"

    _name: str
    _array: Array
    _datatype: str
    _state: int

    def __init__(self, name: str = _MISSING, array: Array = _MISSING, /, *rest: Any, **named: Any) -> None:
        if type(array) is _ndarray and type(name) is str and name and not rest and not named:
            datatype = _DATATYPES.get(array.dtype)
            if datatype is not None and array.flags.c_contiguous:
                self._name = name
                self._array = array
                self._datatype = datatype
                self._state = _PLAIN
                return
        self._init(name, array, rest, named)

    def _init(self, name: Any, array: Any, rest: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Look closer at arguments that are not just a name and a contiguous array of a known dtype."""
        if not isinstance(array, _ndarray) or not isinstance(name, (str, bytes)) or rest or named:
            raise incompatible("__init__", SIGNATURE, [x for x in (name, array, *rest) if x is not _MISSING], named)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype = datatype_of(array.dtype)
        if datatype is None:
            raise TritonModelException(unsupported(name, array.dtype))
        if type(array) is not _ndarray:
            array = np.asarray(array)
        if not array.flags.c_contiguous:
            array = array.copy()
        is_bf16 = datatype == "BF16"  # of ml_dtypes
        self._name = name if type(name) is str else as_text(name)
        self._array = array.view(np.uint16) if is_bf16 else array
        self._datatype = datatype
        self._state = _BF16 if is_bf16 else _PLAIN

    def name(self) -> str:
        """Return the tensor's name."""
        return self._name

    def as_numpy(self) -> Array:
        """Return the array; that of a received tensor is writable and nobody else's (with zero_copy: read-only, shared).

        The elements of a received string tensor are `bytes`. Raises TritonModelException for BF16, which numpy lacks.
        """
        if self._state:
            self._look()
        return self._array

    def _look(self) -> None:
        if self._datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        if self._state == _VIEW:
            view = self._array.view()
            view.flags.writeable = False
            self._array = view
        elif not self._array.flags.writeable:
            # Read-only means that others see this memory too: whoever wants to write gets his own.
            self._array = self._array.copy()
            COPIES.received += 1
        self._state = _PLAIN

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """For `numpy.asarray(tensor)`, which is `as_numpy()`; BF16 comes as `ml_dtypes.bfloat16`, where that is installed."""
        array = self._bfloat16() if self._datatype == "BF16" else self.as_numpy()
        return np.array(array, dtype) if copy else np.asarray(array, dtype)

    def _bfloat16(self) -> Array:
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            raise TritonModelException(
                f"Tensor '{self._name}' is BF16, which numpy lacks: install the package ml_dtypes, or use to_dlpack()."
            ) from None
        if not self._array.flags.writeable and self._state != _VIEW:
            self._array = self._array.copy()
        return self._array.view(bfloat16)

    def shape(self) -> list[int]:
        """Return the shape, `[]` for a scalar."""
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """Return the number of the datatype, 1 (BOOL) to 14 (BF16)."""
        return DATATYPE_NUMBERS[self._datatype]

    def is_cpu(self) -> bool:
        """Whether the tensor lies in CPU memory: always."""
        return True

    def to_dlpack(self) -> Any:
        """Return a PyCapsule named `dltensor` that shares the tensor's memory, and holds the tensor."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._state not in (_PLAIN, _BF16) and self._datatype != "BF16":
            self._look()
        array = self._array
        if not array.flags.writeable:  # numpy exports no read-only memory; DLPack has no word for it
            array = array.copy()
        capsule = np.asarray(_Held(self, array)).__dlpack__()
        if self._datatype == "BF16":
            mark_bf16(capsule)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @staticmethod
    def from_dlpack(name: str = _MISSING, obj: Any = _MISSING, /, *rest: Any, **named: Any) -> Tensor:
        """Make a tensor of a DLPack capsule or of anything that has `__dlpack__` and `__dlpack_device__`, sharing its memory."""
        if not isinstance(name, (str, bytes)) or obj is _MISSING or rest or named:
            given = [x for x in (name, obj, *rest) if x is not _MISSING]
            signature = "(self: str, arg0: object) -> c_python_backend_utils.Tensor"
            raise incompatible("from_dlpack", signature, given, named)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        array, datatype = array_of(obj)
        tensor: Tensor = Tensor.__new__(Tensor)
        tensor._name = name if type(name) is str else as_text(name)
        tensor._array = array
        tensor._datatype = datatype
        tensor._state = _BF16 if datatype == "BF16" else _PLAIN
        return tensor


class _Held:
    """What numpy makes an array of that holds its Tensor: as long as the capsule of one lives, the Tensor does."""

    __slots__ = ("__array_interface__", "array", "tensor")

    def __init__(self, tensor: Tensor, array: Array) -> None:
        self.tensor = tensor
        self.array = array  # the tensor's own, or a copy where that is read-only
        self.__array_interface__ = array.__array_interface__


def received(core: CoreTensor, zero_copy: bool) -> Tensor:
    """Return the pb Tensor of a tensor that somebody has handed to a model."""
    tensor: Tensor = _new(Tensor)
    tensor._name = core.name
    tensor._array = array = core.array
    tensor._datatype = datatype = core.datatype
    if zero_copy or datatype == "BF16" or not array.flags.writeable:
        tensor._state = _VIEW if zero_copy else _RECEIVED
    else:
        tensor._state = _PLAIN
    return tensor

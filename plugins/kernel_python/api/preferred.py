"""pb_utils.PreferredMemory: where the outputs of a BLS call should lie (contract: python_backend, 1.12).

CPU works everywhere; what asks for a GPU where outputs lie on none is answered by an error response (bls.py).
"""

from __future__ import annotations

import operator
from typing import Any

from kernel_python.faults import PybindEnum, incompatible

__all__ = ["MemoryType", "PreferredMemory"]

_MISSING: Any = object()
_SIGNATURE = (
    "c_python_backend_utils.PreferredMemory(preferred_memory_type: triton::backend::python::PreferredMemory::MemoryType, "
    "preferred_device_id: int = 0)"
)


class MemoryType(PybindEnum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


MemoryType.__module__ = "c_python_backend_utils"


class PreferredMemory:
    """`PreferredMemory(TRITONSERVER_MEMORY_CPU or …_GPU, device_id=0)`."""

    __slots__ = ("_device", "_type")
    __module__ = "c_python_backend_utils"

    def __init__(
        self, preferred_memory_type: MemoryType = _MISSING, preferred_device_id: int = 0, *rest: Any, **unknown: Any
    ) -> None:
        try:
            if rest or unknown or not isinstance(preferred_memory_type, MemoryType):
                raise TypeError
            self._device = operator.index(preferred_device_id)
        except TypeError:
            given: list[Any] = [] if preferred_memory_type is _MISSING else [preferred_memory_type]
            if preferred_device_id != 0 or rest:
                given += [preferred_device_id, *rest]
            raise incompatible("__init__", _SIGNATURE, given, unknown) from None
        self._type = preferred_memory_type

    @property
    def is_cpu(self) -> bool:
        return self._type is MemoryType.TRITONSERVER_MEMORY_CPU

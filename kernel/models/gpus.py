"""Which GPUs there are for instances: those that CUDA's driver shows this process and that are not too old.

Asks the driver's library by ctypes, so that nothing has to be installed for it; whether a backend can compute there is the
backend's business.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["LEAST_COMPUTE_CAPABILITY", "usable_gpus", "without_gpus"]

#: What the reference asks for, unless told otherwise: major and minor number.
LEAST_COMPUTE_CAPABILITY = (6, 0)

_MAJOR, _MINOR = 75, 76  # of CUdevice_attribute


def usable_gpus(library: Callable[[str], Any] = ctypes.CDLL) -> tuple[int, ...]:
    """Return the ids of the GPUs by CUDA's own count, which heeds CUDA_VISIBLE_DEVICES; none where there is no driver."""
    try:
        cuda = library("libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(gpu for gpu in range(count.value) if _compute_capability(cuda, gpu) >= LEAST_COMPUTE_CAPABILITY)


def _compute_capability(cuda: Any, gpu: int) -> tuple[int, int]:
    """Return what the driver says about one GPU, (0, 0) where it says nothing."""
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if (
        cuda.cuDeviceGet(ctypes.byref(device), gpu)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    ):
        return 0, 0
    return major.value, minor.value


def without_gpus(backends: Mapping[str, object]) -> list[str]:
    """Return the names of the backends that say of themselves that they compute on no GPU (Backend, interfaces.py)."""
    return [name for name, backend in backends.items() if not getattr(backend, "uses_gpus", True)]

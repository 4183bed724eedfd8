"""The module `c_python_backend_utils`: what the reference's classes say they come from, and what some models import from.

It has no file there either, so it is made here, and is in sys.modules as soon as `triton_python_backend_utils` can be. By it
exceptions and enums of pb_utils are pickled. Also in children.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from kernel_python.api.iterator import ResponseIterator
from kernel_python.api.logger import Logger
from kernel_python.api.metrics import Metric, MetricFamily, MetricKind
from kernel_python.api.model_control import is_model_ready, load_model, unload_model
from kernel_python.api.preferred import MemoryType, PreferredMemory
from kernel_python.api.requests import InferenceRequest, InferenceTrace
from kernel_python.api.responses import InferenceResponse, TritonError
from kernel_python.api.sender import InferenceResponseSender
from kernel_python.api.tensors import Tensor
from kernel_python.calling import calling_site
from kernel_python.faults import TritonModelException

__all__ = ["SharedMemory"]

NAME = "c_python_backend_utils"
UNUSED = 1 << 20  # bytes: the size with which the reference's shared memory begins


class SharedMemory:
    """The memory through which tensors leave a model: `shared_memory` is the one there is."""

    __slots__ = ()
    __module__ = NAME

    def __new__(cls) -> SharedMemory:
        raise TypeError(f"{NAME}.SharedMemory: No constructor defined!")

    def free_memory(self) -> int:
        """Return how many bytes of it nobody holds. A model in the server needs none: of its memory nothing is ever taken."""
        site = calling_site()
        pool = None if site is None else getattr(site[0].kernel, "pool", None)
        return UNUSED if pool is None else int(pool.free)


def _made() -> types.ModuleType:
    module = types.ModuleType(NAME)
    classes: list[Any] = [
        InferenceRequest, InferenceResponse, InferenceResponseSender, InferenceTrace, Logger, MemoryType, Metric, MetricFamily,
        MetricKind, PreferredMemory, ResponseIterator, SharedMemory, Tensor, TritonError, TritonModelException, is_model_ready,
        load_model, unload_model,
    ]  # fmt: skip
    for one in classes:
        setattr(module, one.__name__, one)
    for value in (*MetricKind, *MemoryType):
        setattr(module, value.name, value)
    module.__dict__["shared_memory"] = object.__new__(SharedMemory)
    return module


sys.modules.setdefault(NAME, _made())

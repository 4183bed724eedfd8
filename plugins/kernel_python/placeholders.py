"""Names of triton_python_backend_utils whose feature is not there yet. They say so when used; none pretends to work.

`PreferredMemory` is whole for what a machine without GPU can do: CPU works, GPU makes the BLS call an error response.
"""

from __future__ import annotations

from typing import Any

from kernel import ServingError
from kernel_python.calling import calling_instance
from kernel_python.faults import PybindEnum, TritonModelException

__all__ = ["MemoryType", "MetricFamily", "PreferredMemory", "is_model_ready", "load_model", "unload_model"]


class MemoryType(PybindEnum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


MemoryType.__module__ = "c_python_backend_utils"


class PreferredMemory:
    """Where the outputs of a BLS call should lie."""

    __slots__ = ("_device", "_type")
    __module__ = "c_python_backend_utils"

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self._type = preferred_memory_type
        self._device = preferred_device_id

    @property
    def is_cpu(self) -> bool:
        return self._type is MemoryType.TRITONSERVER_MEMORY_CPU


class MetricFamily:
    """Custom metrics."""

    __module__ = "c_python_backend_utils"

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TritonModelException("Error when creating MetricFamily: custom metrics of models are not supported yet.")


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether the model (the given version, by default any) is ready."""
    kernel = calling_instance("is_model_ready").kernel
    try:
        return bool(kernel.is_model_ready(model_name, model_version))
    except ServingError as error:
        raise TritonModelException(f"Failed to check model readiness: {error.message}") from error


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model."""
    raise TritonModelException(f"Failed to load model: loading '{model_name}' from a model is not supported yet.")


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model."""
    raise TritonModelException(f"Failed to unload model: unloading '{model_name}' from a model is not supported yet.")

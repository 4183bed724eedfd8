"""GPUs, asked through NVML (package nvidia-ml-py) where that and the driver are there. Calls may take milliseconds: on a thread.

A figure that a GPU doesn't give (a slice of one has no power of its own, say) is left out; the others are shown. Which GPU a
model's instances are on is another question, of CUDA's own count of GPUs: its driver is asked for that.
"""

from __future__ import annotations

import ctypes
import logging
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["Gpus", "gpu_uuid"]

log = logging.getLogger("kernel.metrics")


class Gpus:
    """The GPUs of this machine. `nvml`: the module pynvml, initialised."""

    #: Name without `nv_` -> HELP text, in the order of the page.
    FIGURES = {  # noqa: RUF012
        "gpu_utilization": "GPU utilization rate [0.0 - 1.0)",
        "gpu_memory_total_bytes": "GPU total memory, in bytes",
        "gpu_memory_used_bytes": "GPU used memory, in bytes",
        "gpu_power_usage": "GPU power usage in watts",
        "gpu_power_limit": "GPU power management limit in watts",
        "energy_consumption": "GPU energy consumption in joules since the Triton Server started",
    }

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._devices: list[tuple[str, Any]] = []
        self._joules_at_start: dict[str, float] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name = nvml.nvmlDeviceGetUUID(handle)
            name = name.decode() if isinstance(name, bytes) else name
            self._devices.append((name, handle))
            start = self._ask(partial(self._joules, handle))
            if start is not None:
                self._joules_at_start[name] = start

    @classmethod
    def find(cls) -> Gpus | None:
        """Return the GPUs, None where there are none or nothing can ask them."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            found = cls(pynvml)
        except Exception as error:  # no driver, or no right to ask it
            log.info("no GPU metrics: %s", error)
            return None
        return found if found._devices else None

    def read(self) -> list[tuple[str, dict[str, float]]]:
        """Return the figures of each GPU by its UUID."""
        return [(name, self._figures(name, handle)) for name, handle in self._devices]

    def _joules(self, handle: Any) -> float:
        joules: float = self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        return joules

    def _figures(self, name: str, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        questions: dict[str, Callable[[], float]] = {
            "gpu_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "gpu_memory_total_bytes": lambda: memory.total,
            "gpu_memory_used_bytes": lambda: memory.used,
            "gpu_power_usage": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "gpu_power_limit": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
            "energy_consumption": lambda: self._joules(handle) - self._joules_at_start[name],
        }
        answers = {figure: self._ask(question) for figure, question in questions.items()}
        return {figure: value for figure, value in answers.items() if value is not None}

    @staticmethod
    def _ask(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception:  # NVML_ERROR_NOT_SUPPORTED and the like: NVML has an exception for each
            return None


def gpu_uuid(gpu: int, library: Callable[[str], Any] = ctypes.CDLL) -> str | None:
    """Return the UUID of a GPU by its id in a model's configuration, such as `GPU-340cec52-80ba-c0df-8511-5f9680aae0ed`."""
    try:
        cuda = library("libcuda.so.1")
        device, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), gpu) or cuda.cuDeviceGetUuid(found, device):
            return None
    except (OSError, AttributeError):  # no driver, or one without the question
        return None
    return f"GPU-{uuid.UUID(bytes=bytes(found))}"

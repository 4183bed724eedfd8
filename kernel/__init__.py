"""kernel: a model server that keeps Triton's contract, in one asyncio process.

The public names. Plugins and apps import from here and nowhere deeper; importing starts nothing.
"""

from __future__ import annotations

from kernel.batch import Batch
from kernel.config import ConfigError, ConfigErrors, EnsembleStep, Key, ModelConfig, TensorSpec, with_changes
from kernel.errors import Code, Reason, ServingError
from kernel.hookspecs import hookimpl
from kernel.interfaces import Backend, Executor, Frontend, InstanceContext, Placement, Result
from kernel.model import Model, ModelState
from kernel.registry import ModelIndex
from kernel.request import InferenceRequest, InferenceResponse, RequestState, Respond
from kernel.server import Kernel
from kernel.statistics import Duration, ModelStatistics
from kernel.tensor import DATATYPES, Tensor, as_bytes_array, datatype_of, pack_bytes, unpack_bytes

__version__ = "0.1.0"

__all__ = [
    "DATATYPES",
    "Backend",
    "Batch",
    "Code",
    "ConfigError",
    "ConfigErrors",
    "Duration",
    "EnsembleStep",
    "Executor",
    "Frontend",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceContext",
    "Kernel",
    "Key",
    "Model",
    "ModelConfig",
    "ModelIndex",
    "ModelState",
    "ModelStatistics",
    "Placement",
    "Reason",
    "RequestState",
    "Respond",
    "Result",
    "ServingError",
    "Tensor",
    "TensorSpec",
    "as_bytes_array",
    "datatype_of",
    "hookimpl",
    "pack_bytes",
    "unpack_bytes",
    "with_changes",
]

"""kernel: a model server that keeps Triton's contract, in one asyncio process.

The public names. Plugins and apps import from here and nowhere deeper; importing starts nothing.
"""

from __future__ import annotations

from kernel import frontend_options
from kernel.batch import Batch
from kernel.classification import classify
from kernel.config import ConfigError, ConfigErrors, EnsembleStep, Key, ModelConfig, TensorSpec, with_changes
from kernel.connections import Connections, ListeningFrontend
from kernel.contents import size_mismatch, stand_in, strings_of, unpacked
from kernel.errors import Code, Reason, ServingError
from kernel.hookspecs import hookimpl
from kernel.instance import SKIPPED
from kernel.interfaces import Backend, Executor, Frontend, InstanceContext, Placement, RemoteExecutor, Result
from kernel.listening import Listener, Place
from kernel.metadata import EXTENSIONS, ModelMetadata, TensorMetadata, model_metadata
from kernel.model import Model, ModelState
from kernel.registry import ModelIndex
from kernel.remote import RemoteInstance
from kernel.request import InferenceRequest, InferenceResponse, RequestState, Respond
from kernel.restriction import CATEGORIES, parse_restrictions
from kernel.server import Kernel
from kernel.settings import LOG_FORMATS, LogSettings, TraceOptions, TraceSettings
from kernel.shared_memory import CudaSharedMemory, Region, SharedMemory, Span
from kernel.statistics import Duration, ModelStatistics
from kernel.tensor import DATATYPES, Tensor, as_bytes_array, datatype_of, pack_bytes, unpack_bytes
from kernel.tls import server_context
from kernel.watching import Reload

__version__ = "0.1.0"

__all__ = [
    "CATEGORIES",
    "DATATYPES",
    "EXTENSIONS",
    "LOG_FORMATS",
    "SKIPPED",
    "Backend",
    "Batch",
    "Code",
    "ConfigError",
    "ConfigErrors",
    "Connections",
    "CudaSharedMemory",
    "Duration",
    "EnsembleStep",
    "Executor",
    "Frontend",
    "InferenceRequest",
    "InferenceResponse",
    "InstanceContext",
    "Kernel",
    "Key",
    "Listener",
    "ListeningFrontend",
    "LogSettings",
    "Model",
    "ModelConfig",
    "ModelIndex",
    "ModelMetadata",
    "ModelState",
    "ModelStatistics",
    "Place",
    "Placement",
    "Reason",
    "Region",
    "Reload",
    "RemoteExecutor",
    "RemoteInstance",
    "RequestState",
    "Respond",
    "Result",
    "ServingError",
    "SharedMemory",
    "Span",
    "Tensor",
    "TensorMetadata",
    "TensorSpec",
    "TraceOptions",
    "TraceSettings",
    "as_bytes_array",
    "classify",
    "datatype_of",
    "frontend_options",
    "hookimpl",
    "model_metadata",
    "pack_bytes",
    "parse_restrictions",
    "server_context",
    "size_mismatch",
    "stand_in",
    "strings_of",
    "unpack_bytes",
    "unpacked",
    "with_changes",
]

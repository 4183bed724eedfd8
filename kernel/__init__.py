"""kernel: a model server that keeps Triton's contract, in one asyncio process.

The public names. Plugins and apps import from here and nowhere deeper; importing starts nothing.
"""

from __future__ import annotations

from kernel.config import ConfigError, ConfigErrors, EnsembleStep, Key, ModelConfig, TensorSpec, with_changes
from kernel.errors import Code, ModelError, Reason, ServingError
from kernel.frontends import options as frontend_options
from kernel.frontends.classification import classify
from kernel.frontends.connections import Connections, ListeningFrontend, peer_name
from kernel.frontends.contents import size_mismatch, stand_in, strings_of, unpacked
from kernel.frontends.listening import Listener, Place
from kernel.frontends.metadata import EXTENSIONS, ModelMetadata, TensorMetadata, model_metadata
from kernel.frontends.restriction import CATEGORIES, parse_restrictions
from kernel.frontends.shared_memory import CudaSharedMemory, Region, SharedMemory, Span
from kernel.frontends.tls import server_context
from kernel.hookspecs import hookimpl
from kernel.instances.instance import SKIPPED
from kernel.instances.remote import RemoteInstance
from kernel.interfaces import (
    Backend,
    Batcher,
    Cache,
    Executor,
    Frontend,
    InstanceContext,
    Observer,
    Placement,
    PlacementChoice,
    Record,
    RemoteExecutor,
    Result,
)
from kernel.local import Local
from kernel.models.cache_stage import CacheFigures
from kernel.models.life import ModelState
from kernel.models.model import Model
from kernel.observability.custom_metrics import (
    CustomMetrics,
    FamilySnapshot,
    Metric,
    MetricFamily,
    MetricKind,
    SeriesSnapshot,
)
from kernel.observability.settings import LOG_FORMATS, LogSettings, TraceOptions, TraceSettings
from kernel.observability.statistics import Duration, ModelStatistics, StatisticsCounter
from kernel.observability.trace import Trace, TraceSink
from kernel.registry.entries import Failure
from kernel.registry.registry import ModelIndex
from kernel.registry.watching import Reload
from kernel.requests.request import (
    RESCHEDULED,
    Batch,
    InferenceRequest,
    InferenceResponse,
    RequestState,
    Respond,
    log_ids,
    nobody,
)
from kernel.rules.response_cache import CacheUsage, LocalCache, StoredResponse, StoredTensor
from kernel.scheduling.inflight import InflightRequest
from kernel.server import Kernel
from kernel.tensor import DATATYPES, Tensor, as_bytes_array, datatype_of, pack_bytes, unpack_bytes
from kernel.watchdog import Watchdog

__version__ = "0.1.0"

__all__ = [
    "CATEGORIES",
    "DATATYPES",
    "EXTENSIONS",
    "LOG_FORMATS",
    "RESCHEDULED",
    "SKIPPED",
    "Backend",
    "Batch",
    "Batcher",
    "Cache",
    "CacheFigures",
    "CacheUsage",
    "Code",
    "ConfigError",
    "ConfigErrors",
    "Connections",
    "CudaSharedMemory",
    "CustomMetrics",
    "Duration",
    "EnsembleStep",
    "Executor",
    "Failure",
    "FamilySnapshot",
    "Frontend",
    "InferenceRequest",
    "InferenceResponse",
    "InflightRequest",
    "InstanceContext",
    "Kernel",
    "Key",
    "Listener",
    "ListeningFrontend",
    "Local",
    "LocalCache",
    "LogSettings",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "Model",
    "ModelConfig",
    "ModelError",
    "ModelIndex",
    "ModelMetadata",
    "ModelState",
    "ModelStatistics",
    "Observer",
    "Place",
    "Placement",
    "PlacementChoice",
    "Reason",
    "Record",
    "Region",
    "Reload",
    "RemoteExecutor",
    "RemoteInstance",
    "RequestState",
    "Respond",
    "Result",
    "SeriesSnapshot",
    "ServingError",
    "SharedMemory",
    "Span",
    "StatisticsCounter",
    "StoredResponse",
    "StoredTensor",
    "Tensor",
    "TensorMetadata",
    "TensorSpec",
    "Trace",
    "TraceOptions",
    "TraceSettings",
    "TraceSink",
    "Watchdog",
    "as_bytes_array",
    "classify",
    "datatype_of",
    "frontend_options",
    "hookimpl",
    "log_ids",
    "model_metadata",
    "nobody",
    "pack_bytes",
    "parse_restrictions",
    "peer_name",
    "server_context",
    "size_mismatch",
    "stand_in",
    "strings_of",
    "unpack_bytes",
    "unpacked",
    "with_changes",
]

"""kernel: a model server that keeps Triton's contract, in one asyncio process.

The public names, in groups by who needs them. Plugins and apps import from here and nowhere deeper; importing starts nothing.
docs/reference.md is made of what stands here and of the docstrings (`python3 dev.py reference`). For tests of models there is
`kernel.testing`.
"""

from __future__ import annotations

from kernel.circles.wait_view import WaitView
from kernel.config import (
    ConfigError,
    ConfigErrors,
    DynamicBatching,
    EnsembleStep,
    FieldOrigin,
    Key,
    ModelConfig,
    QueuePolicy,
    TensorSpec,
    with_changes,
)
from kernel.errors import (
    Code,
    Denial,
    Denied,
    ModelError,
    NotLoaded,
    Overloaded,
    Reason,
    ServingError,
    clipped,
    how_to_install,
)
from kernel.frontends import (
    ANSWER_BYTES_AHEAD,
    ANSWERS_AT_ONCE,
    CATEGORIES,
    EXTENSIONS,
    TRAIL_HEADER,
    Access,
    Account,
    Connections,
    Crowd,
    CudaSharedMemory,
    Endpoint,
    Listener,
    ListeningFrontend,
    MappedMemory,
    MemoryBudget,
    ModelMetadata,
    Region,
    SharedMemory,
    Span,
    TensorMetadata,
    answers_little,
    check_rank,
    check_strings,
    classify,
    cut_off,
    empty_array,
    follow_trail,
    idle_seconds,
    is_local,
    is_much_text,
    is_restricted,
    local_categories,
    made_at_once,
    model_metadata,
    only_local,
    parse_restrictions,
    peer_name,
    server_timing,
    size_mismatch,
    stand_in,
    strings_of,
    trail_of,
    unpacked,
)
from kernel.frontends import options as frontend_options
from kernel.hookspecs import hookimpl
from kernel.instances import Leavable, OwnLoop
from kernel.interfaces import (
    Asking,
    Backend,
    Batcher,
    Cache,
    Document,
    Door,
    Executor,
    Finding,
    Frontend,
    Gate,
    Host,
    HostedModel,
    InstanceContext,
    Observer,
    Placement,
    PlacementChoice,
    Reader,
    Record,
    RemoteExecutor,
    RemoteOwner,
    Result,
    Site,
    SiteRoute,
    Standing,
    Stay,
)
from kernel.local import Local
from kernel.models import CacheFigures, Form, Model, ModelState
from kernel.observability import (
    LOG_FORMATS,
    CustomMetrics,
    Duration,
    Explanation,
    FamilySnapshot,
    Interval,
    LogSettings,
    Metric,
    MetricFamily,
    MetricKind,
    ModelStatistics,
    SeriesSnapshot,
    StatisticsCounter,
    Trace,
    TraceOptions,
    TraceSettings,
    TraceSink,
)
from kernel.options import StorageOptions
from kernel.recording import RecordedError, RecordedRequest
from kernel.registry import Failure, ModelIndex, Reload
from kernel.repository import FetchedFiles, FilesChanged, ModelFolder, Repository, models_of
from kernel.requests import (
    RESCHEDULED,
    SKIPPED,
    Batch,
    InferenceRequest,
    InferenceResponse,
    RequestState,
    Respond,
    log_ids,
    nobody,
)
from kernel.rules import Budget, CacheUsage, LocalCache, StoredResponse, StoredTensor
from kernel.server import (
    AskOthers,
    InflightRequest,
    Kernel,
    ModelScale,
    ObservedCalls,
    ServerScale,
    steered,
    tune_collector,
    tune_process,
    usable_cores,
)
from kernel.tensor import DATATYPES, Tensor, as_bytes_array, copy_bytes, datatype_of, pack_bytes, unpack_bytes
from kernel.watchdog import Watchdog

__version__ = "0.1.0"

__all__: list[str] = []

# Embed: to have models in an app of one's own, to ask them, and what these calls return and raise.
__all__ += [
    "Budget",
    "Code",
    "ConfigError",
    "ConfigErrors",
    "InferenceResponse",
    "Kernel",
    "Local",
    "ModelError",
    "NotLoaded",
    "Overloaded",
    "Reason",
    "ServingError",
    "StorageOptions",
    "Tensor",
]

# Serve: to see and steer what a kernel serves, as `kernel serve` does: states, figures, settings, who holds the loop.
__all__ += [
    "Duration",
    "Explanation",
    "Failure",
    "FieldOrigin",
    "InflightRequest",
    "Interval",
    "LogSettings",
    "ModelIndex",
    "ModelScale",
    "ModelState",
    "ModelStatistics",
    "ObservedCalls",
    "PlacementChoice",
    "Reload",
    "ServerScale",
    "TraceSettings",
    "Watchdog",
    "tune_collector",
    "tune_process",
]

# Every plugin: how it is found, the server as it sees it, a model's config, and requests.
__all__ += [
    "EnsembleStep",
    "Host",
    "HostedModel",
    "InferenceRequest",
    "Key",
    "Model",
    "ModelConfig",
    "RequestState",
    "Respond",
    "TensorSpec",
    "hookimpl",
    "log_ids",
    "nobody",
    "with_changes",
]

# Backends: what runs models, where, and in which batches.
__all__ += [
    "DATATYPES",
    "RESCHEDULED",
    "SKIPPED",
    "Backend",
    "Batch",
    "CustomMetrics",
    "Executor",
    "Finding",
    "InstanceContext",
    "Leavable",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "OwnLoop",
    "Placement",
    "RemoteExecutor",
    "RemoteOwner",
    "Result",
    "WaitView",
    "as_bytes_array",
    "copy_bytes",
    "datatype_of",
    "pack_bytes",
    "unpack_bytes",
    "usable_cores",
]

# Front ends: what takes requests from outside.
__all__ += [
    "ANSWERS_AT_ONCE",
    "ANSWER_BYTES_AHEAD",
    "EXTENSIONS",
    "LOG_FORMATS",
    "TRAIL_HEADER",
    "Access",
    "Account",
    "AskOthers",
    "Connections",
    "Crowd",
    "CudaSharedMemory",
    "Endpoint",
    "Form",
    "Frontend",
    "Listener",
    "ListeningFrontend",
    "MappedMemory",
    "MemoryBudget",
    "ModelMetadata",
    "Region",
    "SharedMemory",
    "Span",
    "TensorMetadata",
    "answers_little",
    "check_rank",
    "check_strings",
    "classify",
    "clipped",
    "cut_off",
    "empty_array",
    "follow_trail",
    "frontend_options",
    "how_to_install",
    "idle_seconds",
    "is_local",
    "is_much_text",
    "is_restricted",
    "local_categories",
    "made_at_once",
    "model_metadata",
    "only_local",
    "parse_restrictions",
    "peer_name",
    "server_timing",
    "size_mismatch",
    "stand_in",
    "steered",
    "strings_of",
    "trail_of",
    "unpacked",
]

# Sites: pages for people, which a front end for HTTP serves.
__all__ += [
    "Document",
    "Reader",
    "Site",
    "SiteRoute",
]

# Gates: who may ask for what.
__all__ += [
    "CATEGORIES",
    "Asking",
    "Denial",
    "Denied",
    "Door",
    "Gate",
    "Standing",
    "Stay",
]

# Response caches: what keeps answers.
__all__ += [
    "Cache",
    "CacheFigures",
    "CacheUsage",
    "LocalCache",
    "StoredResponse",
    "StoredTensor",
]

# Repositories: where models lie that are in no folder of this machine.
__all__ += [
    "FetchedFiles",
    "FilesChanged",
    "ModelFolder",
    "Repository",
    "models_of",
]

# Batchers: what decides which requests go together.
__all__ += [
    "Batcher",
    "DynamicBatching",
    "QueuePolicy",
]

# Trace sinks: where traces go.
__all__ += [
    "Trace",
    "TraceOptions",
    "TraceSink",
]

# Redactors: what of a recorded request must not be told.
__all__ += [
    "RecordedError",
    "RecordedRequest",
]

# Observers: what counts requests, such as a metrics page.
__all__ += [
    "FamilySnapshot",
    "Observer",
    "Record",
    "SeriesSnapshot",
    "StatisticsCounter",
]

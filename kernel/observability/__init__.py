"""What is told of requests: statistics, metrics of models, traces, logs. Changes nothing about them."""

from __future__ import annotations

from kernel.observability.access_log import AccessLog
from kernel.observability.custom_metrics import (
    CustomMetrics,
    FamilySnapshot,
    Metric,
    MetricFamily,
    MetricKind,
    SeriesSnapshot,
)
from kernel.observability.explanation import (
    Explanation,
    Interval,
    PastExecution,
    Ran,
    Traits,
    Waited,
    duration,
    explained,
    waited,
)
from kernel.observability.history import (
    CALLER,
    ENQUEUED,
    ID,
    FailedRequest,
    History,
    ModelHistory,
    Surroundings,
    known_as,
)
from kernel.observability.logs import LogOptions, ProcessLog, set_up_log
from kernel.observability.request_log import RequestTracing
from kernel.observability.settings import (
    LEVELS,
    LOG_FORMATS,
    OFF,
    OPENTELEMETRY,
    RANGES,
    TRITON,
    LogSettings,
    TraceOptions,
    TraceSettings,
)
from kernel.observability.statistics import Duration, ModelStatistics, StatisticsCounter, record_of
from kernel.observability.trace import Trace, TraceSink
from kernel.observability.tracer import APP, Tracer

__all__ = [
    "APP",
    "CALLER",
    "ENQUEUED",
    "ID",
    "LEVELS",
    "LOG_FORMATS",
    "OFF",
    "OPENTELEMETRY",
    "RANGES",
    "TRITON",
    "AccessLog",
    "CustomMetrics",
    "Duration",
    "Explanation",
    "FailedRequest",
    "FamilySnapshot",
    "History",
    "Interval",
    "LogOptions",
    "LogSettings",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelHistory",
    "ModelStatistics",
    "PastExecution",
    "ProcessLog",
    "Ran",
    "RequestTracing",
    "SeriesSnapshot",
    "StatisticsCounter",
    "Surroundings",
    "Trace",
    "TraceOptions",
    "TraceSettings",
    "TraceSink",
    "Tracer",
    "Traits",
    "Waited",
    "duration",
    "explained",
    "known_as",
    "record_of",
    "set_up_log",
    "waited",
]

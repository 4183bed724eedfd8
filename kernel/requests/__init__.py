"""What travels: a request with its continuation, its response, and the batch that executes it. No queue, no clock."""

from __future__ import annotations

from kernel.requests.request import (
    LATER,
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

__all__ = [
    "LATER",
    "RESCHEDULED",
    "SKIPPED",
    "Batch",
    "InferenceRequest",
    "InferenceResponse",
    "RequestState",
    "Respond",
    "log_ids",
    "nobody",
]

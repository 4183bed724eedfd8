"""Decisions: state and `now` in, what is to be done out. No asyncio, no threads, no clock, no files in this room, by test."""

from __future__ import annotations

from kernel.rules.autoscaling import Autoscaler, ScaleDecision, ScaleLoad, ScaleRule
from kernel.rules.batching import BatchRule, fits
from kernel.rules.breaker import Breaker
from kernel.rules.deadlines import Deadlines
from kernel.rules.handover import (
    COST_SECONDS,
    HOP_SECONDS,
    Own,
    PeerLoad,
    Reported,
    UsualTime,
    better_off,
    worth_telling,
)
from kernel.rules.holding import BUSY_SHARE, Blocked, Held, Holding, Notice, Sight, WatchdogRules
from kernel.rules.instance_groups import InstanceSpec, instance_specs, rearranged
from kernel.rules.owners import Owners, rendezvous
from kernel.rules.prediction import ExecutionTime, earliest_start
from kernel.rules.queueing import RequestQueue
from kernel.rules.rate_limiter import Contender, RateLimiter, ResourceLimit, needs_of
from kernel.rules.reasons import Left, WaitReason
from kernel.rules.residency import Budget, Resident, idle_for_long, retry_seconds, who_goes
from kernel.rules.response_cache import (
    CacheUsage,
    LocalCache,
    RequestKeys,
    StoredResponse,
    StoredTensor,
    least_size,
    load_key,
)
from kernel.rules.sequence_state import START, Controls, States, StateValues, null_inputs, zeros
from kernel.rules.sequencing import RequestSequence, Sequencer, SequenceRule

__all__ = [
    "BUSY_SHARE",
    "COST_SECONDS",
    "HOP_SECONDS",
    "START",
    "Autoscaler",
    "BatchRule",
    "Blocked",
    "Breaker",
    "Budget",
    "CacheUsage",
    "Contender",
    "Controls",
    "Deadlines",
    "ExecutionTime",
    "Held",
    "Holding",
    "InstanceSpec",
    "Left",
    "LocalCache",
    "Notice",
    "Own",
    "Owners",
    "PeerLoad",
    "RateLimiter",
    "Reported",
    "RequestKeys",
    "RequestQueue",
    "RequestSequence",
    "Resident",
    "ResourceLimit",
    "ScaleDecision",
    "ScaleLoad",
    "ScaleRule",
    "SequenceRule",
    "Sequencer",
    "Sight",
    "StateValues",
    "States",
    "StoredResponse",
    "StoredTensor",
    "UsualTime",
    "WaitReason",
    "WatchdogRules",
    "better_off",
    "earliest_start",
    "fits",
    "idle_for_long",
    "instance_specs",
    "least_size",
    "load_key",
    "needs_of",
    "null_inputs",
    "rearranged",
    "rendezvous",
    "retry_seconds",
    "who_goes",
    "worth_telling",
    "zeros",
]

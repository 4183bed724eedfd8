"""One loaded version of a model: its config, its instances, the check that each request passes, its way in and out."""

from __future__ import annotations

from kernel.models.admission import Ceiling
from kernel.models.cache_stage import CacheFigures, ResponseCache
from kernel.models.conduct import Conduct
from kernel.models.gpus import usable_gpus, without_gpus
from kernel.models.handover_stage import Away, HandoverStage, Takers
from kernel.models.initial_state import initial_values
from kernel.models.model import Model
from kernel.models.readiness import Readiness
from kernel.models.request_check import Form, RequestCheck
from kernel.models.runtime import Runtime
from kernel.models.scaling import FleetScaling, InstanceScaling, load_of, scaling_of, utilization
from kernel.models.states import ModelState, become
from kernel.models.warmup import give_up, warmup_of
from kernel.models.warmup_samples import Sample, read_samples

__all__ = [
    "Away",
    "CacheFigures",
    "Ceiling",
    "Conduct",
    "FleetScaling",
    "Form",
    "HandoverStage",
    "InstanceScaling",
    "Model",
    "ModelState",
    "Readiness",
    "RequestCheck",
    "ResponseCache",
    "Runtime",
    "Sample",
    "Takers",
    "become",
    "give_up",
    "initial_values",
    "load_of",
    "read_samples",
    "scaling_of",
    "usable_gpus",
    "utilization",
    "warmup_of",
    "without_gpus",
]

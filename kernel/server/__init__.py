"""The façade: what a front end, a model or an embedding app may do with the kernel, and its start and end in their right order.

Nothing here decides: requests go to the model's scheduler, names to the registry.
"""

from __future__ import annotations

from kernel.server.inflight import InflightRequest, client_of
from kernel.server.kernel import Kernel
from kernel.server.recent import ObservedCalls
from kernel.server.scaling import ModelScale, ServerScale
from kernel.server.together import AskOthers, join, steered
from kernel.server.tuning import tune_collector, tune_process, usable_cores

__all__ = [
    "AskOthers",
    "InflightRequest",
    "Kernel",
    "ModelScale",
    "ObservedCalls",
    "ServerScale",
    "client_of",
    "join",
    "steered",
    "tune_collector",
    "tune_process",
    "usable_cores",
]

"""Who executes when, and one final answer for each accepted request. The only timers on a request's way are here."""

from __future__ import annotations

from kernel.scheduling.batchers import chosen_by, held_back
from kernel.scheduling.drain import Drain
from kernel.scheduling.limited_pool import Limits
from kernel.scheduling.output_check import OutputCheck
from kernel.scheduling.queues import BatchingQueue
from kernel.scheduling.release import Release
from kernel.scheduling.scheduler import Scheduler
from kernel.scheduling.sequences import SequenceQueue
from kernel.scheduling.timer import Timer

__all__ = [
    "BatchingQueue",
    "Drain",
    "Limits",
    "OutputCheck",
    "Release",
    "Scheduler",
    "SequenceQueue",
    "Timer",
    "chosen_by",
    "held_back",
]

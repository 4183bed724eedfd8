"""What is counted about one model version, and the immutable record of it.

Counts and sums only, in the reference's categories (observability, section 1.2); no averages, no output format. Durations
are added as seconds and leave as integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel.batch import Batch
from kernel.errors import Reason

FOLD = 256  # executions that are noted before they are added up

__all__ = ["Duration", "ModelStatistics", "StatisticsCounter"]


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened and how long it took in all, in nanoseconds."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """A snapshot of one model version's counters.

    `last_inference_ms`: wall clock, milliseconds since the epoch, 0 before the first. `batch_stats`: rows of an execution ->
    compute input, infer and output durations per execution. `failures`: reason -> requests.
    """

    name: str
    version: int
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()
    response_stats: dict[str, dict[str, Duration]] = field(default_factory=dict)
    batch_stats: dict[int, tuple[Duration, Duration, Duration]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)


class StatisticsCounter:
    """The running counters. Only the scheduler writes, on the loop."""

    __slots__ = (
        "_ones",
        "batches",
        "compute_infer",
        "compute_input",
        "compute_output",
        "execution_count",
        "fail",
        "fail_time",
        "failures",
        "inference_count",
        "last_inference",
        "queue_time",
        "success",
        "success_time",
    )

    def __init__(self) -> None:
        self.last_inference = 0.0
        self.inference_count = 0
        self.execution_count = 0
        self.success = 0
        self.success_time = 0.0
        self.fail = 0
        self.fail_time = 0.0
        self.queue_time = 0.0
        self.compute_input = 0.0
        self.compute_infer = 0.0
        self.compute_output = 0.0
        self.batches: dict[int, list[float]] = {}
        self._ones: list[tuple[int, float, float, float, float, float]] = []  # executions not yet added up
        self.failures: dict[Reason, int] = dict.fromkeys(Reason, 0)

    def executed(self, batch: Batch) -> None:
        """Count one execution of the backend."""
        self.execution_count += 1
        entry = self.batches.get(batch.size)
        if entry is None:
            entry = self.batches[batch.size] = [0, 0.0, 0.0, 0.0]
        input_ended, output_started = batch.input_ended, batch.output_started
        entry[0] += 1
        entry[1] += input_ended - batch.started
        entry[2] += output_started - input_ended
        entry[3] += batch.ended - output_started

    def executed_one(self, batch: Batch, enqueued: float) -> None:
        """As `executed`, and as `succeeded` for the one request of the batch. Added up later, many at a time."""
        ones = self._ones
        ones.append((batch.size, enqueued, batch.started, batch.input_ended, batch.output_started, batch.ended))
        if len(ones) >= FOLD:
            self._fold()

    def _fold(self) -> None:
        success_time = queue_time = compute_input = compute_infer = compute_output = 0.0
        batches = self.batches
        ones, self._ones = self._ones, []
        ended = self.last_inference
        for rows, enqueued, started, input_ended, output_started, ended in ones:
            first, second, third = input_ended - started, output_started - input_ended, ended - output_started
            entry = batches.get(rows)
            if entry is None:
                entry = batches[rows] = [0, 0.0, 0.0, 0.0]
            entry[0] += 1
            entry[1] += first
            entry[2] += second
            entry[3] += third
            self.inference_count += rows
            success_time += ended - enqueued
            queue_time += started - enqueued
            compute_input += first
            compute_infer += second
            compute_output += third
        self.execution_count += len(ones)
        self.success += len(ones)
        self.last_inference = max(ended, self.last_inference)
        self.success_time += success_time
        self.queue_time += queue_time
        self.compute_input += compute_input
        self.compute_infer += compute_infer
        self.compute_output += compute_output

    def succeeded(self, rows: int, enqueued: float, batch: Batch, now: float) -> None:
        """Count one request that `batch` has answered `now`; the batch's own times may be sums instead (ensembles)."""
        started, input_ended, output_started = batch.started, batch.input_ended, batch.output_started
        self.last_inference = now
        self.inference_count += rows
        self.success += 1
        self.success_time += now - enqueued
        self.queue_time += started - enqueued
        self.compute_input += input_ended - started
        self.compute_infer += output_started - input_ended
        self.compute_output += batch.ended - output_started

    def failed(self, reason: Reason, seconds: float, times: int = 1) -> None:
        """Count one accepted request that failed. `times` 2: an ensemble, whose failures the reference counts twice."""
        self.fail += times
        self.fail_time += seconds * times
        self.failures[reason] += times

    def snapshot(self, name: str, version: int, epoch_offset: float) -> ModelStatistics:
        """Return the counters as a record; `epoch_offset` turns the kernel's clock into seconds since the epoch."""
        self._fold()
        return ModelStatistics(
            name=name,
            version=version,
            last_inference_ms=int((self.last_inference + epoch_offset) * 1000) if self.last_inference else 0,
            inference_count=self.inference_count,
            execution_count=self.execution_count,
            success=_duration(self.success, self.success_time),
            fail=_duration(self.fail, self.fail_time),
            queue=_duration(self.success, self.queue_time),
            compute_input=_duration(self.success, self.compute_input),
            compute_infer=_duration(self.success, self.compute_infer),
            compute_output=_duration(self.success, self.compute_output),
            batch_stats={
                size: (_duration(count, one), _duration(count, two), _duration(count, three))
                for size, (count, one, two, three) in sorted(self.batches.items())
            },
            failures={reason.value: count for reason, count in self.failures.items()},
        )


def _duration(count: float, seconds: float) -> Duration:
    return Duration(int(count), max(0, round(seconds * 1e9)))

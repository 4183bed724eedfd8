"""What is counted about one model version, and the immutable record of it.

Counts and sums only, in the reference's categories (observability, section 1.2); no averages, no output format. Durations
are added as seconds and leave as integer nanoseconds. Who wants more than sums is an Observer, and is handed a record of each
request, many records in one call; while there is no Observer, that costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from math import fsum
from operator import attrgetter, itemgetter, sub

from kernel.errors import Reason
from kernel.interfaces import Observer, PlacementChoice, Record
from kernel.requests import Batch, InferenceRequest

FOLD = 256  # requests that are noted before they are added up

_rows = itemgetter(0)
_recorded = attrgetter("enqueued", "id", "parent")

#: How a response may have ended, and the times of it, in the reference's order.
RESPONSE_KINDS = ("success", "fail", "empty_response", "cancel")
RESPONSE_TIMES = ("compute_infer", "compute_output", *RESPONSE_KINDS)

__all__ = ["Duration", "ModelStatistics", "StatisticsCounter", "record_of"]


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened and how long it took in all."""

    count: int = 0  # how often
    ns: int = 0  # nanoseconds, the sum of all


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """A snapshot of the counters of version `version` of the model `name`. Sums since it was loaded.

    `last_inference_ms`: wall clock, milliseconds since the epoch, 0 before the first. `batch_stats`: rows of an execution ->
    compute input, infer and output durations per execution. `response_stats`: which response of a request it was ("0" for the
    first) -> durations by kind, of backends that report them. `failures`: reason -> requests. `placement_choice`: where it runs
    and why, where its backend has chosen that; `hop`: what the way to another process and back has cost the executions that
    were measured.
    """

    name: str
    version: int
    last_inference_ms: int = 0
    inference_count: int = 0  # rows that were answered with success
    execution_count: int = 0  # batches
    success: Duration = Duration()  # requests, from their arrival to their answer
    fail: Duration = Duration()  # requests that were accepted and failed
    queue: Duration = Duration()  # until their execution started
    compute_input: Duration = Duration()  # of the execution: until its input was there
    compute_infer: Duration = Duration()  # until its output began
    compute_output: Duration = Duration()  # until its end
    cache_hit: Duration = Duration()  # looked up and found
    cache_miss: Duration = Duration()  # looked up, and kept afterwards
    response_stats: dict[str, dict[str, Duration]] = field(default_factory=dict)
    batch_stats: dict[int, tuple[Duration, Duration, Duration]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    placement_choice: PlacementChoice | None = None
    hop: Duration | None = None


class StatisticsCounter:
    """The running counters of a model version (`model.scheduler.statistics`). Made by the scheduler, which alone writes, on
    the loop. Whoever reads calls `settle` first, or adds what is `unsettled`.

    Times are sums of seconds. `batches`: rows of an execution -> how many there were, and their compute times. `hits`,
    `misses`: of the response cache. `refused`: requests that were never accepted, which nothing else counts (a full queue, a
    server that stops). `held`, `held_seconds`: executions that kept the loop from everybody else for long, and how long in
    all. `observers`: who is told of requests one by one. `keep`: takes the records of all requests, in lists that are nobody
    else's; None: nobody does.

    The core's own: `executed`, `answered`, `answered_alone`, `succeeded`, `hit`, `missed`, `first_response`, `failed`,
    `responded`.
    """

    __slots__ = (
        "_ones",
        "_records",
        "batches",
        "compute_infer",
        "compute_input",
        "compute_output",
        "execution_count",
        "fail",
        "fail_time",
        "failures",
        "held",
        "held_seconds",
        "hit_time",
        "hits",
        "inference_count",
        "keep",
        "last_inference",
        "miss_time",
        "misses",
        "observers",
        "queue_time",
        "refused",
        "responses",
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
        self.hits = 0
        self.hit_time = 0.0
        self.misses = 0
        self.miss_time = 0.0
        self.refused = 0
        self.held = 0
        self.held_seconds = 0.0
        self.batches: dict[int, list[float]] = {}
        self.failures: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.responses: dict[int, dict[str, list[float]]] = {}  # of those that a backend has reported
        self.observers: tuple[Observer, ...] = ()
        self.keep: Callable[[list[Record]], None] | None = None
        self._ones: list[Record] = []  # requests executed alone, not yet added up
        self._records: list[Record] = []  # others, of which nobody has been told

    def executed(self, batch: Batch) -> None:
        """Count one execution of the backend."""
        self.execution_count += 1
        input_ended, output_started = batch.input_ended, batch.output_started
        times = input_ended - batch.started, output_started - input_ended, batch.ended - output_started
        self._add_executions(batch.size, 1, *times)

    def answered_alone(self, request: InferenceRequest, batch: Batch, now: float) -> None:
        """Count one execution, and the only request of it, which it answers `now`. Added up later, many at a time."""
        ones = self._ones
        parent = request.parent
        ones.append((
            batch.size, request.enqueued, batch.started, batch.input_ended, batch.output_started, batch.ended, now,
            request.id, batch.instance.name, batch.why, None if parent is None else _caller(parent),
        ))  # fmt: skip
        if len(ones) >= FOLD:
            self._fold()

    def answered(self, batch: Batch, now: float) -> None:
        """Count one execution, and its requests, all of which it answers `now`."""
        self.executed(batch)
        requests, size = batch.requests, batch.size
        started, input_ended, output_started, ended = batch.started, batch.input_ended, batch.output_started, batch.ended
        count = len(requests)
        arrivals, ids, parents = zip(*map(_recorded, requests))
        waited = count * started - fsum(arrivals)
        self.last_inference = now
        self.inference_count += size
        self.success += count
        self.success_time += waited + count * (now - started)
        self.queue_time += waited
        self.compute_input += count * (input_ended - started)
        self.compute_infer += count * (output_started - input_ended)
        self.compute_output += count * (ended - output_started)
        if self.observers or self.keep is not None:
            times = (started, input_ended, output_started, ended, now)
            rows = repeat(1) if size == count else [request.batch_size for request in requests]
            callers = map(_caller, parents) if any(parents) else parents
            self._records += zip(
                rows, arrivals, *map(repeat, times), ids, repeat(batch.instance.name), repeat(batch.why), callers
            )
            if len(self._records) >= FOLD:
                self._tell()

    def unsettled(self) -> tuple[int, int]:
        """Return how many requests `settle` would add up that were executed alone, and how many rows they had."""
        ones = self._ones
        return (len(ones), sum(map(_rows, ones))) if ones else (0, 0)

    def settle(self) -> None:
        """Add up what has only been noted, and tell the observers of it."""
        if self._ones:
            self._fold()
        if self._records:
            self._tell()

    def _tell(self) -> None:
        records, self._records = self._records, []
        for observer in self.observers:
            observer.answered(records)
        if self.keep is not None:
            self.keep(records)

    def _fold(self) -> None:
        ones, self._ones = self._ones, []
        every, enqueued, started, input_ended, output_started, ended, answered, *_ = zip(*ones)
        count = len(ones)
        first = sum(map(sub, input_ended, started))
        second = sum(map(sub, output_started, input_ended))
        third = sum(map(sub, ended, output_started))
        self.execution_count += count
        self.inference_count += sum(every)
        self.success += count
        self.last_inference = max(answered[-1], self.last_inference)
        self.success_time += sum(map(sub, answered, enqueued))
        self.queue_time += sum(map(sub, started, enqueued))
        self.compute_input += first
        self.compute_infer += second
        self.compute_output += third
        if len(set(every)) == 1:
            self._add_executions(every[0], count, first, second, third)
        else:
            for rows, _, one, two, three, four, *_ in ones:
                self._add_executions(rows, 1, two - one, three - two, four - three)
        for observer in self.observers:
            observer.answered(ones)
        if self.keep is not None:
            self.keep(ones)

    def _add_executions(self, rows: int, count: int, first: float, second: float, third: float) -> None:
        """Count executions of `rows` rows, and the sums of their compute times."""
        entry = self.batches.get(rows)
        if entry is None:
            entry = self.batches[rows] = [0, 0.0, 0.0, 0.0]
        entry[0] += count
        entry[1] += first
        entry[2] += second
        entry[3] += third

    def succeeded(self, request: InferenceRequest, batch: Batch, now: float, answered: float = 0.0) -> None:
        """Count one request that `batch` has answered `now`; the batch's own times may be sums instead (ensembles).

        `answered`: when its answer went out, where that was later: the sums leave that out, as the reference's do.
        """
        rows, enqueued = request.batch_size, request.enqueued
        started, input_ended, output_started = batch.started, batch.input_ended, batch.output_started
        self.last_inference = now
        self.inference_count += rows
        self.success += 1
        self.success_time += now - enqueued
        self.queue_time += started - enqueued
        self.compute_input += input_ended - started
        self.compute_infer += output_started - input_ended
        self.compute_output += batch.ended - output_started
        if not self.observers and self.keep is None:
            return
        self._note(record_of(request, batch, answered or now))

    def hit(self, request: InferenceRequest, started: float, now: float) -> None:
        """Count one request that the response cache has answered `now`; the look-up began at `started`."""
        seconds, enqueued = now - started, request.enqueued
        self.success += 1
        self.success_time += now - enqueued
        self.queue_time += started - enqueued
        self.hits += 1
        self.hit_time += seconds
        if self.observers or self.keep is not None:
            caller = None if request.parent is None else _caller(request.parent)
            self._note((0, enqueued, started, now, now, now, now, request.id, "", None, caller))
        for observer in self.observers:
            observer.looked_up(True, seconds, now)

    def missed(self, seconds: float, now: float) -> None:
        """Count one request that the response cache had nothing for; `seconds`: the look-up and, later, the insertion."""
        self.misses += 1
        self.miss_time += seconds
        for observer in self.observers:
            observer.looked_up(False, seconds, now)

    def first_response(self, seconds: float) -> None:
        """Tell of the first response to a request of a decoupled model, `seconds` after it was enqueued."""
        for observer in self.observers:
            observer.first_response(seconds)

    def _note(self, record: Record) -> None:
        records = self._records
        records.append(record)
        if len(records) >= FOLD:
            self._tell()

    def failed(self, reason: Reason, seconds: float, times: int = 1) -> None:
        """Count one accepted request that failed. `times` 2: an ensemble, whose failures the reference counts twice."""
        self.fail += times
        self.fail_time += seconds * times
        self.failures[reason] += times

    def responded(self, index: int, kind: str, started: float, output_started: float, ended: float) -> None:
        """Count the response number `index` of a request, of one of RESPONSE_KINDS. Only "success" and "fail" count as computing.

        (Contract: observability, section 1.1; the categories are those of the reference's backend interface.)
        """
        times = self.responses.get(index)
        if times is None:
            times = self.responses[index] = {name: [0, 0.0] for name in RESPONSE_TIMES}
        found = [(kind, ended - started)]
        if kind in ("success", "fail"):
            found += [("compute_infer", output_started - started), ("compute_output", ended - output_started)]
        for name, seconds in found:
            times[name][0] += 1
            times[name][1] += seconds

    def snapshot(self, name: str, version: int, epoch_offset: float) -> ModelStatistics:
        """Return the counters as a record; `epoch_offset` turns the kernel's clock into seconds since the epoch."""
        self.settle()
        executed = self.success - self.hits
        return ModelStatistics(
            name=name,
            version=version,
            last_inference_ms=int((self.last_inference + epoch_offset) * 1000) if self.last_inference else 0,
            inference_count=self.inference_count,
            execution_count=self.execution_count,
            success=_duration(self.success, self.success_time),
            fail=_duration(self.fail, self.fail_time),
            queue=_duration(self.success, self.queue_time),
            compute_input=_duration(executed, self.compute_input),
            compute_infer=_duration(executed, self.compute_infer),
            compute_output=_duration(executed, self.compute_output),
            cache_hit=_duration(self.hits, self.hit_time),
            cache_miss=_duration(self.misses, self.miss_time),
            response_stats={
                str(index): {name: _duration(*times[name]) for name in RESPONSE_TIMES}
                for index, times in sorted(self.responses.items())
            },
            batch_stats={
                size: (_duration(count, one), _duration(count, two), _duration(count, three))
                for size, (count, one, two, three) in sorted(self.batches.items())
            },
            failures={reason.value: count for reason, count in self.failures.items()},
        )


def record_of(request: InferenceRequest, batch: Batch, answered: float) -> Record:
    """Return the record of a request that `batch` has executed, or still executes. `answered`: when it had its answer."""
    parent = request.parent
    return (
        request.batch_size, request.enqueued, batch.started, batch.input_ended, batch.output_started, batch.ended or answered,
        answered, request.id, batch.instance.name, batch.why_of(request), None if parent is None else _caller(parent),
    )  # fmt: skip


def _caller(parent: Batch | None) -> tuple[str, float] | None:
    """Return what says in records whose call a request was."""
    return None if parent is None else (parent.instance.name, parent.requests[0].enqueued)


def _duration(count: float, seconds: float) -> Duration:
    return Duration(int(count), max(0, round(seconds * 1e9)))

"""Records requests while they are served: takes them from the history, or as they pass, and has a thread write them.

The law: no request waits for the disk, and none fails of it. What can't be written fast enough is counted and left out, so
memory is bounded; a disk that fails ends the recording, not the service.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kernel.errors import Code, ServingError, clipped
from kernel.interfaces import Record
from kernel.observability import (
    CALLER,
    FailedRequest,
    History,
    ModelHistory,
    RequestTracing,
    StatisticsCounter,
    known_as,
    record_of,
)
from kernel.recording.file import RecordingFile, created
from kernel.recording.form import FORM, VERSION, Head, RecordedRun, Told
from kernel.recording.notes import of_failure, of_record, run_of
from kernel.recording.redaction import Redactor
from kernel.requests import InferenceRequest, InferenceResponse, Respond
from kernel.tensor import Array, Tensor

__all__ = ["RecordOptions", "Recorder"]

log = logging.getLogger("kernel")

#: How often what models have counted is taken from them, and for how long it may lie in memory before it is written; seconds.
#: What a crash loses is what came in the sum of both.
LOOK_SECONDS = 1.0
HELD_SECONDS = 4.0

#: How much may wait to be written: requests, and bytes of tensors, those of requests without an answer among them.
MOST_REQUESTS = 100_000
MOST_BYTES = 256 * 1024 * 1024

#: So many requests without tensors are handed over together, or what comes between two looks.
MOST_IN_RUNS = 8192

#: So many requests with tensors are handed over together, or what comes in so long; seconds.
TOGETHER = 64
TOGETHER_SECONDS = 0.05

#: How long the end waits for the disk.
END_SECONDS = 3.0

#: How many characters are kept of why a request failed.
LONGEST_WORDS = 500


@dataclass(frozen=True)
class RecordOptions:
    """`file`: where to; "" for no recording. `rate`: the share of requests that is recorded, above 0.0 to 1.0. `size`: how many
    bytes the file may have. `tensors`: whether what was asked and answered is recorded, too. `redaction`: the name of a
    redactor, "" for none.
    """

    file: str = ""
    rate: float = 1.0
    size: int = 1024 * 1024 * 1024
    tensors: bool = False
    redaction: str = ""


class Scheduling(Protocol):
    @property
    def statistics(self) -> StatisticsCounter: ...


class RecordedModel(Protocol):
    """A model version, as far as it is recorded."""

    @property
    def scheduler(self) -> Scheduling: ...


class Passing(Protocol):
    """Who tells of requests that have come in: the kernel's tracer."""

    recording: Callable[[RequestTracing | None], RequestTracing] | None

    def refresh(self) -> None: ...


class Recorded(Protocol):
    """The kernel, as its recorder uses it."""

    clock: Callable[[], float]
    epoch_offset: float

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def tracer(self) -> Passing: ...
    def models(self) -> Sequence[RecordedModel]: ...


class Recorder:
    """Records the requests of one kernel, from `start` to `stop`. On the loop, but for what is said to be the thread's."""

    def __init__(
        self, kernel: Recorded, history: History, options: RecordOptions, redact: Redactor | None = None, server: str = ""
    ) -> None:
        self._kernel = kernel
        self._history = history
        self._options = options
        self._redact = redact
        self._server = server
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kernel-record", daemon=True)
        self._timer: asyncio.TimerHandle | None = None
        self._counters: list[StatisticsCounter] = []
        self._going = False
        # Each of these only grows, and has one writer: the loop, or the thread. What waits is the difference.
        self._given = self._given_bytes = self._lost = 0
        self._done = self._done_bytes = self._lost_there = 0
        self._gathered: list[tuple[Told, int]] = []  # with tensors of so many bytes, that are to be handed over together
        self._runs: list[tuple[RecordedRun, bytes]] = []  # those without, and how many requests they are of
        self._in_runs = 0
        self._handing: asyncio.TimerHandle | None = None
        self._random = random.Random().random
        self._told_of_loss = False
        self._told_of_redaction = False
        self._file: RecordingFile
        self.path = ""

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the file and record from now on. Raises ServingError where the file can't be written."""
        options = self._options
        head = Head(FORM, VERSION, self._server, time.time(), options.rate, options.tensors, options.redaction)
        try:
            file, self.path = created(options.file)
            self._file = RecordingFile(file, head, options.size)
        except OSError as error:
            words = f"--record: '{options.file}' can't be written: {error.strerror or error}"
            raise ServingError(Code.INVALID_ARG, words) from None
        if self.path != options.file:
            log.warning("--record: '%s' is there already, '%s' is written", options.file, self.path)
        log.info("requests are recorded in '%s'", self.path)
        self._going = True
        self._thread.start()
        if options.tensors:
            self._kernel.tracer.recording = self._passing
            self._kernel.tracer.refresh()
        else:
            self._history.listeners = (*self._history.listeners, self)
        self._look()

    async def stop(self) -> None:
        """Record nothing more, and write what is not written yet, for some seconds at most."""
        self._settle()
        self._hand_over()
        self._detach()
        self._queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, END_SECONDS)
        if self._thread.is_alive():
            log.error("the recording '%s' has no end, as the disk does not answer: what was not written is lost", self.path)

    def _detach(self) -> None:
        if not self._going:
            return
        self._going = False
        if self._timer is not None:
            self._timer.cancel()
        self._history.listeners = tuple(one for one in self._history.listeners if one is not self)
        if self._options.tensors:
            self._kernel.tracer.recording = None
            self._kernel.tracer.refresh()

    def _look(self) -> None:
        """Take what models have counted and told nobody of yet."""
        self._settle()
        self._hand_over()
        if self._lost and not self._told_of_loss:
            self._told_of_loss = True
            log.warning("requests are left out of the recording '%s', as the disk takes them too slowly", self.path)
        self._timer = self._kernel.loop.call_later(LOOK_SECONDS, self._look)

    def _settle(self) -> None:
        for counter in self._counters:  # some may be of versions that have gone since
            counter.settle()
        self._counters = [model.scheduler.statistics for model in self._kernel.models()]
        for counter in self._counters:
            counter.settle()

    # -- from the history ----------------------------------------------------------------------------------------------

    def answered(self, model: ModelHistory, records: Sequence[Record]) -> None:
        """Requests have succeeded; the records are everybody's, and stay as they are."""
        count = len(records)
        if not self._room(count):
            return
        if self._options.rate < 1.0:  # of calls it can't be said whether their callers were chosen
            records = [record for record in records if record[CALLER] is None and self._takes()]
            self._given -= count - len(records)
        if not records:
            return
        name, version, offset = model.model, model.version, self._kernel.epoch_offset
        if self._redact is not None:
            told = [of_record(name, version, record, offset) for record in records]
            self._queue.put(lambda: self._write_told([(one, 0) for one in told]))
            return
        # Here, not on the thread: the records are in this core's cache, and this takes less of the loop than a thread's turns.
        self._runs.append(run_of(name, version, records, offset))
        self._in_runs += len(records)
        if self._in_runs >= MOST_IN_RUNS:
            self._hand_over()

    def failed(self, model: ModelHistory, failure: FailedRequest) -> None:
        if not failure.called and self._takes() and self._room(1):
            offset = self._kernel.epoch_offset
            self.complete(of_failure(model.model, model.version, failure, offset), 0)

    def _takes(self) -> bool:
        return self._options.rate >= 1.0 or self._random() < self._options.rate

    def _room(self, count: int, size: int = 0) -> bool:
        """Take so much for what is to be written; False: it is lost, as there is too much already."""
        if self._given - self._done + count > MOST_REQUESTS or self._given_bytes - self._done_bytes + size > MOST_BYTES:
            self._lost += count
            return False
        self._given += count
        self._given_bytes += size
        return True

    # -- as they pass --------------------------------------------------------------------------------------------------

    def _passing(self, tracing: RequestTracing | None) -> RequestTracing:
        return _Passed(self, tracing)

    def arrived(self, request: InferenceRequest) -> None:
        """A checked request has come from outside: keep what it asks, which its model may change."""
        if not (self._going and self._takes()):
            return
        size = sum(size_of(tensor.array) for tensor in request.inputs.values())
        if self._room(1, size):
            request.respond = _Copied(self, request, copies(request.inputs.values()), size, request.respond)

    def more(self, size: int) -> bool:
        """Take so much more for a request that has its place already."""
        return self._room(0, size)

    def give_up(self, size: int) -> None:
        """A request that had its place is not written."""
        self._lost += 1
        self._given -= 1
        self._given_bytes -= size

    def complete(self, told: Told, size: int) -> None:
        """A request has its answer. The thread is not woken for each: that would get in the way of the next one."""
        if not self._going:
            self.give_up(size)
            return
        self._gathered.append((told, size))
        if len(self._gathered) >= TOGETHER:
            self._hand_over()
        elif self._handing is None:
            self._handing = self._kernel.loop.call_later(TOGETHER_SECONDS, self._hand_over)

    def _hand_over(self) -> None:
        """Have the thread write what is gathered."""
        if self._handing is not None:
            self._handing.cancel()
            self._handing = None
        told, self._gathered = self._gathered, []
        runs, self._runs, self._in_runs = self._runs, [], 0
        if told:
            self._queue.put(lambda: self._write_told(told))
        if runs:
            self._queue.put(lambda: self._write_runs(runs))

    @property
    def clock(self) -> Callable[[], float]:
        return self._kernel.clock

    @property
    def offset(self) -> float:
        return self._kernel.epoch_offset

    # -- on the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        file, since = self._file, time.monotonic()
        why = "stopped"
        try:
            while not file.full:
                try:
                    work = self._queue.get(timeout=HELD_SECONDS)
                    if work is None:
                        break
                    work()
                except queue.Empty:
                    pass
                if time.monotonic() - since >= HELD_SECONDS:
                    file.flush()
                    since = time.monotonic()
            if file.full:
                why = "full"
            file.close(self._lost + self._lost_there, why)
            if file.full:
                log.warning("the recording '%s' has its size: it has %d requests and takes no more", self.path, file.requests)
        except Exception as error:
            told = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            log.error("the recording '%s' ends with %d requests, as it can't be written: %s", self.path, file.requests, told)
        self._drop()

    def _drop(self) -> None:
        """Have nothing come any more, and let go of what has come."""
        try:
            self._kernel.loop.call_soon_threadsafe(self._detach)
        except RuntimeError:  # the loop is closed
            return

    def _write_runs(self, runs: list[tuple[RecordedRun, bytes]]) -> None:
        for run, times in runs:
            self._file.add_run(run, times)
            self._done += run.count

    def _write_told(self, told: list[tuple[Told, int]]) -> None:
        for one, size in told:
            after = self._redacted(one)
            if after is not None:
                try:
                    self._file.add(after, size, changed=self._redact is not None)
                except (TypeError, ValueError) as error:  # such as an id that is a number
                    if self._redact is None:
                        raise
                    self._not_redacted(error)
            self._done += 1
            self._done_bytes += size

    def _redacted(self, told: Told) -> Told | None:
        """Return what is to be written of a request, None for nothing."""
        if self._redact is None:
            return told
        try:
            return self._redact(told)
        except Exception as error:
            self._not_redacted(error)
        return None

    def _not_redacted(self, error: Exception) -> None:
        self._lost_there += 1
        if not self._told_of_redaction:
            self._told_of_redaction = True
            words = clipped(f"{type(error).__name__}: {error}")
            log.error("the redactor '%s' fails, what it fails at is not recorded: %s", self._options.redaction, words)


class _Passed:
    """What a model's `tracing` is while requests are recorded as they pass; tells `tracing`, too, where that is not None."""

    __slots__ = ("_recorder", "_tracing")

    def __init__(self, recorder: Recorder, tracing: RequestTracing | None) -> None:
        self._recorder = recorder
        self._tracing = tracing

    def arrived(
        self, request: InferenceRequest, protocol: str = "", began: float = 0.0, traceparent: str = ""
    ) -> None:
        if self._tracing is not None:
            self._tracing.arrived(request, protocol, began, traceparent)
        try:
            self._recorder.arrived(request)
        except Exception:  # no request fails of who looks on
            log.exception("%sa request is not recorded", request.log_id)


class _Copied:
    """The continuation of a recorded request, around that of who waits for the answer (`inner`)."""

    __slots__ = ("_answers", "_error", "_inputs", "_recorder", "_request", "_size", "inner")

    def __init__(
        self, recorder: Recorder, request: InferenceRequest, inputs: list[Tensor], size: int, inner: Respond
    ) -> None:
        self._recorder = recorder
        self._request: InferenceRequest | None = request
        self._inputs = inputs
        self._answers: list[list[Tensor]] = []
        self._error: ServingError | None = None
        self._size = size
        self.inner = inner

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        request = self._request
        if request is not None:
            try:
                self._note(request, response, final)
            except Exception:
                self._leave_out()
                log.exception("%sa request is not recorded", request.log_id)
        self.inner(response, final)

    def _note(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        if response is not None and response.error is None:
            size = sum(size_of(tensor.array) for tensor in response.outputs)
            if not self._recorder.more(size):
                self._leave_out()
                return
            self._size += size
            self._answers.append(copies(response.outputs))
        elif response is not None and self._error is None:  # what comes behind it, nobody reads who asks again
            self._error = response.error
        if final:
            self._request = None
            told = self._told(request, self._error)
            self._recorder.complete(told, self._size)

    def _leave_out(self) -> None:
        self._request = None
        self._recorder.give_up(self._size)

    def _told(self, request: InferenceRequest, error: ServingError | None) -> Told:
        now, offset = self._recorder.clock(), self._recorder.offset
        model, batch = request.model, request.batch
        executed = batch is not None and batch.started > 0.0
        if error is not None:
            times = (batch.started, batch.ended) if batch is not None and executed else (0.0, 0.0)
            instance = batch.instance.name if batch is not None and executed else ""
            id, code, words = known_as(request.id), error.code.name, error.message[:LONGEST_WORDS]
            failure = FailedRequest(request.enqueued, *times, now, id, instance, code, words, False)
            told = of_failure(model.name, model.version, failure, offset)
        else:
            if batch is not None and executed:
                record = record_of(request, batch, now)
            else:  # the response cache had the answer
                record = (0, request.enqueued, now, now, now, now, now, known_as(request.id), "", None, None)
            told = of_record(model.name, model.version, record, offset)
        told.inputs, told.answers = self._inputs, self._answers
        asked = request.requested_outputs
        told.outputs = None if asked is None else list(asked)
        told.parameters = _plain(request.parameters)
        told.priority, told.timeout_us = request.priority, request.timeout_us
        told.correlation_id, told.flags = request.correlation_id, request.flags
        told.batched = model.config.max_batch_size > 0
        return told


def _plain(parameters: Any) -> dict[str, Any]:
    """Return the parameters that JSON can have."""
    return {name: one for name, one in (parameters or {}).items() if isinstance(one, (str, int, float, bool))}


def copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [Tensor(tensor.name, tensor.datatype, tensor.array.copy()) for tensor in tensors]


def size_of(array: Array) -> int:
    """Return how many bytes an array holds, those of its strings among them."""
    if array.dtype != np.object_:
        return array.nbytes
    return array.nbytes + sum(len(item) for item in array.ravel().tolist() if isinstance(item, (bytes, str)))

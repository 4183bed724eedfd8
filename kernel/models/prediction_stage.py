"""Requests whose deadline can't be met, as far as the queue tells, are refused at once instead of when it has passed.

The law: refused is only who would have to wait, and even then would have no answer in time if all went as well as it may
(kernel/rules/prediction.py). Who can begin at once is let in whatever the average says: so it is measured anew, and a model that
was slow once is not kept from everybody for ever. What was accepted is never refused, nor what it calls. A stage in front of the
scheduler, chosen when the model is loaded: where it is not asked for nobody is looked at, and nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel.config import ModelConfig, headroom_of
from kernel.errors import Overloaded
from kernel.requests import SKIPPED, Batch, InferenceRequest, RequestState
from kernel.rules import BatchRule, ExecutionTime, earliest_start
from kernel.scheduling import Scheduler, SequenceQueue

__all__ = ["PredictionStage", "prediction_of"]

RELEASED = RequestState.RELEASED


def prediction_of(config: ModelConfig, scheduler: Scheduler, default: float | None) -> float | None:
    """Return the headroom that requests to a model need; None where none is asked for, or nothing can be foretold.

    That is so of ensembles, which do not wait themselves, of sequences, which wait for clients, of decoupled models, whose
    answers come when they like, of a plugin's batcher, and where a queue policy lets requests overtake others that are late.
    """
    queue = scheduler.queue
    if config.is_ensemble or config.decoupled or isinstance(queue, SequenceQueue) or queue.delays:
        return None
    return headroom_of(config.parameters, default) if queue.rule is None or isinstance(queue.rule, BatchRule) else None


class PredictionStage:
    """The look ahead in front of one model version; `enqueue` takes what is let in. `duration`: of its executions."""

    def __init__(
        self,
        headroom: float,
        scheduler: Scheduler,
        enqueue: Callable[[InferenceRequest], None],
        clock: Callable[[], float],
    ) -> None:
        self.duration = ExecutionTime()
        self._left = 1.0 - headroom
        self._scheduler = scheduler
        assert not isinstance(scheduler.queue, SequenceQueue)
        self._queue = scheduler.queue
        self._enqueue = enqueue
        self._clock = clock
        self._inside: dict[InferenceRequest, tuple[int, int]] = {}  # level and rows of what has no final answer yet
        self._rows: dict[int, int] = {}  # by level
        rule = scheduler.queue.rule
        # A batch that has waited for company takes more than its largest preferred size.
        self._largest = 1 if not isinstance(rule, BatchRule) else rule.max_batch_size if rule.delay else rule.largest
        life = scheduler.life
        life.on_release = (*life.on_release, self._released)
        life.on_result = (*life.on_result, self._ended)
        life.choose()

    def enqueue(self, request: InferenceRequest) -> None:
        """Let a checked request in, or refuse it. Its `timeout` is a deadline here: for so long its client waits."""
        level, rows = self._queue.level_of(request), min(request.batch_size, self._largest)
        if request.parent is None:
            now = self._clock()
            if request.timeout_us:
                latest = now + request.timeout_us / 1e6
                request.deadline = latest if request.deadline is None else min(latest, request.deadline)
            if self._inside and self.duration.seconds and (words := self._too_late(request, level, rows, now)):
                self._scheduler.life.refuse(request, Overloaded(f"{request.log_id}{words}"))
                return
        self._inside[request] = level, rows
        self._rows[level] = self._rows.get(level, 0) + rows
        self._enqueue(request)

    def _released(self, request: InferenceRequest) -> None:
        counted = self._inside.pop(request, None)
        if counted is not None:
            self._rows[counted[0]] -= counted[1]

    def _ended(self, batch: Batch, result: Any) -> Any:
        """An execution has ended: it tells how long others will last. What ran to warm up does not."""
        assert batch.instance is not None
        if batch.started and batch.ended and result is not SKIPPED and not batch.instance.in_warmup:
            self.duration.measured(batch.ended - batch.started)
        return result

    def _too_late(self, request: InferenceRequest, level: int, rows: int, now: float) -> str:
        """Return why there is no use in accepting a request, "" for none."""
        wait = self._queue.patience_of(request)
        if request.deadline is None and not wait:
            return ""
        seconds = self.duration.seconds
        before = sum([count for other, count in self._rows.items() if other <= level])
        begun: list[float] = []
        capacity = ready = 0
        for instance in self._scheduler.instances:
            capacity += instance.capacity
            for batch in instance.running:
                before -= self._unanswered(batch, level)
                if batch.started:
                    begun.append(batch.started)
                else:
                    ready += 1  # the instance has it, and will begin with it after another
        if not capacity:
            return ""
        ahead = ready - (-(before + rows) // self._largest)  # executions up to its own
        start = earliest_start(now, seconds, begun[:capacity], capacity, ahead)
        if start <= now:
            return ""
        if wait and start > now + wait * self._left:
            return self._words(before, ahead, start - now, f"may wait for {wait:.3g} s (its queue's time-out)")
        if request.deadline is not None and start + seconds > now + (request.deadline - now) * self._left:
            return self._words(before, ahead, start - now, f"has its deadline in {request.deadline - now:.3g} s")
        return ""

    def _unanswered(self, batch: Batch, level: int) -> int:
        """Return the rows of an execution that are counted as being in front."""
        inside = self._inside
        counted = [inside[one] for one in batch.requests if one in inside]
        return sum([rows for other, rows in counted if other <= level])

    def _words(self, before: int, ahead: int, wait: float, limit: str) -> str:
        rows = f"{before} {'row waits' if before == 1 else 'rows wait'} in front"
        return (
            f"the request to model '{self._scheduler.name}' {limit}, and by prediction would begin in {wait:.3g} s at the "
            f"earliest: {rows}, and an execution lasts {self.duration.seconds:.3g} s (refuse_late); try again later"
        )

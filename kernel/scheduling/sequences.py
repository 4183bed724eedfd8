"""The scheduler of a model with `sequence_batching`: a Scheduler whose queue knows sequences (sequencing.py).

Who may execute when is decided there; here batches are started, what a request of a sequence carries is added and taken
(sequence_state.py), and executions that ask for another one get it. Null requests, which stand for empty slots, are RELEASED
from the beginning: nobody waits for them, nothing counts them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kernel.config import ModelConfig
from kernel.errors import Code, Reason, ServingError
from kernel.instances.handover import BlockedCall
from kernel.instances.instance import ModelInstance
from kernel.instances.mailbox import Mailbox
from kernel.instances.turn import TURN_SECONDS, Turn
from kernel.requests.request import RESCHEDULED, Batch, InferenceRequest, InferenceResponse, RequestState, nobody
from kernel.rules.sequence_state import START, Controls, Memory, States, null_inputs
from kernel.rules.sequencing import Sequence as RequestSequence
from kernel.rules.sequencing import Sequencer, SequenceRule
from kernel.scheduling.batchers import number_of_environment
from kernel.scheduling.scheduler import Scheduler, error_for, stopping_error
from kernel.tensor import Array

__all__ = ["SequenceScheduler"]

log = logging.getLogger("kernel")

PENDING, EXECUTING, RELEASED = RequestState.PENDING, RequestState.EXECUTING, RequestState.RELEASED
MANY = 1 << 30


class SequenceScheduler(Scheduler):
    """Schedules the sequences of one model version over its instances. `queue`: its sequences, with the requests that wait."""

    queue: Sequencer  # type: ignore[assignment]  # what a Scheduler asks of its queue it answers, too

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        instances: Sequence[ModelInstance],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        mailbox: Mailbox,
        turn: Turn,
        initial: Mapping[str, Array] | None = None,
    ) -> None:
        """`initial`: the first values of the model's implicit state (state.initial_values)."""
        batching = config.sequence_batching
        assert batching is not None
        self._controls = Controls(config)
        self._states = States(config, initial or {}) if batching.states else None
        self._iterative = batching.iterative
        #: How many executions an instance may have at a time, as far as sequences are concerned.
        self._at_once = 1 if not batching.oldest or batching.preserve_ordering else MANY
        self._memories: dict[InferenceRequest, Memory] = {}  # the state that a request was given, and writes to
        self._again: list[
            InferenceRequest
        ] = []  # those that the execution that has just ended asks to be executed once more
        self._continuing = False  # running sequences go on although the scheduler is stopping
        self._hold = _hold_of_environment()
        self._outputs = frozenset(spec.name for spec in config.outputs)
        self._wanted = self._outputs | {spec.name for spec in config.kept_outputs}
        super().__init__(config, version, instances, loop, clock, mailbox, turn)

    def _make_queue(self, config: ModelConfig) -> Any:
        return Sequencer(SequenceRule.of(config), config.name, self._prepare)

    def _let_in(self, instances: Sequence[ModelInstance]) -> None:
        super()._let_in(instances)
        now = self.clock()
        for instance in instances:
            if self._at_once == 1:
                instance.capacity = 1
            self.queue.enter(instance, now)

    # -- in ------------------------------------------------------------------------------------------------------------

    def enqueue(self, request: InferenceRequest) -> None:
        """Accept a checked request, or answer it with why not. From here on the scheduler owns it."""
        request.enqueued = now = self.clock()
        queue, parent = self.queue, request.parent
        try:
            alone = self._admit(request)
        except ServingError as error:
            self._refuse(request, error)
            return
        if parent is not None:
            free = next((one for one in self.instances if one.outstanding < one.capacity), None)
            if not self._may_call(request, parent, free):
                return
        if not alone and queue.conflicts(request):
            log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence will be terminated before new sequence starts.",
                request.correlation_id,
                self.name,
            )
        request.order = self._order = self._order + 1
        if self._states is not None:
            wanted = request.wanted
            request.wanted = self._wanted if wanted is self._outputs else wanted | self._states.names
        if type(request.respond) is BlockedCall:
            request.respond = request.respond.__call__  # the answer comes by the loop, where state is taken out of it
        if self._iterative:
            _protect(request)
        request.state = PENDING
        self.in_flight += 1
        queue.push(request, now, alone)
        if parent is not None:
            self._adopt(request, parent)
        if request.deadline is not None:
            self._watch_over(request, request.deadline)
            if request.deadline <= now:
                self._pass_deadlines(now)  # not to be executed first
        self._arm_expiry()
        if not self._scheduled:
            self._schedule(now)

    def _admit(self, request: InferenceRequest) -> bool:
        """Raise ServingError for a request that is not accepted; return whether it is a sequence of its own.

        One that goes on with a sequence is accepted to the end.
        """
        if self.refusing is not None:
            raise error_for(request, self.refusing)
        known = self._continuing and not request.flags & START and self.queue.knows(request)
        if self.stopping and (self.closed or (request.parent is None and not known)):
            raise stopping_error(request)
        if request.correlation_id and (error := self._controls.refusal(request)) is not None:
            raise error
        return self.queue.check(request)

    def _prepare(self, request: InferenceRequest, sequence: RequestSequence) -> None:
        """Give a request what its model is to know, once all before it in its sequence have been executed."""
        self._controls.add(request)
        if self._states is not None:
            if request.flags & START:
                sequence.memory = self._states.fresh()
            self._memories[request] = sequence.memory
            self._states.give(request, sequence.memory)

    # -- decide --------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give what may be executed to instances that can take it, and set the timer for when more may be."""
        if self._dispatching:
            return
        self._dispatching = True
        try:
            began = now = self.clock()
            queue = self.queue
            expiry = queue.next_expiry()
            if expiry is not None and expiry <= now:
                self._expire(now)
            again: float | None = None
            more = not self._holds()
            while more:
                more, again = False, None
                for instance in (*self.instances, *self.leaving) if self.leaving else self.instances:
                    if not queue.is_ready(instance) or not self._has_room(instance):
                        continue
                    taken, when = queue.take(instance, now)
                    if taken:
                        more = True
                        self._start(instance, self._batch_of(taken))
                    elif when is not None and (again is None or when < again):
                        again = when
                if more:
                    now = self.clock()
                    if self._inline and queue.size and now - began > TURN_SECONDS:
                        self._schedule(now)
                        break
            if again is not None:
                self._arm(again)
            self._arm_expiry()
        finally:
            self._dispatching = False

    def _holds(self) -> bool:
        """Whether as many requests as the reference's own tests want to see have not come yet (scheduling, section 13)."""
        if self._hold is None:
            return False
        placed, backlogged = self._hold
        if self.queue.size - self.queue.backlogged < placed or self.queue.backlogged < backlogged:
            return True
        self._hold = None
        return False

    def _has_room(self, instance: ModelInstance) -> bool:
        """Whether an instance may begin one more execution."""
        return instance.outstanding < min(instance.limit, self._at_once)

    def _batch_of(self, taken: Sequence[InferenceRequest | None]) -> Batch:
        first = next(request for request in taken if request is not None)
        requests = [self._null(first) if request is None else request for request in taken]
        return Batch(requests, len(requests))

    def _null(self, pattern: InferenceRequest) -> InferenceRequest:
        """Return what stands for an empty slot in an execution together with `pattern`."""
        null = InferenceRequest(self.name, null_inputs(pattern.inputs, self._controls), nobody)
        null.model = pattern.model
        null.parent = pattern.parent  # who looks for the makers of an execution may begin here
        null.enqueued = pattern.enqueued
        null.counted = True
        null.state = RELEASED
        return null

    # -- execute -------------------------------------------------------------------------------------------------------

    def _start(self, instance: ModelInstance, batch: Batch) -> None:
        for request in batch.requests:
            if request.state is not RELEASED:
                request.state = EXECUTING
                request.batch = batch
        batch.instance = instance
        instance.outstanding += 1
        instance.running[batch] = None
        instance.start(batch)

    def finished(self, instance: ModelInstance, batch: Batch, result: Any) -> None:
        queue, now, requests = self.queue, self.clock(), batch.requests
        again: list[InferenceRequest] = []
        if isinstance(result, (list, tuple)) and len(result) == len(requests):
            if self._states is not None:
                for request, response in zip(requests, result):
                    if isinstance(response, InferenceResponse):
                        self._take_state(request, response)
            if self._iterative:
                again = [
                    request
                    for request, response in zip(requests, result)
                    if response is RESCHEDULED and request.state is EXECUTING
                ]
        for request in requests:
            if request in again:
                request.state = PENDING
                request.batch = None
                request.flags = 0  # it begins no more
                queue.executed(request, True, now)
            else:
                queue.executed(request, False, now)
        self._again = again
        super().finished(instance, batch, result)
        for request in requests:
            if request.state is RELEASED:
                self._let_go(request, now)

    def _conclude(self, batch: Batch, result: Any) -> None:
        again, self._again = self._again, []
        if self._iterative and isinstance(result, (list, tuple)):
            result = [None if response is RESCHEDULED else response for response in result]
        super()._conclude(batch, result)
        for request in again:
            self._open.discard(request)
            if request.state is RELEASED:
                continue
            if not request.counted:  # each execution counts (reference behaviour)
                self.statistics.succeeded(request.batch_size, request.enqueued, batch, batch.ended)
            request.counted = False
            request.enqueued = batch.ended

    def put_back(self, instance: ModelInstance, batches: Sequence[Batch]) -> None:
        now = self.clock()
        for batch in batches:
            del instance.running[batch]
            instance.outstanding -= 1
        for batch in reversed(batches):
            for request in reversed(batch.requests):
                if request.state is EXECUTING:
                    request.state = PENDING
                    request.batch = None
                    self.queue.put_back(request, now)
                else:
                    self.queue.executed(request, False, now)
                    self._let_go(request, now)
        if self.stopping:
            self._tell_drained()

    # -- out -----------------------------------------------------------------------------------------------------------

    def _take_state(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Keep the state that a response brings."""
        if self._states is not None and response.error is None:
            memory = self._memories.get(request)
            self._states.take(request, response, {} if memory is None else memory)

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        if response is not None and self._states is not None and response.error is None:
            self._take_state(request, response)
            sequence = self.queue.owner(request)
            head = sequence.waiting[0] if sequence is not None and sequence.waiting else None
            if head is not None and head in self._memories:  # it was prepared while this answer was still to come
                self._states.give(head, self._memories[head])
        super().send(request, response, final)

    def release(self, request: InferenceRequest, response: InferenceResponse | None) -> None:
        super().release(request, response)
        self._let_go(request, self.clock())

    def _let_go(self, request: InferenceRequest, now: float) -> None:
        """Forget a request that has its answer, unless it is still being executed."""
        self.queue.answered(request, now)
        if self._memories and self.queue.owner(request) is None:
            self._memories.pop(request, None)

    # -- other instances -----------------------------------------------------------------------------------------------

    def rearrange(self, come: Sequence[ModelInstance], go: Collection[ModelInstance]) -> list[asyncio.Future[None]]:
        """As a Scheduler's; an instance that goes keeps its sequences until they end."""
        for instance in go:
            self.queue.retire(instance)
        return super().rearrange(come, go)

    def _see_off(self, instance: ModelInstance) -> None:
        if instance in self.leaving and not self.queue.occupied(instance):
            super()._see_off(instance)
            if instance not in self.leaving:
                self.queue.leave(instance)

    # -- cancel, expire, stop ------------------------------------------------------------------------------------------

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        """As a Scheduler's; with a request that was never executed goes what waits behind it, and its sequence is over."""
        if request.state is not PENDING:
            super().cancel(request, error)
            return
        behind = self.queue.cut(request, self.clock())
        super().cancel(request, error)
        for one in behind:
            words = f"{one.log_id}Request cancelled: a request before it in its sequence was given up"
            super().cancel(one, ServingError(Code.CANCELLED, words, Reason.CANCELED))
        self._after_sequences()

    def _after_sequences(self) -> None:
        """Sequences have ended: others may have their slots, an instance may go, all may be over."""
        for instance in list(self.leaving):
            self._see_off(instance)
        if self.stopping:
            self._tell_drained()
        if self.queue.size and not self._dispatching:
            self._schedule(self.clock())

    def _expire(self, now: float) -> None:
        for request in self.queue.expire(now):
            words = "timeout of the corresponding sequence has been expired"
            error = request.error = ServingError(Code.UNAVAILABLE, words, Reason.REJECTED)
            self.release(request, InferenceResponse([], error=error))
        self._after_sequences()

    def _arm_expiry(self) -> None:
        expiry = self.queue.next_expiry()
        if expiry is not None:
            self._arm(expiry)

    def why_waiting(self, request: InferenceRequest) -> str:
        sequence = self.queue.owner(request)
        if sequence is None:
            return ""
        if sequence.home is None:
            return f"sequence {sequence.id} is in the backlog: all slots are taken"
        if sequence.waiting and sequence.waiting[0] is not request:
            return f"for the requests before it in sequence {sequence.id}"
        return f"for the request of sequence {sequence.id} that is executing" if sequence.running is not None else ""

    def refuse_all(self, error: ServingError | None) -> None:
        self.refusing = error
        if error is not None:
            # The last first: each is told the reason, and none is cut off by another.
            for request in reversed(list(self.queue)):
                self.cancel(request, error_for(request, error))

    def abort(self, error: ServingError) -> None:
        for request in reversed(list(self.queue)):
            self.cancel(request, error)
        super().abort(error)

    def stop(self, continuing: bool = False) -> None:
        """Accept nothing more. `continuing`: but for sequences that are running, whose end is waited for, too."""
        super().stop(continuing)
        self._continuing = continuing
        if not continuing:
            self.queue.close(self.clock())
            self._after_sequences()

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not (self._continuing and self.queue.alive)


def _protect(request: InferenceRequest) -> None:
    """Let no execution change what the next one of the same request is to see: who wants to write takes a copy."""
    for tensor in request.inputs.values():
        view = tensor.array.view()
        view.flags.writeable = False
        tensor.array = view


def _hold_of_environment() -> tuple[int, int] | None:
    """Return how many requests have to wait in slots, and in the backlog, before anything is executed; None: no matter."""
    placed = number_of_environment("TRITONSERVER_DELAY_SCHEDULER")
    return (placed, number_of_environment("TRITONSERVER_BACKLOG_DELAY_SCHEDULER")) if placed else None

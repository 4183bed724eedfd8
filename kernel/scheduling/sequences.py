"""The queue of a model with `sequence_batching`, and what its executions mean to sequences. (Contract: scheduling, section 5.)

Who may execute when is decided in sequencing.py; here that becomes batches, what a request of a sequence carries is added and
taken (sequence_state.py), and executions that ask for another one get it. Null requests, which stand for empty slots, are
RELEASED from the beginning: nobody waits for them, nothing counts them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from kernel.config import ModelConfig
from kernel.errors import clipped
from kernel.instances import BlockedCall, ModelInstance
from kernel.requests import RESCHEDULED, Batch, InferenceRequest, InferenceResponse, RequestState, nobody
from kernel.rules import (
    START,
    Controls,
    RequestSequence,
    Sequencer,
    SequenceRule,
    States,
    StateValues,
    WaitReason,
    null_inputs,
)
from kernel.scheduling.batchers import number_of_environment
from kernel.tensor import Array

__all__ = ["SequenceQueue"]

log = logging.getLogger("kernel")

PENDING, EXECUTING, RELEASED = RequestState.PENDING, RequestState.EXECUTING, RequestState.RELEASED


class _Null(InferenceRequest):
    """What stands for an empty slot in an execution: nobody waits for it, so it is RELEASED, whatever is done with it."""

    __slots__ = ()

    @property
    def state(self) -> RequestState:
        return RELEASED

    @state.setter
    def state(self, state: RequestState) -> None:
        return


class _Waited(Batch):
    """An execution of requests that have waited for their sequences, each for a reason of its own."""

    __slots__ = ("reasons",)

    def __init__(self, requests: list[InferenceRequest], reasons: Mapping[InferenceRequest, WaitReason]) -> None:
        super().__init__(requests, len(requests))
        self.reasons = reasons

    def why_of(self, request: InferenceRequest) -> Any:
        return self.reasons.get(request, self.why)


class SequenceQueue:
    """The sequences of one model version, with the requests of them that wait: what a scheduler asks of a queue.

    `ended`, `responded` and `released` are its stages (lifecycle.py). `bound`: a request may be executed by one instance only.
    """

    bound = True
    timed = True  # sequences that are silent for too long end
    room = 0  # whether there is any is to be asked for each
    no_policy = False  # order, slots and time-outs are asked for each batch, so none is handed over before its time
    rule = None  # its own, one for each instance
    immediate = False
    expiry_words = "timeout of the corresponding sequence has been expired"

    def __init__(
        self, config: ModelConfig, clock: Callable[[], float], initial: Mapping[str, Array] | None = None
    ) -> None:
        """`initial`: the first values of the model's implicit state (models/initial_state.py)."""
        batching = config.sequence_batching
        assert batching is not None
        self._name = config.name
        self._clock = clock
        self._controls = Controls(config)
        self._states = States(config, initial or {}) if batching.states else None
        self._iterative = batching.iterative
        #: Whether an instance may have one execution at a time only, as far as sequences are concerned.
        self._one_at_once = not batching.oldest or batching.preserve_ordering
        self._memories: dict[InferenceRequest, StateValues] = {}  # the state that a request was given, and writes to
        self._hold = _hold_of_environment()
        self._outputs = frozenset(spec.name for spec in config.outputs)
        self._wanted = self._outputs | {spec.name for spec in config.kept_outputs}
        self._continuing = False
        self._waits: dict[InferenceRequest, WaitReason] = {}  # for what those that wait did so as they came
        self._alone: InferenceRequest | None = None  # a checked request that is a sequence by itself
        self._sequencer = Sequencer(SequenceRule.of(config), config.name, self._prepare)

    # -- in ------------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many requests wait."""
        return self._sequencer.size

    @property
    def sequences(self) -> int:
        """How many are running: more may come of them, though nothing waits."""
        return self._sequencer.alive

    @property
    def has_sequences(self) -> bool:
        """Whether there are sequences that have not ended."""
        return self._sequencer.alive > 0

    @property
    def ids(self) -> Collection[int | str]:
        """The ids of those that are running."""
        return self._sequencer.ids

    def __len__(self) -> int:
        return self._sequencer.size

    def __iter__(self) -> Iterator[InferenceRequest]:
        return iter(self._sequencer)

    def continues(self, request: InferenceRequest) -> bool:
        """Whether a request is accepted although nothing new is: it goes on with a sequence that is running."""
        return self._continuing and not request.flags & START and self._sequencer.knows(request)

    def check(self, request: InferenceRequest) -> None:
        """Raise ServingError for a request that no sequence can have. One that belongs to none is given an id of its own."""
        if request.correlation_id and (error := self._controls.refusal(request)) is not None:
            raise error
        self._alone = request if self._sequencer.check(request) else None

    def push(self, request: InferenceRequest, now: float) -> None:
        """Append a checked request to its sequence."""
        alone = self._alone is request
        self._alone = None
        if not alone and self._sequencer.conflicts(request):
            log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence will be terminated before new sequence starts.",
                clipped(str(request.correlation_id)), self._name,
            )  # fmt: skip
        if self._states is not None:
            wanted = request.wanted
            request.wanted = self._wanted if wanted is self._outputs else wanted | self._states.names
        if type(request.respond) is BlockedCall:
            request.respond = request.respond.__call__  # the answer comes by the loop, where state is taken out of it
        if self._iterative:
            _protect(request)
        self._sequencer.push(request, now, alone)
        if why := self.why_waiting(request):
            self._waits[request] = why

    def is_full(self, request: InferenceRequest) -> bool:
        """Whether `push` would refuse the request for want of room."""
        return False

    def _prepare(self, request: InferenceRequest, sequence: RequestSequence) -> None:
        """Give a request what its model is to know, once all before it in its sequence have been executed."""
        self._controls.add(request)
        if self._states is not None:
            if request.flags & START:
                sequence.memory = self._states.fresh()
            self._memories[request] = sequence.memory
            self._states.give(request, sequence.memory)

    # -- out -----------------------------------------------------------------------------------------------------------

    def is_ready(self, instance: ModelInstance) -> bool:
        """Whether there is anything that `instance` might execute."""
        return self._sequencer.is_ready(instance)

    def take(self, instance: ModelInstance, now: float) -> tuple[Sequence[Batch], float | None]:
        """Take out what `instance` is to execute now; or nothing, and when to look again."""
        if self._holds():
            return (), None
        taken, when = self._sequencer.take(instance, now)
        return ((self._batch_of(taken),), None) if taken else ((), when)

    def _holds(self) -> bool:
        """Whether as many requests as the reference's own tests want to see have not come yet (scheduling, section 13)."""
        if self._hold is None:
            return False
        in_slots, backlogged = self._hold
        there = self._sequencer
        if there.size - there.backlogged < in_slots or there.backlogged < backlogged:
            return True
        self._hold = None
        return False

    def _batch_of(self, taken: Sequence[InferenceRequest | None]) -> Batch:
        first = next(request for request in taken if request is not None)
        requests = [self._null(first) if request is None else request for request in taken]
        if not self._waits:
            return Batch(requests, len(requests))
        return _Waited(requests, {one: self._waits.pop(one) for one in requests if one in self._waits})

    def _null(self, pattern: InferenceRequest) -> InferenceRequest:
        """Return what stands for an empty slot in an execution together with `pattern`."""
        null = _Null(self._name, null_inputs(pattern.inputs, self._controls), nobody)
        null.model = pattern.model
        null.parent = pattern.parent  # who looks for the makers of an execution may begin here
        null.enqueued = pattern.enqueued
        null.counted = True
        return null

    def put_back(self, requests: Sequence[InferenceRequest], now: float) -> None:
        """Have what was taken, and has not begun, wait again; what has its answer meanwhile is forgotten."""
        for request in reversed(requests):
            if request.state is PENDING:
                self._sequencer.put_back(request, now)
            else:
                self._sequencer.executed(request, False, now)
                self._forget(request, now)

    def withdraw(self, request: InferenceRequest) -> Sequence[InferenceRequest]:
        """Take out a request that is given up; return those behind it, as its sequence is over."""
        return self._sequencer.cut(request, self._clock()) if request.state is PENDING else ()

    def give_up(self, id: int | str) -> list[InferenceRequest]:
        """Somebody else has a sequence from now on: it takes no more requests here. Return what waits of it, to be given up."""
        return self._sequencer.give_up(id, self._clock())

    def expire(self, now: float) -> list[InferenceRequest]:
        """Let sequences go that nobody has sent a request of for too long; return those that have waited too long for a slot."""
        return self._sequencer.expire(now)

    def next_expiry(self) -> float | None:
        """Return when `expire` has to be called at the latest, or None. May be early, never late."""
        return self._sequencer.next_expiry()

    def waiting_since(self) -> float | None:
        """Return when the request was enqueued that has waited longest; None while nobody waits."""
        return self._sequencer.waiting_since()

    def close(self, silence: float | None) -> None:
        """Nothing new comes, but to running sequences where `silence` is given: until they are silent for so many seconds.

        Else those of which nothing is left to do are over.
        """
        self._continuing = silence is not None
        if silence is not None:
            self._sequencer.hurry(silence, self._clock())
        else:
            self._sequencer.close(self._clock())

    def why_waiting(self, request: InferenceRequest) -> WaitReason | None:
        """Return why a request waits where that is neither busy instances nor its batch, else None."""
        sequence = self._sequencer.sequence_of(request)
        if sequence is None:
            return None
        name = f"sequence {sequence.id}"
        if sequence.home is None:
            then = f"for a slot: {name} was in the backlog, as all of them were taken"
            return WaitReason(f"{name} is in the backlog: all slots are taken", then)
        if sequence.waiting and sequence.waiting[0] is not request:
            words = f"for the requests before it in {name}"
            return WaitReason(words, words)
        if sequence.running is not None:
            return WaitReason(f"for the request of {name} that is executing", f"for the request of {name} that was executing")
        return None

    # -- instances -----------------------------------------------------------------------------------------------------

    def enter(self, instance: ModelInstance, now: float) -> None:
        """Have the slots of an instance, from now on."""
        if self._one_at_once:
            instance.capacity, instance.limit = 1, min(instance.limit, 1)
        self._sequencer.enter(instance, now)

    def retire(self, instance: ModelInstance) -> None:
        """Give no more sequences to an instance; those that it has stay until they end."""
        self._sequencer.retire(instance)

    def lose(self, instance: ModelInstance) -> list[InferenceRequest]:
        """What an instance had of its sequences is lost, unless it is kept here; return what can't be executed without it."""
        return [] if self._states is not None else self._sequencer.lose(instance, self._clock())

    def leave(self, instance: ModelInstance) -> bool:
        """Forget an instance; False while it has sequences."""
        if self._sequencer.occupied(instance):
            return False
        self._sequencer.leave(instance)
        return True

    # -- stages --------------------------------------------------------------------------------------------------------

    def ended(self, batch: Batch, result: Any) -> Any:
        """An execution has ended: keep the state that it brings, and let its sequences go on."""
        now, requests = self._clock(), batch.requests
        if isinstance(result, (list, tuple)) and len(result) == len(requests):
            for request, response in zip(requests, result):
                if isinstance(response, InferenceResponse):
                    self._take_state(request, response)
            if self._iterative:
                result = [self._once_more(batch.instance, *pair) for pair in zip(requests, result)]
        for request in requests:
            self._sequencer.executed(request, request.state is PENDING, now)
            if request.state is RELEASED:
                self._forget(request, now)
        return result

    def _once_more(self, instance: ModelInstance, request: InferenceRequest, response: Any) -> Any:
        """Have a request wait again whose execution asks for another one. In a warmup once is enough."""
        if response is RESCHEDULED:
            if instance.in_warmup:
                return InferenceResponse([])
            if request.state is EXECUTING:
                request.put_back()
                request.flags = 0  # its START has been executed, and must not begin the sequence once more
        return response

    def _take_state(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Keep the state that a response brings."""
        if self._states is not None and response.error is None:
            memory = self._memories.get(request)
            self._states.take(request, response, {} if memory is None else memory)

    def responded(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """A response is given before its execution ends."""
        if self._states is not None and response.error is None:
            self._take_state(request, response)
            sequence = self._sequencer.sequence_of(request)
            head = sequence.waiting[0] if sequence is not None and sequence.waiting else None
            if head is not None and head in self._memories:  # it was prepared while this answer was still to come
                self._states.give(head, self._memories[head])

    def released(self, request: InferenceRequest) -> None:
        """A request has its final answer."""
        self._forget(request, self._clock())

    def _forget(self, request: InferenceRequest, now: float) -> None:
        """Forget a request that has its answer, unless it is still being executed."""
        self._sequencer.answered(request, now)
        if self._waits:
            self._waits.pop(request, None)
        if self._memories and self._sequencer.sequence_of(request) is None:
            self._memories.pop(request, None)


def _protect(request: InferenceRequest) -> None:
    """Let no execution change what the next one of the same request is to see: who wants to write takes a copy."""
    for tensor in request.inputs.values():
        view = tensor.array.view()
        view.flags.writeable = False
        tensor.array = view


def _hold_of_environment() -> tuple[int, int] | None:
    """Return how many requests have to wait in slots, and in the backlog, before anything is executed; None: no matter."""
    in_slots = number_of_environment("TRITONSERVER_DELAY_SCHEDULER")
    return (in_slots, number_of_environment("TRITONSERVER_BACKLOG_DELAY_SCHEDULER")) if in_slots else None

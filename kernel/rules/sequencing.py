"""Sequences of one model: which slot each has, who waits for one, and which of their requests may be executed now. Pure.

The law: the requests of a sequence are executed one at a time, in the order in which they came, on one instance; a sequence
holds a slot from its first request to its last; one that finds none free waits in the backlog, first come first served, with all
its requests. `now` is an argument; what is decided here the scheduler carries out. (Contract: scheduling, sections 5.1 to 5.4,
5.6, 5.7.)
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from kernel.config import ModelConfig, sequence_wait_of
from kernel.errors import Code, ServingError
from kernel.requests import InferenceRequest
from kernel.rules.batching import BatchRule, fits
from kernel.rules.sequence_state import END, START, StateValues

__all__ = ["RequestSequence", "SequenceRule", "Sequencer"]


TINY = 1e-6  # configs hold the utilization in four bytes: 0.3 of ten slots are three


def _nothing(request: InferenceRequest, sequence: RequestSequence) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, slots=True)
class SequenceRule:
    """What a model's config says about sequences. `delay`, `idle` and `wait` (for a slot, 0.0 for ever) in seconds; `batch`: the
    rule of one execution.
    """

    oldest: bool
    slots: int
    idle: float
    delay: float
    utilization: float
    iterative: bool
    string_ids: bool
    batch: BatchRule
    wait: float = 0.0

    @classmethod
    def of(cls, config: ModelConfig) -> SequenceRule:
        """Return the rule of a config that has `sequence_batching`."""
        batching = config.sequence_batching
        assert batching is not None
        # State of a variable size must agree like any other input.
        varying = [state.input_name for state in batching.states if -1 in state.dims]
        return cls(
            oldest=batching.oldest,
            slots=batching.slots,
            idle=batching.idle_us / 1e6,
            delay=batching.max_queue_delay_us / 1e6,
            utilization=batching.minimum_slot_utilization,
            iterative=batching.iterative,
            string_ids=any(one.kind == "CORRID" and one.datatype == "BYTES" for one in batching.controls),
            batch=BatchRule.with_sizes(config, batching.preferred_batch_size, batching.max_queue_delay_us, varying),
            wait=sequence_wait_of(config.parameters),
        )


class RequestSequence:
    """One sequence. `waiting`: its requests that are not executing, in order; `running`: the one that is.

    `over`: it takes no more requests, its id means nothing any more. `memory`: its implicit state.
    """

    __slots__ = ("expires", "home", "id", "last_came", "memory", "number", "over", "running", "waiting")

    def __init__(self, id: int | str, now: float) -> None:
        self.id = id
        self.waiting: deque[InferenceRequest] = deque()
        self.running: InferenceRequest | None = None
        self.home: _Slots | None = None  # the instance's slots in one of which it is; None in the backlog, and at its end
        self.number = 0  # of its slot
        self.over = False
        self.last_came = now  # when its last request came
        self.expires: float | None = None  # in the backlog: when the first of its requests has waited too long
        self.memory: StateValues = {}


class _Slots:
    """The slots of one instance. `ready`: requests that may be executed, in the order in which they could."""

    __slots__ = ("occupants", "order", "ready", "retired", "taken")

    def __init__(self, count: int, order: int) -> None:
        self.occupants: list[RequestSequence | None] = [None] * count
        self.order = order
        self.ready: dict[InferenceRequest, None] = {}
        self.taken = 0
        self.retired = False


class Sequencer:
    """The sequences of one model version over its instances, which are named by any hashable key.

    `size`: requests that wait, `backlogged` of them without a slot. `prepare(request, sequence)` is called for each request that
    may be executed from now on, since all before it in its sequence have been: it gives it what the model is to know.
    """

    def __init__(
        self, rule: SequenceRule, model: str, prepare: Callable[[InferenceRequest, RequestSequence], None] = _nothing
    ) -> None:
        self.rule = rule
        self._silence = rule.idle  # seconds
        self._hurries = False  # the server stops: silent sequences, and no others, end sooner than by their rule
        self._model = model
        self._prepare = prepare
        self.size = 0
        self.backlogged = 0
        self._known: dict[int | str, RequestSequence] = {}  # those that take requests
        self._sequence_of: dict[InferenceRequest, RequestSequence] = {}
        self._homes: dict[object, _Slots] = {}
        self._free: list[tuple[int, int, _Slots]] = []  # slots without a sequence, the lowest number first
        self._backlog: OrderedDict[RequestSequence, None] = OrderedDict()
        self._idle: OrderedDict[RequestSequence, None] = OrderedDict()  # with a slot, and taking requests: longest silent first
        self._expiries: list[tuple[float, int, RequestSequence]] = []  # of the backlog; some are stale
        self._counter = 0

    # -- instances -----------------------------------------------------------------------------------------------------

    def enter(self, instance: object, now: float) -> None:
        """Have the slots of an instance, from now on."""
        if instance in self._homes:
            return
        self._counter += 1
        home = self._homes[instance] = _Slots(self.rule.slots, self._counter)
        for number in range(self.rule.slots):
            heapq.heappush(self._free, (number, home.order, home))
        self._settle(now)

    def retire(self, instance: object) -> None:
        """Give no more sequences to an instance; those that it has stay until they end."""
        self._homes[instance].retired = True
        self._free = [entry for entry in self._free if not entry[2].retired]
        heapq.heapify(self._free)

    def leave(self, instance: object) -> None:
        """Forget an instance that has no sequence any more."""
        self._homes.pop(instance, None)

    def occupied(self, instance: object) -> int:
        """Return how many sequences an instance has."""
        home = self._homes.get(instance)
        return home.taken if home is not None else 0

    @property
    def alive(self) -> int:
        """How many sequences have a slot or wait for one."""
        return len(self._backlog) + sum(home.taken for home in self._homes.values())

    # -- in ------------------------------------------------------------------------------------------------------------

    def check(self, request: InferenceRequest) -> bool:
        """Raise ServingError(INVALID_ARG) for what no sequence can have. Return whether the request is a sequence of its own.

        That is for an iterative model; it is given an id that no sequence has, and which no other request can mean.
        """
        if request.batch_size != 1:
            raise ServingError(
                Code.INVALID_ARG,
                f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of sequence batcher",
            )
        if not request.correlation_id:
            if not self.rule.iterative:
                raise ServingError(
                    Code.INVALID_ARG,
                    f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID",
                )
            request.correlation_id = self._new_id()
            request.flags |= START
            return True
        if not request.flags & START and request.correlation_id not in self._known:
            raise ServingError(
                Code.INVALID_ARG,
                f"inference request for sequence {request.correlation_id} to model '{self._model}' must specify the START "
                "flag on the first request of the sequence",
            )
        return False

    def _new_id(self) -> int | str:
        while True:
            self._counter += 1
            id = str(self._counter) if self.rule.string_ids else self._counter
            if id not in self._known:
                return id

    def knows(self, request: InferenceRequest) -> bool:
        """Whether a sequence of the request's id is running."""
        return request.correlation_id in self._known

    @property
    def ids(self) -> Collection[int | str]:
        """The ids of the sequences that are running."""
        return self._known.keys()

    def conflicts(self, request: InferenceRequest) -> bool:
        """Whether a checked request begins a sequence whose id another one has, that will be cut off by it."""
        return bool(request.flags & START) and request.correlation_id in self._known

    def push(self, request: InferenceRequest, now: float, alone: bool = False) -> None:
        """Append a checked request to its sequence, which begins here if there is none. `alone`: what `check` has said."""
        id = request.correlation_id
        sequence = None if alone else self._known.get(id)
        if sequence is None:
            sequence = RequestSequence(id, now)
            if alone:
                sequence.over = True
            else:
                self._known[id] = sequence
            self._settle_in(sequence)
        else:
            sequence.last_came = now
            if sequence in self._idle:
                self._idle.move_to_end(sequence)
        self._sequence_of[request] = sequence
        sequence.waiting.append(request)
        self.size += 1
        if sequence.home is None:
            self.backlogged += 1
            self._limit_wait(sequence, request)
        elif len(sequence.waiting) == 1 and sequence.running is None:
            self._ready(sequence)
        if request.flags & END and not self.rule.iterative:
            self._forget(sequence)

    def _settle_in(self, sequence: RequestSequence) -> None:
        """Give a new sequence a slot, or have it wait in the backlog."""
        if self._free:
            self._place(sequence)
        else:
            self._backlog[sequence] = None

    def _place(self, sequence: RequestSequence) -> None:
        number, _, home = heapq.heappop(self._free)
        sequence.home, sequence.number = home, number
        home.occupants[number] = sequence
        home.taken += 1
        if not sequence.over and not self.rule.iterative:
            self._idle[sequence] = None

    def _limit_wait(self, sequence: RequestSequence, request: InferenceRequest) -> None:
        longest = request.timeout_us / 1e6
        if self.rule.wait and not 0 < longest < self.rule.wait:
            longest = self.rule.wait
        if longest > 0:
            expires = request.enqueued + longest
            if sequence.expires is None or expires < sequence.expires:
                sequence.expires = expires
                self._counter += 1
                heapq.heappush(self._expiries, (expires, self._counter, sequence))

    def _ready(self, sequence: RequestSequence) -> None:
        """Let the sequence's first waiting request be executed."""
        assert sequence.home is not None and sequence.running is None
        request = sequence.waiting[0]
        self._prepare(request, sequence)
        sequence.home.ready[request] = None

    def _forget(self, sequence: RequestSequence) -> None:
        """The sequence takes no more requests; its id is free for another."""
        if not sequence.over:
            sequence.over = True
            if self._known.get(sequence.id) is sequence:
                del self._known[sequence.id]
            self._idle.pop(sequence, None)

    # -- out -----------------------------------------------------------------------------------------------------------

    def sequence_of(self, request: InferenceRequest) -> RequestSequence | None:
        """Return the sequence of a request that waits or executes, or has executed and is still to be answered."""
        return self._sequence_of.get(request)

    def is_ready(self, instance: object) -> bool:
        """Whether there is anything that the instance might execute."""
        return bool(self._homes[instance].ready)

    def take(self, instance: object, now: float) -> tuple[list[InferenceRequest | None], float | None]:
        """Return what the instance is to execute now, or `([], when)`: look again then, or when something has changed.

        None stands for a slot (direct strategy) that has nothing to execute, but one above it has.
        """
        home = self._homes[instance]
        if not home.ready:
            return [], None
        taken: list[InferenceRequest | None]
        if self.rule.oldest:
            count, when, _ = self.rule.batch.decide(home.ready, now)
            taken = [request for request, _ in zip(home.ready, range(count))]
        else:
            taken, when = self._by_slot(home, now)
        for request in taken:
            if request is not None:
                self._begin(home, request, now)
        return taken, when

    def _by_slot(self, home: _Slots, now: float) -> tuple[list[InferenceRequest | None], float | None]:
        rule = self.rule
        # Whose shapes the others have to fit: that of the longest wait, so that nobody is left out for ever.
        first = min(home.ready, key=lambda request: (request.enqueued, request.order))
        if rule.delay and len(home.ready) / rule.slots < rule.utilization - TINY:
            due = first.enqueued + rule.delay
            if now < due:
                return [], due
        taken: list[InferenceRequest | None] = []
        for sequence in home.occupants:
            head = sequence.waiting[0] if sequence is not None and sequence.waiting else None
            if head is not None and (head not in home.ready or not fits(first, head, rule.batch)):
                head = None
            taken.append(head)
        while taken[-1] is None:
            taken.pop()
        return taken, None

    def _begin(self, home: _Slots, request: InferenceRequest, now: float) -> None:
        sequence = self._sequence_of[request]
        del home.ready[request]
        sequence.waiting.popleft()
        sequence.running = request
        self.size -= 1
        if not self.rule.oldest and sequence.over and not sequence.waiting and not self.rule.iterative:
            self._vacate(sequence, now)  # nothing of it is to come: the next one may have its slot already (reference behaviour)

    def executed(self, request: InferenceRequest, again: bool, now: float) -> None:
        """An execution of the request has ended; `again`: it is to be executed once more, before all that follows it."""
        sequence = self._sequence_of.get(request)
        if sequence is None or sequence.running is not request:
            return
        sequence.running = None
        if again:
            sequence.waiting.appendleft(request)
            self.size += 1
        if sequence.waiting:
            if sequence.home is not None:
                self._ready(sequence)
        elif sequence.over or self.rule.iterative:
            self._end(sequence, now)

    def answered(self, request: InferenceRequest, now: float) -> None:
        """The request has had its final answer. A sequence in which it still waited goes on without it."""
        sequence = self._sequence_of.get(request)
        if sequence is None or sequence.running is request:
            return  # it is still being executed
        del self._sequence_of[request]
        if request in sequence.waiting:
            self._drop(sequence, request)
            if sequence.waiting and sequence.home is not None and sequence.running is None:
                self._ready(sequence)
            elif not sequence.waiting and sequence.running is None:
                self._end(sequence, now)

    def put_back(self, request: InferenceRequest, now: float) -> None:
        """An execution that was taken has not begun: the request is the first of its sequence again."""
        sequence = self._sequence_of[request]
        assert sequence.running is request
        sequence.running = None
        sequence.waiting.appendleft(request)
        self.size += 1
        if sequence.home is not None:
            others = sequence.home.ready
            sequence.home.ready = {}
            self._ready(sequence)
            sequence.home.ready |= others
        else:  # its slot has another sequence by now: it waits for one in front of the backlog
            self.backlogged += 1
            self._backlog[sequence] = None
            self._backlog.move_to_end(sequence, last=False)
            self._settle(now)

    # -- the end of sequences ----------------------------------------------------------------------------------------------

    def cut(self, request: InferenceRequest, now: float) -> list[InferenceRequest]:
        """Take a waiting request and all behind it out of its sequence, which is over then; return those behind it.

        What would have been computed without one of its requests is not the sequence that was asked for.
        """
        sequence = self._sequence_of[request]
        behind: list[InferenceRequest] = []
        while True:
            last = sequence.waiting[-1]
            self._drop(sequence, last)
            del self._sequence_of[last]
            if last is request:
                break
            behind.append(last)
        self._forget(sequence)
        if not sequence.waiting and sequence.running is None:
            self._end(sequence, now)
        behind.reverse()
        return behind

    def give_up(self, id: int | str, now: float) -> list[InferenceRequest]:
        """Somebody else has a sequence from now on: it takes no more requests here. Return what waits, which is to be cut."""
        sequence = self._known.get(id)
        if sequence is None:
            return []
        self._forget(sequence)
        if not sequence.waiting and sequence.running is None:
            self._end(sequence, now)
        return list(sequence.waiting)

    def lose(self, instance: object, now: float) -> list[InferenceRequest]:
        """What the instance knew of its sequences is lost: they are over. Return what waited of them, taken out.

        A sequence of which nothing was executed has lost nothing; nor has one that begins anew, from there on.
        """
        lost: list[InferenceRequest] = []
        for sequence in list(self._homes[instance].occupants):
            if sequence is None:
                continue
            while sequence.waiting and not sequence.waiting[0].flags & START:
                request = sequence.waiting[0]
                self._drop(sequence, request)
                del self._sequence_of[request]
                lost.append(request)
            if not sequence.waiting:
                self._forget(sequence)
                if sequence.running is None:
                    self._end(sequence, now)
            elif sequence.running is None:
                self._ready(sequence)
        return lost

    def _drop(self, sequence: RequestSequence, request: InferenceRequest) -> None:
        """Take a waiting request out."""
        if sequence.waiting[-1] is request:
            sequence.waiting.pop()
        else:
            sequence.waiting.remove(request)
        self.size -= 1
        if sequence.home is None:
            self.backlogged -= 1
        else:
            sequence.home.ready.pop(request, None)

    def _end(self, sequence: RequestSequence, now: float) -> None:
        self._forget(sequence)
        sequence.expires = None
        if sequence.home is not None:
            self._vacate(sequence, now)
        else:
            self._backlog.pop(sequence, None)

    def _vacate(self, sequence: RequestSequence, now: float) -> None:
        """Free the sequence's slot, for the one that has waited longest for one."""
        home = sequence.home
        assert home is not None
        home.occupants[sequence.number] = None
        home.taken -= 1
        sequence.home = None
        if not home.retired:
            heapq.heappush(self._free, (sequence.number, home.order, home))
            self._settle(now)

    def _settle(self, now: float) -> None:
        """Let the backlog have the slots that are free."""
        while self._backlog and self._free:
            sequence, _ = self._backlog.popitem(last=False)
            self.backlogged -= len(sequence.waiting)
            sequence.expires = None
            sequence.last_came = now  # while it waited nobody could expect it to be quick
            self._place(sequence)
            self._ready(sequence)

    # -- time ----------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[InferenceRequest]:
        """Let sequences go that nobody has sent a request of for too long; return those that have waited too long for a slot."""
        rejected: list[InferenceRequest] = []
        heap = self._expiries
        while heap and (heap[0][0] <= now or heap[0][2].expires != heap[0][0]):
            when, _, sequence = heapq.heappop(heap)
            if sequence.expires != when:
                continue  # it has a slot, or is gone, or has expired by an earlier one
            self._forget(sequence)
            rejected.extend(sequence.waiting)
            for request in sequence.waiting:
                del self._sequence_of[request]
            self.size -= len(sequence.waiting)
            self.backlogged -= len(sequence.waiting)
            sequence.waiting.clear()
            self._end(sequence, now)
        while self._idle:
            sequence = next(iter(self._idle))
            if sequence.last_came + self._silence > now:
                break
            if self._hurries and (sequence.waiting or sequence.running is not None):
                sequence.last_came = now  # the client waits for an answer, so its silence has not begun
                self._idle.move_to_end(sequence)
                continue
            self._forget(sequence)
            if not sequence.waiting and sequence.running is None:
                self._end(sequence, now)
        return rejected

    def next_expiry(self) -> float | None:
        """Return when `expire` has to be called at the latest, or None. May be early, never late."""
        idle = next(iter(self._idle)).last_came + self._silence if self._idle else None
        backlog = self._expiries[0][0] if self._expiries else None
        return idle if backlog is None else backlog if idle is None else min(idle, backlog)

    def hurry(self, seconds: float, now: float) -> None:
        """The server stops: sequences go on, but one of which nothing is left to do ends after so much silence from now on."""
        if seconds < self._silence:
            for sequence in self._idle:  # in their order: those that have little time left have no more of it
                sequence.last_came = max(sequence.last_came, min(now, sequence.last_came + self._silence - seconds))
            self._silence, self._hurries = seconds, True

    def close(self, now: float) -> None:
        """No more requests come: a sequence of which nothing is left to do is over."""
        for sequence in list(self._known.values()):
            self._forget(sequence)
            if not sequence.waiting and sequence.running is None:
                self._end(sequence, now)

    # -- who waits -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[InferenceRequest]:
        """Yield the waiting requests: of one instance after the other, then those of the backlog."""
        for home in self._homes.values() if self.size else ():
            for sequence in home.occupants:
                if sequence is not None:
                    yield from sequence.waiting
        for sequence in self._backlog:
            yield from sequence.waiting

    def waiting_since(self) -> float | None:
        """Return when the request was enqueued that has waited longest; None while nobody waits."""
        return min((request.enqueued for request in self), default=None)

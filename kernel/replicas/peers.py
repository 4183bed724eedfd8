"""The other replicas of a group: who they are, what each has to do, and the requests that are handed over, both ways.

The law: each request that one has sent is answered by the other, or lost with it, and each that one has received has its one
final answer here. What is handed over is never handed on. Replicas report what they have to do with each answer, and besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol

from kernel.circles.lookout import Behind
from kernel.errors import Code, ServingError, clipped
from kernel.forking import guard
from kernel.models import Away, HandoverStage, Model
from kernel.replicas.forms import (
    Answered,
    AskWaits,
    Bye,
    Drop,
    Hand,
    Hello,
    Keeps,
    LoadTold,
    Refused,
    Waits,
    answer_of,
    hand_of,
    read,
    response_of,
    tensors_of,
    write,
)
from kernel.replicas.link import Link
from kernel.replicas.waits import FarWaits, refs_of
from kernel.requests import InferenceRequest, InferenceResponse
from kernel.rules import (
    COST_SECONDS,
    HOP_SECONDS,
    Own,
    Owners,
    PeerLoad,
    Reported,
    UsualTime,
    better_off,
    rendezvous,
    worth_telling,
)

__all__ = ["PeerTable"]

log = logging.getLogger("kernel")

#: How often it is looked whether there is something to report, while there is something to do, and else.
BUSY_TICK = 0.02
IDLE_TICK = 0.25

#: Bytes that one may have to send to another replica before it is given no more.
MOST_UNSENT = 64 * 1024 * 1024

#: For how long after a change of who is there others may not have heard of it; their loops may be held.
SETTLED_SECONDS = 5.0

#: By how much each replica looks later for circles of calls than the one before it.
LATER_SECONDS = 0.005

#: How long who has come waits until the others have told which sequences they keep.
INTRODUCED_SECONDS = 2.0


class Serving(Protocol):
    """The kernel, as it is needed here; class Kernel says what each is."""

    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    exiting: bool
    supervision: Any

    @property
    def find(self) -> Callable[[str, str], Model]: ...

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None: ...


class PeerTable:
    """The others, as this replica knows them. `busy`: stages of models that have something to do. On the loop.

    The core's own: `forked`.
    """

    def __init__(
        self, kernel: Serving, index: int, count: int, chance: Callable[[], float] = random.random, link: Any = Link
    ) -> None:
        """`index`: of this replica, one of `count`. `chance()`: from 0.0 to below 1.0. `link`: makes what Link is."""
        self.kernel = kernel
        self._index = index
        self._all = range(count)
        self.link = link
        self.busy: set[HandoverStage] = set()
        self.stages: dict[Model, HandoverStage] = {}
        self.others: dict[PeerLoad, _Other] = {}
        self.hop_time = UsualTime(HOP_SECONDS)
        self.owners = Owners()
        self.beyond = FarWaits(self, kernel.clock)
        self._kept: dict[tuple[str, int | str], float] = {}  # sequences here of which the others were told, when they began
        self._unsettled = (0.0, 0.0)  # since when, and until when, others may know less of who is there, or more
        self._introducing: set[_Other] = set()  # those who have not told yet what they keep
        self._introduced: asyncio.Event | None = None
        self._chance = chance
        self.cost_time = UsualTime(COST_SECONDS)
        self._timer: asyncio.TimerHandle | None = None
        self._settles = False
        self._hurried = False
        self._leaving = False
        guard(self)

    def join(self, name: str, index: int, sock: socket.socket, own: str) -> None:
        """Another replica is there, at the other end of `sock`. `name`: of all that have ever been; `index`: its place;
        `own`: the name of this one.
        """
        self.owners.called(own)
        self.kernel.supervision.lookout.later = self._index * LATER_SECONDS
        other = _Other(self, PeerLoad(name), index, sock)
        self.others[other.load] = other
        self._changed()
        kept = {one: began for one, began in self._sequences().items() if self._leaving or not self.owners.is_own(one[1], name)}
        other.link.send(write(Keeps([*kept], [*kept.values()])))
        if self._introduced is None:
            self._introducing.add(other)
        elif not self._leaving:
            other.link.send(write(Hello()))
        if self._leaving:
            other.link.send(write(Bye()))
        other.tell(self.kernel.clock())
        if self._timer is None:
            self._tick()

    async def introduce(self) -> None:
        """Take sequences from now on, as soon as the others have told which they keep; return when they have."""
        introduced = self._introduced = asyncio.Event()
        if self._introducing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(introduced.wait(), INTRODUCED_SECONDS)
        for other in self.others.values():
            other.link.send(write(Hello()))

    def told(self, other: _Other) -> None:
        """One has told what it keeps, or has gone."""
        self._introducing.discard(other)
        if self._introduced is not None and not self._introducing:
            self._introduced.set()

    def leave(self) -> None:
        """Have the others hand no more over to this replica, but for the sequences that it has."""
        self._leaving = True
        self.owners.leaves()
        self.regard()
        for other in self.others.values():
            other.link.send(write(Bye()))

    def close(self) -> None:
        """The end: what others still have of ours is lost, which nobody waits for any more."""
        if self._timer is not None:
            self._timer.cancel()
        for other in list(self.others.values()):
            other.link.close()
        self.others.clear()

    def forked(self) -> None:
        """In a child that model code has forked: it is nobody's peer."""
        for other in self.others.values():
            other.link.forked()

    # -- for the stages ------------------------------------------------------------------------------------------------

    def better_off(self, model: str, own: Own, now: float) -> _Other | None:
        """Return who is to take a request, None for nobody."""
        found = better_off(self.others, model, own, now, self._chance)
        if found is None:
            return None
        other = self.others[found]
        return other if other.link.unsent < MOST_UNSENT else None

    def cost(self, now: float) -> float:
        """Return how long the loop is busy with handing a request over, in seconds."""
        return self.cost_time.seconds(now)

    def hop(self, now: float) -> float:
        """Return how long the way to another replica and back takes, in seconds."""
        return self.hop_time.seconds(now)

    def has_work(self) -> None:
        """Some stage has something to do, while none had."""
        if not self._hurried and self._timer is not None:
            self._hurried = True
            self._timer.cancel()
            self._timer = self.kernel.loop.call_later(BUSY_TICK, self._tick)

    # -- sequences -----------------------------------------------------------------------------------------------------

    def owner(self, model: str, id: int | str) -> _Other | None:
        """Return who is to have a sequence that is not here, None where it is this replica."""
        name = self.owners.owner(model, id)
        if name == self.owners.own:
            return None
        return self.named(name)

    def catch_up(self) -> None:
        """Hear what others have said of sequences, where who is there has changed lately: what they said before a client had its
        answer is known before that client's next request is dealt with.
        """
        if self.kernel.clock() < self._unsettled[1]:
            for other in list(self.others.values()):
                other.link.read()

    def began(self, model: str, id: int | str, when: float) -> None:
        """A sequence begins here. If others might look for it elsewhere they are told, before anybody has its first answer."""
        if self._is_told((model, id), when):
            self._keep({**self._kept, (model, id): when})

    def contest(self, name: str, sequences: dict[tuple[str, int | str], float]) -> None:
        """Another one has these sequences: of those that are here, too, the one that has begun later is alive."""
        stages = {stage.key: stage for stage in self.stages.values()} if sequences else {}
        for (model, id), began in sequences.items():
            stage = stages.get(model)
            if stage is None or id not in stage.sequences:
                continue
            own = stage.began(id)
            if (began, name) > (own, self.owners.own):
                self._kept.pop((model, id), None)
                stage.give_up(id, f"replica {self._place_of(name)}")
            else:
                self._kept = {}  # so that it is told again
                self._keep_told()

    def _place_of(self, name: str) -> object:
        other = self.named(name)
        return "?" if other is None else other.index

    def _is_told(self, sequence: tuple[str, int | str], began: float) -> bool:
        """Whether others are told that a sequence is here: they might not think so, or another one has had it."""
        since, until = self._unsettled
        lately = began >= since and self.kernel.clock() < until
        return lately or not self.owners.is_own(sequence[1]) or bool(self.owners.keeper(sequence))

    def _changed(self) -> None:
        """Who is there has changed."""
        now = self.kernel.clock()
        since, until = self._unsettled
        self._unsettled = (since if now < until else now), now + SETTLED_SECONDS
        self._settles = True

    def was_lost(self, id: int | str) -> bool:
        """Whether a replica that has died would have had a sequence."""
        return self.owners.was_lost(id)

    def regard(self) -> None:
        """Others have come or gone, so the hash gives other sequences to this replica than before."""
        self._changed()
        self._keep_told()
        self.settle()

    def _sequences(self) -> dict[tuple[str, int | str], float]:
        """Return the sequences that are running here, and when they began."""
        return {(stage.key, id): stage.began(id) for stage in self.stages.values() for id in stage.sequences}

    def _keep_told(self) -> None:
        self._keep({one: began for one, began in self._sequences().items() if self._is_told(one, began)})

    def _keep(self, kept: dict[tuple[str, int | str], float]) -> None:
        if kept != self._kept:
            self._kept = kept
            for other in self.others.values():
                other.link.send(write(Keeps([*kept], [*kept.values()])))

    # -- models that live at one ---------------------------------------------------------------------------------------

    def lives_here(self, name: str) -> bool:
        """Whether this replica is the one that a model lives at. Before the others are known they are taken to be there."""
        there = self._homes()
        indexes = {str(index) for index in (there if self._introduced is not None else self._all)}
        if not (self._leaving and there):
            indexes.add(str(self._index))
        return rendezvous(indexes, name) == str(self._index)

    def home(self, name: str) -> _Other | None:
        """Return at whom a model lives, None where that is this replica."""
        there = self._homes()
        found = rendezvous({str(index) for index in (*there, *(() if self._leaving and there else (self._index,)))}, name)
        return there.get(int(found))

    def _homes(self) -> dict[int, _Other]:
        """Return those at whom models may live, by their place; where one takes another's place the new one."""
        return {other.index: other for load, other in self.others.items() if not load.leaving}

    def settle(self) -> None:
        """Have models come to this replica that live here from now on, and others go."""
        for stage in self.stages.values():
            if stage.single:
                stage.settle()

    # -- calls that wait for themselves ----------------------------------------------------------------------------------

    def named(self, name: str) -> _Other | None:
        """Return another replica by its name, None where it has gone."""
        return next((other for load, other in self.others.items() if load.name == name), None)

    # -- what is reported ----------------------------------------------------------------------------------------------

    def shared(self) -> float:
        """Return how many seconds the loop has to do."""
        return sum([stage.work for stage in self.busy if stage.on_loop])

    def waits(self) -> dict[str, float]:
        """Return how long one more request to each model would wait, in seconds."""
        return {stage.key: stage.wait for stage in self.busy}

    def _tick(self) -> None:
        now = self.kernel.clock()
        if self._settles and now >= self._unsettled[1]:
            self._settles = False
            self._keep_told()
        elif self._kept:
            there = self._sequences()
            self._keep({one: there[one] for one in self._kept if one in there})
        for other in self.others.values():
            other.look(now)
        self.settle()
        self._hurried = bool(self.busy)
        self._timer = self.kernel.loop.call_later(BUSY_TICK if self.busy else IDLE_TICK, self._tick)


class _Other:
    """Another replica, and the socket to it. `given`: requests of ours that it has; `taken`: those of its own that are here."""

    def __init__(self, peers: PeerTable, load: PeerLoad, index: int, sock: socket.socket) -> None:
        self.load = load
        self.index = index
        self.link: Link = peers.link(peers.kernel.loop, sock, self._message, self._ended)
        self.given: dict[int, tuple[Away, InferenceRequest, float]] = {}
        self.taken: dict[int, InferenceRequest] = {}
        load.here = self.taken
        self.seen = 0
        self._peers = peers
        self._kernel = peers.kernel
        self._number = count(1).__next__
        self._told = 0.0
        self._told_at = 0.0

    # -- ours, there ---------------------------------------------------------------------------------------------------

    def hand(self, away: Away, request: InferenceRequest, seconds: float) -> int:
        """Send it a request; return the number that it has there, 0 where it can't be written down."""
        began = self._kernel.clock()
        number = self._number()
        try:
            head, body = hand_of(number, request, int(away.version_text))
        except Exception as error:
            log.warning("%sthe request stays here, as it can't be handed over: %s", request.log_id, error)
            return 0
        self.given[number] = away, request, began
        self.load.sent(number, seconds)
        self.link.send(head, body)
        now = self._kernel.clock()
        self._peers.cost_time.measured(now - began, now)
        return number

    def cancel(self, number: int) -> None:
        """Tell it that nobody waits for a request any more."""
        if self.given.pop(number, None) is not None:
            self.link.send(write(Drop(number)))

    def awaited(self, number: int, told: Callable[[], None]) -> Sequence[Any] | None:
        """As Taker.awaited."""
        return self._peers.beyond.awaited(self.load.name, self._peers.owners.own, number, told)

    def _answered(self, answer: Answered, body: memoryview) -> None:
        now = self._kernel.clock()
        given = self.given.get(answer.number)
        if given is None:
            self._reported(Reported(answer.seen, answer.shared), now)
            return
        away, request, began = given
        self._reported(Reported(answer.seen, answer.shared, {away.key: answer.wait}), now)
        try:
            response = response_of(answer, body)
        except Exception as error:  # such as an array of another datatype than its tensor's
            response = _unfit(request, error)
        if answer.final:
            del self.given[answer.number]
            self._peers.hop_time.measured(now - began - answer.spent, now)
            if answer.times is not None:
                away.executed(request, answer.times)
        away.answered(request, response, answer.final)

    def _reported(self, told: Reported, now: float, all_models: bool = False) -> None:
        self.load.report(told, now, all_models)

    def _refused(self, refused: Refused) -> None:
        given = self.given.pop(refused.number, None)
        if given is not None:
            away, request, _ = given
            self.load.refused(away.key, self._kernel.clock())
            away.refused(request)

    # -- its own, here -------------------------------------------------------------------------------------------------

    def _take(self, hand: Hand, body: memoryview) -> None:
        """Execute a request of its own, or refuse it, so that it is executed there."""
        self.seen = hand.number
        reply = _Reply(self, hand.number, self._kernel.clock())
        request = InferenceRequest(
            hand.model, {tensor.name: tensor for tensor in tensors_of(hand.inputs, body)}, reply, str(hand.version), hand.id,
            hand.outputs, hand.parameters, hand.priority, hand.timeout_us, hand.deadline, hand.correlation_id, hand.flags,
        )  # fmt: skip
        reply.request = request
        stage = self._stage_of(request)
        if stage is None:
            self.link.send(write(Refused(hand.number, self.seen)))
            return
        if hand.context is not None:
            request.trace = _Traced(hand.context)
        reply.stage = stage
        self.taken[hand.number] = request
        stage.here(request)
        if hand.call and hand.number in self.taken:
            self._kernel.supervision.lookout.keep_looking_at(request, taken=True)

    def _stage_of(self, request: InferenceRequest) -> HandoverStage | None:
        """Return who is to execute a request, None where it can't be executed here."""
        try:
            model = self._kernel.find(request.model_name, request.model_version)
            model.check(request)
        except ServingError:
            return None
        return None if self._kernel.exiting or model.scheduler.stopping else self._peers.stages.get(model)

    def reply(self, reply: _Reply, response: InferenceResponse | None, final: bool) -> None:
        """Send a response to a request of its own."""
        if final:
            if self.taken.pop(reply.number, None) is None:
                return  # nobody waits any more
        elif reply.number not in self.taken:
            return
        if final:
            reply.stage.released(reply.request)  # it is none of what is reported
        now = self._kernel.clock()
        times = None
        batch = reply.request.batch
        if final and batch is not None and batch.started:
            ended = batch.ended or now
            times = batch.started, batch.input_ended or batch.started, batch.output_started or ended, ended
        load = (now - reply.came, self.seen, self._peers.shared(), reply.stage.wait)
        try:
            head, body = answer_of(reply.number, response, final, times, load)
        except Exception as error:  # such as a parameter that is no text in UTF-8: who waits has an answer all the same
            head, body = answer_of(reply.number, _unfit(reply.request, error), final, times, load)
        self._told, self._told_at = load[2] + load[3], now
        self.link.send(head, body)

    def _drop(self, number: int) -> None:
        request = self.taken.pop(number, None)
        if request is not None:
            self._kernel.cancel(request)

    # -- both ----------------------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Report what there is to do, where that is worth it."""
        load = self._peers.shared() + sum(self._peers.waits().values())
        if worth_telling(self._told, load, now - self._told_at):
            self.tell(now)

    def tell(self, now: float) -> None:
        """Report what there is to do."""
        waits = self._peers.waits()
        shared = self._peers.shared()
        self._told, self._told_at = shared + sum(waits.values()), now
        self.link.send(write(LoadTold(self.seen, shared, waits)))

    def _message(self, head: bytes, body: memoryview) -> None:
        try:
            self._read(head, body)
        except Exception:
            log.exception("replica %d says what can't be read, and is asked for nothing any more", self.index)
            self.link.close()
            self._ended()

    def _read(self, head: bytes, body: memoryview) -> None:
        form = read(head)
        if isinstance(form, Answered):
            self._answered(form, body)
        elif isinstance(form, Hand):
            self._take(form, body)
        elif isinstance(form, LoadTold):
            self._reported(Reported(form.seen, form.shared, form.waits), self._kernel.clock(), True)
        elif isinstance(form, Drop):
            self._drop(form.number)
        elif isinstance(form, Refused):
            self._refused(form)
        elif isinstance(form, AskWaits):
            self._look_beyond(form)
        elif isinstance(form, Waits):
            self._peers.beyond.said(self.load.name, form)
        else:
            self._of_sequences(form)

    def _look_beyond(self, ask: AskWaits) -> None:
        """Say what a request that is here waits for, whoever has handed it over."""
        giver = self._peers.named(ask.giver)
        request = None if giver is None else giver.taken.get(ask.number)

        def then(behind: Behind) -> None:
            self.link.send(write(Waits(ask.giver, ask.number, refs_of(behind))))

        if request is None:
            then(None)
        else:
            self._kernel.supervision.lookout.look_beyond(request, then)

    def _of_sequences(self, form: Bye | Keeps | Hello) -> None:
        owners = self._peers.owners
        if isinstance(form, Keeps):
            kept = dict(zip(form.sequences, form.began or [0.0] * len(form.sequences)))
            owners.keeps(self.load.name, kept)
            self._peers.contest(self.load.name, kept)
            self._peers.told(self)
            return
        if isinstance(form, Hello):
            owners.came(self.load.name)
        else:
            self.load.leaving = True
            owners.went(self.load.name, died=False)
        self._peers.regard()

    def _ended(self) -> None:
        """It has gone, and what it had with it."""
        self._peers.others.pop(self.load, None)
        self._peers.told(self)
        self._peers.beyond.gone(self.load.name)
        self._peers.owners.went(self.load.name, died=True)
        self._peers.regard()
        given, self.given = self.given, {}
        words = f"replica {self.index}, which the request was handed over to, has ended before it has answered"
        for away, request, _ in given.values():
            away.lost(request, words)
        for request in list(self.taken.values()):
            self._kernel.cancel(request)
        self.taken.clear()


def _unfit(request: InferenceRequest, error: Exception) -> InferenceResponse:
    """Return what stands for a response that can't be handed back."""
    words = clipped(f"{type(error).__name__}: {error}")
    log.error("%sthe response of model '%s' can't be handed back: %s", request.log_id, request.model_name, words)
    return InferenceResponse.failure(Code.INTERNAL, f"the response can't be handed back to the replica that was asked: {words}")


class _Traced:
    """Stands for the trace of a request that another replica traces. `context`: as Trace has it."""

    __slots__ = ("context",)

    def __init__(self, context: str) -> None:
        self.context = context or None


class _Reply:
    """The continuation of a request of another replica."""

    __slots__ = ("_other", "came", "client", "number", "request", "stage")

    def __init__(self, other: _Other, number: int, came: float) -> None:
        self._other = other
        self.number = number
        self.came = came
        self.client = f"replica {other.index}"
        self.request: Any = None
        self.stage: Any = None

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        self._other.reply(self, response, final)

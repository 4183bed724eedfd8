"""Where requests leave for another replica: in front of each model's scheduler where the server has several, and nowhere else.

The law: a request that is handed over stays ours. It has its one final answer from here: what the other replica has answered,
that it has gone, that the deadline has passed, that nobody waits any more. Whoever has it for another one never hands it on.
When to hand over is decided in kernel/rules/handover.py; how the replicas talk is the business of kernel/replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any, Protocol

from kernel.config import ModelConfig
from kernel.errors import Code, Overloaded, Reason, ServingError, clipped
from kernel.instances import LoopInstance
from kernel.models.states import ModelState
from kernel.requests import SKIPPED, Batch, InferenceRequest, InferenceResponse, RequestState
from kernel.rules import START, ExecutionTime, Own
from kernel.scheduling import Drain, Release, Scheduler, SequenceQueue, Timer

__all__ = ["Away", "HandoverStage", "Taker", "Takers", "is_single"]

RELEASED = RequestState.RELEASED

log = logging.getLogger("kernel")

#: How long a model that lives at a replica that has died waits for that one to be back, before it moves; when one that could
#: not move is tried again.
AWAY_SECONDS = 1.0
AGAIN_SECONDS = 5.0

#: How many notes of sequences that are over are kept.
SPARE_NOTES = 64

#: How long executions on the loop last at least for requests to wait for them in the queue, where it can be seen how many do;
#: what is quicker begins the moment it comes.
GATHERED_SECONDS = 0.0003


class Taker(Protocol):
    """Another replica, as one hands requests over to it."""

    def hand(self, away: Away, request: InferenceRequest, seconds: float) -> int:
        """Send it a request, which takes it so many seconds; return the number that it has there, 0 where it can't be sent."""

    def cancel(self, number: int) -> None:
        """Tell it that nobody waits for a request any more."""

    def awaited(self, number: int, told: Callable[[], None]) -> Sequence[Any] | None:
        """Return what has to go on before a request there can; None: nothing, or it is asked, and `told` called."""


class Takers(Protocol):
    """The other replicas. `busy`: the stages that have something to do; `stages`: those of all models."""

    busy: set[Any]
    stages: dict[Any, HandoverStage]

    def better_off(self, model: str, own: Own, now: float) -> Taker | None:
        """Return who is to take a request, None for nobody."""

    def cost(self, now: float) -> float:
        """Return how long the loop is busy with handing a request over, in seconds."""

    def hop(self, now: float) -> float:
        """Return how long the way to another replica and back takes, in seconds."""

    def has_work(self) -> None:
        """Some stage has something to do, while none had."""

    def owner(self, model: str, id: int | str) -> Taker | None:
        """Return who is to have a sequence that is not here, None where it is this replica."""

    def catch_up(self) -> None:
        """Hear what others have said of sequences, where who is there has changed lately."""

    def began(self, model: str, id: int | str, when: float) -> None:
        """A sequence begins here."""

    def was_lost(self, id: int | str) -> bool:
        """Whether a replica that has died would have had a sequence."""

    def lives_here(self, name: str) -> bool:
        """Whether this replica is the one that a model lives at."""

    def home(self, name: str) -> Taker | None:
        """Return at whom a model lives, None where that is this replica."""

    def leave(self) -> None:
        """Have the others hand no more over to this replica, whose end is near."""


def is_single(config: ModelConfig) -> bool:
    """Whether a model is to live at one replica."""
    return config.parameters.get("replicate") == "one"


class HandoverStage:
    """The way out in front of one model version.

    `enqueue(request)` takes a checked request: it is executed here or elsewhere. `here(request)`: it is executed here, whoever
    has it from whom. What these are is chosen when the model is loaded: a request of a sequence goes to its owner.
    """

    def __init__(
        self,
        peers: Takers,
        model: Any,
        scheduler: Scheduler,
        enqueue: Callable[[InferenceRequest], None],
        clock: Callable[[], float],
    ) -> None:
        """`enqueue`: takes what is executed here."""
        queue = scheduler.queue
        self._queue = queue if isinstance(queue, SequenceQueue) else None
        self.single = is_single(model.config)
        self.enqueue: Callable[[InferenceRequest], None] = self._where_it_begins_sooner
        self.here: Callable[[InferenceRequest], None] = self._here
        if self.single:
            self.enqueue, self.here = self._to_home, self._here_at_home
        elif self._queue is not None:
            self.enqueue, self.here = self._to_owner, self._here_in_sequence
        self._model = model
        self._moving: asyncio.Task[None] | None = None
        self._not_before = 0.0  # when it may move to this replica: where that has failed, not at once again
        self.away = Away(model, scheduler, self.here, clock)
        self.key = self.away.key
        self._peers = peers
        self._scheduler = scheduler
        self._enqueue = enqueue
        self._clock = clock
        self._inside: set[InferenceRequest] = set()
        self._began: dict[int | str, float] = {}  # sequences here, when; some are over
        self._duration = ExecutionTime()
        #: Whether a request may be executed anywhere: not where answers keep an order, which is this replica's.
        self._movable = not scheduler.queue.bound and scheduler.life.ordering is None
        life = scheduler.life
        life.on_release = (*life.on_release, self.released)
        life.on_result = (*life.on_result, self._ended)
        life.choose()

    # -- in ------------------------------------------------------------------------------------------------------------

    def _where_it_begins_sooner(self, request: InferenceRequest) -> None:
        """The call of a model stays with its caller."""
        if self._peers.busy and request.parent is None and self._movable:
            now = self._clock()
            peer = self._better_off(now)
            if peer is not None:
                self.away.send(peer, request, self._turn, now)
                return
        self.here(request)

    def _to_owner(self, request: InferenceRequest) -> None:
        """All of a sequence is executed where it is, or is to begin; calls of models, too."""
        queue, id = self._queue, request.correlation_id
        assert queue is not None
        if id:
            self._peers.catch_up()
        if id and id not in queue.ids:
            peer = self._peers.owner(self.key, id)
            if peer is not None:
                self.away.send(peer, request, self._turn, self._clock())
                return
        self._here_in_sequence(request)

    def _here_in_sequence(self, request: InferenceRequest) -> None:
        queue, id = self._queue, request.correlation_id
        assert queue is not None
        if not id:
            pass
        elif request.flags & START:
            self._begins(id, queue)
        elif id not in queue.ids and self._peers.was_lost(id):
            words = (
                f"{request.log_id}sequence {clipped(str(id))} is unknown to model '{self._scheduler.name}', and the replica that "
                "would have had it has ended: it has to begin anew"
            )
            self._scheduler.life.refuse(request, ServingError(Code.UNAVAILABLE, words))
            return
        self._here(request)

    def _begins(self, id: int | str, queue: SequenceQueue) -> None:
        """Note when a sequence has begun, and tell others where they have to know."""
        began, now = self._began, self._clock()
        if len(began) > 2 * len(queue.ids) + SPARE_NOTES:
            began = self._began = {one: when for one, when in began.items() if one in queue.ids}
        began[id] = now
        self._peers.began(self.key, id, now)

    def _to_home(self, request: InferenceRequest) -> None:
        """All is executed where the model lives."""
        home = self._peers.home(self._scheduler.name)
        if home is None:
            self._here_at_home(request)
        else:
            self.away.send(home, request, self._turn, self._clock())

    def _here_at_home(self, request: InferenceRequest) -> None:
        if self._scheduler.instances:
            self._here(request)
            return
        words = (
            f"model '{self._scheduler.name}' lives at one replica (its parameter replicate), which does not serve it at the "
            "moment; try again later"
        )
        self._scheduler.life.refuse(request, Overloaded(f"{request.log_id}{words}"))

    def _here(self, request: InferenceRequest) -> None:
        inside = self._inside
        if not inside:
            if not self._peers.busy:
                self._peers.has_work()
            self._peers.busy.add(self)
        inside.add(request)
        self._enqueue(request)

    def _better_off(self, now: float) -> Taker | None:
        peers, on_loop = self._peers, self.on_loop
        wait = sum([stage.work for stage in peers.busy if stage.on_loop]) if on_loop else self.wait
        hop = peers.hop(now)
        if wait <= hop:
            return None
        waiting = sum([stage.size for stage in peers.busy if stage.on_loop]) if on_loop else self.size
        return peers.better_off(self.key, Own(wait, self._turn, peers.cost(now), hop, waiting, on_loop), now)

    # -- where a model lives -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Begin to make the instances of a model that lives here from now on, or to close those of one that has nothing to do
        here any more. To be called again and again.
        """
        scheduler, now = self._scheduler, self._clock()
        lives_here = self._peers.lives_here(scheduler.name)
        if bool(scheduler.instances) is lives_here or self._moving is not None or self._model.state is not ModelState.READY:
            if scheduler.instances or not lives_here:
                self._not_before = 0.0
        elif not lives_here:
            if not self._inside and scheduler.is_idle:
                self._moving = self._model.settle(self._move())
        elif not self._not_before:
            self._not_before = now + AWAY_SECONDS
        elif now >= self._not_before:
            self._moving = self._model.settle(self._move())

    async def _move(self) -> None:
        name = self._scheduler.name
        try:
            self._not_before = self._clock() + AGAIN_SECONDS
            await self._model.rearrange(self._model.config)
            if self._scheduler.instances:
                log.info("model '%s' lives at this replica from now on", name)
        except Exception as error:
            log.error("model '%s' can't move to this replica, and is tried again in %.0f s: %s", name, AGAIN_SECONDS, error)
        finally:
            self._moving = None

    # -- what is known here --------------------------------------------------------------------------------------------

    @property
    def on_loop(self) -> bool:
        """Whether executions hold the loop."""
        return all(type(instance) is LoopInstance for instance in self._scheduler.instances)

    @property
    def sequences(self) -> Collection[int | str]:
        """The ids of the sequences that are running here."""
        return () if self._queue is None else self._queue.ids

    def began(self, id: int | str) -> float:
        """Return when a sequence that is running here has begun."""
        return self._began.get(id, 0.0)

    def give_up(self, id: int | str, where: str) -> None:
        """A sequence that is running here has begun anew at another replica: what waits of it is refused, and it is over."""
        assert self._queue is not None
        waiting = self._queue.give_up(id)
        for request in reversed(waiting):
            words = f"{request.log_id}sequence {clipped(str(id))} of model '{self._scheduler.name}' has begun anew at {where}"
            self._scheduler.cancel(request, ServingError(Code.UNAVAILABLE, words))

    @property
    def size(self) -> int:
        """How many requests are executed here or wait for that."""
        return len(self._inside)

    @property
    def _turn(self) -> float:
        """Seconds between the answers of two requests while there are enough."""
        return self._duration.seconds / max(1, self._capacity)

    @property
    def _capacity(self) -> int:
        return sum([instance.capacity for instance in self._scheduler.instances])

    @property
    def work(self) -> float:
        """Seconds until all that is here is done."""
        return len(self._inside) * self._turn

    @property
    def wait(self) -> float:
        """Seconds that one more request would wait."""
        ahead = len(self._inside) - self._capacity + 1
        return ahead * self._turn if ahead > 0 else 0.0

    def released(self, request: InferenceRequest) -> None:
        """A request has its final answer, or is about to."""
        inside = self._inside
        inside.discard(request)
        if not inside:
            self._peers.busy.discard(self)

    def _ended(self, batch: Batch, result: Any) -> Any:
        """An execution has ended: it tells how long others will last. What ran to warm up does not."""
        if batch.started and batch.ended and result is not SKIPPED and not batch.instance.in_warmup:
            self._duration.measured((batch.ended - batch.started) / len(batch.requests))
            self._gather()
        return result

    def _gather(self) -> None:
        """Have requests wait in the queue, where they are seen, if executions are long enough for others to be handed over."""
        pool = self._scheduler.pool
        least = GATHERED_SECONDS / 2 if pool.gathers else GATHERED_SECONDS
        gathers = self._movable and self.on_loop and self._duration.seconds > least
        if gathers is not pool.gathers:
            pool.gathers = gathers
            self._scheduler.changed()


class _Elsewhere:
    """Stands for a model as the `model` of a request that another replica executes: who wants to cancel it finds whom to ask."""

    def __init__(self, model: Any, away: Away) -> None:
        self.scheduler = away
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Away(Release):
    """The requests to one model version that other replicas have. They are counted there, not here. On the loop."""

    def __init__(
        self, model: Any, scheduler: Scheduler, here: Callable[[InferenceRequest], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(scheduler.name, str(scheduler.version))
        self.key = f"{scheduler.name}/{scheduler.version}"
        self.clock = clock
        self._model = model
        self._elsewhere = _Elsewhere(model, self)
        self._here = here
        self._scheduler = scheduler
        self._sent: dict[InferenceRequest, tuple[Taker, int]] = {}
        self._timer = Timer(model.kernel.loop, clock, self._cancel_late)
        self._drain = Drain(model.kernel.loop, lambda: not self._sent)
        self._order = count(1).__next__

    def __len__(self) -> int:
        return len(self._sent)

    def send(self, peer: Taker, request: InferenceRequest, seconds: float, now: float) -> None:
        """Have a checked request executed by `peer`, which will take it so long."""
        number = peer.hand(self, request, seconds)
        if not number:
            self._here(request)
            return
        request.enqueued = now
        request.model = self._elsewhere
        self._sent[request] = peer, number
        if request.deadline is not None:
            request.order = self._order()
            self.deadlines.add(request)
            self._timer.arm(request.deadline)
        if request.parent is not None:
            self._scheduler.life.adopt(request, request.parent)

    def at(self, request: InferenceRequest) -> tuple[Taker, int] | None:
        """Return who has a request, and by which number."""
        return self._sent.get(request)

    # -- calls that wait for themselves ----------------------------------------------------------------------------------

    def awaited(self, request: InferenceRequest, told: Callable[[], None]) -> Sequence[Any] | None:
        """As Taker.awaited."""
        there = self._sent.get(request)
        return None if there is None else there[0].awaited(there[1], told)

    def circular(self, request: InferenceRequest, cycle: Sequence[str]) -> ServingError:
        """As Scheduler.circular."""
        return self._scheduler.circular(request, cycle)

    # -- what the other replica says -----------------------------------------------------------------------------------

    def answered(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """A response has come."""
        if final:
            if self._let_go(request):
                if response is not None and response.error is not None:
                    request.error = response.error
                self.release(request, response)
        elif request.state is not RELEASED and response is not None:
            request.respond(self.sign(request, response), False)

    def executed(self, request: InferenceRequest, times: tuple[float, float, float, float]) -> None:
        """The final response is about to come, of an execution that had these moments; whoever traces the request notes them."""
        batch = request.batch = Batch([request], request.batch_size)
        batch.started, batch.input_ended, batch.output_started, batch.ended = times

    def refused(self, request: InferenceRequest) -> None:
        """The other replica has not begun it and is not going to: it is executed here."""
        if self._let_go(request):
            request.model = self._model
            if request.deadline is not None:
                self.deadlines.released()
                request.order = 0
            self._here(request)

    def lost(self, request: InferenceRequest, words: str) -> None:
        """The other replica has gone: nobody knows how far it has come."""
        if self._let_go(request):
            self._scheduler.statistics.failed(Reason.OTHER, self.clock() - request.enqueued)
            self.end(request, ServingError(Code.UNAVAILABLE, f"{request.log_id}{words}"))

    # -- ends ------------------------------------------------------------------------------------------------------------

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        """Nobody waits for a request any more: it has its answer, and the other replica is told."""
        there = self._sent.get(request)
        if there is None or not self._let_go(request):
            return
        peer, number = there
        peer.cancel(number)
        words = f"{request.log_id}Request cancelled"
        self.end(request, error or ServingError(Code.CANCELLED, words, Reason.CANCELED))

    async def wait(self) -> None:
        """Return when all have their answers."""
        await self._drain.wait()

    def abort(self, error: ServingError) -> None:
        """Answer all of them with `error`, now."""
        for request in list(self._sent):
            self.cancel(request, error)

    def _let_go(self, request: InferenceRequest) -> bool:
        """Whether another replica had the request; it has no longer."""
        if self._sent.pop(request, None) is None:
            return False
        if not self._sent:
            self._drain.look()
        return True

    def _cancel_late(self) -> None:
        """Give those their final answers whose deadlines have passed."""
        now = self.clock()
        while (request := self.deadlines.due(now)) is not None:
            words = (
                f"{request.log_id}deadline of the request to model '{self.name}' passed after "
                f"{now - request.enqueued:.3f} s while another replica had it"
            )
            self.cancel(request, ServingError(Code.UNAVAILABLE, words, Reason.CANCELED))
        if (deadline := self.deadlines.next()) is not None:
            self._timer.arm(deadline)

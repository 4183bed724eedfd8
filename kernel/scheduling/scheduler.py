"""The scheduler of one model version: who executes what, and when.

The law, and the way of every request:

    enqueue   begins it at once where nothing speaks against that; else refuses it, or lets it wait
    dispatch  on an arrival, a free instance or the timer: asks the queue for batches
    start     the one way to EXECUTING
    finished  the one way from there, to its answer (lifecycle.py)

What can be known before is decided when it changes (`_decide`), not when a request comes. What differs between models are the
parts: the queue (queues.py, sequences.py), the pool of instances (pool.py, limited_pool.py), and stages (lifecycle.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count

from kernel.circles.lookout import circular_wait
from kernel.config import ModelConfig
from kernel.errors import Code, Reason, ServingError
from kernel.instances import NESTED, TURN_SECONDS, Mailbox, ModelInstance, Turn, all_gone
from kernel.observability import StatisticsCounter
from kernel.requests import LATER, Batch, InferenceRequest, InferenceResponse, RequestState
from kernel.rules import InstanceSpec
from kernel.scheduling.batchers import Decider
from kernel.scheduling.drain import Drain
from kernel.scheduling.lifecycle import DecoupledLifecycle, Lifecycle, error_for
from kernel.scheduling.limited_pool import LimitedPool, Limits
from kernel.scheduling.output_check import OutputCheck
from kernel.scheduling.pool import Pool
from kernel.scheduling.queues import BatchingQueue, Queue
from kernel.scheduling.runs import Runs
from kernel.scheduling.sequences import SequenceQueue
from kernel.scheduling.timer import Timer
from kernel.scheduling.warmups import Warmups
from kernel.tensor import Array

__all__ = ["Scheduler"]

PENDING, EXECUTING, RELEASED = RequestState.PENDING, RequestState.EXECUTING, RequestState.RELEASED


class Scheduler:
    """Schedules the requests of one model version over its instances. Everything here runs on the loop.

    The parts: `queue`, `pool`, `life`. `direct`: the instance that begins with a request the moment it comes. `stopping`: only
    calls of accepted requests are accepted; `drain.closed`: nothing is. `refusing`: why there is no use in waiting, where no
    instance can be counted on. `warmups`: the instances that are warmed up before they take requests. `calls`: executions wait,
    or have waited, for calls, for what these have called, or for resources.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        instances: Sequence[ModelInstance],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        mailbox: Mailbox,
        turn: Turn,
        *,
        initial: Mapping[str, Array] | None = None,
        limits: Limits | None = None,
        spec_of: Callable[[ModelInstance], InstanceSpec] | None = None,
    ) -> None:
        """`initial`: the first values of the state of sequences. `spec_of`: what an instance's group says, for `limits`."""
        self.name = config.name
        self.version = version
        self.clock = clock
        self.queue = _queue_of(config, clock, initial)
        self.life = (DecoupledLifecycle if config.decoupled else Lifecycle)(config, version, clock, self.queue)
        self.stopping = False
        self.calls = limits is not None  # where executions may wait for what others hold, too
        self.refusing: ServingError | None = None
        self.warmups = Warmups(self.life)
        self._loop = loop
        self._mailbox = mailbox
        self._turn = turn
        self._timer = Timer(loop, clock, self._ring)
        self._runs = Runs(self, loop, clock, mailbox)
        self._next_order = count(1).__next__  # of a request that is let in
        self._scheduled = False  # a dispatch is on its way
        self._dispatching = False
        self._settling = False  # it is stopping, or instances are on their way out: ends have to be looked at
        self.drain = Drain(loop, lambda: self.is_idle)
        self._on_start: tuple[Callable[[ModelInstance, Batch], None], ...] = ()
        self.pool = self._assemble(limits, spec_of)
        self.direct: ModelInstance | None = None
        self._let_in(instances)

    def _assemble(self, limits: Limits | None, spec_of: Callable[[ModelInstance], InstanceSpec] | None) -> Pool:
        """Make the pool, and let the parts see what they have to."""
        life, queue = self.life, self.queue
        runs = queue.no_policy and life.ordering is None
        pool = Pool(queue, runs)
        if isinstance(queue, SequenceQueue):
            life.on_result = (queue.ended,)
            life.on_response = (queue.responded,)
            life.on_release = (queue.released,)
        if life.ordering is not None:
            self._on_start = (life.ordering.started,)
        if limits is not None:
            assert spec_of is not None
            pool = limited = LimitedPool(queue, runs, limits, spec_of, self.dispatch)
            self._on_start = (limited.started, *self._on_start)
            life.on_result = (limited.ended, *life.on_result)
            life.on_release = (*life.on_release, limited.released)
        life.choose()
        return pool

    def _let_in(self, instances: Sequence[ModelInstance]) -> None:
        """Have `instances` take requests from now on, besides those that do."""
        for instance in instances:
            instance.owner = self
            self.queue.enter(instance, self.clock())
        self.pool.let_in(instances)
        self._decide()

    def changed(self) -> None:
        """An instance has gone down, or is up again."""
        self.pool.changed()
        self._decide()

    def _decide(self) -> None:
        """Whether requests may begin the moment they come. To be called when what decides that has changed."""
        pool = self.pool
        simple = self.queue.rule is None and not self.queue.bound
        self._takes_any = not (self.queue.bound or pool.limited or self.stopping or self.refusing is not None)
        self._one_by_one = simple and not (self.stopping or pool.gathers) and self.refusing is None
        self._several = pool.inline and pool.single is None
        self._runs.suit(pool.apart, simple)
        # Off the loop nothing begins at once: a thread would be woken for each request of a burst.
        self.direct = pool.single if self._one_by_one and pool.inline else None

    # -- in ------------------------------------------------------------------------------------------------------------

    def enqueue(self, request: InferenceRequest) -> None:
        """Accept a checked request, or answer it with why not. From here on the scheduler owns it."""
        clock = self.clock  # as it is no method, this costs less than to call it by its name
        request.enqueued = now = clock()
        parent = request.parent
        instance = self.direct
        if instance is None and self._one_by_one and (self._several or (parent is not None and parent.blocked_on is request)):
            # Who makes a call and does nothing but wait for it makes no others now: there is no burst to gather.
            instance = self.pool.best_for(request)
        turn = self._turn
        if (
            instance is None
            or (instance.running and len(instance.running) >= instance.capacity)
            or self.queue.size
            or turn.depth >= NESTED
            or (request.deadline is not None and request.deadline <= now)
            or (
                parent is not None
                and (parent.requests[0].state is RELEASED or not ((now < turn.ends and turn.left > 0) or turn.begin(now)))
            )
        ):
            self._let_wait(request, parent, now)
            return
        turn.left -= 1
        turn.depth += 1
        try:
            self.start(instance, Batch([request], request.batch_size), now)
        finally:
            turn.depth -= 1  # only now: whoever hears of the answer may make the next request
        if request.state is not RELEASED:
            self._left_executing(request, parent)

    def _left_executing(self, request: InferenceRequest, parent: Batch | None) -> None:
        """Enter a request that has begun at once where those are known that have no answer yet: most have theirs by then."""
        if request.deadline is not None:
            self._await_deadline(request)
        if parent is not None:
            self.life.adopt(request, parent)

    def _let_wait(self, request: InferenceRequest, parent: Batch | None, now: float) -> None:
        """Let a request wait in the queue, or refuse it."""
        queue = self.queue
        if not self.pool.inline:
            self.direct = None  # requests do not come one at a time
        request.order = self._next_order()
        try:
            if not self._takes_any:
                self._check(request, parent)
            if parent is not None:
                self._check_call(request, parent)
            if queue.size >= queue.room and queue.is_full(request):
                # It may be full of requests that would be started at the end of this turn: that is done before one is refused.
                self.dispatch()
            queue.push(request, now)
        except ServingError as error:
            self.life.refuse(request, error)
            return
        request.state = PENDING
        if parent is not None:
            self.life.adopt(request, parent)
        if request.deadline is not None:
            self._await_deadline(request)
            if request.deadline <= now and self.life.pass_deadlines(now):  # not to be executed first
                self._after_release()
        expiry = queue.next_expiry() if queue.bound else request.expires
        if expiry is not None:
            self._timer.arm(expiry)
        if self._scheduled:
            if queue.size == self._runs.piece:
                self.dispatch()
        elif queue.bound or self.pool.best() is not None:
            self._schedule(now)

    def _check(self, request: InferenceRequest, parent: Batch | None) -> None:
        """Raise ServingError for a request that is not to wait here."""
        if self.stopping and (self.drain.closed or (parent is None and not self.queue.continues(request))):
            words = "Server is stopping, scheduler for model has stopped accepting new inference requests"
            raise ServingError(Code.UNAVAILABLE, f"{request.log_id}{words}")
        if self.refusing is not None:
            raise error_for(request, self.refusing)
        self.queue.check(request)
        self.pool.arriving(request)

    def _check_call(self, request: InferenceRequest, parent: Batch) -> None:
        """Raise ServingError for the call of a model that nobody waits for any more, or that could only wait for itself."""
        if parent.requests[0].state is RELEASED and all_gone(parent):
            raise ServingError(Code.CANCELLED, f"{request.log_id}Request cancelled", Reason.CANCELED)
        maker: Batch | None = parent
        while maker is not None:
            maker.instance.owner.calls = True
            maker = maker.requests[0].parent
        # Each model of a circle has made a call. Where an execution of this one has not, the call that closes the circle is yet
        # to come; that one is looked at, since `calls` is set for its makers above.
        if not self.calls:
            return
        free = self.pool.best()
        if (free is None or len(free.running) >= free.capacity) and (cycle := circular_wait(request, self)):
            raise self.circular(request, cycle)

    def circular(self, request: InferenceRequest, cycle: Sequence[str]) -> ServingError:
        """Return why a call is refused that could only wait for itself, and the way out."""
        words = f"{request.log_id}request to model '{self.name}' could only wait for itself: "
        return ServingError(Code.UNAVAILABLE, words + self.pool.circle(self.name, " -> ".join(cycle)))

    def start_warmup(self, instance: ModelInstance, batch: Batch) -> None:
        """Have one instance execute a batch before it takes requests: past the queue, and out of everybody's order."""
        now = self.clock()
        for request in batch.requests:
            request.enqueued = now
        self.start(instance, batch, now)

    # -- decide --------------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Give waiting requests to free instances, as far as the queue allows, and set the timer for when it may allow more."""
        if self._dispatching:
            return
        self._dispatching = True
        queue = self.queue
        try:
            now = self.clock()
            if queue.timed and (expiry := queue.next_expiry()) is not None and expiry <= now:
                self._give_up(queue.expire(now), ServingError(Code.UNAVAILABLE, queue.expiry_words, Reason.REJECTED))
            again = self._hand_out(now) if queue.size else None
            if again is not None:
                self._timer.arm(again)
            if queue.timed and (expiry := queue.next_expiry()) is not None:
                self._timer.arm(expiry)
        finally:
            self._dispatching = False

    def _hand_out(self, now: float) -> float | None:
        """Start what waits for as long as there are free instances for it; return when the queue may allow more."""
        began, queue, pool = now, self.queue, self.pool
        while True:
            started = False
            again: float | None = None
            if queue.bound:
                free = pool.free()
            else:
                best = pool.best()
                free = () if best is None else (best,)
            for instance in free:
                if pool.limited and not pool.may_start(instance):
                    continue
                batches, when = queue.take(instance, now)
                for batch in batches:
                    started = True
                    self.start(instance, batch, now)
                if instance.runs and len(instance.running) > 1:
                    self._runs.guard(instance)
                if when is not None and (again is None or when < again):
                    again = when
            if not started or not queue.size:
                return again
            if pool.inline:
                now = batch.ended or self.clock()  # most have just ended
                if now - began > TURN_SECONDS:
                    self._schedule(now)
                    return again

    def _schedule(self, now: float) -> None:
        """Have `dispatch` called once others have had their turn; a burst that begins now is gathered from here on."""
        if not self._scheduled:
            self._scheduled = True
            if not self.pool.inline:
                self._runs.begin(now)
            self._loop.call_soon(self._dispatch_soon)

    def _dispatch_soon(self) -> None:
        if not self.pool.inline and self._runs.grows(self.queue.size):
            self._loop.call_soon(self._dispatch_soon)
        else:
            self._dispatch_now()

    def _dispatch_now(self) -> None:
        """Do what was put off."""
        if not self.pool.inline:
            # Where requests come one at a time, the next one does not wait for company.
            single = self.pool.single
            alone = single is not None and self.queue.size == 1 and self.queue.immediate
            self.direct = single if alone and not (self.stopping or self.refusing or self._is_busy()) else None
        self._scheduled = False
        self.dispatch()

    def look_again(self) -> None:
        """Something has changed besides what the scheduler has done itself: perhaps what waits can be executed now."""
        if self.queue.size:
            self._schedule(self.clock())

    # -- execute -------------------------------------------------------------------------------------------------------

    def start(self, instance: ModelInstance, batch: Batch, now: float) -> None:
        """Have an instance execute a batch: the one way to EXECUTING."""
        for request in batch.requests:
            request.state = EXECUTING
            request.batch = batch
        if self._on_start:
            for stage in self._on_start:
                stage(instance, batch)
        batch.instance = instance
        batch.handed_over = now
        instance.running[batch] = None
        result = instance.start(batch)
        if result is not LATER:
            self.finished(instance, batch, result)

    def finished(self, instance: ModelInstance, batch: Batch, result: object) -> None:
        """An execution has ended. `result`: what the executor returned, or the exception it raised."""
        del instance.running[batch]
        if not batch.input_ended:
            batch.input_ended = batch.started
        if not batch.output_started:
            batch.output_started = batch.ended
        conclude = self.life.conclude
        try:
            conclude(batch, result)
        except Exception as problem:  # an executor that keeps to no contract
            self.life.fail(batch, problem)
        if self.queue.size and not (self._scheduled or self._dispatching):
            if self._mailbox.draining and not self.pool.inline:
                # More of a run may have ended: a thread that is woken before it is counted gets in the way of that.
                self._scheduled = True
                self._mailbox.after(self._dispatch_now)
            else:
                self.dispatch()
        if self._settling:
            self._see_off(instance)
            self.drain.look()

    def put_back(self, instance: ModelInstance, batches: Sequence[Batch]) -> None:
        """Let what was handed to an instance, but not begun, wait again, in front of all others."""
        for batch in batches:
            del instance.running[batch]
        self.life.put_back(batches)
        self.pool.put_back(batches)
        self.queue.put_back([request for batch in batches for request in batch.requests], self.clock())
        if self.stopping:
            self.drain.look()

    # -- what others do to its requests --------------------------------------------------------------------------------

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """Pass on a response that a running execution gives before, or instead of, its return."""
        self.life.send(request, response, final)
        if self.stopping:
            self.drain.look()

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        """Release a request for which nobody waits any more, with what it has called; a running model sees `is_cancelled`."""
        self.life.cancel(request, error)
        self._after_release()

    def _after_release(self) -> None:
        """Requests were released that no execution has answered: others may come instead."""
        if self.queue.bound:
            for instance in list(self.pool.leaving):
                self._see_off(instance)
            if self.queue.size and not self._dispatching:
                self._schedule(self.clock())
        if self.stopping:
            self.drain.look()

    def refuse_all(self, error: ServingError | None) -> None:
        """Refuse what waits and what comes, until this is called with None."""
        self.refusing = error
        self._decide()
        if error is not None:
            for request in self._waiting():
                self.cancel(request, error_for(request, error))

    def _waiting(self) -> list[InferenceRequest]:
        """Return what waits, in an order in which each can be given up for a reason of its own: sequences from behind."""
        return list(self.queue)[::-1] if self.queue.bound else list(self.queue)

    def lose(self, instance: ModelInstance, why: ServingError) -> None:
        """What executions have left in an instance is lost: the sequences that it had are over, for the reason `why`."""
        self._give_up(self.queue.lose(instance), why)

    # -- other instances -----------------------------------------------------------------------------------------------

    def rearrange(self, come: Sequence[ModelInstance], go: Collection[ModelInstance]) -> list[asyncio.Future[None]]:
        """Let instances come and others go; those finish what they have begun. Return what is done when they have."""
        for instance in go:
            self.queue.retire(instance)
        gone = self.pool.see_out(go, self._loop)
        self._settling = True
        self._let_in(come)
        for instance in go:
            if instance.runs and instance.outstanding > 1:
                self._mailbox.drain()
                self._runs.take_back(instance)
            instance.runs = False
            self._see_off(instance)
        self.look_again()
        return gone

    def _see_off(self, instance: ModelInstance) -> None:
        """Let an instance go that is on its way out and has nothing left to do."""
        if instance in self.pool.leaving and not instance.outstanding and self.queue.leave(instance):
            self.pool.let_go(instance)
            self._settling = bool(self.pool.leaving) or self.stopping

    # -- expire, stop --------------------------------------------------------------------------------------------------

    def _await_deadline(self, request: InferenceRequest) -> None:
        """See to it that the request is answered by its deadline."""
        assert request.deadline is not None
        request.order = request.order or self._next_order()
        self.life.deadlines.add(request)
        self._timer.arm(request.deadline)

    def _give_up(self, requests: Sequence[InferenceRequest], error: ServingError) -> None:
        """Refuse what the queue has given up."""
        for request in requests:
            self.life.end(request, error)
        self._after_release()

    def _ring(self) -> None:
        """The timer has gone off."""
        if self.life.pass_deadlines(self.clock()):
            self._after_release()
        self.dispatch()  # also gives up what has waited for longer than its queue's time-out, and sets the timer for the next
        deadline = self.life.deadlines.next()
        if deadline is not None:
            self._timer.arm(deadline)

    def stop(self, silence: float | None = None) -> None:
        """Accept nothing more; what was accepted is finished. `silence`: sequences that are running may go on, until nobody
        sends anything of them for so many seconds, or for as long as their model says.
        """
        self.stopping = self._settling = True
        self._decide()
        self.queue.close(silence)
        self._after_release()
        self.dispatch()  # which looks after what expires, sooner from now on

    @property
    def is_idle(self) -> bool:
        """Whether no request, no execution and no instance on its way out is left."""
        return not (self.queue.size or self._is_busy() or (self.stopping and self.queue.sequences))

    def _is_busy(self) -> bool:
        """Whether anything is left to do but for what waits."""
        there = (*self.instances, *self.warmups)
        return bool(self.pool.leaving or self.life.owes or any(instance.running for instance in there))

    def abort(self, error: ServingError) -> None:
        """Answer everything that is in flight with `error`, now."""
        for request in (*self._waiting(), *self.alive()):
            self.cancel(request, error)

    # -- looked at by others -------------------------------------------------------------------------------------------

    @property
    def instances(self) -> tuple[ModelInstance, ...]:
        """The instances that take requests."""
        return self.pool.instances

    @property
    def statistics(self) -> StatisticsCounter:
        """What is counted of the model version."""
        return self.life.statistics

    @property
    def rule(self) -> Decider | None:
        """By what batches are formed; None where each request is one."""
        return self.queue.rule

    @property
    def output_check(self) -> OutputCheck | None:
        """Who looks at answers before they are given out; None where nobody does."""
        return self.life.output_check

    def sign(self, request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        """Write on a response whose it is. Any thread."""
        return self.life.sign(request, response)

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and have no final answer."""
        return sum(request.state is not RELEASED for request in dict.fromkeys(self.alive()))

    @property
    def pending(self) -> int:
        """Requests that were accepted and have not begun to execute."""
        return self.queue.size + len(self.pool.handed_over())

    def waiting_since(self) -> float | None:
        """Return when the request was enqueued that has waited longest, None while nobody waits."""
        waiting = self.queue.waiting_since()
        times = [request.enqueued for request in self.pool.handed_over()]
        return min(times if waiting is None else [*times, waiting], default=None)

    def alive(self) -> list[InferenceRequest]:
        """Return what was accepted, in the queue first; some of it may have its final answer."""
        alive = [*self.queue, *self.life.open]
        for instance in dict.fromkeys((*self.instances, *self.pool.leaving, *self.warmups)):
            for batch in instance.running:
                alive.extend(batch.requests)
        alive.extend(self.life.ordering or ())  # last: those before them let their answers out
        return alive


def _queue_of(
    config: ModelConfig, clock: Callable[[], float], initial: Mapping[str, Array] | None
) -> Queue | SequenceQueue:
    """Return the queue of a model's kind."""
    if config.sequence_batching is not None:
        return SequenceQueue(config, clock, initial)
    return BatchingQueue(config) if config.dynamic_batching is not None else Queue()

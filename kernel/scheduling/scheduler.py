"""The scheduler of one model version: queue + free instances -> batches -> answers. The only file with timers.

The law: new request, free instance and timer all come down to `_dispatch`, which asks the rules (queueing, batching) and acts
on their decision. What becomes of an accepted request in the end, its one answer, is said in lifecycle.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any

from kernel.circles.lookout import circular_wait
from kernel.config import ModelConfig
from kernel.errors import Code, Reason, ServingError
from kernel.instances.instance import HELD_SECONDS, LoopInstance, ModelInstance
from kernel.instances.mailbox import Mailbox
from kernel.instances.turn import NESTED, TURN_SECONDS, Turn
from kernel.requests.request import Batch, InferenceRequest, InferenceResponse, RequestState
from kernel.rules.batching import BatchRule
from kernel.rules.queueing import RequestQueue
from kernel.scheduling.batchers import Decider
from kernel.scheduling.lifecycle import Answering

__all__ = ["Scheduler", "error_for", "stopping_error"]

PENDING, EXECUTING, RELEASED = RequestState.PENDING, RequestState.EXECUTING, RequestState.RELEASED
RUN_PATIENCE = 0.002  # after which a thread that has not come back is looked at
GATHER_TURNS = 2  # turns of the loop that a burst for a thread may go on, while more of it comes in each …
GATHER_SECONDS = 0.0003  # … and they are short: where large bodies are read meanwhile, the thread had better begin


class Scheduler(Answering):
    """Schedules the requests of one model version over its instances. Everything here runs on the loop.

    Attributes by lifetime. Per model: `name`, `version`, `instances`, `rule`. Of the moment: `queue`, `in_flight` (accepted
    and not released), `pending` (not yet executing), `stopping`.
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
    ) -> None:
        super().__init__(config, version, clock)
        self.instances: tuple[ModelInstance, ...] = ()
        self.leaving: dict[ModelInstance, asyncio.Future[None]] = {}  # instances that only finish what they have
        self.rule: Decider | None = BatchRule.of(config) if config.dynamic_batching else None
        self.queue = self._make_queue(config)
        self._loop = loop
        self._mailbox = mailbox
        self._turn = turn
        self._inline = True
        self._single: ModelInstance | None = None
        self._express: LoopInstance | None = None  # the one instance, where its executions are plain calls on the loop
        self._runner: ModelInstance | None = None  # the one instance, where it is handed runs of single requests
        #: One response an execution, nothing to hold back, and nobody who does it another way: `_answer_alone` will do.
        self._plain = type(self) is Scheduler and not self.decoupled and self._ordered is None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._scheduled = False  # a _dispatch is on its way
        self._dispatching = False
        self._guarded: set[ModelInstance] = set()
        self._order = 0
        self.refusing: ServingError | None = None  # why there is no use in waiting, where no instance can be counted on
        self.closed = False  # nothing is
        self._drained: asyncio.Future[None] | None = None
        self._gathered = 0  # turns of the loop that the burst on its way has been waited for
        self._burst_began = 0.0
        self._seen = 0  # how many waited when it was last looked at
        self._lonely = False  # requests have come one at a time: the next one does not wait for company
        self._let_in(instances)

    def _make_queue(self, config: ModelConfig) -> RequestQueue:
        batching = config.dynamic_batching
        if batching is None:
            return RequestQueue()
        return RequestQueue(
            batching.priority_levels,
            batching.default_priority_level,
            batching.default_queue_policy,
            batching.priority_queue_policy,
        )

    def _let_in(self, instances: Sequence[ModelInstance]) -> None:
        """Have `instances` take requests from now on, besides those that do."""
        for instance in instances:
            instance.scheduler = self
            instance.runs = not instance.inline and self.queue.plain and self._ordered is None
        self.instances = (*self.instances, *instances)
        self._inline = all(instance.inline for instance in self.instances)
        self._single = single = self.instances[0] if len(self.instances) == 1 else None
        in_place = self._plain and not self._is_ensemble and self.rule is None
        self._express = single if in_place and isinstance(single, LoopInstance) else None
        self._runner = single if in_place and single is not None and single.runs else None

    @property
    def pending(self) -> int:
        """Requests that were accepted and have not begun to execute."""
        return self.queue.size + len(self._handed_over())

    def waiting_since(self) -> float | None:
        """Return when the request was enqueued that has waited longest, None while nobody waits."""
        waiting = self.queue.waiting_since()
        times = [request.enqueued for request in self._handed_over()]
        return min(times if waiting is None else [*times, waiting], default=None)

    def _handed_over(self) -> list[InferenceRequest]:
        """Return the requests that wait in an instance's inbox."""
        return [
            request
            for instance in (*self.instances, *self.leaving)
            for batch in instance.running
            if not batch.started
            for request in batch.requests
            if request.state is not RELEASED
        ]

    # -- in ------------------------------------------------------------------------------------------------------------

    def enqueue(self, request: InferenceRequest) -> None:
        """Accept a checked request, or answer it with why not. From here on the scheduler owns it."""
        clock = self.clock
        request.enqueued = now = clock()
        parent = request.parent
        express = self._express
        if (
            express is not None
            and not express.executor.may_wait
            and not express.outstanding
            and request.deadline is None
            and not self.queue.size
            and not self.stopping
            and self.refusing is None
            and (turn := self._turn).depth < NESTED
            and (
                parent is None
                or (
                    parent.requests[0].state is not RELEASED
                    and ((now < turn.ends and turn.left > 0) or turn.begin(now))
                )
            )
        ):
            self.in_flight += 1
            self._run_through(express, request, now)
            if request.state is not RELEASED and parent is not None:
                self._adopt(request, parent)
            return
        if self.stopping and (parent is None or self.closed):
            self._refuse(request, stopping_error(request))
            return
        if self.refusing is not None:
            self._refuse(request, error_for(request, self.refusing))
            return
        instance = self._single
        if instance is None:
            instance = self._free_instance()
        elif instance.outstanding >= instance.limit:
            instance = None
        turn = self._turn
        if parent is None:
            if self._lonely and (instance is None or instance.outstanding):
                self._lonely = False
            at_once = self._inline or self._lonely
        else:
            if (
                (parent.requests[0].state is RELEASED or instance is None or instance.outstanding >= instance.capacity)
                and not self._may_call(request, parent, instance)
            ):
                return
            at_once = self._inline or parent.blocked_on is request
            if at_once:
                at_once = (now < turn.ends and turn.left > 0) or turn.begin(now)
        if (
            at_once
            and instance is not None
            and self.rule is None
            and (request.deadline is None or request.deadline > now)
            and not self.queue.size
            and turn.depth < NESTED
        ):
            self._start_at_once(instance, request)
            return
        request.order = self._order = self._order + 1
        try:
            self.queue.push(request, now)
        except ServingError as error:
            if instance is not None:
                # Full of what has come in this very turn, and an instance is free: what can begin at once does not wait.
                self._dispatch()
            if instance is None or self.queue.is_full(request):
                self._refuse(request, error)
                return
            self.queue.push(request, now)
            instance = self._free_instance()
        request.state = PENDING
        self.in_flight += 1
        if parent is not None:
            self._adopt(request, parent)
        if request.deadline is not None:
            self._watch_over(request, request.deadline)
            if request.deadline <= now:
                self._pass_deadlines(now)  # not to be executed first
        expires = request.expires
        if expires is not None and (self._timer is None or expires < self._timer_at):
            self._arm(expires)
        if instance is not None and not self._scheduled:
            self._schedule(now)

    def _start_at_once(self, instance: ModelInstance, request: InferenceRequest) -> None:
        """Nobody waits and somebody is free: straight to the instance.

        What comes in bursts wakes a thread once a turn of the loop; the call of a model that does nothing but wait for it comes
        alone.
        """
        parent, deadline = request.parent, request.deadline
        request.deadline = None  # watched over only where it is not answered at once
        turn = self._turn
        self.in_flight += 1
        turn.left -= 1
        turn.depth += 1
        try:
            self._start(instance, Batch([request], request.batch_size))
        finally:
            turn.depth -= 1
        if request.state is not RELEASED:
            if deadline is not None:
                request.order = self._order = self._order + 1
                self._watch_over(request, deadline)
            if parent is not None:
                self._adopt(request, parent)

    def _run_through(self, instance: LoopInstance, request: InferenceRequest, now: float) -> None:
        """Execute a request by one plain call on the loop, and release it. `now`: it begins.

        All that `_start`, the instance's `start`, `finished` and `release` come to then, without the questions they ask for
        others; whatever turns out otherwise is theirs. This is most of what glue models and small pipelines do.
        """
        request.state = EXECUTING
        request.batch = batch = Batch([request], request.batch_size)
        batch.instance = instance
        batch.started = now
        instance.outstanding = 1
        running = instance.running
        running[batch] = None
        turn = self._turn
        turn.left -= 1
        turn.depth += 1
        try:
            outer, turn.plain = turn.plain, True
            result: object
            try:
                result = instance.executor.execute(batch)
            except BaseException as error:
                result = error
            clock = self.clock
            batch.ended = ended = clock()
            turn.plain = outer
            if ended - now > HELD_SECONDS:
                instance.warn_held(ended - now)
            if (
                type(result) is list
                and len(result) == 1
                and type(response := result[0]) is InferenceResponse
                and response.error is None
                and request.state is EXECUTING
                and self.watch is None
                and not (self.leaving or self.stopping)
            ):
                instance.outstanding = 0
                del running[batch]
                self._answer_alone(batch, request, response)
                if self.queue.size and not self._scheduled:
                    self._dispatch()
            else:
                self.finished(instance, batch, result)
        finally:
            turn.depth -= 1  # only now: whoever hears of the answer may make the next request

    def answer_kept(self, request: InferenceRequest, response: InferenceResponse, started: float, now: float) -> None:
        """Accept a checked request that needs no execution, as its answer is known, and give that. `started`: the look-up."""
        request.enqueued = started
        request.deadline = None  # kept
        self.in_flight += 1
        request.counted = True
        self.statistics.hit(started, started, now)
        self.release(request, response)

    def _may_call(self, request: InferenceRequest, parent: Batch, free: ModelInstance | None) -> bool:
        """Refuse the call of a model that nobody waits for any more, or that could only wait for itself."""
        for one in parent.requests:
            if one.state is not RELEASED:
                break
        else:
            self._refuse(request, ServingError(Code.CANCELLED, f"{request.log_id}Request cancelled", Reason.CANCELED))
            return False
        if (free is None or free.outstanding >= free.capacity) and (cycle := circular_wait(request, self)):
            self._refuse(request, self._circular(request, cycle))
            return False
        return True

    def _circular(self, request: InferenceRequest, cycle: Sequence[str]) -> ServingError:
        """Return why a call is refused that could only wait for itself, and the way out."""
        return ServingError(
            Code.UNAVAILABLE,
            f"{request.log_id}request to model '{self.name}' could only wait for itself: every instance is held by "
            f"the requests that made it ({' -> '.join(cycle)}); give '{self.name}' more instances "
            "(instance_group count) or an `async def execute` with a higher max_concurrency",
        )

    def _watch_over(self, request: InferenceRequest, deadline: float) -> None:
        """See to it that the request is answered by its deadline."""
        request.deadline = deadline
        self._deadlines.add(request)
        self._arm(deadline)

    # -- decide --------------------------------------------------------------------------------------------------------

    def _dispatch_soon(self) -> None:
        if (
            not self._inline
            and self._gathered < GATHER_TURNS
            and self.queue.size > self._seen
            and self.clock() - self._burst_began < GATHER_SECONDS
        ):
            # More of the burst may be in the sockets: a thread that is woken for one request gets in the way of the next.
            self._gathered += 1
            self._seen = self.queue.size
            self._loop.call_soon(self._dispatch_soon)
            return
        self._dispatch_now()

    def _dispatch_now(self) -> None:
        """Do what was put off."""
        self._lonely = self.queue.size == 1 == self.in_flight
        self._gathered = self._seen = 0
        self._scheduled = False
        self._dispatch()

    def _dispatch(self) -> None:
        """Give waiting requests to free instances, as far as the rules allow, and set the timer for when they may allow more."""
        if self._dispatching:
            return
        self._dispatching = True
        try:
            if (runner := self._runner) is not None:
                self._hand_run(runner)
                return
            began = now = self.clock()
            queue, rule = self.queue, self.rule
            if not queue.plain and (expiry := queue.next_expiry()) is not None and expiry <= now:
                self._expire(now)
            again: float | None = None
            single, express, start = self._single, self._express, self._start
            while queue.size:
                instance = single or self._free_instance()
                if instance is None or instance.outstanding >= instance.limit:
                    break
                if rule is None:
                    request = queue.take_one()
                    if express is not None and instance is express and not express.executor.may_wait:
                        self._run_through(express, request, now)
                    else:
                        start(instance, Batch([request], request.batch_size))
                else:
                    count, again = rule.decide(queue, now)
                    if not count:
                        break
                    if instance.outstanding >= instance.capacity and _rows(queue, count) < rule.largest:
                        break  # only full batches may lie ready in a run: smaller ones grow while the instance is busy
                    requests = queue.take(count) if isinstance(count, int) else queue.pick(count)
                    start(instance, Batch(requests, sum([request.batch_size for request in requests])))
                if instance.inline and queue.size:
                    now = self.clock()
                    if now - began > TURN_SECONDS:
                        self._schedule(now)
                        break
            if again is not None:
                self._arm(again)
            if not queue.plain and (expiry := queue.next_expiry()) is not None:
                self._arm(expiry)
        finally:
            self._dispatching = False

    def _hand_run(self, instance: ModelInstance) -> None:
        """Hand an instance as many of the waiting as it may have, each as an execution of its own.

        What `_dispatch` and `_start` come to where there are no batches, no time-outs in the queue and no other instance.
        """
        queue, running, start = self.queue, instance.running, instance.start
        for _ in range(min(queue.size, instance.limit - instance.outstanding)):
            request = queue.take_one()
            request.state = EXECUTING
            request.batch = batch = Batch([request], request.batch_size)
            batch.instance = instance
            instance.outstanding += 1
            running[batch] = None
            start(batch)
        if instance.outstanding > 1 and instance not in self._guarded:
            self._guard(instance)

    def _schedule(self, now: float) -> None:
        """Have `_dispatch` called once others have had their turn; a burst that begins now is gathered from here on."""
        if not self._scheduled:
            self._scheduled = True
            self._burst_began = now
            self._loop.call_soon(self._dispatch_soon)

    def _free_instance(self) -> ModelInstance | None:
        """Return the instance with the fewest executions that may take one more."""
        single = self._single
        if single is not None:
            return single if single.outstanding < single.limit else None
        best = None
        for instance in self.instances:
            if instance.outstanding < instance.limit and (best is None or instance.outstanding < best.outstanding):
                best = instance
        return best

    # -- execute -------------------------------------------------------------------------------------------------------

    def warm_up(self, instance: ModelInstance, batch: Batch) -> None:
        """Have one instance execute a batch before it takes requests: past the queue, and out of everybody's order."""
        now = self.clock()
        for request in batch.requests:
            request.enqueued = now
        self.in_flight += len(batch.requests)
        Scheduler._start(self, instance, batch)  # whatever else a start means to another kind of scheduler

    def _start(self, instance: ModelInstance, batch: Batch) -> None:
        for request in batch.requests:
            assert request.state is not RELEASED, request  # the one state of TRANSITIONS without a way out
            request.state = EXECUTING
            request.batch = batch
        if self._ordered is not None and instance not in self.warming:
            self._ordered.extend(batch.requests)
        batch.instance = instance
        instance.outstanding += 1
        instance.running[batch] = None
        instance.start(batch)
        if instance.runs and instance.outstanding > 1 and instance not in self._guarded:
            self._guard(instance)

    def _guard(self, instance: ModelInstance) -> None:
        """Have somebody look after a run."""
        self._guarded.add(instance)
        self._loop.call_later(RUN_PATIENCE, self._look_after, instance, next(iter(instance.running), None))

    def _look_after(self, instance: ModelInstance, oldest: Batch | None) -> None:
        """A run should be over by now: fetch what is finished, and take back what waits behind an execution that is slow."""
        self._mailbox.drain()  # guarded meanwhile: what starts now needs no second look
        if instance.outstanding < 2:
            self._guarded.discard(instance)
            return
        current = next(iter(instance.running))
        if current is oldest:
            self._guarded.discard(instance)
            self.put_back(instance, instance.take_back())
            # Between the last look and the taking the worker may have finished one, seen that more was to do, and not woken us.
            self._mailbox.drain()
            self._dispatch()
        else:
            self._loop.call_later(RUN_PATIENCE, self._look_after, instance, current)

    def put_back(self, instance: ModelInstance, batches: Sequence[Batch]) -> None:
        """Let what was handed to an instance, but not begun, wait again, in front of all others."""
        for batch in batches:
            del instance.running[batch]
            instance.outstanding -= 1
        back = [request for batch in batches for request in batch.requests if request.state is EXECUTING]
        for request in back:
            request.state = PENDING
            request.batch = None
        if self._ordered is not None:
            self._ordered = deque(request for request in self._ordered if request.state is not PENDING)
        self.queue.push_back(back)
        if self.stopping:
            self._tell_drained()

    def refuse_all(self, error: ServingError | None) -> None:
        """Refuse what waits and what comes, until this is called with None."""
        self.refusing = error
        if error is not None:
            for request in list(self.queue):
                self.cancel(request, error_for(request, error))

    def look_again(self) -> None:
        """Something has changed besides what the scheduler has done itself: perhaps what waits can be executed now."""
        if self.queue.size:
            self._schedule(self.clock())

    def finished(self, instance: ModelInstance, batch: Batch, result: Any) -> None:
        """An instance has ended an execution; `result` is what the executor returned or the exception it raised."""
        instance.outstanding -= 1
        instance.running.pop(batch, None)
        requests = batch.requests
        try:
            if (
                self._plain
                and self.watch is None
                and type(result) is list
                and len(result) == 1 == len(requests)
                and type(response := result[0]) is InferenceResponse
                and response.error is None
                and (request := requests[0]).state is EXECUTING
            ):
                self._answer_alone(batch, request, response)  # what nearly every execution comes to
            else:
                if not batch.input_ended:
                    batch.input_ended = batch.started
                if not batch.output_started:
                    batch.output_started = batch.ended
                if self.watch is not None and isinstance(result, (list, tuple)):
                    self.watch(requests, result)
                self._conclude(batch, result)
        except Exception as problem:  # an executor that keeps to no contract
            self._fail_batch(batch, self._as_error(problem, batch))
        if self.queue.size and not self._scheduled:
            if self._mailbox.draining and not self._inline:
                # More of a run may have ended: a thread that is woken before it is counted gets in the way of that.
                self._scheduled = True
                self._mailbox.after(self._dispatch_now)
            else:
                self._dispatch()
        if self.leaving:
            self._see_off(instance)
        if self.stopping:
            self._tell_drained()

    # -- other instances -----------------------------------------------------------------------------------------------

    def rearrange(self, come: Sequence[ModelInstance], go: Collection[ModelInstance]) -> list[asyncio.Future[None]]:
        """Let instances come and others go; those finish what they have begun. Return what is done when they have."""
        staying = [instance for instance in self.instances if instance not in go]
        self.instances = ()
        self._let_in((*staying, *come))
        gone = []
        for instance in go:
            gone.append(self._loop.create_future())
            self.leaving[instance] = gone[-1]
            if instance.runs and instance.outstanding > 1:
                self._mailbox.drain()
                self.put_back(instance, instance.take_back())
                self._mailbox.drain()  # as in `_look_after`
            instance.runs = False
            self._see_off(instance)
        if self.queue.size:
            self._schedule(self.clock())
        return gone

    def _see_off(self, instance: ModelInstance) -> None:
        """Let an instance go that is on its way out and has nothing left to do."""
        if not instance.outstanding and (gone := self.leaving.pop(instance, None)) is not None:
            gone.set_result(None)

    def leave_behind(self) -> None:
        """Wait no longer for instances that are on their way out."""
        for gone in self.leaving.values():
            gone.set_result(None)
        self.leaving.clear()

    # -- expire, stop --------------------------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        for request in self.queue.expire(now):
            error = ServingError(Code.UNAVAILABLE, "Request timeout expired", Reason.REJECTED)
            request.error = error
            self.release(request, InferenceResponse([], error=error))

    def _pass_deadlines(self, now: float) -> None:
        while (request := self._deadlines.due(now)) is not None:
            where, reason = ("queued", Reason.REJECTED) if request.state is PENDING else ("executing", Reason.CANCELED)
            self.cancel(
                request,
                ServingError(
                    Code.UNAVAILABLE,
                    f"{request.log_id}deadline of the request to model '{self.name}' passed after "
                    f"{now - request.enqueued:.3f} s while it was {where}",
                    reason,
                ),
            )

    def _arm(self, when: float) -> None:
        """Have `_ring` called at `when` or before."""
        timer = self._timer
        if timer is not None:
            if self._timer_at <= when:
                return
            timer.cancel()
        self._timer_at = when
        # Relative: the loop's own clock may be coarser than ours.
        self._timer = self._loop.call_later(max(0.0, when - self.clock()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self.clock()
        self._pass_deadlines(now)
        self._dispatch()
        expiry = self.queue.next_expiry()
        if expiry is not None:
            if expiry <= now:
                self._expire(now)
                expiry = self.queue.next_expiry()
            if expiry is not None:
                self._arm(expiry)
        deadline = self._deadlines.next()
        if deadline is not None:
            self._arm(deadline)

    def stop(self, continuing: bool = False) -> None:
        """Accept nothing more; what was accepted is finished. `continuing`: sequences that are running may go on."""
        self.stopping = True

    async def drained(self) -> None:
        """Return when no accepted request is without its answer and no execution runs. After `stop`."""
        assert self.stopping
        while not self.is_idle:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)  # others may wait for it, too

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and not self.leaving and not any(instance.outstanding for instance in self.instances)

    def _tell_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and self.is_idle:
            self._drained.set_result(None)

    def alive(self) -> list[InferenceRequest]:
        """Return what was accepted, in the queue first; some of it may have its final answer."""
        alive = [*self.queue, *self._open]
        for instance in dict.fromkeys((*self.instances, *self.leaving, *self.warming)):
            for batch in instance.running:
                alive.extend(batch.requests)
        alive.extend(self._ordered or ())  # last: those before them let their answers out
        return alive

    def why_waiting(self, request: InferenceRequest) -> str:
        """Return why a request in the queue waits where that is neither busy instances nor its batch, else ""."""
        return ""

    def abort(self, error: ServingError) -> None:
        """Answer everything that is in flight with `error`, now."""
        for request in self.alive():
            self.cancel(request, error)


def _rows(queue: RequestQueue, count: int | list[InferenceRequest]) -> int:
    return sum(one.batch_size for one in (islice(queue, count) if isinstance(count, int) else count))


def stopping_error(request: InferenceRequest) -> ServingError:
    """Return why a request is refused by a scheduler that has been told to stop."""
    words = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    return ServingError(Code.UNAVAILABLE, f"{request.log_id}{words}")


def error_for(request: InferenceRequest, error: ServingError) -> ServingError:
    """Return the same error, told about one request."""
    return ServingError(error.code, f"{request.log_id}{error.message}", Reason.REJECTED)

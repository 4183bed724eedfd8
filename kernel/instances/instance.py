"""Where one model instance runs its batches: on the loop, as tasks on the loop, or by call-back. (Threads: on_thread.py.)

An instance knows its executor and how to reach it; it decides nothing. The scheduler calls `start(batch)` and gets exactly
one `finished(batch, result)` for it, on the loop; the result is what `execute` returned, or the exception it raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from kernel.errors import ServingError
from kernel.instances.thread import DaemonThreads
from kernel.interfaces import Executor
from kernel.requests import LATER, SKIPPED, Batch, InferenceRequest, InferenceResponse, RequestState

if TYPE_CHECKING:
    from kernel.instances.turn import Turn
    from kernel.rules import Contender

log = logging.getLogger("kernel")

RELEASED = RequestState.RELEASED

_threads = DaemonThreads()
HELD_SECONDS = 0.1  # whoever holds the loop for longer is named in a warning

__all__ = ["AsyncInstance", "CallbackInstance", "Leavable", "LoopInstance", "ModelInstance", "TaskInstance", "all_gone"]


class HeldCounts(Protocol):
    """Counts how often, and for how many seconds, a model has held the loop."""

    held: int
    held_seconds: float


class AnswerCheck(Protocol):
    """Holds answers to the config. `strict`: by errors."""

    strict: bool

    def __call__(
        self, requests: Sequence[InferenceRequest], responses: Sequence[object]
    ) -> None: ...


class Owner(Protocol):
    """Who gives an instance its batches, and takes them back: the scheduler of its model.

    `calls`: executions wait, or have waited, for calls, for what these have called, or for resources.
    """

    name: str
    calls: bool

    @property
    def statistics(self) -> HeldCounts: ...

    @property
    def instances(self) -> Sequence[ModelInstance]: ...

    @property
    def rule(self) -> object | None:
        """By what batches are formed; None where each request is one."""

    @property
    def output_check(self) -> AnswerCheck | None:
        """Who looks at answers before they are given out; None where nobody does."""

    def sign(self, request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        """Write on a response whose it is. Any thread."""

    def finished(self, instance: ModelInstance, batch: Batch, result: object) -> None:
        """An execution has ended."""

    def changed(self) -> None:
        """An instance has gone down, or is up again: `healthy`."""

    def lose(self, instance: ModelInstance, why: ServingError) -> None:
        """What executions have left in the instance is lost."""

    def put_back(self, instance: ModelInstance, batches: Sequence[Batch]) -> None:
        """These were started and have not begun: they wait again."""

    def look_again(self) -> None:
        """Something may be started that could not be."""

    def refuse_all(self, error: ServingError | None) -> None:
        """Refuse whatever comes with `error`; None: no longer."""


class ModelInstance:
    """One instance of a model version.

    `running`: the batches of the executions that were started and have not finished, oldest first. The scheduler keeps their
    number at or below `limit`; while it is below `capacity`, one more begins the moment its request comes.
    """

    inline = True  # `start` costs no wake-up of another thread: may be called the moment a request arrives
    waits_only = False  # its executions do nothing but wait for their children
    answers_together = True  # an execution that waits in a synchronous call answers none of its requests meanwhile
    apart = False  # executes beside this process: who hands it something takes no time from what comes in meanwhile
    runs = False  # may be handed more than it can begin at once
    alone = False  # has `runs`, and is its model's only instance
    in_warmup = False  # executes samples, before it takes requests
    healthy = True  # may be counted on: not while its executor, which is elsewhere, is down
    contender: Contender | None = None  # what the rate limiter knows of it, where there is one
    own_loop: asyncio.AbstractEventLoop | None = None  # where its tasks run, if not on the kernel's
    may_be_killed = False  # `close` ends even what is in the middle of an execution

    def __init__(self, name: str, executor: Executor, clock: Callable[[], float]) -> None:
        self.name = name
        self.executor = executor
        self.clock = clock
        self.owner: Owner | None = None
        self.capacity = executor.capacity
        self.limit = executor.capacity
        self.running: dict[Batch, None] = {}

    @property
    def outstanding(self) -> int:
        """How many executions were started and have not finished."""
        return len(self.running)

    def start(self, batch: Batch) -> object:
        """Begin to execute `batch`. Return the result where that is over by then, else LATER: `owner.finished` is called."""
        raise NotImplementedError

    def allow_runs(self, allowed: bool) -> None:
        """Whether it may be handed more than it can begin at once."""
        self.runs = allowed

    def finished(self, batch: Batch, result: object) -> None:
        """Report the end of an execution whose `start` has returned LATER. On the loop."""
        assert self.owner is not None
        if not batch.ended:
            batch.ended = self.clock()
        self.owner.finished(self, batch, result)

    def take_back(self) -> list[Batch]:
        """Return started batches that have not begun to execute, in their order; they are the scheduler's again."""
        return []

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """A request of a started batch was released without the executor's answer; who runs here can see that."""

    def warn_held(self, seconds: float, place: str = "") -> None:
        """Name a model that kept everybody else from running; `place`: where, as far as that was seen."""
        assert self.owner is not None
        statistics = self.owner.statistics
        statistics.held += 1
        statistics.held_seconds += seconds
        log.warning(
            "model '%s', instance '%s', held the event loop for %.0f ms%s; "
            'parameters { key: "placement" value { string_value: "thread" } } in its config keeps it off the loop',
            self.owner.name,
            self.name,
            seconds * 1e3,
            f" at {place}" if place else "",
        )

    def abandon(self) -> None:
        """Be left in the middle of an execution, for which nobody waits any more; nothing comes after it."""

    async def close(self) -> None:
        """Let the executor finalize; nothing is running any more."""
        # Not on the loop: a slow finalize would hold up every other model, a hanging one the end of the process.
        await asyncio.get_running_loop().run_in_executor(_threads, self.executor.finalize)


def all_gone(batch: Batch) -> bool:
    """True when no request of the batch waits for an answer any more. Safe from any thread."""
    for request in batch.requests:  # a loop, not all(…): this is asked for every execution
        if request.state is not RELEASED:
            return False
    return True


class Leavable(greenlet):
    """A greenlet on the kernel's loop whose code can be left in the middle, while other work goes on, and be returned to.

    `leave`: called in it with a function, it calls `step(wake)`, and returns once `wake()` was called. `whole`: an execution as a
    whole runs in it, and can't go on while it waits; not a task that one has made.
    """

    leave: Callable[[Callable[[Callable[[], None]], None]], None]
    whole = True


class LoopInstance(ModelInstance):
    """Calls a plain `execute` on the loop, in a greenlet that is kept for the next execution.

    When the model waits (a synchronous BLS call), the greenlet switches back to whoever switched to it, in the middle of
    `execute`, and is switched to again once what it waits for is there: nothing blocks.
    """

    def __init__(self, name: str, executor: Executor, clock: Callable[[], float], turn: Turn) -> None:
        super().__init__(name, executor, clock)
        self.turn = turn
        self._greenlet: Leavable | None = None
        self._batch: Batch | None = None

    def start(self, batch: Batch) -> object:
        executor = self.executor
        if executor.may_wait:
            return self._start_in_greenlet(batch)
        result: object
        turn, clock = self.turn, self.clock  # as it is no method, this costs less than to call it by its name
        outer, turn.cant_wait = turn.cant_wait, True
        batch.started = started = batch.handed_over
        try:
            result = executor.execute(batch)
        except BaseException as error:
            result = error
        batch.ended = ended = clock()
        turn.cant_wait = outer
        if ended - started > HELD_SECONDS:
            self.warn_held(ended - started)
        return result

    def _start_in_greenlet(self, batch: Batch) -> object:
        greenlet = self._greenlet
        if greenlet is None:
            greenlet = self._greenlet = Leavable(self._execute_all)
            greenlet.leave = self.wait
        self._batch = batch
        batch.started = entered = batch.handed_over
        return self._enter(greenlet, batch, entered)

    def wait(self, step: Callable[[Callable[[], None]], None]) -> None:
        """Leave the execution until `wake` is called: `step(wake)` is called first. Only inside the greenlet."""
        woken = waiting = False

        def wake() -> None:
            nonlocal woken
            if not woken:
                woken = True
                if waiting:
                    self._resume()

        step(wake)
        if not woken:
            waiting = True
            assert self._greenlet is not None and self._greenlet.parent is not None
            self._greenlet.parent.switch(LATER)

    def _resume(self) -> None:
        greenlet, batch = self._greenlet, self._batch
        if greenlet is None:
            return  # the instance was closed meanwhile: what it waited for has come too late
        assert batch is not None
        result = self._enter(greenlet, None, self.clock())
        if result is not LATER:
            self.finished(batch, result)

    def _enter(self, greenlet: Leavable, batch: Batch | None, entered: float) -> object:
        """Let the greenlet run, with a new batch or from where it left. Return the result, or LATER where it has left again."""
        turn = self.turn
        outer, turn.cant_wait = turn.cant_wait, False
        greenlet.parent = getcurrent()
        result = greenlet.switch(batch)
        now = self.clock()
        turn.cant_wait = outer
        if now - entered > HELD_SECONDS:
            self.warn_held(now - entered)
        if result is LATER:
            return LATER
        batch, self._batch = self._batch, None
        assert batch is not None
        batch.ended = now
        return result

    def _execute_all(self, batch: Batch) -> None:
        execute = self.executor.execute
        this = getcurrent()
        result: object
        while True:
            try:
                result = execute(batch)
            except GreenletExit:  # the instance is closed in the middle of an execution that was given up
                return
            except BaseException as error:
                result = error
            assert this.parent is not None
            batch = this.parent.switch(result)
            result = None

    async def close(self) -> None:
        greenlet, self._greenlet = self._greenlet, None
        if greenlet is not None and not greenlet.dead:
            greenlet.parent = getcurrent()
            greenlet.throw()
        await super().close()


class AsyncInstance(ModelInstance):
    """Runs an `async def execute` on `loop`, one task a batch; up to `capacity` of them overlap.

    `report`: has `finished(batch, result)` called on the kernel's loop, where that is another one.
    """

    answers_together = False  # tasks that it has made may go on
    report: Callable[[Batch, object], object]

    def __init__(self, name: str, executor: Executor, clock: Callable[[], float], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name, executor, clock)
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.report = self.finished

    def start(self, batch: Batch) -> object:
        # Not by `create_task`: what models or the app do to the tasks that they make is nothing to the core's own.
        task = asyncio.Task(self._run(batch), loop=self._loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return LATER

    async def _run(self, batch: Batch) -> None:
        batch.started = self.clock()
        result: object
        try:
            result = SKIPPED if all_gone(batch) else await self.executor.execute(batch)  # type: ignore[misc]
        except BaseException as error:
            result = error
        batch.ended = self.clock()
        self.report(batch, result)

    async def _end_tasks(self) -> None:
        """Give up tasks whose requests were given up at shutdown."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)


class TaskInstance(AsyncInstance):
    """Runs its tasks on the kernel's loop."""

    async def close(self) -> None:
        await self._end_tasks()
        await super().close()


class CallbackInstance(ModelInstance):
    """Calls an `execute` that only sets things going; the executor calls `finished` itself. For ensembles."""

    waits_only = True

    def start(self, batch: Batch) -> object:
        batch.started = self.clock()
        try:
            self.executor.execute(batch)
        except Exception as error:
            batch.ended = self.clock()
            return error
        return LATER

    async def close(self) -> None:
        self.executor.finalize()

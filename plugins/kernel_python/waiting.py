"""How model code waits for something that happens on the kernel's loop, without ever blocking the loop.

Whether it may is the kernel's to say (`Kernel.wait`); here is what a model has besides: the words, coroutines, threads.
On a thread of its own it blocks that thread. On the loop it leaves: a plain `execute` through the core's greenlet, an `async
def execute` that uses synchronous calls through the greenlet that drives its coroutine (`drive`), and so do the tasks that it
makes (`_Tasks`). A thread of a model on the loop blocks, too, as long as the loop is not held by a model that waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from threading import get_ident
from typing import Any

from greenlet import GreenletExit, getcurrent

from kernel import Code, Leavable, ServingError, WaitView
from kernel_python.background import Outcome, outcome
from kernel_python.calling import EXECUTION, Instance
from kernel_python.faults import TritonModelException
from kernel_python.questions import AT_ONCE, answer

__all__ = [
    "CantWait",
    "GreenletExit",
    "ask",
    "await_returned",
    "drive",
    "drive_tasks",
    "future_for",
    "is_helper",
    "on_loop",
    "refusal",
    "wait_as_helper",
    "wait_for",
]

Step = Callable[[Callable[[], None]], None]
_POOL_SIZE = 64
HELD_SECONDS = 1.0  # for how long nothing may come back from the loop before we look who holds it
_HELD = (
    "This call of a thread needs the event loop, which model '{0}' has been holding in {1}({2}) for over {3:g} s, as it would "
    "if it waited there for this very call: a model on the loop must not wait for threads of its own. Call `exec()` in "
    '`execute` itself, or keep the model off the loop: parameters {{ key: "placement" value {{ string_value: "thread" }} }}'
)


def on_loop(kernel: Any) -> bool:
    """Whether this code runs on the kernel's loop."""
    return asyncio._get_running_loop() is kernel.loop


def is_helper(instance: Instance) -> bool:
    """Whether this is a thread of a model on the loop, which may be waiting there for this thread.

    In a child that was forked there is no loop, and no thread of it.
    """
    thread = instance.kernel.loop_thread
    return instance.on_loop and thread != 0 and get_ident() != thread


def refusal(instance: Instance, error: RuntimeError, advice: str) -> Exception:
    """Return what is raised where the kernel would not let the model's code wait: on the loop, since it can't be left there.

    The next execution may wait. On a thread it is the kernel that has stopped, and the error stays what it is.
    """
    if get_ident() != instance.kernel.loop_thread:
        return error
    instance.waits()
    return TritonModelException(f"This call would block the event loop, which serves all models: {advice}.")


def wait_for(instance: Instance, step: Step, advice: str) -> None:
    """Call `step(wake)` on the loop and return once `wake()` was called.

    Raises what `refusal` returns, and what `wait_as_helper` raises.
    """
    if is_helper(instance):
        wait_as_helper(instance, step)
        return
    try:
        instance.kernel.wait_for(step)
    except RuntimeError as error:
        raise refusal(instance, error, advice) from error


def wait_as_helper(instance: Instance, step: Step) -> None:
    """As `wait_for`, on a thread of a model that runs on the loop.

    Raises TritonModelException where the loop stands still in the model, which may well wait for this thread; what `step` has
    begun goes on.
    """
    kernel = instance.kernel
    woken = threading.Event()
    kernel.call_soon(step, woken.set)
    # Whoever has done it once does it again: the next time all others wait for a tenth of that.
    seconds = HELD_SECONDS / 10 if instance.has_waited else HELD_SECONDS
    while not woken.wait(seconds):
        turned = threading.Event()
        kernel.call_soon(turned.set)
        if turned.wait(seconds) or woken.is_set():
            continue
        holder = _who_holds(instance)
        if holder is not None:
            instance.has_waited = True
            raise TritonModelException(_HELD.format(*holder, seconds))


def _who_holds(instance: Instance) -> tuple[str, str, int] | None:
    """Return the model, file and line that the loop's thread is in, if it is code of the instance (or if that is nobody's)."""
    frame = WaitView.innermost().get(instance.kernel.loop_thread)
    while frame is not None:
        running: Instance | None = frame.f_globals.get("__kernel_instance__")
        if running is not None and (running is instance or not instance.name):
            return running.model_name, frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def ask(instance: Instance, what: str, *arguments: Any) -> Any:
    """Return what the kernel answers, once it does; see questions.py. Raises the ServingError that it answers with.

    Raises TritonModelException where waiting would block the loop; nothing was asked then.
    """
    kernel = instance.kernel
    outcome: list[tuple[ServingError | None, Any]] = []

    def step(wake: Callable[[], None]) -> None:
        def reply(error: ServingError | None, value: Any) -> None:
            outcome.append((error, value))
            wake()

        answer(kernel, what, arguments, reply)

    if on_loop(kernel) and what in AT_ONCE:
        step(lambda: None)
    else:
        try:
            wait_for(instance, step, f"call {what}() in `execute` itself, or by `await asyncio.to_thread({what}, …)`")
        except RuntimeError as error:  # the kernel has stopped
            raise ServingError(Code.UNAVAILABLE, str(error)) from error
    problem, value = outcome[0]
    if problem is not None:
        raise problem
    return value


def future_for(kernel: Any, step: Step) -> asyncio.Future[None]:
    """Return a future of the running loop that is done once `wake()` was called."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def done() -> None:
        if not future.done():
            future.set_result(None)

    if loop is kernel.loop:
        step(done)
    else:
        kernel.call_soon(step, lambda: _tell(loop, done))
    return future


def _tell(loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(done)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more


class CantWait(Exception):
    """This execution is called without a greenlet that could be left."""


class Driver(Leavable):
    """Runs coroutines, one after another, so that plain functions which they call can wait for a future.

    What is handed to its parent is either something that a coroutine yields, meant for the asyncio task, or a _Done.
    """

    def leave(self, step: Step) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        step(wake)
        self.wait(future)

    def wait(self, future: asyncio.Future[Any]) -> Any:
        """Return the future's result once it is there; other tasks run meanwhile. Called by code that runs in this driver."""
        if not future.done():
            future._asyncio_future_blocking = True
            _, error = self.parent.switch(future)  # type: ignore[union-attr]  # while it runs it has one
            if error is not None:
                raise error
        return future.result()


class _Done:
    __slots__ = ("error", "value")

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value = value
        self.error = error


def _work(coroutine: Coroutine[Any, Any, Any]) -> None:
    this = getcurrent()
    while True:
        value: Any = None
        error: BaseException | None = None
        done: _Done | None
        try:
            while True:
                yielded = coroutine.send(value) if error is None else coroutine.throw(error)
                value, error = this.parent.switch(yielded)  # type: ignore[union-attr]
        except StopIteration as stop:
            done = _Done(stop.value, None)
        except BaseException as problem:
            done = _Done(None, problem)
        coroutine = yielded = value = error = None  # type: ignore[assignment]
        handed, done = done, None
        coroutine = this.parent.switch(handed)  # type: ignore[union-attr]
        del handed


@types.coroutine
def drive(coroutine: Coroutine[Any, Any, Any], pool: list[Driver], whole: bool = True) -> Generator[Any, Any, Any]:
    """Await `coroutine` inside of a greenlet, so that a synchronous call in it may wait.

    Costs two switches an await (0.4 µs); making a greenlet costs twenty times that, so `pool` keeps them.
    """
    current = getcurrent()
    driver = pool.pop() if pool else Driver(_work)
    driver.whole = whole
    driver.parent = current
    driver.gr_context = current.gr_context  # the task's own: context variables work as without the greenlet
    sent: tuple[Any, BaseException | None]
    handed = driver.switch(coroutine)
    del coroutine
    while type(handed) is not _Done:
        try:
            sent = (yield handed), None
        except BaseException as error:
            sent = None, error
        driver.parent = getcurrent()
        handed = driver.switch(sent)
    driver.gr_context = None
    if len(pool) < _POOL_SIZE:
        pool.append(driver)
    if handed.error is not None:
        raise handed.error
    return handed.value


class _Driven(Coroutine[Any, Any, Any]):
    """A coroutine that is driven as it is awaited, for a task to run."""

    __slots__ = ("_coroutine", "_pool", "_steps")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], pool: list[Driver]) -> None:
        self._coroutine = coroutine
        self._pool = pool
        self._steps: Generator[Any, Any, Any] | None = None

    def send(self, value: Any) -> Any:
        if self._steps is None:
            self._steps = drive(self._coroutine, self._pool, whole=False)
        return self._steps.send(value)

    def throw(self, *problem: Any) -> Any:
        # Where it has not begun there is nothing to drive: it ends here.
        return (self._coroutine if self._steps is None else self._steps).throw(*problem)

    def close(self) -> None:
        (self._coroutine if self._steps is None else self._steps).close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return drive(self._coroutine, self._pool, whole=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # `cr_code` and the like: tasks are shown by what they run


class _Tasks:
    """A loop's task factory while models are there whose tasks are to be driven; the tasks of all others are made as before."""

    def __init__(self, before: Any) -> None:
        self._before = before
        self.users = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> Any:
        site = EXECUTION.get(None)
        if site is not None and (pool := site[0].drivers) is not None and asyncio.iscoroutine(coroutine):
            coroutine = _Driven(coroutine, pool)
        before = self._before
        return asyncio.Task(coroutine, loop=loop, **more) if before is None else before(loop, coroutine, **more)

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users -= 1
        if not self.users and loop.get_task_factory() is self:
            loop.set_task_factory(self._before)


_lock = threading.Lock()


def drive_tasks(instance: Instance) -> Callable[[], None]:
    """Have synchronous calls wait in tasks that the model makes on the kernel's loop, until what is returned is called."""
    loop = instance.kernel.loop
    instance.drivers = []
    with _lock:
        tasks = loop.get_task_factory()
        if not isinstance(tasks, _Tasks):
            tasks = _Tasks(tasks)
            loop.set_task_factory(tasks)
        tasks.users += 1

    def leave() -> None:
        with _lock:
            tasks.leave(loop)

    return leave


def await_returned(instance: Instance, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what comes of a coroutine that a plain `execute` on the loop has returned; other work goes on meanwhile.

    Raises CantWait where that execution may not wait; the coroutine is not begun then.
    """
    task: asyncio.Task[Outcome] | None = None

    def step(wake: Callable[[], None]) -> None:
        nonlocal task
        task = asyncio.get_running_loop().create_task(outcome(coroutine))
        task.add_done_callback(lambda _: wake())

    try:
        instance.kernel.wait_for(step)
    except RuntimeError as error:
        raise CantWait from error
    finally:
        if task is not None:
            task.cancel()  # if it has not ended, the execution was given up
    assert task is not None
    value, problem = task.result()
    if problem is not None:
        raise problem
    return value

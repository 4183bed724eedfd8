"""How model code waits for something that happens on the kernel's loop, without ever blocking the loop.

On a thread of its own it blocks that thread. On the loop it leaves: a plain `execute` through the core's greenlet, an `async
def execute` that uses synchronous calls through the greenlet that drives its coroutine (`drive`).
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from kernel import Code, ServingError
from kernel_python.calling import Instance
from kernel_python.faults import TritonModelException
from kernel_python.questions import AT_ONCE, answer

__all__ = ["GreenletExit", "ask", "drive", "future_for", "on_loop", "wait_for"]

Step = Callable[[Callable[[], None]], None]
_POOL_SIZE = 64


def on_loop(kernel: Any) -> bool:
    """Whether this code runs on the kernel's loop."""
    return asyncio._get_running_loop() is kernel.loop


def wait_for(kernel: Any, step: Step, advice: str) -> None:
    """Call `step(wake)` on the loop and return once `wake()` was called.

    Raises TritonModelException with the advice where waiting would block the loop.
    """
    if asyncio._get_running_loop() is not kernel.loop:
        kernel.wait_for(step)
        return
    current = getcurrent()
    if isinstance(current, Driver):
        current.wait(future_for(kernel, step))
        return
    try:
        kernel.wait_for(step)
    except RuntimeError as error:
        raise TritonModelException(
            f"This call would block the event loop, which serves all models: {advice}."
        ) from error


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
            wait_for(kernel, step, f"call {what}() in `execute` itself, or by `await asyncio.to_thread({what}, …)`")
        except TritonModelException:
            instance.waits()
            raise
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


class Driver(greenlet):
    """Runs coroutines, one after another, so that plain functions which they call can wait for a future.

    What is handed to its parent is either something that a coroutine yields, meant for the asyncio task, or a _Done.
    """

    def wait(self, future: asyncio.Future[Any]) -> Any:
        """Return the future's result once it is there; other tasks run meanwhile. Called by code that runs in this driver."""
        if not future.done():
            future._asyncio_future_blocking = True
            _, error = self.parent.switch(future)
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
                value, error = this.parent.switch(yielded)
        except StopIteration as stop:
            done = _Done(stop.value, None)
        except BaseException as problem:
            done = _Done(None, problem)
        coroutine = yielded = value = error = None  # type: ignore[assignment]
        handed, done = done, None
        coroutine = this.parent.switch(handed)
        del handed


@types.coroutine
def drive(coroutine: Coroutine[Any, Any, Any], pool: list[Driver]) -> Generator[Any, Any, Any]:
    """Await `coroutine` inside of a greenlet, so that a synchronous call in it may wait.

    Costs two switches an await (0.4 µs); making a greenlet costs twenty times that, so `pool` keeps them.
    """
    current = getcurrent()
    driver = pool.pop() if pool else Driver(_work)
    driver.parent = current
    driver.gr_context = current.gr_context  # the task's own: context variables work as without the greenlet
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

"""Instead of kernel_python.waiting: how model code waits in a child, whose loop, if it has one, is the model's own.

A thread that waits reads the channel meanwhile, or lets another thread read. Nothing here needs greenlets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["CantWait", "GreenletExit", "ask", "await_returned", "drive", "drive_tasks", "future_for", "on_loop", "wait_for"]

Step = Callable[[Callable[[], None]], None]


class GreenletExit(BaseException):
    """Never raised here."""


class CantWait(Exception):
    """No `execute` runs on a loop of the kernel's here."""


def on_loop(kernel: Any) -> bool:
    """Whether this code runs on the kernel's loop: never."""
    return False


def wait_for(instance: Any, step: Step, advice: str) -> None:
    """Call `step(wake)`, and return once `wake()` was called."""
    kernel = instance.kernel
    woken: list[bool] = []
    with kernel.channel.state:
        step(lambda: woken.append(True))
    kernel.channel.wait(lambda: woken)


def ask(instance: Any, what: str, *arguments: Any) -> Any:
    """Return what the server answers; raises the ServingError that it answers with."""
    return instance.kernel.ask(what, *arguments)


def future_for(kernel: Any, step: Step) -> asyncio.Future[None]:
    """Return a future of the running loop that is done once `wake()` was called."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    channel = kernel.channel
    channel.attach(loop)
    future.add_done_callback(lambda _: channel.detach(loop))

    def done() -> None:
        if not future.done():
            future.set_result(None)

    with channel.state:
        step(lambda: call_in(loop, done))
    return future


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., Any], *args: Any) -> None:
    """Call back in the thread of `loop`: now where that is this one."""
    if asyncio._get_running_loop() is loop:
        callback(*args)
    else:
        try:
            loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # closed: nobody waits there any more
            return


def drive(coroutine: Coroutine[Any, Any, Any], pool: list[Any]) -> Coroutine[Any, Any, Any]:
    """Synchronous calls block the model's loop here, as they do in the reference."""
    return coroutine


def drive_tasks(instance: Any) -> Callable[[], None]:
    """Nothing is driven here."""
    return lambda: None


def await_returned(instance: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Not called here."""
    raise CantWait

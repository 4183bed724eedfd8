"""An asyncio loop on a thread of its own, for what a plain `execute` returns to be awaited (contract: python_backend, 2.4).

As in the reference, which has one beside its main thread: what coroutines have begun there goes on between two executions.
Also in children.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from kernel import OwnLoop

__all__ = ["BackgroundLoop", "Outcome", "outcome", "run"]

_LEAVE_SECONDS = 1.0  # what tasks that were given up may take to end
Outcome = tuple[Any, "BaseException | None"]


class BackgroundLoop:
    """Runs coroutines in the context of who hands them over. Made when it is first needed, closed once."""

    def __init__(self, name: str) -> None:
        self._loop = OwnLoop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what comes of the coroutine, or raise what it raises. Any other thread, which waits."""
        value, error = asyncio.run_coroutine_threadsafe(outcome(coroutine), self._loop).result()
        if error is not None:
            raise error
        return value

    def start(self, coroutine: Coroutine[Any, Any, Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Begin a coroutine; `done(value, error)` is called in the loop's thread once it has ended."""

        def ended(future: concurrent.futures.Future[Outcome]) -> None:
            if future.cancelled():
                done(None, asyncio.CancelledError())
            else:
                done(*future.result())

        asyncio.run_coroutine_threadsafe(outcome(coroutine), self._loop).add_done_callback(ended)

    def close(self) -> None:
        """Give up what has not ended, and end the thread, as soon as it comes to that."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2 * _LEAVE_SECONDS)

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_LEAVE_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Return what comes of `main`, as `asyncio.run` does, on a loop that models can't end."""
    loop = OwnLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


async def outcome(coroutine: Coroutine[Any, Any, Any]) -> Outcome:
    """Await; return a value or what was raised, also what would end the loop (a model's SystemExit)."""
    try:
        return await coroutine, None
    except asyncio.CancelledError as error:
        if getattr(asyncio.current_task(), "cancelling", int)():
            raise
        return None, error
    except BaseException as error:
        return None, error

"""Threads of model code: the one of an instance, which makes the calls put into its inbox, and those for one call each.

All are daemons: model code that hangs does not hold up the end of the process. Knows no scheduler. Whatever a call raises is
raised where its result is awaited; what would end the process there (SystemExit, KeyboardInterrupt of model code) arrives as
a RuntimeError that names it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kernel.instances.wake_pipe import WakePipe
from kernel.requests import LATER, Batch

__all__ = ["DaemonThreads", "InstanceThread"]


class InstanceThread:
    """A thread that works off its `inbox` in order: calls are made, batches go to `serve`, None ends it.

    What is in the inbox may be taken out again; by `put` it comes in.
    """

    def __init__(self, name: str) -> None:
        self.inbox: deque[Any] = deque()
        self._pipe = WakePipe()
        self._asleep = False
        self.serve: Callable[[Batch], None]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], object] | Batch | None) -> object:
        """Add to the inbox, and return LATER, as the `start` of an instance does whose batches go here. On the loop.

        Where the thread can't be woken, returns the OSError that says so: what the execution comes to.
        """
        self.inbox.append(work)
        # The order matters, as in `Mailbox.post`: append, then look; the thread says that it sleeps, then looks at the inbox.
        if self._asleep:
            self._asleep = False
            try:
                self._pipe.wake()
            except OSError:
                return self._wake_anyway(work)
        return LATER

    def _wake_anyway(self, work: Callable[[], object] | Batch | None) -> object:
        """Code of a model has closed the pipe. Returns why, and takes the work back, if nothing else wakes it."""
        try:
            self._pipe.wake_anyway()
        except OSError as error:
            self._asleep = True
            with contextlib.suppress(ValueError):  # the thread has it: it is awake
                self.inbox.remove(work)
                return OSError(error.errno, f"thread '{self._thread.name}' can't be woken: something has closed its pipe")
        return LATER

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(*args)` on the thread and return its result, or raise what it raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: object, error: Exception | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        def work() -> None:
            result, error = _made(function, args)
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop was closed meanwhile: nobody waits
                return

        lost = self.put(work)
        if isinstance(lost, OSError):
            raise lost
        return await future

    def stop(self) -> None:
        """End the thread after what is in its inbox. On the loop, the last that is put there."""
        self.put(None)
        self._pipe.put_away()  # the thread is awake by now, or looks into its inbox before it sleeps

    def _run(self) -> None:
        inbox, pipe = self.inbox, self._pipe
        while True:
            if not inbox:
                self._asleep = True
                if not inbox:
                    try:
                        woken = pipe.wait()
                    except OSError:
                        woken = b""
                    if not woken:
                        pipe.wait_otherwise()
                self._asleep = False
            try:
                work = inbox.popleft()
            except IndexError:  # it was taken out again
                continue
            if isinstance(work, Batch):
                self.serve(work)
            elif work is None:
                break
            else:
                work()
            del work
        pipe.close()


class DaemonThreads(concurrent.futures.Executor):
    """Makes each call on a fresh daemon thread; for `loop.run_in_executor`."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # from here on nobody can cancel it: there is somebody to set its result

        def work() -> None:
            result, error = _made(function, args)
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        threading.Thread(target=work, name=getattr(function, "__name__", "call"), daemon=True).start()
        return future


def _made(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """Make a call; return its result, or what it raised as something that a future may carry."""
    try:
        return function(*args), None
    except StopIteration as problem:
        return None, RuntimeError(f"StopIteration: {problem}")
    except Exception as problem:
        return None, problem
    except BaseException as problem:
        return None, RuntimeError(f"{type(problem).__name__}: {problem}")

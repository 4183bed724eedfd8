"""What threads and tasks wait for: calls of models, or something that may come about by itself? Read off stacks and futures.

The law: what is said to wait for calls can't go on before one of them is answered; in doubt it may go on. Nothing here is asked
on a request's way: a thread that blocks notes its call in `blocked`, and everything else is read where there is a suspicion.
Knows nothing of requests: a call is what `blocked` names, or a future's attribute `request`. Also in children, on Python 3.9.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread
import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, ClassVar

__all__ = ["WaitView"]

_FUTURE_RESULT = {getattr(concurrent.futures.Future, name).__code__ for name in ("result", "exception")}
_JOIN = threading.Thread.join.__code__
_RUN_ITEM = concurrent.futures.thread._WorkItem.run.__code__
_WAIT = getattr(asyncio.tasks, "_wait").__code__  # noqa: B009
_THREADING = threading.__file__


class WaitView:
    """One look at all threads and tasks. It keeps what it has seen: nobody keeps a look once it is over.

    `blocked`: the calls in which threads are blocked, by the thread's ident; for all views, kept by whoever blocks.
    """

    blocked: ClassVar[dict[int, Any]] = {}

    def __init__(self) -> None:
        self._frames: dict[int, FrameType] | None = None
        self._seen: set[Any] = set()
        self._loops: dict[int, list[Any] | None] = {}  # what the threads of loops wait for

    def of_thread(self, ident: int) -> list[Any] | None:
        """Return the calls without which a thread can't go on; None where it may."""
        return self._gathered(self._thread(ident))

    def of_task(self, task: asyncio.Task[Any]) -> list[Any] | None:
        """Return the calls without which a task can't go on; None where it may."""
        return self._gathered(self._task(task))

    def _gathered(self, found: list[Any] | None) -> list[Any] | None:
        self._seen.clear()
        return found or None

    # -- threads -------------------------------------------------------------------------------------------------------

    def _thread(self, ident: int) -> list[Any] | None:
        call = self.blocked.get(ident)
        if call is not None:
            return [call]
        if ident in self._seen:
            return []
        self._seen.add(ident)
        frame = self._all_frames().get(ident)
        while frame is not None and frame.f_code.co_filename == _THREADING and frame.f_code is not _JOIN:
            frame = frame.f_back  # of a lock, of a condition
        if frame is None:
            return None
        names = frame.f_locals
        if names.get("timeout") is not None:
            return None
        if frame.f_code is _JOIN:
            joined = names.get("self")
            return None if joined is None or joined.ident is None else self._thread(joined.ident)
        if frame.f_code in _FUTURE_RESULT:
            return self._handed(names.get("self"))
        return None

    def _handed(self, future: Any) -> list[Any] | None:
        """Of a future that threads wait for: it is a pool's, or made of a task."""
        if not isinstance(future, concurrent.futures.Future) or future.done():
            return None
        # This thread may be the one that works on it: it calls, and looks while it waits.
        for ident, top in (*self._all_frames().items(), (threading.get_ident(), sys._getframe(1))):
            frame: FrameType | None = top
            while frame is not None:
                if frame.f_code is _RUN_ITEM and getattr(frame.f_locals.get("self"), "future", None) is future:
                    return self._thread(ident)
                frame = frame.f_back
        return self._chained(getattr(future, "_done_callbacks", ()))

    def _all_frames(self) -> dict[int, FrameType]:
        if self._frames is None:
            self._frames = self.innermost()
        return self._frames

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _task(self, task: Any) -> list[Any] | None:
        loop = task.get_loop()
        ident = getattr(loop, "_thread_id", None) or 0
        if ident not in self._loops:
            self._loops[ident] = None
            self._loops[ident] = self._thread(ident)
        standing = self._loops[ident]
        if standing is not None:
            return standing  # the whole loop does
        waiter = getattr(task, "_fut_waiter", None)
        return None if waiter is None else self._future(waiter, task)

    def _future(self, future: Any, by: Any = None) -> list[Any] | None:
        """`by`: the task that waits for it, if it is known."""
        if future.done():
            return None  # whoever waits for it is about to go on
        if future in self._seen:
            return []
        self._seen.add(future)
        call = getattr(future, "request", None)
        if call is not None:
            return [call]
        if isinstance(future, asyncio.Task):
            return self._task(future)
        parts = getattr(future, "_children", None)
        if parts is not None:  # of `gather`
            return self._all(parts)
        found = self._chained([callback for callback, *_ in getattr(future, "_callbacks", None) or ()])
        return self._inner(by) if found is None and by is not None else found

    def _inner(self, task: Any) -> list[Any] | None:
        """Where a coroutine of asyncio's own waits by a future of its own, return what for."""
        inner = _chain(task.get_coro())
        if not inner:
            return None
        frame = inner[-1].cr_frame
        names = frame.f_locals
        if frame.f_code is _WAIT and names.get("timeout_handle") is None:
            return self._all(names.get("fs", ()))
        group = names.get("self")
        if frame.f_code.co_name == "__aexit__" and type(group).__name__ == "TaskGroup":
            return self._all(getattr(group, "_tasks", ()))
        return None

    def _all(self, futures: Iterable[Any]) -> list[Any] | None:
        """All of those that are not done have to be stuck: an error of one lets who gathers them go on."""
        found: list[Any] = []
        for future in futures:
            if future.done():
                continue
            calls = self._future(future)
            if calls is None:
                return None
            found += calls
        return found

    def _chained(self, callbacks: Iterable[Any]) -> list[Any] | None:
        """Of a future that another one stands behind, as callbacks that asyncio has put there tell."""
        for callback in callbacks:
            for cell in getattr(callback, "__closure__", None) or ():
                try:
                    inner = cell.cell_contents
                except ValueError:
                    continue
                if isinstance(inner, concurrent.futures.Future):
                    return self._handed(inner)
                if asyncio.isfuture(inner) and inner not in self._seen:
                    return self._future(inner)
        return None

    # -- where they are ----------------------------------------------------------------------------------------------------

    @staticmethod
    def innermost() -> dict[int, FrameType]:
        """Return the innermost frame of each thread but the calling one, by the thread's ident.

        The calling one's would have what is returned: a circle, which kept what all threads have in hand until a collection.
        """
        frames = sys._current_frames()
        del frames[threading.get_ident()]
        return frames

    @staticmethod
    def frames_of(frame: FrameType | None) -> list[FrameType]:
        """Return a stack, the innermost frame first."""
        found = []
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
        return found

    @staticmethod
    def frames_of_task(task: asyncio.Task[Any]) -> list[FrameType]:
        """Return the frames of a task's coroutines, the innermost first."""
        return [frame for coroutine in _chain(task.get_coro()) for frame in (coroutine.cr_frame,)][::-1]

    @staticmethod
    def place_in(frames: list[FrameType], is_own: Callable[[FrameType], bool]) -> str:
        """Return, as `file:line`, where code of a model's own is in a stack, else the innermost place; "" for no frames."""
        frame = next(filter(is_own, frames), frames[0] if frames else None)
        return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"

    # -- what may yet let go -------------------------------------------------------------------------------------------

    @staticmethod
    def ends_in_time(task: asyncio.Task[Any]) -> bool:
        """Whether `asyncio.timeout`, or something like it, may end a task's waiting.

        What a suspended coroutine is in the midst of (`async with`) lies on its stack: followed from there, through objects that
        keep others (an exit stack, a context manager made of a generator), and bounded. Who refers to a task is not asked: that
        looks at every object of the process, 50 ms for a million.
        """
        ways: deque[Any] = deque(_chain(task.get_coro()))
        seen = {id(one) for one in ways}
        while ways and len(seen) < _MOST_HELD:
            one = ways.popleft()
            if getattr(one, "_task", None) is task and hasattr(one, "reschedule"):
                if getattr(one, "_timeout_handler", None) is not None:  # None: it has expired, or was given no time
                    return True
                continue
            for held in gc.get_referents(one):
                if id(held) not in seen and not isinstance(held, _NEVER_HOLD) and _is_small(held):
                    seen.add(id(held))
                    ways.append(held)
        return False


#: How many objects that a task's coroutines keep are looked at, at most: some milliseconds.
_MOST_HELD = 2000

_NEVER_HOLD = (type, ModuleType, CodeType, FunctionType, BuiltinFunctionType, asyncio.Future, asyncio.AbstractEventLoop, str, int)


def _is_small(held: Any) -> bool:
    """Whether what an object keeps is looked at: not a container of data, nor the globals of a module."""
    return not isinstance(held, (list, tuple, dict, set, deque)) or (len(held) <= 100 and "__builtins__" not in held)


def _chain(coroutine: Any) -> list[Any]:
    """Return a coroutine and those that it awaits, each the next."""
    found = []
    while getattr(coroutine, "cr_frame", None) is not None:
        found.append(coroutine)
        coroutine = coroutine.cr_await
        if hasattr(coroutine, "gi_frame"):  # driven in a greenlet: it goes on there
            driver = getattr(getattr(coroutine, "gi_frame", None), "f_locals", {}).get("driver")
            inside = getattr(driver, "gr_frame", None)
            coroutine = None if inside is None else inside.f_locals.get("coroutine")
    return found

"""What the threads beside the test's own are doing: at work, waiting for the loop, idle, or nobody can tell.

Reads it off their innermost frames, under the interpreter lock. The law of the order: whoever is no longer at work has told the
loop before; so a look that finds nobody at work, followed by a look at an empty loop, means that nothing will come of threads.
"""

from __future__ import annotations

import concurrent.futures.thread
import selectors
import threading
import time
from collections.abc import Container, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from kernel.circles.wait_view import WaitView
from kernel.instances import BlockedCall, InstanceThread
from kernel.testing.frames import place_of, stack
from kernel.testing.loop import Elsewhere

__all__ = ["Threads", "where"]

_INSTANCE = InstanceThread._run.__code__
_WAITS = BlockedCall.wait.__code__
_POOL = concurrent.futures.thread._worker.__code__


class Threads:
    """The threads that were started after this was made, except the calling one."""

    def __init__(self) -> None:
        self._before = frozenset(threading.enumerate())

    def new(self) -> list[threading.Thread]:
        this = threading.current_thread()
        return [thread for thread in threading.enumerate() if thread not in self._before and thread is not this]

    def look(self, executing: Container[str], sender_awaited: bool) -> Elsewhere:
        """Say what may come of them.

        `executing`: names of the instances that execute. `sender_awaited`: a request can be answered only by code that is not
        executing it.
        """
        frames = WaitView.innermost()
        found = Elsewhere.NOTHING
        for thread in self.new():
            frame = frames.get(thread.ident or 0)
            if frame is None:
                state = Elsewhere.WORK if thread.is_alive() else Elsewhere.NOTHING  # it is just beginning, or has just ended
            elif thread.name in executing and frame.f_code is _INSTANCE:
                state = Elsewhere.WORK  # it has not begun, or its result is on the way
            else:
                state = _state(frame)
            if state is Elsewhere.PERHAPS and sender_awaited:
                state = Elsewhere.WORK
            found = max(found, state)
        return found

    def left(self, patience: float, also_fine: Sequence[threading.Thread] = ()) -> list[threading.Thread]:
        """Return those that are still there after `patience` real seconds."""
        end = time.monotonic() + patience
        for thread in self.new():
            if thread not in also_fine:
                thread.join(max(0.0, end - time.monotonic()))
        return [thread for thread in self.new() if thread not in also_fine]


def where(thread: threading.Thread, folders: Sequence[Path]) -> str:
    """Return where a thread stands, by preference the place in a model's own files."""
    frame = WaitView.innermost().get(thread.ident or 0)
    return place_of(stack(frame), folders) if frame is not None else "its end"


def _state(frame: FrameType) -> Elsewhere:
    code = frame.f_code
    if code is _INSTANCE:
        return Elsewhere.WORK if frame.f_locals["self"].inbox else Elsewhere.IDLE
    if code is _WAITS:
        return Elsewhere.NOTHING if frame.f_locals["self"]._token else Elsewhere.WORK
    if code is _POOL:
        queue = frame.f_locals.get("work_queue")
        return Elsewhere.IDLE if queue is None or queue.empty() else Elsewhere.WORK
    loop = _own_loop(frame)
    if loop is not None:
        return _state_of_loop(loop)
    return Elsewhere.WORK if any(one.f_code is _INSTANCE for one in stack(frame)) else Elsewhere.PERHAPS


def _own_loop(frame: FrameType) -> Any:
    """Return the asyncio loop in whose `select` the thread waits, None where it does something else."""
    if frame.f_code.co_filename != selectors.__file__:
        return None
    return next((one.f_locals.get("self") for one in stack(frame) if one.f_code.co_name == "_run_once"), None)


def _state_of_loop(loop: Any) -> Elsewhere:
    """A loop of an instance's own thread: its timers run on real time, and what is not due to them comes from our loop."""
    if getattr(loop, "_ready", None) or getattr(loop, "_scheduled", None):
        return Elsewhere.WORK
    selector = getattr(loop, "_selector", None)
    return Elsewhere.NOTHING if selector is not None and len(selector.get_map()) <= 1 else Elsewhere.PERHAPS

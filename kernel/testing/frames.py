"""Where code stands: from frames, coroutines, tasks and greenlets to a file, a line and a function that a person can look up."""

from __future__ import annotations

import asyncio
import linecache
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from greenlet import greenlet

__all__ = ["frames_of_coroutine", "frames_of_task", "place_of", "stack"]

DEPTH = 200


def stack(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    """Yield a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def frames_of_task(task: asyncio.Task[Any]) -> list[types.FrameType]:
    """Return the frames in which a task waits, innermost first; where it gathers others, theirs in front."""
    frames = frames_of_coroutine(task.get_coro())
    waiting = getattr(task, "_fut_waiter", None)
    children = [waiting] if isinstance(waiting, asyncio.Task) else getattr(waiting, "_children", ())
    for child in children:
        if isinstance(child, asyncio.Task) and not child.done():
            return [*frames_of_task(child), *frames]
    return frames


def frames_of_coroutine(coroutine: Any) -> list[types.FrameType]:
    """Return the frames of a suspended coroutine and of what it awaits, innermost first."""
    frames: list[types.FrameType] = []
    while coroutine is not None and len(frames) < DEPTH:
        frame = _frame(coroutine)
        if frame is not None:
            frames.insert(0, frame)
            for value in frame.f_locals.values():  # driven in a greenlet (plugins do so for synchronous calls)
                if isinstance(value, greenlet) and value.gr_frame is not None:
                    frames[:0] = [inner for one in stack(value.gr_frame) for inner in (_driven(one) or [one])]
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None) or _awaited(coroutine)
    return frames


def _frame(coroutine: Any) -> types.FrameType | None:
    for name in ("cr_frame", "gi_frame", "ag_frame"):
        frame = getattr(coroutine, name, None)
        if isinstance(frame, types.FrameType):
            return frame
    return None


def _awaited(coroutine: Any) -> Any:
    return getattr(coroutine, "ag_await", None)


def _driven(frame: types.FrameType) -> list[types.FrameType] | None:
    """Return the frames of the coroutine that a driving frame holds, None where it holds none."""
    inner = frame.f_locals.get("coroutine")
    return frames_of_coroutine(inner) if isinstance(inner, types.CoroutineType) and inner.cr_frame is not frame else None


def place_of(frames: Iterable[types.FrameType], folders: Sequence[Path]) -> str:
    """Return `<file>:<line> in <function>` of the innermost frame that lies in one of the folders, else of the innermost."""
    innermost = None
    for frame in frames:
        innermost = innermost or frame
        path = Path(frame.f_code.co_filename)
        if any(path.is_relative_to(folder) for folder in folders):
            return _place(frame)
    return _place(innermost) if innermost is not None else "an unknown place"


def _place(frame: types.FrameType) -> str:
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno).strip()
    text = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
    return f"{text}: {line}" if line else text

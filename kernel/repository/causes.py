"""What is behind a failed load, for people: the exceptions that led to it, each with its way through the model's code.

Reads exceptions, of this process or (ModelError) of another, and tells nothing twice: what the error's own words say already is
left out. Who is told, and when, is no business of this file.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path

from kernel.errors import ModelError

__all__ = ["cause_lines"]

#: How many exceptions of a chain, and how many frames of each, are told.
_EXCEPTIONS, _FRAMES = 10, 20


def cause_lines(error: BaseException, folder: Path) -> tuple[str, ...]:
    """Return lines on what `error` was caused by, the nearest cause first: `caused by <name>: <text>`, then its frames.

    `folder`: the model's; frames before the first one in it are the server's.
    """
    told = str(error)
    lines: list[str] = []
    for cause in _chain(error):
        words = _words(cause)
        if words in told:
            continue
        told += words
        first, *rest = words.splitlines() or [""]
        lines += [f"caused by {first}", *(f"  {line}" for line in rest if line.strip())]
        lines += [f"  {file}:{line} in {function}" for file, line, function in _frames(cause, folder)[:_FRAMES]]
    return tuple(lines)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    current: BaseException | None = error
    for _ in range(_EXCEPTIONS):
        assert current is not None
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        if current is None or id(current) in seen:
            return
        seen.add(id(current))
        yield current


def _words(error: BaseException) -> str:
    if isinstance(error, ModelError):
        return str(error)
    try:
        text = str(error)
    except Exception:  # a broken __str__ is no reason to lose the rest
        text = "<exception text not available>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _frames(error: BaseException, folder: Path) -> list[tuple[str, int, str]]:
    """Return the frames of the model and of what it called, innermost first."""
    if isinstance(error, ModelError):
        return [(file, line, function) for file, line, function, _ in error.frames]
    frames: list[tuple[str, int, str]] = []
    begun = False
    trace: types.TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        begun = begun or code.co_filename.startswith(f"{folder}/")
        if begun and not _between(trace.tb_frame):
            frames.append((code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return frames[::-1]


def _between(frame: types.FrameType) -> bool:
    """Whether a frame only stands between one module of a model and the next that it imports."""
    name = str(frame.f_globals.get("__name__", ""))
    return frame.f_code.co_filename.startswith("<frozen ") or name.startswith(("kernel.", "kernel_python."))

"""Where in a model's own files a mistake is, so that it can be told as `file:line:column` with the line itself.

Reads exceptions and, for the line, the file; what they mean and who is told is no business of this file.
"""

from __future__ import annotations

import linecache
import re
import types
from dataclasses import dataclass
from pathlib import Path

from kernel.config import ConfigError, ConfigErrors
from kernel.errors import ModelError

__all__ = ["SourcePlace", "place_at", "place_of"]

#: How an error tells its place that came as text only, from a process: `  <file>(<line>): <function>`.
_FRAME = re.compile(r"^  (?P<file>/.+)\((?P<line>\d+)\): ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """`line` and `column` count from 1, None where they are not known. `source`: the line, with a mark below the column."""

    file: str
    line: int | None = None
    column: int | None = None
    source: str = ""

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


def place_of(error: BaseException, folder: Path) -> SourcePlace | None:
    """Return the innermost place in `folder` that `error`, or what caused it, comes from; None where there is none."""
    root = f"{folder}/"
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, (ConfigError, ConfigErrors)):
            first = current.errors[0]
            return place_at(first.path, first.line, first.column) if first.path.startswith(root) else None
        if isinstance(current, SyntaxError) and current.filename and current.filename.startswith(root):
            return place_at(current.filename, current.lineno, current.offset)
        if isinstance(current, ModelError):
            found = _in_process(current, root)
        else:
            found = _in_traceback(current.__traceback__, root)
        if found is not None:
            return found
        current = current.__cause__ or current.__context__
    for match in _FRAME.finditer(str(error)):
        if match["file"].startswith(root):
            return place_at(match["file"], int(match["line"]), None)
    return None


def _in_process(error: ModelError, root: str) -> SourcePlace | None:
    if error.at is not None and error.at[0].startswith(root):
        return place_at(*error.at)
    for file, line, _, offset in error.frames:
        if file.startswith(root):
            return place_at(file, line, None if offset is None else _characters(file, line, offset) + 1)
    return None


def _in_traceback(trace: types.TracebackType | None, root: str) -> SourcePlace | None:
    found = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(root):
            positions = list(code.co_positions())
            column = positions[trace.tb_lasti // 2][2] if 0 <= trace.tb_lasti // 2 < len(positions) else None
            found = (code.co_filename, trace.tb_lineno, column)
        trace = trace.tb_next
    if found is None:
        return None
    file, line, offset = found
    return place_at(file, line, None if offset is None else _characters(file, line, offset) + 1)


def _characters(file: str, line: int, offset: int) -> int:
    """Return how many characters stand before byte `offset` of a line."""
    linecache.checkcache(file)
    return len(linecache.getline(file, line).encode()[:offset].decode(errors="replace"))


def place_at(file: str, line: int | None, column: int | None) -> SourcePlace:
    """Return a place with its line, where that can be read."""
    source = ""
    if line is not None:
        linecache.checkcache(file)
        text = linecache.getline(file, line).rstrip()
        if text:
            source = text.expandtabs(1)
            if column is not None and 0 < column <= len(source) + 1:
                source += "\n" + " " * (column - 1) + "^"
    return SourcePlace(file, line, column if column is None or column > 0 else None, source)

"""The standard descriptors of `kernel serve`: code of models, which shares the process, can't take them from the server.

A descriptor that is closed is the next connection's: what anybody prints would go to a client. So the log is written through a
descriptor of its own, `sys.stdout` and `sys.stderr` outlive their `close`, and what was closed is opened again.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import socket
import stat
import sys
from typing import BinaryIO, TextIO

__all__ = ["Streams"]

STANDARD = (0, 1, 2)

#: How long a connection that has the number of a standard descriptor is left to whoever serves it, once it has been ended.
LEAVING_SECONDS = 1.0


class _Lasting(io.TextIOWrapper):
    """A stream that goes on when it has been closed, and when nobody reads it any more."""

    def flush(self) -> None:
        """Write what has been put off. Python flushes at its end, and what it can't write then would be the exit status."""
        with contextlib.suppress(BrokenPipeError):
            super().flush()

    def close(self) -> None:
        """Write what has been put off, and stay open."""
        with contextlib.suppress(OSError, ValueError):
            self.flush()

    def detach(self) -> BinaryIO:
        """Give another buffer of the same file away, and keep this one."""
        self.flush()
        return open(self.fileno(), "wb", closefd=False)


class Streams:
    """`log`: writes where stderr wrote when this was made, None where that was nowhere."""

    def __init__(self) -> None:
        self._kept = [_duplicate(descriptor, len(STANDARD)) for descriptor in STANDARD]
        self.log: TextIO | None = None
        self._strangers: dict[int, tuple[int, float]] = {}  # by number: the connection that has it, and since when that is known
        if self._kept[2] >= 0 and _descriptor_of(sys.stderr) == 2:
            self.log = _lasting(self._kept[2], "utf-8")
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name)
            if _descriptor_of(stream) == descriptor:
                setattr(sys, name, _lasting(descriptor, stream.encoding))

    def restore(self, now: float) -> list[int]:
        """Open again what has been closed; return which these were.

        A connection that has got such a number meanwhile is ended. Its number is taken a moment later: libuv closes no socket
        that has it.
        """
        return [one for one in STANDARD if self._kept[one] >= 0 and not self._is_ours(one, now) and self._open(one)]

    def _is_ours(self, number: int, now: float) -> bool:
        """Whether a number need not be opened again: it never was closed, or a stranger is on his way out."""
        try:
            there, kept = os.fstat(number), os.fstat(self._kept[number])
        except OSError:
            return False
        if not stat.S_ISSOCK(there.st_mode) or os.path.samestat(there, kept):
            return True
        stranger, since = self._strangers.get(number, (0, 0.0))
        if stranger != there.st_ino:
            self._strangers[number] = there.st_ino, now
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.shutdown(socket.SHUT_RDWR)  # its owner sees the end of a connection, and closes it
        elif now - since > LEAVING_SECONDS:
            del self._strangers[number]
            os.dup2(self._kept[number], number)
        return True

    def _open(self, number: int) -> bool:
        got = _duplicate(self._kept[number], number, inheritable=True)
        if got != number and got >= 0:  # somebody was quicker
            os.close(got)
        return got == number


def _lasting(descriptor: int, encoding: str) -> TextIO:
    return _Lasting(open(descriptor, "wb", closefd=False), encoding, "backslashreplace", line_buffering=True)


def _duplicate(descriptor: int, least: int, inheritable: bool = False) -> int:
    """Return a second descriptor, the lowest free one that is at least `least`; -1 where there is nothing, or no room."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD if inheritable else fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:
        return -1


def _descriptor_of(stream: TextIO | None) -> int:
    """Return the descriptor that a stream writes to, -1 for none."""
    try:
        return -1 if stream is None else stream.fileno()
    except (OSError, ValueError):
        return -1

"""Whether a child is still there: when one that gives no sign of life is given up. No clock: who looks, looks regularly.

A child notes a beat from a thread of its own, however long its model's code executes; where that code keeps the interpreter to
itself (a long call into C), the work that the system counts for the process is a sign of life, too. What is counted are looks,
not seconds: a server that was suspended itself, with its children, takes none of them for dead.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["LOOKS", "Pulse", "work_of"]

LOOKS = 4  # in a row without a sign, after which a child is given up

STOPPED = ("T", "t")  # states of a process that was stopped, by a signal or by a debugger


class Pulse:
    """What was seen of one child."""

    def __init__(self) -> None:
        self._beats = 0
        self._work: int | None = None
        self._silent = 0

    def has_stopped(self, beats: int, work: int | None) -> bool:
        """Whether the child is given up. `beats`, `work`: as they are now; None: it isn't known what it has worked."""
        if beats != self._beats or work != self._work:
            self._beats, self._work, self._silent = beats, work, 0
            return False
        self._silent += 1
        return self._silent >= LOOKS


def work_of(pid: int) -> tuple[str, int | None]:
    """Return what a process is found doing, in words, and how many ticks it has worked; ("", None) where that isn't told."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "was stopped" if fields[0] in STOPPED else "hangs", int(fields[11]) + int(fields[12])
    return "", None

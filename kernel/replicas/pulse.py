"""When a replica that gives no sign of life is given up. Pure: looks in, a verdict out.

What is counted are looks, not seconds: a supervisor that was suspended itself takes nobody for dead. A sign comes from the
replica's loop, as one whose loop is held serves nobody; while it loads, which may hold the loop for as long as models need, it is
given up only where the system says that it was stopped.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["LOOKS", "Pulse", "is_stopped"]

#: In a row without a sign, after which a process is given up.
LOOKS = 4

_STOPPED = ("T", "t")  # states of a process that was stopped, by a signal or by a debugger


class Pulse:
    """What was heard of one process."""

    def __init__(self) -> None:
        self._silent = 0

    def heard(self) -> None:
        """It has given a sign of life."""
        self._silent = 0

    def is_given_up(self, excused: bool = False) -> bool:
        """Look; return whether it has been silent for too long. `excused`: nothing has to be heard of it now."""
        self._silent = 0 if excused else self._silent + 1
        return self._silent > LOOKS


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by SIGSTOP or by a debugger; False where the system doesn't tell."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in _STOPPED
    return False

"""Whose the standard output is: the command's alone, while models run. What they print goes to the standard error.

Also what C code and child processes write: they know the descriptor, not Python's stream.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

__all__ = ["own_stdout"]


@contextlib.contextmanager
def own_stdout() -> Iterator[TextIO]:
    """Give the standard output out; what anybody else in this process, or one that it starts, writes there goes to stderr."""
    before = sys.stdout
    before.flush()
    with contextlib.ExitStack() as stack:
        mine = before
        try:
            kept = os.dup(1)
            stack.callback(os.close, kept)
            if before.fileno() == 1:
                mine = stack.enter_context(
                    open(os.dup(kept), "w", encoding=before.encoding, errors=before.errors, newline="\n")
                )
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        except (OSError, ValueError):  # there is no such descriptor: then nobody can write to it
            pass
        stack.callback(setattr, sys, "stdout", before)
        sys.stdout = sys.stderr
        try:
            yield mine
        finally:
            sys.stdout.flush()
            mine.flush()

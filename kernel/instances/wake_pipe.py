"""Wakes one thread, or a loop, by a byte in a pipe.

Why not a lock: whoever is woken by a pipe is put next to who wakes it, on the same core where that is about to have nothing to
do, and finds its data in that core's cache; a lock (a futex) and an eventfd wake it on another core, which may be asleep. For
a request that comes alone that is a third of its way through the server (docs/internals/instances.md).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial

from kernel.forking import end, guard, put_away

__all__ = ["WakePipe"]


class WakePipe:
    """One reader, which sleeps in `wait` or has its loop look at `fileno()`, and any number of threads that `wake` it.

    `wake()`: by any thread. Raises OSError where the pipe is full, so that the reader is awake soon, and where it is closed.
    `wait()`: returns after a `wake`, when nobody is left who could wake, and now and then for no reason.
    `close()`: the reader's end. `put_away()`: the writer's, where only one thread wakes; where several do, it is closed when none
    of them has the object any more, and not before: the number of its file may soon mean another one.
    `wait_otherwise()`, `wake_anyway()`: as these, where the pipe is gone: code of a model has closed what is not its own.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self.wake = partial(os.write, self._write, b"\0")  # no function of ours: it is called once for each hop
        self.wait: Callable[[], bytes] = partial(os.read, self._read, 64)
        self.close = weakref.finalize(self, os.close, self._read)
        self.put_away = weakref.finalize(self, os.close, self._write)
        self.close.atexit = self.put_away.atexit = False
        self._other_way: threading.Event | None = None
        guard(self)

    def wait_otherwise(self) -> None:
        """Where `wait` has raised or read nothing: return after a `wake_anyway`, and now and then for no reason."""
        if self._other_way is None:
            self.wait = bytes  # reads nothing: the file's number may soon mean another one
            self._other_way = threading.Event()
            return  # whoever found no event to set a moment ago has left something to do: the reader looks before it waits
        self._other_way.wait()
        self._other_way.clear()

    def wake_anyway(self) -> None:
        """Where `wake` has raised: wake who waits. Raises OSError where that is not to be had."""
        other_way = self._other_way
        if other_way is not None:
            other_way.set()
            return
        # It sleeps in the pipe, whose other end is gone: the file itself is there, as it is being read.
        again = os.open(f"/proc/self/fd/{self._read}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(again, b"\0")
        except BlockingIOError:
            pass  # the pipe is full, so its reader is about to wake anyway
        finally:
            os.close(again)

    def fileno(self) -> int:
        return self._read

    def forked(self) -> None:
        """In a child, whose reading would take what wakes the server, and whose writing would wake it."""
        put_away(self._read if self.close.alive else -1, self._write if self.put_away.alive else -1)
        self.wait = end  # type: ignore[assignment]  # a thread that goes to sleep here is at its end

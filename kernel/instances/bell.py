"""Wakes one thread, or a loop, by a byte in a pipe.

Why not a lock: whoever is woken by a pipe is put next to who wakes it, on the same core where that is about to have nothing to
do, and finds its data in that core's cache; a lock (a futex) and an eventfd wake it on another core, which may be asleep. For
a request that comes alone that is a third of its way through the server (docs/internals/instances.md).
"""

from __future__ import annotations

import os
import weakref
from functools import partial

from kernel.instances.forking import end, guard, put_away

__all__ = ["Bell"]


class Bell:
    """`ring()` may be called by any thread, also when nobody hears it any more: OSError then, or where it rings already.

    `wait()` returns once it rings, or nobody can ring any more; now and then it does without having been rung. `fileno()` can
    be read when it rings. `close()` by who listens: no more of that. `put_away()` by who alone rings: no more of that; where
    several do, that comes by itself when none of them has the bell any more, and not before: the number of its file may soon
    mean another one.
    """

    def __init__(self) -> None:
        self._ear, self._hammer = _, hammer = os.pipe()
        os.set_blocking(hammer, False)
        self.ring = partial(os.write, hammer, b"\0")  # no function of ours: it is called once for each hop
        self.wait = partial(os.read, self._ear, 64)
        self.close = weakref.finalize(self, os.close, self._ear)
        self.put_away = weakref.finalize(self, os.close, hammer)
        self.close.atexit = self.put_away.atexit = False
        guard(self)

    def fileno(self) -> int:
        return self._ear

    def forked(self) -> None:
        """In a child, whose reading would take what wakes the server, and whose ringing would wake it."""
        put_away(self._ear if self.close.alive else -1, self._hammer if self.put_away.alive else -1)
        self.wait = end  # type: ignore[assignment]  # whoever comes here to sleep is at an end

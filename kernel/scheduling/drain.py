"""The end of a scheduler: who waits until nothing is left of what it has accepted, and how they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Drain"]


class Drain:
    """Asks `is_idle` whether nothing is left. `closed`: nothing is accepted at all, and nobody waits for what still runs."""

    __slots__ = ("_is_idle", "_loop", "_over", "closed")

    def __init__(self, loop: asyncio.AbstractEventLoop, is_idle: Callable[[], bool]) -> None:
        self._loop = loop
        self._is_idle = is_idle
        self._over: asyncio.Future[None] | None = None  # where somebody waits
        self.closed = False

    async def wait(self) -> None:
        """Return when nothing is left, or after `close`."""
        while not (self.closed or self._is_idle()):
            if self._over is None or self._over.done():
                self._over = self._loop.create_future()
            await asyncio.shield(self._over)  # others may wait for it, too

    def look(self) -> None:
        """The last of what was accepted may be over."""
        if self._over is not None and not self._over.done() and self._is_idle():
            self._over.set_result(None)

    def close(self) -> None:
        """Wait for nothing any more: all have their answers, and what still runs will be left."""
        self.closed = True
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

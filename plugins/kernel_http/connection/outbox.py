"""When answers are written: the first of a turn of the loop at once, the others of that turn together at its end.

A write wakes the client, on another core, and on many machines that costs more than the answer took to make. Clients whose
answers come in one burst are woken while the first is still waking; one that is alone does not wait for anybody. The order of
writes is kept, so it is the order on each connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

__all__ = ["Outbox"]

log = logging.getLogger(__name__)

#: Writes that may wait for the end of the turn.
LIMIT = 64


class Outbox:
    """The writes of all connections of one front end. On the loop. `full`: called with their number where they are many."""

    __slots__ = ("_full", "_in_turn", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, full: Callable[[int], None]) -> None:
        self._loop = loop
        self._full = full
        self._in_turn = False
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []

    def write(self, write: Callable[[Any], None], payload: Any) -> None:
        """Call `write(payload)`, now or before this turn of the loop is over."""
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._end_turn)
            write(payload)
            return
        self._waiting.append((write, payload))
        if len(self._waiting) >= LIMIT:
            self.flush()
            self._full(LIMIT)

    def flush(self) -> None:
        """Make the writes that wait."""
        waiting = self._waiting
        if waiting:
            self._waiting = []
            for write, payload in waiting:
                try:
                    write(payload)
                except Exception as error:  # its client has gone meanwhile; the others' answers go out
                    log.debug("an answer could not be written: %s", error)

    def _end_turn(self) -> None:
        self._in_turn = False
        self.flush()

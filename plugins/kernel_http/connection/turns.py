"""Who may go on in this turn of the loop: no connection works on what it was sent for longer than others can wait.

Work is counted in units of about ten microseconds, where it is done anyway: when a head is learned, lines of chunks have been
read, or an outbox is full. Who has used up a quantum waits behind those who wait already; each turn serves some of them, and
then the loop looks what else there is. As long as nobody sends that much, nothing of this is ever called.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["AHEAD", "MAX_PIPELINED", "QUANTUM", "Turns"]

#: The most requests of one connection that may be in flight; further ones wait in the socket.
MAX_PIPELINED = 64

#: As many may be in flight in any case; more, where as many wait for their model as are of use.
FEW = 4

#: What the answers of one connection that are in flight should come to at most, where answers are large; bytes.
AHEAD = 64 * 1024 * 1024

#: How much a connection may do at a stretch, and how much all that have waited may do in a turn.
QUANTUM = 64
TURN = 256


class Waiting(Protocol):
    """A connection that has bytes which it may not use yet."""

    def go_on(self) -> None: ...


class Turns:
    """The connections of one front end that wait for their turn. `most`: how many requests a connection may have in flight;
    `pipelined`: how many without a look whether that is of use, none while it is not its turn. `units`: what has been done since
    somebody's turn began.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.most = MAX_PIPELINED
        self.pipelined = FEW
        self.full = False  # nobody begins anything but what is small, and that after a look (server.py)
        self._loop = loop
        self.units = 0
        self._waiting: dict[Waiting, None] = {}  # in their order
        self._scheduled = False

    def spend(self, units: int) -> None:
        """So much has been done. Whoever did it stops soon, if that was too much, as `pipelined` tells it."""
        self.units += units
        if self.units >= QUANTUM:
            self.pipelined = 0
            self._schedule()

    def wait(self, connection: Waiting, *, always: bool = False) -> None:
        """Have a connection go on when it is its turn; unless `always`, only where that is what it is held up by."""
        if always or not self.pipelined:
            self._waiting[connection] = None
            self._schedule()

    def large(self, size: int) -> None:
        """An answer was large, `size` bytes. As long as such come, a connection has no more of them in flight than AHEAD."""
        self.most = max(1, min(self.most, AHEAD // size))
        self.pipelined = min(self.pipelined, self.most)

    def ease(self) -> None:
        """Time has passed: let connections have twice as many requests in flight as now, if that is less than ever."""
        if self.most < MAX_PIPELINED:
            self.most = min(MAX_PIPELINED, 2 * self.most)
            self.pipelined = self.pipelined and min(self.most, FEW)

    def fill(self, full: bool) -> None:
        """Have every connection wait for its turn, and look then; or, where it is not `full` any more, go on as ever."""
        self.full = full
        self.pipelined = 0
        self._schedule()

    def forget(self, connection: Waiting) -> None:
        """The connection has come to its end."""
        self._waiting.pop(connection, None)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(0, self._serve)  # when the loop has looked what else there is

    def _serve(self) -> None:
        """Serve some of those that wait, each until it has used up its quantum or what it was sent."""
        self._scheduled = False
        done = 0
        waiting = self._waiting
        for _ in range(len(waiting)):  # none of them twice
            if done >= TURN or not waiting:
                break
            connection = next(iter(waiting))
            del waiting[connection]
            self.units = 0
            self.pipelined = min(self.most, FEW)
            connection.go_on()
            done += self.units + 1
        self.units = 0
        self.pipelined = 0 if waiting or self.full else min(self.most, FEW)
        if waiting:
            self._schedule()

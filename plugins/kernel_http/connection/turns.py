"""Who may go on in this turn of the loop: no connection works on what it was sent for longer than others can wait.

Work is counted in units of about ten microseconds, where it is done anyway: when a head is learned, lines of chunks have been
read, or an outbox is full. Who has used up a quantum waits behind those who wait already; each turn serves some of them, and
then the loop looks what else there is. As long as nobody sends that much, nothing of this is ever called.

Bytes of bodies are counted apart: to receive them is all that they cost, and who asks for little does not wait behind them.
Where so many ask for little in a turn that this alone takes long, the last of them wait for the next one, and are first there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kernel import ANSWER_BYTES_AHEAD

__all__ = ["LITTLE", "MAX_PIPELINED", "PORTION", "QUANTUM", "TURNS_BYTES", "TURNS_SECONDS", "Receiving",
           "Turns"]  # fmt: skip

#: The most requests of one connection that may be in flight; further ones wait in the socket.
MAX_PIPELINED = 64

#: As many may be in flight in any case; more, where as many wait for their model as are of use.
FEW = 4

#: How much a connection may do at a stretch, and how much all that have waited may do in a turn.
QUANTUM = 64
TURN = 256

#: Reads of so many bytes in a turn are not looked at. Where there are more, the rest of it is timed: what comes later than
#: MOST_SECONDS, in seconds, waits. And for how long those go on in a turn who have waited; half of it is for reads below SMALL.
FREE_BYTES = 8 * 1024
MOST_SECONDS = 0.008
SERVING_SECONDS = 0.004
SMALL = 1024

#: How many bytes of long bodies all connections together receive in a turn, in reads of how many, and for how long at most, in
#: seconds: a page that is new may cost as much as a thousand others. Where that is used up, a read takes LITTLE, and its
#: connection waits.
TURNS_BYTES = 4 * 1024 * 1024
TURNS_SECONDS = 0.006
PORTION = 1024 * 1024 + 64 * 1024  # of a tensor of a megabyte all
LITTLE = 16 * 1024

#: How many of those that wait to receive more read on in a turn.
READERS = 2


class Waiting(Protocol):
    """A connection that has bytes which it may not use yet."""

    def go_on(self) -> None: ...


class Reader(Protocol):
    """A connection that reads more than others can wait for."""

    def read_on(self) -> None:
        """Read on, after a turn for what others are sent."""


class Turns:
    """The connections of one front end that wait for their turn. `most`: how many requests a connection may have in flight;
    `pipelined`: how many without a look whether that is of use, none while it is not its turn. `units`: what has been done since
    somebody's turn began.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        """`clock`: goes on within a turn."""
        self.most = MAX_PIPELINED
        self.pipelined = FEW
        self.full = False  # nobody begins anything but what is small, and that after a look (server.py)
        self._loop = loop
        self.units = 0
        self._line = Line(clock)
        self._scheduled = False

    def spend(self, units: int) -> None:
        """So much has been done. Whoever did it stops soon, if that was too much, as `pipelined` tells it."""
        self.units += units
        if self.units >= QUANTUM:
            self.pipelined = 0
            self._schedule()

    def put_off(self, connection: Waiting, size: int) -> None:
        """Have a connection go on in a further turn, as a read, of `size` bytes, was late."""
        (self._line.small if size < SMALL else self._line.others)[connection] = None
        self._schedule()

    def wait(self, connection: Waiting, *, always: bool = False) -> None:
        """Have a connection go on when it is its turn; unless `always`, only where that is what it is held up by."""
        if always or not self.pipelined:
            self._line.others[connection] = None
            self._schedule()

    def large(self, size: int) -> None:
        """An answer was large, `size` bytes. As long as such come, a connection has ANSWER_BYTES_AHEAD in flight at most."""
        self.most = max(1, min(self.most, ANSWER_BYTES_AHEAD // size))
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
        self._line.others.pop(connection, None)
        self._line.small.pop(connection, None)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_later(0, self._serve)  # when the loop has looked what else there is

    def _serve(self) -> None:
        """Serve some of those that wait, each until it has used up its quantum or what it was sent; first those with little."""
        self._scheduled = False
        done = 0
        line, began = self._line, self._line.clock()
        small, waiting = line.small, line.others
        for _ in range(len(small)):
            if not small or line.clock() - began >= SERVING_SECONDS / 2:
                break
            self._next_of(small)
        for _ in range(len(waiting)):  # none of them twice
            if done >= TURN or not waiting or (done and line.clock() - began >= SERVING_SECONDS):
                break
            self._next_of(waiting)
            done += self.units + 1
        self.units = 0
        self.pipelined = 0 if waiting or self.full else min(self.most, FEW)
        if waiting or small:
            self._schedule()

    def _next_of(self, waiting: dict[Waiting, None]) -> None:
        connection = next(iter(waiting))
        del waiting[connection]
        self.units = 0
        self.pipelined = min(self.most, FEW)
        connection.go_on()


class Line:
    """Who waits for a turn, in their order: `small`, with a read of little, and `others`. `clock`: goes on within a turn."""

    __slots__ = ("clock", "others", "small")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.small: dict[Waiting, None] = {}
        self.others: dict[Waiting, None] = {}


class Receiving:
    """What is received in a turn of the loop, by all connections of one front end. `portion`: how much of a body one read takes.
    `free`: reads of how many bytes need not be looked at, or less than none.

    `clock`: goes on within a turn.
    """

    __slots__ = ("_began", "_clock", "_loop", "_received", "_since", "_timed", "_waiting", "free", "portion")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.portion = PORTION
        self.free = FREE_BYTES
        self._timed = False  # this turn is
        self._began = 0.0  # when it began to be
        self._loop = loop
        self._clock = clock
        self._received = 0  # bytes in this turn, where reads were large
        self._since = 0.0  # when the first of them came
        self._waiting: dict[Reader, None] = {}  # who reads nothing until it is its turn, in their order

    def is_late(self) -> bool:
        """Whether what was read has to wait, as too much was done in this turn. Asked where no read is `free`."""
        now = self._clock()
        if not self._timed:
            self._timed = True
            self._began = now
            self._loop.call_soon(self._end_turn)
        return now - self._began >= MOST_SECONDS

    def _end_turn(self) -> None:
        self._timed = False
        self.free = FREE_BYTES

    def received(self, reader: Reader, size: int) -> bool:
        """A read has brought `size` bytes, LITTLE or more. False: the reader reads no more until it is its turn."""
        if not self._received:
            self._since = self._clock()
            self._loop.call_later(0, self._next_turn)
        self._received += size
        if self._received < TURNS_BYTES and self._clock() - self._since < TURNS_SECONDS:
            return True
        self.portion = LITTLE
        self._waiting[reader] = None
        return False

    def forget(self, reader: Reader) -> None:
        """The reader's connection has come to its end."""
        self._waiting.pop(reader, None)

    def _next_turn(self) -> None:
        """Let some of those that wait read on."""
        self._received = 0
        self.portion = PORTION
        waiting = self._waiting
        for _ in range(min(len(waiting), READERS)):
            reader = next(iter(waiting))
            del waiting[reader]
            reader.read_on()
        if waiting:
            self._received = 1  # so that nobody else calls for the next turn
            self._since = self._clock()
            self._loop.call_later(0, self._next_turn)

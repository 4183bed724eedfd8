"""How much is done in one turn of the loop, for all connections of a front end together; the rest waits for further turns.

The law: nobody waits behind what others were sent but for some milliseconds, however many they are. Who asks for little is not
made to wait but where so many ask for little that it takes long, and is first then; what he asks for is not counted, only that
somebody asks: on the way of a small call nothing of this is called.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

__all__ = ["BYTES", "FEW_FRAMES", "FRAME_UNITS", "FREE_READS", "LITTLE", "MOST_SECONDS", "NOTED", "READ_SIZE", "TURN", "TURNS",
           "TURNS_SECONDS", "Patient", "Turns"]  # fmt: skip

#: What one read takes at most where it does not go into a message directly.
READ_SIZE = 256 * 1024

#: How many of those that wait for a further turn of the loop get one at a time. Each does a millisecond's work or two, so the
#: loop is held for a few however many there are.
TURNS = 4

#: What may be done for all connections together in a turn of the loop, in units of about ten microseconds, where reads are of
#: NOTED bytes or more, or of more than FEW_FRAMES. What a read costs: a unit for BYTES of it, FRAME_UNITS for a frame: half of
#: what a small call takes. Where that is used up, a read takes no more than LITTLE. Who has sent so much waits: who asks for
#: less is served all the same.
TURN = 256
NOTED = 4096
FEW_FRAMES = 16
LITTLE = 1024
BYTES = 8192
FRAME_UNITS = 4

#: For how long all of it may take, in seconds: a page of memory that is new may cost as much as a thousand others.
TURNS_SECONDS = 0.004

#: So many reads that bring little are not looked at. Where there are more before somebody calls for another turn, the rest of
#: this one is timed: what comes later than MOST_SECONDS, in seconds, waits however little it is, and is looked at first then.
FREE_READS = 32
MOST_SECONDS = 0.008

#: The most that is received straight into a message at once.
PORTION = 1024 * 1024 + 64 * 1024  # of a tensor of a megabyte all


class Patient(Protocol):
    """Who has more to do than is done for one client in one turn of the loop."""

    def go_on(self) -> None:
        """Do some more of it; what is still left waits for a further turn."""


class Turns:
    """`view`: what connections read into, all of them into the same; what is in it is used or copied before the next read.
    `portion`: how much is received straight into a message at once. Both are small where this turn's work is done. `free`: how
    many reads of little need not be looked at.
    """

    __slots__ = ("_buffer", "_called", "_clock", "_first", "_loop", "_patient", "_since", "_spent", "free", "portion", "view")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        """`clock`: goes on within a turn."""
        self._loop = loop
        self._clock = clock
        self._since = 0.0  # when this turn was looked at first
        self._buffer = self.view = memoryview(bytearray(READ_SIZE))
        self.portion = PORTION
        self.free = FREE_READS
        self._spent = 0  # units in this turn
        self._called = False  # the next turn is called for
        self._first: deque[Patient] = deque()  # who asks for little
        self._patient: deque[Patient] = deque()

    @property
    def roomy(self) -> bool:
        """Whether more may be done in this turn."""
        return self._spent < TURN

    def spend(self, units: int) -> bool:
        """So much has been done in this turn. False: that is enough, and who did it waits for another."""
        self._call()
        self._spent += units + 1
        if self._clock() - self._since >= TURNS_SECONDS:
            self._spent = max(self._spent, TURN)
        if self._spent >= TURN:
            self.view = self._buffer[:LITTLE]
            self.portion = LITTLE
            self.free = 0
        return self._spent < TURN

    def is_over(self, size: int) -> bool:
        """Whether what a read has brought, `size` bytes, has to wait: this turn's work is done, and it is not little, or late."""
        if self.free:
            return False
        self._call()
        return (size >= LITTLE and self._spent >= TURN) or self._clock() - self._since >= MOST_SECONDS

    def put_off(self, patient: Patient, *, first: bool = False) -> None:
        """Have `patient` go on in a further turn of the loop; each in turn, and a few at a time. `first`: it is little."""
        (self._first if first else self._patient).append(patient)
        self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._since = self._clock()
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Let some go on of those that wait."""
        self._called = False
        self._spent = 0
        self.view = self._buffer
        self.portion = PORTION
        self.free = FREE_READS
        if len(self._patient) > TURNS or self._first:
            self._call()
        began = self._clock()
        for _ in range(len(self._first)):
            if self._clock() - began >= TURNS_SECONDS / 2:
                break  # as much is left for those who have waited before
            self._first.popleft().go_on()
        for number in range(min(TURNS, len(self._patient))):
            if number and self._spent >= TURN:
                break  # who has spent it has called for another turn
            self._patient.popleft().go_on()

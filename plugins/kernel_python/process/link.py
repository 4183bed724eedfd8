"""The server's end of the socket to one child, on the kernel's loop.

What is to be sent goes at once when it is the first of a turn of the loop, and else in pieces, the last at its end. An
execution that the child need not begin at once has a ticket in a pipe that both sides may read (child/executions.py); it is put
there before the execution is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from kernel_python.process.wire import MOST, Frames

__all__ = ["Link"]

TICKET = struct.Struct("<I")
PIECE = 6  # messages that go before the turn is over: the child has work while we write the next ones


class Link:
    """`receive(message)` is called for each message, `ended(problem)` once when no more will come. Everything on the loop.

    `problem`: what came that is no message, or why nothing can come, else "". `most`: bytes of a message that is taken.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        tickets: tuple[int, int],
        receive: Callable[[tuple[Any, ...]], None],
        ended: Callable[[str], None],
        most: int = MOST,
    ) -> None:
        self._loop = loop
        self._socket: socket.socket | None = end
        self._tickets = tickets
        self._receive = receive
        self._ended = ended
        self._frames = Frames(most)
        self._broken = False  # where the next message begins can't be told any more
        self._turn = False  # something has been sent in this turn of the loop
        self._put_off: list[tuple[int, bytes]] = []  # (execution or 0, message)
        self._unsent: memoryview | None = None  # what the socket had no room for
        end.setblocking(False)
        loop.add_reader(end.fileno(), self.read)

    # -- out -----------------------------------------------------------------------------------------------------------

    def send(self, message: bytes, ticket: int = 0) -> None:
        """Send a message, now or before this turn ends. `ticket`: the number of an execution that may be taken back."""
        if self._turn or self._unsent is not None:
            self._put_off.append((ticket, message))
            if len(self._put_off) >= PIECE and self._unsent is None:
                self._send_rest()
            return
        if self._socket is None:
            return
        self._turn = True
        self._loop.call_soon(self._end_of_turn)
        if ticket:
            self._put_down(TICKET.pack(ticket & 0xFFFFFFFF))
        self._write(message)

    def _end_of_turn(self) -> None:
        self._turn = False
        if self._put_off and self._unsent is None:
            self._send_rest()

    def _send_rest(self) -> None:
        if self._socket is None:
            return
        put_off, self._put_off = self._put_off, []
        tickets = [ticket & 0xFFFFFFFF for ticket, _ in put_off if ticket]
        if tickets:
            self._put_down(struct.pack(f"<{len(tickets)}I", *tickets))
        self._write(put_off[0][1] if len(put_off) == 1 else b"".join([message for _, message in put_off]))

    def _put_down(self, tickets: bytes) -> None:
        """Nothing waits here: who is given a ticket has begun to read, so a pipe without room for more is not read at all."""
        try:
            written = os.write(self._tickets[1], tickets)
        except BlockingIOError:
            written = 0
        except OSError as error:
            self._lost(f"the server's end of its channel is gone: {error}")
            return
        if written < len(tickets):
            self._lost(f"the pipe of its tickets is full: it reads none of the {len(tickets) // TICKET.size} that were to come")

    def _lost(self, problem: str) -> None:
        """Something is wrong that no reader is told. `ended` is called when whoever sends is through with it."""
        if not self._broken:
            self._broken = True
            self._loop.call_soon(self._say_lost, problem)

    def _say_lost(self, problem: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_reader(self._socket.fileno())
            self._ended(problem)

    def _write(self, data: bytes | memoryview) -> bool:
        """Send as much as the socket has room for; True when that was all."""
        assert self._socket is not None
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except ConnectionError:  # the child has ended, which the reader, or who waits for its process, will notice
            sent = len(data)
        except OSError as error:
            self._lost(f"the server's end of its channel is gone: {error}")
            sent = len(data)
        if sent < len(data):
            if self._unsent is None:
                self._loop.add_writer(self._socket.fileno(), self._write_on)
            self._unsent = memoryview(data)[sent:]
            return False
        if self._unsent is not None:
            self._unsent = None
            self._loop.remove_writer(self._socket.fileno())
        return True

    def _write_on(self) -> None:
        assert self._unsent is not None
        if self._write(self._unsent) and self._put_off:
            self._send_rest()

    def take_back(self) -> set[int]:
        """Return the numbers of the executions that were sent, or were to be, with a ticket that the child has not read."""
        taken = {ticket for ticket, _ in self._put_off if ticket}
        self._put_off = [(ticket, message) for ticket, message in self._put_off if not ticket]
        try:
            data = os.read(self._tickets[0], 65536)
        except OSError:  # none is left
            return taken
        return taken.union(number for (number,) in TICKET.iter_unpack(data))

    # -- in ------------------------------------------------------------------------------------------------------------

    def read(self) -> bool:
        """Read once what the child has sent; False when there was nothing."""
        if self._socket is None or self._broken:
            return False
        try:
            count = self._socket.recv_into(self._frames.space())
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            count = 0
        messages, problem = None, ""
        try:
            messages = self._frames.came(count) if count else None
        except (ValueError, EOFError, TypeError, MemoryError) as error:  # something else has written into the child's socket
            problem = f"{type(error).__name__}: {error}"
            self._broken = True
        if messages is None:
            self._loop.remove_reader(self._socket.fileno())
            self._ended(problem)
            return False
        for message in messages:
            self._receive(message)
        return True

    def close(self) -> None:
        """Read and send nothing more."""
        end, self._socket = self._socket, None
        if end is None:
            return
        self._loop.remove_reader(end.fileno())
        if self._unsent is not None:
            self._loop.remove_writer(end.fileno())
        self._receive, self._ended = _nothing, _nothing  # who has set them may go, though the loop still holds this object
        end.close()
        for descriptor in self._tickets:
            os.close(descriptor)


def _nothing(*_: object) -> None:
    """What a closed link does."""

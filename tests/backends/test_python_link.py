"""The server's end of the socket to a child: what goes at once, what in pieces, and what is taken back."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_python.process.link import PIECE, Link
from kernel_python.process.wire import frame, messages_in


class Turns:
    """A loop of which only the ends of turns matter."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self.soon.append(partial(callback, *args))

    def add_reader(self, *_: Any) -> None:
        """Nobody writes to the server here."""

    remove_reader = add_reader

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


@pytest.fixture
def ends() -> Any:
    here, there = socket.socketpair()
    there.setblocking(False)
    tickets = os.pipe()
    os.set_blocking(tickets[0], False)
    loop = Turns()
    link = Link(loop, here, tickets, lambda message: None, lambda: None)  # type: ignore[arg-type]
    yield loop, link, there
    link.close()
    there.close()


def arrived(there: socket.socket) -> list[int]:
    """Return the numbers of the messages that have come to the child since the last look."""
    try:
        return [number for (number,) in messages_in(there.recv(1 << 20))]
    except BlockingIOError:
        return []


def test_the_first_message_of_a_turn_goes_at_once_the_next_ones_in_pieces(ends: Any) -> None:
    loop, link, there = ends
    came = []
    for number in range(1, PIECE + 4):
        link.send(frame((number,)), number)
        came.append(arrived(there))
    assert came == [[1], *[[]] * (PIECE - 1), [*range(2, PIECE + 2)], [], []]
    loop.turn()
    assert arrived(there) == [PIECE + 2, PIECE + 3]
    link.send(frame((99,)))
    assert arrived(there) == [99]


def test_what_is_taken_back_is_what_has_a_ticket_that_nobody_has_read(ends: Any) -> None:
    _, link, there = ends
    for number in range(1, PIECE + 3):
        link.send(frame((number,)), number)
    assert arrived(there) == [*range(1, PIECE + 2)]
    assert os.read(link._tickets[0], 8) == b"\1\0\0\0\2\0\0\0"  # as the child does before it executes those two
    assert link.take_back() == {*range(3, PIECE + 3)}


def test_a_pipe_of_tickets_that_is_full_holds_nobody() -> None:
    """The child reads a ticket before each execution; one that reads none, while so many come, is told of."""
    here, there = socket.socketpair()
    tickets = os.pipe()
    os.set_blocking(tickets[0], False)
    os.set_blocking(tickets[1], False)
    while True:
        try:
            os.write(tickets[1], bytes(4096))
        except BlockingIOError:
            break
    loop = Turns()
    told: list[str] = []
    link = Link(loop, here, tickets, lambda message: None, told.append)  # type: ignore[arg-type]
    for number in range(1, 4):
        link.send(frame((number,)), number)
    loop.turn()
    loop.turn()
    assert told == ["the pipe of its tickets is full: it reads none of the 1 that were to come"]
    link.close()
    there.close()


@pytest.mark.parametrize("gone", ["tickets", "socket"])
def test_a_channel_whose_own_end_was_closed_is_told_of(gone: str) -> None:
    """By code of a model in the server: no reader hears of it, so who writes has to. Once, and not in the midst of a sending."""
    here, there = socket.socketpair()
    tickets = os.pipe()
    loop = Turns()
    told: list[str] = []
    link = Link(loop, here, tickets, lambda message: None, told.append)  # type: ignore[arg-type]
    lost = tickets[1] if gone == "tickets" else here.fileno()
    kept = os.dup(lost)
    os.close(lost)
    for number in range(1, 2 * PIECE):
        link.send(frame((number,)), number)
    assert not told
    loop.turn()
    loop.turn()
    assert told == ["the server's end of its channel is gone: [Errno 9] Bad file descriptor"]
    os.dup2(kept, lost)
    os.close(kept)
    link.close()
    there.close()


class Reluctant:
    """A socket that takes and gives as many bytes as it is told, in turn, 0 for not now. `sent`: what it has taken."""

    def __init__(self, sizes: list[int], inbox: bytes = b"") -> None:
        self.sizes = sizes
        self.sent = b""
        self.inbox = inbox

    def fileno(self) -> int:
        return 99

    def setblocking(self, on: bool) -> None:
        assert not on

    def close(self) -> None:
        pass

    def _size(self) -> int:
        size = self.sizes.pop() if self.sizes else 1 << 20
        if not size:
            raise BlockingIOError
        return size

    def send(self, data: bytes | memoryview) -> int:
        piece = bytes(data[: self._size()])
        self.sent += piece
        return len(piece)

    def recv_into(self, space: memoryview) -> int:
        size = min(self._size(), len(self.inbox), len(space))
        space[:size], self.inbox = self.inbox[:size], self.inbox[size:]
        return size


class Writing(Turns):
    """A loop that says when there is room again."""

    writer: Callable[[], None] | None = None

    def add_writer(self, number: int, callback: Callable[[], None]) -> None:
        self.writer = callback

    def remove_writer(self, number: int) -> None:
        self.writer = None


SIZES = st.lists(st.sampled_from([0, 0, 1, 2, 3, 5, 30, 1000]), max_size=60)
MESSAGES = st.lists(st.binary(max_size=40), min_size=1, max_size=20)


@given(MESSAGES, SIZES, st.lists(st.sampled_from(["turn", "room", ""]), max_size=20))
def test_whatever_the_socket_takes_all_messages_go_in_their_order(
    contents: list[bytes], sizes: list[int], between: list[str]
) -> None:
    tickets = os.pipe()
    os.set_blocking(tickets[0], False)
    loop, end = Writing(), Reluctant(sizes)
    link = Link(loop, end, tickets, lambda message: None, lambda problem: None)  # type: ignore[arg-type]

    def go_on(what: str) -> None:
        if what == "turn":
            loop.turn()
        elif what and loop.writer is not None:
            loop.writer()

    for number, content in enumerate(contents, 1):
        link.send(frame((number, content)), number)
        go_on(between.pop() if between else "")
    while loop.soon or loop.writer is not None:
        go_on("turn")
        go_on("room")
    assert messages_in(end.sent) == [*enumerate(contents, 1)]
    assert link.take_back() == {*range(1, len(contents) + 1)}
    link.close()


@given(MESSAGES, SIZES)
def test_however_the_bytes_come_each_message_is_received_once(contents: list[bytes], sizes: list[int]) -> None:
    end = Reluctant(sizes, b"".join(frame((content,)) for content in contents))
    came: list[bytes] = []
    told: list[str] = []
    link = Link(Turns(), end, os.pipe(), lambda message: came.append(message[0]), told.append)  # type: ignore[arg-type]
    while not told:
        link.read()
    assert (came, told) == (contents, [""])
    link.close()

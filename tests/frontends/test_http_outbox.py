"""When answers are written: a burst together, one alone at once, always in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_http.connection.outbox import LIMIT, Outbox


class Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], Any]] = []

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


def test_the_first_of_a_turn_is_written_at_once_the_rest_at_its_end() -> None:
    loop, written = Loop(), []
    outbox = Outbox(loop, lambda count: None)  # type: ignore[arg-type]
    for number in range(4):
        outbox.write(written.append, number)
    assert written == [0]
    loop.turn()
    assert written == [0, 1, 2, 3]
    outbox.write(written.append, 4)
    assert written == [0, 1, 2, 3, 4]
    assert len(loop.soon) == 1  # one call a turn, however many answers
    loop.turn()
    assert loop.soon == []


def test_no_more_than_the_limit_waits() -> None:
    loop, written = Loop(), []
    outbox = Outbox(loop, lambda count: None)  # type: ignore[arg-type]
    for number in range(LIMIT + 1):
        outbox.write(written.append, number)
    assert written == list(range(LIMIT + 1))


def test_flush_keeps_the_order() -> None:
    loop, written = Loop(), []
    outbox = Outbox(loop, lambda count: None)  # type: ignore[arg-type]
    for number in range(3):
        outbox.write(written.append, number)
    outbox.flush()
    outbox.write(written.append, 3)
    loop.turn()
    assert written == [0, 1, 2, 3]


def test_a_client_that_has_gone_costs_the_others_nothing() -> None:
    def gone(payload: int) -> None:
        raise RuntimeError("the handle is closed")

    loop, written = Loop(), []
    outbox = Outbox(loop, lambda count: None)  # type: ignore[arg-type]
    for number, write in enumerate((written.append, gone, written.append)):
        outbox.write(write, number)
    loop.turn()
    assert written == [0, 2]

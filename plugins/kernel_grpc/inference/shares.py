"""Of a model whose answers may be large, few requests of one connection are in flight at a time; the others wait, in their order.

The law: an answer is in memory until its client takes it, and how large it becomes nobody knows before it is made. So as many
are made at a time as kernel/frontends/answer_sizes.py says. Where a config says that all answers are little, nothing of this is
called; nor where it says who may wait, and for how long (limited.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from kernel import ANSWERS_AT_ONCE, made_at_once

if TYPE_CHECKING:
    from kernel_grpc.http2 import Connection
    from kernel_grpc.inference.encode import Replies

__all__ = ["Share", "share_of"]

#: How many go on in one turn of the loop.
AT_ONCE = 16

#: Where nothing is answered for so many seconds while some wait, a few more begin: what is in flight may wait for them.
PATIENCE = 1.0


class Share:
    """The requests of one connection to one model. `in_flight`: how many have begun and are not answered."""

    __slots__ = ("_answered", "_called", "_more", "_replies", "_timer", "_waiting", "in_flight")

    def __init__(self, replies: Replies) -> None:
        self.in_flight = 0
        self._replies = replies
        self._waiting: dict[Hashable, Callable[[], None]] = {}  # in their order
        self._called = False
        self._answered = 0
        self._more = 0  # so many more may begin, as nothing is answered
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether as many are in flight as may be."""
        model, largest = self._replies.model, self._replies.largest
        return self.in_flight >= made_at_once(model, largest) + self._more and not model.backpressure.open

    def wait(self, who: Hashable, go_on: Callable[[], None]) -> None:
        """Call `go_on`, which begins one more, when it is the turn of `who`. Never at once."""
        self._waiting[who] = go_on
        self._replies.model.backpressure.on_open[self] = self._let_all_in
        self._wait()

    def forget(self, who: Hashable) -> None:
        """Nobody waits there any more."""
        if self._waiting.pop(who, None) is not None and not self._waiting:
            self._replies.model.backpressure.on_open.pop(self, None)

    def over(self) -> None:
        """One that has begun has its answer, or nobody waits for that any more."""
        self.in_flight -= 1
        self._answered += 1
        self._more = 0
        if self._waiting:
            self._call()

    def responded(self) -> None:
        """A response has come, not the last: it may be known by now how large they are."""
        if self._waiting:
            self._call()

    def _let_all_in(self) -> None:
        """The model takes no more in a moment."""
        while self._waiting:
            self._let_in()

    def _let_in(self) -> None:
        waiting = self._waiting
        go_on = waiting.pop(next(iter(waiting)))
        if not waiting:
            self._replies.model.backpressure.on_open.pop(self, None)
        go_on()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._replies.model.kernel.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._called = False
        waiting = self._waiting
        for _ in range(AT_ONCE):  # who has more waits again at once, and is let in again
            if not waiting or self.full:
                break
            self._let_in()
        if waiting:
            self._wait()

    def _wait(self) -> None:
        """Have those go on who wait, now or with time: who was there before may have taken what was free."""
        if not self.full:
            self._call()
        elif self._timer is None:
            self._watch()

    def _watch(self) -> None:
        self._timer = self._replies.model.kernel.loop.call_later(PATIENCE, self._look, self._answered)

    def _look(self, answered: int) -> None:
        """Let some in where nothing was answered since."""
        self._timer = None
        if self._waiting:
            if answered == self._answered:
                self._more += ANSWERS_AT_ONCE
                self._call()
            self._watch()


def share_of(connection: Connection, replies: Replies) -> Share:
    """Return the share that a connection has of the model whose replies these are."""
    share: Share | None = replies.shares.get(connection)
    if share is None:
        share = replies.shares[connection] = Share(replies)
    return share

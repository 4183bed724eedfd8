"""The brake of one connection: while much waits for its client to read, no further inference of it begins.

The law: what has begun is answered; what has not waits, in its order, and nobody refuses it. A call that waits takes no data, so
the client's windows bound what it sends meanwhile. Who reads does not notice: as much is there to read as keeps it busy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf

from kernel_grpc.http2 import Outgoing
from kernel_grpc.rpc.turns import Turns

__all__ = ["Brake"]

#: How many go on in one turn of the loop.
AT_ONCE = 16


class Brake:
    """`waiting`: what goes on once the client has read, by whom it is for, in their order."""

    __slots__ = ("_called", "_outgoing", "_turns", "waiting")

    def __init__(self, outgoing: Outgoing, most: int, turns: Turns) -> None:
        """`most`: the bytes that may wait for the client."""
        outgoing.most, outgoing.brake = most, self
        self._outgoing = outgoing
        self._turns = turns
        self._called = False
        self.waiting: dict[Hashable, Callable[[], None]] = {}

    def release(self) -> None:
        """There is room for answers again."""
        if self.waiting and not self._called:
            self._called = True
            self._turns.put_off(self)

    def lost(self) -> None:
        """The client has gone: nobody has to wait for it."""
        outgoing = self._outgoing
        outgoing.most, outgoing.full, outgoing.brake = inf, False, None
        self.release()

    def go_on(self) -> None:
        """Let some go on of those that wait, until the brake is on again."""
        self._called = False
        waiting = self.waiting
        for _ in range(AT_ONCE):
            if self._outgoing.full or not waiting:
                return
            waiting.pop(next(iter(waiting)))()
        self.release()

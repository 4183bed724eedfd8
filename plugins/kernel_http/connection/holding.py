"""What one connection holds of the memory budget: bytes of requests until their answer, and of answers until they are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kernel import MemoryBudget

if TYPE_CHECKING:
    from kernel_http.connection.exchange import Exchange

__all__ = ["Holding"]


class Holding:
    """`lent`: by exchange, the bytes that its request holds. `over`: what is to be called when an exchange is; whoever is here
    is in `lent`, too. `sent`: the bytes of answers that the client has not taken.
    """

    __slots__ = ("_memory", "_sent", "lent", "over")

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._sent = 0
        self.lent: dict[Exchange, int] = {}
        self.over: dict[Exchange, Callable[[], None]] = {}

    def lend(self, exchange: Exchange, size: int) -> None:
        """`size` bytes that were taken belong to `exchange` until it is answered."""
        self.lent[exchange] = self.lent.get(exchange, 0) + size

    def give_back(self, exchange: Exchange) -> None:
        """The exchange is over."""
        size = self.lent.pop(exchange, 0)
        if size:
            self._memory.receive.give_back(size)
        if self.over and (over := self.over.pop(exchange, None)) is not None:
            over()

    def hand_over(self, exchange: Exchange, other: Exchange) -> None:
        """What belongs to an exchange belongs to another one from now on, which has nothing yet."""
        if exchange in self.lent:
            self.lent[other] = self.lent.pop(exchange)
        if exchange in self.over:
            self.over[other] = self.over.pop(exchange)

    def count(self, written: int, exchanges: Iterable[Exchange]) -> None:
        """Count what was `written` and not taken, in bytes, and the large answers that wait for their turn."""
        size = written
        for exchange in exchanges:
            size += exchange.waiting
            if type(exchange.payload) is list:
                size += sum(map(len, exchange.payload))
        if size <= MemoryBudget.SMALL:
            size = 0
        before, self._sent = self._sent, size
        if size > before:
            self._memory.send.add(size - before)
        elif size < before:
            self._memory.send.give_back(before - size)

    @property
    def sent(self) -> int:
        """How many bytes of answers wait for the client, where that is much."""
        return self._sent

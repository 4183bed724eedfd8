"""What one connection holds of the memory budget: bytes of requests until their answer, and of answers until they are taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from kernel import DATATYPES, MemoryBudget

if TYPE_CHECKING:
    from kernel import Model
    from kernel_http.connection.exchange import Exchange

__all__ = ["Holding", "answers_little"]

#: An answer of fewer bytes is little, as binary data; as JSON, it may be eight times as long.
LITTLE = 128 * 1024

_little: WeakKeyDictionary[Model, bool] = WeakKeyDictionary()


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


def answers_little(model: Model) -> bool:
    """Whether all that a model answers is little by its config, whatever it is asked; looked at once for each."""
    little = _little.get(model)
    if little is None:
        little = _little[model] = _answers_little(model)
    return little


def _answers_little(model: Model) -> bool:
    config = model.config
    size = 0
    for spec in config.outputs:
        if spec.datatype == "BYTES" or min(spec.dims, default=0) < 0:
            return False
        size += prod(spec.dims) * DATATYPES[spec.datatype].itemsize
    return bool(config.outputs) and not config.decoupled and size * max(1, config.max_batch_size) <= LITTLE

"""A client that has ended its side of the connection: does it still wait for its answers, or has it gone altogether?

To TCP both look the same until something is sent: who has gone refuses it. So while an answer is not there yet, its first bytes
are sent ahead, one at a time and ever more rarely; all answers begin alike. Who only shut down its side reads on as if nothing
had happened. On a Unix-domain socket a look is enough.
"""

from __future__ import annotations

import select
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

from kernel_http.connection import replies
from kernel_http.connection.exchange import Exchanges

__all__ = ["EndedTransport", "is_gone"]

#: How long answers may take before the client is looked at, in seconds; then again after as long, after twice that, and so on.
PATIENCE = 0.05


class EndedTransport:
    """Stands in for the transport of such a client: sends what of an answer has not been sent ahead.

    `exchanges`: what the client may still wait for. `flush`: writes the answers that are complete.
    """

    def __init__(self, transport: Any, exchanges: Exchanges, flush: Callable[[], None], loop: AbstractEventLoop) -> None:
        self._inner = transport
        self._exchanges = exchanges
        self._flush = flush
        self._ahead = 0  # bytes of the next answer that have been sent
        self._loop = loop
        self._loop.call_later(PATIENCE, self._look, PATIENCE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        ahead, self._ahead = self._ahead, 0
        self._inner.write(data[ahead:] if ahead else data)

    def writelines(self, parts: list[Any]) -> None:
        ahead, self._ahead = self._ahead, 0
        self._inner.writelines([memoryview(parts[0])[ahead:], *parts[1:]] if ahead else parts)

    def _look(self, delay: float) -> None:
        """Cut off a client that has gone, which cancels its requests; otherwise see whether it takes the next byte."""
        if self._inner.is_closing() or not self._exchanges:
            return
        if is_gone(self._inner.get_extra_info("socket")):
            self._inner.abort()
            return
        self._flush()  # earlier answers go first
        exchange = self._exchanges[0]
        start = replies.start_of(exchange.head.http10)
        if not exchange.begun and self._ahead < len(start):
            self._inner.write(start[self._ahead : self._ahead + 1])
            self._ahead += 1
        self._loop.call_later(delay, self._look, 2 * delay)


def is_gone(socket: Any) -> bool:
    """Whether the other end of a connection is closed in both directions, or has refused what was sent."""
    poll = select.poll()
    poll.register(socket, 0)  # errors and hang-ups are told always
    return bool(poll.poll(0))

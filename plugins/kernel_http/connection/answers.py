"""What goes out on a connection: answers in the order of the requests, each once, and the end of the connection.

What comes in, and becomes an exchange in that order, is the business of the Connection in protocol.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel import peer_name
from kernel_http.connection import replies
from kernel_http.connection.exchange import Exchange

if TYPE_CHECKING:
    from kernel import InferenceRequest
    from kernel_http.connection.server import Server

__all__ = ["Answers"]


class Answers(asyncio.BufferedProtocol):
    """The outgoing half of a connection. `exchanges`: the requests in flight, oldest first."""

    __slots__ = (
        "_closing",
        "_continue",
        "_lent",
        "_lingering",
        "_since",
        "_transport",
        "_write",
        "_write_since",
        "_write_size",
        "exchanges",
        "server",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.exchanges: deque[Exchange] = deque()
        self._transport: Any = None
        self._write: Any = None
        self._closing = False  # no further request is taken
        self._lingering = False  # the last answer is out; what still comes is thrown away
        self._continue = False  # the client waits for 100 Continue
        self._since = 0.0  # since when the message that arrives is incomplete, or a refused client lingers
        self._write_since = 0.0  # since when the client has not taken what we sent
        self._write_size = 0
        self._lent: dict[Exchange, int] = {}  # bytes of the budget that requests hold which are not answered yet

    def flush(self) -> None:
        """Write the answers whose turn it is."""
        exchanges, send = self.exchanges, self.server.outbox.write
        while exchanges:
            payload = exchanges[0].payload
            if payload is None:
                exchanges[0].advance()
                break
            exchange = exchanges.popleft()
            if self._lent:
                self._give_back(exchange)
            head = exchange.head
            last = self._closing and not exchanges
            if (last or not head.as_is) and not exchange.begun:
                payload = replies.adapt(payload, http10=head.http10, close=last or head.close, head_only=head.head_only)
            if type(payload) is bytes:
                send(self._write, payload)
            else:  # a large answer: written at once, so that its memory is free the sooner
                self.server.outbox.flush()
                self._transport.writelines(payload)
            if last:
                self.server.outbox.flush()
                self._finish()
                return
        if not exchanges and self._continue:
            self._send_continue()
        self._unblock()

    def _send_continue(self) -> None:
        self._continue = False
        self.server.outbox.write(self._write, replies.CONTINUE)

    def _unblock(self) -> None:
        """Take the requests that had to wait for an answer to go out."""

    def pause_writing(self) -> None:
        self._write_since = self.server.now()
        self._write_size = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._write_since = 0.0
        if self.exchanges:
            self.exchanges[0].advance()
        self._unblock()

    def sweep_writing(self, now: float, limit: float) -> None:
        """Cut off a client that has taken nothing of what it was sent for longer than `limit` seconds."""
        if self._write_since and now - self._write_since > limit:
            size = self._transport.get_write_buffer_size()
            if size >= self._write_size:
                self._transport.abort()
            else:
                self._write_size = size
                self._write_since = now

    def aside(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have `work` done on another thread, as it is too large for the loop."""
        kernel = self.server.kernel
        return kernel.loop.run_in_executor(kernel.pools.aside, work)

    def lend(self, exchange: Exchange, size: int) -> None:
        """`size` bytes of the budget's `receive`, which were taken, belong to `exchange` until it is answered."""
        if exchange.connection is None or exchange not in self.exchanges:  # of these there are not many
            self.server.kernel.memory.receive.give_back(size)
        else:
            self._lent[exchange] = self._lent.get(exchange, 0) + size

    def _give_back(self, exchange: Exchange) -> None:
        size = self._lent.pop(exchange, 0)
        if size:
            self.server.kernel.memory.receive.give_back(size)

    def cancel(self, request: InferenceRequest) -> None:
        """Nobody waits for the request's answer any more."""
        self.server.kernel.cancel(request)

    @property
    def client(self) -> str:
        return f"HTTP {peer_name(self._transport.get_extra_info('peername'))}"

    # --- what an answer in pieces needs

    @property
    def is_held_up(self) -> bool:
        """Whether the client does not take what it is sent."""
        return bool(self._write_since)

    def write(self, data: replies.Payload) -> None:
        """Write a piece of the answer whose turn it is."""
        self.server.outbox.write(self._write if type(data) is bytes else self._transport.writelines, data)

    def closes_after(self, exchange: Exchange) -> bool:
        """Whether `exchange`, as far as is known, is the connection's last."""
        return self._closing and self.exchanges[-1] is exchange

    def close_after(self) -> None:
        """Take no further request."""
        self._closing = True

    def abort(self) -> None:
        self._transport.abort()

    def _finish(self) -> None:
        """The last answer has been written: close, or first let the client read it where it may still be sending."""
        if self._lingering and self._transport.can_write_eof():
            self._since = self.server.now()
            self._transport.write_eof()
        else:
            self._close()

    def _close(self) -> None:
        self._closing = True
        self.server.outbox.flush()  # what was answered in this turn still goes out
        self._transport.close()

"""What goes out on a connection: answers in the order of the requests, each once, and the end of the connection.

What comes in, and becomes an exchange in that order, is the business of the Connection in protocol.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel import is_local, peer_name
from kernel_http.connection import replies
from kernel_http.connection.exchange import Exchange
from kernel_http.connection.holding import Holding

if TYPE_CHECKING:
    from kernel import InferenceRequest
    from kernel_http.connection.server import Server

__all__ = ["PRESSED_PROGRESS", "WHOLE_SECONDS", "Answers"]


#: What a client must have taken, or sent, within the time-out where more than half of the budget is used; bytes. And how long one
#: message may take at most, however steadily it moves; seconds.
PRESSED_PROGRESS = 1024 * 1024
WHOLE_SECONDS = 3600.0


class Answers(asyncio.BufferedProtocol):
    """The outgoing half of a connection. `exchanges`: the requests in flight, oldest first."""

    __slots__ = (
        "_closing",
        "_continue",
        "_holding",
        "_lent",
        "_lingering",
        "_since",
        "_transport",
        "_write",
        "_write_began",
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
        self._write_began = 0.0  # as `_write_since`, which moves on when the client takes something
        self._holding = Holding(server.kernel.memory)
        self._lent = self._holding.lent

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
                self._holding.give_back(exchange)
            head = exchange.head
            last = self._closing and not exchanges
            if (last or not head.as_is) and not exchange.begun:
                payload = replies.adapt(payload, http10=head.http10, close=last or head.close, head_only=head.head_only)
            if type(payload) is bytes:
                send(self._write, payload)
            else:  # a large answer: written at once, so that its memory is free the sooner
                self.server.outbox.flush()
                assert isinstance(payload, list)
                self._transport.writelines(payload)
                self.server.large(sum(map(len, payload)))
                self.recount()
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
        self._write_since = self._write_began = self.server.now()
        self._write_size = self._transport.get_write_buffer_size()
        self.recount()

    def resume_writing(self) -> None:
        self._write_since = 0.0
        self.recount()
        if self.exchanges:
            self.exchanges[0].advance()
        self._unblock()

    def sweep_writing(self, now: float, limit: float) -> None:
        """Cut off a client that has taken nothing of what it was sent for longer than `limit` seconds; one that is slow, where
        half of the budget is used, and one that takes an hour.
        """
        if not self._write_since:
            return
        self.recount()
        if now - self._write_since > limit:
            size = self._transport.get_write_buffer_size()
            least = PRESSED_PROGRESS if self.server.kernel.memory.send.pressed else 1
            if size > self._write_size - least or now - self._write_began > WHOLE_SECONDS:
                self._transport.abort()
            else:
                self._write_size = size
                self._write_since = now

    def recount(self) -> None:
        """Count in the budget what the client has not taken: what was written, and large answers that wait for their turn."""
        self._holding.count(self._transport.get_write_buffer_size(), self.exchanges)

    def aside(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have `work` done on another thread, as it is too large for the loop."""
        kernel = self.server.kernel
        return kernel.loop.run_in_executor(kernel.pools.aside, work)

    def spend(self, units: int) -> None:
        """Serving a request has taken so many units of ten microseconds that others may come first (turns.py)."""
        self.server.spend(units)

    def lend(self, exchange: Exchange, size: int) -> None:
        """`size` bytes of the budget's `receive`, which were taken, belong to `exchange` until it is answered."""
        self._holding.lend(exchange, size)
        if exchange.connection is None or exchange not in self.exchanges:  # it is over already
            self._holding.give_back(exchange)

    def when_over(self, exchange: Exchange, over: Callable[[], None]) -> None:
        """Call `over` once `exchange` has been answered or nobody waits for that any more; perhaps before this returns."""
        self._holding.when_over(exchange, over)
        if exchange.connection is None or exchange not in self.exchanges:
            self._holding.give_back(exchange)

    def cancel(self, request: InferenceRequest) -> None:
        """Nobody waits for the request's answer any more."""
        self.server.kernel.cancel(request)

    @property
    def client(self) -> str:
        return f"HTTP {peer_name(self._transport.get_extra_info('peername'))}"

    @property
    def is_local(self) -> bool:
        return is_local(self._transport.get_extra_info("peername"))

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

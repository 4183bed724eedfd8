"""What goes out on a connection: answers in the order of the requests, each once, and the end of the connection.

Handlers and exchanges know the connection as this (exchange.py: ClientConnection). What comes in, and becomes an exchange in that
order, is the business of the Connection in protocol.py, which looks here whether it may go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernel import ANSWER_BYTES_AHEAD, ANSWERS_AT_ONCE, RequestState, answers_little, is_local, peer_name
from kernel_http.connection import replies
from kernel_http.connection.ended import EndedTransport
from kernel_http.connection.exchange import Exchange, Repeatable, reply
from kernel_http.connection.heads import CHUNKED, Head
from kernel_http.connection.holding import Holding
from kernel_http.connection.turns import MAX_PIPELINED

if TYPE_CHECKING:
    from kernel import InferenceRequest
    from kernel_http.connection.server import Server

__all__ = ["PRESSED_PROGRESS", "WHOLE_SECONDS", "Answers", "Layout"]

PENDING = RequestState.PENDING


#: What a client must have taken, or sent, within the time-out where more than half of the budget is used; bytes. And how long one
#: message may take at most, however steadily it moves; seconds.
PRESSED_PROGRESS = 1024 * 1024
WHOLE_SECONDS = 3600.0

#: The longest request that is recognised by its bytes alone: head and body.
MAX_LAYOUT = 64 * 1024


class Layout:
    """How the bytes of a request divide, if it is like the last: `prefix`, its head and JSON part, is the same, the rest of
    `total` bytes is a new tail. What such a request means, `recipe` knows.
    """

    __slots__ = ("head", "prefix", "recipe", "total")

    def __init__(self, head: Head, prefix: bytes, total: int, recipe: Repeatable) -> None:
        self.head = head
        self.prefix = prefix
        self.total = total
        self.recipe = recipe


class Answers:
    """The outgoing half of a connection. `exchanges`: the requests in flight, oldest first. `transport`: None before it is made.

    `closing`: no further request is taken. `lingering`: since when a refused client may read its last answer, while what it
    still sends is thrown away, 0.0 where there is none. `layout`: of the last request, where the next may be recognised by it.
    `go_on`: what is to be called when an answer is out, while requests wait for that; else None. `ahead`: how many requests may
    be in flight, as long as more may anywhere (turns.py): ANSWERS_AT_ONCE, before it is known how large the answers are that they
    ask for, and later, where the model's config does not say that its are little: who has had small ones may ask for large ones.
    """

    __slots__ = (
        "_holding",
        "_inviting",
        "_lent",
        "_over",
        "_write",
        "_write_began",
        "_write_since",
        "_write_size",
        "ahead",
        "barrier",
        "began",
        "closing",
        "exchanges",
        "go_on",
        "layout",
        "lingering",
        "server",
        "transport",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.exchanges: deque[Exchange] = deque()
        self.ahead = ANSWERS_AT_ONCE
        self.transport: Any = None
        self.closing = False
        self.lingering = 0.0
        self.layout: Layout | None = None
        self.go_on: Callable[[], None] | None = None
        self.barrier = False  # an operation runs that later requests must wait for
        self.began = 0.0  # when the message began to come in that is being handed over, 0.0: just now
        self._write: Any = None
        self._inviting = False  # the client waits for 100 Continue
        self._write_since = 0.0  # since when the client has not taken what we sent
        self._write_size = 0
        self._write_began = 0.0  # as `_write_since`, which moves on when the client takes something
        self._holding = Holding(server.kernel.memory)
        self._lent = self._holding.lent
        self._over = self._holding.over

    def attach(self, transport: Any) -> None:
        """Write to `transport` from now on."""
        self.transport = transport
        self._write = transport.write

    # --- answers, in their order

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
            last = self.closing and not exchanges
            if (last or not head.as_is) and not exchange.begun:
                payload = replies.adapt(payload, http10=head.http10, close=last or head.close, head_only=head.head_only)
            if type(payload) is bytes:
                send(self._write, payload)
                if self.ahead < MAX_PIPELINED:
                    self.ahead *= 2
            else:  # a large answer: written at once, so that its memory is free the sooner
                self.server.outbox.flush()
                assert isinstance(payload, list)
                self.transport.writelines(payload)
                size = sum(map(len, payload))
                self.ahead = max(1, min(self.ahead, ANSWER_BYTES_AHEAD // (size + 1)))
                self.server.large(size)
                self.recount()
            if last:
                self.server.outbox.flush()
                self._finish()
                return
        if self._inviting and not exchanges:
            self.invite()
        if self.go_on is not None:
            self.go_on()

    def refuse(self, head: Head, payload: bytes) -> None:
        """Answer a request, in its turn, that no handler sees."""
        if head.close:
            self.closing = True
        reply(self, head, payload)

    def invite(self) -> None:
        """Have the client send the body that it holds back, once all that it has asked before is answered."""
        self._inviting = bool(self.exchanges)
        if not self._inviting:
            self.server.outbox.write(self._write, replies.CONTINUE)

    def uninvite(self) -> None:
        """The client has not waited to be told."""
        self._inviting = False

    def may_begin(self) -> bool:
        """False while enough is in flight, or the client has not taken what it was sent."""
        if self._write_since or self.barrier:
            return False
        return len(self.exchanges) < self.server.pipelined or self._may_have_more()

    def _may_have_more(self) -> bool:
        """Whether a client with some requests in flight may send one more. Where the model has enough to do it waits its turn."""
        server, exchanges = self.server, self.exchanges
        if not server.pipelined or len(exchanges) >= min(server.most, self.ahead):
            return False
        if len(exchanges) >= ANSWERS_AT_ONCE and not self._may_have_many():
            return False
        request = exchanges[-1].request
        if request is not None and request.state is PENDING and (backpressure := request.model.backpressure).crowded:
            self.barrier = True
            backpressure.wait(self, self.release)
        return not self.barrier

    def _may_have_many(self) -> bool:
        """Whether more answers than ANSWERS_AT_ONCE may be made: the last that is awaited is little, and not much waits."""
        if self._holding.sent > ANSWER_BYTES_AHEAD:
            return False
        for exchange in reversed(self.exchanges):
            if exchange.request is not None:
                return answers_little(exchange.request.model)
        return True

    # --- what the client takes

    def pause_writing(self) -> None:
        self._write_since = self._write_began = self.server.now()
        self._write_size = self.transport.get_write_buffer_size()
        self.recount()

    def resume_writing(self) -> None:
        self._write_since = 0.0
        self.recount()
        if self.exchanges:
            self.exchanges[0].advance()
        if self.go_on is not None:
            self.go_on()

    def sweep(self, now: float, limit: float) -> None:
        """Cut off a client that has taken nothing of what it was sent for longer than `limit` seconds; one that is slow, where
        half of the budget is used, and one that takes an hour.
        """
        layout = self.layout
        if layout is not None and layout.recipe.generation != self.server.kernel.generation:
            self.layout = None  # perhaps its model has been replaced: an idle client must not keep that in memory
        if not self._write_since:
            return
        self.recount()
        if now - self._write_since > limit:
            size = self.transport.get_write_buffer_size()
            least = PRESSED_PROGRESS if self.server.kernel.memory.send.pressed else 1
            if size > self._write_size - least or now - self._write_began > WHOLE_SECONDS:
                self.transport.abort()
            else:
                self._write_size = size
                self._write_since = now

    # --- what handlers and exchanges ask

    @property
    def client(self) -> str:
        return f"HTTP {peer_name(self.transport.get_extra_info('peername'))}"

    @property
    def is_local(self) -> bool:
        return is_local(self.transport.get_extra_info("peername"))

    @property
    def is_held_up(self) -> bool:
        """Whether the client does not take what it is sent."""
        return bool(self._write_since)

    def write(self, data: replies.Payload) -> None:
        """Write a piece of the answer whose turn it is."""
        self.server.outbox.write(self._write if type(data) is bytes else self.transport.writelines, data)

    def remember(self, head: Head, json: bytes, tail_size: int, recipe: Repeatable) -> None:
        """Recognise the next request by its bytes, if it is like this one, and have `recipe` repeat it."""
        if head.as_is and not head.expect and head.content_length != CHUNKED and not self.server.retiring:
            prefix = head.block + json
            total = len(prefix) + tail_size
            if total <= MAX_LAYOUT:
                self.layout = Layout(head, prefix, total, self.server.router.repeatable(recipe))

    def release(self) -> None:
        """Let later requests through again, after an operation with `barrier`, or as it is this client's turn."""
        self.barrier = False
        if self.go_on is not None:
            self.go_on()

    def recount(self) -> None:
        """Count in the budget what the client has not taken: what was written, and large answers that wait for their turn."""
        self._holding.count(self.transport.get_write_buffer_size(), self.exchanges)

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
        """Call `over` once `exchange`, which is owed, has been answered or nobody waits for that any more."""
        self._lent.setdefault(exchange, 0)
        self._over[exchange] = over

    def begin_again(self, waiting: Exchange, serve: Callable[[], None]) -> None:
        """Serve the request of `waiting`, the newest exchange; what that holds goes over to the one that takes its place."""
        exchanges = self.exchanges
        exchanges.pop()
        last = exchanges[-1] if exchanges else None
        serve()
        new = exchanges[-1] if exchanges else None
        if new is None or new is last:
            self._holding.give_back(waiting)  # it is answered already
        else:
            self._holding.hand_over(waiting, new)

    def cancel(self, request: InferenceRequest) -> None:
        """Nobody waits for the request's answer any more."""
        self.server.kernel.cancel(request)

    # --- the end

    def closes_after(self, exchange: Exchange) -> bool:
        """Whether `exchange`, as far as is known, is the connection's last."""
        return self.closing and self.exchanges[-1] is exchange

    def close_after(self) -> None:
        """Take no further request."""
        self.closing = True

    def await_look(self) -> None:
        """The client sends nothing more, and perhaps is gone: find out, while answers are still to come (ended.py)."""
        if type(self.transport) is not EndedTransport:
            self.closing = True
            server = self.server
            self.attach(EndedTransport(self.transport, self.exchanges, server.outbox.flush, server.kernel.loop))

    def lost(self) -> None:
        """The connection is gone: nobody waits for the answers any more."""
        self.closing = True
        self.go_on = None
        self.layout = None
        exchanges = list(self.exchanges)
        self.exchanges.clear()
        for exchange in exchanges:  # all, before the first is cancelled: that may bring the answers of others
            self._holding.give_back(exchange)
            exchange.connection = None
        for exchange in exchanges:
            request, exchange.request = exchange.request, None
            if request is not None:
                self.server.kernel.cancel(request)
        self._holding.count(0, ())

    def abort(self) -> None:
        self.transport.abort()

    def close(self) -> None:
        """Close as soon as what was written is out."""
        self.closing = True
        self.server.outbox.flush()  # what was answered in this turn still goes out
        self.transport.close()

    def _finish(self) -> None:
        """The last answer has been written: close, or first let the client read it where it may still be sending."""
        if self.lingering and self.transport.can_write_eof():
            self.lingering = self.server.now()
            self.transport.write_eof()
        else:
            self.close()

"""What comes in on a connection: bytes to complete messages, each handed to its route's handler.

Owns framing, keep-alive, pipelining, back-pressure, time-outs and what happens when the client goes. Knows nothing of
models or JSON. The answers, in order, are answers.py's.
"""

from __future__ import annotations

import re
from math import inf
from typing import TYPE_CHECKING, Any

from kernel import Entry, MemoryBudget, idle_seconds
from kernel_http.connection import replies
from kernel_http.connection.answers import PRESSED_PROGRESS, WHOLE_SECONDS, Answers
from kernel_http.connection.bodies import Body, ChunkedBody, ChunkError, Oversize, too_large
from kernel_http.connection.ended import EndedTransport
from kernel_http.connection.exchange import Exchange, Repeatable
from kernel_http.connection.heads import CHUNKED, Head, HeadError
from kernel_http.connection.turns import QUANTUM

if TYPE_CHECKING:
    from kernel_http.connection.server import Server

__all__ = ["Connection"]

#: Request heads above this are refused with 431.
MAX_HEAD = 64 * 1024

#: A body that is not complete within the time-out gets more time if it has grown by this many bytes.
PROGRESS = 64 * 1024

#: The longest request that is recognised by its bytes alone: head and body.
MAX_LAYOUT = 64 * 1024

#: The routes that ask for health.
PROBED = frozenset({"live", "ready", "model_ready"})

#: The most bytes of empty lines in front of a request that are read at a time.
MAX_EMPTY = 64
_EMPTY_LINES = re.compile(rb"[\r\n]*+")

#: How long a refused client may go on sending before its connection is torn down.
LINGER = 5.0


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


class Connection(Answers):
    """The protocol object of one client connection; all on the loop's thread."""

    __slots__ = (
        "_blocked",
        "_body",
        "_consuming",
        "_look",
        "_mark",
        "_rest",
        "_scanned",
        "barrier",
        "began",
        "layout",
    )

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.barrier = False  # an operation runs that later requests must wait for
        self.began = 0.0  # when the message began to come in that is being handed over, 0.0: just now
        self.layout: Layout | None = None  # of the last request, where the next one may be recognised by it
        self._body: Body | ChunkedBody | None = None  # the body that is arriving
        self._rest = bytearray()  # bytes that can't be used yet
        self._scanned = 0  # how many of them have been searched for the end of a head, in vain
        self._blocked = False  # there are unused bytes, and reading is paused
        self._consuming = False  # bytes are being used further up the stack: an answer that goes out must not start that again
        self._look = 0.0  # when to look whether it is idle
        self._mark = 0  # how many bytes of the arriving body there were when `_since` was set

    # --- the transport's calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._write = transport.write
        entry = self.server.opened(self, transport)
        if self.server.draining or entry is Entry.REFUSED:
            self._close()
        elif entry is Entry.PROBES:
            self.__class__ = ProbeConnection  # so that nothing is asked of all the others
            self._wait_since()

    def connection_lost(self, exception: Exception | None) -> None:
        """The client has gone: nobody waits for the answers any more."""
        self._closing = True
        self._blocked = False
        self.server.forget(self)
        self.server.closed(self)
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
        self._drop_body()
        self.layout = None
        self._rest = bytearray()

    def eof_received(self) -> bool:
        """The client sends nothing more. It may still wait for answers, or be gone; True keeps the connection open for them.

        TLS knows no such half of a connection: without the client's end of it, nothing can be sent.
        """
        if not self.exchanges or self._transport.get_extra_info("sslcontext") is not None:
            self.server.outbox.flush()
            return False  # closes; connection_lost cancels what runs
        if type(self._transport) is not EndedTransport:
            self._closing = True
            self._drop_body()
            self._rest.clear()
            self._since = 0.0
            self._transport = EndedTransport(
                self._transport, self.exchanges, self.server.outbox.flush, self.server.kernel.loop
            )
            self._write = self._transport.write
        return True

    def get_buffer(self, sizehint: int) -> Any:
        body = self._body
        return body.space() if type(body) is Body else self.server.view

    def buffer_updated(self, count: int) -> None:
        body = self._body
        if type(body) is Body:
            body.received(count)
            if body.refused:
                self._refuse_body()
            elif body.complete:
                self._body = None
                self._since = 0.0
                self._complete(body)
        elif self._rest or self._blocked:
            self._rest += self.server.view[:count]
            if not self._blocked:
                rest, self._rest = self._rest, bytearray()
                self._consume(rest, len(rest))
        elif not self._lingering:
            self._consume(self.server.buffer, count)

    # --- bytes to messages

    def _consume(self, data: bytearray, end: int) -> None:
        """Use the messages in `data[:end]`, as many as are complete and may be begun; keep the rest."""
        self._consuming = True
        try:
            at = self._use(data, end)
        finally:
            self._consuming = False
        if self._closing:
            self._rest.clear()
        elif at < end:
            self._rest = data[at:end]
            if not self._blocked and not self._since:
                self._wait_since()

    def _use(self, data: bytearray, end: int) -> int:
        """Begin the complete messages in `data[:end]`; return how many bytes were used."""
        at = 0
        while at < end and not self._closing:
            if self._body is None:
                if not self._may_begin():
                    self._block()
                    break
                layout = self.layout
                if layout is not None:
                    stop = at + layout.total
                    if stop <= end and data.startswith(layout.prefix, at):
                        tail = data[at + len(layout.prefix) : stop]
                        if self._since:
                            self._since = 0.0
                            self._scanned = 0
                        if layout.recipe.repeat(self, layout.head, tail):
                            at = stop
                            continue
                taken = self._begin(data, at, end)
                if not taken:
                    break
                at += taken
            body = self._body
            if body is not None and at < end:
                at = self._continue_body(data, at, end)
                if self._body is body and at < end:  # there were more lines than may be read in one go
                    self._block(always=True)
                    break
        return at

    def _block(self, *, always: bool = False) -> None:
        """Keep what is unused, and read nothing more, until this connection may go on. `always`: only its turn is waited for."""
        self._blocked = True
        if self.server.full:
            self.layout = None  # what comes is looked at, as it may have to be refused
        self._transport.pause_reading()
        self.server.wait(self, always=always)

    def _may_begin(self) -> bool:
        """False while enough is in flight, or the client has not taken what it was sent."""
        return not (self._write_since or self.barrier or len(self.exchanges) >= self.server.pipelined)

    def _begin(self, data: bytearray, at: int, end: int) -> int:
        """Take a head from `data[at:end]`, and its body when that is all there. Return how many bytes were used."""
        start = at
        if data[at] in b"\r\n":
            at = _EMPTY_LINES.match(data, at, end).end()  # type: ignore[union-attr]  # it may be nothing
            if at == end:
                return end - start
            if at - start > MAX_EMPTY:
                self._refuse(0, "not HTTP")
                return 0
        stop = data.find(b"\r\n\r\n", max(at, start + self._scanned - 3), end)
        if stop < 0 or stop - at > MAX_HEAD:
            self._scanned = end - start
            self._await_head(data, at, end)
            return 0
        self._scanned = 0
        block = bytes(data[at : stop + 4])
        head = self.server.heads.get(block)
        if head is None:
            try:
                head = self.server.learn(block)
            except HeadError as error:
                self._refuse(error.status, error.message)
                return 0
        at = stop + 4
        length = head.content_length
        if length == 0:
            self._since = 0.0
            self._dispatch(head, b"", bytearray())
            return at - start
        limit = head.limit
        split = head.json_length
        if split is None or not 0 <= split <= length:
            split = length  # all of it is JSON; where the announced length is a wrong one, the handler refuses it
        if 0 < length <= end - at and (split or length) <= limit:
            self._since = 0.0
            middle, stop = at + split, at + length
            self._dispatch(head, bytes(data[at:middle]), data[middle:stop])
            return stop - start
        self._await_body(head, at == end)
        return at - start

    def _await_head(self, data: bytearray, at: int, end: int) -> None:
        """The head that begins at `at` has no end yet. Refuse what can't become one."""
        if end - at > MAX_HEAD:
            self._refuse(431, "the request's head is too long")
        elif not chr(data[at]).isalnum():
            self._refuse(0, "not HTTP")

    def _await_body(self, head: Head, nothing: bool) -> None:
        """Take the body as it comes in. `nothing`: nothing of it has come with the head."""
        server, length = self.server, head.content_length
        account = server.kernel.memory.receive
        if length > server.max_message_size:
            self._refuse(413, server.too_long(length))
            return
        if account.full and (length > MemoryBudget.SMALL or length == CHUNKED):
            self._refuse(503, account.refusal().message)
            return
        try:
            if length == CHUNKED:
                self._body = ChunkedBody(head, head.limit, server.max_message_size, account)
            else:
                self._body = Body(head, head.limit, server.buffer, account)
        except MemoryError:
            self._refuse(503, f"there is no memory for a request of {length} bytes")
            return
        self._wait_since()
        self._body.began = self._since
        if head.expect and nothing:
            self._continue = True
            if not self.exchanges:
                self._send_continue()

    def _continue_body(self, data: bytearray, at: int, end: int) -> int:
        body = self._body
        assert body is not None
        self._continue = False
        try:
            at = body.feed(data, at, end)
        except ChunkError as error:
            self._drop_body()
            self._refuse(400, f"the request's chunked body can't be read: {error}")
            return end
        except Oversize:
            self._drop_body()
            self._refuse(413, self.server.too_long(body.length))
            return end
        if body.refused:
            self._refuse_body()
            return end
        if body.complete:
            self._body = None
            self._since = 0.0
            self._complete(body)
        elif at < end:
            self.server.spend(QUANTUM)
        return at

    def _complete(self, body: Body | ChunkedBody) -> None:
        head = body.head
        if body.discard:
            body.give_back()
            message = too_large(head, body.length, head.limit)
            self._dispatch_error(head, head.refusal or replies.error(400, message, json=True))
            return
        exchanges = self.exchanges
        before = exchanges[-1] if exchanges else None
        self.began = body.began
        self._dispatch(head, *body.parts())
        self.began = 0.0
        if body.held:
            last = exchanges[-1] if exchanges else None
            if last is None or last is before:
                body.give_back()  # it has been answered
            else:
                self.lend(last, body.held)

    def _drop_body(self) -> None:
        """Hold nothing any more of a body that was arriving."""
        body, self._body = self._body, None
        if body is not None:
            body.give_back()

    def _refuse_body(self) -> None:
        """There is no memory for the rest of the body that is arriving."""
        message = self.server.kernel.memory.receive.refusal().message
        self._drop_body()
        self._refuse(503, message)

    def _dispatch(self, head: Head, json: bytes, tail: Any) -> None:
        """Hand a complete message to its handler."""
        if head.close or self.server.retiring:
            self._closing = True
        if head.refusal is not None:
            self._dispatch_error(head, head.refusal)
        else:
            self.server.router.handler(head)(self, head, json, tail)

    def _dispatch_error(self, head: Head, payload: bytes) -> None:
        if head.close:
            self._closing = True
        exchange = Exchange(self, head)
        self.exchanges.append(exchange)
        exchange.answer(payload)

    def _refuse(self, status: int, message: str) -> None:
        """Answer something that is no request, after what is in flight, and close. Status 0: close without a word."""
        self._closing = True
        if not status:
            if not self.exchanges:
                self._close()
            return
        self._since = self.server.now()
        self._lingering = True
        self._dispatch_error(self.server.refused_head, replies.error(status, message, json=False))

    def remember(self, head: Head, json: bytes, tail_size: int, recipe: Repeatable) -> None:
        """Recognise the next request by its bytes, if it is like this one, and have `recipe` repeat it."""
        if head.as_is and not head.expect and head.content_length != CHUNKED and not self.server.retiring:
            prefix = head.block + json
            total = len(prefix) + tail_size
            if total <= MAX_LAYOUT:
                self.layout = Layout(head, prefix, total, recipe)

    def release(self) -> None:
        """Let later requests through again, after an operation with `barrier`."""
        self.barrier = False
        self._unblock()

    def _unblock(self) -> None:
        if self._blocked and not self._consuming:
            self.go_on()

    def go_on(self) -> None:
        """Use what was kept, if this connection may."""
        if not self._blocked:
            return
        if not self._may_begin():
            self.server.wait(self)
            return
        self._blocked = False
        rest, self._rest = self._rest, bytearray()
        self._transport.resume_reading()
        self._consume(rest, len(rest))

    # --- time and the end

    @property
    def busy(self) -> bool:
        """Whether a request is arriving or an answer is still to be sent."""
        return bool(self.exchanges or self._body is not None or self._rest)

    def retire(self) -> None:
        """Let the next answer be the last: the one that is awaited, or one more where the client waits for none."""
        self.layout = None  # from now on each request is looked at: its answer may have to be the connection's last
        if self.exchanges and self._body is None and not self._rest:
            self._closing = True

    def drain(self) -> None:
        """Take no further request; close as soon as the last answer is out."""
        self.layout = None
        if self._closing:
            return
        if self._body is not None or self._rest:
            return  # a request is arriving: it is still served
        self._closing = True
        if not self.exchanges:
            self._close()

    def sweep(self, now: float, limit: float) -> None:
        """Cut off a client that does not send what it began, or does not take what it is sent."""
        layout = self.layout
        if layout is not None and layout.recipe.generation != self.server.kernel.generation:
            self.layout = None  # perhaps its model has been replaced: an idle client must not keep that in memory
        if self._lingering:
            if not self.exchanges and now - self._since > min(limit, LINGER):
                self._transport.abort()
        elif not self._since and now >= self._look and not self.busy:
            self._look_whether_idle(now)
        elif self._since and now - self._since > limit:
            body = self._body
            least = PRESSED_PROGRESS if self.server.kernel.memory.receive.pressed else PROGRESS
            if body is not None and body.seen - self._mark >= least and now - body.began <= WHOLE_SECONDS:
                self._mark = body.seen
                self._since = now
            else:
                self._drop_body()
                self._rest.clear()
                self._refuse(408, "the request did not arrive in time")
        self.sweep_writing(now, limit)

    def _look_whether_idle(self, now: float) -> None:
        """Close a connection that has been idle for too long; otherwise look again when it may have been."""
        limit = self.server.patience.idle
        idle = idle_seconds(self._transport) if limit and self._look else 0.0
        if limit and idle >= limit:
            self._close()
        else:
            self._look = now + (limit - idle if limit else inf)

    def _wait_since(self) -> None:
        self._since = self.server.now()
        self._mark = 0


class ProbeConnection(Connection):
    """A connection that is let in to ask for health, once, since there are as many others as there may be."""

    __slots__ = ()

    def _dispatch(self, head: Head, json: bytes, tail: Any) -> None:
        self._closing = True
        if head.route in PROBED:
            super()._dispatch(head, json, tail)
        else:
            self._dispatch_error(head, replies.error(503, "the server has too many connections; try again later", json=False))

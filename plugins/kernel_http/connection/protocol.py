"""What comes in on a connection: bytes to complete messages, each handed to its route's handler.

Owns framing, keep-alive, pipelining, back-pressure, and when a connection has been quiet for too long. Knows nothing of models
or JSON. A body that comes in pieces is arrival.py's; the answers, in order, are answers.py's.
"""

from __future__ import annotations

import asyncio
import re
from math import inf
from typing import TYPE_CHECKING, Any

from kernel import Access, idle_seconds
from kernel_http.connection import replies
from kernel_http.connection.answers import Answers
from kernel_http.connection.arrival import Arrival, Refused
from kernel_http.connection.bodies import Body, ChunkedBody, too_large
from kernel_http.connection.heads import FIRST, Head, HeadError
from kernel_http.connection.turns import LITTLE, QUANTUM

if TYPE_CHECKING:
    from kernel_http.connection.server import Server

__all__ = ["Connection"]

#: Request heads above this are refused with 431.
MAX_HEAD = 64 * 1024

#: The routes that ask for health.
PROBED = frozenset({"live", "ready", "model_ready"})

#: The most bytes of empty lines in front of a request, in however many reads they come.
MAX_EMPTY = 64
_EMPTY_LINES = re.compile(rb"[\r\n]*+")

#: How much of what was refused may stand in the access log, in bytes; what stands there for the status where nobody was answered,
#: as nginx has it.
MAX_LINE = 1024
SILENT = 444

#: How long a refused client may go on sending before its connection is torn down.
LINGER = 5.0


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one client connection; all on the loop's thread. `answers`: its outgoing half, which is all of it
    that handlers know.
    """

    __slots__ = ("_arrival", "_empty", "_look", "_rest", "_scanned", "answers", "server")

    def __init__(self, server: Server) -> None:
        self.server = server
        self.answers = Answers(server)
        self._arrival = Arrival(server)
        self._rest = bytearray()  # bytes that can't be used yet
        self._empty = 0  # bytes of empty lines that came in front of the head that is awaited
        self._scanned = 0  # how many of them have been searched for the end of a head, in vain
        self._look = 0.0  # when to look whether it is idle

    # --- the transport's calls

    def connection_made(self, transport: Any) -> None:
        self.answers.attach(transport)
        access = self.server.opened(self, transport)
        if self.server.draining or access is Access.REFUSED:
            self.answers.close()
        elif access is Access.PROBES:
            self.__class__ = ProbeConnection  # a class of its own, so that other connections needn't ask which kind they are
            self._arrival.begin()

    def connection_lost(self, exception: Exception | None) -> None:
        """The client has gone: nobody waits for the answers any more."""
        self.answers.closing = True
        self.server.forget(self)
        self.server.receiving.forget(self)
        self.server.closed(self)
        self.answers.lost()
        self._arrival.drop()
        self._rest = bytearray()

    def eof_received(self) -> bool:
        """The client sends nothing more. It may still wait for answers, or be gone; True keeps the connection open for them.

        TLS knows no such half of a connection: without the client's end of it, nothing can be sent.
        """
        answers = self.answers
        if not answers.exchanges or answers.transport.get_extra_info("sslcontext") is not None:
            self.server.outbox.flush()
            return False  # closes; connection_lost cancels what runs
        answers.await_look()
        self._arrival.drop()
        self._rest.clear()
        return True

    def pause_writing(self) -> None:
        self.answers.pause_writing()

    def resume_writing(self) -> None:
        self.answers.resume_writing()

    def get_buffer(self, sizehint: int) -> Any:
        body = self._arrival.body
        if body is not None and type(body) is Body:
            return body.space()[: self.server.receiving.portion]
        return self.server.view

    def buffer_updated(self, count: int) -> None:
        body, receiving = self._arrival.body, self.server.receiving
        if receiving.free > 0:
            receiving.free -= count
        elif receiving.is_late():
            self._put_off(body, count)
            return
        if body is not None and type(body) is Body:
            body.received(count)
            self._take_body(body)
        elif self._rest:
            self._rest += self.server.view[:count]
            if self.answers.go_on is None:
                rest, self._rest = self._rest, bytearray()
                self._consume(rest, len(rest))
        else:
            self._consume(self.server.buffer, count)
        if count >= LITTLE and not receiving.received(self, count):
            self.answers.transport.pause_reading()

    def _take_body(self, body: Body) -> None:
        """More of a body has come into its memory, perhaps the rest."""
        try:
            self._arrival.look_at(body)
        except Refused as refused:
            self._refuse(refused.status, refused.message, body.head.block)
        else:
            if body.complete:
                self._complete(body)

    def _put_off(self, body: Body | ChunkedBody | None, count: int) -> None:
        """Keep what has come, and read nothing more: too much was done for others in this turn."""
        if type(body) is Body:
            body.received(count)
        else:
            self._rest += self.server.view[:count]
        if self.answers.go_on is None:
            self._hold()
            self.server.put_off(self, count)

    def read_on(self) -> None:
        """Read on, after a turn for what others are sent for."""
        answers = self.answers
        if answers.go_on is None and not answers.transport.is_closing():
            answers.transport.resume_reading()

    # --- bytes to messages

    def _consume(self, data: bytearray, end: int) -> None:
        """Use the messages in `data[:end]`, as many as are complete and may be begun; keep the rest."""
        at = self._use(data, end)
        if self.answers.closing:
            self._rest.clear()
        elif at < end:
            self._rest = data[at:end]
            if self.answers.go_on is None and not self._arrival.since:
                self._arrival.begin()

    def _use(self, data: bytearray, end: int) -> int:
        """Begin the complete messages in `data[:end]`; return how many bytes were used."""
        answers, arrival = self.answers, self._arrival
        at = 0
        while at < end and not answers.closing:
            if arrival.body is None:
                if not answers.may_begin():
                    self._block()
                    break
                layout = answers.layout
                if layout is not None:
                    stop = at + layout.total
                    if stop <= end and data.startswith(layout.prefix, at):
                        tail = data[at + len(layout.prefix) : stop]
                        if arrival.since:
                            arrival.since = 0.0
                            self._scanned = 0
                        if layout.recipe.repeat(answers, layout.head, tail):
                            at = stop
                            continue
                taken = self._begin(data, at, end)
                if not taken:
                    break
                at += taken
            body = arrival.body
            if body is not None and at < end:
                at = self._continue_body(body, data, at, end)
                if arrival.body is body and at < end:  # there were more lines than may be read in one go
                    self._block(always=True)
                    break
        return at

    def _block(self, *, always: bool = False) -> None:
        """Keep what is unused, and read nothing more, until this connection may go on. `always`: only its turn is waited for."""
        self._hold()
        self.server.wait(self, always=always)

    def _hold(self) -> None:
        """Read nothing more until this connection goes on."""
        answers = self.answers
        answers.go_on = self.go_on
        if self.server.full:
            answers.layout = None  # what comes is looked at, as it may have to be refused
        answers.transport.pause_reading()

    def go_on(self) -> None:
        """Use what was kept, if this connection may."""
        answers = self.answers
        if answers.go_on is None:
            return
        body = self._arrival.body
        if body is None and not answers.may_begin():
            self.server.wait(self)
            return
        answers.go_on = None
        answers.transport.resume_reading()
        if type(body) is Body:
            self._take_body(body)
        rest, self._rest = self._rest, bytearray()
        self._consume(rest, len(rest))

    def _begin(self, data: bytearray, at: int, end: int) -> int:
        """Take a head from `data[at:end]`, and its body when that is all there. Return how many bytes were used."""
        start = at
        if data[at] in b"\r\n":
            at = _EMPTY_LINES.match(data, at, end).end()  # type: ignore[union-attr]  # it may be nothing
            self._empty += at - start
            if self._empty > MAX_EMPTY:  # before anything else: who sends nothing but these would be read for ever
                self._refuse(0, "not HTTP", b"")
                return 0
            if at == end:
                return end - start
        stop = data.find(b"\r\n\r\n", max(at, start + self._scanned - 3), end)
        if stop < 0 or stop - at > MAX_HEAD:
            self._scanned = end - at
            self._await_head(data, at, end)
            return at - start  # empty lines are counted once
        self._scanned = self._empty = 0
        block = bytes(data[at : stop + 4])
        head = self.server.heads.get(block)
        if head is None:
            try:
                head = self.server.learn(block)
            except HeadError as error:
                self._refuse(error.status, error.message, block)
                return 0
        at = stop + 4
        length = head.content_length
        if length == 0:
            self._arrival.since = 0.0
            self._dispatch(head, b"", bytearray())
            return at - start
        limit = head.limit
        split = head.json_length
        if split is None or not 0 <= split <= length:
            split = length  # all of it is JSON; where the announced length is a wrong one, the handler refuses it
        if 0 < length <= end - at and (split or length) <= limit:
            self._arrival.since = 0.0
            middle, stop = at + split, at + length
            self._dispatch(head, bytes(data[at:middle]), data[middle:stop])
            return stop - start
        self._await_body(head, at == end)
        return at - start

    def _await_head(self, data: bytearray, at: int, end: int) -> None:
        """The head that begins at `at` has no end yet. Refuse what can't become one."""
        if end - at > MAX_HEAD:
            self._refuse(431, "the request's head is too long", data[at : min(end, at + MAX_LINE)])
        elif data[at] not in FIRST:
            self._refuse(0, "not HTTP", data[at : min(end, at + MAX_LINE)])

    def _await_body(self, head: Head, nothing: bool) -> None:
        """Take the body as it comes in. `nothing`: nothing of it has come with the head."""
        try:
            self._arrival.open(self.server.router.admit(self.answers, head))
        except Refused as refused:
            self._refuse(refused.status, refused.message, head.block)
            return
        if head.expect and nothing:
            self.answers.invite()

    def _continue_body(self, body: Body | ChunkedBody, data: bytearray, at: int, end: int) -> int:
        """Let the body take what is its of `data[at:end]`; return where that ended."""
        self.answers.uninvite()
        try:
            at = self._arrival.feed(body, data, at, end)
        except Refused as refused:
            self._refuse(refused.status, refused.message, body.head.block)
            return end
        if body.complete:
            self._complete(body)
        elif at < end:
            self.server.spend(QUANTUM)
        return at

    def _complete(self, body: Body | ChunkedBody) -> None:
        """All of a body has come in."""
        head, answers = body.head, self.answers
        if body.discard:
            body.give_back()
            message = too_large(head, body.length, head.limit)
            if head.refusal is None:
                self._note(400, message, head.block)
            answers.refuse(head, head.refusal or replies.error(400, message, json=True))
            return
        exchanges = answers.exchanges
        before = exchanges[-1] if exchanges else None
        answers.began = body.began
        self._dispatch(head, *body.parts())
        answers.began = 0.0
        if body.held:
            last = exchanges[-1] if exchanges else None
            if last is None or last is before:
                body.give_back()  # the request has its answer already: no exchange is there to hold the bytes
            else:
                answers.lend(last, body.held)

    def _dispatch(self, head: Head, json: bytes, tail: Any) -> None:
        """Hand a complete message to its handler."""
        answers = self.answers
        if head.close or self.server.retiring:
            answers.closing = True
        if head.refusal is not None:
            answers.refuse(head, head.refusal)
        else:
            self.server.router.handler(head)(answers, head, json, tail)

    def _refuse(self, status: int, message: str, data: bytes | bytearray) -> None:
        """Answer something that is no request, after what is in flight, and close. Status 0: close without a word.

        `data`: how it begins.
        """
        answers = self.answers
        answers.closing = True
        self._note(status or SILENT, message, data)
        if not status:
            if not answers.exchanges:
                answers.close()
            return
        answers.lingering = self.server.now()
        answers.refuse(self.server.refused_head, replies.error(status, message, json=False))

    def _note(self, status: int, message: str, data: bytes | bytearray) -> None:
        """Have it in the access log, where there is one, that something was refused that nobody could read."""
        access = self.server.kernel.log_settings.access
        if access is not None:
            access.refused(self.answers.client, "HTTP", bytes(data[:MAX_LINE]), status, message)

    # --- time and the end

    @property
    def busy(self) -> bool:
        """Whether a request is arriving or an answer is still to be sent."""
        return bool(self.answers.exchanges or self._is_arriving)

    @property
    def _is_arriving(self) -> bool:
        return self._arrival.body is not None or bool(self._rest)

    def retire(self) -> None:
        """Let the next answer be the last: the one that is awaited, or one more where the client waits for none."""
        answers = self.answers
        answers.layout = None  # from now on each request is looked at: its answer may have to be the connection's last
        if answers.exchanges and not self._is_arriving:
            answers.closing = True

    def drain(self) -> None:
        """Take no further request; close as soon as the last answer is out."""
        answers = self.answers
        answers.layout = None
        if answers.closing or self._is_arriving:
            return  # what is arriving is still served
        answers.closing = True
        if not answers.exchanges:
            answers.close()

    def abort(self) -> None:
        """Close at once."""
        self.answers.abort()

    def sweep(self, now: float, limit: float) -> None:
        """Cut off a client that does not send what it began, or does not take what it is sent."""
        answers, arrival = self.answers, self._arrival
        if answers.lingering:
            if not answers.exchanges and now - answers.lingering > min(limit, LINGER):
                answers.abort()
        elif arrival.is_late(now, limit):
            data = bytes(self._rest[:MAX_LINE]) if arrival.body is None else arrival.body.head.block
            arrival.drop()
            self._rest.clear()
            self._refuse(408, "the request did not arrive in time", data)
        elif not arrival.since and now >= self._look and not self.busy:
            self._look_whether_idle(now)
        answers.sweep(now, limit)

    def _look_whether_idle(self, now: float) -> None:
        """Close a connection that has been idle for too long; otherwise look again when it may have been."""
        limit = self.server.limits.idle
        idle = idle_seconds(self.answers.transport) if limit and self._look else 0.0
        if limit and idle >= limit:
            self.answers.close()
        else:
            self._look = now + (limit - idle if limit else inf)


class ProbeConnection(Connection):
    """A connection that is let in to ask for health, once, since there are as many others as there may be."""

    __slots__ = ()

    def _dispatch(self, head: Head, json: bytes, tail: Any) -> None:
        self.answers.closing = True
        if head.route in PROBED:
            super()._dispatch(head, json, tail)
        else:
            self.answers.refuse(head, replies.error(503, "the server has too many connections; try again later", json=False))

"""HTTP for one page: a GET of /metrics is answered with it, any other GET with nothing, everything else with 405, as observed.

One request of a connection at a time; what a client sends meanwhile waits in its socket. Who sends what is no HTTP is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import httptools

from kernel import Access, Code, Connections, Kernel, ServingError, idle_seconds
from kernel_metrics.text import CONTENT_TYPE

__all__ = ["Connection", "Server"]

#: A head must be complete within this many seconds and bytes; an answer taken within as many seconds.
PATIENCE = 30.0
MAX_HEAD = 16 * 1024

#: How long a connection may be open without any request; whoever looks at metrics comes every minute or so.
IDLE_SECONDS = 600.0
SWEEP_SECONDS = 5.0

#: The most bytes of empty lines in front of a request, as on the HTTP port: who sends nothing but these would be read for ever.
MAX_EMPTY = 64

#: The most requests of one read that wait for their turn.
MAX_WAITING = 64

_PAGE = re.compile(r"/metrics/?")
_NOT_ALLOWED = b'{"error":"Method Not Allowed"}'

log = logging.getLogger("kernel.metrics")

Page = Callable[[], Awaitable[bytes]]


class Server(Connections["Connection"]):
    """What the connections share: the page, made anew for each request. `by_query`: what makes it where the query has a say."""

    def __init__(self, kernel: Kernel, page: Page, by_query: Callable[[str], Awaitable[bytes]] | None = None) -> None:
        super().__init__(kernel.loop, kernel.loop.time, SWEEP_SECONDS, kernel.memory.crowd)
        self.loop = kernel.loop
        self.page = page
        self.by_query = by_query

    def look_at(self, connection: Connection, now: float) -> None:
        """Cut off a client that keeps us waiting."""
        connection.sweep(now)


class _Request(NamedTuple):
    method: bytes
    path: str
    query: str
    version: str
    keep_alive: bool


class Connection(asyncio.Protocol):
    """The protocol object of one client connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._url = b""
        self._head_size = 0  # bytes since the last complete message
        self._empty = 0  # bytes of empty lines that have come since anything else did
        self._since = 0.0  # when the message began that is still to be completed; 0: there is none
        self._stuck_since = 0.0  # when the client has ceased to take what it is sent; 0: it takes it
        self._waiting: deque[_Request] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None  # while the client doesn't take what it was sent
        self._closing = False  # nothing more is read

    # -- the transport's calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        access = self._server.opened(self, transport)
        if self._server.draining or access is Access.REFUSED:
            transport.close()

    def connection_lost(self, exception: Exception | None) -> None:
        self._closing = True
        self._server.closed(self)
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._head_size += len(data)
        if data[0] in b"\r\n" and not self._since:  # no message has begun
            self._empty += len(data) - len(data.lstrip(b"\r\n"))
            if self._empty > MAX_EMPTY:
                self._close_after_answers()
                return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._close_after_answers()
            return
        if self._head_size > MAX_HEAD or len(self._waiting) > MAX_WAITING:
            self._close_after_answers()
        elif self._waiting and self._answering is None:
            self._transport.pause_reading()
            self._answering = self._server.loop.create_task(self._answer_all())

    def eof_received(self) -> bool:
        """The client sends nothing more; what it has asked for is still answered."""
        self._closing = True
        return self._answering is not None

    def pause_writing(self) -> None:
        self._writable = self._server.loop.create_future()
        self._stuck_since = self._server.now()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        self._stuck_since = 0.0
        if writable is not None and not writable.done():
            writable.set_result(None)

    # -- the parser's calls

    def on_message_begin(self) -> None:
        self._url = b""
        self._empty = 0
        self._since = self._server.now()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_message_complete(self) -> None:
        parser = self._parser
        self._head_size = 0
        self._since = 0.0
        path, query = _path(self._url)
        self._waiting.append(
            _Request(parser.get_method(), path, query, parser.get_http_version(), parser.should_keep_alive())
        )

    # -- answers

    async def _answer_all(self) -> None:
        while self._waiting:
            request = self._waiting.popleft()
            try:
                answer = await self._answer(request)
            except Exception:
                log.exception("the metrics page can't be made")
                self._transport.abort()
                return
            self._transport.write(answer)
            if not request.keep_alive or self._server.retiring:
                self._waiting.clear()
                self._closing = True
            while self._writable is not None:
                await self._writable
        self._answering = None
        if self._closing:
            self._transport.close()
        else:
            self._transport.resume_reading()

    async def _answer(self, request: _Request) -> bytes:
        if request.method == b"GET":
            status = "200 OK"
            try:
                body = await self._page(request) if _PAGE.fullmatch(request.path) else b""
            except ServingError as error:
                status = "404 Not Found" if error.code is Code.NOT_FOUND else "503 Service Unavailable"
                body = f"{error.message}\n".encode()
            headers = f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        else:
            body = b"" if request.method == b"HEAD" else _NOT_ALLOWED
            headers = f"Content-Length: {len(_NOT_ALLOWED)}\r\nContent-Type: text/plain\r\n"
            status = "405 Not Allowed"
        if request.version == "1.0":
            headers += "Connection: keep-alive\r\n" if request.keep_alive else ""
        elif not request.keep_alive or self._server.retiring:
            headers += "Connection: close\r\n"
        return f"HTTP/{request.version} {status}\r\n{headers}\r\n".encode() + body

    def _page(self, request: _Request) -> Awaitable[bytes]:
        by_query = self._server.by_query
        return self._server.page() if by_query is None else by_query(request.query)

    def _close_after_answers(self) -> None:
        self._closing = True
        if self._waiting and self._answering is None:
            self._answering = self._server.loop.create_task(self._answer_all())
        elif self._answering is None:
            self._transport.close()

    # -- time and the end

    @property
    def busy(self) -> bool:
        """Whether an answer is still to be sent."""
        return self._answering is not None

    def retire(self) -> None:
        """The next answer is the last; it says so itself."""

    def drain(self) -> None:
        """Answer what was asked, and close."""
        self._closing = True
        if self._answering is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        for since in (self._since, self._stuck_since):
            if since and now - since > PATIENCE:
                self._transport.abort()
                return
        if not self._since and not self.busy and idle_seconds(self._transport) >= IDLE_SECONDS:
            self._transport.close()


def _path(url: bytes) -> tuple[str, str]:
    """Return the path of a request target, and the query."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        return "", ""
    return (parsed.path or b"").decode("latin-1"), (parsed.query or b"").decode("latin-1")

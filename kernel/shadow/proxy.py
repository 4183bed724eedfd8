"""Stands in front of a server and passes all bytes through, both ways, as they are; a copy goes to who looks on.

The law: a client never waits for who looks on, and gets what the upstream says, byte for byte. Memory is bounded: who does not
read keeps the other side from sending. Only where the upstream says nothing at all is something said in its
place, and that names it.
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any, Protocol

__all__ = ["CLIENT", "CLOSED", "GRPC", "UPSTREAM", "Onlooker", "Proxy"]

#: What an onlooker is told of: bytes of a client, bytes of the upstream, the end of a connection.
CLIENT, UPSTREAM, CLOSED = 0, 1, 2

#: In the numbers of connections that speak gRPC.
GRPC = 1 << 62

#: How much of one connection waits in this process for who reads slowly, each way; bytes.
HIGH_WATER = 256 * 1024

#: How long a client that was told of an error may take to read it, and how often it is looked for silence; seconds.
LAST_WORDS_SECONDS = 5.0
LOOK_SECONDS = 0.25

CONNECT_SECONDS = 10.0

REASONS = {502: "Bad Gateway", 504: "Gateway Timeout"}


class Onlooker(Protocol):
    def tell(self, connection: int, kind: int, data: bytes = b"") -> None:
        """Told on the loop; returns at once."""


class Proxy:
    """Listens, and passes on to `host`:`port`. `speaks_http`: errors of the upstream are told as HTTP has them; else it is gRPC,
    and a connection ends. `timeout`: seconds after which an upstream that has said nothing is given up, 0.0: never.
    """

    def __init__(
        self, host: str, port: int, onlooker: Onlooker | None, *, timeout: float = 0.0, speaks_http: bool = True
    ) -> None:
        self.upstream = f"{host}:{port}"
        self._where = host, port
        self._onlooker = onlooker
        self._timeout = timeout
        self._speaks_http = speaks_http
        self._number = count(1 if speaks_http else GRPC + 1).__next__
        self._open: set[_Client] = set()
        self._server: asyncio.Server

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Client(self), host or None, port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self, seconds: float) -> None:
        """Take no more connections, and end those that there are when nothing is under way, after `seconds` at most."""
        self._server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while any(one.asked for one in self._open):
            if loop.time() >= end:
                break
            await asyncio.sleep(0.02)
        for one in list(self._open):
            one.end()

    # -- of its connections --------------------------------------------------------------------------------------------

    def opened(self, client: _Client) -> int:
        self._open.add(client)
        return self._number()

    def closed(self, client: _Client) -> None:
        self._open.discard(client)
        self.tell(client.number, CLOSED)

    def tell(self, number: int, kind: int, data: bytes = b"") -> None:
        if self._onlooker is not None:
            self._onlooker.tell(number, kind, data)

    def connect(self, client: _Client) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self._connect(client))

    async def _connect(self, client: _Client) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, upstream = await loop.create_connection(lambda: _Upstream(client), *self._where)
        except TimeoutError:
            client.fail(504, f"the upstream {self.upstream} can't be reached: no answer within {CONNECT_SECONDS:g} s")
        except OSError as error:
            client.fail(502, f"the upstream {self.upstream} can't be reached: {error.strerror or error}")
        else:
            client.connected(upstream)

    @property
    def timeout(self) -> float:
        return self._timeout

    @property
    def speaks_http(self) -> bool:
        return self._speaks_http


class _End(asyncio.Protocol):
    """One end of a connection that is passed through."""

    transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)

    def other(self) -> Any:
        """Return the transport of the other end, None where there is none yet, or no more."""

    def pause_writing(self) -> None:
        if (other := self.other()) is not None:
            other.pause_reading()

    def resume_writing(self) -> None:
        if (other := self.other()) is not None and not other.is_closing():
            other.resume_reading()


class _Client(_End):
    """`asked`: something has been asked, and nothing been answered since."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._upstream: _Upstream | None = None
        self._answered = False
        self._failure: tuple[int, str] | None = None
        self._failed = False
        self._ended = False
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[Any]
        self._early = b""  # what came before there was an upstream
        self._early_end = False
        self.asked = False
        self.number = 0

    def other(self) -> Any:
        return None if self._upstream is None else self._upstream.transport

    # -- from the client -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.number = self._proxy.opened(self)
        self._connecting = self._proxy.connect(self)

    def connected(self, upstream: _Upstream) -> None:
        if self._ended:
            upstream.transport.abort()
            return
        self._upstream = upstream
        early, self._early = self._early, b""
        self.transport.resume_reading()
        if early:
            self.data_received(early)
        if self._early_end:
            self.eof_received()

    def data_received(self, data: bytes) -> None:
        if self._failed:
            return  # what comes behind is read, so that the client reads what it was told
        if self._failure is not None:
            self._tell_failure()
            return
        self.asked = True
        if self._upstream is None:
            self._early += data
            self.transport.pause_reading()  # until somebody takes what it says
            return
        self._upstream.transport.write(data)
        self._proxy.tell(self.number, CLIENT, data)
        if self._proxy.timeout:
            self._last = asyncio.get_running_loop().time()
            if self._timer is None:
                self._look()

    def eof_received(self) -> bool:
        if self._upstream is None:
            self._early_end = True
            return bool(self._early)
        if self._upstream.transport.can_write_eof():
            self._upstream.transport.write_eof()
            return True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._connecting.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._upstream is not None:
            self._upstream.transport.abort() if error is not None else self._upstream.transport.close()
        self._proxy.closed(self)

    # -- from the upstream ---------------------------------------------------------------------------------------------

    def said(self, data: bytes) -> None:
        self.asked, self._answered = False, True
        if self._ended or self._failed:
            return
        self.transport.write(data)
        self._proxy.tell(self.number, UPSTREAM, data)

    def lost(self, error: Exception | None) -> None:
        """The upstream has closed its end: so does this one, unless the client would learn nothing by that."""
        self._upstream = None
        if self._ended or self._failed:
            return
        if self.asked and not self._answered:
            why = f" ({error})" if error is not None else ""
            self.fail(502, f"the upstream {self._proxy.upstream} has closed the connection without an answer{why}")
        elif error is not None:
            self.transport.abort()
        else:
            self.transport.close()

    def fail(self, status: int, words: str) -> None:
        """Say in the place of the upstream why it says nothing."""
        if self._ended:
            return
        self._failure = status, words
        if not self._proxy.speaks_http:
            self.transport.abort()
        elif self.asked:
            self._tell_failure()
        else:
            self.transport.resume_reading()  # it has still to ask

    def _tell_failure(self) -> None:
        assert self._failure is not None
        self._failed, self.asked = True, False
        status, words = self._failure
        body = json.dumps({"error": words}).encode()
        head = (
            f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()
        asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self.transport.abort)

    def _look(self) -> None:
        """Give an upstream up that has said nothing for too long."""
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._ended or self._failed:
            return
        if self.asked and loop.time() - self._last >= self._proxy.timeout:
            upstream, self._upstream = self._upstream, None
            if upstream is not None:
                upstream.client = None
                upstream.transport.abort()
            self.fail(504, f"the upstream {self._proxy.upstream} has not answered within {self._proxy.timeout:g} s")
            return
        if self.asked:
            self._timer = loop.call_later(LOOK_SECONDS, self._look)

    def end(self) -> None:
        self.transport.close()


class _Upstream(_End):
    def __init__(self, client: _Client) -> None:
        self.client: _Client | None = client

    def other(self) -> Any:
        return None if self.client is None else self.client.transport

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self.client.said(data)

    def eof_received(self) -> bool:
        client = self.client
        if client is None or (client.asked and not client._answered):
            return False
        if client.transport.can_write_eof() and not client.transport.is_closing():
            client.transport.write_eof()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.client is not None:
            self.client.lost(error)

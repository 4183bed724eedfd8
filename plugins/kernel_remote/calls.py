"""gRPC calls from the client's side: messages out, messages and one outcome in; and the endpoint whose connection carries them.

Each call ends exactly once, by `ended(outcome)`: with the far end's status, or with what became of the stream or the connection.
Whether it may be sent again is said by `Outcome.processed`. Runs on the kernel's loop; knows nothing of inference.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from kernel_grpc.http2 import Data, ErrorCode, Field, literal
from kernel_remote.client import ClientConnection, ClientStream

__all__ = ["Call", "Endpoint", "Outcome"]

UNAVAILABLE, INTERNAL = 14, 13

#: Seconds without a byte, while calls are open, after which a PING asks whether anybody is there; and that its answer may take.
QUIET = 10.0
PATIENCE = 5.0

CONNECT_TIMEOUT = 5.0

#: What is said of an endpoint whose model has gone.
CLOSED = "is no longer used"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call has ended: gRPC's `status` and its `message`.

    `processed`: the far end may have looked at it. `told`: the status is the far end's own word. `load`: what the answer says of
    the far end's load (ORCA), "" for nothing.
    """

    status: int
    message: str
    processed: bool = True
    told: bool = False
    load: str = ""


class Call:
    """One call. `pieces`: the one message that is sent, `size` bytes long.

    `message(data)` is told each message that comes, `ended(outcome)` the end, once. `timeout`: seconds, for the far end to keep.
    """

    def __init__(
        self,
        path: str,
        pieces: Sequence[Data],
        message: Callable[[bytes], None],
        ended: Callable[[Outcome], None],
        timeout: float | None = None,
    ) -> None:
        self.path = path
        self.pieces = pieces
        self.size = sum(map(len, pieces))
        self.message = message
        self.ended = ended
        self.timeout = timeout
        self.over = False
        self.stream: _CallStream | None = None

    def end(self, outcome: Outcome) -> None:
        """Tell the end, unless it was told."""
        if not self.over:
            self.over = True
            self.ended(outcome)

    def cancel(self) -> None:
        """Nobody waits any more: the far end is told, and nothing is told here."""
        self.over = True
        if self.stream is not None:
            self.stream.leave()


class _CallStream(ClientStream):
    """The stream of a call: puts messages together, and reads status and trailers."""

    def __init__(self, connection: ClientConnection, call: Call, where: str) -> None:
        super().__init__(connection, connection.take_id(), False)
        self.call = call
        self.where = where
        self.buffer = bytearray()
        self.http = b""

    def fields(self, fields: tuple[Field, ...], last: bool) -> None:
        known = dict(fields)
        self.http = known.get(b":status", self.http)
        if last:
            self._finish(known)
        elif self.http != b"200":
            self._end(UNAVAILABLE, f"answers with HTTP status {self.http.decode('latin-1') or 'none'}")

    def _finish(self, fields: dict[bytes, bytes]) -> None:
        status = fields.get(b"grpc-status", b"")
        if not status.isdigit() or len(status) > 2:
            self._end(INTERNAL, "ends an answer without a grpc-status")
            return
        if self.buffer:
            self._end(INTERNAL, "ends an answer in the middle of a message")
            return
        self.leave()
        text = unquote(fields.get(b"grpc-message", b"").decode("utf-8", "replace"), errors="replace")
        load = fields.get(b"endpoint-load-metrics", b"").decode("latin-1")
        self.call.end(Outcome(int(status), text, told=True, load=load))

    def received(self, data: Data, start: int, stop: int, ended: bool) -> None:
        buffer = self.buffer
        buffer += data[start:stop]
        while len(buffer) >= 5 and not self.call.over:
            size = int.from_bytes(buffer[1:5], "big")
            if buffer[0]:
                self._end(INTERNAL, "answers with a compressed message, for which nobody has asked")
                return
            if len(buffer) < 5 + size:
                break
            message = bytes(memoryview(buffer)[5 : 5 + size])
            del buffer[: 5 + size]
            self.call.message(message)
        if ended:
            self._end(INTERNAL, "ends an answer without trailers")

    def aborted(self, code: int) -> None:
        control = self.connection.control  # type: ignore[attr-defined]
        failure = self.connection.ending.failure  # type: ignore[attr-defined]
        if failure is not None:
            self._end(UNAVAILABLE, f"breaks the rules of HTTP/2: {failure[1]}")
            return
        refused = self.refused or code == ErrorCode.REFUSED_STREAM
        name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"code {code}"
        text = control.last_words if self.refused else f"has reset the stream ({name})"
        gone = self.connection.transport_lost  # type: ignore[attr-defined]
        self._end(UNAVAILABLE, gone or text or "", not refused)

    def _end(self, status: int, text: str, processed: bool = True) -> None:
        self.leave()
        self.call.end(Outcome(status, f"endpoint {self.where} {text}", processed))


class _Wire(ClientConnection, asyncio.Protocol):
    """A connection on its transport."""

    transport_lost = ""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop.time())
        self._endpoint = endpoint
        self._loop = loop
        self._heard = loop.time()
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None
        self.outgoing.on_output = self.flush
        self.control.on_pong = self._pong

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.start()
        self._timer = self._loop.call_later(QUIET, self._look)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self.receive(data, self._heard)
        self._after()

    def _after(self) -> None:
        self.flush()
        if self.ending.closed:
            self.transport.close()
        elif self.later is not None:
            self._loop.call_soon(self._more)
        self._endpoint.look()
        if self.control.last_words is not None and not self.outgoing.streams:
            self.transport.close()

    def _more(self) -> None:
        self.go_on(self._loop.time())
        self._after()

    def flush(self) -> None:
        """Write what may go, as long as the transport takes it."""
        outgoing = self.outgoing
        before, outgoing.corked = outgoing.corked, True
        try:
            outgoing.pump()
            while outgoing.out:
                pieces, _ = outgoing.take()
                self.transport.writelines(pieces)
                outgoing.pump()
        finally:
            outgoing.corked = before

    def pause_writing(self) -> None:
        self.outgoing.hold_up(True)

    def resume_writing(self) -> None:
        self.outgoing.hold_up(False)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.transport_lost:
            self.transport_lost = f"has closed the connection{f' ({error})' if error else ''}"
        self.ending.lost()
        self._endpoint.lost(self)

    def give_up(self, why: str) -> None:
        """End the connection at once."""
        self.transport_lost = why
        self.ending.lost()
        if self.transport is not None:
            self.transport.abort()

    def _pong(self, payload: bytes) -> None:
        self._pinged = False

    def _look(self) -> None:
        """Ask whether anybody is there, where calls wait and nothing comes."""
        now = self._loop.time()
        quiet = now - self._heard
        if self._pinged and quiet >= PATIENCE:
            self.give_up(f"has not answered a PING for {PATIENCE:g} s")
            return
        if self.outgoing.streams and quiet >= QUIET:
            self._pinged = True
            self.control.ping(os.urandom(8))
            self.flush()
        else:
            self._pinged = False
        self._timer = self._loop.call_later(PATIENCE if self._pinged else QUIET, self._look)


class Endpoint:
    """One far end: an address, its connection, and the calls that wait for one. On the loop.

    `outstanding`: the calls that have not ended, as whoever chooses among endpoints counts them.
    """

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._loop = loop
        self._wire: _Wire | None = None
        self._all: set[_Wire] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[Call] = deque()
        self._closed = False

    def start(self, call: Call) -> None:
        """Send a call, at once or when there is a connection with room for it."""
        if self._closed:
            call.end(Outcome(UNAVAILABLE, f"endpoint {self.address} {CLOSED}", processed=False))
            return
        self._waiting.append(call)
        self.look()

    def look(self) -> None:
        """Open what waits and may go."""
        while self._waiting:
            if self._waiting[0].over:
                self._waiting.popleft()
                continue
            wire = self._wire
            if wire is None or not wire.usable:
                self._connect()
                return
            if not wire.has_room:
                return
            self._open(wire, self._waiting.popleft())

    def _open(self, wire: _Wire, call: Call) -> None:
        stream = call.stream = _CallStream(wire, call, self.address)
        block = b"\x83\x86" + literal(b":path", call.path.encode()) + literal(b":authority", self.address.encode())
        block += literal(b"te", b"trailers") + literal(b"content-type", b"application/grpc")
        block += literal(b"endpoint-load-metrics-format", b"text")
        if call.timeout is not None:
            block += literal(b"grpc-timeout", _timeout(call.timeout))
        outgoing = wire.outgoing
        outgoing.corked, before = True, outgoing.corked
        outgoing.open(stream.id, block)
        stream.send_data([b"\0" + call.size.to_bytes(4, "big"), *call.pieces], call.size + 5)
        stream.finish()
        outgoing.corked = before
        if not before:
            wire.flush()

    def _connect(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = self._loop.create_task(self._make())

    async def _make(self) -> None:
        problem = ""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, wire = await self._loop.create_connection(lambda: _Wire(self, self._loop), self._host, self._port)
            self._wire = wire
            self._all.add(wire)
        except TimeoutError:
            problem = f"can't be connected to within {CONNECT_TIMEOUT:g} s"
        except OSError as error:
            problem = f"can't be connected to ({error.strerror or error})"
        self._connecting = None
        if problem:
            self._fail(problem)
        else:
            self.look()

    def _fail(self, problem: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.end(Outcome(UNAVAILABLE, f"endpoint {self.address} {problem}", processed=False))

    def lost(self, wire: _Wire) -> None:
        """A connection has gone; what waits gets another one."""
        self._all.discard(wire)
        if self._wire is wire:
            self._wire = None
        self.look()

    def close(self) -> None:
        """End everything."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for wire in list(self._all):
            wire.give_up(CLOSED)
        self._fail(CLOSED)


def _timeout(seconds: float) -> bytes:
    """Return the field grpc-timeout: at most eight digits."""
    micros = max(1, int(seconds * 1e6))
    return b"%du" % micros if micros < 10**8 else b"%dm" % min(micros // 1000, 10**8 - 1)

"""A gRPC client without a network: a Peer on a loop in virtual time, bytes in and answers out."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import hpack
from frontends import wires
from frontends.wires import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    Frame,
    data,
    parse,
    request,
    rst_stream,
    settings,
)
from virtual import VirtualLoop

from kernel import LogSettings, MemoryBudget
from kernel_grpc.rpc.calls import Call, open_call
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.protocol import Peer
from kernel_grpc.rpc.server import Server


def message(payload: bytes, *, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(payload)) + payload


class Answer:
    """What has come for one call."""

    def __init__(self) -> None:
        self.head: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.body = b""
        self.frames: list[int] = []  # their types
        self.ended = False
        self.reset: int | None = None

    @property
    def fields(self) -> dict[str, str]:
        return {**self.head, **self.trailers}

    @property
    def status(self) -> int | None:
        status = self.fields.get("grpc-status")
        return None if status is None else int(status)

    @property
    def text(self) -> str:
        return self.fields.get("grpc-message", "")

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        """(compressed, payload) of each, as many as are complete."""
        result, at = [], 0
        while at + 5 <= len(self.body):
            compressed, size = struct.unpack_from(">BI", self.body, at)
            if at + 5 + size > len(self.body):
                break
            result.append((compressed, self.body[at + 5 : at + 5 + size]))
            at += 5 + size
        return result


class FakeTransport:
    """Takes what is written. `limit`: nothing is sent, and with more than this it asks to pause, until `drain`."""

    def __init__(self) -> None:
        self.peer: Peer
        self.written: list[bytes] = []
        self.writes = 0
        self.limit: int | None = None
        self.buffered = 0
        self.paused = self.eof = self.closed = self.aborted = False
        self.can_eof = True

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.7", 5) if name == "peername" else None

    def write(self, data: Any) -> None:
        assert not (self.eof or self.closed or self.aborted), "a write after the end"
        self.writes += 1
        self._take(bytes(data))

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.writes += 1
        self._take(b"".join(map(bytes, pieces)))

    def _take(self, data: bytes) -> None:
        self.written.append(data)
        if self.limit is not None:
            self.buffered += len(data)
            if self.buffered > self.limit:
                self.peer.pause_writing()

    def drain(self) -> None:
        self.buffered = 0
        self.peer.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return self.can_eof

    def write_eof(self) -> None:
        self.eof = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True
        self._lost()

    def abort(self) -> None:
        self.aborted = True
        self._lost()

    def _lost(self) -> None:
        self.peer.connection_lost(None)


#: Those that tests have made; whoever uses a Caller has them closed with `close_loops`.
LOOPS: list[VirtualLoop] = []


def close_loops() -> None:
    while LOOPS:
        LOOPS.pop().close()


class FakeKernel:
    """A loop in virtual time; remembers which requests were cancelled."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        LOOPS.append(self.loop)
        self.clock = self.loop.time
        self.memory = MemoryBudget(2**31, 2**31)
        self.log_settings = LogSettings()
        self.cancelled: list[Any] = []
        self.on_cancel: Callable[[Any], None] = lambda request: None

    def cancel(self, request: Any) -> None:
        self.cancelled.append(request)
        self.on_cancel(request)


class Service:
    """Methods for tests, and the calls they were given. `/pkg.Svc/…`: Echo, Keep (answers nothing), Fail, Chat (streaming)."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.messages: list[Any] = []
        self.chats: list[Chat] = []

    def methods(self) -> list[Method]:
        return [
            Method("/pkg.Svc/Method", self.echo, category="inference"),
            Method("/pkg.Svc/Keep", self.keep, category="statistics"),
            Method("/pkg.Svc/Fail", self.fail),
            Method("/pkg.Svc/Chat", self.chat, streaming=True, category="inference"),
        ]

    def echo(self, call: Call, message: Any) -> None:
        self.keep(call, message)
        call.reply(message if type(message) is bytes else [message.data])

    def keep(self, call: Call, message: Any) -> None:
        self.calls.append(call)
        self.messages.append(message)
        call.request = SimpleNamespace(call=len(self.calls))

    def fail(self, call: Call, message: Any) -> None:
        self.keep(call, message)
        raise ValueError("oops")

    def chat(self, call: Call) -> Chat:
        chat = Chat(call)
        self.chats.append(chat)
        return chat


class Chat:
    """A stream that keeps its messages, holds when it is told to, and ends when the client does."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.messages: list[Any] = []
        self.closed = 0
        self.cancelled = 0
        self.hold_after: int | None = None
        self.ends = True
        call.on_cancel = self.cancel

    def message(self, data: Any) -> None:
        self.messages.append(data)
        if bytes(data) == b"boom":
            raise ValueError("boom")
        if self.hold_after == len(self.messages):
            self.call.hold()

    def half_closed(self) -> None:
        self.closed += 1
        if self.ends:
            self.call.finish()

    def cancel(self) -> None:
        self.cancelled += 1


class Caller:
    """One client of one server. Ids of calls count up as they are begun."""

    def __init__(
        self, *, greet: bool = True, transport: FakeTransport | None = None, like: Caller | None = None, **options: Any
    ) -> None:
        """`like`: a client of the same server."""
        self.kernel = FakeKernel() if like is None else like.kernel
        self.service = Service() if like is None else like.service
        made = Server(self.kernel, self.service.methods(), open_call, **options) if like is None else None  # type: ignore[arg-type]
        self.server = made or like.server  # type: ignore[union-attr]
        self.transport = transport or FakeTransport()
        self.peer = self.transport.peer = Peer(self.server)
        self.peer.connection_made(self.transport)
        self.decoder = hpack.Decoder(2**20)
        self.answers: dict[int, Answer] = {}
        self.frames: list[Frame] = []
        self._next = 1
        if greet:
            self.send(PREFACE + settings() + settings(ack=True))

    # --- sending

    def send(self, payload: bytes) -> None:
        """Have the server read `payload`, as it would from a socket."""
        at = 0
        while at < len(payload) and not self.transport.is_closing():
            buffer = self.peer.get_buffer(-1)
            count = min(len(buffer), len(payload) - at)
            buffer[:count] = payload[at : at + count]
            self.peer.buffer_updated(count)
            while self.peer.http.later is not None and not self.transport.is_closing():
                assert self.transport.paused
                self.kernel.loop.run_until_complete(asyncio.sleep(0))
            at += count
        self.read()

    def begin(self, name: str = "Method", *, block: bytes = b"", **fields: str) -> int:
        """Begin a call and send nothing more. `block`: its fields, as they are to be sent."""
        id, self._next = self._next, self._next + 2
        self.answers[id] = Answer()
        made = wires.frame(HEADERS, END_HEADERS, id, block) if block else request(id, **{":path": f"/pkg.Svc/{name}", **fields})
        self.send(made)
        return id

    def call(self, name: str = "Method", payload: bytes = b"", *, raw: bytes | None = None, **fields: str) -> Answer:
        """Make a unary call; `raw`: what to send instead of one message."""
        id = self.begin(name, **fields)
        self.send(data(id, message(payload) if raw is None else raw, end=True))
        return self.answers[id]

    def cancel(self, id: int) -> None:
        self.send(rst_stream(id))

    # --- receiving

    def read(self) -> list[Frame]:
        """Take what was written; return the frames."""
        frames = parse(b"".join(self.transport.written))
        self.transport.written.clear()
        for frame in frames:
            answer = self.answers.get(frame.stream)
            if frame.kind == HEADERS:
                fields = dict(self.decoder.decode(frame.payload))
                assert answer is not None and not answer.ended
                if answer.head:
                    answer.trailers = fields
                else:
                    answer.head = fields
            elif frame.kind == DATA:
                assert answer is not None and answer.head and not answer.ended
                answer.body += frame.payload
            elif frame.kind == RST_STREAM and answer is not None:
                answer.reset = frame.number
            if answer is not None:
                answer.frames.append(frame.kind)
                answer.ended = answer.ended or (frame.kind in (HEADERS, DATA) and bool(frame.flags & END_STREAM))
        self.frames += frames
        return frames

    def goaway(self) -> tuple[int, int, str] | None:
        """Return (last stream, code, text) of the last GOAWAY that came."""
        for frame in reversed(self.frames):
            if frame.kind == GOAWAY:
                last, code = struct.unpack_from(">II", frame.payload)
                return last, code, frame.payload[8:].decode()
        return None

    def pings(self) -> int:
        return sum(frame.kind == PING and not frame.flags for frame in self.frames)

    def wait(self, seconds: float = 0.0) -> None:
        """Let time pass, one turn of the loop at least."""
        self.kernel.loop.run_until_complete(asyncio.sleep(seconds))
        self.read()


def binary(value: bytes) -> str:
    """Encode the value of a `-bin` field, without padding."""
    return base64.b64encode(value).decode().rstrip("=")

"""A client's side of HTTP/2 for tests, made of bytes: frames out, frames in, and streams that keep what comes."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import hpack

from kernel_grpc.http2 import Connection, Data, Head, Stream

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 1, 1, 4, 8, 32

#: Error codes, so that a test does not take the server's word for them.
NO_ERROR, PROTOCOL, INTERNAL, FLOW_CONTROL, SETTINGS_TIMEOUT, CLOSED, FRAME_SIZE, REFUSED, CANCEL, COMPRESSION = range(10)
CALM = 11

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/pkg.Svc/Method"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """The payload of RST_STREAM or WINDOW_UPDATE."""
        return int.from_bytes(self.payload, "big")


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", *, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def block(fields: list[tuple[str, str]]) -> bytes:
    """Encode fields without the dynamic table, so that any order and any connection will do."""

    def string(text: str) -> bytes:
        data = text.encode("latin-1")
        return bytes(hpack.hpack.encode_integer(len(data), 7)) + data

    return b"".join(b"\0" + string(name) + string(value) for name, value in fields)


def request(stream: int = 1, fields: list[tuple[str, str]] | None = None, *, end: bool = False, **others: str) -> bytes:
    """Return the HEADERS of a request; `others`: fields instead of, or besides, the usual ones. "" leaves one out."""
    chosen = dict(REQUEST if fields is None else fields)
    chosen.update({name.replace("_", "-"): value for name, value in others.items()})
    listed = [(name, value) for name, value in chosen.items() if value]
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block(listed))


def data(stream: int, payload: bytes = b"", *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream, payload)


def settings(*pairs: tuple[int, int], ack: bool = False) -> bytes:
    return frame(SETTINGS, ACK if ack else 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", increment))


def rst_stream(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def parse(out: bytes) -> list[Frame]:
    """Split what a server has sent into frames; they are complete."""
    frames, at = [], 0
    while at < len(out):
        size = int.from_bytes(out[at : at + 3], "big")
        kind, flags = out[at + 3], out[at + 4]
        stream = int.from_bytes(out[at + 5 : at + 9], "big")
        assert at + 9 + size <= len(out), "a frame that is cut off"
        frames.append(Frame(kind, flags, stream, out[at + 9 : at + 9 + size]))
        at += 9 + size
    return frames


class Recorded(Stream):
    """A stream that keeps what it is told."""

    __slots__ = ("codes", "ends", "filled_at", "got", "head", "hold_at", "memory", "rooms")

    def __init__(self, connection: Connection, id: int, head: Head, ended: bool) -> None:
        super().__init__(connection, id, ended, head.content_length)
        self.head = head
        self.got = bytearray()
        self.ends = 0
        self.codes: list[int] = []
        self.rooms = 0
        self.hold_at: int | None = None  # hold once so many bytes have come
        self.memory: memoryview | None = None  # for what can be received directly
        self.filled_at = 0

    @property
    def data(self) -> bytes:
        return bytes(self.got)

    def received(self, data: Data, start: int, stop: int, ended: bool) -> int | None:
        if self.hold_at is not None and len(self.got) + stop - start >= self.hold_at:
            taken = start + self.hold_at - len(self.got)
            self.hold_at = None
            self.got += bytes(data[start:taken])
            self.hold()
            return taken
        self.got += bytes(data[start:stop])
        self.ends += ended
        return None

    def aborted(self, code: int) -> None:
        assert self.done
        self.codes.append(code)

    def room_again(self) -> None:
        self.rooms += 1

    def space(self) -> memoryview | None:
        return None if self.memory is None else self.memory[self.filled_at :]

    def filled(self, count: int) -> None:
        self.filled_at += count


class Wire:
    """A connection under test. `send` gives it bytes and returns the frames that it sends; time stands still."""

    def __init__(self, *, greet: bool = True, **options: Any) -> None:
        self.now = 1000.0
        self.outputs = 0
        self.turns = 0  # how many further turns of a loop it has taken
        self.opened: dict[int, Recorded] = {}
        self.connection = Connection(self._open, self.now, on_output=self._output, **options)
        self.connection.start()
        self.preface = self.frames()
        if greet:
            self.send(PREFACE + settings())
            self.send(settings(ack=True))

    def _open(self, connection: Connection, id: int, head: Head, ended: bool) -> Recorded:
        stream = self.opened[id] = Recorded(connection, id, head, ended)
        return stream

    def _output(self) -> None:
        self.outputs += 1

    def send(self, *pieces: bytes) -> list[Frame]:
        for piece in pieces:
            self.connection.receive(piece, self.now)
            while self.connection.later is not None and not self.connection.ending.closed:
                self.turns += 1
                self.connection.go_on(self.now)
        return self.frames()

    def frames(self) -> list[Frame]:
        """Take what the server has sent."""
        out, _ = self.connection.outgoing.take()
        return parse(b"".join(out))

    def fails(self, *pieces: bytes) -> tuple[int, str]:
        """Send what must end the connection; return the code and text of the GOAWAY, the last frame."""
        frames = self.send(*pieces)
        assert self.connection.ending.closed
        assert [frame.kind for frame in frames].count(GOAWAY) == 1 and frames[-1].kind == GOAWAY, frames
        return int.from_bytes(frames[-1].payload[4:8], "big"), frames[-1].payload[8:].decode()

    def resets(self, *pieces: bytes) -> list[tuple[int, int]]:
        """Send what must reset streams and leave the connection; return (stream, code) of each."""
        frames = self.send(*pieces)
        assert not self.connection.ending.closed, frames
        return [(frame.stream, frame.number) for frame in frames if frame.kind == RST_STREAM]

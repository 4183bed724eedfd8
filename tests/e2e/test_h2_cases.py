"""The cases of h2spec, the conformance suite for HTTP/2, told again: bytes to the gRPC port, and what has to become of them.

They stand under h2spec's own numbers, so that its list can be laid beside this one. It counts sections by RFC 7540 and RFC 7541;
where RFC 9113 changed a rule (priorities are not read any more) the newer one holds. What is wrong with a connection ends it with
GOAWAY; what is wrong with a stream ends that with RST_STREAM, and the connection serves the next call as if nothing had been.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from .serving import serving, wait_until, write_model

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
PROTOCOL, FLOW_CONTROL, CLOSED, FRAME_SIZE, REFUSED, COMPRESSION = 1, 3, 5, 6, 7, 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ServerLive"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
Fields = list[tuple[str, str]]
EMPTY = bytes(5)  # a message without fields


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(text: str) -> bytes:
    data = text.encode("latin-1")
    return bytes(hpack.hpack.encode_integer(len(data), 7)) + data


def coded(text: str) -> bytes:
    data = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text.encode())
    return bytes((0x80 | len(data),)) + data


def block(fields: list[tuple[str, str]]) -> bytes:
    return b"".join(b"\0" + literal(name) + literal(value) for name, value in fields)


def but(**fields: str) -> list[tuple[str, str]]:
    """The usual request, with pseudo-header fields of these values; "" leaves one out."""
    chosen = [(name, fields.get(name.removeprefix(":"), value)) for name, value in REQUEST]
    return [(name, value) for name, value in chosen if value]


def headers(stream: int, fields: Fields | bytes = REQUEST, flags: int = END_HEADERS, before: bytes = b"") -> bytes:
    return frame(HEADERS, flags, stream, before + (fields if isinstance(fields, bytes) else block(fields)))


def call(stream: int, fields: Fields | bytes = REQUEST) -> bytes:
    """A whole call."""
    return headers(stream, fields) + frame(DATA, END_STREAM, stream, EMPTY)


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def number(kind: int, stream: int, value: int) -> bytes:
    return frame(kind, 0, stream, struct.pack(">I", value))


#: Held at half-closed (remote): its answer's message has no window to go out.
KEPT = settings((4, 0)) + call(1)
RESET = headers(1) + number(RST_STREAM, 1, 8)
ALL = END_HEADERS | END_STREAM
PIECES = [block(REQUEST)[at : at + 40] for at in range(0, len(block(REQUEST)), 40)]
EXTRA = b"\x00" + literal("x-more") + literal("y")
#: One field of every representation (RFC 7541, 6), behind the fields of a call.
KINDS = {
    "indexed": b"\x90",  # accept-encoding: gzip, deflate
    "literal with incremental indexing, indexed name": b"\x7a" + literal("x"),
    "literal with incremental indexing, indexed name, Huffman": b"\x7a\x81\xf3",
    "literal with incremental indexing, new name": b"\x40" + literal("x-new") + literal("x"),
    "literal with incremental indexing, new name, Huffman": b"\x40" + coded("x-new") + coded("x"),
    "literal without indexing, indexed name": b"\x0f\x2b" + literal("x"),
    "literal without indexing, indexed name, Huffman": b"\x0f\x2b\x81\xf3",
    "literal without indexing, new name": b"\x00" + literal("x-new") + literal("x"),
    "literal without indexing, new name, Huffman": b"\x00" + coded("x-new") + coded("x"),
    "literal never indexed, indexed name": b"\x1f\x2b" + literal("x"),
    "literal never indexed, indexed name, Huffman": b"\x1f\x2b\x81\xf3",
    "literal never indexed, new name": b"\x10" + literal("x-new") + literal("x"),
    "literal never indexed, new name, Huffman": b"\x10" + coded("x-new") + coded("x"),
}

#: Name -> what is sent, behind the preface, and what becomes of it.
#: ("answered", stream): that stream has an answer; ("serves", 0): nothing, and the connection goes on;
#: ("reset", code): stream 1 is, or the one that was sent last; ("ended", code): the connection is.
ANSWERED, SERVES = ("answered", 1), ("serves", 0)


def reset(code: int) -> tuple[str, int]:
    return "reset", code


def ended(code: int) -> tuple[str, int]:
    return "ended", code


CASES: dict[str, tuple[bytes, tuple[str, int]]] = {
    # generic
    "generic/1/1 preface": (b"", SERVES),
    "generic/2/1 PRIORITY on idle": (frame(PRIORITY, 0, 1, bytes(5)) + call(1), ANSWERED),
    "generic/2/2 WINDOW_UPDATE on half-closed": (KEPT + number(WINDOW_UPDATE, 1, 100), ANSWERED),
    "generic/2/3 PRIORITY on half-closed": (KEPT + frame(PRIORITY, 0, 1, bytes(5)) + number(WINDOW_UPDATE, 1, 100), ANSWERED),
    "generic/2/4 RST_STREAM on half-closed": (KEPT + number(RST_STREAM, 1, 8) + settings((4, 100)) + call(3), ("answered", 3)),
    "generic/2/5 PRIORITY on closed": (RESET + frame(PRIORITY, 0, 1, bytes(5)), SERVES),
    "generic/3.1/1 DATA": (call(1), ANSWERED),
    "generic/3.1/2 several DATA": (headers(1) + frame(DATA, 0, 1, EMPTY[:2]) + frame(DATA, 1, 1, EMPTY[2:]), ANSWERED),
    "generic/3.1/3 DATA with padding": (headers(1) + frame(DATA, 1 | PADDED, 1, b"\x03" + EMPTY + bytes(3)), ANSWERED),
    "generic/3.2/1 HEADERS": (call(1), ANSWERED),
    "generic/3.2/2 HEADERS with padding": (
        headers(1, block(REQUEST) + bytes(6), END_HEADERS | PADDED, b"\x06") + frame(DATA, 1, 1, EMPTY),
        ANSWERED,
    ),
    "generic/3.2/3 HEADERS with priority": (
        headers(1, REQUEST, END_HEADERS | HAS_PRIORITY, bytes(4) + b"\x10") + frame(DATA, 1, 1, EMPTY),
        ANSWERED,
    ),
    "generic/3.3/1 PRIORITY 1": (frame(PRIORITY, 0, 1, bytes(5)) + call(1), ANSWERED),
    "generic/3.3/2 PRIORITY 256": (frame(PRIORITY, 0, 1, bytes(4) + b"\xff") + call(1), ANSWERED),
    "generic/3.3/3 PRIORITY with a dependency": (headers(1) + frame(PRIORITY, 0, 3, b"\0\0\0\1\0") + call(3), ("answered", 3)),
    "generic/3.3/4 PRIORITY, exclusive": (headers(1) + frame(PRIORITY, 0, 3, b"\x80\0\0\1\0") + call(3), ("answered", 3)),
    "generic/3.3/5 PRIORITY on idle, then a lower id": (frame(PRIORITY, 0, 9, bytes(5)) + call(1), ANSWERED),
    "generic/3.4/1 RST_STREAM": (RESET, SERVES),
    "generic/3.5/1 SETTINGS": (settings((3, 100)), SERVES),
    "generic/3.7/1 PING": (frame(PING, 0, 0, b"h2spec\0\0"), SERVES),
    "generic/3.8/1 GOAWAY": (frame(GOAWAY, 0, 0, bytes(8)), SERVES),
    "generic/3.9/1 WINDOW_UPDATE on 0": (number(WINDOW_UPDATE, 0, 1), SERVES),
    "generic/3.9/2 WINDOW_UPDATE on 1": (headers(1) + number(WINDOW_UPDATE, 1, 1) + frame(DATA, 1, 1, EMPTY), ANSWERED),
    "generic/3.10/1 CONTINUATION": (
        headers(1, PIECES[0], 0) + frame(CONTINUATION, 4, 1, b"".join(PIECES[1:])) + frame(DATA, 1, 1, EMPTY),
        ANSWERED,
    ),
    "generic/3.10/2 several CONTINUATION": (
        headers(1, PIECES[0], 0)
        + b"".join(frame(CONTINUATION, 0, 1, piece) for piece in PIECES[1:])
        + frame(CONTINUATION, 4, 1)
        + frame(DATA, 1, 1, EMPTY),
        ANSWERED,
    ),
    "generic/4/1 GET": (headers(1, but(method="GET"), ALL), ANSWERED),
    "generic/4/2 HEAD": (headers(1, but(method="HEAD"), ALL), ANSWERED),
    "generic/4/3 POST": (call(1), ANSWERED),
    "generic/4/4 POST with trailers": (
        headers(1) + frame(DATA, 0, 1, EMPTY) + headers(1, [("x-trailer", "y")], ALL),
        ANSWERED,
    ),
    **{f"generic/5/{k} {name}": (call(1, block(REQUEST) + more), ANSWERED) for k, (name, more) in enumerate(KINDS.items(), 1)},
    "generic/5/14 table size": (call(1, b"\x20" + block(REQUEST)), ANSWERED),
    "generic/5/15 several table sizes": (call(1, b"\x20\x3f\xe1\x1f" + block(REQUEST)), ANSWERED),
    # http2
    "http2/4.1/1 unknown type": (frame(0x16, 0, 0, bytes(8)), SERVES),
    "http2/4.1/2 unknown flags": (frame(PING, 0x16, 0, bytes(8)), SERVES),
    "http2/4.1/3 reserved bit": (frame(PING, 0, 1 << 31, bytes(8)), SERVES),
    "http2/4.2/1 DATA of 2^14": (
        headers(1) + frame(DATA, 0, 1, b"\0" + (2**14 - 5).to_bytes(4, "big") + bytes(2**14 - 5)) + frame(DATA, 1, 1),
        ANSWERED,
    ),
    "http2/4.2/2 DATA above the largest frame": (headers(1) + frame(DATA, 1, 1, bytes(2**20 + 1)), ended(FRAME_SIZE)),
    "http2/4.2/3 HEADERS above the largest frame": (headers(1, bytes(2**20 + 1)), ended(FRAME_SIZE)),
    "http2/4.3/1 block that can't be decoded": (headers(1, b"\x40", ALL), ended(COMPRESSION)),
    "http2/4.3/2 PRIORITY in a block": (headers(1, PIECES[0], 0) + frame(PRIORITY, 0, 1, bytes(5)), ended(PROTOCOL)),
    "http2/4.3/3 HEADERS of others in a block": (headers(1, PIECES[0], 0) + headers(3), ended(PROTOCOL)),
    "http2/5.1/1 idle: DATA": (frame(DATA, 1, 1, b"x"), ended(PROTOCOL)),
    "http2/5.1/2 idle: RST_STREAM": (number(RST_STREAM, 1, 8), ended(PROTOCOL)),
    "http2/5.1/3 idle: WINDOW_UPDATE": (number(WINDOW_UPDATE, 1, 100), ended(PROTOCOL)),
    "http2/5.1/4 idle: CONTINUATION": (frame(CONTINUATION, ALL, 1, block(REQUEST)), ended(PROTOCOL)),
    "http2/5.1/5 half-closed: DATA": (KEPT + frame(DATA, 1, 1, b"x"), reset(CLOSED)),
    "http2/5.1/6 half-closed: HEADERS": (KEPT + headers(1, REQUEST, ALL), reset(CLOSED)),
    "http2/5.1/7 half-closed: CONTINUATION": (KEPT + frame(CONTINUATION, ALL, 1, EXTRA), ended(PROTOCOL)),
    "http2/5.1/8 reset: DATA": (RESET + frame(DATA, 1, 1, b"x"), reset(CLOSED)),
    "http2/5.1/9 reset: HEADERS": (RESET + headers(1, REQUEST, ALL), reset(CLOSED)),
    "http2/5.1/10 reset: CONTINUATION": (RESET + frame(CONTINUATION, ALL, 1, EXTRA), ended(PROTOCOL)),
    "http2/5.1.1/1 even id": (call(2), ended(PROTOCOL)),
    "http2/5.1.1/2 id that goes back": (call(5) + headers(3), ended(PROTOCOL)),
    "http2/5.3.1/1 HEADERS that depends on itself": (  # RFC 9113, 5.3.2: priorities are not read
        headers(1, REQUEST, END_HEADERS | HAS_PRIORITY, b"\0\0\0\1\xff") + frame(DATA, 1, 1, EMPTY),
        ANSWERED,
    ),
    "http2/5.3.1/2 PRIORITY that depends on itself": (frame(PRIORITY, 0, 1, b"\0\0\0\1\xff") + call(1), ANSWERED),
    "http2/5.4.1/1 and 2 PING that is wrong": (frame(PING, 0, 3, bytes(8)), ended(PROTOCOL)),
    "http2/5.5/1 unknown extension": (frame(0xFF, 0, 0, b"unknown!"), SERVES),
    "http2/5.5/2 unknown extension in a block": (headers(1, PIECES[0], 0) + frame(0xFF, 0, 1, bytes(8)), ended(PROTOCOL)),
    "http2/6.1/1 DATA on 0": (frame(DATA, 1, 0, b"x"), ended(PROTOCOL)),
    "http2/6.1/2 DATA on a stream that is not open": (KEPT + frame(DATA, 1, 1, b"x"), reset(CLOSED)),
    "http2/6.1/3 DATA's padding too long": (headers(1) + frame(DATA, 1 | PADDED, 1, b"\x06" + EMPTY), ended(PROTOCOL)),
    "http2/6.2/1 HEADERS, then PRIORITY": (headers(1, PIECES[0], 0) + frame(PRIORITY, 0, 1, bytes(5)), ended(PROTOCOL)),
    "http2/6.2/2 HEADERS, then another stream's": (headers(1, PIECES[0], 0) + headers(3), ended(PROTOCOL)),
    "http2/6.2/3 HEADERS on 0": (headers(0), ended(PROTOCOL)),
    "http2/6.2/4 HEADERS' padding too long": (headers(1, b"\x82", ALL | PADDED, b"\x08"), ended(PROTOCOL)),
    "http2/6.3/1 PRIORITY on 0": (frame(PRIORITY, 0, 0, bytes(5)), ended(PROTOCOL)),
    "http2/6.3/2 PRIORITY of 4 bytes": (headers(1) + frame(PRIORITY, 0, 1, bytes(4)), reset(FRAME_SIZE)),
    "http2/6.4/1 RST_STREAM on 0": (number(RST_STREAM, 0, 8), ended(PROTOCOL)),
    "http2/6.4/2 RST_STREAM on idle": (number(RST_STREAM, 1, 8), ended(PROTOCOL)),
    "http2/6.4/3 RST_STREAM of 3 bytes": (headers(1) + frame(RST_STREAM, 0, 1, bytes(3)), ended(FRAME_SIZE)),
    "http2/6.5/1 ACK with a payload": (frame(SETTINGS, ACK, 0, bytes(6)), ended(FRAME_SIZE)),
    "http2/6.5/2 SETTINGS on a stream": (frame(SETTINGS, 0, 1, bytes(6)), ended(PROTOCOL)),
    "http2/6.5/3 SETTINGS of 3 bytes": (frame(SETTINGS, 0, 0, bytes(3)), ended(FRAME_SIZE)),
    "http2/6.5.2/1 ENABLE_PUSH 2": (settings((2, 2)), ended(PROTOCOL)),
    "http2/6.5.2/2 INITIAL_WINDOW_SIZE 2^31": (settings((4, 2**31)), ended(FLOW_CONTROL)),
    "http2/6.5.2/3 MAX_FRAME_SIZE below 2^14": (settings((5, 2**14 - 1)), ended(PROTOCOL)),
    "http2/6.5.2/4 MAX_FRAME_SIZE 2^24": (settings((5, 2**24)), ended(PROTOCOL)),
    "http2/6.5.2/5 unknown setting": (settings((0xFF, 1)), SERVES),
    "http2/6.5.3/1 the last INITIAL_WINDOW_SIZE counts": (settings((4, 0), (4, 100)) + call(1), ANSWERED),
    "http2/6.7/2 ACK of no PING": (frame(PING, ACK, 0, bytes(8)), SERVES),
    "http2/6.7/3 PING on a stream": (frame(PING, 0, 1, bytes(8)), ended(PROTOCOL)),
    "http2/6.7/4 PING of 6 bytes": (frame(PING, 0, 0, bytes(6)), ended(FRAME_SIZE)),
    "http2/6.8/1 GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), ended(PROTOCOL)),
    "http2/6.9/1 WINDOW_UPDATE by 0": (number(WINDOW_UPDATE, 0, 0), ended(PROTOCOL)),
    "http2/6.9/2 WINDOW_UPDATE by 0 on a stream": (headers(1) + number(WINDOW_UPDATE, 1, 0), reset(PROTOCOL)),
    "http2/6.9/3 WINDOW_UPDATE of 3 bytes": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), ended(FRAME_SIZE)),
    "http2/6.9.1/1 window of 1": (settings((4, 1)) + call(1) + number(WINDOW_UPDATE, 1, 1) * 9, ANSWERED),
    "http2/6.9.1/2 window above 2^31 - 1": (number(WINDOW_UPDATE, 0, 2**31 - 1) * 2, ended(FLOW_CONTROL)),
    "http2/6.9.1/3 stream's window above 2^31 - 1": (headers(1) + number(WINDOW_UPDATE, 1, 2**31 - 1) * 2, reset(FLOW_CONTROL)),
    "http2/6.9.2/1 window that opens later": (KEPT + settings((4, 100)), ANSWERED),
    "http2/6.9.2/2 window below nothing": (
        settings((4, 3)) + call(1) + settings((4, 2)) + number(WINDOW_UPDATE, 1, 1) * 9,
        ANSWERED,
    ),
    "http2/6.9.2/3 INITIAL_WINDOW_SIZE 2^31": (settings((4, 2**31)), ended(FLOW_CONTROL)),
    "http2/6.10/1 several CONTINUATION": (
        headers(1, PIECES[0], 0)
        + b"".join(frame(CONTINUATION, 0, 1, piece) for piece in PIECES[1:-1])
        + frame(CONTINUATION, 4, 1, PIECES[-1])
        + frame(DATA, 1, 1, EMPTY),
        ANSWERED,
    ),
    "http2/6.10/2 CONTINUATION, then DATA": (
        headers(1, PIECES[0], 0) + frame(CONTINUATION, 0, 1, PIECES[1]) + frame(DATA, 1, 1, b"x"),
        ended(PROTOCOL),
    ),
    "http2/6.10/3 CONTINUATION on 0": (headers(1, PIECES[0], 0) + frame(CONTINUATION, 4, 0, PIECES[1]), ended(PROTOCOL)),
    "http2/6.10/4 CONTINUATION of nothing": (headers(1) + frame(CONTINUATION, 4, 1, EXTRA), ended(PROTOCOL)),
    "http2/6.10/5 CONTINUATION behind the last": (
        headers(1, block(REQUEST), 0) + frame(CONTINUATION, 4, 1, EXTRA) * 2,
        ended(PROTOCOL),
    ),
    "http2/6.10/6 CONTINUATION behind DATA": (
        headers(1) + frame(DATA, 0, 1, EMPTY[:1]) + frame(CONTINUATION, 4, 1, EXTRA),
        ended(PROTOCOL),
    ),
    "http2/7/1 GOAWAY with an unknown code": (frame(GOAWAY, 0, 0, bytes(4) + b"\0\0\0\xff"), SERVES),
    "http2/7/2 RST_STREAM with an unknown code": (headers(1) + number(RST_STREAM, 1, 0xFF), SERVES),
    "http2/8.1/1 second HEADERS that is not the last": (headers(1) + headers(1), reset(PROTOCOL)),
    "http2/8.1.2/1 upper case": (call(1, [*REQUEST, ("X-TEST", "ok")]), reset(PROTOCOL)),
    "http2/8.1.2.1/1 unknown pseudo-header field": (call(1, [(":test", "ok"), *REQUEST]), reset(PROTOCOL)),
    "http2/8.1.2.1/2 that of an answer": (call(1, [(":status", "200"), *REQUEST]), reset(PROTOCOL)),
    "http2/8.1.2.1/3 in trailers": (
        headers(1) + frame(DATA, 0, 1, EMPTY) + headers(1, [(":method", "POST")], ALL),
        reset(PROTOCOL),
    ),
    "http2/8.1.2.1/4 behind a regular field": (call(1, [*REQUEST[1:], REQUEST[0]]), reset(PROTOCOL)),
    "http2/8.1.2.2/1 connection": (call(1, [*REQUEST, ("connection", "keep-alive")]), reset(PROTOCOL)),
    "http2/8.1.2.2/2 te": (call(1, [*REQUEST[:-1], ("te", "trailers, deflate")]), reset(PROTOCOL)),
    "http2/8.1.2.3/1 empty :path": (call(1, [*REQUEST[:2], (":path", ""), *REQUEST[3:]]), reset(PROTOCOL)),
    "http2/8.1.2.3/2 no :method": (call(1, but(method="")), reset(PROTOCOL)),
    "http2/8.1.2.3/3 no :scheme": (call(1, but(scheme="")), reset(PROTOCOL)),
    "http2/8.1.2.3/4 no :path": (call(1, but(path="")), reset(PROTOCOL)),
    "http2/8.1.2.3/5 two :method": (call(1, [REQUEST[0], *REQUEST]), reset(PROTOCOL)),
    "http2/8.1.2.3/6 two :scheme": (call(1, [REQUEST[1], *REQUEST]), reset(PROTOCOL)),
    "http2/8.1.2.3/7 two :path": (call(1, [REQUEST[2], *REQUEST]), reset(PROTOCOL)),
    "http2/8.1.2.6/1 content-length, one DATA": (call(1, [*REQUEST, ("content-length", "1")]), reset(PROTOCOL)),
    "http2/8.1.2.6/2 content-length, several DATA": (
        headers(1, [*REQUEST, ("content-length", "1")]) + frame(DATA, 0, 1, EMPTY[:2]) + frame(DATA, 1, 1, EMPTY[2:]),
        reset(PROTOCOL),
    ),
    "http2/8.2/1 PUSH_PROMISE": (headers(1) + frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2" + block(REQUEST)), ended(PROTOCOL)),
    # hpack
    "hpack/2.3.3/1 index beyond the tables": (call(1, block(REQUEST) + b"\xc6"), ended(COMPRESSION)),
    "hpack/2.3.3/2 name beyond the tables": (call(1, block(REQUEST) + b"\x7f\x07" + literal("x")), ended(COMPRESSION)),
    "hpack/4.2/1 table size at the end": (call(1, block(REQUEST) + b"\x20"), ended(COMPRESSION)),
    "hpack/5.2/1 more than 7 bits of padding": (call(1, block(REQUEST) + b"\x00\x82\xf3\xff\x81\xf3"), ended(COMPRESSION)),
    "hpack/5.2/2 padding of zeros": (call(1, block(REQUEST) + b"\x00\x81\xf2\x81\xf3"), ended(COMPRESSION)),
    "hpack/5.2/3 the end within a string": (call(1, block(REQUEST) + b"\x00\x84\xff\xff\xff\xff\x81\xf3"), ended(COMPRESSION)),
    "hpack/6.1/1 index 0": (call(1, block(REQUEST) + b"\x80"), ended(COMPRESSION)),
    "hpack/6.3/1 table size above the limit": (call(1, b"\x3f\xe1\xff\xff\x01" + block(REQUEST)), ended(COMPRESSION)),
}  # fmt: skip


class Client:
    """A connection to the server: frames out, frames in."""

    def __init__(self, port: int, sent: bytes = PREFACE + settings()) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.rest = b""
        self.sock.sendall(sent)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def next(self) -> tuple[int, int, int, bytes] | None:
        """The next frame: type, flags, stream and payload; None where the server has closed."""
        try:
            while len(self.rest) < 9 or len(self.rest) < 9 + int.from_bytes(self.rest[:3], "big"):
                piece = self.sock.recv(65536)
                if not piece:
                    return None
                self.rest += piece
        except ConnectionError:
            return None
        size = 9 + int.from_bytes(self.rest[:3], "big")
        one, self.rest = self.rest[:size], self.rest[size:]
        return one[3], one[4], int.from_bytes(one[5:9], "big"), one[9:]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("h2")
    write_model(folder / "models", "add")
    with serving(folder, folder / "models", "--allow-metrics=false") as server:
        found = []
        wait_until(lambda: found.extend(re.findall(r"Started GRPCInferenceService at [^ ]+:(\d+)", server.text())) or found)
        yield int(found[0])


def outcome(client: Client) -> tuple[str, int]:
    """What the server has made of what was sent, up to its answer to a PING that is sent behind it."""
    client.send(frame(PING, 0, 0, b"the last"))
    answered = 0
    while True:
        match client.next():
            case None:
                return "closed", 0
            case (0x7, _, _, payload):
                return "ended", int.from_bytes(payload[4:8], "big")
            case (0x3, _, _, payload):
                return "reset", int.from_bytes(payload, "big")
            case (0x1, flags, stream, _) if flags & END_STREAM:
                answered = stream
            case (0x6, 1, _, b"the last"):
                return ("answered", answered) if answered else SERVES


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, port: int) -> None:
    sent, expected = CASES[name]
    client = Client(port)
    with client.sock:
        client.send(sent)
        assert outcome(client) == expected
        if expected[0] == "ended":
            while client.next() is not None:
                pass
            return
        client.send(settings((4, 65535)) + call(99))
        while (one := client.next()) is not None and (one[0] != HEADERS or one[2] != 99 or not one[1] & END_STREAM):
            assert one[0] != GOAWAY, one
        assert one is not None, "the next call has no answer"


def test_http2_3_5_2_preface_that_is_none(port: int) -> None:
    client = Client(port, b"INVALID CONNECTION PREFACE\r\n\r\n" + settings())
    with client.sock:
        kinds = []
        while (one := client.next()) is not None:
            kinds.append(one[0])
        assert kinds == [] or kinds[-1] == GOAWAY


def test_http2_5_1_2_more_streams_than_there_may_be(port: int) -> None:
    client = Client(port)
    with client.sock:
        most = next_settings(client).get(3, 100)
        for stream in range(1, 2 * most + 3, 2):
            client.send(headers(stream))
        assert outcome(client) in (reset(REFUSED), reset(PROTOCOL))


def test_http2_6_5_3_2_settings_are_acknowledged(port: int) -> None:
    client = Client(port)
    with client.sock:
        while (one := client.next()) is not None and one != (SETTINGS, ACK, 0, b""):
            pass
        assert one is not None


def test_http2_6_7_1_ping_is_answered_with_what_it_brought(port: int) -> None:
    client = Client(port)
    with client.sock:
        client.send(frame(PING, 0, 0, b"h2spec\0\0"))
        while (one := client.next()) is not None and one[0] != PING:
            pass
        assert one == (PING, ACK, 0, b"h2spec\0\0")


@pytest.mark.parametrize("kind", ["DATA", "HEADERS", "CONTINUATION"])
def test_http2_5_1_11_to_13_a_stream_that_both_have_ended(kind: str, port: int) -> None:
    headed, more = headers(1, REQUEST, ALL), frame(CONTINUATION, ALL, 1, EXTRA)
    late = {"DATA": frame(DATA, 1, 1, b"x"), "HEADERS": headed, "CONTINUATION": more}
    client = Client(port)
    with client.sock:
        client.send(call(1))
        while (one := client.next()) is not None and not (one[0] == HEADERS and one[1] & END_STREAM):
            pass
        client.send(late[kind])
        assert outcome(client) == ended(PROTOCOL if kind == "CONTINUATION" else CLOSED)


def next_settings(client: Client) -> dict[int, int]:
    """The settings that the server sends first."""
    while (one := client.next()) is not None and (one[0] != SETTINGS or one[1] & ACK):
        pass
    assert one is not None
    return dict(struct.iter_unpack(">HI", one[3]))

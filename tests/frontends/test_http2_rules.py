"""HTTP/2: what a server refuses, and how (RFC 9113): the connection with GOAWAY, one stream with RST_STREAM, or not at all."""

from __future__ import annotations

import struct
import time

import hpack
import pytest
from frontends.wires import (
    ACK,
    CALM,
    CLOSED,
    COMPRESSION,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL,
    FRAME_SIZE,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PROTOCOL,
    PUSH_PROMISE,
    REFUSED,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Wire,
    block,
    data,
    frame,
    ping,
    request,
    rst_stream,
    settings,
    window_update,
)

from kernel_grpc.http2 import response
from kernel_grpc.http2.blocks import HARD_LIMIT, MAX_BLOCK, MAX_HEADER_LIST
from kernel_grpc.http2.control import SETTINGS_COST
from kernel_grpc.http2.floods import CREDIT_BURST, RESET_BURST, TURN, USELESS_BURST
from kernel_grpc.http2.heads import LARGE_COST, MAX_FRAGMENTS
from kernel_grpc.http2.history import REMEMBERED
from kernel_grpc.http2.reader import A_TURNS_FRAMES, MAX_FRAME_SIZE
from kernel_grpc.http2.stream import STREAM_WINDOW

TRAILERS = END_HEADERS | END_STREAM


@pytest.fixture
def wire() -> Wire:
    return Wire()


# --- the preface (3.4)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", PREFACE[:-1] + b"X", b"\x16\x03\x01\x02\x00\x01", b"PX"])
def test_bad_preface(sent: bytes) -> None:
    assert Wire(greet=False).fails(sent) == (PROTOCOL, "this is no HTTP/2: the connection preface is wrong")


@pytest.mark.parametrize("first", [ping(), settings(ack=True), request(), window_update(0, 1), frame(0x99)])
def test_first_frame_must_be_settings(first: bytes) -> None:
    code, text = Wire(greet=False).fails(PREFACE + first)
    assert code == PROTOCOL and text.startswith("the first frame is of type") and "not SETTINGS" in text


def test_nothing_is_received_after_a_failure(wire: Wire) -> None:
    wire.send(request(1))
    wire.fails(frame(PING, 0, 1, bytes(8)) + request(3))
    assert wire.opened[1].codes == [PROTOCOL] and 3 not in wire.opened
    assert wire.send(request(5) + ping()) == [] and 5 not in wire.opened


# --- frame size (4.2) and the sizes of single frames (6)


def test_frame_that_is_too_large(wire: Wire) -> None:
    wire.send(request())
    assert wire.resets(frame(DATA, 0, 1, length=MAX_FRAME_SIZE)) == []
    code, text = Wire().fails(frame(DATA, 0, 1, length=MAX_FRAME_SIZE + 1))
    assert (code, text) == (FRAME_SIZE, f"a frame of {MAX_FRAME_SIZE + 1} bytes; the largest that is taken has {MAX_FRAME_SIZE}")


@pytest.mark.parametrize(
    "wrong",
    [
        frame(PING, 0, 0, b"1234567"),
        frame(PING, 0, 0, b"123456789"),
        frame(SETTINGS, 0, 0, b"12345"),
        frame(SETTINGS, ACK, 0, b"123456"),
        frame(WINDOW_UPDATE, 0, 0, b"123"),
        frame(WINDOW_UPDATE, 0, 1, b"12345"),
        frame(RST_STREAM, 0, 1, b"123"),
        frame(GOAWAY, 0, 0, b"1234567"),
        frame(PRIORITY, 0, 9, b"1234"),
        frame(DATA, PADDED, 1, b""),
        frame(HEADERS, END_HEADERS | PADDED, 3, b""),
        frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 3, b"1234"),
        frame(HEADERS, END_HEADERS | PRIORITY_FLAG | PADDED, 3, b"\x0012345"[:5]),
    ],
)
def test_wrong_frame_sizes(wire: Wire, wrong: bytes) -> None:
    wire.send(request())
    code, text = wire.fails(wrong)
    assert code == FRAME_SIZE and text


def test_priority_of_the_wrong_size_ends_its_stream(wire: Wire) -> None:
    wire.send(request())
    assert wire.resets(frame(PRIORITY, 0, 1, b"1234")) == [(1, FRAME_SIZE)] and wire.opened[1].codes == [FRAME_SIZE]


def test_absurdly_long_frame_is_not_gathered(wire: Wire) -> None:
    code, text = wire.fails(frame(SETTINGS, 0, 0, length=MAX_BLOCK + 6))
    assert code == CALM and f"{MAX_BLOCK + 6} bytes" in text
    assert Wire().fails(frame(GOAWAY, 0, 0, bytes(MAX_BLOCK + 1)))[0] == CALM
    assert Wire().fails(frame(HEADERS, 0, 1, length=MAX_BLOCK + 1))[0] == CALM


# --- streams: where a frame belongs (6), ids (5.1.1), states (5.1)


@pytest.mark.parametrize(
    "wrong",
    [
        frame(DATA, 0, 0, b"x"),
        frame(HEADERS, END_HEADERS, 0, block(REQUEST)),
        frame(PRIORITY, 0, 0, b"12345"),
        frame(RST_STREAM, 0, 0, b"1234"),
        frame(SETTINGS, 0, 1),
        frame(PING, 0, 1, b"12345678"),
        frame(GOAWAY, 0, 1, b"12345678"),
        frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + block(REQUEST)),
        frame(CONTINUATION, END_HEADERS, 1, block(REQUEST)),
    ],
)
def test_frames_in_the_wrong_place(wire: Wire, wrong: bytes) -> None:
    wire.send(request())
    assert wire.fails(wrong)[0] == PROTOCOL


@pytest.mark.parametrize("wrong", [data(5, b"x"), data(2, b"x"), rst_stream(5), window_update(5, 1), window_update(2, 1)])
def test_frames_on_an_idle_stream(wire: Wire, wrong: bytes) -> None:
    wire.send(request(3))
    code, text = wire.fails(wrong)
    assert code == PROTOCOL and "never opened" in text


def test_even_stream_ids(wire: Wire) -> None:
    assert wire.fails(request(2)) == (PROTOCOL, "HEADERS on stream 2; clients open odd ones")


def test_stream_ids_that_go_back(wire: Wire) -> None:
    wire.send(request(5))
    assert wire.fails(request(3)) == (PROTOCOL, "stream 3 is opened after stream 5")


@pytest.mark.parametrize(("what", "wrong"), [("HEADERS", request(1)), ("DATA", data(1, b"x"))])
def test_frames_on_a_closed_stream(wire: Wire, what: str, wrong: bytes) -> None:
    wire.send(request(1, end=True))
    wire.opened[1].end(response(200, []))
    assert wire.fails(wrong) == (CLOSED, f"{what} on stream 1, which is closed")


@pytest.mark.parametrize("late", [rst_stream(1), window_update(1, 1), window_update(1, 0), frame(PRIORITY, 0, 1, b"12345")])
def test_frames_that_may_come_late(wire: Wire, late: bytes) -> None:
    wire.send(request(1, end=True))
    wire.opened[1].end(response(200, []))
    wire.frames()
    assert wire.send(late) == [] and not wire.connection.ending.closed


@pytest.mark.parametrize("wrong", [request(1), request(1, end=True), data(1, b"x"), data(1, end=True)])
def test_frames_on_a_half_closed_stream(wire: Wire, wrong: bytes) -> None:
    wire.send(request(1, end=True))
    assert wire.resets(wrong) == [(1, CLOSED)] and wire.opened[1].codes == [CLOSED]
    assert wire.resets(request(3, end=True)) == [] and wire.opened[3].ends == 1


@pytest.mark.parametrize("wrong", [request(1), data(1, b"x")])
def test_frames_on_a_stream_that_the_client_has_reset(wire: Wire, wrong: bytes) -> None:
    wire.send(request(1) + rst_stream(1))
    assert wire.opened[1].codes == [8]
    assert wire.resets(wrong) == [(1, CLOSED)]


def test_frames_on_a_stream_that_we_have_reset_are_ignored(wire: Wire) -> None:
    wire.send(request(1))
    wire.opened[1].reset(8)  # type: ignore[arg-type]
    assert [(frame.kind, frame.number) for frame in wire.frames()] == [(RST_STREAM, 8)]
    assert wire.send(data(1, b"x") + data(1, end=True) + request(1, end=True) + rst_stream(1) + window_update(1, 5)) == []
    assert wire.connection.bodies.recv_window == 16 * 2**20 - 1  # the connection's window is paid all the same


def test_second_header_block_must_end_the_stream(wire: Wire) -> None:
    wire.send(request(1))
    assert wire.resets(frame(HEADERS, END_HEADERS, 1, block([("x", "y")]))) == [(1, PROTOCOL)]


def test_too_many_streams_are_refused() -> None:
    wire = Wire(max_streams=2)
    sent = request(1) + request(3) + request(5) + request(7) + data(7, b"x", end=True)
    assert wire.resets(sent) == [(5, REFUSED), (7, REFUSED)]
    wire.opened[1].end(response(200, []))
    assert wire.resets(request(9)) == [(1, 0)] and list(wire.opened) == [1, 3, 9]


def test_what_is_remembered_of_streams_is_bounded() -> None:
    wire = Wire(max_streams=0)
    for k in range(REMEMBERED + 100):
        wire.now += 1
        wire.send(request(2 * k + 1))
    assert len(wire.connection.history.forgotten) == REMEMBERED
    other = Wire()
    for k in range(REMEMBERED + 100):
        other.now += 1
        other.send(request(2 * k + 1) + rst_stream(2 * k + 1))
    assert len(other.connection.history.cancelled) == REMEMBERED and not other.connection.ending.closed


# --- padding (6.1, 6.2)


def test_padding_that_is_longer_than_the_frame(wire: Wire) -> None:
    wire.send(request())
    assert wire.resets(frame(DATA, PADDED, 1, b"\x02xx")[:-2] + b"\0\0") == []  # all of it
    code, text = wire.fails(frame(DATA, PADDED, 1, b"\x03xx"))
    assert (code, text) == (PROTOCOL, "3 bytes of padding in a DATA frame of 3")
    head = block(REQUEST)
    code, text = Wire().fails(frame(HEADERS, END_HEADERS | PADDED, 1, bytes((len(head) + 1,)) + head))
    assert code == PROTOCOL and "padding" in text


def test_padding_counts_for_the_windows(wire: Wire) -> None:
    wire.send(request() + frame(DATA, PADDED, 1, b"\x05a\0\0\0\0\0"))
    assert wire.opened[1].data == b"a"
    assert (wire.opened[1].recv_window, wire.connection.bodies.recv_window) == (STREAM_WINDOW - 7, 16 * 2**20 - 7)


# --- settings (6.5)


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ((2, 2), PROTOCOL, "SETTINGS_ENABLE_PUSH is 2; it is 0 or 1"),
        ((4, 2**31), FLOW_CONTROL, "SETTINGS_INITIAL_WINDOW_SIZE is 2147483648; the largest is 2147483647"),
        ((5, 16383), PROTOCOL, "SETTINGS_MAX_FRAME_SIZE is 16383; it lies between 16384 and 16777215"),
        ((5, 2**24), PROTOCOL, "SETTINGS_MAX_FRAME_SIZE is 16777216; it lies between 16384 and 16777215"),
    ],
)
def test_wrong_settings(wire: Wire, setting: tuple[int, int], code: int, words: str) -> None:
    assert wire.fails(settings(setting)) == (code, words)


def test_settings_at_their_limits(wire: Wire) -> None:
    wire.send(settings((2, 0), (2, 1), (4, 2**31 - 1), (4, 0), (5, 16384), (5, 2**24 - 1), (1, 2**32 - 1), (3, 0), (6, 0)))
    assert not wire.connection.ending.closed and wire.connection.outgoing.peer_frame_size == 2**24 - 1


def test_initial_window_that_makes_a_streams_window_too_large(wire: Wire) -> None:
    wire.send(request() + window_update(1, 2**31 - 1 - 65535))
    code, text = wire.fails(settings((4, 65536)))
    assert code == FLOW_CONTROL and "SETTINGS_INITIAL_WINDOW_SIZE of 65536" in text


# --- flow control (6.9)


def test_more_data_than_the_streams_window(wire: Wire) -> None:
    wire.send(request(1) + request(3))
    wire.opened[1].hold()
    piece = data(1, bytes(2**20))
    assert wire.resets(piece, piece, piece, piece) == []
    assert wire.resets(data(1, b"x")) == [(1, FLOW_CONTROL)] and wire.opened[1].codes == [FLOW_CONTROL]
    assert wire.connection.bodies.kept == 0
    wire.send(data(3, b"y"))
    assert wire.opened[3].data == b"y"


def test_more_data_than_the_connections_window(wire: Wire) -> None:
    for id in (1, 3, 5, 7, 9):
        wire.send(request(id))
        wire.opened[id].hold()
    for id in (1, 3, 5, 7):
        assert wire.resets(*[data(id, bytes(2**20))] * 4) == []
    assert wire.fails(data(9, b"x")) == (FLOW_CONTROL, "1 bytes more than the connection's window of 16777216 allows")


def test_window_update_by_nothing(wire: Wire) -> None:
    wire.send(request())
    assert wire.resets(window_update(1, 0)) == [(1, PROTOCOL)]
    assert wire.resets(request(3) + window_update(3, 1 << 31)) == [(3, PROTOCOL)]  # the first bit is reserved
    assert wire.fails(window_update(0, 0)) == (PROTOCOL, "WINDOW_UPDATE by 0")


def test_windows_that_overflow(wire: Wire) -> None:
    wire.send(request())
    most = 2**31 - 1 - 65535
    assert wire.resets(window_update(1, most) + window_update(0, most)) == []
    assert wire.resets(window_update(1, 1)) == [(1, FLOW_CONTROL)]
    assert wire.fails(window_update(0, 1))[0] == FLOW_CONTROL


# --- header blocks (4.3, 6.10)


@pytest.mark.parametrize("between", [data(1, b"x"), request(3), ping(), settings(), frame(0x99), frame(CONTINUATION, 4, 3, b"")])
def test_nothing_may_come_within_a_header_block(wire: Wire, between: bytes) -> None:
    head = block(REQUEST)
    code, text = wire.fails(frame(HEADERS, 0, 1, head[:10]) + between)
    assert code == PROTOCOL and "within the header block of stream 1" in text


@pytest.mark.parametrize("wrong", [b"\xff" * 6, b"\x80", b"\xc0", b"\x00\x05ab", b"\x40", b"\x3f\xff\xff\x7f", b"\x82\x20"])
def test_header_block_that_cannot_be_decoded(wire: Wire, wrong: bytes) -> None:
    code, text = wire.fails(frame(HEADERS, TRAILERS, 1, wrong))
    assert code == COMPRESSION and text.startswith("a header block can't be decoded")


def test_blocks_that_nobody_reads_change_the_table_all_the_same() -> None:
    wire = Wire(max_streams=1)
    encoder = hpack.Encoder()
    fields = [*REQUEST, ("x-k", "v")]
    wire.send(request(1))
    assert wire.resets(frame(HEADERS, TRAILERS, 3, encoder.encode(fields))) == [(3, REFUSED)]
    wire.opened[1].end(response(200, []))
    wire.send(frame(HEADERS, TRAILERS, 5, encoder.encode(fields)))
    assert (b"x-k", b"v") in wire.opened[5].head.fields


def test_header_list_limits(wire: Wire) -> None:
    wire.send(request(1, end=True, x_a="a" * (MAX_HEADER_LIST - 400)))
    assert not wire.opened[1].head.too_large
    wire.send(request(3, end=True, x_a="a" * MAX_HEADER_LIST))
    assert wire.opened[3].head.too_large and wire.opened[3].head.size > MAX_HEADER_LIST  # its owner refuses it
    code, text = wire.fails(request(5, x_a="a" * (HARD_LIMIT - 400), x_b="b" * 400))
    assert code == CALM and "65536" in text


def test_header_bomb(wire: Wire) -> None:
    """A few bytes that mean many: one large entry of the table, again and again."""
    bomb = b"\x40\x01a\x7f\x81\x1e" + b"b" * 3968 + b"\xbe" * 100
    code, text = wire.fails(frame(HEADERS, TRAILERS, 1, bomb))
    assert code == CALM and "header list" in text


def test_continuation_flood(wire: Wire) -> None:
    """CVE-2024-27316."""
    wire.send(frame(HEADERS, 0, 1, b"\x82"))
    assert wire.send(frame(CONTINUATION, 0, 1, b"") * (MAX_FRAGMENTS - 1)) == []
    assert wire.fails(frame(CONTINUATION, 0, 1, b""))[0] == CALM
    long = Wire()
    long.send(frame(HEADERS, 0, 1, bytes(16384)))
    assert long.send(*[frame(CONTINUATION, 0, 1, bytes(16384))] * 3) == []
    code, text = long.fails(frame(CONTINUATION, 0, 1, b"x"))
    assert code == CALM and str(MAX_BLOCK) in text


# --- what is a request (8)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({":method": ""}, "there is no :method"),
        ({":scheme": ""}, "there is no :scheme"),
        ({":path": ""}, "there is no :path"),
        ({":path": "x"}, ":path is 'x', which does not begin with a slash"),
        ({":status": "200"}, "':status' is no pseudo-header field of a request"),
        ({":protocol": "websocket"}, "':protocol' is no pseudo-header field of a request"),
        ({"X-Upper": "a"}, "'X-Upper' is no field name in lower case"),
        ({"x y": "a"}, "'x y' is no field name in lower case"),
        ({"x\x00": "a"}, "'x\\x00' is no field name in lower case"),
        ({"x:y": "a"}, "'x:y' is no field name in lower case"),
        ({"connection": "close"}, "'connection' has no place in HTTP/2"),
        ({"keep-alive": "1"}, "'keep-alive' has no place in HTTP/2"),
        ({"proxy-connection": "1"}, "'proxy-connection' has no place in HTTP/2"),
        ({"transfer-encoding": "chunked"}, "'transfer-encoding' has no place in HTTP/2"),
        ({"upgrade": "h2c"}, "'upgrade' has no place in HTTP/2"),
        ({"te": "gzip"}, "te is 'gzip', where only trailers is allowed"),
        ({"x": "a\r\nb"}, "the value of 'x' holds a character that it must not"),
        ({"x": "a\x00"}, "the value of 'x' holds a character that it must not"),
        ({":path": "/a "}, "the value of ':path' holds a character that it must not"),
        ({":authority": " a"}, "the value of ':authority' holds a character that it must not"),
        ({":path": "/a\nb"}, "the value of ':path' holds a character that it must not"),
        ({"host": "elsewhere"}, "host is 'elsewhere' and :authority 'localhost'"),
        ({"content-length": "x"}, "content-length is 'x', which is no length"),
        ({"content-length": " 1"}, "content-length is ' 1', which is no length"),
        ({"content-length": "-1"}, "content-length is '-1', which is no length"),
        ({":method": "CONNECT"}, "CONNECT has :authority, and neither :scheme nor :path"),
    ],
)
def test_malformed_requests(wire: Wire, fields: dict[str, str], words: str) -> None:
    chosen = {**dict(REQUEST), **fields}
    order = sorted(((k, v) for k, v in chosen.items() if v), key=lambda field: not field[0].startswith(":"))
    head = block(order)
    assert wire.resets(frame(HEADERS, TRAILERS, 1, head)) == [(1, PROTOCOL)] and not wire.opened
    assert wire.connection.heads.known[head].fault == words
    assert wire.resets(frame(HEADERS, TRAILERS, 3, head)) == [(3, PROTOCOL)]  # also where the block is known
    assert wire.resets(request(5, end=True)) == [] and 5 in wire.opened


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([*REQUEST, (":path", "/")], "':path' stands behind a regular field"),
        ([REQUEST[0], *REQUEST], "there are two fields ':method'"),
        ([*REQUEST, ("content-length", "1"), ("content-length", "2")], "there are two different fields content-length"),
        ([("", "x")], "'' is no field name in lower case"),
        ([], "there is no :method"),
    ],
)
def test_malformed_lists_of_fields(wire: Wire, fields: list[tuple[str, str]], words: str) -> None:
    head = block(fields)
    assert wire.resets(frame(HEADERS, TRAILERS, 1, head)) == [(1, PROTOCOL)]
    assert wire.connection.heads.known[head].fault == words


@pytest.mark.parametrize(
    "fields",
    [
        {"te": ""},
        {"te": "Trailers"},
        {":authority": ""},
        {":authority": "", "host": "localhost"},
        {"host": "LOCALHOST"},
        {":method": "OPTIONS", ":path": "*"},
        {"x-empty ".strip(): "\x80\xff"},
        {"content-length": "0"},
    ],
)
def test_requests_that_are_well_formed(wire: Wire, fields: dict[str, str]) -> None:
    chosen = {**dict(REQUEST), **fields}
    order = sorted(((k, v) for k, v in chosen.items() if v), key=lambda field: not field[0].startswith(":"))
    assert wire.resets(frame(HEADERS, TRAILERS, 1, block(order))) == [] and wire.opened[1].ends == 1


@pytest.mark.parametrize("fields", [[(":path", "/")], [("X", "y")], [("connection", "close")], [("x", "\n")]])
def test_malformed_trailers(wire: Wire, fields: list[tuple[str, str]]) -> None:
    wire.send(request(1))
    assert wire.resets(frame(HEADERS, TRAILERS, 1, block(fields))) == [(1, PROTOCOL)]
    assert wire.opened[1].codes == [PROTOCOL] and wire.opened[1].ends == 0


@pytest.mark.parametrize(
    "body",
    [
        [data(1, b"1234", end=True)],
        [data(1, b"123456")],
        [data(1, b"123"), data(1, b"456", end=True)],
        [data(1, b"12345"), data(1, b"6")],
        [data(1, end=True)],
        [data(1, b"1234"), frame(HEADERS, TRAILERS, 1, block([("x", "y")]))],
        [frame(DATA, PADDED | END_STREAM, 1, b"\x011234\0")],
    ],
)
def test_content_length_that_is_not_kept_to(wire: Wire, body: list[bytes]) -> None:
    wire.send(request(1, content_length="5"))
    assert wire.resets(*body) == [(1, PROTOCOL)]
    assert wire.opened[1].codes == [PROTOCOL] and wire.opened[1].ends == 0


def test_content_length_of_a_request_without_a_body(wire: Wire) -> None:
    assert wire.resets(request(1, content_length="5", end=True)) == [(1, PROTOCOL)] and not wire.opened
    assert wire.resets(request(3, content_length="0", end=True)) == [] and wire.opened[3].ends == 1


def test_content_length_that_is_kept_to(wire: Wire) -> None:
    wire.send(request(1, content_length="5") + data(1, b"123") + data(1) + frame(DATA, PADDED, 1, b"\x0245\0\0"))
    assert wire.resets(data(1, end=True)) == [] and wire.opened[1].ends == 1


# --- floods: bounded, and refused with ENHANCE_YOUR_CALM


def flood(wire: Wire, piece: bytes, most: int) -> int:
    """Send `piece` until the connection ends, `most` times at most; return how often."""
    for count in range(1, most + 1):
        frames = wire.send(piece)
        if wire.connection.ending.closed:
            assert int.from_bytes(frames[-1].payload[4:8], "big") == CALM
            return count
    raise AssertionError(f"{most} of them and no end")


@pytest.mark.parametrize(
    "piece",
    [
        ping(),
        ping(ack=True),
        data(1),
        frame(DATA, PADDED, 1, b"\x03\0\0\0"),
        frame(PRIORITY, 0, 1, b"12345"),
        frame(0x99),
        frame(GOAWAY, 0, 0, bytes(8)),
        rst_stream(3),
        settings(ack=True),
    ],
)
def test_frames_that_bring_nothing(piece: bytes) -> None:
    wire = Wire()
    wire.send(request(1) + request(3, end=True))
    wire.opened[3].end(response(200, []))
    wire.frames()
    assert USELESS_BURST <= flood(wire, piece, USELESS_BURST + 10) <= USELESS_BURST + 5
    assert wire.opened[1].codes == [CALM]


def test_settings_cost_what_they_have_done() -> None:
    """By their entries, also the first, and by the open streams whose windows they change."""
    assert flood(Wire(), settings(*[(9, k) for k in range(1000)]), 50) == USELESS_BURST // (SETTINGS_COST + 100) + 1
    assert flood(Wire(), settings(*[(9, k) for k in range(10_000)]), 1) == 1
    wire = Wire(greet=False)
    wire.fails(PREFACE + settings(*[(9, k) for k in range(10_000)]))
    wire = Wire()
    for id in range(1, 10_001, 2):
        wire.send(request(id))
    assert flood(wire, settings((4, 65535)), 50) == USELESS_BURST // (SETTINGS_COST + 50) + 1


def test_window_updates_that_let_nothing_through_are_a_flood() -> None:
    """They cost nothing to a client that is sent data: `test_data_dribble`."""
    wire = Wire()
    wire.send(request(1))
    assert flood(wire, window_update(0, 1) * 100, CREDIT_BURST) == CREDIT_BURST // 100 + 1
    wire = Wire()
    wire.send(request(1))
    assert flood(wire, window_update(1, 1) * 100, CREDIT_BURST) == CREDIT_BURST // 100 + 1


def test_answers_that_say_the_request_was_wrong_pay_for_nothing() -> None:
    """A client may have them as often as it likes, so they must not make good for the resets that come behind them."""
    wire = Wire()
    for k in range(USELESS_BURST):
        wire.send(request(2 * k + 1, end=True))
        wire.connection.outgoing.worthless += 1
        wire.opened[2 * k + 1].end(response(200, []))
        wire.send(rst_stream(2 * k + 1))
    assert not wire.connection.ending.closed
    assert wire.fails(rst_stream(1))[0] == CALM


def test_header_lists_that_are_too_long_end_the_connection_in_the_end() -> None:
    wire = Wire()
    large = block(REQUEST) + b"\x90" * 500  # accept-encoding: gzip, deflate
    for k in range(USELESS_BURST // LARGE_COST):
        assert wire.send(frame(HEADERS, TRAILERS, 2 * k + 1, large + b"\x90" * (k + 1))) == []
    assert wire.fails(frame(HEADERS, TRAILERS, 9001, large))[0] == CALM


@pytest.mark.parametrize(("piece", "count"), [(window_update(0, 1), 5000), (data(1, b"x"), 5000), (ping(), 900)])
def test_a_turn_of_the_loop_takes_so_many_frames(piece: bytes, count: int) -> None:
    """What comes in one read may be thousands of them: others have their turn in between."""
    wire = Wire()
    wire.send(request(1))
    wire.send(piece * count)
    assert wire.turns == -(-count // len(A_TURNS_FRAMES)) - 1


def test_a_turn_of_the_loop_takes_so_many_fields() -> None:
    wire = Wire()
    blocks = [block(REQUEST) + b"\x90" * 244 + block([("k", str(k))]) for k in range(20)]
    wire.send(b"".join(frame(HEADERS, TRAILERS, 2 * k + 1, piece) for k, piece in enumerate(blocks)))
    assert len(wire.opened) == 20
    assert wire.turns == -(-20 // (TURN // 250 + 1)) - 1


def test_window_updates_that_come_late_are_no_flood() -> None:
    wire = Wire()
    wire.send(request(1, end=True))
    wire.opened[1].end(response(200, []))
    wire.frames()
    assert wire.send(window_update(1, 5) * 5000) == [] and not wire.connection.ending.closed


def test_settings_flood() -> None:
    assert flood(Wire(), settings((4, 65535)), 1000) == USELESS_BURST // SETTINGS_COST + 1


def test_data_dribble() -> None:
    """CVE-2019-9511: a client that lets data through by the byte gets a frame for each of its own, and nothing gathers.

    That alone is no flood: the C core asks for five bytes before each message that it wants.
    """
    wire = Wire()
    wire.send(settings((4, 0)) + request(1, end=True))
    wire.opened[1].send_data([bytes(100_000)], 100_000)
    for k in range(3000):
        (sent,) = wire.send(window_update(1, 1))
        assert len(sent.payload) == 1 and wire.connection.outgoing.queued == 99_999 - k


def test_many_windows_in_one_frame_cost_no_more_than_one(wire: Wire) -> None:
    for id in range(1, 2001, 2):
        wire.send(request(id))
    began = time.process_time()
    wire.send(settings(*[(4, 65535 + k % 7) for k in range(5000)], (4, 70_000)))
    assert time.process_time() - began < 0.5 and not wire.connection.ending.closed  # each for each stream would take seconds
    assert {stream.send_window for stream in wire.opened.values()} == {70_000}


def test_rapid_reset() -> None:
    """CVE-2023-44487."""
    wire = Wire()
    for k in range(RESET_BURST):
        assert wire.resets(request(2 * k + 1, end=True) + rst_stream(2 * k + 1)) == []
    assert not wire.connection.outgoing.streams
    assert wire.fails(request(9001, end=True) + rst_stream(9001)) == (CALM, "too many streams are reset")


def test_resets_that_the_client_provokes() -> None:
    """CVE-2025-8671."""
    wire = Wire()
    for k in range(RESET_BURST):
        assert wire.resets(request(2 * k + 1) + window_update(2 * k + 1, 0)) == [(2 * k + 1, PROTOCOL)]
    assert wire.fails(request(9001) + window_update(9001, 0))[0] == CALM


def test_refused_and_malformed_requests_count_as_well() -> None:
    wire = Wire(max_streams=0)
    for k in range(RESET_BURST):
        wire.send(request(2 * k + 1))
    assert wire.fails(request(9001))[0] == CALM
    wire = Wire()
    for k in range(RESET_BURST):
        wire.send(request(2 * k + 1, te="x"))
    assert wire.fails(request(9001, te="x"))[0] == CALM


def test_headers_on_a_stream_that_we_have_reset_are_no_way_around() -> None:
    wire = Wire()
    wire.send(request(1))
    wire.opened[1].reset(8)  # type: ignore[arg-type]
    flood(wire, request(1), USELESS_BURST + 1)


def test_time_makes_good_for_it() -> None:
    wire = Wire()
    for _ in range(20):
        wire.send(ping() * 500)
        wire.now += 5
    assert not wire.connection.ending.closed


def test_answers_make_good_for_it() -> None:
    """A client that measures the line with a PING for every answer, and cancels one call for each that it lets finish."""
    wire = Wire()
    for k in range(0, 10_000, 2):
        first, second = 2 * k + 1, 2 * k + 3
        wire.send(request(first, end=True) + request(second, end=True) + rst_stream(second))
        wire.opened[first].end(response(200, []))
        wire.send(ping())
    assert not wire.connection.ending.closed


def test_data_costs_nothing_but_the_window() -> None:
    wire = Wire()
    wire.send(request(1))
    for _ in range(10):
        wire.send(data(1, b"x") * 1000)
    assert not wire.connection.ending.closed and len(wire.opened[1].data) == 10_000


def test_goaway_text_is_short() -> None:
    code, text = Wire().fails(frame(HEADERS, END_HEADERS, 0, block(REQUEST)))
    assert code == PROTOCOL and len(text) <= 256
    assert struct.unpack(">I", struct.pack(">I", code))[0] == PROTOCOL

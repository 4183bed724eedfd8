"""The `h2` package as a client: its state machine checks all that we send, and where it is told to, it breaks the rules.

Floods, hoarders, slow and half-gone clients: their memory is bounded, their neighbours go on.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from frontends.callers import Answer, Caller, close_loops, message
from frontends.wires import (
    CALM,
    CLOSED,
    COMPRESSION,
    FLOW_CONTROL,
    FRAME_SIZE,
    PROTOCOL,
    REQUEST,
    SETTINGS_TIMEOUT,
    Frame,
    block,
    data,
    frame,
    ping,
    request,
    rst_stream,
    settings,
    window_update,
)
from h2.settings import SettingCodes as Setting

from kernel_grpc.http2.floods import RESET_BURST, USELESS_BURST
from kernel_grpc.rpc.keepalive import Keepalive
from kernel_grpc.rpc.lifetime import GOODBYE, HANDSHAKE, LINGER
from kernel_grpc.rpc.status import SHUTTING_DOWN

#: PINGs of a client are a matter of the keep-alive flags; here they are only a flood or none.
ANY_PINGS = Keepalive(max_strikes=0)


@pytest.fixture(autouse=True)
def loops() -> Iterator[None]:
    yield
    close_loops()


class Client:
    """A client of the `h2` package on a transport without a network."""

    def __init__(self, *, rules: bool = True, start: bool = True, acknowledges: bool = True, **options: Any) -> None:
        checks = dict.fromkeys(("validate_outbound_headers", "normalize_outbound_headers"), rules)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None, **checks))
        self.caller = Quiet(greet=False, keepalive=ANY_PINGS, **options)
        self.events: list[Any] = []
        self.acknowledges = acknowledges
        self.credit = True  # what comes is paid back at once
        if start:
            self.h2.initiate_connection()
            self.flush()

    @property
    def http(self) -> Any:
        return self.caller.peer.http

    @property
    def chats(self) -> Any:
        return self.caller.service.chats

    def flush(self) -> None:
        """Let both sides say what they have to say."""
        while sent := self.h2.data_to_send():
            self.raw(sent)

    def raw(self, *pieces: bytes) -> None:
        """Send bytes that h2 knows nothing of; read the answers."""
        for piece in pieces:
            self.caller.send(piece)
        self.read()

    def read(self) -> None:
        written = b"".join(self.caller.transport.written)
        self.caller.transport.written.clear()
        if not written:
            return
        for event in self.h2.receive_data(written):
            self.events.append(event)
            if self.credit and isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if self.acknowledges:
            self.flush()
        else:
            self.h2.clear_outbound_data_buffer()

    def wait(self, seconds: float = 0.0) -> None:
        self.caller.wait(seconds)
        self.read()

    def begin(self, name: str = "Method", *others: tuple[str, str], end: bool = False) -> int:
        id: int = self.h2.get_next_available_stream_id()
        fields = [*REQUEST[:2], (":path", f"/pkg.Svc/{name}"), *REQUEST[3:], *others]
        self.h2.send_headers(id, fields, end_stream=end)
        return id

    def call(self, name: str = "Method", payload: bytes = b"", *others: tuple[str, str]) -> int:
        id = self.begin(name, *others)
        self.h2.send_data(id, message(payload), end_stream=True)
        self.flush()
        return id

    def body(self, id: int) -> bytes:
        return b"".join(e.data for e in self.events if isinstance(e, h2.events.DataReceived) and e.stream_id == id)

    def status(self, id: int) -> int | None:
        for event in self.events:
            if isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived) and event.stream_id == id:
                fields = dict(event.headers)
                if b"grpc-status" in fields:
                    return int(fields[b"grpc-status"])
        return None

    def reset(self, id: int) -> int | None:
        return next((e.error_code for e in self.events if isinstance(e, h2.events.StreamReset) and e.stream_id == id), None)

    def ended_with(self) -> tuple[int, str] | None:
        """The code and text of the GOAWAY that has come."""
        goaways = [event for event in self.events if isinstance(event, h2.events.ConnectionTerminated)]
        return (int(goaways[-1].error_code), (goaways[-1].additional_data or b"").decode()) if goaways else None


class Quiet(Caller):
    """Leaves the reading to h2."""

    def read(self) -> list[Frame]:
        return []


@pytest.fixture
def client() -> Client:
    return Client()


# --- a client in good faith


def test_calls_of_all_sizes(client: Client) -> None:
    for size in (0, 1, 16_000, 40_000):
        assert client.body(client.call(payload=bytes(size))) == message(bytes(size))
    first = client.begin("Chat")
    client.flush()
    for k in range(20):
        client.h2.send_data(first, message(b"%d" % k))
        client.flush()
        client.chats[0].call.send(b"%d" % k * 3000)
        client.wait()
    client.h2.end_stream(first)
    client.flush()
    assert client.body(first) == b"".join(message(b"%d" % k * 3000) for k in range(20)) and client.status(first) == 0
    assert client.ended_with() is None and not client.http.outgoing.streams


def test_fields_that_change_the_table_on_every_call(client: Client) -> None:
    ids = [client.call("Method", b"x", ("traceparent", f"00-{k:032x}-01"), ("grpc-timeout", f"{5000 + k}m")) for k in range(200)]
    assert {client.status(id) for id in ids} == {0}
    assert client.caller.service.calls[57].metadata.get("traceparent") == f"00-{57:032x}-01"


def test_trailers_and_padding_and_priority(client: Client) -> None:
    id = client.begin("Method", ("x", "y"))
    client.h2.send_data(id, message(b"abc")[:4], pad_length=200)
    client.h2.send_data(id, message(b"abc")[4:], pad_length=0)
    client.h2.prioritize(id, weight=10, depends_on=0, exclusive=True)
    client.h2.send_headers(id, [("x-checksum", "1")], end_stream=True)
    client.flush()
    assert client.body(id) == message(b"abc") and client.status(id) == 0


def test_settings_that_change_while_streams_are_open(client: Client) -> None:
    first = client.call("Keep")
    for window in (0, 100, 70_000, 1, 2**20):
        client.h2.update_settings({Setting.INITIAL_WINDOW_SIZE: window, Setting.MAX_FRAME_SIZE: 2**14 + window})
        client.flush()
    client.h2.update_settings({Setting.HEADER_TABLE_SIZE: 0})
    client.flush()
    client.caller.service.calls[0].reply(bytes(50_000))
    client.wait()
    assert client.body(first) == message(bytes(50_000)) and client.status(first) == 0


def test_goaway_race() -> None:
    """Calls that cross the first GOAWAY are served; those behind the last are not answered, and counted by nobody."""
    caller = Caller()
    kept = caller.call("Keep")
    drain = caller.kernel.loop.create_task(caller.server.drain())
    caller.wait()
    assert caller.call(payload=b"x").messages == [(0, b"x")]
    caller.wait(GOODBYE + 1.2)
    assert caller.peer.http.history.final_id == 3
    late = caller.begin()
    caller.send(data(late, message(b"y"), end=True) + rst_stream(late) + window_update(late, 9))
    assert caller.peer.http.ending.failure is None and len(caller.service.calls) == 2 and not caller.answers[late].frames
    caller.service.calls[0].reply(b"done")
    caller.wait()
    assert kept.messages == [(0, b"done")] and caller.transport.eof
    caller.wait(LINGER + 1.2)
    assert drain.done()


def test_streams_that_begin_while_the_server_stops_are_turned_away() -> None:
    caller = Caller()
    caller.call("Keep")
    caller.kernel.loop.create_task(caller.server.drain())
    caller.wait()
    late = caller.begin("Chat")
    assert (caller.answers[late].status, caller.answers[late].text) == (14, SHUTTING_DOWN) and not caller.service.chats


# --- a client that breaks one rule


@pytest.mark.parametrize(
    ("what", "sent", "code"),
    [
        ("4.1 unknown frame", frame(0x42, 0xFF, 1, b"?" * 50), None),
        ("4.2 too large", frame(0, 0, 1, length=2**20 + 1), FRAME_SIZE),
        ("4.3 undecodable", frame(1, 5, 3, b"\xff\xff\xff\xff\xff\xff"), COMPRESSION),
        ("5.1 DATA on idle", data(9, b"x"), PROTOCOL),
        ("5.1 RST_STREAM on idle", rst_stream(9), PROTOCOL),
        ("5.1 WINDOW_UPDATE on idle", window_update(9, 1), PROTOCOL),
        ("5.1 PRIORITY on idle", frame(2, 0, 9, bytes(5)), None),
        ("5.1 CONTINUATION on idle", frame(9, 4, 9, b""), PROTOCOL),
        ("5.1.1 even id", request(2), PROTOCOL),
        ("5.1.1 id 0", request(0), PROTOCOL),
        ("6.1 DATA on 0", data(0, b"x"), PROTOCOL),
        ("6.1 padding", frame(0, 8, 1, b"\x09" + bytes(8)), PROTOCOL),
        ("6.1 padding without length", frame(0, 8, 1, b""), FRAME_SIZE),
        ("6.2 padding", frame(1, 0xC, 3, b"\xff" + bytes(20)), PROTOCOL),
        ("6.3 PRIORITY on 0", frame(2, 0, 0, bytes(5)), PROTOCOL),
        ("6.4 RST_STREAM on 0", rst_stream(0), PROTOCOL),
        ("6.4 size", frame(3, 0, 1, bytes(5)), FRAME_SIZE),
        ("6.5 on a stream", frame(4, 0, 1, b""), PROTOCOL),
        ("6.5 size", frame(4, 0, 0, bytes(7)), FRAME_SIZE),
        ("6.5 ACK with payload", frame(4, 1, 0, bytes(6)), FRAME_SIZE),
        ("6.5.2 ENABLE_PUSH", settings((2, 2)), PROTOCOL),
        ("6.5.2 INITIAL_WINDOW_SIZE", settings((4, 2**31)), FLOW_CONTROL),
        ("6.5.2 MAX_FRAME_SIZE", settings((5, 1)), PROTOCOL),
        ("6.5.2 unknown setting", settings((99, 1)), None),
        ("6.6 PUSH_PROMISE", frame(5, 4, 1, b"\0\0\0\2"), PROTOCOL),
        ("6.7 on a stream", frame(6, 0, 1, bytes(8)), PROTOCOL),
        ("6.7 size", frame(6, 0, 0, bytes(7)), FRAME_SIZE),
        ("6.8 on a stream", frame(7, 0, 1, bytes(8)), PROTOCOL),
        ("6.8 unknown code", frame(7, 0, 0, bytes(4) + b"\0\0\1\0"), None),
        ("6.9 size", frame(8, 0, 0, bytes(3)), FRAME_SIZE),
        ("6.9 zero on the connection", window_update(0, 0), PROTOCOL),
        ("6.9.1 overflow of the connection", window_update(0, 2**31 - 1), FLOW_CONTROL),
        ("6.9.2 overflow by SETTINGS", window_update(1, 2**31 - 1 - 65535) + settings((4, 65536)), FLOW_CONTROL),
        ("6.10 CONTINUATION alone", frame(9, 4, 1, b""), PROTOCOL),
        ("6.10 other stream", frame(1, 0, 3, b"") + frame(9, 4, 1, b""), PROTOCOL),
        ("6.10 other frame", frame(1, 0, 3, b"") + ping(), PROTOCOL),
        ("3.4 second preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", FRAME_SIZE),
    ],
)  # fmt: skip
def test_rules_of_the_connection(client: Client, what: str, sent: bytes, code: int | None) -> None:
    client.call("Keep")
    client.raw(sent)
    ended = client.ended_with()
    assert (None if ended is None else ended[0]) == code, ended
    assert client.caller.transport.eof == (code is not None)
    assert len(client.caller.kernel.cancelled) == (code is not None)
    if code is None:
        client.caller.service.calls[0].reply(b"x")
        client.wait()
        assert client.status(1) == 0


KEPT = request(3, **{":path": "/pkg.Svc/Keep"}) + data(3, message(b""), end=True)

STREAM_RULES: list[tuple[str, bytes, int]] = [
    ("5.1 DATA on half-closed", KEPT + data(3, b"x"), CLOSED),
    ("5.1 HEADERS on half-closed", KEPT + request(3), CLOSED),
    ("6.3 PRIORITY size", request(3) + frame(2, 0, 3, bytes(4)), FRAME_SIZE),
    ("6.9 zero", request(3) + window_update(3, 0), PROTOCOL),
    ("6.9.1 overflow", request(3) + window_update(3, 2**31 - 1), FLOW_CONTROL),
    ("6.9.1 more than the window", request(3) + data(3, bytes(2**20)) * 5, FLOW_CONTROL),
    ("8.1 second HEADERS", request(3) + request(3), PROTOCOL),
    ("8.1 pseudo in trailers", request(3) + frame(1, 5, 3, block([(":path", "/")])), PROTOCOL),
    ("8.1.1 content-length", request(3, content_length="4") + data(3, b"12345", end=True), PROTOCOL),
    ("8.1.1 content-length, nothing", request(3, content_length="4", end=True), PROTOCOL),
    ("8.1.1 content-length, trailers", request(3, content_length="4") + frame(1, 5, 3, block([("x", "y")])), PROTOCOL),
    ("8.2 upper case", request(3, X="y"), PROTOCOL),
    ("8.2.2 connection", request(3, connection="x"), PROTOCOL),
    ("8.2.2 te", request(3, te="gzip"), PROTOCOL),
    ("8.3 missing :path", request(3, **{":path": ""}), PROTOCOL),
    ("8.3 unknown pseudo", request(3, **{":status": "200"}), PROTOCOL),
    ("8.3.1 empty :path", frame(1, 5, 3, block([(":method", "GET"), (":scheme", "http"), (":path", "")])), PROTOCOL),
    ("8.3.1 twice", frame(1, 5, 3, block([(":method", "GET"), (":method", "GET"), *REQUEST[1:]])), PROTOCOL),
]


@pytest.mark.parametrize(("what", "sent", "code"), STREAM_RULES, ids=[rule[0] for rule in STREAM_RULES])
def test_rules_of_streams(what: str, sent: bytes, code: int) -> None:
    caller = Caller(keepalive=ANY_PINGS)
    kept = caller.call("Keep")
    caller._next = 5
    caller.answers[3] = Answer()
    if what == "6.9.1 more than the window":
        caller.send(request(3, **{":path": "/pkg.Svc/Chat"}))
        caller.service.chats[0].call.hold()
        sent = sent[len(request(3)) :]
    caller.send(sent)
    assert caller.goaway() is None and caller.answers[3].reset == code and 3 not in caller.peer.http.outgoing.streams
    caller.service.calls[0].reply(b"x")
    caller.wait()
    assert kept.status == 0 and caller.call(payload=b"y").status == 0


def test_last_stream_id_of_all(client: Client) -> None:
    client.caller.send(request(2**31 - 1) + request(1))
    client.read()
    assert client.ended_with() == (PROTOCOL, "stream 1 is opened after stream 2147483647")
    caller = Caller()
    caller.answers[2**31 - 1] = Answer()
    caller.send(request(2**31 - 1) + data(2**31 - 1, message(b"x"), end=True))
    assert caller.answers[2**31 - 1].status == 0 and caller.goaway() is None


def test_settings_that_are_never_acknowledged() -> None:
    client = Client(acknowledges=False)
    client.raw(request(1, **{":path": "/pkg.Svc/Keep"}))
    client.wait(HANDSHAKE + 1.2)
    ended = client.ended_with()
    assert ended is not None and ended[0] == SETTINGS_TIMEOUT


# --- floods


@pytest.mark.parametrize(
    ("piece", "most"),
    [
        (ping(), USELESS_BURST + 5),
        (settings((3, 1)), USELESS_BURST // 10 + 5),
        (settings(), USELESS_BURST // 10 + 5),
        (data(1), USELESS_BURST + 5),
        (frame(0, 8, 1, b"\x03" + bytes(3)), USELESS_BURST + 5),
        (frame(2, 0, 1, bytes(5)), USELESS_BURST + 5),
        (frame(2, 0, 2**31 - 1, bytes(5)), USELESS_BURST + 5),
        (frame(0xEE, 0, 0, bytes(100)), USELESS_BURST + 5),
        (frame(7, 0, 0, bytes(8)), USELESS_BURST + 5),
        (frame(1, 0, 3, b"") + frame(9, 0, 3, b"") * 100, 1),
        (frame(1, 0, 3, bytes(60_000)) + frame(9, 0, 3, bytes(60_000)) * 2, 1),
    ],
)
def test_floods(client: Client, piece: bytes, most: int) -> None:
    client.call("Keep")
    client.raw(request(3) if piece[3] == 0 else b"")
    for _ in range(most):
        client.caller.send(piece if piece[3] else piece.replace(b"\0\0\0\1", b"\0\0\0\3"))
        if client.http.ending.closed:
            break
    client.read()
    ended = client.ended_with()
    assert ended is not None and ended[0] == CALM
    assert client.caller.transport.eof and client.caller.kernel.cancelled


def test_window_updates_cost_nothing_that_is_kept(client: Client) -> None:
    client.call("Keep")
    tracemalloc.start()
    for _ in range(50):
        client.caller.send((window_update(0, 1) + window_update(1, 1)) * 300)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 200_000 and client.ended_with() is None and not client.http.outgoing.out


def test_rapid_reset_ends_the_connection_and_calls_are_cancelled(client: Client) -> None:
    for id in range(1, 2 * RESET_BURST + 2, 2):
        client.caller.send(request(id, **{":path": "/pkg.Svc/Keep"}) + data(id, message(b""), end=True) + rst_stream(id))
    client.read()
    assert client.ended_with() == (CALM, "too many streams are reset")
    assert len(client.caller.kernel.cancelled) == len(client.caller.service.calls) == RESET_BURST + 1


# --- hoarders, slow readers, and clients that vanish


def test_thousands_of_streams_without_a_window_do_not_hold_up_one_that_has_one() -> None:
    client = Client()
    client.h2.update_settings({Setting.INITIAL_WINDOW_SIZE: 0})
    client.flush()
    for k in range(3000):
        client.caller.send(request(2 * k + 1) + data(2 * k + 1, message(b"x" * 100), end=True))
    assert client.http.outgoing.queued == 3000 * 105 and len(client.http.outgoing.streams) == 3000
    assert not client.http.outgoing.can_pump  # nor is any time spent on them
    client.caller.send(window_update(3001, 105))
    assert client.http.outgoing.queued == 2999 * 105 and 3001 not in client.http.outgoing.streams
    client.caller.peer.connection_lost(None)
    while client.http.outgoing.streams:  # some in each turn of the loop
        client.caller.kernel.loop.run_until_complete(asyncio.sleep(0))
    assert client.http.outgoing.queued == 0


def test_slow_reader_of_a_stream_holds_up_nobody_else(client: Client) -> None:
    client.credit = False
    slow = client.begin("Chat")
    client.flush()
    client.h2.increment_flow_control_window(2**24)
    client.flush()
    call = client.chats[0].call
    while call.writable:
        call.send(bytes(50_000))
        client.wait()
    queued = client.http.outgoing.queued
    assert queued < 2**20 + 50_010
    for _ in range(20):
        assert client.body(client.call(payload=b"y" * 1000)) == message(b"y" * 1000)
    assert client.http.outgoing.queued == queued
    client.h2.reset_stream(slow)
    client.flush()
    assert client.http.outgoing.queued == 0 and client.chats[0].cancelled == 1


def test_half_sent_requests_of_a_client_that_goes(client: Client) -> None:
    sent = (b"", message(b"abc")[:3], message(bytes(100_000))[:50_000], message(b"whole"))
    for name in ("Method", "Chat"):
        for payload in sent:
            id = client.begin(name, ("grpc-timeout", "1M"))
            for at in range(0, len(payload), 16_384):
                client.h2.send_data(id, payload[at : at + 16_384])
    client.flush()
    client.raw(frame(0, 0, 5, bytes(10), length=50_000))
    assert len(client.http.outgoing.streams) == 8
    client.caller.peer.connection_lost(ConnectionResetError())
    assert not client.http.outgoing.streams and [chat.cancelled for chat in client.chats] == [1, 1, 1, 1]
    assert not any(client.caller.server.deadlines._calls.values()) and not client.caller.service.calls
    client.wait(61)


def test_lengths_that_lie_reserve_nothing() -> None:
    """A message is said to have 2 GB; what is reserved for it is untouched memory, and freed with its call."""
    client = Client()
    tracemalloc.start()
    for k in range(20):
        client.caller.send(request(2 * k + 1) + data(2 * k + 1, b"\0\x7f\xff\xff\xff" + bytes(100)))
        client.caller.send(rst_stream(2 * k + 1))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 200_000_000 and not client.http.outgoing.streams and client.ended_with() is None


def test_client_that_reads_nothing_fills_no_memory() -> None:
    client = Client()
    client.caller.transport.limit = -1
    client.caller.send(request(1) + data(1, message(b"x"), end=True))
    sent = 0
    while not client.caller.transport.paused:
        sent += 1
        client.caller.send(request(2 * sent + 1) + data(2 * sent + 1, message(b"x" * 1000), end=True))
        assert sent < 10_000
    assert client.http.outgoing.queued < 10_000_000 and len(client.http.outgoing.out) < 10_000

"""HTTP/2: bytes to streams and back, where everybody keeps to the rules. Split anywhere, held back, in large amounts."""

from __future__ import annotations

import random
import struct
from typing import Any

import hpack
import pytest
from frontends.wires import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PROTOCOL,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    Wire,
    block,
    data,
    frame,
    parse,
    ping,
    request,
    rst_stream,
    settings,
    window_update,
)

from kernel_grpc.http2 import ErrorCode, literal, response, status
from kernel_grpc.http2.blocks import REMEMBERED
from kernel_grpc.http2.bodies import CONNECTION_WINDOW
from kernel_grpc.http2.connection import MAX_STREAMS
from kernel_grpc.http2.ending import AT_ONCE, STREAM_BYTES
from kernel_grpc.http2.outgoing import CHUNK, SHARE
from kernel_grpc.http2.reader import MAX_FRAME_SIZE
from kernel_grpc.http2.stream import HIGH_WATER, LOW_WATER, STREAM_WINDOW


@pytest.fixture
def wire() -> Wire:
    return Wire()


# --- the beginning


def test_server_preface_announces_its_limits() -> None:
    first, second = Wire(greet=False).preface
    assert (first.kind, first.flags, first.stream) == (SETTINGS, 0, 0)
    assert dict(struct.iter_unpack(">HI", first.payload)) == {3: MAX_STREAMS, 4: STREAM_WINDOW, 5: MAX_FRAME_SIZE, 6: 16384}
    assert (second.kind, second.stream, second.number) == (WINDOW_UPDATE, 0, CONNECTION_WINDOW - 65535)


def test_client_preface_is_acknowledged() -> None:
    wire = Wire(greet=False)
    assert wire.send(PREFACE + settings((4, 100))) == [Frame(SETTINGS, ACK, 0, b"")]
    assert wire.connection.ending.greeted and not wire.connection.control.acknowledged
    assert wire.send(settings(ack=True)) == [] and wire.connection.control.acknowledged


# --- requests


def test_request_with_body(wire: Wire) -> None:
    assert wire.send(request() + data(1, b"hello, ") + data(1, b"world", end=True)) == []
    stream = wire.opened[1]
    assert (stream.data, stream.ends, stream.ended, stream.done) == (b"hello, world", 1, True, False)
    assert (stream.head.method, stream.head.path, stream.head.authority) == (b"POST", b"/pkg.Svc/Method", b"localhost")
    assert stream.head.regular == ((b"content-type", b"application/grpc"), (b"te", b"trailers"))


def test_request_without_body(wire: Wire) -> None:
    wire.send(request(end=True))
    assert (wire.opened[1].data, wire.opened[1].ends) == (b"", 1)


def test_trailers_end_a_request(wire: Wire) -> None:
    wire.send(request() + data(1, b"x") + frame(HEADERS, END_HEADERS | END_STREAM, 1, block([("x-checksum", "1")])))
    assert (wire.opened[1].data, wire.opened[1].ends) == (b"x", 1)


def test_streams_interleave(wire: Wire) -> None:
    wire.send(request(1) + request(3) + data(3, b"c") + data(1, b"a") + data(3, b"d", end=True) + data(1, b"b", end=True))
    assert [(stream.data, stream.ends) for stream in wire.opened.values()] == [(b"ab", 1), (b"cd", 1)]


def test_padding_and_priority_are_taken_off(wire: Wire) -> None:
    head = block(REQUEST)
    padded = frame(HEADERS, END_HEADERS | PADDED | PRIORITY_FLAG, 1, b"\x03" + b"\0\0\0\0\x10" + head + b"\0\0\0")
    body = frame(DATA, PADDED, 1, b"\x05hello\0\0\0\0\0") + frame(DATA, PADDED | END_STREAM, 1, b"\x02\0\0")
    wire.send(padded + body)
    assert (wire.opened[1].data, wire.opened[1].ends) == (b"hello", 1)


def test_continuation(wire: Wire) -> None:
    head = block(REQUEST)
    wire.send(
        frame(HEADERS, END_STREAM, 1, head[:3])
        + frame(CONTINUATION, 0, 1, b"")
        + frame(CONTINUATION, 0, 1, head[3:20])
        + frame(CONTINUATION, END_HEADERS, 1, head[20:])
    )
    assert wire.opened[1].ends == 1


def test_reserved_bit_and_unknown_flags_are_ignored(wire: Wire) -> None:
    wire.send(request() + frame(DATA, 0xF6 & ~PADDED, 1 | 1 << 31, b"a") + data(1, end=True))
    assert (wire.opened[1].data, wire.opened[1].ends) == (b"a", 1)


def test_unknown_frames_and_settings_are_ignored(wire: Wire) -> None:
    assert wire.send(frame(0xFA, 0xFF, 1, b"?" * 100_000) + settings((0xFE03, 1))) == [Frame(SETTINGS, ACK, 0, b"")]
    wire.send(request(end=True) + frame(PRIORITY, 0, 1, b"\0\0\0\0\1"))
    assert wire.opened[1].ends == 1


def test_client_goaway_lets_streams_finish(wire: Wire) -> None:
    wire.send(request(end=True) + frame(GOAWAY, 0, 0, bytes(8) + b"bye"))
    wire.opened[1].end(response(200, []))
    assert [frame.kind for frame in wire.frames()] == [HEADERS]


# --- header blocks that were seen before


def test_equal_blocks_share_a_head(wire: Wire) -> None:
    for id in (1, 3, 5):
        wire.send(request(id, end=True))
    assert wire.opened[1].head is wire.opened[3].head is wire.opened[5].head


def test_remembered_blocks_are_forgotten_when_the_table_changes(wire: Wire) -> None:
    encoder = hpack.Encoder()
    first = encoder.encode([*REQUEST, ("x-a", "1")])  # enters all fields into the table
    indexed = encoder.encode([*REQUEST, ("x-a", "1")])
    changing = encoder.encode([*REQUEST, ("x-b", "2")])  # moves the others
    for id, payload in ((1, first), (3, indexed), (5, indexed), (7, changing)):
        wire.send(frame(HEADERS, END_HEADERS | END_STREAM, id, payload))
    again = encoder.encode([*REQUEST, ("x-a", "1")])
    wire.send(frame(HEADERS, END_HEADERS | END_STREAM, 9, again))
    assert wire.opened[3].head is wire.opened[5].head
    assert [dict(wire.opened[id].head.fields).get(b"x-a") for id in (1, 3, 5, 7, 9)] == [b"1", b"1", b"1", None, b"1"]
    # The same bytes mean something else now: :path is no longer among the fields.
    assert wire.resets(frame(HEADERS, END_HEADERS | END_STREAM, 11, indexed)) == [(11, PROTOCOL)]


def test_a_changed_table_size_forgets_remembered_blocks(wire: Wire) -> None:
    encoder = hpack.Encoder()
    wire.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, encoder.encode(REQUEST)))
    indexed = encoder.encode(REQUEST)
    wire.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, indexed))
    emptied = b"\x20\x3f\xe1\x1f" + block(REQUEST)  # to 0 and back to 4096
    wire.send(frame(HEADERS, END_HEADERS | END_STREAM, 5, emptied))
    code, text = wire.fails(frame(HEADERS, END_HEADERS | END_STREAM, 7, indexed))
    assert code == ErrorCode.COMPRESSION_ERROR and "table index" in text


def test_remembered_blocks_are_bounded(wire: Wire) -> None:
    for k in range(REMEMBERED + 10):
        wire.send(request(2 * k + 1, end=True, x_k=str(k)))
    assert 0 < len(wire.connection.heads.known) <= REMEMBERED
    assert {dict(stream.head.fields)[b"x-k"] for stream in wire.opened.values()} == {b"%d" % k for k in range(REMEMBERED + 10)}


# --- answers


def test_answer(wire: Wire) -> None:
    wire.send(request(end=True))
    stream = wire.opened[1]
    stream.send_headers(response(200, [(b"x", b"y")]))
    stream.send_data([b"ab", memoryview(b"cd"), b""], 4)
    stream.end(literal(b"grpc-status", b"0"))
    head, body, trailers = wire.frames()
    assert head == Frame(HEADERS, END_HEADERS, 1, b"\x88\x00\x01x\x01y")
    assert body == Frame(DATA, 0, 1, b"abcd")
    assert trailers == Frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x0bgrpc-status\x010")
    assert stream.done and not wire.connection.outgoing.streams and wire.outputs == 4


def test_status_and_long_literals_decode() -> None:
    fields = [(b"n" * 126, b"v" * 127), (b"a", b"b" * 128), (b"c", b"d" * 20_000)]
    for code in (200, 204, 415, 431):
        decoded = hpack.Decoder(2**20).decode(response(code, fields), raw=True)
        assert [tuple(field) for field in decoded] == [(b":status", b"%d" % code), *fields]
    assert status(200) == b"\x88"


def test_answer_before_the_request_has_ended_tells_the_client_to_stop(wire: Wire) -> None:
    wire.send(request() + data(1, b"x"))
    wire.opened[1].end(response(200, []))
    last = wire.frames()[-1]
    assert (last.kind, last.stream, last.number) == (RST_STREAM, 1, NO_ERROR)
    assert wire.send(data(1, b"more") + data(1, end=True)) == []  # it did not know yet
    assert wire.opened[1].data == b"x"


def test_nothing_is_sent_on_a_stream_that_is_done(wire: Wire) -> None:
    wire.send(request(1, end=True) + request(3))
    stream, other = wire.opened.values()
    stream.end(response(200, []))
    wire.send(rst_stream(3))
    wire.frames()
    for done in (stream, other):
        done.send_headers(response(200, []))
        done.send_data([b"x"], 1)
        done.end(response(200, []))
    assert wire.frames() == [] and other.codes == [CANCEL] and stream.codes == []


def test_long_header_blocks_are_continued(wire: Wire) -> None:
    wire.send(request(end=True))
    wire.opened[1].end(response(200, [(b"x", b"y" * 40_000)]))
    frames = wire.frames()
    kinds = [(frame.kind, frame.flags) for frame in frames]
    assert kinds == [(HEADERS, END_STREAM), (CONTINUATION, 0), (CONTINUATION, END_HEADERS)]
    decoded = hpack.Decoder(2**20).decode(b"".join(frame.payload for frame in frames), raw=True)
    assert tuple(decoded[1]) == (b"x", b"y" * 40_000)


def test_client_that_shrinks_its_table_is_told_that_it_is_not_used(wire: Wire) -> None:
    wire.send(settings((1, 0)) + request(1, end=True) + request(3, end=True))
    assert wire.connection.outgoing.long_way
    for stream in wire.opened.values():
        stream.end(response(200, []))
    assert [frame.payload for frame in wire.frames() if frame.kind == HEADERS] == [b"\x20\x88", b"\x88"]
    assert not wire.connection.outgoing.long_way


def test_ping_is_answered_and_pong_is_told(wire: Wire) -> None:
    assert wire.send(ping(b"abcdefgh")) == [Frame(PING, ACK, 0, b"abcdefgh")]
    pongs: list[bytes] = []
    wire.connection.control.on_pong = pongs.append
    wire.connection.control.ping(b"12345678")
    assert wire.frames() == [Frame(PING, 0, 0, b"12345678")]
    wire.send(ping(ack=True))
    assert pongs == [b"12345678"]


# --- the client's windows


def test_stream_window_holds_data_back(wire: Wire) -> None:
    wire.send(settings((4, 10)) + request(1, end=True))
    stream = wire.opened[1]
    stream.send_headers(response(200, []))
    stream.send_data([b"0123456789abcdef"], 16)
    stream.end(literal(b"a", b"b"))
    assert [frame.payload for frame in wire.frames()[1:]] == [b"0123456789"]
    assert (stream.queued, wire.connection.outgoing.queued) == (6, 6) and stream.done
    assert [frame.payload for frame in wire.send(window_update(1, 4))] == [b"abcd"]
    frames = wire.send(window_update(1, 100))
    assert [frame.payload for frame in frames] == [b"ef", b"\x00\x01a\x01b"] and frames[-1].flags & END_STREAM
    assert wire.connection.outgoing.queued == 0 and not wire.connection.outgoing.streams


def test_connection_window_is_shared(wire: Wire) -> None:
    wire.send(settings((4, 2**20)) + request(1, end=True) + request(3, end=True))
    for stream in wire.opened.values():
        stream.send_data([bytes(60_000)], 60_000)
    sizes = {1: 0, 3: 0}
    for sent in wire.frames():
        sizes[sent.stream] += len(sent.payload)
    assert sizes == {1: 60_000, 3: 5_535} and wire.connection.outgoing.send_window == 0
    assert sum(len(frame.payload) for frame in wire.send(window_update(0, 1_000))) == 1_000
    assert sum(len(frame.payload) for frame in wire.send(window_update(0, 2**20))) == 53_465


def test_changed_initial_window_changes_open_streams(wire: Wire) -> None:
    wire.send(request(1, end=True))
    stream = wire.opened[1]
    stream.send_data([bytes(65_535 + 10)], 65_545)
    wire.send(window_update(0, 2**20))
    assert stream.queued == 10
    assert [frame.kind for frame in wire.send(settings((4, 100)))] == [SETTINGS] and stream.send_window == 100 - 65_535
    assert [frame.kind for frame in wire.send(window_update(1, 65_435))] == [SETTINGS][:0] and stream.send_window == 0
    # The acknowledgement first: only from there on the client counts with the larger window.
    assert [frame.kind for frame in wire.send(settings((4, 105)))] == [SETTINGS, DATA] and stream.queued == 5
    assert [len(frame.payload) for frame in wire.send(settings((4, 65_535))) if frame.kind == DATA] == [5]


def test_frames_keep_to_the_clients_frame_size(wire: Wire) -> None:
    wire.send(settings((4, 2**24)) + window_update(0, 2**24) + request(1, end=True))
    wire.opened[1].send_data([b"x" * 40_000, b"y" * 10_000], 50_000)
    frames = wire.frames()
    assert [len(frame.payload) for frame in frames] == [16384, 16384, 16384, 848]
    assert b"".join(frame.payload for frame in frames) == b"x" * 40_000 + b"y" * 10_000
    wire.send(settings((5, 2**24 - 1)) + request(3, end=True))
    wire.opened[3].send_data([bytes(SHARE + 1)], SHARE + 1)
    assert [len(frame.payload) for frame in wire.frames()] == [SHARE, 1]


def test_large_answers_take_turns_and_do_not_gather(wire: Wire) -> None:
    wire.send(settings((4, 2**30)) + window_update(0, 2**30) + request(1, end=True) + request(3, end=True))
    payload = memoryview(bytes(4 * CHUNK))
    for stream in wire.opened.values():
        stream.send_data([payload], len(payload))
    order, total = [], {1: 0, 3: 0}
    while wire.connection.outgoing.can_pump or wire.connection.outgoing.out:
        frames = wire.frames()
        assert sum(len(frame.payload) for frame in frames) <= CHUNK + SHARE
        order += [frame.stream for frame in frames]
        for sent in frames:
            total[sent.stream] += len(sent.payload)
        wire.connection.outgoing.pump()
    assert total == {1: len(payload), 3: len(payload)}
    half = order[len(order) // 4 : len(order) // 2]
    assert 0.3 < half.count(1) / len(half) < 0.7


def test_data_waits_while_the_transport_takes_nothing(wire: Wire) -> None:
    wire.send(settings((4, 2**20)) + request(1, end=True))
    wire.connection.outgoing.hold_up(True)
    assert wire.connection.outgoing.long_way
    stream = wire.opened[1]
    stream.send_data([b"x"], 1)
    assert wire.frames() == [] and stream.queued == 1
    wire.connection.outgoing.hold_up(False)
    wire.connection.outgoing.pump()
    assert [frame.payload for frame in wire.frames()] == [b"x"]


def test_a_stream_tells_when_it_is_writable_again(wire: Wire) -> None:
    wire.send(settings((4, 0)) + request(1, end=True))
    stream = wire.opened[1]
    assert stream.writable
    stream.send_data([bytes(HIGH_WATER)], HIGH_WATER)
    assert not stream.writable and stream.rooms == 0
    wire.send(window_update(0, 2**24) + window_update(1, HIGH_WATER - LOW_WATER))
    assert stream.rooms == 0 and stream.writable
    wire.frames()
    wire.send(window_update(1, 1))
    assert stream.rooms == 1


def test_what_waits_is_let_go_when_the_client_cancels(wire: Wire) -> None:
    wire.send(settings((4, 0)) + request(1, end=True) + request(3, end=True))
    cancelled, answered = wire.opened.values()
    cancelled.send_data([b"x" * 100], 100)
    answered.send_data([b"y" * 100], 100)
    answered.end(literal(b"a", b"b"))
    wire.send(rst_stream(1) + rst_stream(3))
    assert cancelled.codes == [CANCEL] and answered.codes == []  # that one had been answered
    assert wire.connection.outgoing.queued == 0 and not wire.connection.outgoing.can_pump and not wire.connection.outgoing.streams
    assert wire.send(settings((4, 1000)))[0].flags == ACK


# --- our windows


def test_credit_is_given_in_large_amounts(wire: Wire) -> None:
    wire.send(request())
    piece = data(1, bytes(16384))
    updates = [frame for _ in range(1024) for frame in wire.send(piece)]
    assert {frame.kind for frame in updates} == {WINDOW_UPDATE}
    connection, stream = ([frame.number for frame in updates if frame.stream == id] for id in (0, 1))
    assert 16 * 2**20 - sum(connection) <= CONNECTION_WINDOW // 2 and min(connection) > CONNECTION_WINDOW // 2
    assert 16 * 2**20 - sum(stream) <= STREAM_WINDOW // 2 and min(stream) > STREAM_WINDOW // 2
    assert len(wire.opened[1].data) == 16 * 2**20


def test_no_credit_for_a_stream_that_has_ended(wire: Wire) -> None:
    wire.send(request())
    piece = data(1, bytes(2**20))
    wire.send(piece, piece)
    assert [frame for frame in wire.send(data(1, bytes(2**20), end=True)) if frame.stream == 1] == []


def test_held_stream_keeps_back_and_gives_no_credit(wire: Wire) -> None:
    wire.send(request(1) + request(3))
    stream, other = wire.opened.values()
    stream.hold()
    piece = data(1, bytes(2**20))
    assert wire.send(piece, piece, piece, piece) == [] and stream.data == b"" and wire.connection.bodies.kept == STREAM_WINDOW
    wire.send(data(3, b"goes on", end=True))
    assert other.data == b"goes on"
    stream.unhold()
    assert len(stream.data) == 4 * 2**20 and wire.connection.bodies.kept == 0 and stream.kept is None
    assert [(frame.kind, frame.stream, frame.number) for frame in wire.frames()] == [(WINDOW_UPDATE, 1, STREAM_WINDOW)]


def test_held_streams_use_up_the_connections_window(wire: Wire) -> None:
    for id in (1, 3, 5, 7):
        wire.send(request(id))
        wire.opened[id].hold()
        assert wire.send(*[data(id, bytes(2**20))] * 4) == []
    assert wire.connection.bodies.recv_window == 0
    wire.opened[3].unhold()
    assert {(frame.stream, frame.number) for frame in wire.frames()} == {(0, 4 * 2**20), (3, 4 * 2**20)}
    wire.send(rst_stream(1))
    assert wire.connection.bodies.kept == 2 * STREAM_WINDOW


def test_holding_in_the_middle_of_data(wire: Wire) -> None:
    wire.send(request())
    stream = wire.opened[1]
    stream.hold_at = 3
    wire.send(data(1, b"abcdef") + data(1, b"ghi") + data(1, b"jkl", end=True))
    assert stream.data == b"abc" and stream.ends == 0 and stream.ended
    stream.hold_at = 5
    stream.unhold()
    assert stream.data == b"abcde" and stream.held
    stream.hold_at = 6
    stream.unhold()
    assert stream.data == b"abcdef"
    stream.unhold()
    assert (stream.data, stream.ends) == (b"abcdefghijkl", 1)


def test_holding_at_the_end(wire: Wire) -> None:
    wire.send(request())
    stream = wire.opened[1]
    stream.hold_at = 3
    wire.send(data(1, b"abc", end=True))
    assert (stream.data, stream.ends) == (b"abc", 0)
    stream.unhold()
    assert (stream.data, stream.ends) == (b"abc", 1)


def test_many_small_pieces_kept_back_take_no_more_memory_than_they_are_long(wire: Wire) -> None:
    wire.send(request())
    stream = wire.opened[1]
    stream.hold()
    wire.send(data(1, b"x") * 10_000)
    assert stream.kept is not None and len(stream.kept.more) == 10_000


# --- the end


def test_drain_in_two_steps(wire: Wire) -> None:
    wire.send(request(1))
    wire.connection.ending.drain("later")
    first, probe = wire.frames()
    assert (first.kind, first.payload) == (GOAWAY, struct.pack(">II", 2**31 - 1, 0) + b"later") and probe.kind == PING
    assert wire.send(request(3, end=True)) == [] and 3 in wire.opened  # sent before the client knew
    (second,) = wire.send(ping(probe.payload, ack=True))
    assert (second.kind, second.payload) == (GOAWAY, struct.pack(">II", 3, 0))
    assert wire.send(request(5) + data(5, b"x" * 100, end=True)) == [] and 5 not in wire.opened
    assert not wire.connection.ending.drained
    wire.opened[3].end(response(200, []))
    wire.send(data(1, b"last", end=True))
    wire.opened[1].end(response(200, []))
    assert wire.connection.ending.drained and not wire.connection.ending.closed and wire.opened[1].data == b"last"


def test_drain_does_not_wait_for_a_client_that_says_nothing(wire: Wire) -> None:
    wire.connection.ending.drain()
    wire.connection.ending.drain()
    wire.frames()
    wire.connection.ending.finish_drain()
    wire.connection.ending.finish_drain()
    assert [frame.kind for frame in wire.frames()] == [GOAWAY] and wire.connection.ending.drained
    silent = Wire(greet=False)
    silent.connection.ending.drain()
    assert silent.connection.ending.drained


def test_lost_connection_aborts_its_streams(wire: Wire) -> None:
    wire.send(request(1) + request(3, end=True))
    wire.opened[3].end(response(200, []))
    wire.connection.ending.lost()
    assert wire.opened[1].codes == [CANCEL] and wire.opened[3].codes == []
    before = len(wire.frames())
    assert before and wire.send(request(5)) == [] and 5 not in wire.opened


class Turns:
    """Those of a server, whose turn has room or has not."""

    def __init__(self) -> None:
        self.roomy = True
        self.spent = 0
        self.later: list[Any] = []

    def spend(self, units: int) -> bool:
        self.spent += units
        return self.roomy

    def put_off(self, patient: Any) -> None:
        self.later.append(patient)


def test_a_connection_with_much_that_is_lost_lets_others_have_their_turns(wire: Wire) -> None:
    """It aborts a number of streams at once, fewer where much waits in them, and the others later: each once."""
    turns = Turns()
    later, wire.connection.ending.turns = turns.later, turns
    ids = range(1, 2 * 3 * AT_ONCE, 2)
    for id in ids:
        wire.send(request(id))
    for id in ids[-3:]:  # the last come first
        wire.opened[id].send_data([bytes(AT_ONCE * STREAM_BYTES)], AT_ONCE * STREAM_BYTES)

    def gone() -> list[int]:
        return [id for id in ids if wire.opened[id].codes]

    wire.connection.ending.lost()
    assert gone() == list(ids[-1:]) and wire.connection.ending.closed and turns.spent > 0
    count = 0
    while later:
        later.pop().go_on()
        count += 1
    assert count == 5 and not wire.connection.outgoing.streams and wire.connection.outgoing.queued == 0
    assert all(wire.opened[id].codes == [CANCEL] for id in ids)


def test_a_connection_that_is_lost_in_a_turn_whose_work_is_done_aborts_its_streams_in_another(wire: Wire) -> None:
    """Hundreds of clients may go at once."""
    turns = Turns()
    wire.connection.ending.turns, turns.roomy = turns, False
    ids = (1, 3, 5)
    for id in ids:
        wire.send(request(id))
    wire.connection.ending.lost()
    assert wire.connection.ending.closed and not any(wire.opened[id].codes for id in ids)
    turns.roomy = True
    turns.later.pop().go_on()
    assert not turns.later and all(wire.opened[id].codes == [CANCEL] for id in ids) and turns.spent
    idle = Wire()
    idle.connection.ending.turns, turns.roomy = turns, False
    idle.connection.ending.lost()
    assert not turns.later


# --- splits


def conversation() -> bytes:
    encoder = hpack.Encoder()
    fields = [*REQUEST, ("x-k", "v" * 100)]
    head = encoder.encode(fields)
    again = encoder.encode(fields)
    return (
        PREFACE
        + settings((4, 2**20), (5, 20_000))
        + settings(ack=True)
        + frame(HEADERS, 0, 1, head[:10])
        + frame(CONTINUATION, END_HEADERS, 1, head[10:])
        + frame(DATA, PADDED, 1, b"\x04" + b"a" * 50 + bytes(4))
        + frame(HEADERS, END_HEADERS, 3, again)
        + data(3, b"b" * 3000)
        + ping()
        + frame(0x77, 0, 0, b"unknown")
        + frame(DATA, PADDED | END_STREAM, 1, b"\x03\0\0\0")
        + window_update(3, 17)
        + data(3)
        + data(3, b"c", end=True)
        + frame(HEADERS, END_HEADERS | END_STREAM, 5, again)
        + rst_stream(5)
        + frame(PRIORITY, 0, 7, b"\0\0\0\0\1")
    )


def outcome(pieces: list[bytes]) -> object:
    wire = Wire(greet=False)
    frames = wire.send(*pieces)
    streams = [(id, stream.data, stream.ends, stream.codes, stream.head.fields) for id, stream in wire.opened.items()]
    return frames, streams, wire.connection.bodies.recv_window, [stream.recv_window for stream in wire.opened.values()]


def test_any_split_of_the_bytes_means_the_same() -> None:
    whole = conversation()
    wanted = outcome([whole])
    assert wanted[1][0][1] == b"a" * 50 and not Wire(greet=False).send(whole)[-1].kind == GOAWAY  # type: ignore[index]
    assert outcome([whole[k : k + 1] for k in range(len(whole))]) == wanted
    for cut in range(len(whole)):
        assert outcome([whole[:cut], whole[cut:]]) == wanted, cut
    chance = random.Random(7)
    for _ in range(200):
        cuts = sorted(chance.sample(range(len(whole)), 6))
        assert outcome([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]) == wanted, cuts


def test_data_can_be_received_into_its_owners_memory(wire: Wire) -> None:
    wire.send(request())
    size = 200_000
    memory = bytearray(size)
    stream = wire.opened[1]
    frames = data(1, b"x" * size, end=True)
    wire.send(frames[:1000])
    assert wire.connection.space() is None  # this owner has no memory to offer
    came, at = len(stream.data), 1000
    stream.memory = memoryview(memory)[came:]
    while (space := wire.connection.space()) is not None:
        count = min(len(space), 50_000, len(frames) - at)
        space[:count] = frames[at : at + count]
        at += count
        wire.connection.filled(count, wire.now)
    wire.send(frames[at:])
    assert stream.filled_at + len(stream.data) == size and stream.ends == 1
    assert bytes(memory[came : came + stream.filled_at]) == b"x" * stream.filled_at
    assert stream.filled_at > size // 2


def test_parse_reads_what_frame_writes() -> None:
    """Guards the tests' own tools."""
    assert parse(frame(DATA, 1, 3, b"ab") + ping()) == [Frame(DATA, 1, 3, b"ab"), Frame(PING, 0, 0, b"12345678")]

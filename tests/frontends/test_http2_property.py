"""HTTP/2 under any bytes: frames in any order, right, nearly right and wrong, split anywhere.

Whatever comes: nothing is raised, how the bytes were split makes no difference, windows add up to the byte, every stream is told
once of its end, nothing is kept afterwards, and what is sent is HTTP/2 for somebody else's parser.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import hpack
from frontends.wires import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY_FLAG,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    Recorded,
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
from hyperframe.frame import Frame as Hyperframe
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from kernel_grpc.http2 import Connection, Head, literal, response
from kernel_grpc.http2.blocks import MAX_BLOCK
from kernel_grpc.http2.bodies import CONNECTION_WINDOW
from kernel_grpc.http2.stream import STREAM_WINDOW


class Owner(Recorded):
    """A stream that does all that owners do; its id and the bytes decide what, so that it is the same however they are split."""

    __slots__ = ("answered",)

    def __init__(self, peer: Peer, id: int, head: Head, ended: bool) -> None:
        super().__init__(peer.connection, id, head, ended)
        self.answered = False
        if id % 8 == 3:
            self.hold_at = 700
        for other in list(peer.connection.outgoing.streams.values()):
            if other is not self:
                other.unhold()
        if head.path == b"/refused":
            self.answer(0)

    def received(self, data: Any, start: int, stop: int, ended: bool) -> int | None:
        taken = super().received(data, start, stop, ended)
        if self.id % 8 == 5 and self.got:
            self.answer(100)  # does not wait for the end
        elif self.id % 8 == 7 and len(self.got) > 500 and not self.done:
            self.answered = True
            self.reset(8)  # type: ignore[arg-type]
        elif taken is None and ended:
            self.answer(40_000)
        return taken

    @property
    def seen(self) -> tuple[bytes, int]:
        """What has come, and whether that was all; of a stream that does not wait for the rest of a frame, how it began."""
        if self.answered and self.id % 8 in (5, 7) and self.got:
            return self.data[:1], 0
        return self.data, self.ends

    def answer(self, size: int) -> None:
        self.answered = True
        self.send_headers(response(200, [(b"x", b"y")]))
        self.send_data([bytes(size // 2), bytes(size - size // 2)], size)
        self.end(literal(b"grpc-status", b"0"))


class Peer:
    """A connection under test, and the books that are kept about it."""

    def __init__(self) -> None:
        self.opened: list[Owner] = []
        self.connection = Connection(self.open, 1000.0)
        self.frames: list[Frame] = []
        self.received: Counter[int] = Counter()  # flow-controlled bytes, of streams and of the connection
        self.read_data = self.connection.bodies.data
        self.connection.bodies.data = self.count  # type: ignore[method-assign]
        self.connection.start()
        self.send(b"")

    def open(self, connection: Connection, id: int, head: Head, ended: bool) -> Owner:
        self.opened.append(Owner(self, id, head, ended))
        return self.opened[-1]

    def count(self, flags: int, stream_id: int, data: Any, start: int, stop: int, length: int) -> None:
        self.received[0] += length
        if stream_id in self.connection.outgoing.streams and not self.connection.outgoing.streams[stream_id].ended:
            self.received[stream_id] += length
        self.read_data(flags, stream_id, data, start, stop, length)

    def send(self, piece: bytes) -> None:
        self.connection.receive(piece, 1000.0)
        out, _ = self.connection.outgoing.take()
        self.frames += parse(b"".join(out))
        while self.connection.outgoing.can_pump:
            self.connection.outgoing.pump()
            self.frames += parse(b"".join(self.connection.outgoing.take()[0]))
        assert len(self.connection._rest) <= MAX_BLOCK + 9 and len(self.connection.heads._fragments) <= MAX_BLOCK
        self.audit()

    def audit(self) -> None:
        """Check the windows: what was given is what is left and what was used; what is kept back has been paid for."""
        connection = self.connection
        if connection.ending.closed:
            return
        given = Counter[int]()
        sent = Counter[int]()
        for one in self.frames:
            if one.kind == WINDOW_UPDATE:
                given[one.stream] += one.number
            elif one.kind == DATA:
                sent[0] += len(one.payload)
        assert given[0] + 65535 - self.received[0] == connection.bodies.recv_window >= 0
        assert connection.outgoing.send_window >= 0
        for stream in connection.outgoing.streams.values():
            assert STREAM_WINDOW + given[stream.id] - self.received[stream.id] == stream.recv_window >= 0
        kept = sum(stream.kept.size for stream in connection.outgoing.streams.values() if stream.kept is not None)
        assert connection.bodies.kept == kept <= CONNECTION_WINDOW
        assert connection.outgoing.queued == sum(stream.queued for stream in connection.outgoing.streams.values())

    def outcome(self) -> tuple[Any, ...]:
        """Return what must not depend on how the bytes came: credit may come sooner, and data in other pieces."""
        bodies: Counter[int] = Counter()
        for one in self.frames:
            if one.kind == DATA:
                bodies[one.stream] += len(one.payload)
        return (
            [one for one in self.frames if one.kind not in (WINDOW_UPDATE, DATA)],
            bodies,
            [(stream.id, stream.seen, stream.codes, stream.done) for stream in self.opened],
            self.connection.ending.closed,
        )

    def end(self) -> None:
        """The client goes."""
        connection = self.connection
        connection.ending.lost()
        outgoing = connection.outgoing
        assert not outgoing.streams and connection.bodies.kept == outgoing.queued == 0 and not outgoing._line
        for stream in self.opened:
            assert stream.done and stream.kept is None and not stream.queue
            assert len(stream.codes) == (0 if stream.answered else 1), stream
        ids = [stream.id for stream in self.opened]
        assert ids == sorted(set(ids))

    def check_output(self) -> None:
        """Have what was sent read by another package, and by the rules that a client counts on."""
        decoder, begun, over = hpack.Decoder(), set[int](), set[int]()
        for at, one in enumerate(self.frames):
            raw = frame(one.kind, one.flags, one.stream, one.payload)
            other, length = Hyperframe.parse_frame_header(memoryview(raw[:9]), strict=True)
            other.parse_body(memoryview(raw[9:]))
            assert length == len(one.payload) and (other.stream_id, other.serialize()) == (one.stream, raw)
            if one.kind in (DATA, HEADERS):
                assert one.stream not in over and (one.kind == HEADERS or one.stream in begun)
                begun.add(one.stream)
                if one.flags & END_STREAM:
                    over.add(one.stream)
            elif one.kind == RST_STREAM and one.stream in begun:
                over.add(one.stream)
            if one.kind == HEADERS:
                decoder.decode(one.payload)
            if one.kind == GOAWAY:
                assert at == len(self.frames) - 1
        assert (self.frames[-1].kind == GOAWAY) == self.connection.ending.closed


IDS = st.sampled_from([0, 1, 2, 3, 5, 7, 9, 11, 13, 2**31 - 1, 2**32 - 1])
SIZES = st.sampled_from([0, 1, 5, 300, 701, 5000, 40_000])


def some(kind: int, flags: int, id: int, payload: bytes) -> bytes:
    return frame(kind, flags, id, payload)


def padded(id: int, size: int, padding: int, end: bool) -> bytes:
    return frame(DATA, PADDED | end * END_STREAM, id, bytes((padding,)) + bytes(size) + bytes(padding))


def continued(id: int, cut: int, priority: bool) -> bytes:
    head = block(REQUEST)
    return frame(HEADERS, PRIORITY_FLAG * priority, id, bytes(5) * priority + head[:cut]) + frame(
        CONTINUATION, END_HEADERS, id, head[cut:]
    )


INDEXING = b"".join(b"\x40" + block([one])[1:] for one in REQUEST)

INDEXED = b"\xc3\xc2\xc1\xc0\xbf\xbe"  # the same, out of the table

PIECES = st.one_of(
    st.builds(request, IDS, end=st.booleans()),
    st.builds(request, IDS, end=st.booleans(), **{":path": st.sampled_from(["/refused", "", "/x"])}),
    st.builds(request, IDS, content_length=st.sampled_from(["0", "300", "600", "x"])),
    st.builds(data, IDS, SIZES.map(bytes), end=st.booleans()),
    st.builds(padded, IDS, SIZES, st.integers(0, 255), st.booleans()),
    st.builds(continued, IDS, st.integers(0, 90), st.booleans()),
    st.builds(some, st.just(HEADERS), st.just(END_HEADERS), IDS, st.sampled_from([INDEXING, b"\xbe" * 6, INDEXED])),
    st.builds(some, st.just(HEADERS), st.just(END_HEADERS | END_STREAM), IDS, st.just(block([("x-checksum", "1")]))),
    st.builds(rst_stream, IDS),
    st.builds(window_update, IDS, st.sampled_from([0, 1, 1000, 40_000, 2**20, 2**31 - 1])),
    st.builds(settings, st.tuples(st.integers(1, 8), st.sampled_from([0, 1, 100, 16384, 65535, 2**20, 2**31 - 1, 2**32 - 1]))),
    st.builds(ping, ack=st.booleans()),
    st.builds(some, st.integers(0, 12), st.integers(0, 255), IDS, st.binary(max_size=20)),
    st.binary(max_size=12),
)  # fmt: skip


def cut_up(whole: bytes, chance: random.Random) -> list[bytes]:
    """Split bytes anywhere: now and then by the byte, else in pieces of any length."""
    pieces, at = [], 0
    while at < len(whole):
        size = chance.choice((1, 1, 2, 8, 9, 10, 100, 3000, 30_000, 300_000))
        pieces.append(whole[at : at + size])
        at += size
    return pieces


def check(whole: bytes, chance: random.Random) -> Peer:
    first, second = Peer(), Peer()
    first.send(whole)
    for piece in cut_up(whole, chance):
        second.send(piece)
    assert first.outcome() == second.outcome()
    for peer in (first, second):
        peer.check_output()
        peer.end()
    return second


@effort(max_examples=400)
@given(st.lists(PIECES, max_size=12), st.randoms(use_true_random=False))
def test_any_frames(pieces: list[bytes], chance: random.Random) -> None:
    check(PREFACE + settings() + b"".join(pieces), chance)


@effort(max_examples=50)
@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_any_bytes(text: bytes, chance: random.Random) -> None:
    check(text, chance)
    check(PREFACE + text, chance)


def conversation(chance: random.Random) -> bytes:
    """Return the bytes of a client that keeps to the rules, but for ending requests and taking answers in any order."""
    pieces = [PREFACE + settings((4, chance.choice((0, 100, 65535, 2**20))))]
    next_id, open_ids = 1, list[int]()
    left: Counter[int] = Counter({0: CONNECTION_WINDOW})
    for _ in range(chance.randrange(40)):
        what = chance.randrange(10)
        if what < 2 or not open_ids:
            end = chance.random() < 0.3
            pieces.append(chance.choice((request, request, lambda id, end: request(id, end=end, x_k=str(id))))(next_id, end=end))
            if not end:
                open_ids.append(next_id)
                left[next_id] = STREAM_WINDOW
            next_id += 2 * chance.choice((1, 1, 1, 2))
            continue
        id = chance.choice(open_ids)
        if what < 7:
            size = min(chance.choice((0, 1, 300, 600, 5000, 5000, 60_000, 1_000_000)), left[id] - 256, left[0] - 256)
            end = chance.random() < 0.3
            padding = chance.randrange(256) if chance.random() < 0.3 and size < 1_000_000 else None
            if size < 0:
                continue
            used = size if padding is None else size + 1 + padding
            pieces.append(data(id, bytes(size), end=end) if padding is None else padded(id, size, padding, end))
            left[id] -= used
            left[0] -= used
            if end:
                open_ids.remove(id)
        elif what == 7:
            pieces.append(rst_stream(id))
            open_ids.remove(id)
        elif what == 8:
            pieces.append(window_update(chance.choice((0, id)), chance.choice((1, 1000, 100_000))))
        else:
            pieces.append(chance.choice((ping(), settings((4, chance.choice((0, 1000, 70_000)))), settings((1, 0), (5, 20_000)))))
    return b"".join(pieces)


@effort(max_examples=150)
@given(st.randoms(use_true_random=False))
def test_clients_that_keep_to_the_rules_are_never_refused(chance: random.Random) -> None:
    peer = check(conversation(chance), chance)
    assert peer.connection.ending.failure is None
    assert not [one for one in peer.frames if one.kind == RST_STREAM and one.number not in (0, 8)]
    assert sum(one.kind == SETTINGS and not one.flags for one in peer.frames) == 1
    assert all(one.flags for one in peer.frames if one.kind == PING)


def test_a_window_that_cancelled_streams_have_used_up_is_given_back() -> None:
    """Held streams may keep back all that the connection allows; when they are cancelled, nothing else would give credit."""
    for how in (rst_stream, None):
        peer = Peer()
        peer.send(PREFACE + settings())
        for id in (1, 9, 17, 25):
            peer.send(request(id))
        for stream in peer.opened:
            stream.hold()
        for id in (1, 9, 17, 25):
            peer.send(data(id, bytes(2**20)) * 4)
        assert peer.connection.bodies.recv_window == 0 and peer.connection.bodies.kept == CONNECTION_WINDOW
        for stream in peer.opened:
            if how is None:
                stream.answer(0)
                peer.send(b"")
            else:
                peer.send(how(stream.id))
        assert peer.connection.bodies.kept == 0 and peer.connection.bodies.recv_window >= CONNECTION_WINDOW // 2
        peer.send(request(33) + data(33, b"x", end=True))
        assert peer.opened[-1].data == b"x"
        peer.end()

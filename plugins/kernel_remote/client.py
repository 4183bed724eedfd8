"""The client's side of an HTTP/2 connection (RFC 9113), without I/O: what differs from the server's side, and nothing else.

Frames, header blocks, windows, budgets against floods and the reading of frames are those of kernel_grpc.http2. A client opens
the streams, goes on receiving on one whose own side it has ended, and minds GOAWAY: what is above
its last id was never looked at.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from kernel_grpc.http2.bodies import CONNECTION_LOW, CONNECTION_WINDOW
from kernel_grpc.http2.control import FRAMES, Control
from kernel_grpc.http2.ending import Ending
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.fields import Head
from kernel_grpc.http2.floods import Floods
from kernel_grpc.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    MAX_STREAM_ID,
    PREFACE,
    PUSH_PROMISE,
    SETTINGS,
    SMALLEST_FRAME_SIZE,
    Setting,
    frame,
    settings,
    window_update,
)
from kernel_grpc.http2.heads import Heads
from kernel_grpc.http2.history import History
from kernel_grpc.http2.outgoing import DEFAULT_WINDOW, Outgoing, nothing
from kernel_grpc.http2.reader import MAX_FRAME_SIZE, FrameReader
from kernel_grpc.http2.stream import STREAM_WINDOW, Data, Stream

__all__ = ["Account", "ClientConnection", "ClientStream"]


class Account(Protocol):
    """Where bytes are counted, as MemoryBudget's Account does it."""

    limit: int
    used: int
    flag: str

    def take(self, size: int) -> bool:
        """Take bytes, unless there are not so many left."""

    def give_back(self, size: int) -> None:
        """They are free again."""


#: A body of up to this many bytes goes out in one frame, which everybody takes, and as one piece with its header block.
SMALL = SMALLEST_FRAME_SIZE

#: How many answers that have come as a whole are taken in one turn of the loop.
A_TURNS_ANSWERS = range(64)

_pack = FRAME.pack

#: A frame that is no longer than one may be here: its length in two parts, type and flags in one, and the stream.
_unpack = struct.Struct(">HBHI").unpack_from

#: Type and flags of the header blocks of an answer; those of the data are 0.
FIRST, LAST = HEADERS << 8 | END_HEADERS, HEADERS << 8 | END_HEADERS | END_STREAM

#: The last id that we give a stream.
LAST_ID = MAX_STREAM_ID - 2

#: Streams that we open at a time where the server does not say how many it takes.
MOST_STREAMS = 1000


class ClientStream(Stream):
    """A request and its answer. `refused`: the server says that it has not looked at it, so it may be sent elsewhere.

    Made before there is a connection for it, and opened once. What nearly all streams have in common stands with the class.
    """

    refused = False
    sent_all = False
    headed = False

    ended = done = held = False
    left = kept = sink = None
    last: bytes | None = None
    queue: deque[Data] | None = None
    queued = 0
    recv_window = STREAM_WINDOW

    connection: ClientConnection

    def __init__(self) -> None: ...

    def open(self, connection: ClientConnection) -> None:
        """Take the next id of a connection that has room."""
        self.connection = connection
        self.id = connection.history.last_id = id = connection.next_id
        connection.next_id = id + 2
        if id >= LAST_ID:
            connection.control.room = 0
        outgoing = connection.outgoing
        self.send_window = outgoing.initial_window
        outgoing.streams[id] = self

    def block(self, head: Head, last: bool) -> None:
        """A header block has come; `last`: it ends the answer. The same Head comes for all blocks of the same bytes."""

    def whole(self, first: Head, data: Data, start: int, stop: int, last: Head) -> None:
        """The answer has come as a whole: a header block, one frame of data, and a block that ends it; the stream has gone.

        Both blocks have come before, and have a meaning.
        """

    def leave(self) -> None:
        """Nothing more is wanted of this stream: the answer is complete, or was given up."""
        if self.done:
            return
        self.done = True
        outgoing = self.connection.outgoing
        if self.ended and self.sent_all:
            outgoing.streams.pop(self.id, None)
            outgoing.drop(self)
        else:
            outgoing.reset(self.id, ErrorCode.CANCEL)


class ClientOutgoing(Outgoing):
    """The sending half. A stream whose own side has ended stays, since its answer is still to come."""

    def request(self, stream: ClientStream, block: bytes, pieces: Sequence[Data], size: int) -> None:
        """Send a request whole: its header block, and its body of `size` bytes as windows and transport allow."""
        id = stream.id
        if (
            size <= SMALL >= len(block)
            and size <= self.send_window
            and size <= stream.send_window
            and not (self.long_way or self._line)
        ):
            # What the other way would send, as one piece and without an empty frame at the end.
            self.send_window -= size
            head, body = _pack(len(block) << 8 | HEADERS, END_HEADERS, id), _pack(size << 8 | DATA, END_STREAM, id)
            self.out.append(b"".join((head, block, body, *pieces)))
            self.sent += 1
            stream.sent_all = True
            if not self.corked:
                self.on_output()
            return
        corked, self.corked = self.corked, True
        self.put(self._header_frames(id, block, end=False))
        stream.send_data(pieces, size)
        self.end_data(stream)
        self.corked = corked
        if not corked:
            self.on_output()

    def end_data(self, stream: ClientStream) -> None:
        """End our side of a stream behind what waits in its queue."""
        last = frame(DATA, END_STREAM, stream.id)
        if stream.queue:
            stream.last = last
        else:
            self._finish(stream, last)

    def _finish(self, stream: Stream, frames: bytes) -> None:
        assert isinstance(stream, ClientStream)
        stream.last = None
        stream.sent_all = True
        self.out.append(frames)
        self.sent += 1
        if not self.corked and not self.pumping:
            self.on_output()


class ClientControl(Control):
    """What the server's steering frames mean. `room`: how many streams it lets us have open, none before its SETTINGS, none after
    its GOAWAY or the last id; `last_words`: of its GOAWAY, None before.
    """

    def __init__(self, outgoing: Outgoing, history: History, floods: Floods, ending: Ending) -> None:
        super().__init__(outgoing, history, floods, ending)
        self.room = 0
        self.last_words: str | None = None
        self._most = MOST_STREAMS

    def settings_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        super().settings_frame(flags, stream_id, payload)
        self.room = self._most if self.last_words is None and self._history.last_id < LAST_ID else 0

    def _set(self, key: int, value: int) -> None:
        if key == Setting.MAX_CONCURRENT_STREAMS:
            self._most = min(value, MOST_STREAMS)
        super()._set(key, value)

    def goaway_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        """The server takes no further stream; those above its last id were not looked at, the others go on."""
        super().goaway_frame(flags, stream_id, payload)
        last = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID
        code = int.from_bytes(payload[4:8], "big")
        text = payload[8:264].decode("utf-8", "replace")
        self.room = 0
        self.last_words = f"it goes away ({_name(code)}{': ' + text if text else ''})"
        streams = self._outgoing.streams
        for stream in [stream for id, stream in streams.items() if id > last]:
            del streams[stream.id]
            assert isinstance(stream, ClientStream)
            stream.refused = True
            self._ending.abort(stream, ErrorCode.REFUSED_STREAM)

    def push_promise_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which we have forbidden")


class ClientHeads(Heads):
    """Header blocks of answers: the first of a stream, and its trailers."""

    def _block(self, home: Any, flags: int, stream_id: int, block: bytes) -> None:
        head = self.known.get(block)
        if head is None:
            head = self._decode(block)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._history.must_be_late(stream_id, "HEADERS")
            self._floods.useless("HEADERS")
            return
        assert isinstance(stream, ClientStream)
        if stream.ended:
            raise StreamFailure(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS behind the end of the stream")
        last = flags & END_STREAM == END_STREAM
        if not last and head.fields[:1] and head.fields[0][1][:1] == b"1":  # :status comes first: one that informs
            return
        if stream.headed and not last:
            raise StreamFailure(
                stream_id, ErrorCode.PROTOCOL_ERROR, "a second header block that does not end the stream"
            )
        stream.headed = True
        stream.ended = last
        stream.block(head, last)


class ClientConnection(FrameReader):
    """One connection to a server, which sends no preface but its SETTINGS.

    `gone`: why its user has none any more. `came`: grows with what comes of answers. `account`: where its user has the bytes
    counted that have come of messages which are not complete.
    """

    gone = ""
    came = 0
    account: Account | None = None

    outgoing: ClientOutgoing
    control: ClientControl
    _steering = FRAMES | {
        GOAWAY: ClientControl.goaway_frame,
        PUSH_PROMISE: ClientControl.push_promise_frame,
        SETTINGS: ClientControl.settings_frame,
    }

    def __init__(self, now: float) -> None:
        history = History(0)
        super().__init__(history, ClientOutgoing(history, nothing), now, ClientControl, partial(ClientHeads, _never))
        self.next_id = 1

    def start(self) -> None:
        """Send the client's preface."""
        ours = {
            Setting.ENABLE_PUSH: 0,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            Setting.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
        }
        self.outgoing.put(PREFACE + settings(ours) + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW))

    @property
    def usable(self) -> bool:
        """Whether a further stream may be opened, now or when another has gone. Not before the server has greeted."""
        return self.control.room > 0 and not self.ending.closed

    @property
    def has_room(self) -> bool:
        """Whether a stream may be opened now."""
        return len(self.outgoing.streams) < self.control.room and not self.ending.closed

    def _read(self, data: Data, at: int, ending: Ending, floods: Floods) -> None:
        """Take answers that have come as a whole, by far the most of what comes, at once, and what else comes frame by frame."""
        rest = self._rest
        if rest and len(rest) + len(data) >= self._need:
            data, at = bytes(rest) + data, 0
            rest.clear()
        bodies = self.bodies
        if self.heads.expected == SETTINGS and not rest:
            _check_greeting(bytes(data[at : at + 5]))
        if not (rest or bodies.missing or bodies.skip) and self.heads.expected is None and len(data) <= MAX_FRAME_SIZE:
            at = self._take_whole(data, at)
        if at < len(data) and not ending.closed:
            super()._read(data, at, ending, floods)

    def _take_whole(self, data: Any, at: int) -> int:
        """Take answers from `data[at:]`, bytes, whose header blocks have come before; return up to where."""
        size = len(data)
        enough = size - HEADER_SIZE
        known, streams, bodies = self.heads.known, self.outgoing.streams, self.bodies
        for _ in A_TURNS_ANSWERS:
            if at > enough:
                break
            high, low, kind, id = _unpack(data, at)
            head = at + HEADER_SIZE + (high << 8 | low)
            if kind != FIRST or head > enough:
                break
            first = known.get(data[at + HEADER_SIZE : head])
            high, low, kind, same = _unpack(data, head)
            start = head + HEADER_SIZE
            length = high << 8 | low
            stop = start + length
            if first is None or kind or same != id or not start < stop <= enough:
                break
            high, low, kind, same = _unpack(data, stop)
            end = stop + HEADER_SIZE + (high << 8 | low)
            if kind != LAST or same != id or end > size:
                break
            last = known.get(data[stop + HEADER_SIZE : end])
            stream: Any = streams.get(id)
            window = bodies.recv_window - length
            if last is None or stream is None or stream.headed or not stream.sent_all or window < CONNECTION_LOW:
                break
            if first.meaning is None or last.meaning is None:
                break
            bodies.recv_window = window
            del streams[id]
            stream.headed = stream.ended = stream.done = True
            at = end
            stream.whole(first, data, start, stop, last)
        return at

    def left(self) -> None:
        """A stream was given up: there may be room for another one. Its user's to override."""


def _check_greeting(begin: bytes) -> None:
    """Say in words what the server speaks where that is no HTTP/2. Raises ConnectionFailure."""
    if begin == b"HTTP/":
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "it answers in HTTP/1: this is no port for gRPC")
    if begin[:2] == b"\x15\x03":  # an alert
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "it answers in TLS: perhaps grpcs:// is wanted")


def _never(*_: Any) -> Stream:
    raise AssertionError("a server opens no streams")


def _name(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"code {code}"

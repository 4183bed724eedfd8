"""The client's side of an HTTP/2 connection (RFC 9113), without I/O: what differs from the server's side, and nothing else.

Frames, header blocks, windows, budgets against floods and the reading of frames are those of kernel_grpc.http2. A client opens
the streams, goes on receiving on one whose own side it has ended, and minds GOAWAY: what is above
its last id was never looked at.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kernel_grpc.http2.bodies import CONNECTION_WINDOW
from kernel_grpc.http2.control import FRAMES, Control
from kernel_grpc.http2.ending import Ending
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.fields import Field
from kernel_grpc.http2.floods import Floods
from kernel_grpc.http2.frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    MAX_STREAM_ID,
    PREFACE,
    PUSH_PROMISE,
    Setting,
    frame,
    header_frames,
    settings,
    window_update,
)
from kernel_grpc.http2.heads import Heads
from kernel_grpc.http2.history import History
from kernel_grpc.http2.outgoing import DEFAULT_WINDOW, Outgoing, nothing
from kernel_grpc.http2.reader import MAX_FRAME_SIZE, FrameReader
from kernel_grpc.http2.stream import STREAM_WINDOW, Stream

__all__ = ["ClientConnection", "ClientStream"]

#: Streams that we open at a time, until the server has said how many it takes.
FIRST_STREAMS = 100


class ClientStream(Stream):
    """A request and its answer. `refused`: the server says that it has not looked at it, so it may be sent elsewhere."""

    refused = False
    sent_all = False
    headed = False

    def fields(self, fields: tuple[Field, ...], last: bool) -> None:
        """A header block has come; `last`: it ends the answer."""

    def leave(self) -> None:
        """Nothing more is wanted of this stream: the answer is complete, or was given up."""
        if self.done:
            return
        self.done = True
        outgoing = self.connection.outgoing
        assert isinstance(outgoing, ClientOutgoing)
        if self.ended and self.sent_all:
            outgoing.streams.pop(self.id, None)
            outgoing.drop(self)
        else:
            outgoing.reset(self.id, ErrorCode.CANCEL)

    def finish(self) -> None:
        """Send nothing more: the request ends behind the data that waits."""
        if not self.done:
            outgoing = self.connection.outgoing
            assert isinstance(outgoing, ClientOutgoing)
            outgoing.end_data(self)


class ClientOutgoing(Outgoing):
    """The sending half. A stream whose own side has ended stays, since its answer is still to come."""

    def open(self, stream_id: int, block: bytes) -> None:
        """Send the header block of a request; its data follows."""
        self.put(header_frames(stream_id, block, end_stream=False, frame_size=self.peer_frame_size))

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
    """What the server's steering frames mean. `most`: streams that it lets us open; `last_words`: of its GOAWAY, None before."""

    def __init__(self, outgoing: Outgoing, history: History, floods: Floods, ending: Ending) -> None:
        super().__init__(outgoing, history, floods, ending)
        self.most = FIRST_STREAMS
        self.last_words: str | None = None

    def _set(self, key: int, value: int) -> None:
        if key == Setting.MAX_CONCURRENT_STREAMS:
            self.most = value
        super()._set(key, value)

    def goaway_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        """The server takes no further stream; those above its last id were not looked at, the others go on."""
        super().goaway_frame(flags, stream_id, payload)
        last = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID
        code = int.from_bytes(payload[4:8], "big")
        text = payload[8:264].decode("utf-8", "replace")
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
        head = self._known.get(block)
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
        informational = dict(head.fields).get(b":status", b"").startswith(b"1")
        if informational and not last:
            return
        if stream.headed and not last:
            raise StreamFailure(
                stream_id, ErrorCode.PROTOCOL_ERROR, "a second header block that does not end the stream"
            )
        stream.headed = True
        stream.ended = last
        stream.fields(head.fields, last)


class ClientConnection(FrameReader):
    """One connection to a server, which sends no preface but its SETTINGS."""

    outgoing: ClientOutgoing
    control: ClientControl
    _steering = FRAMES | {GOAWAY: ClientControl.goaway_frame, PUSH_PROMISE: ClientControl.push_promise_frame}

    def __init__(self, now: float) -> None:
        history = History(0)
        super().__init__(history, ClientOutgoing(history, nothing), now, ClientControl, partial(ClientHeads, _never))
        self._next = 1

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
        """Whether a further stream may be opened, now or when another has gone."""
        return not self.ending.closed and self.control.last_words is None and self._next < MAX_STREAM_ID - 1

    @property
    def has_room(self) -> bool:
        """Whether a stream may be opened now."""
        return self.usable and len(self.outgoing.streams) < self.control.most

    def take_id(self) -> int:
        """Return the id of a new stream, which is to be opened at once."""
        stream_id, self._next = self._next, self._next + 2
        self.history.last_id = stream_id
        return stream_id


def _never(*_: Any) -> Stream:
    raise AssertionError("a server opens no streams")


def _name(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"code {code}"

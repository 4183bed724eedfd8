"""The frames that steer a connection: SETTINGS, PING, GOAWAY, RST_STREAM, WINDOW_UPDATE, PRIORITY (RFC 9113, section 6).

Each is checked, then acted on. `payload` is complete. Many of them bring the server nothing, so they are counted.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_grpc.http2.ending import DRAIN_PING, Ending
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.floods import Floods
from kernel_grpc.http2.frames import (
    ACK,
    GOAWAY,
    MAX_WINDOW,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    SETTINGS_ACK,
    SMALLEST_FRAME_SIZE,
    WINDOW_UPDATE,
    Setting,
    ping,
)
from kernel_grpc.http2.history import History
from kernel_grpc.http2.outgoing import Outgoing

__all__ = ["FRAMES", "SETTINGS_COST", "Control"]

#: The size of the dynamic table until the client says otherwise; we don't use it.
DEFAULT_TABLE_SIZE = 4096

#: A SETTINGS frame costs as much as this many others.
SETTINGS_COST = 10

#: And as one more for this many of its entries, or of the open streams whose windows it changes.
ENTRIES = 10
STREAMS = 100


class Control:
    """What a connection does with the frames that steer it.

    `on_ping(now)` is called for each PING of the client's, `on_pong(payload)` for each answer to one of ours. `acknowledged`: the
    client has taken our SETTINGS.
    """

    def __init__(self, outgoing: Outgoing, history: History, floods: Floods, ending: Ending) -> None:
        self._outgoing = outgoing
        self._history = history
        self._floods = floods
        self._ending = ending
        self.on_ping: Callable[[float], None] | None = None
        self.on_pong: Callable[[bytes], None] | None = None
        self.acknowledged = False
        self.header_list_limit: int | None = None  # the longest header list that the client wants

    def ping(self, payload: bytes) -> None:
        """Send a PING of 8 bytes; `on_pong` will tell of its answer."""
        self._outgoing.put(ping(payload))

    def settings_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}; they belong on stream 0")
        if flags & ACK:
            if payload:
                text = f"an acknowledgement of SETTINGS with {len(payload)} bytes; it has none"
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, text)
            if self.acknowledged:
                self._floods.useless("a second acknowledgement of SETTINGS")
            self.acknowledged = True
            return
        if len(payload) % SETTING.size:
            text = f"SETTINGS of {len(payload)} bytes; each entry has {SETTING.size}"
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, text)
        outgoing = self._outgoing
        cost = len(payload) // (SETTING.size * ENTRIES) + len(outgoing.streams) // STREAMS
        self._floods.turn -= cost
        if self._ending.greeted or cost > ENTRIES:
            self._floods.useless("SETTINGS", SETTINGS_COST + cost)
        self._ending.greeted = True
        outgoing.pumping = True  # a larger window is not made use of yet: to the client it counts from our acknowledgement on
        try:
            values = dict(SETTING.iter_unpack(payload))  # of several of a kind the last one counts, but each must be allowed
            for key, value in SETTING.iter_unpack(payload):
                self._check(key, value)
            for key, value in values.items():
                self._set(key, value)
        finally:
            outgoing.pumping = False
        outgoing.out.append(SETTINGS_ACK)
        outgoing.pump()

    def _check(self, key: int, value: int) -> None:
        if key == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            text = f"SETTINGS_INITIAL_WINDOW_SIZE is {value}; the largest is {MAX_WINDOW}"
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, text)
        if key == Setting.MAX_FRAME_SIZE and not SMALLEST_FRAME_SIZE <= value < 2**24:
            text = f"SETTINGS_MAX_FRAME_SIZE is {value}; it lies between {SMALLEST_FRAME_SIZE} and {2**24 - 1}"
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, text)
        if key == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}; it is 0 or 1")
        if key == Setting.HEADER_TABLE_SIZE and value < DEFAULT_TABLE_SIZE:
            self._outgoing.shrink_table()  # also where a later one enlarges it again (RFC 7541, section 4.2)

    def _set(self, key: int, value: int) -> None:
        if key == Setting.INITIAL_WINDOW_SIZE:
            self._outgoing.widen_all(value)
        elif key == Setting.MAX_FRAME_SIZE:
            self._outgoing.peer_frame_size = value
        elif key == Setting.MAX_HEADER_LIST_SIZE:
            self.header_list_limit = value

    def ping_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"PING on stream {stream_id}; it belongs on stream 0")
        if len(payload) != 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"PING with {len(payload)} bytes; it has 8")
        if flags & ACK:
            self._floods.useless("an answer to a PING")
            if payload == DRAIN_PING:
                self._ending.finish_drain()
            elif self.on_pong is not None:
                self.on_pong(payload)
            return
        self._floods.useless("PING")
        self._outgoing.out.append(ping(payload, ack=True))
        if self.on_ping is not None:
            self.on_ping(self._floods.now)

    def goaway_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        """The client goes away: what runs goes on. It closes the connection when it has its answers."""
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}; it belongs on stream 0")
        if len(payload) < 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY with {len(payload)} bytes; it has 8 or more")
        self._floods.useless("GOAWAY")

    def rst_stream_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM with {len(payload)} bytes; it has 4")
        self._history.must_be_known(stream_id, "RST_STREAM")
        stream = self._outgoing.streams.pop(stream_id, None)
        if stream is None:
            self._floods.useless("RST_STREAM")  # sent before our last frame on that stream had come
            return
        self._history.cancel(stream_id)
        self._ending.abort(stream, int.from_bytes(payload, "big"))
        self._floods.count_reset()

    def window_update_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE with {len(payload)} bytes; it has 4")
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        self._floods.count_credit()
        outgoing = self._outgoing
        if not stream_id:
            if not increment:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            outgoing.send_window += increment
            if outgoing.send_window > MAX_WINDOW:
                text = f"WINDOW_UPDATE by {increment} makes the connection's window larger than {MAX_WINDOW}"
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, text)
            outgoing.pump()
            return
        self._history.must_be_known(stream_id, "WINDOW_UPDATE")
        stream = outgoing.streams.get(stream_id)
        if stream is None:
            return  # sent before our last frame had come
        if not increment:
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        try:
            outgoing.widen(stream, increment)
        except OverflowError:
            text = f"WINDOW_UPDATE by {increment} makes the stream's window larger than {MAX_WINDOW}"
            raise StreamFailure(stream_id, ErrorCode.FLOW_CONTROL_ERROR, text) from None

    def priority_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Priorities of RFC 7540 mean nothing any more; only the frame's form is checked."""
        if not stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0; it belongs on a stream")
        self._floods.useless("PRIORITY")
        if len(payload) != 5:
            if stream_id > self._history.last_id:  # an idle stream can't be reset
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY with {len(payload)} bytes; it has 5")
            text = f"PRIORITY with {len(payload)} bytes; it has 5"
            raise StreamFailure(stream_id, ErrorCode.FRAME_SIZE_ERROR, text)

    def push_promise_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")


#: Type of frame -> what is done with it.
FRAMES: dict[int, Callable[[Control, int, int, bytes], None]] = {
    PRIORITY: Control.priority_frame,
    RST_STREAM: Control.rst_stream_frame,
    SETTINGS: Control.settings_frame,
    PUSH_PROMISE: Control.push_promise_frame,
    PING: Control.ping_frame,
    GOAWAY: Control.goaway_frame,
    WINDOW_UPDATE: Control.window_update_frame,
}

"""The frames that steer a connection: SETTINGS, PING, GOAWAY, RST_STREAM, WINDOW_UPDATE, PRIORITY (RFC 9113, section 6).

Each is checked, then acted on. `payload` is complete. How many of them a client may send, ending.py says.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kernel_grpc.http2.ending import DRAIN_PING, Ending
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.frames import (
    ACK,
    MAX_WINDOW,
    SETTING,
    SETTINGS_ACK,
    SMALLEST_FRAME_SIZE,
    Setting,
    ping,
)
from kernel_grpc.http2.outgoing import REMEMBERED

__all__ = ["SETTINGS_COST", "Control"]

#: The size of the dynamic table until the client says otherwise; we don't use it.
DEFAULT_TABLE_SIZE = 4096

#: A SETTINGS frame costs as much as this many others.
SETTINGS_COST = 10


class Control(Ending):
    """The steering half of a connection.

    `on_ping(now)` is called for each PING of the client's, `on_pong(payload)` for each answer to one of ours. `acknowledged`: the
    client has taken our SETTINGS.
    """

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.on_ping: Callable[[float], None] | None = None
        self.on_pong: Callable[[bytes], None] | None = None
        self.acknowledged = False
        self.cancelled: OrderedDict[int, None] = OrderedDict()  # ids of streams that the client has reset, the oldest first
        self.header_list_limit: int | None = None  # the longest header list that the client wants

    def settings_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}; they belong on stream 0")
        if flags & ACK:
            if payload:
                text = f"an acknowledgement of SETTINGS with {len(payload)} bytes; it has none"
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, text)
            if self.acknowledged:
                self.useless("a second acknowledgement of SETTINGS")
            self.acknowledged = True
            return
        if len(payload) % SETTING.size:
            text = f"SETTINGS of {len(payload)} bytes; each entry has {SETTING.size}"
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, text)
        if self.greeted:
            self.useless("SETTINGS", SETTINGS_COST)
        self.greeted = True
        self._pumping = True  # a larger window is not made use of yet: to the client it counts from our acknowledgement on
        try:
            values = dict(SETTING.iter_unpack(payload))  # the last one of a kind counts; of the others, that they are allowed
            for key, value in SETTING.iter_unpack(payload):
                self._check(key, value)
            for key, value in values.items():
                self._set(key, value)
        finally:
            self._pumping = False
        self.out.append(SETTINGS_ACK)
        self.pump()

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
            self.shrink_table()  # also where a later one enlarges it again (RFC 7541, section 4.2)

    def _set(self, key: int, value: int) -> None:
        if key == Setting.INITIAL_WINDOW_SIZE:
            self.widen_all(value)
        elif key == Setting.MAX_FRAME_SIZE:
            self.peer_frame_size = value
        elif key == Setting.MAX_HEADER_LIST_SIZE:
            self.header_list_limit = value

    def ping_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"PING on stream {stream_id}; it belongs on stream 0")
        if len(payload) != 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"PING with {len(payload)} bytes; it has 8")
        if flags & ACK:
            self.useless("an answer to a PING")
            if payload == DRAIN_PING:
                self.finish_drain()
            elif self.on_pong is not None:
                self.on_pong(payload)
            return
        self.useless("PING")
        self.out.append(ping(payload, ack=True))
        if self.on_ping is not None:
            self.on_ping(self.now)

    def goaway_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        """The client goes away: what runs goes on. It closes the connection when it has its answers."""
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}; it belongs on stream 0")
        if len(payload) < 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY with {len(payload)} bytes; it has 8 or more")
        self.useless("GOAWAY")

    def rst_stream_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM with {len(payload)} bytes; it has 4")
        self.must_be_known(stream_id, "RST_STREAM")
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            self.useless("RST_STREAM")  # it has crossed our last frame
            return
        self.cancelled[stream_id] = None
        if len(self.cancelled) > REMEMBERED:
            self.cancelled.popitem(last=False)
        self._abort(stream, int.from_bytes(payload, "big"))
        self.count_reset()

    def window_update_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE with {len(payload)} bytes; it has 4")
        increment = int.from_bytes(payload, "big") & MAX_WINDOW
        if not stream_id:
            if not increment:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self.send_window += increment
            if self.send_window > MAX_WINDOW:
                text = f"WINDOW_UPDATE by {increment} makes the connection's window larger than {MAX_WINDOW}"
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, text)
            self.pump()
            return
        self.must_be_known(stream_id, "WINDOW_UPDATE")
        stream = self.streams.get(stream_id)
        if stream is None:
            return  # as above; clients may send several of them for each of our answers
        if not increment:
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        try:
            self.widen(stream, increment)
        except OverflowError:
            text = f"WINDOW_UPDATE by {increment} makes the stream's window larger than {MAX_WINDOW}"
            raise StreamFailure(stream_id, ErrorCode.FLOW_CONTROL_ERROR, text) from None

    def priority_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Priorities of RFC 7540 mean nothing any more; only the frame's form is checked."""
        if not stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0; it belongs on a stream")
        self.useless("PRIORITY")
        if len(payload) != 5:
            if stream_id > self.last_id:  # an idle stream can't be reset
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY with {len(payload)} bytes; it has 5")
            text = f"PRIORITY with {len(payload)} bytes; it has 5"
            raise StreamFailure(stream_id, ErrorCode.FRAME_SIZE_ERROR, text)

    def push_promise_frame(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    # --- streams that are not open (section 5.1)

    def must_be_known(self, stream_id: int, what: str) -> None:
        """Refuse a frame on a stream that was never opened."""
        if not stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"{what} on stream 0; it belongs on a stream")
        if self.final_id is not None and stream_id > self.final_id:
            return  # it has been opened, but not for us
        if stream_id > self.last_id or not stream_id & 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which was never opened")

    def stray(self, stream_id: int, what: str, *, free: bool = False) -> None:
        """Take a frame that wants an open stream and has none. `free`: the client pays for it with its windows."""
        self.must_be_known(stream_id, what)
        if stream_id in self.forgotten or (self.final_id is not None and stream_id > self.final_id):
            if not free:  # sent before the client knew
                self.useless(what)
        elif stream_id in self.cancelled:
            raise StreamFailure(stream_id, ErrorCode.STREAM_CLOSED, f"{what} on a stream that the client has reset")
        else:
            raise ConnectionFailure(ErrorCode.STREAM_CLOSED, f"{what} on stream {stream_id}, which is closed")

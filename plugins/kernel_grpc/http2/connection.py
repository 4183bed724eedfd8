"""One connection of a server: bytes to frames, by the rules of RFC 9113. No I/O, no clock, no gRPC.

Feed `receive` with what comes, in pieces of any size; streams are told what is theirs, and `out` (outgoing.py) fills with what
has to be written. What breaks a rule ends its stream or, where the standard says so, the connection: `closed` is then true
and the last thing in `out` is a GOAWAY that says why.

Memory is bounded: kept here is at most one frame that isn't data, no longer than a header block may be. The rest of a connection
is in the layers below: outgoing, ending, control, bodies, heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_grpc.http2.blocks import MAX_BLOCK, MAX_HEADER_LIST
from kernel_grpc.http2.bodies import CONNECTION_WINDOW
from kernel_grpc.http2.control import Control
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    FRAME,
    GOAWAY,
    HEADER_SIZE,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Setting,
    settings,
    window_update,
)
from kernel_grpc.http2.heads import Heads, OpenStream
from kernel_grpc.http2.outgoing import DEFAULT_WINDOW, nothing
from kernel_grpc.http2.stream import STREAM_WINDOW, Data

__all__ = ["MAX_FRAME_SIZE", "MAX_STREAMS", "Connection"]

#: The largest frame that is taken. Data is never gathered into frames, so a large one costs nothing.
MAX_FRAME_SIZE = 1024 * 1024

#: Streams that may be open at a time.
MAX_STREAMS = 10_000

_CONTROL = {
    PRIORITY: Control.priority_frame,
    RST_STREAM: Control.rst_stream_frame,
    SETTINGS: Control.settings_frame,
    PUSH_PROMISE: Control.push_promise_frame,
    PING: Control.ping_frame,
    GOAWAY: Control.goaway_frame,
    WINDOW_UPDATE: Control.window_update_frame,
}

_unpack = FRAME.unpack_from


class Connection(Heads):
    """One connection from a client.

    `open_stream` gets a well-formed request's Head; whether its header list is `too_large` is for it to heed. `now` is the time
    on any clock, in seconds. `start` must be called once before anything is received. `transport`: its owner's, from which others
    learn whose connection it is.
    """

    transport: Any = None

    def __init__(
        self,
        open_stream: OpenStream,
        now: float,
        *,
        on_output: Callable[[], None] = nothing,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        super().__init__(open_stream, now, max_streams)
        self.on_output = on_output
        self._rest = bytearray()  # what has come of a frame that isn't complete
        self._need = 0  # how long it must be before it is looked at again
        self._begun = False  # the preface has come

    def start(self) -> None:
        """Send the server's preface."""
        self.put(
            settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: self._max_streams,
                    Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                    Setting.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
                    Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST,
                }
            )
            + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        )

    def receive(self, data: Data, now: float) -> None:
        """Take what has come. Its memory is only lent for the call."""
        if self.closed:
            return
        self.now = now
        self.corked = True
        try:
            self._read(data)
        except ConnectionFailure as failure:
            self.fail(failure.code, failure.text)
        finally:
            self.corked = False

    def _read(self, data: Data) -> None:
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._need:
                return
            data = bytes(rest)
            rest.clear()
        at, size = 0, len(data)
        if not self._begun:
            if data[: len(PREFACE)] != PREFACE[:size]:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2: the connection preface is wrong")
            if size < len(PREFACE):
                self._keep(data, 0, 0)
                return
            self._begun = True
            at = len(PREFACE)
        elif self._missing or self._skip:
            at = self._more(data, size)
        while size - at >= HEADER_SIZE and not self.closed:
            try:
                while size - at >= HEADER_SIZE and not self.closed:
                    word, flags, stream_id = _unpack(data, at)
                    kind = word & 0xFF
                    stream_id &= MAX_STREAM_ID
                    start = at + HEADER_SIZE
                    stop = start + (word >> 8)
                    if self._expected is not None or word >> 8 > MAX_FRAME_SIZE:
                        self._check_frame(kind, flags, stream_id, word >> 8)
                    if kind == DATA:
                        if flags & PADDED and size == start < stop:
                            self._keep(data, at, HEADER_SIZE + 1)  # how much padding there is comes next
                            return
                        at = stop if stop < size else size
                        self._data(flags, stream_id, data, start, at, stop - start)
                        continue
                    if stop > size:
                        if self._is_gathered(kind, stop - start):
                            self._keep(data, at, stop - at)
                            return
                        self._skip = stop - size
                        at = size
                        self.useless(f"a frame of type {kind}")  # section 5.5: unknown types are ignored
                        continue
                    at = stop
                    if kind == HEADERS:
                        self._headers(flags, stream_id, data, start, stop)
                    elif kind == CONTINUATION:
                        self._continuation(flags, stream_id, data, start, stop)
                    elif self._is_gathered(kind, stop - start):
                        _CONTROL[kind](self, flags, stream_id, bytes(data[start:stop]))
                    else:
                        self.useless(f"a frame of type {kind}")
            except StreamFailure as failure:
                self.fail_stream(failure)
        if at < size and not self.closed:
            self._keep(data, at, HEADER_SIZE)

    def _keep(self, data: Data, at: int, need: int) -> None:
        self._rest += data[at:]
        self._need = need

    def _check_frame(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Refuse a frame that is too large, or that can't come here."""
        if length > MAX_FRAME_SIZE:
            text = f"a frame of {length} bytes; the largest that is taken has {MAX_FRAME_SIZE}"
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, text)
        if self._expected == SETTINGS:
            if kind != SETTINGS or flags & ACK:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"the first frame is of type {kind}, not SETTINGS")
            self._expected = None
        elif kind != CONTINUATION or stream_id != self._fragments_of[1]:
            text = f"a frame of type {kind} on stream {stream_id} within the header block of stream {self._fragments_of[1]}"
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, text)

    def _is_gathered(self, kind: int, length: int) -> bool:
        """Whether a frame has a meaning; then it is looked at when it is complete. Refuses those that are absurdly long."""
        if kind > CONTINUATION:
            return False
        if length > MAX_BLOCK:
            text = f"a frame of type {kind} with {length} bytes; {MAX_BLOCK} are enough"
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, text)
        return True

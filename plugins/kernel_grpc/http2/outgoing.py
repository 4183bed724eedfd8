"""What a server's connection sends: frames in order, data as far as the client's windows go (RFC 9113, sections 5.2 and 6.9).

Frames gather in `out` until somebody writes them to the client. What is not allowed to go yet waits in its stream, and
streams that can send stand in line and take turns. Memory is never copied here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode
from kernel_grpc.http2.frames import (
    DATA,
    FRAME,
    MAX_WINDOW,
    SMALLEST_FRAME_SIZE,
    header_frames,
    rst_stream,
    window_update,
)
from kernel_grpc.http2.history import History
from kernel_grpc.http2.stream import LOW_WATER, Data, Stream

__all__ = ["DEFAULT_WINDOW", "Outgoing", "nothing"]

#: The window of a connection, and of its streams, until the client says otherwise.
DEFAULT_WINDOW = 65535

#: What one stream sends before it is another one's turn, which is also the largest frame.
SHARE = 128 * 1024

#: How much data may gather in `out`.
CHUNK = 1024 * 1024 + 64 * 1024


def nothing() -> None:
    """What is called where nobody wants to know."""


class Account(Protocol):
    """Where bytes that wait are counted."""

    def add(self, size: int) -> None:
        """Count bytes."""

    def give_back(self, size: int) -> None:
        """They wait no more."""


class Uncounted:
    """What waits is counted by nobody else."""

    def add(self, size: int) -> None: ...

    def give_back(self, size: int) -> None: ...


class Outgoing:
    """The sending half of a connection, and the streams.

    `out`: what is to be written, in order. Whoever writes takes it all with `take`, and calls `pump` afterwards as long as
    there is room. `on_output` is called when something was put there, unless `corked`: whoever sets that has `out` written
    afterwards. `held_up`: the transport takes nothing at the moment, so no further data is put into `out`. `account`: where its
    user has the bytes counted that wait in streams. `full`: more than `most` of them wait, until no more than half as many do;
    then `brake`, its user's, is told by `release`.
    """

    def __init__(self, history: History, on_output: Callable[[], None]) -> None:
        self._history = history
        self.on_output = on_output
        self.streams: dict[int, Stream] = {}
        self.out: list[Data] = []
        self.pending = 0  # bytes of data in `out`
        self.corked = False
        self.held_up = False
        #: Answers must be sent by `send_headers`, `send_data` and `end`: the transport takes nothing, or the next header block
        #: has to begin by saying that no table is used.
        self.long_way = False
        self.sent = 0  # grows whenever the client is sent data, the end of a stream or credit: for these it may send PINGs
        self.worthless = 0  # how many of the ends said that the request was wrong: they pay for nothing (Floods)
        self.send_window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW  # of new streams
        self.peer_frame_size = SMALLEST_FRAME_SIZE
        self.account: Account = Uncounted()
        self.queued = 0  # bytes that wait in streams
        self.most: float = inf
        self.full = False
        self.brake: Any = None
        self.delivered = 0  # bytes that had to wait there and have gone into `out`
        self.pumping = False  # `pump` is under way, or has to wait
        self._line: OrderedDict[Stream, None] = OrderedDict()
        self._table_update = b""

    # --- frames

    def put(self, frames: bytes) -> None:
        """Send frames that no window holds up."""
        self.out.append(frames)
        if not self.corked:
            self.on_output()

    def take(self) -> tuple[list[Data], int]:
        """Return what is to be written, and how much of it is data."""
        taken = self.out, self.pending
        self.out = []
        self.pending = 0
        return taken

    def hold_up(self, held_up: bool) -> None:
        """Say whether the transport takes nothing at the moment."""
        self.held_up = held_up
        self._choose_way()

    def shrink_table(self) -> None:
        """The client keeps a smaller table for header blocks: the next block must begin by saying that none is used."""
        self._table_update = b"\x20"
        self._choose_way()

    def _choose_way(self) -> None:
        self.long_way = self.held_up or bool(self._table_update)

    def send_headers(self, stream_id: int, block: bytes) -> None:
        """Send a header block that does not end the stream."""
        self.put(self._header_frames(stream_id, block, end=False))

    def end(self, stream: Stream, block: bytes) -> None:
        """Send a header block that ends the stream, once its queue is empty."""
        frames = self._header_frames(stream.id, block, end=True)
        if stream.queue:
            stream.last = frames
        else:
            self._finish(stream, frames)

    def _header_frames(self, stream_id: int, block: bytes, *, end: bool) -> bytes:
        if self._table_update:
            block, self._table_update = self._table_update + block, b""
            self._choose_way()
        return header_frames(stream_id, block, end_stream=end, frame_size=self.peer_frame_size)

    def give_credit(self, stream_id: int, credit: int) -> None:
        """Let the client send `credit` bytes more on a stream; stream 0: on all of them together."""
        self.sent += 1  # the client has sent data, and may measure how fast
        self.out.append(window_update(stream_id, credit))

    # --- data

    def send_data(self, stream: Stream, size: int) -> None:
        """Send what waits in the stream's queue, of which `size` bytes are new."""
        stream.queued += size
        self.queued += size
        self.account.add(size)
        self.line_up(stream)
        if self.queued > self.most:
            self.full = True

    def line_up(self, stream: Stream) -> None:
        """Let a stream send that has something to send, when it is its turn."""
        if stream.send_window > 0:
            self._line[stream] = None
            self.pump()

    @property
    def can_pump(self) -> bool:
        return bool(self._line) and self.send_window > 0 and not self.held_up

    def pump(self) -> None:
        """Put into `out` what waits, as far as the windows, the transport and CHUNK allow."""
        if self.pumping:
            return
        line = self._line
        self.pumping = True
        try:
            while line and self.send_window > 0 and self.pending < CHUNK and not self.held_up:
                stream, _ = line.popitem(last=False)
                if stream.send_window > 0:  # the client may have made it smaller since
                    self._send(stream)
        finally:
            self.pumping = False
        if self.full:
            self._look_for_room()
        if self.out and not self.corked:
            self.on_output()

    def _look_for_room(self) -> None:
        if self.queued <= self.most / 2:
            self.full = False
            self.brake.release()

    def _send(self, stream: Stream) -> None:
        """Send a stream's share of what waits."""
        queue = stream.queue
        assert queue is not None
        out, frame_size = self.out, min(SHARE, self.peer_frame_size)
        room = min(SHARE, stream.send_window, self.send_window)
        total = min(room, stream.queued)
        left = total
        while left:
            piece = queue[0]
            if len(piece) > frame_size <= left:
                # Whole frames out of one long piece, by far the most of what goes out.
                head, view = FRAME.pack(frame_size << 8 | DATA, 0, stream.id), memoryview(piece)
                stop = min(left, len(piece) - 1) // frame_size * frame_size
                for at in range(0, stop, frame_size):
                    out.append(head)
                    out.append(view[at : at + frame_size])
                queue[0] = view[stop:]
                left -= stop
                continue
            size = min(left, frame_size)
            left -= size
            out.append(FRAME.pack(size << 8 | DATA, 0, stream.id))
            while size:
                piece = queue[0]
                length = len(piece)
                if length <= size:
                    out.append(queue.popleft())
                    size -= length
                else:
                    view = memoryview(piece)
                    out.append(view[:size])
                    queue[0] = view[size:]
                    size = 0
        stream.queued -= total
        self.queued -= total
        self.delivered += total
        self.account.give_back(total)
        stream.send_window -= total
        self.send_window -= total
        self.pending += total
        self.sent += 1
        if not queue:
            if stream.last is not None:
                self._finish(stream, stream.last)
        elif stream.send_window > 0:
            self._line[stream] = None
        if stream.queued < LOW_WATER <= stream.queued + total and not stream.done:
            stream.room_again()

    def widen(self, stream: Stream, increment: int) -> None:
        """Give a stream more of the client's window, or less. Raises OverflowError above the largest."""
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise OverflowError
        if stream.queue:
            self.line_up(stream)

    def widen_all(self, initial_window: int) -> None:
        """The client has changed the window of streams, open ones included (section 6.9.2). Raises ConnectionFailure."""
        increment, self.initial_window = initial_window - self.initial_window, initial_window
        try:
            for stream in list(self.streams.values()):
                self.widen(stream, increment)
        except OverflowError:
            text = f"SETTINGS_INITIAL_WINDOW_SIZE of {initial_window} makes a stream's window larger than {MAX_WINDOW}"
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, text) from None

    # --- the end of a stream

    def _finish(self, stream: Stream, frames: bytes) -> None:
        """Send a stream's last frames; it leaves the connection."""
        self.out.append(frames)
        self.sent += 1
        if self.streams.pop(stream.id, None) is not None and not stream.ended:
            self.out.append(rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._history.forget(stream.id)
        if stream.kept is not None:
            self.drop(stream)
        if not self.corked and not self.pumping:
            self.on_output()

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream that we give up. Its user is not told."""
        self.out.append(rst_stream(stream_id, code))
        self._history.forget(stream_id)
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            stream.done = True
            self.drop(stream)
        if not self.corked and not self.pumping:
            self.on_output()

    def drop(self, stream: Stream) -> None:
        """Let go of what a stream that has left still holds."""
        if stream.kept is not None:
            stream.connection.bodies.let_go(stream)
        if stream.queued:
            self.queued -= stream.queued
            self.account.give_back(stream.queued)
            stream.queued = 0
            if self.full:
                self._look_for_room()
        stream.queue = stream.last = None
        self._line.pop(stream, None)

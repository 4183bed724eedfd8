"""One side of a connection: bytes to frames, by the rules of RFC 9113. No I/O, no clock, no gRPC.

Feed `receive` with what comes, in pieces of any size; streams are told what is theirs, and `outgoing.out` fills with what has to
be written. What breaks a rule ends its stream or, where the standard says so, the connection: `ending.closed` is then true and
the last thing in `outgoing.out` is a GOAWAY that says why.

Frames are told apart here; what they mean is decided by the parts that a connection is made of, each of which knows only those
that stand before it: history (ids), outgoing (what is sent), floods, ending, control (frames that steer), bodies (data), heads.
Memory is bounded: kept here is at most one frame that isn't data, no longer than a header block may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernel_grpc.http2.blocks import MAX_BLOCK
from kernel_grpc.http2.bodies import Bodies
from kernel_grpc.http2.control import FRAMES, Control
from kernel_grpc.http2.ending import Ending
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.floods import TURN, Floods
from kernel_grpc.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    FRAME,
    HEADER_SIZE,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    SETTINGS,
)
from kernel_grpc.http2.heads import Heads
from kernel_grpc.http2.history import History
from kernel_grpc.http2.outgoing import Outgoing
from kernel_grpc.http2.stream import Data

__all__ = ["MAX_FRAME_SIZE", "FrameReader"]

#: The largest frame that is taken. Data is never gathered into frames, so a large one costs nothing.
MAX_FRAME_SIZE = 1024 * 1024

#: How many frames of one connection are taken in one turn of the loop; what has come behind them waits for another.
A_TURNS_FRAMES = range(128)

_unpack = FRAME.unpack_from

#: Makes the part that takes header blocks of those that stand before it.
MakeHeads = Callable[[Outgoing, History, Floods, Bodies], Heads]


class FrameReader:
    """What a connection is on either side: the parts that it is made of, and the way of the bytes to them.

    `now` is the time on any clock, in seconds. `preface`: what the other side sends before its first frame. `transport`: its
    user's, from which others learn whose connection it is; `reading`: its user's, too, what is known of how the other side
    reads.

    `outgoing`: what is to be written, and the open streams. `ending`: drain, fail, or be lost. `control`: PINGs, and what the
    other side's SETTINGS say.
    """

    transport: Any = None
    reading: Any = None

    #: Type of a frame that steers -> what is done with it.
    _steering: Mapping[int, Callable[[Any, int, int, bytes], None]] = FRAMES

    def __init__(
        self,
        history: History,
        outgoing: Outgoing,
        now: float,
        make_control: Callable[[Outgoing, History, Floods, Ending], Control],
        make_heads: MakeHeads,
        preface: bytes = b"",
    ) -> None:
        self.history = history
        self.outgoing = outgoing
        self.floods = floods = Floods(outgoing, now)
        self.ending = ending = Ending(outgoing, history, floods)
        self.control = make_control(outgoing, history, floods, ending)
        self.bodies = bodies = Bodies(outgoing, history, floods, ending)
        self.heads = make_heads(outgoing, history, floods, bodies)
        self._rest = bytearray()  # what has come of a frame that isn't complete
        self._need = 0  # how long it must be before it is looked at again
        self._preface = preface  # as long as it has not come
        self.frames = 0  # how many were taken when something was received last
        self.later: Data | None = None  # what has come and waits for another turn of the loop: it begins at `_later_at`
        self._later_at = 0

    @property
    def now(self) -> float:
        """When something was received last."""
        return self.floods.now

    def space(self) -> memoryview | None:
        """Return where what comes next may be received directly, or None. What was put there is announced with `filled`."""
        return self.bodies.space()

    def filled(self, count: int, now: float) -> None:
        """`count` bytes were put into `space()`, at least one."""
        self.bodies.filled(count, now)

    def receive(self, data: Data, now: float, at: int = 0) -> None:
        """Take what has come: `data[at:]`. Its memory is only lent for the call.

        Where that is more than is done for one connection at once, the rest is kept as `later`: `go_on` takes more of it.
        """
        ending = self.ending
        if ending.closed:
            return
        if self.later is not None:
            self.put_by(data)
            return
        outgoing, floods = self.outgoing, self.floods
        floods.now = now
        floods.turn = TURN
        outgoing.corked = True
        try:
            self._read(data, at, ending, floods)
        except ConnectionFailure as failure:
            ending.fail(failure.code, failure.text)
        finally:
            outgoing.corked = False

    def put_by(self, data: Data) -> None:
        """Keep what has come, behind what was kept before, for another turn of the loop. Its memory is only lent for the call."""
        if not self.ending.closed:
            self.later = bytes(data) if self.later is None else bytes(self.later[self._later_at :]) + data
            self._later_at = 0

    @property
    def waiting(self) -> int:
        """How many bytes have come and wait for another turn of the loop."""
        return 0 if self.later is None else len(self.later) - self._later_at

    def go_on(self, now: float) -> None:
        """Take more of what has come, in a further turn of the loop."""
        data, self.later = self.later, None
        if data is not None:
            self.receive(data, now, self._later_at)

    def _read(self, data: Data, at: int, ending: Ending, floods: Floods) -> None:
        """Take frames from `data[at:]`, up to the end of this connection's turn."""
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._need:
                return
            data = bytes(rest)
            rest.clear()
        size = len(data)
        bodies, heads = self.bodies, self.heads
        if self._preface:
            at = self._greet(data, size)
        elif bodies.missing or bodies.skip:
            at = bodies.more(data, size)
        last = size - HEADER_SIZE
        frames = 0
        for frames in A_TURNS_FRAMES:  # noqa: B007 - used behind it
            if at > last:
                break
            try:
                word, flags, stream_id = _unpack(data, at)
                kind = word & 0xFF
                stream_id &= MAX_STREAM_ID
                start = at + HEADER_SIZE
                stop = start + (word >> 8)
                if heads.expected is not None or word >> 8 > MAX_FRAME_SIZE:
                    self._check_frame(kind, flags, stream_id, word >> 8)
                if kind == DATA:
                    if flags & PADDED and size == start < stop:
                        self._keep(data, at, HEADER_SIZE + 1)  # the next byte says how much padding there is
                        return
                    at = stop if stop < size else size
                    bodies.data(flags, stream_id, data, start, at, stop - start)
                elif stop > size:
                    at = self._keep_frame(kind, data, at, stop)
                else:
                    at = stop
                    if kind == HEADERS:
                        heads.headers(self, flags, stream_id, data, start, stop)
                    else:
                        self._other_frame(kind, flags, stream_id, data, start, stop)
                    if floods.turn <= 0:
                        break
            except StreamFailure as failure:
                ending.fail_stream(failure)
        self.frames = frames
        if at < size and not ending.closed:
            self._keep_rest(data, at)

    def _keep_rest(self, data: Data, at: int) -> None:
        """Keep what is left of what has come: frames for the next turn, or the beginning of one."""
        if at <= len(data) - HEADER_SIZE:
            self.later, self._later_at = bytes(data), at
        else:
            self._keep(data, at, HEADER_SIZE)

    def _greet(self, data: Data, size: int) -> int:
        """Take the other side's preface; return where the frames begin. What has come of it so far is kept."""
        preface = self._preface
        if data[: len(preface)] != preface[:size]:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2: the connection preface is wrong")
        if size < len(preface):
            self._keep(data, 0, 0)
            return size
        self._preface = b""
        return len(preface)

    def _other_frame(self, kind: int, flags: int, stream_id: int, data: Data, start: int, stop: int) -> None:
        """Take a complete frame that is neither DATA nor HEADERS."""
        self.floods.turn -= 1
        if kind == CONTINUATION:
            self.heads.continuation(self, flags, stream_id, data, start, stop)
        elif self._is_gathered(kind, stop - start):
            self._steering[kind](self.control, flags, stream_id, bytes(data[start:stop]))
        else:
            self.floods.useless(f"a frame of type {kind}")

    def _keep_frame(self, kind: int, data: Data, at: int, stop: int) -> int:
        """Keep the frame that begins at `at` until the rest of it has come, or skip it; return where the data ends."""
        size = len(data)
        if self._is_gathered(kind, stop - at - HEADER_SIZE):
            self._keep(data, at, stop - at)
        else:
            self.bodies.skip = stop - size
            self.floods.useless(f"a frame of type {kind}")  # section 5.5: unknown types are ignored
        return size

    def _keep(self, data: Data, at: int, need: int) -> None:
        """Keep what has come of a frame, and look at it again once there are `need` bytes."""
        self._rest += data[at:]
        self._need = need

    def _check_frame(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        """Refuse a frame that is too large, or that can't come here."""
        if length > MAX_FRAME_SIZE:
            text = f"a frame of {length} bytes; the largest that is taken has {MAX_FRAME_SIZE}"
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, text)
        if self.heads.expected == SETTINGS:
            if kind != SETTINGS or flags & ACK:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"the first frame is of type {kind}, not SETTINGS")
            self.heads.expected = None
        elif kind != CONTINUATION or stream_id != self.heads.fragments_of[1]:
            text = f"a frame of type {kind} on stream {stream_id} within the header block of stream {self.heads.fragments_of[1]}"
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, text)

    def _is_gathered(self, kind: int, length: int) -> bool:
        """Whether a frame has a meaning; then it is looked at when it is complete. Refuses those that are absurdly long."""
        if kind > CONTINUATION:
            return False
        if length > MAX_BLOCK:
            text = f"a frame of type {kind} with {length} bytes; {MAX_BLOCK} are enough"
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, text)
        return True

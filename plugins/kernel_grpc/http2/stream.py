"""One stream, from the server's side: what its user may do with it, and what it is told.

A stream is among its connection's `outgoing.streams` until both sides have ended it or one has reset it. It begins with the
client's header block and is `ended` when the client has sent all; it is `done` when the server has nothing more to say, and
leaves the connection as soon as that is written. If the client is still sending then, it is told to stop (RFC 9113, section 8.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from kernel_grpc.http2.errors import ErrorCode

__all__ = ["STREAM_WINDOW", "Data", "Home", "Kept", "Sink", "Stream"]

Data = bytes | memoryview

#: How much a client may send on one stream before it gets further credit.
STREAM_WINDOW = 4 * 1024 * 1024

#: With this much waiting to be sent, a stream is not `writable`.
HIGH_WATER = 1024 * 1024

#: When less than this waits again, the stream's user is told.
LOW_WATER = HIGH_WATER // 2


class Kept:
    """What a held stream keeps back, in order. `data[at:]` is next, `more` came after it."""

    __slots__ = ("at", "data", "ended", "more")

    def __init__(self) -> None:
        self.data = b""
        self.at = 0
        self.more = bytearray()
        self.ended = False

    @property
    def size(self) -> int:
        return len(self.data) - self.at + len(self.more)

    def turn(self) -> None:
        """Go on with what came later: joined, so that many small pieces take no more memory than they are long."""
        self.data = bytes(self.more)
        self.at = 0
        self.more.clear()


class Sink:
    """Memory that a stream's data goes to without its user being told: `view[at:end]`, as far as it does not fill it.

    The data that would fill it, or end the stream, goes to `received` like all other.
    """

    __slots__ = ("at", "end", "view")

    def __init__(self) -> None:
        self.view = memoryview(b"")
        self.at = 0
        self.end = 0


class Sending(Protocol):
    """The sending half of a connection, as its streams use it."""

    streams: dict[int, Stream]
    initial_window: int

    def send_headers(self, stream_id: int, block: bytes) -> None:
        """Send a header block that does not end the stream."""

    def send_data(self, stream: Stream, size: int) -> None:
        """Send what waits in the stream's queue, of which `size` bytes are new."""

    def end(self, stream: Stream, block: bytes) -> None:
        """Send a header block that ends the stream, once its queue is empty."""

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Reset the stream."""


class Receiving(Protocol):
    """The receiving half of a connection, as its streams use it."""

    def hand_over(self, stream: Stream) -> None:
        """Give the stream what was kept back for it."""

    def let_go(self, stream: Stream) -> None:
        """Throw away what was kept back for the stream."""


class Home(Protocol):
    """The connection that a stream belongs to."""

    @property
    def outgoing(self) -> Sending: ...

    @property
    def bodies(self) -> Receiving: ...


class Stream:
    """Subclass it and override `received` and `aborted`, perhaps `room_again`, `space` and `filled`.

    A user reads `connection`, `id`, `ended`, `done`, `held` and `queued`, and calls the methods; the rest is the connection's.
    """

    __slots__ = (
        "connection",
        "done",
        "ended",
        "held",
        "id",
        "kept",
        "last",
        "left",
        "queue",
        "queued",
        "recv_window",
        "send_window",
        "sink",
    )

    def __init__(self, connection: Home, id: int, ended: bool, length: int | None = None) -> None:
        """`ended`: the client has sent all. `length`: the content-length that was announced."""
        self.connection = connection
        outgoing = connection.outgoing
        self.id = id
        self.ended = ended  # the client sends nothing more
        self.done = False  # the server's side is over: nothing more can be sent
        self.left = length  # bytes of the announced content-length that have not come yet
        self.recv_window = STREAM_WINDOW
        self.send_window = outgoing.initial_window
        self.held = False  # what comes is kept back, and the client gets no further credit for it
        self.kept: Kept | None = None
        self.queue: deque[Data] | None = None  # what waits to be sent
        self.queued = 0  # the bytes in the queue
        self.sink: Sink | None = None  # the user may set it
        self.last: bytes | None = None  # the frames that end the stream, once the queue is empty
        outgoing.streams[id] = self

    # --- what the user is told

    def received(self, data: Data, start: int, stop: int, ended: bool) -> int | None:
        """Take `data[start:stop]`, memory that is only lent for the call; `ended`: it is the last, and perhaps empty.

        Return None when all was taken. A user that has called `hold` meanwhile returns up to where it got instead, and is
        given the rest, and the end, after `unhold`.
        """
        return None

    def aborted(self, code: int) -> None:
        """The client has cancelled the stream, it broke a rule, or the connection has gone; `done` is already true."""

    def room_again(self) -> None:
        """Less waits to be sent now; called whenever it has fallen below LOW_WATER."""

    def space(self) -> memoryview | None:
        """Return where data that is about to come may be put directly, or None; see `filled`."""
        return None

    def filled(self, count: int) -> None:
        """`count` bytes were put into `space()`."""

    # --- what the user can do

    @property
    def writable(self) -> bool:
        """Whether the client takes what it is sent."""
        return not self.done and self.queued < HIGH_WATER

    def send_headers(self, block: bytes) -> None:
        """Send the response's header block."""
        if not self.done:
            self.connection.outgoing.send_headers(self.id, block)

    def send_data(self, pieces: Sequence[Data], size: int) -> None:
        """Send `pieces`, `size` bytes in all, as windows and transport allow. Their memory must not change any more."""
        if self.done:
            return
        queue = self.queue
        if queue is None:
            queue = self.queue = deque()
        queue.extend(piece for piece in pieces if len(piece))
        self.connection.outgoing.send_data(self, size)

    def end(self, block: bytes) -> None:
        """End the stream with trailers, or with headers where there were none yet; behind the data that waits."""
        if self.done:
            return
        self.done = True
        self.connection.outgoing.end(self, block)

    def reset(self, code: ErrorCode) -> None:
        """End the stream at once, without an answer."""
        self.connection.outgoing.reset(self.id, code)

    def hold(self) -> None:
        """Let nothing more be received until `unhold`; the client stops when its window is used up."""
        self.held = True

    def unhold(self) -> None:
        """Receive what was kept back, and go on."""
        if self.held:
            self.held = False
            self.connection.bodies.hand_over(self)

    def __repr__(self) -> str:
        states: list[Any] = ["ended"] * self.ended + ["done"] * self.done + ["held"] * self.held
        return f"<{type(self).__name__} {self.id} {' '.join(states)}>"

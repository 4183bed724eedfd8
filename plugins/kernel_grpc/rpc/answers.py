"""What goes out on a call: head, messages and status, in that order and once.

The plain answer of a unary call, by far the most frequent, is one piece of bytes of fixed layout. Everything else goes the long
way: large messages without being joined, compressed ones in order although some of them are packed on another thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from kernel import ServingError
from kernel_grpc.http2 import Connection, Data, Stream
from kernel_grpc.rpc import status
from kernel_grpc.rpc.assembly import MAX_MESSAGE, PREFIX
from kernel_grpc.rpc.compression import ON_LOOP
from kernel_grpc.rpc.status import HEAD, STATUS_OF, TRAILERS, Status

if TYPE_CHECKING:
    from kernel_grpc.rpc.meanings import Meaning
    from kernel_grpc.rpc.server import Server

__all__ = ["MAX_WAITING", "MOST_WAITING", "PATIENCE", "Answer", "Payload"]

log = logging.getLogger(__name__)

#: A message without its prefix. The memory of pieces must not change any more; they are contiguous, of any format.
Payload = bytes | Sequence[Data]

#: The bytes of one call that may wait for its client when a further message is sent, and the seconds for which it may take none
#: of them once they are more; and what may wait at most, however fast it reads: a model may be faster.
MAX_WAITING = 64 * 1024 * 1024
PATIENCE = 5.0
MOST_WAITING = 1024 * 1024 * 1024

#: A message of up to this many bytes goes out in one frame and as one piece.
SMALL = 16384 - PREFIX.size

#: HEADERS with the head, then the beginning of DATA with the prefix of the message; and HEADERS with the trailers.
_BEGIN = Struct(f">5sI{len(HEAD)}sIBIBI").pack
_MESSAGE = Struct(">IBIBI").pack
_END = Struct(f">5sI{len(TRAILERS)}s").pack
_HEAD_FRAME = len(HEAD).to_bytes(3, "big") + b"\x01\x04"
_TRAILERS_FRAME = len(TRAILERS).to_bytes(3, "big") + b"\x01\x05"


class Answer(Stream):
    """The outgoing half of a call."""

    __slots__ = (
        "_backlog",
        "_behind",
        "_given",
        "_since",
        "_taken",
        "begun",
        "deadline",
        "meaning",
        "moment",
        "on_cancel",
        "on_writable",
        "request",
        "server",
    )

    connection: Connection
    server: Server
    meaning: Meaning
    begun: bool  # the head is out
    deadline: float | None  # on the kernel's clock
    moment: float  # when the deadline will be enforced
    request: Any  # what to cancel when nobody waits for the answer any more
    on_cancel: Callable[[], None] | None
    on_writable: Callable[[], None] | None
    _backlog: deque[Any] | None  # what has to wait for a message that is being packed
    _behind: int  # the bytes that wait there
    _given: int  # the bytes that have had to wait for the client, ever …
    _taken: int  # … how many of them it had taken when that was last looked at …
    _since: float  # … and since when it has not taken more

    # --- what methods call

    @property
    def writable(self) -> bool:
        """Whether the client takes what it is sent, as far as one can tell."""
        return self._backlog is None and super().writable

    def reply(self, message: Payload) -> None:
        """Answer a unary call: head, message and status 0 in one write. The bytes are the message's, without a prefix."""
        outgoing = self.connection.outgoing
        if type(message) is bytes:
            size = len(message)
            if (
                size + 5 <= outgoing.send_window
                and size + 5 <= self.send_window
                and size <= SMALL
                and self.ended
                and not (self.done or self.begun or outgoing.roundabout or self.meaning.compression is not None)
            ):
                outgoing.send_window -= size + 5
                outgoing.sent += 1
                id = self.id
                del outgoing.streams[id]
                begin = _BEGIN(_HEAD_FRAME, id, HEAD, (size + 5) << 8, 0, id, 0, size)
                outgoing.out.append(begin + message + _END(_TRAILERS_FRAME, id, TRAILERS))
                self.done = True
                self.request = self.on_cancel = None
                if self.deadline is not None:
                    self.leave()
                if not outgoing.corked:
                    outgoing.on_output()
                return
        if self.done:
            return
        corked, outgoing.corked = outgoing.corked, True  # so that all of it goes out together
        try:
            self.send(message)
            self.finish()
        finally:
            outgoing.corked = corked
        if not corked:
            outgoing.on_output()

    def send(self, message: Payload) -> None:
        """Send one message of an answer that has several."""
        if self.done:
            return
        outgoing = self.connection.outgoing
        if not isinstance(message, bytes):
            pieces: list[Data] = [piece if type(piece) is bytes else memoryview(piece).cast("B") for piece in message]
            size = sum(map(len, pieces))
            if size <= SMALL:
                message = b"".join(pieces)
        else:
            size = len(message)
            pieces = [message]
        if self.meaning.compression is not None or self._backlog is not None:
            self._pack(pieces, size)
        elif (
            type(message) is bytes
            and size <= SMALL
            and size + 5 <= outgoing.send_window
            and size + 5 <= self.send_window
            and not (self.queue or outgoing.roundabout)
        ):
            outgoing.send_window -= size + 5
            self.send_window -= size + 5
            outgoing.sent += 1
            id = self.id
            if self.begun:
                outgoing.out.append(_MESSAGE((size + 5) << 8, 0, id, 0, size) + message)
            else:
                self.begun = True
                outgoing.out.append(_BEGIN(_HEAD_FRAME, id, HEAD, (size + 5) << 8, 0, id, 0, size) + message)
            if not outgoing.corked:
                outgoing.on_output()
        else:
            self._send(pieces, size, compressed=False)

    def finish(self, code: int = Status.OK, text: str = "") -> None:
        """End the call with a status; the first one counts."""
        if self.done:
            return
        if self._backlog is not None:
            self._backlog.append((code, text))
            return
        self.leave()
        if text:
            text = status.shortened(text, self.connection.control.header_list_limit)
        self.end(status.trailers(code, text) if self.begun else status.trailers_only(code, text))

    def fail(self, error: ServingError) -> None:
        """End the call with an error of the kernel's."""
        self.finish(STATUS_OF[error.code], error.message)

    # --- the long way

    def _send(self, pieces: Sequence[Data], size: int, *, compressed: bool) -> None:
        """Send a message of any size."""
        if size > MAX_MESSAGE:
            self.give_up(Status.RESOURCE_EXHAUSTED, f"the answer's message of {size} bytes is larger than {MAX_MESSAGE}")
            return
        if self.queued > MAX_WAITING and self._takes_nothing():
            text = f"the client lets {self.queued} bytes wait, more than the {MAX_WAITING} that are kept for it"
            self.give_up(Status.RESOURCE_EXHAUSTED, text)
            return
        if not self.begun:
            self.begun = True
            compression = self.meaning.compression
            self.send_headers(HEAD if compression is None else status.head(compression.coding))
        self._given += size + 5
        self.send_data([PREFIX.pack(compressed, size), *pieces], size + 5)

    def _takes_nothing(self) -> bool:
        """Whether the client has taken nothing for too long of the much that waits for it; or too much waits in any case."""
        taken, now = self._given - self.queued, self.server.now()
        if taken != self._taken or not self._since:
            self._taken, self._since = taken, now
        return now - self._since > PATIENCE or self.queued > MOST_WAITING

    def _pack(self, pieces: list[Data], size: int) -> None:
        """Send a message compressed, in its turn."""
        compression = self.meaning.compression
        assert compression is not None
        if self._backlog is not None:
            self._behind += size
            if self._behind > MAX_WAITING:
                text = f"{self._behind} bytes wait to be compressed, more than the {MAX_WAITING} that are kept"
                self.give_up(Status.RESOURCE_EXHAUSTED, text)
            else:
                self._backlog.append(pieces)
        elif size <= ON_LOOP:
            self._send_packed(pieces, size, compression.packed(pieces))
        else:
            self._backlog = deque()
            job = self.server.kernel.loop.run_in_executor(None, compression.packed, pieces)
            job.add_done_callback(lambda done: self._packed(pieces, size, done))

    def _packed(self, pieces: list[Data], size: int, done: asyncio.Future[bytes]) -> None:
        if done.cancelled() or self.done:  # the loop is closing; or nobody waits any more
            return
        if (error := done.exception()) is not None:
            log.error("an answer can't be compressed", exc_info=error)
            self._send(pieces, size, compressed=False)
        else:
            self._send_packed(pieces, size, done.result())
        backlog, self._backlog = self._backlog, None
        self._go_on(backlog or deque())
        if self.writable:
            self.room_again()

    def _go_on(self, backlog: deque[Any]) -> None:
        """Send what had to wait, up to the next message that is packed on another thread."""
        while backlog and not self.done:
            item = backlog.popleft()
            if isinstance(item, tuple):
                self.finish(*item)
            else:
                size = sum(map(len, item))
                self._behind -= size
                self._pack(item, size)
            if self._backlog is not None:
                self._backlog = backlog
                return

    def _send_packed(self, pieces: list[Data], size: int, packed: bytes) -> None:
        if len(packed) < size:
            self._send([packed], len(packed), compressed=True)
        else:
            self._send(pieces, size, compressed=False)

    # --- the end

    def give_up(self, code: int, text: str) -> None:
        """End the call although its method has not: the method is told that nobody waits any more."""
        if self.done:
            return
        request, on_cancel = self.request, self.on_cancel
        self._backlog = None
        self.connection.outgoing.drop(self)  # the status goes out now, what waits does not
        self.finish(code, text)
        self.cancel(request, on_cancel)

    def expired(self) -> None:
        """The deadline has passed."""
        self.give_up(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def aborted(self, code: int) -> None:
        """The client has cancelled the call, or has gone."""
        request, on_cancel = self.request, self.on_cancel
        self.leave()
        self.cancel(request, on_cancel)

    def cancel(self, request: Any, on_cancel: Callable[[], None] | None) -> None:
        try:
            if request is not None:
                self.server.kernel.cancel(request)
            if on_cancel is not None:
                on_cancel()
        except Exception:
            log.exception("a call can't be cancelled")

    def leave(self) -> None:
        """Let go of what must not outlive the call."""
        self.request = self.on_cancel = self.on_writable = None
        if self.deadline is not None:
            self.server.deadlines.discard(self, self.moment)

    def room_again(self) -> None:
        if self.on_writable is not None:
            self.on_writable()

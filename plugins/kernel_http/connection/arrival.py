"""The message that is arriving: since when it is awaited, and its body, once its head is there.

Says what of a body can't be taken, with the status and the words; whom that is answered to, and after what, is the business of
the Connection in protocol.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel import MemoryBudget
from kernel_http.connection.answers import PRESSED_PROGRESS, WHOLE_SECONDS
from kernel_http.connection.bodies import Body, ChunkedBody, ChunkError, Oversize
from kernel_http.connection.heads import CHUNKED, Head

if TYPE_CHECKING:
    from kernel_http.connection.server import Server

__all__ = ["Arrival", "Refused"]

#: A body that is not complete within the time-out gets more time if it has grown by this many bytes.
PROGRESS = 64 * 1024


class Refused(Exception):
    """What is arriving can't be taken: the status and the words to answer with. Nothing of it is held any more."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Arrival:
    """`since`: when the message that is arriving began to, or had last grown by enough, on the server's clock in seconds; 0.0
    where nothing is awaited. `body`: its body, None while its head is awaited.
    """

    __slots__ = ("_mark", "_server", "body", "since")

    def __init__(self, server: Server) -> None:
        self._server = server
        self.since = 0.0
        self.body: Body | ChunkedBody | None = None
        self._mark = 0  # how many bytes of the body there were at `since`

    def begin(self) -> None:
        """The beginning of a message is there, and the rest is awaited."""
        self.since = self._server.now()
        self._mark = 0

    def open(self, head: Head) -> None:
        """Take the body that belongs to `head` as it comes in. Raises Refused."""
        server, length = self._server, head.content_length
        account = server.kernel.memory.receive
        if length > server.limits.message:
            raise Refused(413, server.too_long(length))
        if account.full and (length > MemoryBudget.SMALL or length == CHUNKED):
            raise Refused(503, account.refusal().message)
        try:
            if length == CHUNKED:
                self.body = ChunkedBody(head, head.limit, server.limits.message, account)
            else:
                self.body = Body(head, head.limit, server.buffer, account)
        except MemoryError:
            raise Refused(503, f"there is no memory for a request of {length} bytes") from None
        self.begin()
        self.body.began = self.since

    def feed(self, body: Body | ChunkedBody, data: bytearray, at: int, end: int) -> int:
        """Give the body what belongs to it of `data[at:end]`; return where that ended. Raises Refused."""
        try:
            at = body.feed(data, at, end)
        except ChunkError as error:
            self.drop()
            raise Refused(400, f"the request's chunked body can't be read: {error}") from None
        except Oversize:
            self.drop()
            raise Refused(413, self._server.too_long(body.length)) from None
        self.look_at(body)
        return at

    def look_at(self, body: Body | ChunkedBody) -> None:
        """The body has grown: let go of it where it is complete. Raises Refused where there is no memory for the rest."""
        if body.refused:
            self.drop()
            raise Refused(503, self._server.kernel.memory.receive.refusal().message)
        if body.complete:
            self.body = None
            self.since = 0.0

    def drop(self) -> None:
        """Await nothing, and hold nothing any more of what has come."""
        body, self.body = self.body, None
        self.since = 0.0
        if body is not None:
            body.give_back()

    def is_late(self, now: float, limit: float) -> bool:
        """Whether the message has neither come within `limit` seconds nor grown by enough meanwhile, or takes an hour."""
        if not self.since or now - self.since <= limit:
            return False
        body = self.body
        least = PRESSED_PROGRESS if self._server.kernel.memory.receive.pressed else PROGRESS
        if body is None or body.seen - self._mark < least or now - body.began > WHOLE_SECONDS:
            return True
        self._mark = body.seen
        self.since = now
        return False

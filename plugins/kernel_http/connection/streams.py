"""An answer in pieces: sent as they come, in the order of the connection's requests, bounded where the client is slow.

A piece is written while it is this exchange's turn and the client takes what it is sent; otherwise it waits here. Nothing
else is held up by that. A client that lets too much wait is cut off, and its request cancelled.
"""

from __future__ import annotations

from kernel import MemoryBudget
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection, Exchange
from kernel_http.connection.heads import Head

__all__ = ["MAX_WAITING", "StreamExchange"]

#: The most bytes of one stream that wait for its client.
MAX_WAITING = 64 * 1024 * 1024

EVENTS = b"text/event-stream; charset=utf-8"

#: Tells nginx and caches on the way to pass each event on when it comes, not when a buffer is full.
PASS_ON = b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"


class StreamExchange(Exchange):
    """One request and its answer in pieces. `begun`: the head has been written."""

    __slots__ = ("_status", "_waiting", "begun", "waiting")

    def __init__(self, connection: ClientConnection, head: Head) -> None:
        super().__init__(connection, head)
        self.begun = False
        self._status = 0  # of the first piece
        self._waiting: list[bytes] = []
        self.waiting = 0

    def send(self, status: int, piece: bytes) -> None:
        """Send a piece. `status` counts where it is the first."""
        self._status = self._status or status
        self._waiting.append(piece if self.head.http10 else replies.chunk(piece))
        self.waiting += len(piece)
        self.advance()
        if self.waiting > MemoryBudget.SMALL and self.connection is not None:
            self.connection.recount()
        if self.waiting > MAX_WAITING:
            self._give_up()

    def end(self) -> None:
        """There will be no further piece."""
        if not self.head.http10:
            self._waiting.append(replies.LAST_CHUNK)
        rest = self._taken()
        self.answer(rest if self.begun else self._start() + rest)

    def advance(self) -> None:
        """Write what waits, if it is this exchange's turn and the client takes it."""
        connection = self.connection
        if connection is None or not self._waiting or connection.exchanges[0] is not self or connection.is_held_up:
            return
        pieces = self._taken()
        data: replies.Payload = pieces
        if not self.begun:
            self.begun = True
            data = self._start() + pieces
            if not self.head.as_is or connection.closes_after(self):
                close = self.head.close or connection.closes_after(self)
                data = replies.adapt(data, http10=self.head.http10, close=close, head_only=False)
        connection.write(data)

    def _taken(self) -> bytes:
        data = b"".join(self._waiting)
        self._waiting.clear()
        self.waiting = 0
        return data

    def _start(self) -> bytes:
        """Return the response's head. To HTTP/1.0 the end of the connection is the end of the body."""
        return replies.stream_head(self._status or 200, EVENTS, chunked=not self.head.http10, headers=PASS_ON)

    def _give_up(self) -> None:
        connection, self.connection = self.connection, None
        request, self.request = self.request, None
        self._taken()
        if connection is not None:
            connection.abort()
            if request is not None:
                connection.cancel(request)

"""Finds requests and their answers in the bytes that pass on one connection. Without I/O; what it can't follow it lets go.

The law: what is kept is bounded, and nothing that passes makes it fail: where bytes are no HTTP/1.1 the connection is not looked
at any more, and where there is more than can be kept, the exchange is not compared.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httptools

__all__ = ["MOST_BODY", "MOST_HEAD", "Exchange", "Exchanges", "NotFollowed", "Room"]

#: How much of one body is kept, and how long a head may be; bytes.
MOST_BODY = 64 * 1024 * 1024
MOST_HEAD = 256 * 1024

#: How much may come without anything that is told of it, such as of one field: the parser keeps that.
MOST_QUIET = 2 * MOST_HEAD

#: How many requests may be sent ahead of their answers on one connection.
MOST_AHEAD = 1024


class Room:
    """How many bytes may be kept in all. Any thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if self.taken + size > self.most:
                return False
            self.taken += size
            return True

    def free(self, size: int) -> None:
        with self._lock:
            self.taken -= size


@dataclass
class Message:
    """A request or an answer. `headers`: by lower-case name. `kept`: its body is; `cut`: there was no room for all of it."""

    target: bytes = b""
    method: str = ""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    kept: bool = False
    cut: bool = False
    complete: bool = False


@dataclass
class Exchange:
    request: Message
    answer: Message

    @property
    def size(self) -> int:
        return len(self.request.body) + len(self.answer.body)


class Exchanges:
    """One connection.

    `wanted(request)`: whether its body, and that of its answer, are to be kept; asked when its head is there. `done(exchange)`:
    both of one that was wanted are complete; who is told gives its `size` back to the room.
    """

    def __init__(self, room: Room, wanted: Callable[[Message], bool], done: Callable[[Exchange], None]) -> None:
        self.lost = False
        self._room = room
        self._wanted = wanted
        self._done = done
        self._ahead: deque[Message] = deque()  # requests whose answers are not complete
        self._client = _Side(self._asked, self._keep, lambda message: None)
        self._upstream = _Side(self._answers, self._keep, self._answered)
        self._client.parser = httptools.HttpRequestParser(self._client)
        self._upstream.parser = httptools.HttpResponseParser(self._upstream)

    def from_client(self, data: bytes) -> None:
        self._feed(self._client, data)

    def from_upstream(self, data: bytes) -> None:
        self._feed(self._upstream, data)

    def ended(self) -> None:
        """The connection is closed: what is not complete is forgotten."""
        self.lost = True
        for message in (*self._ahead, self._upstream.message):
            self._forget(message)
        self._ahead.clear()

    def _feed(self, side: _Side, data: bytes) -> None:
        if self.lost:
            return
        side.quiet += len(data)
        try:
            side.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.ended()
        if side.quiet > MOST_QUIET:
            self.ended()

    def _asked(self, message: Message) -> None:
        message.method = self._client.parser.get_method().decode("latin-1")
        if message.method in ("HEAD", "CONNECT") or len(self._ahead) >= MOST_AHEAD:
            raise NotFollowed  # the answer of the first two has no body, whatever it says of one
        self._ahead.append(message)
        message.kept = self._wanted(message)

    def _answers(self, message: Message) -> None:
        message.status = self._upstream.parser.get_status_code()
        if not self._ahead:
            raise NotFollowed
        message.kept = message.status >= 200 and self._ahead[0].kept

    def _answered(self, message: Message) -> None:
        if message.status < 200:  # go on
            return
        self._upstream.message = Message()
        request = self._ahead.popleft()
        if request.kept and request.complete:
            self._done(Exchange(request, message))
        else:
            self._forget(request)
            self._forget(message)

    def _keep(self, message: Message, data: bytes) -> None:
        if not message.kept or message.cut:
            return
        if len(message.body) + len(data) > MOST_BODY or not self._room.take(len(data)):
            self._forget(message)
            message.cut = True
            return
        message.body += data

    def _forget(self, message: Message) -> None:
        self._room.free(len(message.body))
        message.body = bytearray()


class NotFollowed(Exception):
    """The end of what is seen of a connection; an error of httptools's parser where that has called."""


class _Side:
    """What httptools calls for one direction."""

    def __init__(
        self, headed: Callable[[Message], None], keep: Callable[[Message, bytes], None], done: Callable[[Message], None]
    ) -> None:
        self.parser: Any
        self.message = Message()
        self._headed = headed
        self._keep = keep
        self._done = done
        self._head = 0
        self.quiet = 0  # bytes since anything was told

    def on_message_begin(self) -> None:
        self.quiet = 0
        self.message = Message()
        self._head = 0

    def on_url(self, data: bytes) -> None:
        self._grow(len(data))
        self.message.target += data

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value))
        self.message.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._headed(self.message)

    def on_body(self, data: bytes) -> None:
        self.quiet = 0
        self._keep(self.message, data)

    def on_message_complete(self) -> None:
        self.message.complete = True
        self._done(self.message)

    def _grow(self, size: int) -> None:
        self.quiet = 0
        self._head += size
        if self._head > MOST_HEAD:
            raise NotFollowed

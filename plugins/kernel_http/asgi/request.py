"""What comes in through ASGI: a scope becomes the Head that handlers know, messages become the JSON part and the tail.

Knows nothing of models and answers nothing. Framing, time-outs and the length of heads are the ASGI server's business; the
limits of bodies are ours, and the memory of a body is reserved, and counted in the server's budget, as on a connection of our own
(connection/bodies.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kernel_http.connection import replies
from kernel_http.connection.bodies import Body, Bytes, ChunkedBody, too_large
from kernel_http.connection.heads import CHUNKED, Forwarding, Head, HeadError, read_headers
from kernel_http.connection.server import HEAD_SIZE, HEADS, READ_SIZE

if TYPE_CHECKING:
    from kernel_http.connection.server import Server

__all__ = ["Disconnected", "Heads", "Message", "Receive", "Refusal", "Scope", "Send", "path_of", "read_message"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Disconnected(Exception):
    """The client has gone before its request was complete."""


class Refusal(Exception):
    """A request that no handler sees. `payload`: the whole response."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(payload)
        self.payload = payload


class Heads:
    """The heads that were seen before, by what the scope says."""

    def __init__(self, server: Server, forwarding: Forwarding | None) -> None:
        self._server = server
        self._forwarding = forwarding
        self._known: dict[tuple[Any, ...], Head] = {}

    def of(self, scope: Scope) -> Head:
        """Return the head of a request. Raises Refusal."""
        headers = scope["headers"]
        key = (scope["method"], scope.get("raw_path"), scope["path"], scope.get("root_path"), *headers)
        try:
            head = self._known.get(key)
        except TypeError:  # the specification allows lists as pairs, too
            headers = [(bytes(name), bytes(value)) for name, value in headers]
            key = (*key[:4], *headers)
            head = self._known.get(key)
        return head if head is not None else self._learn(key, scope, headers)

    def _learn(self, key: tuple[Any, ...], scope: Scope, headers: Any) -> Head:
        head = Head(b"")
        head.method = scope["method"]
        head.path = path_of(scope)
        head.content_length = CHUNKED
        try:
            read_headers(head, headers, self._forwarding)
        except HeadError as error:
            raise Refusal(replies.error(error.status, error.message, json=False)) from None
        except ValueError as error:
            raise Refusal(replies.error(400, f"the request's head can't be read: {error}", json=False)) from None
        # To handlers this is HTTP/1.0, so they write no chunks: the framing is the ASGI server's. Nothing else is to be changed.
        head.http10 = head.as_is = True
        head.close = head.head_only = False
        self._server.router.resolve(head)
        if sum(len(name) + len(value) for name, value in headers) + len(head.path) <= HEAD_SIZE:
            if len(self._known) >= HEADS:
                self._known.clear()
            self._known[key] = head
        return head


def path_of(scope: Scope) -> str:
    """Return the path under the prefix that the application is mounted at, percent escapes undecoded where that can be known.

    Routes are matched undecoded, as the reference does, but a prefix (`root_path`) comes decoded. Some servers and versions of
    Starlette leave the prefix in `path`, as the specification wants it now, others have taken it off.
    """
    path: str = scope["path"]
    root: str = (scope.get("root_path") or "").rstrip("/")
    if root and path.startswith(root) and path[len(root) :][:1] in ("", "/"):
        path = path[len(root) :]
    raw: bytes | None = scope.get("raw_path")
    if raw is None or b"%" not in raw:
        return path
    text = raw.partition(b"?")[0].decode("utf-8", "replace")
    at = text.find("/")
    while at >= 0:
        if unquote(text[at:]) == path:
            return text[at:]
        at = text.find("/", at + 1)
    return path


# --- bodies ----------------------------------------------------------------------------------------------------------


class PiecedBody(ChunkedBody):
    """A body of unknown length, in pieces that the server has taken out of their framing."""

    __slots__ = ()

    def feed(self, data: Any, at: int, end: int) -> int:
        self._missing = end - at  # the piece is one chunk, whose size is known
        return super().feed(data, at, end)


async def read_message(head: Head, server: Server, receive: Receive) -> tuple[Any, Bytes, int]:
    """Receive a whole request; return its JSON part and its tail, memory that belongs to the request alone, and how many bytes of
    the budget's `receive` they hold, which are to be given back.

    A request that is refused anyway is read to its end, too, or its connection could not be used again. Raises Refusal and
    Disconnected.
    """
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    data = message.get("body", b"")
    length = len(data)
    if message.get("more_body", False) or length > READ_SIZE:
        return await _read_pieces(head, server, message, receive)
    if head.refusal is not None:
        raise Refusal(head.refusal)
    if head.content_length not in (CHUNKED, length):
        raise _mismatch(head, length)
    split = head.json_length
    if split is None or not 0 <= split <= length:
        split = length
    if (split or length) > server.limit_of(head):
        raise Refusal(replies.error(400, too_large(head, length, server.limit_of(head)), json=True))
    if split == length:
        return bytes(data), bytearray(), 0
    return bytes(data[:split]), bytearray(memoryview(data)[split:]), 0


async def _read_pieces(head: Head, server: Server, message: Message, receive: Receive) -> tuple[Any, Bytes, int]:
    if head.content_length > server.limits.message:
        raise Refusal(replies.error(413, server.too_long(head.content_length), json=False))
    account = server.kernel.memory.receive
    body: Body | PiecedBody
    if head.content_length == CHUNKED:
        body = PiecedBody(head, server.limit_of(head), server.limits.message, account)
    else:
        body = Body(head, server.limit_of(head), server.buffer, account)
    try:
        json, tail = await _fill(body, head, server, message, receive)
    except BaseException:
        body.give_back()
        raise
    return json, tail, body.held


async def _fill(
    body: Body | PiecedBody, head: Head, server: Server, message: Message, receive: Receive
) -> tuple[Any, Bytes]:
    """Receive what is to come of a body; return its parts."""
    length = 0
    while True:
        data = message.get("body", b"")
        if data:
            length += len(data)
            if length > server.limits.message:
                raise Refusal(replies.error(413, server.too_long(length), json=False))
            body.feed(memoryview(data), 0, len(data))  # type: ignore[arg-type]
            if body.refused:
                raise Refusal(replies.error(503, server.kernel.memory.receive.refusal().message, json=False))
        if not message.get("more_body", False):
            break
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
    if head.refusal is not None:
        raise Refusal(head.refusal)
    if head.content_length not in (CHUNKED, length):
        raise _mismatch(head, length)
    if body.discard:
        raise Refusal(replies.error(400, too_large(head, length, server.limit_of(head)), json=True))
    return body.parts()


def _mismatch(head: Head, length: int) -> Refusal:
    text = f"the request's body has {length} bytes, but its Content-Length says {head.content_length}"
    return Refusal(replies.error(400, text, json=False))

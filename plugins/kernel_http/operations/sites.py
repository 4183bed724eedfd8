"""Pages for people, which plugins give (interfaces.py: Site): their routes and handlers. What they show is the plugins' business.

What they say is never to be read as anything else than what it is said to be, nor kept by anybody on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernel import Denied, Document, ServingError
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection
from kernel_http.connection.heads import Head
from kernel_http.connection.routes import Route
from kernel_http.connection.streams import StreamExchange
from kernel_http.operations.operation import at_once

if TYPE_CHECKING:
    from kernel import Door, Site, SiteRoute
    from kernel_http.connection.routes import Handler

__all__ = ["serve_sites"]

#: The fields of every answer: what browsers may do with it, as far as its own fields don't say more.
FIELDS = b"X-Content-Type-Options: nosniff\r\n"
CACHED = "Cache-Control"


def serve_sites(sites: Sequence[Site]) -> tuple[list[Route], dict[str, Handler]]:
    """Return the routes of some sites, and route name -> handler."""
    rows, handlers = [], {}
    for number, site in enumerate(sites):
        for at, route in enumerate(site.routes):
            name = f"site {number}.{at}"
            local = "inflight" if route.of_all_clients else ""
            rows.append(Route(name, "GET", route.pattern, True, route.category, local, page=True))
            handlers[name] = _handler(site, route)
    return rows, handlers


def _handler(site: Site, route: SiteRoute) -> Handler:
    if not route.follows:
        return at_once(lambda head, body: _answer(site.document(head.path), head))

    def follow(connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        exchange = StreamExchange(connection, head)
        connection.exchanges.append(exchange)
        try:
            site.follow(head.path, Events(exchange, head))
        except ServingError as error:
            exchange.answer(replies.error_of(error, json=True))

    return follow


def _answer(document: Document, head: Head) -> bytes:
    body, fields = document.body, FIELDS
    if document.packed and head.accept == "gzip":
        body = document.packed
        fields += b"Content-Encoding: gzip\r\n"
    if document.packed:
        fields += b"Vary: Accept-Encoding\r\n"
    if all(name != CACHED for name, _ in document.fields):
        fields += b"Cache-Control: no-store\r\n"
    fields += "".join(f"{name}: {value}\r\n" for name, value in document.fields).encode()
    kind = document.content_type.encode()
    return b"%bContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n%b" % (replies.STATUS_LINES[200], kind, fields, len(body), body)


class Events:
    """A client that follows a site, as that sees it: a Reader."""

    __slots__ = ("_door", "_ended", "_exchange")

    def __init__(self, exchange: StreamExchange, head: Head) -> None:
        self._exchange = exchange
        self._door: Door | None = getattr(head, "door", None)  # where there is a gate
        self._ended = False

    @property
    def is_gone(self) -> bool:
        """Whether nobody reads any more."""
        return self._ended or self._exchange.connection is None

    @property
    def waiting(self) -> int:
        """Bytes that it was sent and has not begun to take."""
        return self._exchange.waiting

    def send(self, piece: bytes) -> None:
        """Send a piece of the stream. It ends where its client may not have it any more, as its key was taken away."""
        if self.is_gone:
            return
        door, connection = self._door, self._exchange.connection
        if door is not None and connection is not None and not door.standing.holds:
            try:
                door.check(connection)
            except Denied:
                self.end()
                return
        self._exchange.send(200, piece)

    def end(self) -> None:
        """There will be no further piece."""
        if not self.is_gone:
            self._ended = True
            self._exchange.end()

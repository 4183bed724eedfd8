"""What the quick operations have in common: a request's head and body go in, the whole response comes out at once.

Whatever an operation raises becomes an answer. Reading JSON bodies that may be absent, or may not.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from kernel import AskOthers, ServingError, clipped
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection, Exchange
from kernel_http.connection.heads import Head
from kernel_http.json.errors import read_again

if TYPE_CHECKING:
    import asyncio

    from kernel_http.connection.routes import Handler

__all__ = ["UNITS", "Operation", "Pace", "at_once", "in_pieces", "read_document", "read_object"]

log = logging.getLogger(__name__)

#: `operation(head, body)` returns the response, or raises ServingError.
Operation = Callable[[Head, bytes], bytes]

#: What an operation takes besides the time for its body and its answer, in units (turns.py), where it doesn't say.
UNITS = 3

#: How long others have the loop for themselves between two operations that take long; seconds.
PAUSE = 0.02

_decode = msgspec.json.Decoder().decode


class Pace:
    """When operations begin that take long: one at a time, PAUSE apart, in the order in which they came.

    Who asks for one waits for it without holding up anybody: as turns of its connection, all others would wait behind it, too.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Exchange, Callable[[], None]]] = deque()
        self._pausing = False

    def begin(self, exchange: Exchange, run: Callable[[], None]) -> None:
        """Call `run`, which answers `exchange`, now or later; not at all where nobody waits for that by then."""
        self._waiting.append((exchange, run))
        if not self._pausing:
            self._next()

    def _next(self) -> None:
        self._pausing = False
        while self._waiting:
            exchange, run = self._waiting.popleft()
            if exchange.connection is not None:
                self._pausing = True
                self._loop.call_later(PAUSE, self._next)
                run()
                break


def at_once(operation: Operation, units: int = UNITS, pace: Pace | None = None) -> Handler:
    """Return the handler that answers with what `operation` returns or raises. `units`: of work; 0: nothing of it is counted.
    `pace`: who says when it begins, where it takes long.
    """

    def handler(connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        exchange = Exchange(connection, head)
        connection.exchanges.append(exchange)
        body = json if not len(tail) else json + bytes(tail)

        def run() -> None:
            try:
                answer = _answer_of(operation, head, body)
            except AskOthers as others:
                others.wait(run)
                return
            if units and exchange.connection is not None:
                connection.spend(units + ((len(json) + len(answer)) >> 7))
            exchange.answer(answer)
            if pace is not None:
                connection.release()

        if pace is None:
            run()
        else:
            connection.barrier = True  # of what it sends together, one waits among the others'
            pace.begin(exchange, run)

    return handler


def in_pieces(operation: Callable[[Head, bytes], Iterator[tuple[bytes, bool]]], pace: Pace) -> Handler:
    """Return the handler that answers with the pieces of JSON that `operation` gives, each with whether there are more. Each has
    a turn of its own.
    """

    def handler(connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        exchange = Exchange(connection, head)
        connection.exchanges.append(exchange)
        body = json if not len(tail) else json + bytes(tail)
        made: list[bytes] = []
        pieces: Iterator[tuple[bytes, bool]] | None = None

        def some(head: Head, body: bytes) -> bytes:
            """Make one more piece; return the answer when it is the last."""
            nonlocal pieces
            if pieces is None:
                pieces = operation(head, body)
            piece, more = next(pieces)
            made.append(piece)
            return b"" if more else replies.reply(200, b"".join(made), json=True)

        def run() -> None:
            try:
                answer = _answer_of(some, head, body)
            except AskOthers as others:
                others.wait(run)
                return
            if answer:
                exchange.answer(answer)
                connection.release()
            else:
                pace.begin(exchange, run)

        connection.barrier = True
        pace.begin(exchange, run)

    return handler


def _answer_of(operation: Operation, head: Head, body: bytes) -> bytes:
    try:
        return operation(head, body)
    except ServingError as error:
        return replies.error_of(error, json=head.json_errors)
    except AskOthers:
        raise
    except Exception as error:
        log.exception("%s failed", clipped(head.path))
        return replies.error(500, f"{type(error).__name__}: {error}", json=head.json_errors)


def read_document(body: bytes) -> dict[str, Any]:
    """Read a body that must be there; what is JSON but no object has no members, as in the reference."""
    try:
        value = _decode(body)
    except (ValueError, RecursionError):
        value = read_again(body)
    return value if type(value) is dict else {}


def read_object(body: bytes) -> dict[str, Any]:
    """Read a body that may be absent."""
    return read_document(body) if body else {}

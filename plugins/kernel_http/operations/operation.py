"""What the quick operations have in common: a request's head and body go in, the whole response comes out at once.

Whatever an operation raises becomes an answer. Reading JSON bodies that may be absent, or may not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from kernel import AskOthers, ServingError, clipped
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection, Exchange
from kernel_http.connection.heads import Head
from kernel_http.json.errors import read_again

if TYPE_CHECKING:
    from kernel_http.connection.routes import Handler

__all__ = ["UNITS", "Operation", "at_once", "read_document", "read_object"]

log = logging.getLogger(__name__)

#: `operation(head, body)` returns the response, or raises ServingError.
Operation = Callable[[Head, bytes], bytes]

#: What an operation takes besides the time for its body and its answer, in units (turns.py), where it doesn't say.
UNITS = 3

_decode = msgspec.json.Decoder().decode


def at_once(operation: Operation, units: int = UNITS) -> Handler:
    """Return the handler that answers with what `operation` returns or raises. `units`: of work; 0: nothing of it is counted."""

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

        run()

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

"""The infer route: a complete message becomes a request of the kernel, whose answer is written by answers.py.

The JSON part of a binary request that passed the model's check is remembered as a Recipe: a later request with the same JSON part
needs no parser and no check, only views on its own tail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kernel import Code, ServingError
from kernel_http.connection import replies
from kernel_http.connection.compression import CODINGS, OFFER, decompressed
from kernel_http.connection.exchange import ClientConnection, reply
from kernel_http.connection.heads import Head, explains
from kernel_http.inference.answers import InferExchange, WorkedExchange
from kernel_http.inference.explained import ExplainedExchange
from kernel_http.inference.reader import Reader, TooLarge
from kernel_http.inference.recipe import Recipe, Remembered
from kernel_http.inference.tracing import arrived
from kernel_http.json.large import LARGE

if TYPE_CHECKING:
    import asyncio

    from kernel import Kernel, Model

__all__ = ["Inference"]

log = logging.getLogger(__name__)

#: Bounds of a model's recipes: how many, and how long a JSON part may be.
RECIPES = 256
JSON_SIZE = 4096

#: What is compressed is unpacked on the loop up to this size, which makes a thousand times as many bytes at most; bytes.
UNPACKED_ON_LOOP = 1024
MOST_PACKED = 1032


class Inference:
    """The handler of the infer route."""

    def __init__(self, kernel: Kernel, max_input_size: int) -> None:
        self.kernel = kernel
        self.max_input_size = max_input_size

    def __call__(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        """Serve a request, on the loop but for what would take long there."""
        if head.coded:
            self._coded(connection, head, json, tail)
            return
        try:
            model = self._admit(head, len(json) + len(tail))
        except ServingError as error:
            reply(connection, head, replies.error_of(error, json=False))
            return
        remembered = self._remembered(model)
        recipe = remembered.recipes.get(json) if len(json) <= JSON_SIZE else None
        if recipe is None or recipe.size != len(tail) or head.forward_error:
            self._first(connection, head, json, tail, model, remembered)
            return
        connection.remember(head, json, len(tail), recipe)
        recipe.launch(connection, head, tail)

    def _remembered(self, model: Model) -> Remembered:
        remembered = model.attachments.get(Inference)
        if not isinstance(remembered, Remembered):
            remembered = model.attachments[Inference] = Remembered(model)
        return remembered

    def _coded(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        """Serve a request that is compressed, or whose answer is to be; it is always read anew."""
        try:
            model = self._admit(head, None)
            if head.encoding in CODINGS:
                if len(json) + len(tail) > UNPACKED_ON_LOOP:
                    self._unpack_aside(connection, head, (json, tail), model)
                    return
                json, tail = unpacked(head, (json, tail), self.max_input_size)
            elif head.encoding not in ("", "identity"):
                reply(connection, head, replies.error(501, "Unsupported compression type", json=False, headers=OFFER))
                return
            self._admit(head, len(json) + len(tail))
        except ServingError as error:
            reply(connection, head, replies.error_of(error, json=False))
            return
        self._first(connection, head, json, tail, model, self._remembered(model))

    def _admit(self, head: Head, length: int | None) -> Model:
        """Do what comes before the body is looked at, in the reference's order. `length`: of the body, once it is known."""
        model = self.kernel.model(head.model, head.version)
        if model.config.decoupled:
            raise ServingError(
                Code.UNSUPPORTED, "HTTP end point doesn't support models with decoupled transaction policy"
            )
        if head.json_length is not None and length is not None:
            if head.json_length_error:
                raise ServingError(Code.INVALID_ARG, head.json_length_error)
            if not 0 <= head.json_length <= length:
                raise ServingError(
                    Code.INVALID_ARG,
                    f"inference header size should be in range (0, {length}), got: {head.json_length}",
                )
        return model

    def _first(
        self, connection: ClientConnection, head: Head, json: bytes, tail: Any, model: Model, remembered: Remembered
    ) -> None:
        """Serve a request whose JSON part isn't known: read it, have it checked, and perhaps remember it."""
        reader = Reader(self.kernel, model, head, self.max_input_size)
        try:
            if len(json) > JSON_SIZE:
                if len(json) > LARGE:
                    raise TooLarge
                connection.spend(len(json) >> 7)
            reader.read(json, tail)
            exchange: InferExchange
            if explains(head):
                exchange = ExplainedExchange(connection, head, reader, remembered.replies)
            elif reader.classes or reader.spans or head.accept:
                exchange = WorkedExchange(connection, head, reader, remembered.replies)
            else:
                exchange = InferExchange(connection, head, reader.binary, remembered.replies)
            request = reader.request(exchange.respond)
            model.check(request)
            if reader.deferred is not None:
                raise reader.deferred
        except TooLarge:
            reader = Reader(self.kernel, model, head, self.max_input_size)
            self._read_aside(connection, reader, remembered, partial(reader.read, json, tail))
            return
        except ServingError as error:
            reply(connection, head, replies.error_of(error, json=True))
            return
        except Exception as error:  # a mistake of ours must not cost the connection's other requests their answers
            log.exception("a request to model '%s' can't be read", model.name)
            problem = ServingError(Code.INTERNAL, f"the request can't be read: {type(error).__name__}: {error}")
            reply(connection, head, replies.error_of(problem, json=True))
            return
        if reader.repeatable and not head.coded and len(json) <= JSON_SIZE:
            if len(remembered.recipes) >= RECIPES:
                remembered.recipes.clear()
            remembered.recipes[json] = recipe = Recipe(reader, request, remembered.replies)
            connection.remember(head, json, len(tail), recipe)
        exchange.request = request
        connection.exchanges.append(exchange)
        if model.tracing is not None:
            arrived(connection, head, request)
        model.enqueue(request)

    # --- what is too large for the loop

    def _unpack_aside(self, connection: ClientConnection, head: Head, packed: tuple[Any, Any], model: Model) -> None:
        """Serve a compressed request, of which nobody knows how large it is."""
        most = min(self.max_input_size, sum(map(len, packed)) * MOST_PACKED)
        if not self.kernel.memory.receive.take(most):
            raise self.kernel.memory.receive.refusal()
        reader = Reader(self.kernel, model, head, self.max_input_size)

        def read() -> None:
            json, tail = unpacked(head, packed, self.max_input_size)
            self._admit(head, len(json) + len(tail))
            reader.read(json, tail)

        exchange = self._read_aside(connection, reader, self._remembered(model), read)
        connection.lend(exchange, most)

    def _read_aside(
        self, connection: ClientConnection, reader: Reader, remembered: Remembered, read: Callable[[], None]
    ) -> WorkedExchange:
        """Have a request read on another thread, in its order among those of its connection."""
        reader.on_loop = False
        kind = ExplainedExchange if explains(reader.head) else WorkedExchange
        exchange = kind(connection, reader.head, reader, remembered.replies)
        connection.exchanges.append(exchange)

        def done(reading: asyncio.Future[None]) -> None:
            if reading.cancelled() or exchange.connection is None:
                return  # the loop is closing, or the client has gone
            try:
                reading.result()
                exchange.note(reader)
                request = reader.request(exchange.respond)
                reader.model.check(request)
                if reader.deferred is not None:
                    raise reader.deferred
            except ServingError as error:
                error.__traceback__ = None  # it leads to this frame, and so to the future that has it: the body would stay
                exchange.answer(replies.error_of(error, json=reader.begun))
                return
            except Exception as error:
                log.exception("a request to model '%s' can't be read", reader.model.name)
                problem = ServingError(Code.INTERNAL, f"the request can't be read: {type(error).__name__}: {error}")
                exchange.answer(replies.error_of(problem, json=True))
                return
            exchange.request = request
            if reader.model.tracing is not None:
                arrived(exchange.connection, reader.head, request)
            reader.model.enqueue(request)

        connection.aside(read).add_done_callback(done)
        return exchange


def unpacked(head: Head, packed: tuple[Any, Any], limit: int) -> tuple[Any, bytearray]:
    """Return the JSON part, bytes where it isn't large, and the tail of what is compressed. Raises ServingError(INVALID_ARG)."""
    json, tail = decompressed(packed, limit, limit + 1 if head.json_length is None else max(head.json_length, 0))
    return bytes(json) if len(json) <= LARGE else json, tail

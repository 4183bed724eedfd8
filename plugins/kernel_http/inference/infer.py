"""Inference: a complete message becomes a request of the kernel, whose answer is answers.py's.

The JSON part of a binary request that passed the model's check is remembered as a Template: a byte-identical one later
only needs views on its own tail. Each request owns its tail's memory, so models may write to their inputs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel import Code, InferenceRequest, ServingError, Tensor, strings_of, unpacked
from kernel_http.connection import replies
from kernel_http.connection.compression import CODINGS, OFFER, decompressed
from kernel_http.connection.exchange import ClientConnection, Exchange
from kernel_http.connection.heads import Head
from kernel_http.inference.answers import InferExchange, WorkedExchange
from kernel_http.inference.encode import Replies
from kernel_http.inference.reader import Reader
from kernel_http.inference.tracing import arrived

if TYPE_CHECKING:
    from kernel import Kernel, Model

__all__ = ["Inference"]

log = logging.getLogger(__name__)

#: Bounds of a model's templates: how many, and how long a JSON part may be.
TEMPLATES = 256
TEMPLATE_SIZE = 4096


class Memory:
    """What this front end remembers about one loaded model; lives in `model.attachments` and goes with it."""

    __slots__ = ("replies", "templates")

    def __init__(self, model: Model) -> None:
        self.templates: dict[bytes, Template] = {}
        self.replies = Replies(model.name, str(model.version))


class Template:
    """What one JSON part means to one model.

    `plan`: name, datatype, dtype, shape, offset and size in the tail of each input, in order.
    """

    __slots__ = (
        "binary",
        "correlation_id",
        "custom",
        "flags",
        "generation",
        "inference",
        "model",
        "plan",
        "priority",
        "replies",
        "requested",
        "rows",
        "size",
        "timeout_us",
        "wanted",
    )

    def __init__(self, inference: Inference, reader: Reader, request: InferenceRequest, known: Replies) -> None:
        """Keep what was read and what the model's check said of it."""
        parameters = reader.parameters
        self.inference = inference
        self.model = reader.model
        self.generation = inference.kernel.generation  # when the names of the request were last known to mean this model
        self.plan = tuple(reader.plan)
        self.size = sum(size for *_, size in self.plan)  # of the tail; one of another length is read, and refused, anew
        self.binary = reader.binary
        self.replies = known
        self.requested = tuple(reader.requested) if reader.requested is not None else None
        self.custom = parameters.custom
        self.priority = parameters.priority
        self.timeout_us = parameters.timeout_us
        self.correlation_id = parameters.correlation_id
        self.flags = parameters.flags
        self.rows = request.batch_size
        self.wanted = request.wanted

    def repeat(self, connection: ClientConnection, head: Head, tail: Any) -> bool:
        """Serve a request with the same head and JSON part as the last. False: the model is another one now."""
        kernel = self.inference.kernel
        if self.generation != kernel.generation:
            if not self.model.is_meant_by(head.model, head.version):
                return False
            self.generation = kernel.generation
        self.launch(connection, head, tail)
        return True

    def launch(self, connection: ClientConnection, head: Head, tail: Any) -> None:
        """Make the request from its tail and hand it to the model. `tail` belongs to the request from here on."""
        exchange = InferExchange(connection, head, self.binary, self.replies)
        connection.exchanges.append(exchange)
        inputs = {}
        for name, datatype, dtype, shape, offset, size in self.plan:
            if dtype is None:
                try:
                    items = unpacked(name, self.model.name, "", tail, offset, size)
                    array = strings_of(items, name, self.model, shape, "")
                except ServingError as error:
                    exchange.answer(replies.error_of(error, json=True))
                    return
            else:
                array = np.ndarray(shape, dtype, tail, offset)
            inputs[name] = Tensor(name, datatype, array)
        request = InferenceRequest(
            head.model,
            inputs,
            exchange.respond,
            head.version,
            "",  # id: requests with one are not repeated
            self.requested,
            {**self.custom, **dict(head.forwarded)} if self.custom or head.forwarded else None,
            self.priority,
            self.timeout_us,
            None,  # deadline
            self.correlation_id,
            self.flags,
        )
        request.model = self.model
        request.batch_size = self.rows
        request.wanted = self.wanted
        exchange.request = request
        array = None  # a model on the loop executes now, and whoever else holds its input makes it copy
        if self.model.tracing is not None:
            arrived(connection, head, request)
        self.model.enqueue(request)


class Inference:
    """The handler of the infer route."""

    def __init__(self, kernel: Kernel, max_input_size: int) -> None:
        self.kernel = kernel
        self.max_input_size = max_input_size

    def __call__(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        if head.coded:
            self._coded(connection, head, json, tail)
            return
        try:
            model = self._admit(head, len(json) + len(tail))
        except ServingError as error:
            self._refuse(connection, head, error, json=False)
            return
        memory = self._memory(model)
        template = memory.templates.get(json)
        if template is None or template.size != len(tail) or head.forward_error:
            self._first(connection, head, json, tail, model, memory)
            return
        connection.remember(head, json, len(tail), template)
        template.launch(connection, head, tail)

    def _memory(self, model: Model) -> Memory:
        memory = model.attachments.get(Inference)
        if not isinstance(memory, Memory):
            memory = model.attachments[Inference] = Memory(model)
        return memory

    def _coded(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        """Serve a request that is compressed, or whose answer is to be; it is always read anew."""
        try:
            model = self._admit(head, None)
            if head.encoding in CODINGS:
                data = decompressed(json + bytes(tail), self.max_input_size)
                split = len(data) if head.json_length is None else max(head.json_length, 0)
                json, tail = data[:split], bytearray(data[split:])
            elif head.encoding not in ("", "identity"):
                exchange = Exchange(connection, head)
                connection.exchanges.append(exchange)
                exchange.answer(replies.error(501, "Unsupported compression type", json=False, headers=OFFER))
                return
            self._admit(head, len(json) + len(tail))
        except ServingError as error:
            self._refuse(connection, head, error, json=False)
            return
        self._first(connection, head, json, tail, model, self._memory(model))

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

    def _refuse(self, connection: ClientConnection, head: Head, error: ServingError, *, json: bool) -> None:
        exchange = Exchange(connection, head)
        connection.exchanges.append(exchange)
        exchange.answer(replies.error_of(error, json=json))

    def _first(self, connection: ClientConnection, head: Head, json: bytes, tail: Any, model: Model, memory: Memory) -> None:
        """Serve a request whose JSON part isn't known: read it, have it checked, and perhaps remember it."""
        try:
            reader = Reader(self.kernel, model, head, self.max_input_size)
            reader.read(json, tail)
            exchange: InferExchange
            if reader.classes or reader.spans or head.accept:
                exchange = WorkedExchange(connection, head, reader, memory.replies)
            else:
                exchange = InferExchange(connection, head, reader.binary, memory.replies)
            request = reader.request(exchange.respond)
            model.check(request)
            if reader.deferred is not None:
                raise reader.deferred
        except ServingError as error:
            self._refuse(connection, head, error, json=True)
            return
        except Exception as error:  # a mistake of ours must not cost the connection's other requests their answers
            log.exception("a request to model '%s' can't be read", model.name)
            problem = ServingError(Code.INTERNAL, f"the request can't be read: {type(error).__name__}: {error}")
            self._refuse(connection, head, problem, json=True)
            return
        if reader.repeatable and not head.coded and len(json) <= TEMPLATE_SIZE:
            if len(memory.templates) >= TEMPLATES:
                memory.templates.clear()
            memory.templates[json] = template = Template(self, reader, request, memory.replies)
            connection.remember(head, json, len(tail), template)
        exchange.request = request
        connection.exchanges.append(exchange)
        if model.tracing is not None:
            arrived(connection, head, request)
        model.enqueue(request)

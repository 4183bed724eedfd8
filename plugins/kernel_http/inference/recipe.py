"""What is remembered of a request: what its head and JSON part mean to one model, all but the bytes of its tail.

Recipes belong to their model and go with it. They hold nothing of the request itself: each request owns its tail, of which its
inputs are views, so models may write to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernel import Form, InferenceRequest, ServingError, Tensor, strings_of, unpacked
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection
from kernel_http.connection.heads import Head
from kernel_http.inference.answers import InferExchange
from kernel_http.inference.body import custom_of
from kernel_http.inference.encode import Replies
from kernel_http.inference.reader import Reader
from kernel_http.inference.tracing import arrived

if TYPE_CHECKING:
    from kernel import Model

__all__ = ["Recipe", "Remembered"]


class Remembered:
    """What this front end remembers about one loaded model; lives in `model.attachments` and goes with it."""

    __slots__ = ("recipes", "replies")

    def __init__(self, model: Model) -> None:
        self.recipes: dict[bytes, Recipe] = {}
        self.replies = Replies(model.name, str(model.version))


class Recipe:
    """What one JSON part means to one model.

    `steps`: how to make each input, in order. `size`: of the tail, in bytes; a tail of another length is read, and refused, anew.
    `binary`, `requested`: which outputs, in binary or not. `form`: what the model's check said of the request.
    """

    __slots__ = (
        "binary",
        "correlation_id",
        "custom",
        "flags",
        "form",
        "generation",
        "kernel",
        "model",
        "priority",
        "replies",
        "requested",
        "size",
        "steps",
        "timeout_us",
    )

    def __init__(self, reader: Reader, request: InferenceRequest, known: Replies) -> None:
        """Keep what was read and what the model's check said of it."""
        parameters = reader.parameters
        self.kernel = reader.kernel
        self.model = reader.model
        self.generation = reader.kernel.generation  # when the names of the request were last known to mean this model
        self.steps = tuple(reader.steps)
        self.size = sum(step.size for step in self.steps)
        self.binary = reader.binary
        self.replies = known
        self.requested = tuple(reader.requested) if reader.requested is not None else None
        self.custom = parameters.custom
        self.priority = parameters.priority
        self.timeout_us = parameters.timeout_us
        self.correlation_id = parameters.correlation_id
        self.flags = parameters.flags
        self.form = Form(request)

    def repeat(self, connection: ClientConnection, head: Head, tail: Any) -> bool:
        """Serve a request with the same head and JSON part as the last. False: the model is another one now."""
        kernel = self.kernel
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
        for name, datatype, dtype, shape, offset, size in self.steps:
            if dtype is None:
                connection.spend(size >> 8)
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
            custom_of(self.custom, head.forwarded) if self.custom or head.forwarded else None,
            self.priority,
            self.timeout_us,
            None,  # deadline
            self.correlation_id,
            self.flags,
            None,  # parent
            None,  # trace
            self.form,
        )
        exchange.request = request
        array = None  # a model on the loop executes now, and would copy an input that somebody else holds
        if self.model.tracing is not None:
            arrived(connection, head, request)
        self.model.enqueue(request)

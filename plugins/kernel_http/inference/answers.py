"""The answer of an inference request: the kernel's response becomes the bytes of one, sent in its order on the connection.

Most responses are only encoded. Classes, outputs in shared memory and compression are more work, with an exchange of their own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernel import Code, InferenceResponse, MemoryBudget, ServingError, classify, clipped, is_much_text
from kernel_http.connection import replies
from kernel_http.connection.compression import compressed
from kernel_http.connection.exchange import ClientConnection, Exchange
from kernel_http.connection.heads import Head
from kernel_http.inference.encode import VALUES_ON_LOOP, LargeAnswer, Replies, encode, encode_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernel import Span
    from kernel_http.inference.reader import Reader

__all__ = ["InferExchange", "WorkedExchange"]

log = logging.getLogger(__name__)

#: The most bytes of an output that are written to shared memory on the loop.
COPIED = MemoryBudget.COPIED

#: A larger answer is compressed on another thread: the loop has others to serve.
COMPRESSED_ON_LOOP = 256 * 1024


class InferExchange(Exchange):
    """An inference request's exchange. `binary`: True, or the names of the outputs that are wanted in binary."""

    __slots__ = ("binary", "replies")

    def __init__(self, connection: ClientConnection, head: Head, binary: bool | frozenset[str], replies: Replies) -> None:
        self.connection = connection
        self.head = head
        self.payload = None
        self.request = None
        self.binary = binary
        self.replies = replies

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        """Receive the request's answer from the kernel: the request's one completion."""
        if self.connection is None or not final:
            return
        if response is None:
            error = ServingError(Code.INTERNAL, "the model ended the request without a response")
            self.answer(replies.error_of(error, json=False))
        elif response.error is not None:
            # The scheduler has not accepted the request: told as application/json, like what the model's check refuses.
            refused = self.request is not None and not self.request.counted
            self.answer(replies.error_of(response.error, json=refused))
        else:
            try:
                self.answer(encoded(response, self.binary, self.replies))
            except LargeAnswer:
                self._work_aside(lambda: encoded(response, self.binary, self.replies, on_loop=False))

    def _work_aside(self, work: Callable[[], replies.Payload]) -> None:
        """Have the answer made on another thread."""
        connection = self.connection
        assert connection is not None

        def done(made: asyncio.Future[replies.Payload]) -> None:
            if made.cancelled():  # the loop is closing, and with it the connection
                return
            error = made.exception()
            if error is None:
                self.answer(made.result())
            else:
                text = f"the response can't be encoded: {type(error).__name__}: {error}"
                self.answer(replies.error(500, text, json=False))

        connection.aside(work).add_done_callback(done)


class WorkedExchange(InferExchange):
    """The exchange of a request whose answer takes more work: classes of outputs, shared memory, compression."""

    __slots__ = ("classes", "model", "spans", "values")

    def __init__(self, connection: ClientConnection, head: Head, reader: Reader, replies: Replies) -> None:
        super().__init__(connection, head, reader.binary, replies)
        self.model = reader.model
        self.values = reader.kernel.memory.values
        self.note(reader)

    def note(self, reader: Reader) -> None:
        """Take what has been read, by now, of how outputs are wanted."""
        self.binary = reader.binary
        self.classes = reader.classes
        self.spans = reader.spans

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        if self.connection is None or not final or response is None or response.error is not None:
            super().respond(response, final)
            return
        if any(
            tensor.array.nbytes > COPIED or (tensor.datatype == "BYTES" and is_much_text(tensor.array))
            if tensor.name in self.spans
            else tensor.array.size > VALUES_ON_LOOP and tensor.name in self.classes
            for tensor in response.outputs
        ):
            self._work_aside(lambda: self._compressed_on(self._encoded(response, on_loop=False)))
            return
        try:
            payload = self._encoded(response, on_loop=True)
        except LargeAnswer:
            self._work_aside(lambda: self._compressed_on(self._encoded(response, on_loop=False)))
            return
        coding = self.head.accept
        if not coding:
            self.answer(payload)
        elif (len(payload) if isinstance(payload, bytes) else sum(map(len, payload))) <= COMPRESSED_ON_LOOP:
            self.answer(compressed(payload, coding))
        else:
            loop = self.model.kernel.loop
            loop.run_in_executor(None, compressed, payload, coding).add_done_callback(self._compressed)

    def _encoded(self, response: InferenceResponse, *, on_loop: bool) -> replies.Payload:
        """Return the answer before it is compressed. Raises LargeAnswer on the loop."""
        try:
            if self.classes:
                classify(response, self.classes, self.model, self.values)
        except ServingError as error:
            return replies.error_of(error, json=False)
        except Exception as error:
            id = clipped(response.id)
            log.exception("the response of model '%s' to request '%s' can't be classified", response.model_name, id)
            return replies.error(500, f"the response can't be classified: {type(error).__name__}: {error}", json=False)
        return encoded(response, self.binary, self.replies, self.spans, on_loop=on_loop)

    def _compressed_on(self, payload: replies.Payload) -> replies.Payload:
        """As it goes out, on the thread that has made it."""
        coding = self.head.accept
        return compressed(payload, coding) if coding else payload

    def _compressed(self, done: asyncio.Future[replies.Payload]) -> None:
        if done.cancelled():  # the loop is closing, and with it the connection
            return
        error = done.exception()
        if error is None:
            self.answer(done.result())
        else:
            message = f"the response can't be compressed: {type(error).__name__}: {error}"
            self.answer(replies.error(500, message, json=False))


def encoded(
    response: InferenceResponse,
    binary: bool | frozenset[str],
    known: Replies,
    spans: Mapping[str, Span] | None = None,
    *,
    on_loop: bool = True,
) -> replies.Payload:
    """Encode a response, or say why it can't be. `spans`: where outputs go that are wanted in shared memory. Raises LargeAnswer
    where that would take long and is to be done `on_loop`.
    """
    try:
        if spans:
            return encode_shared(response, binary, known, spans, on_loop)
        return encode(response, binary, known, on_loop)
    except ServingError as error:
        return replies.error_of(error, json=False)
    except LargeAnswer:
        raise
    except Exception as error:
        log.exception("the response of model '%s' to request '%s' can't be encoded", response.model_name, clipped(response.id))
        return replies.error(500, f"the response can't be encoded: {type(error).__name__}: {error}", json=False)

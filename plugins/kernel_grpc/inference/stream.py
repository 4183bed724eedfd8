"""ModelStreamInfer: many requests on one stream, and as many responses as their models give (contract: grpc_protocol, section 4).

A request of a model that answers once is answered in the order of such requests; decoupled ones answer as they please. Errors
are messages like others, unless the client has asked for them as the stream's status. Half-closed, the stream ends when all is
answered; cancelled, everything that is in flight is. What is bounded is how many requests are in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from kernel import Code, InferenceRequest, InferenceResponse, NotLoaded, RequestState, ServingError, follow_trail
from kernel_grpc.inference.encode import LargeAnswer, Payload, Reply, error_message, nothing_more, streamed
from kernel_grpc.inference.infer import Inference
from kernel_grpc.inference.large import ON_LOOP, Large, Prepared
from kernel_grpc.inference.outputs import failed, finished_response, is_large, no_response, opened
from kernel_grpc.inference.recipe import Recipe
from kernel_grpc.inference.shares import Share, share_of
from kernel_grpc.inference.trailing import have_told
from kernel_grpc.inference.wire import leading
from kernel_grpc.rpc.status import SHUTTING_DOWN, Status
from kernel_grpc.rpc.unary import parsed
from kernel_grpc.schemas import grpc_service_pb2 as pb

if TYPE_CHECKING:
    from kernel_grpc.rpc.calls import Call

__all__ = ["InferStream"]

PENDING = RequestState.PENDING

log = logging.getLogger(__name__)

#: With so many requests of a stream in flight, no more are read until half of them are answered.
IN_FLIGHT = 1024

#: And with so many bytes of large messages, however few they are.
BYTES_IN_FLIGHT = 64 * 1024 * 1024

#: The metadata by which a client asks for errors as the stream's status.
STRICT = "triton_grpc_error"


class InferStream:
    """One stream. `answers`: what is owed, oldest first. `order`: those of them that have to go out in turn."""

    __slots__ = (
        "again", "answers", "call", "closing", "held", "inference", "order", "preparing", "share", "size", "strict", "waiting",
    )  # fmt: skip

    def __init__(self, inference: Inference, call: Call) -> None:
        self.inference = inference
        self.call = call
        self.answers: dict[StreamAnswer, None] = {}
        self.order: deque[StreamAnswer] = deque()
        self.strict = call.metadata.get(STRICT) == "true"
        self.closing = False  # the client has said all, or the server stops
        self.held = False  # nothing more is read
        self.waiting = False  # others come first, as a model has enough to do
        self.size = 0  # bytes of large messages that are in flight
        self.preparing = False  # a message is being read on a thread; the next ones wait for it
        self.again = False  # so it is once more, as there is more in shared memory
        self.share: Share | None = None  # a message waits for it
        call.on_cancel = self.cancel
        call.on_writable = self.balance

    # --- what comes in

    def message(self, data: Any, ready: Prepared | None = None) -> None:
        """Receive a request. `ready`: the message, where it was read on a thread."""
        call = self.call
        if call.done:
            return
        inference = self.inference
        try:
            if call.server.draining:
                raise ServingError(Code.UNAVAILABLE, SHUTTING_DOWN)
            if ready is None:
                request, recipe, parameters = inference.read(data, call.forwarded, True)
            else:
                request, recipe, parameters = inference.read_prepared(ready, call.forwarded, True)
            if not self._enters(request, recipe, data, ready):
                return
            answer = request.respond = StreamAnswer(self, request, recipe, parameters.empty_final)
        except NotLoaded as away:
            self._put_off()
            away.wait(partial(self._loaded, data, ready), lambda: not call.done, False)
            return
        except ServingError as error:
            self._refuse(data, error)
            return
        except Large as large:
            self._put_off()
            inference.prepare(data, partial(self._prepared, data), large, ready)
            return
        except Exception as error:  # a mistake of ours must not cost the stream's other requests their answers
            log.exception("a request on a stream can't be read")
            self._refuse(data, ServingError(Code.INTERNAL, f"the request can't be read: {type(error).__name__}: {error}"))
            return
        if type(data) is not bytes:
            answer.size = self._take_size(data)
        if call.meaning.asked is not None:
            have_told(call, request, recipe.model, inference.kernel)
        self.answers[answer] = None
        if not recipe.decoupled:
            self.order.append(answer)
        if recipe.model.tracing is not None:
            recipe.model.tracing.arrived(request, "GRPC", 0.0, call.traceparent)
        recipe.model.enqueue(request)
        if request.state is PENDING and len(self.answers) > 1 and not self.waiting and recipe.model.backpressure.crowded:
            self.waiting = True
            recipe.model.backpressure.wait(self, self._go_on)
            self.balance()
        if len(self.answers) >= IN_FLIGHT or self.size > BYTES_IN_FLIGHT or not call.writable:
            self.balance()

    def _enters(self, request: InferenceRequest, recipe: Recipe, data: Any, ready: Prepared | None) -> bool:
        """Whether a request may begin, or enough answers of its model are being made, which may be large. Raises ServingError."""
        call = self.call
        if call.meaning.trail:
            follow_trail(self.inference.kernel, request, call.meaning.trail)
        if recipe.replies.limited and (share := share_of(call.connection, recipe.replies)).full:
            self._put_off()
            self._take_size(data)
            self.share = share
            share.wait(self, partial(self._begin_later, data, ready))
            return False
        return True

    def _put_off(self) -> None:
        """Take no further message until this one can be taken."""
        self.again = self.preparing
        if not (self.held or self.preparing):
            self.call.hold()
        self.preparing = True

    def _loaded(self, data: Any, ready: Prepared | None, error: ServingError | None) -> None:
        """Go on with a message whose model was not there, then with those behind it."""
        if self.call.done:
            return  # nobody waits any more
        self.again = False
        if error is None:
            InferStream.message(self, data, ready)  # where there is a gate, it has been asked
        else:
            self._refuse(data, error)
        self._take_more()

    def _begin_later(self, data: Any, ready: Prepared | None) -> None:
        """Go on with a message whose model's answers may be large, and of which enough were being made."""
        self.share = None
        self.let_go(0 if type(data) is bytes else len(data))  # it is counted with its request from here on
        if self.call.done:
            return  # nobody waits any more
        self.again = False
        InferStream.message(self, data, ready)  # where there is a gate, it has been asked
        if self.held:
            self.balance()  # it may have been held for this message, which may have been refused
        self._take_more()

    def _prepared(self, data: Any, done: asyncio.Future[Prepared]) -> None:
        """Go on with a message that was read on a thread, then with those behind it."""
        if done.cancelled() or self.call.done:  # the loop is closing; or nobody waits any more
            return
        error = done.exception()
        self.again = False
        if error is None:
            self.message(data, done.result())
        elif isinstance(error, ServingError):
            self._refuse(data, error)
        else:
            self.call.crashed(error)
        self._take_more()

    def _take_more(self) -> None:
        """Take further messages, unless the last one has to wait once more."""
        if self.again:
            return
        self.preparing = False
        if not (self.held or self.call.done):
            self.call.unhold()

    def half_closed(self) -> None:
        """Receive the end of the client's messages, or of our taking them."""
        self.closing = True
        if not self.answers:
            self._finish()

    def cancel(self) -> None:
        """Nobody waits for anything here any more."""
        answers, self.answers = self.answers, {}
        if self.share is not None:
            self.share.forget(self)
            self.share = None
        self.let_go(self.size)
        self.order.clear()
        kernel = self.inference.kernel
        for answer in answers:
            answer.stream = None
            if answer.request is not None:
                kernel.cancel(answer.request)

    def _take_size(self, data: Any) -> int:
        """Count a message where it is large, until `let_go`; return its bytes."""
        size = 0 if type(data) is bytes else len(data)
        if size:
            self.size += size
            self.inference.kernel.memory.receive.add(size)
        return size

    def let_go(self, size: int) -> None:
        """Large messages of so many bytes have their answers, or nobody waits for one."""
        if size:
            self.size -= size
            self.inference.kernel.memory.receive.give_back(size)

    def balance(self) -> None:
        """Read on, or don't: a client that is slow to take its answers has to be slow with its requests, too."""
        call = self.call
        if self.held:
            few = len(self.answers) <= IN_FLIGHT // 2 and self.size <= BYTES_IN_FLIGHT
            if few and call.writable and not self.waiting:
                self.held = False
                if not self.preparing:
                    call.unhold()
        elif len(self.answers) >= IN_FLIGHT or self.size > BYTES_IN_FLIGHT or self.waiting or not call.writable:
            self.held = True
            if not self.preparing:
                call.hold()

    def _go_on(self) -> None:
        """It is this client's turn to send one more request."""
        self.waiting = False
        if not self.call.done:
            self.balance()

    def _refuse(self, data: Any, error: ServingError) -> None:
        """Answer a message that has become no request; in turn, unless it was for a decoupled model."""
        id, decoupled = "", False
        try:
            name, version, id = names_of(data)
            decoupled = self.inference.model(name, version).decoupled
        except ServingError:
            pass
        if self.strict:
            self.fail(error)
            return
        if decoupled or not self.order:
            self.call.send(error_message(error.message, "", "", id, None))
        else:
            answer = StreamAnswer(self, None, None, False)
            answer.payload = error_message(error.message, "", "", id, None)
            self.answers[answer] = None
            self.order.append(answer)
        if len(self.answers) >= IN_FLIGHT or not self.call.writable:
            self.balance()

    # --- what goes out

    def fail(self, error: ServingError) -> None:
        """End the stream with an error, and everything that is in flight on it."""
        self.cancel()
        self.call.fail(error)

    def answered(self, answer: StreamAnswer) -> None:
        """`answer` is complete: send it if it is its turn, and those that had to wait for it."""
        answers, order, send = self.answers, self.order, self.call.send
        if answer.in_order:
            while order and (payload := order[0].payload) is not None:
                send(payload)
                if order:  # sending may have cancelled the stream, which empties it
                    answers.pop(order.popleft(), None)
        else:
            answers.pop(answer, None)
        if self.held:
            self.balance()
        if self.closing and not answers and not self.call.done:
            self._finish()

    def _finish(self) -> None:
        """End the stream: all is answered. A client that might have gone on is told why it can't: a request may be on its way."""
        call = self.call
        if call.ended or not call.server.draining:
            call.finish()
        else:
            call.finish(Status.UNAVAILABLE, SHUTTING_DOWN)


def names_of(data: Any) -> tuple[str, str, str]:
    """Return the model, the version and the id of a request. Raises ServingError where it is no message."""
    if len(data) > ON_LOOP:  # the names stand in front of the tensors
        data = data[: leading(data)]
    record = parsed(pb.ModelInferRequest, data)
    return record.model_name, record.model_version, record.id


class StreamAnswer:
    """The continuation of one request on a stream. `stream`: None once nobody waits for it any more.

    `payload`: the whole answer where it has to wait for its turn. `prefixes`: what its responses have in common. `sinks`: where
    in shared memory its outputs go. `size`: of its request's message where that is large. `share`: of which it has a part where
    its model's answers may be large.
    """

    __slots__ = ("empty_final", "in_order", "payload", "prefixes", "recipe", "request", "share", "sinks", "size", "stream")

    def __init__(
        self, stream: InferStream, request: InferenceRequest | None, recipe: Recipe | None, empty_final: bool
    ) -> None:
        """Raises ServingError where an output has nowhere to go."""
        self.stream: InferStream | None = stream
        self.request = request
        self.recipe = recipe
        self.sinks = opened(recipe, stream.inference.kernel) if recipe is not None and recipe.sinks else {}
        self.empty_final = empty_final
        self.in_order = recipe is None or not recipe.decoupled
        self.payload: Any = None
        self.size = 0
        self.prefixes: dict[Reply, bytes] | None = None if self.in_order else {}
        self.share: Share | None = None
        if recipe is not None and recipe.replies.limited:
            self.share = share_of(stream.call.connection, recipe.replies)
            self.share.in_flight += 1

    @property
    def client(self) -> str:
        return self.stream.call.client if self.stream is not None else "a gRPC client that has gone"

    def __call__(self, response: InferenceResponse | None, final: bool) -> None:
        """Receive a response from the kernel."""
        if self.share is not None:
            if final:
                self.share.over()
            else:
                self.share.responded()
        stream = self.stream
        if stream is None:
            return
        payload: Payload
        if response is None:
            payload = self._ended()
        elif response.error is None:
            recipe = self.recipe
            assert recipe is not None
            try:
                payload = self._encoded(response, final, self.in_order and final)
            except LargeAnswer:
                if self.share is not None:
                    self.share.in_flight += 1  # until it is encoded
                job = recipe.model.kernel.loop.run_in_executor(None, self._encoded, response, final, False)
                job.add_done_callback(self._answered)
                return
            except Exception as error:
                payload = self._error(failed(error, recipe.model), final)
        else:
            payload = self._error(response.error, final)
        self._send(payload, final)

    def _encoded(self, response: InferenceResponse, final: bool, on_loop: bool) -> Payload:
        """Return the message of a response. `on_loop`: raise LargeAnswer where it is much work. Raises ServingError."""
        recipe = self.recipe
        assert recipe is not None
        if recipe.works:
            if on_loop and is_large(response, recipe):  # looked at before anything is done, which is done once
                raise LargeAnswer
            sunk = finished_response(response, recipe, self.sinks)
            return streamed(response, recipe.replies, final, self.prefixes, sunk, False)
        return streamed(response, recipe.replies, final, self.prefixes, (), on_loop)

    def _answered(self, done: asyncio.Future[Payload]) -> None:
        """Take the one answer, which was encoded on a thread."""
        if self.share is not None:
            self.share.over()
        if done.cancelled() or self.stream is None:  # the loop is closing; or nobody waits any more
            return
        error = done.exception()
        if error is None:
            self._send(done.result(), True)
        elif isinstance(error, Exception):
            assert self.recipe is not None
            self._send(self._error(failed(error, self.recipe.model), True), True)

    def _send(self, payload: Payload, final: bool) -> None:
        """Send a message, when it is its turn."""
        stream = self.stream
        if stream is None:  # the error has ended the stream
            return
        if not self.in_order:
            if payload:
                stream.call.send(payload)
            if final:
                self.request = None
                stream.let_go(self.size)
                stream.answered(self)
        elif final:
            self.request = None
            stream.let_go(self.size)
            self.payload = payload
            if stream.order[0] is self:
                stream.answered(self)

    def _ended(self) -> bytes:
        """Return what to send for a final flag without a response."""
        recipe, request = self.recipe, self.request
        assert recipe is not None and request is not None
        if self.in_order:
            return self._error(no_response(recipe.model), True)
        return nothing_more(recipe.name, recipe.version, request.id) if self.empty_final else b""

    def _error(self, error: ServingError, final: bool) -> bytes:
        """Return the message that carries an error, if errors are messages; else end the stream."""
        stream, recipe, request = self.stream, self.recipe, self.request
        assert stream is not None and recipe is not None and request is not None
        if stream.strict:
            stream.fail(error)
            return b""
        refused = final and not request.counted  # the statistics have all that a scheduler accepts
        return error_message(error.message, recipe.name, recipe.version, request.id, None if refused else final)

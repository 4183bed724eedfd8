"""One instance of a remote model: sends each request to an endpoint, and answers it exactly once with what comes of that.

What may be sent again is decided here: a request that nobody has looked at; or, where the model is `idempotent`, one that has had
no response and whose endpoint broke off or is unavailable. Sequences stay with their endpoint.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from kernel import (
    TRAIL_HEADER,
    Batch,
    Code,
    Host,
    InferenceRequest,
    InferenceResponse,
    Placement,
    Reason,
    RemoteOwner,
    RequestState,
    ServingError,
    trail_of,
)
from kernel_grpc.http2 import literal
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_remote.answers import Answers, response_of
from kernel_remote.calls import UNAVAILABLE, Call, Kind, Outcome
from kernel_remote.choice import Sequences, Standing, choose, reported
from kernel_remote.endpoints import Endpoint, Endpoints, Link
from kernel_remote.messages import Messages, code_of, trace_fields
from kernel_remote.settings import Settings

__all__ = ["SERVICE", "RemoteModel"]

log = logging.getLogger("kernel_remote")

SERVICE = "/inference.GRPCInferenceService/"
INFER, STREAM, READY = (SERVICE + name for name in ("ModelInfer", "ModelStreamInfer", "ModelReady"))

#: Seconds that an endpoint has to say whether its model is ready; whoever asks us waits for five.
READY_PATIENCE = 4.0
START, END = 1, 2  # flags of sequences
RELEASED = RequestState.RELEASED


class RemoteModel:
    """The executor of one instance. `endpoints`: its own."""

    placement = Placement.REMOTE
    capacity = 1 << 20
    may_wait = False

    def __init__(
        self,
        host: Host,
        settings: Settings,
        links: Sequence[Link],
        decoupled: bool,
        known: Callable[[], Endpoints],
        most: int,
    ) -> None:
        """`known()`: the endpoints of all models of the kernel. `most`: bytes of a message that is taken."""
        self.host = host
        self.settings = settings
        self.decoupled = decoupled
        self.endpoints: dict[Standing, Endpoint] = {}
        self.standings: list[Standing] = []
        self.kind = Kind(STREAM if decoupled else INFER, len(links) > 1, most, host.clock)
        self.attempt: type[_Attempt] = _Streamed if decoupled else _Unary
        self.answers = Answers(settings.model)
        self.sequences = Sequences()
        self.messages = Messages(settings.model, settings.version, decoupled)
        self._links = links
        self._known = known
        self._alone = b""  # the trail of a request that no other model waits for
        self._executions: dict[Batch, _Execution] = {}

    def attach(self, instance: RemoteOwner) -> None:
        """It never goes down as a whole: a request learns from its own endpoint."""
        known = self._known()
        self.endpoints = {one.standing: one for one in map(known.take, self._links)}
        self.standings = list(self.endpoints)

    def execute(self, batch: Batch) -> None:
        """Send the batch's requests, each on its own: the far end makes batches of its own."""
        batch.started = self.host.clock()
        execution = self._executions[batch] = _Execution(batch)
        deliveries = execution.deliveries
        for request in batch.requests:
            deliveries.append(_Delivery(self, execution, request))
        for delivery in deliveries:  # all are there before the first is sent: its end may be that of others, too
            delivery.send()

    def park(self, delivery: _Delivery) -> None:
        """There is no endpoint for a request: of this kind of model there always is one."""
        raise AssertionError(f"model '{self.settings.model}' has no endpoint")

    def trail_field(self, request: InferenceRequest) -> bytes:
        """Return the field that tells the far end who waits for a request. Raises ServingError where those are too many."""
        alone = request.parent is None and not hasattr(request, "trail")
        if alone and self._alone:
            return self._alone
        field = literal(TRAIL_HEADER.encode(), trail_of(self.host, request).encode())
        if alone:
            self._alone = field
        return field

    def ended(self, execution: _Execution) -> None:
        """All of a batch's requests have their end."""
        batch = execution.batch
        if self._executions.pop(batch, None) is not None:
            batch.input_ended = batch.started
            batch.output_started = batch.ended = self.host.clock()
            deliveries, execution.deliveries = execution.deliveries, []  # they know it: no work for the garbage collector
            batch.instance.finished(batch, [delivery.result for delivery in deliveries])

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """Tell the far end that nobody waits any more."""
        execution = self._executions.get(batch)
        for delivery in execution.deliveries if execution is not None else ():
            if delivery.request is request:
                delivery.give_up(Code.CANCELLED, "the request was cancelled", Reason.CANCELED)

    async def is_ready(self) -> bool:
        """Whether some endpoint says so of its model."""
        request = pb.ModelReadyRequest(name=self.settings.model, version=self.settings.version).SerializeToString()
        asking = [asyncio.ensure_future(one.ask(READY, request, READY_PATIENCE)) for one in self.endpoints.values()]
        try:
            for asked in asyncio.as_completed(asking):
                outcome, data = await asked
                if outcome.status == 0 and pb.ModelReadyResponse.FromString(data).ready:
                    return True
        finally:
            for one in asking:
                one.cancel()
        return False

    def take_back(self) -> list[Batch]:
        """Everything that was handed over has begun."""
        return []

    async def close(self) -> None:
        """Let go of the endpoints; those that no other model uses are closed."""
        self.kill()
        endpoints, self.endpoints = self.endpoints, {}
        for endpoint in endpoints.values():
            self._known().give_back(endpoint)

    def kill(self) -> None:
        """End what runs: its requests are answered with that."""
        for execution in list(self._executions.values()):
            for delivery in execution.deliveries:
                words = f"model '{delivery.request.model_name}' was ended before {delivery.where} had answered"
                delivery.give_up(Code.UNAVAILABLE, words, Reason.OTHER)

    def finalize(self) -> None:
        """Nothing is left to do behind `close`."""


class _Execution:
    """The requests of a batch. `left`: how many of them have no end yet."""

    __slots__ = ("batch", "deliveries", "left")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.deliveries: list[_Delivery] = []
        self.left = len(batch.requests)


class _Delivery:
    """One request on its way, on one endpoint after the other where that is allowed.

    `over`: it has its end. `result`: the response that is its end, None: it was answered. `attempt`: the one that goes on.
    """

    __slots__ = ("attempt", "execution", "model", "over", "request", "result", "tried")

    def __init__(self, model: RemoteModel, execution: _Execution, request: InferenceRequest) -> None:
        self.model = model
        self.execution = execution
        self.request = request
        self.over = False
        self.result: InferenceResponse | None = None
        self.tried: tuple[Standing, ...] = ()
        self.attempt: _Attempt | None = None

    def send(self) -> None:
        """Send it, again or for the first time; what can't be sent has its answer at once."""
        if self.over:
            return
        model, request = self.model, self.request
        standing = self._choose()
        if standing is None:
            model.park(self)
            return
        self.tried += (standing,)
        try:
            attempt = model.attempt(model.kind, model.messages.pieces(request))
            attempt.metadata = model.trail_field(request)
            if request.trace is not None:
                attempt.metadata += trace_fields(request.trace.context)
        except ServingError as error:
            self.end(InferenceResponse.failure(error.code, error.message, Reason.REJECTED))
            return
        except Exception as error:
            text = f"a request can't be made into a message for {self.where}: {error}"
            self.end(InferenceResponse.failure(Code.INTERNAL, text, Reason.BACKEND))
            return
        attempt.delivery, attempt.standing = self, standing
        if request.deadline is not None:
            attempt.deadline = request.deadline
        if request.correlation_id:
            attempt.ordered = True
        self.attempt = attempt
        standing.outstanding += 1
        model.endpoints[standing].start(attempt)

    def _choose(self) -> Standing | None:
        """Return the endpoint that it goes to; None where there is none for now."""
        model, request = self.model, self.request
        if len(model.standings) == 1 and not (request.correlation_id and model.sequences.kept):
            return model.standings[0]
        if not model.standings:
            return None
        now = model.host.loop.time()
        if request.correlation_id:
            starts, ends = bool(request.flags & START), bool(request.flags & END)
            return model.sequences.find(model.standings, request.correlation_id, starts, ends, now, self.tried)
        return choose(model.standings, now, random.random, self.tried) or self.tried[-1]

    @property
    def where(self) -> str:
        return f"endpoint {self.tried[-1].name}" if self.tried else "any endpoint"

    def may_go_on(self, outcome: Outcome) -> bool:
        """Whether it may be sent again after an attempt that has brought nothing."""
        model = self.model
        if self.request.correlation_id and not self.request.flags & START:
            return False  # others of its sequence may have gone there since, and would come before it
        if not outcome.processed and self.tried[-1] not in model.endpoints and not self.over:
            return True  # that endpoint has gone, and is none that was tried
        if len(self.tried) >= max(2, len(model.standings)):
            return False
        return not outcome.processed or (model.settings.idempotent and outcome.status == UNAVAILABLE)

    def give_up(self, code: Code, words: str, reason: Reason) -> None:
        """End it, and the attempt that goes on."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.standing.outstanding -= 1
            attempt.cancel()
        self.end(InferenceResponse.failure(code, words, reason))

    def end(self, response: InferenceResponse | None) -> None:
        """It has its end, unless it has one."""
        if self.over:
            return
        self.over = True
        model, execution = self.model, self.execution
        try:
            if not model.decoupled:
                self.result = response
            elif self.request.state is not RELEASED:
                model.host.send(self.request, response, True)
        finally:
            execution.left -= 1
            if not execution.left:
                model.ended(execution)


class _Attempt(Call):
    """One attempt to have a request answered by an endpoint."""

    delivery: _Delivery
    standing: Standing

    def message(self, data: bytes) -> None:
        """Take a message; one that can't be read ends the request, not the connection."""
        try:
            self.read(data)
        except Exception as error:
            known = isinstance(error, ServingError)
            text = str(error) if known else f"endpoint {self.standing.name} answers with what is no message: {error}"
            self.delivery.give_up(Code.INTERNAL, text, Reason.BACKEND)

    def read(self, data: bytes) -> None:
        """Take a message. Raises what says that it is none."""
        raise NotImplementedError

    def completed(self) -> None:
        """The far end says that all is well."""
        raise NotImplementedError

    @property
    def has_answer(self) -> bool:
        """Whether something of an answer has come."""
        raise NotImplementedError

    def concluded(self, outcome: Outcome) -> None:
        delivery, standing = self.delivery, self.standing
        delivery.attempt = None
        standing.outstanding -= 1
        loop = delivery.model.host.loop
        if outcome.told:
            if standing.failures or standing.ejections:
                standing.succeeded(loop.time())
            load = reported(outcome.load) if outcome.load else None
            if load is not None:
                standing.report(load, loop.time())
        elif standing.failed(now := loop.time()):
            log.warning("endpoint %s is left out for %.1f s: %s", standing.name, standing.until - now, outcome.message)
        if outcome.status == 0:
            self.completed()
        elif not self.has_answer and delivery.may_go_on(outcome):
            delivery.send()
        else:
            text = f"endpoint {standing.name}: {outcome.message}" if outcome.told else outcome.message
            delivery.end(InferenceResponse.failure(code_of(outcome.status), text, Reason.BACKEND))


class _Unary(_Attempt):
    """One that is answered by one message."""

    response: InferenceResponse | None = None

    def read(self, data: bytes) -> None:
        if self.response is not None:
            raise ServingError(Code.INTERNAL, f"endpoint {self.standing.name} answers one request twice")
        self.response = self.delivery.model.answers.read(data, self.standing.name)

    def completed(self) -> None:
        response = self.response
        if response is None:
            text = f"endpoint {self.standing.name} ends a request without its answer"
            response = InferenceResponse.failure(Code.INTERNAL, text, Reason.BACKEND)
        self.delivery.end(response)

    @property
    def has_answer(self) -> bool:
        return self.response is not None


class _Streamed(_Attempt):
    """One of a decoupled model: its responses are passed on as they come."""

    responses = 0

    def read(self, data: bytes) -> None:
        """Pass on a response; the one that says that it is the last ends the request."""
        message = pb.ModelStreamInferResponse.FromString(data)
        delivery, where = self.delivery, self.standing.name
        if delivery.over:
            return
        response: InferenceResponse | None
        if message.error_message:
            parameters = message.infer_response.parameters
            final = "triton_final_response" not in parameters or parameters["triton_final_response"].bool_param
            words = f"endpoint {where}: {message.error_message}"
            response = InferenceResponse.failure(Code.INTERNAL, words, Reason.BACKEND)
        else:
            response, final = response_of(message.infer_response, where)
            if final and not response.outputs:
                response = None
        self.responses += 1
        if final:
            delivery.end(response)
        elif delivery.request.state is not RELEASED:
            delivery.model.host.send(delivery.request, response, False)

    def completed(self) -> None:
        text = f"endpoint {self.standing.name} ends a request without its last response"
        self.delivery.end(InferenceResponse.failure(Code.INTERNAL, text, Reason.BACKEND))

    @property
    def has_answer(self) -> bool:
        return self.responses > 0

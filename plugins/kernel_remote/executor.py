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
)
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_remote.calls import UNAVAILABLE, Call, Outcome
from kernel_remote.choice import Sequences, Standing, choose, reported
from kernel_remote.endpoints import Endpoint, Endpoints, Link
from kernel_remote.messages import Messages, code_of, response_of, trace_fields
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
        self.sequences = Sequences()
        self.messages = Messages(settings.model, settings.version, decoupled)
        self.most = most
        self._links = links
        self._known = known
        self._executions: dict[Batch, _Execution] = {}

    def attach(self, instance: RemoteOwner) -> None:
        """It never goes down as a whole: a request learns from its own endpoint."""
        known = self._known()
        self.endpoints = {one.standing: one for one in map(known.take, self._links)}
        self.standings = list(self.endpoints)

    def execute(self, batch: Batch) -> None:
        """Send the batch's requests, each on its own: the far end makes batches of its own."""
        batch.started = self.host.clock()
        execution = self._executions[batch] = _Execution(self, batch)
        for sending in list(execution.sendings.values()):
            sending.begin()

    def ended(self, batch: Batch, result: Sequence[InferenceResponse | None]) -> None:
        """All of a batch's requests have their end."""
        if self._executions.pop(batch, None) is not None:
            batch.input_ended = batch.started
            batch.output_started = batch.ended = self.host.clock()
            batch.instance.finished(batch, result)

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        """Tell the far end that nobody waits any more."""
        execution = self._executions.get(batch)
        sending = execution and execution.sendings.get(request)
        if sending:
            sending.cancel()

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
            for sending in list(execution.sendings.values()):
                sending.abandon()

    def finalize(self) -> None:
        """Nothing is left to do behind `close`."""


class _Execution:
    """The requests of a batch that have no end yet, and the results of the others."""

    def __init__(self, model: RemoteModel, batch: Batch) -> None:
        self.model = model
        self.batch = batch
        self.sendings = {request: _Sending(self, request) for request in batch.requests}
        self.results: dict[InferenceRequest, InferenceResponse | None] = {}

    def end(self, request: InferenceRequest, response: InferenceResponse | None) -> None:
        """One request has its end; None: it was answered."""
        del self.sendings[request]
        self.results[request] = response
        if not self.sendings:
            self.model.ended(self.batch, [self.results[request] for request in self.batch.requests])


class _Sending:
    """One request on its way, on one endpoint after the other where that is allowed."""

    def __init__(self, execution: _Execution, request: InferenceRequest) -> None:
        self.execution = execution
        self.model = execution.model
        self.request = request
        self.tried: list[Standing] = []
        self.standing: Standing | None = None
        self.call: Call | None = None
        self.answer: InferenceResponse | None = None
        self.responses = 0
        self.over = False

    def begin(self) -> None:
        """Send it, again or for the first time; what can't be sent has its answer at once."""
        if self.over:
            return
        standing = self.standing = self._choose()
        self.tried.append(standing)
        try:
            self.call = self._call()
        except Exception as error:
            text = f"a request can't be made into a message for {self._where}: {error}"
            self._finish(InferenceResponse.failure(Code.INTERNAL, text, Reason.BACKEND))
            return
        standing.outstanding += 1
        self.model.endpoints[standing].start(self.call)

    def _choose(self) -> Standing:
        model, request = self.model, self.request
        if len(model.standings) == 1:
            return model.standings[0]
        now = model.host.loop.time()
        if request.correlation_id:
            starts, ends = bool(request.flags & START), bool(request.flags & END)
            return model.sequences.find(model.standings, request.correlation_id, starts, ends, now, self.tried)
        return choose(model.standings, now, random.random, self.tried) or self.tried[-1]

    def _call(self) -> Call:
        model, request = self.model, self.request
        pieces = model.messages.pieces(request)
        return Call(
            STREAM if model.decoupled else INFER,
            pieces,
            self._message,
            self._ended,
            timeout=None if request.deadline is None else self._left,
            ask_load=len(model.standings) > 1,
            ordered=bool(request.correlation_id),
            most=model.most,
            metadata=b"" if request.trace is None else trace_fields(request.trace.context),
        )

    def _left(self) -> float:
        """Return the seconds until the request's deadline."""
        assert self.request.deadline is not None
        return self.request.deadline - self.model.host.clock()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self._end_call()
        self._finish(InferenceResponse.failure(Code.CANCELLED, "the request was cancelled", Reason.CANCELED))

    def abandon(self) -> None:
        """The model goes."""
        self._end_call()
        words = f"model '{self.request.model_name}' was ended before {self._where} had answered"
        self._finish(InferenceResponse.failure(Code.UNAVAILABLE, words, Reason.OTHER))

    def _end_call(self) -> None:
        call, self.call = self.call, None
        if call is not None and self.standing is not None:
            self.standing.outstanding -= 1
            call.cancel()

    def _message(self, data: bytes) -> None:
        """Take a message; one that can't be read ends the request, not the connection."""
        try:
            if self.model.decoupled:
                self._streamed(data)
            else:
                self._answered(data)
        except Exception as error:
            self._end_call()
            known = isinstance(error, ServingError)
            text = str(error) if known else f"{self._where} answers with what is no message: {error}"
            self._finish(InferenceResponse.failure(Code.INTERNAL, text, Reason.BACKEND))

    @property
    def _where(self) -> str:
        assert self.standing is not None
        return f"endpoint {self.standing.name}"

    def _answered(self, data: bytes) -> None:
        assert self.standing is not None
        if self.answer is not None:
            raise ServingError(Code.INTERNAL, f"{self._where} answers one request twice")
        self.answer, _ = response_of(pb.ModelInferResponse.FromString(data), self.standing.name)

    def _streamed(self, data: bytes) -> None:
        """Pass on a response; the one that says that it is the last ends the request."""
        assert self.standing is not None
        message = pb.ModelStreamInferResponse.FromString(data)
        if self.over:
            return
        response: InferenceResponse | None
        if message.error_message:
            parameters = message.infer_response.parameters
            final = "triton_final_response" not in parameters or parameters["triton_final_response"].bool_param
            words = f"{self._where}: {message.error_message}"
            response = InferenceResponse.failure(Code.INTERNAL, words, Reason.BACKEND)
        else:
            response, final = response_of(message.infer_response, self.standing.name)
            if final and not response.outputs:
                response = None
        self.responses += 1
        if final:
            self._finish(response)
        elif self.request.state is not RELEASED:
            self.model.host.send(self.request, response, False)

    def _ended(self, outcome: Outcome) -> None:
        model, standing = self.model, self.standing
        assert standing is not None
        self.call = None
        standing.outstanding -= 1
        now = model.host.loop.time()
        if outcome.told:
            standing.succeeded(now)
            load = reported(outcome.load) if outcome.load else None
            if load is not None:
                standing.report(load, now)
        elif standing.failed(now):
            log.warning("endpoint %s is left out for %.1f s: %s", standing.name, standing.until - now, outcome.message)
        if outcome.status == 0:
            self._complete()
        elif self._may_try_again(outcome):
            self.begin()
        else:
            text = f"{self._where}: {outcome.message}" if outcome.told else outcome.message
            self._finish(InferenceResponse.failure(code_of(outcome.status), text, Reason.BACKEND))

    def _may_try_again(self, outcome: Outcome) -> bool:
        model = self.model
        if self.over or self.responses or self.answer is not None or len(self.tried) >= max(2, len(model.standings)):
            return False
        if self.request.correlation_id and not self.request.flags & START:
            return False  # others of its sequence may have gone there since, and would come before it
        return not outcome.processed or (model.settings.idempotent and outcome.status == UNAVAILABLE)

    def _complete(self) -> None:
        """The far end says that all is well; then there has to be an answer."""
        if self.answer is not None:
            self._finish(self.answer)
        elif not self.over:
            text = f"{self._where} ends a request without its {'last response' if self.model.decoupled else 'answer'}"
            self._finish(InferenceResponse.failure(Code.INTERNAL, text, Reason.BACKEND))

    def _finish(self, response: InferenceResponse | None) -> None:
        if self.over:
            return
        self.over = True
        decoupled = self.model.decoupled
        try:
            if decoupled and self.request.state is not RELEASED:
                self.model.host.send(self.request, response, True)
        finally:
            self.execution.end(self.request, None if decoupled else response)

"""One instance of a remote model: sends each request to an endpoint, and answers it exactly once with what comes of that.

What may be sent again is decided here: a request that nobody has looked at; or, where the model is `idempotent`, one that has had
no response and whose endpoint broke off or is unavailable. Sequences stay with their endpoint.
"""

from __future__ import annotations

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
from kernel_remote.calls import Call, Endpoint, Outcome
from kernel_remote.choice import Standing, choose, owner, reported
from kernel_remote.messages import code_of, request_pieces, response_of
from kernel_remote.settings import Settings

__all__ = ["RemoteModel"]

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
UNAVAILABLE = 14
RELEASED = RequestState.RELEASED


class RemoteModel:
    """The executor of one instance. `endpoints`: its own."""

    placement = Placement.REMOTE
    capacity = 1 << 20
    may_wait = False

    def __init__(self, host: Host, settings: Settings, decoupled: bool) -> None:
        self.host = host
        self.settings = settings
        self.decoupled = decoupled
        self.standings = [Standing(address) for address in settings.endpoints]
        self.endpoints = {one: Endpoint(one.name, host.loop) for one in self.standings}
        self._executions: dict[Batch, _Execution] = {}

    def attach(self, instance: RemoteOwner) -> None:
        """It never goes down as a whole: a request learns from its own endpoint."""

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

    def take_back(self) -> list[Batch]:
        """Everything that was handed over has begun."""
        return []

    async def close(self) -> None:
        """Close the connections."""
        self.kill()

    def kill(self) -> None:
        """End what runs: its requests are answered with that."""
        for endpoint in self.endpoints.values():
            endpoint.close()

    def finalize(self) -> None:
        self.kill()


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
        self.final = False  # the far end has said that this was its last response
        self.responses = 0
        self.over = False

    def begin(self) -> None:
        """Send it, again or for the first time; what can't be sent has its answer at once."""
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
        model = self.model
        if self.request.correlation_id:
            return owner(model.standings, self.request.correlation_id)
        return choose(model.standings, model.host.loop.time(), random.random, self.tried) or self.tried[-1]

    def _call(self) -> Call:
        model, request = self.model, self.request
        timeout = None
        if request.deadline is not None:
            timeout = max(0.0, request.deadline - model.host.clock())
        settings = model.settings
        pieces = request_pieces(request, settings.model, settings.version, model.decoupled)
        path, message = (STREAM, self._streamed) if model.decoupled else (INFER, self._answered)
        return Call(path, pieces, self._guarded(message), self._ended, timeout)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        assert self.call is not None and self.standing is not None
        self.standing.outstanding -= 1
        self.call.cancel()
        self._finish(InferenceResponse.failure(Code.CANCELLED, "the request was cancelled", Reason.CANCELED))

    def _guarded(self, take: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Let what can't be read end the request, not the connection."""
        call_of = self

        def message(data: bytes) -> None:
            try:
                take(data)
            except Exception as error:
                if call_of.over or call_of.call is None:
                    return
                call_of.call.cancel()
                text = (
                    error.message
                    if isinstance(error, ServingError)
                    else f"{call_of._where} answers with what is no message: {error}"
                )
                call_of._ended(Outcome(13, text))

        return message

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
        assert self.standing is not None
        message = pb.ModelStreamInferResponse.FromString(data)
        if message.error_message:
            parameters = message.infer_response.parameters
            self.final = "triton_final_response" not in parameters or parameters["triton_final_response"].bool_param
            response = InferenceResponse.failure(
                Code.INTERNAL, f"{self._where}: {message.error_message}", Reason.BACKEND
            )
        else:
            response, final = response_of(message.infer_response, self.standing.name)
            self.final = self.final or final
            if final and not response.outputs:
                return
        self.responses += 1
        if self.request.state is not RELEASED:
            self.model.host.send(self.request, response, False)

    def _ended(self, outcome: Outcome) -> None:
        model, standing = self.model, self.standing
        assert standing is not None
        standing.outstanding -= 1
        now = model.host.loop.time()
        if outcome.told:
            standing.succeeded(now)
            load = reported(outcome.load) if outcome.load else None
            if load is not None:
                standing.load = load
        else:
            standing.failed(now)
        if outcome.status == 0:
            self._complete()
        elif self._may_try_again(outcome):
            self.begin()
        else:
            text = f"{self._where}: {outcome.message}" if outcome.told else outcome.message
            self._finish(InferenceResponse.failure(code_of(outcome.status), text, Reason.BACKEND))

    def _may_try_again(self, outcome: Outcome) -> bool:
        model = self.model
        if self.responses or self.answer is not None or len(self.tried) >= max(2, len(model.standings)):
            return False
        return not outcome.processed or (model.settings.idempotent and outcome.status == UNAVAILABLE)

    def _complete(self) -> None:
        """The far end says that all is well; then there has to be an answer."""
        if self.model.decoupled and self.final:
            self._finish(None)
        elif not self.model.decoupled and self.answer is not None:
            self._finish(self.answer)
        else:
            text = f"{self._where} ends a request without its {'last response' if self.model.decoupled else 'answer'}"
            self._finish(InferenceResponse.failure(Code.INTERNAL, text, Reason.BACKEND))

    def _finish(self, response: InferenceResponse | None) -> None:
        if self.over:
            return
        self.over = True
        if self.model.decoupled:
            if self.request.state is not RELEASED:
                self.model.host.send(self.request, response, True)
            response = None
        self.execution.end(self.request, response)

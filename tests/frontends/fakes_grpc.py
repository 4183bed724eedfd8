"""Calls and a kernel for the tests of gRPC inference: messages in, messages out, no transport, no sleeping.

The kernel is the one of `fakes`, with shared memory, a clock and the flags that a real scheduler would set.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from frontends.fakes import FakeKernel, FakeLoop, Spec, config

from kernel import Code, InferenceRequest, InferenceResponse, Model, ServingError, SharedMemory
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.methods import inference_methods

Parameter = pb.InferParameter


class Connection:
    """What stands for the connection of a call."""

    def __init__(self) -> None:
        self.outgoing = SimpleNamespace(streams={}, full=False)


class FakeCall:
    """A call that keeps what becomes of it. `status`: None while it goes on, else the number or the Code that it ended with."""

    def __init__(
        self,
        metadata: dict[str, str] | None = None,
        forwarded: dict[str, str] | None = None,
        deadline: float | None = None,
    ) -> None:
        self.metadata = metadata or {}
        self.traceparent = self.metadata.get("traceparent", "")
        self.forwarded = tuple((forwarded or {}).items())
        self.deadline = deadline
        self.request: InferenceRequest | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.server = SimpleNamespace(draining=False)
        self.connection = Connection()
        self.meaning: Any = SimpleNamespace(asked=None, trail="")
        self.is_stream = False
        self.ended = False  # the client has half-closed
        self.writable = True
        self.held = False
        self.done = False
        self.sent: list[Any] = []
        self.status: int | Code | None = None
        self.text = ""

    def reply(self, message: Any) -> None:
        self.send(message)
        self.finish()

    def send(self, message: Any) -> None:
        if not self.done:
            assert type(message) is bytes or all(type(piece) in (bytes, memoryview) for piece in message)
            self.sent.append(message)

    def finish(self, status: int = 0, text: str = "") -> None:
        self._end(status, text)

    def fail(self, error: ServingError) -> None:
        self._end(error.code, error.message)

    def _end(self, status: int | Code, text: str) -> None:
        if not self.done:
            self.done = True
            self.status, self.text = status, text

    def hold(self) -> None:
        assert not self.held
        self.held = True

    def unhold(self) -> None:
        assert self.held
        self.held = False

    def cancel(self) -> None:
        """The client cancels, or is gone."""
        self.done = True
        if self.on_cancel is not None:
            self.on_cancel()

    def set_writable(self, writable: bool) -> None:
        self.writable = writable
        if writable and self.on_writable is not None:
            self.on_writable()

    def take(self) -> list[bytes]:
        """Return the messages since the last call, whole."""
        sent, self.sent = self.sent, []
        return [message if type(message) is bytes else b"".join(message) for message in sent]

    @property
    def failure(self) -> tuple[Any, str]:
        """How the call has failed; it must have, without a message."""
        assert self.done and not self.sent, self.sent
        assert self.status != 0
        return self.status, self.text

    @property
    def response(self) -> pb.ModelInferResponse:
        """The one response of a unary call that has ended well."""
        assert self.done and self.status == 0, (self.status, self.text)
        (data,) = self.take()
        return pb.ModelInferResponse.FromString(data)


class GrpcKernel(FakeKernel):
    """More models: `half` (BF16), `any` (FP32 of any size), `many` (decoupled, INT32), `pair` (batches of 8, two inputs)."""

    def __init__(self) -> None:
        super().__init__()
        self.shared_memory = SharedMemory()
        self.accepting = True
        self.exiting = False
        self.add(config("half", [Spec("X", "BF16", (-1,))], [Spec("Y", "BF16", (-1,))]))
        self.add(config("many", [Spec("N", "INT32", (1,))], [Spec("OUT", "INT32", (-1,))], decoupled=True))
        self.add(config("pair", [Spec("A", "FP32", (2,)), Spec("B", "FP32", (-1,))], [Spec("Y", "FP32", (2,))], batch=8))
        self.add(config("any", [Spec("X", "FP32", (-1,))], [Spec("Y", "FP32", (-1,))]))

    def model(self, name: str, version: str = "") -> Model:
        if version and not (version.isascii() and version.isdigit()):
            raise ServingError(Code.INVALID_ARG, f"no version: {version!r}")
        return super().model(name, version)

    def finish(self, request: InferenceRequest) -> None:
        request.counted = True
        super().finish(request)

    def send(self, request: InferenceRequest, response: InferenceResponse | None, final: bool) -> None:
        """Answer as a running model does, with the names that the scheduler writes on a response."""
        request.counted = request.counted or final
        if response is not None:
            response.model_name, response.model_version = request.model.name, str(request.model.version)
            response.id = request.id
        request.respond(response, final)

    def refuse(self, request: InferenceRequest, error: ServingError) -> None:
        """Answer as a scheduler does that has not accepted the request."""
        request.respond(InferenceResponse([], error), True)

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        self.cancelled.append(request)
        request.counted = True
        request.respond(InferenceResponse.failure(Code.CANCELLED, "cancelled"), True)


class Service:
    """The two methods of inference on a kernel, as a transport sees them."""

    def __init__(self, kernel: GrpcKernel | None = None) -> None:
        self.kernel = kernel or GrpcKernel()
        infer, stream = inference_methods(self.kernel)  # type: ignore[arg-type]
        assert (infer.path, infer.streaming) == ("/inference.GRPCInferenceService/ModelInfer", False)
        assert (stream.path, stream.streaming) == ("/inference.GRPCInferenceService/ModelStreamInfer", True)
        assert infer.category == stream.category == "inference"
        self._infer, self._stream = infer.handler, stream.handler

    def start(self, request: Any, **call: Any) -> FakeCall:
        """Make a unary call. `request`: a message, or its bytes."""
        made = FakeCall(**call)
        self._infer(made, data_of(request))
        run_jobs(self.kernel)
        return made

    def ask(self, request: Any, **call: Any) -> pb.ModelInferResponse:
        return self.start(request, **call).response

    def stream(self, **call: Any) -> Streaming:
        made = FakeCall(**call)
        return Streaming(made, self._stream(made), self.kernel)


class Streaming:
    """An open stream."""

    def __init__(self, call: FakeCall, stream: Any, kernel: GrpcKernel) -> None:
        self.call = call
        self.stream = stream
        self.kernel = kernel

    def send(self, *requests: Any) -> None:
        for request in requests:
            self.stream.message(data_of(request))
            run_jobs(self.kernel)

    def close(self) -> None:
        self.call.ended = True
        self.stream.half_closed()

    def take(self) -> list[pb.ModelStreamInferResponse]:
        return [pb.ModelStreamInferResponse.FromString(data) for data in self.call.take()]


def run_jobs(kernel: Any) -> None:
    """Do what was left to threads, where the loop has not done it in place."""
    while isinstance(kernel.loop, FakeLoop) and kernel.loop.jobs:
        kernel.loop.run_jobs()


def data_of(request: Any) -> Any:
    return request.SerializeToString() if isinstance(request, pb.ModelInferRequest) else request


def memory(data: bytes) -> Any:
    """What a transport makes of a large message: memory of its own."""
    array = np.empty(len(data), np.uint8)
    array[:] = np.frombuffer(data, np.uint8)
    return array


def request(model: str, *inputs: tuple[str, str, list[int]], raw: Any = (), **fields: Any) -> pb.ModelInferRequest:
    """A request with raw data: arrays, or bytes as they are."""
    made = pb.ModelInferRequest(model_name=model, **fields)
    for name, datatype, shape in inputs:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    for data in raw:
        made.raw_input_contents.append(data if isinstance(data, bytes) else np.asarray(data).tobytes())
    return made


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


def add_sub(a: Any = (1, 2, 3, 4), b: Any = (1, 1, 1, 1), **fields: Any) -> pb.ModelInferRequest:
    return request("add_sub", ("INPUT0", "FP32", [4]), ("INPUT1", "FP32", [4]), raw=(floats(*a), floats(*b)), **fields)


def typed(datatype: str, field: str, values: Any, shape: list[int] | None = None) -> pb.ModelInferRequest:
    """A request to `types` with typed contents."""
    made = request("types", (f"IN_{datatype}", datatype, shape if shape is not None else [len(values)]))
    made.inputs[0].contents.SetInParent()
    if field:
        getattr(made.inputs[0].contents, field).extend(values)
    return made


def with_parameters(made: Any, **values: Any) -> Any:
    """Add parameters to a request or a tensor: by the Python type, or a whole Parameter."""
    for name, value in values.items():
        made.parameters[name].CopyFrom(parameter(value))
    return made


def parameter(value: Any) -> Parameter:
    if isinstance(value, Parameter):
        return value
    field = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
    return Parameter(**{field: value})


def parameters_of(message: Any) -> dict[str, Any]:
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()}


def arrays(response: pb.ModelInferResponse, dtype: Any = np.float32) -> dict[str, list[Any]]:
    """The outputs' values, by name."""
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: np.frombuffer(data, dtype).reshape(output.shape).tolist() for output, data in pairs}


def strings(*items: bytes) -> bytes:
    """BYTES elements on the wire."""
    return b"".join(len(item).to_bytes(4, "little") + item for item in items)

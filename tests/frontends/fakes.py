"""A kernel, a transport and a client for the HTTP front end's tests: bytes in, bytes out, no ports, no sleeping.

The models are real `Model` objects (so `check` is the real one) whose `enqueue` answers at once, or holds the request
when `kernel.hold` is set. Time stands still unless a test moves `kernel.loop.now`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from kernel import (
    Code,
    CudaSharedMemory,
    Duration,
    InferenceRequest,
    InferenceResponse,
    LogSettings,
    MemoryBudget,
    Model,
    ModelIndex,
    ModelState,
    ModelStatistics,
    ServingError,
    SharedMemory,
    Tensor,
    TraceSettings,
)
from kernel_http.connection.protocol import Connection
from kernel_http.frontend import MAX_INPUT_SIZE, make_server

DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
             "BYTES")  # fmt: skip


class Spec(SimpleNamespace):
    def __init__(self, name: str, datatype: str, dims: tuple[int, ...], optional: bool = False) -> None:
        super().__init__(name=name, datatype=datatype, dims=dims, optional=optional, reshape=None, label_filename="")


class Config(SimpleNamespace):
    metadata_platform = "python"
    is_elsewhere = False
    dynamic_batching = sequence_batching = ensemble = None

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "max_batch_size": self.max_batch_size}


def config(name: str, inputs: list[Spec], outputs: list[Spec], *, batch: int = 0, decoupled: bool = False) -> Config:
    return Config(name=name, inputs=tuple(inputs), outputs=tuple(outputs), max_batch_size=batch, decoupled=decoupled)


class FakeTask:
    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        pass


class FakeLoop:
    def __init__(self) -> None:
        self.now = 100.0
        self.tasks: list[Any] = []
        self.jobs: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Each step of a test is a turn of the loop of its own."""
        callback(*args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any:
        timer = (self.now + delay, lambda: callback(*args))
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def advance(self, seconds: float) -> None:
        """Let time pass and call what becomes due."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()
        self.now = end

    def turn(self) -> bool:
        """Call what is due; return whether there was anything."""
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.advance(0)
        return bool(due)

    def create_task(self, coroutine: Any) -> Any:
        self.tasks.append(coroutine)
        return FakeTask()

    def run_in_executor(self, executor: None, function: Callable[..., Any], *args: Any) -> Any:
        done: Any = concurrent.futures.Future()
        self.jobs.append((done, lambda: function(*args)))
        return done

    def run_jobs(self) -> None:
        jobs, self.jobs = self.jobs, []
        for done, job in jobs:
            try:
                done.set_result(job())
            except Exception as error:
                done.set_exception(error)

    def run_tasks(self) -> None:
        """Run the coroutines; they must not wait for anything."""
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            try:
                task.send(None)
            except StopIteration:
                continue
            raise AssertionError("the coroutine waits")


class FakeKernel:
    """Models: `types` (one optional input of each datatype, echoed), `add_sub`, `batch8`, `multi` (1 and 3), `gen`."""

    def __init__(self, *, allow_client_shm: bool = True) -> None:
        self.loop = FakeLoop()
        self.gate: Any = None
        self.plugins = SimpleNamespace(sites=lambda kernel, options: [])
        self.options = SimpleNamespace(on_demand=False)
        self.memory = MemoryBudget(2**30, 2**30)
        self.pools = SimpleNamespace(aside=None)
        self.shared_memory = SharedMemory(allow_client_shm)
        self.cuda_shared_memory = CudaSharedMemory(allow_client_shm)
        self.trace_settings = TraceSettings(self.is_model_ready)
        self.log_settings = LogSettings()
        self.live = True
        self.is_healthy = True
        self.hold = False
        self.held: list[InferenceRequest] = []
        self.requests: list[InferenceRequest] = []
        self.cancelled: list[InferenceRequest] = []
        self.calls: list[tuple[Any, ...]] = []
        self.load_error: ServingError | None = None
        self.change: Callable[[InferenceResponse], InferenceResponse] = lambda response: response
        self.served: dict[str, dict[int, Model]] = {}
        self.add(config("types", [Spec(f"IN_{kind}", kind, (-1,), True) for kind in DATATYPES],
                        [Spec(f"OUT_{kind}", kind, (-1,)) for kind in DATATYPES]))  # fmt: skip
        pair = [Spec("INPUT0", "FP32", (4,)), Spec("INPUT1", "FP32", (4,))]
        self.add(config("add_sub", pair, [Spec("OUTPUT0", "FP32", (4,)), Spec("OUTPUT1", "FP32", (4,))]))
        x, y = Spec("X", "FP32", (2,)), Spec("Y", "FP32", (2,))
        self.add(config("batch8", [x], [y], batch=8))
        self.add(config("multi", [x], [y]), 1)
        self.add(config("multi", [x], [y]), 3)
        self.add(config("gen", [x], [y], decoupled=True))
        self.add(config("text", [Spec("X", "BYTES", (1,))], [Spec("Y", "BYTES", (1,))]))

    def clock(self) -> float:
        return self.loop.time()

    @property
    def generation(self) -> int:
        """Another number whenever another model serves some name."""
        return hash(tuple(id(model) for versions in self.served.values() for model in versions.values()))

    def add(self, config: Config, version: int = 1) -> Model:
        model = Model(self, config, version, Path("/nowhere"))
        model.state = ModelState.READY
        model.enqueue = self._enqueue
        self.served.setdefault(config.name, {})[version] = model
        return model

    def _enqueue(self, request: InferenceRequest) -> None:
        assert request.model is not None and request.wanted
        self.requests.append(request)
        if self.hold:
            self.held.append(request)
        else:
            self.finish(request)

    def finish(self, request: InferenceRequest) -> None:
        """Answer a request as its model would."""
        inputs = {name: tensor.array for name, tensor in request.inputs.items()}
        if "INPUT0" in inputs:
            a, b = inputs["INPUT0"], inputs["INPUT1"]
            outputs = [Tensor("OUTPUT0", "FP32", a + b), Tensor("OUTPUT1", "FP32", a - b)]
        else:
            outputs = [
                Tensor("Y" if name == "X" else "OUT" + name[2:], tensor.datatype, tensor.array)
                for name, tensor in request.inputs.items()
            ]
        outputs = [tensor for tensor in outputs if tensor.name in request.wanted]
        model = request.model
        response = InferenceResponse(outputs, model_name=model.name, model_version=str(model.version), id=request.id)
        request.counted = True  # as every request that was executed
        request.respond(self.change(response), True)

    # --- what the front end calls

    def model(self, name: str, version: str = "") -> Model:
        versions = self.served.get(name)
        if versions is None:
            raise ServingError(Code.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        if not version:
            return versions[max(versions)]
        if int(version) not in versions:
            raise ServingError(Code.NOT_FOUND, f"Request for unknown model: '{name}' version {version} is not found")
        return versions[int(version)]

    def models(self) -> list[Model]:
        return [versions[number] for _, versions in sorted(self.served.items()) for number in sorted(versions)]

    def is_ready(self) -> bool:
        return self.is_healthy

    def is_model_ready(self, name: str, version: str = "") -> bool:
        return name in self.served and (not version or int(version) in self.served[name])

    def ask_model_ready(self, name: str, version: str, reply: Callable[[bool], None]) -> None:
        reply(self.is_model_ready(name, version))

    def cancel(self, request: InferenceRequest, error: ServingError | None = None) -> None:
        self.cancelled.append(request)
        request.respond(InferenceResponse.failure(Code.CANCELLED, "cancelled"), True)

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        if name and name not in self.served:
            raise ServingError(Code.INVALID_ARG, f"requested model '{name}' is not available")
        some = Duration(1, 7)
        return [
            ModelStatistics(
                "multi",
                3,
                last_inference_ms=5,
                inference_count=4,
                execution_count=3,
                success=Duration(2, 9),
                batch_stats={2: (some, some, some), 1: (some, some, Duration(3, 8))},
            )
        ]

    def index(self, ready: bool = False) -> list[ModelIndex]:
        rows = [
            ModelIndex("a", "1", "READY", ""),
            ModelIndex("b", "", "", ""),
            ModelIndex("c", "2", "UNAVAILABLE", "why"),
        ]
        return rows[:1] if ready else rows

    def unload(self, name: str, *, dependents: bool = False) -> None:
        self.calls.append(("unload", name, dependents))

    async def load(self, name: str, *, config: str | None = None, files: dict[str, bytes] | None = None) -> None:
        self.calls.append(("load", name, config, files))
        if self.load_error is not None:
            raise self.load_error


class FakeTransport:
    def __init__(self) -> None:
        self.out = bytearray()
        self.paused = self.closing = self.aborted = self.eof = False
        self.buffered = 0
        self.extra: dict[str, Any] = {}

    def write(self, data: bytes) -> None:
        assert not self.closing, "a write after close"
        self.out += data

    def writelines(self, buffers: list[Any]) -> None:
        for buffer in buffers:
            self.write(bytes(buffer))

    def get_extra_info(self, name: str) -> Any:
        return self.extra.get(name)

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Client:
    """One client of a server; `send` behaves as a socket does: what isn't read because of back-pressure waits."""

    def __init__(self, kernel: FakeKernel | None = None, *, server: Any = None, **options: Any) -> None:
        self.kernel = kernel or FakeKernel()
        self.server = server or make_server(self.kernel, **{"max_input_size": MAX_INPUT_SIZE, **options})
        self.connection = Connection(self.server)
        self.transport = FakeTransport()
        self.waiting = b""
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        waiting, at = memoryview(self.waiting + data), 0
        loop = self.kernel.loop
        while at < len(waiting) and not self.transport.closing:
            if self.transport.paused:
                if not (isinstance(loop, FakeLoop) and loop.turn()):
                    break
                continue
            buffer = memoryview(self.connection.get_buffer(-1)).cast("B")
            assert len(buffer), "an empty buffer would mean the end of the stream"
            count = min(len(buffer), len(waiting) - at)
            buffer[:count] = waiting[at : at + count]
            at += count
            self.connection.buffer_updated(count)
        self.waiting = bytes(waiting[at:])
        while isinstance(loop, FakeLoop) and loop.turn():
            pass

    def lose(self) -> None:
        self.connection.connection_lost(None)

    def take(self) -> bytes:
        """Return what the server has sent since the last call."""
        out = bytes(self.transport.out)
        self.transport.out.clear()
        return out

    def ask(self, data: bytes) -> Response:
        """Send one request and return its response; there must be exactly one."""
        self.send(data)
        while self.kernel.loop.jobs:  # what is done on another thread
            self.kernel.loop.run_jobs()
        responses = parse(self.take())
        assert len(responses) == 1, responses
        return responses[0]


class Response:
    def __init__(self, line: bytes, headers: list[tuple[str, str]], body: bytes) -> None:
        self.line = line
        self.status = int(line.split(b" ")[1])
        self.headers = dict(headers)
        self.names = [name for name, _ in headers]
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        message = self.json["error"]
        assert list(self.json) == ["error"] and isinstance(message, str)
        return message

    def __repr__(self) -> str:
        return f"<{self.line!r} {self.headers} {self.body[:300]!r}>"


def parse(data: bytes) -> list[Response]:
    """Split a stream of responses; each must say its length."""
    responses = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head
        line, *lines = head.split(b"\r\n")
        if line.startswith(b"HTTP/1.1 100"):
            continue
        headers = [tuple(text.decode().split(": ", 1)) for text in lines]
        if ("Transfer-Encoding", "chunked") in headers:
            body, data = unchunked(data)
            responses.append(Response(line, headers, body))
            continue
        length = int(dict(headers)["Content-Length"])
        assert len(data) >= length, (head, data)
        responses.append(Response(line, headers, data[:length]))
        data = data[length:]
    return responses


def unchunked(data: bytes) -> tuple[bytes, bytes]:
    """Return the body of a chunked response, which must be complete, and what comes behind it."""
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        assert data[count : count + 2] == b"\r\n", data
        body += data[:count]
        data = data[count + 2 :]
        if not count:
            return body, data


def request(method: str, path: str, body: bytes = b"", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: test", *headers]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def infer(model: str, body: Any, *headers: str) -> bytes:
    """A JSON inference request. `body`: bytes as they are, or what is to be encoded."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request("POST", f"/v2/models/{model}/infer", data, *headers)


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters:
        record["parameters"] = parameters
    if data is not None:
        record["data"] = data
    return record


def binary(model: str, inputs: list[dict[str, Any]], tail: bytes, *headers: str, **members: Any) -> bytes:
    """A binary inference request."""
    head = json.dumps({**members, "inputs": inputs}).encode()
    return infer(model, head + tail, f"Inference-Header-Content-Length: {len(head)}", *headers)


def add_sub(a: Any, b: Any, **members: Any) -> bytes:
    """A binary request of four floats a side, all outputs binary."""
    tail = np.array([a, b], np.float32).tobytes()
    inputs = [tensor(f"INPUT{i}", "FP32", [4], binary_data_size=16) for i in (0, 1)]
    return binary("add_sub", inputs, tail, **{"parameters": {"binary_data_output": True}, **members})

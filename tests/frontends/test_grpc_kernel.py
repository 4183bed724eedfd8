"""gRPC inference on a real kernel in virtual time: what the queue, the clock and a model's life have to do with calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontends.fakes_grpc import Service, Streaming, arrays, floats, parameters_of, request
from virtual import BASE, Behaviour, TestBackend, run, sleeping, write_repository

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, Tensor
from kernel_grpc.schemas import grpc_service_pb2 as pb

DYNAMIC = "max_batch_size: 1\ndynamic_batching { default_queue_policy { %s } }\n"
MODELS = {
    "echo": BASE,
    "slow": BASE,
    "many": BASE + "model_transaction_policy { decoupled: true }\n",
    "short": BASE.replace("[ -1 ]", "[ 1 ]") + DYNAMIC % "max_queue_size: 1",
    "timed": BASE.replace("[ -1 ]", "[ 1 ]") + DYNAMIC % "default_timeout_microseconds: 100000",
    "shaped": BASE.replace("dims: [ -1 ]", "dims: [ 4 ] reshape { shape: [ 2, 2 ] }"),
}

Test = Callable[[Service, Kernel], Awaitable[None]]


class Many:
    """A decoupled model that a test answers for."""

    def __init__(self) -> None:
        self.requests: list[InferenceRequest] = []

    def __call__(self, batch: Batch) -> None:
        self.requests += batch.requests


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., None]:
    write_repository(tmp_path, MODELS)

    def serve(test: Test, **behaviours: Behaviour) -> None:
        async def main() -> None:
            backend = TestBackend({name: sleeping(1.0) for name in ("slow", "short", "timed")} | behaviours)
            async with Kernel(tmp_path, control_mode="explicit", load_models=["*"], plugins=[backend]) as kernel:
                await test(Service(kernel), kernel)  # type: ignore[arg-type]

        run(main())

    return serve


def asked(model: str, id: str = "", rows: bool = False) -> pb.ModelInferRequest:
    return request(model, ("X", "FP32", [1, 1] if rows else [1]), raw=[floats(5)], id=id)


def shown(stream: Streaming) -> list[tuple[Any, ...]]:
    return [
        (
            message.infer_response.id,
            message.error_message or arrays(message.infer_response).get("Y"),
            message.infer_response.model_name,
            parameters_of(message.infer_response).get("triton_final_response"),
        )
        for message in stream.take()
    ]


def test_unary_and_streamed(serve: Callable[..., None]) -> None:
    async def test(service: Service, kernel: Kernel) -> None:
        stream = service.stream()
        for _ in range(3):
            assert arrays(service.ask(asked("echo", "i"))) == {"Y": [5]}
            stream.send(asked("echo", "i"))
            assert shown(stream) == [("i", [5], "echo", True)]
        assert kernel.statistics("echo")[0].success.count == 6

    serve(test)


def test_order_on_a_stream(serve: Callable[..., None]) -> None:
    async def test(service: Service, kernel: Kernel) -> None:
        stream = service.stream()
        stream.send(asked("slow", "1"), asked("echo", "2"), asked("nope", "3"))
        stream.close()
        await asyncio.sleep(0.9)
        assert shown(stream) == [] and not stream.call.done
        await asyncio.sleep(0.2)
        assert [message[0] for message in shown(stream)] == ["1", "2", "3"]
        assert stream.call.status == 0

    serve(test)


def test_a_full_queue_is_no_execution_and_a_time_out_is(serve: Callable[..., None]) -> None:
    async def test(service: Service, kernel: Kernel) -> None:
        stream = service.stream()
        for id in "abc":
            stream.send(asked("short", id, rows=True))
            await asyncio.sleep(0.01)
        await asyncio.sleep(3)
        assert shown(stream) == [
            ("a", [[5]], "short", True),
            ("b", [[5]], "short", True),
            ("c", "[request id: c] Exceeds maximum queue size", "", None),
        ]
        stream.send(asked("timed", "d", rows=True), asked("timed", "e", rows=True))
        await asyncio.sleep(3)
        assert shown(stream) == [("d", [[5]], "timed", True), ("e", "Request timeout expired", "timed", True)]

    serve(test)


@pytest.mark.parametrize("queued", [False, True])
def test_deadlines(serve: Callable[..., None], queued: bool) -> None:
    async def test(service: Service, kernel: Kernel) -> None:
        if queued:
            service.start(asked("slow"))
        call = service.start(asked("slow", "x"), deadline=kernel.clock() + 0.5)
        await asyncio.sleep(0.49)
        assert not call.done
        await asyncio.sleep(0.02)
        assert call.failure == (4, "Deadline Exceeded")
        assert call.request is None
        await asyncio.sleep(3)

    serve(test)


def test_a_cancelled_call_reaches_the_model(serve: Callable[..., None]) -> None:
    seen = []

    async def watching(batch: Batch) -> list[InferenceResponse]:
        await asyncio.sleep(0.5)
        seen.append(batch.requests[0].is_cancelled)
        return [InferenceResponse([])]

    async def test(service: Service, kernel: Kernel) -> None:
        call = service.start(asked("slow"))
        await asyncio.sleep(0.1)
        made = call.request
        call.cancel()
        assert made is not None
        kernel.cancel(made)  # as the transport does
        assert made.is_cancelled and call.take() == []
        await asyncio.sleep(1)
        assert seen == [True]

    serve(test, slow=watching)


def test_a_decoupled_model_on_a_stream(serve: Callable[..., None]) -> None:
    many = Many()

    async def test(service: Service, kernel: Kernel) -> None:
        def out(value: float) -> InferenceResponse:
            return InferenceResponse([Tensor("Y", "FP32", np.array([value], np.float32))])

        stream = service.stream()
        stream.send(asked("many", "a"), asked("many", "b"), asked("echo", "c"))
        await asyncio.sleep(0)
        assert shown(stream) == [("c", [5], "echo", True)]
        first, second = many.requests
        for k in range(3):
            kernel.send(first, out(k), False)
        kernel.send(second, out(7), True)
        kernel.send(first, None, True)
        assert shown(stream) == [
            *(("a", [k], "many", False) for k in range(3)),
            ("b", [7], "many", True),
        ]
        stream.send(asked("many", "d"))
        await asyncio.sleep(0)
        last = many.requests[-1]
        assert not last.is_cancelled
        stream.call.cancel()
        assert last.is_cancelled
        kernel.send(last, out(1), True)
        assert shown(stream) == []

    serve(test, many=many)


def test_reshaped_models(serve: Callable[..., None]) -> None:
    shapes = []

    def twice(batch: Batch) -> list[InferenceResponse]:
        array = batch.requests[0].inputs["X"].array
        shapes.append(array.shape)
        return [InferenceResponse([Tensor("Y", "FP32", array * 2)])]

    async def test(service: Service, kernel: Kernel) -> None:
        made = request("shaped", ("X", "FP32", [4]), raw=[floats(1, 2, 3, 4)])
        stream = service.stream()
        for _ in range(2):
            assert arrays(service.ask(made)) == {"Y": [2, 4, 6, 8]}
            stream.send(made)
            assert arrays(stream.take()[0].infer_response) == {"Y": [2, 4, 6, 8]}
        assert shapes == [(2, 2)] * 4

    serve(test, shaped=twice)


def test_reload_and_unload(serve: Callable[..., None]) -> None:
    async def test(service: Service, kernel: Kernel) -> None:
        stream = service.stream()
        for _ in range(3):
            service.ask(asked("echo"))
            stream.send(asked("echo"))
            stream.take()
            await kernel.load("echo")
        assert arrays(service.ask(asked("echo"))) == {"Y": [5]}
        kernel.unload("echo")
        await asyncio.sleep(0.1)
        text = "Request for unknown model: 'echo' has no available versions"
        code, words = service.start(asked("echo")).failure
        assert code in (Code.NOT_FOUND, Code.UNAVAILABLE) and words.startswith("Request for unknown model: 'echo'")
        stream.send(asked("echo", "i"))
        assert shown(stream) == [("i", words, "", None)]
        assert words == text

    serve(test)


def test_calls_of_a_kernel_that_stops(serve: Callable[..., None]) -> None:
    async def test(service: Service, kernel: Kernel) -> None:
        stream = service.stream()
        call = service.start(asked("slow"))
        stream.send(asked("slow", "s"))
        stopping = asyncio.ensure_future(kernel.stop(5.0))
        await asyncio.sleep(0.1)
        late = service.start(asked("slow"))
        assert late.done and late.status in (Code.UNAVAILABLE, Code.NOT_FOUND)
        await stopping
        assert arrays(call.response) == {"Y": [5]}
        assert [message[:2] for message in shown(stream)] == [("s", [5])]

    serve(test)

"""Inference with the unmodified `tritonclient.grpc` and `.grpc.aio`: calls, streams, cancellation, deadlines, shared memory."""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from .serving import REPOSITORY, SLEEPER, Server, serving, wait_until, write_model
from .test_grpc_admin import GRPC, grpc_url

LABELS = (REPOSITORY / "digits_classifier/labels.txt").read_text().split()

#: Sends X[0] responses and then a flag, X[1] seconds apart; -1: an error, -2: responses until the request is cancelled, which
#: the file `cancelled` in the version folder tells.
STREAMER = """\
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count, pause = map(float, request.inputs()[0].as_numpy())
            answer = lambda k: pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([k], np.float32))])
            if count == -1:
                sender.send(answer(0))
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("boom", pb_utils.TritonError.NOT_FOUND)))
            k = 0
            while k < count or count == -2 and not request.is_cancelled():
                sender.send(answer(k))
                time.sleep(pause)
                k += 1
            if count == -2:
                (Path(__file__).parent / "cancelled").touch()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

#: Tells in Y how it was called.
TELLER = """\
    def execute(self, requests):
        import json
        told = lambda r: json.dumps([json.loads(r.parameters()), r.request_id(), r.correlation_id(), r.flags(), r.timeout()])
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([told(r)], np.object_))]) for r in requests
        ]
"""

#: Sleeps; whether it was cancelled meanwhile is in the file `cancelled`.
WATCHER = """\
    def execute(self, requests):
        (Path(__file__).parent / "started").touch()
        for _ in range(500):
            if requests[0].is_cancelled():
                (Path(__file__).parent / "cancelled").touch()
                break
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""

BF16 = """\
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", r.inputs()[0].to_dlpack())]) for r in requests]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for model in REPOSITORY.iterdir():
        if (model / "config.pbtxt").exists():
            (folder / model.name).symlink_to(model)
    write_model(folder, "echo")
    write_model(folder, "sleeper", SLEEPER)
    write_model(folder, "watcher", WATCHER)
    write_model(folder, "streamer", STREAMER, more="model_transaction_policy { decoupled: true }")
    for name, body, before, after in (
        ("teller", TELLER, '"Y" data_type: TYPE_FP32', '"Y" data_type: TYPE_STRING'),
        ("bf16", BF16, "TYPE_FP32", "TYPE_BF16"),
    ):
        config = write_model(folder, name, body) / "config.pbtxt"
        config.write_text(config.read_text().replace(before, after))
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--grpc-header-forward-pattern=^x-", *GRPC)
    with serving(tmp_path_factory.mktemp("server"), repository, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: Server) -> str:
    return grpc_url(server)


@pytest.fixture
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(url) as client:
        yield client


def tensor(name: str, values: Any, datatype: str = "FP32") -> triton.InferInput:
    array = np.asarray(values)
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def floats(name: str, *values: float) -> triton.InferInput:
    return tensor(name, np.array(values, np.float32))


def pair(k: float = 0) -> list[triton.InferInput]:
    return [floats("A", k, 2, 3, 4), floats("B", 1, 1, 1, 1)]


class Stream:
    """A stream of the sync client. `next()` gives (id, values or error, final flag) of the next message."""

    def __init__(self, client: triton.InferenceServerClient, **options: Any) -> None:
        self.client = client
        self.messages: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: self.messages.put((result, error)), **options)

    def send(self, model: str, *inputs: triton.InferInput, **options: Any) -> None:
        self.client.async_stream_infer(model, list(inputs), **options)

    def next(self) -> tuple[str, Any, bool | None]:
        result, error = self.messages.get(timeout=10)
        if error is not None:
            return "", error.message(), None
        response = result.get_response()
        final = response.parameters.get("triton_final_response")
        values = [result.as_numpy(output.name).tolist() for output in response.outputs]
        return response.id, values[0] if values else None, final.bool_param if final else None


# --- calls


def test_infer(client: triton.InferenceServerClient) -> None:
    for k in range(5):
        result = client.infer("add_sub", pair(k), request_id=str(k), model_version="1" if k % 2 else "")
        assert result.as_numpy("SUM").tolist() == [k + 1, 3, 4, 5]
        assert result.as_numpy("DIFFERENCE").tolist() == [k - 1, 1, 2, 3]
        response = result.get_response()
        assert (response.id, response.model_name, response.model_version) == (str(k), "add_sub", "1")
        result = client.infer("add_sub", pair(k), outputs=[triton.InferRequestedOutput("SUM")])
        assert result.as_numpy("SUM").tolist() == [k + 1, 3, 4, 5]
        assert result.as_numpy("DIFFERENCE") is None


def test_strings(client: triton.InferenceServerClient) -> None:
    words = np.array(["grün", b"abc", "", "x" * 1000], np.object_)
    given = tensor("TEXT", words, "BYTES")
    result = client.infer("text_upper", [given])
    (output,) = result.get_response().outputs
    assert result.as_numpy(output.name).tolist() == ["GRÜN".encode(), b"ABC", b"", b"X" * 1000]


def test_bf16_and_typed_contents(url: str) -> None:
    """With the client's stubs: its own classes want a package for the one, and never write the other."""
    with grpc.insecure_channel(url) as channel:
        stub = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = triton.service_pb2.ModelInferRequest(model_name="bf16", raw_input_contents=[b"\xc0\x3f\x00\xc0"])
        request.inputs.add(name="X", datatype="BF16", shape=[2])
        response = stub.ModelInfer(request)
        assert (response.outputs[0].datatype, list(response.raw_output_contents)) == ("BF16", [b"\xc0\x3f\x00\xc0"])
        request = triton.service_pb2.ModelInferRequest(model_name="echo")
        request.inputs.add(name="X", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1.5, -2])
        assert np.frombuffer(stub.ModelInfer(request).raw_output_contents[0], np.float32).tolist() == [1.5, -2]


def test_classification(client: triton.InferenceServerClient) -> None:
    with np.load(REPOSITORY / "digits.npz") as file:
        images, digits = file["images"][:3], file["labels"][:3]
    given = triton.InferInput("IMAGE", list(images.shape), "UINT8")
    given.set_data_from_numpy(images)
    result = client.infer("pipeline_ensemble", [given])
    assert result.get_response().model_name == "pipeline_ensemble"
    pixels = client.infer("preprocess", [given])
    name = pixels.get_response().outputs[0].name
    scores = client.infer(
        "digits_classifier",
        [tensor("PIXELS", pixels.as_numpy(name))],
        outputs=[triton.InferRequestedOutput("SCORES", class_count=1)],
    )
    found = [row[0].decode().split(":") for row in scores.as_numpy("SCORES").tolist()]
    assert [int(place) for _, place, *_ in found] == digits.tolist()


def test_a_large_tensor(client: triton.InferenceServerClient) -> None:
    values = np.arange(5_000_000, dtype=np.float32)  # 20 MB
    for _ in range(2):
        result = client.infer("echo", [tensor("X", values)])
        assert np.array_equal(result.as_numpy("Y"), values)


def told(result: triton.InferResult) -> Any:
    return json.loads(result.as_numpy("Y")[0])


def test_parameters_headers_and_sequences(client: triton.InferenceServerClient) -> None:
    result = client.infer(
        "teller",
        [floats("X", 1)],
        request_id="me",
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        timeout=5,
        parameters={"flag": True, "count": 3, "text": "é"},
        headers={"x-user": "someone", "other": "unheard of"},
    )
    assert told(result) == [{"flag": True, "count": 3, "text": "é", "x-user": "someone"}, "me", 7, 3, 5]
    assert told(client.infer("teller", [floats("X", 1)], sequence_id="word")) == [{}, "", "word", 0, 0]
    assert told(client.infer("teller", [floats("X", 1)])) == [{}, "", 0, 0, 0]


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_requests(client: triton.InferenceServerClient, compression: str) -> None:
    result = client.infer("add_sub", pair(1), compression_algorithm=compression)
    assert result.as_numpy("SUM").tolist() == [2, 3, 4, 5]
    zeros = np.zeros(1_000_000, np.float32)
    assert not client.infer("echo", [tensor("X", zeros)], compression_algorithm=compression).as_numpy("Y").any()


@pytest.mark.parametrize(
    ("model", "inputs", "status", "words"),
    [
        ("nobody", pair(), "NOT_FOUND", "Request for unknown model: 'nobody' is not found"),
        ("add_sub", pair()[:1], "INVALID_ARGUMENT", "expected 2 inputs but got 1 inputs for model 'add_sub'"),
        ("streamer", [floats("X", 1, 0)], "UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled"),
    ],
)
def test_errors(client: triton.InferenceServerClient, model: str, inputs: Any, status: str, words: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs)
    assert caught.value.status() == f"StatusCode.{status}"
    assert words in caught.value.message()


def test_async_infer_and_cancel(client: triton.InferenceServerClient, repository: Path) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.async_infer("add_sub", pair(), lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=10)
    assert error is None and result.as_numpy("SUM").tolist() == [1, 3, 4, 5]
    folder = repository / "watcher/1"
    call = client.async_infer("watcher", [floats("X", 1)], lambda result, error: answers.put((result, error)))
    wait_until((folder / "started").exists)
    call.cancel()
    wait_until((folder / "cancelled").exists)
    _, error = answers.get(timeout=10)
    assert error.status() == "StatusCode.CANCELLED"
    (folder / "started").unlink()
    (folder / "cancelled").unlink()


def test_deadline(client: triton.InferenceServerClient, repository: Path) -> None:
    folder = repository / "watcher/1"
    begun = time.monotonic()
    with pytest.raises(InferenceServerException) as caught:
        client.infer("watcher", [floats("X", 1)], client_timeout=0.2)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert 0.15 < time.monotonic() - begun < 2
    wait_until((folder / "cancelled").exists)
    (folder / "started").unlink()
    (folder / "cancelled").unlink()
    assert client.infer("add_sub", pair(), client_timeout=10).as_numpy("SUM") is not None


def test_shared_memory(client: triton.InferenceServerClient) -> None:
    a, b = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    region = shm.create_shared_memory_region("grpc_test", "/kernel_grpc_test", 64)
    try:
        shm.set_shared_memory_region(region, [a, b])
        client.register_system_shared_memory("grpc_test", "/kernel_grpc_test", 64)
        inputs = [triton.InferInput(name, [4], "FP32") for name in ("A", "B")]
        inputs[0].set_shared_memory("grpc_test", 16)
        inputs[1].set_shared_memory("grpc_test", 16, 16)
        output = triton.InferRequestedOutput("SUM")
        output.set_shared_memory("grpc_test", 16, 32)
        for _ in range(2):
            shm.set_shared_memory_region(region, [np.zeros(4, np.float32)], offset=32)
            result = client.infer("add_sub", inputs, outputs=[output, triton.InferRequestedOutput("DIFFERENCE")])
            assert shm.get_contents_as_numpy(region, np.float32, [4], 32).tolist() == [1, 2, 3, 4]
            assert result.as_numpy("DIFFERENCE").tolist() == [-1, 0, 1, 2]
        client.unregister_system_shared_memory("grpc_test")
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'grpc_test'"):
            client.infer("add_sub", inputs)
    finally:
        shm.destroy_shared_memory_region(region)


# --- streams


def test_stream_of_models_that_answer_once(client: triton.InferenceServerClient) -> None:
    stream = Stream(client)
    stream.send("sleeper", floats("X", 0.2), request_id="slow")
    for k in range(50):
        stream.send("add_sub", *pair(k), request_id=str(k), enable_empty_final_response=k % 2 == 0)
    stream.send("nobody", *pair(), request_id="bad")
    stream.send("echo", floats("X", 7), request_id="last")
    id, values, final = stream.next()
    assert (id, np.float32(values), final) == ("slow", np.float32(0.2), True)
    for k in range(50):
        assert stream.next() == (str(k), [k + 1, 3, 4, 5], True)
    assert "Request for unknown model: 'nobody' is not found" in stream.next()[1]
    assert stream.next() == ("last", [7], True)
    client.stop_stream()


@pytest.mark.parametrize("empty_final", [False, True])
def test_stream_of_a_decoupled_model(client: triton.InferenceServerClient, empty_final: bool) -> None:
    stream = Stream(client)
    options = {"enable_empty_final_response": empty_final}
    for count in (3, 0, 100):
        stream.send("streamer", floats("X", count, 0), request_id=str(count), **options)
        for k in range(count):
            assert stream.next() == (str(count), [k], False)
        if empty_final:
            assert stream.next() == (str(count), None, True)
    stream.send("streamer", floats("X", -1, 0), request_id="e", **options)
    assert stream.next() == ("e", [0], False)
    assert "boom" in stream.next()[1]
    if empty_final:
        assert stream.next() == ("e", None, True)
    stream.send("repeat", tensor("IN", np.arange(5, dtype=np.int32), "INT32"), request_id="r")
    assert [stream.next() for _ in range(5)] == [("r", [k], False) for k in range(5)]
    client.stop_stream()
    assert stream.messages.empty()


def test_stop_stream_waits_for_what_is_in_flight(client: triton.InferenceServerClient) -> None:
    stream = Stream(client)
    stream.send("streamer", floats("X", 5, 0.05), request_id="s")
    client.stop_stream()
    assert [stream.next() for _ in range(5)] == [("s", [k], False) for k in range(5)]
    assert stream.messages.empty()


def test_cancelled_stream(client: triton.InferenceServerClient, repository: Path) -> None:
    cancelled = repository / "streamer/1/cancelled"
    stream = Stream(client)
    stream.send("streamer", floats("X", -2, 0.01))
    stream.next()
    client.stop_stream(cancel_requests=True)
    wait_until(cancelled.exists)
    cancelled.unlink()


def test_a_client_that_is_gone_cancels_its_stream(url: str, repository: Path) -> None:
    cancelled = repository / "streamer/1/cancelled"
    client = triton.InferenceServerClient(url)
    stream = Stream(client)
    stream.send("streamer", floats("X", -2, 0.01))
    stream.next()
    client._client_stub = None
    client._channel.close()
    wait_until(cancelled.exists)
    cancelled.unlink()


def test_deadline_of_a_stream(client: triton.InferenceServerClient, repository: Path) -> None:
    cancelled = repository / "streamer/1/cancelled"
    stream = Stream(client, stream_timeout=0.3)
    stream.send("streamer", floats("X", -2, 0.01))
    while (message := stream.next())[2] is not None:
        pass
    assert "Deadline Exceeded" in message[1]
    wait_until(cancelled.exists)
    cancelled.unlink()
    client.stop_stream()


def test_errors_as_the_status_of_a_stream(client: triton.InferenceServerClient) -> None:
    stream = Stream(client, headers={"triton_grpc_error": "true"})
    stream.send("add_sub", *pair(1), request_id="1")
    assert stream.next() == ("1", [2, 3, 4, 5], True)
    stream.send("nobody", *pair())
    _, error = stream.messages.get(timeout=10)
    assert error.status() == "StatusCode.NOT_FOUND"
    assert "Request for unknown model: 'nobody' is not found" in error.message()
    client.stop_stream()


def test_many_streams_at_once(url: str) -> None:
    clients = [triton.InferenceServerClient(url) for _ in range(8)]
    streams = [Stream(client) for client in clients]
    for k, stream in enumerate(streams):
        stream.send("streamer", floats("X", 50, 0.001), request_id=str(k))
        stream.send("echo", floats("X", k), request_id="e")
    for k, stream in enumerate(streams):
        messages = [stream.next() for _ in range(51)]
        assert [message for message in messages if message[0] == "e"] == [("e", [k], True)]
        assert [message for message in messages if message[0] != "e"] == [(str(k), [at], False) for at in range(50)]
    for client in clients:
        client.stop_stream()
        client.close()


def test_a_client_that_reads_slowly_gets_everything(client: triton.InferenceServerClient) -> None:
    """Far more than windows and buffers hold is on its way while the client does not take it."""
    took = []

    def slow(result: Any, error: Any) -> None:
        if not took:
            time.sleep(1)
        took.append(None if error else len(result.as_numpy("Y")))

    client.start_stream(slow)
    values = np.zeros(250_000, np.float32)
    for _ in range(40):
        client.async_stream_infer("echo", [tensor("X", values)])
    client.stop_stream()
    assert took == [250_000] * 40


# --- aio


def test_aio_calls(url: str) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(url) as client:

            async def one(k: int) -> list[float]:
                result = await client.infer("add_sub", pair(k), request_id=str(k))
                assert result.get_response().id == str(k)
                values: list[float] = result.as_numpy("SUM").tolist()
                return values

            assert await asyncio.gather(*map(one, range(100))) == [[k + 1, 3, 4, 5] for k in range(100)]
            with pytest.raises(InferenceServerException, match="'nobody' is not found"):
                await client.infer("nobody", pair())
            with pytest.raises(InferenceServerException) as caught:
                await client.infer("sleeper", [floats("X", 1)], client_timeout=0.1)
            assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"

    asyncio.run(main())


def test_aio_streams(url: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for k in range(20):
            yield {"model_name": "add_sub", "inputs": pair(k), "request_id": str(k)}
        yield {"model_name": "streamer", "inputs": [floats("X", 3, 0)], "request_id": "s"}

    async def main() -> None:
        async with triton_aio.InferenceServerClient(url) as client:
            got = []
            async for result, error in client.stream_infer(requests()):
                assert error is None
                response = result.get_response()
                got.append((response.id, response.parameters["triton_final_response"].bool_param))
        assert [one for one in got if one[0] != "s"] == [(str(k), True) for k in range(20)]
        assert [final for id, final in got if id == "s"] == [False] * 3

    asyncio.run(main())


def test_aio_cancellation(url: str, repository: Path) -> None:
    folder = repository / "watcher/1"

    async def main() -> None:
        async with triton_aio.InferenceServerClient(url) as client:
            call = asyncio.ensure_future(client.infer("watcher", [floats("X", 1)]))
            await asyncio.to_thread(wait_until, (folder / "started").exists)
            call.cancel()
            await asyncio.to_thread(wait_until, (folder / "cancelled").exists)

    asyncio.run(main())
    (folder / "started").unlink()
    (folder / "cancelled").unlink()


# --- the end of the server


def test_a_server_that_stops_ends_its_streams(repository: Path, tmp_path: Path) -> None:
    with serving(tmp_path, repository, *GRPC) as server, triton.InferenceServerClient(grpc_url(server)) as client:
        stream = Stream(client)
        stream.send("streamer", floats("X", 20, 0.05), request_id="s")
        assert stream.next() == ("s", [0], False)
        server.signal()
        time.sleep(0.2)
        stream.send("add_sub", *pair(), request_id="late")
        messages = [stream.next() for _ in range(20)]
        assert [message for message in messages if message[0] == "s"] == [("s", [k], False) for k in range(1, 20)]
        (late,) = (message for message in messages if message[0] != "s")
        assert late == ("late", [1.0, 3.0, 4.0, 5.0], True), "as long as something is in flight, open streams are served"
        client.stop_stream()
        assert server.wait() == 0

"""Sequences end to end: `kernel serve` with python and ONNX models that keep state, and the unmodified `tritonclient`."""

from __future__ import annotations

import http.client
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from .serving import Server, serving, write_model
from .test_grpc_admin import grpc_url

BATCHING = """\
max_batch_size: 4
instance_group [ { kind: KIND_CPU count: 1 } ]
sequence_batching {
  STRATEGY
  max_sequence_idle_microseconds: 60000000
  control_input [ { name: "BEGIN" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] }CORRID ]
  state [ { input_name: "SUM" output_name: "SUM_NEXT" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""
CORRID = ', { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] }'
IO = """
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
"""

#: Y is the sum of all X of the sequence so far.
RUNNING_SUM = """\
    def execute(self, requests):
        responses = []
        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            total = given["X"] + given["SUM"]
            tensors = [pb_utils.Tensor("Y", total), pb_utils.Tensor("SUM_NEXT", total)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
"""

#: Counts down from X to 0, one execution and one response a number.
COUNTDOWN = """\
    def initialize(self, args):
        self.left = {}

    def execute(self, requests):
        for request in requests:
            key, sender = request.correlation_id(), request.get_response_sender()
            left = self.left.pop(key, None)
            if left is None:
                left = int(request.inputs()[0].as_numpy().ravel()[0])
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([left], np.float32))]))
            if left:
                self.left[key] = left - 1
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def onnx_sum() -> bytes:
    from onnx_models import graph, node

    model = graph(
        [
            node("Add", ["X", "SUM"], ["Y"]),
            node("Identity", ["Y"], ["SUM_NEXT"]),
            node("Identity", ["BEGIN"], ["BEGUN"]),
        ],
        {"X": ("FP32", ["n", 1]), "SUM": ("FP32", ["n", 1]), "BEGIN": ("INT32", ["n", 1])},
        {"Y": ("FP32", ["n", 1]), "SUM_NEXT": ("FP32", ["n", 1]), "BEGUN": ("INT32", ["n", 1])},
    )
    data: bytes = model.SerializeToString()
    return data


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sequences")
    models = folder / "models"
    for name, strategy in (("python_direct", "direct { }"), ("python_oldest", "oldest { max_candidate_sequences: 4 }")):
        path = write_model(models, name, RUNNING_SUM)
        text = BATCHING.replace("STRATEGY", strategy).replace("CORRID", CORRID, 1)
        (path / "config.pbtxt").write_text('backend: "python"\n' + IO + text)
    path = write_model(models, "countdown", COUNTDOWN)
    text = IO.replace("[ 1 ]", "[ -1 ]") + "sequence_batching { iterative_sequence: true }\n"
    (path / "config.pbtxt").write_text('backend: "python"\nmodel_transaction_policy { decoupled: true }\n' + text)
    (models / "onnx_oldest" / "1").mkdir(parents=True)
    (models / "onnx_oldest" / "1" / "model.onnx").write_bytes(onnx_sum())
    text = BATCHING.replace("STRATEGY", "oldest { max_candidate_sequences: 4 }").replace("CORRID", "", 1)
    (models / "onnx_oldest" / "config.pbtxt").write_text('backend: "onnxruntime"\n' + IO + text)
    with serving(folder, models) as server:
        yield server


MODELS = ["python_direct", "python_oldest", "onnx_oldest"]


@pytest.mark.parametrize("model", MODELS)
def test_sequences_over_http(server: Server, model: str) -> None:
    with triton.InferenceServerClient(server.url) as client:

        def ask(value: float, **fields: Any) -> float:
            given = triton.InferInput("X", [1, 1], "FP32")
            given.set_data_from_numpy(np.array([[value]], np.float32))
            return float(client.infer(model, [given], **fields).as_numpy("Y").item())

        one, other = ("h1", "h2") if model.startswith("python") else (101, 102)
        assert ask(1, sequence_id=one, sequence_start=True) == 1
        assert ask(10, sequence_id=other, sequence_start=True) == 10
        assert ask(2, sequence_id=one) == 3
        assert ask(20, sequence_id=other, sequence_end=True) == 30
        assert ask(3, sequence_id=one, sequence_start=True) == 3
        assert ask(4, sequence_id=one, sequence_end=True) == 7
        with pytest.raises(InferenceServerException) as caught:
            ask(1, sequence_id=one)
        assert caught.value.message() == (
            f"inference request for sequence {one} to model '{model}' must specify the START flag on the first request of the "
            "sequence"
        )
        assert caught.value.status() == "400"


@pytest.mark.parametrize("model", MODELS)
def test_sequences_over_a_grpc_stream(server: Server, model: str) -> None:
    """Two sequences in turns, sent without waiting: each sees its own sums, in its order."""
    got: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(grpc_url(server)) as client:
        client.start_stream(lambda result, error: got.put(error or result))
        for turn in range(10):
            for id, step in ((201, 1), (202, 100)):
                given = triton_grpc.InferInput("X", [1, 1], "FP32")
                given.set_data_from_numpy(np.array([[step]], np.float32))
                client.async_stream_infer(
                    model,
                    [given],
                    request_id=f"{id}-{turn}",
                    sequence_id=id if model.startswith("onnx") else str(id),
                    sequence_start=not turn,
                    sequence_end=turn == 9,
                )
        sums: dict[str, list[float]] = {"201": [], "202": []}
        for _ in range(20):
            result = got.get(timeout=30)
            assert not isinstance(result, Exception), result
            sums[result.get_response().id[:3]].append(float(result.as_numpy("Y").item()))
        client.stop_stream()
    assert sums == {"201": list(range(1, 11)), "202": list(range(100, 1001, 100))}


def test_an_iterative_model_over_a_grpc_stream(server: Server) -> None:
    got: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(grpc_url(server)) as client:
        client.start_stream(lambda result, error: got.put(error or result))
        for name, value in (("a", 3), ("b", 1)):
            given = triton_grpc.InferInput("X", [1], "FP32")
            given.set_data_from_numpy(np.array([value], np.float32))
            client.async_stream_infer("countdown", [given], request_id=name)
        counted: dict[str, list[float]] = {"a": [], "b": []}
        for _ in range(6):
            result = got.get(timeout=30)
            assert not isinstance(result, Exception), result
            counted[result.get_response().id].append(float(result.as_numpy("Y").item()))
        client.stop_stream()
    assert counted == {"a": [3, 2, 1, 0], "b": [1, 0]}


def test_an_iterative_model_over_generate_stream(server: Server) -> None:
    body = b'{"X": [2]}'
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("POST", "/v2/models/countdown/generate_stream", body)
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    assert [line.split('"Y":')[1].split(",")[0].rstrip("}") for line in text.splitlines() if line] == [
        "2.0",
        "1.0",
        "0.0",
    ]


def test_what_clients_see_of_the_model(server: Server) -> None:
    """Controls and state are the server's business."""
    with triton.InferenceServerClient(server.url) as client:
        metadata = client.get_model_metadata("onnx_oldest")
        assert [tensor["name"] for tensor in metadata["inputs"] + metadata["outputs"]] == ["X", "Y"]
        config = client.get_model_config("onnx_oldest")["sequence_batching"]
        assert config["oldest"]["preferred_batch_size"] == [4]
        assert config["state"][0]["output_name"] == "SUM_NEXT"

"""Every call of the unmodified `tritonclient.http` that the server answers, on the sample repository."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from .serving import REPOSITORY, serving, wait_until, write_model

LABELS = (REPOSITORY / "digits_classifier/labels.txt").read_text().split()


@pytest.fixture
def client(url: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(url) as client:
        yield client


def tensor(name: str, array: np.ndarray, datatype: str = "FP32", binary: bool = True) -> triton.InferInput:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def digits() -> tuple[np.ndarray, list[str]]:
    with np.load(REPOSITORY / "digits.npz") as file:
        return file["images"], [LABELS[digit] for digit in file["labels"]]


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    assert client.is_model_ready("add_sub", "1")
    assert not client.is_model_ready("add_sub", "2")
    assert not client.is_model_ready("nobody")


def test_server_metadata(client: triton.InferenceServerClient) -> None:
    metadata = client.get_server_metadata()
    assert metadata["name"] == "triton"
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(metadata["extensions"])


def test_model_metadata(client: triton.InferenceServerClient) -> None:
    assert client.get_model_metadata("digits_classifier") == {
        "name": "digits_classifier",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "PIXELS", "datatype": "FP32", "shape": [-1, 8, 8, 3]}],
        "outputs": [
            {"name": "SCORES", "datatype": "FP32", "shape": [-1, 10]},
            {"name": "LABEL", "datatype": "BYTES", "shape": [-1, 1]},
        ],
    }
    assert client.get_model_metadata("pipeline_ensemble")["platform"] == "ensemble"
    with pytest.raises(InferenceServerException, match=r"^\[404\] Request for unknown model: 'nobody' is not found$"):
        client.get_model_metadata("nobody")


def test_model_config(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("dense", "1")
    assert config["name"] == "dense"
    assert config["max_batch_size"] == 32
    assert config["dynamic_batching"]["preferred_batch_size"] == [32]
    assert config["instance_group"][0]["kind"] == "KIND_CPU"


def test_index(client: triton.InferenceServerClient) -> None:
    index = client.get_model_repository_index()
    assert [line["name"] for line in index] == sorted(line["name"] for line in index)
    assert {"name": "add_sub", "version": "1", "state": "READY"} in index
    assert len(index) == sum((folder / "config.pbtxt").exists() for folder in REPOSITORY.iterdir())


def test_load_is_refused_without_explicit_mode(client: triton.InferenceServerClient) -> None:
    words = r"^\[503\] explicit model load / unload is not allowed if polling is enabled \("
    with pytest.raises(InferenceServerException, match=words):
        client.load_model("add_sub")
    with pytest.raises(InferenceServerException, match=words):
        client.unload_model("add_sub")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_infer(client: triton.InferenceServerClient, binary_in: bool, binary_out: bool) -> None:
    a, b = np.array([1.5, 2, 3], np.float32), np.array([10, 20, 30], np.float32)
    result = client.infer(
        "add_sub",
        [tensor("A", a, binary=binary_in), tensor("B", b, binary=binary_in)],
        outputs=[triton.InferRequestedOutput("SUM", binary_data=binary_out)],
        request_id="first",
        parameters={"note": "a custom parameter"},
    )
    assert result.as_numpy("SUM").tolist() == [11.5, 22, 33]
    assert result.as_numpy("DIFFERENCE") is None
    assert result.get_response()["id"] == "first"
    assert result.get_response()["model_version"] == "1"


def test_infer_all_outputs(client: triton.InferenceServerClient) -> None:
    one = np.ones(4, np.float32)
    result = client.infer("add_sub", [tensor("A", one), tensor("B", one)], model_version="1")
    assert [output["name"] for output in result.get_response()["outputs"]] == ["SUM", "DIFFERENCE"]


@pytest.mark.parametrize("binary", [True, False])
def test_infer_strings(client: triton.InferenceServerClient, binary: bool) -> None:
    text = np.array(["zwölf", "", "a b"], dtype=object)
    result = client.infer(
        "text_upper",
        [tensor("TEXT", text, "BYTES", binary)],
        outputs=[triton.InferRequestedOutput("UPPER", binary_data=binary)],
    )
    assert [item.decode() if isinstance(item, bytes) else item for item in result.as_numpy("UPPER")] == ["ZWÖLF", "", "A B"]


@pytest.mark.parametrize("pipeline", ["pipeline_sync", "pipeline_async", "pipeline_ensemble"])
def test_pipelines_read_real_digits(client: triton.InferenceServerClient, pipeline: str) -> None:
    images, written = digits()
    read = []
    for at in range(0, len(images), 8):
        result = client.infer(pipeline, [tensor("IMAGE", images[at : at + 8], "UINT8")])
        read += [label.decode() for label in result.as_numpy("LABEL")[:, 0]]
    assert sum(map(str.__eq__, read, written)) >= 0.8 * len(written)


def test_classification(client: triton.InferenceServerClient) -> None:
    images, _ = digits()
    pixels = client.infer("preprocess", [tensor("IMAGE", images[:2], "UINT8")]).as_numpy("PIXELS")
    inputs = [tensor("PIXELS", pixels)]
    scores = client.infer("digits_classifier", inputs).as_numpy("SCORES")
    for binary in (True, False):
        wanted = [triton.InferRequestedOutput("SCORES", binary_data=binary, class_count=3)]
        result = client.infer("digits_classifier", inputs, outputs=wanted).as_numpy("SCORES")
        assert result.shape == (2, 3)
        for row, items in zip(scores, result, strict=True):
            places = np.argsort(-row)[:3]
            texts = [item.decode() if isinstance(item, bytes) else item for item in items]
            assert [text.split(":")[1:] for text in texts] == [[str(place), LABELS[place]] for place in places]


@pytest.mark.parametrize("request_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_compression(
    client: triton.InferenceServerClient, request_coding: str | None, response_coding: str | None, binary: bool
) -> None:
    a = np.arange(5000, dtype=np.float32)
    result = client.infer(
        "add_sub",
        [tensor("A", a, binary=binary), tensor("B", a, binary=binary)],
        outputs=[triton.InferRequestedOutput("SUM", binary_data=binary)],
        request_compression_algorithm=request_coding,
        response_compression_algorithm=response_coding,
    )
    assert np.array_equal(result.as_numpy("SUM"), a + a)


def generate(url: str, path: str, body: object) -> tuple[int, str, str]:
    """Ask one of the generate routes, which `tritonclient` does not know: status, content type, body."""
    connection = http.client.HTTPConnection(url, timeout=10)
    try:
        connection.request("POST", f"/v2/models/{path}", json.dumps(body))
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


def test_generate(url: str) -> None:
    status, kind, body = generate(url, "text_upper/generate", {"TEXT": "zwölf", "id": "x"})
    assert (status, kind) == (200, "application/json")
    assert body == '{"UPPER":"ZWÖLF","id":"x","model_name":"text_upper","model_version":"1"}'
    status, _, body = generate(url, "repeat/generate", {"IN": 7})
    assert (status, json.loads(body)["OUT"]) == (200, 7)
    for values in ([], [1, 2]):
        status, _, body = generate(url, "repeat/generate", {"IN": values})
        assert status == 400 and "generate expects model to produce exactly 1 response" in body


def test_generate_stream(url: str) -> None:
    status, kind, body = generate(url, "repeat/generate_stream", {"IN": [5, 6, 7], "DELAY_MS": 1})
    assert (status, kind) == (200, "text/event-stream; charset=utf-8")
    events = [json.loads(event.removeprefix("data: ")) for event in body.split("\n\n")[:-1]]
    assert [(event["INDEX"], event["OUT"]) for event in events] == [(0, 5), (1, 6), (2, 7)]
    assert generate(url, "repeat/generate_stream", {"IN": []}) == (200, "text/event-stream; charset=utf-8", "")
    assert generate(url, "repeat/generate_stream", {"IN": "x"})[0] == 400


def test_dynamic_batching_and_statistics(client: triton.InferenceServerClient) -> None:
    before = client.get_inference_statistics("dense")["model_stats"][0]
    x = np.random.default_rng(1).standard_normal((3, 256), dtype=np.float32)
    together = client.infer("dense", [tensor("X", x)]).as_numpy("Y")
    alone = [client.infer("dense", [tensor("X", row[None])]).as_numpy("Y")[0] for row in x]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    after = client.get_inference_statistics("dense")["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 6
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 4
    with pytest.raises(InferenceServerException, match=r"^\[400\] requested model 'nobody' is not available$"):
        client.get_inference_statistics("nobody")


def test_many_at_once(url: str) -> None:
    """Each of many requests in flight gets its own answer."""
    with triton.InferenceServerClient(url, concurrency=16) as client:
        arrays = [np.full(4, k, np.float32) for k in range(100)]
        pending = [client.async_infer("add_sub", [tensor("A", a), tensor("B", a)]) for a in arrays]
        sums = [one.get_result().as_numpy("SUM") for one in pending]
    assert [total.tolist() for total in sums] == [[2.0 * k] * 4 for k in range(100)]


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        ("nobody", {"X": ([1], "FP32")}, r"^\[404\] Request for unknown model: 'nobody' is not found$"),
        ("add_sub", {"A": ([1], "FP32"), "C": ([1], "FP32")}, r"^\[400\] unexpected inference input 'C' for model 'add_sub'$"),
        ("add_sub", {"A": ([1], "FP32")}, r"^\[400\] .*missing required input\(s\) \['B'\]"),
        ("dense", {"X": ([1, 256], "FP64")}, r"^\[400\] .*data-type is 'FP64', but model 'dense' expects 'FP32'$"),
        ("dense", {"X": ([1, 255], "FP32")}, r"^\[400\] .*unexpected shape .*Expected \[-1,256\], got \[1,255\]"),
        ("dense", {"X": ([33, 256], "FP32")}, r"^\[400\] .*batch-size must be <= 32 for 'dense'$"),
        (
            "repeat",
            {"IN": ([1], "INT32")},
            r"^\[501\] HTTP end point doesn't support models with decoupled transaction policy$",
        ),
    ],
)
def test_refusals(
    client: triton.InferenceServerClient, model: str, inputs: dict[str, tuple[list[int], str]], words: str
) -> None:
    tensors = [
        tensor(name, np.zeros(shape, triton_to_np_dtype(datatype)), datatype) for name, (shape, datatype) in inputs.items()
    ]
    with pytest.raises(InferenceServerException, match=words):
        client.infer(model, tensors)


def test_load_and_unload(tmp_path: Path) -> None:
    """Explicit mode: load, reload with a changed file, override, unload."""
    repository = tmp_path / "models"
    write_model(repository, "echo")
    write_model(repository, "other")
    with serving(tmp_path, repository, "--model-control-mode=explicit") as server:
        with triton.InferenceServerClient(server.url) as client:
            assert client.is_server_ready()
            assert client.get_model_repository_index() == [{"name": "echo"}, {"name": "other"}]
            client.load_model("echo")
            x = tensor("X", np.array([7], np.float32))
            assert client.infer("echo", [x]).as_numpy("Y").tolist() == [7]

            write_doubling(repository / "echo/1/model.py")
            client.load_model("echo")
            assert client.infer("echo", [x]).as_numpy("Y").tolist() == [14]

            config = '{"backend": "python", "max_batch_size": 4, "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]'
            config += ', "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}]}'
            client.load_model("echo", config=config)
            assert client.get_model_metadata("echo")["inputs"][0]["shape"] == [-1, 1]

            words = r"^\[\d+\] failed to load 'nobody', failed to poll from model repository"
            with pytest.raises(InferenceServerException, match=words):
                client.load_model("nobody")

            client.unload_model("echo")
            wait_until(lambda: {"name": "echo", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
                       in client.get_model_repository_index())  # fmt: skip
            with pytest.raises(InferenceServerException, match=r"^\[404\] .*'echo' has no available versions$"):
                client.infer("echo", [x])
            assert client.is_server_ready()


def write_doubling(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace(".as_numpy())", ".as_numpy() * 2)"))

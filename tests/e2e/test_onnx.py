"""`kernel serve` with ONNX models beside the others, asked by the unmodified `tritonclient`; and without onnxruntime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from .serving import FREE_PORTS, REPOSITORY, Server, run, serving
from .test_grpc_admin import grpc_url

SAMPLES = REPOSITORY.parent / "docs" / "onnx_repository"
LABELS = (SAMPLES / "digits_cnn" / "labels.txt").read_text().split()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("onnx"), REPOSITORY, SAMPLES) as server:
        yield server


def digits() -> tuple[np.ndarray, list[str]]:
    with np.load(REPOSITORY / "digits.npz") as file:
        return file["images"], [LABELS[digit] for digit in file["labels"]]


def image(array: np.ndarray, binary: bool = True) -> triton.InferInput:
    given = triton.InferInput("IMAGE", list(array.shape), "UINT8")
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def test_metadata_and_config(server: Server) -> None:
    with triton.InferenceServerClient(server.url) as client:
        assert client.get_model_metadata("digits_cnn") == {
            "name": "digits_cnn",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": "IMAGE", "datatype": "UINT8", "shape": [-1, 32, 32, 3]}],
            "outputs": [
                {"name": "SCORES", "datatype": "FP32", "shape": [-1, 10]},
                {"name": "LABEL", "datatype": "BYTES", "shape": [-1, 1]},
            ],
        }
        config = client.get_model_config("digits_cnn")
        assert (config["backend"], config["default_model_filename"]) == ("onnxruntime", "model.onnx")


@pytest.mark.parametrize("binary", [True, False])
def test_many_clients_are_answered_in_batches(server: Server, binary: bool) -> None:
    images, written = digits()
    outputs = [triton.InferRequestedOutput("LABEL", binary_data=binary)]
    with triton.InferenceServerClient(server.url, concurrency=8) as client:
        calls = [client.async_infer("digits_cnn", [image(one[None], binary)], outputs=outputs) for one in images]
        results = [call.get_result() for call in calls]
        (statistics,) = client.get_inference_statistics("digits_cnn")["model_stats"]
    assert all(result.as_numpy("SCORES") is None for result in results)
    labels = [result.as_numpy("LABEL")[0, 0] for result in results]
    answers = [label.decode() if binary else label for label in labels]
    assert sum(map(str.__eq__, answers, written)) >= 18
    assert statistics["execution_count"] <= statistics["inference_count"]


def test_classes_by_labels(server: Server) -> None:
    images, written = digits()
    with triton.InferenceServerClient(server.url) as client:
        output = triton.InferRequestedOutput("SCORES", class_count=2)
        rows = client.infer("digits_cnn", [image(images[:8])], outputs=[output]).as_numpy("SCORES")
        best = [row[0].decode().split(":")[2] for row in rows]
        assert sum(map(str.__eq__, best, written)) >= 7


def test_over_grpc(server: Server) -> None:
    images, written = digits()
    with triton_grpc.InferenceServerClient(grpc_url(server)) as client:
        given = triton_grpc.InferInput("IMAGE", [16, 32, 32, 3], "UINT8")
        given.set_data_from_numpy(images[:16])
        labels = client.infer("digits_cnn", [given]).as_numpy("LABEL")
        assert sum(label.decode() == word for label, word in zip(labels[:, 0], written)) >= 14


def test_a_wrong_shape_is_refused_with_what_was_wanted(server: Server) -> None:
    with triton.InferenceServerClient(server.url) as client:
        with pytest.raises(InferenceServerException, match=r"Expected \[-1,32,32,3\], got \[1,8,8,3\]"):
            client.infer("digits_cnn", [image(np.zeros((1, 8, 8, 3), np.uint8))])


@pytest.fixture
def without(tmp_path: Path) -> dict[str, str]:
    """An environment in which onnxruntime can't be found."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['onnxruntime'] = None\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])}


def kernel(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernel", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_without_onnxruntime_the_others_are_served(without: dict[str, str]) -> None:
    one = kernel(without, "infer", REPOSITORY, "add_sub", "--input=A=[1]", "--input=B=[2]", "--output=SUM")
    assert one.returncode == 0, one.stderr


def test_without_onnxruntime_the_sample_repository_is_served(
    without: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", without["PYTHONPATH"])
    with serving(tmp_path, REPOSITORY) as server:
        assert server.request("GET", "/v2/health/ready")[0] == 200
        server.signal()
        assert server.wait() == 0
    assert "onnx" not in server.text()


def test_without_onnxruntime_a_server_that_is_told_to_go_on_serves_the_others_and_is_not_ready(
    without: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", without["PYTHONPATH"])
    with serving(tmp_path, REPOSITORY, SAMPLES, "--exit-on-error=false") as server:
        assert server.request("GET", "/v2/health/ready")[0] == 400
        assert server.request("GET", "/v2/models/add_sub/ready")[0] == 200
        assert server.request("GET", "/v2/models/digits_cnn/ready")[0] == 400
        server.signal()
        assert server.wait() == 0
    (line,) = [line for line in server.text().splitlines() if line.startswith("E")]
    assert "model 'digits_cnn' needs onnxruntime, which is not installed: pip install 'kernel-serve[onnx]'" in line


def test_check_takes_an_ensemble_over_a_model_that_completes_its_config(tmp_path: Path) -> None:
    """What `serve` serves: inputs, outputs and batch size are known only when the ONNX model is loaded."""
    shutil.copytree(SAMPLES / "digits_cnn", tmp_path / "digits_cnn")
    (tmp_path / "digits_cnn" / "config.pbtxt").write_text('backend: "onnxruntime"\n')
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text(
        'platform: "ensemble" max_batch_size: 4\n'
        'input { name: "IN" data_type: TYPE_UINT8 dims: [ 32, 32, 3 ] }\n'
        'output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }\n'
        'ensemble_scheduling { step { model_name: "digits_cnn" model_version: -1\n'
        '  input_map { key: "IMAGE" value: "IN" } output_map { key: "LABEL" value: "OUT" } } }\n'
    )
    done = run("check", tmp_path)
    words = "2 models are well, as far as can be seen without loading them; "
    words += "what comes in and out of digits_cnn is known only then; --load loads them, too\n"
    assert (done.returncode, done.stdout) == (0, words)
    done = run("check", tmp_path, "--load")
    assert (done.returncode, done.stdout) == (0, "2 models are well\n")


@pytest.mark.parametrize("command", ["check", "serve"])
def test_without_onnxruntime_its_models_say_what_to_install(without: dict[str, str], command: str) -> None:
    ports = [*FREE_PORTS, "--allow-grpc=false"] if command == "serve" else []
    done = kernel(without, command, SAMPLES, *ports)
    assert done.returncode == 1
    words = "model 'digits_cnn' needs onnxruntime, which is not installed: pip install 'kernel-serve[onnx]'"
    assert words in done.stdout + done.stderr

"""The classification extension (http_protocol 5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontends.fakes import Client, Spec, config, infer, parse, tensor

from kernel import EXTENSIONS

NAN = float("nan")


def labelled(client: Client, datatype: str = "FP32", batch: int = 0, folder: Path | None = None) -> None:
    """Add the model `m`, which answers X as Y."""
    output = Spec("Y", datatype, (-1,))
    output.label_filename = "labels.txt" if folder else ""
    model = client.kernel.add(config("m", [Spec("X", datatype, (-1,))], [output], batch=batch))
    if folder:
        model.model_folder = folder
        (folder / "labels.txt").write_bytes(b"cat\ndog\r\n\nbird with a tail \n")


def ask(client: Client, data: list[Any], count: Any, shape: list[int] | None = None, datatype: str = "FP32") -> Any:
    inputs = [tensor("X", datatype, shape or [len(data)], data)]
    return client.ask(infer("m", {"inputs": inputs, "outputs": [{"name": "Y", "parameters": {"classification": count}}]}))


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1, ["4.000000:1:dog"]),
        (3, ["4.000000:1:dog", "4.000000:2", "3.500000:5"]),
        (100, ["4.000000:1:dog", "4.000000:2", "3.500000:5", "2.000000:3:bird with a tail ", "1.000000:0:cat", "-1.000000:4"]),
    ],
)
def test_highest_first_with_labels(tmp_path: Path, count: int, shown: list[str]) -> None:
    client = Client()
    labelled(client, folder=tmp_path)
    (output,) = ask(client, [1, 4, 4, 2, -1, 3.5], count).json["outputs"]
    assert output == {"name": "Y", "datatype": "BYTES", "shape": [len(shown)], "data": shown}


def large(client: Client, count: int, array: Any, values: int = 2**20) -> Any:
    client.kernel.memory.values = values
    inputs = [tensor("X", "FP32", list(array.shape), binary_data_size=array.nbytes)]
    outputs = [{"name": "Y", "parameters": {"classification": count}}]
    text = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    client.send(infer("m", text + array.tobytes(), f"Inference-Header-Content-Length: {len(text)}"))
    assert client.take() == b""  # it is done on another thread
    client.kernel.loop.run_jobs()
    (response,) = parse(client.take())
    return response


@pytest.mark.parametrize("count", [1, 3, 1000, 70_000, 150_000])
@pytest.mark.parametrize("batch", [0, 8])
def test_the_highest_of_many_are_those_that_a_sort_finds(count: int, batch: int) -> None:
    client = Client()
    labelled(client, batch=batch)
    array = np.random.default_rng(count).integers(-500, 500, (2, 150_000) if batch else 150_000).astype(np.float32)
    array.flat[::1000] = np.nan
    rows = np.nan_to_num(np.atleast_2d(array), nan=-np.inf)
    wanted = [[f"{row[place]:f}:{place}" for place in np.argsort(-row, kind="stable")[:count]] for row in rows]
    response = large(client, count, array)
    shown = np.reshape(response.json["outputs"][0]["data"], (len(rows), count)).tolist()
    assert [[text.split(":")[1] for text in row] for row in shown] == [[text.split(":")[1] for text in row] for row in wanted]


def test_classes_have_a_limit() -> None:
    client = Client()
    labelled(client)
    response = large(client, 2**63, np.arange(150_000, dtype=np.float32), 100_000)
    assert response.status == 400
    assert response.error == (
        "the classes of output 'Y' are 150000 strings, more than the 100000 that --max-request-values allows"
    )


def test_none_is_off() -> None:
    client = Client()
    labelled(client)
    assert ask(client, [1, 4], 0).json["outputs"][0]["data"] == [1.0, 4.0]


@pytest.mark.parametrize(
    ("datatype", "data", "shown"),
    [
        ("UINT8", [1, 200, 200], ["200:1", "200:2", "1:0"]),
        ("UINT64", [2**64 - 1, 2**64 - 2, 0], [f"{2**64 - 1}:0", f"{2**64 - 2}:1", "0:2"]),
        ("INT64", [-(2**63), 5, 2**63 - 1], [f"{2**63 - 1}:2", "5:1", f"{-(2**63)}:0"]),
        ("FP64", [1e20, 1e-9, -0.5], ["100000000000000000000.000000:0", "0.000000:1", "-0.500000:2"]),
    ],
)
def test_datatypes(datatype: str, data: list[Any], shown: list[str]) -> None:
    client = Client()
    labelled(client, datatype)
    assert ask(client, data, 3, datatype=datatype).json["outputs"][0]["data"] == shown


def test_what_is_no_number_comes_last() -> None:
    client = Client()
    labelled(client)
    body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[3],"data":[NaN,1,-Infinity]}],'
    body += b'"outputs":[{"name":"Y","parameters":{"classification":3}}]}'
    shown = client.ask(infer("m", body)).json["outputs"][0]["data"]
    assert shown[0] == "1.000000:1" and set(shown[1:]) == {"nan:0", "-inf:2"}


@pytest.mark.parametrize(("shape", "result"), [([2, 3], [2, 2]), ([1, 1], [1, 1]), ([2, 0], [2, 0])])
def test_each_row_of_a_batch(shape: list[int], result: list[int]) -> None:
    client = Client()
    labelled(client, batch=4)
    count = int(np.prod(shape))
    (output,) = ask(client, list(range(count)), 2, shape).json["outputs"]
    assert output["shape"] == result
    if shape == [2, 3]:
        assert output["data"] == ["2.000000:2", "1.000000:1", "5.000000:2", "4.000000:1"]


def test_binary_and_other_outputs_beside_it() -> None:
    client = Client()
    body = {
        "inputs": [tensor(f"INPUT{i}", "FP32", [4], [1, 2, 3, 4]) for i in (0, 1)],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1, "binary_data": True}}, {"name": "OUTPUT1"}],
    }
    for _ in range(2):
        response = client.ask(infer("add_sub", body))
        size = int(response.headers["Inference-Header-Content-Length"])
        first, second = json.loads(response.body[:size])["outputs"]
        assert (first["datatype"], first["shape"], second["data"]) == ("BYTES", [1], [0.0] * 4)
        assert response.body[size:] == b"\x0a\0\0\x008.000000:3"


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16"])
def test_unsupported_datatypes(datatype: str) -> None:
    client = Client()
    data = {"BOOL": [True], "BYTES": ["a"], "FP16": []}[datatype]
    body = {
        "inputs": [tensor(f"IN_{datatype}", datatype, [len(data)], None if datatype == "FP16" else data)],
        "outputs": [{"name": f"OUT_{datatype}", "parameters": {"classification": 2}}],
    }
    headers = []
    if datatype == "FP16":
        body["inputs"][0]["parameters"] = {"binary_data_size": 0}
        headers = [f"Inference-Header-Content-Length: {len(json.dumps(body))}"]
    response = client.ask(infer("types", body, *headers))
    assert (response.status, response.headers["Content-Type"]) == (400, "text/plain")
    assert response.error == f"class result not available for output due to unsupported type '{datatype}'"


def test_labels_are_read_once(tmp_path: Path) -> None:
    client = Client()
    labelled(client, folder=tmp_path)
    assert ask(client, [1], 1).json["outputs"][0]["data"] == ["1.000000:0:cat"]
    (tmp_path / "labels.txt").unlink()
    assert ask(client, [1], 1).json["outputs"][0]["data"] == ["1.000000:0:cat"]


def test_missing_labels_are_told_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = Client()
    labelled(client, folder=tmp_path)
    (tmp_path / "labels.txt").unlink()
    assert ask(client, [1], 1).json["outputs"][0]["data"] == ["1.000000:0"]
    assert "labels of output 'Y' of model 'm' can't be read" in caplog.text


def test_region_and_classes_exclude_one_another() -> None:
    parameters = {"classification": 1, "shared_memory_region": "r"}
    body = {"inputs": [], "outputs": [{"name": "OUT_FP32", "parameters": parameters}]}
    response = Client().ask(infer("types", body))
    assert response.error == "Output can't set both 'shared_memory_region' and 'classification'"


def test_it_is_listed() -> None:
    assert EXTENSIONS[0] == "classification"

"""Shared memory over HTTP: the operations (http_protocol 8), and inputs and outputs that lie in regions (3.2 and 3.6)."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontends.fakes import Client, FakeKernel, infer, request, tensor

from kernel import pack_bytes

SYSTEM = "/v2/systemsharedmemory"
CUDA = "/v2/cudasharedmemory"
UNKNOWN = "[request id: <id_unknown>] "
NON_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NON_STRING = "attempt to access JSON non-string as string"
EMPTY = "failed to parse the request JSON buffer: The document is empty. at 0"


class Object:
    """A POSIX object as a client has made it: 256 bytes, zeros."""

    def __init__(self) -> None:
        self.path = Path(f"/dev/shm/kernel_test_{uuid.uuid4().hex}")
        self.path.write_bytes(bytes(256))
        self.key = f"/{self.path.name}"

    def put(self, at: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def get(self, at: int, count: int) -> bytes:
        return self.path.read_bytes()[at : at + count]


@pytest.fixture
def memory() -> Iterator[Object]:
    object = Object()
    yield object
    object.path.unlink(missing_ok=True)


@pytest.fixture
def client(memory: Object) -> Client:
    """A client that has registered `r`, 64 bytes from 128 on."""
    client = Client()
    assert register(client, "r", {"key": memory.key, "offset": 128, "byte_size": 64}) == (200, b"")
    return client


def register(client: Client, name: str, body: Any) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.ask(request("POST", f"{SYSTEM}/region/{name}/register", data))
    assert response.headers["Content-Type"] == "application/json"
    return response.status, response.body


def refusal(client: Client, method: str, path: str, body: Any = b"") -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.ask(request(method, path, data))
    assert response.headers["Content-Type"] == "application/json"
    return response.status, response.error


# --- the operations


def test_status(client: Client, memory: Object) -> None:
    register(client, "a%2fb", {"key": memory.key, "byte_size": 8, "other": 1})
    both = client.ask(request("GET", f"{SYSTEM}/status"))
    assert both.body.decode() == (
        f'[{{"name":"a%2fb","key":"{memory.key}","offset":0,"byte_size":8}},'
        f'{{"name":"r","key":"{memory.key}","offset":128,"byte_size":64}}]'
    )
    assert both.names == ["Content-Type", "Content-Length"]
    assert client.ask(request("GET", f"{SYSTEM}/region/r/status")).json == both.json[1:]
    assert refusal(client, "GET", f"{SYSTEM}/region/s/status") == (
        404,
        "Unable to find system shared memory region: 's'",
    )


def test_unregister(client: Client, memory: Object) -> None:
    for name in "ab":
        register(client, name, {"key": memory.key, "byte_size": 8})
    for path in ("region/a", "region/nobody"):
        response = client.ask(request("POST", f"{SYSTEM}/{path}/unregister", b"not looked at"))
        assert (response.status, response.body, response.headers["Content-Type"]) == (200, b"", "application/json")
    assert [region["name"] for region in client.ask(request("GET", f"{SYSTEM}/status")).json] == ["b", "r"]
    assert client.ask(request("POST", f"{SYSTEM}/unregister")).status == 200
    assert client.ask(request("GET", f"{SYSTEM}/status")).body == b"[]"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, EMPTY),
        (b"{}", 400, "Shared memory register request has no 'key' field"),
        (b"[]", 400, "Shared memory register request has no 'key' field"),
        ({"byte_size": 5}, 400, "Shared memory register request has no 'key' field"),
        ({"key": "/k"}, 400, "Shared memory register request has no 'byte_size' field"),
        ({"key": 5, "byte_size": 1}, 400, f"Unable to parse 'key': {NON_STRING}"),
        ({"key": "/k", "byte_size": "x"}, 400, f"Unable to parse 'byte_size': {NON_UINT}"),
        ({"key": "/k", "byte_size": -1}, 400, f"Unable to parse 'byte_size': {NON_UINT}"),
        ({"key": "/k", "byte_size": True}, 400, f"Unable to parse 'byte_size': {NON_UINT}"),
        ({"key": "/k", "byte_size": 2**64}, 400, f"Unable to parse 'byte_size': {NON_UINT}"),
        ({"key": "/k", "byte_size": 8, "offset": None}, 400, f"Unable to parse 'offset': {NON_UINT}"),
        ({"key": "/nothing", "byte_size": 8}, 500, "Unable to open shared memory region: '/nothing'"),
        ({"key": "/../etc/passwd", "byte_size": 8}, 500, "Unable to open shared memory region: '/../etc/passwd'"),
    ],
)
def test_registrations_refused(client: Client, body: Any, status: int, message: str) -> None:
    assert refusal(client, "POST", f"{SYSTEM}/region/s/register", body) == (status, message)
    assert len(client.ask(request("GET", f"{SYSTEM}/status")).json) == 1


def test_registrations_that_don_t_fit(client: Client, memory: Object) -> None:
    path = f"{SYSTEM}/region/{{}}/register"
    record = {"key": memory.key, "byte_size": 64}
    assert refusal(client, "POST", path.format("r"), record) == (400, "shared memory region 'r' already in manager")
    beyond = {**record, "offset": 200}
    assert refusal(client, "POST", path.format("s"), beyond) == (500, f"Invalid shared memory region: '{memory.key}'")
    client.ask(request("POST", f"{SYSTEM}/unregister"))
    assert refusal(client, "POST", path.format("s"), beyond) == (
        400,
        "failed to register shared memory region 's': invalid args",
    )
    for body in (b"", b"{}", json.dumps(record).encode()):
        assert refusal(client, "POST", f"{SYSTEM}/register", body) == (
            400,
            "'region name' is necessary to register system shared memory region",
        )


@pytest.mark.parametrize("prefix", [SYSTEM, CUDA])
def test_methods_and_paths(client: Client, prefix: str) -> None:
    for method, path in (("POST", "status"), ("GET", "register"), ("GET", "region/r/unregister"), ("PUT", "region/r/status")):
        assert refusal(client, method, f"{prefix}/{path}") == (405, "Method Not Allowed")
    for path in ("", "/", "/foo", "/region//status", "/region/r", "/region/r/foo", "/region/a/b/status"):
        response = client.ask(request("GET", prefix + path))
        assert (response.status, response.error, response.headers["Content-Type"]) == (404, "Not Found", "text/plain")


def test_switched_off(memory: Object) -> None:
    client = Client(FakeKernel(allow_client_shm=False))
    for path, body in (
        (f"{SYSTEM}/region/r/register", {"key": memory.key, "byte_size": 8}),
        (f"{SYSTEM}/unregister", {}),
        (f"{CUDA}/region/r/register", {"raw_handle": {"b64": ""}, "byte_size": 1, "device_id": 0}),
        (f"{CUDA}/unregister", {}),
    ):
        status, message = refusal(client, "POST", path, body)
        assert status == 501
        assert message.startswith("clients may not register or unregister shared memory; start the server with")
    assert client.ask(request("GET", f"{SYSTEM}/status")).body == b"[]"


HANDLE = {"b64": "A" * 84 + "AA=="}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", EMPTY),
        (b"{}", "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": 5}, "Unable to parse 'b64': attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": 5}}, f"Unable to parse 'b64': {NON_STRING}"),
        ({"raw_handle": HANDLE}, "Unable to parse 'byte_size': attempt to access non-existing object member 'byte_size'"),
        (
            {"raw_handle": HANDLE, "byte_size": 4},
            "Unable to parse 'device_id': attempt to access non-existing object member 'device_id'",
        ),
        ({"raw_handle": HANDLE, "byte_size": 4, "device_id": "x"}, f"Unable to parse 'device_id': {NON_UINT}"),
        (
            {"raw_handle": {"b64": "AAAA"}, "byte_size": 4, "device_id": 0},
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
        (
            {"raw_handle": {"b64": "!!"}, "byte_size": 4, "device_id": 0},
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
        ({"raw_handle": HANDLE, "byte_size": 4, "device_id": 0}, "failed to register shared memory region: invalid args"),
    ],
)
def test_cuda_registrations_are_refused(client: Client, body: Any, message: str) -> None:
    assert refusal(client, "POST", f"{CUDA}/region/r/register", body) == (400, message)


def test_cuda(client: Client) -> None:
    assert client.ask(request("GET", f"{CUDA}/status")).body == b"[]"
    assert refusal(client, "GET", f"{CUDA}/region/r/status") == (404, "Unable to find cuda shared memory region: 'r'")
    for path in ("unregister", "region/r/unregister"):
        assert client.ask(request("POST", f"{CUDA}/{path}")).status == 200
    assert refusal(client, "POST", f"{CUDA}/register", b"{}") == (
        400,
        "'region name' is necessary to register cuda shared memory region",
    )


# --- inputs


def in_region(name: str, datatype: str, shape: list[int], size: Any = None, offset: Any = None, region: Any = "r") -> Any:
    parameters = {"shared_memory_region": region}
    if size is not None:
        parameters["shared_memory_byte_size"] = size
    if offset is not None:
        parameters["shared_memory_offset"] = offset
    return tensor(name, datatype, shape, **parameters)


def test_an_input_is_a_copy_of_the_region(client: Client, memory: Object) -> None:
    memory.put(136, np.array([1, 2.5, 3], np.float32).tobytes())
    client.kernel.hold = True
    client.send(infer("types", {"inputs": [in_region("IN_FP32", "FP32", [3], 12, 8)]}))
    (held,) = client.kernel.held
    array = held.inputs["IN_FP32"].array
    memory.put(136, bytes(12))
    assert array.tolist() == [1, 2.5, 3]
    array += 1  # models may write to it
    assert memory.get(136, 12) == bytes(12)
    client.kernel.finish(held)
    assert client.take().endswith(
        b'"outputs":[{"name":"OUT_FP32","datatype":"FP32","shape":[3],"data":[2.0,3.5,4.0]}]}'
    )


def test_a_large_region_is_copied_on_another_thread(
    client: Client, memory: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes as long as it takes; the loop goes on."""
    monkeypatch.setattr("kernel_http.inference.reader.COPIED", 8)
    memory.put(128, np.array([1, 2.5, 3], np.float32).tobytes())
    client.send(infer("types", {"inputs": [in_region("IN_FP32", "FP32", [2], 8)]}))
    assert not client.kernel.loop.jobs and client.take().endswith(b'"data":[1.0,2.5]}]}')
    client.send(infer("types", {"inputs": [in_region("IN_FP32", "FP32", [3], 12)]}))
    assert not client.transport.out
    client.kernel.loop.run_jobs()
    assert client.take().endswith(b'"data":[1.0,2.5,3.0]}]}')


def test_a_large_output_is_written_to_its_region_on_another_thread(
    client: Client, memory: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_http.inference.answers.COPIED", 8)
    parameters = {"shared_memory_region": "r", "shared_memory_byte_size": 12}
    for count in (2, 3):
        body = {
            "inputs": [tensor("IN_FP32", "FP32", [count], [1.5] * count)],
            "outputs": [{"name": "OUT_FP32", "parameters": parameters}],
        }
        client.send(infer("types", body))
        assert len(client.kernel.loop.jobs) == (count == 3)
        client.kernel.loop.run_jobs()
        assert client.take().startswith(b"HTTP/1.1 200 OK")
        assert memory.get(128, 4 * count) == np.full(count, 1.5, np.float32).tobytes()


def test_inputs_of_all_sources_in_one_request(client: Client, memory: Object) -> None:
    memory.put(128, np.array([7, 8], np.int64).tobytes())
    inputs = [
        in_region("IN_INT64", "INT64", [2], 16),
        tensor("IN_BYTES", "BYTES", [1], ["text"]),
        tensor("IN_UINT8", "UINT8", [3], binary_data_size=3),
    ]
    head = json.dumps({"inputs": inputs}).encode()
    for _ in range(2):  # nothing is remembered of it that must not be
        response = client.ask(infer("types", head + b"\1\2\3", f"Inference-Header-Content-Length: {len(head)}"))
        assert [output["data"] for output in response.json["outputs"]] == [[7, 8], ["text"], [1, 2, 3]]
        memory.put(128, np.array([7, 8], np.int64).tobytes())


def test_strings(client: Client, memory: Object) -> None:
    data = pack_bytes(np.array([b"ab", b"", b"\xc3\xa9"], object))
    memory.put(128, data)
    body = {"inputs": [in_region("IN_BYTES", "BYTES", [3], len(data))]}
    assert client.ask(infer("types", body)).json["outputs"][0]["data"] == ["ab", "", "é"]
    for shape, size, message in (
        ([2], len(data), "unexpected number of string elements 3 for inference input 'IN_BYTES' for model 'types', expecting 2"),
        ([4], len(data), "expected 4 string elements for inference input 'IN_BYTES' for model 'types', got 3"),
        ([3], 8, "incomplete string length indicator for inference input 'IN_BYTES' for model 'types', expecting 4 bytes but "
                 "only 2 bytes available. Please make sure the string length indicator is in one buffer."),
    ):  # fmt: skip
        response = client.ask(infer("types", {"inputs": [in_region("IN_BYTES", "BYTES", shape, size)]}))
        assert (response.status, response.error) == (400, UNKNOWN + message)


@pytest.mark.parametrize(
    ("size", "offset", "region", "status", "message"),
    [
        (8, None, "s", 404, "Unable to find shared memory region: 's'"),
        (8, None, "", 404, "Unable to find shared memory region: ''"),
        (8, 64, "r", 400, "Invalid offset for shared memory region: 'r'"),
        (8, 60, "r", 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (65, None, "r", 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (0, None, "r", 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (None, None, "r", 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (2**64 - 4, 8, "r", 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (8, None, "r", 400, UNKNOWN + "input byte size mismatch for input 'IN_FP32' for model 'types'. Expected 12, got 8"),
        (64, None, "r", 400, UNKNOWN + "input byte size mismatch for input 'IN_FP32' for model 'types'. Expected 12, got 64"),
        (12, -1, "r", 400, f"Unable to parse 'shared_memory_offset': {NON_UINT} (input 'IN_FP32')"),
        ("x", None, "r", 400, f"Unable to parse 'shared_memory_byte_size': {NON_UINT} (input 'IN_FP32')"),
        (12, None, 5, 400, f"Unable to parse 'shared_memory_region': {NON_STRING} (input 'IN_FP32')"),
        (12, None, None, 400, f"Unable to parse 'shared_memory_region': {NON_STRING} (input 'IN_FP32')"),
    ],
)
def test_inputs_refused(client: Client, size: Any, offset: Any, region: Any, status: int, message: str) -> None:
    response = client.ask(infer("types", {"inputs": [in_region("IN_FP32", "FP32", [3], size, offset, region)]}))
    assert (response.status, response.error, response.headers["Content-Type"]) == (status, message, "application/json")


def test_one_source_only(client: Client) -> None:
    for more, named in (({"data": [1]}, "'data'"), ({}, "'binary_data_size'")):
        item = {**in_region("IN_FP32", "FP32", [1], 4), **more}
        if not more:
            item["parameters"]["binary_data_size"] = 4
        response = client.ask(infer("types", {"inputs": [item]}))
        assert response.status == 400
        assert f"But set {named} 'shared_memory_region'" in response.error


def test_the_model_s_check_comes_before_a_size_that_is_wrong(client: Client) -> None:
    response = client.ask(infer("types", {"inputs": [in_region("IN_FP64", "FP32", [3], 8)]}))
    assert response.error == UNKNOWN + "inference input 'IN_FP64' data-type is 'FP32', but model 'types' expects 'FP64'"


def test_an_object_that_shrinks(client: Client, memory: Object) -> None:
    os.truncate(memory.path, 130)
    response = client.ask(infer("types", {"inputs": [in_region("IN_FP32", "FP32", [3], 12)]}))
    assert response.status == 400
    assert response.error == (
        f"Invalid offset + byte size for shared memory region: 'r' (the object '{memory.key}' has only 130 bytes now, 12 are "
        "wanted from 128 on)"
    )


# --- outputs

X = tensor("IN_FP32", "FP32", [2], [1.5, 2])


def to_region(name: str = "OUT_FP32", size: Any = 64, offset: Any = None, region: Any = "r", **more: Any) -> dict[str, Any]:
    parameters = {"shared_memory_region": region, "shared_memory_byte_size": size, **more}
    if offset is not None:
        parameters["shared_memory_offset"] = offset
    return {"name": name, "parameters": parameters}


def test_an_output_goes_to_the_region(client: Client, memory: Object) -> None:
    for members, id in (({}, ""), ({"id": "i", "parameters": {"binary_data_output": True}}, '"id":"i",')):
        memory.put(128, b"\xff" * 64)
        response = client.ask(infer("types", {**members, "inputs": [X], "outputs": [to_region(size=8, offset=16)]}))
        assert response.body.decode() == (
            f'{{{id}"model_name":"types","model_version":"1","outputs":[{{"name":"OUT_FP32","datatype":"FP32","shape":[2]}}]}}'
        )
        assert response.names == ["Content-Type", "Content-Length"]
        assert memory.get(144, 8) == np.array([1.5, 2], np.float32).tobytes()
        assert memory.get(128, 16) == b"\xff" * 16
        assert memory.get(152, 8) == b"\xff" * 8


def test_outputs_of_all_kinds_in_one_response(client: Client, memory: Object) -> None:
    inputs = [X, tensor("IN_BYTES", "BYTES", [2], ["ab", "c"]), tensor("IN_INT8", "INT8", [1], [5]),
              tensor("IN_UINT16", "UINT16", [0], [])]  # fmt: skip
    outputs = [
        to_region("OUT_BYTES", 11),
        {"name": "OUT_FP32", "parameters": {"binary_data": True}},
        {"name": "OUT_INT8"},
        to_region("OUT_UINT16", 4, 32),
    ]
    response = client.ask(infer("types", {"inputs": inputs, "outputs": outputs}))
    length = int(response.headers["Inference-Header-Content-Length"])
    assert json.loads(response.body[:length])["outputs"] == [
        {"name": "OUT_FP32", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},
        {"name": "OUT_BYTES", "datatype": "BYTES", "shape": [2]},
        {"name": "OUT_INT8", "datatype": "INT8", "shape": [1], "data": [5]},
        {"name": "OUT_UINT16", "datatype": "UINT16", "shape": [0]},
    ]
    assert response.body[length:] == np.array([1.5, 2], np.float32).tobytes()
    assert memory.get(128, 11) == pack_bytes(np.array([b"ab", b"c"], object))


def test_from_region_to_region_and_compressed(client: Client, memory: Object) -> None:
    memory.put(128, np.array([1, 2], np.float16).tobytes())
    body = {"inputs": [in_region("IN_FP16", "FP16", [2], 4)], "outputs": [to_region("OUT_FP16", 4, 60)]}
    response = client.ask(infer("types", body, "Accept-Encoding: gzip"))
    assert (response.status, response.headers["Content-Encoding"]) == (200, "gzip")
    assert memory.get(188, 4) == np.array([1, 2], np.float16).tobytes()


def test_of_outputs_named_twice_the_first_counts(client: Client, memory: Object) -> None:
    body = {"inputs": [X], "outputs": [to_region(), {"name": "OUT_FP32"}]}
    assert "data" not in client.ask(infer("types", body)).json["outputs"][0]
    body["outputs"].reverse()
    assert client.ask(infer("types", body)).json["outputs"][0]["data"] == [1.5, 2.0]


@pytest.mark.parametrize(
    ("output", "status", "message"),
    [
        (to_region(region="s"), 404, "Unable to find shared memory region: 's'"),
        (to_region("NOPE", region="s"), 404, "Unable to find shared memory region: 's'"),
        (to_region("NOPE"), 400, "unexpected inference output 'NOPE' for model 'types'"),
        (to_region(offset=64), 400, "Invalid offset for shared memory region: 'r'"),
        (to_region(offset=8), 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (to_region(size=0), 400, "Invalid offset + byte size for shared memory region: 'r'"),
        (to_region(region=5), 400, f"Unable to parse 'shared_memory_region': {NON_STRING} (output 'OUT_FP32')"),
        (to_region(size="x"), 400, f"Unable to parse 'shared_memory_byte_size': {NON_UINT} (output 'OUT_FP32')"),
        (to_region(offset=-1), 400, f"Unable to parse 'shared_memory_offset': {NON_UINT} (output 'OUT_FP32')"),
        (to_region(classification=1), 400, "Output can't set both 'shared_memory_region' and 'classification'"),
        (to_region(classification=0), 400, "Output can't set both 'shared_memory_region' and 'classification'"),
        (to_region(binary_data=True), 400, "Output can't set both 'shared_memory_region' and 'binary_data'"),
        (
            to_region(binary_data=5),
            400,
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean (output 'OUT_FP32')",
        ),
    ],
)
def test_outputs_refused(client: Client, output: dict[str, Any], status: int, message: str) -> None:
    response = client.ask(infer("types", {"inputs": [X], "outputs": [output]}))
    assert (response.status, response.error, response.headers["Content-Type"]) == (status, message, "application/json")
    assert not client.kernel.requests


def test_a_span_that_is_too_small(client: Client, memory: Object) -> None:
    response = client.ask(infer("types", {"inputs": [X], "outputs": [to_region(size=4, binary_data=False)]}))
    assert (response.status, response.error, response.headers["Content-Type"]) == (
        500,
        "shared memory size specified with the request for output 'OUT_FP32' (4 bytes) should be at least 8 bytes to hold the "
        "results",
        "text/plain",
    )
    assert memory.get(128, 8) == bytes(8)
    body = {"inputs": [tensor("IN_BYTES", "BYTES", [2], ["ab", "c"])], "outputs": [to_region("OUT_BYTES", 10)]}
    assert "'OUT_BYTES' (10 bytes) should be at least 11 bytes" in client.ask(infer("types", body)).error


def test_regions_that_go_while_the_model_runs(client: Client, memory: Object) -> None:
    client.kernel.hold = True
    body = {"inputs": [X], "outputs": [to_region(size=8)]}
    client.send(infer("types", body))
    client.kernel.shared_memory.unregister("r")
    client.kernel.finish(client.kernel.held.pop())
    assert client.take().startswith(b"HTTP/1.1 200 OK\r\n")
    assert memory.get(128, 8) == np.array([1.5, 2], np.float32).tobytes()

    register(client, "r", {"key": memory.key, "byte_size": 64})
    client.send(infer("types", body))
    os.truncate(memory.path, 4)
    client.kernel.finish(client.kernel.held.pop())
    answer = client.take()
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"has only 4 bytes now, 8 are wanted from 0 on" in answer
    assert memory.path.stat().st_size == 4


def test_what_is_no_region_is_ignored(client: Client) -> None:
    output = {"name": "OUT_FP32", "parameters": {"shared_memory_byte_size": 8, "shared_memory_offset": "x"}}
    assert client.ask(infer("types", {"inputs": [X], "outputs": [output]})).json["outputs"][0]["data"] == [1.5, 2.0]

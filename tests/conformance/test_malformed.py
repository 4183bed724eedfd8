"""Messages that no client library would send: BC51, and what is malformed in BC59. Refused with a reason, never with 200 or
a crash, and the connection is as good as before.
"""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from .asks import Answered, Ask, Refused, Tensor
from .grpc_wire import GrpcWire, pb
from .http_wire import HttpWire

X = {"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
GOOD = Ask("batch8", (Tensor("X", "FP32", (1, 2), (1.0, 2.0)),))


def body(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**X, **changes}]}


EMPTY = "failed to parse the request JSON buffer: "

#: Name -> body, words that have to be in the message.
HTTP: dict[str, tuple[Any, tuple[str, ...]]] = {
    "cut-off JSON": (b'{"inputs":[{"name":"X"', (EMPTY,)),
    "no JSON": (b"nope", (EMPTY,)),
    "text behind the JSON": (b'{"inputs":[]} x', (EMPTY,)),
    "not UTF-8": (b'{"id":"\xff","inputs":[]}', (EMPTY,)),
    "nothing": (b"", ("batch8",)),
    "a list": ([], ("inputs",)),
    "an empty object": ({}, ("inputs", "attempt to access non-existing object member")),
    "inputs is an object": ({"inputs": {"name": "X"}}, ("inputs", "attempt to access JSON non-array as array")),
    "inputs is null": ({"inputs": None}, ("inputs",)),
    "an input is a number": ({"inputs": [5]}, ("inputs[0]", "5")),
    "no name": ({"inputs": [{"datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}, ("'name'", "non-existing")),
    "no datatype": ({"inputs": [{"name": "X", "shape": [1, 2], "data": [1, 2]}]}, ("'datatype'", "non-existing")),
    "no shape": ({"inputs": [{"name": "X", "datatype": "FP32", "data": [1, 2]}]}, ("'shape'", "non-existing")),
    "null in data": (body(data=[1, None]), ("'data'", "X")),
    "a string in data": (body(data=[1, "1"]), ("'data'", "X")),
    "a bool in data": (body(data=[1, True]), ("'data'", "X")),
    "data is an object": (body(data={"a": 1}), ("'data'", "X")),
    "data is ragged": (body(shape=[2, 2], data=[[1, 2], [3]]), ("'data'", "X")),
    "data is nested and too short": (body(shape=[2, 2], data=[[1, 2, 3]]), ("'data'", "X", "4", "3")),
    "a negative shape": (body(shape=[1, -2]), ("'shape'",)),
    "a shape with a float": (body(shape=[1, 2.0]), ("'shape'",)),
    "a shape with a string": (body(shape=["1", 2]), ("'shape'",)),
    "BC59: id is a number": ({**body(), "id": 7}, ("'id'", "non-string")),
    "BC59: id is null": ({**body(), "id": None}, ("'id'", "non-string")),
    "BC59: a parameter is an object": ({**body(), "parameters": {"a": {"z": 1}}}, ("'a'", "int", "bool", "string")),
    "BC59: a parameter is a list": ({**body(), "parameters": {"a": [1]}}, ("'a'", "int", "bool", "string")),
    "BC59: a parameter is null": ({**body(), "parameters": {"a": None}}, ("'a'", "int", "bool", "string")),
    "BC59: parameters is a list": ({**body(), "parameters": [1]}, ("param", "non-object")),
    "outputs is an object": ({**body(), "outputs": {}}, ("outputs", "non-array")),
    "an output without a name": ({**body(), "outputs": [{}]}, ("'name'",)),
    "classification is a string": (
        {**body(), "outputs": [{"name": "Y", "parameters": {"classification": "1"}}]},
        ("classification",),
    ),
}


@pytest.fixture
def http(ways: dict[str, Any]) -> HttpWire:
    return ways["http json"]


@pytest.fixture
def rpc(ways: dict[str, Any]) -> GrpcWire:
    return ways["grpc raw"]


@pytest.mark.parametrize("name", HTTP)
def test_over_http(name: str, http: HttpWire) -> None:
    document, words = HTTP[name]
    for _ in range(2):
        reply = http.request("POST", "/v2/models/batch8/infer", document)
        assert reply.status == 400, reply.body
        assert all(word in reply.json["error"] for word in words), reply.json
    assert isinstance(http.infer(GOOD), Answered)


@pytest.mark.parametrize(
    "path", ["repository/index", "trace/setting", "logging", "systemsharedmemory/region/r/register"]
)
@pytest.mark.parametrize("data", [b"{", b"[", b"\xff"])
def test_no_json_elsewhere(path: str, data: bytes, http: HttpWire) -> None:
    reply = http.request("POST", f"/v2/{path}", data)
    assert reply.status == 400 and reply.json["error"].startswith(EMPTY)


PLAIN = json.dumps(body()).encode()


@pytest.mark.parametrize(
    ("coding", "data", "status", "words"),
    [
        ("gzip", PLAIN, 400, "the compressed request can't be read"),
        ("deflate", PLAIN, 400, "the compressed request can't be read"),
        ("gzip", gzip.compress(PLAIN, mtime=0)[:-9], 400, "the compressed request can't be read"),
        ("br", PLAIN, 501, "Unsupported compression type"),
        ("gzip", gzip.compress(PLAIN, mtime=0), 200, ""),
        ("deflate", zlib.compress(PLAIN), 200, ""),
    ],
)
def test_bc51_encodings_over_http(coding: str, data: bytes, status: int, words: str, http: HttpWire) -> None:
    reply = http.request("POST", "/v2/models/batch8/infer", data, {"Content-Encoding": coding})
    assert reply.status == status, reply.body
    if words:
        assert words in reply.json["error"]


def test_nested_and_flat_data_are_the_same(http: HttpWire) -> None:
    """BC52."""
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
        reply = http.request("POST", "/v2/models/batch8/infer", body(shape=[2, 2], data=data))
        assert reply.status == 200 and reply.json["outputs"][0]["data"] == [1, 2, 3, 4]


def test_json_that_is_answered_is_json(http: HttpWire) -> None:
    """BC56: what is no UTF-8 can't be said in JSON, and is told so instead of breaking it."""
    data = b"\x02\0\0\0\xff\xfe"
    head = {"inputs": [{"name": "IN_BYTES", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}]}
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    reply = http.request("POST", "/v2/models/types/infer", text + data, headers)
    assert reply.status == 400
    assert "OUT_BYTES" in reply.json["error"] and "not UTF-8" in reply.json["error"]


# --- gRPC


def message() -> Any:
    made = pb.ModelInferRequest(model_name="batch8")
    made.inputs.add(name="X", datatype="FP32", shape=[1, 2]).contents.fp32_contents.extend([1, 2])
    return made


def changed(**contents: Any) -> Any:
    made = message()
    made.inputs[0].contents.Clear()
    for field, elements in contents.items():
        getattr(made.inputs[0].contents, f"{field}_contents").extend(elements)
    return made


def with_parameter(key: str) -> Any:
    made = message()
    made.parameters[key].SetInParent()
    return made


UNEXPECTED = "unexpected explicit tensor data for input tensor 'X' for model 'batch8'"

#: Name -> message, words.
GRPC: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no message": (b"\xff\xff\xff", ("Unable to parse request", "ModelInferRequest")),
    "cut off": (message().SerializeToString()[:-3], ("Unable to parse request",)),
    "a name that is no UTF-8": (b"\x0a\x02\xff\xfe", ("Unable to parse request",)),
    "nothing": (b"", ("Request for unknown model: ''",)),
    "a string in FP32 data": (changed(bytes=[b"1"]), (UNEXPECTED, "'BYTES'", "'FP32'")),
    "a bool in FP32 data": (changed(bool=[True, True]), (UNEXPECTED, "'BOOL'", "'FP32'")),
    "two kinds of data": (
        changed(fp32=[1, 2], int=[1]),
        (UNEXPECTED, "'INT32'", "'FP32'"),
    ),
    "the right kind of data before another": (
        changed(fp32=[1, 2], fp64=[1]),
        (UNEXPECTED, "binary data was already supplied."),
    ),
    "contents with nothing in them": (changed(), ("'X'",)),
    "BC59: a parameter that is nothing": (with_parameter("a"), ("'a'", "int64_param", "bool_param", "string_param")),
    "BC59: reserved and nothing": (with_parameter("triton_x"), ("triton_",)),
    "sequence_id that is nothing": (with_parameter("sequence_id"), ("'sequence_id'", "int64_param or string_param")),
}


@pytest.mark.parametrize("name", GRPC)
def test_over_grpc(name: str, rpc: GrpcWire) -> None:
    given, words = GRPC[name]
    for _ in range(2):
        refused = rpc.call("ModelInfer", given)
        assert isinstance(refused, Refused)
        assert refused.code == ("NOT_FOUND" if name == "nothing" else "INVALID_ARG")
        assert all(word in refused.message for word in words), refused
    assert isinstance(rpc.infer(GOOD), Answered)


@pytest.mark.parametrize("name", GRPC)
def test_on_a_stream(name: str, rpc: GrpcWire) -> None:
    given, words = GRPC[name]
    data = given if isinstance(given, bytes) else given.SerializeToString()
    bad, good = rpc.stream_of([data, rpc.message(GOOD).SerializeToString()])
    assert isinstance(bad, Refused) and all(word in bad.message for word in words), bad
    assert isinstance(good, Answered)


@pytest.mark.parametrize(
    "name",
    (
        "ServerReady ModelReady ModelConfig RepositoryIndex RepositoryModelLoad SystemSharedMemoryRegister TraceSetting "
        "LogSettings"
    ).split(),
)
def test_no_message_elsewhere(name: str, rpc: GrpcWire) -> None:
    refused = rpc.call(name, b"\xff\xff\xff")
    assert isinstance(refused, Refused) and refused.code == "INVALID_ARG"
    assert refused.message.startswith(f"Unable to parse request as inference.{name}Request")


def test_fields_that_are_not_known_are_ignored(rpc: GrpcWire) -> None:
    response = rpc.call("ModelInfer", message().SerializeToString() + b"\xf8\x7f\x01")
    assert isinstance(rpc.answered(response), Answered)


@pytest.mark.parametrize("rest", ["Nope", "modelinfer", "ModelInfer/"])
def test_no_such_method(rest: str, rpc: GrpcWire) -> None:
    import grpc

    with pytest.raises(grpc.RpcError) as caught:
        rpc.channel.unary_unary(f"/inference.GRPCInferenceService/{rest}")(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]

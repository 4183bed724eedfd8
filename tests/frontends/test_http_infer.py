"""Inference over HTTP: requests as bytes, answers as bytes (http_protocol 3 and 4, reported cases "wire")."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

import numpy as np
import pytest
from frontends.fakes import Client, FakeKernel, add_sub, binary, infer, parse, request, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import Code, InferenceRequest, InferenceResponse, ServingError, Tensor
from kernel_http.inference.reader import Reader
from kernel_http.inference.recipe import Recipe
from kernel_http.json.large import LARGE

FP32 = [tensor("IN_FP32", "FP32", [1], [1.5])]


@pytest.fixture
def client() -> Client:
    return Client()


def one(datatype: str, data: Any, shape: list[int] | None = None) -> dict[str, Any]:
    return {"inputs": [tensor(f"IN_{datatype}", datatype, [len(data)] if shape is None else shape, data)]}


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


# --- answers, to the byte


@pytest.mark.parametrize(
    ("datatype", "data", "shown"),
    [
        ("BOOL", [True, False], "[true,false]"),
        ("UINT8", [0, 255], "[0,255]"),
        ("INT8", [-128, 127], "[-128,127]"),
        ("INT64", [2**63 - 1, -(2**63)], "[9223372036854775807,-9223372036854775808]"),
        ("UINT64", [2**64 - 1, 2**53 + 1], "[18446744073709551615,9007199254740993]"),
        ("FP32", [1, 2.5, 0.1, 1e-10, 16777217], "[1.0,2.5,0.10000000149011612,1.000000013351432e-10,16777216.0]"),
        ("FP64", [1, 0.1, -0.0], "[1.0,0.1,-0.0]"),
        ("BYTES", ["a", "é", "\0x", "", "😀\n"], '["a","é","\\u0000x","","😀\\n"]'),
    ],
)
def test_json_round_trip(client: Client, datatype: str, data: Any, shown: str) -> None:
    response = client.ask(infer("types", {"id": "abc", **one(datatype, data)}))
    assert response.body.decode() == (
        f'{{"id":"abc","model_name":"types","model_version":"1","outputs":[{{"name":"OUT_{datatype}",'
        f'"datatype":"{datatype}","shape":[{len(data)}],"data":{shown}}}]}}'
    )
    assert response.status == 200 and response.names == ["Content-Type", "Content-Length"]
    assert response.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], [1, 2, 3, 4], [[[1], [2]], [[3], [4]]]])
def test_nested_and_flat_data_are_the_same(client: Client, data: Any) -> None:
    response = client.ask(infer("batch8", {"inputs": [tensor("X", "FP32", [2, 2], data)]}))
    assert response.json["outputs"][0] == {
        "name": "Y",
        "datatype": "FP32",
        "shape": [2, 2],
        "data": [1.0, 2.0, 3.0, 4.0],
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([[1, 2, 3], [4]], "input 'X' is ragged at nesting level 1: expected 3 elements as in the first list, got 1 elements"),
        ([[1, 2], [3, 4], []], "input 'X' is ragged at nesting level 1: expected 2 elements as in the first list, got 0"),
        ([1, [2, 3], 4], "input 'X' mixes lists and values at nesting level 1"),
        ([[[1], [2]], [[3, 4]]], "input 'X' is ragged at nesting level 1: expected shape [2,1] as in the first list, got sh"),
        ([[1, 2], [3]], "input 'X' is ragged at nesting level 1"),
        ([[1, 2, 3]], "input 'X' has shape [2,2]: expected 4 elements, got 3"),
    ],
)
def test_ragged_data_is_refused_with_the_counts(client: Client, data: Any, words: str) -> None:
    """BC52."""
    response = client.ask(infer("batch8", {"inputs": [tensor("X", "FP32", [2, 2], data)]}))
    assert response.status == 400
    assert response.error.startswith("Unable to parse 'data': Shape does not match true shape of 'data' field")
    assert words in response.error


def test_an_empty_body_is_no_empty_tensor(client: Client) -> None:
    """BC51: the reference answers 200 with an empty tensor."""
    response = client.ask(request("POST", "/v2/models/multi/infer"))
    assert response.status == 400
    assert response.error.startswith("failed to parse the request JSON buffer: The document is empty. at 0")


def test_binary_both_ways_and_again(client: Client) -> None:
    message = add_sub([1, 2, 3, 4], [1, 1, 1, 1])
    head = (
        b'{"model_name":"add_sub","model_version":"1","outputs":['
        b'{"name":"OUTPUT0","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}},'
        b'{"name":"OUTPUT1","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}]}'
    )
    expected = (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(head), len(head) + 32)
    )
    expected += head + floats(2, 3, 4, 5) + floats(0, 1, 2, 3)
    for _ in range(3):  # read, then by its template, then by its bytes
        client.send(message)
        assert client.take() == expected
    other = client.ask(add_sub([0, 0, 0, 0], [5, 6, 7, 8]))
    assert other.body.endswith(floats(5, 6, 7, 8) + floats(-5, -6, -7, -8))


def test_mixed_formats(client: Client) -> None:
    response = client.ask(
        binary(
            "types",
            [
                tensor("IN_FP32", "FP32", [1], binary_data_size=4),
                tensor("IN_INT8", "INT8", [2], [1, 2]),
                tensor("IN_BYTES", "BYTES", [2], binary_data_size=9),
            ],
            floats(1) + b"\1\0\0\0a\0\0\0\0",
            outputs=[
                {"name": "OUT_INT8"},
                {"name": "OUT_FP32", "parameters": {"binary_data": True}},
                {"name": "OUT_BYTES", "parameters": {"binary_data": True}},
            ],
        )
    )
    assert response.headers["Content-Type"] == "application/octet-stream"
    size = int(response.headers["Inference-Header-Content-Length"])
    assert [(o["name"], o.get("data"), o.get("parameters")) for o in json.loads(response.body[:size])["outputs"]] == [
        ("OUT_FP32", None, {"binary_data_size": 4}),
        ("OUT_INT8", [1, 2], None),
        ("OUT_BYTES", None, {"binary_data_size": 9}),
    ]
    assert response.body[size:] == floats(1) + b"\1\0\0\0a\0\0\0\0"


def test_listed_outputs_are_json_even_with_binary_data_output(client: Client) -> None:
    body = {"inputs": FP32, "parameters": {"binary_data_output": True}, "outputs": [{"name": "OUT_FP32"}]}
    assert client.ask(infer("types", body)).json["outputs"][0]["data"] == [1.5]


def test_empty_binary_output_is_json(client: Client) -> None:
    response = client.ask(
        binary(
            "types", [tensor("IN_FP32", "FP32", [0], binary_data_size=0)], b"", parameters={"binary_data_output": True}
        )
    )
    assert response.headers["Content-Type"] == "application/json"
    assert response.json["outputs"] == [
        {"name": "OUT_FP32", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
    ]


def test_shape_with_a_zero_ignores_the_data(client: Client) -> None:
    assert client.ask(infer("types", one("FP32", 5, [0]))).json["outputs"][0]["data"] == []


def test_fp16_is_binary_only(client: Client) -> None:
    halves = [tensor("IN_FP16", "FP16", [2], binary_data_size=4)]
    response = client.ask(binary("types", halves, b"\0<\0@", parameters={"binary_data_output": True}))
    assert response.body.endswith(b"\0<\0@")
    response = client.ask(binary("types", halves, b"\0<\0@"))
    assert (response.status, response.headers["Content-Type"]) == (400, "text/plain")
    assert response.error == (
        "sending FP16 data via JSON is not supported. Please use the binary data format for output"
    )


def test_bytes_travel_exactly(client: Client) -> None:
    element = b"\xff\xfe\0\0"
    message = binary(
        "types",
        [tensor("IN_BYTES", "BYTES", [1], binary_data_size=8)],
        struct.pack("<I", 4) + element,
        parameters={"binary_data_output": True},
    )
    for _ in range(2):
        assert client.ask(message).body.endswith(struct.pack("<I", 4) + element)


def test_bytes_that_are_no_text_never_break_a_json_body(client: Client) -> None:
    message = binary("types", [tensor("IN_BYTES", "BYTES", [1], binary_data_size=6)], b"\2\0\0\0\xff\xfe")
    response = client.ask(message)
    assert response.status == 400
    assert response.error == (
        "output 'OUT_BYTES' has an element that is not UTF-8, which JSON can't represent (element 0). "
        "Please use the binary data format for output"
    )


def test_what_is_no_number_is_written_as_the_reference_writes_it(client: Client) -> None:
    values = (float("nan"), 1.0, float("-inf"), float("inf"))
    message = binary("types", [tensor("IN_FP32", "FP32", [4], binary_data_size=16)], floats(*values))
    response = client.ask(message)
    assert response.status == 200
    assert b'"data":[NaN,1.0,-Infinity,Infinity]' in response.body


def test_nan_in_a_request_is_taken(client: Client) -> None:
    body = b'{"inputs":[{"name":"IN_FP32","datatype":"FP32","shape":[2],"data":[NaN,-Infinity]}],' \
           b'"parameters":{"binary_data_output":true}}'  # fmt: skip
    assert client.ask(infer("types", body)).body.endswith(floats(float("nan"), float("-inf")))


def test_response_id_and_parameters(client: Client) -> None:
    def with_parameters(response: InferenceResponse) -> InferenceResponse:
        response.parameters = {"a": 1, "b": True, "c": "x"}
        return response

    client.kernel.change = with_parameters
    response = client.ask(infer("types", {"id": "7", "inputs": FP32}))
    assert list(response.json) == ["id", "model_name", "model_version", "parameters", "outputs"]
    assert response.json["parameters"] == {"a": 1, "b": True, "c": "x"}


def test_large_and_strided_outputs(client: Client) -> None:
    def strided(response: InferenceResponse) -> InferenceResponse:
        array = np.arange(2 * 40_000, dtype=np.float32).reshape(40_000, 2)
        return InferenceResponse([Tensor("OUT_FP32", "FP32", array[:, 0])])

    client.kernel.change = strided
    response = client.ask(infer("types", {"inputs": FP32, "parameters": {"binary_data_output": True}}))
    assert response.body.endswith(np.arange(0, 80_000, 2, dtype=np.float32).tobytes())


def test_an_array_that_is_not_of_its_datatype_never_breaks_the_framing(client: Client) -> None:
    message = infer("types", {"inputs": FP32, "parameters": {"binary_data_output": True}})
    assert client.ask(message).status == 200
    client.kernel.change = lambda response: InferenceResponse([Tensor("OUT_FP32", "FP32", np.zeros(1, np.float64))])
    response = client.ask(message)
    assert response.status == 500 and "can't be encoded" in response.error


# --- what the model gets


def test_inputs_are_writable_and_owned(client: Client) -> None:
    client.kernel.hold = True
    client.send(add_sub([1, 2, 3, 4], [0, 0, 0, 0]) * 2 + infer("types", {"inputs": FP32}))
    first, second, third = client.kernel.held
    first.inputs["INPUT0"].array[:] = 9
    third.inputs["IN_FP32"].array[:] = 1
    assert second.inputs["INPUT0"].array.tolist() == [1, 2, 3, 4]
    assert all(t.array.flags.writeable and t.array.flags.aligned for r in client.kernel.held for t in r.inputs.values())


def test_large_binary_input_is_a_view_of_what_was_received(client: Client) -> None:
    client.kernel.hold = True
    values = np.arange(100_000, dtype=np.float32)
    message = binary("types", [tensor("IN_FP32", "FP32", [100_000], binary_data_size=400_000)], values.tobytes())
    client.send(message)
    array = client.kernel.held[0].inputs["IN_FP32"].array
    assert np.array_equal(array, values)
    assert array.flags.writeable and array.flags.aligned and not array.flags.owndata


def test_unaligned_tensors_are_moved(client: Client) -> None:
    client.kernel.hold = True
    inputs = [tensor("IN_UINT8", "UINT8", [1], binary_data_size=1), tensor("IN_FP32", "FP32", [1], binary_data_size=4)]
    for _ in range(2):
        client.send(binary("types", inputs, b"\7" + floats(2.5)))
        array = client.kernel.held.pop().inputs["IN_FP32"].array
        assert array.tolist() == [2.5] and array.flags.aligned and array.flags.writeable


def test_parameters_reach_the_model_typed_and_unshared(client: Client) -> None:
    client.kernel.hold = True
    members = {
        "parameters": {
            "i": 1, "f": 1.5, "s": "x", "b": True, "big": 2**64 - 1, "priority": 3, "timeout": 50,
            "sequence_id": 7, "sequence_start": True, "sequence_end": True, "binary_data_output": True,
        }
    }  # fmt: skip
    client.send(add_sub([1] * 4, [1] * 4, **members) * 3)
    for held in client.kernel.held:
        assert held.parameters == {"i": 1, "f": 1.5, "s": "x", "b": True, "big": float(2**64 - 1)}
        assert held.parameters["b"] is True and type(held.parameters["i"]) is int
        assert (held.priority, held.timeout_us, held.correlation_id, held.flags) == (3, 50, 7, 3)
        held.parameters["i"] = "changed"


FIELDS = {
    "parameters": st.dictionaries(st.sampled_from(["a", "b", "X-User"]), st.sampled_from([1, -1.5, True, "s"]), max_size=3),
    "known": st.fixed_dictionaries(
        {}, optional={"priority": st.integers(0, 3), "timeout": st.just(50), "sequence_id": st.sampled_from([7, "s"]),
                      "sequence_start": st.booleans(), "sequence_end": st.booleans(), "binary_data_output": st.booleans()}
    ),
    "outputs": st.sampled_from([None, [], [{"name": "OUT_FP32", "parameters": {"binary_data": True}}]]),
    "headers": st.lists(st.sampled_from(["X-User: me", "x-b: 2", "Other: no"]), unique=True),
    "strings": st.booleans(),
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries(FIELDS))
def test_all_ways_to_read_a_request_make_the_same(fields: dict[str, Any]) -> None:
    """`Reader` ~ `Recipe` by the JSON part ~ `Layout` by the bytes; and `Reader` on another thread, and of a compressed body."""
    inputs = [tensor("IN_FP32", "FP32", [2], binary_data_size=8)]
    tail = floats(1, 2)
    if fields["strings"]:
        inputs.append(tensor("IN_BYTES", "BYTES", [1], binary_data_size=5))
        tail += b"\1\0\0\0a"
    members = {"inputs": inputs, "parameters": {**fields["parameters"], **fields["known"]}}
    if fields["outputs"] is not None:
        members["outputs"] = fields["outputs"]
    json_part = json.dumps(members).encode()

    def message(json_part: bytes) -> bytes:
        return infer("types", json_part + tail, f"Inference-Header-Content-Length: {len(json_part)}", *fields["headers"])

    kernel = FakeKernel()
    one = Client(kernel, forward_pattern="^x-")
    with pytest.MonkeyPatch.context() as patch:
        ways: list[str] = []
        launch, repeat, read = Recipe.launch, Recipe.repeat, Reader.read
        patch.setattr(Recipe, "launch", lambda *a: ways.append("launch") or launch(*a))
        patch.setattr(Recipe, "repeat", lambda *a: ways.append("repeat") or repeat(*a))
        patch.setattr(Reader, "read", lambda *a: ways.append("aside" if not a[0].on_loop else "read") or read(*a))
        answers = [one.ask(message(json_part)).body]
        answers.append(Client(server=one.server, kernel=kernel).ask(message(json_part)).body)
        answers.append(one.ask(message(json_part)).body)
        answers.append(one.ask(message(json_part + b" " * LARGE)).body)
        packed = gzip.compress(json_part + tail)
        announced = f"Inference-Header-Content-Length: {len(json_part)}"
        answers.append(one.ask(infer("types", packed, "Content-Encoding: gzip", announced, *fields["headers"])).body)
    assert ways == ["read", "launch", "repeat", "launch", "aside", "read"]
    assert len(set(answers)) == 1

    def meant(request: InferenceRequest) -> Any:
        arrays = [(name, one.datatype, one.array.tolist(), one.array.flags.writeable) for name, one in request.inputs.items()]
        said = (request.model_name, request.model_version, request.id, request.parameters, request.priority, request.timeout_us)
        return arrays, said, request.correlation_id, request.flags, request.model, request.batch_size, request.wanted

    first, *others = map(meant, kernel.requests)
    assert others == [first] * 4
    expected = {**fields["parameters"], **{text.split(": ")[0]: text.split(": ")[1] for text in fields["headers"]}}
    expected.pop("Other", None)
    assert first[1][3] == (expected or None)
    given_away = [request.parameters for request in kernel.requests if request.parameters is not None]
    assert len({id(parameters) for parameters in given_away}) == len(given_away)  # a model may change its own


def test_a_sequence_id_without_end_is_refused(client: Client) -> None:
    """It would be kept as long as the sequence, which may say nothing more."""
    response = client.ask(infer("types", {"inputs": FP32, "parameters": {"sequence_id": "x" * 4097}}))
    assert (response.status, response.error) == (400, "'sequence_id' has 4097 characters, more than the 4096 that are taken")
    assert client.ask(infer("types", {"inputs": FP32, "parameters": {"sequence_id": "x" * 4096}})).status == 200


def test_string_sequence_id(client: Client) -> None:
    client.ask(infer("types", {"inputs": FP32, "parameters": {"sequence_id": "abc"}}))
    assert client.kernel.requests[0].correlation_id == "abc"


def test_requested_outputs(client: Client) -> None:
    client.ask(infer("types", {"inputs": FP32, "outputs": [{"name": "OUT_FP32"}, {"name": "OUT_FP32"}]}))
    client.ask(infer("types", {"inputs": FP32, "outputs": []}))
    assert client.kernel.requests[0].wanted == {"OUT_FP32"}
    assert client.kernel.requests[1].wanted == client.kernel.model("types").output_names
    assert client.ask(infer("types", {"inputs": FP32, "outputs": [{"name": "OUT_INT8"}]})).json["outputs"] == []


def test_raw_binary_requests(client: Client) -> None:
    raw = "Inference-Header-Content-Length: 0"
    response = client.ask(infer("multi", floats(1, 2), raw))
    assert response.headers["Content-Type"] == "application/octet-stream" and response.body.endswith(floats(1, 2))
    client.ask(infer("batch8", floats(1, 2), raw))
    assert client.kernel.requests[-1].inputs["X"].shape == (1, 2)
    client.ask(infer("text", b"hello", raw))
    assert client.kernel.requests[-1].inputs["X"].array.tolist() == [b"hello"]
    assert client.ask(infer("multi", floats(1), raw)).error == (
        "[request id: <id_unknown>] input byte size mismatch for input 'raw_input' for model 'multi'. Expected 8, got 4"
    )


def test_a_reload_is_seen_by_requests_that_repeat(client: Client) -> None:
    message = add_sub([1] * 4, [1] * 4)
    client.send(message * 2)
    old = client.kernel.served["add_sub"][1]
    new = client.kernel.add(old.config)
    client.send(message)
    assert [request.model for request in client.kernel.requests] == [old, old, new]


def test_an_unloaded_model_is_gone_for_requests_that_repeat(client: Client) -> None:
    message = add_sub([1] * 4, [1] * 4)
    client.ask(message)
    del client.kernel.served["add_sub"]
    response = client.ask(message)
    assert response.status == 404 and response.error == "Request for unknown model: 'add_sub' is not found"


def test_unique_ids_and_parts_fill_no_memory(client: Client) -> None:
    for number in range(600):
        client.send(add_sub([1] * 4, [1] * 4, id=str(number)))
        client.send(add_sub([1] * 4, [1] * 4, parameters={"n": number}))
        client.send(request("GET", "/v2/health/live", b"", f"X-Trace: {number}" * 3) * 2)
    memory = next(iter(client.kernel.model("add_sub").attachments.values()))
    assert 0 < len(memory.recipes) <= 256
    assert len(client.server.heads) <= 1024


def test_the_same_head_with_another_tail_is_checked_anew(client: Client) -> None:
    inputs = [tensor("IN_FP32", "FP32", [1], binary_data_size=4)]
    client.ask(binary("types", inputs, floats(1)))
    assert client.ask(binary("types", inputs, floats(1, 2))).error == (
        "unexpected additional input data for model 'types'"
    )
    assert client.ask(binary("types", inputs, floats(1)[:3])).error == (
        "unexpected size for input 'IN_FP32', expecting 1 additional bytes for model 'types'"
    )


def test_bytes_are_counted_in_requests_that_repeat(client: Client) -> None:
    inputs = [tensor("IN_BYTES", "BYTES", [2], binary_data_size=10)]
    assert client.ask(binary("types", inputs, b"\1\0\0\0a\1\0\0\0b")).status == 200
    assert client.ask(binary("types", inputs, b"\6\0\0\0abcdef")).error == (
        "[request id: <id_unknown>] expected 2 string elements for inference input 'IN_BYTES' for model 'types', got 1"
    )
    assert client.ask(binary("types", inputs, b"\1\0\0\0a\1\0\0\0b")).status == 200


def test_forwarded_headers() -> None:
    client = Client(forward_pattern="x-.*")
    client.send(infer("types", {"inputs": FP32, "parameters": {"p": 1}}, "X-User: me", "Other: no"))
    assert client.kernel.requests[0].parameters == {"p": 1, "X-User": "me"}
    message = binary("types", [tensor("IN_FP32", "FP32", [1], binary_data_size=4)], floats(1), "X-User: you")
    client.send(message * 2)
    assert [request.parameters for request in client.kernel.requests[1:]] == [{"X-User": "you"}] * 2
    response = Client(forward_pattern="(?-i)pri").ask(infer("types", {"inputs": FP32}, "priority: 5"))
    assert response.error == "Header 'priority' is reserved for Triton usage and cannot be forwarded."
    assert Client(forward_pattern="(?-i)x-").ask(infer("types", {"inputs": FP32}, "X-User: me")).status == 200
    client = Client()
    client.send(infer("types", {"inputs": FP32}, "X-User: me"))
    assert client.kernel.requests[0].parameters is None


# --- refusals


def changed(**members: Any) -> dict[str, Any]:
    return {"inputs": [{**FP32[0], **members}]}


def without(name: str) -> dict[str, Any]:
    return {"inputs": [{key: value for key, value in FP32[0].items() if key != name}]}


SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
NON_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
UNKNOWN = "[request id: <id_unknown>] "
JSON = "failed to parse the request JSON buffer: "


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"not json", JSON + "Invalid value. at 1"),
        (b"{", JSON + "Missing a name for object member. at 1"),
        (b'{"inputs":[],}', JSON + "Missing a name for object member. at 13"),
        (b'{"inputs":[', JSON + "Invalid value. at 11"),
        (b'{"inputs":[]', JSON + "Missing a comma or '}' after an object member. at 12"),
        (b"[1 2]", JSON + "Missing a comma or ']' after an array element. at 3"),
        (b'{"a" 1}', JSON + "Missing a colon after a name of object member. at 5"),
        (b'{"a":tru}', JSON + "Invalid value. at 8"),
        (b'{"a":-}', JSON + "Invalid value. at 6"),
        (b'{"a":01}', JSON + "Missing a comma or '}' after an object member. at 6"),
        (b'{"a":1.}', JSON + "Miss fraction part in number. at 7"),
        (b'{"a":1e}', JSON + "Miss exponent in number. at 7"),
        (b'{"i', JSON + "Missing a closing quotation mark in string. at 3"),
        (b'{"a":"\\x"}', JSON + "Invalid escape character in string. at 6"),
        (b'{"a":"\\u12"}', JSON + "Incorrect hex digit after \\u escape in string. at 6"),
        (b'{"a":"\x01"}', JSON + "Invalid escape character in string. at 6"),
        (b'{"a":"\\ud800"}', JSON + "The surrogate pair in string is invalid. at 6"),
        (b'{"a":1e999}', JSON + "Number too big to be stored in double. at 5"),
        (b'{"inputs":[]} x', JSON + "The document root must not be followed by other values. at 14"),
        (b"   ", JSON + "The document is empty. at 3"),
        (b'{"a":"\xff"}', JSON + "The string is not valid UTF-8. at 6"),
        (b"[" * 5000, "JSON nesting depth exceeds maximum allowed limit (100)"),
        (b"[]", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": 5}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": {}}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": [{}]}, SOURCES + "no field is set (inputs[0])"),
        ({"id": 5, "inputs": 5}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"parameters": 5}, "failed to get request params.: attempt to get members for non-object"),
        (
            {"parameters": {"a": None}},
            "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {"parameters": {"a": {"z": 1}}},
            "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {"parameters": {"triton_x": 1}},
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            {"parameters": {"timeout": -1}},
            "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"parameters": {"priority": 1.5}},
            "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"parameters": {"sequence_id": -1}},
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
        ),
        (
            {"parameters": {"sequence_start": 1}},
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
        ),
        (
            {"parameters": {"binary_data_output": 1}},
            "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean",
        ),
        ({"inputs": [], "outputs": 5}, "Unable to parse 'outputs': attempt to access JSON non-array as array"),
        (
            {"inputs": [], "outputs": [{}]},
            "Unable to parse 'name': attempt to access non-existing object member 'name' (outputs[0])",
        ),
        (
            {"inputs": [], "outputs": [{"name": "OUT_FP32"}, None]},
            "Unable to parse 'name': attempt to access non-existing object member 'name' (outputs[1])",
        ),
        ({"inputs": [None]}, SOURCES + "no field is set (inputs[0] is no object but null)"),
        ({"inputs": [*FP32, 5]}, SOURCES + "no field is set (inputs[1] is no object but 5)"),
        (
            {"inputs": [["x" * 50]]},
            SOURCES + f'no field is set (inputs[0] is no object but ["{"x" * 38}...)',
        ),
        (
            {"inputs": [], "outputs": [{"name": "OUT_FP32", "parameters": {"binary_data": 1}}]},
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean (output 'OUT_FP32')",
        ),
        (
            {"inputs": [], "outputs": [{"name": "OUT_FP32", "parameters": {"classification": "a"}}]},
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer "
            "(output 'OUT_FP32')",
        ),
        ({"inputs": FP32, "outputs": [{"name": "NOPE"}]}, "unexpected inference output 'NOPE' for model 'types'"),
        (changed(name="NOPE"), "unexpected inference input 'NOPE' for model 'types'"),
        (changed(name=5), "Unable to parse 'name': attempt to access JSON non-string as string (inputs[0])"),
        (
            without("datatype"),
            "Unable to parse 'datatype': attempt to access non-existing object member 'datatype' (input 'IN_FP32')",
        ),
        (
            without("shape"),
            "Unable to parse 'shape': attempt to access non-existing object member 'shape' (input 'IN_FP32')",
        ),
        (without("data"), SOURCES + "no field is set (input 'IN_FP32')"),
        (changed(parameters={"binary_data_size": 4}), SOURCES + "set 'data' 'binary_data_size' (input 'IN_FP32')"),
        (changed(datatype="FOO"), "invalid datatype for input IN_FP32 ('FOO')"),
        (
            changed(datatype="INT64", data=[1]),
            UNKNOWN + "inference input 'IN_FP32' data-type is 'INT64', but model 'types' expects 'FP32'",
        ),
        (changed(shape=5), "Unable to parse 'shape': attempt to access JSON non-array as array (input 'IN_FP32')"),
        (
            changed(shape=[-1]),
            f"Unable to parse 'shape': {NON_UINT} (input 'IN_FP32')",
        ),
        (
            changed(shape=[1.0]),
            f"Unable to parse 'shape': {NON_UINT} (input 'IN_FP32')",
        ),
        (
            changed(shape=[2**64]),
            f"Unable to parse 'shape': {NON_UINT} (input 'IN_FP32')",
        ),
        (
            changed(shape=[1, 1]),
            UNKNOWN + "unexpected shape for input 'IN_FP32' for model 'types'. Expected [-1], got [1,1]. ",
        ),
        (
            changed(shape=[]),
            UNKNOWN + "unexpected shape for input 'IN_FP32' for model 'types'. Expected [-1], got []. ",
        ),
        (
            changed(shape=[3], data=[1, 2]),
            "Unable to parse 'data': Shape does not match true shape of 'data' field "
            "(input 'IN_FP32' has shape [3]: expected 3 elements, got 2)",
        ),
        (
            changed(shape=[2, 2], data=[[1, 2], [3]]),
            "Unable to parse 'data': Shape does not match true shape of 'data' field "
            "(input 'IN_FP32' is ragged at nesting level 1: expected 2 elements as in the first list, "
            "got 1 elements in list 1)",
        ),
        (
            changed(shape=[2**62, 4]),
            "Unable to parse 'data': Shape does not match true shape of 'data' field "
            "(input 'IN_FP32' has shape [4611686018427387904,4]: expected 18446744073709551616 elements, got 1)",
        ),
        (changed(data=5), "Unable to parse 'data': attempt to access JSON non-array as array (input 'IN_FP32')"),
        (changed(data=None), "Unable to parse 'data': attempt to access JSON non-array as array (input 'IN_FP32')"),
        (
            changed(data=[None]),
            "Unable to parse 'data': attempt to access JSON non-number as double (input 'IN_FP32', element 0 is null)",
        ),
        (
            changed(data=["1"]),
            "Unable to parse 'data': attempt to access JSON non-number as double (input 'IN_FP32', element 0 is \"1\")",
        ),
        (
            changed(data=[True]),
            "Unable to parse 'data': attempt to access JSON non-number as double (input 'IN_FP32', element 0 is true)",
        ),
        (changed(data=eval("[" * 100 + "1" + "]" * 100)), "JSON nesting depth exceeds maximum allowed limit (100)"),
        (
            one("BOOL", [True, 1]),
            "Unable to parse 'data': attempt to access JSON non-boolean as boolean (input 'IN_BOOL', element 1 is 1)",
        ),
        (
            one("INT32", [1.0]),
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer "
            "(input 'IN_INT32', element 0 is 1.0)",
        ),
        (
            one("INT32", [True]),
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer "
            "(input 'IN_INT32', element 0 is true)",
        ),
        (
            one("UINT8", [1, 256]),
            "Unable to parse 'data': value out of range for UINT8 (input "
            "'IN_UINT8', element 1 is 256; UINT8 holds 0 to 255)",
        ),
        (
            one("INT8", [-129]),
            "Unable to parse 'data': value out of range for INT8 (input 'IN_INT8', "
            "element 0 is -129; INT8 holds -128 to 127)",
        ),
        (
            one("UINT8", [-1]),
            "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer "
            "(input 'IN_UINT8', element 0 is -1; UINT8 holds 0 to 255)",
        ),
        (
            one("INT64", [2**63]),
            "Unable to parse 'data': value out of range for INT64 (input 'IN_INT64', element 0 is 9223372036854775808; "
            "INT64 holds -9223372036854775808 to 9223372036854775807)",
        ),
        (
            one("FP16", [1]),
            "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN_FP16",
        ),
        (
            one("BYTES", [5]),
            "Unable to parse JSON bytes array: attempt to access JSON non-string "
            "as string (input 'IN_BYTES', element 0 is 5)",
        ),
        (
            one("BYTES", ["a", "b"], [3]),
            UNKNOWN + "expected 3 string elements for inference input 'IN_BYTES' for model 'types', got 2",
        ),
        (
            one("BYTES", ["a", "b", "c", "d", "e"], [3]),
            UNKNOWN
            + "unexpected number of string elements 4 for inference input 'IN_BYTES' for model 'types', expecting 3",
        ),
        ({"inputs": FP32 * 2}, UNKNOWN + "input 'IN_FP32' already exists in request"),
    ],
)
def test_refused(client: Client, body: Any, message: str) -> None:
    response = client.ask(infer("types", body))
    assert response.error == message
    assert (response.status, response.headers["Content-Type"]) == (400, "application/json")
    assert not client.kernel.requests
    assert client.ask(infer("types", {"inputs": FP32})).status == 200  # the connection goes on


@pytest.mark.parametrize(
    ("inputs", "tail", "message"),
    [
        ([4], floats(1, 2)[:6], "unexpected size for input 'IN_FP32', expecting 10 additional bytes for model 'types'"),
        ([1], floats(1, 2), "unexpected additional input data for model 'types'"),
        (
            tensor("IN_FP32", "FP32", [3], binary_data_size=16),
            floats(1, 2, 3, 4),
            "[request id: q] input byte size mismatch for input 'IN_FP32' for model 'types'. Expected 12, got 16",
        ),
        (
            tensor("IN_FP32", "FP32", [2**62, 2**62], binary_data_size=4),
            floats(1),
            f"[request id: q] input byte size mismatch for input 'IN_FP32' for model 'types'. Expected {2**126}, got 4",
        ),
        (
            tensor("IN_FP32", "FP32", [3, 3], binary_data_size=4),
            floats(1),
            "[request id: q] unexpected shape for input 'IN_FP32' for model 'types'. Expected [-1], got [3,3]. ",
        ),
        (
            tensor("IN_BYTES", "BYTES", [1], binary_data_size=3),
            b"\2\0\0",
            "[request id: q] incomplete string length indicator for inference "
            "input 'IN_BYTES' for model 'types', expecting "
            "4 bytes but only 3 bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            tensor("IN_BYTES", "BYTES", [1], binary_data_size=5),
            b"\2\0\0\0a",
            "incomplete string data for inference input 'IN_BYTES', expecting "
            "string of length 2 but only 1 bytes available",
        ),
        (
            tensor("IN_FP32", "FP32", [1], binary_data_size="4"),
            floats(1),
            "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer "
            "(input 'IN_FP32')",
        ),
        (
            tensor("IN_FP32", "FP32", [1], shared_memory_region="r"),
            b"",
            "Unable to find shared memory region: 'r'",
        ),
    ],
)
def test_binary_refused(client: Client, inputs: Any, tail: bytes, message: str) -> None:
    if isinstance(inputs, list):
        inputs = tensor("IN_FP32", "FP32", inputs, binary_data_size=4 * inputs[0])
    response = client.ask(binary("types", [inputs], tail, id="q"))
    assert response.error == message
    assert response.status == (404 if "region" in message else 400)


@pytest.mark.parametrize(
    ("model", "headers", "status", "message"),
    [
        ("nope", [], 404, "Request for unknown model: 'nope' is not found"),
        ("multi/versions/9", [], 404, "Request for unknown model: 'multi' version 9 is not found"),
        ("gen", [], 501, "HTTP end point doesn't support models with decoupled transaction policy"),
        ("types", ["Content-Encoding: br"], 501, "Unsupported compression type"),
        (
            "types",
            ["Inference-Header-Content-Length: 100000"],
            400,
            "inference header size should be in range (0, 14), got: 100000",
        ),
        (
            "types",
            ["Inference-Header-Content-Length: -1"],
            400,
            "inference header size should be in range (0, 14), got: -1",
        ),
        (
            "types",
            ["Inference-Header-Content-Length: 12abc"],
            400,
            "Unable to parse Inference-Header-Content-Length, got: 12abc",
        ),
    ],
)
def test_refused_before_the_body_is_read(
    client: Client, model: str, headers: list[str], status: int, message: str
) -> None:
    response = client.ask(infer(model, b'{"inputs": []}', *headers))
    assert (response.status, response.error, response.headers["Content-Type"]) == (status, message, "text/plain")
    assert response.names[-2:] == ["Content-Length", "Content-Type"]


def test_empty_body_is_a_raw_request(client: Client) -> None:
    assert client.ask(infer("types", b"")).error == (
        "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 13 inputs "
        "in 'types' model configuration"
    )


def test_of_equal_members_the_first_counts(client: Client) -> None:
    assert client.ask(infer("types", b'{"inputs":[],"inputs":5}')).json["outputs"] == []
    body = b'{"inputs":[{"name":"IN_INT8","name":"X","datatype":"INT8","shape":[1],"data":[1],"data":["x"]}]}'
    assert client.ask(infer("types", body)).json["outputs"][0]["data"] == [1]


def test_execution_errors_are_plain_text_with_their_code(client: Client) -> None:
    for code, status in [(Code.INTERNAL, 500), (Code.UNAVAILABLE, 503), (Code.CANCELLED, 400), (Code.NOT_FOUND, 404)]:
        client.kernel.change = lambda response, code=code: InferenceResponse.failure(code, 'the "model" broke\n')
        response = client.ask(infer("types", {"inputs": FP32}))
        assert (response.status, response.headers["Content-Type"]) == (status, "text/plain")
        assert response.error == 'the "model" broke\n'


def test_limits() -> None:
    client = Client(max_input_size=200)
    small = infer("types", {"inputs": FP32})
    assert client.ask(small).status == 200
    body = json.dumps({"inputs": FP32, "pad": "x" * 200}).encode()
    for message in (infer("types", body), chunked("types", body)):
        assert client.ask(message).error == (
            f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of 200 bytes. "
            "Use --http-max-input-size to increase the limit."
        )
    raw = infer("multi", b"x" * 201, "Inference-Header-Content-Length: 0")
    assert client.ask(raw).error == (
        "Raw input has a byte_size (201 bytes) that exceeds the maximum allowed value of 200 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    tail = b"\0" * 4000
    assert client.ask(binary("types", [tensor("IN_FP32", "FP32", [1000], binary_data_size=4000)], tail)).status == 200
    assert client.ask(infer("types", one("FP64", [1] * 26))).error == (
        "JSON input 'IN_FP64' has a byte_size (208 bytes) that exceeds the maximum allowed value of 200 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    assert client.ask(small).status == 200


def chunked(model: str, body: bytes, size: int = 7) -> bytes:
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x;e=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nT: 1\r\n\r\n"


def test_chunked_is_the_same() -> None:
    body = json.dumps(one("INT32", [1, 2, 3])).encode()
    plain, pieces = Client().ask(infer("types", body)), Client().ask(chunked("types", body))
    assert plain.status == 200 and plain.body == pieces.body


def test_pipelined_answers_come_in_order() -> None:
    client = Client(kernel := FakeKernel())
    kernel.hold = True
    client.send(b"".join(infer("types", one("INT32", [number])) for number in range(3)) + request("GET", "/v2"))
    assert client.take() == b""
    third, first, second = kernel.held[2], kernel.held[0], kernel.held[1]
    kernel.finish(third)
    assert client.take() == b""
    kernel.finish(first)
    assert [response.json["outputs"][0]["data"] for response in parse(client.take())] == [[0]]
    kernel.finish(second)
    responses = parse(client.take())
    assert [response.json.get("outputs", [{}])[0].get("data") for response in responses] == [[1], [2], None]


def test_a_model_error_keeps_its_words(client: Client) -> None:
    def fail(response: InferenceResponse) -> InferenceResponse:
        return InferenceResponse([], error=ServingError(Code.UNAVAILABLE, "\udcff is no text"))

    client.kernel.change = fail
    assert client.ask(infer("types", {"inputs": FP32})).error == "\\udcff is no text"


@pytest.mark.parametrize("shape", [[1] * 70, [0, 2**63 - 1], [0, 2**62, 2**62]])
@pytest.mark.parametrize("kind", ["json", "binary", "bytes"])
def test_shapes_that_no_array_can_have(client: Client, shape: list[int], kind: str) -> None:
    name, datatype = ("IN_BYTES", "BYTES") if kind == "bytes" else ("IN_FP32", "FP32")
    if kind == "json":
        message = infer("types", {"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": [0.0]}]})
    else:
        message = binary("types", [tensor(name, datatype, shape, binary_data_size=0)], b"")
    response = client.ask(message)
    assert response.status == 400
    assert f"Unable to parse 'shape': input '{name}' has" in response.error
    assert client.ask(infer("types", {"inputs": []})).status == 200  # the connection lives on


def test_a_reserved_header_is_refused_also_where_the_rest_is_known() -> None:
    client = Client(forward_pattern="x-.*|timeout")
    inputs = [tensor("IN_FP32", "FP32", [1], binary_data_size=4)]
    for _ in range(2):
        assert client.ask(binary("types", inputs, floats(1))).status == 200
    known = binary("types", inputs, floats(1))
    head, _, rest = known.partition(b"\r\n\r\n")
    response = client.ask(head + b"\r\ntimeout: 5\r\n\r\n" + rest)
    assert (response.status, response.error) == (
        400,
        "Header 'timeout' is reserved for Triton usage and cannot be forwarded.",
    )


# --- parameters of answers


def test_answers_that_differ_only_in_their_parameters(client: Client) -> None:
    """What is kept of one answer is not told of another: True and 1 are equal, and so are 0 and 0.0."""
    for parameters, shown in [
        ({"a": True}, b'{"a":true}'),
        ({"a": 1}, b'{"a":1}'),
        ({"a": False}, b'{"a":false}'),
        ({"a": 0}, b'{"a":0}'),
        ({"a": 0.0}, b'{"a":0.0}'),
        ({"a": -0.0}, b'{"a":-0.0}'),
        ({"b": 0}, b'{"b":0}'),
        ({"a": 0, "b": False}, b'{"a":0,"b":false}'),
        ({"b": False, "a": 0}, b'{"b":false,"a":0}'),
        ({"a": ""}, b'{"a":""}'),
        ({"a": [0]}, b'{"a":[0]}'),
        ({}, None),
        ({"a": True}, b'{"a":true}'),
    ]:

        def change(response: InferenceResponse, parameters: dict[str, Any] = parameters) -> InferenceResponse:
            response.parameters = parameters
            return response

        client.kernel.change = change
        body = client.ask(binary("types", FP32[:1], b"", parameters={"binary_data_output": True})).body
        assert (b'"parameters":' + shown in body) if shown is not None else body.count(b'"parameters"') == 1

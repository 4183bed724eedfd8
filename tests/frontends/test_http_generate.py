"""The generate extension: flat JSON in, one response or a stream of events out (http_protocol 6; reported cases, BC60)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from frontends.fakes import Client, Spec, add_sub, config, parse, request

from kernel import Code, InferenceRequest, InferenceResponse, ServingError, Tensor
from kernel_http.connection import streams
from kernel_http.json import large
from kernel_http.json.text import PIECE

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LIVE = request("GET", "/v2/health/live")


@pytest.fixture
def client() -> Client:
    client = Client()
    client.kernel.hold = True
    return client


def ask(model: str, body: Any, *headers: str, stream: bool = False, version: str = "1.1") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request("POST", f"/v2/models/{model}/generate{'_stream' * stream}", data, *headers, version=version)


def start(client: Client, *headers: str, stream: bool = True, version: str = "1.1") -> InferenceRequest:
    """Begin a stream of the decoupled model and return its request."""
    client.send(ask("gen", {"X": [1, 2]}, *headers, stream=stream, version=version))
    return client.kernel.held[-1]


def response(value: Any = 1.0, **more: Any) -> InferenceResponse:
    array = np.array(value, np.float32).reshape(-1)
    return InferenceResponse([Tensor("Y", "FP32", array)], model_name="gen", model_version="1", **more)


def event(shown: str) -> bytes:
    data = b'data: {"Y":%b,"model_name":"gen","model_version":"1"}\n\n' % shown.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


# --- one response


def test_generate_to_the_byte() -> None:
    client = Client()
    client.send(ask("multi", {"X": [1, 2.5]}))
    body = b'{"Y":[1.0,2.5],"model_name":"multi","model_version":"3"}'
    assert client.take() == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    )


def test_scalars_and_arrays_and_id() -> None:
    client = Client()
    answer = client.ask(ask("types", {"id": "me", "IN_INT32": 7, "IN_BYTES": ["a", "é"], "IN_BOOL": True, "IN_FP32": []}))
    assert answer.body.decode() == (
        '{"OUT_BOOL":true,"OUT_BYTES":["a","é"],"OUT_FP32":[],"OUT_INT32":7,"id":"me","model_name":"types","model_version":"1"}'
    )


def test_long_arrays_of_numbers_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one call of the decoder, and of numpy, 900 000 numbers held the interpreter for 64 ms."""
    most = 0

    def decoded(data: Any) -> Any:
        nonlocal most
        most = max(most, len(data))
        return msgspec.json.decode(data)

    monkeypatch.setattr(large, "_decode", decoded)
    client, count = Client(), 200_000
    numbers = list(range(count))
    for body in (
        {"IN_INT32": numbers, "IN_FP32": [0.5, *numbers]},
        {"parameters": {"IN_INT32": numbers}, "IN_FP32": [0.5, *numbers], "id": "a" * 10},
    ):
        response = client.ask(ask("types", body)).json
        assert response["OUT_INT32"] == numbers and response["OUT_FP32"] == [0.5, *numbers]
        assert 0 < most <= 2 * PIECE
    text = json.dumps({"IN_INT32": numbers})
    for doubled in ({"IN_INT32": [1]}, {"parameters": {"IN_INT32": [1]}}):  # read once more, by the slow decoder
        response = client.ask(ask("types", f"{text[:-1]},{json.dumps(doubled)[1:]}".encode()))
        assert (response.status, "input 'IN_INT32' already exists in request" in response.error) == (400, True)
    response = client.ask(ask("types", text.replace("199999", "1e5").encode()))
    assert response.status == 400 and "input 'IN_INT32', element 199999 is 100000.0" in response.error
    response = client.ask(ask("types", {"IN_BYTES": ["a"] * 300_000}))
    assert response.status == 400 and "more values in what stands outside of long arrays of numbers than the" in response.error


def test_a_large_answer_is_made_on_another_thread_and_keeps_its_place() -> None:
    client = Client()
    client.send(ask("types", {"IN_INT32": list(range(20_000))}))
    client.send(LIVE)
    for _ in ("read", "answered"):
        assert len(client.kernel.loop.jobs) == 1 and client.take() == b""
        client.kernel.loop.run_jobs()
    first, second = parse(client.take())
    assert first.json["OUT_INT32"] == list(range(20_000)) and second.body == b""


def test_response_parameters_are_sorted_in(client: Client) -> None:
    start(client, stream=False).respond(response(parameters={"zeta": 1, "Alpha": "b"}), True)
    (answer,) = parse(client.take())
    assert answer.body == b'{"Alpha":"b","Y":1.0,"model_name":"gen","model_version":"1","zeta":1}'


@pytest.mark.parametrize(
    ("body", "custom"),
    [
        ({"stream": True, "triton_x": 1, "sequence_id": 7}, {"stream": True, "triton_x": 1, "sequence_id": 7}),
        ({"id": "a", "parameters": {"b": 1.5, "id": "z"}}, {"id": "z", "b": 1.5}),
        ({"timeout": -1, "big": 2**64}, {"timeout": -1, "big": float(2**64)}),
        ({}, None),
    ],
)
def test_other_members_are_parameters(client: Client, body: Any, custom: Any) -> None:
    client.send(ask("multi", {"X": [1, 2], **body}))
    (held,) = client.kernel.held
    assert held.parameters == custom
    assert (held.correlation_id, held.flags, held.priority, held.timeout_us) == (0, 0, 0, 0)
    assert held.id == body.get("id", "")


def test_inputs_inside_parameters(client: Client) -> None:
    client.send(ask("multi", {"parameters": {"X": [3, 4]}}))
    assert client.kernel.held[0].inputs["X"].array.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("dims", "batch", "count", "shape"),
    [
        ((-1,), 0, 3, (3,)),
        ((2,), 8, 4, (2, 2)),
        ((2, -1), 0, 4, (2, 2)),
        ((2, -1), 0, 0, (2, 0)),
        ((-1, -1), 0, 3, (1, 3)),
        ((-1, 2), 8, 6, (1, 3, 2)),
        ((-1,), 8, 3, (1, 3)),
        ((1,), 0, 1, (1,)),
        ((2,), 0, 3, None),
        ((2, -1), 0, 3, None),
        ((2,), 8, 3, None),
        ((1,), 0, 0, None),
    ],
)
def test_shapes(client: Client, dims: tuple[int, ...], batch: int, count: int, shape: tuple[int, ...] | None) -> None:
    client.kernel.add(config("m", [Spec("X", "INT32", dims)], [Spec("Y", "INT32", dims)], batch=batch))
    client.send(ask("m", {"X": list(range(count))}))
    if shape is None:
        (answer,) = parse(client.take())
        assert (answer.status, answer.error) == (400, "The schema can not convert input 'X' to tensor with proper shape")
    else:
        assert client.kernel.held[0].inputs["X"].array.shape == shape


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "body", "headers", "status", "words"),
    [
        ("nope", {}, [], 404, "Request for unknown model: 'nope' is not found"),
        ("multi/versions/2", {}, [], 404, "Request for unknown model: 'multi' version 2 is not found"),
        ("multi", b"", [], 400, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ("multi", [1], [], 400, "attempt to get members for non-object"),
        ("multi", {"id": 5}, [], 400, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ("multi", {"X": [1, 2], "p": None}, [], 400,
         "parameter 'p' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ("multi", {"parameters": 5}, [], 400,
         "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"),
        ("multi", {"X": [1, 2], "parameters": {"X": [1, 2]}}, [], 400,
         "Converting keyword: 'parameters': [request id: <id_unknown>] input 'X' already exists in request"),
        ("multi", b'{"X":[1,2],"X":[1,2]}', [], 400, "[request id: <id_unknown>] input 'X' already exists in request"),
        ("multi", {"parameters": {"parameters": {}}}, [], 400,
         "Converting keyword: 'parameters': parameter 'parameters' has invalid type. "
         "It should be either 'int', 'bool', or 'string'."),
        ("multi", {"X": [[1, 2], [3, 4]]}, [], 400, "Unable to parse 'data': Shape does not match true shape of 'data' field "
         "(input 'X' has shape [2]: expected 2 elements, got 4)"),
        ("types", {"IN_FP16": 1}, [], 400,
         "receiving FP16 data via JSON is not supported. Please use the binary data format for input IN_FP16"),
        ("types", {"IN_INT8": 128}, [], 400, "Unable to parse 'data': value out of range for INT8 "
         "(input 'IN_INT8', element 0 is 128; INT8 holds -128 to 127)"),
        ("types", {"IN_BYTES": [["a", "b"]]}, [], 400, "[request id: <id_unknown>] unexpected number of string elements 2 "
         "for inference input 'IN_BYTES' for model 'types', expecting 1"),
        ("add_sub", {"INPUT0": [1, 2, 3, 4]}, [], 400, "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for "
         "model 'add_sub'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. "
         "Please provide all required input(s)."),
        ("multi", {"X": [1, 2]}, ["Content-Encoding: gzip"], 400,
         "Unsupported content-encoding, only 'identity' is supported."),
    ],
)  # fmt: skip
def test_refusals(
    client: Client, stream: bool, model: str, body: Any, headers: list[str], status: int, words: str
) -> None:
    answer = client.ask(ask(model, body, *headers, stream=stream))
    assert (answer.status, answer.error) == (status, words)
    assert answer.names == ["Content-Type", "Content-Length"] and answer.headers["Content-Type"] == "application/json"
    assert client.ask(LIVE).status == 200 and not client.kernel.requests


def test_wrong_method_and_input_called_parameters(client: Client) -> None:
    assert client.ask(request("GET", "/v2/models/multi/generate")).status == 405
    client.kernel.add(config("m", [Spec("parameters", "INT32", (1,))], []))
    assert "keyword of generate" in client.ask(ask("m", {"parameters": 1})).error


@pytest.mark.parametrize("count", [0, 2, 3])
def test_generate_wants_exactly_one_response(client: Client, count: int) -> None:
    held = start(client, stream=False)
    for _ in range(count):
        held.respond(response(), False)
    assert client.kernel.cancelled == [held] * (count > 1)  # nobody wants the others
    held.respond(None, True)
    (answer,) = parse(client.take())
    assert (answer.status, answer.error) == (400, NOT_ONE)
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("final", [True, False])
def test_generate_takes_one_response_and_a_final_flag(client: Client, final: bool) -> None:
    held = start(client, stream=False)
    held.respond(response(), final)
    if not final:
        assert client.take() == b""
        held.respond(None, True)
    (answer,) = parse(client.take())
    assert (answer.status, answer.json["Y"]) == (200, 1.0)
    assert not client.kernel.cancelled


def test_error_of_generate_has_its_own_status(client: Client) -> None:
    start(client, stream=False).respond(InferenceResponse.failure(Code.UNAVAILABLE, 'not "now"'), True)
    (answer,) = parse(client.take())
    assert (answer.status, answer.error) == (503, 'not "now"')


# --- a stream


def test_each_response_is_an_event_at_once(client: Client) -> None:
    held = start(client)
    assert client.take() == b""
    held.respond(response(1), False)
    assert client.take() == HEAD + event("1.0")
    held.respond(response([1, 2]), False)
    assert client.take() == event("[1.0,2.0]")
    held.respond(None, True)
    assert client.take() == b"0\r\n\r\n"
    assert client.ask(LIVE).status == 200  # the connection is kept


def test_a_stream_of_nothing(client: Client) -> None:
    start(client).respond(None, True)
    assert client.take() == HEAD + b"0\r\n\r\n"


def test_last_response_may_be_final(client: Client) -> None:
    held = start(client)
    held.respond(response(1), False)
    held.respond(response(2), True)
    assert client.take() == HEAD + event("1.0") + event("2.0") + b"0\r\n\r\n"


def test_a_normal_model_streams_its_one_response() -> None:
    client = Client()
    answer = client.ask(ask("multi", {"X": [1, 2]}, stream=True))
    assert answer.body == b'data: {"Y":[1.0,2.0],"model_name":"multi","model_version":"3"}\n\n'


def test_status_is_the_first_responses(client: Client) -> None:
    held = start(client)
    held.respond(InferenceResponse.failure(Code.NOT_FOUND, "no"), False)
    held.respond(response(1), False)
    held.respond(None, True)
    (answer,) = parse(client.take())
    assert (answer.status, answer.headers["Content-Type"]) == (404, "text/event-stream; charset=utf-8")
    assert answer.body == b'data: {"error":"no"}\n\ndata: {"Y":1.0,"model_name":"gen","model_version":"1"}\n\n'


def test_later_errors_are_events(client: Client) -> None:
    held = start(client)
    held.respond(response(1), False)
    held.respond(InferenceResponse([Tensor("H", "FP16", np.ones(1, np.float16))]), False)
    held.respond(InferenceResponse.failure(Code.INTERNAL, "broken"), True)
    (answer,) = parse(client.take())
    assert answer.status == 200
    assert [line for line in answer.body.split(b"\n\n") if line][1:] == [
        b'data: {"error":"sending FP16 data via JSON is not supported. Please use the binary data format for output"}',
        b'data: {"error":"broken"}',
    ]


def test_http10_ends_with_the_connection(client: Client) -> None:
    held = start(client, "Connection: keep-alive", version="1.0")
    held.respond(response(1), False)
    held.respond(response(2), False)
    assert not client.transport.closing
    held.respond(None, True)
    assert client.transport.closing
    head, _, body = client.take().partition(b"\r\n\r\n")
    assert head == (
        b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"Cache-Control: no-cache\r\nX-Accel-Buffering: no"
    )
    assert body.count(b"data: ") == 2 and body.endswith(b"}\n\n")


def test_http10_generate_tells_its_length(client: Client) -> None:
    start(client, stream=False, version="1.0").respond(response(1), True)
    assert b"Content-Length: 48\r\n\r\n{" in client.take() and client.transport.closing


def test_connection_close(client: Client) -> None:
    held = start(client, "Connection: close")
    held.respond(response(1), False)
    assert client.take() == HEAD[:-2] + b"Connection: close\r\n\r\n" + event("1.0")
    held.respond(None, True)
    assert client.take() == b"0\r\n\r\n" and client.transport.closing


def test_pipelined_answers_keep_their_order(client: Client) -> None:
    first, second = start(client), start(client)
    client.send(LIVE)
    second.respond(response(3), False)
    assert client.take() == b""  # not its turn
    first.respond(response(1), False)
    assert client.take() == HEAD + event("1.0")
    first.respond(None, True)
    assert client.take() == b"0\r\n\r\n" + HEAD + event("3.0")
    second.respond(response(4), False)
    second.respond(None, True)
    assert client.take().startswith(event("4.0") + b"0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0")
    assert len(client.connection.answers.exchanges) == 0


def test_a_stream_that_ended_before_its_turn(client: Client) -> None:
    first, second = start(client), start(client)
    second.respond(response(3), True)
    first.respond(None, True)
    assert client.take() == HEAD + b"0\r\n\r\n" + HEAD + event("3.0") + b"0\r\n\r\n"


def test_infer_behind_a_stream(client: Client) -> None:
    held = start(client)
    held.respond(response(1), False)
    client.kernel.hold = False
    client.send(add_sub([1, 1, 1, 1], [0, 0, 0, 0]))
    held.respond(None, True)
    stream, infer = parse(client.take())
    assert (stream.status, infer.status) == (200, 200)


# --- clients that go or are slow, and the end


def test_the_request_is_cancelled_when_the_client_goes(client: Client) -> None:
    held = start(client)
    held.respond(response(1), False)
    client.lose()
    assert client.kernel.cancelled == [held]
    held.respond(response(2), False)
    held.respond(None, True)


def test_a_slow_reader_lets_events_wait(client: Client) -> None:
    held = start(client)
    held.respond(response(1), False)
    client.take()
    client.connection.pause_writing()
    held.respond(response(2), False)
    held.respond(response(3), False)
    assert client.take() == b""
    client.connection.resume_writing()
    assert client.take() == event("2.0") + event("3.0")
    held.respond(None, True)
    assert client.take() == b"0\r\n\r\n"


@pytest.mark.parametrize("turn", [True, False])
def test_what_waits_is_bounded(client: Client, turn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_WAITING", 1000)
    if not turn:
        start(client)  # a stream before it, which does not end
    held = start(client)
    if turn:
        client.connection.pause_writing()
    for _ in range(30):
        held.respond(response(1), False)
    assert client.transport.aborted
    assert client.kernel.cancelled == [held]
    client.lose()
    held.respond(None, True)


def test_drain_lets_a_stream_finish(client: Client) -> None:
    held = start(client)
    held.respond(response(1), False)
    client.server.retiring = client.server.draining = True
    client.connection.drain()
    held.respond(response(2), False)
    assert not client.transport.closing
    held.respond(None, True)
    assert client.take() == HEAD + event("1.0") + event("2.0") + b"0\r\n\r\n" and client.transport.closing


def test_drain_before_the_first_event(client: Client) -> None:
    held = start(client)
    client.server.retiring = client.server.draining = True
    client.connection.drain()
    held.respond(response(1), False)
    held.respond(None, True)
    assert client.take() == HEAD[:-2] + b"Connection: close\r\n\r\n" + event("1.0") + b"0\r\n\r\n"


def test_what_can_not_be_rendered_is_an_error(client: Client) -> None:
    start(client).respond(InferenceResponse([Tensor("B", "BYTES", np.array([b"\xff"], object))]), True)
    (answer,) = parse(client.take())
    assert answer.status == 400 and b"is not UTF-8" in answer.body


def test_refused_by_the_check(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(request: InferenceRequest) -> None:
        raise ServingError(Code.UNAVAILABLE, "not now")

    monkeypatch.setattr(client.kernel.model("gen"), "check", check)
    assert client.ask(ask("gen", {"X": [1, 2]}, stream=True)).status == 503

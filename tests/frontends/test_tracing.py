"""What front ends tell of requests to traced models, and to nobody of others: by every way that a request can take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from frontends import fakes, fakes_grpc
from frontends.fakes import Client, infer, parse, request, tensor

from kernel import InferenceRequest, InflightRequest
from kernel_http.operations.admin import PIECE
from kernel_http.operations.operation import PAUSE

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADER = f"TraceParent: {TRACEPARENT} "


class Told:
    """Keeps what is told, and that the request has not begun then."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[str, str, float, str]] = []

    def arrived(self, request: InferenceRequest, protocol: str = "", began: float = 0.0, traceparent: str = "") -> None:
        assert request.model is not None and request.state.name == "INITIALIZED"
        self.arrivals.append((request.model.name, protocol, began, traceparent))


def traced(kernel: Any, *models: str) -> Told:
    told = Told()
    for model in models:
        kernel.model(model).tracing = told
    return told


def batch8(*headers: str) -> bytes:
    return infer("batch8", {"inputs": [tensor("X", "FP32", [1, 2], [1, 2])]}, *headers)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(fakes.add_sub([1] * 4, [2] * 4), id="binary"),
        pytest.param(infer("add_sub", {"inputs": [tensor(f"INPUT{k}", "FP32", [4], [1] * 4) for k in (0, 1)]}), id="JSON"),
        pytest.param(
            request("POST", "/v2/models/add_sub/generate", json.dumps({f"INPUT{k}": [1] * 4 for k in (0, 1)}).encode()),
            id="generate",
        ),
    ],
)
def test_each_request_over_http_is_told_once(sent: bytes) -> None:
    client = Client()
    told = traced(client.kernel, "add_sub")
    for _ in range(3):  # read, known by its JSON part, known by its bytes
        assert client.ask(sent).status == 200
    assert client.ask(batch8()).status == 200  # whose model isn't traced
    assert told.arrivals == [("add_sub", "HTTP", 0.0, "")] * 3


def test_the_header_of_a_client_s_trace() -> None:
    client = Client()
    told = traced(client.kernel, "batch8", "gen")
    client.ask(batch8(HEADER))
    client.ask(batch8())
    client.ask(request("POST", "/v2/models/gen/generate_stream", b'{"X": [1, 2]}', HEADER))
    assert told.arrivals == [
        ("batch8", "HTTP", 0.0, TRACEPARENT),
        ("batch8", "HTTP", 0.0, ""),
        ("gen", "HTTP", 0.0, TRACEPARENT),
    ]


def test_a_body_in_pieces_began_when_the_first_came() -> None:
    client = Client()
    told = traced(client.kernel, "batch8")
    message = batch8()
    client.send(message[:-5])
    client.kernel.loop.advance(3.0)
    client.send(message[-5:])
    client.send(message)
    assert [began for _, _, began, _ in told.arrivals] == [100.0, 0.0]


def test_refused_requests_are_not_told() -> None:
    client = Client()
    told = traced(client.kernel, "batch8")
    assert client.ask(infer("batch8", {"inputs": [tensor("X", "FP32", [1, 3], [1, 2, 3])]})).status == 400
    assert told.arrivals == []


def test_requests_over_grpc() -> None:
    service = fakes_grpc.Service()
    told = traced(service.kernel, "add_sub")
    for _ in range(3):
        service.ask(fakes_grpc.add_sub())
    service.ask(fakes_grpc.add_sub(), metadata={"traceparent": TRACEPARENT})
    stream = service.stream(metadata={"traceparent": TRACEPARENT})
    stream.send(fakes_grpc.add_sub())
    assert told.arrivals == [("add_sub", "GRPC", 0.0, "")] * 3 + [("add_sub", "GRPC", 0.0, TRACEPARENT)] * 2


def test_who_is_in_flight() -> None:
    client = Client()
    record = InflightRequest("m", 3, "r", "PENDING", 1.5, "the app", "o", None, "w", 1, 0, "seq")
    client.kernel.each_inflight = lambda: iter([record])  # type: ignore[attr-defined]
    response = client.ask(request("GET", "/v2/inflight"))
    assert (response.status, response.headers["Content-Type"]) == (200, "application/json")
    assert response.json == {
        "inflight": [
            {"model": "m", "version": 3, "id": "r", "state": "PENDING", "age": 1.5, "client": "the app", "owner": "o",
             "deadline": None, "why": "w", "batch_size": 1, "priority": 0, "correlation_id": "seq"},
        ]
    }  # fmt: skip
    assert client.ask(request("POST", "/v2/inflight")).status == 405


@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_those_in_flight_are_told_some_at_a_time(count: int) -> None:
    """There may be thousands, and others have their turns between."""
    client, made = Client(), [0]

    def records() -> Iterator[InflightRequest]:
        for number in range(count):
            made[0] += 1
            yield InflightRequest("m", 3, str(number), "PENDING", 1.5, "the app", "o", None, "w", 1, 0, 0)

    client.kernel.each_inflight = records  # type: ignore[attr-defined]
    client.send(request("GET", "/v2/inflight") + request("GET", "/v2/health/live"))
    pieces = count // PIECE + 1
    for piece in range(1, pieces + 1):
        assert made[0] == min(count, piece * PIECE)
        assert bool(client.transport.out) is (piece == pieces)
        client.kernel.loop.advance(PAUSE)
    inflight, _ = parse(client.take())
    assert [one["id"] for one in inflight.json["inflight"]] == [str(number) for number in range(count)]


def test_connections_say_whose_they_are() -> None:
    client = Client()
    client.transport.extra["peername"] = ("10.0.0.7", 51344)
    client.kernel.hold = True
    client.send(batch8())
    exchange = client.connection.answers.exchanges[0]
    assert exchange.client == "HTTP 10.0.0.7:51344"
    client.lose()
    assert exchange.client == "an HTTP client that has gone"

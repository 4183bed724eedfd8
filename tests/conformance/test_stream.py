"""Streams on both wires: every sequence of the contract, and what only one wire has."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from . import http_wire
from .asks import Answered, Ask, Refused, Tensor, any_words
from .cases_stream import STREAMS, Failed, Said, Stream
from .grpc_wire import GrpcWire
from .http_wire import HttpWire

by_name = pytest.mark.parametrize("case", STREAMS, ids=lambda case: case.name)


@pytest.fixture
def http(ways: dict[str, Any]) -> HttpWire:
    return ways["http json"]


@pytest.fixture(params=["grpc raw", "grpc typed"])
def streaming(request: pytest.FixtureRequest, ways: dict[str, Any]) -> GrpcWire:
    return ways[request.param]


def values(answer: Answered) -> dict[str, Any]:
    return {output.name: output.values for output in answer.outputs}


def check_grpc(got: list[Any], case: Stream, more: int = 0) -> None:
    """`more`: messages behind those of the case."""
    assert len(got) == len(case.messages) + more, got
    for message, wanted in zip(got, case.messages, strict=False):
        assert message.final == wanted.final, f"{message} for {wanted}"
        assert message.id == case.ask.id
        if isinstance(wanted, Failed):
            assert isinstance(message, Refused) and any_words(wanted.words, message.message), message
        else:
            assert isinstance(message, Answered) and values(message) == wanted.outputs
            assert (message.model, message.version) == (case.ask.model, case.ask.version or "1")


@by_name
def test_over_grpc(case: Stream, streaming: GrpcWire) -> None:
    for _ in range(2):
        check_grpc(streaming.stream(case.ask), case)


@by_name
def test_over_grpc_with_an_empty_final_response(case: Stream, streaming: GrpcWire) -> None:
    got = streaming.stream(case.ask, empty_final=True)
    check_grpc(got, case, 1 if case.flag else 0)
    if case.flag:
        assert got[-1] == Answered(
            (), case.ask.id, case.ask.model, case.ask.version, {}, True
        )  # what was asked for, observed


@by_name
def test_over_http(case: Stream, http: HttpWire) -> None:
    wanted = case.http or case.messages
    for _ in range(2):
        check_http(http.stream(case.ask), wanted, case)


def check_http(got: list[Any], wanted: tuple[Said | Failed, ...], case: Stream) -> None:
    assert len(got) == len(wanted), got
    for index, (message, each) in enumerate(zip(got, wanted, strict=True)):
        if isinstance(each, Failed):
            assert isinstance(message, Refused) and any_words(each.words, message.message), message
            if index == 0:
                assert message.code in (each.code, str(http_wire.CODES[each.code]))
        else:
            assert isinstance(message, Answered) and values(message) == each.outputs
            assert (message.id, message.model) == (case.ask.id, case.ask.model)


@pytest.mark.parametrize("case", [case for case in STREAMS if case.ask.model == "talk"], ids=lambda case: case.name)
def test_generate_is_for_one_response(case: Stream, http: HttpWire) -> None:
    """BC60: more or fewer are an error, and its status says so."""
    wanted = (case.http or case.messages)[:2]
    reply = http.generate(case.ask, "generate")
    if len(wanted) == 1 and isinstance(wanted[0], Said):
        assert reply.status == 200
        assert values(http_wire.flat(reply.json)) == wanted[0].outputs
    elif len(wanted) == 1:
        assert isinstance(wanted[0], Failed) and reply.status == http_wire.CODES[wanted[0].code]
        assert reply.json["error"] == wanted[0].words
    else:
        assert reply.status == 400
        assert reply.json["error"].startswith("generate expects model to produce exactly 1 response")


def test_events_are_events(http: HttpWire) -> None:
    reply = http.generate(Ask("talk", (Tensor("SCRIPT", "BYTES", (1,), (b"a b",)),)), "generate_stream")
    assert (reply.status, reply.type) == (200, "text/event-stream")
    events = reply.body.split(b"\n\n")
    assert len(events) == 3 and events[2] == b"" and all(event.startswith(b"data: {") for event in events[:2])


# --- several requests on one stream


def by(name: str) -> Stream:
    return next(case for case in STREAMS if case.name == name)


X = Tensor("X", "FP32", (1, 2), (1.0, 2.0))


def test_normal_requests_are_answered_in_order(streaming: GrpcWire) -> None:
    asks = [Ask("batch8", (Tensor("X", "FP32", (1, 2), (float(k), 0.0)),), id=str(k)) for k in range(50)]
    got = streaming.stream(*asks)
    assert [message.id for message in got] == [ask.id for ask in asks]
    assert [values(message)["Y"][0] for message in got] == list(range(50))


def test_a_stream_goes_on_after_errors(streaming: GrpcWire) -> None:
    good = Ask("batch8", (X,), id="good")
    bad = [
        Ask("nope", (X,), id="1"),
        Ask("batch8", (Tensor("X", "FP32", (2,), (1.0, 2.0)),), id="2"),
        Ask("batch8", (X,), id="3", parameters={"triton_x": 1}),
        Ask("behave", (Tensor("WHAT", "BYTES", (1,), (b"raise_value_error",)),), id="4"),
    ]
    asks = [ask for each in bad for ask in (each, good)]
    got = streaming.stream(*asks)
    assert [message.id for message in got] == [ask.id for ask in asks]
    assert [type(message) for message in got] == [Refused, Answered] * 4


def test_decoupled_requests_share_a_stream(streaming: GrpcWire) -> None:
    asks = [Ask("talk", (Tensor("SCRIPT", "BYTES", (1,), (b"a b c",)),), id=f"talk {k}") for k in range(5)]
    got = streaming.stream(*asks, empty_final=True)
    for ask in asks:
        mine = [message for message in got if message.id == ask.id]
        assert [values(message).get("WORD") for message in mine] == [(b"a",), (b"b",), (b"c",), None]
        assert [message.final for message in mine] == [False, False, False, True]


def test_nothing_is_asked(streaming: GrpcWire) -> None:
    assert streaming.stream() == []


def test_what_is_no_message_is_told_and_the_stream_goes_on(streaming: GrpcWire) -> None:
    good = streaming.message(Ask("batch8", (X,), id="good")).SerializeToString()
    got = streaming.stream_of([b"\xff\xff", good])
    assert isinstance(got[0], Refused) and got[0].message.startswith("Unable to parse request")
    assert isinstance(got[1], Answered) and got[1].id == "good"


@pytest.mark.parametrize("model", ["nope", "behave"])
def test_errors_as_the_status_of_the_stream(ways: dict[str, Any], model: str) -> None:
    wire = ways["grpc raw"]
    ask = Ask(model, (Tensor("WHAT", "BYTES", (1,), (b"NOT_FOUND",)),))
    method = wire.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    call = method(iter([wire.message(ask).SerializeToString()]), metadata=(("triton_grpc_error", "true"),), timeout=5)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code() is grpc.StatusCode.NOT_FOUND

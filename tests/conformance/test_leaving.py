"""Who asks and goes away before the answer, in every way there is: the model sees it, nothing of it runs any more, it is counted.

BC37 and BC38 are among it.
"""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest

from . import probe
from .admin import admin_of
from .asks import Refused
from .conftest import WAYS
from .grpc_wire import GrpcWire, pb
from .leaving import INFER, LIMIT_S, STREAM, STREAMED, UNARY, ask_of, grpc_cancelled
from .serving import Served

#: How soon a model has to see that nobody waits for it; far more than it takes, far less than the model would wait.
SOON_S = 1.0

leaving = pytest.mark.parametrize("leaving", [*UNARY, *STREAMED], ids=lambda way: way.__name__)


def counts(ways: dict[str, Any], model: str) -> dict[str, int]:
    return dict(admin_of(ways["http json"]).statistics(model)[model, "1"])


def changed(ways: dict[str, Any], model: str, before: dict[str, int], name: str, by: int) -> None:
    """Wait until a count has changed by as much, and no other by more than it."""
    end = time.monotonic() + LIMIT_S
    while (now := counts(ways, model))[name] != before[name] + by:
        assert time.monotonic() < end, f"{name} went from {before[name]} to {now[name]}, not by {by}"
        time.sleep(0.005)


@leaving
def test_the_model_sees_it(leaving: Any, served: Served, ways: dict[str, Any]) -> None:
    before = counts(ways, "patient")
    with leaving(served, ask_of("patient", -1)) as leave:
        assert probe.began.wait(LIMIT_S)
        assert not probe.noticed.is_set()
        leave()
        assert probe.noticed.wait(SOON_S), "the model wasn't told"
        changed(ways, "patient", before, "fail", 1)
    assert probe.log == ["began -1", "cancelled -1"]
    after = counts(ways, "patient")
    assert (after["success"], after["executions"]) == (before["success"], before["executions"] + 1)


@leaving
def test_what_is_queued_is_dropped_at_once(leaving: Any, served: Served, ways: dict[str, Any]) -> None:
    before = counts(ways, "patient")
    with leaving(served, ask_of("patient", -1)) as leave_first:
        assert probe.began.wait(LIMIT_S)
        with leaving(served, ask_of("patient", -2)) as leave_second:
            waiting(served, "patient", 1)
            leave_second()
            changed(ways, "patient", before, "fail", 1)
            assert served.call(lambda: waiting_now(served, "patient")) == 0, "it keeps its place in the queue"
            leave_first()
            assert probe.noticed.wait(SOON_S)
    assert "began -2" not in probe.log
    probe.go.set()
    assert not isinstance(ways["http json"].infer(ask_of("patient", 3)), Refused)
    assert probe.log == ["began -1", "cancelled -1", "began 3"]


def waiting_now(served: Served, model: str) -> int:
    return served.kernel.model(model).scheduler.queue.size


def waiting(served: Served, model: str, count: int) -> None:
    end = time.monotonic() + LIMIT_S
    while served.call(lambda: waiting_now(served, model)) != count:
        assert time.monotonic() < end
        time.sleep(0.005)


@leaving
def test_bc37_an_ensembles_step_sees_it_and_the_next_never_starts(
    leaving: Any, served: Served, ways: dict[str, Any]
) -> None:
    before = counts(ways, "patient_ensemble")
    with leaving(served, ask_of("patient_ensemble", -1)) as leave:
        assert probe.began.wait(LIMIT_S)
        leave()
        assert probe.noticed.wait(SOON_S)
        changed(ways, "patient_ensemble", before, "fail", 1)
    assert not isinstance(ways["grpc raw"].infer(ask_of("patient", 3)), Refused)
    assert probe.log == ["began -1", "cancelled -1", "began 3"]


@pytest.mark.parametrize("leaving", STREAMED, ids=lambda way: way.__name__)
def test_a_decoupled_model_sees_it(leaving: Any, served: Served) -> None:
    with leaving(served, ask_of("patient_stream", -1)) as leave:
        assert probe.began.wait(LIMIT_S)
        leave()
        assert probe.noticed.wait(SOON_S), "request and sender weren't told"
    assert probe.log == ["cancelled -1"]


def test_the_others_of_a_cancelled_stream_go_with_it(served: Served, ways: dict[str, Any]) -> None:
    before = counts(ways, "patient")
    wire: GrpcWire = ways["grpc raw"]
    messages = [wire.message(ask_of("patient", x)).SerializeToString() for x in (-1, -2, -3)]
    call = wire.channel.stream_stream(STREAM)(iter(messages))
    assert probe.began.wait(LIMIT_S)
    waiting(served, "patient", 2)
    call.cancel()
    assert probe.noticed.wait(SOON_S)
    changed(ways, "patient", before, "fail", 3)
    assert probe.log == ["began -1", "cancelled -1"]


def test_one_leaves_and_the_others_stay(served: Served, ways: dict[str, Any]) -> None:
    """Over the same connection: what one call does is no other's business."""
    wire: GrpcWire = ways["grpc raw"]
    infer = wire.channel.unary_unary(INFER)
    first, second = (infer.future(wire.message(ask_of("patient", x)).SerializeToString()) for x in (-1, 5))
    assert probe.began.wait(LIMIT_S)
    first.cancel()
    assert wire.answered(pb.ModelInferResponse.FromString(second.result(LIMIT_S))).outputs[0].values == (5,)


def test_a_deadline_is_the_answer_also_where_the_model_does_not_look(ways: dict[str, Any]) -> None:
    """The status is the deadline's, and it comes when the deadline passes."""
    wire: GrpcWire = ways["grpc raw"]
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        wire.channel.unary_unary(INFER)(wire.message(ask_of("patient", -1)).SerializeToString(), timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    assert 0.15 < time.monotonic() - began < 2


def test_queue_is_full(served: Served, wire: Any) -> None:
    ask = ask_of("patient", 3, id="q")
    with grpc_cancelled(served, ask_of("patient", -1)) as leave:
        assert probe.began.wait(LIMIT_S)
        with grpc_cancelled(served, ask_of("patient", 1)), grpc_cancelled(served, ask_of("patient", 2)):
            waiting(served, "patient", 2)
            refused, (streamed,) = wire.infer(ask), wire.stream(ask)
            leave()
    assert refused == Refused("UNAVAILABLE", "[request id: q] Exceeds maximum queue size")
    # It was never accepted: over gRPC it is neither the last nor not.
    code, id = ("", "q") if isinstance(wire, GrpcWire) else (refused.code, "")
    assert streamed == Refused(code, refused.message, id, None)


def test_time_out_in_the_queue(served: Served, ways: dict[str, Any], wire: Any) -> None:
    before = counts(ways, "patient")
    ask = ask_of("patient", 3, id="q", parameters={"timeout": 50_000})
    with grpc_cancelled(served, ask_of("patient", -1)) as leave:
        assert probe.began.wait(LIMIT_S)
        assert wire.infer(ask) == Refused("UNAVAILABLE", "Request timeout expired")
        if isinstance(wire, GrpcWire):  # over HTTP, generate_stream has no time-out
            assert wire.stream(ask) == [Refused("", "Request timeout expired", "q", True)]
        leave()
        changed(ways, "patient", before, "fail", 3 if isinstance(wire, GrpcWire) else 2)


def test_all_is_well_afterwards(ways: dict[str, Any]) -> None:
    for name in WAYS:
        assert ways[name].infer(ask_of("patient", 7)).outputs[0].values == (7,)

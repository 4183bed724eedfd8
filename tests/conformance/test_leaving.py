"""Who asks and goes away before the answer, in every way there is: the model sees it, nothing of it runs any more, it is counted.

BC37 and BC38 are among it.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import pytest

from . import probe
from .admin import admin_of
from .asks import Ask, Refused, Tensor
from .clients import grpc_client
from .conftest import WAYS
from .grpc_wire import GrpcWire
from .http_wire import HttpWire
from .serving import Served

LIMIT_S = 5.0
#: How soon a model has to see that nobody waits for it; far more than it takes, far less than the model would wait.
SOON_S = 1.0

Leave = Callable[[], None]


def ask_of(model: str, x: int, **more: Any) -> Ask:
    shape = (1,) if model == "patient_stream" else (1, 1)
    return Ask(model, (Tensor("X", "INT32", shape, (x,)),), **more)


# --- ways to leave: each asks, and gives what goes away


@contextmanager
def http_connection(served: Served, ask: Ask, path: str, document: Any) -> Iterator[Leave]:
    data = json.dumps(document).encode()
    head = f"POST /v2/models/{ask.model}/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.open.http), LIMIT_S) as connection:
        connection.sendall(head + data)
        yield connection.close


@contextmanager
def http_gone(served: Served, ask: Ask) -> Iterator[Leave]:
    """The connection is closed."""
    document, _ = HttpWire(0).document(ask)
    with http_connection(served, ask, "infer", document) as leave:
        yield leave


@contextmanager
def http_stream_gone(served: Served, ask: Ask) -> Iterator[Leave]:
    """The connection of generate_stream is closed."""
    with http_connection(served, ask, "generate_stream", {"X": ask.inputs[0].values[0]}) as leave:  # type: ignore[index]
        yield leave


@contextmanager
def grpc_cancelled(served: Served, ask: Ask) -> Iterator[Leave]:
    """The call is cancelled."""
    wire = GrpcWire(served.open.grpc)
    future = wire.channel.unary_unary(INFER).future(wire.message(ask).SerializeToString())
    yield future.cancel
    wire.close()


@contextmanager
def grpc_gone(served: Served, ask: Ask) -> Iterator[Leave]:
    """The channel is closed."""
    wire = GrpcWire(served.open.grpc)
    future = wire.channel.unary_unary(INFER).future(wire.message(ask).SerializeToString())
    yield wire.close
    del future  # which would have cancelled the call


@contextmanager
def grpc_deadline(served: Served, ask: Ask) -> Iterator[Leave]:
    """The deadline of the call passes; of one that is to be queued it is nearer."""
    wire = GrpcWire(served.open.grpc)
    limit = 0.6 if ask == ask_of(ask.model, -1) else 0.2
    future = wire.channel.unary_unary(INFER).future(wire.message(ask).SerializeToString(), timeout=limit)

    def passes() -> None:
        with suppress(grpc.RpcError):
            future.result(LIMIT_S)
        assert future.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    yield passes
    wire.close()


@contextmanager
def grpc_stream_cancelled(served: Served, ask: Ask) -> Iterator[Leave]:
    """The stream is cancelled."""
    wire = GrpcWire(served.open.grpc)
    call = wire.channel.stream_stream(STREAM)(iter([wire.message(ask).SerializeToString()]))
    yield call.cancel
    wire.close()


@contextmanager
def grpc_stream_gone(served: Served, ask: Ask) -> Iterator[Leave]:
    """The stream's channel is closed."""
    wire = GrpcWire(served.open.grpc)
    call = wire.channel.stream_stream(STREAM)(iter([wire.message(ask).SerializeToString()]))
    yield wire.close
    del call  # which would have cancelled it


@contextmanager
def client_cancelled(served: Served, ask: Ask) -> Iterator[Leave]:
    """The unmodified client's call is cancelled."""
    (tensor,) = ask.inputs
    given = grpc_client.InferInput(tensor.name, list(tensor.shape), tensor.datatype)
    given.set_data_from_numpy(array(tensor))
    with grpc_client.InferenceServerClient(f"127.0.0.1:{served.open.grpc}") as client:
        context = client.async_infer(ask.model, [given], lambda result, error: None)
        yield context.cancel


def array(tensor: Tensor) -> Any:
    from .clients import array_of

    return array_of(tensor)


INFER, STREAM = (f"/inference.GRPCInferenceService/{rpc}" for rpc in ("ModelInfer", "ModelStreamInfer"))

UNARY = [http_gone, grpc_cancelled, grpc_gone, grpc_deadline, client_cancelled]
STREAMED = [http_stream_gone, grpc_stream_cancelled, grpc_stream_gone]

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
def test_bc37_an_ensembles_step_sees_it_and_the_next_never_starts(leaving: Any, served: Served, ways: dict[str, Any]) -> None:
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
    assert wire.answered(grpc_client.service_pb2.ModelInferResponse.FromString(second.result(LIMIT_S))).outputs[0].values == (5,)


def test_a_deadline_is_the_answer_also_where_the_model_does_not_look(ways: dict[str, Any]) -> None:
    """The status is the deadline's, and it comes when the deadline passes."""
    wire: GrpcWire = ways["grpc raw"]
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        wire.channel.unary_unary(INFER)(wire.message(ask_of("patient", -1)).SerializeToString(), timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    assert 0.15 < time.monotonic() - began < 2


def test_queue_is_full(served: Served, ways: dict[str, Any], wire: Any) -> None:
    with grpc_cancelled(served, ask_of("patient", -1)) as leave:
        assert probe.began.wait(LIMIT_S)
        with grpc_cancelled(served, ask_of("patient", 1)), grpc_cancelled(served, ask_of("patient", 2)):
            waiting(served, "patient", 2)
            refused = wire.infer(ask_of("patient", 3, id="q"))
            leave()
    assert refused == Refused("UNAVAILABLE", "[request id: q] Exceeds maximum queue size")


def test_time_out_in_the_queue(served: Served, ways: dict[str, Any], wire: Any) -> None:
    before = counts(ways, "patient")
    with grpc_cancelled(served, ask_of("patient", -1)) as leave:
        assert probe.began.wait(LIMIT_S)
        refused = wire.infer(ask_of("patient", 3, parameters={"timeout": 50_000}))
        assert refused == Refused("UNAVAILABLE", "Request timeout expired")
        leave()
        changed(ways, "patient", before, "fail", 2)


def test_all_is_well_afterwards(ways: dict[str, Any]) -> None:
    for name in WAYS:
        assert ways[name].infer(ask_of("patient", 7)).outputs[0].values == (7,)

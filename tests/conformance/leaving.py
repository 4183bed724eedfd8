"""The ways to ask and to go away before the answer. Each asks, and gives the function that goes away."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from .asks import Ask, Tensor
from .clients import array_of, grpc_client
from .grpc_wire import GrpcWire
from .http_wire import HttpWire
from .serving import Served

__all__ = ["INFER", "LIMIT_S", "STREAM", "STREAMED", "UNARY", "ask_of", "grpc_cancelled", "grpc_deadline"]

LIMIT_S = 5.0

INFER, STREAM = (f"/inference.GRPCInferenceService/{rpc}" for rpc in ("ModelInfer", "ModelStreamInfer"))

Leave = Callable[[], None]


def ask_of(model: str, x: int, **more: Any) -> Ask:
    shape = (1,) if model == "patient_stream" else (1, 1)
    return Ask(model, (Tensor("X", "INT32", shape, (x,)),), **more)


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
    given.set_data_from_numpy(array_of(tensor))
    with grpc_client.InferenceServerClient(f"127.0.0.1:{served.open.grpc}") as client:
        context = client.async_infer(ask.model, [given], lambda result, error: None)
        yield context.cancel


UNARY = [http_gone, grpc_cancelled, grpc_gone, grpc_deadline, client_cancelled]
STREAMED = [http_stream_gone, grpc_stream_cancelled, grpc_stream_gone]

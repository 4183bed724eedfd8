"""Reports of load: what our gRPC server says in the trailers of calls that ask, and what a remote model makes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from network import Network, run_network, serve
from virtual import TestBackend, sleeping, write_repository

from kernel import Batch, InferenceResponse, Kernel, Tensor
from kernel_grpc.http2 import literal
from kernel_grpc.rpc.load_report import load_report
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_remote.calls import Kind
from kernel_remote.choice import LOAD_LASTS, Standing, choose, reported
from kernel_remote.endpoints import Asked, Endpoint, Link
from kernel_remote.loads import Loads
from kernel_remote.settings import Address

SERVICE = "/inference.GRPCInferenceService/"
TENSORS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
X = {"X": np.zeros(1, np.float32)}


def counting(batch: Batch) -> None:
    (request,) = batch.requests
    for number in range(2):
        response = InferenceResponse([Tensor("Y", "FP32", np.full(1, number, np.float32))])
        request.model.scheduler.send(request, response, False)
    request.model.scheduler.send(request, None, True)


BEHAVIOURS = {
    "pair": sleeping(1.0),
    "batches": sleeping(1.0),
    "many": counting,
}
MODELS = {
    "pair": f'backend: "test" {TENSORS} instance_group [ {{ count: 2 kind: KIND_CPU }} ]',
    "batches": f'backend: "test" {TENSORS} max_batch_size: 4 dynamic_batching {{ }}',
    "many": f'backend: "test" {TENSORS} model_transaction_policy {{ decoupled: true }}',
}


@contextlib.asynccontextmanager
async def far(network: Network, folder: Path, host: str = "far") -> AsyncIterator[Kernel]:
    write_repository(folder / host, MODELS)
    async with Kernel(folder / host, plugins=[TestBackend(BEHAVIOURS)]) as kernel:
        _, server = serve(network, kernel, host)
        yield kernel
        server.abort()


async def load_of(endpoint: Endpoint, model: str, form: str, method: str = "ModelInfer", rows: int = 1) -> tuple[int, str]:
    """Ask the far end once; return the status and the report."""
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=[bytes(4)])
    message.inputs.add(name="X", datatype="FP32", shape=[1, 1] if model == "batches" else [1])
    call = Asked(Kind(SERVICE + method, bool(form)), [message.SerializeToString()])
    if form == "json":
        begin = call.begin
        asked, wanted = (literal(b"endpoint-load-metrics-format", one) for one in (b"text", b"JSON"))
        call.begin = lambda wire, head, where: begin(wire, head.replace(asked, wanted), where)  # type: ignore[method-assign]
    endpoint.start(call)
    outcome = await call.outcome
    return outcome.status, outcome.load


def test_our_server_reports_a_models_load_to_who_asks(tmp_path: Path) -> None:
    async def main(network: Network) -> None:
        async with far(network, tmp_path):
            endpoint = Endpoint(Link(Address("far", 8001)), network)
            nobody = "TEXT application_utilization=0, named_metrics.executing=0, named_metrics.pending=0"
            assert await load_of(endpoint, "pair", "") == (0, "")
            assert await load_of(endpoint, "pair", "text") == (0, nobody)
            told = 'JSON {"application_utilization": 0.0, "named_metrics": {"executing": 0, "pending": 0}}'
            assert await load_of(endpoint, "pair", "json") == (0, told)
            assert await load_of(endpoint, "many", "text", "ModelStreamInfer") == (0, nobody)
            assert await load_of(endpoint, "none", "text") == (5, ""), "of a model that isn't there nothing is known"
            asked = [asyncio.create_task(load_of(endpoint, "pair", "text")) for _ in range(5)]
            used = [reported((await one)[1]) for one in asked]
            assert used == [2.0, 2.0, 1.0, 1.0, 0.0], "two at a time"
            asked = [asyncio.create_task(load_of(endpoint, "batches", "text")) for _ in range(9)]
            used = [reported((await one)[1]) for one in asked]
            assert 1.0 <= used[0] <= 1.25 and used[4] == 0.25 and used[-1] == 0.0, "four at a time"
            endpoint.close()

    run_network(main)


def test_a_report_has_a_form() -> None:
    assert load_report("text", 1 / 3, {"a": 2}) == literal(
        b"endpoint-load-metrics", b"TEXT application_utilization=0.333, named_metrics.a=2"
    )
    assert load_report("json", 12.0, {}) == literal(
        b"endpoint-load-metrics", b'JSON {"application_utilization": 12.0, "named_metrics": {}}'
    )


def test_who_reports_load_is_spared_for_a_while() -> None:
    idle, loaded = Standing("a"), Standing("b")
    loaded.report(4.0, 10.0)
    idle.outstanding = 3
    assert choose([idle, loaded], 10.0, lambda: 0.0) is idle
    assert choose([idle, loaded], 10.0 + LOAD_LASTS, lambda: 0.0) is loaded


async def keep_busy(kernel: Kernel) -> None:
    while True:
        await kernel.infer("pair", X)


def test_a_remote_model_heeds_what_endpoints_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two is kept busy by others: ours go to the other one, though nothing of ours waits at either."""
    monkeypatch.setattr(Loads, "_ask", lambda *_: SimpleNamespace(ready=True))

    async def main(network: Network) -> None:
        async with contextlib.AsyncExitStack() as stack:
            kernels = {host: await stack.enter_async_context(far(network, tmp_path, host)) for host in "ab"}
            (tmp_path / "near/pair/1").mkdir(parents=True)
            endpoints = 'parameters { key: "endpoints" value { string_value: "a:8001,b:8001" } }'
            (tmp_path / "near/pair/config.pbtxt").write_text(f'backend: "remote" {TENSORS} {endpoints}')
            near = await stack.enter_async_context(Kernel(tmp_path / "near"))
            others = [asyncio.create_task(keep_busy(kernels["a"])) for _ in range(12)]
            for _ in range(40):
                await asyncio.gather(near.infer("pair", X), near.infer("pair", X))
            done = kernels["b"].statistics("pair")[0].success.count
            for other in others:
                other.cancel()
            await asyncio.sleep(0)
            assert done > 60, "more than every second one"

    run_network(main)


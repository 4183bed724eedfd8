"""Random graphs of calls in virtual time: every request has one answer, and none is refused where nobody calls in a circle.

Executions in greenlets that wait in the middle, and tasks that await calls, one or several at once, and sleep in between.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Client, TestBackend, answer, run, write_repository

from kernel import Batch, InferenceRequest, InferenceResponse, Kernel, Result, Tensor

STUCK = "could only wait for itself"
NAMES = "abcde"

calls = st.tuples(st.just("call"), st.lists(st.integers(0, 4), min_size=1, max_size=3))
sleeps = st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.003, 0.05, 2.0]))
models = st.fixed_dictionaries(
    {
        "is_async": st.booleans(),
        "count": st.integers(1, 2),
        "concurrency": st.integers(1, 2),
        "steps": st.lists(st.one_of(calls, calls, sleeps), max_size=3),
    }
)
graphs = st.lists(models, min_size=2, max_size=5)
sends = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.0, 0.001, 0.04])), min_size=1, max_size=10)


class Call(asyncio.Future[InferenceResponse]):
    """The future of an answer, as a backend has it: it names the request."""

    request: InferenceRequest


class Model:
    """One model of the graph. `acyclic`: it calls those after it only, so that nobody ever waits for himself."""

    def __init__(self, place: int, how: dict[str, Any], acyclic: bool, count: int, kernels: list[Kernel]) -> None:
        self.kernels = kernels
        self.steps: list[tuple[str, Any]] = []
        for what, value in how["steps"]:
            if what == "call":
                places = {one % count for one in value} if not acyclic else {one for one in value if place < one < count}
                if places:
                    self.steps.append((what, [NAMES[one] for one in sorted(places)]))
            elif how["is_async"]:
                self.steps.append((what, value))

    def request(self, batch: Batch, target: str, respond: Any) -> InferenceRequest:
        left = batch.requests[0].inputs["X"].array - 1
        return InferenceRequest(target, {"X": Tensor("X", "FP32", left)}, respond, parent=batch)

    def is_last(self, batch: Batch) -> bool:
        return bool(batch.requests[0].inputs["X"].array[0] <= 0)

    def plain(self, batch: Batch) -> Result:
        kernel = self.kernels[0]
        for what, targets in [] if self.is_last(batch) else self.steps:
            assert what == "call"
            for target in targets:
                response = kernel.wait(self.request(batch, target, lambda response, final: None), batch)
                assert response is not None
                if response.error is not None:
                    return [InferenceResponse([], error=response.error)]
        return [answer(batch.requests[0])]

    async def task(self, batch: Batch) -> Result:
        for what, value in [] if self.is_last(batch) else self.steps:
            if what == "sleep":
                await asyncio.sleep(value)
                continue
            for response in await asyncio.gather(*(self.call(batch, target) for target in value)):
                if response.error is not None:
                    return [InferenceResponse([], error=response.error)]
        return [answer(batch.requests[0])]

    def call(self, batch: Batch, target: str) -> Call:
        kernel = self.kernels[0]
        future = Call(loop=kernel.loop)
        future.request = self.request(batch, target, lambda response, final: future.done() or future.set_result(response))
        kernel.submit(future.request)
        return future


def serve(graph: list[dict[str, Any]], sent: list[tuple[int, float]], acyclic: bool) -> list[str]:
    """Return what came of each request: "ok", or the error."""
    kernels: list[Kernel] = []
    outcomes: list[str] = []

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            texts, behaviours = {}, {}
            for place, how in enumerate(graph):
                model = Model(place, how, acyclic, len(graph), kernels)
                behaviours[NAMES[place]] = model.task if how["is_async"] else model.plain
                concurrency = how["concurrency"] if how["is_async"] else 1
                texts[NAMES[place]] = (
                    BASE.replace("count: 1", f"count: {how['count']}")
                    + f'parameters {{ key: "max_concurrency" value {{ string_value: "{concurrency}" }} }}\n'
                )
            write_repository(Path(folder), texts)
            backend = TestBackend(behaviours)
            async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
                kernels.append(kernel)
                client = Client(kernel)
                for number, (place, pause) in enumerate(sent):
                    client.send(NAMES[place % len(graph)], str(number), np.array([3.0], np.float32))
                    if pause:
                        await asyncio.sleep(pause)
                await asyncio.sleep(1000)
                outcomes.extend(client.outcome(str(number))[1] for number in range(len(sent)))
                assert all(not one.scheduler.in_flight for one in kernel.models())

    run(main())
    return outcomes


@settings(max_examples=80, deadline=None)
@given(graphs, sends)
def test_every_request_has_one_answer(graph: list[dict[str, Any]], sent: list[tuple[int, float]]) -> None:
    for outcome in serve(graph, sent, acyclic=False):
        assert outcome == "ok" or STUCK in outcome, outcome


@settings(max_examples=60, deadline=None)
@given(graphs, sends)
def test_without_a_circle_none_is_refused(graph: list[dict[str, Any]], sent: list[tuple[int, float]]) -> None:
    assert set(serve(graph, sent, acyclic=True)) == {"ok"}


@pytest.mark.parametrize("width", [2, 8])
def test_a_call_is_served_while_those_before_it_go_on(width: int) -> None:
    """All wait for one slow model, nobody in a circle: looked at again and again, and left alone."""
    slow = {"is_async": True, "count": 1, "concurrency": 1, "steps": [("sleep", 2.0)]}
    outer = {"is_async": True, "count": 2, "concurrency": 2, "steps": [("call", [1])]}
    assert serve([outer, slow], [(0, 0.0)] * width, acyclic=True) == ["ok"] * width


@pytest.mark.parametrize(("calls", "looked_after"), [(False, 0), (True, 1)])
def test_only_a_call_of_a_model_that_calls_is_looked_after(calls: bool, looked_after: int, tmp_path: Path) -> None:
    """A model that waits for no call is in no circle; should it ever be, its own call comes later, and is looked after then."""
    futures: list[asyncio.Future[InferenceResponse]] = []

    async def calling(batch: Batch, target: str) -> Result:
        kernel = batch.instance.executor.context.kernel
        futures.append(future := kernel.loop.create_future())
        inputs = dict(batch.requests[0].inputs)
        kernel.submit(InferenceRequest(target, inputs, lambda response, final: future.set_result(response), parent=batch))
        return [await future]

    async def busy(batch: Batch) -> Result:
        if calls:
            await calling(batch, "leaf")
        else:
            await asyncio.sleep(1.0)
        return [answer(batch.requests[0])]

    async def leaf(batch: Batch) -> Result:
        await asyncio.sleep(1.0)
        return [answer(batch.requests[0])]

    async def outer(batch: Batch) -> Result:
        return await calling(batch, "busy")

    async def main() -> None:
        one = 'parameters { key: "max_concurrency" value { string_value: "1" } }\n'
        write_repository(tmp_path, dict.fromkeys(("busy", "leaf", "outer"), BASE + one))
        backend = TestBackend({"busy": busy, "leaf": leaf, "outer": outer})
        async with Kernel(tmp_path, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
            client = Client(kernel)
            for name, model in enumerate(("leaf", "busy", "outer")):
                client.send(model, str(name), np.ones(1, np.float32))
                await asyncio.sleep(0.001)
            assert sum(map(len, kernel.supervision.lookout._waiting)) == looked_after
            await asyncio.sleep(5.0)
            assert [client.outcome(name)[1] for name in "012"] == ["ok"] * 3

    run(main())

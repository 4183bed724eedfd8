"""The law of the core, under random histories in virtual time.

Whatever is sent, cancelled, advanced, failed or unloaded: every request gets exactly one final answer, no batch exceeds its
size, the order is first come first served within a priority, and nothing is left behind.
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
from virtual import BASE, Client, TestBackend, answer, echo, run, write_repository

from kernel import Batch, Code, InferenceResponse, Kernel, RequestState, Result, Tensor

pytestmark = pytest.mark.usefixtures("either_way")

configs = st.fixed_dictionaries(
    {
        "instances": st.integers(1, 3),
        "concurrency": st.integers(1, 3),
        "batching": st.none()
        | st.fixed_dictionaries(
            {
                "max": st.integers(1, 8),
                "preferred": st.none() | st.integers(1, 8),
                "delay": st.sampled_from([0, 1000, 50_000]),
                "ordering": st.booleans(),
                "levels": st.sampled_from([0, 0, 3]),
                "timeout": st.sampled_from([0, 0, 30_000]),
                "delay_action": st.booleans(),
                "limit": st.sampled_from([0, 0, 2]),
            }
        ),
    }
)

sends = st.tuples(st.just("send"), st.integers(1, 4), st.integers(0, 4), st.sampled_from([None, None, 0.02, 5.0]))
steps = st.lists(
    st.one_of(
        sends,
        sends,
        sends,
        st.tuples(st.just("send"), st.integers(1, 4), st.integers(0, 4), st.sampled_from([None, None, 0.02, 5.0])),
        st.tuples(st.just("call"), st.integers(1, 2), st.just(0), st.none()),
        st.tuples(st.just("advance"), st.sampled_from([0.0, 0.001, 0.01, 0.06, 1.0])),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("unload")),
        st.tuples(st.just("load")),
    ),
    min_size=4,
    max_size=60,
)

behaviours = st.lists(
    st.tuples(st.sampled_from(["now", "later", "fail", "error", "short", "none"]), st.sampled_from([0.0, 0.005, 0.04])),
    min_size=1,
    max_size=6,
)


def text(how: dict[str, Any]) -> str:
    config = BASE.replace("count: 1", f"count: {how['instances']}")
    config += f'parameters {{ key: "max_concurrency" value {{ string_value: "{how["concurrency"]}" }} }}\n'

    batching = how["batching"]
    if batching is None:
        return config
    preferred = min(batching["preferred"] or batching["max"], batching["max"])
    ordering = batching["ordering"] and not batching["levels"] and not batching["delay_action"]
    return (
        config
        + f"max_batch_size: {batching['max']}\n"
        + "dynamic_batching {\n"
        + f"  preferred_batch_size: [{preferred}]\n"
        + f"  max_queue_delay_microseconds: {batching['delay']}\n"
        + f"  preserve_ordering: {str(ordering).lower()}\n"
        + (f"  priority_levels: {batching['levels']} default_priority_level: 2\n" if batching["levels"] else "")
        + "  default_queue_policy {\n"
        + f"    default_timeout_microseconds: {batching['timeout']} max_queue_size: {batching['limit']}\n"
        + f"    timeout_action: {'DELAY' if batching['delay_action'] else 'REJECT'}\n"
        + "  }\n}\n"
    )


class World:
    """The model under test and what it has seen."""

    def __init__(self, how: dict[str, Any], plan: list[tuple[str, float]]) -> None:
        self.how = how
        self.plan = plan
        self.executions = 0
        self.running: dict[object, int] = {}
        self.broken: list[str] = []
        self.kernel: Kernel
        batching = how["batching"]
        self.limit = batching["max"] if batching else 4

    def expect(self, holds: bool, law: str) -> None:
        """An assertion in a model would only be an answer; here it is kept for the end."""
        if not holds:
            self.broken.append(law)

    async def execute(self, batch: Batch) -> Result:
        self.expect(batch.size == sum(request.batch_size for request in batch.requests), "rows are miscounted")
        self.expect(any(one.state is RequestState.EXECUTING for one in batch.requests), "executed for nobody")
        batching = self.how["batching"]
        if batching is None:
            self.expect(len(batch.requests) == 1, "requests are merged without dynamic_batching")
        else:
            self.expect(batch.size <= batching["max"], "a batch exceeds its size")
            self.check_order(batch)
        instance = batch.instance
        self.running[instance] = self.running.get(instance, 0) + 1
        self.expect(self.running[instance] <= self.how["concurrency"], "an instance has more than its capacity")
        what, seconds = self.plan[self.executions % len(self.plan)]
        self.executions += 1
        try:
            if seconds:
                await asyncio.sleep(seconds)
            if what == "fail":
                raise ValueError("planned")
            if what == "short":
                return []
            if what == "later":
                for request in batch.requests:
                    self.kernel.loop.call_later(0.01, self.kernel.send, request, answer(request), True)
                return None
            if what == "none":
                for request in batch.requests:
                    self.kernel.send(request, answer(request), True)
                return [None] * len(batch.requests)
            if what == "error":
                return [InferenceResponse.failure(Code.NOT_FOUND, "planned") for _ in batch.requests]
            return echo(batch)  # type: ignore[return-value]
        finally:
            self.running[instance] -= 1

    def check_order(self, batch: Batch) -> None:
        levels = self.how["batching"]["levels"]
        if self.how["batching"]["delay_action"]:
            return
        ranks = [
            ((request.priority if 0 < request.priority <= levels else 2) if levels else 0, request.order)
            for request in batch.requests
        ]
        self.expect(ranks == sorted(ranks), "not first come first served within a priority")


async def caller(world: World, batch: Batch) -> Result:
    """A second model that passes each request on to the first."""
    responses: list[InferenceResponse | None] = []
    for request in batch.requests:
        done: asyncio.Future[InferenceResponse] = world.kernel.loop.create_future()
        child = type(request)(
            "m",
            {"X": Tensor("X", "FP32", request.inputs["X"].array.copy())},
            lambda response, final, done=done: done.done() or done.set_result(response),
            parent=batch,
        )
        world.kernel.submit(child)
        responses.append(await done)
    return responses


@settings(deadline=None, max_examples=300)
@given(how=configs, plan=behaviours, history=steps)
def test_exactly_one_final_answer(how: dict[str, Any], plan: list[tuple[str, float]], history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder), how, plan, history))


async def story(folder: Path, how: dict[str, Any], plan: list[tuple[str, float]], history: list[Any]) -> None:
    world = World(how, plan)

    async def call(batch: Batch) -> Result:
        return await caller(world, batch)

    outer = BASE + 'parameters { key: "max_concurrency" value { string_value: "3" } }\n'
    if how["batching"]:
        outer += f"max_batch_size: {how['batching']['max']}\n"
    write_repository(folder, {"m": text(how), "outer": outer})
    backend = TestBackend({"m": world.execute, "outer": call})
    async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
        world.kernel = kernel
        client = Client(kernel)
        sent: list[str] = []
        for step in history:
            match step:
                case ("send" | "call") as kind, rows, priority, patience:
                    id = str(len(sent))
                    value = np.zeros((min(rows, world.limit), 2)) if how["batching"] else np.zeros(2)
                    deadline = None if patience is None else kernel.clock() + patience
                    model = "m" if kind == "send" else "outer"
                    client.send(model, id, value, priority=priority, deadline=deadline)
                    sent.append(id)
                case "advance", seconds:
                    await asyncio.sleep(seconds)
                case "cancel", index:
                    if sent:
                        kernel.cancel(client.requests[sent[index % len(sent)]])
                case ("unload",):
                    kernel.unload("m")
                case ("load",):
                    await kernel.load("m")
        await asyncio.sleep(60)
        assert not world.broken
        for id in sent:
            client.outcome(id)  # asserts that there is one final answer
        await kernel.load("m")
        for model in kernel.models():
            scheduler = model.scheduler
            assert (scheduler.in_flight, scheduler.pending, len(scheduler.queue)) == (0, 0, 0)
            assert all(not instance.outstanding and not instance.running for instance in scheduler.instances)
            assert not scheduler.life.open and not scheduler.life.ordering
            counted = model.statistics()
            assert counted.fail.count == sum(counted.failures.values())

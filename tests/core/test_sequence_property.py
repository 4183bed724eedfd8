"""The laws of sequences under random histories in virtual time.

Whatever is begun, continued, ended, cancelled, left alone, failed, asked for again, unloaded: every request gets exactly one
final answer; the requests of a sequence are executed in order and one at a time; no sequence sees another's state; no instance
has more sequences than slots, no execution more requests than it may; and nothing is left behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from stateful import CONTROLS, END, START, STATE
from virtual import BASE, Client, TestBackend, answer, run, write_repository

from kernel import (
    RESCHEDULED,
    Batch,
    Code,
    InferenceRequest,
    InferenceResponse,
    Kernel,
    RequestState,
    Result,
    ServingError,
    Tensor,
)

configs = st.fixed_dictionaries(
    {
        "instances": st.integers(1, 3),
        "rows": st.integers(1, 4),
        "oldest": st.booleans(),
        "candidates": st.integers(1, 5),
        "concurrency": st.integers(1, 3),
        "delay": st.sampled_from([0, 0, 20_000]),
        "utilization": st.sampled_from([0.0, 0.5, 1.0]),
        "idle": st.sampled_from([30_000, 1_000_000]),
        "iterative": st.booleans(),
    }
)
flags = st.sampled_from([0, 0, 0, START, START, END, START | END])
sends = st.tuples(
    st.just("send"), st.integers(0, 5), flags, st.sampled_from([0, 0, 0, 20_000]), st.sampled_from([None, None, 0.03])
)
steps = st.lists(
    st.one_of(
        sends,
        sends,
        sends,
        sends,
        st.tuples(st.just("advance"), st.sampled_from([0.0, 0.001, 0.01, 0.04, 1.5])),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("unload")),
        st.tuples(st.just("load"), st.integers(1, 3)),
    ),
    min_size=4,
    max_size=60,
)
plans = st.lists(
    st.tuples(st.sampled_from(["now", "now", "later", "fail", "error", "again"]), st.sampled_from([0.0, 0.005, 0.05])),
    min_size=1,
    max_size=6,
)


def text(how: dict[str, Any], instances: int) -> str:
    if how["oldest"]:
        strategy = (
            f"oldest {{ max_candidate_sequences: {how['candidates']} max_queue_delay_microseconds: {how['delay']} }}"
        )
    else:
        strategy = (
            f"direct {{ max_queue_delay_microseconds: {how['delay']} minimum_slot_utilization: {how['utilization']} }}"
        )
    return (
        BASE.replace("count: 1", f"count: {instances}")
        + f"max_batch_size: {how['rows']}\n"
        + f'parameters {{ key: "max_concurrency" value {{ string_value: "{how["concurrency"]}" }} }}\n'
        + f"sequence_batching {{ {strategy} max_sequence_idle_microseconds: {how['idle']} {CONTROLS} {STATE}"
        + f" iterative_sequence: {str(how['iterative']).lower()} }}\n"
    )


class World:
    """The model and what it has seen. A request says in X which sequence it belongs to and its place in it."""

    def __init__(self, how: dict[str, Any], plan: list[tuple[str, float]]) -> None:
        self.how = how
        self.plan = plan
        self.executions = 0
        self.running: set[int] = set()
        self.places: dict[int, int] = {}  # sequence -> place of the last request that was executed
        self.broken: list[str] = []
        self.kernel: Kernel

    def expect(self, holds: bool, law: str) -> None:
        if not holds:
            self.broken.append(law)

    async def execute(self, batch: Batch) -> Result:
        real = [request for request in batch.requests if request.inputs["READY"].array.item()]
        self.expect(len(batch.requests) <= self.how["rows"], "an execution has too many requests")
        self.expect(bool(real), "nothing but null requests")
        self.expect(len(real) == len(batch.requests) or not self.how["oldest"], "a null request with oldest")
        slots = self.how["candidates"] if self.how["oldest"] else self.how["rows"]
        taken = batch.instance.owner.queue._sequencer.occupied(batch.instance)
        self.expect(taken <= slots, "an instance has more sequences than slots")
        what, seconds = self.plan[self.executions % len(self.plan)]
        self.executions += 1
        mine = [self.look(request) for request in real]
        self.expect(len(set(mine)) == len(mine), "two requests of a sequence in one execution")
        try:
            if seconds:
                await asyncio.sleep(seconds)
            if what == "fail":
                raise ValueError("planned")
            return [
                self.answered(request, what) if request in real else InferenceResponse([]) for request in batch.requests
            ]
        finally:
            self.running.difference_update(mine)

    def look(self, request: InferenceRequest) -> int:
        sequence, place = (int(number) for number in request.inputs["X"].array[0])
        state, count = (int(number) for number in request.inputs["S"].array[0])
        start = bool(request.inputs["START"].array.item())
        self.expect(sequence not in self.running, "two requests of a sequence at a time")
        last = self.places.get(sequence, -1)
        again = self.how["iterative"] and not start and place == last
        self.expect(place > last or again, "the order of a sequence is not kept")
        self.expect(start == (place == 0 and not again), "START where there is none, or none where it is")
        if start:
            self.expect((state, count) == (0, 0), "a sequence begins with another's state")
        else:
            self.expect(state in (0, sequence) and count <= place + 1000 * again, "a sequence sees another's state")
        self.places[sequence] = place
        self.running.add(sequence)
        return sequence

    def answered(self, request: InferenceRequest, what: str) -> InferenceResponse | None:
        if what == "error":
            return InferenceResponse([], error=ServingError(Code.NOT_FOUND, "planned"))
        if what == "again" and self.how["iterative"] and self.executions % 7:
            return RESCHEDULED  # type: ignore[no-any-return]
        sequence, place = (int(number) for number in request.inputs["X"].array[0])
        response = answer(request)
        response.outputs.append(Tensor("S_NEXT", "INT32", np.array([[sequence, place + 1]], np.int32)))
        if what == "later":
            self.kernel.loop.call_later(0.01, self.kernel.send, request, response, True)
            return None
        return response


@settings(deadline=None, max_examples=120)
@given(how=configs, plan=plans, history=steps)
def test_the_laws_of_sequences(how: dict[str, Any], plan: list[tuple[str, float]], history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder), how, plan, history))


async def story(folder: Path, how: dict[str, Any], plan: list[tuple[str, float]], history: list[Any]) -> None:
    world = World(how, plan)
    write_repository(folder, {"m": text(how, how["instances"])})
    backend = TestBackend({"m": world.execute})
    async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
        world.kernel = kernel
        client = Client(kernel)
        sent: list[str] = []
        current: dict[int, tuple[int, int]] = {}  # id -> the sequence, and the place of its next request
        for step in history:
            match step:
                case "send", id, wanted, timeout, patience:
                    name = str(len(sent))
                    begins = bool(wanted & START) or id == 0
                    sequence, place = (len(sent) + 1, 0) if begins else current.get(id, (0, 0))
                    request = client.send(
                        "m",
                        name,
                        [[sequence, place]],
                        correlation_id=id,
                        flags=wanted,
                        timeout_us=timeout,
                        deadline=None if patience is None else kernel.clock() + patience,
                    )
                    sent.append(name)
                    if request.state is not RequestState.RELEASED:
                        world.expect(bool(sequence), "accepted without a sequence")
                        current[id] = (sequence, place + 1)
                case "advance", seconds:
                    await asyncio.sleep(seconds)
                case "cancel", index:
                    if sent:
                        kernel.cancel(client.requests[sent[index % len(sent)]])
                case ("unload",):
                    kernel.unload("m")
                case "load", instances:
                    (folder / "m" / "config.pbtxt").write_text(text(how, instances))
                    await kernel.load("m")
        await asyncio.sleep(60)
        assert not world.broken
        for name in sent:
            client.outcome(name)  # asserts that there is one final answer
        await kernel.load("m")
        scheduler = kernel.model("m").scheduler
        assert (scheduler.in_flight, scheduler.pending, len(scheduler.queue)) == (0, 0, 0)
        assert scheduler.queue._sequencer.alive == 0  # type: ignore[attr-defined]
        queue: Any = scheduler.queue
        assert not queue._sequencer._sequence_of and not queue._memories and not queue._sequencer.backlogged
        assert all(not instance.outstanding and not instance.running for instance in scheduler.instances)
        assert not scheduler.life.open
        counted = kernel.model("m").statistics()
        assert counted.fail.count == sum(counted.failures.values())

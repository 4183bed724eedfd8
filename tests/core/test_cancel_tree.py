"""Cancellation and deadlines as one tree, in virtual time: when a request ends, all that it has called ends with it.

Queued descendants leave their queues at that moment, running ones see `is_cancelled`, what is called afterwards is refused, and
the statistics of every model on the way have counted it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Behaviour, Client, TestBackend, Watched, echo, run, write_repository

from kernel import Batch, InferenceRequest, InferenceResponse, Kernel, LocalCache, RequestState, Result, Tensor

pytestmark = pytest.mark.usefixtures("either_way")

RELEASED = RequestState.RELEASED
MANY = 'parameters { key: "max_concurrency" value { string_value: "8" } }\n'
POLL_SECONDS = 0.05

ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def ensemble(*models: str) -> str:
    """Return the config of an ensemble that calls `models` one after another."""
    names = ["X", *(f"T{k}" for k in range(len(models) - 1)), "Y"]
    steps = [
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "{taken}" }} '
        f'output_map {{ key: "Y" value: "{given}" }} }}'
        for model, taken, given in zip(models, names, names[1:], strict=False)
    ]
    return ENSEMBLE + "ensemble_scheduling { " + "\n".join(steps) + " }\n"


class Forest:
    """The models of a test, what they have called, and what they have seen. All have input X and output Y."""

    def __init__(self) -> None:
        self.kernel: Kernel
        self.calls: list[tuple[InferenceRequest, Batch]] = []
        self.noticed: list[tuple[str, float]] = []  # model, and when it saw that nobody waits for it
        self.refused = 0

    def polling(self, name: str, seconds: float) -> Behaviour:
        """Return a behaviour that takes `seconds`, and looks now and then whether anybody still waits."""

        async def execute(batch: Batch) -> Result:
            loop = self.kernel.loop
            end = loop.time() + seconds
            while loop.time() < end:
                await asyncio.sleep(min(POLL_SECONDS, end - loop.time()))
                if all(request.is_cancelled for request in batch.requests):
                    self.noticed.append((name, round(loop.time() - 1000, 6)))
                    break
            return echo(batch)  # type: ignore[return-value]

        return execute

    def calling(self, *models: str, seconds: float = 0.0, together: bool = False) -> Behaviour:
        """Return a behaviour that calls `models` one after another, or all at once, `seconds` after it has begun."""

        async def execute(batch: Batch) -> Result:
            await asyncio.sleep(seconds)
            if together:
                await asyncio.gather(*(self.call(model, batch) for model in models))
            else:
                for model in models:
                    await self.call(model, batch)
            return echo(batch)  # type: ignore[return-value]

        return execute

    async def call(self, model: str, batch: Batch) -> None:
        done: asyncio.Future[InferenceResponse | None] = self.kernel.loop.create_future()
        array = batch.requests[0].inputs["X"].array if batch.requests[0].inputs else np.zeros(1, np.float32)
        tensor = Tensor("X", "FP32", array.copy())
        request = Watched(model, {"X": tensor}, lambda response, final: done.set_result(response), parent=batch, id="call")
        self.calls.append((request, batch))
        self.kernel.submit(request)
        response = await done
        if response is not None and response.error is not None:
            raise response.error

    def check(self) -> None:
        """No call is alive whose maker nobody waits for any more; what is called by the dead is dead."""
        for request, batch in self.calls:
            if request.state is not RELEASED:
                assert any(one.state is not RELEASED for one in batch.requests), f"{request} outlives its maker"
        for model in self.kernel.models():
            scheduler = model.scheduler
            waiting = list(scheduler.queue)
            assert all(request.state is RequestState.PENDING for request in waiting)
            assert len(waiting) == scheduler.queue.size, "what is dead keeps its place"


def grow(
    folder: Path,
    models: Mapping[str, str],
    behaviours: Callable[[Forest], Mapping[str, Behaviour]],
    main: Callable[[Client, Forest, TestBackend], Any],
    **options: Any,
) -> None:
    async def story() -> None:
        forest = Forest()
        backend = TestBackend(behaviours(forest))
        write_repository(folder, models)
        async with Kernel(folder, plugins=[backend], **options) as kernel:
            forest.kernel = kernel
            client = Client(kernel)
            await main(client, forest, backend)
            await asyncio.sleep(100)
            forest.check()
            for model in kernel.models():
                assert (model.scheduler.in_flight, model.scheduler.pending) == (0, 0), model.name
                assert all(not instance.outstanding for instance in model.scheduler.instances), model.name

    run(story())


def failures(kernel: Kernel, model: str) -> dict[str, int]:
    """Return what went wrong, by reason."""
    (record,) = kernel.statistics(model)
    assert record.fail.count == sum(record.failures.values())
    return {reason: count for reason, count in record.failures.items() if count}


CHAIN = {"a": BASE, "b": BASE, "c": BASE}


def chain(forest: Forest) -> dict[str, Behaviour]:
    return {"a": forest.calling("b"), "b": forest.calling("c"), "c": forest.polling("c", 2.0)}


@pytest.mark.parametrize("deadline", [False, True])
def test_the_grandchild_that_runs_sees_it(tmp_path: Path, deadline: bool) -> None:
    async def main(client: Client, forest: Forest, backend: TestBackend) -> None:
        kernel = client.kernel
        root = client.send("a", "r", deadline=kernel.clock() + 0.51 if deadline else None)
        await asyncio.sleep(0.51)
        if not deadline:
            kernel.cancel(root)
        forest.check()
        assert [request.is_cancelled for request, _ in forest.calls] == [True, True]
        await asyncio.sleep(1)
        assert forest.noticed == [("c", 0.55)]
        when, words = client.outcome("r")
        assert when == 0.51
        assert ("deadline of the request to model 'a' passed after 0.510 s while it was executing" in words) is deadline
        for name in "abc":
            assert failures(kernel, name) == {"CANCELED": 1}, name
            assert kernel.statistics(name)[0].success.count == 0

    grow(tmp_path, CHAIN, chain, main)


@pytest.mark.parametrize("deadline", [False, True])
def test_the_grandchild_that_waits_gives_its_place_back(tmp_path: Path, deadline: bool) -> None:
    """`c` takes one at a time and its queue holds one: whoever waits in vain must not keep others out."""
    policy = "max_batch_size: 1\ndynamic_batching { default_queue_policy { max_queue_size: 1 } }\n"

    async def main(client: Client, forest: Forest, backend: TestBackend) -> None:
        kernel = client.kernel
        client.send("c", "busy", [[1]])
        await asyncio.sleep(0.1)
        root = client.send("a", "r", [[2]], deadline=kernel.clock() + 0.39 if deadline else None)
        await asyncio.sleep(0.2)
        assert len(kernel.model("c").scheduler.queue) == 1
        client.send("c", "refused", [[3]])
        assert client.outcome("refused")[1].endswith("Exceeds maximum queue size")
        await asyncio.sleep(0.2)
        if not deadline:
            kernel.cancel(root)
        forest.check()
        assert len(kernel.model("c").scheduler.queue) == 0
        client.send("c", "next", [[4]])
        await asyncio.sleep(10)
        assert client.outcome("next") == (4, "ok")
        assert backend.executions("c") == [["busy"], ["next"]]
        assert failures(kernel, "c") == failures(kernel, "b") == failures(kernel, "a") == {"CANCELED": 1}
        assert forest.noticed == []

    models = {name: config + "max_batch_size: 1\n" for name, config in CHAIN.items()}
    grow(tmp_path, {**models, "c": BASE + policy}, chain, main)


def test_all_branches_end(tmp_path: Path) -> None:
    """One that runs, one that waits, one that is called afterwards, and an ensemble in the middle of its steps."""

    def behaviours(forest: Forest) -> dict[str, Behaviour]:
        return {
            "root": forest.calling("runs", "runs", "steps", "late", together=True),
            "runs": forest.polling("runs", 5.0),
            "step": forest.polling("step", 5.0),
            "late": forest.calling("runs", seconds=1.0),
        }

    async def main(client: Client, forest: Forest, backend: TestBackend) -> None:
        kernel = client.kernel
        root = client.send("root", "r")
        await asyncio.sleep(0.53)
        kernel.cancel(root)
        forest.check()
        await asyncio.sleep(10)
        assert sorted(forest.noticed) == [("runs", 0.55), ("step", 0.55)]
        assert len(backend.executions("runs")) == 1, "the second waited, the third came too late"
        assert len(backend.executions("step")) == 1, "the second step never starts"
        assert failures(kernel, "runs") == {"CANCELED": 2}
        assert kernel.model("runs").scheduler.statistics.refused == 1
        for name in ("root", "steps", "step", "late"):
            assert failures(kernel, name) == {"CANCELED": 1}, name

    names = ("root", "runs", "step", "late")
    models = {**dict.fromkeys(names, BASE), "steps": ensemble("step", "step")}
    grow(tmp_path, models, behaviours, main)


def test_a_call_ends_only_with_the_last_of_those_it_is_made_for(tmp_path: Path) -> None:
    """An execution of three requests can't say for which of them it calls."""
    batching = "max_batch_size: 4\ndynamic_batching { }\n"

    async def main(client: Client, forest: Forest, backend: TestBackend) -> None:
        kernel = client.kernel
        clock = kernel.clock()
        client.send("a", "cancelled", [[1]])
        client.send("a", "late", [[1]], deadline=clock + 0.3)
        client.send("a", "last", [[1]], deadline=clock + 0.6)
        await asyncio.sleep(0.1)
        assert backend.executions("a") == [["cancelled", "late", "last"]]
        kernel.cancel(client.requests["cancelled"])
        await asyncio.sleep(0.35)
        assert not forest.calls[0][0].is_cancelled
        await asyncio.sleep(1)
        assert forest.noticed == [("c", 0.65)]
        assert [client.outcome(id)[0] for id in ("cancelled", "late", "last")] == [0.1, 0.3, 0.6]
        assert failures(kernel, "a") == {"CANCELED": 3}
        assert failures(kernel, "c") == {"CANCELED": 1}

    models = {"a": BASE + batching, "c": BASE + "max_batch_size: 4\n"}
    grow(tmp_path, models, lambda forest: {"a": forest.calling("c"), "c": forest.polling("c", 2.0)}, main)


def test_the_time_out_of_a_call_is_the_called_models_business(tmp_path: Path) -> None:
    """The parameter `timeout` holds in the queue of who has a policy for it, for calls and steps as for everybody."""
    policy = """
        max_batch_size: 1
        dynamic_batching {
          default_queue_policy { default_timeout_microseconds: 1000000 allow_timeout_override: true }
        }
    """

    async def main(client: Client, forest: Forest, backend: TestBackend) -> None:
        kernel = client.kernel
        client.send("c", "busy", [[1]])
        await asyncio.sleep(0.1)
        client.send("e", "r", [[2]], timeout_us=300_000)
        await asyncio.sleep(0.2)
        assert client.answers["r"] == []
        await asyncio.sleep(1)
        assert client.outcome("r") == (0.4, "in ensemble 'e', step 0 (model 'c'): Request timeout expired")
        assert failures(kernel, "c") == {"REJECTED": 1}
        assert failures(kernel, "e") == {"OTHER": 2}, "as every failure of an ensemble's step"
        await asyncio.sleep(2)
        client.send("e", "executing", [[2]], timeout_us=300_000)  # of no effect once it executes
        await asyncio.sleep(10)
        assert client.outcome("executing")[1] == "ok"

    models = {"c": BASE + policy, "e": ensemble("c") + "max_batch_size: 1\n"}
    grow(tmp_path, models, lambda forest: {"c": forest.polling("c", 2.0)}, main)


def test_the_error_of_a_call_is_its_makers_failure_not_its_cancellation(tmp_path: Path) -> None:
    """`a` passes on that `c` was cancelled: nobody has cancelled `a`, and what it does then is still worth doing."""

    async def main(client: Client, forest: Forest, backend: TestBackend) -> None:
        kernel = client.kernel
        root = client.send("a", "r")
        await asyncio.sleep(0.5)
        kernel.cancel(forest.calls[0][0])
        await asyncio.sleep(1)
        assert client.outcome("r") == (0.5, "[request id: call] Request cancelled")
        assert not root.is_cancelled
        assert failures(kernel, "a") == {"BACKEND": 1}
        assert failures(kernel, "c") == {"CANCELED": 1}

    models = {"a": BASE, "c": BASE}
    grow(tmp_path, models, lambda forest: {"a": forest.calling("c"), "c": forest.polling("c", 2.0)}, main)


def test_a_cached_callee_is_cancelled_like_any_other(tmp_path: Path) -> None:
    async def main(client: Client, forest: Forest, backend: TestBackend) -> None:
        kernel = client.kernel
        root = client.send("a", "r")
        await asyncio.sleep(0.51)
        kernel.cancel(root)
        await asyncio.sleep(5)
        assert forest.noticed == [("c", 0.55)]
        assert kernel.cache is not None and kernel.cache.figures().usage.entries == 0
        client.send("c", "again")
        await asyncio.sleep(5)
        assert client.outcome("again") == (7.51, "ok")

    models = {**CHAIN, "c": BASE + "response_cache { enable: true }\n"}
    grow(tmp_path, models, chain, main, cache=LocalCache(1 << 16))


def test_unloading_in_time_is_no_cancellation_and_shutdown_in_the_end_is(tmp_path: Path) -> None:
    async def story() -> None:
        forest = Forest()
        backend = TestBackend(chain(forest))
        kernel = forest.kernel = Kernel(write_repository(tmp_path, CHAIN), plugins=[backend])
        await kernel.start()
        client = Client(kernel)
        client.send("a", "r")
        await asyncio.sleep(0.51)
        await kernel.stop(0.5)
        assert client.outcome("r")[0] == 1.01
        assert "Server is stopping" in client.outcome("r")[1]
        assert all(request.state is RELEASED for request, _ in forest.calls)
        await asyncio.sleep(5)

    run(story())


# -- any tree --------------------------------------------------------------------------------------------------------------

LEAVES = ("leaf", "batches", "kept")
INNER = ("one", "two", "fan")
NAMES = (*LEAVES, *INNER, "steps")

history = st.lists(
    st.one_of(
        *[
            st.tuples(
                st.just("send"),
                st.sampled_from(NAMES),
                st.integers(0, 3),
                st.sampled_from([None, None, 0.0, 0.07, 0.3]),
            )
        ]
        * 3,
        st.tuples(st.just("advance"), st.sampled_from([0.0, 0.01, 0.06, 0.3])),
        st.tuples(st.just("cancel"), st.integers(0, 40)),
        st.tuples(st.just("cancel inside"), st.integers(0, 40)),
    ),
    min_size=4,
    max_size=40,
)


@given(history, st.integers(1, 2), st.sampled_from([0.0, 0.02, 0.2]))
@settings(max_examples=60, deadline=None)
def test_any_tree(steps: Sequence[Any], count: int, seconds: float) -> None:
    """Nobody outlives its maker, nobody keeps a place for nothing, everybody is answered once and counted once."""
    base = (BASE + "max_batch_size: 2\n").replace("count: 1", f"count: {count}")
    models = {
        "leaf": base,
        "batches": base + "dynamic_batching { default_queue_policy { default_timeout_microseconds: 250000 } }\n",
        "kept": base + "response_cache { enable: true }\n",
        "one": base + MANY,
        "two": base,
        "fan": base + "dynamic_batching { max_queue_delay_microseconds: 10000 }\n",
        "steps": ensemble("leaf", "two", "batches") + "max_batch_size: 2\n",
    }

    def behaviours(forest: Forest) -> dict[str, Behaviour]:
        return {
            **{name: forest.polling(name, 0.1) for name in LEAVES},
            "one": forest.calling("leaf", "kept", seconds=seconds),
            "two": forest.calling("one", "batches", seconds=seconds),
            "fan": forest.calling("leaf", "batches", "kept", "one", seconds=seconds, together=True),
        }

    async def main(client: Client, forest: Forest, backend: TestBackend) -> None:
        kernel = client.kernel
        for number, (what, *rest) in enumerate(steps):
            if what == "send":
                model, value, patience = rest
                deadline = None if patience is None else kernel.clock() + patience
                client.send(model, str(number), [[value]], deadline=deadline)
            elif what == "advance":
                await asyncio.sleep(rest[0])
            elif what == "cancel" and client.requests:
                kernel.cancel(list(client.requests.values())[rest[0] % len(client.requests)])
            elif what == "cancel inside" and forest.calls:
                kernel.cancel(forest.calls[rest[0] % len(forest.calls)][0])
            forest.check()
        await asyncio.sleep(60)
        forest.check()
        client.outcomes()  # asserts that there is one final answer each
        assert all(request.state is RELEASED for request, _ in forest.calls)
        counted = 0
        for name in NAMES:
            (record,) = kernel.statistics(name)
            other = record.failures["OTHER"]
            assert other % 2 == 0 if name == "steps" else other == 0  # an ensemble's failures count twice
            counted += record.success.count + record.fail.count - other // 2 + kernel.model(name).scheduler.statistics.refused
        made = len(client.requests) + len(forest.calls)
        by_steps = any(request.model_name == "steps" for request in client.requests.values())  # whose calls nobody notes here
        assert counted == made or (by_steps and counted > made)

    with tempfile.TemporaryDirectory() as folder:
        grow(Path(folder), models, behaviours, main, cache=LocalCache(1 << 14))


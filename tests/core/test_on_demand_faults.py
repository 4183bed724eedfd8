"""Control mode on-demand, under what breaks it: names that are none, floods, who gives up, loads and ends that hang, calls that
wait in circles. Every request has one answer, and nothing stays that nobody wants. In virtual time.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import OrderedDict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from live import ENSEMBLE, Answering, Slowly, X, model, said, write
from virtual import BASE, Client, TestBackend, run, sleeping, write_repository

from kernel import Batch, Budget, Code, InferenceRequest, InferenceResponse, Kernel, Result, ServingError, Tensor
from kernel.registry import on_demand as rules


def on_demand(folder: Path, backend: TestBackend | None = None, models: int = 0, **options: Any) -> Kernel:
    idle = options.pop("idle_seconds", 0.0)
    budget = Budget(models=models, idle_seconds=idle)
    return Kernel(folder, plugins=[backend or Answering()], control_mode="on-demand", budget=budget, **options)


def there(kernel: Kernel) -> list[str]:
    return [one.name for one in kernel.models()]


async def refused(kernel: Kernel, name: str, version: str = "") -> tuple[Code, str]:
    with pytest.raises(ServingError) as caught:
        await kernel.infer(name, X, version=version)
    return caught.value.code, caught.value.message


def calling(kernel_of: dict[str, Kernel], after: float, *names: str) -> Any:
    """Return a behaviour that calls models after some seconds, one after the other, and answers what the last one does."""

    async def execute(batch: Batch) -> Result:
        await asyncio.sleep(after)
        for name in names:
            future: asyncio.Future[InferenceResponse | None] = asyncio.get_running_loop().create_future()
            tensor = Tensor("X", "FP32", np.ones(1, np.float32))

            def respond(response: InferenceResponse | None, final: bool, future: Any = future) -> None:
                if final:
                    future.set_result(response)

            kernel_of[""].submit(InferenceRequest(name, {"X": tensor}, respond, parent=batch))
            response = await future
            assert response is not None
        return [response for _ in batch.requests]

    return execute


# -- names -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x" * 256, "ü" * 128, "x" * 2**20, "\ud800", "a/b", "..", "a\0b", " ", "a\nb"])
def test_names_of_no_model_cost_nothing(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """No model makes room for one, nothing is remembered of it, and the log does not fill."""

    async def main() -> None:
        model(tmp_path, "m", 1)
        async with on_demand(tmp_path, models=1) as kernel:
            assert await said(kernel, "m") == 1
            caplog.clear()
            code, words = await refused(kernel, name)
            assert code is Code.NOT_FOUND and words.startswith("Request for unknown model: '") and len(words) < 2**16
            assert there(kernel) == ["m"]
            assert list(kernel._registry.catalog.entries) == ["m"]
            demand = kernel._registry._demand
            assert demand is not None
            assert sum(len(one) for one in (*demand._failed, *demand._unknown)) < 300
            assert not caplog.records

    run(main())


def test_a_flood_of_unknown_names_changes_nothing_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_UNKNOWN", 100)
    monkeypatch.setattr(rules, "MOST_FAILURES", 100)

    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "broken", "no weights today")
        backend = Answering()
        async with on_demand(tmp_path, backend, models=2) as kernel:
            await refused(kernel, "broken")
            attempts = backend.count("refused")
            for k in range(300):
                assert (await refused(kernel, f"nobody{k}"))[0] is Code.NOT_FOUND
            # Its failure is remembered: the load is not tried again, whatever else is asked for.
            assert (await refused(kernel, "broken"))[1].endswith("s at the earliest)")
            assert backend.count("refused") == attempts
            assert await said(kernel, "m") == 1
            demand = kernel._registry._demand
            assert demand is not None and len(demand._unknown) <= rules.MOST_UNKNOWN

    run(main())


def test_who_asks_for_names_of_no_model_keeps_nobody_out(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with on_demand(tmp_path) as kernel:
            client = Client(kernel)
            for k in range(1000):  # all at once
                client.send(f"nobody{k}", str(k))
            client.send("m", "m")
            await asyncio.sleep(5.0)
            outcomes = {id: words for id, (_, words) in client.outcomes().items()}
            assert outcomes.pop("m") == "ok"
            assert len(outcomes) == 1000
            assert sum("too many requests wait" in words for words in outcomes.values()) == 1000 - rules.MOST_LOADS // 2

    run(main())


def test_a_flood_for_versions_that_are_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with on_demand(tmp_path, backend) as kernel:
            client = Client(kernel)
            for k in range(200):
                client.send("m", str(k), model_version=str(k))
            await asyncio.sleep(1.0)
            outcomes = {id: words for id, (_, words) in client.outcomes().items()}
            assert outcomes.pop("1") == "ok"
            assert all(f"'m' version {id} is not found" in words for id, words in outcomes.items())
            assert backend.count("initialize") == 1
            for version in ("abc", "-7", "9" * 30, ""):
                client.send("m", f"v{version}", model_version=version)
            await asyncio.sleep(1.0)
            assert client.outcome("v")[1] == "ok" and "specified" in client.outcome("vabc")[1]

    run(main())


def test_models_that_come_after_the_start_are_ready_to_be_asked(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with on_demand(tmp_path) as kernel:
            model(tmp_path, "new", 2)
            kernel.index()  # whoever lists the models has them known
            assert kernel.is_model_ready("new")
            model(tmp_path, "other", 3)
            assert await said(kernel, "other") == 3
            await kernel.unload("other")
            assert kernel.is_model_ready("other")

    run(main())


# -- who gives up --------------------------------------------------------------------------------------------------------------


def test_nothing_is_kept_of_requests_that_nobody_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load may take an hour: the inputs of those who gave up are not held that long, and they fill no limit."""
    monkeypatch.setattr(rules, "MOST_WAITING", 100)

    async def main() -> None:
        model(tmp_path, "m", 1)
        async with on_demand(tmp_path) as kernel:
            Slowly(kernel, m=3600)
            client = Client(kernel)
            gone = client.send("m", "gone", np.ones(1000))
            late = client.send("m", "late", np.ones(1000), deadline=kernel.clock() + 1.0)
            held = [weakref.ref(one.inputs["X"].array) for one in (gone, late)]
            stays = client.send("m", "stays")
            await asyncio.sleep(2.0)
            kernel.cancel(gone)
            del gone, late
            client.requests.clear()
            await asyncio.sleep(2.0)
            gc.collect()
            assert [one() is None for one in held] == [True, True]
            assert stays is not None and len(client.answers["stays"]) == 0
            for k in range(rules.MOST_WAITING + 10):  # as many as may wait, each of which gives up
                kernel.cancel(client.send("m", f"flood{k}"))
            client.send("m", "last")
            assert client.answers["last"] == []

    run(main())


# -- loads and ends that hang --------------------------------------------------------------------------------------------------


def hangs_at_the_end(kernel: Kernel, **seconds: float) -> None:
    """Have models take so many virtual seconds until they are finalized."""
    registry = kernel._registry
    unloaded = registry.unloaded

    async def slowly(name: str, turn: Any) -> None:
        await asyncio.sleep(seconds.get(name, 0.0))
        await unloaded(name, turn)

    registry.unloaded = slowly  # type: ignore[method-assign]


def test_a_model_whose_end_hangs_holds_nobody_up_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        for name in "abc":
            model(tmp_path, name, 1)
        async with on_demand(tmp_path, models=1, idle_seconds=100.0) as kernel:
            hangs_at_the_end(kernel, a=10.0**6)
            assert await said(kernel, "a") == 1
            client = Client(kernel)
            client.send("b", "b")
            await asyncio.sleep(1.0)
            client.send("c", "c")
            await asyncio.sleep(60.0)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            await asyncio.sleep(200.0)
            assert there(kernel) == []  # idle ones still go

    run(main())


def test_a_load_that_hangs_holds_up_those_who_want_it_alone(tmp_path: Path) -> None:
    async def main() -> None:
        for name in ("hangs", "a", "b"):
            model(tmp_path, name, 1)
        async with on_demand(tmp_path, models=2) as kernel:
            Slowly(kernel, hangs=10.0**5)
            client = Client(kernel)
            client.send("hangs", "waits", deadline=kernel.clock() + 50.0)
            for k in range(20):
                client.send("ab"[k % 2], str(k))
                await asyncio.sleep(1.0)
            await asyncio.sleep(60.0)
            outcomes = {id: words for id, (_, words) in client.outcomes().items()}
            assert "passed before it was loaded" in outcomes.pop("waits")
            assert set(outcomes.values()) == {"ok"}

    run(main())


def test_a_model_that_is_removed_while_requests_wait(tmp_path: Path) -> None:
    async def main() -> None:
        for name in "ab":
            model(tmp_path, name, 1)
        async with on_demand(tmp_path, TestBackend({"a": sleeping(3.0)}), models=1) as kernel:
            client = Client(kernel)
            client.send("a", "a")
            await asyncio.sleep(0.5)
            client.send("b", "b")
            await asyncio.sleep(0.1)
            (tmp_path / "b").rename(tmp_path / ".b")
            await asyncio.sleep(20.0)
            assert client.outcome("a")[1] == "ok"
            assert "model not found in any model repository" in client.outcome("b")[1]
            assert not kernel.is_model_ready("b")

    run(main())


def test_loads_that_fail_every_other_time(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with on_demand(tmp_path) as kernel:
            client = Client(kernel)
            for k in range(20):
                model(tmp_path, "m", "not today" if k % 2 == 0 else 1)
                for n in range(3):
                    client.send("m", f"{k}/{n}")
                await asyncio.sleep(2.0)
                for n in range(3):
                    words = client.outcome(f"{k}/{n}")[1]
                    assert ("not today" in words) if k % 2 == 0 else words == "ok"
                if k % 2:
                    await kernel.unload("m")

    run(main())


def test_a_claim_that_hangs_piles_nothing_up(tmp_path: Path) -> None:
    """The end of a model that is being loaded anew waits for that; it is asked for once, however often it is idle."""

    async def main() -> None:
        model(tmp_path, "a", 1)
        async with on_demand(tmp_path, idle_seconds=10.0) as kernel:
            assert await said(kernel, "a") == 1
            slow = Slowly(kernel, a=5000.0)
            model(tmp_path, "a", 2)
            loading = asyncio.ensure_future(kernel.load("a"))
            before = len(asyncio.all_tasks())
            await asyncio.sleep(1000.0)
            assert len(asyncio.all_tasks()) <= before + 3
            await loading
            slow.seconds.clear()
            assert await said(kernel, "a") == 2

    run(main())


def test_a_model_that_cancels_all_tasks_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with on_demand(tmp_path, models=1) as kernel:
            Slowly(kernel, m=5.0)
            client = Client(kernel)
            client.send("m", "waits")
            await asyncio.sleep(1.0)
            demand = kernel._registry._demand
            assert demand is not None
            for task in demand._tasks:
                task.cancel()
            await asyncio.sleep(1.0)
            assert client.outcome("waits")[1] == "the load of model 'm' was given up"
            await asyncio.sleep(10.0)
            assert await said(kernel, "m") == 1

    run(main())


# -- calls ---------------------------------------------------------------------------------------------------------------------


def test_what_makes_room_may_call_what_it_makes_room_for(tmp_path: Path) -> None:
    """`outer` is busy for long, is the one to go for `inner`, and calls `inner` itself: it gets its answer, and goes then."""

    async def main() -> None:
        for name in ("outer", "inner"):
            model(tmp_path, name, 1)
        kernels: dict[str, Kernel] = {}
        async with on_demand(tmp_path, TestBackend({"outer": calling(kernels, 5.0, "inner")}), models=1) as kernel:
            kernels[""] = kernel
            client = Client(kernel)
            client.send("outer", "outer")
            await asyncio.sleep(1.0)
            client.send("inner", "inner")
            await asyncio.sleep(60.0)
            assert {id: words for id, (_, words) in client.outcomes().items()} == {"outer": "ok", "inner": "ok"}
            assert client.outcome("outer")[0] < 6.0

    run(main())


def test_what_makes_room_may_call_who_waits_behind(tmp_path: Path) -> None:
    """As above, while another one is at making room, and `inner` waits for its turn."""

    async def main() -> None:
        for name in ("outer", "inner", "other"):
            model(tmp_path, name, 1)
        kernels: dict[str, Kernel] = {}
        async with on_demand(tmp_path, TestBackend({"outer": calling(kernels, 5.0, "inner")}), models=1) as kernel:
            kernels[""] = kernel
            client = Client(kernel)
            client.send("outer", "outer")
            await asyncio.sleep(0.5)
            client.send("other", "other")
            await asyncio.sleep(0.5)
            client.send("inner", "inner")
            await asyncio.sleep(60.0)
            assert {id: words for id, (_, words) in client.outcomes().items()} == dict.fromkeys(client.answers, "ok")
            assert client.outcome("outer")[0] < 6.0

    run(main())


def test_chains_of_calls_that_are_deeper_than_the_budget(tmp_path: Path) -> None:
    async def main() -> None:
        kernels: dict[str, Kernel] = {}
        behaviours = {f"m{k}": calling(kernels, 0.1, f"m{k + 1}") for k in range(9)}
        for k in range(10):
            model(tmp_path, f"m{k}", k)
        async with on_demand(tmp_path, TestBackend(behaviours), models=2) as kernel:
            kernels[""] = kernel
            client = Client(kernel)
            for round in range(5):
                for k in range(10):
                    client.send(f"m{k}", f"{round}/{k}")
                await asyncio.sleep(0.3)
            await asyncio.sleep(100.0)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert len(there(kernel)) <= 2

    run(main())


WARMED = BASE + """
model_warmup { name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }
"""


def test_a_warmup_has_loaded_what_it_calls(tmp_path: Path) -> None:
    """Nobody can load it before, where all is loaded as it is asked for."""

    async def main() -> None:
        kernels: dict[str, Kernel] = {}
        write_repository(tmp_path, {"first": WARMED, "second": WARMED, "third": BASE})
        behaviours = {"first": calling(kernels, 0.1, "second"), "second": calling(kernels, 0.1, "third")}
        async with on_demand(tmp_path, TestBackend(behaviours), models=1) as kernel:
            kernels[""] = kernel
            client = Client(kernel)
            client.send("first", "a")
            await asyncio.sleep(10.0)
            assert client.outcome("a")[1] == "ok"
            assert kernel._registry.pending_loads._demands == []
            assert len(there(kernel)) == 1

    run(main())


def test_warmups_that_call_one_another_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        kernels: dict[str, Kernel] = {}
        write_repository(tmp_path, dict.fromkeys(["a", "b", "c"], WARMED))
        behaviours = {one: calling(kernels, 0.1, other) for one, other in ("ab", "bc", "ca")}
        async with on_demand(tmp_path, TestBackend(behaviours)) as kernel:
            kernels[""] = kernel
            client = Client(kernel)
            client.send("a", "a")
            await asyncio.sleep(30.0)
            assert "which can't be there before 'c' is (c -> a -> b -> c)" in client.outcome("a")[1]
            assert kernel._registry.pending_loads._demands == []

    run(main())


def test_a_warmup_that_calls_what_its_own_load_has_claimed_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        kernels: dict[str, Kernel] = {}
        write_repository(tmp_path, {"a": WARMED, "b": BASE, "whole": ENSEMBLE % "a"})
        config = (tmp_path / "whole/config.pbtxt").read_text()
        step = """{ model_name: "b" model_version: -1 input_map { key: "X" value: "T" } output_map { key: "Y" value: "Y" } }"""
        both = config.replace('output_map { key: "Y" value: "Y" } }', 'output_map { key: "Y" value: "T" } }, ' + step)
        write(tmp_path / "whole/config.pbtxt", both)
        (tmp_path / "whole/1").mkdir(exist_ok=True)
        behaviours = {"a": calling(kernels, 0.1, "b")}
        async with on_demand(tmp_path, TestBackend(behaviours)) as kernel:
            kernels[""] = kernel
            client = Client(kernel)
            client.send("whole", "whole")  # which brings both along: `a` waits for `b`
            await asyncio.sleep(5.0)
            assert client.outcome("whole")[1] == "ok"
            for name in ("whole", "a", "b"):
                await kernel.unload(name)
            client.send("a", "a")
            await asyncio.sleep(30.0)
            assert "the load of 'a' has claimed it, and would wait for itself" in client.outcome("a")[1]
            client.send("b", "b")
            await asyncio.sleep(2.0)
            client.send("a", "again")
            await asyncio.sleep(30.0)
            assert client.outcome("b")[1] == client.outcome("again")[1] == "ok"

    run(main())


def test_ensembles_that_share_what_they_consist_of(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "part", 4)
        for name in ("one", "two", "three"):
            write(tmp_path / name / "config.pbtxt", ENSEMBLE % "part")
            (tmp_path / name / "1").mkdir()
        backend = Answering()
        async with on_demand(tmp_path, backend, models=1) as kernel:
            client = Client(kernel)
            rng = Random(3)
            for k in range(100):
                client.send(rng.choice(["one", "two", "three", "part"]), str(k))
                await asyncio.sleep(rng.choice([0.0, 0.01, 0.5]))
            await asyncio.sleep(60.0)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert len([name for name in there(kernel) if name != "part"]) <= 1

    run(main())


def test_sequences_that_go_on_are_not_lost_to_make_room(tmp_path: Path) -> None:
    """Also those of a model that an ensemble consists of. One that never ends costs the budget, and not its state."""

    async def main() -> None:
        sequences = BASE + "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
        write_repository(tmp_path, {"seq": sequences, "part": sequences, "whole": ENSEMBLE % "part", "other": BASE})
        async with on_demand(tmp_path, TestBackend({}), models=1) as kernel:
            client = Client(kernel)
            for turn, (name, flags) in enumerate([("seq", 1), ("seq", 0), ("seq", 2), ("whole", 1), ("whole", 0), ("whole", 2)]):
                client.send(name, f"{turn}", correlation_id=5, flags=flags)
                await asyncio.sleep(2.0)
                client.send("other", f"other{turn}")
                await asyncio.sleep(3.0)
            await asyncio.sleep(30.0)
            assert {id: words for id, (_, words) in client.outcomes().items()} == dict.fromkeys(client.answers, "ok")
            client.send("seq", "begins", correlation_id=6, flags=1)
            await asyncio.sleep(30.0)
            client.send("other", "last")
            await asyncio.sleep(11.0)
            assert client.outcome("last")[1] == "ok"
            client.send("seq", "goes on", correlation_id=6)
            await asyncio.sleep(1.0)
            assert client.outcome("goes on")[1] == "ok"

    run(main())


# -- others that load, and the end -----------------------------------------------------------------------------------------------


def test_what_was_loaded_on_request_was_not_idle_since_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        for name in "ab":
            model(tmp_path, name, 1)
        async with on_demand(tmp_path, models=1, idle_seconds=60.0) as kernel:
            await kernel.load("a")
            await asyncio.sleep(30.0)
            assert there(kernel) == ["a"]
            await asyncio.sleep(32.0)
            assert there(kernel) == []
            assert await said(kernel, "b") == 1
            await asyncio.sleep(10.0)
            await kernel.load("a")  # above the budget: who was asked for least recently goes
            await asyncio.sleep(3.0)
            assert there(kernel) == ["a"]

    run(main())


def test_who_is_asked_for_while_idle_ones_go_stays(tmp_path: Path) -> None:
    async def main() -> None:
        for name in "ab":
            model(tmp_path, name, 1)
        backend = Answering()
        async with on_demand(tmp_path, backend, idle_seconds=10.0) as kernel:
            hangs_at_the_end(kernel, a=3.0)
            await said(kernel, "a")
            await said(kernel, "b")
            await asyncio.sleep(11.5)  # `a` is about to go, and takes its time
            assert there(kernel) == ["b"]
            assert await said(kernel, "b") == 1
            await asyncio.sleep(5.0)
            assert there(kernel) == ["b"]

    run(main())


def test_loads_and_unloads_on_request_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        for name in "abc":
            model(tmp_path, name, 1)
        async with on_demand(tmp_path, models=2) as kernel:
            Slowly(kernel, a=0.2, b=0.1, c=0.3)
            client = Client(kernel)
            rng = Random(11)
            tasks = []

            async def quietly(work: Any) -> None:
                try:
                    await work
                except ServingError as error:
                    assert error.code is Code.UNAVAILABLE, error

            for k in range(200):
                name = rng.choice("abc")
                what = rng.random()
                if what < 0.7:
                    client.send(name, str(k))
                elif what < 0.85:
                    tasks.append(asyncio.ensure_future(quietly(kernel.load(name))))
                else:
                    tasks.append(asyncio.ensure_future(quietly(kernel.unload(name))))
                await asyncio.sleep(rng.choice([0.0, 0.05, 0.3]))
            await asyncio.sleep(60.0)
            assert all(task.done() for task in tasks)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert len(there(kernel)) <= 2

    run(main())


def test_while_the_end_is_near_a_model_that_is_not_there_is_no_unknown_one(tmp_path: Path) -> None:
    """A client takes NOT_FOUND for the last word; another server would have served it."""

    async def main() -> None:
        for name in "ab":
            model(tmp_path, name, 1)
        async with on_demand(tmp_path) as kernel:
            assert await said(kernel, "a") == 1
            kernel.retire()
            assert await said(kernel, "a") == 1
            assert await refused(kernel, "b") == (Code.UNAVAILABLE, "Server exiting")
            assert (await refused(kernel, "nobody"))[0] is Code.NOT_FOUND

    run(main())


def test_many_clients_many_models_little_room(tmp_path: Path) -> None:
    """50 models, room for 10, Zipf traffic of many clients at a time, loads that take a while: all answers come and are right."""

    async def main() -> None:
        for k in range(50):
            model(tmp_path, f"m{k:02}", k)
        backend = Answering()
        rng = Random(7)
        weights = [1 / (k + 1) for k in range(50)]
        asked = rng.choices(range(50), weights, k=3000)
        ideal: OrderedDict[int, None] = OrderedDict()
        misses = 0
        async with on_demand(tmp_path, backend, models=10) as kernel:
            Slowly(kernel, **{f"m{k:02}": 0.05 for k in range(50)})
            futures = []
            for k in asked:
                futures.append(asyncio.ensure_future(said(kernel, f"m{k:02}")))
                await asyncio.sleep(rng.expovariate(1 / 0.05))
                misses += k not in ideal
                ideal[k] = None
                ideal.move_to_end(k)
                if len(ideal) > 10:
                    ideal.popitem(last=False)
            await asyncio.sleep(60.0)
            assert [future.result() for future in futures] == asked
            assert len(there(kernel)) == 10
        ours, best = 1 - backend.count("initialize") / len(asked), 1 - misses / len(asked)
        assert ours >= best * 0.95, (ours, best)

    run(main())


# -- all at once ---------------------------------------------------------------------------------------------------------------


async def life(folder: Path, seed: int) -> None:
    """A life drawn from a seed: requests, deadlines, cancellations, calls, sequences, ensembles, loads and unloads on request,
    files that change, loads that fail, ends that last. Each request has one answer, and in the end nothing is held.
    """
    rng = Random(seed)
    kernels: dict[str, Kernel] = {}
    names = [f"m{k}" for k in range(6)]
    for name in names:
        model(folder, name, 1)
    write_repository(folder, {"seq": BASE + "sequence_batching { max_sequence_idle_microseconds: 3000000 }"})
    (folder / "seq/1/answer").write_text("1")
    for k in range(3):
        write(folder / f"e{k}" / "config.pbtxt", ENSEMBLE % rng.choice(names))
        (folder / f"e{k}" / "1").mkdir(exist_ok=True)
    chain = rng.sample(names, 3)
    behaviours = {chain[0]: calling(kernels, 0.2, chain[1]), chain[1]: calling(kernels, 1.5, chain[2])}
    behaviours[rng.choice(sorted({*names} - {*chain}))] = sleeping(rng.choice([0.5, 3.0]))
    async with on_demand(folder, Answering(behaviours), models=rng.randint(1, 4), idle_seconds=rng.choice([0.0, 4.0])) as kernel:
        kernels[""] = kernel
        Slowly(kernel, **{name: rng.choice([0.0, 0.1, 1.0]) for name in names})
        hangs_at_the_end(kernel, **{rng.choice(names): rng.choice([0.0, 2.0, 30.0])})
        client = Client(kernel)
        work: list[asyncio.Task[Any]] = []
        for k in range(150):
            name = rng.choice([*names, "e0", "e1", "e2", "seq", "seq", "nobody"])
            chance = rng.random()
            if name == "seq":
                client.send("seq", str(k), correlation_id=rng.randint(1, 3), flags=rng.choice([0, 1, 1, 2, 3]))
            elif chance < 0.7:
                deadline = kernel.clock() + rng.choice([0.01, 0.5, 5.0]) if rng.random() < 0.3 else None
                request = client.send(name, str(k), deadline=deadline)
                if rng.random() < 0.2:
                    kernel.loop.call_later(rng.choice([0.0, 0.05, 0.7]), kernel.cancel, request)
            elif chance < 0.8:
                work.append(asyncio.ensure_future(kernel.load(name)))
            elif chance < 0.9:
                work.append(asyncio.ensure_future(kernel.unload(name)))
            elif name in names:
                model(folder, name, rng.choice(["not today", 1, 1, 2]))
            await asyncio.sleep(rng.choice([0.0, 0.0, 0.05, 0.5]))
        if rng.random() < 0.3:
            await kernel.stop(rng.choice([0.0, 1.0, 60.0]))
            await asyncio.sleep(0.1)  # tasks that were cancelled have their last turn
        else:
            await asyncio.sleep(120.0)
            assert len([name for name in there(kernel) if name not in kernel._registry.parts()]) <= 4
        demand, registry = kernel._registry._demand, kernel._registry
        assert demand is not None
        assert len(client.outcomes()) == len(client.answers)
        assert (demand._waiting, demand._count, demand._making, demand._coming) == ({}, 0, {}, set())
        assert not registry.held._held and not registry.pending_loads._demands
        await asyncio.gather(*work, return_exceptions=True)


@pytest.mark.parametrize("seed", range(20, 32))
def test_lives(tmp_path: Path, seed: int) -> None:
    run(life(tmp_path, seed))

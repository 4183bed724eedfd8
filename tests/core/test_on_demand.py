"""Control mode on-demand: who is asked for is loaded, who is not makes room, every request has its answer. In virtual time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from live import ENSEMBLE, Answering, Slowly, X, model, said, write
from virtual import BASE, Client, TestBackend, echo, run, sleeping, write_repository

from kernel import (
    Batch,
    Budget,
    Code,
    InferenceRequest,
    InferenceResponse,
    Kernel,
    Result,
    ServingError,
    Tensor,
)


def on_demand(
    folder: Path, backend: TestBackend | None = None, models: int = 0, idle_seconds: float = 0.0, **options: Any
) -> Kernel:
    budget = Budget(models=models, idle_seconds=idle_seconds)
    return Kernel(folder, plugins=[backend or Answering()], control_mode="on-demand", budget=budget, **options)


def there(kernel: Kernel) -> list[str]:
    return [one.name for one in kernel.models()]


def test_a_request_has_its_model_loaded_and_others_wait_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        for k in range(3):
            model(tmp_path, f"m{k}", k)
        backend = Answering()
        async with on_demand(tmp_path, backend) as kernel:
            assert there(kernel) == [] and kernel.is_ready()
            assert kernel.is_model_ready("m0") and not kernel.is_model_ready("nobody")
            answers = await asyncio.gather(*(said(kernel, f"m{k % 2}") for k in range(20)))
            assert answers == [k % 2 for k in range(20)]
            assert there(kernel) == ["m0", "m1"]
            assert backend.count("initialize") == 2
            assert [(line.name, line.state) for line in kernel.index()] == [("m0", "READY"), ("m1", "READY"), ("m2", "")]

    run(main())


def test_what_cannot_be_had(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "broken", "no weights today")
        model(tmp_path, "m", 1)
        backend = Answering()
        async with on_demand(tmp_path, backend) as kernel:

            async def refused(name: str, version: str = "") -> tuple[Code, str]:
                with pytest.raises(ServingError) as caught:
                    await kernel.infer(name, X, version=version)
                return caught.value.code, caught.value.message

            for _ in range(2):
                assert await refused("nobody") == (Code.NOT_FOUND, "Request for unknown model: 'nobody' is not found")
            assert await refused("../m") == (Code.NOT_FOUND, "Request for unknown model: '../m' is not found")
            assert await refused("m", "7") == (Code.NOT_FOUND, "Request for unknown model: 'm' version 7 is not found")
            code, words = await refused("broken")
            assert code is Code.UNAVAILABLE
            told = "load failed for model 'broken': version 1 is at UNAVAILABLE state: Internal: no weights today;"
            assert words == f"model 'broken' can't be loaded: {told}"
            # Whoever asks in between is told the same at once, and how long that will be so.
            attempts = backend.count("refused")
            assert (await refused("broken"))[1] == f"{words} (the load is tried again in 1.0 s at the earliest)"
            assert not kernel.is_model_ready("broken")
            await asyncio.sleep(1.0)
            await refused("broken")
            assert backend.count("refused") == 2 * attempts
            assert (await refused("broken"))[1].endswith("(the load is tried again in 2.0 s at the earliest)")
            model(tmp_path, "broken", 5)
            await asyncio.sleep(2.0)
            assert await said(kernel, "broken") == 5.0

    run(main())


def test_the_least_recently_used_model_makes_room(tmp_path: Path) -> None:
    async def main() -> None:
        for k in range(3):
            model(tmp_path, f"m{k}", k)
        backend = Answering()
        async with on_demand(tmp_path, backend, models=2) as kernel:
            for k in (0, 1, 0, 2):
                await asyncio.sleep(1)
                assert await said(kernel, f"m{k}") == k
            assert there(kernel) == ["m0", "m2"]
            # Who makes room is finalized before the next one is made: there are never more than two.
            made = [(what, name.split("_")[0]) for _, what, name in backend.log if what in ("initialize", "finalize")]
            assert made == [("initialize", "m0"), ("initialize", "m1"), ("finalize", "m1"), ("initialize", "m2")]

    run(main())


def test_models_with_work_stay_until_they_have_none(tmp_path: Path) -> None:
    async def main() -> None:
        for name in "ab":
            model(tmp_path, name, 1)
        backend = Answering({"a": sleeping(0.5), "b": echo})
        async with on_demand(write_repository(tmp_path, {}), TestBackend(backend.behaviours), models=1) as kernel:
            client = Client(kernel)
            client.send("a", "a1")
            await asyncio.sleep(0.1)
            client.send("b", "b1")
            await asyncio.sleep(0.2)
            client.send("a", "a2")
            await asyncio.sleep(20.0)
            assert {id: words for id, (_, words) in client.outcomes().items()} == {"a1": "ok", "a2": "ok", "b1": "ok"}
            assert client.outcome("a1")[0] == pytest.approx(0.5, abs=0.01)

    run(main())


def test_a_model_that_is_never_idle_makes_room_after_a_while_and_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        for name in "ab":
            model(tmp_path, name, 1)
        async with on_demand(tmp_path, TestBackend({"a": sleeping(0.3)}), models=1) as kernel:
            client = Client(kernel)

            async def busy() -> None:
                for k in range(40):
                    client.send("a", f"a{k}")
                    await asyncio.sleep(0.25)

            sending = asyncio.ensure_future(busy())
            await asyncio.sleep(1.0)
            client.send("b", "b")
            await sending
            await asyncio.sleep(30.0)
            assert len(client.outcomes()) == 41
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert client.outcome("b")[0] < 4.0

    run(main())


def test_a_call_of_a_model_is_loaded_for_above_the_budget(tmp_path: Path) -> None:
    """The caller can't go before it has its answer: to wait for its room would be to wait for ever."""

    async def main() -> None:
        model(tmp_path, "inner", 1)
        model(tmp_path, "outer", 1)
        backend = TestBackend({})

        async def execute(batch: Batch) -> Result:
            future: asyncio.Future[InferenceResponse | None] = asyncio.get_running_loop().create_future()
            tensor = Tensor("X", "FP32", np.ones(1, np.float32))
            kernel.submit(
                InferenceRequest("inner", {"X": tensor}, lambda response, final: future.set_result(response), parent=batch)
            )
            response = await future
            assert response is not None
            return [response]

        backend.behaviours = {"outer": execute}
        async with on_demand(tmp_path, backend, models=1) as kernel:
            assert await said(kernel, "outer") == 1.0
            await asyncio.sleep(5.0)
            assert len(there(kernel)) == 1, "the budget holds again"
            assert kernel.loop.time() < 1000.0 + 6.0

    run(main())


def test_ensembles_come_and_go_with_what_they_consist_of(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "part", 4)
        model(tmp_path, "other", 5)
        model(tmp_path, "third", 6)
        write(tmp_path / "whole" / "config.pbtxt", ENSEMBLE % "part")
        (tmp_path / "whole" / "1").mkdir()
        async with on_demand(tmp_path, models=2) as kernel:
            assert await said(kernel, "whole") == 4.0
            assert there(kernel) == ["part", "whole"]
            await asyncio.sleep(1)
            assert await said(kernel, "other") == 5.0
            assert there(kernel) == ["other", "part", "whole"], "an ensemble counts as one"
            await asyncio.sleep(1)
            assert await said(kernel, "third") == 6.0
            assert there(kernel) == ["other", "third"]

    run(main())


def test_idle_models_go(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "short", 1, config=BASE + 'parameters { key: "idle_timeout" value { string_value: "5" } }')
        model(tmp_path, "usual", 2)
        model(tmp_path, "stays", 3, config=BASE + 'parameters { key: "idle_timeout" value { string_value: "0" } }')
        async with on_demand(tmp_path, idle_seconds=60.0) as kernel:
            for name in ("short", "usual", "stays"):
                await said(kernel, name)
            await asyncio.sleep(4.0)
            await said(kernel, "short")
            await asyncio.sleep(4.0)
            assert there(kernel) == ["short", "stays", "usual"]
            await asyncio.sleep(3.0)
            assert there(kernel) == ["stays", "usual"]
            await asyncio.sleep(60.0)
            assert there(kernel) == ["stays"]
            assert await said(kernel, "short") == 1.0

    run(main())


def test_who_was_named_at_the_start_stays(tmp_path: Path) -> None:
    async def main() -> None:
        for k in range(3):
            model(tmp_path, f"m{k}", k)
        async with on_demand(tmp_path, models=2, load_models=["m0"], idle_seconds=5.0) as kernel:
            assert there(kernel) == ["m0"]
            for k in (1, 2):
                await asyncio.sleep(1)
                await said(kernel, f"m{k}")
            assert there(kernel) == ["m0", "m2"]
            await asyncio.sleep(20.0)
            assert there(kernel) == ["m0"]

    run(main())


def test_the_server_is_ready_whoever_comes_and_goes(tmp_path: Path) -> None:
    """A load that a request asks for, one that fails, and an unload that makes room: the balancer in front sees none of it."""

    async def main() -> None:
        model(tmp_path, "broken", "no weights today")
        for name in ("a", "b", "kept"):
            model(tmp_path, name, 1)
        backend = Answering({"a": sleeping(3.0)})
        async with on_demand(tmp_path, backend, models=2, load_models=["kept"]) as kernel:
            Slowly(kernel, a=1.0, b=1.0, kept=1.0)
            client = Client(kernel)
            seen: dict[str, set[bool]] = {}
            for number, name in enumerate(("a", "b", "broken", "a")):
                client.send(name, f"{number} to {name}")
                for _ in range(150 if number < 3 else 1000):
                    await asyncio.sleep(0.01)
                    for line in kernel.index():
                        seen.setdefault(line.state, set()).add(kernel.is_ready())
            assert seen["LOADING"] == seen["UNLOADING"] == seen["READY"] == seen["UNAVAILABLE"] == {True}
            # Who was named at the start is to be there.
            model(tmp_path, "kept", 2)
            await kernel.unload("kept")
            assert kernel.is_ready()  # as wanted by somebody, like anywhere
            loading = asyncio.ensure_future(kernel.load("kept"))
            await asyncio.sleep(0.5)
            assert not kernel.is_ready()
            await loading
            assert kernel.is_ready()

    run(main())


def test_deadlines_and_cancellation_while_the_model_is_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with on_demand(tmp_path) as kernel:
            Slowly(kernel, m=10)
            client = Client(kernel)
            now = kernel.clock()
            client.send("m", "in time", deadline=now + 20.0)
            client.send("m", "late", deadline=now + 2.0)
            given_up = client.send("m", "given up")
            future = kernel.infer("m", X, timeout=1.0)
            await asyncio.sleep(1.5)
            kernel.cancel(given_up)
            with pytest.raises(ServingError, match="passed before it was loaded"):
                await future
            await asyncio.sleep(30.0)
            assert client.outcome("in time")[1] == "ok"
            late = "[request id: late] deadline of the request to model 'm' passed before it was loaded"
            assert client.outcome("late") == (2.0, late)
            assert client.outcome("given up") == (1.5, "[request id: given up] Request cancelled")

    run(main())


def test_a_stop_answers_those_who_wait(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        kernel = on_demand(tmp_path)
        await kernel.start()
        Slowly(kernel, m=10)
        client = Client(kernel)
        client.send("m", "waits")
        await asyncio.sleep(1.0)
        await kernel.stop(1.0)
        assert client.outcome("waits")[1] == "Server exiting"

    run(main())


def test_lists_wait_for_the_config_that_says_what_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 7)
        async with on_demand(tmp_path) as kernel:
            given = [1.0, 2.0]
            future = kernel.infer("m", {"X": given})
            given.append(3.0)  # arrays and lists are the caller's own again
            assert (await future)["Y"].tolist() == [7.0]

    run(main())


def test_many_models_little_room(tmp_path: Path) -> None:
    """50 models, room for 10, Zipf traffic: every answer is right, and there are hardly more loads than an ideal LRU needs."""

    async def main() -> None:
        for k in range(50):
            model(tmp_path, f"m{k:02}", k)
        backend = Answering()
        rng = Random(5)
        weights = [1 / (k + 1) for k in range(50)]
        asked = rng.choices(range(50), weights, k=3000)
        ideal: OrderedDict[int, None] = OrderedDict()
        misses = 0
        async with on_demand(tmp_path, backend, models=10) as kernel:
            for k in asked:
                assert await said(kernel, f"m{k:02}") == k
                await asyncio.sleep(0.01)
                misses += k not in ideal
                ideal[k] = None
                ideal.move_to_end(k)
                if len(ideal) > 10:
                    ideal.popitem(last=False)
            assert len(there(kernel)) == 10
        ours, best = 1 - backend.count("initialize") / len(asked), 1 - misses / len(asked)
        assert ours >= best * 0.95, (ours, best)

    run(main())


def test_options(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="a budget of models wants the model control mode 'on-demand'"):
        Kernel(tmp_path, budget=Budget(models=1))
    with pytest.raises(ServingError, match="can't be combined with model namespacing"):
        Kernel(tmp_path, control_mode="on-demand", namespacing=True)
    for name in ("models", "size", "idle_seconds"):
        with pytest.raises(ServingError, match=f"a budget's {name} is -1, wanted at least 0"):
            Budget(**{name: -1})

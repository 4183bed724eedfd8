"""Other instances under a running version: which stay, which come and go, and what becomes of the requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from live import Answering, X, model, said, states, write
from virtual import BASE, Client, TestExecutor, answer, run, sleeping, write_repository

from kernel import Batch, Code, InstanceContext, Kernel, ModelConfig, Placement, Result, ServingError, hookimpl
from kernel.config import read_config
from kernel.rules.instance_groups import InstanceSpec, instance_specs, rearranged

PLAIN = BASE.replace("instance_group [ { kind: KIND_CPU count: 1 } ]", "%s")


def groups(*texts: str) -> str:
    return PLAIN % "".join(f"instance_group {{ kind: KIND_CPU {text} }}\n" for text in texts)


def explicit(folder: Path, backend: Answering) -> Kernel:
    return Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"])


# -- the rule ----------------------------------------------------------------------------------------------------------


def slots(tmp_path: Path, text: str) -> list[InstanceSpec]:
    write(tmp_path / "m" / "config.pbtxt", text)
    return instance_specs(read_config(tmp_path / "m"))


@pytest.mark.parametrize(
    ("before", "after", "go", "come"),
    [
        ("count: 2", "count: 2", [], []),
        ("count: 1", "count: 3", [], ["m_0_1", "m_0_2"]),
        ("count: 3", "count: 1", ["m_0_1", "m_0_2"], []),
        ('name: "a" count: 2', 'name: "b" count: 2', [], []),
        ('name: "a" count: 2', 'name: "b" count: 3', [], ["b_2"]),
        ('name: "a" count: 1', 'host_policy: "x" name: "a" count: 2', ["a_0"], ["a_1", "a_2"]),
        ("count: 2", "rate_limiter { priority: 2 } count: 1", ["m_0_0", "m_0_1"], ["m_0_2"]),
        ("count: 1", "count: 1 passive: true", ["m_0_0"], ["m_0_1"]),
    ],
)
def test_who_stays(tmp_path: Path, before: str, after: str, go: list[str], come: list[str]) -> None:
    running = {slot.name: slot for slot in slots(tmp_path, groups(before))}
    going, missing = rearranged(running, slots(tmp_path, groups(after)))
    assert going == go
    assert [slot.name for slot in missing] == come


def test_several_groups(tmp_path: Path) -> None:
    before = slots(tmp_path, groups('name: "a" count: 1', 'name: "b" count: 2 host_policy: "x"'))
    running = {slot.name: slot for slot in before}
    wanted = slots(tmp_path, groups('name: "b" count: 1 host_policy: "x"', 'name: "c" count: 2'))
    going, missing = rearranged(running, wanted)
    assert going == ["b_1"]
    assert [slot.name for slot in missing] == ["c_1"]


# -- under a running version -------------------------------------------------------------------------------------------


def test_instances_come_and_go_in_place(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=groups("count: 2"))
        backend = Answering()
        async with explicit(tmp_path, backend) as kernel:
            before = kernel.model("m")
            await said(kernel, "m")
            write(tmp_path / "m" / "config.pbtxt", groups("count: 4"))
            await kernel.load("m")
            write(tmp_path / "m" / "config.pbtxt", groups("count: 1"))
            await kernel.load("m")
            assert kernel.model("m") is before and kernel.statistics("m")[0].inference_count == 1
            assert backend.instances("initialize") == ["m_0_0", "m_0_1", "m_0_2", "m_0_3"]
            await asyncio.sleep(1)
            assert sorted(backend.instances("finalize")) == ["m_0_1", "m_0_2", "m_0_3"]
            assert kernel.model("m").config.as_dict()["instance_group"][0]["count"] == 1
            assert await said(kernel, "m") == 1
        assert backend.count("finalize") == 4

    run(main())


def test_an_override_may_scale_a_model(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with explicit(tmp_path, backend) as kernel:
            await said(kernel, "m")
            shown = kernel.model("m").config.as_dict()
            shown["instance_group"] = [{"kind": "KIND_CPU", "count": 3}]
            await kernel.load("m", config=json.dumps(shown))
            assert len(kernel.model("m").scheduler.instances) == 3
            await kernel.load("m")
            assert len(kernel.model("m").scheduler.instances) == 1
            assert kernel.statistics("m")[0].inference_count == 1

    run(main())


def test_an_override_can_not_ask_for_more_instances_than_can_be_had(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with explicit(tmp_path, backend) as kernel:
            shown = kernel.model("m").config.as_dict()
            shown["instance_group"] = [{"name": "g", "kind": "KIND_CPU", "count": 100_000}]
            with pytest.raises(ServingError, match="instance group g of model m asks for 100000 instances") as caught:
                await kernel.load("m", config=json.dumps(shown))
            assert "instance_group[0].count" in caught.value.message and "1024 at most" in caught.value.message
            assert backend.instances("initialize") == ["m_0_0"]
            assert await said(kernel, "m") == 1

    run(main())


def test_what_waits_is_taken_by_the_new_instances(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, Answering({"m": sleeping(10)})) as kernel:
            client = Client(kernel)
            for id in "abc":
                client.send("m", id)
            await asyncio.sleep(1)
            write(tmp_path / "m" / "config.pbtxt", groups("count: 3"))
            await kernel.load("m")
            await asyncio.sleep(60)
            assert client.outcomes() == {"a": (10.0, "ok"), "b": (11.0, "ok"), "c": (11.0, "ok")}

    run(main())


def test_what_goes_finishes_what_it_has_and_gets_nothing_new(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=groups("count: 2"))
        backend = Answering({"m": sleeping(10)})
        async with explicit(tmp_path, backend) as kernel:
            client = Client(kernel)
            for id in "abcd":
                client.send("m", id)
            await asyncio.sleep(1)
            write(tmp_path / "m" / "config.pbtxt", groups("count: 1"))
            await kernel.load("m")
            assert backend.count("finalize") == 0 and kernel.is_ready() and states(kernel) == {"m/1": "READY"}
            await asyncio.sleep(60)
            assert [client.outcome(id)[0] for id in "abcd"] == [10.0, 10.0, 20.0, 30.0]
            assert backend.instances("finalize") == ["m_0_1"]

    run(main())


@pytest.mark.parametrize("how", ["unload", "reload", "stop"])
def test_a_model_that_goes_waits_for_what_goes(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=groups("count: 2"))
        backend = Answering({"m": sleeping(10)})
        kernel = explicit(tmp_path, backend)
        await kernel.start()
        client = Client(kernel)
        for id in "ab":
            client.send("m", id)
        await asyncio.sleep(1)
        write(tmp_path / "m" / "config.pbtxt", groups("count: 1"))
        await kernel.load("m")
        if how == "unload":
            kernel.unload("m")
        elif how == "reload":
            write(tmp_path / "m" / "1" / "answer", "2")
            await kernel.load("m")
        else:
            await kernel.stop(30)
        await asyncio.sleep(20)
        assert client.outcomes() == {"a": (10.0, "ok"), "b": (10.0, "ok")}
        await kernel.stop()
        assert backend.count("initialize") == backend.count("finalize")

    run(main())


def test_a_stop_that_loses_patience_with_an_instance_that_goes(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=groups("count: 2"))
        kernel = explicit(tmp_path, Answering({"m": sleeping(1000)}))
        await kernel.start()
        client = Client(kernel)
        for id in "ab":
            client.send("m", id)
        await asyncio.sleep(1)
        write(tmp_path / "m" / "config.pbtxt", groups("count: 1"))
        await kernel.load("m")
        await kernel.stop(5)
        assert kernel.loop.time() < 1020
        assert {words for _, words in client.outcomes().values()} == {
            "Server is stopping, request to model 'm' was given up"
        }

    run(main())


def test_a_new_instance_that_fails_changes_nothing(tmp_path: Path) -> None:
    class Cramped(Answering):
        def create(self, context: InstanceContext) -> TestExecutor:
            if self.count("initialize") - self.count("finalize") >= 3:
                raise ServingError(Code.INTERNAL, "no memory for one more")
            return super().create(context)

    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Cramped()
        async with explicit(tmp_path, backend) as kernel:
            await said(kernel, "m")
            write(tmp_path / "m" / "config.pbtxt", groups("count: 5"))
            words = "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: no memory for one more;\n"
            with pytest.raises(ServingError, match=words):
                await kernel.load("m")
            await asyncio.sleep(1)
            assert len(kernel.model("m").scheduler.instances) == 1 and kernel.is_ready()
            assert backend.count("initialize") - backend.count("finalize") == 1
            assert kernel.model("m").config.instance_groups[0].count == 1
            assert kernel.statistics("m")[0].inference_count == 1
            write(tmp_path / "m" / "config.pbtxt", groups("count: 3"))
            await kernel.load("m")
            assert len(kernel.model("m").scheduler.instances) == 3

    run(main())


def test_a_batching_model_is_scaled_in_place(tmp_path: Path) -> None:
    text = "max_batch_size: 4\ndynamic_batching { max_queue_delay_microseconds: 1000 preserve_ordering: true }\n"

    async def main() -> None:
        model(tmp_path, "m", 1, config=groups("count: 2") + text)
        async with explicit(tmp_path, Answering({"m": sleeping(1)})) as kernel:
            client = Client(kernel)
            for round, count in enumerate((1, 3, 2, 1, 4)):
                for k in range(10):
                    client.send("m", f"{round}.{k}", [[1.0]])
                await asyncio.sleep(0.3)
                write(tmp_path / "m" / "config.pbtxt", groups(f"count: {count}") + text)
                await kernel.load("m")
            await asyncio.sleep(60)
            assert len(client.outcomes()) == 50 and {words for _, words in client.outcomes().values()} == {"ok"}
            assert kernel.statistics("m")[0].success.count == 50

    run(main())


class Gate:
    """Executors on threads of their own that wait until they may go on."""

    name = "test"
    creates_on_loop = False
    placement = Placement.THREAD
    capacity = 1
    may_wait = False

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Semaphore(0)
        self.open.set()
        self.creating, self.may_create = threading.Event(), threading.Event()
        self.may_create.set()
        self.made = self.closed = 0

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        return

    def create(self, context: InstanceContext) -> Gate:
        self.made += 1
        self.creating.set()
        assert self.may_create.wait(10)
        return self

    def execute(self, batch: Batch) -> Result:
        self.entered.release()
        assert self.open.wait(10)
        return [answer(request) for request in batch.requests]

    def finalize(self) -> None:
        self.closed += 1

    @hookimpl
    def register_backends(self, kernel: Kernel) -> Mapping[str, Any]:
        return {"test": self}


def test_a_thread_that_goes_gives_back_what_it_has_not_begun(tmp_path: Path) -> None:
    """Runs: a thread is handed many executions at once; those it has not begun are executed by who stays."""

    async def main() -> None:
        write_repository(tmp_path, {"m": groups("count: 2")})
        backend = Gate()
        async with Kernel(tmp_path, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
            await asyncio.gather(*(kernel.infer("m", X) for _ in range(200)))  # they are quick: runs get long
            instances = kernel.model("m").scheduler.instances
            assert all(instance.limit > 10 for instance in instances)
            while backend.entered.acquire(blocking=False):
                pass
            backend.open.clear()
            answers = [kernel.infer("m", X) for _ in range(40)]
            async with asyncio.timeout(10):
                while not all(instance.outstanding > 2 for instance in instances):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                for _ in range(2):
                    await kernel.loop.run_in_executor(None, backend.entered.acquire)
                write(tmp_path / "m" / "config.pbtxt", groups("count: 1"))
                await kernel.load("m")
                (gone,) = set(instances) - set(kernel.model("m").scheduler.instances)
                assert gone.outstanding == 1
                backend.open.set()
                await asyncio.gather(*answers)
                while backend.closed == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert not kernel.model("m").scheduler.pool.leaving
            await kernel.infer("m", X)
        assert backend.closed == 2

    asyncio.run(main())


@pytest.mark.parametrize("how", ["unload", "stop"])
def test_a_model_that_goes_while_new_instances_are_made(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": groups("count: 1")})
        backend = Gate()
        kernel = Kernel(tmp_path, plugins=[backend], control_mode="explicit", load_models=["*"])
        await kernel.start()
        backend.may_create.clear()
        backend.creating.clear()
        write(tmp_path / "m" / "config.pbtxt", groups("count: 3"))
        loading = asyncio.ensure_future(kernel.load("m"))
        async with asyncio.timeout(10):
            while not backend.creating.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)
            if how == "unload":
                kernel.unload("m")
            else:
                await kernel.stop()
            backend.may_create.set()
            await loading
            while backend.closed < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await kernel.stop()
        assert backend.made == backend.closed == 3 and kernel.models() == []

    asyncio.run(main())

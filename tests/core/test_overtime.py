"""Executions that last longer than they may: their requests are answered with the place; the instance stays busy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from virtual import BASE, Client, TestBackend, run, sleeping, write_repository

from kernel import Batch, Kernel, Result, ServingError
from kernel.config.execution_limit import execution_limit_of
from kernel.server.overtime import overdue

LIMIT = 'parameters {{ key: "execution_timeout" value {{ string_value: "{0}" }} }}\n'


@pytest.mark.parametrize("where", ["model", "server"])
def test_who_lasts_too_long_is_answered_and_the_instance_stays_busy(tmp_path: Path, where: str) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE + (LIMIT.format(2) if where == "model" else "")})
        backend = TestBackend({"m": sleeping(10.0)})
        more = {} if where == "model" else {"execution_timeout": 2.0}
        async with Kernel(tmp_path, plugins=[backend], control_mode="explicit", load_models=["m"], **more) as kernel:
            client = Client(kernel)
            client.send("m", "a")
            client.send("m", "b")
            await asyncio.sleep(30)
            when, words = client.outcome("a")
            assert 2.0 <= when <= 2.5
            assert "execution of model 'm', instance 'm_0_0', has lasted for 2." in words
            assert "of 2 s that it may (execution_timeout), is at " in words and "tasks.py:" in words
            assert [when for when, name, _ in backend.log if name == "m"] == [1000.0, 1010.0]  # b begins when a has returned
            assert 12.0 <= client.outcome("b")[0] <= 12.5

    run(main())


def test_a_model_may_have_no_limit_where_others_have_one(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE + LIMIT.format(0), "n": BASE})
        behaviours = {"m": sleeping(10.0), "n": sleeping(1.0)}
        backend = TestBackend(behaviours)
        async with Kernel(
            tmp_path, plugins=[backend], control_mode="explicit", load_models=["*"], execution_timeout=2
        ) as kernel:
            client = Client(kernel)
            client.send("m", "a")
            client.send("n", "b")
            await asyncio.sleep(20)
            assert client.outcomes() == {"a": (10.0, "ok"), "b": (1.0, "ok")}

    run(main())


def test_a_greenlet_that_waits_is_seen(tmp_path: Path) -> None:
    kernels: list[Kernel] = []

    def execute(batch: Batch) -> Result:
        kernels[0].wait_for(lambda wake: kernels[0].loop.call_later(10.0, wake))
        return []

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE + LIMIT.format("0.5")})
        async with Kernel(
            tmp_path, plugins=[TestBackend({"m": execute})], control_mode="explicit", load_models=["m"]
        ) as kernel:
            kernels.append(kernel)
            client = Client(kernel)
            client.send("m", "a")
            await asyncio.sleep(20)
            when, words = client.outcome("a")
            assert 0.5 <= when <= 0.7 and "is at " in words

    run(main())


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(tmp_path: Path, text: str) -> None:
    words = f"parameter 'execution_timeout' is '{text}', wanted a number of seconds, 0 for no limit"
    with pytest.raises(ServingError, match=words):
        execution_limit_of({"execution_timeout": text}, 1.0)

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE + LIMIT.format(text)})
        with pytest.raises(ServingError, match=f"parameter 'execution_timeout' of model 'm' is '{text}' — wanted a number"):
            async with Kernel(tmp_path, plugins=[TestBackend({})], control_mode="explicit", load_models=["m"]):
                pass

    run(main())


def test_limits_and_who_is_over_them() -> None:
    assert execution_limit_of({}, 3.0) == 3.0
    assert execution_limit_of({"execution_timeout": "0"}, 3.0) == 0.0
    assert execution_limit_of({"execution_timeout": "1.5"}, 0.0) == 1.5
    waiting, young, old, ended = batches = [Batch([], 0) for _ in range(4)]
    young.started, old.started, ended.started, ended.ended = 9.0, 8.0, 1.0, 9.0
    assert not waiting.started
    assert overdue(batches, 10.0, 2.0) == [old]

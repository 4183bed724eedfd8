"""Requests above a limit of those in flight are refused at once; what was accepted, and what it calls, never is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from virtual import BASE, Client, TestBackend, run, sleeping, write_repository

from kernel import Code, InferenceRequest, Kernel, LocalCache, Overloaded, Reason, ServingError

LIMIT = 'parameters { key: "max_inflight" value { string_value: "%s" } }\n'


@asynccontextmanager
async def serving(folder: Path, models: Mapping[str, str], **options: Any) -> AsyncIterator[Client]:
    backend = TestBackend(dict.fromkeys(models, sleeping(1.0)))
    async with Kernel(write_repository(folder, models), plugins=[backend], **options) as kernel:
        yield Client(kernel)


def words(whose: str, count: int, flag: str) -> str:
    return f"{whose} has {count} requests in flight, the most that {flag} allows; try again later"


def test_a_model_s_own_limit(tmp_path: Path) -> None:
    """Also below what its instances could take at once; each answer makes room for another."""

    async def main() -> None:
        models = {"m": LIMIT % 2 + BASE.replace("count: 1", "count: 4"), "other": BASE}
        async with serving(tmp_path, models) as client:
            for index in range(4):
                client.send("m", str(index))
            client.send("other", "other")
            await asyncio.sleep(0)
            refused = "[request id: 2] " + words("model 'm'", 2, "its parameter max_inflight")
            assert client.outcome("2") == (0.0, refused)
            assert client.outcome("3")[0] == 0.0
            assert client.requests["2"].error is not None and isinstance(client.requests["2"].error, Overloaded)
            assert (client.requests["2"].error.code, client.requests["2"].error.reason) == (Code.UNAVAILABLE, Reason.REJECTED)
            await asyncio.sleep(1.5)
            for index in range(4, 7):
                client.send("m", str(index))
            await asyncio.sleep(1.5)
            assert [name for name, (_, said) in client.outcomes().items() if said == "ok"] == ["0", "1", "other", "4", "5"]
            assert client.kernel.statistics("m")[0].success.count == 4

    run(main())


def test_the_server_s_limit_is_for_all_models(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"a": BASE, "b": BASE}, max_inflight=3) as client:
            for index in range(6):
                client.send("ab"[index % 2], str(index))
            await asyncio.sleep(0)
            assert client.outcome("3")[1].endswith(words("the server", 3, "--max-inflight"))
            client.kernel.cancel(client.requests["0"])
            client.kernel.cancel(client.requests["2"])
            client.send("b", "6")
            client.send("b", "7")
            await asyncio.sleep(5)
            assert [name for name, (_, said) in client.outcomes().items() if said == "ok"] == ["1", "6", "7"]

    run(main())


def test_the_books_balance_whatever_becomes_of_requests(tmp_path: Path) -> None:
    """Cancelled, late, refused by the check or by a full queue, failed, in flight while the model goes."""

    async def main() -> None:
        queue = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
        text = f"{LIMIT % 8}{BASE} max_batch_size: 2 {queue}"
        async with serving(tmp_path, {"m": text}, max_inflight=8, control_mode="explicit", load_models=["m"]) as client:
            kernel, ceiling = client.kernel, client.kernel.supervision.ceiling
            assert ceiling is not None
            for round in range(3):
                for index in range(20):
                    id = f"{round}.{index}"
                    client.send("m", id, [[1.0]] if index % 5 else [1.0], deadline=kernel.clock() + 0.5 if index % 3 else None)
                await asyncio.sleep(0)
                assert 0 < len(ceiling.inside) <= 8
                kernel.cancel(client.requests[f"{round}.1"])
                await asyncio.sleep(5)
                assert not ceiling.inside
            client.send("m", "last", [[1.0]])
            await kernel.unload("m")
            await asyncio.sleep(5)
            assert not ceiling.inside and client.outcome("last")[1] == "ok"
            assert len(client.outcomes()) == 61

    run(main())


def test_the_calls_of_a_request_belong_to_it(tmp_path: Path) -> None:
    """Else an accepted request could fail, or wait for what it keeps out itself."""

    async def main() -> None:
        async with serving(tmp_path, {"outer": BASE, "inner": LIMIT % 1 + BASE}, max_inflight=1) as client:
            request = client.send("outer", "outer")
            await asyncio.sleep(0)
            for index in range(3):
                client.send("inner", f"call {index}", parent=request.batch)
            client.send("inner", "from outside")
            await asyncio.sleep(0.5)
            assert [id for id, answers in client.answers.items() if answers] == ["from outside"]
            await asyncio.sleep(10)
            assert client.outcome("outer")[1] == "ok"
            assert not any("in flight" in said for id, (_, said) in client.outcomes().items() if id != "from outside")
            assert client.kernel.supervision.ceiling is not None and client.kernel.supervision.ceiling.inside == set()

    run(main())


def test_answers_that_are_kept_take_no_room(tmp_path: Path) -> None:
    async def main() -> None:
        text = LIMIT % 1 + BASE + "response_cache { enable: true }"
        async with serving(tmp_path, {"m": text}, cache=LocalCache(1 << 20)) as client:
            client.send("m", "first")
            await asyncio.sleep(2)
            client.send("m", "other", (2.0,))
            client.send("m", "kept")
            client.send("m", "refused", (3.0,))
            await asyncio.sleep(0.1)
            assert client.outcome("kept")[1] == "ok" and "in flight" in client.outcome("refused")[1]

    run(main())


def test_where_there_is_no_limit_nobody_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}) as client:
            model = client.kernel.model("m")
            assert model.enqueue == model.scheduler.enqueue and model.scheduler.life.on_release == ()

    run(main())


@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_limits_that_make_no_sense(tmp_path: Path, value: str) -> None:
    async def main() -> str:
        async with serving(tmp_path, {"m": LIMIT % value + BASE}, exit_on_error=False) as client:
            return str(client.kernel.index()[0].reason)

    assert f"parameter 'max_inflight' of model 'm' is '{value}' — wanted an integer of at least 1" in run(main())
    with pytest.raises(ServingError, match="max_inflight is -1, wanted at least 0"):
        Kernel(tmp_path, max_inflight=-1)


def test_an_error_of_its_own_kind_travels() -> None:
    import pickle

    again = pickle.loads(pickle.dumps(Overloaded("try later")))
    assert (type(again), again.code, again.message) == (Overloaded, Code.UNAVAILABLE, "try later")
    assert InferenceRequest("m", {}, lambda response, final: None).error is None

"""Batchers of plugins: docs/batching.md is true, a choice that can't be had harms nobody; and the queue that is held back."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import types
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual import BASE, Client, TestBackend, echo, run, sleeping, write_repository

from kernel import Batcher, InferenceRequest, Kernel, ModelConfig, hookimpl

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "batching.md").read_text(), re.DOTALL)
BATCHING = BASE + "max_batch_size: 8\n"
RAGGED = BATCHING.replace("dims: [ -1 ] } ]\noutput", "dims: [ -1 ] allow_ragged_batch: true } ]\noutput")
BY_LENGTH = 'parameters { key: "batcher" value { string_value: "by_length" } }\n'

Choose = Callable[[Collection[InferenceRequest], float], tuple[Sequence[Any], float | None]]


class Plugin:
    """Gives a batcher to the models whose name begins with an m."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose

    @hookimpl
    def make_batcher(self, config: ModelConfig) -> Batcher | None:
        return self if config.name.startswith("m") else None


def by_length() -> types.ModuleType:
    assert len(SNIPPETS) == 1
    module = types.ModuleType("by_length")
    exec(SNIPPETS[0], module.__dict__)
    return module


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    async def main() -> None:
        backend = TestBackend({})
        config = RAGGED + BY_LENGTH + "dynamic_batching { max_queue_delay_microseconds: 100000 }"
        write_repository(tmp_path, {"m": config, "other": RAGGED + "dynamic_batching { }"})
        async with Kernel(tmp_path, plugins=[backend, by_length()]) as kernel:
            client = Client(kernel)
            for place, length in enumerate([3, 50, 4, 60, 6, 100, 7]):
                client.send("m", f"{place}:{length}", np.zeros((1, length)))
                client.send("other", f"other {place}", np.zeros((1, length)))
            await asyncio.sleep(0.15)
            assert backend.executions("m") == [["0:3", "2:4", "4:6"], ["1:50", "3:60", "5:100"], ["6:7"]]
            assert [len(names) for names in backend.executions("other")] == [7]
            assert client.outcome("0:3") == (0.1, "ok")
            for place in range(9):
                client.send("m", f"full {place}", np.zeros((1, 5)))
            await asyncio.sleep(0.01)
            assert backend.executions("m")[3:] == [[f"full {place}" for place in range(8)]]  # nothing to wait for

    run(main())


def choose_nothing(waiting: Collection[InferenceRequest], now: float) -> tuple[Sequence[Any], float | None]:
    return (), None


def choose_late(waiting: Collection[InferenceRequest], now: float) -> tuple[Sequence[Any], float | None]:
    return (), now - 1


def choose_all(waiting: Collection[InferenceRequest], now: float) -> tuple[Sequence[Any], float | None]:
    return list(waiting), None


def choose_twice(waiting: Collection[InferenceRequest], now: float) -> tuple[Sequence[Any], float | None]:
    return [next(iter(waiting))] * 2, None


def choose_strangers(waiting: Collection[InferenceRequest], now: float) -> tuple[Sequence[Any], float | None]:
    return [InferenceRequest("m", {}, lambda response, final: None)], None


def choose_none(waiting: Collection[InferenceRequest], now: float) -> Any:
    return None


def fail(waiting: Collection[InferenceRequest], now: float) -> tuple[Sequence[Any], float | None]:
    raise ValueError("planned")


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (choose_nothing, "chose nothing and didn't say when to look again"),
        (choose_late, "wants to look again at a time that has passed"),
        (choose_all, "chose 10 rows, and max_batch_size is 8"),
        (choose_twice, "chose a request twice"),
        (choose_strangers, "chose a request that doesn't wait"),
        (choose_none, "failed: TypeError"),
        (fail, "failed: ValueError: planned"),
    ],
)
def test_a_choice_that_can_not_be_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, choose: Choose, words: str
) -> None:
    async def main() -> None:
        backend = TestBackend({"m": sleeping(0.1)})
        write_repository(tmp_path, {"m": RAGGED + "dynamic_batching { }"})
        async with Kernel(tmp_path, plugins=[backend, Plugin(choose)]) as kernel:
            client = Client(kernel)
            for place in range(10):
                client.send("m", str(place), np.zeros((1, 2)))
            await asyncio.sleep(1)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert max(len(names) for names in backend.executions("m")) <= 8

    with caplog.at_level(logging.ERROR, "kernel"):
        run(main())
    (message,) = {record.getMessage() for record in caplog.records}
    assert words in message and "batcher Plugin of model 'm'" in message and "the core's own rule decides" in message
    assert len(caplog.records) == 1  # once, not for each batch


def test_shapes_that_can_not_go_together(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        backend = TestBackend({})
        write_repository(tmp_path, {"m": BATCHING + "dynamic_batching { }"})
        async with Kernel(tmp_path, plugins=[backend, Plugin(choose_all)]) as kernel:
            client = Client(kernel)
            client.send("m", "two", np.zeros((1, 2)))
            client.send("m", "three", np.zeros((1, 3)))
            await asyncio.sleep(1)
            assert backend.executions("m") == [["two"], ["three"]]

    with caplog.at_level(logging.ERROR, "kernel"):
        run(main())
    assert "allow_ragged_batch" in caplog.text


def test_any_order_and_later(tmp_path: Path) -> None:
    """A choice from the middle; and the time to look again is kept."""

    def choose(waiting: Collection[InferenceRequest], now: float) -> tuple[Sequence[Any], float | None]:
        if now < 1000.5:
            return (), 1000.5
        return sorted(waiting, key=lambda request: request.id, reverse=True)[:2], None

    async def main() -> None:
        backend = TestBackend({})
        write_repository(tmp_path, {"m": BATCHING + "dynamic_batching { }"})
        async with Kernel(tmp_path, plugins=[backend, Plugin(choose)]) as kernel:
            client = Client(kernel)
            for name in "abcd":
                client.send("m", name, np.zeros((1, 2)))
            await asyncio.sleep(1)
            assert backend.executions("m") == [["d", "c"], ["b", "a"]]
            assert client.outcome("a") == (0.5, "ok")
            assert kernel.model("m").scheduler.queue.size == 0

    run(main())


def test_only_models_with_a_batcher_are_asked_for(tmp_path: Path) -> None:
    asked: list[str] = []

    class Curious:
        @hookimpl
        def make_batcher(self, config: ModelConfig) -> None:
            asked.append(config.name)

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE, "n": BATCHING + "dynamic_batching { }"})
        async with Kernel(tmp_path, plugins=[TestBackend({}), Curious()]):
            assert asked == ["n"]

    run(main())


def test_a_plugin_that_fails_fails_its_model(tmp_path: Path) -> None:
    class Broken:
        @hookimpl
        def make_batcher(self, config: ModelConfig) -> Batcher | None:
            raise ValueError("no such rule")

    async def main() -> None:
        write_repository(tmp_path, {"m": BATCHING + "dynamic_batching { }", "plain": BASE})
        async with Kernel(tmp_path, plugins=[TestBackend({}), Broken()], exit_on_error=False) as kernel:
            (one, two) = kernel.index()
            assert (one.name, one.state, two.state) == ("m", "UNAVAILABLE", "READY")
            assert "no such rule" in one.reason

    run(main())


# -- held back: the reference's debugging aid --------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["4", "0", "", "x"])
def test_nothing_is_taken_until_so_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", value)

    async def main() -> None:
        backend = TestBackend({"m": echo})
        write_repository(tmp_path, {"m": BATCHING + "dynamic_batching { }", "plain": BASE})
        async with Kernel(tmp_path, plugins=[backend]) as kernel:
            client = Client(kernel)
            names = map(str, itertools.count())
            for _ in range(3):
                client.send("m", next(names), [[1]])
                client.send("plain", next(names))  # not its business
                await asyncio.sleep(1)
            sizes = [len(one) for one in backend.executions("m")]
            assert sizes == ([] if value == "4" else [1, 1, 1])
            assert len(backend.executions("plain")) == 3
            for _ in range(2):
                client.send("m", next(names), [[1]])
            await asyncio.sleep(1)
            sizes = [len(one) for one in backend.executions("m")]
            assert sizes == ([5] if value == "4" else [1, 1, 1, 2])
            client.send("m", next(names), [[1]])
            await asyncio.sleep(1)
            assert [len(one) for one in backend.executions("m")] == [*sizes, 1]  # once, then as always
            assert {words for _, words in client.outcomes().values()} == {"ok"}

    run(main())

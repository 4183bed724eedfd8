"""Async models that hold the loop are moved to threads of their own, between executions; what a config asks for is obeyed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kernel import Kernel, Watchdog
from kernel.rules.holding import Blocked, Held, Sight

#: Y: which loop it runs on, after X[0] seconds.
WHERE = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(float(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0]))
        loop = id(asyncio.get_running_loop()) % 100_003
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([loop], np.float32))]) for _ in requests]
"""

#: As WHERE, but it can be initialized only once.
ONCE = """
from pathlib import Path

""" + WHERE.replace(
    "    async def",
    """    def initialize(self, args):
        file = Path(args["model_repository"]) / "made"
        file.touch(exist_ok=False)

    async def""",
)

SEQUENCES = "sequence_batching { }"


def of(kernel: Kernel) -> list[int]:
    return [id(kernel.loop) % 100_003]


def messages(caplog: pytest.LogCaptureFixture, beginning: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(beginning)]


def test_a_model_leaves_the_loop_between_executions(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    repo.add("m", WHERE, count=2)

    async def main(kernel: Kernel) -> None:
        model = kernel.model("m")
        before = asyncio.ensure_future(helpers.ask(kernel, "m", [0.2]))
        assert await helpers.ask(kernel, "m", [0.0]) == of(kernel)
        kernel.supervision.conduct.held("m", 0.1, "model.py:9", __file__)
        kernel.supervision.conduct.held("m", 0.1, "model.py:9", __file__)
        await model.leave_loop("held the event loop")
        after = [await helpers.ask(kernel, "m", [0.0]) for _ in range(3)]
        assert of(kernel) not in after
        assert await before == of(kernel)
        assert str(model.placement_choice) == "thread: held the event loop"
        assert [instance.name for instance in model.scheduler.instances] == ["m_0_0", "m_0_1"]

    caplog.set_level(logging.INFO, "kernel")
    repo.run(main)
    assert messages(caplog, "model 'm' runs on") == ["model 'm' runs on threads of its own now"]


def test_where_new_instances_fail_the_old_ones_go_on(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    repo.add("m", ONCE)

    async def main(kernel: Kernel) -> None:
        model, was = kernel.model("m"), kernel.model("m").placement_choice
        kernel.supervision.conduct.held("m", 0.1, "model.py:9", __file__)
        kernel.supervision.conduct.held("m", 0.1, "model.py:9", __file__)
        await model.leave_loop("held the event loop")
        assert await helpers.ask(kernel, "m", [0.0]) == of(kernel)
        assert model.placement_choice is was

    repo.run(main, backend_config={"python": {"default-placement": "server"}})
    (words,) = messages(caplog, "model 'm' stays")
    assert words.startswith("model 'm' stays on the event loop: its new instances failed: FileExistsError: ")


def test_who_is_moved_and_who_is_told(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture) -> None:
    repo.add("free", WHERE)
    repo.add("asked", WHERE, parameters={"placement": "loop"})
    repo.add("sequences", WHERE, extra=SEQUENCES)

    async def main(kernel: Kernel) -> None:
        watchdog = Watchdog(kernel)
        watchdog.start()
        try:
            for name in ("free", "asked", "sequences", "absent"):
                for seconds in (0.06, 0.2):
                    watchdog._note(Held(seconds, Sight(name, name, f"{name}_0_0", "model.py:9", __file__)))
            await asyncio.wait(watchdog._moves)
            assert await helpers.ask(kernel, "free", [0.0]) != of(kernel)
            assert await helpers.ask(kernel, "asked", [0.0]) == of(kernel)
            for name in ("free", "asked"):
                watchdog._note(Blocked(0.3, Sight(name, name, f"{name}_0_0", "model.py:9", __file__)))
            words = "kept the interpreter from everybody else for 300 ms at model.py:9"
            assert kernel.supervision.conduct.must_isolate("free") == words
        finally:
            watchdog.stop()
        assert [kernel.model(name).scheduler.statistics.held for name in ("free", "asked", "sequences")] == [1, 1, 1]

    caplog.set_level(logging.INFO, "kernel")
    repo.run(main)
    held = "held the event loop for 200 ms at model.py:9; parameters"
    twice = "has held the event loop twice, for 200 ms at model.py:9 the second time"
    kept = "has kept the interpreter from everybody else for 300 ms at model.py:9, by code that does not release Python's lock"
    kinds = "free", "asked", "sequences"
    told = [words.partition(" { key")[0] for name in kinds for words in messages(caplog, f"model '{name}'")]
    assert [words for words in told if " runs " not in words] == [
        f"model 'free', instance 'free_0_0', {held}",
        f"model 'free' {twice}; its instances are made anew on threads of their own, where they hold up nobody (parameters",
        f"model 'free' {kept}; it gets a process of its own when it is loaded next",
        f"model 'asked', instance 'asked_0_0', {held}",
        f"model 'asked' {kept}; parameters",
        f"model 'sequences', instance 'sequences_0_0', {held}",
        f"model 'sequences' {twice}; it stays where it is as long as it is loaded, for its sequences",
    ]


def test_a_model_that_keeps_the_interpreter_is_loaded_into_a_process(repo: Any) -> None:
    repo.add("m", WHERE)

    async def main(kernel: Kernel) -> None:
        assert kernel.model("m").placement_choice.where == "loop"  # type: ignore[union-attr]
        kernel.supervision.conduct.blocked("m", 0.3, "model.py:9", __file__)
        kernel.unload("m")
        await kernel.load("m")
        choice = kernel.model("m").placement_choice
        assert str(choice) == "process: kept the interpreter from everybody else for 300 ms at model.py:9"

    repo.run(main, control_mode="explicit", load_models=["m"])


#: Its thread runs until `over` is set, which `finalize` does where `{ends}` says so.
THREADED = """
import threading

class TritonPythonModel:
    def initialize(self, args):
        self.over = threading.Event()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        for _ in range(2_000):
            if self.over.wait(0.01):
                return

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, np.float32))]) for _ in requests]

    def finalize(self):
        if {ends}:
            self.over.set()
"""


def test_a_model_that_leaves_threads_behind_gets_a_process(
    repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_python.staying.MOMENT_SECONDS", 0.1)
    monkeypatch.setattr("kernel_python.staying.PATIENCE_SECONDS", 0.1)
    for name, ends in (("clean", True), ("m", False)):
        repo.add(name, THREADED.format(ends=ends))

    async def main(kernel: Kernel) -> None:
        for name in ("clean", "m"):
            await kernel.load(name)
            assert kernel.model(name).placement_choice.where == "thread"
            await kernel.unload(name)
        async with asyncio.timeout(30):
            while kernel.supervision.conduct.must_isolate("m") is None:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        for name, where in (("clean", "thread"), ("m", "process")):
            await kernel.load(name)
            assert kernel.model(name).placement_choice.where == where

    repo.run(main, control_mode="explicit")
    (said,) = messages(caplog, "model 'm' left")
    assert said.startswith("model 'm' left 1 of its threads running when it was unloaded, one at model.py:1")
    assert "; `finalize` has to end them, or a process of its own, which it gets when it is loaded next" in said
    assert not messages(caplog, "model 'clean' left")

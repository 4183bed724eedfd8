"""Cancellation between python models, from every placement to every placement: what runs sees it, what waits is dropped.

Models tell through the log what they do, and are told to end by a file; nothing depends on how long anything takes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from telling import until

from kernel import Kernel

#: define, placement, what it does while it looks.
WAITERS = {
    "loop": ("async def", "loop", "await asyncio.sleep(0.001)"),
    "thread": ("def", "thread", "time.sleep(0.001)"),
    "thread-async": ("async def", "thread", "await asyncio.sleep(0.001)"),
    "process": ("def", "process", "time.sleep(0.001)"),
}

#: define, placement, how it calls.
CALLERS = {
    "loop": ("def", "loop", "call.exec()"),
    "loop-async": ("async def", "loop", "await call.async_exec()"),
    "thread": ("def", "thread", "call.exec()"),
    "process": ("def", "process", "call.exec()"),
    "process-async": ("async def", "process", "await call.async_exec()"),
}

INNER = """
import asyncio, os, time
class TritonPythonModel:
    {define} execute(self, requests):
        (request,) = requests
        x = int(request.inputs()[0].as_numpy()[0])
        pb_utils.Logger.log_info(f"inner {{x}} begins")
        while not (request.is_cancelled() or os.path.exists({go!r})):
            {pause}
        pb_utils.Logger.log_info(f"inner {{x}} " + ("was cancelled" if request.is_cancelled() else "goes on"))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])]
"""

OUTER = """
class TritonPythonModel:
    {define} execute(self, requests):
        (request,) = requests
        x = request.inputs()[0].as_numpy()
        call = pb_utils.InferenceRequest(
            model_name="inner", inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"])
        pb_utils.Logger.log_info(f"outer {{int(x[0])}} calls")
        answer = {call}
        pb_utils.Logger.log_info(f"outer {{int(x[0])}} {{request.is_cancelled()}} {{answer.has_error()}}")
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return [pb_utils.InferenceResponse(answer.output_tensors())]
"""

ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling {
  step {
    model_name: "outer" model_version: -1
    input_map { key: "X" value: "X" }
    output_map { key: "Y" value: "T" }
  }
  step {
    model_name: "inner" model_version: -1
    input_map { key: "X" value: "T" }
    output_map { key: "Y" value: "Y" }
  }
}
"""


class Scene:
    """The models, what they have told, and the file that lets them end."""

    def __init__(self, repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture, folder: Path) -> None:
        self.repo = repo
        self.helpers = helpers
        self.caplog = caplog
        self.go = folder / "go"

    def add(self, caller: str, waiter: str) -> None:
        define, placement, pause = WAITERS[waiter]
        code = INNER.format(define=define, pause=pause, go=str(self.go))
        self.repo.add("inner", code, parameters={"placement": placement, "max_concurrency": "1"})
        define, placement, call = CALLERS[caller]
        many = {"placement": placement, "max_concurrency": "2"}
        self.repo.add("outer", OUTER.format(define=define, call=call), parameters=many, count=2)
        (self.repo.folder / "both" / "1").mkdir(parents=True)
        (self.repo.folder / "both" / "config.pbtxt").write_text(ENSEMBLE)

    def told(self, text: str) -> bool:
        return any(record.getMessage() == text for record in self.caplog.records)

    def call(self, kernel: Kernel, model: str, x: float, **fields: Any) -> Any:
        return self.helpers.Call(kernel, model, [x], **fields)

    def run(self, main: Callable[[Kernel], Awaitable[Any]]) -> Any:
        with self.caplog.at_level(logging.INFO):
            return self.repo.run(main)


@pytest.fixture
def scene(repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> Scene:
    return Scene(repo, helpers, caplog, tmp_path)


def failures(kernel: Kernel, model: str) -> dict[str, int]:
    (record,) = kernel.statistics(model)
    return {reason: count for reason, count in record.failures.items() if count}


@pytest.mark.parametrize("waiter", WAITERS)
@pytest.mark.parametrize("caller", CALLERS)
def test_what_runs_sees_it_and_what_waits_is_dropped(scene: Scene, caller: str, waiter: str) -> None:
    """Two callers, one instance to call: 1 runs there, 2 waits for it. First 2 is cancelled, then 1."""
    scene.add(caller, waiter)

    async def main(kernel: Kernel) -> None:
        scheduler = kernel.model("inner").scheduler
        first = scene.call(kernel, "outer", 1)
        await until(lambda: scene.told("inner 1 begins"))
        second = scene.call(kernel, "outer", 2)
        await until(lambda: scheduler.in_flight == 2)
        kernel.cancel(second.request)
        assert (await second.result())[0].startswith("CANCELLED")
        assert (scheduler.in_flight, scheduler.pending) == (1, 0), "it keeps its place"
        await until(lambda: scene.told("outer 2 True True"))
        assert not first.done.is_set()
        kernel.cancel(first.request)
        assert (await first.result())[0].startswith("CANCELLED")
        await until(lambda: scene.told("inner 1 was cancelled"))
        await until(lambda: scene.told("outer 1 True True"))
        scene.go.touch()
        assert await scene.call(kernel, "outer", 3).result() == [[[3.0]]]
        assert not scene.told("inner 2 begins")
        assert failures(kernel, "outer") == failures(kernel, "inner") == {"CANCELED": 2}
        assert kernel.statistics("inner")[0].success.count == 1

    scene.run(main)


@pytest.mark.parametrize("waiter", WAITERS)
@pytest.mark.parametrize("caller", ["loop", "thread", "process"])
def test_a_cancelled_ensemble(scene: Scene, caller: str, waiter: str) -> None:
    """Its first step calls: that one and what it has called see it, the second step never starts."""
    scene.add(caller, waiter)

    async def main(kernel: Kernel) -> None:
        call = scene.call(kernel, "both", 1)
        await until(lambda: scene.told("inner 1 begins"))
        kernel.cancel(call.request)
        assert (await call.result())[0].startswith("CANCELLED")
        await until(lambda: scene.told("inner 1 was cancelled") and scene.told("outer 1 True True"))
        scene.go.touch()
        assert await scene.call(kernel, "inner", 3).result() == [[[3.0]]]
        for model in ("both", "outer", "inner"):
            assert failures(kernel, model) == {"CANCELED": 1}, model
        assert kernel.statistics("inner")[0].success.count == 1

    scene.run(main)


@pytest.mark.parametrize("waiter", WAITERS)
def test_a_deadline_is_an_end_like_any_other(scene: Scene, waiter: str) -> None:
    scene.add("thread", waiter)

    async def main(kernel: Kernel) -> None:
        call = scene.call(kernel, "outer", 1, deadline=kernel.clock() + 0.3)
        await call.done.wait()
        (words,) = await call.result()
        assert words.startswith("UNAVAILABLE: ") and "deadline of the request to model 'outer' passed after" in words
        if scene.told("inner 1 begins"):  # on a busy machine it may not have come as far
            await until(lambda: scene.told("inner 1 was cancelled"))
        scene.go.touch()
        assert await scene.call(kernel, "outer", 3).result() == [[[3.0]]]

    scene.run(main)

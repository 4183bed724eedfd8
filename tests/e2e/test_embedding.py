"""The kernel inside an asyncio app: on either loop, beside others of its kind, and as if it weren't there after its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from kernel import Kernel, ServingError

from .serving import REPOSITORY, wait_until, write_model

Run = Callable[[Callable[[], Awaitable[Any]]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_on_loop(function: Callable[[], Awaitable[Any]]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(function())  # type: ignore[arg-type]

    return run_on_loop


def test_infer_and_stream(run: Run) -> None:
    async def app() -> None:
        async with Kernel(REPOSITORY) as kernel:
            assert kernel.is_ready()
            one = np.array([1, 2, 3], np.float32)
            response = await kernel.infer("add_sub", {"A": one, "B": one}, id="x")
            assert response["SUM"].tolist() == [2, 4, 6]
            assert (response.id, response.model_name, response.model_version) == ("x", "add_sub", "1")
            assert one.tolist() == [1, 2, 3]

            streamed = kernel.stream("repeat", {"IN": np.array([7, 8], np.int32)})
            assert [response["OUT"].tolist() async for response in streamed] == [[7], [8]]

            upper = await kernel.infer("text_upper", {"TEXT": np.array(["ä", "b"])})
            assert [text.decode() for text in upper["UPPER"]] == ["Ä", "B"]

            with pytest.raises(ServingError, match="unexpected inference input 'C' for model 'add_sub'"):
                await kernel.infer("add_sub", {"A": one, "C": one})
            with pytest.raises(ServingError, match="'nobody' is not found"):
                await kernel.infer("nobody", {})
            (statistics,) = kernel.statistics("add_sub")
            assert statistics.inference_count == 1

    run(app)


def test_pipelines_agree(run: Run) -> None:
    async def app() -> list[list[bytes]]:
        with np.load(REPOSITORY / "digits.npz") as file:
            images = file["images"][:16]
        async with Kernel(REPOSITORY) as kernel:
            pipelines = ("pipeline_sync", "pipeline_ensemble")
            responses = await asyncio.gather(*(kernel.infer(name, {"IMAGE": images}) for name in pipelines))
            return [response["LABEL"][:, 0].tolist() for response in responses]

    by_sync, by_ensemble = run(app)
    assert by_sync == by_ensemble


def test_load_and_unload(run: Run, tmp_path: Path) -> None:
    write_model(tmp_path, "echo")

    async def app() -> None:
        async with Kernel(tmp_path, control_mode="explicit") as kernel:
            assert kernel.models() == []
            await kernel.load("echo")
            assert kernel.is_model_ready("echo")
            assert (await kernel.infer("echo", {"X": np.ones(2, np.float32)}))["Y"].tolist() == [1, 1]
            kernel.unload("echo")
            assert not kernel.is_model_ready("echo")
            with pytest.raises(ServingError, match="'echo' has no available versions"):
                await kernel.infer("echo", {"X": np.ones(2, np.float32)})

    run(app)


def test_two_kernels_in_one_process(run: Run, tmp_path: Path) -> None:
    """The same model name, other code: nothing is shared."""
    write_model(tmp_path / "a", "echo")
    folder = write_model(tmp_path / "b", "echo")
    model = folder / "1/model.py"
    model.write_text(model.read_text().replace(".as_numpy())", ".as_numpy() * 3)"))

    async def app() -> list[list[float]]:
        async with Kernel(tmp_path / "a") as a, Kernel(tmp_path / "b") as b:
            x = {"X": np.array([2], np.float32)}
            responses = await asyncio.gather(a.infer("echo", x), b.infer("echo", x), a.infer("echo", x))
            return [response["Y"].tolist() for response in responses]

    assert run(app) == [[2], [6], [2]]


def test_nothing_is_left_behind(run: Run) -> None:
    threads = set(threading.enumerate())
    interval = sys.getswitchinterval()

    async def app() -> None:
        async with Kernel(REPOSITORY) as kernel:
            one = np.ones(3, np.float32)
            await kernel.infer("add_sub", {"A": one, "B": one})
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(app)
    wait_until(lambda: set(threading.enumerate()) <= threads)
    assert sys.getswitchinterval() == interval, "the app's switch interval is the app's"


def test_import_starts_nothing() -> None:
    code = (
        "import sys, threading, logging, gc; interval = sys.getswitchinterval(); thresholds = gc.get_threshold(); import kernel; "
        "assert threading.active_count() == 1; assert not logging.getLogger().handlers; "
        "assert sys.getswitchinterval() == interval and gc.get_threshold() == thresholds; "
        "plugins = [name for name in sys.modules if name.startswith('kernel_')]; assert not plugins, plugins; "
        "assert 'uvloop' not in sys.modules, 'whoever embeds the kernel on asyncio needs no uvloop'"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr

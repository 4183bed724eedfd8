"""The kernel inside an asyncio app: on either loop, beside others of its kind, and as if it weren't there after its end."""

from __future__ import annotations

import asyncio
import logging
import re
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

from .serving import ECHO, FINALIZED, REPOSITORY, SLEEPER, wait_until, write_model

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


def test_before_the_start_and_after_the_end(run: Run) -> None:
    x = {"A": [1], "B": [2]}
    kernel = Kernel(REPOSITORY, control_mode="explicit")
    not_started = "this Kernel has not been started: use it in `async with Kernel"

    async def app() -> None:
        for call in (
            lambda: kernel.infer("add_sub", x), lambda: kernel.load("add_sub"), lambda: kernel.unload("add_sub"),
            lambda: anext(kernel.stream("add_sub", x)), lambda: kernel.infer_threadsafe("add_sub", x),
        ):  # fmt: skip
            with pytest.raises(ServingError, match=not_started):
                await call()
        with pytest.raises(TypeError, match="a Kernel is for asyncio, `async with Kernel"), kernel:
            pass
        with pytest.raises(AttributeError, match="'Kernel' object has no attribute 'inferr'"):
            kernel.inferr  # noqa: B018
        assert getattr(kernel, "loop", None) is None
        async with kernel:
            await kernel.load("add_sub")
            assert (await kernel.infer("add_sub", x))["SUM"].tolist() == [3]
        for call in (lambda: kernel.infer("add_sub", x), lambda: kernel.load("add_sub"), lambda: kernel.unload("add_sub")):
            with pytest.raises(ServingError, match="this Kernel has been stopped and serves nothing any more"):
                await call()

    run(app)


def test_loads_where_the_mode_forbids_them(run: Run) -> None:
    """The message is the reference's; what to do stands below it in the traceback."""

    async def app() -> None:
        async with Kernel(REPOSITORY) as kernel:
            for what in ("load", "unload"):
                with pytest.raises(ServingError, match=r"^explicit model load / unload is not allowed") as caught:
                    await getattr(kernel, what)("add_sub")
                assert caught.value.__notes__ == [
                    f"This Kernel has control_mode='none'; one that may {what} is made by "
                    "Kernel(..., control_mode='explicit', load_models=['*'])."
                ]

    run(app)


def test_an_unload_that_is_awaited(run: Run, tmp_path: Path) -> None:
    """Returns when the model has been finalized; without `await` it goes on as well."""
    folder = write_model(tmp_path, "m", FINALIZED)

    async def app() -> None:
        async with Kernel(tmp_path, control_mode="explicit") as kernel:
            await kernel.unload("m")  # which is not loaded
            for _ in range(2):
                await kernel.load("m")
                await kernel.unload("m")
                (folder / "1/finalized").unlink()
            loading = asyncio.ensure_future(kernel.load("m"))
            await asyncio.sleep(0)
            await kernel.unload("m")  # follows the load
            await loading
            assert not kernel.is_model_ready("m")
            (folder / "1/finalized").unlink()

    run(app)


def test_lists_and_floats_of_numpy(run: Run) -> None:
    async def app() -> None:
        async with Kernel(REPOSITORY) as kernel:
            answer = await kernel.infer("add_sub", {"A": [1, 2.5], "B": np.array([0.5, 0.1])})
            assert answer["SUM"].tolist() == [1.5, np.float32(2.5) + np.float32(0.1)]
            assert (await kernel.infer("add_sub", {"A": 1, "B": (2,)}))["SUM"].tolist() == [3]
            assert (await kernel.infer("text_upper", {"TEXT": ["ä", b"b"]}))["UPPER"].tolist() == ["Ä".encode(), b"B"]
            streamed = kernel.stream("repeat", {"IN": [7, 8]})
            assert [response["OUT"].tolist() async for response in streamed] == [[7], [8]]
            one = np.ones(2, np.float32)
            for value, words in {
                (1e300,): "input 'B' of model 'add_sub' wants FP32, which 1e+300 does not fit",
                ("x",): "input 'B' of model 'add_sub' wants FP32, got ('x',) (<U1)",
                ((1, 2), (3,)): "input 'B' of model 'add_sub' has no shape: ",
            }.items():
                with pytest.raises(ServingError, match=re.escape(words)):
                    await kernel.infer("add_sub", {"A": one, "B": value})
            with pytest.raises(ServingError, match=r"input 'IN' of model 'repeat' wants INT32 .*, got 2147483648"):
                await kernel.infer("repeat", {"IN": [2**31]})
            with pytest.raises(ServingError, match="input 'B' data-type is 'INT64', but model 'add_sub' expects 'FP32'"):
                await kernel.infer("add_sub", {"A": one, "B": np.ones(2, np.int64)})
            with pytest.raises(ServingError, match="'IN' data-type is 'FP64', but model 'repeat' expects 'INT32'"):
                await kernel.infer("repeat", {"IN": np.ones(2)})
            with pytest.raises(ServingError, match="'nobody' is not found"):
                await kernel.infer("nobody", {"X": [1]})
            with pytest.raises(ServingError, match="the inputs for model 'add_sub' are a list, wanted a mapping of names"):
                await kernel.infer("add_sub", [one])  # type: ignore[arg-type]

    run(app)


def test_from_other_threads(run: Run) -> None:
    x = {"A": [1], "B": [2]}

    async def app() -> None:
        async with Kernel(REPOSITORY) as kernel:

            def plain() -> list[float]:
                with pytest.raises(ServingError) as caught:
                    kernel.infer("add_sub", x)
                assert caught.value.message == (
                    "Kernel.infer was called on a thread without a running event loop, and not on the one of the kernel's loop; "
                    "there it is kernel.infer_threadsafe('add_sub', ...).result()"
                )
                with pytest.raises(ServingError, match=r"Kernel.unload was called on another thread.*kernel.call_soon"):
                    kernel.unload("add_sub")
                with pytest.raises(ServingError, match="unexpected inference input 'Z'"):
                    kernel.infer_threadsafe("add_sub", {"A": [1], "Z": [1]}).result(10)
                return kernel.infer_threadsafe("add_sub", x).result(10)["SUM"].tolist()

            def with_a_loop() -> list[float]:
                async def there() -> list[float]:
                    streamed = kernel.stream("repeat", {"IN": [7, 8]})
                    assert [response["OUT"].tolist() async for response in streamed] == [[7], [8]]
                    with pytest.raises(ServingError, match="run_coroutine_threadsafe"):
                        await kernel.load("add_sub")
                    return (await kernel.infer("add_sub", x))["SUM"].tolist()

                return asyncio.run(there())

            assert await asyncio.to_thread(plain) == [3]
            assert await asyncio.to_thread(with_a_loop) == [3]

    run(app)


def test_a_request_of_another_thread_is_cancelled(run: Run, tmp_path: Path) -> None:
    write_model(tmp_path, "slow", SLEEPER)

    async def app() -> None:
        async with Kernel(tmp_path) as kernel:

            def give_up() -> None:
                first = kernel.infer_threadsafe("slow", {"X": [0.5]})
                second = kernel.infer_threadsafe("slow", {"X": [0]})  # waits in the queue
                assert second.cancel() and second.cancelled()
                assert first.result(10)["Y"].tolist() == [0.5]

            await asyncio.to_thread(give_up)
            assert kernel.inflight() == []
            (counted,) = kernel.statistics("slow")
            assert counted.inference_count == 1

    run(app)


def test_log_lines_are_seen_once(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In an app they go where its own handlers put them, and from every placement."""
    talks = "    def initialize(self, args):\n        pb_utils.Logger.log_warn('hello from ' + args['model_name'])\n" + ECHO
    for placement in ("loop", "thread", "process"):
        write_model(tmp_path, placement, talks, more=f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}')
    handlers = logging.getLogger().handlers[:]

    async def app() -> None:
        async with Kernel(tmp_path), Kernel(tmp_path):
            assert logging.getLogger().handlers == handlers

    run(app)
    told = sorted(record.getMessage() for record in caplog.records if "hello from" in record.getMessage())
    assert told == [f"hello from {placement}" for placement in ("loop", "loop", "process", "process", "thread", "thread")]


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

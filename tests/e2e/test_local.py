"""kernel.Local: plain calls in scripts and notebooks; nothing of it outlives whoever has it."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kernel import Kernel, Local, ServingError

from .serving import BROKEN, FINALIZED, REPOSITORY, SLEEPER, SLOW_TO_LOAD, STOP_LIMIT_S, wait_until, write_model

X = {"A": [1, 2], "B": [10, 20]}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kernel-local"]


def test_a_script() -> None:
    with Local(REPOSITORY) as models:
        assert models.models()["add_sub"] == [1]
        response = models.infer("add_sub", X, id="x")
        assert (response["SUM"].tolist(), response.id) == ([11, 22], "x")
        assert [response["OUT"].tolist() for response in models.stream("repeat", {"IN": [4, 5]})] == [[4], [5]]
        models.unload("add_sub")
        assert "add_sub" not in models.models()
        with pytest.raises(ServingError, match="'add_sub' has no available versions"):
            models.infer("add_sub", X)
        models.load("add_sub")
        assert models.infer("add_sub", X)["SUM"].tolist() == [11, 22]
        with pytest.raises(ServingError, match="model not found in any model repository; did you mean 'add_sub'"):
            models.load("add_subb")
        with pytest.raises(ServingError, match="unexpected inference input 'C'"):
            list(models.stream("add_sub", {"A": [1], "C": [1]}))

        async def ready(kernel: Kernel) -> bool:
            return kernel.is_ready()

        assert models.run(ready(models.kernel))
    assert not threads()
    closed = "has been (closed|stopped) and serves nothing any more; make a new one"
    for call in (models.models, lambda: models.infer("add_sub", X), lambda: next(models.stream("add_sub", X))):
        with pytest.raises(ServingError, match=closed):
            call()
    models.close()


def test_within_a_running_loop() -> None:
    """As in a notebook, where cells run on one."""

    async def cell() -> list[float]:
        with Local(REPOSITORY, load_models=["add_sub"]) as models:
            assert list(models.models()) == ["add_sub"]
            assert (await models.kernel.infer("add_sub", X))["SUM"].tolist() == [11, 22]
            return models.infer("add_sub", X)["SUM"].tolist()

    assert asyncio.run(cell()) == [11, 22]


def test_nothing_waits_on_the_kernels_own_loop() -> None:
    with Local(REPOSITORY, load_models=[]) as models:

        async def wrong() -> None:
            for call in (models.models, lambda: models.infer("add_sub", X), lambda: next(models.stream("add_sub", X))):
                with pytest.raises(ServingError, match="waiting on the kernel's own loop would stop it for ever"):
                    call()

        models.run(wrong())


def test_a_stream_that_is_left_is_cancelled() -> None:
    with Local(REPOSITORY) as models:
        for _ in models.stream("repeat", {"IN": list(range(1000)), "DELAY_MS": [10]}):
            break

        async def inflight() -> int:
            return len(models.kernel.inflight())

        wait_until(lambda: models.run(inflight()) == 0)


def test_a_model_that_can_not_be_loaded(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", BROKEN)
    with pytest.raises(ServingError, match="no weights today"):
        Local(tmp_path)
    with pytest.raises(ServingError, match="failed to stat file /nowhere"):
        Local("/nowhere")
    with pytest.raises(TypeError, match="unexpected keyword argument 'load_model'"):
        Local(tmp_path, load_model=["broken"])
    assert not threads()


def test_whom_nobody_has_any_more(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", FINALIZED)
    models = Local(tmp_path)
    del models
    gc.collect()
    wait_until(lambda: not threads())
    assert (folder / "1/finalized").exists()


def script(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """What nobody has closed is closed in time, also where a model is computing."""
    more = 'parameters {{ key: "placement" value {{ string_value: "{}" }} }}'
    placements = ("loop", "thread", "process")
    folders = [write_model(tmp_path, name, FINALIZED, more=more.format(name)) for name in placements]
    write_model(tmp_path, "slow", SLEEPER)
    code = (
        "import sys, kernel\n"
        "models = kernel.Local(sys.argv[1])\n"
        "print([models.infer(name, {'X': [1]})['Y'].item() for name in ('loop', 'thread', 'process')])\n"
        "models.kernel.infer_threadsafe('slow', {'X': [60]})\n"
    )
    process = script(code, tmp_path)
    out, errors = process.communicate(timeout=STOP_LIMIT_S)
    assert (process.returncode, out) == (0, "[1.0, 1.0, 1.0]\n"), errors
    assert all((folder / "1/finalized").exists() for folder in folders)
    assert "Traceback" not in errors


def test_an_interrupt_while_models_load(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "slow", SLOW_TO_LOAD)
    process = script("import sys, kernel; kernel.Local(sys.argv[1])", tmp_path)
    wait_until((folder / "1/loading").exists)
    process.send_signal(signal.SIGINT)
    (folder / "1/go").touch()
    _, errors = process.communicate(timeout=STOP_LIMIT_S)
    assert process.returncode != 0 and errors.rstrip().endswith("KeyboardInterrupt")

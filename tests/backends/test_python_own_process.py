"""What is the process's own is refused to models that their config has placed in the server, with the way out."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel import Kernel

CODE = """
import argparse
import logging.config
import os
import signal

class TritonPythonModel:
    {definition} execute(self, requests):
        value = 1.0
        {code}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.float32))]) for _ in requests]
"""

REFUSED = {
    "signal.signal": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "signal.alarm": "signal.alarm(1)",
    "signal.setitimer": "signal.setitimer(signal.ITIMER_REAL, 1)",
    "os.close": "os.close(2)",
    "os.closerange": "os.closerange(3, 1000)",
    "os.chdir": "os.chdir('/')",
    "os._exit": "os._exit(3)",
    "os.abort": "os.abort()",
    "os.kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "os.killpg": "os.killpg(0, signal.SIGKILL)",
    "signal.raise_signal": "signal.raise_signal(signal.SIGKILL)",
    "logging.config.dictConfig": "logging.config.dictConfig({'version': 1})",
    "logging.config.fileConfig": "logging.config.fileConfig('log.ini')",
    "ArgumentParser.parse_known_args": "argparse.ArgumentParser().parse_args()",
}

PLACES = [("thread", "def"), ("loop", "def"), ("loop", "async def"), ("thread", "async def")]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(repo: Any, helpers: Any, name: str) -> None:
    for number, (placement, definition) in enumerate(PLACES):
        code = CODE.format(definition=definition, code=REFUSED[name])
        repo.add(f"m{number}", code, parameters={"placement": placement})

    async def main(kernel: Kernel) -> None:
        for number in range(len(PLACES)):
            said = await helpers.ask(kernel, f"m{number}")
            assert (
                f"{name}() is about the whole process, which model 'm{number}' shares with the server; "
                'parameters { key: "placement" value { string_value: "process" } } in its config gives it one of its own'
            ) in said

    before = os.getcwd(), signal.getsignal(signal.SIGTERM)
    repo.run(main)
    assert (os.getcwd(), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_would_not_find_the_model_are_refused(repo: Any, helpers: Any, method: str) -> None:
    """A pool would start its workers without end, each of which dies of a module that it does not find."""
    code = f"import multiprocessing; multiprocessing.get_context('{method}').Pool(1).map(TritonPythonModel, [1])"
    repo.add("m", CODE.format(definition="def", code=code), parameters={"placement": "thread"})

    async def main(kernel: Kernel) -> None:
        assert (
            "processes started by 'spawn' or 'forkserver' do not find the code of model 'm' in the server's; "
            'parameters { key: "placement" value { string_value: "process" } } in its config gives it one of its own'
        ) in await helpers.ask(kernel, "m")

    repo.run(main)


def test_an_interrupt_from_the_keyboard_leaves_forked_workers_alone(repo: Any, helpers: Any) -> None:
    """It is sent to all of them, and the server, which it is meant for, waits for what they compute."""
    code = """
        import multiprocessing, time
        worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(0.2,))
        worker.start()
        os.kill(worker.pid, signal.SIGINT)
        worker.join()
        value = float(worker.exitcode)"""
    repo.add("m", CODE.format(definition="def", code=code), parameters={"placement": "process"})

    async def main(kernel: Kernel) -> None:
        assert await helpers.ask(kernel, "m") == [0.0]

    repo.run(main)


def test_a_load_that_is_refused_says_so(repo: Any) -> None:
    code = CODE.format(definition="def", code="pass").replace(
        "class TritonPythonModel:\n", "class TritonPythonModel:\n    def initialize(self, args):\n        os.chdir('/')\n\n"
    )
    repo.add("m", code, parameters={"placement": "thread"})
    words = "Internal: SharedProcessError: os.chdir() is about the whole process, which model 'm' shares with the server; "
    assert words in repo.load_error("m")


def test_what_is_not_about_this_process_passes(repo: Any, helpers: Any) -> None:
    """A child's signals, arguments that are given; and in a child that the model forks everything."""
    allowed = {
        "child": "import subprocess; child = subprocess.Popen(['sleep', '60']); os.kill(child.pid, 15); value = child.wait()",
        "given": "value = argparse.ArgumentParser().parse_args([]) and 5.0",
        "asked": "value = float(signal.getsignal(signal.SIGTERM) is not None)",
        "forked": """
        pid = os.fork()
        if not pid:
            os.chdir('/')
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os._exit(7)
        value = float(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))""",
    }
    for name, code in allowed.items():
        repo.add(name, CODE.format(definition="def", code=code), parameters={"placement": "thread"})

    async def main(kernel: Kernel) -> None:
        assert [await helpers.ask(kernel, name) for name in allowed] == [[-15.0], [5.0], [1.0], [7.0]]

    repo.run(main)


def test_whom_no_model_has_called_passes(repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.add("m", CODE.format(definition="def", code="pass"), parameters={"placement": "thread"})

    async def main(kernel: Kernel) -> None:
        monkeypatch.setattr(sys, "argv", ["app", "--x=1"])
        parser = argparse.ArgumentParser()
        parser.add_argument("--x")
        assert parser.parse_args().x == "1"
        monkeypatch.chdir(tmp_path)
        assert os.getcwd() == str(tmp_path)
        monkeypatch.undo()

    repo.run(main)

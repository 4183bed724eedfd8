"""A child is as clean as a fresh process, and what model code forks in it has nothing of the server's. Real children."""

from __future__ import annotations

import asyncio
import errno
import importlib
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from telling import TEXT

from kernel import Kernel, ServingError
from kernel_python.process import fork_server, spawn
from kernel_python.process.executor import ProcessExecutor
from kernel_python.process.fork_server import can_fork

PROCESS = {"placement": "process"}
HEAD = """
import json, multiprocessing, os, random, signal, socket, subprocess, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def tell(requests, value):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(value)], dtype=object))]) for _ in requests]

def call(*_):
    request = pb_utils.InferenceRequest(
        model_name="echo", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", np.ones(1, np.float32))]
    )
    response = request.exec()
    return response.error().message() if response.has_error() else "ok"

def attempt(*_):
    try:
        return call()
    except pb_utils.TritonModelException as error:
        return str(error)

def sockets():
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if stat_of(fd)]

def stat_of(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False
"""
REFUSAL = "this process was forked by the model, and the server does not know it: "


def model(body: str) -> str:
    lines = "\n        ".join(body.strip("\n").splitlines())
    return f"class TritonPythonModel:\n    def execute(self, requests):\n        {lines}\n"


async def ask(kernel: Kernel, helpers: Any, value: Any = (1.0,)) -> Any:
    (answer,) = await helpers.ask(kernel, "a", value)
    return json.loads(answer)


def answer(repo: Any, helpers: Any, body: str, rest: str = "") -> Any:
    """Return what one execution of such a model tells."""
    repo.add("a", HEAD + rest + model(body), io=TEXT, parameters=PROCESS, head="")
    repo.add("echo", helpers.ECHO)

    async def main(kernel: Kernel) -> Any:
        first = await ask(kernel, helpers)
        assert await ask(kernel, helpers) is not None  # it serves on
        return first

    return repo.run(main)


def test_a_child_has_argv_signals_and_a_main_thread_of_its_own(repo: Any, helpers: Any) -> None:
    body = """
    return tell(requests, [
        sys.argv, threading.active_count(), threading.current_thread() is threading.main_thread(),
        signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL, signal.getsignal(signal.SIGALRM) == signal.SIG_DFL, len(sockets()),
    ])
    """
    assert answer(repo, helpers, body) == [[""], 1, True, True, True, 1]  # the one socket is its own link to the server


def test_programs_of_a_model_get_the_default_signal_handlers(repo: Any, helpers: Any) -> None:
    code = "import signal; print([signal.getsignal(n) == d for n, d in ((15, signal.SIG_DFL), (2, signal.default_int_handler))])"
    body = f"return tell(requests, subprocess.run([sys.executable, '-c', {code!r}], capture_output=True, text=True).stdout)"
    assert answer(repo, helpers, body) == "[True, True]\n"


def test_what_is_sent_to_all_processes_of_the_server_ends_no_model(repo: Any, helpers: Any) -> None:
    """A service manager's SIGHUP to all, for one, has the server open its log anew."""
    code = "import signal; print([signal.getsignal(n) == signal.SIG_DFL for n in (1, 15)])"
    body = f"""
    mine = [signal.getsignal(number).__name__ for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]
    program = subprocess.run([sys.executable, '-c', {code!r}], capture_output=True, text=True).stdout
    return tell(requests, [os.getpid(), os.getppid(), mine, program])
    """
    repo.add("a", HEAD + model(body), io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        first = await ask(kernel, helpers)
        for pid in first[:2] if can_fork() else first[:1]:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                os.kill(pid, number)
        return first, await ask(kernel, helpers)

    first, second = repo.run(main)
    assert first == second
    assert first[2:] == [["_nothing"] * 3, "[True, True]\n"]


@pytest.mark.parametrize("name", ["os.pidfd_open", "signal.pidfd_send_signal"])
def test_children_are_started_afresh_where_the_system_lacks_what_a_fork_server_needs(
    repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(name, refuse)
    repo.add("a", HEAD + model("return tell(requests, os.getppid())"), io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        return await ask(kernel, helpers)

    assert repo.run(main) == os.getpid()


def test_a_forked_worker_can_be_terminated_and_has_no_end_of_the_server(repo: Any, helpers: Any) -> None:
    body = """
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=time.sleep, args=(1000,))
    worker.start()
    worker.terminate()
    worker.join(30)
    with context.Pool(2) as pool:
        return tell(requests, [worker.exitcode, pool.map(attempt, range(2)), pool.apply(sockets) == [], call()])
    """
    code, refusals, no_sockets, called = answer(repo, helpers, body)
    assert code == -signal.SIGTERM
    assert all(text.startswith(REFUSAL + "calls of other models, senders and metrics are for") for text in refusals)
    assert called == "ok"
    assert no_sockets


def test_a_fork_that_returns_from_execute_takes_no_executions(repo: Any, helpers: Any) -> None:
    body = """
    if requests[0].inputs()[0].as_numpy()[0] == 1:
        self.child = os.fork()
    else:
        self.child, status = os.waitpid(self.child, 0)
    return tell(requests, [os.getpid(), self.child])
    """
    repo.add("a", HEAD + model(body), io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        return await ask(kernel, helpers), await ask(kernel, helpers, [2.0])

    first, second = repo.run(main)
    assert first[0] == second[0]
    assert first[1] == second[1] != 0


def test_children_draw_random_numbers_of_their_own(repo: Any, helpers: Any) -> None:
    code = HEAD + "import numpy.random\n" + model("return tell(requests, [random.random(), float(np.random.rand())])")
    for name in ("a", "b"):
        repo.add(name, code, io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        return [json.loads((await helpers.ask(kernel, name))[0]) for name in ("a", "b")]

    first, second = repo.run(main)
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_child_begins_with_the_environment_and_folder_of_now(
    repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "return tell(requests, [os.environ.get('A_NEW_ONE'), os.environ.get('AN_OLD_ONE'), os.getcwd()])"
    monkeypatch.setenv("AN_OLD_ONE", "old")
    for name in ("a", "b"):
        repo.add(name, HEAD + model(body), io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        await kernel.load("b")  # the fork server begins
        monkeypatch.setenv("A_NEW_ONE", "new")
        monkeypatch.delenv("AN_OLD_ONE")
        monkeypatch.chdir(tmp_path)
        await kernel.load("a")
        return await ask(kernel, helpers)

    assert repo.run(main, control_mode="explicit") == ["new", None, str(tmp_path)]


def test_an_environment_may_change_by_more_than_a_packet_holds(
    repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        body = "return tell(requests, len(os.environ.get('LONG_0', '')))"
        repo.add(name, HEAD + model(body), io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        await kernel.load("b")  # the fork server begins
        for number in range(10):
            monkeypatch.setenv(f"LONG_{number}", "x" * 100_000)
        await kernel.load("a")
        return await ask(kernel, helpers)

    assert repo.run(main, control_mode="explicit") == 100_000


def test_files_in_the_folder_of_now_are_nobodys_modules(
    repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("numpy", "random", "json", "kernel"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not this one')\n")
    monkeypatch.chdir(tmp_path)
    repo.add("a", HEAD + model("return tell(requests, os.getcwd())"), io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        return await ask(kernel, helpers)

    assert repo.run(main) == str(tmp_path)


def test_a_child_begins_where_the_folder_of_now_has_been_removed(
    repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        repo.add(name, HEAD + model("return tell(requests, os.getpid())"), io=TEXT, parameters=PROCESS, head="")
    gone = tmp_path / "gone"
    gone.mkdir()

    async def main(kernel: Kernel) -> Any:
        await kernel.load("b")
        monkeypatch.chdir(gone)
        gone.rmdir()
        await kernel.load("a")
        return await ask(kernel, helpers)

    assert repo.run(main, control_mode="explicit") > 0


@pytest.mark.skipif(not can_fork(), reason="children are started afresh here")
def test_the_end_of_the_fork_server_ends_its_children_and_they_come_back(
    repo: Any, helpers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    repo.add("a", HEAD + model("return tell(requests, [os.getpid(), os.getppid()])"), io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        first = await ask(kernel, helpers)
        os.kill(first[1], signal.SIGKILL)
        async with asyncio.timeout(60):
            while True:  # the first may still be answered, or end with its process
                answer = await helpers.ask(kernel, "a")
                if isinstance(answer, list) and (second := json.loads(answer[0])) != first:
                    return first, second

    first, second = repo.run(main)
    assert second[0] != first[0]
    assert second[1] != first[1]
    assert "ended with the fork server that it came from; it is started again now" in caplog.text


@pytest.mark.skipif(not can_fork(), reason="children are started afresh here")
def test_a_fork_server_that_does_not_answer_is_replaced(
    repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kernel_python.process.fork_server.ANSWER_SECONDS", 0.1)
    for name in ("a", "b"):
        repo.add(name, HEAD + model("return tell(requests, [os.getpid(), os.getppid()])"), io=TEXT, parameters=PROCESS, head="")

    begin = ProcessExecutor.__init__

    def impatient(self: ProcessExecutor, context: Any, file: Path, launcher: Any, patience: float, hang: float = 0.0) -> None:
        begin(self, context, file, launcher, 0.5, hang)

    async def main(kernel: Kernel) -> Any:
        await kernel.load("a")
        first = await ask(kernel, helpers)
        os.kill(first[1], signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ServingError) as refused:
            patch.setattr(ProcessExecutor, "__init__", impatient)  # nobody else has to be as quick as that
            await kernel.load("b")
        assert "Process 0 has not begun within 0.5 s (--backend-config=python,stub-timeout-seconds)" in str(refused.value)
        await kernel.load("b")
        second = await ask(kernel, helpers)
        assert first[1] != second[1]
        # Nor does it say that a child has ended.
        os.kill(second[1], signal.SIGSTOP)
        os.kill(second[0], signal.SIGKILL)
        async with asyncio.timeout(60):
            while isinstance(third := await helpers.ask(kernel, "a"), str):  # what is told by the one that has ended
                pass
        return first, second, json.loads(third[0])

    first, second, third = repo.run(main, control_mode="explicit")
    assert third[1] not in (first[1], second[1])
    assert f"the fork server, process {first[1]}, does not answer: it is ended, and with it the 1 processes" in caplog.text


def says_ready(begun: Any) -> bool:
    """Whether a fork server has all imported: from then on it ignores SIGTERM, which is for the server alone."""
    status = Path(f"/proc/{begun.process.pid}/status").read_text()
    ignored = int(re.findall(r"^SigIgn:\s*(\w+)", status, re.M)[0], 16)
    return bool(ignored >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(not can_fork(), reason="children are started afresh here")
def test_a_fork_server_may_be_there_before_anybody_needs_it(repo: Any, helpers: Any) -> None:
    """One that has ended meanwhile is not taken. Whoever needs one says so, for who is to take its place one day."""
    repo.add("a", HEAD + model("return tell(requests, os.getppid())"), io=TEXT, parameters=PROCESS, head="")

    async def main(kernel: Kernel) -> Any:
        assert not kernel.supervision.ahead
        await kernel.load("a")
        assert kernel.supervision.ahead == {fork_server.AHEAD}
        return await ask(kernel, helpers)

    module, _, name = fork_server.AHEAD.partition(":")
    begin_ahead = getattr(importlib.import_module(module), name)
    for killed in (False, True):
        begin_ahead()
        begun = fork_server._ahead
        assert begun is not None and says_ready(begun)
        begin_ahead()
        assert fork_server._ahead is begun
        if killed:
            begun.process.kill()
            begun.process.wait()
        assert (repo.run(main, control_mode="explicit") == begun.process.pid) is not killed
        assert fork_server._ahead is None


@pytest.mark.skipif(not can_fork(), reason="children are started afresh here")
def test_a_fork_server_that_can_not_begin_is_told(repo: Any, helpers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "BOOT", "import sys; sys.exit(3)")
    repo.add("a", helpers.ECHO, parameters=PROCESS)
    words = "It ended with the fork server that it came from, which exited with code 3 (what it said of that is on stderr)"
    assert f"Stub process 'a_0_0' is not healthy. {words}" in repo.load_error("a")

"""Placement `ray` on a real Ray cluster of several nodes on this machine: a model's life, a lost node under load, its end.

One cluster for all of the file: it takes seconds to start, and some hundred megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel import Kernel, ServingError

from .serving import Server, command, run, write_model

ray = pytest.importorskip("ray")

#: Ray opens files and pipes that it leaves to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

X = {"X": np.arange(3, dtype=np.float32)}

#: Answers with the number of its process, and with how many requests came together.
MODEL = """\
    async def execute(self, requests):
        import asyncio, os
        await asyncio.sleep(0.002)
        y = np.array([os.getpid(), len(requests)], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]) for _ in requests]
"""


def asked(**parameters: object) -> str:
    """Return the part of a config that asks for placement `ray`."""
    given = {"placement": "ray", "max_concurrency": 64, **parameters}
    pairs = ((json.dumps(key), json.dumps(str(value))) for key, value in given.items())
    return "\n".join(f"parameters {{ key: {key} value {{ string_value: {value} }} }}" for key, value in pairs)


class Nodes:
    """The cluster of ray_cluster.py."""

    def __init__(self, folder: str) -> None:
        program = [sys.executable, str(Path(__file__).with_name("ray_cluster.py")), folder]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._answer("address ")

    def _answer(self, beginning: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:  # Ray says things there, too
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError(f"the cluster has ended with {self.process.wait(10)}")

    def lose(self) -> None:
        """Kill a node, with all that runs there."""
        assert self.process.stdin is not None
        self.process.stdin.write("lose\n")
        self.process.stdin.flush()
        self._answer("lost")

    def end(self) -> None:
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    folder = tempfile.mkdtemp(prefix="kernel-ray")  # short: sockets lie deep in it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
        patch.setenv("RAY_TMPDIR", folder)
        found = Nodes(folder)
        try:
            ray.init(address=found.address, log_to_driver=False, namespace="kernel")
            yield found
        finally:
            ray.shutdown()
            found.end()
            shutil.rmtree(folder, ignore_errors=True)


def serving(folder: Path, **more: Any) -> Kernel:
    return Kernel(folder, drain_seconds=2.0, control_mode="explicit", load_models=["m"], **more)


async def pid_of(kernel: Kernel) -> int:
    return int((await kernel.infer("m", X, timeout=30.0))["Y"][0])


def asked_by_http(url: str) -> int:
    """Return the number of the process that executes the model of a server."""
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [3], "data": [0, 1, 2]}]}).encode()
    with urllib.request.urlopen(f"http://{url}/v2/models/m/infer", body, timeout=30) as response:
        return int(json.load(response)["outputs"][0]["data"][0])


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


def test_a_model_is_executed_in_an_actor_and_its_unload_ends_that(nodes: Nodes, tmp_path: Path) -> None:
    write_model(tmp_path, "m", MODEL, more=asked(ray_files="ship"))

    async def main() -> None:
        async with serving(tmp_path) as kernel:
            pid = await pid_of(kernel)
            assert pid != os.getpid() and is_there(pid)
            assert kernel.statistics("m")[0].placement_choice is not None
            assert "ray" in str(kernel.statistics("m")[0].placement_choice)
            await kernel.load("m")  # nothing has changed
            assert await pid_of(kernel) == pid
            await kernel.unload("m")
            await until(lambda: not is_there(pid))

    asyncio.run(main())


def test_whole_servers_are_deployed_started_anew_and_taken_down(nodes: Nodes, tmp_path: Path) -> None:
    write_model(tmp_path / "models", "m", MODEL, more='parameters { key: "placement" value { string_value: "loop" } }')
    log = tmp_path / "log"
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    common = ["--address", nodes.address, "--name", "here"]

    def served() -> list[str]:
        """Return where they have told to listen, in order."""
        return re.findall(r"^here-\d on .*\bhttp (\S+:\d+)", log.read_text(), re.M)

    with contextlib.ExitStack() as stack:
        with log.open("wb") as file:
            words = command("ray", "deploy", tmp_path / "models", *common, "--quiet", "--", *ports)
            process = stack.enter_context(subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT))
        stack.callback(process.kill)
        asyncio.run(until(lambda: "2 servers; " in log.read_text() or process.poll() is not None, 120.0))
        assert len(served()) == 2, log.read_text()
        pids = [asked_by_http(url) for url in served()]
        assert len(set(pids)) == 2
        os.kill(pids[0], signal.SIGKILL)
        asyncio.run(until(lambda: len(served()) == 3, 120.0))
        assert "kernel serve has ended with signal SIGKILL" in log.read_text()
        pids += [asked_by_http(served()[2])]
        down = run("ray", "down", *common)
        assert (down.returncode, down.stdout) == (0, "ended here-0, here-1\n"), down
        assert process.wait(300) == 0 and "all servers have been ended" in log.read_text()
    asyncio.run(until(lambda: not any(map(is_there, pids))))


def test_a_load_that_fails_says_why_and_leaves_nothing(nodes: Nodes, tmp_path: Path) -> None:
    async def problem(name: str) -> str:
        with pytest.raises(ServingError) as caught:
            async with serving(tmp_path / name):
                pass
        return caught.value.message

    broken = "    def initialize(self, args): raise ValueError('no weights')\n" + MODEL
    write_model(tmp_path / "broken", "m", broken, more=asked())
    write_model(tmp_path / "large", "m", MODEL, more=asked(ray_num_cpus=64, ray_start_timeout=2))
    write_model(tmp_path / "elsewhere", "m", MODEL, more=asked(ray_node="10.9.8.7"))

    async def main() -> None:
        assert "in its actor: ValueError: no weights" in await problem("broken")
        words = "no actor of model 'm' serves within 2 s (ray_start_timeout): one asks for CPU 64, free are CPU "
        assert words in await problem("large")
        assert "the Ray cluster has no node '10.9.8.7' (ray_node) that is alive; there are " in await problem("elsewhere")
        await until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_server_that_ends_leaves_no_actor(nodes: Nodes, tmp_path: Path, number: signal.Signals) -> None:
    write_model(tmp_path / "models", "m", MODEL, more=asked())
    with contextlib.ExitStack() as stack:
        server = Server(tmp_path / "log", [tmp_path / "models", f"--backend-config=ray,address={nodes.address}"])
        stack.enter_context(server.process)
        stack.callback(server.process.kill)
        server.wait_started()
        pid = asked_by_http(server.url)
        assert is_there(pid)
        server.process.send_signal(number)
        status = server.process.wait(60)
        # Ray's own handler would print a stack, and have the process aborted three seconds later, whatever is in flight.
        assert status == (0 if number is signal.SIGTERM else -number) and "SIGTERM received" not in server.text()
        asyncio.run(until(lambda: not is_there(pid)))


# The last one: Ray may send actors to a node that is lost until it knows, and what is tested before has no patience with that.
def test_a_node_is_lost_under_load_and_only_what_was_in_flight_there_fails(nodes: Nodes, tmp_path: Path) -> None:
    write_model(tmp_path, "m", MODEL, more=asked(ray_actors=2))
    answered: list[int] = []  # by which process, in order
    failed: list[tuple[float, str]] = []
    stop = asyncio.Event()

    async def load(kernel: Kernel) -> None:
        while not stop.is_set():
            try:
                answered.append(await pid_of(kernel))
            except ServingError as error:
                failed.append((time.monotonic(), error.message))
                await asyncio.sleep(0.001)

    def both() -> set[int]:
        return set(answered[-100:])

    async def main() -> set[int]:
        async with serving(tmp_path) as kernel:
            workers = [asyncio.ensure_future(load(kernel)) for _ in range(16)]
            try:
                await until(lambda: len(answered) > 100 and len(both()) == 2, 60.0)
                before = both()
                nodes.lose()
                await until(lambda: len(both()) == 2 and len(both() & before) == 1, 60.0)
                return both() | before
            finally:
                stop.set()
                await asyncio.gather(*workers)

    pids = asyncio.run(main())
    words = [words for _, words in failed]
    assert 0 < len(failed) <= 16, words
    assert all("(Ray actor " in one and ("has closed the connection" in one or "has died" in one) for one in words), words
    assert failed[-1][0] - failed[0][0] < 5.0  # at the loss, and none after it
    assert len(pids) == 3
    asyncio.run(until(lambda: not any(map(is_there, pids))))

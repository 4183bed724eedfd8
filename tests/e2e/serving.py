"""Runs `kernel`, and an app that embeds it, as child processes.

Whatever a test does, nothing of it is left running: the context managers end what they have started.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2] / "repository"
START_LIMIT_S = 90.0
STOP_LIMIT_S = 90.0

#: What keeps a server from the ports that another may have.
FREE_PORTS = (
    "--http-address=127.0.0.1",
    "--http-port=0",
    "--grpc-address=127.0.0.1",
    "--grpc-port=0",
    "--metrics-address=127.0.0.1",
    "--metrics-port=0",
)

MODEL = """\
import time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
{body}
"""

CONFIG = """\
backend: "python"
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
{more}
"""

ECHO = """\
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""

#: Sleeps X[0] seconds; the file `started` in the version folder tells that it does.
SLEEPER = """\
    def execute(self, requests):
        (Path(__file__).parent / "started").touch()
        time.sleep(float(requests[0].inputs()[0].as_numpy()[0]))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""

BROKEN = """\
    def initialize(self, args):
        raise ValueError("no weights today")

""" + ECHO

#: `initialize` waits for the file `go` in the version folder; the file `loading` tells that it does.
SLOW_TO_LOAD = """\
    def initialize(self, args):
        (Path(__file__).parent / "loading").touch()
        while not (Path(__file__).parent / "go").exists():
            time.sleep(0.01)

""" + ECHO

#: Leaves the file `finalized` in the version folder.
FINALIZED = ECHO + """
    def finalize(self):
        (Path(__file__).parent / "finalized").touch()
"""


def write_model(repository: Path, name: str, body: str = ECHO, *, more: str = "", versions: Sequence[int] = (1,)) -> Path:
    """Write a python model and return its folder."""
    folder = repository / name
    for version in versions:
        (folder / str(version)).mkdir(parents=True)
        (folder / str(version) / "model.py").write_text(MODEL.format(body=body))
    (folder / "config.pbtxt").write_text(CONFIG.format(more=more))
    return folder


def command(*arguments: object, program: Sequence[str] = ("-m", "kernel")) -> list[str]:
    return [sys.executable, *program, *map(str, arguments)]


def run(*arguments: object, cwd: Path | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of `kernel` to its end."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, cwd=cwd, input=stdin)


class Server:
    """`kernel serve` on ports that the system has chosen. `program`: what Python is to run as `kernel`."""

    def __init__(self, log: Path, arguments: Sequence[object], program: Sequence[str] = ("-m", "kernel")) -> None:
        self.log = log
        self.port = 0
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command("serve", *FREE_PORTS, *arguments, program=program),
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
            )

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_started(self) -> None:
        """Return once the port is open. Fails with the log where that doesn't come."""

        def started() -> bool:
            found = re.search(r"Started HTTPS?Service at [^ ]+:(\d+)", self.text())
            self.port = int(found.group(1)) if found else 0
            return bool(found) or self.process.poll() is not None

        wait_until(started, START_LIMIT_S)
        assert self.port, f"the server ended with {self.process.poll()}:\n{self.text()}"

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(STOP_LIMIT_S)

    def request(
        self, method: str, path: str, body: object = None, timeout: float = 60.0, **headers: str
    ) -> tuple[int, Any]:
        """Send one request on a connection of its own; return the status and the decoded body (None where empty)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
            return response.status, json.loads(data) if data else None
        finally:
            connection.close()

    def infer(self, model: str, value: float, timeout: float = 60.0) -> tuple[int, Any]:
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}
        return self.request("POST", f"/v2/models/{model}/infer", body, timeout)


@contextmanager
def serving(folder: Path, *arguments: object, program: Sequence[str] = ("-m", "kernel")) -> Iterator[Server]:
    """Start `kernel serve` and end it."""
    server = Server(folder / f"server-{time.monotonic_ns()}.log", arguments, program)
    try:
        server.wait_started()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.terminate()
            try:
                server.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                server.process.kill()
        server.process.wait()


def wait_until(condition: Callable[[], object], limit: float = 60.0) -> None:
    """Return once the condition holds; fail when that takes too long."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


@contextmanager
def embedded(loop: str, repository: Path = REPOSITORY) -> Iterator[str]:
    """Run app.py, which embeds the kernel on the loop of that name and serves the repository; give its HTTP address."""
    app = Path(__file__).with_name("app.py")
    process = subprocess.Popen(
        [sys.executable, app, loop, repository], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().removeprefix("http://")
        process.communicate("", timeout=STOP_LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0

"""Placement `process` under `kernel serve`: whichever process is killed, nothing is left behind and nobody else notices."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from .serving import ECHO, FREE_PORTS, Server, command, serving, wait_until, write_model

PROCESS = 'parameters { key: "placement" value { string_value: "process" } }'

#: Y = X; dies of X = -1; the file `pid` in the version folder has the process' id.
MORTAL = """\
    def initialize(self, args):
        import os
        (Path(__file__).parent / "pid").write_text(str(os.getpid()))

    def execute(self, requests):
        import os
        out = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            if x[0] == -1:
                print("goodbye", file=__import__("sys").stderr)
                os._exit(1)
            out.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return out
"""

#: Computes without end, in C code that keeps the interpreter lock.
ENDLESS = """\
    def initialize(self, args):
        import os
        (Path(__file__).parent / "pid").write_text(str(os.getpid()))

    def execute(self, requests):
        (Path(__file__).parent / "started").touch()
        return [1 in __import__("itertools").repeat(0)]
"""


def pid_of(model: Path) -> int:
    return int((model / "1" / "pid").read_text())


def ask_without_end(connection: socket.socket) -> None:
    """Send the model `busy` a request that is never answered."""
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode()
    head = f"POST /v2/models/busy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # whoever inherits it has not asked yet


def shared_memory() -> set[str]:
    """Return the names there; those of the real Triton and of other tests, which may run at the same time, come and go."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("triton", "kernel_", "psm_", "sem."))}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


def test_kill_9_of_the_server_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    before = shared_memory()
    models = [write_model(repository, name, MORTAL, more=PROCESS) for name in ("a", "b")]
    busy = write_model(repository, "busy", ENDLESS, more=PROCESS)
    with serving(tmp_path, repository) as server:
        for name in ("a", "b"):
            assert server.infer(name, 1.0)[0] == 200
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            ask_without_end(connection)
            wait_until(lambda: (busy / "1" / "started").exists())
            pids = [pid_of(model) for model in (*models, busy)]
            assert all(map(alive, pids))
            server.signal(signal.SIGKILL)
            server.process.wait()
            wait_until(lambda: not any(map(alive, pids)))
    assert shared_memory() == before


def test_kill_9_of_a_child_is_told_and_mended(repository: Path, tmp_path: Path) -> None:
    """BC67, over HTTP."""
    model = write_model(repository, "a", MORTAL, more=PROCESS)
    write_model(repository, "other", ECHO, more=PROCESS)

    def ready(path: str) -> bool:
        return server.request("GET", f"/v2/{path}/ready")[0] == 200

    with serving(tmp_path, repository) as server:
        status, answer = server.infer("a", -1.0)
        assert status == 500
        assert answer["error"].startswith("Stub process 'a_0' is not healthy. Process ")
        assert answer["error"].endswith("exited with code 1; the last it wrote to stderr:\ngoodbye")
        wait_until(lambda: ready("models/a") and ready("health"))
        assert server.infer("a", 2.0)[0] == 200
        pid = pid_of(model)
        os.kill(pid, signal.SIGKILL)
        assert server.infer("a", 3.0)[0] == 200  # waited for the next
        assert pid_of(model) != pid
        assert server.infer("other", 4.0)[0] == 200
        text = server.text()
    assert "goodbye\n" in text
    assert f"Process {pid} was killed by SIGKILL (9)" in text
    assert "it is started again now" in text


def test_an_interrupt_from_the_keyboard_is_the_servers(repository: Path, tmp_path: Path) -> None:
    """The terminal signals the whole group; the children finish, finalize and leave when the server says so."""
    body = MORTAL + """
    def finalize(self):
        (Path(__file__).parent / "finalized").touch()
"""
    model = write_model(repository, "a", body, more=PROCESS)
    with serving(tmp_path, repository) as server:
        assert server.infer("a", 1.0)[0] == 200
        pid = pid_of(model)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        assert server.infer("a", 2.0)[0] == 200
        assert pid_of(model) == pid
        server.signal(signal.SIGINT)
        assert server.wait() == 0
    assert (model / "1" / "finalized").exists()
    assert not alive(pid)


def test_a_server_that_cannot_wait_ends_its_children(repository: Path, tmp_path: Path) -> None:
    model = write_model(repository, "busy", ENDLESS, more=PROCESS)

    with (
        serving(tmp_path, repository, "--exit-timeout-secs=1") as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        ask_without_end(connection)
        wait_until(lambda: (model / "1" / "started").exists())
        server.signal()
        server.wait()
    wait_until(lambda: not alive(pid_of(model)))


def test_a_load_that_fails_in_the_child_fails_the_start(repository: Path, tmp_path: Path) -> None:
    write_model(repository, "a", "    def initialize(self, args):\n        import os\n        os._exit(3)\n" + ECHO, more=PROCESS)
    server = Server(tmp_path / "server.log", [repository])
    assert server.wait() == 1
    assert "Stub process 'a_0' is not healthy. Process" in server.text()
    assert "exited with code 3" in server.text()


def test_standard_streams_that_are_closed_at_the_start_are_nowhere(repository: Path, tmp_path: Path) -> None:
    """Else the next files and sockets would get their numbers, and the processes of models these as their output."""
    model = write_model(repository, "mortal", MORTAL, more=PROCESS)
    log = tmp_path / "server.log"
    words = shlex.join(command("serve", *FREE_PORTS, f"--log-file={log}", repository))
    process = subprocess.Popen(["sh", "-c", f"exec {words} <&- >&- 2>&-"])
    try:
        wait_until(lambda: process.poll() is not None or (log.exists() and "Started HTTPService" in log.read_text()), 30)
        assert process.poll() is None, log.read_text()
        for pid in (process.pid, pid_of(model)):
            streams = [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]
            assert streams[:2] == [os.devnull] * 2
            assert streams[2] == os.devnull or (pid != process.pid and streams[2].startswith("pipe:"))
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()

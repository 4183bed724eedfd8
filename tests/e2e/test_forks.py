"""Processes that model code forks inside of the server: they have nothing of it, and it does not mind what becomes of them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .serving import ECHO, Server, embedded, serving, wait_until, write_model

#: `{call}` is made in a forked child that leaves what comes of it in the file `said`, and goes on until it is told to end.
#: X[0] = 1 starts it, 2 terminates it; Y is its exit code then.
HELPER = """\
    def work(self):
        import json
        import os
        import signal
        import stat

        def name(descriptor):
            import socket
            try:
                one = socket.socket(fileno=os.dup(descriptor))
                with one:
                    return str(one.getsockname())
            except OSError:
                return ""

        files = [int(one) for one in os.listdir("/dev/fd")]
        said = {{
            "pid": os.getpid(),
            "sockets": [name(one) for one in files],
            "signals": [int(signal.getsignal(one)) for one in (signal.SIGTERM, signal.SIGHUP)],
            "wakeup": signal.set_wakeup_fd(-1),
            "called": {call},
            "interrupt": getattr(signal.getsignal(signal.SIGINT), "__name__", ""),
        }}
        (Path(__file__).parent / "new").write_text(json.dumps(said))
        (Path(__file__).parent / "new").rename(Path(__file__).parent / "said")
        time.sleep(1000)

    def call(self):
        request = pb_utils.InferenceRequest(
            model_name="echo", requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", np.ones(1, np.float32))]
        )
        return request.exec().error().message()

    {definition} execute(self, requests):
        import multiprocessing
        value = float(requests[0].inputs()[0].as_numpy()[0])
        if value == 1:
            self.process = multiprocessing.get_context("fork").Process(target=self.work)
            self.process.start()
        elif value == 2:
            self.process.terminate()
            self.process.join(10)
            value = self.process.exitcode
        elif value == 3:
            with multiprocessing.get_context("fork").Pool(2) as pool:
                value = sum(pool.map(abs, [-1, 2, -3]))
        elif value == 4:
            import os
            if not os.fork():
                return None
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.float32))])]
"""

PLACEMENT = 'parameters {{ key: "placement" value {{ string_value: "{}" }} }}'


def write(repository: Path, placement: str, definition: str, call: str) -> Path:
    """Write `echo`, and a model that forks its helper; return the file in which the helper says what it is."""
    write_model(repository, "echo", ECHO, more=PLACEMENT.format("loop"))
    body = HELPER.format(definition=definition, call=call)
    return write_model(repository, "forks", body, more=PLACEMENT.format(placement)) / "1/said"


@contextmanager
def started(folder: Path, placement: str, definition: str, call: str = "self.call()") -> Iterator[tuple[Server, dict[str, Any]]]:
    """Serve these, with the helper forked; give the server and what the helper has said of itself."""
    file = write(folder / "models", placement, definition, call)
    said: dict[str, Any] = {}
    with serving(folder, folder / "models") as server:
        try:
            assert server.infer("forks", 1.0)[0] == 200, server.text()
            wait_until(file.exists)
            said.update(json.loads(file.read_text()))
            yield server, said
        finally:
            if said:
                kill(said["pid"])


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("placement", "definition"), [("thread", "def"), ("loop", "async def"), ("loop", "def")])
def test_a_forked_helper_has_nothing_of_the_server(tmp_path: Path, placement: str, definition: str) -> None:
    with started(tmp_path, placement, definition) as (server, said):
        assert not [name for name in said["sockets"] if f", {server.port})" in name], said
        assert said["signals"] == [signal.SIG_DFL] * 2
        assert said["interrupt"] == "_nothing"  # a terminal sends it to all, and means the server
        assert said["wakeup"] == -1
        assert said["called"] == (
            "Model echo - Error when running inference: this process was forked by the code of a model: it is not the server "
            "and can't call models or answer requests; do that where `execute` runs"
        )
        status, answer = server.infer("forks", 2.0)
        assert (status, answer["outputs"][0]["data"]) == (200, [-float(signal.SIGTERM)])
        assert not alive(said["pid"])
        status, answer = server.infer("forks", 3.0)
        assert (status, answer["outputs"][0]["data"]) == (200, [6.0])
        assert server.infer("echo", 5.0)[0] == 200
        server.signal()
        assert server.wait() == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_helper_has_nothing_of_an_app_that_embeds_the_kernel(tmp_path: Path, loop: str) -> None:
    """Not even the socket by which its loop hears of signals."""
    file = write(tmp_path / "models", "thread", "def", "self.call()")
    with embedded(loop, tmp_path / "models") as address:  # which would end with 3
        infer = partial(ask, address, "forks")
        assert infer(1.0) == 1.0
        wait_until(file.exists)
        said = json.loads(file.read_text())
        try:
            assert not [name for name in said["sockets"] if f", {address.rpartition(':')[2]})" in name], said
            assert (said["signals"], said["wakeup"]) == ([signal.SIG_DFL] * 2, -1)
            assert said["interrupt"] != "_nothing"  # the app's children are not ours
            assert "can't call models" in said["called"]
            assert infer(2.0) == -signal.SIGTERM
            assert ask(address, "echo", 5.0) == 5.0
        finally:
            kill(said["pid"])


def ask(address: str, model: str, value: float) -> float:
    """Send one request; return Y[0]."""
    body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [value]}]}
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(body))
        return float(json.loads(connection.getresponse().read())["outputs"][0]["data"][0])
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("placement", "definition"),
    [
        ("thread", "def"),
        ("loop", "async def"),
        ("thread", "async def"),
        ("process", "def"),
        ("process", "async def"),
    ],
)
def test_a_child_that_comes_back_from_execute_ends(tmp_path: Path, placement: str, definition: str) -> None:
    """`os.fork()` without an end: the child must not serve."""
    with started(tmp_path, placement, definition, "None") as (server, _):
        assert server.infer("forks", 2.0)[0] == 200
        before = descendants(server.process.pid)
        for _ in range(3):
            assert server.infer("forks", 4.0)[0] == 200
        assert server.infer("echo", 5.0)[0] == 200
        wait_until(lambda: descendants(server.process.pid) == before)


def descendants(pid: int) -> set[int]:
    """Return the processes that a process has started, and those that these have, as far as they live."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            if alive(child):
                found |= {child} | descendants(child)
    return found


def test_an_orphan_keeps_no_port(tmp_path: Path) -> None:
    with started(tmp_path, "thread", "def", "None") as (server, said):
        with socket.create_connection(("127.0.0.1", server.port), 10.0) as connection:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1024)
            server.process.kill()
            server.process.wait()
            assert alive(said["pid"])
            assert connection.recv(1024) == b"", "the child keeps the connection open"
        arguments = [tmp_path / "models", f"--http-port={server.port}"]
        again = Server(tmp_path / "again.log", arguments)
        try:
            again.wait_started()
            assert again.port == server.port
        finally:
            again.process.kill()
            again.process.wait()

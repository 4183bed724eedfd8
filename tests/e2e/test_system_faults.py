"""Calls of the system that fail, as strace has them fail: the server lives on, answers each request once, and stops in time.

Where strace isn't installed, or may not trace (containers often forbid it), these tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .serving import ECHO, Server, serving, wait_until, write_model

REQUESTS = 40


def may_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not may_trace(), reason="strace is not installed, or may not trace")

#: Name -> calls of the loop's thread, and how they fail; a file they have to be about, of any thread, "" for none; whether every
#: request has to have its answer. What wakes the loop is read and written as well: that may be interrupted, but not fail.
FAULTS: dict[str, tuple[str, str, bool]] = {
    "reads that are interrupted": ("read,readv:error=EINTR:when=3+3", "", True),
    "reads that aren't ready": ("read,readv:error=EAGAIN:when=3+3", "", True),
    "writes that are interrupted": ("write,writev,sendmsg:error=EINTR:when=2+3", "", True),
    "writes that aren't ready": ("write,writev,sendmsg:error=EAGAIN:when=2+3", "", True),
    "waits that are interrupted": ("epoll_wait,epoll_pwait:error=EINTR:when=3+2", "", True),
    "connections that have gone before they are written to": ("write,writev,sendmsg:error=EPIPE:when=6+9", "", False),
    "no descriptors for connections": ("accept4:error=EMFILE:when=5+20", "", False),
    "connections that have gone before they are taken": ("accept4:error=ECONNABORTED:when=3+5", "", True),
    "no memory to map": ("mmap:error=ENOMEM:when=2+2", "", False),
    "no room for the log": ("write,writev:error=ENOSPC:when=1+1", "log", True),
    "no room for the trace file": ("write,writev,pwrite64:error=ENOSPC:when=1+1", "trace", True),
}


def ask(server: Server, model: str = "add") -> bytes:
    """One request on a connection of its own; all that comes."""
    body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[3]}]}'
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    came = b""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(head.encode() + body)
        while piece := sock.recv(65536):
            came += piece
    return came


@contextlib.contextmanager
def failing(folder: Path, pid: int, injected: str, *more: str) -> Iterator[Path]:
    """Have calls of a process fail; gives the file that tells which have been. `more`: options of strace."""
    calls = folder / "calls"
    options = ["-o", str(calls), "-e", f"trace={injected.partition(':')[0]}", "-e", "signal=SIGSTOP", "-e", f"inject={injected}"]
    with (folder / "strace").open("wb") as told:
        tracer = subprocess.Popen(["strace", *options, *more, "-p", str(pid)], stderr=told)
    try:
        wait_until(lambda: "attached" in (folder / "strace").read_text())
        yield calls
    finally:
        # A call that strace is about to have fail says ENOSYS if strace goes before it has, and libuv aborts: so it goes while
        # all threads are stopped, which they are between calls.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            threads = len(list(Path(f"/proc/{pid}/task").iterdir())) if "-f" in more else 1
            wait_until(lambda: calls.read_text().count("stopped by SIGSTOP") >= threads)
        tracer.terminate()
        tracer.wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("name", FAULTS)
def test_calls_that_fail(name: str, tmp_path: Path) -> None:
    injected, about, all_answered = FAULTS[name]
    write_model(tmp_path / "models", "add", more='parameters { key: "placement" value { string_value: "loop" } }')
    flags = ["--allow-grpc=false", "--allow-metrics=false", "--model-control-mode=explicit", "--load-model=add"]
    if about == "trace":
        flags += [f"--trace-config=triton,file={tmp_path / 'trace'}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]
    with serving(tmp_path, tmp_path / "models", *flags) as server:
        where = {"": [], "log": ["-f", "-P", str(server.log)], "trace": ["-f", "-P", str(tmp_path / "trace")]}[about]
        # Not until the end: what wakes the loop up for that is not to fail.
        with failing(tmp_path, server.process.pid, injected, *where) as calls:
            answers = [ask(server) for _ in range(REQUESTS)]
            if about == "log":
                assert server.request("POST", "/v2/repository/models/add/load")[0] == 200
            right = [answer for answer in answers if answer.startswith(b"HTTP/1.1 200 ") and b'"data":[3.0]' in answer]
            assert all(answer.count(b"HTTP/1.1 ") <= 1 for answer in answers)
            assert len(right) == REQUESTS if all_answered else len(right) >= REQUESTS // 2, answers
            assert server.process.poll() is None
            if about:  # a trace file is written at the end
                server.signal()
                server.wait()
        server.signal()
        assert server.wait() in ((0, 120) if about == "log" else (0,))  # 120 is Python's: its output could not be written
        if not name.startswith("no memory"):  # whether it maps any is its own affair
            assert "INJECTED" in calls.read_text(), "nothing has failed"


#: Calls that fail while the process of a model is started.
AT_START = {
    "no descriptors for its memory": "memfd_create:error=EMFILE",
    "no descriptors for its socket": "socketpair:error=EMFILE",
    "no descriptors for its pipes": "pipe2:error=EMFILE",
    "no room for its memory": "ftruncate:error=ENOSPC",
}


@pytest.mark.parametrize("name", AT_START)
def test_a_process_that_can_not_be_started_fails_its_load_alone(name: str, tmp_path: Path) -> None:
    """With the reason; what serves goes on, and once there is room it loads."""
    write_model(tmp_path / "models", "add", more='parameters { key: "placement" value { string_value: "loop" } }')
    write_model(tmp_path / "models", "apart", more='parameters { key: "placement" value { string_value: "process" } }')
    flags = ["--allow-grpc=false", "--allow-metrics=false", "--model-control-mode=explicit", "--load-model=add"]
    with serving(tmp_path, tmp_path / "models", *flags) as server:
        injected = AT_START[name]
        with failing(tmp_path, server.process.pid, injected, "-f") as calls:
            status, answer = server.request("POST", "/v2/repository/models/apart/load")[:2]
            assert (status, b'"data":[3.0]' in ask(server)) == (400, True), answer
            assert ("No space left" if "ENOSPC" in injected else "Too many open files") in str(answer), answer
        assert "INJECTED" in calls.read_text(), "nothing has failed"
        assert server.request("POST", "/v2/repository/models/apart/load")[0] == 200
        server.signal()
        assert server.wait() == 0


#: Leaves the number of its process.
MODEL_WITH_PID = """\
    def initialize(self, args):
        import os
        (Path(__file__).parent / "pid").write_text(str(os.getpid()))

""" + ECHO

#: Calls with which the server and the process of a model talk, on the side that is named, and how they fail.
BETWEEN = {
    "the server's reads aren't ready": ("server", "recvfrom:error=EAGAIN:when=2+3"),
    "the server's writes aren't ready": ("server", "sendto:error=EAGAIN:when=2+3"),
    "the server is interrupted": ("server", "recvfrom,sendto:error=EINTR:when=2+3"),
    "the process is interrupted": ("process", "recvfrom,sendto,poll,ppoll:error=EINTR:when=2+3"),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_the_channel_of_a_process(name: str, tmp_path: Path) -> None:
    side, injected = BETWEEN[name]
    placement = 'parameters { key: "placement" value { string_value: "process" } }'
    write_model(tmp_path / "models", "apart", MODEL_WITH_PID, more=placement)
    with serving(tmp_path, tmp_path / "models", "--allow-grpc=false", "--allow-metrics=false") as server:
        pid = int((tmp_path / "models/apart/1/pid").read_text()) if side == "process" else server.process.pid
        with failing(tmp_path, pid, injected, "-f") as calls:
            answers = [ask(server, "apart") for _ in range(REQUESTS)]
        assert all(answer.startswith(b"HTTP/1.1 200 ") and answer.count(b'"data":[3.0]') == 1 for answer in answers), answers
        assert "INJECTED" in calls.read_text(), "nothing has failed"
        server.signal()
        assert server.wait() == 0

"""Calls of the system that fail, as strace has them fail: the server lives on, answers each request once, and stops in time.

Where strace isn't installed, or may not trace (containers often forbid it), these tests are skipped.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from .serving import Server, serving, wait_until, write_model

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


def ask(server: Server) -> bytes:
    """One request on a connection of its own; all that comes."""
    body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[3]}]}'
    head = b"POST /v2/models/add/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    came = b""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(head + body)
        while piece := sock.recv(65536):
            came += piece
    return came


@pytest.mark.parametrize("name", FAULTS)
def test_calls_that_fail(name: str, tmp_path: Path) -> None:
    injected, about, all_answered = FAULTS[name]
    write_model(tmp_path / "models", "add", more='parameters { key: "placement" value { string_value: "loop" } }')
    flags = ["--allow-grpc=false", "--allow-metrics=false", "--model-control-mode=explicit", "--load-model=add"]
    if about == "trace":
        flags += [f"--trace-config=triton,file={tmp_path / 'trace'}", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"]
    with serving(tmp_path, tmp_path / "models", *flags) as server:
        where = {"": [], "log": ["-f", "-P", str(server.log)], "trace": ["-f", "-P", str(tmp_path / "trace")]}[about]
        calls = tmp_path / "calls"
        options = ["-o", str(calls), "-e", f"trace={injected.partition(':')[0]}", "-e", "signal=none", "-e", f"inject={injected}"]
        with (tmp_path / "strace").open("wb") as told:
            tracer = subprocess.Popen(["strace", *options, *where, "-p", str(server.process.pid)], stderr=told)
        try:
            wait_until(lambda: "attached" in (tmp_path / "strace").read_text())
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
        finally:
            tracer.terminate()  # before the end: what wakes the loop up for that is not to fail
            tracer.wait()
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
        options = ["-e", f"trace={injected.partition(':')[0]}", "-e", "signal=none", "-e", f"inject={injected}"]
        with (tmp_path / "strace").open("wb") as told:
            tracer = subprocess.Popen(
                ["strace", "-f", "-o", str(tmp_path / "calls"), *options, "-p", str(server.process.pid)], stderr=told
            )
        try:
            wait_until(lambda: "attached" in (tmp_path / "strace").read_text())
            status, answer = server.request("POST", "/v2/repository/models/apart/load")[:2]
            assert (status, b'"data":[3.0]' in ask(server)) == (400, True), answer
            assert ("No space left" if "ENOSPC" in injected else "Too many open files") in str(answer), answer
        finally:
            tracer.terminate()
            tracer.wait()
        assert "INJECTED" in (tmp_path / "calls").read_text(), "nothing has failed"
        assert server.request("POST", "/v2/repository/models/apart/load")[0] == 200
        server.signal()
        assert server.wait() == 0

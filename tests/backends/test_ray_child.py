"""`kernel serve` as the child of an actor, without Ray: where it listens, how it has ended; it never outlives who started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernel_ray.files import content, listing
from kernel_ray.server_actor import Repository, ServerActor

PORTS = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1"]


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> None:
    limit = time.monotonic() + 30.0
    while is_there(pid):
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_server_tells_where_it_serves_and_ends_as_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a repository that was carried to the node."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "models/m/1").mkdir(parents=True)
    (tmp_path / "models/m/1/model.py").write_text("class TritonPythonModel:\n    async def execute(self, requests): ...\n")
    found = listing(tmp_path / "models", None)
    here = Repository(str(tmp_path / "models"), found)
    there = Repository(str(tmp_path / "elsewhere"), found)
    actor = ServerActor("10.9.8.7")
    assert actor.needs([here, there, Repository("s3://bucket/models", None)]) == [there.path]
    serving = actor.start([there], {there.path: content(tmp_path / "models", found)}, PORTS)
    assert not serving.problem and serving.endpoints is not None
    assert serving.endpoints["http"].startswith("127.0.0.1:") and serving.endpoints["grpc"].startswith("10.9.8.7:")
    actor.stop(20.0)
    assert actor.wait() == "" and not is_there(serving.pid)


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    serving = ServerActor("10.9.8.7").start([Repository(str(tmp_path / "nothing"), None)], {}, PORTS)
    assert "kernel serve has ended with status 1\n    " in serving.problem and str(tmp_path) in serving.problem


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system has nothing that tells of a parent's end")
def test_it_ends_with_who_has_started_it(tmp_path: Path) -> None:
    program = (
        "from kernel_ray.child import Child\n"
        f"child = Child([{str(tmp_path)!r}, *{PORTS!r}])\n"
        "child.ready.wait()\nprint(child.pid, flush=True)\nchild.over.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_there(pid)
        os.kill(parent.pid, 9)
    wait_until_gone(pid)

"""ops/Containerfile, step by step, where nothing builds images: its commands run with a folder in place of /opt/kernel.

What is Debian's is not made here. The rest is: its size is measured, and it serves as a user who owns nothing of it, has no home,
and may write nowhere but to /tmp.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from .serving import ECHO, FREE_PORTS, Server, write_model

pytestmark = pytest.mark.install

ROOT = Path(__file__).parents[2]
#: What the last stage begins with, unpacked, as measured: Debian's Python 3.11, C library and what these need. And the limit.
BASE_MB, LIMIT_MB = 57, 150
NOBODY = 65532
#: Where we may start a process as somebody else.
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}

Instruction = tuple[str, str]


def stages(path: Path) -> list[list[Instruction]]:
    """Return the instructions of each stage."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    found: list[list[Instruction]] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append((name, rest.strip()))
    return found


BUILD, FINAL = stages(ROOT / "ops/Containerfile")


def pythons() -> Iterator[str]:
    """Those that this user may run: the one of the tests may be at home with another one."""
    for python in (sys.executable, "/usr/bin/python3"):
        code = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
        with suppress(OSError):
            if not subprocess.run([python, "-c", code], cwd="/", capture_output=True, **AS_NOBODY).returncode:
                yield python


def values(stage: list[Instruction], name: str) -> list[str]:
    return [rest for one, rest in stage if one == name]


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The folder that the build stage makes. Others may read it, unlike pytest's own folders."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    source, target = folder / "source", folder / "installed"
    source.mkdir()
    (folder / "bin").mkdir()
    (folder / "bin/python3").write_text(f'#!/bin/sh\nexec {next(pythons(), sys.executable)} "$@"\n')
    (folder / "bin/python3").chmod(0o755)
    try:
        for copied in values(BUILD, "COPY"):
            *names, into = copied.split()
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, source / into, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
                else:
                    shutil.copy(ROOT / name, source / into)
        environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
        environment |= dict(argument.replace('"', "").split("=", 1) for argument in values(BUILD, "ARG"))
        for command in values(BUILD, "RUN"):
            if "apt-get" not in command:
                command = command.replace("/opt/kernel", str(target))
                done = subprocess.run(
                    ["sh", "-ec", command], cwd=source, env=environment, capture_output=True, text=True, timeout=300
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        shutil.rmtree(source)
        yield target
    finally:
        shutil.rmtree(folder)


def test_size(installed: Path) -> None:
    files = [path.lstat() for path in installed.rglob("*")]
    size = sum(-(-one.st_size // 4096) * 4096 for one in files if stat.S_ISREG(one.st_mode)) / 2**20
    assert 30 < size <= LIMIT_MB - BASE_MB


def test_final_stage(installed: Path) -> None:
    """It brings what was built, and a user; nothing is run in it."""
    assert values(FINAL, "COPY") == ["--from=build /opt/kernel /opt/kernel"]
    assert values(FINAL, "USER") == [f"{NOBODY}:{NOBODY}"]
    assert values(FINAL, "RUN") == []
    assert values(FINAL, "EXPOSE") == ["8000 8001 8002"]
    assert values(FINAL, "CMD") == ['["/models"]']
    assert not list(installed.rglob("pip")) and list(installed.rglob("scheduler.*.pyc"))


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_serves(installed: Path, placement: str) -> None:
    folder = installed.parent / placement
    where = f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}'
    write_model(folder / "models", "echo", ECHO, more=where)
    entry = [part.replace("/opt/kernel", str(installed)) for part in json.loads(values(FINAL, "ENTRYPOINT")[0])]
    environment = {"HOME": "/nonexistent"}
    for assignment in shlex.split(" ".join(values(FINAL, "ENV"))):
        name, _, value = assignment.partition("=")
        environment[name] = value.replace("/opt/kernel", str(installed))
    user = AS_NOBODY if next(pythons(), "") else {}
    before = sorted(installed.rglob("*"))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*entry, *FREE_PORTS, folder / "models"],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment,
            **user,
        )
    server = object.__new__(Server)
    server.process, server.log, server.port = process, folder / "log", 0
    try:
        server.wait_started()
        assert server.infer("echo", 3.0)[1]["outputs"][0]["data"] == [3.0]
        server.signal()
        began = time.monotonic()
        assert server.wait() == 0
        assert time.monotonic() - began < 10
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in server.text()
    assert sorted(installed.rglob("*")) == before, "something was written into the image"

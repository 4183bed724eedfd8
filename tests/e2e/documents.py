"""The code of README.md and docs/, run as a reader would run it: from top to bottom of a page, in one folder, with one server.

A block says by its language what it is, by `title="repository/mean/config.pbtxt"` which file it is, if any, and by a line
of its own right above it, `*Needs a Kubernetes cluster.*`, that it can't be run here. Each page has a folder with the sample
repository, `docs`, `ops` and `bench` in it, as in a checkout.

    sh      is run, stops at the first command that fails. `kernel serve` starts the page's server, in place of the one before
    python  a test is run by pytest; a plugin is handed to a kernel; a model is loaded; all else is run as a program, where
            `print(…)  # said` has to print what is said
    pbtxt   has to be a config, or a part of one
    text    right behind `sh`: what the commands print, but for numbers and what `…` stands for
    json    right behind `sh`: likewise, the same keys; elsewhere, like yaml and toml, only read

Localhost's ports 8000 to 8002 are those of the page's server. `pip install` installs a folder of the page for the page alone, and
of other things asks only whether they can be had: of ours, whether there is such an extra. `python3 -m venv` makes an empty one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from kernel import Kernel
from kernel.cli import main

from .serving import FREE_PORTS, REPOSITORY, Server, wait_until

__all__ = ["KINDS", "ROOT", "Block", "Page", "blocks", "pages"]

ROOT = REPOSITORY.parent
KINDS = ("sh", "python", "pbtxt", "text", "json", "yaml", "toml")
LIMIT_S = 120.0

FENCE = re.compile(r"^( *)```(\S*)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"^\*(Needs [^*\n]+)\.\*\n\n?\Z", re.MULTILINE)

#: What is put around a part of a config where it doesn't say so itself.
AROUND = {
    "backend": 'backend: "python"',
    "max_batch_size": "max_batch_size: 8",
    "input": 'input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }',
    "output": 'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }',
}

#: What stands for `pip`: PROJECT SITE install WHAT…
PIP = """
import importlib.metadata, os, re, subprocess, sys, tomllib
project, site, verb, *wanted = sys.argv[1:]
assert verb == "install", f"pip {verb}"
extras = tomllib.loads(open(project).read())["project"]["optional-dependencies"]
for one in wanted:
    name, _, more = one.rstrip("]").partition("[")
    if name in (".", "kernel-serve"):
        assert {*filter(None, more.split(","))} <= extras.keys(), f"there is no extra {more!r}"
    elif os.path.isdir(name):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--target", site, name], check=True)
    elif name != "-e":
        importlib.metadata.distribution(re.split("[<>=~!]", name)[0])
"""


@dataclass(frozen=True)
class Block:
    """A block of code of a page. `behind`: there is nothing but empty lines between it and the block before."""

    page: str
    line: int
    kind: str
    title: str
    text: str
    needs: str
    behind: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return all pages that have code, but those that are made of the code themselves."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found if "```" in path.read_text() and not made(path)]


def made(path: Path) -> bool:
    return "Made from the code by `python3 dev.py" in path.read_text()


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page, in their order."""
    text = (ROOT / page).read_text()
    ended = 0
    for found in FENCE.finditer(text):
        indent, kind, more, code = found.groups()
        title = re.search(r'title="([^"]*)"', more)
        needs = NEEDS.search(text[: found.start()])
        yield Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            kind,
            title[1] if title else "",
            re.sub(f"^{indent}", "", code, flags=re.MULTILINE),
            needs[1] if needs else "",
            not text[ended : found.start()].strip(),
        )
        ended = found.end()


class Page:
    """A page's folder and server while its blocks are run."""

    def __init__(self, page: str, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.server: Server | None = None
        self.said = ""  # by the commands of the last block
        self.tests: list[str] = []
        self.ports: dict[str, str] = {}
        self.home = folder.with_name(f"{folder.name}-bin")
        shutil.copytree(REPOSITORY, folder / "repository", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("docs", "ops", "bench"):
            (folder / name).symlink_to(ROOT / name)
        self.site = self.home / "site"
        self.site.mkdir(parents=True)
        (self.home / "pip.py").write_text(PIP)
        pip = f"{self.home}/pip.py {ROOT}/pyproject.toml {self.site}"
        commands = {"kernel": "-m kernel", "python": "", "pip": pip, "pytest": "-m pytest -p no:cacheprovider"}
        for name, words in commands.items():
            (self.home / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (self.home / name).chmod(0o755)
        environment = "mkdir -p $3/bin; exec touch $3/bin/activate"
        (self.home / "python3").write_text(f'#!/bin/sh\n[ "$2" != venv ] || {{ {environment}; }}\nexec python "$@"\n')
        (self.home / "python3").chmod(0o755)
        paths = [str(self.site), os.environ.get("PYTHONPATH", "")]
        self.environment = os.environ | {
            "PATH": f"{self.home}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def run(self) -> None:
        """Run all blocks; the first that fails is named."""
        try:
            for block in blocks(self.page):
                if not block.needs:
                    try:
                        self.run_block(block)
                    except Exception as error:
                        log = f"\n{self.server.text()[-3000:]}" if self.server is not None else ""
                        raise AssertionError(f"{block}: {error}{log}") from error
            if self.tests:
                options = ("-q", "-p", "no:cacheprovider", "-p", "kernel_pytest", "-W", "error")
                self.child("-m", "pytest", *options, *self.tests, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        finally:
            ended = self.stop()
        assert ended == 0, f"the page's server ended with {ended}"

    def run_block(self, block: Block) -> None:
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            if block.kind in ("python", "pbtxt"):  # whoever serves, installs or runs it comes later on the page
                return
        if block.kind == "sh":
            self.said = self.commands(block.text)
        elif block.kind == "python":
            self.python(block)
        elif block.kind == "pbtxt":
            self.config(block)
        elif block.kind == "json":
            given = json.loads(block.text)
            assert not block.behind or same_keys(given, json.loads(self.said.splitlines()[-1])), self.said
        elif block.kind == "text":
            missing = unsaid(block.text, self.said) if block.behind else []
            assert not missing, f"these are not printed: {missing}\nbut: {self.said}"
        elif block.kind == "yaml":
            list(yaml.safe_load_all(block.text))
        elif block.kind == "toml":
            tomllib.loads(block.text)
        else:
            raise AssertionError(f"'{block.kind}' is no kind of block that is known here: {KINDS}")

    def commands(self, text: str) -> str:
        """Run commands; return what they print."""
        said = ""
        text = text.replace("\\\n", " ")
        for part in re.split(r"^(kernel serve [^\n]*)\n", text, flags=re.MULTILINE):
            if part.startswith("kernel serve "):
                self.serve([word for word in shlex.split(part, comments=True)[2:] if word != "&"])
            elif part.strip():
                said += self.shell(part)
        return said

    def shell(self, text: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.addressed(text)],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout.replace(f"{self.folder}/", "")

    def child(self, *arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=self.environment | environment,
            capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def python(self, block: Block) -> None:
        if re.search(r"^(async )?def test_", block.text, re.MULTILINE):
            name = f"test_line_{block.line}.py"
            (self.folder / name).write_text(block.text)
            self.tests.append(name)
        elif "class TritonPythonModel" in block.text:
            folder = self.folder / f"line_{block.line}" / "model"
            (folder / "1").mkdir(parents=True)
            (folder / "1" / "model.py").write_text(block.text)
            (folder / "config.pbtxt").write_text("\n".join(AROUND.values()))
            self.child("-m", "kernel", "check", "--load", str(folder.parent))
        elif "@hookimpl" in block.text:
            self.plugin(block)
        else:
            said = self.child("-W", "error", "-c", self.addressed(block.text)).splitlines()
            promised = re.findall(r"print\(.*\)  # (.*)$", block.text, re.MULTILINE)
            rest = iter(said)
            assert all(line in rest for line in promised), f"{promised} are promised, and printed are {said}"

    def plugin(self, block: Block) -> None:
        """Hand a plugin to a kernel, which looks at its hooks."""
        module = ModuleType(f"line_{block.line}")
        exec(compile(block.text, str(block), "exec"), module.__dict__)
        (self.folder / "empty").mkdir(exist_ok=True)

        async def start() -> None:
            async with Kernel(self.folder / "empty", plugins=[module]):
                pass

        asyncio.run(start())

    def config(self, block: Block) -> None:
        """Have a config checked, or a part of one within the least that a config has."""
        named = set(re.findall(r"^(\w+)", block.text, re.MULTILINE))
        around = [line for name, line in AROUND.items() if name not in named]
        if warmed := re.findall(r'inputs \{ key: ("\w+") value \{ data_type: (\w+) dims: (\[[^]]*\])', block.text):
            around[2:3] = [f"input {{ name: {name} data_type: {kind} dims: {dims} }}" for name, kind, dims in warmed]
        if re.search(r"^platform", block.text, re.MULTILINE):
            around = around[1:]
        folder = self.folder / f"line_{block.line}" / "model"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text("class TritonPythonModel:\n    def execute(self, requests): ...\n")
        (folder / "config.pbtxt").write_text("\n".join([block.text, *around]))
        for name in re.findall(r'input_data_file: "(\w+)"', block.text):
            (folder / "warmup").mkdir(exist_ok=True)
            (folder / "warmup" / name).write_bytes(b"\4\0\0\0text")
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = main(["check", str(folder.parent)])
        assert status == 0, said.getvalue()

    def addressed(self, text: str) -> str:
        """Put the server's ports in place of those that a page names; start one where none is there."""
        if not re.search(r"(localhost|127\.0\.0\.1):800[0-2]|\$!", text):
            return text
        if self.server is None:
            self.serve(["repository/"])
        assert self.server is not None
        text = re.sub(r"(?:localhost|127\.0\.0\.1):(800[0-2])", lambda found: f"127.0.0.1:{self.ports[found[1]]}", text)
        return text.replace("$!", str(self.server.process.pid))

    def serve(self, arguments: list[str]) -> None:
        assert self.stop() == 0, "the server before"
        log = self.folder / "server.log"
        environment = dict(os.environ)
        os.environ.update(self.environment)
        try:
            self.server = server = Server(log, [*arguments, *FREE_PORTS])
        finally:
            os.environ.clear()
            os.environ.update(environment)

        def started() -> bool:
            text = server.text()
            for port, what in (("8000", "HTTPS?Service"), ("8001", "GRPC\\w+"), ("8002", "Metrics Service")):
                found = re.search(rf"Started {what} at [^ \n]+:(\d+)", text)
                self.ports[port] = found[1] if found else ""
            return all(self.ports.values()) or server.process.poll() is not None

        wait_until(started, LIMIT_S)
        assert server.process.poll() is None, "it does not start"

    def stop(self) -> int:
        server, self.server = self.server, None
        if server is None:
            return 0
        server.process.terminate()
        try:
            return server.wait()
        finally:
            server.process.kill()
            server.process.wait()


def same_keys(given: Any, found: Any) -> bool:
    """Whether a JSON value has the form of another: the same keys, and values of the same kinds."""
    if isinstance(given, dict) and isinstance(found, dict):
        return given.keys() == found.keys() and all(same_keys(given[name], found[name]) for name in given)
    if isinstance(given, list) and isinstance(found, list):
        return not given or not found or same_keys(given[0], found[0])
    return (isinstance(given, int | float) and isinstance(found, int | float)) or type(given) is type(found)


def unsaid(given: str, found: str) -> list[str]:
    """Return the lines that no line of an output is like: numbers may differ, `…` stands for anything."""

    def like(line: str) -> re.Pattern[str]:
        parts = ("\\s+".join(map(numbers, part.split())) for part in line.split("…"))
        return re.compile("\\s*" + ".*".join(parts) + "\\s*")

    def numbers(word: str) -> str:
        return r"-?\d+(\.\d+)?".join(map(re.escape, re.split(r"\d+(?:\.\d+)?", word)))

    lines = found.splitlines()
    return [line for line in given.splitlines() if line.strip() and not any(like(line).fullmatch(one) for one in lines)]



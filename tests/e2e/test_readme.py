"""README.md is true: its blocks work as pasted, its commands run, its flags and files are there."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from .serving import REPOSITORY, Server, command, run, serving
from .test_grpc_admin import grpc_url

ROOT = REPOSITORY.parent
TEXT = (ROOT / "README.md").read_text()


def blocks(heading: str, language: str = "") -> list[str]:
    """Return the code blocks of one language under a heading."""
    _, _, section = TEXT.partition(f"# {heading}\n")
    section = re.split(r"^#{2,} ", section, flags=re.MULTILINE)[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return [text for kind, text in found if kind == language]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sample repository, and in it the model that the page shows."""
    folder = tmp_path_factory.mktemp("readme")
    shutil.copytree(REPOSITORY, folder / "repository", ignore=shutil.ignore_patterns("__pycache__"))
    config, *_ = blocks("Write a model")
    (model,) = blocks("Write a model", "python")
    files = re.findall(r"`(repository/mean/[\w./]+)`", TEXT)
    assert files == ["repository/mean/config.pbtxt", "repository/mean/1/model.py"]
    for name, text in zip(files, (config, model)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def server(checkout: Path) -> Iterator[Server]:
    with serving(checkout, "repository") as server:
        yield server


def python(code: str, folder: Path) -> str:
    """Run a program in a folder; return what it prints. It must say nothing else."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def promised(code: str) -> list[str]:
    """Return what a program prints by its own account: the comments behind its prints."""
    return re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)


def test_the_model_works_as_pasted(checkout: Path, server: Server) -> None:
    assert "mean" in server.text() and server.request("GET", "/v2/models/mean/ready")[0] == 200
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [3], "data": data} for name, data in (("A", [1, 2, 3]), ("B", [3, 4, 5]))
    ]
    status, answer = server.request("POST", "/v2/models/mean/infer", {"inputs": inputs})
    assert status == 200
    assert answer["outputs"] == [{"name": "MEAN", "datatype": "FP32", "shape": [3], "data": [2.0, 3.0, 4.0]}]


def test_the_model_hands_an_error_on(server: Server) -> None:
    inputs = [{"name": name, "datatype": "FP32", "shape": [size], "data": [0] * size} for name, size in (("A", 3), ("B", 2))]
    status, answer = server.request("POST", "/v2/models/mean/infer", {"inputs": inputs})
    assert status == 500 and "operands could not be broadcast" in answer["error"]


def commands() -> list[str]:
    lines = [line for text in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE) for line in text.splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("kernel ")]


@pytest.mark.parametrize("line", [line for line in commands() if not line.startswith("kernel serve")])
def test_commands(line: str, checkout: Path) -> None:
    _, *arguments = shlex.split(line)
    done = run(*arguments, cwd=checkout)
    assert done.returncode == 0, done.stderr
    if " mean " in line:
        said = re.search(re.escape(line) + r" +# MEAN is (.*)$", TEXT, re.MULTILINE)
        assert said and json.loads(done.stdout)["outputs"][0]["data"] == json.loads(said.group(1))


def test_kernel_serve_is_shown_as_it_is(checkout: Path) -> None:
    (line,) = [line for line in commands() if line.startswith("kernel serve")]
    assert line == "kernel serve path/to/repository" and "python -m kernel serve path/to/repository" in TEXT


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_first_request(server: Server) -> None:
    (line,) = blocks("A first request", "sh")
    (answer,) = blocks("A first request", "json")
    done = subprocess.run(line.replace("localhost:8000", server.url), shell=True, capture_output=True, text=True, timeout=30)
    assert done.stdout == answer.strip()


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_triton_s_own_client(wire: str, server: Server, checkout: Path) -> None:
    (code,) = blocks("A first request", "python")
    said = promised(code)
    if wire == "grpc":
        assert "it is `import tritonclient.grpc as triton` and port 8001" in TEXT
        code = code.replace("import tritonclient.http as triton", "import tritonclient.grpc as triton")
    address = server.url if wire == "http" else grpc_url(server)
    assert python(code.replace("localhost:8000", address), checkout).splitlines() == said


@pytest.mark.parametrize("number", [0, 1])
def test_embedding(number: int, checkout: Path) -> None:
    code = blocks("Embed it", "python")[number]
    said = promised(code)
    assert said and python(code, checkout).splitlines()[: len(said)] == said


def test_mounting_in_an_app(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI is Starlette here, of which it is a kind."""
    (code,) = blocks("Mount it in a FastAPI or Starlette app", "python")
    names: dict[str, Any] = {}
    sent: list[MutableMapping[str, Any]] = []
    told = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        return next(told)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def main() -> None:
        exec(code.replace("from fastapi import FastAPI", "from starlette.applications import Starlette as FastAPI"), names)
        app = names["app"]
        (path,) = re.findall(r"# POST (/models/\S+)/infer", code)
        scope = {
            "type": "http", "method": "GET", "path": f"{path}/ready", "raw_path": f"{path}/ready".encode(), "root_path": "",
            "query_string": b"", "headers": [], "scheme": "http", "http_version": "1.1", "server": ("x", 80),
        }  # fmt: skip
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)

    monkeypatch.chdir(checkout)
    asyncio.run(main())
    assert sent[0]["status"] == 200


def test_flags_are_there() -> None:
    known = subprocess.run(command("serve", "--help"), capture_output=True, text=True, timeout=60).stdout
    shown = set(re.findall(r"--[a-z][a-z0-9-]+\w", TEXT.partition("## Flags")[2].partition("## How fast")[0]))
    assert len(shown) > 30
    assert [flag for flag in sorted(shown) if not re.search(re.escape(flag) + r"\b", known)] == []


def test_make_has_its_targets() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets and {*re.findall(r"(?:^|`)make (\w+)", TEXT, re.MULTILINE)} <= {*targets.group(1).split()}


def test_links_lead_to_files() -> None:
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link}
    assert [link for link in sorted(links) if not (ROOT / link).exists()] == []


def test_the_entry_point_is_toml() -> None:
    (text,) = blocks("Plugins", "toml")
    assert tomllib.loads(text) == {"project": {"entry-points": {"kernel": {"my_backend": "my_backend"}}}}

"""What README.md, docs/start.md, docs/embedding.md and docs/flags.md say besides their code, which test_documents.py runs."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest

from .documents import ROOT, blocks
from .serving import REPOSITORY, Server, command, serving
from .test_grpc_admin import grpc_url


def python(page: str, word: str) -> str:
    """Return the block of a page's Python that has a word."""
    (text,) = [block.text for block in blocks(page) if block.kind == "python" and word in block.text]
    return text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the sample repository, and in it the model of docs/start.md."""
    folder = tmp_path_factory.mktemp("start")
    shutil.copytree(REPOSITORY, folder / "repository", ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks("docs/start.md"):
        if block.title:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
    with serving(folder, "repository") as server:
        yield server


def test_the_model_hands_an_error_on(server: Server) -> None:
    inputs = [{"name": name, "datatype": "FP32", "shape": [size], "data": [0] * size} for name, size in (("A", 3), ("B", 2))]
    status, answer = server.request("POST", "/v2/models/mean/infer", {"inputs": inputs})
    assert status == 500 and "operands could not be broadcast" in answer["error"]


def test_triton_s_own_client_over_grpc(server: Server) -> None:
    assert "it is `import tritonclient.grpc as triton` and port 8001" in (ROOT / "docs/start.md").read_text()
    code = python("docs/start.md", "tritonclient").replace("tritonclient.http", "tritonclient.grpc")
    code = code.replace("localhost:8000", grpc_url(server))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[11. 22. 33.]\n")


def test_mounting_in_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    code = python("docs/embedding.md", "FastAPI")
    names: dict[str, Any] = {}
    sent: list[MutableMapping[str, Any]] = []
    told = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        return next(told)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def main() -> None:
        exec(code, names)
        app = names["app"]
        (path,) = re.findall(r"# POST (/models/\S+)/infer", code)
        scope = {
            "type": "http", "method": "GET", "path": f"{path}/ready", "raw_path": f"{path}/ready".encode(), "root_path": "",
            "query_string": b"", "headers": [], "scheme": "http", "http_version": "1.1", "server": ("x", 80),
        }  # fmt: skip
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)

    monkeypatch.chdir(ROOT)
    asyncio.run(main())
    assert sent[0]["status"] == 200


def test_flags_are_there() -> None:
    known = subprocess.run(command("serve", "--help"), capture_output=True, text=True, timeout=60).stdout
    shown = set(re.findall(r"--[a-z][a-z0-9-]+\w", (ROOT / "docs/flags.md").read_text()))
    assert len(shown) > 30
    assert [flag for flag in sorted(shown) if not re.search(re.escape(flag) + r"\b", known)] == []


def test_make_has_its_targets() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = "".join((ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "docs/start.md"))
    assert targets and {*re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE)} <= {*targets.group(1).split()}

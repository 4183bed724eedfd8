"""Both servers' trace files after the same requests: the same trees, names, tensors and numbers, and the same files.

Moments are compared by name and order, not by time. What a front end notes, the reference's threads write in an order of chance.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from . import servers
from .conftest import Line
from .wire import Case

pytestmark = pytest.mark.reference

MODELS = Path(__file__).parent / "models" / "traced"

#: Noted by front ends, and by the reference's at a moment of their own.
FRONT = ("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END", "INFER_RESPONSE_COMPLETE")

Files = dict[str, list[Any]]


def infer(model: str, id: str, data: Sequence[float] = (1, 2.5)) -> Case:
    tensor = {"name": "X", "shape": [len(data) // 2, 2], "datatype": "FP32", "data": list(data)}
    body = json.dumps({"id": id, "inputs": [tensor]} if id else {"inputs": [tensor]}).encode()
    return Case(id, "POST", f"/v2/models/{model}/infer", body=body)


def setting(document: dict[str, Any], model: str = "") -> Case:
    path = f"/v2/models/{model}/trace/setting" if model else "/v2/trace/setting"
    return Case("", "POST", path, body=json.dumps(document).encode())


@pytest.fixture
def story(reference_installed: None, tmp_path: Path) -> Iterator[Callable[..., tuple[Files, Files]]]:
    """Give a function that tells both servers a story, ends them, and returns what each has written, by name of the file."""
    running: list[servers.Server] = []

    def told(cases: Sequence[Case], *flags: str) -> tuple[Files, Files]:
        shutil.copytree(MODELS, tmp_path / "models")

        def attempt(start: Callable[..., servers.Server], folder: Path) -> tuple[Files, servers.Server]:
            folder.mkdir()
            chosen = (f"triton,file={folder}/t", *flags)
            server = start(tmp_path / "models", folder / "log", [f"--trace-config={flag}" for flag in chosen])
            running.append(server)
            server.wait_live()
            with Line(server) as line:
                for case in cases:
                    line.ask(case)
            server.stop()
            written = [path for path in folder.iterdir() if re.fullmatch(r"t(\.\d+)?", path.name)]
            return {path.name: json.loads(path.read_text()) for path in written}, server

        def one(start: Callable[..., servers.Server]) -> Files:
            for turn in range(servers.RESTARTS + 1):
                found, server = attempt(start, tmp_path / f"{start.__name__}{turn}")
                if found or not server.mortal:
                    break
                servers.RESTARTED.append(server.name)  # it has died of its end, before its files were written
            assert found, server.tail()
            return found

        with ThreadPoolExecutor(2) as pool:
            theirs, ours = pool.map(one, (servers.reference, servers.ours))
        return theirs, ours

    yield told
    for server in running:
        server.stop()


def heads(content: list[Any]) -> list[Any]:
    return [one for one in content if "model_name" in one]


def noted(content: list[Any], id: int) -> tuple[list[str], list[str], list[Any]]:
    """Return the names of the core's moments in order, those of the front end's sorted, and the tensors."""
    names = [one["timestamps"][0]["name"] for one in content if one["id"] == id and "timestamps" in one]
    tensors = [(one["activity"], one["tensor"]) for one in content if one["id"] == id and "activity" in one]
    core = [name for name in names if name not in FRONT]
    return core, sorted(name for name in names if name in FRONT), tensors


def test_the_same_trees(story: Callable[..., tuple[Files, Files]]) -> None:
    cases = [
        infer("echo", "a", (1, 2.5, 3.1415926, 1e10)),
        infer("echo", ""),
        infer("chain", "b"),
        infer("caller", "c"),
        infer("error", "d"),
        Case("", "POST", "/v2/models/many/generate_stream", body=b'{"X": [2, 0]}'),
        Case("", "POST", "/v2/models/echo/generate", body=b'{"X": [2, 0]}'),
    ]
    theirs, ours = story(cases, "level=TIMESTAMPS", "level=TENSORS", "rate=1")
    assert theirs.keys() == ours.keys() == {"t"}
    in_order = [sorted(heads(files["t"]), key=lambda one: one["id"]) for files in (theirs, ours)]
    assert in_order[0] == in_order[1]
    for one in heads(theirs["t"]):
        assert noted(theirs["t"], one["id"]) == noted(ours["t"], one["id"]), one
    order = [[one["id"] for one in heads(content["t"]) if one["model_name"] == "echo" and "parent_id" in one]
             for content in (theirs, ours)]  # fmt: skip
    assert order[0] == order[1], "children stand before their parents, the latest first"


def test_the_same_files(story: Callable[..., tuple[Files, Files]]) -> None:
    """What is counted begins anew with each update; what is left is written; a count that is used up makes a file, too."""

    def some(name: str, count: int) -> list[Case]:
        return [infer("echo", f"{name}{number}") for number in range(1, count + 1)]

    cases = [
        *some("a", 7),
        setting({"trace_rate": "2"}),
        *some("b", 5),
        setting({"log_frequency": "0", "trace_count": "3", "trace_rate": "1"}),
        *some("c", 2),
        setting({"trace_count": "1"}),
        *some("d", 3),
        setting({"trace_rate": "1", "trace_count": "2"}, "echo"),
        *some("e", 3),
        setting({"trace_level": ["OFF"]}, "error"),
        setting({"trace_level": None, "trace_rate": None, "trace_count": None}, "echo"),
        setting({"trace_count": "-1"}),
        *some("f", 2),
        infer("error", "g"),
        setting({"trace_rate": "0"}),  # refused
        *some("h", 1),
    ]
    theirs, ours = story(cases, "level=TIMESTAMPS", "rate=3", "count=5", "triton,log-frequency=2")
    shown = [
        {name: sorted((one["id"], one["request_id"]) for one in heads(content)) for name, content in files.items()}
        for files in (theirs, ours)
    ]
    assert shown[0] == shown[1]

"""What a request costs in instructions, frames and files is what bench/path.json says; bench/README.md shows the same."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
KNOWN = json.loads((BENCH / "path.json").read_text())


@pytest.mark.skipif(VERSION not in KNOWN, reason=f"there are no figures for Python {VERSION}")
def test_no_route_has_grown() -> None:
    check = subprocess.run([sys.executable, BENCH / "path.py", "--check"], capture_output=True, text=True, timeout=300)
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("path")


ROW = {"frontend": 100, "core": 100, "python": 100, "remote": 0, "frames": 40, "files": 20}


def test_what_has_grown_is_told(path: ModuleType) -> None:
    assert path.grown({"a": {**ROW, "core": 104, "frames": 41, "files": 20}}, {"a": ROW}) == []
    assert path.grown({"new": ROW}, {"a": ROW}) == []
    core = path.grown({"a": {**ROW, "core": 105}}, {"a": ROW})
    assert core[0] == "a: core takes 105 instructions, where it took 100"
    both = path.grown({"a": {**ROW, "frames": 42, "files": 21}, "b": ROW}, {"a": ROW, "b": ROW})
    assert both[:2] == ["a: it takes 42 frames, where it took 40", "a: it takes 21 files, where it took 20"]


@pytest.mark.parametrize("column", ["frontend", "core", "python", "remote", "frames", "files"])
def test_what_to_do_about_it_is_told(path: ModuleType, column: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    async def measure(*_: Any) -> dict[str, dict[str, int]]:
        return {route: {**row, column: row[column] * 2 + 2} for route, row in KNOWN["3.11"].items()}

    monkeypatch.setattr(path, "measure", measure)
    monkeypatch.setattr(path, "version", lambda: "3.11")
    assert path.main(["--check"]) == 1
    said = capsys.readouterr().out.splitlines()
    instructions = ("--functions --only ROUTE", "Instructions: ")
    way, of = {"frames": ("Decide when a model loads", "Frames: "), "files": ("Move what", "Files: ")}.get(column, instructions)
    assert said[-2].startswith(of) and way in said[-2]
    assert "`python bench/path.py --write`" in said[-1] and "the reason into the commit" in said[-1]
    assert "bench/README.md" in said[-1]


def test_the_readme_shows_the_figures() -> None:
    text = (BENCH / "README.md").read_text()
    for route, row in KNOWN["3.11"].items():
        figures = " | ".join(str(row[key]) for key in ("frontend", "core", "python", "remote", "frames", "files"))
        assert f"| {route} | {figures} |" in text


@pytest.mark.parametrize(
    ("page", "route", "column"),
    [
        ("http", "HTTP, loop, repeated", "frontend"),
        ("grpc", "gRPC, loop, repeated", "frontend"),
        ("scheduling", "HTTP, loop, repeated", "core"),
        ("python", "HTTP, loop, repeated", "python"),
    ],
)
def test_shares_are_told_of_the_figures_as_they_are(page: str, route: str, column: str) -> None:
    """A table of short ways says of how many instructions its shares are."""
    text = (BENCH.parent / f"docs/internals/{page}.md").read_text()
    found = re.search(r"([0-9]+)\s+instructions, `bench/path.py`|`bench/path.py`, ([0-9]+) of them", text)
    assert found is not None
    assert int(found[1] or found[2]) == KNOWN["3.11"][route][column]


@pytest.mark.parametrize("wire", ["HTTP", "gRPC"])
def test_the_page_on_scale_has_the_figures_as_they_are(wire: str) -> None:
    text = (BENCH.parent / "docs/scale.md").read_text()
    pattern = r"\| (\d+) instructions of ([\d ]+);" if wire == "HTTP" else r"gRPC (\d+) of ([\d ]+),"
    found = re.search(pattern, text)
    assert found is not None
    row = KNOWN["3.11"][f"{wire}, loop, repeated"]
    whole = sum(row[key] for key in ("frontend", "core", "python"))
    assert (int(found[1]), int(found[2].replace(" ", ""))) == (row["core"], whole)

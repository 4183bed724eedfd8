"""What a request costs in instructions stays what bench/path.json says, and bench/README.md shows the same figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
KNOWN = json.loads((BENCH / "path.json").read_text())


@pytest.mark.skipif(VERSION not in KNOWN, reason=f"there are no figures for Python {VERSION}")
def test_no_route_has_grown() -> None:
    check = subprocess.run([sys.executable, BENCH / "path.py", "--check"], capture_output=True, text=True, timeout=300)
    assert check.returncode == 0, check.stdout + check.stderr


def test_what_has_grown_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import path

    row = {"frontend": 100, "core": 100, "python": 100, "frames": 9, "files": 9}
    assert path.grown({"a": {**row, "core": 104}}, {"a": row}) == []
    assert path.grown({"a": {**row, "core": 105}}, {"a": row}) == ["a: core takes 105 instructions, where it took 100"]
    assert path.grown({"new": row}, {"a": row}) == []


def test_the_readme_shows_the_figures() -> None:
    text = (BENCH / "README.md").read_text()
    for route, row in KNOWN["3.11"].items():
        figures = " | ".join(str(row[key]) for key in ("frontend", "core", "python", "frames", "files"))
        assert f"| {route} | {figures} |" in text

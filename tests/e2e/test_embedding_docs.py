"""docs/embedding.md is true: each of its snippets runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "embedding.md").read_text(), re.DOTALL)


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 4


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet(number: int) -> None:
    command = [sys.executable, "-W", "error", "-c", SNIPPETS[number]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")

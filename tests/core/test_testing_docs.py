"""docs/testing.md is true: each of its snippets runs, as a test module or as a script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kernel.testing  # noqa: F401 — numpy can't be imported anew by each of the inner runs

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 7


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: re.sub(r"\W+", "_", text.strip().splitlines()[-1])[:40])
def test_snippet(snippet: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (pytester.path / "repository").symlink_to(ROOT / "repository")
    if "def test_" not in snippet:
        exec(snippet, {})
        return
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(snippet)
    result = pytester.runpytest("-p", "kernel_pytest", "-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=1)

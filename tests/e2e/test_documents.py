"""README.md and docs/ are true: all their code is run, page by page, as documents.py says. A new page needs no row here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .documents import KINDS, Block, Page, blocks, pages, unsaid

CODE = [block for page in pages() for block in blocks(page)]


@pytest.mark.skipif(shutil.which("bash") is None or shutil.which("curl") is None, reason="there is no bash, or no curl")
@pytest.mark.parametrize("page", pages())
def test_page(page: str, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    Page(page, tmp_path / "page").run()


@pytest.mark.parametrize("block", [block for block in CODE if block.needs], ids=str)
def test_not_run(block: Block) -> None:
    """Listed among the skipped, with what the reader is told as well."""
    pytest.skip(f"{block.page}: {block.needs}")


def test_each_block_says_what_it_is() -> None:
    wrong = [f"{block} ({block.kind})" for block in CODE if block.kind not in KINDS]
    assert not wrong, f"wanted is one of {KINDS}"


def test_few_blocks_are_not_run() -> None:
    assert len([block for block in CODE if block.needs]) <= len(CODE) / 10


@pytest.mark.parametrize(
    ("given", "found", "missing"),
    [
        ("took 3 ms", "took 17.5 ms\n", []),
        ("a  b\n\nc", "  a b\nx\nc  ", []),
        ("left … 2", "left over, and 3", []),
        ("took 3 ms", "takes 3 ms", ["took 3 ms"]),
        ("took 3 ms", "it took 3 ms", ["took 3 ms"]),
    ],
)
def test_what_output_is_like(given: str, found: str, missing: list[str]) -> None:
    assert unsaid(given, found) == missing

"""What comments say of the contract can be looked up: each page and section that they name is there, and nothing lies outside."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "docs" / "contract"
PAGES = sorted(path.stem for path in CONTRACT.glob("*.md") if path.stem != "README")

#: A page and the numbers of sections behind it: "lifecycle, 4.7", "http_protocol 9 and 10", "model_config, sections 2 and 8".
NAMED = re.compile(rf"\b({'|'.join(PAGES)})(?:\.md)?,? (?:sections? )?(\d+(?:\.\d+)*(?:(?:, | and |–)\d+(?:\.\d+)*)*)")


def sources() -> Iterator[Path]:
    for folder in ("kernel", "plugins", "tests", "bench"):
        yield from (path for path in (ROOT / folder).rglob("*.py") if not path.stem.endswith("_pb2"))


def sections(page: str) -> set[str]:
    """Return the numbers of a page's sections, and of the rows that are numbered without a letter."""
    text = (CONTRACT / f"{page}.md").read_text()
    return set(re.findall(r"^##+ (\d+(?:\.\d+)*)\.? ", text, re.MULTILINE)) | set(
        re.findall(r"^\| (\d+(?:\.\d+)+) \|", text, re.MULTILINE)
    )


def test_pages() -> None:
    overview = (CONTRACT / "README.md").read_text()
    assert PAGES == sorted(set(re.findall(r"\]\((\w+)\.md\)", overview)))


def test_sections_that_are_named_are_there() -> None:
    there = {page: sections(page) for page in PAGES}
    named = [
        (str(path.relative_to(ROOT)), page, number)
        for path in sources()
        for page, numbers in NAMED.findall(path.read_text())
        for number in re.findall(r"\d+(?:\.\d+)*", numbers)
    ]
    assert len(named) > 60
    assert [each for each in named if each[2] not in there[each[1]]] == []


def test_pages_are_called_the_contract() -> None:
    """The one word for them: who reads "spec" in a comment looks for something that is not here."""
    spec = re.compile(rf"\bspec\s+(?:{'|'.join(PAGES)})\b|\(spec \d|§")
    found = [path.relative_to(ROOT).as_posix() for path in sources() if path != Path(__file__) and spec.search(path.read_text())]
    assert not found


def test_nothing_beside_the_project_is_looked_for() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name] if listed.returncode == 0 else [*sources()]
    beside = re.compile(r"\.\./shared|ROOT\.parent|PROJECT\.parent|parents\[1\]\.parent|KERNEL_REFERENCE\b")
    found = []
    for path in files:
        if path != Path(__file__) and path.suffix in (".py", ".md", ".toml", ".sh", ".yml", "") and path.is_file():
            found += [f"{path.relative_to(ROOT)}: {each}" for each in beside.findall(path.read_text(errors="replace"))]
    assert found == []

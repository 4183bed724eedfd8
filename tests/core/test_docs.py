"""What the documents name is there: the files and headings that they link to, and the modules that the design speaks of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "bench/README.md", "repository/README.md")
#: The essays of the design; "choices.md" also names what is gone.
INTERNALS = sorted(path for path in (ROOT / "docs/internals").glob("*.md") if path.name != "choices.md")
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))


def headings(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)", document.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if link.startswith(("https:", "http:")):
            continue
        path, _, heading = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not heading or heading in headings(target), link


@pytest.mark.parametrize("document", [ROOT / "DESIGN.md", *INTERNALS], ids=lambda path: path.name)
def test_modules_of_the_design_are_there(document: Path) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", document.read_text()))
    folders = [ROOT / name for name in ("kernel", "plugins", "tests", "bench", "scripts", "repository")]
    files = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.py")}
    files |= {path.name for path in ROOT.glob("*.py")}
    missing = {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)}
    assert not missing

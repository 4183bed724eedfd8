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


#: Documents with Python in them -> who runs each of their blocks. README's are also those of test_install.py and others.
RUN_BY = {
    "README.md": "e2e/test_readme.py",
    "docs/auth.md": "e2e/test_auth.py",
    "docs/batching.md": "core/test_batchers.py",
    "docs/caching.md": "core/test_caching_docs.py",
    "docs/embedding.md": "e2e/test_embedding_docs.py",
    "docs/metrics.md": "frontends/test_metrics_docs.py",
    "docs/plugins.md": "core/test_plugin_docs.py",
    "docs/python.md": "backends/test_python_docs.py",
    "docs/sequences.md": "backends/test_python_docs.py",
    "docs/testing.md": "core/test_testing_docs.py",
    "docs/tracing.md": "core/test_plugin_docs.py",
}


def test_python_in_documents_is_run_by_a_test() -> None:
    """Each of those tests takes the blocks out of the document and says how many there are."""
    found = {str(path.relative_to(ROOT)) for path in DOCUMENTS if "```python" in path.read_text()}
    assert found == RUN_BY.keys(), "Python that nobody runs soon isn't true: give it a test, and a row here"
    for document, test in RUN_BY.items():
        assert Path(document).name in (ROOT / "tests" / test).read_text(), test


@pytest.mark.parametrize("document", [ROOT / "DESIGN.md", *INTERNALS], ids=lambda path: path.name)
def test_modules_of_the_design_are_there(document: Path) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", document.read_text()))
    folders = [ROOT / name for name in ("kernel", "plugins", "tests", "bench", "scripts", "repository")]
    files = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*.py")}
    files |= {path.name for path in ROOT.glob("*.py")}
    missing = {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)}
    assert not missing

"""What the documents name is there: the files and headings that they link to, what design and comments speak of."""

from __future__ import annotations

import ast
import functools
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


#: What e2e/test_documents.py knows how to run.
KINDS = {"sh", "python", "pbtxt", "text", "json", "yaml", "toml"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_block_of_code_says_what_it_is(document: Path) -> None:
    """So that e2e/test_documents.py runs it."""
    kinds = re.findall(r"^ *```([^\s`]*)", document.read_text(), re.M)
    assert set(kinds[::2]) <= KINDS
    assert set(kinds[1::2]) <= {""}


#: Named in pages of the design, and rightly not in this tree: what there is not, what a run or somebody else makes.
ELSEWHERE = {"on_enqueue", "on_complete", "corpus", "bin/python", "etc/conda/activate.d"}
CODE = ("kernel", "plugins", "tests", "bench", "scripts", "repository")
DESIGN = [ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md", *INTERNALS]


@functools.cache
def sources() -> dict[str, ast.Module]:
    """Return what is written in Python here, by path."""
    paths = [path for name in CODE for path in sorted((ROOT / name).rglob("*.py"))] + list(ROOT.glob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


@functools.cache
def paths() -> frozenset[str]:
    """Return the files and folders that are here."""
    files = [path.relative_to(ROOT) for name in (*CODE, "docs", ".ci") for path in (ROOT / name).rglob("*")]
    files += [path.relative_to(ROOT) for path in ROOT.glob("*.*")]
    return frozenset(
        f"/{one.as_posix()}" for path in files if "__pycache__" not in path.parts for one in (path, *path.parents)
    )


@functools.cache
def names() -> frozenset[str]:
    """Return what Python here gives a name, or calls by it; docstrings don't count, nor do comments."""
    found: set[str] = set()
    for path, module in sources().items():
        found.update(Path(path).stem.split(".") + path.split("/")[:-1])
        for node in ast.walk(module):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                    found.add(name)
                case ast.alias(name=name):
                    found.update(name.split("."))
                case ast.Constant(value=str(text)) if len(text) < 200:  # settings, fields and messages
                    found.update(re.findall(r"\w+", text))
    return frozenset(found)


def is_there(path: str) -> bool:
    return any(known.endswith(f"/{path}") for known in paths())


@pytest.mark.parametrize("document", DESIGN, ids=lambda path: path.name)
def test_what_the_design_speaks_of_is_there(document: Path) -> None:
    missing = []
    for code in set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL))):
        bare = code.rstrip("/").partition("(")[0]
        if bare in ELSEWHERE:
            continue
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/|[\w.-]+(/[\w.-]+)+|\w+\.(py|json|md)", code):
            missing += [] if is_there(bare) else [code]
        elif re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", bare):
            missing += [code for part in bare.split(".") if part not in names()]
    assert not missing, "it is called otherwise now, or has gone"


def test_what_comments_and_docstrings_speak_of_is_there() -> None:
    """Modules, and folders of this tree: `lookout.py`, instances/turn.py, docs/contract."""
    roots = r"(?:kernel|plugins|tests|docs|bench|scripts|kernel_\w+)"
    said = rf"(?<![\w/.<>-])((?:[\w-]+/)*[a-z]\w*\.py|{roots}(?:/[\w-]+)+(?:\.\w+)?)(?![\w/])"
    missing = []
    for path, module in sources().items():
        if not path.startswith(("kernel/", "plugins/", "bench/", "scripts/")):
            continue
        nodes = [
            node
            for node in ast.walk(module)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        texts = [ast.get_docstring(node) or "" for node in nodes]
        texts += re.findall(r"^[^\"']*?#:? (.*)$", (ROOT / path).read_text(), re.M)
        missing += [f"{path}: {name}" for text in texts for name in re.findall(said, text) if not is_there(name)]
    assert not missing, "it is called otherwise now, or has gone"

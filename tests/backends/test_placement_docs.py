"""docs/placement.md is held true: its lists are those of the code, its tables what the rule makes of the models they name.

Run as a program it writes them: `python tests/backends/test_placement_docs.py`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from kernel_python.loading.evidence import SAFE_REASON, Evidence, examine
from kernel_python.loading.shareable import ONLY, SAFE_LIBRARIES, SAFE_STANDARD, UNSAFE, UNSAFE_ATTRIBUTES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "placement.md"

TESTS = ("tests", "bench/models", "kernel/templates")


def told(found: Evidence) -> str:
    """Return what the server says of a model that asks for no place."""
    where = "process" if not found.shareable else "loop" if found.asynchronous else "thread"
    return f"{where}: {found.reason}"


def block(names: Iterable[str]) -> str:
    return "```text\n" + textwrap.fill(" ".join(sorted(names)), 128, break_on_hyphens=False) + "\n```"


def table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(["| {} | {} |".format(*head), "| --- | --- |", *(f"| {one} | {two} |" for one, two in rows)])


def by_cause(causes: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for cause in dict.fromkeys(causes.values()):
        names = sorted(name.removeprefix("builtins.") for name, one in causes.items() if one == cause)
        yield cause, ", ".join(f"`{name}`" for name in names)


def models(folders: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield each model below some folders, and what comes of it; versions of one model as one where they agree."""
    rows: dict[str, str] = {}
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("model.py")):
            if file.parent.name.isdigit():
                said = told(examine(file, file.parent, file.parents[1]))
                name = file.parents[1].relative_to(ROOT).as_posix().removeprefix("repository/")
                assert rows.setdefault(name, said) == said
    return ((f"`{name}`", said) for name, said in rows.items())


def parts() -> dict[str, str]:
    only = {name: ", ".join(f"`{one}`" for one in sorted(names)) for name, names in ONLY.items()}
    return {
        "standard": block(SAFE_STANDARD),
        "libraries": block(SAFE_LIBRARIES),
        "only": table(("module", "names"), ((f"`{name}`", names) for name, names in only.items())),
        "unsafe": table(("because it", "names"), by_cause(UNSAFE)),
        "attributes": table(("because it", "names"), by_cause(UNSAFE_ATTRIBUTES)),
        "sample": table(("model", "choice"), models(["repository"])),
        "tests": table(("model", "choice"), ((name, said) for name, said in models(TESTS) if SAFE_REASON not in said)),
    }


def section(page: str, name: str) -> re.Match[str]:
    found = re.search(rf"<!-- {name} -->\n((?:```text\n.*?```|(?:\|[^\n]*\n?)*))", page, re.DOTALL)
    assert found is not None, f"docs/placement.md has no part {name}"
    return found


@pytest.mark.parametrize("name", ["standard", "libraries", "only", "unsafe", "attributes", "sample", "tests"])
def test_the_page_says_what_the_code_does(name: str) -> None:
    assert section(PAGE.read_text(), name)[1].strip() == parts()[name], f"run python {Path(__file__).relative_to(ROOT)}"


def test_the_sample_repository_stays_in_the_server() -> None:
    said = dict(models(["repository"]))
    assert len(said) == 9
    assert set(said.values()) == {f"thread: {SAFE_REASON}", f"loop: {SAFE_REASON}"}


def test_the_examples_of_triton(tmp_path: Path) -> None:
    """By what they import, which the page has from their sources."""
    rows = re.findall(r"^\| (`\w+`.*?) \| (.*?) \| ((?:loop|thread|process): .*) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 13
    for name, imports, said in rows:
        modules = re.findall(r"`(.*?)`", imports)
        execute = "async def execute" if "async_" in name else "def execute"
        lines = [f"import {module}" for module in (*modules, "triton_python_backend_utils")]
        file = tmp_path / "model.py"
        file.write_text("\n".join([*lines, "class TritonPythonModel:", f"    {execute}(self, requests): ..."]))
        assert told(examine(file, tmp_path, tmp_path)).partition(" (")[0] == said, name


def test_the_standard_library_has_what_is_listed() -> None:
    assert SAFE_STANDARD <= sys.stdlib_module_names


def test_the_lists_do_not_contradict_one_another() -> None:
    tops = SAFE_STANDARD | SAFE_LIBRARIES | {"builtins"}
    assert not set(UNSAFE) & tops
    for name, names in ONLY.items():
        assert name.partition(".")[0] in tops
        assert not {f"{name}.{one}" for one in names} & set(UNSAFE)


if __name__ == "__main__":
    page = PAGE.read_text()
    for name, text in parts().items():
        found = section(page, name)
        page = page[: found.start(1)] + text + "\n\n" + page[found.end(1) :].lstrip("\n")
    PAGE.write_text(page.rstrip() + "\n")

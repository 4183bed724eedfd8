"""The public names of `kernel`: each is in a group, told of, and wanted by somebody; docs/reference.md is what they give."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import kernel
import kernel.testing
from kernel_grpc.rpc.status import STATUS_OF, Status
from kernel_http.connection.replies import status_of

ROOT = Path(__file__).parents[2]

#: Where names are used by those whom they are for: code of plugins, also of ours, what `kernel new` writes, and documents.
USERS = ("plugins/**/*.py", "kernel/templates/**/*", "kernel/plugin_template/**/*", "docs/**/*.md", "README.md")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_page", ROOT / "scripts" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def test_each_name_is_there_and_in_one_group(reference: ModuleType) -> None:
    names = [name for group in reference.groups() for name in group.names]
    assert names == kernel.__all__
    assert reference.testing().names == kernel.testing.__all__
    assert not [name for name, count in Counter(names).items() if count > 1]
    assert not [name for name in names if not hasattr(kernel, name)]


def test_all_is_told(reference: ModuleType) -> None:
    """Groups, names, methods, parameters and fields; of numbers, in what they are counted."""
    assert not reference.problems()


def test_each_code_says_what_clients_get_for_it(reference: ModuleType) -> None:
    found = reference.find("Code", "kernel")
    for field, said in reference.fields(found.source, found.node):
        code = kernel.Code[field.partition(" ")[0]]
        names = {number: name for name, number in vars(Status).items() if name.isupper()}
        assert said.rstrip(".").endswith(f"({status_of(code)}, {names[STATUS_OF[code]]})"), field


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        ('def f(timeout: float): """Wait for `timeout`."""', "timeout"),
        ('def f(timeout: float): """Wait for `timeout` seconds."""', ""),
        ('def f(seconds: float): """Wait."""', ""),
        ('def f() -> float: """Return the age."""', "f"),
        ('def f(a: int, size: int): """`a`: bytes. `size`: how much."""', "size"),
        ('def f(a: int, size: int): """`size`: how much. `a`: bytes."""', "size"),
        ('def f(size: int, count: int): """`size`: in bytes. `count`: how many."""', ""),
        ('def f(timeout: float): """As `g`."""', ""),
        ('class A:\n    """A."""\n    age: float  # of it\n', "age"),
        ('class A:\n    """A."""\n    age: float  # in seconds\n    _own: float\n', ""),
        ('class A:\n    """A."""\n    def m(self, limit: int | None): """Up to `limit`."""\n', "limit"),
    ],
)
def test_a_number_without_a_unit_is_found(reference: ModuleType, code: str, lacks: str) -> None:
    source = reference.Source(ast.parse(code), code.splitlines())
    told = list(reference.without_unit(source, source.tree.body[0], "x"))
    assert [one.partition("`")[2].partition("`")[0] for one in told] == ([lacks] if lacks else [])


def words_of(path: Path) -> set[str]:
    """Return the names that a file gets from `kernel`, or speaks of."""
    text = path.read_text(errors="replace")
    if path.suffix != ".py":
        return set(re.findall(r"\w+", text))
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "kernel":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found


def test_each_name_is_wanted_outside_of_the_core(reference: ModuleType) -> None:
    """By a plugin, a template or a document; or it is the type of something that another public name has."""
    files = [path for pattern in USERS for path in ROOT.glob(pattern) if path.is_file() and path != reference.PAGE]
    used = set[str]().union(*map(words_of, (path for path in files if path.suffix in (".py", ".md", ".toml"))))
    page = reference.page()
    unwanted = [name for name in kernel.__all__ if name not in used and len(re.findall(rf"\b{name}\b", page)) < 2]
    assert not unwanted, f"nobody outside needs {unwanted}: take them out of kernel/__init__.py"


def test_page_is_up_to_date(reference: ModuleType) -> None:
    said = "docs/reference.md is not what the code gives: run `python3 dev.py reference`"
    assert reference.PAGE.read_text() == reference.page(), said


def test_the_check_names_what_is_stale_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "testing").mkdir()
    (tmp_path / "kernel" / "testing" / "__init__.py").write_text('"""A kit."""\n\n__all__ = []\n')
    (tmp_path / "scripts" / "reference.py").write_bytes((ROOT / "scripts" / "reference.py").read_bytes())
    (tmp_path / "kernel" / "__init__.py").write_text(
        '__all__ = []\n\n# Embed: what they need.\n__all__ += ["Bare", "Told"]\n\n'
        'class Bare:\n    def __init__(self, size): ...\n\n    def method(self): ...\n\n'
        'class Told:\n    """Has a `size`. The core\'s own: `hidden`."""\n\n    size: int = 0\n\n    def hidden(self): ...\n'
    )
    check = [sys.executable, "scripts/reference.py", "--check"]
    result = subprocess.run(check, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "kernel.Bare has no docstring",
        "kernel.Bare.method has no docstring",
        "nothing is said of `size` in the docstring of kernel.Bare",
        "kernel.Told: nothing says in what `size` is counted",
        f"{tmp_path}/docs/reference.md is not what the code gives: run `python3 dev.py reference`",
    ]
    assert not (tmp_path / "docs" / "reference.md").exists()
    assert subprocess.run(check[:-1], cwd=tmp_path, check=False, capture_output=True).returncode == 0
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    page = (tmp_path / "docs" / "reference.md").read_text()
    assert "- `size: int = 0`" in page
    assert "hidden" not in page


def test_the_other_pages_are_up_to_date() -> None:
    """Of commands, of fields of configs, of metrics; whatever the machine, the user and the terminal."""
    check = [sys.executable, ROOT / "scripts" / "pages.py", "--check"]
    environment = os.environ | {"COLUMNS": "60", "HOME": "/nowhere"}
    done = subprocess.run(check, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")

"""No figure of how the code is built is above its limit (bench/structure.py), and the counting counts what it says."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from kernel.registry.entries import Entry, Version

BENCH = Path(__file__).resolve().parents[2] / "bench"
NO_CORE = (["testing"], ["replicas"], ["simulation"])  # servers have states, too; a simulation makes requests as a client does
WRITERS = ("kernel.registry.catalog", "kernel.registry.entries")


@pytest.fixture
def structure(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import structure

    return structure


def module(structure: ModuleType, name: str, text: str) -> object:
    return structure.Module(name, Path(f"{name}.py"), text, ast.parse(text))


def modules(structure: ModuleType, **texts: str) -> dict[str, object]:
    return {name: module(structure, name, text) for name, text in texts.items()}


def function(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def test_no_figure_is_above_its_limit(structure: ModuleType) -> None:
    figures, details = structure.measure(structure.read())
    assert figures.keys() == structure.LIMITS.keys()
    found = structure.above(figures, structure.LIMITS)
    assert not found, "\n".join([*found, *(f"{name}: {lines}" for name, lines in details.items() if name in "".join(found))])


def test_choices_tell_the_figures_as_they_are(structure: ModuleType) -> None:
    """What stands against a wanted figure is no reason any more once the figure is another one."""
    page = (BENCH.parent / "docs/internals/choices.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]+) \| [0-9 ]+ \| (?:[0-9 ]+|fewer) \| ([0-9 ]+) \|", page, re.MULTILINE))
    told = {name: int(value.replace(" ", "")) for name, value in rows.items()}
    known = json.loads((BENCH / "path.json").read_text())["3.11"]
    figures, _ = structure.measure(structure.read())
    figures["a load of a model, frames"] = known["load of a model"]["frames"]
    figures["code lines of requests, rules, instances, scheduling"] = figures["code lines on a request's path"]
    assert len(told) == 4
    assert told == pytest.approx({name: figures[name] for name in told}, rel=0.01)  # in round numbers


def test_classes_of_the_core_have_names_of_their_own(structure: ModuleType) -> None:
    """One word for one thing (docs/internals/glossary.md)."""
    where: dict[str, list[str]] = {}
    for name, one in structure.read().items():
        if one.package == "kernel":
            for node in one.tree.body:
                if isinstance(node, ast.ClassDef):
                    where.setdefault(node.name, []).append(name)
    assert not {name: several for name, several in where.items() if len(several) > 1}


def assigned(function: ast.AST) -> set[tuple[str, str]]:
    """Return (object, attribute) of what a function assigns to."""
    return {
        (ast.unparse(node.value), node.attr)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def test_states_are_moved_where_the_design_says(structure: ModuleType) -> None:
    """A request's by accept, start, put_back and release; a version's, in the index or of a model, by `become`."""
    core = [
        one
        for one in structure.read().values()
        if one.package == "kernel" and one.name.split(".")[1:2] not in NO_CORE
    ]
    moves = {
        f"{one.name}.{name}"
        for one in core
        for name, function in structure.functions(one.tree)
        if any(attribute == "state" for _, attribute in assigned(function))
    }
    assert moves == {
        "kernel.models.model.Model.__init__",
        "kernel.models.states.become",
        "kernel.requests.request.InferenceRequest.__init__",
        "kernel.requests.request.InferenceRequest.put_back",
        "kernel.scheduling.release.Release.release",
        "kernel.scheduling.scheduler.Scheduler._let_wait",
        "kernel.scheduling.scheduler.Scheduler.start",
    }


def test_entries_are_written_by_the_catalog(structure: ModuleType) -> None:
    """What is known of a name and its versions has one writer, so a reader of the tables need not look elsewhere."""
    fields = {field.name for record in (Entry, Version) for field in dataclasses.fields(record)} - {"name", "number"}
    others = [one for one in structure.read().values() if one.package == "kernel" and one.name not in WRITERS]
    found = {
        f"{one.name}: {owner}.{attribute}"
        for one in others
        for owner, attribute in assigned(one.tree)
        if attribute in fields and re.search(r"\b(entry|entries|version|versions)\b", owner)
    }
    assert not found


def test_what_is_above_its_limit_is_told(structure: ModuleType) -> None:
    assert structure.above({"a": 2, "b": 2}, {"a": (1, 1), "b": (2, None)}) == ["a: 2, where 1 is the most"]


def test_circles_count_imports_for_type_checkers_and_inside_functions(structure: ModuleType) -> None:
    found = modules(
        structure,
        a="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import B\n",
        b="def f():\n    import c\n",
        c="import a",
        d="import a",
    )
    assert structure.circles(structure.graph(found)) == [["a", "b", "c"]]


def test_arrows_are_imports_of_later_rooms(structure: ModuleType) -> None:
    arrows = {
        "kernel.rules.queueing": {"kernel.server", "kernel.errors"},
        "kernel.server": {"kernel.rules.queueing", "kernel"},
        "kernel_http.json.arrays": {"kernel_http.asgi.app", "kernel_http.options", "kernel.server"},
    }
    assert structure.against(arrows, structure.order_of_rooms()) == [
        "kernel.rules.queueing -> kernel.server",
        "kernel_http.json.arrays -> kernel_http.asgi.app",
    ]


def test_a_class_counts_with_its_bases(structure: ModuleType) -> None:
    found = modules(
        structure,
        ground="class A:\n    __slots__ = ('x',)\n    def f(self):\n        self.y = 1\n",
        door="from ground import A",
        other="class A:\n    def g(self):\n        self.far = 1\n    # longer\n    more = 1\n",
        top="from other import A\nfrom door import A as Above\n"
        "class B(Above):\n    z: int\n    def f(self):\n        (self.x, self.w) = 1, self.v\n",
    )
    largest = structure.sizes(found)[0]
    assert (largest.name, largest.lines, largest.methods, largest.attributes, largest.classes) == ("top.B", 8, 1, 4, 2)


def test_branches(structure: ModuleType) -> None:
    assert structure.branches(function("def f(): pass")) == 1
    assert structure.branches(function("def f(a):\n if a: pass\n elif a: pass\n else: pass")) == 3
    assert structure.branches(function("def f(a):\n for b in a:\n  while a and b and c: pass")) == 5
    assert structure.branches(function("def f(a):\n try: pass\n except E: pass\n return [b if a else c for b in a if b]")) == 4
    assert structure.branches(function("def f(a):\n match a:\n  case 1: pass\n  case A() if b: pass\n  case _: pass")) == 3
    assert structure.branches(function("def f(a):\n def g(b):\n  if b: pass")) == 1


def test_moves_and_answers(structure: ModuleType) -> None:
    assert structure.moves_to(function("def f(r):\n r.state = EXECUTING"), "EXECUTING")
    assert structure.moves_to(function("def f(r):\n r.state = RequestState.EXECUTING"), "EXECUTING")
    assert not structure.moves_to(function("def f(r):\n if r.state == EXECUTING: r.state = PENDING"), "EXECUTING")
    assert structure.answers(function("def f(r):\n r.respond(None, True)"))
    assert not structure.answers(function("def f(r):\n respond(None, False)"))


def test_code_lines(structure: ModuleType) -> None:
    text = '"""Words.\n\nMore.\n"""\n\n# why\ndef f():  # and why\n    """Words."""\n    return """\n\n"""\n'
    assert structure.code_lines(module(structure, "a", text)) == 4

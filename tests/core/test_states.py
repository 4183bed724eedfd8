"""The states of a version: every move that there is, by table; and who may write what is known of versions."""

from __future__ import annotations

import ast
import dataclasses
from itertools import product
from pathlib import Path

import pytest

from kernel.models.states import MOVES, ModelState
from kernel.registry.entries import Entry, Version

REGISTRY = Path(__file__).parents[2] / "kernel/registry"
LOADING, READY, UNLOADING, UNAVAILABLE = ModelState

#: From, to -> whether it may follow. Every pair stands here.
TABLE = {
    (LOADING, LOADING): False,
    (LOADING, READY): True,
    (LOADING, UNLOADING): True,
    (LOADING, UNAVAILABLE): True,
    (READY, LOADING): False,
    (READY, READY): True,
    (READY, UNLOADING): True,
    (READY, UNAVAILABLE): False,
    (UNLOADING, LOADING): True,
    (UNLOADING, READY): True,
    (UNLOADING, UNLOADING): False,
    (UNLOADING, UNAVAILABLE): True,
    (UNAVAILABLE, LOADING): True,
    (UNAVAILABLE, READY): True,
    (UNAVAILABLE, UNLOADING): False,
    (UNAVAILABLE, UNAVAILABLE): True,
}


def test_the_table_is_whole() -> None:
    assert TABLE.keys() == set(product(ModelState, repeat=2))
    assert MOVES.keys() == set(ModelState)


@pytest.mark.parametrize(("now", "then"), TABLE, ids=lambda state: state.value)
def test_moves(now: ModelState, then: ModelState) -> None:
    version = Version("m", 3, now, "as it was")
    if TABLE[now, then]:
        version.become(then, "why")
        assert (version.state, version.reason) == (then, "why")
    else:
        words = f"version 3 of model 'm' is {now.value} and can't become {then.value}"
        with pytest.raises(AssertionError, match=words):
            version.become(then, "why")
        assert (version.state, version.reason) == (now, "as it was")


def test_a_version_begins_where_it_ends() -> None:
    assert Version("m", 1).state is UNAVAILABLE


#: Fields of the catalog's records -> the one file that may assign them. Names and numbers never change.
FIELDS = {field.name for record in (Entry, Version) for field in dataclasses.fields(record)} - {"name", "number"}
WRITERS = {field: {"state": "nobody here", "reason": "entries.py"}.get(field, "catalog.py") for field in FIELDS}


@pytest.mark.parametrize("path", sorted(REGISTRY.glob("*.py")), ids=lambda path: path.name)
def test_who_writes_entries(path: Path) -> None:
    """What an object has of its own (`self.config`) is another thing, but in the records themselves."""
    wrong = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in WRITERS:
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if WRITERS[node.attr] != path.name and not (own and path.name != "entries.py"):
                wrong.append(f"{path.name}:{node.lineno}: .{node.attr}")
    assert not wrong, "records of the catalog are written by it alone, states by `become`"


def test_states_are_assigned_by_become_alone() -> None:
    """Of models and of versions; both begin in a state that `__init__` or the record's default gives them."""
    writers = {
        f"{path.name}: {function.name}"
        for path in (*REGISTRY.glob("*.py"), *(REGISTRY.parent / "models").glob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == "state"
    }
    assert writers == {"model.py: __init__", "states.py: become"}

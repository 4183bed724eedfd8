"""How tests are shared out to processes: whole files, pairs of servers, long ones first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

shares = pytest.importorskip("shares")  # it needs pytest-xdist


def share(nodeid: str) -> str:
    return cast(str, shares.ByFile._split_scope(cast(Any, None), nodeid))


def test_a_file_is_a_share() -> None:
    assert share("tests/core/test_a.py::test_b[x::y]") == "tests/core/test_a.py"
    assert share("tests/core/test_a.py::TestC::test_d") == "tests/core/test_a.py"


def test_a_pair_of_servers_is_a_share() -> None:
    plain = {
        share(f"tests/reference/{name}[a::b [c]]")
        for name in ("test_http.py::test_plain", "test_grpc.py::test_plain", "test_http.py::test_rest")
    }
    restricted = {share(f"tests/reference/test_{wire}.py::test_restricted[x]") for wire in ("http", "grpc")}
    assert (len(plain), len(restricted)) == (1, 1)
    assert plain != restricted


def test_long_ones_come_first() -> None:
    names = ["tests/core/test_a.py::b", "tests/e2e/test_c.py::d", "tests/core/test_a.py::a", "tests/reference/test_e.py::f"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    shares.longest_first(items)
    assert [item.nodeid for item in items] == [names[3], names[1], names[0], names[2]]

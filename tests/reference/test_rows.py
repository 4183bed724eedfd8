"""Every row of the protocols' contracts that was observed has a case here or a reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from . import rows_grpc, rows_http, test_grpc, test_http
from .rows_grpc import Row

pytestmark = pytest.mark.reference

CONTRACTS = Path(__file__).parents[2] / "docs" / "contract"

#: Tables that were observed although they don't say so.
ALSO = ("| N=", "| last response sent", "| unknown model, then", "| bad shape, then", "| exception in model")

NAMES = {"grpc": test_grpc.EVERY, "http": test_http.EVERY}
ROWS = {"grpc": rows_grpc.ROWS, "http": rows_http.ROWS}

either = pytest.mark.parametrize("wire", ["grpc", "http"])


def observed(path: Path) -> Iterator[tuple[str, str]]:
    """Give section and text of each row that is marked as observed, by itself or by its section's heading."""
    lines = path.read_text().splitlines()
    section, whole = "", False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("#"):
            section, whole = line.lstrip("# ").split(" ")[0], "[O" in line or "must keep" in line
        elif not line.strip() or line.startswith("Legend") or set(line) <= set("|- ") or following.startswith("|--"):
            continue  # nothing, or the head of a table
        elif section == "12.":
            continue  # pairs of which each stands for a row above
        elif whole or "[O" in line or line.startswith(ALSO):
            yield section, line.strip()


def matches(row: Row, section: str, text: str) -> bool:
    return row.section == section and text.startswith(row.begins)


@either
def test_every_observed_row_is_listed(wire: str) -> None:
    contract = CONTRACTS / f"{wire}_protocol.md"
    if not contract.exists():
        pytest.skip(f"no contract: {contract} doesn't exist")
    rows = list(observed(contract))
    missing = [(section, text) for section, text in rows if not any(matches(row, section, text) for row in ROWS[wire])]
    assert not missing
    gone = [row for row in ROWS[wire] if not any(matches(row, *each) for each in rows)]
    assert not gone, "listed, but the contract has no such row"


@either
def test_listed_rows_have_cases_or_a_reason(wire: str) -> None:
    names: Sequence[str] = NAMES[wire]
    for row in ROWS[wire]:
        assert bool(row.cases) != bool(row.reason), row
        unknown = [pattern for pattern in row.cases if not any(fnmatchcase(name, pattern) for name in names)]
        assert not unknown, f"no case of such a name, {row}"

"""Every observed row of the protocols' contracts (docs/contract) names cases here that ask for it, or says why none does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from . import cases_contract, test_grpc, test_http

CONTRACT = Path(__file__).parents[2] / "docs" / "contract"
MORE = [case.name for case in cases_contract.CONTRACT]  # over either wire
NAMES = {"grpc": [*test_grpc.EVERY, *MORE], "http": [*test_http.EVERY, *MORE]}
REASON = "none: "

either = pytest.mark.parametrize("wire", ["grpc", "http"])


class Row(NamedTuple):
    """A row: its number, its mark, and what its last column says."""

    number: str
    mark: str
    cases: str

    def patterns(self, wire: str) -> list[str]:
        """Return the patterns of names of cases."""
        named = re.findall("`([^`]+)`", self.cases)
        if wire == "http":
            return named
        return [f"gRPC {name}" if name.startswith("stream: ") else f"gRPC: {name}" for name in named]


def rows(wire: str) -> Iterator[Row]:
    """Give the numbered rows of a page. Each stands in the section that its number begins with."""
    section = ""
    for line in (CONTRACT / f"{wire}_protocol.md").read_text().splitlines():
        if line.startswith("##"):
            section = line.lstrip("# ").split(" ")[0].rstrip(".")
        if re.match(r"\| \d", line):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            assert len(cells) == 5, line
            assert re.fullmatch(rf"{re.escape(section)}\.[a-z]", cells[0]), line
            yield Row(cells[0], *cells[-2:])


@either
def test_numbers_are_in_order(wire: str) -> None:
    numbers = [row.number for row in rows(wire)]
    assert len(numbers) > 60
    letters: dict[str, str] = {}
    for number in numbers:
        section, _, letter = number.rpartition(".")
        letters[section] = letters.get(section, "") + letter
    assert all("abcdefghijklmnopqrstuvwxyz".startswith(found) for found in letters.values()), letters


@either
def test_observed_rows_have_cases_or_a_reason(wire: str) -> None:
    for row in rows(wire):
        assert row.mark in ("O", "S"), row
        if row.mark == "S":
            assert not row.cases, f"asked of the reference, so it is observed: {row}"
        elif not row.cases.startswith(REASON):
            assert row.patterns(wire), row


@either
def test_named_cases_exist(wire: str) -> None:
    for row in rows(wire):
        if not row.cases.startswith(REASON):
            unknown = [each for each in row.patterns(wire) if not any(fnmatchcase(name, each) for name in NAMES[wire])]
            assert not unknown, f"no case of such a name, {row}"

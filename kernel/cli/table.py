"""Text in columns: boxed as Triton's start-up table, or without lines. Knows nothing of what it shows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

__all__ = ["columns", "printable", "table"]

#: Reasons may be long; they go on in the next line of their cell.
WIDEST_CELL = 100


#: What moves a terminal's cursor, ends lines, turns the direction of what follows, or can't be written.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return one line of a text that others have written, as it may be shown."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows in a box, as tritonserver prints its models."""
    cells = [[_lines(cell) for cell in row] for row in rows]
    widths = [
        max(len(title), *(len(line) for row in cells for line in row[k])) if cells else len(title)
        for k, title in enumerate(head)
    ]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(values: Sequence[str]) -> str:
        return "|" + "|".join(f" {value:{width}} " for value, width in zip(values, widths, strict=True)) + "|"

    body = [line(values) for row in cells for values in zip_longest(*row, fillvalue="")]
    return "\n".join([rule, line(head), rule, *body, *([rule] if body else [])])


def _lines(cell: str) -> list[str]:
    wrapped = [textwrap.wrap(part, WIDEST_CELL, break_on_hyphens=False) or [""] for part in cell.strip().split("\n")]
    return [line for lines in wrapped for line in lines]


def columns(rows: Sequence[Sequence[str]], indent: str = "", gap: str = "  ") -> list[str]:
    """Return the rows as lines whose columns are aligned, without blanks at the end."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        (indent + gap.join(f"{value:{width}}" for value, width in zip(row, widths))).rstrip() for row in rows
    ]

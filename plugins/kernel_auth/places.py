"""Where in a TOML text a field stands: the parser of the standard library doesn't say. For messages; near enough is enough."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["line_and_column", "place_of"]

_INERT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*')


def place_of(text: str, path: Sequence[str | int]) -> int:
    """Return the offset of a field: names of tables and fields, and, of lists of tables, which of them from 0.

    What is not there has the place of what it is missing from.
    """
    text = _INERT.sub(lambda found: " " * len(found[0]), text)  # nothing in strings and comments is a field
    at, start, header = 0, 0, False
    name = ""
    for step in path:
        if isinstance(step, str):
            name = step
            heading = rf"^[ \t]*(?P<head>\[\[?[ \t]*(?:[\w-]+\.)*{re.escape(name)}[ \t]*\]\]?)"
            field = rf"(?<![\w.-])(?P<field>{re.escape(name)})(?=[ \t]*=)"
            found = re.compile(f"{heading}|{field}", re.MULTILINE).search(text, start)
            if found is None:
                return at
            header = found["head"] is not None
        else:
            for _ in range(step + (not header)):
                mark = rf"^[ \t]*(?P<head>\[\[[ \t]*(?:[\w-]+\.)*{re.escape(name)}[ \t]*\]\])" if header else r"(?P<field>\{)"
                found = re.compile(mark, re.MULTILINE).search(text, start)
                if found is None:
                    return at
                start = found.end()
            if found is None:
                return at
        at = found.start("head") if header else found.start("field")
        start = found.end()
    return at


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Return the line and the column of an offset, both counted from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)

"""The tokens of protobuf's text format with their lines and columns, and the sentence about one that does not fit.

Knows no nesting. Linear in the length of the text, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["ScanError", "Token", "refused", "tokens"]


@dataclass(frozen=True, slots=True)
class ScanError:
    """Where a text can't be cut into tokens, and why. `line` and `column` count from 1."""

    line: int
    column: int
    message: str


_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\f\v\n]|\#[^\n]*)+)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>-?[ \t]*(?:\.[0-9]|[0-9])[A-Za-z0-9_.]*(?:(?<=[eE])[+-][0-9]+[A-Za-z0-9_.]*)?
          |-[ \t]*[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[][{}<>:;,])""",
    re.VERBOSE,
)
_PLACEHOLDER = re.compile(r"\$\{?\w*\}?|\{\{[^}\n]*\}\}|%\w+%?")

Token = tuple[str, str, int, int]  # kind, text, line, column


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens; the last one is of kind `end`, or of kind `bad` where nothing fits."""
    at, line, line_start = 0, 1, 0
    match = _TOKEN.match
    end = len(text)
    while at < end:
        found = match(text, at)
        if found is None:
            yield "bad", text[at : at + 40], line, at - line_start + 1
            return
        kind = found.lastgroup or ""
        value = found.group()
        if kind != "space":
            yield kind, value, line, at - line_start + 1
        else:
            breaks = value.count("\n")
            if breaks:
                line += breaks
                line_start = at + value.rindex("\n") + 1
        at = found.end()
    yield "end", "", line, at - line_start + 1


def refused(token: Token, wanted: str) -> ScanError:
    """Return why `token` can't stand where something else is wanted."""
    kind, text, line, column = token
    if kind == "end":
        return ScanError(line, column, f"the file ends here, wanted {wanted}")
    if kind == "bad":
        placeholder = _PLACEHOLDER.match(text)
        if placeholder:
            return ScanError(
                line,
                column,
                f"'{placeholder.group()}' is a placeholder of a template that nobody filled in, wanted {wanted}",
            )
        if text[0] in "\"'":
            return ScanError(line, column, "a string that does not end on its line")
        if "\udc80" <= text[0] <= "\udcff":
            return ScanError(line, column, f"byte 0x{ord(text[0]) - 0xDC00:02x} is not UTF-8, wanted {wanted}")
        text = text[0]
    if text == "{" and "field name" in wanted:
        return ScanError(
            line,
            column,
            f"got '{{', wanted {wanted}; is '{{{{ … }}}}' a template's placeholder that nobody filled in?",
        )
    shown = text if len(text) <= 40 else f"{text[:39]}…"
    return ScanError(line, column, f"got {shown!r}, wanted {wanted}")

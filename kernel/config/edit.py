"""Changes single fields of a config in text format, and leaves all else as it stands: comments, order, blanks.

What the text says must be valid before; whoever writes the result reads it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernel.config.tokens import tokens

__all__ = ["FieldPath", "edited"]

#: Names of fields from the outermost on; `name=key` is the entry of a map with that key.
FieldPath = tuple[str, ...]

_CLOSES = {"{": "}", "<": ">"}


@dataclass
class _Field:
    """A field's span `begin:end`, and that of its value; of a message those within it, and where it closes."""

    name: str
    begin: int
    value: int
    end: int = 0
    inner: list[_Field] = field(default_factory=list)
    close: int = -1  # of a message


def edited(text: str, changes: Mapping[FieldPath, str]) -> str:
    """Return the text with these fields set, each value as the text format has it. Fields that are missing come to the end."""
    for path, value in changes.items():
        text = _set(text, path, value)
    return text


def _set(text: str, path: FieldPath, value: str) -> str:
    fields, close = _read(text), len(text)
    for place, step in enumerate(path):
        name, _, key = step.partition("=")
        found = [one for one in fields if one.name == name and (not key or _key(text, one) == key)]
        if not found:
            return _added(text, close, path[place:], value)
        if place == len(path) - 1:
            for one in reversed(found[1:]):  # of a repeated field: the first has all values now
                text = text[: one.begin] + text[one.end :].lstrip(" ,;")
            first = found[0]
            return text[: first.value] + value + text[first.end :]
        fields, close = found[0].inner, found[0].close
    return text


def _key(text: str, one: _Field) -> str:
    return next((text[inner.value : inner.end].strip("\"'") for inner in one.inner if inner.name == "key"), "")


def _added(text: str, close: int, path: FieldPath, value: str) -> str:
    """Put a field, and the messages around it, before the end of a message or of the text."""
    words = _words(path, value)
    before, after = text[:close], text[close:]
    if not after:
        gap = "" if not before or before.endswith("\n") else "\n"
        return f"{before}{gap}{words}\n"
    line = before.rpartition("\n")[2]
    if line.strip():  # the message ends on the line on which something of it stands
        return f"{before.rstrip()} {words} {after}"
    return f"{before.rstrip(' ')}{line}  {words}\n{line}{after}"


def _words(path: Sequence[str], value: str) -> str:
    name, _, key = path[0].partition("=")
    if len(path) == 1:
        return f"{name}: {value}"
    inner = _words(path[1:], value)
    return f'{name} {{ key: "{key}" {inner} }}' if key else f"{name} {{ {inner} }}"


def _read(text: str) -> list[_Field]:
    """Return the fields of a text that is valid."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = [(kind, word, starts[line - 1] + column - 1) for kind, word, line, column in tokens(text)]
    return list(_Reader(found).fields(""))


class _Reader:
    def __init__(self, found: list[tuple[str, str, int]]) -> None:
        self.tokens = found
        self.at = 0

    def take(self) -> tuple[str, str, int]:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def fields(self, close: str) -> Iterator[_Field]:
        """Yield fields up to the end, or what closes the message, which is left."""
        while True:
            kind, word, _ = self.tokens[self.at]
            if kind in ("end", "bad") or word == close:
                return
            if kind == "mark":  # , and ; between fields
                self.at += 1
                continue
            yield from self.named()

    def named(self) -> Iterator[_Field]:
        _, name, begin = self.take()
        if self.tokens[self.at][1] == ":":
            self.at += 1
        kind, word, value = self.tokens[self.at]
        if kind == "mark" and word == "[":
            yield from self.listed(name, begin, value)
        else:
            yield self.one(name, begin)

    def listed(self, name: str, begin: int, value: int) -> Iterator[_Field]:
        """Messages of a list are fields of their own; scalars are one, with the whole list as its value."""
        self.at += 1
        messages = []
        while self.tokens[self.at][1] != "]":
            if self.tokens[self.at][1] in _CLOSES:
                messages.append(self.one(name, self.tokens[self.at][2]))
            else:
                self.at += 1
        _, _, last = self.take()
        yield from messages or [_Field(name, begin, value, last + 1)]

    def one(self, name: str, begin: int) -> _Field:
        kind, word, value = self.take()
        found = _Field(name, begin, value, value + len(word))
        if kind == "mark" and word in _CLOSES:
            found.inner = list(self.fields(_CLOSES[word]))
            found.close = self.take()[2]
            found.end = found.close + 1
        else:
            while kind == "string" and self.tokens[self.at][0] == "string":  # neighbours are one
                _, more, place = self.take()
                found.end = place + len(more)
        return found

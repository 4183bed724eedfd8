"""Where each field of a text-format file stands: line and column by the path of the field.

A scanner, not a parser: it knows the grammar and no schema, accepts what the grammar accepts and stops at the first
thing that it does not. protobuf's own reader decides what is valid; this file tells where. Iterative and bounded: depth
has a limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernel.config.tokens import ScanError, Token, refused, tokens

__all__ = ["MAX_DEPTH", "Key", "Node", "Path", "ScanError", "Scanned", "path_text", "scan", "select"]

#: How deep messages may be nested. The deepest field of the schema lies 7 deep.
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Key:
    """A step of a path that goes into a map field: the entry with the key `value`. For `ModelConfig.error(at=…)`."""

    value: str


#: Field names, each followed by an index (0 where left out) or a Key: `("input", 1, "dims")`, `("parameters",
#: Key("a"))`.
Path = tuple["str | int | Key", ...]


@dataclass(slots=True)
class Node:
    """One occurrence of a field: where its name starts, where its value starts, its scalar text or its own fields."""

    line: int
    column: int
    value_line: int = 0
    value_column: int = 0
    text: str | None = None  # the raw scalar, quotes included; None for a message
    fields: dict[str, list[Node]] = field(default_factory=dict)
    listed: bool = False  # stands in `[ … ]`: its name is the list's
    opened: bool = False  # is a message; neither this nor a text: the scan stopped here


@dataclass(frozen=True, slots=True)
class Scanned:
    """The fields of a file up to its end, or up to `error`."""

    root: Node
    error: ScanError | None

    def locate(self, path: Path) -> tuple[int, int] | None:
        """Return line and column of the value at `path`, or of the nearest field around it; None if no part of it is
        there.
        """
        node = self.root
        at = 0
        while at < len(path):
            name = path[at]
            at += 1
            selector = path[at] if at < len(path) and not isinstance(path[at], str) else None
            at += selector is not None
            assert isinstance(name, str), path
            found = select(node.fields.get(name, []), selector)
            if found is None:
                break
            node = found
        if node is self.root:
            return None
        if node.text is not None or node.listed:
            return node.value_line, node.value_column
        return node.line, node.column


def path_text(path: Path) -> str:
    """Return the path as people write it: `input[0].dims[1]`, `parameters["placement"]`."""
    text = ""
    for at, step in enumerate(path):
        if step == "value" and at and isinstance(path[at - 1], Key):
            continue  # the entry of a map is its value
        if isinstance(step, str):
            text += f".{step}" if text else step
        else:
            text += f"[{step}]" if isinstance(step, int) else f'["{step.value}"]'
    return text


def select(nodes: list[Node], selector: object) -> Node | None:
    """Return the occurrence of a field that a step of a path means: an index, or the Key of a map's entry; None for none."""
    if isinstance(selector, Key):
        for node in nodes:
            key = node.fields.get("key")
            if key and key[-1].text is not None and key[-1].text.strip("\"'") == selector.value:
                return node
        return None
    index = selector if isinstance(selector, int) else 0
    return nodes[index] if 0 <= index < len(nodes) else None


_CLOSES = {"{": "}", "<": ">"}


def scan(text: str) -> Scanned:
    """Return where the fields of `text` stand. Never raises; linear in the length of the text."""
    scanner = _Scanner(text)
    error = scanner.run()
    return Scanned(scanner.root, error)


class _Scanner:
    """A stack of open messages and at most one open list each; one token looked at at a time."""

    def __init__(self, text: str) -> None:
        self.tokens = tokens(text)
        self.token: Token = ("end", "", 1, 1)
        self.root = Node(1, 1)
        # (message, what closes it, name of the list it stands in and where that list begins, or None)
        self.stack: list[tuple[Node, str, tuple[str, int, int] | None]] = []
        self.open_list: tuple[str, int, int] | None = None
        self.message = self.root

    def next(self) -> None:
        self.token = next(self.tokens, ("end", "", *self.token[2:]))

    def fail(self, wanted: str) -> ScanError:
        return refused(self.token, wanted)

    def run(self) -> ScanError | None:
        self.next()
        while True:
            kind, text, line, column = self.token
            if self.open_list is not None:
                error = self.element()
            elif kind == "word":
                error = self.named(text, line, column)
            elif kind == "end" and not self.stack:
                return None
            elif self.stack and text == self.stack[-1][1]:
                error = self.close()
            else:
                closing = f" or '{self.stack[-1][1]}'" if self.stack else ""
                error = self.fail(f"a field name{closing}")
            if error is not None:
                return error

    def named(self, name: str, line: int, column: int) -> ScanError | None:
        self.next()
        colon = self.token[1] == ":" and self.token[0] == "mark"
        if colon:
            self.next()
        kind, text, value_line, value_column = self.token
        if kind == "mark" and text == "[":
            self.next()
            if self.token[1] == "]" and self.token[0] == "mark":
                self.next()
                self.message.fields.setdefault(name, [])
                return self.separator()
            self.open_list = (name, line, column)
            return None
        node = Node(line, column, value_line, value_column)
        self.message.fields.setdefault(name, []).append(node)
        if kind == "mark" and text in _CLOSES:
            return self.open(node, None)
        if not colon:
            return self.fail(f"':' or '{{' after '{name}'")
        return self.scalar(node, f"a value for '{name}'") or self.separator()

    def element(self) -> ScanError | None:
        """One element of an open list, up to and with the comma or bracket behind it."""
        assert self.open_list is not None
        name = self.open_list[0]
        kind, text, line, column = self.token
        node = Node(*self.open_list[1:], line, column, listed=True)
        self.message.fields.setdefault(name, []).append(node)
        if kind == "mark" and text in _CLOSES:
            return self.open(node, self.open_list)
        return self.scalar(node, f"a value for '{name}'") or self.after_element()

    def after_element(self) -> ScanError | None:
        kind, text, _, _ = self.token
        if kind == "mark" and text == ",":
            self.next()
            return None
        if kind == "mark" and text == "]":
            self.open_list = None
            self.next()
            return self.separator()
        return self.fail("',' or ']'")

    def open(self, node: Node, in_list: tuple[str, int, int] | None) -> ScanError | None:
        if len(self.stack) >= MAX_DEPTH:
            _, _, line, column = self.token
            return ScanError(line, column, f"messages are nested deeper than {MAX_DEPTH}")
        self.stack.append((node, _CLOSES[self.token[1]], in_list))
        self.message = node
        node.opened = True
        self.open_list = None
        self.next()
        return None

    def close(self) -> ScanError | None:
        _, _, in_list = self.stack.pop()
        self.message = self.stack[-1][0] if self.stack else self.root
        self.open_list = in_list
        self.next()
        return self.after_element() if in_list is not None else self.separator()

    def scalar(self, node: Node, wanted: str) -> ScanError | None:
        kind, text, _, _ = self.token
        if kind not in ("word", "number", "string"):
            return self.fail(wanted)
        if kind == "string":
            text = self.string()
            if any("\udc80" <= char <= "\udcff" for char in text):
                return ScanError(node.value_line, node.value_column, f"a string that is not UTF-8, wanted {wanted}")
        else:
            self.next()
        node.text = text
        return None

    def string(self) -> str:
        """Adjacent strings are one."""
        parts = []
        while self.token[0] == "string":
            parts.append(self.token[1])
            self.next()
        return parts[0] if len(parts) == 1 else f'"{"".join(part[1:-1] for part in parts)}"'

    def separator(self) -> ScanError | None:
        if self.token[0] == "mark" and self.token[1] in ",;":
            self.next()
        return None

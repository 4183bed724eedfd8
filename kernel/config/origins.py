"""Where each value of a config comes from: a line of the file, the load request, the model itself, or nowhere but a default.

The law: looks at what was read and what became of it, changes neither. A value that the model's auto-complete has a part in is
told as the model's, although some of it may stand in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernel.config.json import as_json
from kernel.config.positions import Key as Entry
from kernel.config.positions import Node, path_text, select
from kernel.config.positions import Path as FieldPath
from kernel.config.source import ConfigSource

__all__ = ["FieldOrigin", "origins"]


@dataclass(frozen=True, slots=True)
class FieldOrigin:
    """One value of a config, and where it comes from.

    `field`: as people write it, such as `input[0].dims`. `value`: as in the config JSON; a list of numbers or texts is one value.
    `origin`: "file", "override" (a load request), "model" (its own auto-complete) or "default". `line`: in the file, from 1; None
    where it stands in no file.
    """

    field: str
    value: Any
    origin: str
    line: int | None = None


def origins(message: Any, source: ConfigSource) -> list[FieldOrigin]:
    """Return all values of a config, in the order of the schema. Messages and choices that are not set have none."""
    found = []
    for name, value in as_json(message).items():
        root = None if source.scanned is None or name in source.completed else source.scanned.root
        if name in source.completed:
            elsewhere = "model"
        else:
            elsewhere = "override" if name in source.given else "default"
        field = message.DESCRIPTOR.fields_by_name[name]
        for path, one, node in _values((name,), value, field, [] if root is None else root.fields.get(name, [])):
            if node is None:
                found.append(FieldOrigin(path_text(path), one, elsewhere))
            else:
                found.append(FieldOrigin(path_text(path), one, "file", node.value_line or node.line))
    return found


Found = Iterator[tuple[FieldPath, Any, Node | None]]


def _values(path: FieldPath, value: Any, field: Any, nodes: list[Node]) -> Found:
    """Yield each value at or below a field, with what stands for it in the file. `nodes`: those of the field."""
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        field = inner.fields_by_name["value"]
        for key, one in value.items():
            entry = select(nodes, Entry(key))
            yield from _values((*path, Entry(key)), one, field, [] if entry is None else entry.fields.get("value", []))
    elif inner is not None and isinstance(value, list):
        for index, one in enumerate(value):
            yield from _fields((*path, index), one, inner, select(nodes, index))
    elif inner is not None:
        yield from _fields(path, value, inner, nodes[-1] if nodes else None)
    elif isinstance(value, list):
        yield path, value, nodes[0] if nodes else None
    else:
        yield path, value, nodes[-1] if nodes else None


def _fields(path: FieldPath, value: dict[str, Any], message: Any, node: Node | None) -> Found:
    if not value:
        yield path, {}, node
    for name, one in value.items():
        nodes = [] if node is None else node.fields.get(name, [])
        yield from _values((*path, name), one, message.fields_by_name[name], nodes)

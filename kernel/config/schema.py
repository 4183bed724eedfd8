"""Compares what a file or a JSON override says with the schema: names, kinds of value, enums, one of several. Finds
everything at once.

protobuf's own readers stop at the first mistake and know no near names; they still have the last word. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from kernel.config.errors import did_you_mean, listed, shown
from kernel.config.lenient import Pairs
from kernel.config.model_config_pb2 import DESCRIPTOR
from kernel.config.positions import Key, Node, Path

__all__ = ["json_tree", "text_mistakes"]

#: What people write for a data type, without `TYPE_` -> what it is called here.
_ALIASES = {
    "FLOAT": "FP32", "FLOAT32": "FP32", "F32": "FP32", "SINGLE": "FP32",
    "DOUBLE": "FP64", "FLOAT64": "FP64", "F64": "FP64",
    "FLOAT16": "FP16", "HALF": "FP16", "F16": "FP16", "BFLOAT16": "BF16",
    "BYTES": "STRING", "STR": "STRING", "OBJECT": "STRING", "BOOLEAN": "BOOL",
    "INT": "INT32", "UINT": "UINT32", "LONG": "INT64", "SHORT": "INT16", "BYTE": "UINT8", "CHAR": "INT8",
    "I8": "INT8", "I16": "INT16", "I32": "INT32", "I64": "INT64",
    "U8": "UINT8", "U16": "UINT16", "U32": "UINT32", "U64": "UINT64",
}  # fmt: skip
_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
_INTEGER = re.compile(r"-?\s*(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_BOOLEANS = frozenset({"true", "false", "True", "False", "t", "f", "1", "0"})
#: What JSON may say for a boolean, in quotes and in any case.
_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
_FLOAT = re.compile(r"-?\s*(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fF]?|-?\s*(inf|infinity|nan)", re.IGNORECASE)

Mistake = tuple[Path, "Node | None", str]


def _kind(field: Any) -> str:
    if field.message_type is not None:
        return "message"
    if field.enum_type is not None:
        return "enum"
    names = {
        field.TYPE_INT32: "int32",
        field.TYPE_INT64: "int64",
        field.TYPE_UINT32: "uint32",
        field.TYPE_UINT64: "uint64",
        field.TYPE_BOOL: "bool",
        field.TYPE_STRING: "string",
    }
    return names.get(field.type, "float")


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_repeated(field: Any) -> bool:
    return (
        bool(getattr(field, "is_repeated", None))
        if hasattr(field, "is_repeated")
        else field.label == field.LABEL_REPEATED
    )


def _no_field(name: str, message: Any) -> str:
    text = f"no field '{shown(name)}' in {message.name}{did_you_mean(name, message.fields_by_name)}"
    if "did you mean" in text:
        return text
    messages = [found for found in _all_messages() if name in found.fields_by_name and found is not message]
    if messages:
        return f"{text}; it is a field of {' and '.join(sorted(message.name for message in messages[:3]))}"
    return f"{text}; it has {listed(message.fields_by_name, limit=30)}"


def _all_messages() -> Iterator[Any]:
    pending = list(DESCRIPTOR.message_types_by_name.values())
    while pending:
        message = pending.pop()
        if not message.GetOptions().map_entry:
            yield message
        pending += message.nested_types


def _no_value(text: str, field: Any) -> str:
    names = list(field.enum_type.values_by_name)
    bare = text.strip("\"'")
    if bare in names:
        return f"got {text} for '{field.name}', wanted {bare} without quotes"
    upper = bare.upper()
    name = _ALIASES.get(upper.removeprefix("TYPE_"), upper.removeprefix("TYPE_"))
    exact = [known for known in names if known == upper or known.endswith(f"_{name}") or known == f"TYPE_{name}"]
    hint = (
        f"; did you mean {exact[0]}?"
        if len(exact) == 1
        else (
            did_you_mean(bare, names, wrap="") or did_you_mean(names[0].partition("_")[0] + "_" + bare, names, wrap="")
        )
    )
    return f"no value '{shown(bare)}' in {field.enum_type.name} for '{field.name}'{hint or f'; it has {listed(names)}'}"


def _bad_integer(text: str, kind: str, name: str) -> str | None:
    found = _INTEGER.fullmatch(text)
    if found is None:
        return f"got {shown(text)} for '{name}', wanted an integer"
    low, high = _RANGES[kind]
    digits = found.group(1)
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    value = 2**70 if len(digits) > 30 else int(digits, base)
    value = -value if text.startswith("-") else value
    return None if low <= value <= high else f"got {shown(text)} for '{name}', wanted an integer from {low} to {high}"


def _bad_text(field: Any, text: str) -> str | None:
    kind = _kind(field)
    quoted = text[0] in "\"'"
    if kind == "enum":
        fits = text in field.enum_type.values_by_name or (
            text.isdigit() and len(text) < 10 and int(text) in field.enum_type.values_by_number
        )
        return None if fits else _no_value(text, field)
    if kind == "string":
        return None if quoted else f"got {shown(text)} for '{field.name}', wanted a string in quotes"
    if kind in _RANGES:
        return _bad_integer(text, kind, field.name)
    if kind == "bool":
        return None if text in _BOOLEANS else f"got {shown(text)} for '{field.name}', wanted true or false"
    return None if _FLOAT.fullmatch(text) else f"got {shown(text)} for '{field.name}', wanted a number"


def _clashes(message: Any, names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield (the later name, sentence) for members of a oneof that are given together."""
    for oneof in message.oneofs:
        given = [field.name for field in oneof.fields if field.name in names]
        for name in given[1:]:
            yield (
                name,
                f"'{given[0]}' and '{name}' are given together, wanted at most one of"
                f" {listed(f.name for f in oneof.fields)}",
            )


def text_mistakes(root: Node, message: Any) -> list[Mistake]:
    """Return what in the scanned file the schema of `message` doesn't allow: (path, node, sentence)."""
    mistakes: list[Mistake] = []
    _text_message(root, message, (), mistakes.append)
    return mistakes


def _text_message(node: Node, message: Any, path: Path, report: Callable[[Mistake], None]) -> None:
    fields = message.fields_by_name
    for name, nodes in node.fields.items():
        field = fields.get(name)
        if field is None:
            for found in nodes[:1]:
                report(((*path, name), found, _no_field(name, message)))
            continue
        repeated = _is_repeated(field)
        if not repeated and len(nodes) > 1:
            report(
                (
                    (*path, name),
                    nodes[1],
                    f"'{name}' is given a second time, wanted once; the first is at line {nodes[0].line}",
                )
            )
        for index, found in enumerate(nodes):
            here = (*path, name, index) if repeated else (*path, name)
            if found.text is None and not found.opened:
                continue  # the scan stopped here, and says why
            if field.message_type is not None:
                if found.text is None:
                    _text_message(found, field.message_type, here, report)
                else:
                    report(
                        (
                            here,
                            found,
                            f"got {shown(found.text)} for '{name}', wanted {{ … }} with fields of"
                            f" {field.message_type.name}",
                        )
                    )
                continue
            mistake = (
                _bad_text(field, found.text)
                if found.text is not None
                else f"got {{ … }} for '{name}', wanted one value"
            )
            if mistake:
                report((here, found, mistake))
    given = {name for name, nodes in node.fields.items() if nodes}
    for name, sentence in _clashes(message, given):
        report(((*path, name), node.fields[name][0], sentence))


def json_tree(value: object, message: Any) -> tuple[dict[str, Any], list[Mistake]]:
    """Return what a JSON document says in the form that protobuf's reader takes, and what the schema of `message` doesn't allow:
    (path, None, sentence).

    The reference takes more than that form: one value for a list of one, lists in lists, a name given twice (the later value
    counts, lists and maps go on), `"true"` for true, enums in small letters or as numbers in quotes, null for what is not said.
    """
    mistakes: list[Mistake] = []
    tree = _json_message(value, message, (), mistakes.append)
    return tree, mistakes


def _json_message(value: object, message: Any, path: Path, report: Callable[[Mistake], None]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    if not isinstance(value, Pairs):
        report((path, None, f"got {shown(value)}, wanted an object with fields of {message.name}"))
        return tree
    fields = {**message.fields_by_camelcase_name, **message.fields_by_name}
    objects: dict[str, Pairs] = {}  # of fields that are one message: what was given is merged
    for name, item in value:
        field = fields.get(name)
        here: Path = (*path, name)
        if field is None:
            report((here, None, _no_field(name, message)))
        elif item is None:
            continue
        elif field.containing_oneof is not None and field.name in tree:
            report((here, None, f"'{name}' is given twice in one object, wanted once"))
        elif _is_map(field):
            _json_map(item, field, here, tree.setdefault(field.name, {}), report)
        elif _is_repeated(field):
            items = tree.setdefault(field.name, [])
            for part in _flat(item):
                items.append(_json_value(part, field, (*here, len(items)), report))
        else:
            if isinstance(item, Pairs):
                item = objects[field.name] = Pairs([*objects.get(field.name, ()), *item])
            tree[field.name] = _json_value(item, field, here, report)
    for name, sentence in _clashes(message, set(tree)):
        report(((*path, next(given for given, _ in value if given in fields and fields[given].name == name)), None, sentence))
    return tree


def _json_map(
    value: object, field: Any, path: Path, tree: dict[str, Any], report: Callable[[Mistake], None]
) -> None:
    if not isinstance(value, Pairs):
        report((path, None, f"got {shown(value)} for '{field.name}', wanted an object"))
        return
    entry = field.message_type.fields_by_name["value"]
    seen: set[str] = set()
    for key, part in value:
        if key in seen:
            report((path, None, f"'{key}' is given twice in one object, wanted once"))
        seen.add(key)
        if part is None:
            part = Pairs() if _kind(entry) == "message" else ""
        tree[key] = _json_value(part, entry, (*path, Key(key)), report)


def _flat(value: object) -> Iterator[object]:
    """Yield the items of a list, also of lists in it; what is no list is the one item."""
    if not isinstance(value, list) or isinstance(value, Pairs):
        yield value
        return
    for part in value:
        if part is not None:
            yield from _flat(part)


def _json_value(value: object, field: Any, path: Path, report: Callable[[Mistake], None]) -> Any:
    """Return the value in the form that protobuf's reader takes."""
    kind = _kind(field)
    if kind == "message":
        return _json_message(value, field.message_type, path, report)
    mistake: str | None = None
    if kind == "enum" and not isinstance(value, (bool, list)):
        value, mistake = _enum_value(value, field)
    elif kind == "string":
        mistake = None if isinstance(value, str) else f"got {shown(value)} for '{field.name}', wanted a string"
    elif kind == "bool":
        if isinstance(value, str):
            value = _WORDS.get(value.lower(), value)
        mistake = None if isinstance(value, bool) else f"got {shown(value)} for '{field.name}', wanted true or false"
    elif isinstance(value, (list, bool)):
        mistake = f"got {shown(value)} for '{field.name}', wanted one value"
    elif kind in _RANGES:
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
        mistake = _bad_integer(str(int(value)) if whole and isinstance(value, float) else str(value), kind, field.name)
    if mistake:
        report((path, None, mistake))
    return value


def _enum_value(value: object, field: Any) -> tuple[object, str | None]:
    """Return a value's number, or why there is none."""
    names, numbers = field.enum_type.values_by_name, field.enum_type.values_by_number
    if isinstance(value, str):
        known = names.get(value)
        if known is None and value.isascii() and value.isdigit() and len(value) < 10:
            known = numbers.get(int(value))
        if known is None:
            known = names.get(value.upper().replace("-", "_"))
    else:
        known = numbers.get(int(value)) if isinstance(value, (int, float)) and value == int(value) else None
    return (value, _no_value(str(value), field)) if known is None else (known.number, None)

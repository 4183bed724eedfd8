"""The words for JSON that can't be read: the reference's, which come from RapidJSON, with its offsets.

All of them are 400 here (the reference says 500). Runs only after decoding failed or met a wrong type. Whatever is looked for
takes time in proportion to the text's length: the expressions are possessive, so no byte is tried twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import isinf
from typing import Any, NoReturn

from kernel import Code, ServingError

__all__ = [
    "ABSENT",
    "DEPTH",
    "NON_ARRAY",
    "NON_BOOL",
    "NON_INT",
    "NON_NUMBER",
    "NON_OBJECT",
    "NON_STRING",
    "NON_UINT",
    "first_wins",
    "malformed",
    "read_again",
]

NON_ARRAY = "attempt to access JSON non-array as array"
NON_BOOL = "attempt to access JSON non-boolean as boolean"
NON_INT = "attempt to access JSON non-signed-integer as signed-integer"
NON_NUMBER = "attempt to access JSON non-number as double"
NON_OBJECT = "attempt to get members for non-object"
NON_STRING = "attempt to access JSON non-string as string"
NON_UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
ABSENT = "attempt to access non-existing object member '{}'"

DEPTH = "JSON nesting depth exceeds maximum allowed limit (100)"

_LITERALS = ("null", "true", "false", "NaN", "Infinity", "-Infinity")
_BRACKET = re.compile(r"[\[\]{}]")
_NUMBER = re.compile(r"-?+[0-9]++(?:\.[0-9]++)?+(?:[eE]\+?+[0-9]{3,}+)?+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def malformed(field: str, words: str, where: str = "") -> ServingError:
    """Return the error for a member of a wrong type. `where` names the input or output, and what came."""
    return ServingError(Code.INVALID_ARG, f"Unable to parse '{field}': {words}{f' ({where})' if where else ''}")


def first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object as the reference sees it: of equal names the first counts."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        result.setdefault(name, value)
    return result


class _Broken(Exception):
    """What is wrong with a text, and at which of its bytes."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


def read_again(data: Any, moved: Callable[[int], int] | None = None) -> Any:
    """Read what the fast decoder refused. NaN and infinities, which the reference accepts, are fine; else ServingError.

    The offsets are counted in bytes, as the reference does; so the text is read as Latin-1 where it is only looked at. `moved`:
    finds an offset in `data` in the whole body, where it is a part of that.
    """
    try:
        return _read_again(data)
    except _Broken as error:
        offset = error.offset if moved is None else moved(error.offset)
        text = f"failed to parse the request JSON buffer: {error.reason} at {offset}"
    raise ServingError(Code.INVALID_ARG, text)


def _read_again(data: Any) -> Any:
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        _fail("The string is not valid UTF-8.", error.start)
    try:
        value = json.loads(text, object_pairs_hook=first_wins)
    except json.JSONDecodeError as error:
        reason, offset = error.msg, error.pos  # not the error itself: by its traceback it has this frame
    except RecursionError:
        raise ServingError(Code.INVALID_ARG, DEPTH) from None
    except ValueError as error:  # an integer of thousands of digits
        raise ServingError(Code.INVALID_ARG, f"failed to parse the request JSON buffer: {error}") from None
    else:
        text = _by_bytes(text, data)
        if (offset := _lone_surrogate(text)) >= 0:
            _fail("The surrogate pair in string is invalid.", offset)
        if (offset := _too_big(text)) >= 0:
            _fail("Number too big to be stored in double.", offset)
        return value
    if not text.isascii():
        text = _by_bytes(text, data)
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            reason, offset = error.msg, error.pos
    _explain(text, reason, offset)


def _by_bytes(text: str, data: Any) -> str:
    """Return a text of which each character is a byte of `data`, which is UTF-8 for `text`; without a copy where it is that."""
    return text if text.isascii() else str(data, "latin-1")


def _explain(text: str, problem: str, offset: int) -> NoReturn:
    if problem == "Expecting value":
        if not text.strip(" \t\r\n\0"):
            _fail("The document is empty.", len(text.rstrip("\0")))
        _fail("Invalid value.", offset + _matched(text, offset))
    if problem.startswith(("Expecting property name", "Illegal trailing comma")):
        _fail("Missing a name for object member.", offset)
    if problem.startswith("Expecting ':'"):
        _fail("Missing a colon after a name of object member.", offset)
    if problem.startswith("Expecting ','"):
        if text[offset : offset + 1] == ".":
            _fail("Miss fraction part in number.", offset + 1)
        if text[offset : offset + 1] in ("e", "E") and text[offset - 1 : offset].isdigit():
            _fail("Miss exponent in number.", offset + 1)
        if _inside_array(text, offset):
            _fail("Missing a comma or ']' after an array element.", offset)
        _fail("Missing a comma or '}' after an object member.", offset)
    if problem.startswith("Unterminated string"):
        _fail("Missing a closing quotation mark in string.", len(text))
    if "uXXXX" in problem:
        _fail("Incorrect hex digit after \\u escape in string.", offset - 1)
    if problem.startswith("Invalid"):
        _fail("Invalid escape character in string.", offset)
    if problem == "Extra data":
        _fail("The document root must not be followed by other values.", offset)
    _fail(f"{problem}.", offset)


def _fail(reason: str, offset: int) -> NoReturn:
    raise _Broken(reason, offset) from None


def _matched(text: str, offset: int) -> int:
    """Return how many characters of a literal stand at `offset`: the reference points behind them."""
    best = 0
    for literal in _LITERALS:
        count = 0
        while count < len(literal) and text[offset + count : offset + count + 1] == literal[count]:
            count += 1
        best = max(best, count)
    return best


def _inside_array(text: str, offset: int) -> bool:
    open = bytearray()  # what stands around the offset, outermost first
    for start, end in _outside_strings(text, offset):
        for found in _BRACKET.finditer(text, start, end):
            sign = found[0]
            if sign in "[{":
                open.append(ord(sign))
            elif open:
                open.pop()
    return bool(open) and open[-1] == ord("[")


def _too_big(text: str) -> int:
    """Return where a number stands that a double can't hold, or -1."""
    for first, last in _outside_strings(text, len(text)):
        for found in _NUMBER.finditer(text, first, last):
            start, end = found.span()
            # Shorter ones fit; longer ones without an exponent are integers, of which the double nearest to them is taken.
            if end - start > 4 and _has_exponent(text, start, end) and isinf(float(found[0])):
                return start
    return -1


def _outside_strings(text: str, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of `text[:end]` that are no strings, whose ends are searched for: quicker than an expression."""
    at = 0
    while (opens := text.find('"', at, end)) >= 0:
        yield at, opens
        at = opens + 1
        while True:
            closes = text.find('"', at, end)
            if closes < 0:
                return
            before = closes
            while before > at and text[before - 1] == "\\":
                before -= 1
            at = closes + 1
            if (closes - before) % 2 == 0:
                break
    yield at, end


def _has_exponent(text: str, start: int, end: int) -> bool:
    return text.find("e", start, end) >= 0 or text.find("E", start, end) >= 0


def _lone_surrogate(text: str) -> int:
    """Return where an escaped surrogate stands that is not half of a pair, or -1."""
    if "\\u" not in text:
        return -1
    high = -1
    for found in _ESCAPE.finditer(text):
        code = int(found[1], 16) if found[1] else 0
        if high >= 0:
            if not (0xDC00 <= code < 0xE000 and found.start() == high + 6):
                return high
            high = -1
        elif 0xD800 <= code < 0xDC00:
            high = found.start()
        elif 0xDC00 <= code < 0xE000:
            return found.start()
    return high

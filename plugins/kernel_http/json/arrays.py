"""The `data` member: JSON values to arrays and arrays to JSON, by datatype (docs/contract/http_protocol.md, 3.3).

Nothing is allocated before the counts agree. Integers are exact; what a datatype can't hold is refused, never wrapped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kernel import DATATYPES, Code, ServingError, empty_array
from kernel_http.json.errors import DEPTH, NON_ARRAY, NON_BOOL, NON_INT, NON_NUMBER, NON_STRING, NON_UINT, malformed
from kernel_http.json.large import LongArray

__all__ = ["array_of", "json_of", "json_pieces"]

#: How deeply the lists of `data` may be nested.
MAX_DEPTH = 100

#: How many values of an output are made into text at a time, and how many bytes of strings.
PIECE = 64 * 1024
TEXT_PIECE = 256 * 1024

MISMATCH = "Shape does not match true shape of 'data' field"

_NUMBERS = {int, float}
_encode = msgspec.json.Encoder().encode


def array_of(name: str, datatype: str, shape: tuple[int, ...], count: int, data: Any) -> NDArray[Any] | list[bytes]:
    """Return the array of an input given as JSON; `count` is the product of `shape`, and 0 where there is no dimension.

    For BYTES, whose count the reference checks later, the list of elements. Raises ServingError(INVALID_ARG).
    """
    if datatype in ("FP16", "BF16"):
        raise ServingError(
            Code.INVALID_ARG,
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}",
        )
    if count == 0:  # `data` is ignored; a shape without dimensions is refused by the model's check
        return [] if datatype == "BYTES" else np.zeros(shape, DATATYPES[datatype])
    if type(data) is LongArray:
        if not data.nested:
            return _long(name, datatype, shape, count, data)
        data = [item for items in data.pieces() for item in items]
    if type(data) is not list:
        raise malformed("data", NON_ARRAY, f"input '{name}'")
    items: list[Any] = []
    _flatten(name, data, items, 1)
    if datatype == "BYTES":
        return _strings(name, items)
    _check_items(name, datatype, items, 0)
    if len(items) != count:
        raise _wrong_count(name, shape, count, len(items))
    return _converted(name, datatype, items).reshape(shape)


def _long(name: str, datatype: str, shape: tuple[int, ...], count: int, data: LongArray) -> NDArray[Any] | list[bytes]:
    """As `array_of`, for a long array that is read piece by piece: no more of it than a piece is objects at a time."""
    at = 0
    if datatype == "BYTES":
        texts: list[bytes] = []
        for items in data.pieces():
            texts += _strings(name, items, len(texts))
        return texts
    if data.strings:  # refused for the first of them, which a piece has
        for items in data.pieces():
            _check_items(name, datatype, items, at)
            at += len(items)
    got = data.count()
    if got != count:
        raise _wrong_count(name, shape, count, got)
    array = empty_array(count, DATATYPES[datatype])
    for items in data.pieces():
        _check_items(name, datatype, items, at)
        array[at : at + len(items)] = _converted(name, datatype, items)
        at += len(items)
    return array.reshape(shape)


def _check_items(name: str, datatype: str, items: list[Any], first: int) -> None:
    """Refuse what the datatype can't hold. `first`: the index of `items[0]`."""
    kinds = set(map(type, items))
    if datatype == "BOOL":
        _only(name, items, kinds, {bool}, NON_BOOL, first)
    elif datatype in ("FP32", "FP64"):
        _only(name, items, kinds, _NUMBERS, NON_NUMBER, first)
    else:
        _integers(name, datatype, items, kinds, first)


def _wrong_count(name: str, shape: tuple[int, ...], count: int, got: int) -> ServingError:
    words = f"input '{name}' has shape [{','.join(map(str, shape))}]: expected {count} elements, got {got}"
    return malformed("data", MISMATCH, words)


def _converted(name: str, datatype: str, items: list[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        try:
            return np.array(items, DATATYPES[datatype])
        except OverflowError:
            raise malformed("data", NON_NUMBER, f"input '{name}' has a number that {datatype} can't hold") from None


def _flatten(name: str, items: list[Any], into: list[Any], depth: int) -> tuple[int, ...]:
    """Append the elements of nested lists in order and return their shape. Refuses what is ragged.

    Each list is visited at most twice, however they are nested.
    """
    if depth >= MAX_DEPTH:
        raise ServingError(Code.INVALID_ARG, DEPTH)
    kinds = set(map(type, items))
    if list not in kinds:
        into.extend(items)
        return (len(items),)
    if len(kinds) > 1:
        raise malformed("data", MISMATCH, f"input '{name}' mixes lists and values at nesting level {depth}")
    shapes = [_flatten(name, item, into, depth + 1) for item in items]
    first = shapes[0]
    for index, shape in enumerate(shapes):
        if shape != first:
            raise malformed(
                "data",
                MISMATCH,
                f"input '{name}' is ragged at nesting level {depth}: expected {_count(first)} as in the first list, "
                f"got {_count(shape)} in list {index}",
            )
    return (len(items), *first)


def _count(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} elements" if len(shape) == 1 else f"shape [{','.join(map(str, shape))}]"


def _only(name: str, items: list[Any], kinds: set[type], wanted: set[type], words: str, first: int) -> None:
    if not kinds <= wanted:
        index = next(index for index, item in enumerate(items) if type(item) not in wanted)
        raise malformed("data", words, f"input '{name}', element {first + index} is {_shown(items[index])}")


def _integers(name: str, datatype: str, items: list[Any], kinds: set[type], first: int) -> None:
    bounds = np.iinfo(DATATYPES[datatype])
    unsigned = datatype.startswith("UINT")
    _only(name, items, kinds, {int}, NON_UINT if unsigned else NON_INT, first)
    if not items or (int(bounds.min) <= min(items) and max(items) <= int(bounds.max)):
        return
    index, item = next((first + index, item) for index, item in enumerate(items) if not bounds.min <= item <= bounds.max)
    holds = f"{datatype} holds {bounds.min} to {bounds.max}"
    if unsigned and item < 0:
        raise malformed("data", NON_UINT, f"input '{name}', element {index} is {_shown(item)}; {holds}")
    words = f"value out of range for {datatype}"
    raise malformed("data", words, f"input '{name}', element {index} is {_shown(item)}; {holds}")


def _strings(name: str, items: list[Any], first: int = 0) -> list[bytes]:
    """Return the strings' bytes, which long ones are already (LongArray)."""
    for index, item in enumerate(items):
        if type(item) is bytes:
            return items
        if type(item) is not str:
            raise ServingError(
                Code.INVALID_ARG,
                f"Unable to parse JSON bytes array: {NON_STRING} (input '{name}', element {first + index} is {_shown(item)})",
            )
    return [item.encode() for item in items]


def _shown(item: Any) -> str:
    """Return a short form of a JSON value for a message."""
    if isinstance(item, (dict, list)):
        return "an object" if isinstance(item, dict) else "an array"
    if isinstance(item, int) and not -(2**128) < item < 2**128:
        return f"an integer of {item.bit_length()} bits"
    if isinstance(item, bytes):
        item = item[:40].decode(errors="ignore")
    text = _encode(item).decode() if isinstance(item, (str, bool)) or item is None else repr(item)
    return text if len(text) <= 40 else text[:37] + "..."


def json_pieces(name: str, datatype: str, array: NDArray[Any]) -> list[bytes]:
    """Return the flat JSON array of an output, in pieces: no more of it than one is objects, or copied, at a time.

    Raises ServingError(INVALID_ARG) where JSON can't carry a value.
    """
    if datatype == "BYTES":
        return _string_pieces(name, array)
    if array.size <= PIECE:
        return [json_of(name, datatype, array)]
    flat = array.reshape(-1)
    pieces = [b",%b" % json_of(name, datatype, flat[at : at + PIECE])[1:-1] for at in range(0, len(flat), PIECE)]
    pieces[0] = b"[%b" % pieces[0][1:]
    return [*pieces, b"]"]


def _string_pieces(name: str, array: NDArray[Any]) -> list[bytes]:
    """As `json_pieces`, of strings: no more than TEXT_PIECE bytes at a time become text."""
    pieces = [b"["]
    done = 0
    for some in _groups(array.reshape(-1)):
        if len(some[0]) > TEXT_PIECE:
            pieces += (b',"', *_pieces_of_string(name, some[0], done), b'"')
        else:
            pieces.append(b",%b" % _encode(_texts(name, some, done))[1:-1])
        done += len(some)
    if done:
        pieces[1] = pieces[1][1:]
    return [*pieces, b"]"]


def _groups(array: NDArray[Any]) -> Iterator[list[bytes]]:
    """Yield strings in order, together no more than TEXT_PIECE bytes, and no more than PIECE; a longer one alone."""
    some: list[bytes] = []
    size = 0
    for first in range(0, len(array), PIECE):
        for item in array[first : first + PIECE].tolist():
            size += len(item)
            if some and (size > TEXT_PIECE or len(some) == PIECE):
                yield some
                some, size = [], len(item)
            some.append(item)
    if some:
        yield some


def _pieces_of_string(name: str, item: bytes, index: int) -> list[bytes]:
    """Return a long string as JSON without its quotes. No character is cut."""
    pieces = []
    at = 0
    while at < len(item):
        end = min(at + TEXT_PIECE, len(item))
        for _ in range(3):
            if end < len(item) and item[end] & 0xC0 == 0x80:  # in the middle of a character
                end -= 1
        pieces.append(_encode(_texts(name, [item[at:end]], index)[0])[1:-1])
        at = end
    return pieces


def json_of(name: str, datatype: str, array: NDArray[Any]) -> bytes:
    """As `json_pieces`, in one."""
    if array.size > PIECE:
        return b"".join(json_pieces(name, datatype, array))
    items = array.ravel().tolist()
    if datatype == "BYTES":
        return _encode(_texts(name, items))
    if datatype in ("FP16", "BF16"):
        raise ServingError(
            Code.INVALID_ARG,
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output",
        )
    data = _encode(items)
    if datatype in ("FP32", "FP64") and b"null" in data:
        # The encoder writes null for what JSON has no number for. The reference writes the words that JavaScript and Python
        # read, and an answer with one NaN in it is an answer.
        words = iter([_NOT_FINITE[repr(item)] for item in items if not math.isfinite(item)])
        data = re.sub(b"null", lambda _: next(words), data)
    return data


_NOT_FINITE = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


def _texts(name: str, items: list[bytes], first: int = 0) -> list[str]:
    """Return strings as text. `first`: the index of `items[0]`."""
    try:
        return [item.decode() for item in items]
    except UnicodeDecodeError:
        index = next(index for index, item in enumerate(items, first) if not _is_text(item))
        raise ServingError(
            Code.INVALID_ARG,
            f"output '{name}' has an element that is not UTF-8, which JSON can't represent (element {index}). "
            "Please use the binary data format for output",
        ) from None


def _is_text(item: bytes) -> bool:
    try:
        item.decode()
    except UnicodeDecodeError:
        return False
    return True

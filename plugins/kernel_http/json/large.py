"""Large JSON, read so that nothing takes long at a time: for a thread beside the loop, which has the interpreter in between.

One call of a decoder holds the interpreter until it returns, on whatever thread. So long arrays, which is what large requests are
made of, are cut out before and read piece by piece when their datatype is known (`LongArray`): numbers, flat or in regular lists,
and values in lists of any form. A long string is read in parts. The number of values of which objects remain has a limit, and is
counted before any is made. The text itself is copied nowhere. What is left for one call has a limit, too (ONE_CALL, CALL_VALUES):
a child process that reads it would have to hand the objects over, which costs as much; who sends that much in one value can send
it as binary data.
"""

from __future__ import annotations

import gc
import json
import re
import secrets
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from kernel import Code, ServingError, clipped
from kernel_http.json.errors import DEPTH, read_again
from kernel_http.json.text import FlatArray, Text, array_at

__all__ = ["IN_DATA", "LARGE", "ONE_CALL", "SLOW_CALL", "Cut", "LongArray", "LongString", "decode_large", "weight_above"]

#: JSON of more bytes than this is not read on the loop.
LARGE = 64 * 1024

#: The most bytes that one call of the decoder gets: it holds the interpreter for some milliseconds then, or a few more.
ONE_CALL = 16 * 1024 * 1024

#: And the most values (a list counts as CONTAINER, a string as two).
CALL_VALUES = 256 * 1024

#: The most that one gets of the slow decoder, which takes ten times as long, and knows NaN, the reference's words for what is
#: wrong, and which of equal names was the first.
SLOW_CALL = 4 * 1024 * 1024

#: A list or an object takes as long as so many numbers, a string as two.
CONTAINER = 4

#: Stands for an array that was cut out. Nobody outside knows it, so no request can name another's.
_MARK = secrets.token_hex(8)

#: A string of more bytes in `data` is read in pieces.
LONG_STRING = 512 * 1024

#: One of more is cut out, where strings are.
CUT_STRING = 4096

_BACKSLASH, _QUOTE = b'\\"'
_OPENS = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+\[")
_BRACKET = re.compile(rb"[\[\]]")
_PLACE = re.compile(r" \(byte ([0-9]++)\)$")

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class Cut:
    """Which long arrays are cut out of a text: those that have one of these `names`.

    `put_back(value, restore)` gives them back to what was read of the rest: `restore(member)` returns the array that stood there,
    or else the member itself. `only_numbers`: none in which there are lists or strings.
    `strings`: long strings are cut out instead, and become LongStrings. `outside`: what the rest is called.
    """

    names: Collection[str]
    put_back: Callable[[Any, Callable[[Any], Any]], None]
    only_numbers: bool = False
    strings: bool = False
    outside: str = "what stands outside of long arrays of numbers"


def _in_inputs(value: Any, restore: Callable[[Any], Any]) -> None:
    """Give the inputs of a request their arrays."""
    inputs = value.get("inputs") if isinstance(value, dict) else None
    for item in inputs if type(inputs) is list else ():
        if isinstance(item, dict) and "data" in item:
            item["data"] = restore(item["data"])


IN_DATA = Cut(("data",), _in_inputs, outside="what stands outside of 'data'")


class LongArray:
    """The values of a long array that was cut out of a text. `strings`: there are some among them. `nested`: they are lists, of
    any form; regular ones of numbers are looked through.
    """

    __slots__ = ("_flat", "_text", "nested", "strings")

    def __init__(self, text: Text, flat: FlatArray) -> None:
        self._text = text
        self._flat = flat
        self.strings = flat.strings
        self.nested = flat.cuts is not None

    def count(self) -> int:
        """Return how many values there are, by the commas between them. Not for strings, which may have some."""
        return self._flat.count()

    def pieces(self) -> Iterator[list[Any]]:
        """Yield the values in order, some thousands at a time; a long string, alone, as its bytes in UTF-8. Raises ServingError
        where they are no JSON.
        """
        for at, stop in self._flat.parts():
            _check_call(self._text.view[at:stop], "one value of 'data'")
            found = self._flat.long_string(at, stop) if self.strings and stop - at > LONG_STRING else None
            if found is None:
                yield self._values(at, stop)
                continue
            behind, opens = found
            if behind > at:
                yield self._values(at, behind)
            yield [self._string(opens + 1)]

    def _values(self, at: int, stop: int) -> list[Any]:
        """Return the values of a part."""
        whole = b"[%b]" % self._flat.part(at, stop)
        try:
            items: list[Any] = _decode(whole)
        except (ValueError, RecursionError) as error:
            items = _read_again(whole, error, self._offset(at))
        if not items:  # nothing stands between two commas
            read_again(b"[,]", self._offset(at))
        return items

    def _string(self, at: int) -> bytes:
        """Return the string whose content begins at `at`, in UTF-8."""
        return b"".join(list(_string_pieces(self._text, at)))

    def _offset(self, at: int) -> Callable[[int], int]:
        """Return what finds an offset in a piece, in front of which a bracket was put, in the text. `at`: where it begins."""

        def offset(found: int) -> int:
            found += at - 1
            if self._flat.lists:  # the piece has the values without the brackets: those up to there are added
                for bracket in _BRACKET.finditer(self._text.view, at):
                    if bracket.start() + (bracket[0] == b"]") > found:
                        break
                    found += 1
            return found

        return offset


class LongString:
    """A long string that was cut out of a text. `start`, `end`: its content there."""

    __slots__ = ("_text", "end", "start")

    def __init__(self, text: Text, start: int, end: int) -> None:
        self._text = text
        self.start = start
        self.end = end

    def pieces(self) -> Iterator[bytes]:
        """Yield it in UTF-8, piece by piece. Raises ServingError where it is no JSON."""
        return _string_pieces(self._text, self.start)


def _string_pieces(text: Text, at: int) -> Iterator[bytes]:
    """Yield the string whose content begins at `at`, in UTF-8."""
    for first, last in text.pieces_of_string(at):
        broken = first == last  # within six bytes from there
        whole = b'"%b"' % text.part(first, text.behind_character(first + 6) if broken else last)
        try:
            yield _decode(whole).encode()
        except ValueError as error:
            if not broken:  # what follows may be a part of what is wrong
                _, last = next(text.pieces_of_string(last), (last, last))
                whole = b'"%b"' % text.part(first, last)
            _read_again(whole, error, lambda found, first=first: first + found - 1)  # type: ignore[misc]


def _long_strings(text: Text) -> Iterator[LongString]:
    """Yield the strings that are to be cut out, in their order."""
    opens = -1
    for first, last, string in text.outside_strings(0, len(text)):
        if opens >= 0 and first - opens > CUT_STRING and text.view[first - 1] == _QUOTE:
            yield LongString(text, opens + 1, first - 1)
        opens = last if string else -1


def decode_large(
    data: Any,
    limit: int,
    doubled: Callable[[Any, Any], bool],
    pairs: Callable[[list[tuple[str, Any]]], Any],
    *,
    cut: Cut | None = None,
) -> Any:
    """Return what `data`, bytes in whatever buffer, says. `limit`: of its values. `cut`: which long arrays become LongArrays, of
    which only strings count. No call of the decoder takes long.

    `doubled`: whether a value read from that text, which has a method `count` as bytes do, may have lost members to others of
    their names; `pairs` makes its objects then. Raises ServingError(INVALID_ARG).
    """
    text = Text(data)
    arrays = _arrays(text, cut) if cut is not None else []
    strings = list(_long_strings(text)) if cut is not None and cut.strings else []
    if weight_above(text, limit, [array for array in arrays if not array.strings and array.cuts is None]):
        raise ServingError(
            Code.INVALID_ARG,
            f"the request's JSON has more values than the {limit} that --max-request-values allows (a list counts as "
            f"{CONTAINER}). Please send tensors as binary data, or their 'data' as an array of numbers, flat or in lists of "
            "equal lengths",
        )
    removed: Sequence[FlatArray | LongString] = arrays or strings
    short, moved = _shortened(text, removed)
    _check_call(short, "all" if cut is None else cut.outside, limit if cut is None else CALL_VALUES)
    with _without_collector():
        try:
            value = _decode(short)
        except (ValueError, RecursionError) as error:
            value = _read_again(short, error, moved)
        if doubled(value, Text(short)):
            if len(short) > SLOW_CALL:
                raise ServingError(
                    Code.INVALID_ARG,
                    f"the request's JSON may have members of equal names; that is looked into where no more than {SLOW_CALL} "
                    f"bytes of it stand outside of long arrays, and these are {len(short)}",
                )
            value = json.loads(str(short, "utf-8"), object_pairs_hook=pairs)
    if cut is not None and (arrays or strings):
        long: list[Any] = [LongArray(text, array) for array in arrays] or strings
        cut.put_back(value, lambda member: long[member[_MARK]] if isinstance(member, dict) and _MARK in member else member)
    return value


def _check_call(data: Any, what: str, values: int = CALL_VALUES) -> None:
    """Refuse what would take one call of the decoder too long. Raises ServingError(INVALID_ARG)."""
    size = len(data)
    if size <= LONG_STRING // 2:
        return
    if size > ONE_CALL:
        words = f"{size} bytes in {what}, more than the {ONE_CALL} that are taken there"
    elif weight_above(data, values):
        words = f"more values in {what} than the {values} that are taken there (a list counts as {CONTAINER})"
    else:
        return
    raise ServingError(Code.INVALID_ARG, f"the request's JSON has {words}. Please send tensors as binary data")


def _read_again(data: Any, error: Exception, moved: Callable[[int], int] | None) -> Any:
    """As `read_again`; in a text that is too long for that, say what the decoder said, with its place."""
    if len(data) <= SLOW_CALL:
        return read_again(data, moved)
    if isinstance(error, RecursionError):
        raise ServingError(Code.INVALID_ARG, DEPTH) from None
    reason = clipped(str(error))
    place = _PLACE.search(reason)
    if place is not None:
        offset = int(place[1])
        reason = f"{reason[: place.start()]} at {offset if moved is None else moved(offset)}"
    raise ServingError(
        Code.INVALID_ARG,
        f"failed to parse the request JSON buffer: {reason} (NaN and infinities are taken where no more than {SLOW_CALL} bytes "
        "of it stand outside of long arrays)",
    )


_collector_lock = threading.Lock()
_collector_users: list[bool] = []  # for each who reads: whether there was a collector when he began


@contextmanager
def _without_collector() -> Iterator[None]:
    """Have no garbage looked for meanwhile: what is being made is none, and looking takes longer than making it.

    Any number of threads; the last to leave starts the collector again, if the first has found it running.
    """
    with _collector_lock:
        _collector_users.append(gc.isenabled() if not _collector_users else _collector_users[0])
        gc.disable()
    try:
        yield
    finally:
        with _collector_lock:
            was_on = _collector_users.pop()
            if was_on and not _collector_users:
                gc.enable()


def _arrays(text: Text, cut: Cut) -> list[FlatArray]:
    """Return the long arrays that are to be cut out, in their order. None is within another: in these, nothing has a name."""
    found = [array for name in cut.names for array in _called(text, b'"%b"' % name.encode())]
    return sorted((array for array in found if not (cut.only_numbers and _has_more(array))), key=attrgetter("start"))


def _has_more(array: FlatArray) -> bool:
    """Whether there are lists or strings in an array."""
    return array.lists or array.strings or array.cuts is not None


def _called(text: Text, key: bytes) -> Iterator[FlatArray]:
    """Yield the long arrays of a name, in their order."""
    at = 0
    while (at := text.find(key, at)) >= 0:
        behind = at + len(key)
        opens = _OPENS.match(text.view, behind, behind + LARGE)
        found = None
        if opens is not None and not (at and text.view[at - 1] == _BACKSLASH):  # else it is the end of another name
            behind = opens.end()
            found = array_at(text, behind, LARGE)
        if found is not None:
            yield found
            behind = found.end + 1
        at = behind


def _shortened(text: Text, arrays: Sequence[FlatArray | LongString]) -> tuple[Any, Callable[[int], int] | None]:
    """Return the JSON without its long arrays, and what finds an offset in the short one in the long one."""
    if not arrays:
        return text.view, None
    parts: list[bytes] = []
    removed: list[tuple[int, int]] = []  # where in the short one something lacks, how many bytes
    done = size = 0
    for index, array in enumerate(arrays):
        mark = b'{"%b":%d}' % (_MARK.encode(), index)
        parts += (text.part(done, array.start - 1), mark)
        size += array.start - 1 - done + len(mark)
        done = array.end + 1
        removed.append((size, done - size))
    parts.append(text.part(done, len(text)))
    offsets = [offset for offset, _ in removed]

    def moved(offset: int) -> int:
        index = bisect_right(offsets, offset)
        return offset + removed[index - 1][1] if index else offset

    return b"".join(parts), moved


def weight_above(data: Any, limit: int, without: list[FlatArray] | None = None) -> bool:
    """Whether there are more values in a JSON text than `limit`; what looks like values within strings doesn't count, nor do the
    arrays that are cut out.
    """
    text = data if isinstance(data, Text) else Text(data)
    parts = []
    at = 0
    for array in without or ():
        parts.append((at, array.start))
        at = array.end
    parts.append((at, len(text)))
    return _rough_weight(text, parts, limit) > limit and _weight(text, parts, limit) > limit


def _rough_weight(text: Text, parts: list[tuple[int, int]], limit: int) -> int:
    """Return the weight of parts, that of no more than `limit` or a little more; strings are values like any others."""
    weight = 0
    for start, end in parts:
        for _, window in text.windows(start, end):
            weight += window.count(b",") + CONTAINER * (window.count(b"[") + window.count(b"{"))
            if weight > limit:
                return weight
    return weight


def _weight(text: Text, parts: list[tuple[int, int]], limit: int) -> int:
    """As above, without what is in strings, and two for each string."""
    weight = 0
    for start, end in parts:
        for first, last, string in text.outside_strings(start, end):
            weight += 2 * string
            if first < last:
                weight += _rough_weight(text, [(first, last)], limit - weight)
            if weight > limit:
                return weight
    return weight

"""Large JSON, read so that nothing takes long at a time: for a thread beside the loop, which has the interpreter in between.

One call of a decoder holds the interpreter until it returns, on whatever thread. So long flat arrays of numbers, which is what
large requests are made of, are cut out before and read piece by piece when their datatype is known (`FlatNumbers`); and of what
is left, the number of values has a limit, counted before any object is made of them.
"""

from __future__ import annotations

import gc
import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from kernel import Code, ServingError
from kernel_http.json.errors import read_again

__all__ = ["LARGE", "FlatNumbers", "decode_large", "weight_above"]

#: JSON of more bytes than this is not read on the loop.
LARGE = 64 * 1024

#: How much is looked at, or decoded, at a time; bytes.
STEP = 1024 * 1024
PIECE = 128 * 1024

#: A list or an object takes as long as so many numbers, a string as two.
CONTAINER = 4

#: Stands in the place of an array that was cut out. Nobody outside knows it, so no request can name another's.
_MARK = secrets.token_hex(8)

_KEY = b'"data"'
_BLANK = re.compile(rb"[ \t\r\n]*+")
_BACKSLASH = ord("\\")
_OPENS = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+\[")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)

_decode = msgspec.json.Decoder().decode


class FlatNumbers:
    """The values of a long array that has no lists, objects or strings in it: of `body[start:end]`."""

    __slots__ = ("_body", "_end", "_start")

    def __init__(self, body: bytes, start: int, end: int) -> None:
        self._body = body
        self._start = start
        self._end = end

    def count(self) -> int:
        """Return how many values there are, by the commas between them."""
        body, end = self._body, self._end
        return 1 + sum(body.count(b",", at, min(at + STEP, end)) for at in range(self._start, end, STEP))

    def pieces(self) -> Iterator[list[Any]]:
        """Yield the values in order, some thousands at a time. Raises ServingError where they are no JSON."""
        body, at, end = self._body, self._start, self._end
        while at <= end:
            stop = body.find(b",", at + PIECE, end) if at + PIECE < end else end
            stop = end if stop < 0 else stop
            piece = body[at:stop]
            try:
                items = _decode(b"[%b]" % piece)
            except ValueError:
                items = read_again(b"[%b]" % piece, _shift(at))
            if not items:  # nothing stands between two commas
                read_again(b"[,]", _shift(at))
            yield items
            at = stop + 1


def _shift(at: int) -> Callable[[int], int]:
    """Return what finds a place of a piece, in front of which a bracket was put, in the body. `at`: where it begins there."""
    return lambda found: at + found - 1


def decode_large(
    data: bytes,
    limit: int,
    doubled: Callable[[Any, bytes], bool],
    pairs: Callable[[list[tuple[str, Any]]], Any],
    *,
    flat: bool = False,
) -> Any:
    """Return what `data` says. `limit`: of its values. `flat`: long flat arrays that are the `data` of `inputs` don't count, and
    are FlatNumbers.

    `doubled`: whether a value read from that text may have lost members to others of their names; `pairs` makes its objects then.
    Raises ServingError(INVALID_ARG).
    """
    short, flats, moved = _shortened(data) if flat else (data, [], None)
    if weight_above(short, limit):
        raise ServingError(
            Code.INVALID_ARG,
            f"the request's JSON has more values than the {limit} that --max-request-values allows (a list counts as "
            f"{CONTAINER}). Please send tensors as binary data, or their 'data' as one flat array of numbers",
        )
    collects = gc.isenabled()
    gc.disable()  # what is being made is no garbage, and looking for some in it takes longer than making it
    try:
        try:
            value = _decode(short)
        except (ValueError, RecursionError):
            value = read_again(short, moved)
        if doubled(value, short):
            value = json.loads(short, object_pairs_hook=pairs)
    finally:
        if collects:
            gc.enable()
    if flats:
        _put_back(value, flats)
    return value


def _shortened(data: bytes) -> tuple[bytes, list[FlatNumbers], Any]:
    """Return the JSON without its long flat arrays, these, and what finds a place of the short one in the long one."""
    parts: list[bytes] = []
    flats: list[FlatNumbers] = []
    removed: list[tuple[int, int]] = []  # where in the short one something lacks, how many bytes
    at = done = size = 0
    while (at := data.find(_KEY, at)) >= 0:
        opens = _OPENS.match(data, at + len(_KEY))
        if opens is None or (at and data[at - 1] == _BACKSLASH):  # the end of another name
            at += len(_KEY)
            continue
        start = opens.end()
        end = data.find(b"]", start)
        if end - start > LARGE and not any(data.find(sign, start, end) >= 0 for sign in (b"[", b'"', b"{")) and (
            _BLANK.match(data, start, end).end() < end  # type: ignore[union-attr]  # it may be nothing
        ):
            mark = b'{"%b":%d}' % (_MARK.encode(), len(flats))
            parts += (data[done : start - 1], mark)
            size += start - 1 - done + len(mark)
            flats.append(FlatNumbers(data, start, end))
            done = end + 1
            removed.append((size, done - size))
        at = max(start, done)
    if not flats:
        return data, flats, None
    parts.append(data[done:])
    places = [place for place, _ in removed]

    def moved(place: int) -> int:
        index = bisect_right(places, place)
        return place + removed[index - 1][1] if index else place

    return b"".join(parts), flats, moved


def _put_back(value: Any, flats: list[FlatNumbers]) -> None:
    """Give the inputs their arrays."""
    inputs = value.get("inputs") if isinstance(value, dict) else None
    for item in inputs if type(inputs) is list else ():
        data = item.get("data") if isinstance(item, dict) else None
        if isinstance(data, dict) and _MARK in data:
            item["data"] = flats[data[_MARK]]


def weight_above(data: bytes, limit: int) -> bool:
    """Whether there are more values in a JSON text than `limit`; what looks like values within strings doesn't count."""
    weight = 0
    for at in range(0, len(data), STEP):
        weight += _weight(data, at, at + STEP)
        if weight > limit:
            return _weight_without_strings(data, limit) > limit
    return False


def _weight(data: bytes, at: int, end: int) -> int:
    return data.count(b",", at, end) + CONTAINER * (data.count(b"[", at, end) + data.count(b"{", at, end))


def _weight_without_strings(data: bytes, limit: int) -> int:
    """As `_weight`, and two for each string; no further than up to `limit`."""
    weight = at = 0
    for found in _STRING.finditer(data):
        weight += 2 + _weight_to(data, at, found.start(), limit - weight)
        if weight > limit:
            return weight
        at = found.end()
    return weight + _weight_to(data, at, len(data), limit - weight)


def _weight_to(data: bytes, at: int, end: int, limit: int) -> int:
    weight = 0
    for start in range(at, end, STEP):
        weight += _weight(data, start, min(start + STEP, end))
        if weight > limit:
            break
    return weight



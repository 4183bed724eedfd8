"""A large JSON text, looked at and cut in windows: no call holds the interpreter for long, and no copy of it all is made.

On a thread beside the loop a single call over tens of megabytes (a search, a copy, an expression) keeps the loop waiting until it
returns. So whatever is done here is done to WINDOW bytes at a time. Knows what strings and brackets are, and no values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

__all__ = ["PIECE", "WINDOW", "FlatArray", "Text", "array_at"]

#: How much is searched at a time, and how much is decoded; bytes.
WINDOW = 256 * 1024
PIECE = 128 * 1024

#: Inside of a string: all but quotes that end it. Of an array: numbers, literals and whole strings.
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_PLAIN = re.compile(rb'(?:[^"\\\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)

#: Inside of a string: whole escapes, surrogates in pairs.
_UNITS = re.compile(
    rb'(?:[^"\\]++|\\(?:[^u]|u(?:[0-9a-cA-CeEfF][0-9a-fA-F]{3}|[dD](?:[0-7][0-9a-fA-F]{2}|[89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]'
    rb"[0-9a-fA-F]{2}))))*+",
    re.DOTALL,
)

#: What numbers in lists are made of, and more.
_CALM = re.compile(rb'[^"{]*+')

_BLANKS = b" \t\r\n"
_TO_COMMA = re.compile(rb'[^"\[\]{}\\,]*+,')

#: How deeply lists are nested at most.
DEPTH = 100

_OPEN, _CLOSE, _COMMA, _QUOTE, _BRACE = b'[],"{'


@cache
def _search(sign: bytes) -> Callable[..., re.Match[bytes] | None]:
    return re.compile(re.escape(sign)).search


class Text:
    """`view`: its bytes."""

    __slots__ = ("view",)

    def __init__(self, data: Any) -> None:
        """`data`: bytes, or anything that has a buffer of bytes."""
        self.view = memoryview(data)

    def __len__(self) -> int:
        return len(self.view)

    def part(self, start: int, end: int) -> bytes:
        return bytes(self.view[start:end])

    def windows(self, start: int, end: int, size: int = WINDOW) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes from `start` to `end` in their order, each window with the offset where it begins."""
        end = min(end, len(self.view))
        for at in range(start, end, size):
            yield at, bytes(self.view[at : min(at + size, end)])

    def find(self, sign: bytes, start: int, end: int | None = None) -> int:
        """Return where `sign` is found first, -1 where it isn't."""
        view, search = self.view, _search(sign)
        end = len(view) if end is None else end
        over = len(sign) - 1  # it may lie across two windows
        while start < end:
            found = search(view, start, min(start + WINDOW + over, end))
            if found is not None:
                return int(found.start())
            start += WINDOW
        return -1

    def count(self, sign: bytes, most: int = 1 << 62) -> int:
        """Count what does not overlap itself, up to more than `most`."""
        found = at = 0
        while found <= most and (at := self.find(sign, at)) >= 0:
            found += 1
            at += len(sign)
        return found

    def past_string(self, at: int) -> int:
        """Return where the string ends whose content begins at `at`, behind its quote; the text's end where there is none."""
        view, end = self.view, len(self.view)
        while at < end:
            found = _INSIDE.match(view, at, min(at + WINDOW, end))
            assert found is not None
            stop = found.end()
            if stop < end and view[stop] == 0x22:
                return stop + 1
            if stop == at:  # a backslash is the last of all
                return end
            at = stop
        return end

    def pieces_of_string(self, at: int) -> Iterator[tuple[int, int]]:
        """Yield from where to where pieces of the string stand whose content begins at `at`: no character or escape is cut. Where
        one is broken, or the string has no end, the last piece is one without anything in it.
        """
        view, end = self.view, len(self.view)
        while at < end and view[at] != _QUOTE:
            found = _UNITS.match(view, at, min(at + WINDOW, end))
            assert found is not None
            stop = found.end()
            back = stop
            while at < back < end and stop - back < 4 and view[back] & 0xC0 == 0x80:  # perhaps in the middle of a character
                back -= 1
            if back < end and stop - back < 4 and view[back] >= 0xC0:  # else no character begins there, and what follows is none
                stop = back
            yield at, stop
            if stop == at:
                break
            at = stop

    def behind_character(self, at: int) -> int:
        """Return `at`, or where the character ends that it is in the middle of."""
        end = min(at + 3, len(self.view))
        while at < end and self.view[at] & 0xC0 == 0x80:
            at += 1
        return at

    def outside_strings(self, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the parts that are no strings; whether a string follows."""
        at = start
        while (opens := self.find(b'"', at, end)) >= 0:
            yield at, opens, True
            at = self.past_string(opens + 1)
        yield at, max(at, end), False


class FlatArray:
    """A long array: of numbers and literals, alone or in lists of equal lengths; of strings, too; or of these in any lists.

    `start`, `end`: what stands between its outermost brackets. `lists`: there are lists within, which are regular. `strings`:
    there are strings among its values, and no lists. `cuts`: where commas stand between lists that are not regular, or have
    strings, a piece apart; None where there are no such lists.
    """

    __slots__ = ("_text", "cuts", "end", "lists", "start", "strings")

    def __init__(
        self, text: Text, start: int, end: int, *, lists: bool = False, strings: bool = False, cuts: list[int] | None = None
    ) -> None:
        self._text = text
        self.start = start
        self.end = end
        self.lists = lists
        self.strings = strings
        self.cuts = cuts

    def count(self) -> int:
        """Return how many values there are, by the commas between them; those within strings count, too."""
        return 1 + sum(window.count(b",") for _, window in self._text.windows(self.start, self.end))

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield from where to where each part of the values stands in the text, in order; between them there are commas."""
        at, end = self.start, self.end
        if self.cuts is not None:
            for cut in self.cuts:
                yield at, cut
                at = cut + 1
            yield at, end
            return
        while at <= end:
            stop = self._cut(at)
            yield at, stop
            at = stop + 1

    def part(self, at: int, stop: int) -> bytes:
        """Return a part as JSON, without brackets."""
        part = self._text.part(at, stop)
        return part.translate(None, b"[]") if self.lists else part

    def long_string(self, at: int, stop: int) -> tuple[int, int] | None:
        """Return, of a part that is values and a long string behind them, up to where those stand, and where this opens."""
        text = self._text
        opens = _PLAIN.match(text.view, at, at + PIECE).end()  # type: ignore[union-attr]  # it may be nothing
        before = text.part(at, opens).rstrip(_BLANKS)
        if text.view[opens] != _QUOTE or (before and before[-1] != _COMMA):
            return None
        if text.part(text.past_string(opens + 1), stop).strip(_BLANKS):
            return None
        return at + max(len(before) - 1, 0), opens

    def _cut(self, at: int) -> int:
        """Return where a comma stands between values, about PIECE bytes behind `at`; else the end."""
        end, text = self.end, self._text
        if at + PIECE >= end:
            return end
        outside = at + PIECE
        if self.strings:
            found = _PLAIN.match(text.view, at, outside)
            assert found is not None
            outside = found.end()  # where a string begins that goes on behind the piece, if there is one
        while True:
            stop = text.find(b",", outside, end)
            if stop < 0:
                return end
            quote = text.find(b'"', outside, stop) if self.strings else -1
            if quote < 0:
                return stop
            outside = text.past_string(quote + 1)


def array_at(text: Text, start: int, least: int) -> FlatArray | None:
    """Return the array whose content begins at `start`, if it is one of those above, and has more than `least` bytes."""
    calm = _CALM.match(text.view, start, start + least)
    assert calm is not None
    if calm.end() < min(start + least, len(text)):
        return _with_strings(text, start, least) if text.view[calm.end()] == _QUOTE else None
    return _Regular(text, start).array(least) or _in_lists(text, start, least)


def _with_strings(text: Text, start: int, least: int) -> FlatArray | None:
    """Return an array of strings and other values, without lists."""
    at, end, view = start, len(text), text.view
    while at < end:
        found = _PLAIN.match(view, at, min(at + PIECE, end))
        assert found is not None
        at = found.end()
        if at == end:
            break
        if view[at] == _QUOTE:  # the end of the piece has cut a string
            at = text.past_string(at + 1)
        elif view[at] == _OPEN:
            return _in_lists(text, start, least)
        elif view[at] in b"]{}\\":
            return FlatArray(text, start, at, strings=True) if view[at] == _CLOSE and at - start > least else None
    return None


def _in_lists(text: Text, start: int, least: int) -> FlatArray | None:
    """Return an array of values in lists of any form, without objects."""
    at, end, view = start, len(text), text.view
    depth, cuts, last, flat = 1, [], start, True
    while at < end:
        if depth == 1 and at - last >= PIECE and (comma := _TO_COMMA.match(view, at, at + PIECE)) is not None:
            at = last = comma.end()
            cuts.append(at - 1)
        found = _PLAIN.match(view, at, min(at + PIECE, end))
        assert found is not None
        at = found.end()
        if at == end:
            break
        sign = view[at]
        if sign == _QUOTE:  # the end of the piece has cut a string
            at = text.past_string(at + 1)
        elif sign == _OPEN:
            depth += 1
            flat = False
            at += 1
            if depth > DEPTH:
                break
        elif sign == _CLOSE:
            depth -= 1
            if not depth:
                return FlatArray(text, start, at, cuts=cuts) if at - start > least and not flat else None
            at += 1
        elif sign in b"{}\\":
            break
    return None


class _Regular:
    """Looks whether an array has nothing but numbers and literals in lists that are nested regularly: equal lengths everywhere.

    How the lists end says all: behind value i, as many do as there are levels whose number of values divides i.
    """

    def __init__(self, text: Text, start: int) -> None:
        self._text = text
        self._start = start
        self._depth = 1  # where it was looked at last
        self._values = 0  # commas up to there
        self._levels: list[int] = []  # how many values a list of each level has, innermost first, as far as is known
        self._opened = 0  # lists that have begun and that have ended since the last comma
        self._closed = 0
        self._ended = 0  # lists that had ended in front of the last comma
        self._nested = -1  # how many lists begin in front of the first value
        self._last = _OPEN  # what stood last that is no blank

    def array(self, least: int) -> FlatArray | None:
        """Return it, or None where it is something else, or has no more than `least` bytes."""
        at, length = self._start, len(self._text)
        while at < length:
            stop = min(at + PIECE, length)
            window = self._text.part(at, stop)
            end = self._look(window)
            if end is None:
                return None
            if end >= 0:
                end += at
                if end - self._start <= least or not (self._values or self._text.part(self._start, end).strip(b" \t\r\n[]")):
                    return None
                return FlatArray(self._text, self._start, end, lists=self._nested > 0)
            at = stop
        return None

    def _look(self, window: bytes) -> int | None:
        """Look at the next bytes. Return where the array ends, -1 where it goes on, None where it is none of these."""
        codes = np.frombuffer(window, np.uint8)
        offsets = np.flatnonzero((codes == _OPEN) | (codes == _CLOSE) | (codes == _COMMA) | (codes == _QUOTE) | (codes == _BRACE))
        signs = codes[offsets]
        depth = self._depth + np.cumsum((signs == _OPEN).astype(np.int32) - (signs == _CLOSE))
        over = np.flatnonzero(depth == 0)
        end = -1
        if len(over):
            end = int(offsets[over[0]])
            signs, depth = signs[: over[0]], depth[: over[0]]
        if len(signs):
            if int(depth.max()) > DEPTH or bool(((signs == _QUOTE) | (signs == _BRACE)).any()):
                return None
            self._depth = int(depth[-1])
            if not self._gaps(signs):
                return None
        if not self._beside(window if end < 0 else window[: end + 1]):
            return None
        if end >= 0:
            if self._nested < 0:
                self._nested = self._opened
            # Behind the last value all lists end, and all of them are full.
            count = self._values + 1
            if self._closed != self._nested or len(self._levels) > self._nested or any(count % n for n in self._levels):
                return None
        return end

    def _gaps(self, signs: Any) -> bool:
        """Take the signs between values in; False where they are irregular."""
        commas = np.flatnonzero(signs == _COMMA)
        opens, closes = np.cumsum(signs == _OPEN), np.cumsum(signs == _CLOSE)
        if not len(commas):
            self._opened += int(opens[-1])
            self._closed += int(closes[-1])
            return True
        opened = np.diff(opens[commas], prepend=0)
        closed = np.diff(closes[commas], prepend=0)
        opened[0] += self._opened
        closed[0] += self._closed
        self._opened = int(opens[-1] - opens[commas[-1]])
        self._closed = int(closes[-1] - closes[commas[-1]])
        first = self._values
        self._values += len(commas)
        if self._nested < 0:
            self._nested = self._ended = int(opened[0])
        begun = np.append(self._ended, closed[:-1])
        self._ended = int(closed[-1])
        if int(closed.max()) > self._nested or not np.array_equal(opened, begun):
            return False  # between two values as many lists have to begin as have ended
        numbers = np.arange(first + 1, first + 1 + len(commas))
        wanted = np.zeros(len(commas), np.int64)
        while len(self._levels) < int(closed.max()):
            found = numbers[closed > len(self._levels)]
            self._levels.append(int(found[0]))
        for count in self._levels:
            wanted += numbers % count == 0
        return bool(np.array_equal(closed, wanted))

    def _beside(self, window: bytes) -> bool:
        """Whether lists begin and end between values, not beside them, and none is empty."""
        codes = np.frombuffer(window.translate(None, _BLANKS), np.uint8)
        if not len(codes):
            return True
        before = np.concatenate((np.array([self._last], np.uint8), codes[:-1]))
        self._last = int(codes[-1])
        begins, ends = before == _OPEN, codes == _CLOSE
        beside = (codes == _OPEN) & ~begins & (before != _COMMA)
        beside |= (before == _CLOSE) & ~ends & (codes != _COMMA)
        beside |= begins & ends
        return not bool(beside.any())

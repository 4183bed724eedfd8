"""JSON as the reference's parser takes it (protobuf's old stream parser): what people write by hand passes.

Besides JSON: single quotes, keys without quotes, a comma behind the last item, raw line ends and unknown escapes in strings
(`\\q` is `q`), `3.` for a number. Nothing else: no comments, no NaN, no leading zeros. An object is kept as its pairs, since a
name that is given twice means something to the schema. Pure.
"""

from __future__ import annotations

import re

__all__ = ["JsonError", "Pairs", "parse_json"]

#: What the reference takes for white space: that of C.
_SPACE = re.compile(r"[ \t\n\v\f\r]*")
_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_NUMBER = re.compile(r"-?[0-9][0-9.eE+x-]*")
_KEYWORDS = {"true": True, "false": False, "null": None}
_UNESCAPED = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CODE = re.compile(r"[0-9a-fA-F]{4}")


class JsonError(ValueError):
    """`line` and `column` count from 1."""

    def __init__(self, message: str, text: str, at: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = text.count("\n", 0, at) + 1
        self.column = at - (text.rfind("\n", 0, at) + 1) + 1


class Pairs(list[tuple[str, object]]):
    """An object: names and values as they were written."""

    def __str__(self) -> str:
        return "{" + ", ".join(f"{name}: {value}" for name, value in self) + "}"

    __repr__ = __str__


def parse_json(text: str, max_depth: int) -> object:
    """Return the document: Pairs, lists, strings, numbers, True, False, None. Raises JsonError."""
    return _Parser(text, max_depth).document()


class _Parser:
    def __init__(self, text: str, max_depth: int) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._max_depth = max_depth

    def document(self) -> object:
        value = self._value()
        if self._next():
            raise self._error("there is more behind the end")
        return value

    def _error(self, message: str, at: int | None = None) -> JsonError:
        return JsonError(message, self._text, self._at if at is None else at)

    def _next(self) -> str:
        """Return the next character that is no white space without taking it; nothing at the end."""
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _value(self) -> object:
        first = self._next()
        if first in ("{", "["):
            if self._depth == self._max_depth:
                raise self._error(f"objects are nested deeper than {self._max_depth}")
            self._depth += 1
            self._at += 1
            value = self._object() if first == "{" else self._list()
            self._depth -= 1
            return value
        if first in ('"', "'"):
            return self._string()
        for word, meaning in _KEYWORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return meaning
        if (number := _NUMBER.match(self._text, self._at)) is not None:
            self._at = number.end()
            return self._number(number.group(), number.start())
        raise self._error("wanted a value" if first else "wanted a value, got the end")

    def _object(self) -> Pairs:
        pairs = Pairs()
        while (first := self._next()) != "}":
            if first in ('"', "'"):
                key = self._string()
            elif (bare := _KEY.match(self._text, self._at)) is not None and bare.group() not in _KEYWORDS:
                key = bare.group()
                self._at = bare.end()
            else:
                raise self._error("wanted a name or '}'")
            if self._next() != ":":
                raise self._error(f"wanted ':' behind the name '{key}'")
            self._at += 1
            pairs.append((key, self._value()))
            self._comma("}")
        self._at += 1
        return pairs

    def _list(self) -> list[object]:
        items: list[object] = []
        while self._next() != "]":
            items.append(self._value())
            self._comma("]")
        self._at += 1
        return items

    def _comma(self, end: str) -> None:
        """Take the comma behind an item; none is needed behind the last one."""
        following = self._next()
        if following == ",":
            self._at += 1
        elif following != end:
            raise self._error(f"wanted ',' or '{end}'")

    def _string(self) -> str:
        began = self._at
        quote = self._text[began]
        self._at += 1
        parts = []
        while True:
            unescaped = _UNESCAPED[quote].match(self._text, self._at)
            assert unescaped is not None
            parts.append(unescaped.group())
            self._at = unescaped.end()
            ending = self._text[self._at : self._at + 1]
            if not ending:
                raise self._error("this string has no end", began)
            self._at += 1
            if ending == quote:
                return "".join(parts)
            parts.append(self._escape())

    def _escape(self) -> str:
        letter = self._text[self._at : self._at + 1]
        self._at += 1
        if letter != "u":
            return _ESCAPES.get(letter, letter)
        code = self._code()
        if 0xD800 <= code < 0xDC00:
            low = 0
            if self._text.startswith("\\u", self._at):
                self._at += 2
                low = self._code()
            if not 0xDC00 <= low < 0xE000:
                raise self._error("a high surrogate without its low one")
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        elif 0xDC00 <= code < 0xE000:
            raise self._error("a low surrogate without its high one")
        return chr(code)

    def _code(self) -> int:
        digits = _CODE.match(self._text, self._at)
        if digits is None:
            raise self._error("wanted four hexadecimal digits behind '\\u'")
        self._at = digits.end()
        return int(digits.group(), 16)

    def _number(self, text: str, at: int) -> int | float:
        whole = not any(sign in text for sign in ".eE")
        if whole and len(text.lstrip("-")) >= 2 and text.lstrip("-")[0] == "0":
            raise self._error(f"'{text[:20]}' begins with a zero", at)
        try:
            number = int(text) if whole and len(text) <= 20 else float(text)
        except ValueError:
            raise self._error(f"'{text[:20]}' is no number", at) from None
        if number in (float("inf"), float("-inf")):
            raise self._error("a number beyond all bounds", at)
        return number

"""The rules for the header fields of a request (RFC 9113, section 8): which lists of fields are a request at all.

Pure: fields in, a Head out. A Head is made once for a header block and shared by all requests that repeat the block, so
whatever can be found out from fields alone belongs here or into `Head.meaning`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["Field", "Head", "trailers_fault"]

Field = tuple[bytes, bytes]

#: Characters of a field name: those of a token (RFC 9110, section 5.6.2), lower case only.
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch

#: What a field value must not hold (section 8.2.1). Blanks around one are forbidden there, too, but gRPC's libraries let a client
#: send them in metadata, and their servers hand them on as they came.
_BAD_VALUE = re.compile(rb"[\x00\r\n]").search
_BAD_PSEUDO = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z").search

#: Fields that speak of one HTTP/1 connection (section 8.2.2).
CONNECTION_SPECIFIC = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))

#: Regular fields that are known to be well formed, none of SPECIAL among them: most come again and again. Below: how many are
#: remembered, and up to what size.
_WELL_FORMED: set[Field] = set()
REMEMBERED = 1024
REMEMBERED_SIZE = 256

#: Regular fields that say something about the request itself.
SPECIAL = frozenset((b"content-length", b"host"))

PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))


class Head:
    """What a header block says.

    `fault`: why it is no well-formed request, "" if it is one. `too_large`: the list is longer than was announced as the
    limit. `content_length`: None where the request has none. `meaning`: for the layer above, None at first.
    """

    __slots__ = ("authority", "content_length", "fault", "fields", "meaning", "method", "path", "size", "too_large")

    def __init__(self, fields: Sequence[Field], size: int, limit: int) -> None:
        """`size`: of the list as section 6.5.2 counts it. `limit`: what was announced as the longest."""
        self.fields = tuple(fields)
        self.size = size
        self.too_large = size > limit
        self.method = self.path = self.authority = b""
        self.content_length: int | None = None
        self.meaning: Any = None
        self.fault = self._read()

    @property
    def regular(self) -> tuple[Field, ...]:
        """The fields without the pseudo-header fields."""
        return tuple(field for field in self.fields if not field[0].startswith(b":"))

    def _read(self) -> str:
        """Take what is wanted from the fields; return what is wrong with them."""
        pseudo: dict[bytes, bytes] = {}
        host = None
        regular = False
        for field in self.fields:
            if field in _WELL_FORMED:
                regular = True
                continue
            name, value = field
            if name[:1] == b":":
                if regular:
                    return f"{_shown(name)} stands behind a regular field"
                if name not in PSEUDO:
                    return f"{_shown(name)} is no pseudo-header field of a request"
                if name in pseudo:
                    return f"there are two fields {_shown(name)}"
                if _BAD_PSEUDO(value):
                    return f"the value of {_shown(name)} holds a character that it must not"
                pseudo[name] = value
                continue
            regular = True
            if fault := _regular_fault(name, value):
                return fault
            if name == b"content-length":
                if not value.isdigit() or len(value) > 18:
                    return f"content-length is {_shown(value)}, which is no length"
                if self.content_length not in (None, int(value)):
                    return "there are two different fields content-length"
                self.content_length = int(value)
            elif name == b"host":
                host = value
        return self._check(pseudo, host)

    def _check(self, pseudo: dict[bytes, bytes], host: bytes | None) -> str:
        self.method = pseudo.get(b":method", b"")
        self.path = pseudo.get(b":path", b"")
        self.authority = pseudo.get(b":authority", host or b"")
        if not self.method:
            return "there is no :method"
        if self.method == b"CONNECT":  # section 8.5
            if b":scheme" in pseudo or b":path" in pseudo or not self.authority:
                return "CONNECT has :authority, and neither :scheme nor :path"
        else:
            if not pseudo.get(b":scheme"):
                return "there is no :scheme"
            if not self.path:
                return "there is no :path"
            if not self.path.startswith(b"/") and not (self.path == b"*" and self.method == b"OPTIONS"):
                return f":path is {_shown(self.path)}, which does not begin with a slash"
        if host is not None and host.lower() != self.authority.lower():
            return f"host is {_shown(host)} and :authority {_shown(self.authority)}"
        return ""


def _regular_fault(name: bytes, value: bytes) -> str:
    if not _NAME(name):
        return f"{_shown(name)} is no field name in lower case"
    if _BAD_VALUE(value):
        return f"the value of {_shown(name)} holds a character that it must not"
    if name in CONNECTION_SPECIFIC:
        return f"{_shown(name)} has no place in HTTP/2"
    if name == b"te" and value.strip().lower() != b"trailers":
        return f"te is {_shown(value)}, where only trailers is allowed"
    if len(name) + len(value) <= REMEMBERED_SIZE and name not in SPECIAL:
        if len(_WELL_FORMED) >= REMEMBERED:
            _WELL_FORMED.clear()
        _WELL_FORMED.add((name, value))
    return ""


def trailers_fault(fields: Sequence[Field]) -> str:
    """Return why `fields` can't be a request's trailers, "" if they can (section 8.1)."""
    for name, value in fields:
        if name.startswith(b":"):
            return f"{_shown(name)} among the trailers"
        if fault := _regular_fault(name, value):
            return fault
    return ""


def _shown(text: bytes) -> str:
    """Show what a client sent, in short and in harmless characters."""
    return repr(text[:64].decode("latin-1"))

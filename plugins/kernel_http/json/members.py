"""Members of a JSON object by their type, refused in the reference's words. `where` says, in these words, what has the member."""

from __future__ import annotations

from typing import Any

import msgspec

from kernel_http.json.errors import ABSENT, NON_BOOL, NON_STRING, NON_UINT, malformed

__all__ = ["MAX_UINT64", "flag_of", "text_of", "unsigned_of"]

MAX_UINT64 = 2**64 - 1


def text_of(record: Any, field: str, where: str = "") -> str:
    """Return the string member `field` of a JSON object."""
    value = record.get(field, msgspec.UNSET) if type(record) is dict else msgspec.UNSET
    if type(value) is not str:
        raise malformed(field, ABSENT.format(field) if value is msgspec.UNSET else NON_STRING, where)
    return value


def unsigned_of(value: Any, field: str, where: str = "") -> int:
    """Return `value` if it is an unsigned 64-bit integer."""
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise malformed(field, NON_UINT, where)
    return value


def flag_of(value: Any, field: str, where: str = "") -> bool:
    if type(value) is not bool:
        raise malformed(field, NON_BOOL, where)
    return value

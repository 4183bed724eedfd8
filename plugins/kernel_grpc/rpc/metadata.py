"""The metadata of a call: which of a request's fields they are, what they say, and which of them become request parameters."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable

from kernel_grpc.http2 import Field

__all__ = ["Forwarding", "Metadata", "read_binary", "read_metadata"]

#: Fields that are gRPC's own business and no metadata.
RESERVED = frozenset((b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"))


class Metadata(tuple[tuple[str, str | bytes], ...]):
    """What a client sends along with a call: (name in lower case, value) in order; bytes for names that end in `-bin`."""

    __slots__ = ()

    def get(self, name: str, default: str | bytes | None = None) -> str | bytes | None:
        """Return the first value of that name."""
        for key, value in self:
            if key == name:
                return value
        return default


class Forwarding:
    """Which metadata become request parameters (`--grpc-header-forward-pattern`): all of whose names a part matches.

    Upper and lower case are the same to the pattern, unless `(?-i)` stands in front of it: names of metadata are in lower case.
    """

    def __init__(self, pattern: str) -> None:
        bare = pattern.removeprefix("(?-i)")
        self._search = re.compile(bare, re.IGNORECASE if bare == pattern else 0).search

    def __call__(self, metadata: Metadata) -> tuple[tuple[str, str], ...]:
        """Return them; binary values up to their first zero byte, as the reference forwards them."""
        return tuple(
            (name, value if isinstance(value, str) else value.partition(b"\0")[0].decode("utf-8", "replace"))
            for name, value in metadata
            if self._search(name)
        )


def read_metadata(fields: Iterable[Field]) -> Iterable[tuple[str, str | bytes]]:
    """Yield the metadata among a request's fields. Raises ValueError for a binary value that is no base64."""
    for name, value in fields:
        if name in RESERVED or name[:1] == b":":
            continue
        if name[-4:] == b"-bin":
            for part in read_binary(name, value):
                yield name.decode("ascii"), part
        else:
            yield name.decode("ascii"), _text(value)


def read_binary(name: bytes, value: bytes) -> list[bytes]:
    """Return the values of a binary field, several with commas between them. Raises ValueError where one is no base64."""
    try:
        return [base64.b64decode(part + b"=" * (-len(part) % 4), validate=True) for part in map(bytes.strip, value.split(b","))]
    except binascii.Error as error:
        raise ValueError(f"the metadata '{name.decode('ascii')}' is no base64: {error}") from None


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")

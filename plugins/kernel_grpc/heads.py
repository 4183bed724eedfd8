"""What a request's header fields mean to gRPC: the method, the metadata, the deadline, how messages are packed, or why not.

Equal fields mean the same, so everything here is found out once and then shared by all calls that repeat them; nothing that
differs from one call to the next may be stored in it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kernel_grpc import status
from kernel_grpc.compression import CODINGS, OFFER, Compression
from kernel_grpc.http2 import Field, Head
from kernel_grpc.status import Status

if TYPE_CHECKING:
    from kernel_grpc.methods import Method

__all__ = ["Forwarding", "Meaning", "Meanings", "Metadata", "read_timeout"]

#: How many different lists of fields are remembered by a front end, and how long one may be.
REMEMBERED = 1024
REMEMBERED_SIZE = 4096

#: Fields that are gRPC's own business and no metadata.
RESERVED = frozenset((b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"))

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])").fullmatch
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

_CONTENT_TYPE = re.compile(rb"application/grpc([+;].*)?").fullmatch


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

    In any case, which only means that the pattern may be in upper case; `(?-i)` in front of it takes that back.
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


class Meaning:
    """What one list of fields means.

    `refusal`: the header block that answers it at once. `timeout`: in seconds. `coding`: how compressed messages of the request
    are packed. `compression`: of the answer's messages, None for none. `plain`: a unary call without any of these.
    """

    __slots__ = ("coding", "compression", "forwarded", "metadata", "method", "plain", "refusal", "timeout")

    def __init__(self, method: Method | None = None, metadata: Metadata | None = None) -> None:
        self.method = method
        self.metadata = metadata if metadata is not None else Metadata()
        self.forwarded: tuple[tuple[str, str], ...] = ()
        self.timeout: float | None = None
        self.coding = ""
        self.compression: Compression | None = None
        self.refusal: bytes | None = None
        self.plain = False

    @property
    def path(self) -> str:
        return self.method.path if self.method is not None else ""

    def settle(self) -> Meaning:
        """Note whether it is plain, once all is known."""
        self.plain = (
            self.method is not None and not self.method.streaming and self.refusal is None and self.timeout is None
        )
        return self

    @classmethod
    def refused(cls, code: int, status_code: int, text: str, *fields: Field) -> Meaning:
        meaning = cls()
        meaning.refusal = status.trailers_only(status_code, text, code, *fields)
        return meaning

    def within(self, timeout: float) -> Meaning:
        """Return the same with a timeout."""
        other = Meaning(self.method, self.metadata)
        other.forwarded, other.coding, other.compression = self.forwarded, self.coding, self.compression
        other.refusal = self.refusal
        other.timeout = timeout
        return other.settle()


class Meanings:
    """Finds out what fields mean, for all connections of a front end.

    `methods`: by path. `restrictions`: category -> (key, value) of the metadata that its methods ask for. `compression`: how well
    answers to inferences are compressed where the client takes that.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        *,
        restrictions: Mapping[str, tuple[str, str]] | None = None,
        forwarding: Forwarding | None = None,
        compression: str = "none",
    ) -> None:
        self.methods = methods
        self._restrictions = restrictions or {}
        self._forwarding = forwarding
        self._compression = compression
        self._known: dict[tuple[Field, ...], Meaning] = {}

    def __call__(self, head: Head) -> Meaning:
        """Return what a head means and note it there."""
        meaning: Meaning | None = head.meaning
        if meaning is None:
            meaning = head.meaning = self._find(head)
        return meaning

    def _find(self, head: Head) -> Meaning:
        if head.too_large:
            text = f"a header list of {head.size} bytes is larger than the limit that was announced"
            return Meaning.refused(431, Status.RESOURCE_EXHAUSTED, text)
        timeouts = [value for name, value in head.fields if name == b"grpc-timeout"]
        key = tuple(field for field in head.fields if field[0] != b"grpc-timeout") if timeouts else head.fields
        meaning = self._known.get(key)
        if meaning is None:
            meaning = self._read(head)
            if head.size <= REMEMBERED_SIZE:
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                self._known[key] = meaning
        if not timeouts or meaning.refusal is not None:
            return meaning
        timeout = read_timeout(timeouts[-1])
        if timeout is None:
            shown = timeouts[-1][:32].decode("latin-1")
            return Meaning.refused(200, Status.INTERNAL, f"grpc-timeout is '{shown}', not up to 8 digits and one of HMSmun")
        return meaning.within(timeout)

    def _read(self, head: Head) -> Meaning:
        fields = dict(head.fields)
        content_type = fields.get(b"content-type", b"")
        if head.method != b"POST":
            shown = head.method[:32].decode("latin-1")
            return Meaning.refused(405, Status.INTERNAL, f"the method is {shown}, not POST", (b"allow", b"POST"))
        if content_type and not _CONTENT_TYPE(content_type.lower()):  # none at all is let pass, as by the reference
            shown = content_type[:64].decode("latin-1")
            return Meaning.refused(415, Status.INTERNAL, f"the content-type is '{shown}', not application/grpc")
        method = self.methods.get(head.path)
        if method is None:
            shown = head.path[:256].decode("utf-8", "replace")
            return Meaning.refused(200, Status.UNIMPLEMENTED, f"unknown method '{shown}'")
        try:
            meaning = Meaning(method, Metadata(read_metadata(head.regular)))
        except ValueError as error:
            return Meaning.refused(200, Status.INTERNAL, str(error))
        restriction = self._restrictions.get(method.category)
        if restriction is not None:
            name = f"triton-grpc-protocol-{restriction[0]}".lower()
            if meaning.metadata.get(name) != restriction[1]:
                text = f"This protocol is restricted, expecting header '{name}'"
                return Meaning.refused(200, Status.UNAVAILABLE, text)
        coding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
        if coding != "identity":
            if coding not in CODINGS:
                text = f"grpc-encoding is '{coding[:32]}'; there are {', '.join(CODINGS)} and identity"
                return Meaning.refused(200, Status.UNIMPLEMENTED, text, OFFER)
            meaning.coding = coding
        if method.category == "inference":
            offer = fields.get(b"grpc-accept-encoding", b"").decode("latin-1")
            meaning.compression = Compression.chosen(offer, self._compression)
        if self._forwarding is not None:
            meaning.forwarded = self._forwarding(meaning.metadata)
        return meaning.settle()


def read_timeout(value: bytes) -> float | None:
    """Return the seconds that a grpc-timeout allows; None for what is none."""
    match = _TIMEOUT(value)
    return None if match is None else int(match[1]) * _UNITS[match[2]]


def read_metadata(fields: Iterable[Field]) -> Iterable[tuple[str, str | bytes]]:
    """Yield the metadata among the regular fields. Raises ValueError for a binary value that is no base64."""
    for name, value in fields:
        if name in RESERVED:
            continue
        key = name.decode("ascii")
        if not key.endswith("-bin"):
            yield key, _text(value)
            continue
        for part in value.split(b","):
            try:
                yield key, base64.b64decode(part.strip() + b"=" * (-len(part.strip()) % 4), validate=True)
            except binascii.Error as error:
                raise ValueError(f"the metadata '{key}' is no base64: {error}") from None


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")

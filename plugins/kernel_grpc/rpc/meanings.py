"""What a request's header fields mean to gRPC: the method, the metadata, the deadline, how messages are packed, or why not.

What is found out is remembered twice. A Meaning is shared by all calls whose fields are equal. Some clients send fields that are
new for each call, such as a deadline or the id of a trace: their calls share a Kind, which is what the other fields say. So
nothing that belongs to one call may be stored in either.
"""

from __future__ import annotations

import copy
import hmac
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kernel import TRAIL_HEADER, Door
from kernel_grpc.http2 import Field, Head
from kernel_grpc.rpc import status
from kernel_grpc.rpc.compression import CODINGS, OFFER, Compression
from kernel_grpc.rpc.load_report import ASKED, FORMATS
from kernel_grpc.rpc.metadata import Forwarding, Metadata, read_binary, read_metadata
from kernel_grpc.rpc.status import Status

if TYPE_CHECKING:
    from kernel_grpc.rpc.methods import Method

__all__ = ["Asked", "Meaning", "Meanings", "read_timeout"]

#: How many kinds of calls are remembered by a front end, and how long their fields may be.
REMEMBERED = 1024
REMEMBERED_SIZE = 4096

#: The metadata by which a call asks why it takes as long as it does; its value is 1.
EXPLAIN = b"x-explain"

#: The fields that decide the Kind of a call.
DECISIVE = frozenset(
    (b":method", b":path", b"content-type", b"grpc-encoding", b"grpc-accept-encoding", ASKED, EXPLAIN)
)

TRAIL = TRAIL_HEADER.encode()

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])").fullmatch
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

_CONTENT_TYPE = re.compile(rb"application/grpc([+;].*)?").fullmatch


class Asked(NamedTuple):
    """What a call wants to be told of itself. `report`: the form of a report of the load, "" for none. `explain`: why it took as
    long as it did.
    """

    report: str
    explain: bool


class Kind:
    """What the fields say that are gRPC's own and the same from call to call: of the deadline and the metadata it knows nothing.

    `refusal`: the header block that answers it at once. `coding`: how compressed messages of the request are packed.
    `compression`: of the answer's messages, None for none. `restriction`: the metadata that the method asks for, (name, value).
    `asked`: what the call wants to be told of itself, None for nothing.
    """

    __slots__ = ("asked", "coding", "compression", "method", "refusal", "restriction")

    def __init__(self, method: Method | None = None) -> None:
        self.method = method
        self.coding = ""
        self.compression: Compression | None = None
        self.refusal: bytes | None = None
        self.restriction: tuple[bytes, bytes] | None = None
        self.asked: Asked | None = None

    @classmethod
    def refused(cls, code: int, status_code: int, text: str, *fields: Field) -> Kind:
        kind = cls()
        kind.refusal = status.trailers_only(status_code, text, code, *fields)
        return kind


class Meaning:
    """What one list of fields means: its kind, and what is the call's own.

    `timeout`: in seconds. `trailing`: returns what the trailers tell of the call, in so many bytes at most, where it is asked for
    and known. `trail`: which models of other servers wait for the call, "" for none. `ordinary`: a unary call without a
    deadline that is not refused. `constant`: all of its answer but the message is the same for all calls. Most methods read no
    metadata, which may be new for each call: they are not taken out of the fields before somebody asks.
    """

    __slots__ = ("_fields", "_forwarded", "_forwarding", "_metadata", "asked", "coding", "compression", "constant", "door",
                 "method", "ordinary", "refusal", "timeout", "trail", "trailing")  # fmt: skip
    door: Door  # a gate's; where there is no gate nobody sets it

    def __init__(
        self, kind: Kind, fields: tuple[Field, ...] = (), timeout: float | None = None, forwarding: Forwarding | None = None
    ) -> None:
        self.method = method = kind.method
        self.coding = kind.coding
        self.compression = kind.compression
        self.refusal = kind.refusal
        self.asked = kind.asked
        self.trailing: Callable[[int], bytes] | None = None
        self.constant = kind.compression is None and not kind.asked
        self.timeout = timeout
        self.trail = ""
        self.ordinary = method is not None and not method.streaming and timeout is None and not kind.asked
        self._fields = fields
        self._forwarding = forwarding
        self._metadata: Metadata | None = None
        self._forwarded: tuple[tuple[str, str], ...] | None = () if forwarding is None else None

    def with_trailing(self, trailing: Callable[[int], bytes]) -> Meaning:
        """Return the same for one call, whose trailers tell something of it: its load, and why it took as long as it did."""
        meaning = copy.copy(self)
        meaning.trailing = trailing
        return meaning

    @property
    def path(self) -> str:
        return self.method.path if self.method is not None else ""

    @property
    def metadata(self) -> Metadata:
        metadata = self._metadata
        if metadata is None:
            metadata = self._metadata = Metadata(read_metadata(self._fields))
        return metadata

    @property
    def forwarded(self) -> tuple[tuple[str, str], ...]:
        """The metadata that become request parameters."""
        forwarded = self._forwarded
        if forwarded is None:
            assert self._forwarding is not None
            forwarded = self._forwarded = self._forwarding(self.metadata)
        return forwarded

    @classmethod
    def refused(cls, code: int, status_code: int, text: str, *fields: Field) -> Meaning:
        return cls(Kind.refused(code, status_code, text, *fields))


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
        self._known: dict[tuple[Field, ...], Kind] = {}

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
        fields = head.fields
        key = tuple([field for field in fields if field[0] in DECISIVE])
        kind = self._known.get(key)
        if kind is None:
            kind = self._read(head, dict(key))
            if head.size <= REMEMBERED_SIZE:
                if len(self._known) >= REMEMBERED:
                    self._known.clear()
                self._known[key] = kind
        if kind.refusal is not None:
            return Meaning(kind)
        timeout, trail = None, ""
        for name, value in fields:
            if name == b"grpc-timeout":
                timeout = read_timeout(value)
                if timeout is None:
                    shown = value[:32].decode("latin-1")
                    text = f"grpc-timeout is '{shown}', not up to 8 digits and one of HMSmun"
                    return Meaning.refused(200, Status.INTERNAL, text)
            elif name == TRAIL:
                trail = value.decode("latin-1")
            elif name[-4:] == b"-bin":
                try:
                    read_binary(name, value)
                except ValueError as error:
                    return Meaning.refused(200, Status.INTERNAL, str(error))
        if kind.restriction is not None and not _has(fields, *kind.restriction):
            text = f"This protocol is restricted, expecting header '{kind.restriction[0].decode()}'"
            return Meaning.refused(200, Status.UNAVAILABLE, text)
        meaning = Meaning(kind, fields, timeout, self._forwarding)
        meaning.trail = trail
        return meaning

    def _read(self, head: Head, fields: Mapping[bytes, bytes]) -> Kind:
        content_type = fields.get(b"content-type", b"")
        if head.method != b"POST":
            shown = head.method[:32].decode("latin-1")
            return Kind.refused(405, Status.INTERNAL, f"the method is {shown}, not POST", (b"allow", b"POST"))
        if content_type and not _CONTENT_TYPE(content_type.lower()):  # none at all is let pass, as by the reference
            shown = content_type[:64].decode("latin-1")
            return Kind.refused(415, Status.INTERNAL, f"the content-type is '{shown}', not application/grpc")
        method = self.methods.get(head.path)
        if method is None:
            shown = head.path[:256].decode("utf-8", "replace")
            return Kind.refused(200, Status.UNIMPLEMENTED, f"unknown method '{shown}'")
        kind = Kind(method)
        coding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
        if coding != "identity":
            if coding not in CODINGS:
                text = f"grpc-encoding is '{coding[:32]}'; there are {', '.join(CODINGS)} and identity"
                return Kind.refused(200, Status.UNIMPLEMENTED, text, OFFER)
            kind.coding = coding
        if method.category == "inference":
            offer = fields.get(b"grpc-accept-encoding", b"").decode("latin-1")
            kind.compression = Compression.chosen(offer, self._compression)
            asked = fields.get(ASKED, b"").strip().lower()
            report = asked.decode() if asked in FORMATS else ""
            explain = fields.get(EXPLAIN, b"").strip() == b"1"
            kind.asked = Asked(report, explain) if report or explain else None
        restriction = self._restrictions.get(method.category)
        if restriction is not None:
            kind.restriction = f"triton-grpc-protocol-{restriction[0]}".lower().encode(), restriction[1].encode()
        return kind


def read_timeout(value: bytes) -> float | None:
    """Return the seconds that a grpc-timeout allows; None for what is none."""
    match = _TIMEOUT(value)
    return None if match is None else int(match[1]) * _UNITS[match[2]]


def _has(fields: tuple[Field, ...], name: bytes, value: bytes) -> bool:
    """Whether the first field of that name has that value, in a time that doesn't tell how much of it is right."""
    return hmac.compare_digest(next((found for key, found in fields if key == name), b""), value)

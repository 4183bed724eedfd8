"""gRPC's status codes, which of them stands for which error of the kernel, and the header blocks that carry them.

The mapping is the contract's (grpc_protocol, section 1). Blocks are written without HPACK's table, so they are right on
every connection; those of an ordinary answer are constants.
"""

from __future__ import annotations

import math
from functools import lru_cache
from urllib.parse import quote

from kernel import Code, Denial, Denied
from kernel_grpc.http2 import literal, response

__all__ = ["CONTENT_TYPE", "DENIED", "HEAD", "NOBODYS_FAULT", "SHUTTING_DOWN", "STATUS_OF", "TRAILERS", "Status", "denied",
           "escaped", "fitting", "head", "name_of", "room", "shortened", "trailers", "trailers_only"]  # fmt: skip


class Status:
    """The status codes of gRPC that a server gives. Numbers and no enum: they are only ever written."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


def name_of(status: int) -> str:
    """Return what one of them is called."""
    return next(name for name, value in vars(Status).items() if value == status)


STATUS_OF: dict[Code, int] = {
    Code.UNKNOWN: Status.UNKNOWN,
    Code.INTERNAL: Status.INTERNAL,
    Code.NOT_FOUND: Status.NOT_FOUND,
    Code.INVALID_ARG: Status.INVALID_ARGUMENT,
    Code.UNAVAILABLE: Status.UNAVAILABLE,
    Code.UNSUPPORTED: Status.UNIMPLEMENTED,
    Code.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    Code.CANCELLED: Status.CANCELLED,
}

#: What a gate's refusals are called.
DENIED: dict[Denial, int] = {
    Denial.UNKNOWN: Status.UNAUTHENTICATED,
    Denial.FORBIDDEN: Status.PERMISSION_DENIED,
    Denial.EXHAUSTED: Status.RESOURCE_EXHAUSTED,
}

#: With these a request was right and came at a bad time. All other errors may be had for nothing, as often as a client likes.
NOBODYS_FAULT = frozenset((Status.CANCELLED, Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED, Status.UNAVAILABLE))

CONTENT_TYPE = (b"content-type", b"application/grpc")

#: The block before the first message of an ordinary answer, and the one behind its last.
HEAD = response(200, [CONTENT_TYPE])
TRAILERS = literal(b"grpc-status", b"0")

#: The field of each status.
_FIELDS = {code: literal(b"grpc-status", b"%d" % code) for code in range(17)}

#: What the reference says to a request that comes while it stops.
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."

#: What needs no escape in a grpc-message: printable ASCII but the percent sign.
SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

#: The most bytes of a status message. Clients of the C core take header lists of 8 KiB for certain, longer ones now and then;
#: what they don't take is lost, and with it the status.
MAX_MESSAGE = 7 * 1024

#: What the other fields of an answer without messages need of a client's limit.
OVERHEAD = 512


def room(limit: int | None) -> int:
    """Return how many bytes what is told may have in all, escaped. `limit`: the client's for header lists."""
    return MAX_MESSAGE if limit is None else min(MAX_MESSAGE, max(0, limit - OVERHEAD))


def shortened(text: str, limit: int | None) -> str:
    """Return a status message, cut off where the client would lose it. `limit`: its limit for header lists."""
    return fitting(text, room(limit))


def fitting(text: str, most: int) -> str:
    """Return a text, cut off where it has more than so many bytes when it is escaped."""
    if len(text) * 12 <= most or len(escaped(text)) <= most:  # escaped, a character is at most four times %XX
        return text
    low, high = 0, len(text)
    while low < high:  # the longest that fits
        middle = (low + high + 1) // 2
        if len(escaped(text[:middle])) <= most - 3:
            low = middle
        else:
            high = middle - 1
    return text[:low] + "..."


def escaped(text: str) -> bytes:
    """Return a status message as a header value."""
    if text.isascii() and text.isprintable() and "%" not in text and text == text.strip(" "):
        return text.encode()
    value = quote(text, SAFE, "utf-8", "replace")
    inner = value.strip(" ")
    if len(inner) < len(value):  # blanks, with which a header value must not begin or end
        lead = len(value) - len(value.lstrip(" "))
        value = "%20" * lead + inner + "%20" * (len(value) - lead - len(inner)) if inner else "%20" * len(value)
    return value.encode("ascii")


def trailers(status: int, text: str = "") -> bytes:
    """Return the block that ends a call, behind its head."""
    if not status and not text:
        return TRAILERS
    fields = _FIELDS[status]
    return fields + literal(b"grpc-message", escaped(text)) if text else fields


def trailers_only(status: int, text: str, code: int = 200, *fields: tuple[bytes, bytes]) -> bytes:
    """Return the one block of an answer that has no message. `code`: of HTTP."""
    head = HEAD if code == 200 and not fields else response(code, [CONTENT_TYPE, *fields])
    return head + trailers(status, text)


def denied(error: Denied, text: str) -> bytes:
    """Return the one block of an answer to a call that a gate has not let pass. `text`: the status message."""
    block = trailers_only(DENIED[error.denial], text)
    if not error.retry_after:
        return block
    return block + literal(b"grpc-retry-pushback-ms", b"%d" % math.ceil(error.retry_after * 1000))  # clients' retries heed it


@lru_cache(16)
def head(coding: str) -> bytes:
    """Return the block before the first message where messages may be compressed, "" for not."""
    return HEAD + literal(b"grpc-encoding", coding.encode()) if coding else HEAD

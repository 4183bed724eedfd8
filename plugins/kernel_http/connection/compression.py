"""Compressed bodies: requests unpacked within bounds, answers packed as the client would like it.

See docs/contract/http_protocol.md, 7.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kernel import Code, ServingError
from kernel_http.connection import replies

__all__ = ["CODINGS", "OFFER", "accepted", "compressed", "decompressed"]

#: Content coding -> zlib's window bits for writing it. In reading, either is recognised by its first bytes.
CODINGS = {"gzip": 31, "deflate": 15}
READ = 47

#: A longer Accept-Encoding says nothing.
MAX_ACCEPT = 1024

#: The header that tells what could have been sent.
OFFER = b"Accept-Encoding: gzip, deflate\r\n"

#: Quick rather than small: most of it is done on the loop.
LEVEL = 1

#: How much is packed or unpacked at a time, in bytes.
PIECE = 256 * 1024

_QUALITY = re.compile(r"q=([0-9]+(?:\.[0-9]*)?)", re.IGNORECASE)
_LENGTH = re.compile(rb"(?<=\n)Content-Length: [0-9]+\r\n")


def accepted(header: str) -> str:
    """Return the coding that an Accept-Encoding likes best, "" for none. Of equal ones the first."""
    best, quality = "", 0.0
    if len(header) > MAX_ACCEPT:
        return ""
    for item in header.lower().split(","):
        name, *options = (part.strip() for part in item.split(";"))
        if name not in CODINGS and name != "identity":
            continue
        found = _QUALITY.fullmatch(options[0]) if options else None
        if options and found is None:
            continue
        wanted = float(found[1]) if found is not None else 1.0
        if wanted > quality:
            best, quality = name, wanted
    return "" if best == "identity" else best


def decompressed(packed: Sequence[Any], limit: int, split: int) -> tuple[bytearray, bytearray]:
    """Return what a compressed request body holds, at most `limit` bytes: the first `split` of them, and the others.

    `packed`: the body's bytes, in parts. Piece by piece, and without the interpreter while one is unpacked: other threads go on.
    Raises ServingError(INVALID_ARG).
    """
    if not any(len(part) for part in packed):
        raise ServingError(Code.INVALID_ARG, "nothing to be decompressed")
    unpacker = zlib.decompressobj(READ)
    json, tail = bytearray(), bytearray()
    try:
        for piece in _pieces(packed):
            if unpacker.eof:
                raise _unreadable("there are bytes behind its end")
            while True:
                out = memoryview(unpacker.decompress(piece, PIECE))
                lacks = max(split - len(json), 0)
                json += out[:lacks]
                tail += out[lacks:]
                if len(json) + len(tail) > limit:
                    raise ServingError(
                        Code.INVALID_ARG,
                        f"the decompressed request exceeds the maximum allowed input size of {limit} bytes. "
                        "Use --http-max-input-size to increase the limit.",
                    )
                piece = memoryview(unpacker.unconsumed_tail)
                if not len(piece) and len(out) < PIECE:
                    break
    except zlib.error as error:
        raise _unreadable(str(error)) from None
    if not unpacker.eof:
        raise _unreadable("it is cut off")
    if unpacker.unused_data:
        raise _unreadable("there are bytes behind its end")
    return json, tail


def _pieces(parts: Iterable[Any]) -> Iterator[memoryview]:
    """Yield the bytes of all parts in their order, not many at a time."""
    for part in parts:
        view = memoryview(part)
        for at in range(0, len(view), PIECE):
            yield view[at : at + PIECE]


def _unreadable(reason: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, f"the compressed request can't be read: {reason}")


def compressed(payload: replies.Payload, coding: str) -> replies.Payload:
    """Return a whole response with its body in that coding; an error as it is."""
    first, *rest = [payload] if isinstance(payload, bytes) else payload
    start = bytes(first)
    if not start.startswith(replies.STATUS_LINES[200]):
        return payload
    packer = zlib.compressobj(LEVEL, wbits=CODINGS[coding])
    end = start.index(b"\r\n\r\n") + 4
    body = [out for piece in _pieces([memoryview(start)[end:], *rest]) if (out := packer.compress(piece))]
    body.append(packer.flush())
    size = sum(map(len, body))
    lines = b"Content-Encoding: %b\r\nContent-Length: %d\r\n" % (coding.encode(), size)
    head = _LENGTH.sub(lambda _: lines, start[:end], count=1)
    return b"".join([head, *body]) if size <= PIECE else [head, *body]

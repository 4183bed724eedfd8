"""Compressed bodies: requests unpacked within bounds, answers packed as the client would like it.

See docs/contract/http_protocol.md, 7.
"""

from __future__ import annotations

import re
import zlib

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


def decompressed(data: bytes, limit: int) -> bytes:
    """Return what a compressed request body holds, at most `limit` bytes. Raises ServingError(INVALID_ARG)."""
    if not data:
        raise ServingError(Code.INVALID_ARG, "nothing to be decompressed")
    unpacker = zlib.decompressobj(READ)
    try:
        result = unpacker.decompress(data, limit + 1)  # without the interpreter: other threads go on
    except zlib.error as error:
        raise _unreadable(str(error)) from None
    if len(result) > limit:
        raise ServingError(
            Code.INVALID_ARG,
            f"the decompressed request exceeds the maximum allowed input size of {limit} bytes. "
            "Use --http-max-input-size to increase the limit.",
        )
    if not unpacker.eof:
        raise _unreadable("it is cut off")
    if unpacker.unused_data:
        raise _unreadable("there are bytes behind its end")
    return result


def _unreadable(reason: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, f"the compressed request can't be read: {reason}")


def compressed(payload: replies.Payload, coding: str) -> bytes:
    """Return a whole response with its body in that coding; an error as it is."""
    whole = payload if isinstance(payload, bytes) else b"".join(payload)
    if not whole.startswith(replies.STATUS_LINES[200]):
        return whole
    packer = zlib.compressobj(LEVEL, wbits=CODINGS[coding])
    end = whole.index(b"\r\n\r\n") + 4
    body = packer.compress(memoryview(whole)[end:]) + packer.flush()
    lines = b"Content-Encoding: %b\r\nContent-Length: %d\r\n" % (coding.encode(), len(body))
    return _LENGTH.sub(lambda _: lines, whole[:end], count=1) + body

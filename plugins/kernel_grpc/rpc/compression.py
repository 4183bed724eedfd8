"""Compressed messages: those of requests unpacked within bounds, those of answers packed where client and server want it.

The codings are gRPC's `gzip` and `deflate` (zlib's format). Which level stands for which effort is decided here.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from kernel_grpc.http2 import Data
from kernel_grpc.rpc.assembly import LARGE, Message, MessageError, aligned

__all__ = ["CODINGS", "LEVELS", "OFFER", "ON_LOOP", "UNPACKED_ON_LOOP", "Compression", "unpacked"]

#: Coding -> zlib's window bits.
CODINGS = {"gzip": 31, "deflate": 15}

#: The header field that tells what a request's messages may be packed in.
OFFER = (b"grpc-accept-encoding", b"identity,deflate,gzip")

#: The values of `--grpc-infer-response-compression-level`, with zlib's level and the codings in the reference's order.
LEVELS = {
    "none": (0, ()),
    "low": (1, ("gzip", "deflate")),
    "medium": (5, ("deflate", "gzip")),
    "high": (9, ("deflate", "gzip")),
}

#: What is longer than this is packed on another thread: the loop has others to serve. Unpacked, a message may become a thousand
#: times as long, so less of it may take the loop's time.
ON_LOOP = 64 * 1024
UNPACKED_ON_LOOP = 8 * 1024


class Compression:
    """How the messages of an answer are packed."""

    __slots__ = ("coding", "level")

    def __init__(self, coding: str, level: int) -> None:
        self.coding = coding
        self.level = level

    @classmethod
    def chosen(cls, offer: str, level: str) -> Compression | None:
        """Return what to do for a client that sent `offer` as grpc-accept-encoding; None where messages go as they are."""
        offered = {name.strip() for name in offer.split(",")}
        effort, codings = LEVELS[level]
        return next((cls(coding, effort) for coding in codings if coding in offered), None)

    def packed(self, pieces: Sequence[Data]) -> bytes:
        """Return a message packed."""
        packer = zlib.compressobj(self.level, wbits=CODINGS[self.coding])
        return b"".join([*map(packer.compress, pieces), packer.flush()])


def unpacked(data: Message, coding: str, limit: int) -> Message:
    """Return a message unpacked, `limit` bytes at most. Raises MessageError. Any thread."""
    unpacker = zlib.decompressobj(CODINGS[coding])
    parts, total = [], 0
    rest: Any = data
    try:
        while not unpacker.eof:
            # In pieces that grow with what there is: a small message that would become a huge one costs no more than the limit.
            part = unpacker.decompress(rest, min(limit + 1 - total, max(1024 * 1024, total)))
            parts.append(part)
            total += len(part)
            if total > limit:
                raise MessageError(8, f"a message of more than {limit} bytes, unpacked; larger ones are not taken")
            rest = unpacker.unconsumed_tail
            if not part and not rest and not unpacker.eof:
                raise MessageError(13, f"a message that is no {coding}: it is cut off")
    except zlib.error as error:
        raise MessageError(13, f"a message that is no {coding}: {error}") from None
    if unpacker.unused_data:
        raise MessageError(13, f"a message that is no {coding}: there are bytes behind its end")
    if total < LARGE:
        return b"".join(parts)
    memory = aligned(total, total)
    view, at = memory.data, 0
    parts.reverse()
    while parts:  # each part is let go of once it is copied, so that the message is not in memory twice for long
        part = parts.pop()
        view[at : at + len(part)] = part
        at += len(part)
    return memory

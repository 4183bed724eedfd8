"""Compressed messages: those of requests unpacked within bounds, those of answers packed where client and server want it.

The codings are gRPC's `gzip` and `deflate` (zlib's format). Which level stands for which effort is decided here.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from kernel import MappedMemory
from kernel_grpc.http2 import Data
from kernel_grpc.rpc.assembly import ALIGNMENT, LARGE, Growing, Message, MessageError, MessageMemory, aligned

__all__ = ["CODINGS", "LEVELS", "OFFER", "ON_LOOP", "PORTION", "PORTION_ON_LOOP", "UNPACKED_ON_LOOP", "Compression", "Unpacker",
           "unpacked"]  # fmt: skip

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

#: How much of a message is unpacked before the account is asked again; and how much on the loop.
PORTION = 16 * 1024 * 1024
PORTION_ON_LOOP = 256 * 1024

#: What zlib is given at a time, and what it gives: it copies what it has not looked at, and what it gives is copied once more.
FEED = 64 * 1024
PART = 256 * 1024

#: What is unpacked in parts that are joined; what is longer is put where it stays.
SEVERAL = 1024 * 1024


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


class Unpacker:
    """One message that is being unpacked, a portion at a time: as much as there is memory for. Any thread, one at a time."""

    __slots__ = ("_at", "_coding", "_data", "_growing", "_limit", "_memory", "_parts", "_tail", "_total", "_unpacker")

    def __init__(self, data: Message, coding: str, limit: int) -> None:
        self._data = memoryview(data)  # type: ignore[arg-type]
        self._at = 0
        self._coding = coding
        self._limit = limit
        self._tail: Any = b""  # of what was given to zlib, what it has not looked at
        self._unpacker = zlib.decompressobj(CODINGS[coding])
        self._parts: list[bytes] = []  # up to SEVERAL bytes; then all of it is in `_memory`
        self._total = 0
        # A gzip ends in its size unpacked. If that is a lie, the memory is aligned anew when all is there.
        size = int.from_bytes(bytes(self._data[-4:]), "little") if coding == "gzip" else 0
        self._growing = Growing(ALIGNMENT - size % ALIGNMENT)
        self._memory: MessageMemory | None = None

    def go_on(self, most: int) -> Message | None:
        """Unpack about `most` bytes more. Return the message once it is complete. Raises MessageError."""
        unpacker, data = self._unpacker, self._data
        end = self._total + most
        while not unpacker.eof:
            if self._total >= end:
                return None
            piece: Any = self._tail
            if not len(piece):
                piece = data[self._at : self._at + FEED]
                self._at += len(piece)
            try:
                part = unpacker.decompress(piece, PART)
            except zlib.error as error:
                raise self._wrong(str(error)) from None
            self._tail = unpacker.unconsumed_tail
            if self._total + len(part) > self._limit:
                text = f"a message of more than {self._limit} bytes, unpacked; larger ones are not taken"
                raise MessageError(8, text)
            if part:
                self._add(part)
            elif not self._tail and self._at == len(data) and not unpacker.eof:
                raise self._wrong("it is cut off")
        if unpacker.unused_data or self._at < len(data):
            raise self._wrong("there are bytes behind its end")
        return self._joined()

    def _add(self, part: bytes) -> None:
        at = self._total
        self._total = end = at + len(part)
        if end <= SEVERAL or not MappedMemory.AVAILABLE:
            self._parts.append(part)
            return
        memory = self._memory
        if memory is None:
            self._parts.append(part)
            part, at = b"".join(self._parts), 0
            self._parts.clear()
            memory = self._memory = self._growing.grow(4 * SEVERAL)
        elif end > len(memory) - ALIGNMENT:
            self._memory = memory = None  # nobody may hold it
            memory = self._memory = self._growing.grow(min(2 * end, self._limit) + ALIGNMENT)
        memory.data[at:end] = part

    def _wrong(self, what: str) -> MessageError:
        return MessageError(13, f"a message that is no {self._coding}: {what}")

    def _joined(self) -> Message:
        parts, total = self._parts, self._total
        if self._memory is not None:
            memory, self._memory = self._memory, None
            return self._growing.ending(memory, total)
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


def unpacked(data: Message, coding: str, limit: int) -> Message:
    """Return a message unpacked, `limit` bytes at most. Raises MessageError. Any thread."""
    unpacker, message = Unpacker(data, coding, limit), None
    while message is None:
        message = unpacker.go_on(PORTION)
    return message

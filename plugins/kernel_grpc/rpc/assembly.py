"""Messages out of a call's bytes: the five bytes before each, and its memory while it arrives.

A message's memory is its call's own. Small ones are `bytes`; large ones are a `Memory`, writable, and placed so that its end lies
on a multiple of 64: the last tensor of a request, often the only one, is then aligned for whatever its elements are.
Memory is reserved untouched, and at most RESERVE of it ahead of what really came.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from kernel_grpc.http2 import Data, Sink

__all__ = ["LARGE", "MAX_MESSAGE", "PREFIX", "RESERVE", "Assembly", "Memory", "Message", "MessageError", "aligned"]

#: What stands before each message: whether it is compressed, and its length.
PREFIX = Struct(">BI")

#: The largest message that is taken, as by the reference.
MAX_MESSAGE = 2**31 - 1

#: From this size on, a message is a Memory.
LARGE = 16 * 1024

#: The most memory that is reserved on the strength of a length alone.
RESERVE = 64 * 1024 * 1024

ALIGNMENT = 64


class Memory(np.ndarray[Any, Any]):
    """The memory of a large message, of type uint8. `Memory(n, np.uint8)` is not filled.

    A subclass on purpose. numpy has a view of a view refer to the last plain array below: if the memory were one, a view that a
    model takes of its tensor would refer to the memory and not to the tensor's array, and reference counts could not tell whether
    the model keeps it.
    """


Message = bytes | Memory


class MessageError(Exception):
    """Bytes that can't be a message. `status`: whose fault it is, in gRPC's numbers."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Assembly(Sink):
    """What has come of one call's messages. Feed it; take `message` whenever there is one.

    It is its stream's sink: of a message that is arriving, `at` bytes are in `view`.
    """

    __slots__ = ("_buffer", "_prefix", "_size", "compressed", "message")

    def __init__(self) -> None:
        super().__init__()
        self.message: Message | None = None  # complete, and not fetched yet
        self.compressed = False
        self._prefix = b""
        self._size = -1  # of the message that is arriving, -1 between messages
        self._buffer: Memory | bytearray = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether no message has begun to arrive."""
        return self._size < 0 and not self._prefix

    @property
    def progress(self) -> str:
        """Say how much has come of a message that isn't complete."""
        return f"{len(self._prefix)} of 5 bytes before it" if self._size < 0 else f"{self.at} of {self._size} bytes"

    def fetch(self) -> Message:
        message, self.message = self.message, None
        assert message is not None
        return message

    def feed(self, data: Data, start: int, stop: int) -> int:
        """Take from `data[start:stop]` up to the end of the next message; return where that is. Raises MessageError."""
        size: int
        if self._size < 0:
            if not self._prefix and stop - start >= 5:
                compressed, size = PREFIX.unpack_from(data, start)
                start += 5
            else:
                missing = 5 - len(self._prefix)
                self._prefix += bytes(data[start : min(stop, start + missing)])
                if len(self._prefix) < 5:
                    return stop
                start += missing
                compressed, size = PREFIX.unpack(self._prefix)
                self._prefix = b""
            if compressed > 1:
                raise MessageError(13, f"a message with the compression flag {compressed}; it is 0 or 1")
            if size > MAX_MESSAGE:
                raise MessageError(8, f"a message of {size} bytes; the largest that is taken has {MAX_MESSAGE}")
            self.compressed = compressed == 1
            if size < LARGE and stop - start >= size:
                self.message = bytes(data[start : start + size])
                return start + size
            self._begin(size)
        count = min(stop - start, self._size - self.at)
        if count:
            if len(self.view) - self.at < count:
                self._grow(count)
            self.view[self.at : self.at + count] = memoryview(data)[start : start + count]
            self.at += count
        if self.at == self._size:
            self._complete()
        return start + count

    def space(self) -> memoryview | None:
        """Return where the bytes that come next may be put, or None where they don't all belong to a message."""
        if self._size < 0:
            return None
        if self.at == len(self.view):
            self._grow(1)
        return self.view[self.at :]

    def filled(self, count: int) -> None:
        """`count` bytes have been put into `space()`."""
        self.at += count
        if self.at == self._size:
            self._complete()

    def _begin(self, size: int) -> None:
        self._size = size
        self.at = 0
        if size < LARGE:
            self._buffer = bytearray(size)
            self.view = memoryview(self._buffer)
        else:
            self._buffer = aligned(min(size, RESERVE), size)
            self.view = self._buffer.data
        self.end = len(self.view)

    def _grow(self, count: int) -> None:
        capacity = min(self._size, max(2 * len(self.view), self.at + count))
        buffer = aligned(capacity, self._size)
        buffer.data[: self.at] = self.view[: self.at]
        self._buffer = buffer
        self.view = buffer.data
        self.end = len(self.view)

    def _complete(self) -> None:
        buffer = self._buffer
        self.message = buffer if isinstance(buffer, Memory) else bytes(buffer)
        self._size = -1
        self._buffer = bytearray()
        self.view = memoryview(b"")
        self.at = self.end = 0


def aligned(capacity: int, size: int) -> Memory:
    """Return `capacity` bytes, placed so that the byte behind the first `size` lies on a multiple of ALIGNMENT."""
    memory = Memory(capacity + ALIGNMENT, np.uint8)
    offset = -(memory.__array_interface__["data"][0] + size) % ALIGNMENT
    return memory[offset : offset + capacity].view(Memory)

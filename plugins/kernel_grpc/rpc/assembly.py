"""Messages out of a call's bytes: the five bytes before each, and its memory while it arrives.

A message's memory is its call's own: small ones are `bytes`, large ones a `MessageMemory`, writable, and lies so that its end is
on a multiple of 64: the last tensor of a request, often the only one, is then aligned for whatever its elements are.
Nothing is taken on the strength of a length alone: what has come is counted in the account of the process, a step ahead; memory
is reserved untouched once there is something to put there, and a huge message that outgrows it moves without being copied.
"""

from __future__ import annotations

import ctypes
from struct import Struct
from typing import Any

import numpy as np

from kernel import Account, MappedMemory, MemoryBudget
from kernel_grpc.http2 import Data, Sink

__all__ = [
    "ALIGNMENT",
    "BELIEVED",
    "LARGE",
    "MAX_MESSAGE",
    "PREFIX",
    "RESERVE",
    "Assembly",
    "Growing",
    "Message",
    "MessageError",
    "MessageMemory",
    "aligned",
]  # fmt: skip

#: What stands before each message: whether it is compressed, and its length.
PREFIX = Struct(">BI")

#: The largest message that is taken, as by the reference.
MAX_MESSAGE = 2**31 - 1

#: From this size on, a message is a MessageMemory.
LARGE = 16 * 1024

#: What a message may have without being counted; more is taken from the account so much at a time.
SMALL = MemoryBudget.SMALL
STEP = 1024 * 1024

#: The most memory that is reserved, untouched, for a message of which BELIEVED has come, unless the account has less left; a
#: larger one has a mapping that grows. Before, it is BELIEVED: who touches a byte of what is reserved may get a page of two
#: megabytes, so that many messages of which little comes would take far more than they sent.
RESERVE = 64 * 1024 * 1024
BELIEVED = 1024 * 1024 + 64 * 1024  # of a tensor of a megabyte all

ALIGNMENT = 64


class MessageMemory(np.ndarray[Any, Any]):
    """The memory of a large message, of type uint8. `MessageMemory(n, np.uint8)` is not filled.

    A subclass on purpose. numpy has a view of a view refer to the last array below that is of no subclass: if the memory were
    such a one, a view that a model takes of its tensor would refer to the memory and not to the tensor's array, and reference
    counts could not tell whether the model keeps it.
    """


Message = bytes | MessageMemory


class MessageError(Exception):
    """Bytes that can't be a message. `status`: whose fault it is, in gRPC's numbers."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Assembly(Sink):
    """What has come of one call's messages. Feed it; take `message` whenever there is one.

    It is its stream's sink: of a message that is arriving, `at` bytes are in `view`. `lent`: what has been taken from the
    account, for who has the message to give back. `limit`: the largest message that is taken.
    """

    __slots__ = ("_account", "_buffer", "_map", "_prefix", "_size", "_taken", "begun", "compressed", "lent", "limit", "message")

    def __init__(self, account: Account, limit: int = MAX_MESSAGE) -> None:
        super().__init__()
        self.limit = limit
        self.lent = 0
        self.begun = 0  # how many messages have come in pieces
        self._account = account
        self._taken = 0  # of what was lent, for the message that is arriving
        self._map: Growing | None = None
        self.message: Message | None = None  # complete, and not fetched yet
        self.compressed = False
        self._prefix = b""
        self._size = -1  # of the message that is arriving, -1 between messages
        self._buffer: MessageMemory | bytearray = bytearray()

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
            if size > self.limit:
                raise MessageError(8, f"a message of {size} bytes; the largest that is taken has {self.limit}")
            self.compressed = compressed == 1
            if size < LARGE and stop - start >= size:
                self.message = bytes(data[start : start + size])
                return start + size
            self._begin(size, stop - start)
        count = min(stop - start, self._size - self.at)
        if count:
            if len(self.view) - self.at < count:
                self._grow(count)
            self.view[self.at : self.at + count] = memoryview(data)[start : start + count]
            self.at += count
        if self.at >= self.end:
            self._go_on()
        return start + count

    def space(self) -> memoryview | None:
        """Return where the bytes that come next may be put, or None where they don't all belong to a message."""
        if self._size < 0:
            return None
        if self.at == len(self.view):
            self._grow(1)
        return self.view[self.at :]

    def filled(self, count: int) -> None:
        """`count` bytes have been put into `space()`. Raises MessageError."""
        self.at += count
        if self.at >= self.end:
            self._go_on()

    def give_back(self) -> None:
        """Give back what was lent."""
        self._account.give_back(self.lent)
        self.lent = self._taken = 0

    def _begin(self, size: int, here: int) -> None:
        """Begin a message of which `here` bytes have come, or fewer."""
        self._size = size
        self.begun += 1
        self.at = self._taken = 0
        if size < LARGE:
            self._buffer = bytearray(size)
            self.view = memoryview(self._buffer)
        else:
            self._buffer = aligned(min(size, SMALL if here <= SMALL else BELIEVED), size)
            self.view = self._buffer.data
        self.end = min(len(self.view), SMALL)

    def _go_on(self) -> None:
        """What may come without being counted has come: end the message, or count more of it. Raises MessageError."""
        if self.at == self._size:
            if SMALL < self.at > self._taken:  # it came in pieces that are larger than the steps
                self._account.add(self.at - self._taken)
                self.lent += self.at - self._taken
            self._complete()
            return
        if self.at >= max(SMALL, self._taken):
            more = min(self._size, self.at + STEP) - self._taken
            if not self._account.take(more):
                raise MessageError(8, self._account.refusal().message)
            self.lent += more
            self._taken += more
        self.end = min(len(self.view), max(SMALL, self._taken))

    def _grow(self, count: int) -> None:
        """Make room for `count` bytes more."""
        size, at, old = self._size, self.at, self.view
        reserve = BELIEVED
        if at + count > BELIEVED:  # so much is here
            reserve = max(2 * len(old), min(RESERVE, at + self._account.left))
        capacity = min(size, max(reserve, at + count))
        if size <= RESERVE or not MappedMemory.AVAILABLE:
            buffer = aligned(capacity, size)
            buffer.data[:at] = old[:at]
        elif self._map is None:
            self._map = Growing(-size % ALIGNMENT)
            buffer = self._map.grow(capacity)
            buffer.data[:at] = old[:at]
        else:
            self.view = old = memoryview(b"")
            self._buffer = bytearray()  # growing may move the memory, so no view of it may be left
            buffer = self._map.grow(capacity)
        self._buffer = buffer
        self.view = buffer.data
        self.end = min(capacity, max(SMALL, self._taken))

    def _complete(self) -> None:
        buffer = self._buffer
        self.message = buffer if isinstance(buffer, MessageMemory) else bytes(buffer)
        self._size = -1
        self._buffer = bytearray()
        self._map = None
        self.view = memoryview(b"")
        self.at = self.end = 0


class Growing:
    """Memory that grows by being moved, not copied; only where MappedMemory is to be had. `offset`: how far behind a page's
    beginning it begins.
    """

    __slots__ = ("_map", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._map: MappedMemory | None = None

    def grow(self, capacity: int) -> MessageMemory:
        """Return it with room for so many bytes. Nobody may hold what was returned before. Raises MemoryError."""
        size = self.offset + capacity
        try:
            if self._map is None:
                self._map = MappedMemory(size)
            else:
                self._map.resize(size)
        except OSError as error:
            raise MemoryError(str(error)) from None
        return MessageMemory((capacity,), np.uint8, self._map, self.offset)

    def ending(self, memory: MessageMemory, size: int) -> MessageMemory:
        """Return the first `size` bytes of `memory`, moved so that their end lies on a multiple of ALIGNMENT."""
        assert self._map is not None
        shift = (self.offset + size) % ALIGNMENT
        if shift > self.offset:
            shift -= ALIGNMENT  # up instead of down
        if shift:
            address = memory.__array_interface__["data"][0]
            ctypes.memmove(address - shift, address, size)  # does not hold the interpreter
        return MessageMemory((size,), np.uint8, self._map, self.offset - shift)


def aligned(capacity: int, size: int) -> MessageMemory:
    """Return `capacity` bytes that lie so that the byte behind the first `size` lies on a multiple of ALIGNMENT."""
    memory = MessageMemory(capacity + ALIGNMENT, np.uint8)
    offset = -(memory.__array_interface__["data"][0] + size) % ALIGNMENT
    return memory[offset : offset + capacity].view(MessageMemory)

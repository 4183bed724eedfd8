"""A request's body while it arrives: where its bytes go.

Two parts, the JSON part and the binary tail, each in memory of its own, so that the tail's tensors are aligned and
belong to the request alone. Memory is reserved without being written to, and at most RESERVE of it on the strength of a length
alone. Nothing large is copied, but for once what was reserved first: the loop waits for copies. What has come is counted in the
server's budget, but for the little that every message has; where that is used up, the body is refused.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from kernel import Account, MemoryBudget
from kernel_http.connection.heads import Head

__all__ = ["Body", "BodyMemory", "ChunkError", "ChunkedBody", "Oversize", "too_large"]

#: The most memory that is reserved on the strength of a Content-Length alone. Once as much has come, all of it is. It is small:
#: the loop waits while it is copied then, and the allocator keeps it, which is of no use to a body that is larger.
RESERVE = 1024 * 1024

#: A JSON part of more bytes is handed over in the memory that it has come into, others as bytes.
COPIED = 64 * 1024

#: How much is taken from the budget at a time.
STEP = 1024 * 1024

#: The most lines between chunks that are looked at in one go: each takes about a microsecond.
LINES = 512

#: The longest chunk-size line, and the most bytes of trailers, of a chunked body.
MAX_LINE = 4096
MAX_TRAILERS = 16 * 1024

#: A chunk's size, with what may stand behind it, which is not looked at; a field of the trailers. Without the CR LF at the end.
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*+(?:;[^\x00-\x08\x0a-\x1f\x7f]*+)?")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++:[^\x00-\x08\x0a-\x1f\x7f]*+")


class BodyMemory(np.ndarray[Any, Any]):
    """The memory that the arrays of one request lie in. `BodyMemory(n, np.uint8)` is not filled.

    A type of its own, so that references tell who keeps what. numpy has a view of a view refer to the array at the bottom, as
    long as all are of one type. If this were a mere array, a model's view of its input would refer to it, past the input's array,
    whose references would not tell that the model keeps a part of it.
    """


Bytes = bytes | bytearray | BodyMemory


class Counted:
    """What has come of a body, in the budget's `account`; None: nobody counts. `refused`: there is no memory for more of it.

    `held`: bytes that were taken, and are to be given back.
    """

    __slots__ = ("_account", "_granted", "held", "refused")

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self._granted = MemoryBudget.SMALL
        self.held = 0
        self.refused = False

    def _count(self, size: int) -> None:
        """`size` bytes are more than was granted."""
        account = self._account
        if account is None:
            self._granted = size
            return
        step = max(STEP, size - self._granted)
        if account.take(step):
            self.held += step
            self._granted += step
        else:
            self.refused = True

    def give_back(self) -> None:
        """Nothing of the body is held any more."""
        held, self.held = self.held, 0
        if held and self._account is not None:
            self._account.give_back(held)


class Body(Counted):
    """A body of known length. Bytes are received straight into `space()`, then announced with `received(n)`."""

    __slots__ = ("_buffer", "_filled", "_finished", "_size", "_sizes", "began", "complete", "discard", "head", "length", "seen")

    def __init__(self, head: Head, limit: int, scratch: bytearray, account: Account | None = None) -> None:
        """`limit`: the largest JSON part, or body without one, that is kept; a larger one is thrown away.

        So is a body that nobody will read. Raises MemoryError.
        """
        super().__init__(account)
        length = head.content_length
        split = head.json_length if head.json_length is not None else length
        if not 0 <= split <= length:
            split = length  # the handler will refuse it
        self.head = head
        self.length = length
        self.seen = 0  # how many bytes have come
        self.began = 0.0  # when the first of them did
        self.discard = scratch if head.refusal is not None or (split or length) > limit else None
        self.complete = False
        self._sizes = (split, length - split)
        self._finished: list[BodyMemory] = []
        self._begin()

    def _begin(self) -> None:
        while len(self._finished) < 2:
            self._size = self._sizes[len(self._finished)]
            self._filled = 0
            self._buffer = BodyMemory(min(self._size, 0 if self.discard else RESERVE), np.uint8)
            if self._size:
                return
            self._finished.append(self._buffer)
        self.complete = True

    def space(self) -> memoryview:
        """Return where the next bytes go; never more than what is missing."""
        if self.discard is not None:
            return memoryview(self.discard)[: self._size - self._filled]
        return self._buffer.data[self._filled :]

    def received(self, count: int) -> None:
        self.seen += count
        self._filled += count
        if self.seen > self._granted and self.discard is None:
            self._count(self.seen)
        if self._filled == self._size:
            self._finished.append(self._buffer)
            self._begin()
        elif self._filled == len(self._buffer) and self.discard is None:
            self._grow()

    def _grow(self) -> None:
        """Reserve all of it: so much has come that the rest may be believed in, and nothing is copied twice."""
        try:
            grown = BodyMemory(self._size, np.uint8)
        except MemoryError:
            self.refused = True
            return
        grown[: self._filled] = self._buffer
        self._buffer = grown

    def feed(self, data: bytearray, at: int, end: int) -> int:
        """Copy from `data[at:end]` what belongs to this body; return where it ended."""
        while at < end and not self.complete:
            space = self.space()
            count = min(len(space), end - at)
            if self.discard is None:
                space[:count] = data[at : at + count]
            self.received(count)
            at += count
        return at

    def parts(self) -> tuple[Any, Bytes]:
        """Return the JSON part and the tail of a complete body; both are empty where it was thrown away.

        The JSON part is bytes, where it isn't large (COPIED).
        """
        json, tail = self._finished
        return json.tobytes() if len(json) <= COPIED else json, tail


def too_large(head: Head, length: int, limit: int) -> str:
    """Say that a body exceeds `--http-max-input-size`, which is `limit`. `length`: of the whole body, in bytes."""
    if head.json_length == 0:
        text = f"Raw input has a byte_size ({length} bytes) that exceeds the maximum allowed value of {limit}"
    else:
        size = head.json_length if head.json_length is not None and 0 < head.json_length <= length else length
        text = f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit}"
    return f"{text} bytes. Use --http-max-input-size to increase the limit."


class ChunkError(Exception):
    """A chunked body that breaks the rules of its framing."""


class Oversize(Exception):
    """A body of unknown length that is larger than any message may be."""


class ChunkedBody(Counted):
    """A chunked body. Feed it; it says how far it went. `most`: how many bytes any message may have."""

    __slots__ = (
        "_line",
        "_missing",
        "_split",
        "_trailers",
        "began",
        "complete",
        "content",
        "discard",
        "head",
        "length",
        "limit",
        "most",
        "seen",
        "tail",
    )

    def __init__(self, head: Head, limit: int, most: int, account: Account | None = None) -> None:
        super().__init__(account)
        self.head = head
        # A JSON part whose announced length is within the limit is followed by a tail, which only the message's limit bounds.
        self.limit = most if 0 < (head.json_length or 0) <= limit else limit
        self.most = most
        self.content = bytearray()  # up to where the tail is said to begin
        self.tail = bytearray()
        split = head.json_length
        self._split = split if split is not None and split >= 0 else most
        self.length = 0  # of the content, thrown away or not
        self.seen = 0  # how many bytes have come, framing included
        self.began = 0.0  # when it began to come in
        self.discard = head.refusal is not None
        self.complete = False
        self._line = b""  # a line that is not complete yet
        self._missing = 0  # bytes of the current chunk; -1: its closing empty line; -2: the trailers
        self._trailers = 0

    def feed(self, data: bytearray, at: int, end: int) -> int:
        """Take from `data[at:end]` what belongs to this body; return where it ended, or where there were enough lines for now.

        Raises ChunkError and Oversize.
        """
        start, lines = at, 0
        while at < end and not self.complete and lines < LINES:
            if self._missing > 0:
                count = min(self._missing, end - at)
                self.length += count
                if self.length > self._granted and not self.discard:
                    self._count(self.length)
                if self.length > self.most:
                    raise Oversize
                if self.discard or self.length > self.limit:
                    self.discard = True
                    self.content.clear()
                    self.tail.clear()
                else:
                    self._keep(memoryview(data)[at : at + count])
                at += count
                self._missing -= count
                if not self._missing:
                    self._missing = -1
                continue
            stop = data.find(b"\n", at, end)
            line = self._line + data[at : stop if stop >= 0 else end]
            if len(line) > MAX_LINE:
                raise ChunkError("a line between chunks is too long")
            if stop < 0:
                self._line = line
                at = end
                break
            self._line = b""
            at = stop + 1
            lines += 1
            self._take(line)
        self.seen += at - start
        return at

    def _keep(self, data: memoryview) -> None:
        """Add to what has come of the content, either part in memory of its own."""
        lacks = self._split - len(self.content)
        if len(data) <= lacks:
            self.content += data
            return
        if lacks > 0:
            self.content += data[:lacks]
            data = data[lacks:]
        self.tail += data

    def _take(self, line: bytes) -> None:
        if not line.endswith(b"\r"):
            raise ChunkError("a line between chunks does not end in CR LF")
        line = line[:-1]
        if self._missing == -1:
            if line:
                raise ChunkError("a chunk is longer than its size says")
            self._missing = 0
        elif self._missing == -2:
            self._trailers += len(line)
            if self._trailers > MAX_TRAILERS:
                raise ChunkError("the trailers are too long")
            if line and not _FIELD.fullmatch(line):
                raise ChunkError("a line of the trailers is no header field")
            self.complete = not line
        else:
            if b"\r" in line:
                raise ChunkError("there is a CR within a chunk's line")
            size = _SIZE.fullmatch(line)
            if size is None:
                raise ChunkError("a chunk's size is no hexadecimal number, or there are control characters behind it")
            self._missing = int(size[1], 16) or -2

    def parts(self) -> tuple[Any, Bytes]:
        """As of a body of known length."""
        if self.discard:
            return b"", bytearray()
        return bytes(self.content) if len(self.content) <= COPIED else self.content, self.tail

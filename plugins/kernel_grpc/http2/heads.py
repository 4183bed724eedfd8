"""HEADERS and CONTINUATION: requests that begin, trailers, and blocks that don't belong where they come (RFC 9113, 5.1, 6.2, 8).

A header block is gathered, within bounds, before anybody looks at it, and is decoded in any case: the table that the next
one needs depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_grpc.http2.blocks import MAX_BLOCK, Blocks
from kernel_grpc.http2.bodies import Bodies
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.fields import Head, trailers_fault
from kernel_grpc.http2.floods import Floods
from kernel_grpc.http2.frames import CONTINUATION, END_HEADERS, END_STREAM, PADDED, PRIORITY_FLAG, SETTINGS
from kernel_grpc.http2.history import History
from kernel_grpc.http2.outgoing import Outgoing
from kernel_grpc.http2.stream import Data, Home, Stream

__all__ = ["MAX_FRAGMENTS", "Heads"]

#: The most frames that one header block may be spread over.
MAX_FRAGMENTS = 64

#: So many bytes of a block that has not come before are as much work as one field (Floods).
BYTES = 128

#: A header list that is longer than was announced costs as much as this many frames that bring nothing.
LARGE_COST = 20


class Heads:
    """What a connection does with header blocks.

    `open_stream(home, stream_id, head, ended)` makes the Stream of a new request, or answers it at once. `home`, the connection,
    comes with each frame and is not kept: what a connection that has gone has held is not to wait for the garbage collector.
    `known`: what blocks say that have come before, as long as the table is what it was then.
    `expected`: the only type of frame that may come next, None where any may. `fragments_of`: the flags and the stream id of the
    block that is gathered.
    """

    def __init__(
        self,
        open_stream: Callable[[Any, int, Head, bool], Stream],
        outgoing: Outgoing,
        history: History,
        floods: Floods,
        bodies: Bodies,
    ) -> None:
        self._open_stream = open_stream
        self._streams = outgoing.streams
        self._history = history
        self._floods = floods
        self._bodies = bodies
        self._blocks = Blocks()
        self.known = self._blocks.known
        self.expected: int | None = SETTINGS
        self.fragments_of = (0, 0)
        self._fragments = bytearray()  # of a header block
        self._fragment_count = 0

    def headers(self, home: Home, flags: int, stream_id: int, data: Data, start: int, stop: int) -> None:
        """Take a HEADERS frame, whose payload is `data[start:stop]`."""
        if flags & (PADDED | PRIORITY_FLAG):
            length = stop - start
            needed = (1 if flags & PADDED else 0) + (5 if flags & PRIORITY_FLAG else 0)
            if length < needed:
                text = f"a HEADERS frame of {length} bytes; its flags say at least {needed}"
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, text)
            padding = data[start] if flags & PADDED else 0
            if padding > length - needed:
                text = f"{padding} bytes of padding in a HEADERS frame of {length}"
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, text)
            start, stop = start + needed, stop - padding
        if flags & END_HEADERS:
            self._block(home, flags, stream_id, bytes(data[start:stop]))
            return
        self.expected = CONTINUATION
        self._fragments += data[start:stop]
        self.fragments_of = flags, stream_id
        self._fragment_count = 1

    def continuation(self, home: Home, flags: int, stream_id: int, data: Data, start: int, stop: int) -> None:
        """Take a CONTINUATION frame, whose payload is `data[start:stop]`."""
        if self.expected is None:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without a header block to continue")
        self._fragments += data[start:stop]
        self._fragment_count += 1
        if len(self._fragments) > MAX_BLOCK or self._fragment_count > MAX_FRAGMENTS:
            text = f"a header block in more than {MAX_FRAGMENTS} frames, or longer than {MAX_BLOCK} bytes"
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, text)
        if flags & END_HEADERS:
            block = bytes(self._fragments)
            self._fragments.clear()
            self.expected = None
            self._block(home, self.fragments_of[0], stream_id, block)

    def _block(self, home: Home, flags: int, stream_id: int, block: bytes) -> None:
        """Take a whole header block."""
        head = self.known.get(block)
        if head is None:
            head = self._decode(block)
        history = self._history
        if stream_id <= history.last_id or not stream_id & 1 or len(self._streams) >= history.limit:
            self._other_block(flags, stream_id, head)
            return
        if stream_id > history.last_id + 2:
            history.leave_gap(stream_id)
        history.last_id = stream_id
        ended = flags & END_STREAM == END_STREAM
        if head.fault:
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, head.fault)
        if ended and head.content_length:
            text = f"content-length is {head.content_length}, and nothing follows"
            raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, text)
        stream = self._open_stream(home, stream_id, head, ended)
        if ended and not stream.done:
            taken = stream.received(b"", 0, 0, True)
            if taken is not None and not stream.done:
                self._bodies.keep_back(stream, b"", 0, 0, True)

    def _decode(self, block: bytes) -> Head:
        if len(block) > MAX_BLOCK:
            text = f"a header block of {len(block)} bytes; {MAX_BLOCK} are enough"
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, text)
        head = self._blocks.decode(block)
        self._floods.turn -= len(head.fields) + len(block) // BYTES
        if head.too_large:
            self._floods.useless("a header list that is longer than was announced", LARGE_COST)
        return head

    def _other_block(self, flags: int, stream_id: int, head: Head) -> None:
        """Take a header block that opens no stream: trailers, or one that is not welcome."""
        if not stream_id & 1:
            text = f"HEADERS on stream {stream_id}; clients open odd ones"
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, text)
        stream = self._streams.get(stream_id)
        if stream is not None:
            if stream.ended:
                raise StreamFailure(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS behind the end of the stream")
            if not flags & END_STREAM:
                raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, "a second header block that does not end the stream")
            if fault := trailers_fault(head.fields):
                raise StreamFailure(stream_id, ErrorCode.PROTOCOL_ERROR, fault)
            if stream.left is not None:
                self._bodies.count(stream, 0, True)
            self._bodies.deliver(stream, b"", 0, 0, True)
            return
        history = self._history
        if stream_id > history.last_id and history.final_id is None:
            history.last_id = stream_id
            text = f"{history.limit} streams are open, more than that are not taken"
            raise StreamFailure(stream_id, ErrorCode.REFUSED_STREAM, text)
        history.must_be_no_gap(stream_id)
        history.must_be_late(stream_id, "HEADERS")
        self._floods.useless("HEADERS")

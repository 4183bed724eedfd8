"""Finds gRPC calls in the bytes that pass on one connection. Without I/O; what it can't follow it lets go.

The law: that of exchanges.py. What is kept is bounded, and nothing that passes makes it fail: where bytes are no HTTP/2 that
can be followed, the connection is not looked at any more.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

import hpack

from kernel.errors import Code, ServingError, clipped
from kernel.shadow.exchanges import MOST_BODY, MOST_HEAD, NotFollowed, Room

__all__ = ["BEGIN", "MOST_UNPACKED", "Packed", "SeenCall", "SeenCalls", "TooMuch", "messages_of"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

#: Types of frames, and flags.
DATA, HEADERS, RST_STREAM, PUSH_PROMISE, CONTINUATION = 0, 1, 3, 5, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 32
FRAME = 9  # bytes in front of each

#: How many calls may be under way on one connection, and how much the tables of its header blocks may have.
MOST_CALLS = 10_000
MOST_TABLE = 64 * 1024

#: How much a message may have when unpacked, and how many messages one side may send: the shortest have five bytes, and become
#: hundreds.
MOST_UNPACKED = 256 * 1024 * 1024
MOST_MESSAGES = 10_000

#: How much is kept of the name of a packing: many calls may be under way, and a name costs who sends it again one byte.
LONGEST_PACKING = 32

#: So much of each request is kept, whoever looks at it: the name of its model stands in front.
BEGIN = 512


class TooMuch(ServingError):
    """One side has sent more than is looked at."""

    def __init__(self, words: str) -> None:
        super().__init__(Code.UNKNOWN, words)


@dataclass
class Packed:
    """What one side has said: its messages as they stand in the frames, and how they are packed."""

    body: bytearray = field(default_factory=bytearray)
    packing: str = "identity"
    ended: bool = False


@dataclass
class SeenCall:
    """A call. `kept`: all of it is; else only the begin of its request. `cut`: there was no room for all. `status`: -1 before its
    end.
    """

    path: str
    kept: bool
    request: Packed = field(default_factory=Packed)
    answer: Packed = field(default_factory=Packed)
    cut: bool = False
    status: int = -1
    words: str = ""
    size: int = 0


class SeenCalls:
    """One connection.

    `wanted(path)`: whether all of a call is to be kept, None where it is none of those that are looked for; asked as it begins.
    `done(call)`: one that is looked for has ended with a status; who is told gives its `size` back to the room.
    """

    def __init__(self, room: Room, wanted: Callable[[str], bool | None], done: Callable[[SeenCall], None]) -> None:
        self.lost = False
        self._room = room
        self._wanted = wanted
        self._done = done
        self._calls: dict[int, SeenCall] = {}
        self._client = _Direction(PREFACE, self._asked, lambda call: call.request, self)
        self._upstream = _Direction(b"", self._answered, lambda call: call.answer, self)

    def from_client(self, data: bytes) -> None:
        self._feed(self._client, data)

    def from_upstream(self, data: bytes) -> None:
        self._feed(self._upstream, data)

    def ended(self) -> None:
        """The connection is closed: what is not complete is forgotten."""
        self.lost = True
        for call in self._calls.values():
            self._room.free(call.size)
        self._calls.clear()

    def _feed(self, side: _Direction, data: bytes) -> None:
        if self.lost:
            return
        try:
            side.feed(data)
        except (NotFollowed, hpack.HPACKError, ValueError, IndexError):
            self.ended()

    # -- what a side has found -----------------------------------------------------------------------------------------

    def call(self, number: int) -> SeenCall | None:
        return self._calls.get(number)

    def _asked(self, number: int, fields: dict[str, str]) -> None:
        if ":path" not in fields:
            return  # trailers of a request
        path = fields[":path"]
        kept = self._wanted(path)
        if kept is None:
            return
        if len(self._calls) >= MOST_CALLS or number in self._calls:
            raise NotFollowed
        call = self._calls[number] = SeenCall(path, kept)
        call.request.packing = fields.get("grpc-encoding", "identity")[:LONGEST_PACKING]

    def _answered(self, number: int, fields: dict[str, str]) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        call.answer.packing = fields.get("grpc-encoding", call.answer.packing)[:LONGEST_PACKING]
        status = fields.get("grpc-status", "")
        if status.isascii() and status.isdigit() and len(status) < 4:
            call.status, call.words = int(status), unquote(fields.get("grpc-message", ""), errors="replace")

    def keep(self, call: SeenCall, packed: Packed, data: bytes | memoryview) -> None:
        if not call.kept:
            if packed is not call.request:
                return
            data = data[: max(0, BEGIN - len(packed.body))]
        elif call.cut:
            return
        if len(packed.body) + len(data) > MOST_BODY or not self._room.take(len(data)):
            call.cut = True
            return
        packed.body += data
        call.size += len(data)

    def over(self, number: int, call: SeenCall, packed: Packed) -> None:
        """One side of a call has ended; that of the upstream ends it."""
        packed.ended = True
        if packed is call.answer:
            del self._calls[number]
            if call.status >= 0:
                self._done(call)
            else:
                self._room.free(call.size)

    def reset(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            self._room.free(call.size)


class _Direction:
    """One direction: frames, of which those with data are not gathered."""

    def __init__(
        self, preface: bytes, headed: Callable[[int, dict[str, str]], None], which: Callable[[SeenCall], Packed], calls: SeenCalls
    ) -> None:
        self._preface = preface
        self._headed = headed
        self._which = which
        self._calls = calls
        self._decoder = hpack.Decoder(max_header_list_size=MOST_HEAD)
        self._decoder.max_allowed_table_size = MOST_TABLE
        self._rest = bytearray()
        self._need = 0  # how much there has to be before it is looked at again
        self._left = self._padding = 0  # bytes of a frame of data that are still to come, and how many of them say nothing
        self._stream = 0  # whose they are
        self._last = False  # and whether that side ends with them
        self._skip = 0  # bytes of a frame that nobody looks at
        self._block = bytearray()  # what has come of a header block
        self._block_of: tuple[int, bool] | None = None

    def feed(self, data: bytes) -> None:
        rest = self._rest
        rest += data
        if len(rest) < self._need:
            return
        view, at, self._need = bytes(rest), 0, 0
        rest.clear()
        if self._preface:
            if len(view) < len(PREFACE):
                rest += view
                return
            if not view.startswith(PREFACE):
                raise NotFollowed
            self._preface, at = b"", len(PREFACE)
        while at < len(view):
            if self._left or self._skip:
                at = self._more(view, at)
                continue
            taken = self._frame(view, at)
            if not taken:
                break
            at += taken
        rest += view[at:]

    def _more(self, view: bytes, at: int) -> int:
        """Take more of a frame whose begin has come; return up to where."""
        if self._skip:
            taken = min(self._skip, len(view) - at)
            self._skip -= taken
            return at + taken
        taken = min(self._left, len(view) - at)
        useful = min(taken, max(0, self._left - self._padding))
        self._left -= taken
        call = self._calls.call(self._stream)
        if call is not None:
            if useful:
                self._calls.keep(call, self._which(call), memoryview(view)[at : at + useful])
            if not self._left and self._last:
                self._calls.over(self._stream, call, self._which(call))
        return at + taken

    def _frame(self, view: bytes, at: int) -> int:
        """Take a frame, or the begin of one; return how much, 0 where more has to come first."""
        if len(view) - at < FRAME:
            return 0
        length = int.from_bytes(view[at : at + 3], "big")
        kind, flags = view[at + 3], view[at + 4]
        number = int.from_bytes(view[at + 5 : at + 9], "big") & 0x7FFFFFFF
        if (self._block_of is not None) != (kind == CONTINUATION) or kind == PUSH_PROMISE:
            raise NotFollowed
        if kind == DATA:
            return self._data(view, at, length, flags, number)
        if kind not in (HEADERS, CONTINUATION):
            if kind == RST_STREAM:
                self._calls.reset(number)
            self._skip = length
            return FRAME
        if length + len(self._block) > MOST_HEAD:
            raise NotFollowed
        if len(view) - at < FRAME + length:
            self._need = FRAME + length
            return 0
        self._fragment(view[at + FRAME : at + FRAME + length], kind, flags, number)
        return FRAME + length

    def _data(self, view: bytes, at: int, length: int, flags: int, number: int) -> int:
        begin = 0
        self._padding = 0
        if flags & PADDED:
            if len(view) - at < FRAME + 1:
                return 0
            begin, self._padding = 1, view[at + FRAME]
            if self._padding >= length:
                raise NotFollowed
        self._stream, self._last, self._left = number, bool(flags & END_STREAM), length - begin
        if not self._left and self._last and (call := self._calls.call(number)) is not None:
            self._calls.over(number, call, self._which(call))
        return FRAME + begin

    def _fragment(self, data: bytes, kind: int, flags: int, number: int) -> None:
        if kind == HEADERS:
            begin, end = 0, len(data)
            if flags & PADDED:
                begin, end = 1, end - data[0]
            begin += 5 if flags & PRIORITY else 0
            if begin > end:
                raise NotFollowed
            data = data[begin:end]
            self._block_of = number, bool(flags & END_STREAM)
        self._block += data
        if not flags & END_HEADERS:
            return
        assert self._block_of is not None
        (number, last), self._block_of = self._block_of, None
        block = bytes(self._block)
        self._block.clear()
        fields = {_text(name): _text(value) for name, value in self._decoder.decode(block, raw=True)}
        self._headed(number, fields)
        if last and (call := self._calls.call(number)) is not None:
            self._calls.over(number, call, self._which(call))


def _text(data: bytes | str) -> str:
    return data.decode("latin-1") if isinstance(data, bytes) else data


def messages_of(packed: Packed) -> list[bytes]:
    """Return the messages that one side has sent, unpacked. Raises ServingError."""
    found: list[bytes] = []
    body, at, room = memoryview(bytes(packed.body)), 0, MOST_UNPACKED
    while at < len(body):
        size = int.from_bytes(body[at + 1 : at + 5], "big")
        end = at + 5 + size
        if len(found) >= MOST_MESSAGES:
            raise TooMuch(f"it has more than {MOST_MESSAGES} messages")
        if end > len(body):
            raise ServingError(Code.UNKNOWN, "it ends in the middle of a message")
        message = bytes(body[at + 5 : end])
        if body[at]:
            message = _unpacked(message, packed.packing, room)
        room -= len(message)
        found.append(message)
        at = end
    return found


def _unpacked(data: bytes, how: str, most: int) -> bytes:
    if how not in ("gzip", "deflate"):
        raise ServingError(Code.UNSUPPORTED, f"it is packed by '{clipped(how)}'")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        found = unpacker.decompress(data, max(1, most))
    except zlib.error as error:
        raise ServingError(Code.UNKNOWN, f"it can't be unpacked: {error}") from None
    if unpacker.unconsumed_tail:
        raise TooMuch(f"it has more than {MOST_UNPACKED} bytes unpacked")
    return found

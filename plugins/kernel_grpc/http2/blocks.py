"""Header blocks (RFC 7541): those of requests to Heads, and the few that a server sends.

The tables are the `hpack` package's; its decoder takes thirty to sixty microseconds for a block in which an id or a deadline is
new, so blocks are read here. One that leaves the dynamic table alone means the same as long as the table stays as it is: it is
remembered, and the next request with the same bytes costs one look-up. What a server sends is written without the table: such
blocks are constants, right on every connection and in any order.
"""

from __future__ import annotations

from hpack.table import HeaderTable

from kernel_grpc.http2 import huffman
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode
from kernel_grpc.http2.fields import Field, Head

__all__ = ["MAX_BLOCK", "MAX_HEADER_LIST", "Blocks", "literal", "response", "status"]

#: The longest header list that is taken, as announced. A longer one is refused for its request alone, unless it is longer than
#: HARD_LIMIT: then it is not read to its end, which ends the connection, as the table's state is unknown.
MAX_HEADER_LIST = 16 * 1024
HARD_LIMIT = 64 * 1024

#: The longest header block, still compressed.
MAX_BLOCK = 64 * 1024

#: The size of the dynamic table: the standard's, which we don't change; a client may use less.
TABLE_SIZE = HeaderTable.DEFAULT_SIZE

#: The most changes of the table's size in one block (section 4.2).
MAX_RESIZES = 2

#: Bounds of what is remembered of one connection.
REMEMBERED = 128
REMEMBERED_SIZE = 512

STATIC = HeaderTable.STATIC_TABLE
FIRST_DYNAMIC = len(STATIC) + 1

#: How a field begins, by its first bits (section 6): out of a table, entering the table, changing the table's size; or neither.
INDEXED = 0x80
ENTERING = 0x40
RESIZE = 0x20


class Blocks:
    """One connection's header blocks. `known`: block -> Head, valid for the table as it is now."""

    __slots__ = ("_changed", "_table", "known")

    def __init__(self) -> None:
        self._table = HeaderTable()
        self._changed = False  # the table is no longer what it was when the block began
        self.known: dict[bytes, Head] = {}

    def decode(self, block: bytes) -> Head:
        """Return what a block says that is not among the known ones. Raises ConnectionFailure."""
        self._changed = False
        try:
            fields, size = self._read(block)
        except IndexError:
            raise _fault("it is cut off") from None
        except ValueError as error:
            raise _fault(str(error)) from None
        head = Head(fields, size, MAX_HEADER_LIST)
        if self._changed:
            self.known.clear()
        elif len(block) <= REMEMBERED_SIZE:
            if len(self.known) >= REMEMBERED:
                self.known.clear()
            self.known[block] = head
        return head

    def _read(self, block: bytes) -> tuple[list[Field], int]:
        """Return a block's fields and their size. Raises IndexError where it is cut off, ValueError or ConnectionFailure."""
        fields: list[Field] = []
        at, end, size = 0, len(block), 0
        while at < end:
            byte = block[at]
            at += 1
            if byte >= INDEXED:
                index = byte & 0x7F
                if index == 0x7F:
                    index, at = _number(block, at, index)
                field = STATIC[index - 1] if 0 < index < FIRST_DYNAMIC else self._entry(index)
            else:
                if byte >= ENTERING:
                    index = byte & 0x3F
                    if index == 0x3F:
                        index, at = _number(block, at, index)
                elif byte >= RESIZE:
                    at = self._resize(block, at - 1, fields)
                    continue
                else:
                    index = byte & 0x0F
                    if index == 0x0F:
                        index, at = _number(block, at, index)
                if not index:
                    name, at = _text(block, at, end)
                elif index < FIRST_DYNAMIC:
                    name = STATIC[index - 1][0]
                else:
                    name = self._entry(index)[0]
                value, at = _text(block, at, end)
                field = name, value
                if byte >= ENTERING:
                    self._changed = True
                    self._table.add(name, value)
            fields.append(field)
            size += len(field[0]) + len(field[1]) + 32
            if size > HARD_LIMIT:
                text = f"a header list of more than {HARD_LIMIT} bytes; {MAX_HEADER_LIST} are allowed"
                raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, text)
        return fields, size

    def _entry(self, index: int) -> Field:
        """Return an entry of the dynamic table."""
        entries = self._table.dynamic_entries
        if 0 <= index - FIRST_DYNAMIC < len(entries):
            return entries[index - FIRST_DYNAMIC]
        raise ValueError(f"invalid table index {index}")

    def _resize(self, block: bytes, at: int, fields: list[Field]) -> int:
        """Change the table's size as often as the block says from `at` on; return up to where."""
        if fields or self._changed:
            raise ValueError("the table's size is changed behind a field, or too often")
        for _ in range(MAX_RESIZES):
            if at == len(block) or block[at] & 0xE0 != RESIZE:
                break
            size, at = block[at] & 0x1F, at + 1
            if size == 0x1F:
                size, at = _number(block, at, size)
            if size > TABLE_SIZE:
                raise ValueError(f"the table's size is {size}; the largest is {TABLE_SIZE}")
            self._changed = True
            self._table.maxsize = size
        return at


def _fault(text: str) -> ConnectionFailure:
    return ConnectionFailure(ErrorCode.COMPRESSION_ERROR, f"a header block can't be decoded: {text}")


def _number(block: bytes, at: int, number: int) -> tuple[int, int]:
    """Return a number that did not fit behind the first bits, and where it ends (section 5.1)."""
    for shift in (0, 7, 14, 21):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than four bytes")


def _text(block: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return a string, and where it ends (section 5.2)."""
    length = block[at]
    at += 1
    packed = length >= 0x80
    length &= 0x7F
    if length == 0x7F:
        length, at = _number(block, at, length)
    stop = at + length
    if stop > end:
        raise IndexError
    text = block[at:stop]
    return (huffman.unpacked(text) if packed else text), stop


def literal(name: bytes, value: bytes) -> bytes:
    """Return a field as a literal that enters no table (section 6.2.2), not Huffman-coded."""
    return b"\x00" + _string(name) + _string(value)


def status(code: int) -> bytes:
    """Return the field :status."""
    if code == 200:
        return b"\x88"  # entry 8 of the static table
    return b"\x08" + _string(b"%d" % code)  # a literal whose name is that of entry 8


def response(code: int, fields: list[Field]) -> bytes:
    """Return the header block of a response."""
    return status(code) + b"".join(literal(name, value) for name, value in fields)


def _string(text: bytes) -> bytes:
    """Return a string literal (section 5.2)."""
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    length -= 127
    size = bytearray(b"\x7f")
    while length >= 128:
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes(size) + text

"""Header blocks (RFC 7541): those of requests to Heads, and the few that a server sends.

Decoding is the `hpack` package's. A block that was decoded without changing the dynamic table means the same as long as the
table stays as it is: it is remembered, and the next request with the same bytes costs one look-up. Blocks that are all
different, say by the id of a trace, are mostly of the simplest forms; those are read here, with the same table. What a server
sends is written without the table: such blocks are constants, right on every connection and in any order.
"""

from __future__ import annotations

import hpack
from hpack.table import HeaderTable

from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode
from kernel_grpc.http2.fields import Field, Head

__all__ = ["MAX_BLOCK", "MAX_HEADER_LIST", "Blocks", "literal", "response", "status"]

#: The longest header list that is taken, as announced. A longer one is refused for its request alone, unless it is longer than
#: HARD_LIMIT: then it is not even decoded to its end, and the table's state, so the connection, is lost.
MAX_HEADER_LIST = 16 * 1024
HARD_LIMIT = 64 * 1024

#: The longest header block, still compressed.
MAX_BLOCK = 64 * 1024

#: Bounds of what is remembered of one connection.
REMEMBERED = 128
REMEMBERED_SIZE = 512

STATIC = HeaderTable.STATIC_TABLE
FIRST_DYNAMIC = len(STATIC) + 1

#: How a block begins that sets the dynamic table's size, which may evict entries: the first three bits (section 6.3).
RESIZE = 0x20


class _Table(HeaderTable):
    """A dynamic table that counts its additions."""

    additions = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.additions += 1
        super().add(name, value)


class Blocks:
    """One connection's header blocks. `known`: block -> Head, valid for the table as it is now."""

    __slots__ = ("_decoder", "_table", "known")

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(HARD_LIMIT)
        self._table = self._decoder.header_table = _Table()
        self.known: dict[bytes, Head] = {}

    def decode(self, block: bytes) -> Head:
        """Return what a block says that is not among the known ones. Raises ConnectionFailure."""
        additions = self._table.additions
        head = self._read(block) or self._decode(block)
        if additions != self._table.additions or (block[:1] and block[0] & 0xE0 == RESIZE):
            self.known.clear()
        elif len(block) <= REMEMBERED_SIZE:
            if len(self.known) >= REMEMBERED:
                self.known.clear()
            self.known[block] = head
        return head

    def _read(self, block: bytes) -> Head | None:
        """Read a block that leaves the table as it is, and has neither long numbers nor Huffman codes; None for others."""
        fields: list[Field] = []
        entries = self._table.dynamic_entries
        at, size = 0, len(block)
        try:
            while at < size:
                byte = block[at]
                at += 1
                if byte > 0x80:  # an indexed field (section 6.1)
                    index = byte & 0x7F
                    if index == 0x7F:
                        return None
                    fields.append(STATIC[index - 1] if index < FIRST_DYNAMIC else entries[index - FIRST_DYNAMIC])
                    continue
                if byte >= RESIZE:
                    return None
                index = byte & 0x0F  # a literal field that enters no table (sections 6.2.2 and 6.2.3)
                if index == 0x0F:
                    index += block[at]
                    at += 1
                if index:
                    if index >= FIRST_DYNAMIC:
                        return None
                    name = STATIC[index - 1][0]
                else:
                    length = block[at]
                    at += 1 + length
                    name = block[at - length : at]
                    if length >= 0x7F or len(name) < length:
                        return None
                length = block[at]
                at += 1 + length
                value = block[at - length : at]
                if length >= 0x7F or len(value) < length:
                    return None
                fields.append((name, value))
        except IndexError:
            return None
        head = Head(fields, limit=MAX_HEADER_LIST)
        return head if head.size <= HARD_LIMIT else None

    def _decode(self, block: bytes) -> Head:
        try:
            fields = self._decoder.decode(block, raw=True)
        except hpack.OversizedHeaderListError:
            raise ConnectionFailure(
                ErrorCode.ENHANCE_YOUR_CALM, f"a header list of more than {HARD_LIMIT} bytes; {MAX_HEADER_LIST} are allowed"
            ) from None
        except Exception as error:  # hpack lets some of Python's own through, e.g. for a block that ends early
            text = f"a header block can't be decoded: {str(error) or type(error).__name__}"
            raise ConnectionFailure(ErrorCode.COMPRESSION_ERROR, text) from None
        return Head([(bytes(name), bytes(value)) for name, value in fields], limit=MAX_HEADER_LIST)


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

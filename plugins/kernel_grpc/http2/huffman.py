"""HPACK's Huffman code (RFC 7541, section 5.2), read a byte at a time: `hpack` goes by half bytes, for three times the price.

What a byte does in each state of the code is worked out from `hpack`'s table when it is first met, and kept: there are no more
than 256 states with 256 bytes each.
"""

from __future__ import annotations

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

__all__ = ["unpacked"]

#: state << 8 | byte -> the next state << 8, and what is read.
_STEPS: dict[int, tuple[int, bytes]] = {}

#: States in which a string may end: all that came last is padding of ones, less than a byte.
_ENDS = {0} | {
    state << 8 for state, flags, _ in HUFFMAN_TABLE if flags & HUFFMAN_COMPLETE and not flags & HUFFMAN_FAIL
}


def unpacked(text: bytes) -> bytes:
    """Return what a Huffman-coded string says. Raises ValueError where it is none."""
    steps, state = _STEPS, 0
    pieces = []
    for byte in text:
        try:
            state, piece = steps[state | byte]
        except KeyError:
            state, piece = _step(state, byte)
        pieces.append(piece)
    if state not in _ENDS:
        raise ValueError("a Huffman-coded string does not end with its last character")
    return b"".join(pieces)


def _step(state: int, byte: int) -> tuple[int, bytes]:
    """Work out what `byte` does in `state`, a half after the other."""
    at, emitted = state >> 8, bytearray()
    for half in (byte >> 4, byte & 15):
        at, flags, symbol = HUFFMAN_TABLE[at * 16 + half]
        if flags & HUFFMAN_FAIL:
            raise ValueError("a Huffman-coded string holds what is no character")
        if flags & HUFFMAN_EMIT_SYMBOL:
            emitted.append(symbol)
    step = _STEPS[state | byte] = at << 8, bytes(emitted)
    return step

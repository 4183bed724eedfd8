"""Protocol Buffers on the wire, as far as an inference request is read and answered by hand: numbers, fields, a request's parts.

A ModelInferRequest as every client writes it has its fields in the order of their numbers: names, id and parameters, tensors,
raw data. `split` tells these four apart without looking into them. What it can't split isn't malformed by that: whoever calls it
has the whole message parsed then.
"""

from __future__ import annotations

__all__ = ["BYTES", "ID", "Buffer", "field", "leading", "number_at", "split", "varint"]

Buffer = bytes | memoryview

#: The wire type of everything that has a length: strings, bytes, messages, packed numbers.
BYTES = 2

#: The tag of a ModelInferRequest's id.
ID = 0x1A

_SHORT = [bytes([number]) for number in range(128)]


def varint(number: int) -> bytes:
    """Return an unsigned number, or a negative one as 64 bits wide, in seven-bit groups."""
    if 0 <= number < 128:
        return _SHORT[number]
    if number < 0:
        number += 1 << 64
    groups = bytearray()
    while number >= 128:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def field(number: int, data: bytes | str) -> bytes:
    """Return a field with a length; nothing for an empty one, which is what its absence means."""
    if not data:
        return b""
    if isinstance(data, str):
        data = data.encode()
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def split(data: Buffer, most: int) -> tuple[int, int, int, list[Buffer]] | None:
    """Split a ModelInferRequest whose fields come in the order of their numbers, `most` of them at most; None for any other.

    Return where model_name and model_version end, where id and parameters end, where inputs and outputs end, and the
    raw_input_contents behind them, each a slice of `data`.
    """
    end = len(data)
    at = 0
    left = most
    try:
        while at < end and data[at] in (0x0A, 0x12):  # 1 model_name, 2 model_version
            size = data[at + 1]
            at = at + 2 + size if size < 128 else _past(data, at + 1)
            left -= 1
            if left < 0:
                return None
        names = at
        while at < end and data[at] in (0x1A, 0x22):  # 3 id, 4 parameters
            size = data[at + 1]
            at = at + 2 + size if size < 128 else _past(data, at + 1)
            left -= 1
            if left < 0:
                return None
        middle = at
        while at < end and data[at] in (0x2A, 0x32):  # 5 inputs, 6 outputs
            size = data[at + 1]
            at = at + 2 + size if size < 128 else _past(data, at + 1)
            left -= 1
            if left < 0:
                return None
        head = at
        raws: list[Buffer] = []
        while at < end and data[at] == 0x3A:  # 7 raw_input_contents
            size = data[at + 1]
            if size < 128:
                start = at + 2
                at = start + size
            else:
                size, start = number_at(data, at + 1)
                at = start + size
            raws.append(data[start:at])
            left -= 1
            if left < 0:
                return None
    except IndexError:
        return None
    return (names, middle, head, raws) if at == end else None


def leading(data: Buffer) -> int:
    """Return where names and id end that stand in front of a ModelInferRequest, 16 of them at most."""
    at = 0
    try:
        for _ in range(16):
            if data[at] not in (0x0A, 0x12, 0x1A):
                break
            at = _past(data, at + 1)
    except IndexError:
        pass
    return at


def _past(data: Buffer, at: int) -> int:
    """Return where the field ends whose length is written at `at`."""
    size, start = number_at(data, at)
    return start + size


def number_at(data: Buffer, at: int) -> tuple[int, int]:
    """Return the number of up to 32 bits, a tag or a length, that is written at `at`, and where it ends.

    Raises IndexError where it is cut off, or larger: no message is as long.
    """
    number = shift = 0
    while True:
        group = data[at]
        at += 1
        number |= (group & 127) << shift
        if group < 128:
            if number >= 2**32:
                raise IndexError
            return number, at
        shift += 7
        if shift > 28:
            raise IndexError

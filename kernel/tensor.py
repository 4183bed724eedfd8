"""A tensor: a name, a KServe datatype and a numpy array. Knows how each datatype lies in memory and on the wire.

Two datatypes have no numpy type of their own: BYTES is an object array whose elements are `bytes`, BF16 a uint16 array of
the raw bits. Knows no request, no model and no protocol.
"""

from __future__ import annotations

import struct
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "DATATYPES",
    "Tensor",
    "as_bytes_array",
    "copy_bytes",
    "datatype_of",
    "html_table",
    "pack_bytes",
    "response_html",
    "unpack_bytes",
]

Array = NDArray[Any]

#: What is shown of a tensor, of how many values, and of how many characters of each.
HEAD = ("name", "datatype", "shape", "values")
SHOWN = 8
LONGEST = 40
#: And of how many characters of any other text in a notebook.
LONGEST_CELL = 1000

#: Has notebooks leave dollars in texts alone, which they take for formulas elsewhere, with links in them.
PLAIN = "tex2jax_ignore mathjax_ignore"

#: How many bytes are copied at a time.
PIECE = 1024 * 1024

#: KServe datatype name -> numpy dtype of the array that holds it.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
    "BF16": np.dtype(np.uint16),
}

_NAMES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in DATATYPES.items() if name != "BF16"}


class Tensor:
    """A named array with its KServe datatype.

    `name`: of the input or output; `datatype`: a key of DATATYPES. `array` has the tensor's full shape, batch dimension
    included; for BYTES it is an object array of `bytes`, for BF16 a uint16 array of the raw bits. Whoever holds the Tensor
    owns the array's memory, or has been told otherwise.
    """

    __slots__ = ("array", "datatype", "name")

    def __init__(self, name: str, datatype: str, array: Array) -> None:
        self.name = name
        self.datatype = datatype
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape, batch dimension included."""
        return self.array.shape

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, shape={list(self.array.shape)})"

    def _repr_html_(self) -> str:
        """Return it as notebooks show it."""
        return html_table("", HEAD, [_row(self)])


def _row(tensor: Tensor) -> tuple[str, str, str, str]:
    """Return name, datatype, shape and the first values, for people."""
    array = tensor.array
    text = ", ".join(_shown(value) for value in array.flat[:SHOWN].tolist())
    return tensor.name, tensor.datatype, str(list(array.shape)), text + (", …" if array.size > SHOWN else "")


def _shown(value: Any) -> str:
    """Return one value of an array, in short."""
    if isinstance(value, bytes):
        value = value[: 4 * LONGEST].decode(errors="backslashreplace")
    text = f"{value:g}" if isinstance(value, float) else str(value)[: LONGEST + 1]
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a notebook. Whatever the texts say, they are shown as texts."""

    def line(cells: Sequence[str], kind: str) -> str:
        return f"<tr>{''.join(f'<{kind}>{_cell(cell)}</{kind}>' for cell in cells)}</tr>"

    caption = f"<caption>{_cell(title)}</caption>" if title else ""
    return f'<table class="{PLAIN}">{caption}{line(head, "th")}{"".join(line(row, "td") for row in rows)}</table>'


def _cell(text: str) -> str:
    """Return a text as HTML: not without end, and as UTF-8 can carry it."""
    short = text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
    return escape(short.encode(errors="backslashreplace").decode())


def response_html(response: Any) -> str:
    """Return an InferenceResponse as notebooks show it."""
    title = f"{response.model_name} version {response.model_version}"
    if response.error is not None:
        return html_table(title, ("error", ""), [(response.error.code.value, response.error.message)])
    return html_table(title, HEAD, [_row(tensor) for tensor in response.outputs])


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """Return the KServe datatype that numpy's `dtype` is, or None where there is none (complex, dates, foreign byte order).

    String dtypes (`<U…`, `S…`) are BYTES; convert such arrays with `as_bytes_array`. The bfloat16 of the package `ml_dtypes` is
    BF16; take a view of such arrays as uint16.
    """
    name = _NAMES.get(dtype)
    if name is None:
        if dtype.kind in "US":
            return "BYTES"
        if dtype.name == "bfloat16":
            return "BF16"
    return name


def as_bytes_array(array: Array) -> Array:
    """Return an object array of the same shape whose elements are all `bytes`.

    `str` elements become UTF-8, other objects their `str()` in UTF-8, as the reference's `serialize_byte_tensor` does.
    """
    result = np.empty(array.size, dtype=np.object_)
    result[:] = [
        item if type(item) is bytes else bytes(item) if isinstance(item, (bytes, bytearray)) else str(item).encode()
        for item in array.ravel().tolist()
    ]
    return result.reshape(array.shape)


def pack_bytes(array: Array) -> bytes:
    """Return the wire form of a BYTES array: for each element, row by row, a little-endian uint32 length and the bytes.

    Elements that are no `bytes` go as their `str()` in UTF-8.
    """
    parts: list[bytes] = []
    pack = struct.Struct("<I").pack
    for item in array.ravel().tolist():
        data = item if isinstance(item, bytes) else str(item).encode()
        parts.append(pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def copy_bytes(data: memoryview, start: int, end: int) -> bytes:
    """Return the bytes from `start` to `end` of `data`. Long ones in pieces: one copy holds the interpreter until it is made."""
    if end - start <= PIECE:
        return bytes(data[start:end])
    return b"".join([bytes(data[at : min(at + PIECE, end)]) for at in range(start, end, PIECE)])


def unpack_bytes(buffer: bytes | bytearray | memoryview, most: int | None = None) -> list[bytes]:
    """Return the elements of a BYTES tensor's wire form, a list of `bytes`. `most`: how many elements are wanted; of
    more only one more is returned.

    Raises ValueError with the missing counts when the buffer ends inside a length word (`args == ("length", available)`)
    or inside an element (`args == ("data", wanted, available)`).
    """
    data: Any = bytes(buffer) if len(buffer) <= PIECE else memoryview(buffer)
    items: list[bytes] = []
    at, end = 0, len(data)
    unpack = struct.Struct("<I").unpack_from
    while at < end:
        if end - at < 4:
            raise ValueError("length", end - at)
        (size,) = unpack(data, at)
        at += 4
        if end - at < size:
            raise ValueError("data", size, end - at)
        items.append(copy_bytes(data, at, at + size) if end > PIECE else data[at : at + size])
        at += size
        if most is not None and len(items) > most:
            break
    return items

"""Which inputs and outputs of an ONNX file state no shape at all. onnxruntime shows those as if they were scalars.

Reads as little of the file as tells: the heads of the graph's fields, and the types of its inputs and outputs. Knows protobuf's
wire format and five field numbers of ONNX's schema; what it can't read it says nothing about.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

__all__ = ["without_shape"]

_GRAPH = 7  # of ModelProto
_INPUT, _OUTPUT = 11, 12  # of GraphProto
_NAME, _TYPE = 1, 2  # of ValueInfoProto
_TENSOR = 1  # of TypeProto
_SHAPE = 2  # of TypeProto.Tensor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Span = tuple[int, int]


def without_shape(file: Path) -> frozenset[str]:
    """Return the names of the tensors of which the file doesn't say how many dimensions they have."""
    names: set[str] = set()
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for graph in _fields(data, (0, len(data)), _GRAPH):
                for number in (_INPUT, _OUTPUT):
                    names.update(_shapeless(data, value) for value in _fields(data, graph, number))
    except (OSError, ValueError, IndexError, UnicodeDecodeError):
        return frozenset()  # no file of this form: onnxruntime has the last word
    return frozenset(names - {""})


def _shapeless(data: mmap.mmap, value: Span) -> str:
    """Return the name of a tensor whose type has no shape, "" for any other."""
    for kind in _fields(data, value, _TYPE):
        for tensor in _fields(data, kind, _TENSOR):
            if next(_fields(data, tensor, _SHAPE), None) is None:
                for start, end in _fields(data, value, _NAME):
                    return data[start:end].decode()
    return ""


def _fields(data: mmap.mmap, span: Span, wanted: int) -> Iterator[Span]:
    """Yield where the contents of the length-delimited fields with the number `wanted` lie within a message."""
    at, end = span
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _BYTES:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("a field ends behind its message")
            if key >> 3 == wanted:
                yield at, at + size
            at += size
        elif wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        else:
            raise ValueError("no protobuf message")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
        if shift > 63:
            raise ValueError("no varint")

"""Requests and answers in terms that no wire owns: tensors with their values, error codes with their words.

Cases are made of these; http_wire.py and grpc_wire.py turn them into messages and back. Nothing here knows how.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

__all__ = ["COUNTED", "Answered", "Ask", "Case", "Part", "Refused", "Tensor", "Want", "any_words", "packed", "unpacked"]

NUMPY = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip

#: What statistics count, beside durations.
COUNTED = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


@dataclass(frozen=True)
class Part:
    """A part of a shared memory region."""

    size: int
    offset: int = 0
    region: str = "memory"


@dataclass(frozen=True)
class Tensor:
    """A tensor; `values` are flat: bools, ints, floats, or bytes for BYTES. `part`: where in shared memory they lie.

    `values` None: there is no data at all; `data`: these bytes instead of the values, which need not be right ones.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...] | None = ()
    part: Part | None = None
    data: bytes | None = None

    @property
    def bytes(self) -> bytes:
        if self.data is not None:
            return self.data
        assert self.values is not None
        return packed(self.datatype, self.values)


@dataclass(frozen=True)
class Want:
    """An output that is asked for."""

    name: str
    classes: int = 0
    part: Part | None = None


@dataclass(frozen=True)
class Ask:
    """One inference request. `outputs` None: all there are."""

    model: str
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Want, ...] | None = None
    id: str = ""
    version: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answered:
    """A success. `final`: of a message of a stream, where its wire tells."""

    outputs: tuple[Tensor, ...] = ()
    id: str = ""
    model: str = ""
    version: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    final: bool | None = None


@dataclass(frozen=True)
class Refused:
    """An error: its code's name in the kernel, as far as its wire tells the code, and its whole message.

    In an expectation, `...` stands for any words.
    """

    code: str
    message: str
    id: str = ""
    final: bool | None = None


Outcome = Answered | Refused


@dataclass(frozen=True)
class Case:
    """A request and what comes of it: outputs or a refusal.

    `unless`: way or wire -> what comes of it there instead, where the contract says so; a string is the reason why it is not
    asked that way at all. `version`: of the model that answers.
    """

    name: str
    ask: Ask
    gives: tuple[Tensor, ...] | Refused
    unless: Mapping[str, tuple[Tensor, ...] | Refused | str] = field(default_factory=dict)
    version: str = "1"


def any_words(wanted: str, got: str) -> bool:
    """Whether a message is the wanted one, in which `...` stands for any words."""
    parts = wanted.split("...")
    if len(parts) == 1:
        return wanted == got
    if not (got.startswith(parts[0]) and got.endswith(parts[-1])):
        return False
    at = 0
    for part in parts:
        at = got.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def packed(datatype: str, values: tuple[Any, ...]) -> bytes:
    """Return the bytes of a tensor's data."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    if datatype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return np.array(values, NUMPY.get(datatype, np.float32)).tobytes()


def unpacked(name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> Tensor:
    """Return the tensor whose data these bytes are; they must be as many as it has."""
    values: list[Any] = []
    if datatype == "BYTES":
        at = 0
        while at < len(data):
            (size,) = struct.unpack_from("<I", data, at)
            values.append(data[at + 4 : at + 4 + size])
            at += 4 + size
    elif datatype == "BF16":
        values = [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    else:
        values = np.frombuffer(data, NUMPY[datatype]).tolist()
    assert len(values) == prod(shape), f"output '{name}' of shape {shape} has {len(values)} elements"
    return Tensor(name, datatype, shape, tuple(values))

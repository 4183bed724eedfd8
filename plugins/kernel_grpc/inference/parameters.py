"""InferParameter, both ways: what a client says about its request, in the reference's words where it says it wrong; and what a
model says about its response.

Which parameters mean something is decided here (contract: grpc_protocol, section 3.2). Parameters of tensors are the reader's.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from kernel import Code, ServingError
from kernel_grpc.inference.wire import BYTES, varint

__all__ = ["NONE", "Parameters", "encoded", "invalid", "kind_of", "read_parameters"]

EMPTY_FINAL = "triton_enable_empty_final_response"

RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are "
    f"allowed: {EMPTY_FINAL}"
)

INTEGERS = ("int64_param", "uint64_param")

#: The most characters of a sequence's id: it is kept for as long as the sequence, which may say nothing more.
LONGEST_SEQUENCE_ID = 4096


class Parameters:
    """The parameters of a request: those that mean something, and the others, which go to the model.

    `empty_final`: whether a final response that has nothing to say is sent all the same.
    """

    __slots__ = ("correlation_id", "custom", "empty_final", "flags", "priority", "timeout_us")

    def __init__(self) -> None:
        self.correlation_id: int | str = 0
        self.flags = 0
        self.priority = 0
        self.timeout_us = 0
        self.empty_final = False
        self.custom: dict[str, Any] | None = None


#: Of a request that has none. Not to be changed.
NONE = Parameters()


def invalid(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)


def kind_of(parameter: Any) -> str:
    """Return the name of the field that is set in an InferParameter, "" where there is none."""
    return parameter.WhichOneof("parameter_choice") or ""


def read_parameters(parameters: Mapping[str, Any]) -> Parameters:
    """Read the map of a request. Raises ServingError(INVALID_ARG)."""
    if not parameters:
        return NONE
    read = Parameters()
    custom: dict[str, Any] = {}
    for key, parameter in parameters.items():
        kind = kind_of(parameter)
        value: Any = getattr(parameter, kind) if kind else None
        if key == "sequence_id":
            _expect(key, kind, (*INTEGERS, "string_param"), "int64_param or string_param")
            if kind == "string_param" and len(value) > LONGEST_SEQUENCE_ID:
                raise invalid(f"'sequence_id' has {len(value)} characters, more than the {LONGEST_SEQUENCE_ID} that are taken")
            read.correlation_id = value if kind == "string_param" else value % 2**64
        elif key in ("sequence_start", "sequence_end"):
            _expect(key, kind, ("bool_param",), "bool_param")
            if value:
                read.flags |= 1 if key == "sequence_start" else 2
        elif key == "priority":
            _expect(key, kind, INTEGERS, "int64_param or uint64_param")
            if value < 0:
                raise invalid("invalid value for 'priority', expected value >= 0.")
            read.priority = value
        elif key == "timeout":
            _expect(key, kind, ("int64_param",), "int64_param")
            read.timeout_us = value % 2**64  # a negative one is a very long time (reference behaviour)
        elif key == EMPTY_FINAL:
            _expect(key, kind, ("bool_param",), "bool_param")
            read.empty_final = value
        elif key.startswith("triton_"):
            raise invalid(RESERVED)
        elif kind:
            custom[key] = value
        else:
            raise invalid(f"invalid value type for '{key}' parameter, expected int64_param, bool_param, or string_param.")
    read.custom = custom or None
    return read


def _expect(key: str, kind: str, kinds: tuple[str, ...], words: str) -> None:
    if kind not in kinds:
        raise invalid(f"invalid value type for '{key}' parameter, expected {words}.")


def encoded(number: int, parameters: Mapping[str, Any]) -> bytes:
    """Return a map<string, InferParameter> with that field number on the wire: bool, int, float and str by their types.

    Raises ServingError(INTERNAL) for what no InferParameter can hold.
    """
    parts = []
    tag = varint(number << 3 | BYTES)
    for key, value in parameters.items():
        name = key.encode()
        choice = _choice(key, value)
        # An entry of a map is a message of its own: 1 the key, 2 the value.
        entry = b"\x0a%b%b\x12%b%b" % (varint(len(name)), name, varint(len(choice)), choice)
        parts.append(tag + varint(len(entry)) + entry)
    return b"".join(parts)


def _choice(key: str, value: Any) -> bytes:
    """Return the InferParameter of a value. A member of a `oneof` is written also where it is zero."""
    if isinstance(value, bool):
        return b"\x08\x01" if value else b"\x08\x00"
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return b"\x10" + varint(value)
        if value < 2**64 and value > 0:
            return b"\x28" + varint(value)
    elif isinstance(value, str):
        data = value.encode()
        return b"\x1a" + varint(len(data)) + data
    elif isinstance(value, float):
        return b"\x21" + struct.pack("<d", value)
    raise ServingError(
        Code.INTERNAL,
        f"response parameter '{key}' is {type(value).__name__} {str(value)[:40]}, which is no bool, no integer of 64 bits, no "
        "float and no string",
    )

"""The JSON part of an inference request: its members, each refused in the reference's words.

Produces records. What the model makes of them (names, datatypes, shapes) is the model's check, not this file's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from kernel import Code, ServingError, clipped
from kernel_http.json.errors import (
    ABSENT,
    NON_ARRAY,
    NON_OBJECT,
    NON_STRING,
    NON_UINT,
    first_wins,
    malformed,
    read_again,
)
from kernel_http.json.large import IN_DATA, LARGE, decode_large
from kernel_http.json.members import MAX_UINT64, flag_of, unsigned_of

__all__ = [
    "Parameters",
    "custom_of",
    "custom_value",
    "decode",
    "read_parameters",
    "read_shape",
    "source_of",
]

_decode = msgspec.json.Decoder().decode

MAX_INT64 = 2**63 - 1

#: The most characters of a sequence's id: it is kept for as long as the sequence, which may say nothing more.
LONGEST_SEQUENCE_ID = 4096

SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


class Parameters:
    """The request's parameters: those that mean something, and the others, which go to the model."""

    __slots__ = ("binary_output", "correlation_id", "custom", "flags", "priority", "timeout_us")

    def __init__(self) -> None:
        self.correlation_id: int | str = 0
        self.flags = 0
        self.priority = 0
        self.timeout_us = 0
        self.binary_output = False
        self.custom: dict[str, Any] = {}


def decode(data: Any, limit: int) -> dict[str, Any]:
    """Decode a JSON body; what is no object has no members. Of equal names the first counts, as in the reference.

    `limit`: of the values in a large one, in which long arrays are LongArrays.
    """
    if len(data) > LARGE:
        value = decode_large(data, limit, _may_be_doubled, first_wins, cut=IN_DATA)
        return value if isinstance(value, dict) else {}
    try:
        value = _decode(data)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors, and so is bad UTF-8
        value = read_again(data)
    if not isinstance(value, dict):
        return {}
    if _may_be_doubled(value, data):
        # The decoder kept the last one; the slow way keeps the first, as the reference does.
        value = json.loads(data, object_pairs_hook=first_wins)
    record: dict[str, Any] = value
    return record


def _may_be_doubled(value: Any, data: Any) -> bool:
    """Whether a member may be given twice in `data`, bytes or a Text, of which the decoder has made `value`."""
    if not isinstance(value, dict):
        return False
    inputs, outputs = value.get("inputs"), value.get("outputs")
    count = len(inputs) if type(inputs) is list else 1
    names = count + (len(outputs) if type(outputs) is list else 1)
    return bool(
        data.count(b'"inputs"') > 1
        or data.count(b'"outputs"') > 1
        or data.count(b'"id"') > 1
        or data.count(b'"data"') > count
        or data.count(b'"shape"') > count
        or data.count(b'"datatype"') > count
        or data.count(b'"name"') > names
    )


def source_of(record: Any, index: int) -> tuple[str, Any]:
    """Say where an input's data comes from: ("data", value), ("binary_data_size", …) or ("shared_memory_region", …).

    `index`: among those of the request.
    """
    if type(record) is not dict:
        text = json.dumps(record)
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise ServingError(Code.INVALID_ARG, f"{SOURCES}no field is set (inputs[{index}] is no object but {shown})")
    parameters = record.get("parameters")
    if type(parameters) is not dict:
        parameters = {}
    sources = [("data", record["data"])] if "data" in record else []
    sources += [(key, parameters[key]) for key in ("binary_data_size", "shared_memory_region") if key in parameters]
    if len(sources) == 1:
        return sources[0]
    chosen = "".join(f" '{key}'" for key, _ in sources)
    name = record.get("name")
    where = f"input '{clipped(name)}'" if type(name) is str else f"inputs[{index}]"
    raise ServingError(Code.INVALID_ARG, f"{SOURCES}set{chosen} ({where})" if sources else f"{SOURCES}no field is set ({where})")


#: The most dimensions of a numpy array, and of elements, which have up to eight bytes.
MAX_RANK = 32
MAX_ELEMENTS = 2**60


def read_shape(record: dict[str, Any], name: str) -> tuple[int, ...]:
    where = f"input '{name}'"
    if "shape" not in record:
        raise malformed("shape", ABSENT.format("shape"), where)
    shape = record["shape"]
    if type(shape) is not list:
        raise malformed("shape", NON_ARRAY, where)
    if len(shape) > MAX_RANK:
        raise ServingError(
            Code.INVALID_ARG, f"Unable to parse 'shape': {where} has {len(shape)} dimensions, at most {MAX_RANK} can be served"
        )
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= MAX_INT64:
            raise malformed("shape", NON_UINT, where)
    if 0 in shape and math.prod(dim for dim in shape if dim) > MAX_ELEMENTS:  # a shape without 0 is held against the bytes
        raise ServingError(Code.INVALID_ARG, f"Unable to parse 'shape': {where} has dimensions that are too large")
    return tuple(shape)


def read_parameters(record: dict[str, Any]) -> Parameters:
    """Read the request's `parameters`."""
    result = Parameters()
    parameters = record.get("parameters", msgspec.UNSET)
    if parameters is msgspec.UNSET:
        return result
    if type(parameters) is not dict:
        raise ServingError(Code.INVALID_ARG, f"failed to get request params.: {NON_OBJECT}")
    for key, value in parameters.items():
        match key:
            case "sequence_id":
                if type(value) is not str and not (type(value) is int and 0 <= value <= MAX_UINT64):
                    raise malformed(key, NON_STRING)
                if type(value) is str and len(value) > LONGEST_SEQUENCE_ID:
                    raise ServingError(
                        Code.INVALID_ARG,
                        f"'sequence_id' has {len(value)} characters, more than the {LONGEST_SEQUENCE_ID} that are taken",
                    )
                result.correlation_id = value or 0
            case "sequence_start":
                result.flags |= 1 if flag_of(value, key) else 0
            case "sequence_end":
                result.flags |= 2 if flag_of(value, key) else 0
            case "priority":
                result.priority = unsigned_of(value, key)
            case "timeout":
                result.timeout_us = unsigned_of(value, key)
            case "binary_data_output":
                result.binary_output = flag_of(value, key)
            case _:
                result.custom[key] = _custom(key, value)
    return result


def custom_of(custom: dict[str, Any], forwarded: Iterable[tuple[str, str]]) -> dict[str, Any] | None:
    """Return the parameters that go to the model: `custom`, those of the body, and the headers that become some, which win.

    A dict of the request's own, since models may change it; None where there are none.
    """
    return {**custom, **dict(forwarded)} or None


def _custom(key: str, value: Any) -> Any:
    if key.startswith("triton_"):
        raise ServingError(
            Code.INVALID_ARG,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        )
    return custom_value(key, value)


def custom_value(key: str, value: Any) -> Any:
    """Return the value of a parameter that goes to the model."""
    if type(value) is int and not -MAX_INT64 - 1 <= value <= MAX_INT64:
        try:
            return float(value)
        except OverflowError:
            pass
    elif type(value) in (str, bool, int, float):
        return value
    raise ServingError(
        Code.INVALID_ARG, f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )

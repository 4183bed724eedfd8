"""The `outputs` of an inference request, each with how it is wanted; and the parameters that name a span of shared memory.

Produces records. The model's check says whether there are such outputs, the kernel whether there are such regions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from kernel import Code, ServingError
from kernel_http.json.errors import NON_ARRAY, NON_UINT, malformed
from kernel_http.json.members import MAX_UINT64, flag_of, text_of, unsigned_of

__all__ = ["Output", "read_outputs", "read_region"]


class Output(NamedTuple):
    """How an output is wanted: in binary, as so many classes, or in a region, as (name, offset, byte size)."""

    binary: bool = False
    classes: int = 0
    region: tuple[str, int, int] | None = None


def read_outputs(record: dict[str, Any]) -> dict[str, Output] | None:
    """Read `outputs`: by name, how each is wanted; None when absent or empty. Of equal names the first counts."""
    outputs = record.get("outputs", msgspec.UNSET)
    if outputs is msgspec.UNSET:
        return None
    if type(outputs) is not list:
        raise malformed("outputs", NON_ARRAY)
    result: dict[str, Output] = {}
    for index, output in enumerate(outputs):
        name = text_of(output, "name", f"outputs[{index}]")
        parameters = output.get("parameters")
        wanted = _output_format(name, parameters) if type(parameters) is dict else Output()
        result.setdefault(name, wanted)
    return result or None


def _output_format(name: str, parameters: dict[str, Any]) -> Output:
    where = f"output '{name}'"
    classes = 0
    if "classification" in parameters:
        value = parameters["classification"]
        if type(value) is not int or not 0 <= value <= MAX_UINT64:
            raise ServingError(Code.INVALID_ARG, f"Unable to set 'classification': {NON_UINT} ({where})")
        classes = value
    binary = "binary_data" in parameters and flag_of(parameters["binary_data"], "binary_data", where)
    if "shared_memory_region" not in parameters:
        return Output(binary, classes)
    region = read_region(parameters, where)
    if "classification" in parameters:
        raise ServingError(Code.INVALID_ARG, "Output can't set both 'shared_memory_region' and 'classification'")
    if binary:
        raise ServingError(Code.INVALID_ARG, "Output can't set both 'shared_memory_region' and 'binary_data'")
    return Output(region=region)


def read_region(parameters: dict[str, Any], where: str) -> tuple[str, int, int]:
    """Return the name of a region, and the offset and the size of what is wanted of it."""
    name = text_of(parameters, "shared_memory_region", where)
    offset = unsigned_of(parameters.get("shared_memory_offset", 0), "shared_memory_offset", where)
    size = unsigned_of(parameters.get("shared_memory_byte_size", 0), "shared_memory_byte_size", where)
    return name, offset, size

"""What a response says of its sequence: `sequence_id`, `sequence_start`, `sequence_end` hold for the steps behind it. Pure.

Every answer of an ensemble that has an output has them, once and in this order. (Reference: ConsumeResponse and
CheckAndSetEnsembleOutput, which give them once for each output.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from kernel import Code, InferenceRequest, ServingError

__all__ = ["Sequence", "override", "parameters_of"]

#: Correlation id and flags.
Sequence: TypeAlias = "tuple[int | str, int]"

START, END = 1, 2


def override(parameters: Mapping[str, Any], request: InferenceRequest) -> Sequence | None:
    """Return what a response to `request` says of its sequence, None where nothing. Raises ServingError(INVALID_ARG)."""
    said = False
    correlation_id, flags = request.correlation_id, 0
    if "sequence_id" in parameters:
        said, value = True, parameters["sequence_id"]
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise _wrong(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
            )
        correlation_id = value
    for name, flag in (("sequence_start", START), ("sequence_end", END)):
        if name in parameters:
            said, value = True, parameters[name]
            if not isinstance(value, bool):
                raise _wrong(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
            flags |= flag * value
    return (correlation_id, flags) if said else None


def parameters_of(
    request: InferenceRequest, said: Mapping[int, Sequence] | None, sources: Iterable[int]
) -> dict[str, Any]:
    """Return the parameters of an answer whose outputs come from `sources`; the first step that said something wins."""
    correlation_id, flags = request.correlation_id, request.flags
    if said is not None:
        for source in sources:
            if source in said:
                correlation_id, flags = said[source]
                break
    return {
        "sequence_id": correlation_id,
        "sequence_start": flags & START != 0,
        "sequence_end": flags & END != 0,
    }


def _wrong(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARG, message)

"""An inference as KServe's protocol has it over gRPC, seen by who asks: a recorded request as a message, and its answer. Pure.

`messages` has the protocol's messages, as protobuf makes them: a plugin's. What comes is believed of nobody, as in wire.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from kernel.errors import Code, ServingError, clipped
from kernel.recording.form import Told
from kernel.recording.wire import MOST_DIMENSIONS, of_bytes
from kernel.tensor import DATATYPES, Array, Tensor, as_bytes_array, pack_bytes

__all__ = ["code_of", "message_of", "outputs_of", "streamed_of"]

#: What a status of gRPC stands for; the others say something of that moment.
_CODES = {
    1: Code.CANCELLED, 2: Code.UNKNOWN, 3: Code.INVALID_ARG, 5: Code.NOT_FOUND, 6: Code.ALREADY_EXISTS, 12: Code.UNSUPPORTED,
    13: Code.INTERNAL,
}  # fmt: skip

#: Where elements stand that are not raw.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def code_of(status: int) -> Code:
    """Return what a status of gRPC means, UNAVAILABLE for those that Triton's codes have no word for."""
    return _CODES.get(status, Code.UNAVAILABLE)


def message_of(messages: Any, told: Told, version: str = "") -> bytes:
    """Return the ModelInferRequest that asks what was asked, all tensors in raw form. `version`: "" for the newest.

    Raises ServingError for a number that has no room there: a recording is believed of nobody.
    """
    try:
        return _message(messages, told, version)
    except ValueError as error:
        raise ServingError(Code.INVALID_ARG, f"what was recorded can't be asked over gRPC: {error}") from None


def _message(messages: Any, told: Told, version: str) -> bytes:
    message = messages.ModelInferRequest(model_name=told.model, model_version=version, id=told.id)
    parameters = message.parameters
    for name, value in told.parameters.items():
        _set(parameters[name], value)
    if told.correlation_id:
        _set(parameters["sequence_id"], told.correlation_id)
        parameters["sequence_start"].bool_param = bool(told.flags & 1)
        parameters["sequence_end"].bool_param = bool(told.flags & 2)
    if told.priority:
        parameters["priority"].uint64_param = told.priority
    if told.timeout_us:
        _set(parameters["timeout"], told.timeout_us)
    for tensor in told.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        data = pack_bytes(tensor.array) if tensor.datatype == "BYTES" else tensor.array.tobytes()
        message.raw_input_contents.append(data)
    for name in told.outputs or ():
        message.outputs.add(name=name)
    encoded: bytes = message.SerializeToString()
    return encoded


def _set(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value - 2**64 if value >= 2**63 else value  # in no other form does Triton take it
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)


def streamed_of(messages: Any, data: bytes) -> tuple[str, list[Tensor] | ServingError | None]:
    """Return the id and the outputs that a response of a stream has; an error in their place, or None where it says only that it
    is the last. Raises ServingError for what is none.
    """
    message = _parsed(messages.ModelStreamInferResponse, data)
    answer = message.infer_response
    if message.error_message:
        return answer.id, ServingError(Code.UNKNOWN, message.error_message)
    if not answer.outputs and answer.parameters["triton_final_response"].bool_param:
        return answer.id, None
    return answer.id, _outputs(answer)


def outputs_of(messages: Any, data: bytes) -> tuple[str, list[Tensor]]:
    """Return the id and the outputs of a ModelInferResponse. Raises ServingError for what is none."""
    message = _parsed(messages.ModelInferResponse, data)
    return message.id, _outputs(message)


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise _none(str(error)) from None


def _outputs(message: Any) -> list[Tensor]:
    outputs, raws = message.outputs, message.raw_output_contents
    if raws and len(raws) != len(outputs):
        raise _none(f"it has {len(outputs)} outputs and the raw data of {len(raws)}")
    found = []
    for place, one in enumerate(outputs):
        try:
            found.append(_tensor(one, raws[place] if raws else None))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _none(f"output {clipped(one.name)}: {type(error).__name__}: {error}") from None
    return found


def _tensor(one: Any, raw: bytes | None) -> Tensor:
    datatype, shape = one.datatype, list(one.shape)
    if datatype not in DATATYPES or len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise ValueError(f"there is no {clipped(datatype)}{shape[:MOST_DIMENSIONS]}")
    count = math.prod(shape)
    array = of_bytes(datatype, memoryview(raw), count) if raw is not None else _of_contents(datatype, one.contents, count)
    return Tensor(one.name, datatype, array.reshape(shape))


def _of_contents(datatype: str, contents: Any, count: int) -> Array:
    items = list(getattr(contents, _CONTENTS[datatype]))
    if len(items) != count:
        raise ValueError(f"it has {len(items)} elements, its shape says {count}")
    if datatype == "BYTES":
        return as_bytes_array(np.array([*items, None], dtype=object)[:-1])
    return np.array(items, DATATYPES[datatype])


def _none(why: str) -> ServingError:
    return ServingError(Code.UNKNOWN, f"the answer is none of the protocol: {why}")

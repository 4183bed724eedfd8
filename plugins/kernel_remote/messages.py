"""ModelInfer's messages from the client's side: a request of the kernel becomes one, a message becomes a response.

Pure. The data of large tensors is not copied on its way out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernel import (
    DATATYPES,
    Code,
    InferenceRequest,
    InferenceResponse,
    ServingError,
    Tensor,
    pack_bytes,
    unpack_bytes,
)
from kernel_grpc.http2 import Data
from kernel_grpc.schemas import grpc_service_pb2 as pb

__all__ = ["code_of", "request_pieces", "response_of"]

_CODES = {
    1: Code.CANCELLED,
    2: Code.UNKNOWN,
    3: Code.INVALID_ARG,
    5: Code.NOT_FOUND,
    6: Code.ALREADY_EXISTS,
    12: Code.UNSUPPORTED,
    13: Code.INTERNAL,
}


def code_of(status: int) -> Code:
    """Return what a status of gRPC means here: UNAVAILABLE for those that Triton's codes have no word for."""
    return _CODES.get(status, Code.UNAVAILABLE)


def request_pieces(request: InferenceRequest, model: str, version: str, streamed: bool) -> list[Data]:
    """Return a ModelInferRequest, in pieces. `streamed`: a response that says no more than that it is the last is wanted, too."""
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=request.id)
    parameters = message.parameters
    for key, value in (request.parameters or {}).items():
        _set(parameters[key], value)
    if request.correlation_id:
        id = request.correlation_id
        if isinstance(id, int):
            parameters["sequence_id"].int64_param = _signed(id)  # in no other form does Triton take it
        else:
            parameters["sequence_id"].string_param = id
        parameters["sequence_start"].bool_param = bool(request.flags & 1)
        parameters["sequence_end"].bool_param = bool(request.flags & 2)
    if request.priority:
        parameters["priority"].uint64_param = request.priority
    if request.timeout_us:
        parameters["timeout"].int64_param = _signed(request.timeout_us)
    if streamed:
        parameters["triton_enable_empty_final_response"].bool_param = True
    raws: list[Data] = []
    for name, tensor in request.inputs.items():
        message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.array.shape)
        data = _data(tensor)
        raws += (b"\x3a" + _varint(len(data)), data)  # raw_input_contents, field 7, which comes last
    for name in sorted(request.wanted):
        message.outputs.add(name=name)
    return [message.SerializeToString(), *raws]


def _signed(number: int) -> int:
    """Return an unsigned number of 64 bits as the signed one with the same bits."""
    return number - 2**64 if number >= 2**63 else number


def _set(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        if value >= 2**63:
            parameter.uint64_param = value
        else:
            parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)


def _data(tensor: Tensor) -> Data:
    array = tensor.array
    if not array.size:
        return b""
    if tensor.datatype == "BYTES":
        return pack_bytes(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number >= 128:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def response_of(message: Any, where: str) -> tuple[InferenceResponse, bool]:
    """Return the response that it is, and whether it says that it is the last. Raises ServingError(INTERNAL)."""
    parameters = {
        key: getattr(one, one.WhichOneof("parameter_choice") or "string_param")
        for key, one in message.parameters.items()
    }
    final = bool(parameters.pop("triton_final_response", False))
    raws = message.raw_output_contents
    if len(raws) != len(message.outputs):
        text = f"endpoint {where} answers with {len(message.outputs)} outputs and the raw data of {len(raws)}"
        raise ServingError(Code.INTERNAL, text)
    outputs = [_tensor(one, raw, where) for one, raw in zip(message.outputs, raws)]
    return InferenceResponse(outputs, parameters=parameters or None), final


def _tensor(output: Any, raw: bytes, where: str) -> Tensor:
    dtype = DATATYPES.get(output.datatype)
    shape = tuple(output.shape)
    try:
        if dtype is None:
            raise ValueError("an unknown datatype")
        if output.datatype == "BYTES":
            items = unpack_bytes(raw)
            array = np.empty(len(items), np.object_)
            array[:] = items
        else:
            array = np.frombuffer(bytearray(raw), dtype)  # a copy: whoever gets it may write to it
        return Tensor(output.name, output.datatype, array.reshape(shape))
    except ValueError as error:
        said = f"output '{output.name}' of {output.datatype}{list(shape)} in {len(raw)} bytes"
        text = f"endpoint {where} answers with {said}: {error}"
        raise ServingError(Code.INTERNAL, text) from None

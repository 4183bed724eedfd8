"""A request of the kernel becomes a message of ModelInfer.

Pure. The data of large tensors is not copied on its way out.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kernel import Code, InferenceRequest, Tensor, pack_bytes
from kernel_grpc.http2 import Data, literal
from kernel_grpc.schemas import grpc_service_pb2 as pb

__all__ = ["Messages", "code_of", "trace_fields", "varint"]

#: Data of up to this size is copied: that costs less than a view of it.
SMALL = 16 * 1024

#: How many descriptions of inputs and outputs are remembered of one model.
REMEMBERED = 1024

#: How data of so many bytes begins: raw_input_contents, field 7, which comes last.
_SHORT = [bytes((0x3A, size)) for size in range(128)]

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


def trace_fields(context: str | None) -> bytes:
    """Return what a trace's context tells others, as fields of a header block: the far end's spans belong to the same trace."""
    if not context:
        return b""
    told = json.loads(context)
    return b"".join(literal(name.encode(), told[name].encode("ascii")) for name in ("traceparent", "tracestate") if name in told)


class Messages:
    """Makes the messages of one model: `name` and `version` as the far end knows it.

    `streamed`: a response that says no more than that it is the last is wanted, too. What stands in front of the data is the
    same for most requests but for the id, so it is remembered.
    """

    def __init__(self, name: str, version: str, streamed: bool) -> None:
        self._names = pb.ModelInferRequest(model_name=name, model_version=version).SerializeToString()
        self._streamed = streamed
        self._known: dict[tuple[object, ...], bytes] = {}
        self._last = pb.ModelInferRequest()
        if streamed:
            self._last.parameters["triton_enable_empty_final_response"].bool_param = True
        self._plain = self._last.SerializeToString()  # the parameters of a request that has none

    def pieces(self, request: InferenceRequest) -> list[Data]:
        """Return a ModelInferRequest in pieces: names, id and parameters, inputs and outputs, data."""
        inputs = request.inputs.values()
        said: list[object] = [request.wanted]
        for tensor in inputs:
            said += tensor.name, tensor.datatype, tensor.array.shape
        key = tuple(said)
        described = self._known.get(key)
        if described is None:
            described = self._described(request)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = described
        head = self._names
        if request.id:
            id = request.id.encode()
            head += b"\x1a" + varint(len(id)) + id
        if request.parameters or request.correlation_id or request.priority or request.timeout_us:
            head += self._parameters(request)
        else:
            head += self._plain
        pieces: list[Data] = [head, described]
        for tensor in inputs:
            data = _data(tensor)
            size = len(data)
            pieces += (_SHORT[size] if size < 128 else b"\x3a" + varint(size), data)
        return pieces

    def _described(self, request: InferenceRequest) -> bytes:
        """Return what a request says of its inputs and outputs."""
        message = pb.ModelInferRequest()
        for name, tensor in request.inputs.items():
            message.inputs.add(name=name, datatype=tensor.datatype, shape=tensor.array.shape)
        for name in sorted(request.wanted):
            message.outputs.add(name=name)
        return message.SerializeToString()

    def _parameters(self, request: InferenceRequest) -> bytes:
        message = pb.ModelInferRequest()
        message.CopyFrom(self._last)
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
        return message.SerializeToString()


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
    if array.nbytes <= SMALL:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    groups = bytearray()
    while number >= 128:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)

"""The gRPC wire: `grpcio` with the messages of the unmodified client library.

Two ways to say the same: data in typed contents, or raw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from .asks import Answered, Ask, Outcome, Refused, Tensor, unpacked

__all__ = ["CODES", "GrpcWire"]

LIMIT_S = 10.0
SERVICE = "inference.GRPCInferenceService"

#: Code -> status (contract: grpc_protocol, section 1).
CODES = {
    "UNKNOWN": "UNKNOWN", "INTERNAL": "INTERNAL", "NOT_FOUND": "NOT_FOUND", "INVALID_ARG": "INVALID_ARGUMENT",
    "UNAVAILABLE": "UNAVAILABLE", "UNSUPPORTED": "UNIMPLEMENTED", "ALREADY_EXISTS": "ALREADY_EXISTS", "CANCELLED": "CANCELLED",
}  # fmt: skip
NAMES = {status: name for name, status in CODES.items()}

FIELD = {
    "BOOL": "bool", "INT8": "int", "INT16": "int", "INT32": "int", "INT64": "int64", "UINT8": "uint", "UINT16": "uint",
    "UINT32": "uint", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes",
}  # fmt: skip

FINAL = "triton_final_response"


class GrpcWire:
    """One way to ask over gRPC. `typed`: how tensors travel."""

    wire = "grpc"

    def __init__(self, port: int, *, typed: bool = False) -> None:
        self.port = port
        self.typed = typed
        self.way = "grpc typed" if typed else "grpc raw"
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])

    def close(self) -> None:
        self.channel.close()

    def call(self, rpc: str, message: Any = None, metadata: Mapping[str, str] | None = None) -> Any:
        """Make a unary call; return the response, or the refusal. Bytes are sent as they are."""
        name = f"{rpc}Response"
        method = self.channel.unary_unary(f"/{SERVICE}/{rpc}", None, getattr(pb, name).FromString)
        data = message if isinstance(message, bytes) else b"" if message is None else message.SerializeToString()
        try:
            return method(data, timeout=LIMIT_S, metadata=tuple((metadata or {}).items()))
        except grpc.RpcError as error:
            return refusal(error)

    # --- inference

    def infer(self, ask: Ask, headers: Mapping[str, str] | None = None) -> Outcome:
        response = self.call("ModelInfer", self.message(ask), headers)
        return response if isinstance(response, Refused) else self.answered(response)

    def message(self, ask: Ask) -> Any:
        message = pb.ModelInferRequest(model_name=ask.model, model_version=ask.version, id=ask.id)
        for name, value in ask.parameters.items():
            set_parameter(message.parameters[name], value)
        for tensor in ask.inputs:
            given = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            if tensor.part is not None:
                set_part(given.parameters, tensor)
            elif tensor.values is None and tensor.data is None:
                pass
            elif self.typed and tensor.data is None:
                field = FIELD.get(tensor.datatype, "fp32")
                getattr(given.contents, f"{field}_contents").extend(tensor.values)
                given.contents.SetInParent()
            else:
                message.raw_input_contents.append(tensor.bytes)
        for want in ask.outputs or ():
            named = message.outputs.add(name=want.name)
            if want.part is not None:
                set_part(named.parameters, want)
            if want.classes:
                named.parameters["classification"].int64_param = want.classes
        return message

    def answered(self, response: Any) -> Answered:
        outputs = []
        given = zip(response.outputs, response.raw_output_contents, strict=True)
        for output, data in given:
            assert not output.HasField("contents")
            shape = tuple(output.shape)
            if data or 0 in shape:
                outputs.append(unpacked(output.name, output.datatype, shape, data))
            else:  # it is in shared memory
                outputs.append(Tensor(output.name, output.datatype, shape, None))
        more = {name: parameter(value) for name, value in response.parameters.items()}
        final = more.pop(FINAL, None)
        return Answered(tuple(outputs), response.id, response.model_name, response.model_version, more, final)

    # --- streams

    def stream(self, *asks: Ask, empty_final: bool = False) -> list[Outcome]:
        """Ask on one stream, half-close it, and return its messages."""
        messages = []
        for ask in asks:
            message = self.message(ask)
            if empty_final:
                message.parameters["triton_enable_empty_final_response"].bool_param = True
            messages.append(message.SerializeToString())
        return self.stream_of(messages)

    def stream_of(self, messages: Sequence[bytes]) -> list[Outcome]:
        method = self.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer", None, pb.ModelStreamInferResponse.FromString
        )
        outcomes: list[Outcome] = []
        for response in method(iter(messages), timeout=LIMIT_S):
            if response.error_message:
                final = response.infer_response.parameters.get(FINAL)
                told = None if final is None else final.bool_param
                outcomes.append(Refused("", response.error_message, response.infer_response.id, told))
            else:
                outcomes.append(self.answered(response.infer_response))
        return outcomes


def refusal(error: Any) -> Refused:
    return Refused(NAMES.get(error.code().name, error.code().name), error.details())


def parameter(message: Any) -> Any:
    return getattr(message, message.WhichOneof("parameter_choice"))


def set_parameter(message: Any, value: Any) -> None:
    kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
    setattr(message, kind, value)


def set_part(parameters: Any, place: Any) -> None:
    part = place.part
    parameters["shared_memory_region"].string_param = part.region
    parameters["shared_memory_byte_size"].int64_param = part.size
    if part.offset:
        parameters["shared_memory_offset"].int64_param = part.offset

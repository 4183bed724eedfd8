"""Makes the messages of gRPC cases, right ones and wrong ones alike."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from .wire_grpc import Call, Step

__all__ = [
    "Kind",
    "X",
    "ask",
    "floats",
    "infer",
    "output",
    "parameters",
    "request",
    "stream",
    "strings",
    "tensor",
    "typed",
]


class Kind:
    """A parameter in a field of one's own choice; "" for none at all."""

    def __init__(self, field: str, value: Any = None) -> None:
        self.field = field
        self.value = value


def parameter(value: Any, message: Any = pb.InferParameter) -> Any:
    """Return a parameter, in the field that fits the value's type."""
    if not isinstance(value, Kind):
        field = {bool: "bool", int: "int64", str: "string", float: "double", bytes: "bytes"}[type(value)]
        value = Kind(field, value)
    return message(**{f"{value.field}_param": value.value}) if value.field else message()


def parameters(values: Mapping[str, Any], message: Any = pb.InferParameter) -> dict[str, Any]:
    return {key: parameter(value, message) for key, value in values.items()}


def tensor(
    name: str, datatype: str, shape: Sequence[int], contents: Mapping[str, Any] | None = None, **given: Any
) -> Any:
    """Return an input. `contents`: field -> elements, None for no contents at all. `given`: its parameters."""
    result = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents is not None:
        result.contents.SetInParent()
        for field, elements in contents.items():
            getattr(result.contents, f"{field}_contents").extend(elements)
    for key, value in given.items():
        result.parameters[key].CopyFrom(parameter(value))
    return result


FIELD = {
    "BOOL": "bool", "INT8": "int", "INT16": "int", "INT32": "int", "INT64": "int64", "UINT8": "uint", "UINT16": "uint",
    "UINT32": "uint", "UINT64": "uint64", "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes",
}  # fmt: skip


def typed(name: str, datatype: str, shape: Sequence[int], elements: Sequence[Any], **given: Any) -> Any:
    """Return an input with its elements in the field of its datatype."""
    return tensor(name, datatype, shape, {FIELD[datatype]: elements}, **given)


def output(name: str, **given: Any) -> Any:
    return pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters(given))


def request(
    model: str,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    raw: Sequence[bytes] = (),
    *,
    id: str = "",
    version: str = "",
    **given: Any,
) -> Any:
    """Return an inference request. `outputs`: names or messages. `given`: its parameters."""
    wanted = [output(each) if isinstance(each, str) else each for each in outputs]
    return pb.ModelInferRequest(
        model_name=model,
        model_version=version,
        id=id,
        inputs=inputs,
        outputs=wanted,
        raw_input_contents=raw,
        parameters=parameters(given),
    )


def infer(name: str, *message: Any, call: Mapping[str, Any] | None = None, **given: Any) -> Call:
    """Return a unary inference; the arguments are those of `request`, `call` more of the case's own."""
    return Call(f"gRPC: {name}", "ModelInfer", (request(*message, **given),), **(call or {}))


def ask(name: str, rpc: str, message: Message | bytes | None = None, **more: Any) -> Call:
    """Return a unary call; without a message, with the empty one."""
    return Call(f"gRPC: {name}", rpc, (b"" if message is None else message,), **more)


def stream(name: str, *steps: Step, **more: Any) -> Call:
    return Call(f"gRPC stream: {name}", "ModelStreamInfer", steps, **more)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def strings(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


#: The input of models with a batch dimension, such as batch8.
X = typed("X", "FP32", [1, 2], [1, 2])

"""Where the kernel has a gate: methods whose message says the model, or whether they change anything, ask the door for that.

Nothing here is used without a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from kernel import Denied
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.gated import GatedCall
from kernel_grpc.rpc.methods import Method
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.paths import triton

__all__ = ["CHANGING", "MODEL_FIELDS", "gated"]

#: Method -> the field that names the model.
MODEL_FIELDS = {
    triton("ModelInfer"): "model_name",
    triton("ModelStreamInfer"): "model_name",
    triton("ModelReady"): "name",
    triton("ModelMetadata"): "name",
    triton("ModelConfig"): "name",
    triton("ModelStatistics"): "name",
    triton("RepositoryModelLoad"): "model_name",
    triton("RepositoryModelUnload"): "model_name",
    triton("TraceSetting"): "model_name",
}

#: Methods that change the server; of SETTINGS only those that say what to set.
CHANGING = frozenset(
    map(
        triton,
        (
            "RepositoryModelLoad",
            "RepositoryModelUnload",
            "SystemSharedMemoryRegister",
            "SystemSharedMemoryUnregister",
            "CudaSharedMemoryRegister",
            "CudaSharedMemoryUnregister",
        ),
    )
)
SETTINGS = frozenset(map(triton, ("TraceSetting", "LogSettings")))

#: They ask by themselves, as messages there are not read twice (inference/gated.py).
INFERENCE = frozenset(map(triton, ("ModelInfer", "ModelStreamInfer")))

_SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def gated(methods: Iterable[Method]) -> list[Method]:
    """Return the methods, with those that have to ask in front of their handlers."""
    asking = (MODEL_FIELDS.keys() | SETTINGS) - INFERENCE
    return [
        Method(method.path, asks(method.path, method.handler), category=method.category, most=method.most)
        if method.path in asking
        else method
        for method in methods
    ]


def asks(path: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    request_type: Any = GetMessageClass(_SERVICE.methods_by_name[path.rpartition("/")[2]].input_type)
    field = MODEL_FIELDS.get(path)

    def ask(call: Call, message: Any) -> None:
        try:
            request = request_type.FromString(bytes(message))
        except DecodeError:
            handler(call, message)  # has the words for it
            return
        changes = path in CHANGING or (path in SETTINGS and bool(request.settings))
        guarded = cast(GatedCall, call)
        try:
            guarded.door.allow(guarded, getattr(request, field) if field is not None else "", changes)
        except Denied as denied:
            call.fail(denied)
        else:
            handler(call, message)

    return ask

"""Methods that change something for everybody, kept for clients of this machine, where the server is told so.

Who may is decided by kernel.frontends.restriction; here stand the methods, and what of a message changes something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from google.protobuf.message import DecodeError

from kernel import is_local, only_local
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.status import Status
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.paths import triton

__all__ = ["kept_local"]

#: Of the methods that show something, too: the message, which changes something where it names settings.
_SETTINGS = {triton("TraceSetting"): pb.TraceSettingRequest, triton("LogSettings"): pb.LogSettingsRequest}
_CHANGING = {
    *map(triton, ("RepositoryModelLoad", "RepositoryModelUnload")),
    *map(triton, ("SystemSharedMemoryRegister", "SystemSharedMemoryUnregister")),
    *map(triton, ("CudaSharedMemoryRegister", "CudaSharedMemoryUnregister")),
    *_SETTINGS,
}


def kept_local(methods: Collection[Method], categories: Collection[str]) -> list[Method]:
    """Return the methods; those that change something in `categories` refuse clients of other machines."""
    for method in methods:
        if method.category in categories and method.path in _CHANGING:
            method.handler = _guarded(method.path, method.category, method.handler)
    return list(methods)


def _guarded(path: str, category: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(call: Call, message: Any) -> None:
        if is_local(call.peer) or not _changes(path, message):
            handler(call, message)
        else:
            call.finish(Status.PERMISSION_DENIED, only_local(category))

    return guarded


def _changes(path: str, message: Any) -> bool:
    kind = _SETTINGS.get(path)
    if kind is None:
        return True
    try:
        request: Any = kind.FromString(bytes(message))
        return bool(request.settings)
    except DecodeError:  # the handler decodes it as well, and answers with what is wrong
        return False

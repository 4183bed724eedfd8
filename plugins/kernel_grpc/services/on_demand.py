"""Where models are loaded on demand: what is asked of a model that is not there waits for its load.

Inference does so by itself, as its messages are not read twice. Nothing here is used in other control modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from kernel import NotLoaded, ServingError
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.methods import Method
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.paths import triton

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["on_demand"]

#: The methods that want their model to be there, by path, and their requests.
REQUESTS: dict[str, Any] = {
    triton("ModelMetadata"): pb.ModelMetadataRequest,
    triton("ModelConfig"): pb.ModelConfigRequest,
}


def on_demand(kernel: Kernel, methods: Iterable[Method]) -> list[Method]:
    """Return the methods, those that want a model behind a look whether it is there."""
    return [
        Method(method.path, _awaited(kernel, REQUESTS[method.path], method.handler), category=method.category, most=method.most)
        if method.path in REQUESTS
        else method
        for method in methods
    ]


def _awaited(kernel: Kernel, request_type: Any, handler: Callable[..., Any]) -> Callable[..., Any]:
    def ask(call: Call, message: Any) -> None:
        try:
            request = request_type.FromString(bytes(message))
            kernel.model(request.name, request.version)
        except NotLoaded as away:

            def then(error: ServingError | None) -> None:
                if call.done:
                    return  # nobody waits any more
                if error is None:
                    ask(call, message)
                else:
                    call.fail(error)

            away.wait(then, lambda: not call.done, False)
            return
        except (DecodeError, ServingError):
            pass  # the handler has the words for it
        handler(call, message)

    return ask

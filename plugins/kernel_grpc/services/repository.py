"""The model repository over gRPC: what is in it, load, unload.

A load takes as long as it takes: it runs as a task of its own, the loop and the connection go on meanwhile. A client that gives
up its call, or whose deadline passes, gives up the answer and not the load. (Contract: grpc_protocol, section 2.)
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from kernel import Code, ServingError, clipped
from kernel_grpc.inference.large import ON_LOOP, fields
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.unary import parsed, unary
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.paths import triton

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["Repository", "methods"]

log = logging.getLogger(__name__)

CATEGORY = "model-repository"

#: The most parameters of a load, one a file, that are looked at where its message is large.
MOST_FIELDS = 4096

LOADED = pb.RepositoryModelLoadResponse().SerializeToString()


def methods(kernel: Kernel) -> list[Method]:
    """Return the methods of the service that concern the repository."""
    repository = Repository(kernel)
    return [
        unary(triton("RepositoryIndex"), CATEGORY, pb.RepositoryIndexRequest, repository.index),
        unary(triton("RepositoryModelUnload"), CATEGORY, pb.RepositoryModelUnloadRequest, repository.unload),
        Method(path=triton("RepositoryModelLoad"), category=CATEGORY, streaming=False, handler=repository.load),
    ]


class Repository:
    """The operations on a kernel's repositories, and the loads that are under way."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._loads: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly

    def index(self, request: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        check_no_repository(request)
        response = pb.RepositoryIndexResponse()
        for line in self.kernel.index(ready=request.ready):
            response.models.add(name=line.name, version=line.version, state=line.state, reason=line.reason)
        return response

    def unload(self, request: pb.RepositoryModelUnloadRequest) -> pb.RepositoryModelUnloadResponse:
        """Unload a model; returns at once. Other parameters than `unload_dependents` are ignored, as observed."""
        check_no_repository(request)
        dependents = False
        if "unload_dependents" in request.parameters:
            parameter = request.parameters["unload_dependents"]
            if parameter.WhichOneof("parameter_choice") != "bool_param":
                raise ServingError(
                    Code.INVALID_ARG, "invalid value type for 'unload_dependents' parameter, expected bool_param."
                )
            dependents = parameter.bool_param
        self.kernel.unload(request.model_name, dependents=dependents)
        return pb.RepositoryModelUnloadResponse()

    def load(self, call: Call, message: Any) -> None:
        """Load a model and answer when that is done."""
        try:
            check_fields(message)
            request = parsed(pb.RepositoryModelLoadRequest, message)
            check_no_repository(request)
            config, files = overrides_of(request)
        except ServingError as error:
            call.fail(error)
            return
        task = self.kernel.loop.create_task(self._load(call, request.model_name, config, files))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def _load(self, call: Call, name: str, config: str | None, files: dict[str, bytes] | None) -> None:
        try:
            await self.kernel.load(name, config=config, files=files)
        except ServingError as error:
            call.fail(error)
        except Exception as error:
            log.exception("loading model '%s' failed", clipped(name))
            call.fail(ServingError(Code.INTERNAL, f"{type(error).__name__}: {error}"))
        else:
            call.reply(LOADED)


def check_fields(message: Any) -> None:
    """Refuse a message of so many fields that its parser would hold the loop; its files may be large. Raises ServingError."""
    if len(message) <= ON_LOOP:
        return
    try:
        for count, _ in enumerate(fields(memoryview(message), 0, len(message))):
            if count == MOST_FIELDS:
                raise ServingError(Code.INVALID_ARG, f"the request has more than {MOST_FIELDS} fields and parameters")
    except IndexError:
        raise ServingError(
            Code.INVALID_ARG, "Unable to parse request as inference.RepositoryModelLoadRequest: it is cut off, or no message"
        ) from None


def check_no_repository(request: Any) -> None:
    """There is one repository as far as clients are concerned. Raises ServingError where one is named."""
    if request.repository_name:
        raise ServingError(Code.UNSUPPORTED, "'repository_name' specification is not supported")


def overrides_of(request: pb.RepositoryModelLoadRequest) -> tuple[str | None, dict[str, bytes] | None]:
    """Return the config and the files that a load request brings along. Raises ServingError."""
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, parameter in sorted(request.parameters.items()):
        kind = parameter.WhichOneof("parameter_choice")
        if key == "config":
            check_type(key, kind, "string_param")
            config = parameter.string_param
        elif key.startswith("file:"):
            check_type(key, kind, "bytes_param")
            files[key.removeprefix("file:")] = parameter.bytes_param
        else:
            raise ServingError(Code.INVALID_ARG, f"unrecognized load parameter '{key}'.")
    return config, files or None


def check_type(key: str, kind: str | None, wanted: str) -> None:
    if kind != wanted:
        raise ServingError(Code.INVALID_ARG, f"invalid value type for load parameter '{key}', expected {wanted}.")

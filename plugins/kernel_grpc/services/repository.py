"""The model repository over gRPC: what is in it, load, unload.

A load takes as long as it takes: it runs as a task of its own, the loop and the connection go on meanwhile. A client that gives
up its call, or whose deadline passes, gives up the answer and not the load. (Contract: grpc_protocol, section 2.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from kernel import Code, ServingError, clipped
from kernel_grpc.inference.large import ON_LOOP, fields
from kernel_grpc.inference.wire import BYTES
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

#: What a load request may have besides the contents of its files where it is large, in bytes.
MOST_BESIDES = 1024 * 1024

#: The numbers of fields: of a load's parameters, and of a parameter's value that is bytes.
PARAMETERS, BYTES_PARAM = 3, 4

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
            rest, large = taken_apart(message)
            request = parsed(pb.RepositoryModelLoadRequest, rest)
            check_no_repository(request)
            config, files = overrides_of(request, large)
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


def taken_apart(message: Any) -> tuple[Any, dict[str, memoryview]]:
    """Return a message without the contents of its large files, and these by their parameters' names.

    The parser would copy them in one go, and hold the interpreter meanwhile; they stay where they have come. Raises ServingError
    where there is much besides, which would take it as long.
    """
    if len(message) <= ON_LOOP:
        return message, {}
    data, rest, large = memoryview(message), bytearray(), {}
    try:
        for count, (number, wire, begin, start, end) in enumerate(fields(data, 0, len(data))):
            if count == MOST_FIELDS:
                raise ServingError(Code.INVALID_ARG, f"the request has more than {MOST_FIELDS} fields and parameters")
            file = large_file(data, start, end) if number == PARAMETERS and wire == BYTES and end - start > ON_LOOP else None
            if file is not None:
                large[file[0]] = file[1]
                continue
            if len(rest) + end - begin > MOST_BESIDES:
                text = f"the request has more than {MOST_BESIDES} bytes besides the contents of its files"
                raise ServingError(Code.INVALID_ARG, text)
            rest += data[begin:end]
    except IndexError:
        raise ServingError(
            Code.INVALID_ARG, "Unable to parse request as inference.RepositoryModelLoadRequest: it is cut off, or no message"
        ) from None
    return rest, large


def large_file(data: memoryview, start: int, end: int) -> tuple[str, memoryview] | None:
    """Return the name and the content of a parameter that is a file, None for another. Raises IndexError where it is cut off."""
    found = list(islice(fields(data, start, end), 3))
    if [one[:2] for one in found] != [(1, BYTES), (2, BYTES)] or found[0][4] - found[0][3] > ON_LOOP:
        return None
    inner = list(islice(fields(data, *found[1][3:]), 2))
    if [one[:2] for one in inner] != [(BYTES_PARAM, BYTES)]:
        return None
    try:
        return str(data[slice(*found[0][3:])], "utf-8"), data[slice(*inner[0][3:])]
    except UnicodeDecodeError:
        return None


def check_no_repository(request: Any) -> None:
    """There is one repository as far as clients are concerned. Raises ServingError where one is named."""
    if request.repository_name:
        raise ServingError(Code.UNSUPPORTED, "'repository_name' specification is not supported")


def overrides_of(
    request: pb.RepositoryModelLoadRequest, large: Mapping[str, memoryview]
) -> tuple[str | None, dict[str, bytes] | None]:
    """Return the config and the files that a load request brings along. `large`: those not in it. Raises ServingError."""
    for key in large:
        request.parameters[key].bytes_param = b""
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, parameter in sorted(request.parameters.items()):
        kind = parameter.WhichOneof("parameter_choice")
        if key == "config":
            check_type(key, kind, "string_param")
            config = parameter.string_param
        elif key.startswith("file:"):
            check_type(key, kind, "bytes_param")
            files[key.removeprefix("file:")] = cast(bytes, large[key]) if key in large else parameter.bytes_param
        else:
            raise ServingError(Code.INVALID_ARG, f"unrecognized load parameter '{key}'.")
    return config, files or None


def check_type(key: str, kind: str | None, wanted: str) -> None:
    if kind != wanted:
        raise ServingError(Code.INVALID_ARG, f"invalid value type for load parameter '{key}', expected {wanted}.")

"""The RPCs about the server itself and its models: live, ready, metadata, config, statistics. Collects those of files beside it.

Each operation reads the kernel's public state and returns a whole response. Rows and words are those of the contract
(grpc_protocol, sections 2 and 6), the categories those of HTTP.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from kernel import EXTENSIONS, Code, Duration, ServingError, __version__, model_metadata
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.unary import MOST, parsed, unary
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services import repository, settings, shared_memory
from kernel_grpc.services.paths import triton

if TYPE_CHECKING:
    from kernel import Kernel, ModelStatistics

__all__ = ["Admin", "methods"]

TIMES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
BATCH_TIMES = ("compute_input", "compute_infer", "compute_output")


def methods(kernel: Kernel, options: argparse.Namespace) -> list[Method]:
    """Return the methods of the service that are not inference."""
    return [
        *Admin(kernel, server_name=getattr(options, "id", None) or "triton").methods(),
        *repository.methods(kernel),
        *shared_memory.methods(kernel),
        *settings.methods(kernel),
    ]


class Admin:
    """What the server and its models are, and how they are."""

    def __init__(self, kernel: Kernel, *, server_name: str, server_version: str = __version__) -> None:
        self.kernel = kernel
        self._metadata = pb.ServerMetadataResponse(name=server_name, version=server_version, extensions=EXTENSIONS)

    def methods(self) -> list[Method]:
        return [
            unary(triton("ServerLive"), "health", pb.ServerLiveRequest, self.live),
            unary(triton("ServerReady"), "health", pb.ServerReadyRequest, self.ready),
            unary(triton("ServerMetadata"), "metadata", pb.ServerMetadataRequest, self.server_metadata),
            Method(path=triton("ModelReady"), category="health", streaming=False, handler=self.model_ready, most=MOST),
            unary(triton("ModelMetadata"), "metadata", pb.ModelMetadataRequest, self.model_metadata),
            unary(triton("ModelConfig"), "model-config", pb.ModelConfigRequest, self.model_config),
            unary(triton("ModelStatistics"), "statistics", pb.ModelStatisticsRequest, self.statistics),
        ]

    # --- the server

    def live(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        self._check_not_exiting()
        return pb.ServerLiveResponse(live=self.kernel.live)

    def ready(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        self._check_not_exiting()  # before that, while it retires, it is not ready
        return pb.ServerReadyResponse(ready=self.kernel.is_ready())

    def server_metadata(self, request: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        return self._metadata

    def _check_not_exiting(self) -> None:
        if self.kernel.exiting:
            raise ServingError(Code.UNAVAILABLE, "Server exiting")

    # --- a model

    def model_ready(self, call: Call, message: Any) -> None:
        """Not ready, unknown model, unknown version: all the same, and no error. The model itself may have a say."""

        def reply(ready: bool) -> None:
            call.reply(pb.ModelReadyResponse(ready=ready).SerializeToString())

        try:
            request = parsed(pb.ModelReadyRequest, message)
            self.kernel.ask_model_ready(request.name, version_of(request), reply)
        except ServingError as error:
            call.fail(error)

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        metadata = model_metadata(self.kernel, request.name, version_of(request))
        response = pb.ModelMetadataResponse(
            name=metadata.name, versions=metadata.versions, platform=metadata.platform
        )
        for shown, tensors in ((response.inputs, metadata.inputs), (response.outputs, metadata.outputs)):
            for tensor in tensors:
                shown.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        return response

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        config = self.kernel.model(request.name, version_of(request)).config
        response = pb.ModelConfigResponse()
        # The kernel keeps its messages in a descriptor pool of its own, so that this one has to be copied as bytes.
        response.config.MergeFromString(config.message.SerializeToString())
        return response

    def statistics(self, request: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        records = self.kernel.statistics(request.name, version_of(request))
        return pb.ModelStatisticsResponse(model_stats=map(statistics_of, records))


def version_of(request: Any) -> str:
    """Return the version that a request names. Raises ServingError for -1, which the kernel takes for the newest."""
    version: str = request.version
    if version == "-1":
        raise ServingError(
            Code.INVALID_ARG, "invalid model version specified '-1' , version should be an integral value > 0"
        )
    return version


def statistics_of(record: ModelStatistics) -> pb.ModelStatistics:
    """Return one model version's statistics as a message (contract: observability, section 1.1)."""
    return pb.ModelStatistics(
        name=record.name,
        version=str(record.version),
        last_inference=record.last_inference_ms,
        inference_count=record.inference_count,
        execution_count=record.execution_count,
        inference_stats=pb.InferStatistics(**{name: duration_of(getattr(record, name)) for name in TIMES}),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=size, **dict(zip(BATCH_TIMES, map(duration_of, times))))
            for size, times in sorted(record.batch_stats.items())
        ],
        response_stats={
            key: pb.InferResponseStatistics(**{name: duration_of(time) for name, time in times.items()})
            for key, times in record.response_stats.items()
        },
    )


def duration_of(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)

"""Shared memory over gRPC: regions are shown, registered and forgotten.

The kernel decides and has the words (contract: http_protocol, section 8); an empty name means all regions, and on the wire they
are a map by name. System and CUDA regions differ in a few fields only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_grpc.rpc.unary import unary
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_grpc.services.paths import triton

if TYPE_CHECKING:
    from kernel import Kernel
    from kernel_grpc.rpc.methods import Method

__all__ = ["Regions", "methods"]

CATEGORY = "shared-memory"


def methods(kernel: Kernel) -> list[Method]:
    """Return the methods of the service that concern shared memory."""
    regions = Regions(kernel)
    return [
        unary(triton("SystemSharedMemoryStatus"), CATEGORY, pb.SystemSharedMemoryStatusRequest, regions.status),
        unary(triton("SystemSharedMemoryRegister"), CATEGORY, pb.SystemSharedMemoryRegisterRequest, regions.register),
        unary(triton("SystemSharedMemoryUnregister"), CATEGORY, pb.SystemSharedMemoryUnregisterRequest, regions.unregister),
        unary(triton("CudaSharedMemoryStatus"), CATEGORY, pb.CudaSharedMemoryStatusRequest, regions.cuda_status),
        unary(triton("CudaSharedMemoryRegister"), CATEGORY, pb.CudaSharedMemoryRegisterRequest, regions.cuda_register),
        unary(triton("CudaSharedMemoryUnregister"), CATEGORY, pb.CudaSharedMemoryUnregisterRequest, regions.cuda_unregister),
    ]


class Regions:
    """The operations on a kernel's shared memory regions."""

    def __init__(self, kernel: Kernel) -> None:
        self.system = kernel.shared_memory
        self.cuda = kernel.cuda_shared_memory

    def status(self, request: pb.SystemSharedMemoryStatusRequest) -> pb.SystemSharedMemoryStatusResponse:
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self.system.status(request.name):
            shown = response.regions[region.name]
            shown.name, shown.key = region.name, region.key
            shown.offset, shown.byte_size = region.offset, region.byte_size
        return response

    def register(self, request: pb.SystemSharedMemoryRegisterRequest) -> pb.SystemSharedMemoryRegisterResponse:
        self.system.register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    def unregister(self, request: pb.SystemSharedMemoryUnregisterRequest) -> pb.SystemSharedMemoryUnregisterResponse:
        self.system.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def cuda_status(self, request: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
        """No region is ever registered, so there is none to show; one that is named is not found."""
        self.cuda.status(request.name)
        return pb.CudaSharedMemoryStatusResponse()

    def cuda_register(self, request: pb.CudaSharedMemoryRegisterRequest) -> pb.CudaSharedMemoryRegisterResponse:
        self.cuda.register(request.name, request.raw_handle, request.device_id, request.byte_size)
        return pb.CudaSharedMemoryRegisterResponse()

    def cuda_unregister(self, request: pb.CudaSharedMemoryUnregisterRequest) -> pb.CudaSharedMemoryUnregisterResponse:
        self.cuda.unregister(request.name)
        return pb.CudaSharedMemoryUnregisterResponse()

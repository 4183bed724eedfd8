"""Types of grpc_service_pb2. Written by `python3 dev.py proto`; do not edit."""

from collections.abc import Iterator, MutableMapping
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer
from google.protobuf.message import Message

_K = TypeVar("_K")
_V = TypeVar("_V")

class _MessageMap(MutableMapping[_K, _V], Generic[_K, _V]):
    def __getitem__(self, key: _K) -> _V: ...
    def __setitem__(self, key: _K, value: _V) -> None: ...
    def __delitem__(self, key: _K) -> None: ...
    def __iter__(self) -> Iterator[_K]: ...
    def __len__(self) -> int: ...

class _Enum:
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...

DESCRIPTOR: FileDescriptor

class ServerLiveRequest(Message):
    def __init__(self, **fields: Any) -> None: ...

class ServerLiveResponse(Message):
    live: bool
    def __init__(self, **fields: Any) -> None: ...

class ServerReadyRequest(Message):
    def __init__(self, **fields: Any) -> None: ...

class ServerReadyResponse(Message):
    ready: bool
    def __init__(self, **fields: Any) -> None: ...

class ServerMetadataRequest(Message):
    def __init__(self, **fields: Any) -> None: ...

class ServerMetadataResponse(Message):
    name: str
    version: str
    extensions: RepeatedScalarFieldContainer[str]
    def __init__(self, **fields: Any) -> None: ...

class ModelReadyRequest(Message):
    name: str
    version: str
    def __init__(self, **fields: Any) -> None: ...

class ModelReadyResponse(Message):
    ready: bool
    def __init__(self, **fields: Any) -> None: ...

class ModelMetadataRequest(Message):
    name: str
    version: str
    def __init__(self, **fields: Any) -> None: ...

class ModelMetadataResponse(Message):
    class TensorMetadata(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        def __init__(self, **fields: Any) -> None: ...
    name: str
    versions: RepeatedScalarFieldContainer[str]
    platform: str
    inputs: RepeatedCompositeFieldContainer[ModelMetadataResponse.TensorMetadata]
    outputs: RepeatedCompositeFieldContainer[ModelMetadataResponse.TensorMetadata]
    def __init__(self, **fields: Any) -> None: ...

class ModelConfigRequest(Message):
    name: str
    version: str
    def __init__(self, **fields: Any) -> None: ...

class ModelConfigResponse(Message):
    config: Message
    def __init__(self, **fields: Any) -> None: ...

class ModelStatisticsRequest(Message):
    name: str
    version: str
    def __init__(self, **fields: Any) -> None: ...

class ModelStatisticsResponse(Message):
    model_stats: RepeatedCompositeFieldContainer[ModelStatistics]
    def __init__(self, **fields: Any) -> None: ...

class StatisticDuration(Message):
    count: int
    ns: int
    def __init__(self, **fields: Any) -> None: ...

class InferStatistics(Message):
    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    cache_hit: StatisticDuration
    cache_miss: StatisticDuration
    def __init__(self, **fields: Any) -> None: ...

class InferResponseStatistics(Message):
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    success: StatisticDuration
    fail: StatisticDuration
    empty_response: StatisticDuration
    cancel: StatisticDuration
    def __init__(self, **fields: Any) -> None: ...

class InferBatchStatistics(Message):
    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    def __init__(self, **fields: Any) -> None: ...

class MemoryUsage(Message):
    type: str
    id: int
    byte_size: int
    def __init__(self, **fields: Any) -> None: ...

class ModelStatistics(Message):
    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: RepeatedCompositeFieldContainer[InferBatchStatistics]
    memory_usage: RepeatedCompositeFieldContainer[MemoryUsage]
    response_stats: _MessageMap[str, InferResponseStatistics]
    def __init__(self, **fields: Any) -> None: ...

class InferParameter(Message):
    bool_param: bool
    int64_param: int
    string_param: str
    double_param: float
    uint64_param: int
    def __init__(self, **fields: Any) -> None: ...

class InferTensorContents(Message):
    bool_contents: RepeatedScalarFieldContainer[bool]
    int_contents: RepeatedScalarFieldContainer[int]
    int64_contents: RepeatedScalarFieldContainer[int]
    uint_contents: RepeatedScalarFieldContainer[int]
    uint64_contents: RepeatedScalarFieldContainer[int]
    fp32_contents: RepeatedScalarFieldContainer[float]
    fp64_contents: RepeatedScalarFieldContainer[float]
    bytes_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(self, **fields: Any) -> None: ...

class ModelInferRequest(Message):
    class InferInputTensor(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        parameters: _MessageMap[str, InferParameter]
        contents: InferTensorContents
        def __init__(self, **fields: Any) -> None: ...
    class InferRequestedOutputTensor(Message):
        name: str
        parameters: _MessageMap[str, InferParameter]
        def __init__(self, **fields: Any) -> None: ...
    model_name: str
    model_version: str
    id: str
    parameters: _MessageMap[str, InferParameter]
    inputs: RepeatedCompositeFieldContainer[ModelInferRequest.InferInputTensor]
    outputs: RepeatedCompositeFieldContainer[ModelInferRequest.InferRequestedOutputTensor]
    raw_input_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(self, **fields: Any) -> None: ...

class ModelInferResponse(Message):
    class InferOutputTensor(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        parameters: _MessageMap[str, InferParameter]
        contents: InferTensorContents
        def __init__(self, **fields: Any) -> None: ...
    model_name: str
    model_version: str
    id: str
    parameters: _MessageMap[str, InferParameter]
    outputs: RepeatedCompositeFieldContainer[ModelInferResponse.InferOutputTensor]
    raw_output_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(self, **fields: Any) -> None: ...

class ModelStreamInferResponse(Message):
    error_message: str
    infer_response: ModelInferResponse
    def __init__(self, **fields: Any) -> None: ...

class ModelRepositoryParameter(Message):
    bool_param: bool
    int64_param: int
    string_param: str
    bytes_param: bytes
    def __init__(self, **fields: Any) -> None: ...

class RepositoryIndexRequest(Message):
    repository_name: str
    ready: bool
    def __init__(self, **fields: Any) -> None: ...

class RepositoryIndexResponse(Message):
    class ModelIndex(Message):
        name: str
        version: str
        state: str
        reason: str
        def __init__(self, **fields: Any) -> None: ...
    models: RepeatedCompositeFieldContainer[RepositoryIndexResponse.ModelIndex]
    def __init__(self, **fields: Any) -> None: ...

class RepositoryModelLoadRequest(Message):
    repository_name: str
    model_name: str
    parameters: _MessageMap[str, ModelRepositoryParameter]
    def __init__(self, **fields: Any) -> None: ...

class RepositoryModelLoadResponse(Message):
    def __init__(self, **fields: Any) -> None: ...

class RepositoryModelUnloadRequest(Message):
    repository_name: str
    model_name: str
    parameters: _MessageMap[str, ModelRepositoryParameter]
    def __init__(self, **fields: Any) -> None: ...

class RepositoryModelUnloadResponse(Message):
    def __init__(self, **fields: Any) -> None: ...

class SystemSharedMemoryStatusRequest(Message):
    name: str
    def __init__(self, **fields: Any) -> None: ...

class SystemSharedMemoryStatusResponse(Message):
    class RegionStatus(Message):
        name: str
        key: str
        offset: int
        byte_size: int
        def __init__(self, **fields: Any) -> None: ...
    regions: _MessageMap[str, SystemSharedMemoryStatusResponse.RegionStatus]
    def __init__(self, **fields: Any) -> None: ...

class SystemSharedMemoryRegisterRequest(Message):
    name: str
    key: str
    offset: int
    byte_size: int
    def __init__(self, **fields: Any) -> None: ...

class SystemSharedMemoryRegisterResponse(Message):
    def __init__(self, **fields: Any) -> None: ...

class SystemSharedMemoryUnregisterRequest(Message):
    name: str
    def __init__(self, **fields: Any) -> None: ...

class SystemSharedMemoryUnregisterResponse(Message):
    def __init__(self, **fields: Any) -> None: ...

class CudaSharedMemoryStatusRequest(Message):
    name: str
    def __init__(self, **fields: Any) -> None: ...

class CudaSharedMemoryStatusResponse(Message):
    class RegionStatus(Message):
        name: str
        device_id: int
        byte_size: int
        def __init__(self, **fields: Any) -> None: ...
    regions: _MessageMap[str, CudaSharedMemoryStatusResponse.RegionStatus]
    def __init__(self, **fields: Any) -> None: ...

class CudaSharedMemoryRegisterRequest(Message):
    name: str
    raw_handle: bytes
    device_id: int
    byte_size: int
    def __init__(self, **fields: Any) -> None: ...

class CudaSharedMemoryRegisterResponse(Message):
    def __init__(self, **fields: Any) -> None: ...

class CudaSharedMemoryUnregisterRequest(Message):
    name: str
    def __init__(self, **fields: Any) -> None: ...

class CudaSharedMemoryUnregisterResponse(Message):
    def __init__(self, **fields: Any) -> None: ...

class TraceSettingRequest(Message):
    class SettingValue(Message):
        value: RepeatedScalarFieldContainer[str]
        def __init__(self, **fields: Any) -> None: ...
    settings: _MessageMap[str, TraceSettingRequest.SettingValue]
    model_name: str
    def __init__(self, **fields: Any) -> None: ...

class TraceSettingResponse(Message):
    class SettingValue(Message):
        value: RepeatedScalarFieldContainer[str]
        def __init__(self, **fields: Any) -> None: ...
    settings: _MessageMap[str, TraceSettingResponse.SettingValue]
    def __init__(self, **fields: Any) -> None: ...

class LogSettingsRequest(Message):
    class SettingValue(Message):
        bool_param: bool
        uint32_param: int
        string_param: str
        def __init__(self, **fields: Any) -> None: ...
    settings: _MessageMap[str, LogSettingsRequest.SettingValue]
    def __init__(self, **fields: Any) -> None: ...

class LogSettingsResponse(Message):
    class SettingValue(Message):
        bool_param: bool
        uint32_param: int
        string_param: str
        def __init__(self, **fields: Any) -> None: ...
    settings: _MessageMap[str, LogSettingsResponse.SettingValue]
    def __init__(self, **fields: Any) -> None: ...

"""Types of model_config_pb2. Written by `python3 dev.py proto`; do not edit."""

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

DataType: _Enum
TYPE_INVALID: int
TYPE_BOOL: int
TYPE_UINT8: int
TYPE_UINT16: int
TYPE_UINT32: int
TYPE_UINT64: int
TYPE_INT8: int
TYPE_INT16: int
TYPE_INT32: int
TYPE_INT64: int
TYPE_FP16: int
TYPE_FP32: int
TYPE_FP64: int
TYPE_STRING: int
TYPE_BF16: int

class ModelRateLimiter(Message):
    class Resource(Message):
        name: str
        count: int
        def __init__(self, **fields: Any) -> None: ...
    resources: RepeatedCompositeFieldContainer[ModelRateLimiter.Resource]
    priority: int
    def __init__(self, **fields: Any) -> None: ...

class ModelInstanceGroup(Message):
    Kind: _Enum
    KIND_AUTO: int
    KIND_GPU: int
    KIND_CPU: int
    KIND_MODEL: int
    class SecondaryDevice(Message):
        SecondaryDeviceKind: _Enum
        KIND_NVDLA: int
        kind: int
        device_id: int
        def __init__(self, **fields: Any) -> None: ...
    name: str
    kind: int
    count: int
    rate_limiter: ModelRateLimiter
    gpus: RepeatedScalarFieldContainer[int]
    secondary_devices: RepeatedCompositeFieldContainer[ModelInstanceGroup.SecondaryDevice]
    profile: RepeatedScalarFieldContainer[str]
    passive: bool
    host_policy: str
    def __init__(self, **fields: Any) -> None: ...

class ModelTensorReshape(Message):
    shape: RepeatedScalarFieldContainer[int]
    def __init__(self, **fields: Any) -> None: ...

class ModelInput(Message):
    Format: _Enum
    FORMAT_NONE: int
    FORMAT_NHWC: int
    FORMAT_NCHW: int
    name: str
    data_type: int
    format: int
    dims: RepeatedScalarFieldContainer[int]
    reshape: ModelTensorReshape
    is_shape_tensor: bool
    allow_ragged_batch: bool
    optional: bool
    is_non_linear_format_io: bool
    def __init__(self, **fields: Any) -> None: ...

class ModelOutput(Message):
    name: str
    data_type: int
    dims: RepeatedScalarFieldContainer[int]
    reshape: ModelTensorReshape
    label_filename: str
    is_shape_tensor: bool
    is_non_linear_format_io: bool
    def __init__(self, **fields: Any) -> None: ...

class BatchInput(Message):
    Kind: _Enum
    BATCH_ELEMENT_COUNT: int
    BATCH_ACCUMULATED_ELEMENT_COUNT: int
    BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: int
    BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: int
    BATCH_ITEM_SHAPE: int
    BATCH_ITEM_SHAPE_FLATTEN: int
    kind: int
    target_name: RepeatedScalarFieldContainer[str]
    data_type: int
    source_input: RepeatedScalarFieldContainer[str]
    def __init__(self, **fields: Any) -> None: ...

class BatchOutput(Message):
    Kind: _Enum
    BATCH_SCATTER_WITH_INPUT_SHAPE: int
    target_name: RepeatedScalarFieldContainer[str]
    kind: int
    source_input: RepeatedScalarFieldContainer[str]
    def __init__(self, **fields: Any) -> None: ...

class ModelVersionPolicy(Message):
    class Latest(Message):
        num_versions: int
        def __init__(self, **fields: Any) -> None: ...
    class All(Message):
        def __init__(self, **fields: Any) -> None: ...
    class Specific(Message):
        versions: RepeatedScalarFieldContainer[int]
        def __init__(self, **fields: Any) -> None: ...
    latest: ModelVersionPolicy.Latest
    all: ModelVersionPolicy.All
    specific: ModelVersionPolicy.Specific
    def __init__(self, **fields: Any) -> None: ...

class ModelOptimizationPolicy(Message):
    ModelPriority: _Enum
    PRIORITY_DEFAULT: int
    PRIORITY_MAX: int
    PRIORITY_MIN: int
    class Graph(Message):
        level: int
        def __init__(self, **fields: Any) -> None: ...
    class Cuda(Message):
        class GraphSpec(Message):
            class Shape(Message):
                dim: RepeatedScalarFieldContainer[int]
                def __init__(self, **fields: Any) -> None: ...
            class LowerBound(Message):
                batch_size: int
                input: _MessageMap[str, ModelOptimizationPolicy.Cuda.GraphSpec.Shape]
                def __init__(self, **fields: Any) -> None: ...
            batch_size: int
            input: _MessageMap[str, ModelOptimizationPolicy.Cuda.GraphSpec.Shape]
            graph_lower_bound: ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound
            def __init__(self, **fields: Any) -> None: ...
        graphs: bool
        busy_wait_events: bool
        graph_spec: RepeatedCompositeFieldContainer[ModelOptimizationPolicy.Cuda.GraphSpec]
        output_copy_stream: bool
        def __init__(self, **fields: Any) -> None: ...
    class ExecutionAccelerators(Message):
        class Accelerator(Message):
            name: str
            parameters: MutableMapping[str, str]
            def __init__(self, **fields: Any) -> None: ...
        gpu_execution_accelerator: RepeatedCompositeFieldContainer[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator]
        cpu_execution_accelerator: RepeatedCompositeFieldContainer[ModelOptimizationPolicy.ExecutionAccelerators.Accelerator]
        def __init__(self, **fields: Any) -> None: ...
    class PinnedMemoryBuffer(Message):
        enable: bool
        def __init__(self, **fields: Any) -> None: ...
    graph: ModelOptimizationPolicy.Graph
    priority: int
    cuda: ModelOptimizationPolicy.Cuda
    execution_accelerators: ModelOptimizationPolicy.ExecutionAccelerators
    input_pinned_memory: ModelOptimizationPolicy.PinnedMemoryBuffer
    output_pinned_memory: ModelOptimizationPolicy.PinnedMemoryBuffer
    gather_kernel_buffer_threshold: int
    eager_batching: bool
    def __init__(self, **fields: Any) -> None: ...

class ModelQueuePolicy(Message):
    TimeoutAction: _Enum
    REJECT: int
    DELAY: int
    timeout_action: int
    default_timeout_microseconds: int
    allow_timeout_override: bool
    max_queue_size: int
    def __init__(self, **fields: Any) -> None: ...

class ModelDynamicBatching(Message):
    preferred_batch_size: RepeatedScalarFieldContainer[int]
    max_queue_delay_microseconds: int
    preserve_ordering: bool
    priority_levels: int
    default_priority_level: int
    default_queue_policy: ModelQueuePolicy
    priority_queue_policy: _MessageMap[int, ModelQueuePolicy]
    def __init__(self, **fields: Any) -> None: ...

class ModelSequenceBatching(Message):
    class Control(Message):
        Kind: _Enum
        CONTROL_SEQUENCE_START: int
        CONTROL_SEQUENCE_READY: int
        CONTROL_SEQUENCE_END: int
        CONTROL_SEQUENCE_CORRID: int
        kind: int
        int32_false_true: RepeatedScalarFieldContainer[int]
        fp32_false_true: RepeatedScalarFieldContainer[float]
        bool_false_true: RepeatedScalarFieldContainer[bool]
        data_type: int
        def __init__(self, **fields: Any) -> None: ...
    class ControlInput(Message):
        name: str
        control: RepeatedCompositeFieldContainer[ModelSequenceBatching.Control]
        def __init__(self, **fields: Any) -> None: ...
    class InitialState(Message):
        data_type: int
        dims: RepeatedScalarFieldContainer[int]
        zero_data: bool
        data_file: str
        name: str
        def __init__(self, **fields: Any) -> None: ...
    class State(Message):
        input_name: str
        output_name: str
        data_type: int
        dims: RepeatedScalarFieldContainer[int]
        initial_state: RepeatedCompositeFieldContainer[ModelSequenceBatching.InitialState]
        use_same_buffer_for_input_output: bool
        use_growable_memory: bool
        def __init__(self, **fields: Any) -> None: ...
    class StrategyDirect(Message):
        max_queue_delay_microseconds: int
        minimum_slot_utilization: float
        def __init__(self, **fields: Any) -> None: ...
    class StrategyOldest(Message):
        max_candidate_sequences: int
        preferred_batch_size: RepeatedScalarFieldContainer[int]
        max_queue_delay_microseconds: int
        preserve_ordering: bool
        def __init__(self, **fields: Any) -> None: ...
    direct: ModelSequenceBatching.StrategyDirect
    oldest: ModelSequenceBatching.StrategyOldest
    max_sequence_idle_microseconds: int
    control_input: RepeatedCompositeFieldContainer[ModelSequenceBatching.ControlInput]
    state: RepeatedCompositeFieldContainer[ModelSequenceBatching.State]
    iterative_sequence: bool
    def __init__(self, **fields: Any) -> None: ...

class ModelEnsembling(Message):
    class Step(Message):
        model_name: str
        model_version: int
        input_map: MutableMapping[str, str]
        output_map: MutableMapping[str, str]
        model_namespace: str
        def __init__(self, **fields: Any) -> None: ...
    step: RepeatedCompositeFieldContainer[ModelEnsembling.Step]
    max_inflight_requests: int
    def __init__(self, **fields: Any) -> None: ...

class ModelParameter(Message):
    string_value: str
    def __init__(self, **fields: Any) -> None: ...

class ModelWarmup(Message):
    class Input(Message):
        data_type: int
        dims: RepeatedScalarFieldContainer[int]
        zero_data: bool
        random_data: bool
        input_data_file: str
        def __init__(self, **fields: Any) -> None: ...
    name: str
    batch_size: int
    inputs: _MessageMap[str, ModelWarmup.Input]
    count: int
    def __init__(self, **fields: Any) -> None: ...

class ModelOperations(Message):
    op_library_filename: RepeatedScalarFieldContainer[str]
    def __init__(self, **fields: Any) -> None: ...

class ModelTransactionPolicy(Message):
    decoupled: bool
    def __init__(self, **fields: Any) -> None: ...

class ModelRepositoryAgents(Message):
    class Agent(Message):
        name: str
        parameters: MutableMapping[str, str]
        def __init__(self, **fields: Any) -> None: ...
    agents: RepeatedCompositeFieldContainer[ModelRepositoryAgents.Agent]
    def __init__(self, **fields: Any) -> None: ...

class ModelResponseCache(Message):
    enable: bool
    def __init__(self, **fields: Any) -> None: ...

class ModelMetrics(Message):
    class MetricControl(Message):
        class MetricIdentifier(Message):
            family: str
            def __init__(self, **fields: Any) -> None: ...
        class HistogramOptions(Message):
            buckets: RepeatedScalarFieldContainer[float]
            def __init__(self, **fields: Any) -> None: ...
        metric_identifier: ModelMetrics.MetricControl.MetricIdentifier
        histogram_options: ModelMetrics.MetricControl.HistogramOptions
        def __init__(self, **fields: Any) -> None: ...
    metric_control: RepeatedCompositeFieldContainer[ModelMetrics.MetricControl]
    def __init__(self, **fields: Any) -> None: ...

class ModelConfig(Message):
    name: str
    platform: str
    backend: str
    runtime: str
    version_policy: ModelVersionPolicy
    max_batch_size: int
    input: RepeatedCompositeFieldContainer[ModelInput]
    output: RepeatedCompositeFieldContainer[ModelOutput]
    batch_input: RepeatedCompositeFieldContainer[BatchInput]
    batch_output: RepeatedCompositeFieldContainer[BatchOutput]
    optimization: ModelOptimizationPolicy
    dynamic_batching: ModelDynamicBatching
    sequence_batching: ModelSequenceBatching
    ensemble_scheduling: ModelEnsembling
    instance_group: RepeatedCompositeFieldContainer[ModelInstanceGroup]
    default_model_filename: str
    cc_model_filenames: MutableMapping[str, str]
    metric_tags: MutableMapping[str, str]
    parameters: _MessageMap[str, ModelParameter]
    model_warmup: RepeatedCompositeFieldContainer[ModelWarmup]
    model_operations: ModelOperations
    model_transaction_policy: ModelTransactionPolicy
    model_repository_agents: ModelRepositoryAgents
    response_cache: ModelResponseCache
    model_metrics: ModelMetrics
    def __init__(self, **fields: Any) -> None: ...

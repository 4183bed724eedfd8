# The types of triton_python_backend_utils, for mypy, pyright and editors: what models may rely on, whoever serves them.
#
# A stub package, since a single module can't say that it has types (PEP 561). Look-ups that may find nothing return
# `Tensor | Any`: a model knows from its config which of its inputs are there, and need not ask for each.

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Literal, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

_Array: TypeAlias = NDArray[Any]
_Parameters: TypeAlias = Mapping[str, bool | int | str]
_Config: TypeAlias = Mapping[str, Any]

class _MemoryType(Enum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1

class _ErrorCode(Enum):
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

class _LogLevel(Enum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3

class _MetricKind(Enum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2

TRITONSERVER_MEMORY_CPU: Final = _MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU: Final = _MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START: Final = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END: Final = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL: Final = 1
TRITONSERVER_REQUEST_RELEASE_ALL: Final = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE: Final = 2
TRITON_STRING_TO_NUMPY: dict[str, Any]

class TritonModelException(Exception): ...

class Tensor:
    """A name and an array; shares memory with the array, unless that is not C-contiguous."""

    def __init__(self, name: str, numpy_array: _Array, /) -> None: ...
    def name(self) -> str: ...
    def as_numpy(self) -> _Array:
        """Return the array. That of a received tensor is writable and nobody else's; strings are `bytes` in it."""
    def shape(self) -> list[int]: ...
    def triton_dtype(self) -> int: ...
    def is_cpu(self) -> bool: ...
    def to_dlpack(self) -> Any: ...
    @staticmethod
    def from_dlpack(name: str, obj: Any, /) -> Tensor: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Array:
        """For `numpy.asarray`: as `as_numpy`, but BF16 comes as `ml_dtypes.bfloat16`, where that is installed."""
    def __dlpack__(self, stream: Any = None, **_: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class TritonError:
    """What a model answers instead of outputs."""

    UNKNOWN: ClassVar[_ErrorCode]
    INTERNAL: ClassVar[_ErrorCode]
    NOT_FOUND: ClassVar[_ErrorCode]
    INVALID_ARG: ClassVar[_ErrorCode]
    UNAVAILABLE: ClassVar[_ErrorCode]
    UNSUPPORTED: ClassVar[_ErrorCode]
    ALREADY_EXISTS: ClassVar[_ErrorCode]
    CANCELLED: ClassVar[_ErrorCode]
    def __init__(self, message: str, code: _ErrorCode = ...) -> None: ...
    def message(self) -> str: ...
    def code(self) -> _ErrorCode: ...

class InferenceResponse:
    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: _Parameters | None = None,
    ) -> None: ...
    def output_tensors(self) -> list[Tensor]: ...
    def has_error(self) -> bool: ...
    def error(self) -> TritonError | None: ...
    def parameters(self) -> str:
        """Return the parameters as a JSON string, `"{}"` for none."""

@final
class _ResponseIterator(Iterator[InferenceResponse], AsyncIterator[InferenceResponse]):
    """The responses of a decoupled call. A final flag that came alone is one more response, without outputs."""

    def __next__(self) -> InferenceResponse: ...
    async def __anext__(self) -> InferenceResponse: ...
    def __iter__(self) -> _ResponseIterator: ...
    def __aiter__(self) -> _ResponseIterator: ...
    def cancel(self) -> None: ...

@final
class _InferenceTrace:
    def get_context(self) -> str | None: ...

@final
class _InferenceResponseSender:
    """Sends the responses of one request, from any thread. The last call has the flag COMPLETE_FINAL."""

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None: ...
    def is_cancelled(self) -> bool: ...

class PreferredMemory:
    def __init__(self, preferred_memory_type: _MemoryType, preferred_device_id: int = 0) -> None: ...

class InferenceRequest:
    """A request as `execute` receives it, or one that a model makes to call another model."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = ...,
        requested_output_names: Sequence[str] = ...,
        model_name: str = ...,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: _InferenceTrace | None = None,
        parameters: _Parameters | None = None,
    ) -> None: ...
    def inputs(self) -> list[Tensor]: ...
    def request_id(self) -> str: ...
    def correlation_id(self) -> int | str: ...
    def flags(self) -> int: ...
    def set_flags(self, flags: int, /) -> None: ...
    def timeout(self) -> int:
        """Return the time-out in microseconds, 0 for none."""
    def parameters(self) -> str:
        """Return the parameters as a JSON string, `"{}"` for none."""
    def requested_output_names(self) -> set[str]: ...
    def trace(self) -> _InferenceTrace: ...
    def is_cancelled(self) -> bool: ...
    def get_response_sender(self) -> _InferenceResponseSender: ...
    def set_release_flags(self, flags: int, /) -> None: ...
    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse:
        """Call the model and wait for its response, which may be an error."""
    @overload
    def exec(self, decoupled: Literal[True]) -> _ResponseIterator: ...
    @overload
    def async_exec(self, decoupled: Literal[False] = False) -> Awaitable[InferenceResponse]:
        """Call the model; to be awaited, in an `async def` only."""
    @overload
    def async_exec(self, decoupled: Literal[True]) -> Awaitable[_ResponseIterator]: ...

class Logger:
    LogLevel: ClassVar[type[_LogLevel]]
    INFO: ClassVar[_LogLevel]
    WARNING: ClassVar[_LogLevel]
    ERROR: ClassVar[_LogLevel]
    VERBOSE: ClassVar[_LogLevel]
    @staticmethod
    def log(message: str, level: _LogLevel = ...) -> None: ...
    @staticmethod
    def log_info(message: str) -> None: ...
    @staticmethod
    def log_warn(message: str) -> None: ...
    @staticmethod
    def log_error(message: str) -> None: ...
    @staticmethod
    def log_verbose(message: str) -> None: ...

@final
class _Metric:
    def increment(self, value: float, /) -> None: ...
    def set(self, value: float, /) -> None: ...
    def observe(self, value: float, /) -> None: ...
    def value(self) -> float: ...

class MetricFamily:
    """Custom metrics of one name; each set of labels is a metric of its own. They live as long as this object is held."""

    COUNTER: ClassVar[_MetricKind]
    GAUGE: ClassVar[_MetricKind]
    HISTOGRAM: ClassVar[_MetricKind]
    def __init__(self, name: str, description: str, kind: _MetricKind) -> None: ...
    def Metric(self, labels: dict[str, Any] | None = None, buckets: list[Any] | None = None) -> _Metric:
        """Return the metric of these labels. `buckets`: of a histogram only, its upper bounds, ascending."""

class ModelConfig:
    """The config as `auto_complete_config` is given it, and has to return it."""

    def __init__(self, model_config: str) -> None: ...
    def as_dict(self) -> dict[str, Any]: ...
    def set_max_batch_size(self, max_batch_size: int) -> None: ...
    def set_dynamic_batching(self) -> None: ...
    def add_input(self, input: dict[str, Any]) -> None: ...
    def add_output(self, output: dict[str, Any]) -> None: ...
    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None: ...

def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | Any:
    """Return the request's input of that name, None where it has none."""

def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | Any:
    """Return the response's output of that name, None where it has none."""

def get_input_config_by_name(model_config: _Config, name: str) -> dict[str, Any] | Any: ...
def get_output_config_by_name(model_config: _Config, name: str) -> dict[str, Any] | Any: ...
def using_decoupled_model_transaction_policy(model_config: _Config) -> bool: ...
def get_model_dir() -> str:
    """Return the absolute path of the version folder of the model that calls."""

def triton_string_to_numpy(triton_type_string: str) -> Any: ...
def triton_to_numpy_type(data_type: int) -> Any: ...
def numpy_to_triton_type(data_type: Any) -> int | None: ...
def serialize_byte_tensor(input_tensor: _Array) -> bytes | tuple[()] | None: ...
def deserialize_bytes_tensor(encoded_tensor: bytes) -> NDArray[np.object_]: ...
def is_model_ready(model_name: str, model_version: str = "") -> bool: ...
def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model and return when it is ready. `files`: `file:<path in its folder>` -> content; needs a `config`."""

def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Have a model unloaded; returns at once."""

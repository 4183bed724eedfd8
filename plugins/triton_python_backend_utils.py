"""The module that Triton's python models import, conventionally `as pb_utils` (contract: python_backend, section 1).

Only names; what they do is written in the package kernel_python.
"""

from __future__ import annotations

import kernel_python.api.builtin  # noqa: F401 - `import c_python_backend_utils` works
from kernel_python.api.helpers import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_model_dir,
    get_output_config_by_name,
    get_output_tensor_by_name,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
    using_decoupled_model_transaction_policy,
)
from kernel_python.api.logger import Logger
from kernel_python.api.metrics import MetricFamily
from kernel_python.api.model_config import PbModelConfig as ModelConfig
from kernel_python.api.model_control import is_model_ready, load_model, unload_model
from kernel_python.api.preferred import MemoryType as _MemoryType
from kernel_python.api.preferred import PreferredMemory
from kernel_python.api.requests import InferenceRequest
from kernel_python.api.responses import InferenceResponse, TritonError
from kernel_python.api.tensors import Tensor
from kernel_python.faults import TritonModelException

TRITONSERVER_MEMORY_CPU = _MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = _MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

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

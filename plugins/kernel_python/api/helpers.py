"""The helper functions of triton_python_backend_utils (contract: python_backend, 1.1): look-ups, type names, string packing."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from kernel import pack_bytes
from kernel_python.api.requests import InferenceRequest
from kernel_python.api.responses import InferenceResponse
from kernel_python.api.tensors import Tensor
from kernel_python.calling import calling_instance

__all__ = [
    "TRITON_STRING_TO_NUMPY",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "using_decoupled_model_transaction_policy",
]

_NUMPY_TYPES: tuple[Any, ...] = (
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    np.object_,
)
_STRINGS = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING"

#: `TYPE_X` of a config -> numpy type. BOOL is python's `bool`, as in the reference.
TRITON_STRING_TO_NUMPY: dict[str, Any] = {f"TYPE_{n}": t for n, t in zip(_STRINGS.split(), _NUMPY_TYPES)}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """Return the request's first input of that name, None where there is none."""
    try:
        by_name = inference_request._by_name  # type: ignore[attr-defined]
    except (
        AttributeError
    ):  # no request that was received: one made for a BLS call, or a stand-in of a model's own tests
        return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)
    tensor: Tensor | None = by_name.get(name)
    return inference_request._input(name) if tensor is None else tensor  # type: ignore[attr-defined]


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return the response's first output of that name, None where there is none."""
    try:
        tensors = inference_response._tensors
    except AttributeError:  # a stand-in of a model's own tests
        return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the properties of the input of that name in a config dictionary, None where there is none."""
    return next((one for one in model_config.get("input", ()) if one["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the properties of the output of that name in a config dictionary, None where there is none."""
    return next((one for one in model_config.get("output", ()) if one["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Return whether the config dictionary is a decoupled model's."""
    if "model_transaction_policy" in model_config:
        return bool(model_config["model_transaction_policy"]["decoupled"])
    return False


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type of a config's `TYPE_X`; KeyError for those without one, BF16 among them."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type of a datatype number 1 to 13, None for others."""
    number = int(data_type)
    return _NUMPY_TYPES[number - 1] if 0 < number <= len(_NUMPY_TYPES) else None


def numpy_to_triton_type(data_type: Any) -> int | None:
    """Return the datatype number of a numpy type, None where there is none."""
    for number, one in enumerate(_NUMPY_TYPES, 1):
        if data_type == one:
            return number
    return 13 if data_type == np.bytes_ else None


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | tuple[()] | None:
    """Return a string array as lengths and bytes, in C order; `()` for an empty array, None for one that holds no strings."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype == np.object_ or input_tensor.dtype.type == np.bytes_:
        return pack_bytes(input_tensor)
    return None


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """Return the strings of a serialised array, one-dimensional; struct.error when the buffer ends too soon."""
    strings = []
    at = 0
    while at < len(encoded_tensor):
        (size,) = struct.unpack_from("<I", encoded_tensor, at)
        at += 4
        strings.append(struct.unpack_from(f"<{size}s", encoded_tensor, at)[0])
        at += size
    return np.array(strings, dtype=np.object_)


def get_model_dir() -> str:
    """Return the absolute path of the version folder of the model that calls."""
    return calling_instance("get_model_dir").version_folder

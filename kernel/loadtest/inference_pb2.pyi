"""Types of inference_pb2. Written by `python3 dev.py proto`; do not edit."""

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

class InferParameter(Message):
    bool_param: bool
    int64_param: int
    string_param: str
    def __init__(self, **fields: Any) -> None: ...

class ModelInferRequest(Message):
    class InferInputTensor(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        def __init__(self, **fields: Any) -> None: ...
    model_name: str
    model_version: str
    id: str
    parameters: _MessageMap[str, InferParameter]
    inputs: RepeatedCompositeFieldContainer[ModelInferRequest.InferInputTensor]
    raw_input_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(self, **fields: Any) -> None: ...

class ModelStreamInferResponse(Message):
    error_message: str
    def __init__(self, **fields: Any) -> None: ...

class ModelRequest(Message):
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
    inputs: RepeatedCompositeFieldContainer[ModelMetadataResponse.TensorMetadata]
    def __init__(self, **fields: Any) -> None: ...

class ModelConfigResponse(Message):
    config: bytes
    def __init__(self, **fields: Any) -> None: ...

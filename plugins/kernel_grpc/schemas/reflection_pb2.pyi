"""Types of reflection_pb2. Written by `python3 dev.py proto`; do not edit."""

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

class ServerReflectionRequest(Message):
    host: str
    file_by_filename: str
    file_containing_symbol: str
    file_containing_extension: ExtensionRequest
    all_extension_numbers_of_type: str
    list_services: str
    def __init__(self, **fields: Any) -> None: ...

class ExtensionRequest(Message):
    containing_type: str
    extension_number: int
    def __init__(self, **fields: Any) -> None: ...

class ServerReflectionResponse(Message):
    valid_host: str
    original_request: ServerReflectionRequest
    file_descriptor_response: FileDescriptorResponse
    all_extension_numbers_response: ExtensionNumberResponse
    list_services_response: ListServiceResponse
    error_response: ErrorResponse
    def __init__(self, **fields: Any) -> None: ...

class FileDescriptorResponse(Message):
    file_descriptor_proto: RepeatedScalarFieldContainer[bytes]
    def __init__(self, **fields: Any) -> None: ...

class ExtensionNumberResponse(Message):
    base_type_name: str
    extension_number: RepeatedScalarFieldContainer[int]
    def __init__(self, **fields: Any) -> None: ...

class ListServiceResponse(Message):
    service: RepeatedCompositeFieldContainer[ServiceResponse]
    def __init__(self, **fields: Any) -> None: ...

class ServiceResponse(Message):
    name: str
    def __init__(self, **fields: Any) -> None: ...

class ErrorResponse(Message):
    error_code: int
    error_message: str
    def __init__(self, **fields: Any) -> None: ...

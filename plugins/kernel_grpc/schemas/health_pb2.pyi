"""Types of health_pb2. Written by `python3 dev.py proto`; do not edit."""

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

class HealthCheckRequest(Message):
    service: str
    def __init__(self, **fields: Any) -> None: ...

class HealthCheckResponse(Message):
    ServingStatus: _Enum
    UNKNOWN: int
    SERVING: int
    NOT_SERVING: int
    SERVICE_UNKNOWN: int
    status: int
    def __init__(self, **fields: Any) -> None: ...

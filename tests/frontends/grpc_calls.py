"""Calls methods of the gRPC services as a transport would, without one: messages in, messages out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontends.fakes_grpc import FakeCall
from google.protobuf.message import Message

from kernel import Code
from kernel_grpc.rpc.methods import Method
from kernel_grpc.schemas import grpc_service_pb2, health_pb2, reflection_pb2

FILES = (grpc_service_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)


class Failed(Exception):
    """The call ended with an error."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class Caller:
    """Calls methods as a client would; with names of Triton's service, or with whole paths."""

    def __init__(self, methods: Sequence[Method]) -> None:
        self.methods = {method.path: method for method in methods}
        assert len(self.methods) == len(methods), "two methods of one path"

    def start(self, name: str, message: bytes = b"") -> FakeCall:
        """Make a unary call."""
        method = self.methods[path_of(name)]
        assert not method.streaming
        call = FakeCall()
        method.handler(call, message)
        return call

    def open(self, path: str) -> tuple[FakeCall, Any]:
        """Open a stream; return it and the object that takes its messages."""
        method = self.methods[path]
        assert method.streaming
        call = FakeCall()
        return call, method.handler(call)

    def ask(self, name: str, request: Message | None = None) -> Any:
        """Make a unary call and return its response, which must have come at once. Raises Failed."""
        call = self.start(name, request.SerializeToString() if request is not None else b"")
        return answer_of(call, name)


def path_of(name: str) -> str:
    return name if name.startswith("/") else f"/inference.GRPCInferenceService/{name}"


def answer_of(call: FakeCall, name: str) -> Any:
    """Return the response of a unary call that has ended. Raises Failed."""
    assert call.done
    if call.status != 0:
        raise Failed(*call.failure)
    (data,) = call.take()
    return response_type(name).FromString(data)


def response_type(name: str) -> Any:
    """Return the message class of a method's responses."""
    _, service, method = path_of(name).split("/")
    for file in FILES:
        for found in file.services_by_name.values():
            if found.full_name == service:
                return found.methods_by_name[method].output_type._concrete_class
    raise LookupError(name)

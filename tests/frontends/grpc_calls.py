"""Calls for the tests of the gRPC services: what a transport would hand to a method, and what the method did with it.

Messages in, messages out; the transport has tests of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from kernel import Code, ServingError
from kernel_grpc import grpc_service_pb2, health_pb2, reflection_pb2
from kernel_grpc.calls import Method

FILES = (grpc_service_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)


class Failed(Exception):
    """The call ended with an error."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class FakeCall:
    """A call that keeps what is sent. `error`: with what it failed; `finished`: it ended, well or not."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.error: ServingError | None = None
        self.finished = self.done = self.held = False
        self.writable = True
        self.on_cancel: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    def reply(self, message: Any) -> None:
        if not self.done:
            self.send(message)
            self.finish()

    def send(self, message: Any) -> None:
        if not self.done:
            self.sent.append(bytes(message))

    def finish(self) -> None:
        if not self.done:
            self.finished = self.done = True

    def fail(self, error: ServingError) -> None:
        if not self.done:
            self.error = error
            self.finish()

    def hold(self) -> None:
        self.held = True

    def unhold(self) -> None:
        self.held = False

    def cancel(self) -> None:
        """The client cancels, or is gone."""
        self.done = True
        if self.on_cancel is not None:
            self.on_cancel()

    def take(self) -> list[bytes]:
        sent, self.sent = self.sent, []
        return sent


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
    assert call.finished
    if call.error is not None:
        assert not call.sent
        raise Failed(call.error.code, call.error.message)
    (data,) = call.sent
    return response_type(name).FromString(data)


def response_type(name: str) -> Any:
    """Return the message class of a method's responses."""
    _, service, method = path_of(name).split("/")
    for file in FILES:
        for found in file.services_by_name.values():
            if found.full_name == service:
                return found.methods_by_name[method].output_type._concrete_class
    raise LookupError(name)

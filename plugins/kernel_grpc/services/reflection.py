"""Server reflection, v1 and v1alpha: which services there are, and the schema files they are described in.

For tools such as grpcurl that know no schema beforehand. The answers come from the descriptors of this package's own generated
modules, never from the process-wide pool, where an app or Triton's client may have registered others of the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool

from kernel import Code, ServingError
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.status import STATUS_OF
from kernel_grpc.rpc.unary import MOST, parsed
from kernel_grpc.schemas import grpc_service_pb2, health_pb2
from kernel_grpc.schemas import reflection_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor

__all__ = ["Reflection", "Schemas", "methods"]

V1 = "grpc.reflection.v1"
V1ALPHA = "grpc.reflection.v1alpha"


def methods() -> list[Method]:
    """Return the methods of both reflection services. On the wire their messages are the same."""
    files = (grpc_service_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR, pb.DESCRIPTOR, renamed(pb.DESCRIPTOR, V1, V1ALPHA))
    schemas = Schemas(files)
    return [
        Method(
            path=f"/{package}.ServerReflection/ServerReflectionInfo",
            category="",
            streaming=True,
            handler=lambda call: Reflection(schemas, call),
            most=MOST,
        )
        for package in (V1, V1ALPHA)
    ]


class Reflection:
    """One stream of questions. Each is answered at once, in order, also where the answer is an error; they keep no state."""

    __slots__ = ("_call", "_schemas")

    def __init__(self, schemas: Schemas, call: Call) -> None:
        self._schemas = schemas
        self._call = call

    def message(self, data: Any) -> None:
        call = self._call
        try:
            request = parsed(pb.ServerReflectionRequest, data)
        except ServingError as error:
            call.fail(error)
            return
        call.send(self._schemas.answer(request).SerializeToString())
        if not call.writable:  # a client that asks on without reading waits
            call.on_writable = self._read_on
            call.hold()

    def _read_on(self) -> None:
        self._call.on_writable = None
        self._call.unhold()

    def half_closed(self) -> None:
        self._call.finish()


class Schemas:
    """Schema files with what they import, by name and by the full names of all that is declared in them."""

    def __init__(self, files: Iterable[FileDescriptor]) -> None:
        self.services: list[str] = []
        self.files: dict[str, FileDescriptor] = {}
        self.symbols: dict[str, FileDescriptor] = {}
        self.messages: set[str] = set()
        for file in files:
            self._add(file)

    def answer(self, request: pb.ServerReflectionRequest) -> pb.ServerReflectionResponse:
        """Return the response to one request; what can't be found is an error response."""
        response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
        try:
            self._fill(response, request)
        except ServingError as error:
            response.error_response.error_code = STATUS_OF[error.code]
            response.error_response.error_message = error.message
        return response

    def _fill(self, response: pb.ServerReflectionResponse, request: pb.ServerReflectionRequest) -> None:
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in sorted(self.services):
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                file = self._found(self.files, request.file_by_filename, "file")
                response.file_descriptor_response.file_descriptor_proto.extend(serialized(file))
            case "file_containing_symbol":
                file = self._found(self.symbols, request.file_containing_symbol, "symbol")
                response.file_descriptor_response.file_descriptor_proto.extend(serialized(file))
            case "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                self._check_message(name)
                response.all_extension_numbers_response.base_type_name = name  # and no numbers: nothing is extended
            case "file_containing_extension":
                asked = request.file_containing_extension
                self._check_message(asked.containing_type)
                raise _not_found(f"message type '{asked.containing_type}' has no extension {asked.extension_number}")
            case _:
                raise ServingError(Code.INVALID_ARG, "the request asks for nothing: its message_request is not set")

    def _found(self, table: dict[str, FileDescriptor], name: str, what: str) -> FileDescriptor:
        if name not in table:
            raise _not_found(f"there is no {what} '{name}' here")
        return table[name]

    def _check_message(self, name: str) -> None:
        if name not in self.messages:
            raise _not_found(f"there is no message type '{name}' here")

    # --- what there is

    def _add(self, file: FileDescriptor) -> None:
        if file.name in self.files:
            return
        self.files[file.name] = file
        for service in file.services_by_name.values():
            self.services.append(service.full_name)
            self.symbols[service.full_name] = file
            self.symbols.update((f"{service.full_name}.{method.name}", file) for method in service.methods)
        for message in file.message_types_by_name.values():
            self._add_message(message, file)
        for enum in file.enum_types_by_name.values():
            self._add_enum(enum, file)
        for other in file.dependencies:
            self._add(other)

    def _add_message(self, message: Descriptor, file: FileDescriptor) -> None:
        self.messages.add(message.full_name)
        self.symbols[message.full_name] = file
        self.symbols.update((f"{message.full_name}.{field.name}", file) for field in message.fields)
        self.symbols.update((f"{message.full_name}.{oneof.name}", file) for oneof in message.oneofs)
        for nested in message.nested_types:
            self._add_message(nested, file)
        for enum in message.enum_types:
            self._add_enum(enum, file)

    def _add_enum(self, enum: EnumDescriptor, file: FileDescriptor) -> None:
        self.symbols[enum.full_name] = file
        scope = enum.full_name.rpartition(".")[0]  # an enum's values are its siblings, as in C++
        self.symbols.update((f"{scope}.{value.name}", file) for value in enum.values)


def serialized(file: FileDescriptor) -> list[bytes]:
    """Return the file as a FileDescriptorProto, and then all that it imports."""
    files = {file.name: file.serialized_pb}
    pending = list(file.dependencies)
    while pending:
        other = pending.pop()
        files[other.name] = other.serialized_pb
        pending += other.dependencies
    return list(files.values())


def renamed(file: FileDescriptor, package: str, wanted: str) -> FileDescriptor:
    """Return the same schema in another package, as a file of another name."""
    proto = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
    proto.name = f"{file.name.removesuffix('.proto')}_{wanted.rpartition('.')[2]}.proto"
    proto.package = wanted
    old, new = f".{package}.", f".{wanted}."
    for message in proto.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(old, new)
    for service in proto.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old, new)
            method.output_type = method.output_type.replace(old, new)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return pool.FindFileByName(proto.name)


def _not_found(message: str) -> ServingError:
    return ServingError(Code.NOT_FOUND, message)

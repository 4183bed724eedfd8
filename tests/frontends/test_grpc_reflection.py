"""Server reflection: what a client that knows no schema learns, and that it can use what it has learnt."""

from __future__ import annotations

from typing import Any

import pytest
from frontends.grpc_calls import Caller
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kernel import Code
from kernel_grpc.schemas import grpc_service_pb2
from kernel_grpc.schemas import reflection_pb2 as pb
from kernel_grpc.services import reflection

PATHS = [f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")]
SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
]


def ask(*requests: pb.ServerReflectionRequest, path: str = PATHS[0]) -> list[Any]:
    call, stream = Caller(reflection.methods()).open(path)
    for request in requests:
        stream.message(request.SerializeToString())
    stream.half_closed()
    assert call.status == 0
    return [pb.ServerReflectionResponse.FromString(data) for data in call.take()]


def files_of(response: Any) -> list[Any]:
    assert response.WhichOneof("message_response") == "file_descriptor_response"
    protos = response.file_descriptor_response.file_descriptor_proto
    return [descriptor_pb2.FileDescriptorProto.FromString(data) for data in protos]


def refused(response: Any) -> tuple[int, str]:
    assert response.WhichOneof("message_response") == "error_response"
    return response.error_response.error_code, response.error_response.error_message


@pytest.mark.parametrize("path", PATHS)
def test_services(path: str) -> None:
    (response,) = ask(pb.ServerReflectionRequest(host="here", list_services="*"), path=path)
    assert [service.name for service in response.list_services_response.service] == SERVICES
    assert response.valid_host == "here"
    assert response.original_request == pb.ServerReflectionRequest(host="here", list_services="*")


def test_no_restriction_applies() -> None:
    assert {method.category for method in reflection.methods()} == {""}


@pytest.mark.parametrize(
    "symbol",
    [
        "inference.GRPCInferenceService",
        "inference.GRPCInferenceService.ModelInfer",
        "inference.ModelInferRequest",
        "inference.ModelInferRequest.InferInputTensor",
        "inference.ModelInferRequest.model_name",
        "inference.InferParameter.parameter_choice",
    ],
)
def test_symbols_of_the_service(symbol: str) -> None:
    (response,) = ask(pb.ServerReflectionRequest(file_containing_symbol=symbol))
    assert [file.name for file in files_of(response)] == ["grpc_service.proto", "model_config.proto"]


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("inference.ModelConfig", "model_config.proto"),
        ("inference.DataType", "model_config.proto"),
        ("inference.TYPE_FP32", "model_config.proto"),
        ("inference.ModelInput.Format", "model_config.proto"),
        ("inference.ModelInput.FORMAT_NHWC", "model_config.proto"),
        ("grpc.health.v1.Health.Watch", "health.proto"),
        ("grpc.health.v1.HealthCheckResponse.NOT_SERVING", "health.proto"),
        ("grpc.reflection.v1.ServerReflection", "reflection.proto"),
        ("grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", "reflection_v1alpha.proto"),
        ("grpc.reflection.v1alpha.ErrorResponse", "reflection_v1alpha.proto"),
    ],
)
def test_other_symbols(symbol: str, file: str) -> None:
    (response,) = ask(pb.ServerReflectionRequest(file_containing_symbol=symbol))
    assert [found.name for found in files_of(response)] == [file]
    (again,) = ask(pb.ServerReflectionRequest(file_by_filename=file))
    assert files_of(again) == files_of(response)


@pytest.mark.parametrize("symbol", ["", "nope", "inference", ".inference.ModelConfig", "inference.GRPCInferenceService.Nope"])
def test_symbols_that_are_not_there(symbol: str) -> None:
    (response,) = ask(pb.ServerReflectionRequest(file_containing_symbol=symbol))
    assert refused(response) == (5, f"there is no symbol '{symbol}' here")


def test_errors_do_not_end_the_stream() -> None:
    extension = pb.ExtensionRequest(containing_type="inference.ModelConfig", extension_number=7)
    unknown = pb.ExtensionRequest(containing_type="nope", extension_number=7)
    responses = ask(
        pb.ServerReflectionRequest(file_by_filename="nope.proto"),
        pb.ServerReflectionRequest(file_containing_extension=extension),
        pb.ServerReflectionRequest(file_containing_extension=unknown),
        pb.ServerReflectionRequest(all_extension_numbers_of_type="nope"),
        pb.ServerReflectionRequest(),
        pb.ServerReflectionRequest(list_services=""),
    )
    assert [refused(response) for response in responses[:-1]] == [
        (5, "there is no file 'nope.proto' here"),
        (5, "message type 'inference.ModelConfig' has no extension 7"),
        (5, "there is no message type 'nope' here"),
        (5, "there is no message type 'nope' here"),
        (3, "the request asks for nothing: its message_request is not set"),
    ]
    assert len(responses[-1].list_services_response.service) == len(SERVICES)


def test_extension_numbers() -> None:
    (response,) = ask(pb.ServerReflectionRequest(all_extension_numbers_of_type="inference.ModelConfig"))
    assert response.WhichOneof("message_response") == "all_extension_numbers_response"
    assert response.all_extension_numbers_response.base_type_name == "inference.ModelConfig"
    assert not response.all_extension_numbers_response.extension_number


def test_what_is_no_message_ends_the_stream() -> None:
    call, stream = Caller(reflection.methods()).open(PATHS[0])
    stream.message(b"\xff")
    code, message = call.failure
    assert code is Code.INVALID_ARG
    assert message.startswith("Unable to parse request as grpc.reflection.v1.ServerReflectionRequest: ")


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    call, stream = Caller(reflection.methods()).open(PATHS[0])
    question = pb.ServerReflectionRequest(list_services="").SerializeToString()
    for _ in range(2):
        call.set_writable(False)
        stream.message(question)
        assert len(call.take()) == 1 and call.held
        call.set_writable(True)
        assert not call.held
        call.set_writable(True)


@pytest.mark.parametrize("service", SERVICES)
def test_a_client_can_use_what_it_gets(service: str) -> None:
    """Its pool takes the files, all they import is among them, and a message made with them is the server's."""
    (response,) = ask(pb.ServerReflectionRequest(file_containing_symbol=service))
    pool = descriptor_pool.DescriptorPool()
    for file in reversed(files_of(response)):
        pool.Add(file)
    found = pool.FindServiceByName(service)
    for method in found.methods:
        assert method.input_type.full_name.startswith(service.rpartition(".")[0])
    if service == "inference.GRPCInferenceService":
        request = message_factory.GetMessageClass(found.methods_by_name["ModelInfer"].input_type)(model_name="m")
        request.inputs.add(name="X", datatype="FP32", shape=[1, 2])
        ours = grpc_service_pb2.ModelInferRequest.FromString(request.SerializeToString())
        assert (ours.model_name, list(ours.inputs[0].shape)) == ("m", [1, 2])
        ours = found.methods_by_name["ModelStreamInfer"]
        assert ours.client_streaming and ours.server_streaming

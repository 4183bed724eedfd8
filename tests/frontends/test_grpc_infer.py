"""ModelInfer: every rule and every message of grpc_protocol, section 3. Words and codes are those of the real Triton, but for
the decisions in its users' favour: what is malformed is INVALID_ARGUMENT, and integers don't wrap."""

from __future__ import annotations

import gc
import os
import weakref
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest
from frontends.fakes import Spec, config
from frontends.fakes_grpc import (
    FakeCall,
    GrpcKernel,
    Parameter,
    Service,
    add_sub,
    arrays,
    data_of,
    floats,
    memory,
    parameters_of,
    request,
    strings,
    typed,
    with_parameters,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import DATATYPES, Code, InferenceResponse, ServingError, Tensor
from kernel_grpc.inference import encode, infer
from kernel_grpc.inference.encode import Reply, joined
from kernel_grpc.inference.parameters import RESERVED
from kernel_grpc.inference.wire import split, varint
from kernel_grpc.schemas import grpc_service_pb2 as pb

INVALID = Code.INVALID_ARG
UNKNOWN_ID = "[request id: <id_unknown>] "


@pytest.fixture
def service() -> Service:
    return Service()


# --- a request and its response


def test_raw_contents_in_and_out(service: Service) -> None:
    response = service.ask(add_sub())
    assert (response.model_name, response.model_version, response.id) == ("add_sub", "1", "")
    assert [(one.name, one.datatype, list(one.shape)) for one in response.outputs] == [
        ("OUTPUT0", "FP32", [4]),
        ("OUTPUT1", "FP32", [4]),
    ]
    assert not any(one.HasField("contents") for one in response.outputs)
    assert arrays(response) == {"OUTPUT0": [2, 3, 4, 5], "OUTPUT1": [0, 1, 2, 3]}
    assert not response.parameters


def test_the_wire_is_what_protobuf_would_write(service: Service) -> None:
    """Byte for byte, so that nobody has to think about our own writer."""
    for made in (add_sub(), add_sub(id="x" * 200), request("any", ("X", "FP32", [0]), raw=[b""])):
        call = service.start(made)
        (data,) = call.take()
        assert pb.ModelInferResponse.FromString(data).SerializeToString() == data


@pytest.mark.parametrize("large", [False, True], ids=["bytes", "memory"])
def test_the_same_message_again_and_with_other_data(service: Service, large: bool) -> None:
    for k in range(4):
        data = data_of(add_sub(a=(k, 2, 3, 4)))
        assert arrays(service.ask(memory(data) if large else data))["OUTPUT0"] == [k + 1, 3, 4, 5]


def test_id_and_parameters_may_change_from_message_to_message(service: Service) -> None:
    service.ask(add_sub())
    for k, id in enumerate(["", "a", "", "b" * 127, "c" * 128, "ü", ""]):
        response = service.ask(add_sub(id=id, a=(k, 0, 0, 0)))
        assert response.id == id
        assert arrays(response)["OUTPUT0"][0] == k + 1
        response = service.ask(with_parameters(add_sub(id=id), k=k, sequence_id=5))
        assert response.id == id
        last = service.kernel.requests[-1]
        assert (last.id, last.parameters, last.correlation_id) == (id, {"k": k}, 5)
    assert service.ask(add_sub()).id == ""
    assert service.kernel.requests[-1].parameters is None
    assert service.kernel.requests[-1].correlation_id == 0


def test_version_and_default_version(service: Service) -> None:
    ask = lambda **fields: service.ask(request("multi", ("X", "FP32", [2]), raw=[floats(1, 2)], **fields))  # noqa: E731
    for _ in range(2):
        assert ask().model_version == "3"
        assert ask(model_version="1").model_version == "1"
        assert ask(model_version="3").model_version == "3"


@pytest.mark.parametrize("large", [False, True], ids=["bytes", "memory"])
def test_inputs_are_the_requests_own_writable_aligned_memory(service: Service, large: bool) -> None:
    service.kernel.hold = True
    for k in range(3):
        for id in ("", "x", "long " * 3):  # ids move the data in the message
            data = data_of(add_sub(a=(k, 2, 3, 4), id=id))
            service.start(memory(data) if large else data)
    held = [[tensor.array for tensor in one.inputs.values()] for one in service.kernel.held]
    for inputs in held:
        for array in inputs:
            assert array.flags.writeable and array.flags.aligned and array.flags.c_contiguous
            array[...] = 9  # nobody else's
    service.start(data_of(add_sub()))
    first, second = service.kernel.held[-1].inputs.values()
    assert first.array.tolist() == [1, 2, 3, 4]
    assert second.array.tolist() == [1, 1, 1, 1]
    assert all(array.tolist() == [9] * 4 for inputs in held for array in inputs)


def test_large_data_stays_where_it_lies_if_that_is_aligned(service: Service) -> None:
    service.kernel.hold = True
    seen = set()
    for id in ("", "1", "12", "123"):
        data = memory(data_of(request("any", ("X", "FP32", [50_000]), raw=[np.arange(50_000, dtype=np.float32)], id=id)))
        service.start(data)
        array = service.kernel.held[-1].inputs["X"].array
        assert array.flags.aligned and array[49_999] == 49_999
        seen.add(np.shares_memory(array, data))
    assert seen == {False, True}


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("BYTES", "BF16")])
def test_every_datatype_raw(service: Service, datatype: str) -> None:
    values = np.array([0, 1, 100], DATATYPES[datatype])
    for _ in range(2):
        response = service.ask(request("types", (f"IN_{datatype}", datatype, [3]), raw=[values]))
        assert response.outputs[0].datatype == datatype
        assert response.raw_output_contents[0] == values.tobytes()


def test_bf16_travels_as_its_bits(service: Service) -> None:
    response = service.ask(request("half", ("X", "BF16", [2]), raw=[b"\x80\x3f\x00\x40"]))
    assert (response.outputs[0].datatype, response.raw_output_contents[0]) == ("BF16", b"\x80\x3f\x00\x40")


BINARY = (b"\xff\xfe\x00", b"", b"a\0\0", "é☃".encode(), b"x" * 300)


def test_bytes_round_trip_exactly_raw_and_typed(service: Service) -> None:
    for _ in range(2):
        response = service.ask(request("types", ("IN_BYTES", "BYTES", [5]), raw=[strings(*BINARY)]))
        assert (response.outputs[0].datatype, response.raw_output_contents[0]) == ("BYTES", strings(*BINARY))
        response = service.ask(typed("BYTES", "bytes_contents", BINARY))
        assert response.raw_output_contents[0] == strings(*BINARY)
    shorter = request("types", ("IN_BYTES", "BYTES", [5]), raw=[strings(b"", b"", b"", b"", b"z")])
    assert service.ask(shorter).raw_output_contents[0] == strings(b"", b"", b"", b"", b"z")


TYPED = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-(2**15), 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 65535]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, float("-inf")]),
    "FP64": ("fp64_contents", [0.1, 1e300]),
}


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_and_raw_output(service: Service, datatype: str) -> None:
    field, values = TYPED[datatype]
    response = service.ask(typed(datatype, field, values))
    assert not response.outputs[0].HasField("contents")
    assert response.raw_output_contents[0] == np.array(values, DATATYPES[datatype]).tobytes()
    array = service.kernel.requests[-1].inputs[f"IN_{datatype}"].array
    assert array.flags.writeable and array.flags.aligned


def test_typed_contents_of_a_shape(service: Service) -> None:
    made = pb.ModelInferRequest(model_name="pair")
    made.inputs.add(name="A", datatype="FP32", shape=[2, 2]).contents.fp32_contents.extend([1, 2, 3, 4])
    made.inputs.add(name="B", datatype="FP32", shape=[2, 1]).contents.fp32_contents.extend([5, 6])
    service.kernel.hold = True
    service.start(made)
    inputs = service.kernel.held[0].inputs
    assert inputs["A"].array.tolist() == [[1, 2], [3, 4]]
    assert inputs["B"].array.tolist() == [[5], [6]]
    assert service.kernel.held[0].batch_size == 2


def test_empty_tensors(service: Service) -> None:
    for _ in range(3):
        response = service.ask(request("any", ("X", "FP32", [0]), raw=[b""]))
        assert list(response.outputs[0].shape) == [0]
        assert list(response.raw_output_contents) == [b""]
    for datatype in ("FP32", "FP16", "BYTES"):
        response = service.ask(typed(datatype, "", []))  # contents without an element
        assert list(response.raw_output_contents) == [b""]
    response = service.ask(request("types", ("IN_BYTES", "BYTES", [0]), raw=[b""]))
    assert list(response.raw_output_contents) == [b""]


def test_scalars() -> None:
    kernel = GrpcKernel()
    kernel.add(config("scalar", [Spec("X", "FP32", ())], [Spec("Y", "FP32", ())]))
    response = Service(kernel).ask(request("scalar", ("X", "FP32", []), raw=[floats(7)]))
    assert (list(response.outputs[0].shape), response.raw_output_contents[0]) == ([], floats(7))


@pytest.mark.parametrize("rank", [65, 20_000, 200_000])
@pytest.mark.parametrize("size", [2**62, 1, 0, -1])
def test_more_dimensions_than_a_tensor_can_have(service: Service, rank: int, size: int) -> None:
    """Refused before anybody multiplies them: of 200 000 that took 42 s."""
    failure = service.start(request("any", ("X", "FP32", [size] * rank), raw=[b""])).failure
    text = f"input 'X' for model 'any' has {rank} dimensions, no tensor has more than 64"
    assert failure == (Code.INVALID_ARG, UNKNOWN_ID + text)
    assert service.start(request("any", ("X", "FP32", [1] * 64), raw=[floats(1)])).failure[0] == Code.INVALID_ARG


def test_strings_beyond_those_that_the_shape_wants_are_not_taken_apart(service: Service) -> None:
    """They might be millions."""
    many = strings(b"a", b"b", b"c") + b"\xff"  # what follows would be wrong
    failure = service.start(request("types", ("IN_BYTES", "BYTES", [2]), raw=[many])).failure
    words = "unexpected number of string elements 3 for inference input 'IN_BYTES' for model 'types', expecting 2"
    assert failure == (Code.INVALID_ARG, UNKNOWN_ID + words)


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_no_elements_in_a_shape_that_no_array_can_have(datatype: str) -> None:
    service = Service()
    service.kernel.add(config("deep", [Spec("X", datatype, (-1, -1, -1))], [Spec("Y", datatype, (-1, -1, -1))]))
    call = service.start(request("deep", ("X", datatype, [0, 2**62, 2**62]), raw=[b""]))
    assert call.failure is not None
    code, text = call.failure
    assert code is INVALID
    assert text.startswith(f"{UNKNOWN_ID}input 'X' for model 'deep' has shape [0,{2**62},{2**62}], which no array can have: ")


def test_requests_without_inputs(service: Service) -> None:
    for made in (request("types"), request("types", id="x"), request("types", raw=[b"extra"])) * 3:
        response = service.ask(made)
        assert (response.model_name, response.id, len(response.outputs)) == ("types", made.id, 0)


def test_extra_raw_entries_are_ignored(service: Service) -> None:
    for _ in range(2):
        made = add_sub()
        made.raw_input_contents.append(floats(9))
        assert arrays(service.ask(made)) == {"OUTPUT0": [2, 3, 4, 5], "OUTPUT1": [0, 1, 2, 3]}


def test_a_model_that_answers_with_many_signatures(service: Service) -> None:
    for size in range(600):
        response = service.ask(request("any", ("X", "FP32", [size]), raw=[np.zeros(size, np.float32)]))
        assert list(response.outputs[0].shape) == [size]
    memory = service.kernel.model("any").attachments[infer.Inference]
    assert len(memory.recipes) <= 256 and len(memory.replies.known) <= 256  # type: ignore[attr-defined]


# --- outputs


def test_requested_outputs(service: Service) -> None:
    one = add_sub()
    one.outputs.add(name="OUTPUT1")
    both = add_sub()
    both.outputs.add(name="OUTPUT1")
    both.outputs.add(name="OUTPUT0")
    twice = add_sub()
    twice.outputs.add(name="OUTPUT1")
    twice.outputs.add(name="OUTPUT1")
    for _ in range(2):
        assert arrays(service.ask(one)) == {"OUTPUT1": [0, 1, 2, 3]}
        assert list(arrays(service.ask(both))) == ["OUTPUT0", "OUTPUT1"]  # the model's order
        assert list(arrays(service.ask(twice))) == ["OUTPUT1"]


def test_classification(service: Service) -> None:
    for _ in range(2):
        made = add_sub()
        with_parameters(made.outputs.add(name="OUTPUT0"), classification=2)
        made.outputs.add(name="OUTPUT1")
        response = service.ask(made)
        assert [(one.name, one.datatype, list(one.shape)) for one in response.outputs] == [
            ("OUTPUT0", "BYTES", [2]),
            ("OUTPUT1", "FP32", [4]),
        ]
        assert response.raw_output_contents[0] == strings(b"5.000000:3", b"4.000000:2")
        assert response.raw_output_contents[1] == floats(0, 1, 2, 3)
        none = add_sub()
        with_parameters(none.outputs.add(name="OUTPUT0"), unheard_of="x", binary_data=False)
        assert arrays(service.ask(none)) == {"OUTPUT0": [2, 3, 4, 5]}


def test_classes_of_strings_are_refused(service: Service) -> None:
    made = request("types", ("IN_BYTES", "BYTES", [1]), raw=[strings(b"a")])
    with_parameters(made.outputs.add(name="OUT_BYTES"), classification=1)
    text = "class result not available for output due to unsupported type 'BYTES'"
    assert service.start(made).failure == (INVALID, text)


def test_large_responses_go_out_from_where_they_lie(service: Service) -> None:
    values = np.arange(100_000, dtype=np.float32)
    call = service.start(memory(data_of(request("any", ("X", "FP32", [100_000]), raw=[values]))))
    (pieces,) = call.sent
    assert isinstance(pieces, list) and len(pieces) == 3
    array = service.kernel.requests[0].inputs["X"].array
    assert np.shares_memory(np.frombuffer(pieces[2], np.uint8), array)
    assert arrays(call.response) == {"Y": values.tolist()}


def test_a_response_is_the_same_bytes_joined_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """`encode._small` ~ `_data` and `joined`; alone and streamed."""
    told = []
    for large in (encode.LARGE, -1):
        monkeypatch.setattr(encode, "LARGE", large)
        service = Service()
        stream = service.stream()
        for made in (add_sub(), add_sub(id="x"), request("any", ("X", "FP32", [0]), raw=[b""])) * 2:
            told.append((large, b"".join(service.start(made).take())))
            stream.send(made)
        told += [(large, data) for data in stream.call.take()]
    half = len(told) // 2
    assert half == 12 and [data for _, data in told[:half]] == [data for _, data in told[half:]]


def test_outputs_that_do_not_lie_in_order(service: Service) -> None:
    values = np.arange(60_000, dtype=np.float32).reshape(200, 300)
    for output in (values[:3, :4].T, values.T):
        service.kernel.change = lambda response, output=output: InferenceResponse([Tensor("Y", "FP32", output)])
        response = service.ask(request("any", ("X", "FP32", [1]), raw=[floats(1)]))
        assert arrays(response) == {"Y": output.tolist()}


def test_several_outputs_of_different_kinds(service: Service) -> None:
    outputs = [
        Tensor("S", "BYTES", np.array([b"a", b""], np.object_)),
        Tensor("F", "FP32", np.zeros((2, 0, 3), np.float32)),
        Tensor("I", "INT64", np.full((1, 300), 7)),
    ]
    service.kernel.change = lambda response: InferenceResponse(list(outputs))
    for _ in range(2):
        response = service.ask(add_sub())
        assert [list(one.shape) for one in response.outputs] == [[2], [2, 0, 3], [1, 300]]
        assert list(response.raw_output_contents) == [strings(b"a", b""), b"", outputs[2].array.tobytes()]


def test_a_response_without_outputs(service: Service) -> None:
    service.kernel.change = lambda response: InferenceResponse([])
    response = service.ask(add_sub())
    assert not response.outputs and not response.raw_output_contents
    assert (response.model_name, response.model_version) == ("add_sub", "1")


def test_response_parameters_keep_their_types(service: Service) -> None:
    whole = {"i": -5, "z": 0, "big": 2**63 - 1, "low": -(2**63), "u": 2**64 - 1}
    values = {"b": False, "t": True, **whole, "s": "é", "e": "", "d": 0.1}
    service.kernel.change = lambda response: InferenceResponse(response.outputs, None, values, id=response.id)
    for id in ("", "x"):
        response = service.ask(add_sub(id=id))
        assert parameters_of(response) == values
        assert response.id == id
        assert {name: value.WhichOneof("parameter_choice") for name, value in response.parameters.items()} == {
            "b": "bool_param", "t": "bool_param", "i": "int64_param", "z": "int64_param", "big": "int64_param",
            "low": "int64_param", "u": "uint64_param", "s": "string_param", "e": "string_param", "d": "double_param",
        }  # fmt: skip
        assert arrays(response)["OUTPUT0"] == [2, 3, 4, 5]


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, None, [1]])
def test_a_response_parameter_that_no_message_can_hold(service: Service, value: Any) -> None:
    service.kernel.change = lambda response: InferenceResponse(response.outputs, None, {"p": value})
    code, text = service.start(add_sub()).failure
    assert code is Code.INTERNAL
    assert text.startswith(f"response parameter 'p' is {type(value).__name__} {value}") and "no integer of 64 bits" in text


@pytest.mark.parametrize("code", Code)
def test_the_models_error_is_the_calls_status(service: Service, code: Code) -> None:
    service.kernel.change = lambda response: InferenceResponse.failure(code, f"told {code.name}")
    assert service.start(add_sub()).failure == (code, f"told {code.name}")


def test_a_model_that_ends_without_a_response(service: Service) -> None:
    service.kernel.hold = True
    call = service.start(add_sub())
    service.kernel.send(service.kernel.held[0], None, True)
    assert call.failure == (Code.INTERNAL, "model 'add_sub' ended the request without a response")


def test_a_response_that_can_not_be_encoded(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    wrong = InferenceResponse([Tensor("OUTPUT0", "FP32", np.zeros(4, np.float32))])
    service.kernel.change = lambda response: wrong
    service.ask(add_sub())
    wrong.outputs[0].array = np.zeros(4, np.float64)
    code, text = service.start(add_sub()).failure
    assert code is Code.INTERNAL
    assert text.startswith("the response can't be encoded: AssertionError: an output's array is not of its datatype")
    assert "a response of model 'add_sub' can't be encoded" in caplog.text


def test_a_response_larger_than_any_message(service: Service) -> None:
    large = Tensor("Y", "UINT8", np.broadcast_to(np.zeros(1, np.uint8), (2**31,)))
    reply = Reply(b"", [large], ())
    with pytest.raises(ServingError, match=r"response has 21474836\d\d bytes, a gRPC message can have no more than 2147483647"):
        joined(b"", [], len(reply.prefix) + reply.size)


# --- what is refused, in the reference's words


A, B = ("INPUT0", "FP32", [4]), ("INPUT1", "FP32", [4])
F4, ONES = floats(1, 2, 3, 4), floats(1, 1, 1, 1)


def pair(*inputs: tuple[str, str, list[int]], raw: Any = (F4, ONES), **fields: Any) -> Any:
    return request("add_sub", *inputs, raw=raw, **fields)


def contents(made: pb.ModelInferRequest, index: int, **fields: Any) -> pb.ModelInferRequest:
    made.inputs[index].contents.SetInParent()
    for name, values in fields.items():
        getattr(made.inputs[index].contents, name).extend(values)
    return made


def output(made: pb.ModelInferRequest, name: str = "OUTPUT0", **parameters: Any) -> pb.ModelInferRequest:
    with_parameters(made.outputs.add(name=name), **parameters)
    return made


def on_input(made: pb.ModelInferRequest, **parameters: Any) -> pb.ModelInferRequest:
    with_parameters(made.inputs[0], **parameters)
    return made


NOT_BATCHED = "Expected [4], got"
NO_DATA = "unable to find data for input tensor '{}' for model 'add_sub' in request."
SIZES = "input byte size mismatch for input '{}' for model 'add_sub'. Expected 16, got {}"
UNEXPECTED = "unexpected explicit tensor data for input tensor '{}' for model '{}'"
UNSPECIFIED = "All input dimensions should be specified for input '{}' for model '{}', got {}"

REFUSED: dict[str, tuple[pb.ModelInferRequest, Code, str]] = {
    "unknown model": (request("nope"), Code.NOT_FOUND, "Request for unknown model: 'nope' is not found"),
    "no name": (pb.ModelInferRequest(), Code.NOT_FOUND, "Request for unknown model: '' is not found"),
    "version": (add_sub(model_version="2"), Code.NOT_FOUND, "Request for unknown model: 'add_sub' version 2 is not found"),
    "version -1": (
        add_sub(model_version="-1"),
        INVALID,
        "invalid model version specified '-1' , version should be an integral value > 0",
    ),
    "decoupled": (
        request("gen", ("X", "FP32", [2]), raw=[floats(1, 2)]),
        Code.UNSUPPORTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    ),
    "no raw": (pair(A, B, raw=[]), INVALID, NO_DATA.format("INPUT0")),
    "one raw": (pair(A, B, raw=[F4]), INVALID, NO_DATA.format("INPUT1")),
    "no data for an empty tensor": (
        request("any", ("X", "FP32", [0])),
        INVALID,
        "unable to find data for input tensor 'X' for model 'any' in request.",
    ),
    "second without data": (
        contents(pair(A, B, raw=[]), 0, fp32_contents=[1, 2, 3, 4]),
        INVALID,
        NO_DATA.format("INPUT1"),
    ),
    "both": (
        contents(pair(A, B), 0, fp32_contents=[1, 2, 3, 4]),
        INVALID,
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'add_sub'",
    ),
    "raw, then typed": (
        contents(pair(A, B, raw=[F4]), 1, fp32_contents=[1, 2, 3, 4]),
        INVALID,
        "contents field must not be specified when using raw_input_contents for 'INPUT1' for model 'add_sub'",
    ),
    "too small": (pair(A, B, raw=[floats(1, 2, 3), F4]), INVALID, UNKNOWN_ID + SIZES.format("INPUT0", 12)),
    "too large": (
        pair(A, B, raw=[F4, floats(1, 2, 3, 4, 5)], id="x"),
        INVALID,
        "[request id: x] " + SIZES.format("INPUT1", 20),
    ),
    "nothing in raw": (pair(A, B, raw=[b"", F4]), INVALID, UNKNOWN_ID + SIZES.format("INPUT0", 0)),
    "too few typed": (
        contents(contents(pair(A, B, raw=[]), 0, fp32_contents=[1, 2, 3]), 1, fp32_contents=[1, 2, 3, 4]),
        INVALID,
        UNKNOWN_ID + SIZES.format("INPUT0", 12),
    ),
    "empty contents": (contents(contents(pair(A, B, raw=[]), 0), 1), INVALID, UNKNOWN_ID + SIZES.format("INPUT0", 0)),
    "empty contents of FP16": (
        typed("FP16", "", [], [1]),
        INVALID,
        UNKNOWN_ID + "input byte size mismatch for input 'IN_FP16' for model 'types'. Expected 2, got 0",
    ),
    "two fields": (
        contents(contents(pair(A, B, raw=[]), 0, fp32_contents=[1, 2, 3, 4], int_contents=[1]), 1),
        INVALID,
        UNEXPECTED.format("INPUT0", "add_sub") + " of type 'INT32', expected datatype 'FP32'",
    ),
    "a second field behind the right one": (
        contents(typed("INT32", "int_contents", [1]), 0, fp32_contents=[1]),
        INVALID,
        UNEXPECTED.format("IN_INT32", "types") + ", binary data was already supplied.",
    ),
    "unknown datatype": (
        pair(("INPUT0", "FOO", [4]), B),
        INVALID,
        UNKNOWN_ID + "inference input 'INPUT0' data-type is '<invalid>', but model 'add_sub' expects 'FP32'",
    ),
    "no datatype": (
        pair(A, ("INPUT1", "", [4]), id="i"),
        INVALID,
        "[request id: i] inference input 'INPUT1' data-type is '<invalid>', but model 'add_sub' expects 'FP32'",
    ),
    "datatype in small letters": (
        pair(("INPUT0", "fp32", [4]), B),
        INVALID,
        UNKNOWN_ID + "inference input 'INPUT0' data-type is '<invalid>', but model 'add_sub' expects 'FP32'",
    ),
    "wrong datatype": (
        pair(("INPUT0", "INT32", [4]), B),
        INVALID,
        UNKNOWN_ID + "inference input 'INPUT0' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
    ),
    "unknown datatype, typed": (
        contents(pair(("INPUT0", "FOO", [4]), B, raw=[]), 0, fp32_contents=[1, 2, 3, 4]),
        INVALID,
        UNEXPECTED.format("INPUT0", "add_sub") + " of type 'FP32', expected datatype '<invalid>'",
    ),
    "unknown datatype without data": (pair(("INPUT0", "FOO", [4]), B, raw=[]), INVALID, NO_DATA.format("INPUT0")),
    "shape [-1]": (
        pair(("INPUT0", "FP32", [-1]), B, id="i"),
        INVALID,
        "[request id: i] " + UNSPECIFIED.format("INPUT0", "add_sub", "[-1]"),
    ),
    "shape [-1] where any will do": (
        request("any", ("X", "FP32", [-1]), raw=[b""]),
        INVALID,
        UNKNOWN_ID + UNSPECIFIED.format("X", "any", "[-1]"),
    ),
    "shape [-5] where any will do": (
        request("any", ("X", "FP32", [-5]), raw=[F4]),
        INVALID,
        UNKNOWN_ID + UNSPECIFIED.format("X", "any", "[-5]"),
    ),
    "shape [-5]": (
        pair(("INPUT0", "FP32", [-5]), B),
        INVALID,
        UNKNOWN_ID + f"unexpected shape for input 'INPUT0' for model 'add_sub'. {NOT_BATCHED} [-5]. ",
    ),
    "shape [2,-2]": (
        pair(("INPUT0", "FP32", [2, -2]), B),
        INVALID,
        UNKNOWN_ID + f"unexpected shape for input 'INPUT0' for model 'add_sub'. {NOT_BATCHED} [2,-2]. ",
    ),
    "-1 rows": (
        request("batch8", ("X", "FP32", [-1, 2]), raw=[floats(1, 2)]),
        INVALID,
        UNKNOWN_ID + UNSPECIFIED.format("X", "batch8", "[-1,2]"),
    ),
    "-1 in rows of any size": (
        request("pair", ("A", "FP32", [1, 2]), ("B", "FP32", [1, -1]), raw=[floats(1, 2), floats(1)]),
        INVALID,
        UNKNOWN_ID + UNSPECIFIED.format("B", "pair", "[1,-1]"),
    ),
    "-1, and an unknown name": (
        pair(("INPUT0", "FP32", [-1]), ("NOPE", "FP32", [4])),
        INVALID,
        "unexpected inference input 'NOPE' for model 'add_sub'",
    ),
    "-1, and another datatype": (
        pair(("INPUT0", "INT32", [-1]), B),
        INVALID,
        UNKNOWN_ID + "inference input 'INPUT0' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
    ),
    "shape []": (
        pair(("INPUT0", "FP32", []), B),
        INVALID,
        UNKNOWN_ID + f"unexpected shape for input 'INPUT0' for model 'add_sub'. {NOT_BATCHED} []. ",
    ),
    "huge shape": (
        pair(("INPUT0", "FP32", [2**62, 8]), B),
        INVALID,
        UNKNOWN_ID + f"unexpected shape for input 'INPUT0' for model 'add_sub'. {NOT_BATCHED} [{2**62},8]. ",
    ),
    "huge size": (
        request("any", ("X", "FP32", [2**62]), raw=[b""]),
        INVALID,
        UNKNOWN_ID + f"input byte size mismatch for input 'X' for model 'any'. Expected {2**64}, got 0",
    ),
    "no rows": (
        request("batch8", ("X", "FP32", [0, 2]), raw=[b""]),
        INVALID,
        UNKNOWN_ID + "input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 0",
    ),
    "too many rows": (
        request("batch8", ("X", "FP32", [9, 2]), raw=[floats(*range(18))]),
        INVALID,
        UNKNOWN_ID + "inference request batch-size must be <= 8 for 'batch8'",
    ),
    "no batch dimension": (
        request("batch8", ("X", "FP32", []), raw=[floats(1)]),
        INVALID,
        UNKNOWN_ID + "input 'X' has no shape but model requires batch dimension for 'batch8'",
    ),
    "an input twice": (pair(A, A, id="d"), INVALID, "[request id: d] input 'INPUT0' already exists in request"),
    "an input twice, without data": (
        pair(A, A, raw=[]),
        INVALID,
        UNKNOWN_ID + "input 'INPUT0' already exists in request",
    ),
    "unknown input": (pair(A, ("X", "FP32", [4])), INVALID, "unexpected inference input 'X' for model 'add_sub'"),
    "input without a name": (pair(A, ("", "FP32", [4])), INVALID, "unexpected inference input '' for model 'add_sub'"),
    "missing input": (
        pair(A, raw=[F4], id="m"),
        INVALID,
        "[request id: m] expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing required "
        "input(s) ['INPUT1']. Please provide all required input(s).",
    ),
    "no inputs": (
        pair(raw=[]),
        INVALID,
        UNKNOWN_ID + "expected 2 inputs but got 0 inputs for model 'add_sub'. Got input(s) [], but missing required "
        "input(s) ['INPUT0','INPUT1']. Please provide all required input(s).",
    ),
    "unknown output": (output(pair(A, B), "NOPE"), INVALID, "unexpected inference output 'NOPE' for model 'add_sub'"),
    "unknown output, no data": (output(pair(A, B, raw=[]), "NOPE"), INVALID, NO_DATA.format("INPUT0")),
    "unknown output and input": (
        output(pair(A, ("Z", "FP32", [4])), "NO"),
        INVALID,
        "unexpected inference output 'NO' for model 'add_sub'",
    ),
    "class of a wrong type": (
        output(add_sub(), classification="2"),
        INVALID,
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    "class without a value": (
        output(add_sub(), classification=Parameter()),
        INVALID,
        "invalid value type for 'classification' parameter, expected int64_param",
    ),
    **{
        name: (
            output(add_sub(), classification=count),
            INVALID,
            "invalid value for 'classification' parameter, expected >= 0",
        )
        for name, count in (("negative class", -1), ("no class", 0))
    },
    "strings: short length": (
        request("types", ("IN_BYTES", "BYTES", [1]), raw=[b"\1\0"]),
        INVALID,
        UNKNOWN_ID + "incomplete string length indicator for inference input 'IN_BYTES' for model 'types', expecting 4 bytes but "
        "only 2 bytes available. Please make sure the string length indicator is in one buffer.",
    ),
    "strings: short data": (
        request("types", ("IN_BYTES", "BYTES", [1]), raw=[b"\5\0\0\0ab"]),
        INVALID,
        "incomplete string data for inference input 'IN_BYTES', expecting string of length 5 but only 2 bytes available",
    ),
    "strings: too few": (
        request("types", ("IN_BYTES", "BYTES", [2]), raw=[strings(b"a")]),
        INVALID,
        UNKNOWN_ID + "expected 2 string elements for inference input 'IN_BYTES' for model 'types', got 1",
    ),
    "strings: none": (
        request("types", ("IN_BYTES", "BYTES", [1]), raw=[b""]),
        INVALID,
        UNKNOWN_ID + "expected 1 string elements for inference input 'IN_BYTES' for model 'types', got 0",
    ),
    "strings: too many": (
        request("types", ("IN_BYTES", "BYTES", [1]), raw=[strings(b"a", b"b", b"c")], id="i"),
        INVALID,
        "[request id: i] unexpected number of string elements 2 for inference input 'IN_BYTES' for model 'types', expecting 1",
    ),
    "strings: too few typed": (
        typed("BYTES", "bytes_contents", [b"a"], [2]),
        INVALID,
        UNKNOWN_ID + "expected 2 string elements for inference input 'IN_BYTES' for model 'types', got 1",
    ),
    "strings: too many typed": (
        typed("BYTES", "bytes_contents", [b"a"] * 3, [2]),
        INVALID,
        UNKNOWN_ID + "unexpected number of string elements 3 for inference input 'IN_BYTES' for model 'types', expecting 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("warm", [False, True], ids=["first", "after others"])
def test_refused(service: Service, case: str, warm: bool) -> None:
    made, code, text = REFUSED[case]
    if warm:
        for other in (add_sub(), add_sub(id="x"), request("any", ("X", "FP32", [0]), raw=[b""])):
            service.ask(other)
    count = len(service.kernel.requests)
    for _ in range(2):
        call = service.start(made)
        assert call.failure == (code, text)
        assert call.request is None
    assert len(service.kernel.requests) == count


FIELDS = {
    "bool_contents": ("BOOL", True),
    "int_contents": ("INT32", 1),
    "int64_contents": ("INT64", 1),
    "uint_contents": ("UINT32", 1),
    "uint64_contents": ("UINT64", 1),
    "fp32_contents": ("FP32", 1.0),
    "fp64_contents": ("FP64", 1.0),
    "bytes_contents": ("BYTES", b"x"),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("datatype", [*TYPED, "FP16", "BYTES"])
def test_each_datatype_has_one_field(service: Service, datatype: str, field: str) -> None:
    kind, value = FIELDS[field]
    call = service.start(typed(datatype, field, [value]))
    if field == TYPED.get(datatype, ("bytes_contents" if datatype == "BYTES" else "", None))[0]:
        assert call.status == 0
    else:
        text = f"unexpected explicit tensor data for input tensor 'IN_{datatype}' for model 'types' of type '{kind}', "
        assert call.failure == (INVALID, f"{text}expected datatype '{datatype}'")


@pytest.mark.parametrize(
    ("datatype", "field", "value", "holds"),
    [
        ("INT8", "int_contents", 300, "-128 to 127"),
        ("INT8", "int_contents", -129, "-128 to 127"),
        ("INT16", "int_contents", -40000, "-32768 to 32767"),
        ("UINT8", "uint_contents", 256, "0 to 255"),
        ("UINT16", "uint_contents", 70000, "0 to 65535"),
    ],
)
def test_integers_that_the_datatype_can_not_hold(service: Service, datatype: str, field: str, value: int, holds: str) -> None:
    """The reference lets them wrap. Its users want to hear about it."""
    assert service.start(typed(datatype, field, [1, value])).failure == (
        INVALID,
        f"unexpected explicit tensor data for input tensor 'IN_{datatype}' for model 'types': element 1 of '{field}' is {value}, "
        f"{datatype} holds {holds}",
    )


# --- malformed messages, and odd ones


PLAIN = data_of(add_sub())


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff",
        b"\x0a\x05ab",
        b"\x0a",
        b"\x0a\x02\xff\xfe" + PLAIN,
        PLAIN + b"\x1a\x02\xff\xfe",
        b"\x0a\x07add_sub\x1a\x02\xff\xfe" + PLAIN[9:],
        PLAIN[:-1],
        PLAIN + b"\x3a",
        PLAIN + b"\x3a\x80",
        PLAIN + b"\x0b",
        PLAIN + b"\x0c",
        PLAIN + b"\x02\x00",
        PLAIN + b"\x2a\x01\xff",
        PLAIN + b"\x2a\x04\x0a\x02\xff\xfe",
        b"\x0a\xff\xff\xff\xff\x7f",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        PLAIN + b"\x4b\x08" + b"\x80" * 10 + b"\x01\x4c",  # within a group, a number of eleven bytes
    ],
)
@pytest.mark.parametrize("large", [False, True], ids=["bytes", "memory"])
def test_malformed_messages(service: Service, data: bytes, large: bool) -> None:
    for id in ("", "", "ab", "cd"):
        service.ask(add_sub(id=id))
    for _ in range(2):
        code, text = service.start(memory(data) if large else data).failure
        assert code is INVALID
        assert text.startswith("Unable to parse request as inference.ModelInferRequest")
    assert len(service.kernel.requests) == 4


NAME, REST = PLAIN[:9], PLAIN[9:]
HEAD = data_of(pair(A, B, raw=[]))
RAW = PLAIN[len(HEAD) :]


@pytest.mark.parametrize(
    "data",
    [
        PLAIN + b"\xa2\x06\x02hi",
        PLAIN + b"\xa1\x06" + b"x" * 8,
        PLAIN + b"\xa5\x06" + b"x" * 4,
        PLAIN + b"\xa3\x06\x08\x01\xa4\x06",
        PLAIN + b"\x38\x01",
        b"\x08\x05" + PLAIN,
        RAW + HEAD,
        REST + NAME,
        b"\x0a\x04nope" + PLAIN,
        b"\x0a\x87\x00add_sub" + REST,
        b"\x8a\x00\x07add_sub" + REST,
        HEAD + b"\x3a\x90\x00" + F4 + b"\x3a\x90\x80\x00" + F4,
        HEAD + b"\xba\x00\x10" + F4 + b"\xba\x00\x10" + F4,
        NAME + b"\x1a\x00" + REST,
        PLAIN + b"\x1a\x00",
    ],
)
@pytest.mark.parametrize("large", [False, True], ids=["bytes", "memory"])
def test_odd_but_well_formed_messages(service: Service, data: bytes, large: bool) -> None:
    """Unknown fields, fields out of order, fields given twice, lengths written longer than they need be."""
    expected = pb.ModelInferRequest.FromString(data)
    a, b = (np.frombuffer(raw, np.float32) for raw in expected.raw_input_contents)
    for _ in range(3):
        response = service.ask(memory(data) if large else data)
        assert arrays(response) == {"OUTPUT0": (a + b).tolist(), "OUTPUT1": (a - b).tolist()}


def test_shapes_packed_and_not(service: Service) -> None:
    inner = b"\x0a\x01X\x12\x04FP32"
    for shape in (b"\x18\x02", b"\x1a\x01\x02"):
        made = inner + shape
        data = b"\x0a\x03any\x2a" + varint(len(made)) + made + b"\x3a\x08" + floats(1, 2)
        assert arrays(service.ask(data)) == {"Y": [1, 2]}


messages = st.builds(
    pb.ModelInferRequest,
    model_name=st.sampled_from(["add_sub", "any", "nope", ""]),
    model_version=st.sampled_from(["", "1", "2"]),
    id=st.text(max_size=200),
    parameters=st.dictionaries(st.text(max_size=3), st.builds(Parameter, int64_param=st.integers(-5, 5)), max_size=2),
    inputs=st.lists(
        st.builds(
            pb.ModelInferRequest.InferInputTensor,
            name=st.sampled_from(["INPUT0", "INPUT1", "X"]),
            datatype=st.sampled_from(["FP32", "BYTES", "INT8"]),
            shape=st.lists(st.integers(-1, 4), max_size=2),
        ),
        max_size=3,
    ),
    outputs=st.lists(
        st.builds(pb.ModelInferRequest.InferRequestedOutputTensor, name=st.sampled_from(["OUTPUT0", "Y", "Z"])), max_size=2
    ),
    raw_input_contents=st.lists(st.sampled_from([b"", floats(1, 2, 3, 4), floats(5, 6, 7, 8), b"x" * 200]), max_size=3),
)


@given(messages, st.booleans())
def test_splitting_agrees_with_the_parser(made: pb.ModelInferRequest, as_view: bool) -> None:
    data = made.SerializeToString(deterministic=True)
    parts = split(memoryview(data) if as_view else data, 1000)
    assert parts is not None
    names, middle, head, raws = parts
    assert [bytes(raw) for raw in raws] == list(made.raw_input_contents)
    again = pb.ModelInferRequest.FromString(data[:head])
    again.raw_input_contents.extend(bytes(raw) for raw in raws)
    assert again == made
    special = pb.ModelInferRequest.FromString(data[names:middle])
    assert (special.id, special.parameters) == (made.id, made.parameters)
    assert not special.model_name and not special.inputs


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(messages, st.binary(max_size=4), st.integers(0, 40)), max_size=6))
def test_what_was_remembered_changes_no_answer(sequence: list[tuple[pb.ModelInferRequest, bytes, int]]) -> None:
    """A service that has seen other messages answers as one that has not, also to messages with a few bytes changed."""
    warm = Service()
    for made, noise, at in sequence:
        intact = made.SerializeToString()
        for data in (intact, intact, intact[:at] + noise + intact[at + len(noise) :]):
            calls = [warm.start(data), warm.start(memory(data)), Service().start(data)]
            ends = [(call.status, call.text, call.take()) for call in calls]
            assert ends[0] == ends[1] == ends[2]
            assert all(call.done for call in calls)


@pytest.mark.parametrize("fields", [{}, {"id": "é"}, {"model_version": "1"}], ids=str)
def test_all_ways_to_read_a_message_make_the_same_request(service: Service, fields: dict[str, Any]) -> None:
    """`Inference.read` by size ~ `_read_split` by head ~ `_first` by the parser; and as memory instead of bytes."""
    inference = service._infer.__self__
    data, headers = add_sub(**fields).SerializeToString(), (("h", "v"),)

    def read(message: Any) -> Any:
        made, recipe, parameters = inference.read(message, headers, False)
        inputs = [(name, one.datatype, one.array.tolist(), one.array.flags.writeable) for name, one in made.inputs.items()]
        said = (made.model_name, made.model_version, made.id, made.requested_outputs, made.parameters, made.priority)
        return inputs, said, (made.model, made.batch_size, made.wanted, made.timeout_us, made.flags), recipe.name, parameters

    first = read(data)
    assert inference._by_head and not inference._by_size
    by_head = read(data)
    assert list(inference._by_size) == [len(data)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(infer, "split", None)
        by_size = read(data)
    assert first == by_head == by_size == read(memory(data))


# --- parameters


NO = Parameter()
NINE = Parameter(uint64_param=9)
ANY = {"bool": True, "int": 7, "negative": -1, "string": "s", "empty": "", "double": 1.5, "uint": NINE, "none": NO}


def asked(service: Service, **parameters: Any) -> tuple[FakeCall, Any]:
    call = service.start(with_parameters(add_sub(), **parameters))
    return call, service.kernel.requests[-1] if call.status == 0 else None


@pytest.mark.parametrize(
    ("key", "accepted", "words"),
    [
        ("sequence_id", {"int": 7, "negative": 2**64 - 1, "string": "s", "empty": "", "uint": 9}, "int64_param or string_param"),
        ("sequence_start", {"bool": 1}, "bool_param"),
        ("sequence_end", {"bool": 2}, "bool_param"),
        ("priority", {"int": 7, "uint": 9}, "int64_param or uint64_param"),
        ("timeout", {"int": 7, "negative": 2**64 - 1}, "int64_param"),
        ("triton_enable_empty_final_response", {"bool": None}, "bool_param"),
    ],
)
def test_parameters_that_mean_something(service: Service, key: str, accepted: dict[str, Any], words: str) -> None:
    field = {"sequence_id": "correlation_id", "timeout": "timeout_us", "priority": "priority"}.get(key, "flags")
    for kind, value in ANY.items():
        call, made = asked(service, **{key: value})
        if kind in accepted:
            assert made.parameters is None
            if accepted[kind] is not None:
                assert getattr(made, field) == accepted[kind]
        elif (key, kind) == ("priority", "negative"):
            assert call.failure == (INVALID, "invalid value for 'priority', expected value >= 0.")
        else:
            assert call.failure == (INVALID, f"invalid value type for '{key}' parameter, expected {words}.")


def test_a_sequence_id_without_end_is_refused(service: Service) -> None:
    made = add_sub()
    made.parameters["sequence_id"].string_param = "x" * 4097
    assert service.start(made).failure == (INVALID, "'sequence_id' has 4097 characters, more than the 4096 that are taken")
    made.parameters["sequence_id"].string_param = "x" * 4096
    assert service.start(made).status == 0


def test_flags_add_up_and_false_is_no_flag(service: Service) -> None:
    assert asked(service, sequence_start=True, sequence_end=True)[1].flags == 3
    assert asked(service, sequence_start=False, sequence_end=False)[1].flags == 0


def test_other_parameters_go_to_the_model_with_their_types(service: Service) -> None:
    values = {"b": True, "i": -7, "s": "é", "d": 1.5, "binary_data_output": True, "headers": "x"}
    made = asked(service, **values, u=NINE)[1]
    assert made.parameters == {**values, "u": 9}
    assert [type(made.parameters[key]) for key in "bisd"] == [bool, int, str, float]


def test_parameters_are_the_requests_own(service: Service) -> None:
    for _ in range(3):
        made = asked(service, k=1)[1]
        assert made.parameters == {"k": 1}
        made.parameters["k"] = 2


@pytest.mark.parametrize("value", ANY.values())
def test_reserved_parameters(service: Service, value: Any) -> None:
    assert asked(service, triton_x=value)[0].failure == (INVALID, RESERVED)
    assert RESERVED == (
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' "
        "are allowed: triton_enable_empty_final_response"
    )


def test_a_parameter_without_a_value(service: Service) -> None:
    text = "invalid value type for 'custom' parameter, expected int64_param, bool_param, or string_param."
    assert asked(service, custom=NO)[0].failure == (INVALID, text)


def test_parameters_come_before_tensors_and_after_the_model(service: Service) -> None:
    bad = {"triton_x": 1}
    for _ in range(2):
        assert service.start(with_parameters(pair(A, B, raw=[]), **bad)).failure[1] == RESERVED
        assert service.start(with_parameters(output(add_sub(), "NO"), **bad)).failure[1] == RESERVED
        assert service.start(with_parameters(add_sub(), **bad)).failure[1] == RESERVED
        assert service.start(with_parameters(request("nope"), **bad)).failure[0] is Code.NOT_FOUND
        assert service.start(with_parameters(request("gen"), **bad)).failure[0] is Code.UNSUPPORTED
        service.ask(add_sub())


def test_forwarded_headers_come_after_the_body(service: Service) -> None:
    headers = {"x-user": "me", "sequence_id": "5"}
    for _ in range(3):
        service.ask(add_sub(), forwarded=headers)
        last = service.kernel.requests[-1]
        assert (last.parameters, last.correlation_id) == (headers, 0)
        last.parameters["x-user"] = "changed"
        service.ask(with_parameters(add_sub(id="i"), **{"x-user": 7, "other": True}), forwarded=headers)
        assert service.kernel.requests[-1].parameters == {"x-user": "me", "other": True, "sequence_id": "5"}
        service.ask(add_sub())
        assert service.kernel.requests[-1].parameters is None


# --- shared memory


@pytest.fixture
def region(service: Service) -> Any:
    """A region of 256 bytes, registered as `reg`, that begins with the floats 1 to 4."""
    object = SharedMemory(create=True, size=256)
    object.buf[:16] = F4
    service.kernel.shared_memory.register("reg", "/" + object.name.lstrip("/"), 0, 256)
    yield object
    object.close()
    object.unlink()


def shared(name: Any = "reg", size: Any = 16, offset: Any = None) -> dict[str, Any]:
    values = {"shared_memory_region": name, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {key: value for key, value in values.items() if value is not None}


def with_region(raw: Any = (ONES,), **values: Any) -> pb.ModelInferRequest:
    return on_input(pair(A, B, raw=raw), **shared(**values))


def test_inputs_from_shared_memory(service: Service, region: Any) -> None:
    for _ in range(2):
        assert arrays(service.ask(with_region()))["OUTPUT0"] == [2, 3, 4, 5]
        assert arrays(service.ask(with_region(offset=4)))["OUTPUT0"] == [3, 4, 5, 1]
    region.buf[:4] = floats(9)
    assert arrays(service.ask(with_region()))["OUTPUT0"] == [10, 3, 4, 5]
    made = service.kernel.requests[-1].inputs["INPUT0"].array
    made[...] = 0  # a copy
    assert bytes(region.buf[:4]) == floats(9)


def test_an_extra_raw_entry_beside_shared_memory(service: Service, region: Any) -> None:
    for _ in range(3):
        assert arrays(service.ask(with_region(raw=[floats(1, 1, 1, 1), F4])))["OUTPUT0"] == [2, 3, 4, 5]


def test_shared_memory_beside_typed_contents(service: Service, region: Any) -> None:
    made = contents(with_region(raw=[]), 1, fp32_contents=[1, 1, 1, 1])
    assert arrays(service.ask(made))["OUTPUT0"] == [2, 3, 4, 5]


def test_strings_from_shared_memory(service: Service, region: Any) -> None:
    data = strings(b"\xff", b"")
    region.buf[: len(data)] = data
    made = on_input(request("types", ("IN_BYTES", "BYTES", [2])), **shared(size=len(data)))
    for _ in range(2):
        assert service.ask(made).raw_output_contents[0] == data


def test_outputs_to_shared_memory(service: Service, region: Any) -> None:
    for size in (16, 64):
        region.buf[64:80] = bytes(16)
        response = service.ask(output(output(add_sub(), **shared(size=size, offset=64)), "OUTPUT1"))
        assert [(one.name, one.datatype, list(one.shape)) for one in response.outputs] == [
            ("OUTPUT0", "FP32", [4]),
            ("OUTPUT1", "FP32", [4]),
        ]
        assert not response.outputs[0].parameters
        assert list(response.raw_output_contents) == [b"", floats(0, 1, 2, 3)]
        assert bytes(region.buf[64:80]) == floats(2, 3, 4, 5)


def test_strings_to_shared_memory(service: Service, region: Any) -> None:
    made = request("types", ("IN_BYTES", "BYTES", [1]), raw=[strings(b"hello")])
    response = service.ask(output(made, "OUT_BYTES", **shared(size=32, offset=32)))
    assert list(response.raw_output_contents) == [b""]
    assert bytes(region.buf[32:41]) == strings(b"hello")


def test_a_region_of_another_size_is_refused_without_being_read(service: Service, region: Any) -> None:
    os.truncate(f"/dev/shm/{region.name.lstrip('/')}", 2**56)  # nothing of it is there
    service.kernel.shared_memory.register("vast", region.name, 0, 2**56)
    words = f"input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 16, got {2**56}"
    assert service.start(with_region(name="vast", size=2**56)).failure == (INVALID, UNKNOWN_ID + words)


def test_an_output_that_the_region_is_too_small_for(service: Service, region: Any) -> None:
    for _ in range(2):
        assert service.start(output(add_sub(), **shared(size=8))).failure == (
            Code.INTERNAL,
            "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be at least 16 bytes to hold "
            "the results",
        )
    assert bytes(region.buf[:16]) == F4


def test_a_region_that_goes_while_the_model_runs(service: Service, region: Any) -> None:
    service.kernel.hold = True
    call = service.start(output(add_sub(), **shared()))
    service.kernel.shared_memory.unregister("reg")
    service.kernel.finish(service.kernel.held[0])
    assert not call.response.raw_output_contents[0]
    assert bytes(region.buf[:16]) == floats(2, 3, 4, 5)
    service.kernel.hold = False
    count = len(service.kernel.requests)
    gone = service.start(output(add_sub(), **shared()))  # as before, so it isn't read again
    assert gone.failure == (Code.NOT_FOUND, "Unable to find shared memory region: 'reg'")
    assert len(service.kernel.requests) == count  # its model has not run
    assert service.start(with_region()).failure == (Code.NOT_FOUND, "Unable to find shared memory region: 'reg'")


BOTH = "output can't set both 'shared_memory_region' and 'classification'"
WRONG = "invalid value type for 'shared_memory_{}' parameter for tensor '{}', expected {}_param."
ALONE = "'shared_memory_{}' can not be specified without 'shared_memory_region' parameter for tensor '{}'"
NO_SIZE = "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '{}'"

SHARED: dict[str, tuple[dict[str, Any], Code, str]] = {
    "unknown region": (shared("nope"), Code.NOT_FOUND, "Unable to find shared memory region: 'nope'"),
    "no name": (shared(""), Code.NOT_FOUND, "Unable to find shared memory region: ''"),
    "no size": (shared(size=None), INVALID, NO_SIZE),
    "region of a wrong type": (shared(1), INVALID, WRONG.format("region", "{}", "string")),
    "size of a wrong type": (shared(size="16"), INVALID, WRONG.format("byte_size", "{}", "int64")),
    "offset of a wrong type": (shared(offset="0"), INVALID, WRONG.format("offset", "{}", "int64")),
    "size alone": (shared(None), INVALID, ALONE.format("byte_size", "{}")),
    "offset alone": (shared(None, None, 4), INVALID, ALONE.format("offset", "{}")),
    "offset and size": (shared(None, 4, 4), INVALID, ALONE.format("offset", "{}")),
    "beyond the end": (shared(offset=250), INVALID, "Invalid offset + byte size for shared memory region: 'reg'"),
    "offset beyond the end": (shared(offset=2500), INVALID, "Invalid offset for shared memory region: 'reg'"),
    "negative offset": (shared(offset=-4), INVALID, "Invalid offset for shared memory region: 'reg'"),
}


@pytest.mark.parametrize("case", SHARED)
def test_bad_regions(service: Service, region: Any, case: str) -> None:
    values, code, text = SHARED[case]
    assert service.start(on_input(pair(A, B, raw=[F4, F4]), **values)).failure == (code, text.format("INPUT0"))
    assert service.start(output(add_sub(), **values)).failure == (code, text.format("OUTPUT0"))


def test_more_about_bad_regions(service: Service, region: Any) -> None:
    assert service.start(output(add_sub(), **shared("nope"), classification=2)).failure == (INVALID, BOTH)
    made = contents(with_region(), 0, fp32_contents=[1, 2, 3, 4])
    text = "unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for model 'add_sub'"
    assert service.start(made).failure == (INVALID, text)
    assert service.start(with_region(raw=[])).failure == (INVALID, NO_DATA.format("INPUT1"))
    assert service.start(with_region(size=12)).failure == (INVALID, UNKNOWN_ID + SIZES.format("INPUT0", 12))


# --- time, cancellation, models that come and go


def test_deadlines_reach_the_request(service: Service) -> None:
    for _ in range(2):
        service.ask(add_sub(), deadline=123.5)
        assert service.kernel.requests[-1].deadline == 123.5
        service.ask(add_sub())
        assert service.kernel.requests[-1].deadline is None


def test_an_error_after_the_deadline_is_that(service: Service) -> None:
    service.kernel.hold = True
    early, late = service.start(add_sub(), deadline=123.5), service.start(add_sub(), deadline=123.5)
    error = ServingError(Code.UNAVAILABLE, "some reason")
    service.kernel.refuse(service.kernel.held[0], error)
    assert early.failure == (Code.UNAVAILABLE, "some reason")
    service.kernel.loop.now = 123.5
    service.kernel.refuse(service.kernel.held[1], error)
    assert late.failure == (4, "Deadline Exceeded")


def test_the_transport_knows_what_to_cancel(service: Service) -> None:
    service.kernel.hold = True
    for _ in range(2):
        call = service.start(add_sub())
        assert call.request is service.kernel.held[-1]
        service.kernel.finish(service.kernel.held[-1])
        assert call.request is None and call.status == 0


def test_a_call_and_its_request_do_not_keep_one_another(service: Service) -> None:
    service.kernel.hold = True
    call = service.start(add_sub())
    request = weakref.ref(call)
    service.kernel.finish(service.kernel.held.pop())
    service.kernel.requests.clear()
    gc.disable()
    try:
        del call
        assert request() is None
    finally:
        gc.enable()


def test_another_model_of_the_same_name(service: Service) -> None:
    """What was remembered of the old one is forgotten, and does not keep it."""
    kernel = service.kernel
    for _ in range(2):
        service.ask(add_sub())
        service.ask(add_sub(id="x"))
    old = weakref.ref(kernel.model("add_sub"))
    new = kernel.add(config("add_sub", [Spec("INPUT0", "FP32", (4,))], [Spec("OUTPUT0", "FP32", (4,))]))
    kernel.requests.clear()
    for made in (add_sub(), add_sub(id="x")):
        code, text = service.start(made).failure
        assert code is INVALID and "expected 1 inputs but got 2" in text
    gc.collect()
    assert old() is None
    kernel.served.pop("add_sub")
    assert service.start(add_sub()).failure[0] is Code.NOT_FOUND
    kernel.served["add_sub"] = {1: new}
    assert service.start(add_sub()).failure[0] is INVALID


def test_a_model_of_another_name_changes_nothing(service: Service) -> None:
    service.ask(add_sub())
    service.kernel.add(config("more", [Spec("X", "FP32", (1,))], [Spec("Y", "FP32", (1,))]))
    assert arrays(service.ask(add_sub()))["OUTPUT0"] == [2, 3, 4, 5]
    service.kernel.add(service.kernel.model("add_sub").config, 2)  # a newer version
    assert service.ask(add_sub()).model_version == "2"
    assert service.ask(add_sub(model_version="1")).model_version == "1"


def test_messages_of_one_size_for_different_models(service: Service) -> None:
    like = service.kernel.model("add_sub").config
    service.kernel.add(config("sub_add", [*like.inputs], [*like.outputs]))  # type: ignore[list-item]
    other = add_sub()
    other.model_name = "sub_add"
    for _ in range(3):
        assert service.ask(add_sub()).model_name == "add_sub"
        assert service.ask(other).model_name == "sub_add"


def test_messages_of_one_size_with_and_without_an_id(service: Service) -> None:
    """An output's name that is as long as the other message's id, its tag and its length."""
    plain = add_sub()
    plain.outputs.add(name="OUTPUT0")
    with_id = add_sub(id="x" * (plain.ByteSize() - add_sub().ByteSize() - 2))
    assert plain.ByteSize() == with_id.ByteSize()
    for _ in range(3):
        assert list(arrays(service.ask(plain))) == ["OUTPUT0"]
        response = service.ask(with_id)
        assert (list(arrays(response)), response.id) == (["OUTPUT0", "OUTPUT1"], with_id.id)


def test_what_is_remembered_is_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer, "ALL_RECIPES", 8)
    for size in range(1, 30):
        for _ in range(2):
            service.ask(request("any", ("X", "FP32", [size]), raw=[np.zeros(size, np.float32)]))
    inference = service._infer.__self__
    assert len(inference._by_head) <= 8 and len(inference._by_size) <= 8
    long = request("any", ("X", "FP32", [1] * 1), raw=[floats(1)])
    long.outputs.extend([pb.ModelInferRequest.InferRequestedOutputTensor(name="Y")] * 2000)
    inference._by_head.clear()
    service.ask(long)
    assert not inference._by_head


def test_a_mistake_of_ours_is_left_to_the_transport(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which logs it and answers INTERNAL."""
    monkeypatch.setattr(infer, "split", lambda data, most: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        service.start(add_sub())

"""ModelStreamInfer: every row of grpc_protocol, section 4. Messages in, messages out, on a fake call."""

from __future__ import annotations

import gc
import weakref
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest
from frontends.fakes_grpc import (
    GrpcKernel,
    Service,
    Streaming,
    add_sub,
    arrays,
    data_of,
    floats,
    memory,
    parameters_of,
    request,
    strings,
    with_parameters,
)

from kernel import Code, InferenceRequest, InferenceResponse, ServingError, Tensor
from kernel_grpc.inference import stream as module
from kernel_grpc.inference.parameters import RESERVED
from kernel_grpc.rpc.status import SHUTTING_DOWN
from kernel_grpc.schemas import grpc_service_pb2 as pb

FINAL = "triton_final_response"
EMPTY_FINAL = {"triton_enable_empty_final_response": True}


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def kernel(service: Service) -> GrpcKernel:
    """Holds what comes; tests answer it."""
    service.kernel.hold = True
    return service.kernel


@pytest.fixture
def stream(service: Service) -> Streaming:
    return service.stream()


def many(n: int = 1, **fields: Any) -> pb.ModelInferRequest:
    """A request to the decoupled model."""
    return request("many", ("N", "INT32", [1]), raw=[np.int32([n])], **fields)


def out(*values: int) -> InferenceResponse:
    return InferenceResponse([Tensor("OUT", "INT32", np.array(values, np.int32))])


def held(kernel: GrpcKernel, id: str) -> InferenceRequest:
    (found,) = (one for one in kernel.held if one.id == id)
    return found


def shown(message: pb.ModelStreamInferResponse) -> tuple[Any, ...]:
    """What a message says, in short: its id, then its error or its values, then whether it is final."""
    response = message.infer_response
    assert message.HasField("infer_response")
    final = parameters_of(response).get(FINAL)
    if message.error_message:
        assert not response.outputs and not response.raw_output_contents
        return response.id, message.error_message, final
    return response.id, *(np.frombuffer(data, np.int32).tolist() for data in response.raw_output_contents), final


# --- responses


def test_a_response_is_final_and_carries_what_a_unary_one_does(stream: Streaming, service: Service) -> None:
    for id in ("", "a", "x" * 300):
        stream.send(add_sub(id=id))
        (message,) = stream.take()
        assert not message.error_message
        response = message.infer_response
        assert parameters_of(response) == {FINAL: True}
        del response.parameters[FINAL]
        assert response == service.ask(add_sub(id=id))


def test_the_wire_is_what_protobuf_would_write(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(many(id="m"), add_sub(id="a"), add_sub(), many(id="e"), request("nope", id="n"))
    for _ in range(2):
        kernel.send(held(kernel, "m"), out(1, 2), False)
    kernel.send(held(kernel, "m"), None, True)
    kernel.send(held(kernel, "e"), InferenceResponse.failure(Code.INTERNAL, "boom"), True)
    for id in ("a", ""):
        kernel.finish(held(kernel, id))
    taken = stream.call.take()
    assert len(taken) == 6
    for data in taken:
        assert pb.ModelStreamInferResponse.FromString(data).SerializeToString() == data


@pytest.mark.parametrize("large", [False, True], ids=["bytes", "memory"])
def test_messages_of_any_size(stream: Streaming, large: bool) -> None:
    values = np.arange(40_000 if large else 3, dtype=np.float32)
    for _ in range(2):
        data = data_of(request("any", ("X", "FP32", [len(values)]), raw=[values]))
        stream.send(memory(data) if large else data)
        (message,) = stream.take()
        assert arrays(message.infer_response) == {"Y": values.tolist()}


def test_strings_and_response_parameters(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(many(id="m"))
    for word in (b"a", b"longer", b""):
        response = InferenceResponse([Tensor("S", "BYTES", np.array([word], np.object_))], None, {"k": 1})
        kernel.send(held(kernel, "m"), response, False)
        (message,) = stream.take()
        assert list(message.infer_response.raw_output_contents) == [strings(word)]
        assert parameters_of(message.infer_response) == {"k": 1, FINAL: False}
    kernel.send(held(kernel, "m"), out(1), False)
    assert parameters_of(stream.take()[0].infer_response) == {FINAL: False}


def test_many_small_responses_of_several_signatures(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(many(id="m"), many(id="n"))
    expected = []
    for k in range(300):
        id, values = ("m", "n")[k % 3 == 0], list(range(k % 5))
        kernel.send(held(kernel, id), out(*values), False)
        expected.append((id, values, False))
    assert [shown(message) for message in stream.take()] == expected


def test_classification_and_shared_memory_work_here_too(service: Service) -> None:
    stream = service.stream()
    made = add_sub(id="c")
    with_parameters(made.outputs.add(name="OUTPUT0"), classification=1)
    stream.send(made)
    made = request("many", ("N", "INT32", [1]), raw=[np.int32([1])])
    with_parameters(made.outputs.add(name="OUT"), classification=2)
    service.kernel.hold = True
    stream.send(made)
    service.kernel.send(service.kernel.held[0], out(5, 7, 6), False)
    first, second = stream.take()
    assert list(first.infer_response.raw_output_contents) == [strings(b"5.000000:3")]
    assert list(second.infer_response.raw_output_contents) == [strings(b"7:1", b"6:2")]
    made = add_sub()
    with_parameters(made.outputs.add(name="OUTPUT0"), shared_memory_region="no", shared_memory_byte_size=16)
    stream.send(made)
    assert shown(stream.take()[0]) == ("", "Unable to find shared memory region: 'no'", None)


def test_a_region_that_has_gone_is_missed_before_the_model_runs(service: Service, stream: Streaming) -> None:
    object = SharedMemory(create=True, size=16)
    try:
        service.kernel.shared_memory.register("reg", object.name, 0, 16)
        made = add_sub(id="x")
        with_parameters(made.outputs.add(name="OUTPUT0"), shared_memory_region="reg", shared_memory_byte_size=16)
        stream.send(made)
        assert [one.infer_response.outputs[0].name for one in stream.take()] == ["OUTPUT0"]
        assert bytes(object.buf[:16]) == floats(2, 3, 4, 5)
        service.kernel.shared_memory.unregister("reg")
        count = len(service.kernel.requests)
        stream.send(made)
        assert [shown(one) for one in stream.take()] == [("x", "Unable to find shared memory region: 'reg'", None)]
        assert len(service.kernel.requests) == count
    finally:
        object.close()
        object.unlink()


# --- decoupled models: which of the messages is final


def run(stream: Streaming, kernel: GrpcKernel, *answers: tuple[InferenceResponse | None, bool], **parameters: Any) -> list[Any]:
    stream.send(with_parameters(many(id="g"), **parameters))
    for response, final in answers:
        kernel.send(kernel.held[-1], response, final)
    return [shown(message) for message in stream.take()]


FAILED = InferenceResponse.failure(Code.INTERNAL, "boom")


@pytest.mark.parametrize("parameters", [{}, EMPTY_FINAL, {"triton_enable_empty_final_response": False}])
def test_observed_sequences(stream: Streaming, kernel: GrpcKernel, parameters: dict[str, Any]) -> None:
    empty = [("g", True)] if parameters.get("triton_enable_empty_final_response") else []
    two = [(out(0), False), (out(1), False)]
    assert run(stream, kernel, *two, (None, True), **parameters) == [("g", [0], False), ("g", [1], False), *empty]
    assert run(stream, kernel, (None, True), **parameters) == empty
    assert run(stream, kernel, (FAILED, True), **parameters) == [("g", "boom", True)]
    assert run(stream, kernel, (out(0), False), (out(1), True), **parameters) == [("g", [0], False), ("g", [1], True)]
    assert run(stream, kernel, (FAILED, False), (out(1), False), (None, True), **parameters) == [
        ("g", "boom", False),
        ("g", [1], False),
        *empty,
    ]
    assert run(stream, kernel, (InferenceResponse([]), False), (None, True), **parameters) == [("g", False), *empty]


@pytest.mark.parametrize("version", ["", "1"])
def test_names_on_messages_without_outputs(stream: Streaming, kernel: GrpcKernel, version: str) -> None:
    """The model's name, and its version as the request has it: also where that says nothing."""
    stream.send(with_parameters(many(id="e", model_version=version), **EMPTY_FINAL), many(id="f", model_version=version))
    kernel.send(held(kernel, "e"), None, True)
    kernel.send(held(kernel, "f"), FAILED, True)
    empty, failed = (message.infer_response for message in stream.take())
    assert (empty.model_name, empty.model_version, empty.id) == ("many", version, "e")
    assert (failed.model_name, failed.model_version, failed.id) == ("many", version, "f")


def test_the_option_changes_nothing_for_models_that_answer_once(stream: Streaming) -> None:
    stream.send(with_parameters(add_sub(id="1"), **EMPTY_FINAL))
    assert [parameters_of(message.infer_response) for message in stream.take()] == [{FINAL: True}]


# --- errors are messages


def test_an_error_before_execution_has_an_id_and_no_more(stream: Streaming) -> None:
    stream.send(
        request("nope", id="n1"),
        add_sub(a=(1, 2, 3), id="b1"),
        request("add_sub", ("INPUT0", "FP32", [5]), ("INPUT1", "FP32", [4]), raw=[floats(*range(5)), floats(*range(4))], id="b2"),
        with_parameters(add_sub(id="b3"), triton_x=1),
        add_sub(model_version="7", id="b4"),
        request("nope"),
        add_sub(id="ok"),
    )
    *refused, fine = stream.take()
    assert [shown(message) for message in refused] == [
        ("n1", "Request for unknown model: 'nope' is not found", None),
        ("b1", "[request id: b1] input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 16, got 12", None),
        ("b2", "[request id: b2] unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [4], got [5]. ", None),
        (
            "b3",
            RESERVED,
            None,
        ),
        ("b4", "Request for unknown model: 'add_sub' version 7 is not found", None),
        ("", "Request for unknown model: 'nope' is not found", None),
    ]
    assert all(not message.infer_response.model_name and not message.infer_response.parameters for message in refused)
    assert fine.infer_response.id == "ok"
    assert not stream.call.done


def test_an_error_of_execution_has_a_name_and_is_final(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(add_sub(id="f"))
    kernel.send(held(kernel, "f"), InferenceResponse.failure(Code.INVALID_ARG, "told"), True)
    (message,) = stream.take()
    assert shown(message) == ("f", "told", True)
    assert message.infer_response.model_name == "add_sub"


@pytest.mark.parametrize("made", [add_sub(id="q"), many(id="q")])
def test_a_request_that_the_queue_does_not_take_was_not_executed(
    stream: Streaming, kernel: GrpcKernel, made: pb.ModelInferRequest
) -> None:
    stream.send(made)
    kernel.refuse(held(kernel, "q"), ServingError(Code.UNAVAILABLE, "Exceeds maximum queue size"))
    assert [shown(message) for message in stream.take()] == [("q", "Exceeds maximum queue size", None)]


def test_models_that_end_without_a_response(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(add_sub(id="1"))
    kernel.send(held(kernel, "1"), None, True)
    assert [shown(one) for one in stream.take()] == [("1", "model 'add_sub' ended the request without a response", True)]


def test_responses_that_can_not_be_encoded(stream: Streaming, kernel: GrpcKernel, caplog: pytest.LogCaptureFixture) -> None:
    stream.send(many(id="m"), add_sub(id="a"))
    kernel.send(held(kernel, "m"), InferenceResponse(out(1).outputs, None, {"p": None}), False)  # type: ignore[dict-item]
    kernel.send(held(kernel, "a"), InferenceResponse([Tensor("OUTPUT0", "BYTES", None)]), True)  # type: ignore[arg-type]
    first, second = map(shown, stream.take())
    assert first[0] == "m" and first[1].startswith("response parameter 'p' is NoneType") and first[2] is False
    assert second[0] == "a" and second[1].startswith("the response can't be encoded: AttributeError") and second[2] is True
    assert "a response of model 'add_sub' can't be encoded" in caplog.text


@pytest.mark.parametrize("large", [False, True], ids=["bytes", "memory"])
def test_a_malformed_message_is_answered_and_costs_nobody_else(stream: Streaming, large: bool) -> None:
    stream.send(add_sub(id="1"), memory(b"\xff\xff") if large else b"\xff\xff", add_sub(id="2"))
    first, bad, second = stream.take()
    assert (first.infer_response.id, second.infer_response.id) == ("1", "2")
    assert shown(bad)[0] == "" and shown(bad)[1].startswith("Unable to parse request")


def test_a_mistake_of_ours_costs_nobody_else(
    stream: Streaming, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream.send(add_sub(id="1"))
    with monkeypatch.context() as patch:
        patch.setattr("kernel_grpc.inference.infer.split", lambda data: 1 / 0)
        stream.send(add_sub(id="2"))
    stream.send(add_sub(id="3"))
    assert [message.infer_response.id for message in stream.take()] == ["1", "2", "3"]
    assert "a request on a stream can't be read" in caplog.text


# --- order


def test_models_that_answer_once_answer_in_order(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(add_sub(id="1"), request("any", ("X", "FP32", [1]), raw=[floats(1)], id="2"), add_sub(id="3"), add_sub(id="4"))
    for id, expected in (("3", []), ("2", []), ("1", ["1", "2", "3"]), ("4", ["4"])):
        kernel.finish(held(kernel, id))
        assert [message.infer_response.id for message in stream.take()] == expected


def test_errors_wait_for_their_turn(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(add_sub(id="1"), request("nope", id="2"), add_sub(id="3"), add_sub(id="4"))
    kernel.send(held(kernel, "3"), InferenceResponse.failure(Code.INTERNAL, "boom"), True)
    assert stream.take() == []
    kernel.finish(held(kernel, "1"))
    assert [message.infer_response.id for message in stream.take()] == ["1", "2", "3"]
    stream.close()
    kernel.finish(held(kernel, "4"))
    assert stream.call.status == 0


def test_decoupled_models_answer_as_they_please(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(add_sub(id="1"), many(id="m"), add_sub(id="2"), many(id="n"))
    wrong = many(id="w")
    wrong.inputs[0].name = "no"
    stream.send(wrong)
    kernel.send(held(kernel, "n"), out(1), False)
    kernel.send(held(kernel, "m"), out(2), False)
    kernel.send(held(kernel, "n"), out(3), True)
    assert [shown(message) for message in stream.take()] == [
        ("w", "unexpected inference input 'no' for model 'many'", None),
        ("n", [1], False),
        ("m", [2], False),
        ("n", [3], True),
    ]
    kernel.finish(held(kernel, "1"))
    kernel.finish(held(kernel, "2"))
    assert [message.infer_response.id for message in stream.take()] == ["1", "2"]


# --- the end


def test_nothing_asked_nothing_said(stream: Streaming) -> None:
    stream.close()
    assert (stream.call.status, stream.take()) == (0, [])


def test_half_closed_the_stream_ends_when_all_is_answered(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(add_sub(id="1"), many(id="m"))
    stream.close()
    kernel.send(held(kernel, "m"), out(1), False)
    kernel.finish(held(kernel, "1"))
    assert len(stream.take()) == 2 and not stream.call.done
    kernel.send(held(kernel, "m"), None, True)
    assert (stream.call.status, stream.call.text, stream.take()) == (0, "", [])
    answered = service_free(stream)
    assert not answered


def service_free(stream: Streaming) -> bool:
    return bool(stream.stream.answers or stream.stream.order)


def test_everything_answered_then_half_closed(stream: Streaming) -> None:
    stream.send(add_sub())
    assert not stream.call.done
    stream.close()
    assert stream.call.status == 0


def test_cancel_cancels_everything(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(add_sub(id="1"), many(id="m"), request("nope", id="x"), add_sub(id="2"), many(id="n"))
    kernel.send(held(kernel, "n"), out(1), True)
    kernel.finish(held(kernel, "2"))
    stream.take()
    stream.call.cancel()
    assert [one.id for one in kernel.cancelled] == ["1", "m"]
    kernel.send(held(kernel, "m"), out(1), False)
    kernel.send(held(kernel, "m"), None, True)
    kernel.finish(held(kernel, "1"))
    assert stream.take() == [] and stream.call.status is None
    stream.send(add_sub(id="late"))  # it was on its way
    stream.close()
    assert len(kernel.held) == 4


def test_a_stream_that_is_gone_keeps_nothing(service: Service, kernel: GrpcKernel) -> None:
    stream = service.stream()
    stream.send(add_sub(id="1"), many(id="m"))
    kernel.finish(held(kernel, "1"))
    kernel.send(held(kernel, "m"), None, True)
    stream.close()
    call = weakref.ref(stream.call)
    kernel.held.clear()
    kernel.requests.clear()
    stream.call.on_cancel = stream.call.on_writable = None  # the transport lets go of them at the end
    gc.disable()
    try:
        del stream
        assert call() is None
    finally:
        gc.enable()


def test_a_model_that_is_unloaded_while_it_answers(service: Service, kernel: GrpcKernel) -> None:
    stream = service.stream()
    stream.send(many(id="m"))
    kernel.served.pop("many")
    kernel.send(held(kernel, "m"), out(1), False)
    stream.send(many(id="n"))
    kernel.send(held(kernel, "m"), None, True)
    assert [shown(message) for message in stream.take()] == [
        ("m", [1], False),
        ("n", "Request for unknown model: 'many' is not found", None),
    ]


def test_a_server_that_shuts_down_takes_nothing_new(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(many(id="m"))
    stream.call.server.draining = True
    stream.send(add_sub(id="late"))
    kernel.send(held(kernel, "m"), out(1), True)
    assert [shown(message) for message in stream.take()] == [
        ("late", "GRPC server is shutting down and has stopped accepting new requests.", None),
        ("m", [1], True),
    ]
    assert len(kernel.held) == 1
    stream.close()
    assert stream.call.status == 0


@pytest.mark.parametrize("busy", [False, True])
def test_a_client_that_might_go_on_is_told_that_the_server_stops(stream: Streaming, kernel: GrpcKernel, busy: bool) -> None:
    stream.send(*[many(id="m")] * busy)
    stream.call.server.draining = True
    stream.stream.half_closed()  # the transport, not the client
    if busy:
        assert not stream.call.done
        kernel.send(held(kernel, "m"), out(1), True)
    assert (stream.call.status, stream.call.text) == (14, SHUTTING_DOWN) and len(stream.take()) == busy


def test_a_client_that_half_closes_while_the_server_stops_has_got_all(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(many(id="m"))
    stream.call.server.draining = True
    stream.stream.half_closed()
    stream.close()
    kernel.send(held(kernel, "m"), out(1), True)
    assert (stream.call.status, len(stream.take())) == (0, 1)


# --- errors as the stream's status


@pytest.fixture
def strict(service: Service) -> Streaming:
    return service.stream(metadata={"triton_grpc_error": "true"})


@pytest.mark.parametrize("value", ["false", "True", "1", ""])
def test_only_true_asks_for_it(service: Service, value: str) -> None:
    stream = service.stream(metadata={"triton_grpc_error": value})
    stream.send(request("nope", id="n"))
    assert len(stream.take()) == 1 and not stream.call.done


def test_strict_errors_before_execution(strict: Streaming, kernel: GrpcKernel) -> None:
    strict.send(add_sub(id="1"), many(id="m"), request("nope", id="n"))
    assert strict.call.failure == (Code.NOT_FOUND, "Request for unknown model: 'nope' is not found")
    assert [one.id for one in kernel.cancelled] == ["1", "m"]
    strict.send(add_sub(id="2"))
    strict.close()
    kernel.send(held(kernel, "m"), out(1), True)
    assert len(kernel.held) == 2 and strict.take() == []


@pytest.mark.parametrize("final", [False, True])
def test_strict_errors_of_execution(strict: Streaming, kernel: GrpcKernel, final: bool) -> None:
    strict.send(add_sub(id="1"), many(id="m"), many(id="n"))
    kernel.send(held(kernel, "m"), out(1), False)
    assert len(strict.take()) == 1
    kernel.send(held(kernel, "m"), InferenceResponse.failure(Code.INVALID_ARG, "boom"), final)
    assert strict.call.failure == (Code.INVALID_ARG, "boom")
    assert {one.id for one in kernel.cancelled} >= {"1", "n"}


def test_strict_errors_overtake_what_is_waited_for(strict: Streaming, kernel: GrpcKernel) -> None:
    strict.send(add_sub(id="1"), add_sub(id="2"))
    kernel.send(held(kernel, "2"), InferenceResponse.failure(Code.UNAVAILABLE, "boom"), True)
    assert strict.call.failure == (Code.UNAVAILABLE, "boom")


def test_strict_streams_without_errors_are_like_others(strict: Streaming, kernel: GrpcKernel) -> None:
    strict.send(add_sub(id="1"))
    strict.close()
    kernel.finish(held(kernel, "1"))
    assert strict.call.status == 0 and len(strict.take()) == 1


# --- how much at a time


def test_requests_in_flight_are_bounded(stream: Streaming, kernel: GrpcKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT", 4)
    stream.send(*(add_sub(id=str(k)) for k in range(3)))
    assert not stream.call.held
    stream.send(add_sub(id="3"), add_sub(id="4"))  # one more may have come already
    assert stream.call.held
    for k in (1, 2, 3, 4):  # they wait for their turn
        kernel.finish(held(kernel, str(k)))
        assert stream.call.held
    kernel.finish(held(kernel, "0"))
    assert not stream.call.held
    assert len(stream.take()) == 5


def test_refused_requests_that_wait_for_their_turn_are_bounded_too(
    stream: Streaming, kernel: GrpcKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT", 4)
    stream.send(add_sub(id="0"))
    for k in range(1, 4):
        assert not stream.call.held
        stream.send(request("nope", id=str(k)))
    assert stream.call.held
    kernel.finish(held(kernel, "0"))
    assert not stream.call.held
    assert len(stream.take()) == 4


def test_decoupled_requests_in_flight_are_bounded(
    stream: Streaming, kernel: GrpcKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT", 4)
    stream.send(*(many(id=str(k)) for k in range(4)))
    assert stream.call.held
    for k in range(2):
        kernel.send(held(kernel, str(k)), out(1), False)
        assert stream.call.held
        kernel.send(held(kernel, str(k)), None, True)
    assert not stream.call.held


def test_a_client_that_does_not_take_its_answers_is_not_asked_for_more(stream: Streaming, kernel: GrpcKernel) -> None:
    stream.send(many(id="1"))
    stream.call.set_writable(False)
    kernel.send(held(kernel, "1"), out(1), False)
    stream.send(many(id="2"))
    assert stream.call.held
    kernel.send(held(kernel, "2"), out(2), False)  # what models say is kept all the same
    kernel.send(held(kernel, "1"), None, True)
    assert stream.call.held
    stream.call.set_writable(True)
    assert not stream.call.held
    assert [shown(message) for message in stream.take()] == [("1", [1], False), ("2", [2], False)]
    stream.call.set_writable(True)
    assert not stream.call.held


def test_messages_that_come_while_reading_goes_on(stream: Streaming, kernel: GrpcKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transport may hand over what it has held back before `unhold` returns."""
    monkeypatch.setattr(module, "IN_FLIGHT", 2)
    waiting = [add_sub(id=str(k)) for k in range(2, 8)]
    unhold = stream.call.unhold

    def deliver() -> None:
        unhold()
        while waiting and not stream.call.held:
            stream.send(waiting.pop(0))
        if not waiting:
            stream.close()

    stream.call.unhold = deliver  # type: ignore[method-assign]
    stream.send(add_sub(id="0"), add_sub(id="1"))
    for k in range(8):
        kernel.finish(held(kernel, str(k)))
    assert [message.infer_response.id for message in stream.take()] == [str(k) for k in range(8)]
    assert stream.call.status == 0

"""Large messages of ModelInfer and ModelStreamInfer: what they may hold, who reads them, and that they mean what others mean."""

from __future__ import annotations

import os
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest
from frontends import test_grpc_infer as small
from frontends.fakes_grpc import (
    FakeCall,
    GrpcKernel,
    Service,
    add_sub,
    arrays,
    floats,
    memory,
    parameter,
    request,
    run_jobs,
    strings,
    typed,
)
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from work import instructions, is_linear

from kernel import Code, ServingError
from kernel.frontends.contents import STRINGS_ON_LOOP as ANSWERED_ON_LOOP
from kernel.frontends.contents import TEXT_ON_LOOP
from kernel_grpc.inference import infer, large, outputs, recipe, stream
from kernel_grpc.inference.infer import SLACK, Inference
from kernel_grpc.inference.large import ON_LOOP, STRINGS_ON_LOOP, fields, prepared
from kernel_grpc.inference.outputs import CLASSED_ON_LOOP
from kernel_grpc.inference.wire import leading, number_at, split, varint
from kernel_grpc.rpc.limits import Limits
from kernel_grpc.schemas import grpc_service_pb2 as pb

INVALID = Code.INVALID_ARG
Elements = pb.InferTensorContents


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message is read on a thread."""
    monkeypatch.setattr(infer, "ON_LOOP", -1)


def limited(values: int = 0, **limits: int) -> Service:
    service = Service()
    service.kernel.memory.values = values or service.kernel.memory.values
    inference = Inference(service.kernel, Limits(**limits))  # type: ignore[arg-type]
    service._infer = inference.infer
    return service


# --- they mean the same


@pytest.mark.parametrize("case", small.REFUSED)
def test_refused(service: Service, case: str, all_large: None) -> None:
    made, code, text = small.REFUSED[case]
    assert service.start(made).failure == (code, text)


@pytest.mark.parametrize("datatype", [*small.TYPED, "BYTES"])
@pytest.mark.parametrize("count", [0, 1, 100, 70_000])
def test_typed_contents(service: Service, datatype: str, count: int, all_large: None) -> None:
    chance = np.random.default_rng(3)
    if datatype == "BYTES":
        made = typed(datatype, "bytes_contents", [b"x" * (k % 300) for k in range(count)])
    else:
        dtype = small.DATATYPES[datatype]
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            values = chance.integers(bounds.min, bounds.max, count, dtype, endpoint=True)
            values[: count // 2] //= max(1, int(bounds.max) // 100)
        else:
            values = chance.random(count).astype(dtype) if dtype.kind == "f" else chance.random(count) < 0.5
        made = typed(datatype, small.TYPED[datatype][0], values.tolist())
    (tensor,) = asked(service, made)
    if datatype == "BYTES":
        assert tensor.array.tolist() == list(made.inputs[0].contents.bytes_contents)
    else:
        assert tensor.array.tolist() == list(getattr(made.inputs[0].contents, small.TYPED[datatype][0]))
        assert not count or (tensor.array.flags.writeable and tensor.array.flags.aligned)


def asked(service: Service, made: Any) -> list[Any]:
    """Ask, and return the tensors that the model has got."""
    assert service.start(memory(made.SerializeToString())).status == 0
    return list(service.kernel.requests[-1].inputs.values())


def cases_of(test: Any) -> Any:
    """The messages of another test."""
    return next(mark.args[1] for mark in test.pytestmark if mark.args[0] == "data")


@pytest.mark.parametrize("data", cases_of(small.test_odd_but_well_formed_messages))
def test_odd_but_well_formed_messages(service: Service, data: bytes, all_large: None) -> None:
    expected = pb.ModelInferRequest.FromString(data)
    a, b = (np.frombuffer(raw, np.float32) for raw in expected.raw_input_contents)
    assert arrays(service.ask(data)) == {"OUTPUT0": (a + b).tolist(), "OUTPUT1": (a - b).tolist()}


@pytest.mark.parametrize("data", cases_of(small.test_malformed_messages))
def test_malformed_messages(service: Service, data: bytes, all_large: None) -> None:
    code, text = service.start(data).failure
    assert code is INVALID and text.startswith("Unable to parse request as inference.ModelInferRequest")


@pytest.mark.parametrize("size", [127, 128, 2**31, 2**32 - 1, 2**32, 2**34, 2**35, 2**63])
def test_a_length_is_read_in_one_way(size: int) -> None:
    """By whoever splits a message on the loop, and by whoever reads it on a thread."""
    written = varint(size)
    if size >= 2**32:
        with pytest.raises(IndexError):
            number_at(written, 0)
        with pytest.raises(IndexError):
            next(fields(memoryview(b"\x0a" + written), 0, 2**40))
        assert leading(b"\x0a" + written + b"\x0a") == 0
    else:
        assert number_at(written, 0) == (size, len(written))
        assert next(fields(memoryview(b"\x0a" + written), 0, 2**40))[3:] == (1 + len(written), 1 + len(written) + size)
    assert split(b"\x0a" + written, 10) is None


contents = st.builds(
    Elements,
    bool_contents=st.lists(st.booleans(), max_size=3),
    int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    int64_contents=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    uint64_contents=st.lists(st.integers(0, 2**64 - 1), max_size=3),
    fp32_contents=st.lists(st.floats(width=32, allow_nan=False), max_size=3),
    fp64_contents=st.lists(st.floats(allow_nan=False), max_size=3),
    bytes_contents=st.lists(st.binary(max_size=3), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(small.messages, st.lists(contents, max_size=3), st.binary(max_size=4), st.integers(0, 60))
def test_reading_agrees_with_the_parser(made: pb.ModelInferRequest, found: list[Any], noise: bytes, at: int) -> None:
    """Whatever there is in a message, and whichever bytes of it are others."""
    for item, one in zip(made.inputs, found):
        item.contents.CopyFrom(one)
    intact = made.SerializeToString()
    for data in (intact, intact[:at] + noise + intact[at + len(noise) :], intact + noise):
        try:
            expected = pb.ModelInferRequest.FromString(data)
        except Exception:
            with pytest.raises(ServingError, match="Unable to parse request"):
                read(data)
            continue
        ready = read(data)
        raws = [bytes(raw) for raw in ready.raws]
        assert raws == list(expected.raw_input_contents)
        assert [(one.name, one.datatype, list(one.shape), one.HasField("contents")) for one in ready.record.inputs] == [
            (one.name, one.datatype, list(one.shape), one.HasField("contents")) for one in expected.inputs
        ]
        assert (ready.record.id, ready.record.parameters) == (expected.id, expected.parameters)


def read(data: bytes) -> Any:
    return prepared(data, Limits(), 1024 * 1024)


@pytest.mark.parametrize(
    "pieces",
    [
        b"\x0a\x03\x00\x00\x80" + b"\x0a\x02\x00\x00",  # bool_contents: an integer whose end is in the next piece
        b"\x3a\x04\x00\x00\x00\x00" + b"\x3a\x04\x00\x00\x00\x00",  # fp64_contents: halves
    ],
)
def test_elements_end_in_their_own_piece(pieces: bytes) -> None:
    inner = b"\x0a\x01X\x2a" + varint(len(pieces)) + pieces
    data = b"\x0a\x01m\x2a" + varint(len(inner)) + inner
    with pytest.raises(DecodeError):
        pb.ModelInferRequest.FromString(data)
    with pytest.raises(ServingError, match="Unable to parse request"):
        read(data)


def test_elements_that_are_not_packed_or_lie_in_several_pieces(service: Service, all_large: None) -> None:
    chunk = varint(5 << 3 | 2) + varint(7) + b"\x20\x05" + b"\x22\x03\x06\x96\x01"  # uint_contents: 5; then 6 and 150
    inner = b"\x0a\x09IN_UINT32\x12\x06UINT32\x18\x03" + chunk[:1] + varint(7) + chunk[2:]
    data = b"\x0a\x05types\x2a" + varint(len(inner)) + inner
    assert list(pb.ModelInferRequest.FromString(data).inputs[0].contents.uint_contents) == [5, 6, 150]
    assert service.start(data).status == 0
    assert service.kernel.requests[-1].inputs["IN_UINT32"].array.tolist() == [5, 6, 150]


# --- who reads them


def test_large_heads_and_many_strings_are_read_on_a_thread() -> None:
    kernel = GrpcKernel()
    inference = Inference(kernel)  # type: ignore[arg-type]
    many = [b""] * (STRINGS_ON_LOOP + 1)
    for made in (
        typed("FP32", "fp32_contents", [1.0] * (ON_LOOP // 4)),
        typed("BYTES", "bytes_contents", [b"x" * ON_LOOP]),
        request("types", ("IN_BYTES", "BYTES", [4 * len(many)]), raw=[strings(*many * 4)]),
        request("types", ("IN_BYTES", "BYTES", [4 * len(many)]), raw=[strings(*many * 4)]),  # also where its head is known
    ):
        call = FakeCall()
        inference.infer(call, memory(made.SerializeToString()))  # type: ignore[arg-type]
        assert not call.done and len(kernel.loop.jobs) == 1
        run_jobs(kernel)
        assert call.status == 0
    for made in (
        request("any", ("X", "FP32", [ON_LOOP]), raw=[np.zeros(ON_LOOP, np.float32)]),
        request("types", ("IN_BYTES", "BYTES", [2]), raw=[strings(b"x" * 3 * ON_LOOP, b"y")]),
    ):
        call = FakeCall()
        inference.infer(call, memory(made.SerializeToString()))  # type: ignore[arg-type]
        assert call.status == 0 and not kernel.loop.jobs


def test_a_call_that_ends_while_its_message_is_read(service: Service, all_large: None) -> None:
    call = FakeCall()
    service._infer(call, add_sub().SerializeToString())
    call.cancel()
    service.kernel.loop.run_jobs()
    assert not service.kernel.requests


def test_a_stream_waits_for_a_message_that_is_read_on_a_thread(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    one = service.stream()
    monkeypatch.setattr(infer, "ON_LOOP", -1)
    one.stream.message(add_sub(id="a").SerializeToString())
    assert one.call.held and not service.kernel.requests
    service.kernel.loop.run_jobs()
    assert not one.call.held
    one.stream.message(add_sub(id="b", model_version="9").SerializeToString())
    one.stream.message(b"\xff") if not one.call.held else None
    service.kernel.loop.run_jobs()
    one.close()
    answers = one.take()
    assert [one.infer_response.id for one in answers] == ["a", "b"]
    assert answers[1].error_message and one.call.done


def test_a_stream_that_is_cancelled_while_a_message_is_read(service: Service, all_large: None) -> None:
    one = service.stream()
    one.stream.message(add_sub().SerializeToString())
    one.call.cancel()
    service.kernel.loop.run_jobs()
    assert not service.kernel.requests


def test_a_large_wrong_message_on_a_stream_is_answered_with_its_id(service: Service) -> None:
    made = add_sub(id="large")
    data = made.SerializeToString() + b"\x3a\x00" * 50_000
    one = service.stream()
    one.send(data)
    (answer,) = one.take()
    assert answer.infer_response.id == "large" and "more than 8192 pieces of raw data" in answer.error_message
    assert leading(b"\x1a\x00" * 100) == 32 and leading(b"\x0a") == 0


# --- what they may hold


def entry(key: bytes) -> bytes:
    inner = b"\x0a" + varint(len(key)) + key + b"\x12\x02\x08\x01"
    return b"\x22" + varint(len(inner)) + inner


NAME = b"\x0a\x03any"
CONTENTS = b"\x2a" + varint(16_000_005) + b"\x2a" + varint(16_000_000)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (NAME + b"\x32\x00" * 8_500_000, "the request has more than 8192 outputs, the most that --grpc-max-tensors allows"),
        (NAME + b"\x2a\x00" * 8_500_000, "the request has more than 8192 inputs, the most that --grpc-max-tensors allows"),
        (NAME + b"\x3a\x00" * 8_500_000, "more than 8192 pieces of raw data"),
        (b"\x3a\x00\x2a\x00" + NAME + b"\x3a\x00" * 8_500_000, "more than 8192 pieces of raw data"),
        (NAME + entry(b"k") * 1_500_000, "more than 8192 parameters, the most that --grpc-max-parameters allows"),
        (NAME * 3_000_000, "other fields"),
        (NAME + b"\x32\x06\x12\x04\x0a\x00\x12\x00" * 2_000_000, "more than 8192"),
        (NAME + b"\x2a" + varint(16_000_000) + b"\x22\x00" * 8_000_000, "more than 8192 parameters"),
        (NAME + b"\x2a" + varint(16_000_000) + b"\x0a\x00" * 8_000_000, "other fields"),
        (NAME + CONTENTS + b"\x42\x00" * 8_000_000, "more than 1048576 strings"),
        (NAME + CONTENTS + b"\x10\x00" * 8_000_000, "more than 1048576 strings"),
    ],
)  # fmt: skip
def test_too_many_of_anything(service: Service, data: bytes, words: str) -> None:
    """Found out before an object is made of any, with work that their number doesn't change."""
    message = memory(data)
    code, text = service.start(message).failure
    assert code is INVALID and words in text
    inference = service._infer.__self__
    most = 8 * 20 * inference._most
    assert instructions(lambda: split(memoryview(message), inference._most)) < most


@pytest.mark.parametrize("what", SLACK)
def test_far_more_tensors_than_the_model_has(service: Service, what: str) -> None:
    many = [(f"I{k}", "FP32", [1]) for k in range(SLACK[what] + 2)]
    made = request("any", *(many if what == "inputs" else [("X", "FP32", [1])]), raw=[floats(1)])
    if what == "outputs":
        for name, _, _ in many:
            made.outputs.add(name=name)
    text = f"expected 1 {what} but got {len(many)} {what} for model 'any'"
    assert service.start(made).failure == (INVALID, text)


def test_limits_can_be_set() -> None:
    service = limited(tensors=1, parameters=1, values=20_000)
    for count, words in ((20_000, ""), (20_001, "20001 strings, more than the 20000 that --max-request-values allows")):
        for made in (
            request("types", ("IN_BYTES", "BYTES", [count]), raw=[strings(*[b"a"] * count)]),
            typed("BYTES", "bytes_contents", [b"abcde"] * count),
        ):
            call = service.start(made)
            assert words in call.text or "more than 20000 strings, the most that --max-request-values allows" in call.text
            assert (call.status == 0) == (not words)
    made = request("any", ("X", "FP32", [1]), raw=[floats(1)])
    made.parameters["a"].bool_param = made.parameters["b"].bool_param = True
    assert "more than 1 parameters" in service.start(made).failure[1]


# --- twice as much is at most two and a half times the work


MANY = {
    "inputs": lambda count: NAME + b"\x2a\x05\x0a\x03abc" * count,
    "outputs": lambda count: NAME + b"\x32\x05\x0a\x03abc" * count,
    "raw data": lambda count: NAME + b"\x3a\x03abc" * count,
    "parameters": lambda count: NAME + b"".join(entry(b"%d" % k) for k in range(count)),
    "strings": lambda count: typed("BYTES", "bytes_contents", [b"abc"] * count).SerializeToString(),
    "integers": lambda count: typed("INT64", "int64_contents", list(range(-count * 300, 0, 300))).SerializeToString(),
    "floats": lambda count: typed("FP32", "fp32_contents", [1.0] * count).SerializeToString(),
    "dimensions": lambda count: NAME + b"\x2a" + varint(2 * count) + b"\x18\x01" * count,
    "groups": lambda count: NAME + b"\x2b" * min(count, 90) + b"\x08\x01" * count + b"\x2c" * min(count, 90),
}


@pytest.mark.parametrize("what", MANY)
def test_twice_the_bytes_are_twice_the_work(what: str) -> None:
    make: Any = MANY[what]

    def read_all(data: bytes) -> None:
        try:
            read(data)
        except ServingError:
            pass
        split(memoryview(data), 10_000)
        leading(data)

    assert is_linear(read_all, make(2000), make(4000))


# --- what is in flight on a stream


def test_large_messages_on_a_stream_are_counted_until_their_answers(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BYTES_IN_FLIGHT", 300_000)
    kernel = service.kernel
    kernel.hold = True
    much = memory(request("any", ("X", "FP32", [50_000]), raw=[np.zeros(50_000, np.float32)]).SerializeToString())
    one = service.stream()
    one.send(much)
    assert kernel.memory.receive.used == len(much) and not one.call.held
    one.send(much)
    assert kernel.memory.receive.used == 2 * len(much) and one.call.held
    kernel.finish(kernel.held[1])  # answers go out in order, and count when they are known
    assert kernel.memory.receive.used == len(much) and one.call.held
    kernel.finish(kernel.held[0])
    assert kernel.memory.receive.used == 0 and not one.call.held and len(one.take()) == 2
    one.send(much)
    one.call.cancel()
    assert kernel.memory.receive.used == 0


# --- large answers


def classed(count: int, classes: int = 2) -> pb.ModelInferRequest:
    made = request("any", ("X", "FP32", [count]), raw=[np.arange(count, dtype=np.float32)])
    made.outputs.add(name="Y").parameters["classification"].CopyFrom(parameter(classes))
    return made


@pytest.mark.parametrize("is_large", [True, False])
@pytest.mark.parametrize("kind", ["classes", "strings", "text"])
def test_large_answers_are_made_on_a_thread(kind: str, is_large: bool) -> None:
    service = Service()
    kernel = service.kernel
    kernel.hold = True
    size = CLASSED_ON_LOOP if kind == "classes" else ANSWERED_ON_LOOP
    count = size + is_large
    if kind == "text":  # two strings that are long together
        items = [b"a", b"b" * (TEXT_ON_LOOP - 1 + is_large)]
    else:
        items = [b"a"] * count
    texts = request("types", ("IN_BYTES", "BYTES", [len(items)]), raw=[strings(*items)])
    made = classed(count) if kind == "classes" else texts
    call, one = service.start(made), service.stream()
    one.send(made, add_sub(id="behind"))
    for held in kernel.held:
        kernel.finish(held)
    assert len(kernel.loop.jobs) == 2 * is_large and call.done == (not is_large)
    run_jobs(kernel)
    response = call.response
    (first, behind) = one.take()
    assert first.infer_response.raw_output_contents == response.raw_output_contents
    assert behind.infer_response.id == "behind"  # in its turn
    if kind == "classes":
        expected = strings(*[b"%f:%d" % (k, k) for k in (count - 1, count - 2)])
        assert response.raw_output_contents[0] == expected
    else:
        assert response.raw_output_contents[0] == strings(*items)


@pytest.mark.parametrize("typed", [False, True])
def test_a_long_string_is_copied_on_a_thread(typed: bool) -> None:
    service = Service()
    text = bytes(3 * 1024 * 1024 + 5)
    made = request("types", ("IN_BYTES", "BYTES", [1]), raw=[] if typed else [strings(text)])
    if typed:
        made.inputs[0].contents.bytes_contents.append(text)
    call = FakeCall()
    service._infer(call, made.SerializeToString())
    for _ in ("read", "answered"):
        assert len(service.kernel.loop.jobs) == 1 and not call.done
        service.kernel.loop.run_jobs()
    assert call.response.raw_output_contents[0] == strings(text)


def test_large_answers_that_cannot_be_made_or_are_not_wanted() -> None:
    service = limited(values=100)
    kernel = service.kernel
    made = classed(CLASSED_ON_LOOP + 1, 1000)
    code, text = service.start(made).failure
    assert code is INVALID and "1000 strings, more than the 100 that --max-request-values allows" in text
    one = service.stream()
    one.send(made)
    (answer,) = one.take()
    assert "1000 strings" in answer.error_message
    kernel.hold = True
    one.send(made)
    kernel.finish(kernel.held[0])
    one.call.cancel()
    run_jobs(kernel)
    assert not one.take()


def test_as_many_classes_as_there_are_elements(service: Service) -> None:
    made = classed(5, 2**63 - 1)
    assert service.ask(made).outputs[0].shape == [5]


def test_many_strings_in_shared_memory_are_taken_apart_on_a_thread(service: Service) -> None:
    count = ON_LOOP // 4
    data = strings(*[b"abc"] * count)
    region = SharedMemory(create=True, size=len(data), name=f"kernel_test_grpc_{os.getpid()}")
    try:
        region.buf[: len(data)] = data
        kernel = service.kernel
        kernel.shared_memory.register("reg", f"/{region.name}", 0, len(data))
        made = small.on_input(request("types", ("IN_BYTES", "BYTES", [count])), **small.shared(size=len(data)))
        for _ in range(2):  # the second by its head
            call = FakeCall()
            service._infer(call, made.SerializeToString())
            assert not call.done and len(kernel.loop.jobs) == 1
            run_jobs(kernel)
            assert kernel.requests[-1].inputs["IN_BYTES"].array.tolist() == [b"abc"] * count
            assert call.status == 0
        cut = small.on_input(request("types", ("IN_BYTES", "BYTES", [count])), **small.shared(size=len(data) - 1))
        assert service.start(cut).failure[1].startswith("incomplete string data for inference input 'IN_BYTES'")
    finally:
        region.close()
        region.unlink()


@pytest.fixture
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied on the loop has eight bytes at most."""
    for module in (large, recipe, outputs):
        monkeypatch.setattr(module, "COPIED", 8)


def jobs_of(kernel: GrpcKernel) -> int:
    """Do what is to be done on threads; return how many times that was."""
    count = 0
    while kernel.loop.jobs:
        count += len(kernel.loop.jobs)
        kernel.loop.run_jobs()
    return count


def test_large_regions_are_copied_on_a_thread_both_ways(service: Service, small_copies: None) -> None:
    region = SharedMemory(create=True, size=64, name=f"kernel_test_grpc_copies_{os.getpid()}")
    try:
        kernel = service.kernel
        kernel.shared_memory.register("reg", f"/{region.name}", 0, 64)
        region.buf[:32] = small.floats(1, 2, 3, 4, 5, 6, 7, 8)
        made = small.on_input(small.pair(small.A, small.B, raw=[]), **small.shared())
        small.with_parameters(made.inputs[1], **small.shared(offset=16))
        output = made.outputs.add(name="OUTPUT0")
        small.with_parameters(output, **small.shared(offset=32))
        made.outputs.add(name="OUTPUT1")
        stream = service.stream()
        for turn in range(4):  # the second of each kind by its head
            region.buf[32:48] = bytes(16)
            if turn < 2:
                call = FakeCall()
                service._infer(call, made.SerializeToString())
                assert not call.done
                assert (jobs_of(kernel), call.text) == (3, "")  # a region each, and the output
                response = call.response
            else:
                stream.stream.message(made.SerializeToString())
                assert stream.call.held
                assert jobs_of(kernel) == 3
                assert not stream.call.held
                (answer,) = stream.take()
                response = answer.infer_response
            assert np.frombuffer(bytes(region.buf[32:48]), np.float32).tolist() == [6, 8, 10, 12]
            assert np.frombuffer(response.raw_output_contents[-1], np.float32).tolist() == [-4, -4, -4, -4]
        gone = small.on_input(small.pair(small.A, small.B), **small.shared(offset=56))
        assert "Invalid offset" in service.start(gone).failure[1] or "exceed" in service.start(gone).failure[1]
        os.truncate(f"/dev/shm/{region.name}", 8)
        call = FakeCall()
        service._infer(call, made.SerializeToString())
        jobs_of(kernel)
        assert call.failure[0] is INVALID
    finally:
        region.close()
        region.unlink()


def test_large_raw_data_that_is_not_aligned_is_copied_on_a_thread(service: Service, small_copies: None) -> None:
    made = request("types", ("IN_UINT8", "UINT8", [1]), ("IN_FP32", "FP32", [300]), raw=[b"\7", floats(*range(300))])
    data = made.SerializeToString()
    askew = 0
    for shift in range(4):
        room = memory(bytes(64 + shift + len(data)))
        at = 64 + shift
        room[at : at + len(data)] = np.frombuffer(data, np.uint8)
        for _ in range(2):
            call = FakeCall()
            service._infer(call, room[at:])
            askew += jobs_of(service.kernel)
            assert call.status == 0
            array = service.kernel.requests[-1].inputs["IN_FP32"].array
            assert array.tolist() == list(range(300)) and array.flags.aligned
    assert askew == 6  # all but one shift

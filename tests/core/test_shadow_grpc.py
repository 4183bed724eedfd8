"""`kernel shadow` over gRPC: calls are found in bytes however they come, and what they ask is asked again and compared."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Sequence
from typing import Any

import hpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import Code, ServingError
from kernel.recording import Tolerance, streamed_of
from kernel.shadow import Comparer, Mismatch
from kernel.shadow import calls as calls_module
from kernel.shadow import inferences as inferences_module
from kernel.shadow.calls import PREFACE, Packed, SeenCall, SeenCalls, messages_of
from kernel.shadow.exchanges import Room
from kernel.shadow.inferences import STREAM, UNARY, asked_of, model_of
from kernel.shadow.proxy import CLIENT, CLOSED, GRPC, UPSTREAM
from kernel_grpc.schemas import grpc_service_pb2 as pb

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
OTHER = "/grpc.health.v1.Health/Check"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class Peer:
    """One side of a connection: makes its bytes."""

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()

    def head(self, stream: int, *fields: tuple[str, str], end: bool = False, form: int = 0) -> bytes:
        """`form`: 1: padded and with a priority; 2: in three frames."""
        block = self._encoder.encode(fields)
        last = int(end)
        if form == 1:
            return frame(1, 4 | 8 | 32 | last, stream, b"\3" + b"\0" * 5 + block + b"\0\0\0")
        if form == 2:
            parts = block[:2], block[2:5], block[5:]
            return frame(1, last, stream, parts[0]) + frame(9, 0, stream, parts[1]) + frame(9, 4, stream, parts[2])
        return frame(1, 4 | last, stream, block)

    def data(self, stream: int, *messages: bytes, end: bool = True, packed: int = 0, padded: bool = False) -> bytes:
        body = b"".join(bytes((packed,)) + len(one).to_bytes(4, "big") + one for one in messages)
        half = len(body) // 2
        second = b"\2" + body[half:] + b"\0\0" if padded else body[half:]
        return frame(0, 0, stream, body[:half]) + frame(0, int(end) | (8 if padded else 0), stream, second)


def call_head(path: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), *more


TRAILERS = ("grpc-status", "0")


class Seen:
    def __init__(self, room: int = 100_000) -> None:
        self.found: list[tuple[bytes, bytes, int]] = []
        self.room = Room(room)
        self.calls = SeenCalls(self.room, lambda path: True if path == UNARY else None, self.done)

    def done(self, call: SeenCall) -> None:
        bodies = bytes(call.request.body[5:]), bytes(call.answer.body[5:])
        self.found.append((b"cut", b"cut", 0) if call.cut else (*bodies, call.status))
        self.room.free(call.size)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_calls_are_found_however_the_bytes_come(seed: int) -> None:
    rng, seen = random.Random(seed), Seen()
    client, upstream = Peer(), Peer()
    asked, answered = PREFACE + SETTINGS, SETTINGS
    expected = []
    for k in range(rng.randrange(6)):
        stream, path = 2 * k + 1, rng.choice([UNARY, OTHER])
        request, answer = rng.randbytes(rng.randrange(40)), rng.randbytes(rng.randrange(40))
        asked += client.head(stream, *call_head(path), form=rng.randrange(3))
        asked += client.data(stream, request, padded=rng.random() < 0.5) + frame(6, 0, 0, bytes(8))
        answered += upstream.head(stream, (":status", "200"), form=rng.randrange(3))
        answered += upstream.data(stream, answer, end=False, padded=rng.random() < 0.5)
        answered += upstream.head(stream, TRAILERS, end=True, form=rng.randrange(3)) + frame(8, 0, 0, bytes(4))
        if path == UNARY:
            expected.append((request, answer, 0))
    for tell, whole in ((seen.calls.from_client, asked), (seen.calls.from_upstream, answered)):
        while whole:
            size = rng.randrange(1, 60)
            tell(whole[:size])
            whole = whole[size:]
    assert seen.found == expected and not seen.calls.lost
    seen.calls.ended()
    assert seen.room.taken == 0


@pytest.mark.parametrize(
    "asked",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(20),
        PREFACE + frame(1, 4, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
        PREFACE + frame(9, 4, 1, b""),
        PREFACE + frame(1, 0, 1, b"") + SETTINGS,
        PREFACE + frame(5, 4, 1, b"\0\0\0\2"),
        PREFACE + frame(0, 8, 1, b"\5a"),
        PREFACE + frame(1, 12, 1, b"\x09"),
        PREFACE + b"\xff\xff\xff\1\4\0\0\0\1",
        PREFACE + frame(1, 4, 1, b""),
    ],
)
def test_what_can_not_be_followed_is_let_go(asked: bytes) -> None:
    seen = Seen()
    seen.calls.from_client(asked)
    seen.calls.from_client(Peer().head(3, *call_head(UNARY), end=True))
    assert seen.calls.lost or len(seen.calls._calls) == 1, "an empty block says nothing, and is no mistake"
    seen.calls.ended()
    assert seen.room.taken == 0 and not seen.found


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_make_it_fail(asked: bytes, answered: bytes) -> None:
    seen = Seen()
    seen.calls.from_client(PREFACE + Peer().head(1, *call_head(UNARY)) + asked)
    seen.calls.from_upstream(answered)
    seen.calls.ended()
    assert seen.room.taken == 0


def test_what_there_is_no_room_for_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    client, upstream, seen = Peer(), Peer(), Seen(room=100)
    monkeypatch.setattr(calls_module, "MOST_CALLS", 3)
    seen.calls.from_client(PREFACE + client.head(1, *call_head(UNARY)) + client.data(1, bytes(500)))
    seen.calls.from_upstream(upstream.head(1, (":status", "200"), TRAILERS, end=True))
    assert seen.found == [(b"cut", b"cut", 0)] and seen.room.taken == 0
    for stream in (3, 5, 7):
        seen.calls.from_client(client.head(stream, *call_head(UNARY)) + client.data(stream, b"abc", end=False))
    assert not seen.calls.lost and seen.room.taken == 24
    seen.calls.from_client(frame(3, 0, 3, bytes(4)))
    assert seen.room.taken == 16, "one that is reset is forgotten"
    for stream in (9, 11):
        seen.calls.from_client(client.head(stream, *call_head(UNARY)))
    assert seen.calls.lost and seen.room.taken == 0, "too many at a time"


# -- what is compared ------------------------------------------------------------------------------------------------------


def request(id: str = "7", model: str = "m", **parameters: Any) -> bytes:
    message = pb.ModelInferRequest(model_name=model, id=id)
    message.inputs.add(name="X", datatype="FP32", shape=[1])
    message.raw_input_contents.append(bytes(4))
    for name, value in parameters.items():
        where = message.inputs[0] if name.startswith("shared") else message
        where.parameters[name].string_param = value
    return message.SerializeToString()


def response(value: float = 1.0, id: str = "7", raw: bool = True) -> Any:
    message = pb.ModelInferResponse(model_name="m", id=id)
    output = message.outputs.add(name="Y", datatype="FP32", shape=[1])
    if raw:
        message.raw_output_contents.append(np.float32(value).tobytes())
    else:
        output.contents.fp32_contents.append(value)
    return message


def unary(value: float = 1.0, raw: bool = True) -> bytes:
    return response(value, raw=raw).SerializeToString()


def streamed(value: float = 1.0, id: str = "7", error: str = "") -> bytes:
    if error:
        return pb.ModelStreamInferResponse(error_message=error).SerializeToString()
    return pb.ModelStreamInferResponse(infer_response=response(value, id)).SerializeToString()


def final(id: str = "7") -> bytes:
    message = pb.ModelStreamInferResponse()
    message.infer_response.id = id
    message.infer_response.parameters["triton_final_response"].bool_param = True
    return message.SerializeToString()


Answering = Callable[[bytes], list[bytes]]


class Candidate:
    messages = pb

    def __init__(self, answering: Answering) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self._answering = answering

    def call(self, method: str, message: bytes, timeout: float) -> list[bytes]:
        self.asked.append((method, message))
        return self._answering(message)


def compared(
    candidate: Answering, answers: Sequence[bytes], requests: Sequence[bytes] = (request(),), path: str = UNARY,
    trailers: Sequence[tuple[str, str]] = (TRAILERS,), sample: float = 1.0, end: bool = True, encoding: str = "",
) -> tuple[dict[str, int], list[Mismatch]]:  # fmt: skip
    found: list[Mismatch] = []
    comparer = Comparer(lambda *_: (500, {}, b""), found.append, sample, Tolerance(), Candidate(candidate))
    client, upstream, packed = Peer(), Peer(), int(bool(encoding))
    more = [("grpc-encoding", encoding)] if encoding else []
    pack = gzip.compress if encoding else bytes
    number = GRPC + 1
    asked = PREFACE + client.head(1, *call_head(path, *more)) + client.data(1, *map(pack, requests), end=end, packed=packed)
    comparer.told(number, CLIENT, asked)
    answered = upstream.head(1, (":status", "200"), *more)
    answered += upstream.data(1, *map(pack, answers), end=False, packed=packed) + upstream.head(1, *trailers, end=True)
    comparer.told(number, UPSTREAM, answered)
    comparer.told(number, CLOSED, b"")
    comparer.finish(30.0)
    assert comparer._room.taken == 0 and not comparer._waiting
    assert comparer.models["m"].passed == 1
    return dict(comparer.models["m"].outcomes), found


def refuses(code: Code) -> Answering:
    def refuse(message: bytes) -> list[bytes]:
        raise ServingError(code, "no")

    return refuse


def test_calls_are_judged() -> None:
    assert compared(lambda message: [unary()], [unary()]) == ({"same": 1}, [])
    assert compared(lambda message: [unary(raw=False)], [unary()]) == ({"same": 1}, []), "in whichever form"
    words = "output 'Y': 1 of 1 elements differ; the worst one is 2.0 at [0], expected was 1.0"
    assert compared(lambda message: [unary(2.0)], [unary()]) == ({"differ": 1}, [Mismatch("m", "7", "Y", "1.0", "2.0", words)])
    assert compared(lambda message: [unary()], [unary()], encoding="gzip") == ({"same": 1}, [])
    refused = [("grpc-status", "3"), ("grpc-message", "what%20not")]
    assert compared(refuses(Code.INVALID_ARG), [], trailers=refused) == ({"same": 1}, [])
    for candidate, outcome, told in (
        (lambda message: [unary()], "differ", "it succeeds, expected was INVALID_ARG: what not"),
        (refuses(Code.NOT_FOUND), "differ", "it fails otherwise: NOT_FOUND: no, expected was INVALID_ARG: what not"),
    ):
        outcomes, (one,) = compared(candidate, [], trailers=refused)
        assert outcomes == {outcome: 1} and told in one.words
    for candidate, told in (
        (refuses(Code.INTERNAL), "it fails: INTERNAL: no"),
        (lambda message: [b"\xff"], "the answer is none of the protocol"),
        (lambda message: [], "it has 0 responses, expected were 1"),
    ):
        outcomes, (one,) = compared(candidate, [unary()])
        assert outcomes == {"failed" if "fails" in one.words else "differ": 1} and told in one.words


def test_streams_are_judged_request_by_request() -> None:
    def echoes(message: bytes) -> list[bytes]:
        id = pb.ModelInferRequest.FromString(message).id
        return [streamed(1.0, id), streamed(2.0, id), final(id)]

    one = [streamed(1.0), streamed(2.0)]
    assert compared(echoes, one, path=STREAM) == ({"same": 1}, []), "who says only that it is the last says nothing"
    outcomes, (told,) = compared(echoes, one[:1], path=STREAM)
    assert outcomes == {"differ": 1} and told.words == "it has 2 responses, expected were 1"
    assert compared(lambda message: [streamed(error="b")], [streamed(error="a")], path=STREAM) == ({"same": 1}, [])
    outcomes, (told,) = compared(lambda message: [streamed(error="b")], one, path=STREAM)
    assert outcomes == {"failed": 1} and told.words == "it fails: UNKNOWN: b"
    two, mixed = [request("a"), request("b")], [streamed(1.0, "b"), streamed(1.0, "a"), streamed(2.0, "a"), streamed(3.0, "b")]
    outcomes, (told,) = compared(echoes, mixed, two, STREAM)
    assert outcomes == {"differ": 1} and told.id == "b" and "is 2.0 at [0], expected was 3.0" in told.words
    assert compared(echoes, mixed, [request(""), request("")], STREAM)[0] == {"stream without ids": 1}


def test_a_stream_says_no_code_unless_it_was_asked_to() -> None:
    """Who had sent triton_grpc_error got a status of its upstream; the candidate says the same within its stream."""
    refused = [("grpc-status", "3"), ("grpc-message", "what%20not")]
    assert compared(lambda message: [streamed(error="no")], [], path=STREAM, trailers=refused) == ({"same": 1}, [])
    assert compared(refuses(Code.INVALID_ARG), [streamed(error="no")], path=STREAM) == ({"same": 1}, [])
    outcomes, (told,) = compared(refuses(Code.UNAVAILABLE), [streamed(error="no")], path=STREAM)
    assert outcomes == {"differ": 1} and "it fails otherwise: UNAVAILABLE" in told.words, "it did not answer at all"


def test_a_stream_of_many_requests_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer is looked at once, not once for each request: 20 000 of both held the process that looks on for seconds."""
    looked = 0

    class Id(str):
        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    def counted(messages: Any, data: bytes) -> tuple[str, Any]:
        id, outputs = streamed_of(messages, data)
        return Id(id), outputs

    monkeypatch.setattr(inferences_module, "streamed_of", counted)
    call = SeenCall(STREAM, kept=True, status=0)
    for packed, every in (
        (call.request, [request(str(number)) for number in range(200)]),
        (call.answer, [streamed(1.0, str(number)) for number in range(200)]),
    ):
        packed.body += b"".join(b"\0" + len(one).to_bytes(4, "big") + one for one in every)
        packed.ended = True
    asked = asked_of(pb, call)
    assert [one.id for one in asked] == [str(number) for number in range(200)]
    assert all(isinstance(one.expected, list) and len(one.expected) == 1 for one in asked) and looked <= 1000


def test_what_many_short_things_become_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MOST_MESSAGES", 10)
    ids = [str(number) for number in range(11)]
    requests, answers = [request(id) for id in ids], [streamed(1.0, id) for id in ids]
    for sent, taken in ((answers, requests), (answers, requests[:10]), (answers[:10], requests)):
        assert compared(lambda message: [], sent, taken, STREAM)[0] == {"too large": 1}
    seen, client = Seen(), Peer()
    seen.calls.from_client(PREFACE + client.head(1, *call_head(UNARY, ("grpc-encoding", "x" * 3000))))
    call = seen.calls.call(1)
    assert call is not None and len(call.request.packing) == 32, "kept for each call, and nowhere counted"


def test_calls_that_say_nothing_are_not_compared() -> None:
    def well(message: bytes) -> list[bytes]:
        return [unary()]

    def broken(message: bytes) -> list[bytes]:
        raise KeyError

    for outcome, arguments in (
        ("upstream busy", {"trailers": [("grpc-status", "14")]}),
        ("sequence", {"requests": [request(sequence_id="1")]}),
        ("shared memory", {"requests": [request(shared_memory_region="1")]}),
        ("ended early", {"trailers": [("grpc-status", "3")], "end": False}),
        ("not understood", {"answers": [b"\xff"]}),
        ("not understood", {"answers": []}),
    ):
        assert compared(well, **{"answers": [unary()], **arguments})[0] == {outcome: 1}, arguments  # type: ignore[arg-type]
    assert compared(broken, [unary()])[0] == {"not understood (KeyError)": 1}
    assert compared(well, [unary()], sample=1e-12) == ({}, []), "counted by its name, and not compared"


def test_a_model_is_known_by_the_begin_of_a_call() -> None:
    for name in ("m", "n" * 127, "n" * 300, "ä"):
        body = request(model=name)
        for packed in (b"\0" + len(body).to_bytes(4, "big") + body, b"\1abcd" + gzip.compress(body)):
            assert model_of(Packed(bytearray(packed), "gzip")) == name
    for begin in (b"", b"\1\0\0\0\1\x0a\1m", b"\0\0\0\0\3\x1a\1m"):
        assert model_of(Packed(bytearray(begin))) == "?"


def test_packed_messages_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MOST_UNPACKED", 1000)
    packed = gzip.compress(bytes(5000))
    one = Packed(bytearray(b"\1" + len(packed).to_bytes(4, "big") + packed), "gzip")
    with pytest.raises(ServingError, match="more than 1000 bytes unpacked"):
        messages_of(one)
    one.packing = "br"
    with pytest.raises(ServingError, match="packed by 'br'"):
        messages_of(one)

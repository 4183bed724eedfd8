"""Fuzz targets of the client's side: what a far end says to calls of a remote model, and the messages that it answers with."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from kernel import ServingError
from kernel_grpc.http2 import literal, response
from kernel_grpc.http2.errors import ErrorCode
from kernel_grpc.http2.frames import DATA, PING, frame, goaway, header_frames, rst_stream, settings, window_update
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_remote.answers import Answers
from kernel_remote.calls import Call, Kind, Outcome
from kernel_remote.client import ClientConnection

__all__ = ["ANSWERS", "CALLS", "CALLS_WORDS", "MESSAGES", "answers", "calls"]

CALLED = 3


class _Noted(Call):
    """A call of which is noted what comes."""

    def __init__(self) -> None:
        super().__init__(Kind("/a/B", most=1 << 16), [b"x"])
        self.messages: list[bytes] = []
        self.ends: list[Outcome] = []

    def message(self, data: bytes) -> None:
        self.messages.append(data)

    def concluded(self, outcome: Outcome) -> None:
        self.ends.append(outcome)


def calls(data: bytes) -> str:
    """However what a far end says is cut, each call ends once, with the same, and nothing is left of it."""
    told = [_calls(data, cut) for cut in (len(data) or 1, 1 + len(data) % 11)]
    assert told[0] == told[1], f"{told[0]} whole, {told[1]} in pieces"
    return " ".join(end.message[:30] or str(end.status) for _, end in told[0])


def _calls(data: bytes, cut: int) -> list[tuple[list[bytes], Outcome]]:
    connection = ClientConnection(0.0)
    connection.start()
    connection.receive(settings({}), 0.0)
    made = [_Noted() for _ in range(CALLED)]
    for call in made:
        call.begin(connection, b"", "far")
    for at in range(0, len(data), cut):
        connection.receive(data[at : at + cut], 0.0)
        while connection.later is not None:
            connection.go_on(0.0)
    connection.gone = "has closed the connection"
    connection.ending.lost()
    assert not connection.outgoing.streams
    assert [len(call.ends) for call in made] == [1] * CALLED, "a call has not ended once"
    return [(call.messages, call.ends[0]) for call in made]


def answers(data: bytes) -> str:
    """What is read by the layout of a message before is what the schema says."""
    known = Answers("m")
    for seed in MESSAGES:
        known.read(seed, "far")
    said = []
    for read in (known.read, Answers("m").read):
        try:
            outputs = read(data, "far").outputs
        except (ServingError, DecodeError) as error:
            said.append(f"{type(error).__name__} {error}"[:60])
        else:
            said.append(repr([(one.name, one.datatype, one.array.shape, one.array.tobytes()) for one in outputs]))
    assert said[0] == said[1], f"{said[0]} by the layout, {said[1]} by the schema"
    return said[0][:40]


def _message(**more: Any) -> bytes:
    message = pb.ModelInferResponse(model_name="m", model_version="1", **more)
    for name in "YZ":
        message.outputs.add(name=name, datatype="INT16", shape=[1, 2])
        message.raw_output_contents.append(name.encode() * 4)
    return message.SerializeToString()


def _answer(id: int, size: int = 3, status: bytes = b"0") -> bytes:
    head = response(200, [(b"content-type", b"application/grpc")])
    body = frame(DATA, 0, id, b"\0" + size.to_bytes(4, "big") + bytes(size))
    return header_frames(id, head, end_stream=False) + body + header_frames(id, literal(b"grpc-status", status), end_stream=True)


MESSAGES = (_message(), _message(id="7"), pb.ModelInferResponse(model_name="m").SerializeToString())
CALLS = (
    _answer(1) + _answer(3, 0) + _answer(5, 700, b"13"),
    _answer(1) + frame(PING, 0, 0, bytes(8)) + goaway(3, ErrorCode.NO_ERROR) + _answer(3),
    _answer(3) + rst_stream(1, ErrorCode.REFUSED_STREAM) + window_update(0, 7),
    header_frames(5, response(503, []), end_stream=True) + _answer(1),
)
CALLS_WORDS = (*CALLS, _answer(3), _answer(5), settings({}), rst_stream(5, ErrorCode.CANCEL), goaway(0, ErrorCode.CANCEL))
ANSWERS = (*MESSAGES, _message()[:-3])

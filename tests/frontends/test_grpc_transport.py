"""gRPC without a service: calls in and out, statuses, deadlines, compression, back-pressure, PINGs, the end of a connection."""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import math
import os
import random
import struct
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from frontends.callers import Answer, Caller, FakeTransport, binary, close_loops, message
from frontends.wires import (
    CALM,
    DATA,
    HEADERS,
    NO_ERROR,
    PING,
    PREFACE,
    PROTOCOL,
    REFUSED,
    RST_STREAM,
    SETTINGS_TIMEOUT,
    block,
    data,
    frame,
    ping,
    request,
    settings,
    window_update,
)

from kernel import Account, Code, MappedMemory, ServingError, frontend_options
from kernel.frontends.crowds import PROBES
from kernel_grpc import options
from kernel_grpc.http2.connection import MAX_STREAMS
from kernel_grpc.http2.floods import USELESS_BURST
from kernel_grpc.http2.outgoing import CHUNK
from kernel_grpc.http2.reader import A_TURNS_FRAMES
from kernel_grpc.rpc import assembly, compression, lifetime, protocol, server
from kernel_grpc.rpc.assembly import (
    ALIGNMENT,
    BELIEVED,
    LARGE,
    MAX_MESSAGE,
    RESERVE,
    Assembly,
    MessageError,
    MessageMemory,
)
from kernel_grpc.rpc.calls import SMALL, Call
from kernel_grpc.rpc.compression import ON_LOOP, PART, PORTION, PORTION_ON_LOOP, SEVERAL, unpacked
from kernel_grpc.rpc.deadlines import AT_ONCE as TOLD_AT_ONCE
from kernel_grpc.rpc.deadlines import FINENESS, TICK, Deadlines
from kernel_grpc.rpc.incoming import MESSAGES
from kernel_grpc.rpc.keepalive import IDLE_INTERVAL, Action, Keepalive, Pulse
from kernel_grpc.rpc.lifetime import GOODBYE, HANDSHAKE, LINGER, STALLED
from kernel_grpc.rpc.limits import Limits
from kernel_grpc.rpc.meanings import read_timeout
from kernel_grpc.rpc.metadata import Metadata
from kernel_grpc.rpc.patience import HOG, MAX_WAITING, MOST_WAITING, PATIENCE, SOON
from kernel_grpc.rpc.status import MAX_MESSAGE as MAX_TEXT
from kernel_grpc.rpc.status import STATUS_OF, escaped, shortened
from kernel_grpc.rpc.turns import FREE_READS, LITTLE, MOST_SECONDS, READ_SIZE, TURN, TURNS_SECONDS, Turns


@pytest.fixture(autouse=True)
def loops() -> Iterator[None]:
    yield
    close_loops()


@pytest.fixture
def caller() -> Caller:
    return Caller()


def outcome(answer: Answer) -> tuple[int | None, str, list[bytes]]:
    assert answer.ended
    return answer.status, answer.text, [payload for _, payload in answer.messages]


def test_a_connection_that_has_gone_leaves_nothing_to_the_garbage_collector(caller: Caller) -> None:
    caller.call(payload=b"x")
    caller.call(payload=b"x" * 100_000)
    caller.call(payload=gzip.compress(b"x"), grpc_encoding="gzip")
    chat = caller.begin("Chat")
    caller.send(data(chat, message(b"a")))
    caller.begin("Keep", **{"grpc-timeout": "1H"})
    caller.service.calls.clear()
    caller.service.chats.clear()
    gc.collect()
    gc.disable()
    try:
        gone = [weakref.ref(caller.peer), weakref.ref(caller.peer.http), weakref.ref(caller.peer.outgoing)]
        caller.transport.abort()
        del caller.transport.peer, caller.peer
        assert [ref() for ref in gone] == [None, None, None]
        assert not [one for one in gc.get_objects() if type(one) is Call]
    finally:
        gc.enable()


# --- unary calls


def test_unary(caller: Caller) -> None:
    answer = caller.call(payload=b"hello")
    assert outcome(answer) == (0, "", [b"hello"])
    assert answer.head == {":status": "200", "content-type": "application/grpc"}
    assert answer.trailers == {"grpc-status": "0"} and answer.frames == [HEADERS, DATA, HEADERS]
    assert type(caller.service.messages[0]) is bytes and not caller.peer.http.outgoing.streams
    assert caller.service.calls[0].done and caller.service.calls[0].request is None


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, 65_000])
def test_unary_of_any_size(caller: Caller, size: int) -> None:
    payload = os.urandom(size)
    assert outcome(caller.call(payload=payload)) == (0, "", [payload])
    assert type(caller.service.messages[0]) is (bytes if size < LARGE else MessageMemory)


def test_unary_in_pieces() -> None:
    body = message(b"a" * 1000)
    whole = request(1) + data(1, body[:3]) + data(1, body[3:700]) + data(1, body[700:]) + data(1, end=True)
    chance = random.Random(3)
    for _ in range(50):
        caller = Caller()
        caller.answers[1] = Answer()
        cuts = sorted(chance.sample(range(len(whole)), 8))
        for a, b in zip([0, *cuts], [*cuts, len(whole)]):
            caller.send(whole[a:b])
        assert outcome(caller.answers[1]) == (0, "", [b"a" * 1000])


WAYS: dict[str, Callable[[Caller, Call, bytes], None]] = {
    "reply": lambda caller, call, payload: call.reply(payload),
    "reply with pieces": lambda caller, call, payload: call.reply([payload[:3], payload[3:]]),
    "send and finish": lambda caller, call, payload: (call.send(payload), call.finish()),  # type: ignore[func-returns-value]
    "the long way": lambda caller, call, payload: long_way(caller, call.reply, payload),
}


def long_way(caller: Caller, send: Callable[[bytes], None], payload: bytes) -> None:
    """Send while the short ways are closed, as they are before a header block that has to say something else first."""
    outgoing = caller.peer.http.outgoing
    outgoing.long_way = True
    send(payload)
    outgoing.long_way = False


@pytest.mark.parametrize("size", [0, 5, SMALL])
def test_all_ways_of_an_answer_send_the_same_frames(caller: Caller, size: int) -> None:
    """`reply` ~ `send` and `finish` ~ `send_pieces`: the first two write as one piece what the last one would send."""
    outgoing = caller.peer.http.outgoing
    payload = os.urandom(size)
    sent = []
    for way in WAYS.values():
        caller.call("Keep", payload=b"x")
        call, window, counted = caller.service.calls[-1], outgoing.send_window, outgoing.sent
        caller.frames.clear()
        way(caller, call, payload)
        caller.wait()
        assert call.done and call.request is None and not outgoing.streams
        assert outgoing.send_window == window - size - 5 and outgoing.sent > counted
        sent.append([(frame.kind, frame.flags, frame.payload) for frame in caller.frames])
        caller.send(window_update(0, size + 5))
    assert len(sent[0]) == 3 and all(other == sent[0] for other in sent)


def test_all_ways_of_a_streams_message_send_the_same_frames(caller: Caller) -> None:
    id = caller.begin("Chat")
    call, outgoing = caller.service.chats[0].call, caller.peer.http.outgoing
    ways = (call.send, lambda payload: long_way(caller, call.send, payload))
    windows = []
    for first in ways:
        for payload in (b"", b"x" * 700):
            first(payload)
        windows.append((outgoing.send_window, call.send_window))
    caller.wait()
    frames = [(frame.kind, frame.flags, frame.payload) for frame in caller.frames if frame.stream == id]
    assert [kind for kind, *_ in frames] == [HEADERS, DATA, DATA, DATA, DATA] and frames[1:3] == frames[3:]
    assert {before - after for before, after in zip(*windows)} == {710}


@pytest.mark.parametrize("size", [0, 1000, LARGE - 1])
def test_a_message_means_the_same_whole_and_in_pieces(size: int) -> None:
    """`Call.received` ~ `Incoming.received`, also where the method fails."""
    body = message(bytes(size))
    for name, status in (("Method", 0), ("Fail", 13)):
        told = []
        for pieces in ([body], [body[:3], body[3:]], [body, b""]):
            caller = Caller()
            id = caller.begin(name)
            for piece in pieces:
                caller.send(data(id, piece, end=piece is pieces[-1]))
            assert type(caller.service.messages[0]) is bytes and len(caller.service.messages[0]) == size
            told.append(outcome(caller.answers[id]))
        assert told[0] == told[1] == told[2] and told[0][0] == status


def test_all_ways_to_receive_a_long_message_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Bodies.data` into the call's sink ~ `deliver` to `received` ~ straight from the transport, `space` and `filled`."""
    body = message(os.urandom(100_000))
    received, counted = Call.received, Counter[str]()
    told = []
    for way, size in (("sink", 20_000), ("deliver", 20_000), ("straight", len(body) - 1)):
        caller = Caller()
        id = caller.begin("Keep")
        call, bodies = caller.peer.http.outgoing.streams[id], caller.peer.http.bodies

        def count(self: Call, *args: Any, way: str = way) -> int | None:
            counted[way] += 1
            return received(self, *args)

        monkeypatch.setattr(Call, "received", count)
        for at in range(0, len(body), size):
            piece = data(id, body[at : at + size], end=at + size >= len(body))
            for part in (piece[:1000], piece[1000:]) if way == "straight" else (piece,):
                caller.send(part)
            if way == "deliver":
                call.sink = None
        assert type(caller.service.messages[0]) is MessageMemory
        told.append((bytes(caller.service.messages[0].data), call.recv_window, bodies.recv_window))
    assert told[0] == told[1] == told[2] and told[0][0] == body[5:]
    assert counted == {"sink": 3, "deliver": 6, "straight": 2}  # what comes with SMALL is counted


def test_one_write_for_what_one_read_has_brought_about(caller: Caller) -> None:
    before = caller.transport.writes
    caller.answers.update({1: Answer(), 3: Answer()})
    caller.send(request(1) + data(1, message(b"a"), end=True) + request(3) + data(3, message(b"b"), end=True))
    assert caller.transport.writes == before + 1
    assert [answer.status for answer in caller.answers.values()] == [0, 0]


def test_one_write_for_the_answers_of_a_turn(caller: Caller) -> None:
    for _ in range(4):
        caller.call("Keep")
    before = caller.transport.writes
    for call in caller.service.calls[:3]:
        call.reply(b"x")
    assert caller.transport.writes == before
    caller.wait()
    assert caller.transport.writes == before + 1
    caller.service.calls[3].reply(b"x")  # the last one waits for nobody
    assert caller.transport.writes == before + 2


def test_errors_have_their_status_and_words(caller: Caller) -> None:
    for code, status in STATUS_OF.items():
        answer = caller.call("Keep")
        caller.service.calls[-1].fail(ServingError(code, "so und ähnlich: 100 %\n"))
        caller.read()
        assert answer.status == status and answer.frames == [HEADERS]
        assert answer.head["grpc-message"] == "so und %C3%A4hnlich: 100 %25%0A"
    assert STATUS_OF[Code.UNSUPPORTED] == 12 and set(STATUS_OF) == set(Code)


def test_a_call_is_answered_once(caller: Caller) -> None:
    answer = caller.call("Keep")
    call = caller.service.calls[0]
    call.reply(b"first")
    call.reply(b"second")
    call.send(b"third")
    call.finish(5, "no")
    call.fail(ServingError(Code.INTERNAL, "no"))
    caller.wait()
    assert outcome(answer) == (0, "", [b"first"]) and not caller.kernel.cancelled


def test_what_a_handler_raises_is_internal(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    answer = caller.call("Fail")
    assert outcome(answer) == (13, "the method '/pkg.Svc/Fail' has failed: ValueError: oops", [])
    assert "has failed" in caplog.text and "Traceback" in caplog.text
    assert len(caller.kernel.cancelled) == 1  # the request that it had begun


def test_answer_in_pieces(caller: Caller) -> None:
    answer = caller.call("Keep")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    caller.service.calls[0].reply([b"head", memoryview(array)])
    caller.read()
    assert outcome(answer) == (0, "", [b"head" + array.tobytes()])


def test_large_answer_is_not_joined(caller: Caller) -> None:
    caller.send(settings((4, 2**30)) + window_update(0, 2**30))
    answer = caller.call("Keep")
    before = caller.transport.writes
    payload = os.urandom(3_000_000)
    caller.service.calls[0].reply([b"abc", memoryview(payload)])
    caller.read()
    assert outcome(answer) == (0, "", [b"abc" + payload])
    assert caller.transport.writes - before == math.ceil(3_000_003 / CHUNK)


def test_middle_of_a_long_message_goes_straight_to_its_memory(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    received = Call.received

    def noted(self: Call, data: Any, start: int, stop: int, ended: bool) -> int | None:
        told.append(stop - start)
        return received(self, data, start, stop, ended)

    monkeypatch.setattr(Call, "received", noted)
    payload = message(os.urandom(100_000))
    id = caller.begin()
    for at in range(0, len(payload), 10_000):
        caller.send(data(id, payload[at : at + 10_000], end=at + 10_000 >= len(payload)))
    assert told == [10_000, 10_000, 5]  # the frame with the prefix, what comes with SMALL, and the end
    caller.send(window_update(0, 100_000) + window_update(id, 100_000))
    assert outcome(caller.answers[id]) == (0, "", [payload[5:]])


def test_early_answer_stops_the_client(caller: Caller) -> None:
    id = caller.begin("Nope")
    answer = caller.answers[id]
    assert (answer.status, answer.reset) == (12, NO_ERROR)
    caller.send(data(id, b"x" * 100, end=True))
    assert caller.goaway() is None


def test_window_of_the_client_holds_up_one_call_only(caller: Caller) -> None:
    caller.send(settings((4, 3)))
    answer = caller.call(payload=b"hello")
    assert answer.body == message(b"hello")[:3] and not answer.ended
    caller.send(settings((4, 100)))
    assert outcome(answer) == (0, "", [b"hello"])
    assert outcome(caller.call(payload=b"other")) == (0, "", [b"other"])


# --- what is refused


@pytest.mark.parametrize(
    ("fields", "http", "status", "words"),
    [
        ({":method": "GET"}, "405", 13, "the method is GET, not POST"),
        ({"content-type": "application/json"}, "415", 13, "the content-type is 'application/json', not application/grpc"),
        ({"content-type": "application/grpc-web"}, "415", 13, "the content-type is 'application/grpc-web', not application/grpc"),
        ({":path": "/pkg.Svc/Nope"}, "200", 12, "unknown method '/pkg.Svc/Nope'"),
        ({"grpc-encoding": "br"}, "200", 12, "grpc-encoding is 'br'; there are gzip, deflate and identity"),
        ({"grpc-timeout": "1s"}, "200", 13, "grpc-timeout is '1s', not up to 8 digits and one of HMSmun"),
        ({"grpc-timeout": "123456789S"}, "200", 13, "grpc-timeout is '123456789S', not up to 8 digits and one of HMSmun"),
        ({"x-bin": "?"}, "200", 13, "the metadata 'x-bin' is no base64: Only base64 data is allowed"),
        ({"x": "a" * 20_000}, "431", 8, "a header list of 20"),
    ],
)
def test_refused_requests(caller: Caller, fields: dict[str, str], http: str, status: int, words: str) -> None:
    answer = caller.call(**fields)
    assert (answer.head[":status"], answer.status) == (http, status) and answer.text.startswith(words)
    assert answer.frames[0] == HEADERS and answer.ended and answer.head["content-type"] == "application/grpc"
    assert not caller.service.calls and outcome(caller.call(payload=b"next")) == (0, "", [b"next"])
    if http == "405":
        assert answer.head["allow"] == "POST"
    if "grpc-encoding" in fields:
        assert answer.head["grpc-accept-encoding"] == "identity,deflate,gzip"


@pytest.mark.parametrize(
    "fields",
    [
        {"content-type": "application/grpc+proto"},
        {"content-type": "application/grpc;charset=utf-8"},
        {"content-type": "Application/gRPC"},
        {"content-type": ""},
        {"te": ""},
        {"grpc-encoding": "identity"},
        {"grpc-timeout": "99999999H"},
    ],
)
def test_requests_that_are_let_pass(caller: Caller, fields: dict[str, str]) -> None:
    assert outcome(caller.call(payload=b"x", **fields)) == (0, "", [b"x"])


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (b"", 12, "no message; '/pkg.Svc/Method' takes one"),
        (message(b"a") + message(b"b"), 12, "more than one message, which '/pkg.Svc/Method' does not take"),
        (b"\0\0\0", 13, "the request is cut off within a message, behind 3 of 5 bytes before it"),
        (b"\0\0\0\0\5ab", 13, "the request is cut off within a message, behind 2 of 5 bytes"),
        (message(b"a") + b"\0", 13, "the request is cut off within a message, behind 1 of 5 bytes before it"),
        (b"\2\0\0\0\0", 13, "a message with the compression flag 2; it is 0 or 1"),
        (b"\0\x80\0\0\0", 8, f"a message of 2147483648 bytes; the largest that is taken has {MAX_MESSAGE}"),
        (b"\1\0\0\0\1a", 13, "a compressed message, but no grpc-encoding that says how"),
    ],
)
def test_wrong_messages(caller: Caller, raw: bytes, status: int, words: str) -> None:
    assert outcome(caller.call(raw=raw)) == (status, words, []) and not caller.service.calls
    assert not caller.peer.http.outgoing.streams and caller.goaway() is None


def test_call_without_data(caller: Caller) -> None:
    caller.answers[1] = Answer()
    caller.send(request(1, end=True))
    assert caller.answers[1].status == 12 and "no message" in caller.answers[1].text


def test_malformed_request_resets_its_stream(caller: Caller) -> None:
    id = caller.begin(connection="close")
    assert caller.answers[id].reset == PROTOCOL and caller.answers[id].frames == [RST_STREAM]


def test_restricted_methods() -> None:
    caller = Caller(restrictions={"inference": ("Admin", "secret")})
    refused = (14, "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'", [])
    assert outcome(caller.call()) == refused
    assert outcome(caller.call(**{"triton-grpc-protocol-admin": "wrong"})) == refused
    assert outcome(caller.call(payload=b"x", **{"triton-grpc-protocol-admin": "secret"})) == (0, "", [b"x"])
    assert caller.call("Chat").text == refused[1] and not caller.service.chats
    assert not caller.call("Keep").ended and len(caller.service.calls) == 2


# --- metadata


def test_metadata(caller: Caller) -> None:
    caller.call(**{"x-a": "1", "x-bin": binary(b"\0\xff\x01") + "," + binary(b"two"), "user-agent": "me", "grpc-timeout": "1S"})
    metadata = caller.service.calls[0].metadata
    assert list(metadata) == [("x-a", "1"), ("x-bin", b"\0\xff\x01"), ("x-bin", b"two"), ("user-agent", "me")]
    assert (metadata.get("x-bin"), metadata.get("nope"), metadata.get("nope", "-")) == (b"\0\xff\x01", None, "-")
    assert caller.service.calls[0].forwarded == ()


def test_metadata_is_shared_between_calls_that_repeat_it(caller: Caller) -> None:
    for timeout in ("1S", "2S", "2S"):
        caller.call(**{"x-a": "1", "grpc-timeout": timeout})
    first, second, third = caller.service.calls
    assert second.metadata is third.metadata and second.meaning is third.meaning
    assert first.metadata == second.metadata == Metadata([("x-a", "1")])


@pytest.mark.parametrize(("value", "text"), [("a", "a"), ("\xc3\xa4", "ä"), ("\xe4", "ä"), ("", "")])
def test_metadata_of_any_bytes(caller: Caller, value: str, text: str) -> None:
    caller.answers[1] = Answer()
    fields = [(":method", "POST"), (":scheme", "http"), (":path", "/pkg.Svc/Method"), ("x", value)]
    caller.send(frame(HEADERS, 4, 1, block(fields)) + data(1, message(b""), end=True))
    assert caller.service.calls[0].metadata == Metadata([("x", text)])


@pytest.mark.parametrize("value", [" lead", "trail ", " both  ", " ", "\ta\t"])
def test_blanks_around_metadata_are_part_of_it(value: str) -> None:
    """As the reference: a client may send them, and a model gets what was sent."""
    caller = Caller(forward_pattern="^x-")
    for _ in range(2):  # also where the block is known
        assert caller.call(**{"x-a": value}).status == 0
    assert [call.metadata for call in caller.service.calls] == [Metadata([("x-a", value)])] * 2
    assert [call.forwarded for call in caller.service.calls] == [(("x-a", value),)] * 2


def test_forwarded_metadata() -> None:
    caller = Caller(forward_pattern="^x-|agent")
    caller.call(**{"x-a": "1", "y": "2", "user-agent": "me", "x-bin": binary(b"ab\0c"), "priority": "7"})
    assert caller.service.calls[0].forwarded == (("x-a", "1"), ("user-agent", "me"), ("x-bin", "ab"))


@pytest.mark.parametrize(
    ("pattern", "forwarded"), [("oo", ("foo", "xfoo")), ("FO", ("foo", "xfoo")), ("(?-i)FO", ()), ("^f", ("foo",))]
)
def test_forward_pattern(pattern: str, forwarded: tuple[str, ...]) -> None:
    """As the reference answers to these."""
    caller = Caller(forward_pattern=pattern)
    caller.call(foo="1", xfoo="2", bar="3")
    assert tuple(name for name, _ in caller.service.calls[0].forwarded) == forwarded


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("4m", 0.004), ("5u", 5e-6), ("6n", 6e-9), ("0S", 0), ("99999999S", 99999999)],
)
def test_timeouts(text: str, seconds: float) -> None:
    assert read_timeout(text.encode()) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "S", "1s", "-1S", "1.5S", "123456789S", "1S ", "١S"])
def test_timeouts_that_are_none(text: str) -> None:
    assert read_timeout(text.encode()) is None


# --- deadlines and cancellation


def test_deadline_ends_a_call_and_its_request(caller: Caller) -> None:
    answer = caller.call("Keep", **{"grpc-timeout": "100m"})
    call = caller.service.calls[0]
    assert call.deadline == pytest.approx(1000.1)
    wanted = call.request
    caller.wait(0.09)
    assert not answer.ended
    caller.wait(0.02)
    assert outcome(answer) == (4, "Deadline Exceeded", []) and caller.kernel.cancelled == [wanted] and call.done
    call.reply(b"late")
    caller.wait()
    assert answer.messages == []


def test_deadline_of_a_request_that_is_still_coming(caller: Caller) -> None:
    id = caller.begin(**{"grpc-timeout": "1S"})
    caller.send(data(id, message(b"hello")[:7]))
    caller.wait(1.01)
    assert caller.answers[id].status == 4 and caller.answers[id].reset == NO_ERROR and not caller.service.calls


def test_deadline_that_was_met_leaves_nothing_behind(caller: Caller) -> None:
    assert outcome(caller.call(payload=b"x", **{"grpc-timeout": "1S"})) == (0, "", [b"x"])
    assert not any(caller.server.deadlines._calls.values())
    caller.wait(2)


def test_deadline_of_a_stream(caller: Caller) -> None:
    id = caller.begin("Chat", **{"grpc-timeout": "1S"})
    caller.service.chats[0].call.send(b"one")
    caller.wait(1.02)
    answer = caller.answers[id]
    assert answer.status == 4 and answer.messages == [(0, b"one")] and caller.service.chats[0].cancelled == 1


def test_client_cancels(caller: Caller) -> None:
    id = caller.begin("Keep")
    caller.send(data(id, message(b""), end=True))
    call = caller.service.calls[0]
    wanted = call.request
    caller.cancel(id)
    assert caller.kernel.cancelled == [wanted] and call.done and call.request is None
    call.reply(b"late")
    caller.wait()
    assert caller.answers[id].frames == [] and not caller.peer.http.outgoing.streams


def test_an_answer_to_cancelling_goes_nowhere(caller: Caller) -> None:
    """The kernel answers a cancelled request at once, through the same call."""
    id = caller.begin("Keep", **{"grpc-timeout": "1S"})
    caller.send(data(id, message(b""), end=True))
    call = caller.service.calls[0]
    caller.kernel.on_cancel = lambda request: call.fail(ServingError(Code.CANCELLED, "cancelled"))
    caller.cancel(id)
    caller.call("Keep", **{"grpc-timeout": "1S"})
    call = caller.service.calls[1]
    caller.wait(1.1)
    assert caller.answers[id].frames == [] and caller.answers[id + 2].status == 4
    assert not any(caller.server.deadlines._calls.values())


def test_lost_connection_cancels_everything(caller: Caller) -> None:
    caller.call("Keep")
    caller.begin("Chat")
    caller.begin()
    caller.peer.connection_lost(None)
    assert len(caller.kernel.cancelled) == 1 and caller.service.chats[0].cancelled == 1
    assert not caller.server.connections and all(call.done for call in caller.service.calls)
    caller.service.calls[0].reply(b"late")
    caller.service.chats[0].call.send(b"late")
    caller.wait()


def test_failure_of_the_connection_cancels_everything(caller: Caller) -> None:
    caller.call("Keep")
    caller.send(frame(PING, 0, 1, bytes(8)))
    assert len(caller.kernel.cancelled) == 1 and caller.goaway() == (1, PROTOCOL, "PING on stream 1; it belongs on stream 0")
    assert caller.transport.eof and not caller.transport.closed


def test_a_canceller_that_fails_harms_nobody(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    caller.call("Keep")
    caller.begin("Chat")

    def fail(request: Any) -> None:
        raise ValueError("oops")

    caller.kernel.on_cancel = fail
    caller.peer.connection_lost(None)
    assert caller.service.chats[0].cancelled == 1 and "can't be cancelled" in caplog.text


# --- the timer of deadlines


def test_deadlines_are_told_in_time_and_never_before() -> None:
    armed: list[float] = []
    deadlines = Deadlines(armed.append)
    now = 1000.0
    told: list[float] = []

    class Waiting:
        def __init__(self, deadline: float) -> None:
            self.deadline = deadline

        def expired(self) -> None:
            assert self.deadline <= now
            told.append(self.deadline)

    chance = random.Random(1)
    due = sorted(now + 10 ** chance.uniform(-4, 5) for _ in range(2000))
    for deadline in due:
        moment = deadlines.add(Waiting(deadline), deadline, now)
        assert deadline < moment <= deadline + max(TICK, (deadline - now) * 2 / FINENESS)
    gone = Waiting(1000.5)
    deadlines.discard(gone, deadlines.add(gone, 1000.5, now))
    deadlines.discard(gone, 5.0)
    while len(told) < len(due):
        now += armed[-1] + 1e-9
        deadlines.expire(now)
    assert sorted(told) == due and len(armed) < 5000


def test_deadlines_take_no_memory_for_calls_that_were_in_time() -> None:
    deadlines = Deadlines(lambda delay: None)
    now = 1000.0
    for _ in range(200_000):
        now += 0.001
        deadlines.discard(deadlines, deadlines.add(deadlines, now + 60, now))
        if int(now * 1000) % 100 == 0:
            deadlines.expire(now)
    assert len(deadlines._moments) == len(deadlines._calls) < 2 * FINENESS + 2


# --- streaming calls


def test_stream(caller: Caller) -> None:
    id = caller.begin("Chat")
    chat, answer = caller.service.chats[0], caller.answers[id]
    caller.send(data(id, message(b"a") + message(b"b" * 20_000)[:100]))
    chat.call.send(b"one")
    chat.call.send(b"two")
    caller.wait()
    assert chat.messages == [b"a"] and answer.messages == [(0, b"one"), (0, b"two")]
    caller.send(data(id, message(b"b" * 20_000)[100:] + message(b""), end=True))
    assert [bytes(got) for got in chat.messages] == [b"a", b"b" * 20_000, b""] and chat.closed == 1
    assert outcome(answer) == (0, "", [b"one", b"two"]) and answer.frames == [HEADERS, DATA, DATA, HEADERS]


def test_stream_without_messages(caller: Caller) -> None:
    id = caller.begin("Chat")
    caller.send(data(id, end=True))
    assert outcome(caller.answers[id]) == (0, "", []) and caller.answers[id].frames == [HEADERS]


def test_stream_that_fails(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    id = caller.begin("Chat")
    caller.send(data(id, message(b"a") + message(b"boom") + message(b"c")))
    chat, answer = caller.service.chats[0], caller.answers[id]
    assert chat.messages == [b"a", b"boom"] and chat.cancelled == 1 and answer.reset == NO_ERROR
    assert outcome(answer) == (13, "the method '/pkg.Svc/Chat' has failed: ValueError: boom", [])


def test_stream_that_is_cut_off(caller: Caller) -> None:
    id = caller.begin("Chat")
    caller.send(data(id, message(b"abc")[:6], end=True))
    assert caller.answers[id].status == 13 and caller.service.chats[0].cancelled == 1 and not caller.service.chats[0].closed


def test_held_stream(caller: Caller) -> None:
    id = caller.begin("Chat")
    chat = caller.service.chats[0]
    chat.hold_after = 2
    caller.send(data(id, b"".join(message(b"%d" % k) for k in range(5))) + data(id, message(b"5"), end=True))
    assert chat.messages == [b"0", b"1"] and not chat.closed
    chat.hold_after = 3
    chat.call.unhold()
    assert chat.messages == [b"0", b"1", b"2"]
    chat.call.unhold()
    assert chat.messages == [b"%d" % k for k in range(6)] and chat.closed == 1


def test_hold_and_unhold_within_a_message(caller: Caller) -> None:
    id = caller.begin("Chat")
    chat = caller.service.chats[0]
    take = chat.message

    def message_(data: Any) -> None:
        take(data)
        chat.call.hold()
        chat.call.unhold()

    chat.message = message_  # type: ignore[method-assign]
    chat.hold_after = 1
    caller.send(data(id, message(b"0") + message(b"1")))
    chat.call.hold()
    caller.send(data(id, message(b"2") + message(b"3")) + data(id, message(b"4"), end=True))
    chat.call.unhold()
    assert chat.messages == [b"%d" % k for k in range(5)] and chat.closed == 1


def test_slow_client_is_noticed(caller: Caller) -> None:
    caller.begin("Chat")
    call = caller.service.chats[0].call
    rooms: list[int] = []
    call.on_writable = lambda: rooms.append(call.queued)
    count = 0
    while call.writable:
        call.send(bytes(100_000))
        count += 1
    assert 8 < count < 15 and not rooms
    caller.send(window_update(0, 2**24) + window_update(1, 2**24))
    assert call.writable and rooms and rooms[0] < 2**19
    caller.wait()
    assert len(caller.answers[1].messages) == count


def test_client_that_lets_too_much_wait_is_cut_off(caller: Caller) -> None:
    caller.begin("Chat")
    chat = caller.service.chats[0]
    payload = memoryview(bytes(2**24))
    for _ in range(MAX_WAITING // 2**24 + 2):
        chat.call.send([payload])
    caller.wait(PATIENCE - 0.1)
    chat.call.send([payload])
    assert not chat.cancelled  # it may not have had the time
    caller.wait(0.2)
    chat.call.send([payload])
    caller.wait()
    assert caller.answers[1].status == 8 and "bytes wait" in caller.answers[1].text
    assert chat.cancelled == 1 and caller.peer.http.outgoing.queued == 0


def test_client_that_reads_slower_than_it_is_written_to_is_waited_for(caller: Caller) -> None:
    """Though not without end."""
    caller.begin("Chat")
    chat = caller.service.chats[0]
    payload = memoryview(bytes(2**24))
    sent = 0
    while not chat.cancelled:
        chat.call.send([payload])
        sent += 1
        assert sent < 100
        if not chat.cancelled:
            caller.wait(PATIENCE / 2)
            caller.send(window_update(0, 10_000) + window_update(1, 10_000))
    assert (MOST_WAITING >> 24) < sent <= (MOST_WAITING >> 24) + 3
    caller.wait()
    assert caller.answers[1].status == 8 and "bytes wait" in caller.answers[1].text


def waiting(caller: Caller, size: int, count: int = 1) -> list[Answer]:
    """Have answers of that size wait for a client that keeps its windows closed."""
    answers = [caller.call("Keep") for _ in range(count)]
    for call in caller.service.calls[-count:]:
        call.reply([memoryview(bytes(size))])
        caller.wait()
    return answers


def test_what_waits_is_counted_until_it_is_taken_or_nobody_wants_it(caller: Caller) -> None:
    caller.send(settings((4, 0)))
    first, second = waiting(caller, 100_000, 2)
    used = caller.kernel.memory.send
    assert used.used == caller.peer.http.outgoing.queued == 2 * 100_005
    caller.send(window_update(1, 50_000))
    assert used.used == caller.peer.http.outgoing.queued == 2 * 100_005 - 50_000
    caller.cancel(1)
    assert used.used == 100_005
    caller.transport.abort()
    assert used.used == 0 and second.status is None and not first.ended


def test_with_much_for_a_client_to_read_its_further_inferences_wait() -> None:
    """Whole ones and those that have begun, streams among them; each in its turn, and nobody else's."""
    caller = Caller(limits=Limits(queue=1_000_000))
    begun, chat = caller.begin(), caller.begin("Chat")
    caller.send(settings((4, 0)))
    waiting(caller, 1_100_000)
    answer = caller.call(payload=b"whole")
    caller.send(data(begun, message(b"begun"), end=True))
    caller.send(data(chat, message(b"hello")))
    caller.wait()
    service = caller.service
    assert answer.status is None and len(service.messages) == 1 and not service.chats[0].messages
    refused = caller.call("Keep")
    assert (refused.status, refused.text) == (8, "more than 1000000 bytes wait for this client")
    other = Caller(like=caller)
    assert other.call(payload=b"x").status == 0
    caller.send(window_update(0, 2**24) + window_update(5, 599_000))
    caller.wait()
    assert len(service.messages) == 2  # there is more than half
    caller.send(window_update(5, 2000) + settings((4, 1000)))
    caller.wait()
    assert service.messages[2:] == [b"whole", b"begun"] and service.chats[0].messages == [b"hello"]
    assert answer.status == caller.answers[begun].status == 0 and caller.call("Keep").status is None


def test_calls_that_wait_for_their_client_to_read_may_end() -> None:
    """It cancels them, their time is over, or it has gone; or another one has filled what may wait."""
    caller = Caller(limits=Limits(queue=1_000_000))
    caller.send(settings((4, 0)))
    waiting(caller, 1_100_000)
    brake = caller.peer.brake
    caller.call(payload=b"cancelled")
    late = caller.call(payload=b"late", **{"grpc-timeout": "1S"})
    caller.begin()
    assert len(brake.waiting) == 2
    caller.cancel(3)
    caller.wait(1.1)
    assert not brake.waiting and late.status == 4
    answers = [caller.call(payload=bytes(700_000)) for _ in range(4)]
    caller.send(window_update(0, 2**24) + window_update(1, 2**24))
    caller.wait(0.1)
    assert len(brake.waiting) == 2 and [answer.status for answer in answers] == [None] * 4
    caller.transport.abort()
    caller.wait()
    assert not brake.waiting and len(caller.service.messages) == 3


def test_who_lets_twice_as_much_wait_and_reads_nothing_gets_no_answers_and_is_let_go() -> None:
    """Of calls that had begun before; as long as it reads, they are answered."""
    caller = Caller(limits=Limits(queue=1_000_000))
    caller.send(settings((4, 0)))
    answers = [caller.call("Keep") for _ in range(5)]

    def reply(which: int) -> int | None:
        caller.service.calls[which].reply([memoryview(bytes(1_100_000))])
        caller.wait()
        return answers[which].status

    assert [reply(k) for k in range(2)] == [None] * 2
    caller.wait(SOON - 0.5)
    caller.send(window_update(0, 1000) + window_update(1, 10))
    assert reply(2) is None
    caller.wait(SOON + 0.1)
    assert reply(3) == 8 and "has read nothing for 2 s; 2000000 are kept for it then" in answers[3].text
    caller.send(window_update(1, 10))
    assert reply(4) is None
    caller.wait(PATIENCE - 0.5)
    assert caller.goaway() is None
    caller.wait(2)
    assert caller.goaway() is not None and caller.kernel.memory.send.used == 0


def test_too_much_for_all_refuses_new_inferences_and_ends_who_does_not_read(caller: Caller) -> None:
    """The client whose answers fill the memory is let go after a few seconds, not those that read."""
    caller.kernel.memory.send.limit = 2_000_000
    caller.send(settings((4, 0)))
    waiting(caller, 2_000_000)
    other = Caller(like=caller)
    answer = other.call(payload=b"x")
    assert answer.status == 8 and "that --memory-limit-send allows" in answer.text
    assert other.call("None").status == 12
    caller.wait(PATIENCE - 1)
    assert caller.goaway() is None
    caller.wait(2)
    last, code, text = caller.goaway() or (0, 0, "")
    assert code == CALM and last and "nothing of the 2000005 bytes that wait was read" in text
    assert other.call(payload=b"x").status == 0


def test_a_client_that_reads_nothing_has_little_kept(caller: Caller) -> None:
    caller.send(settings((4, 0)))
    caller.wait(PATIENCE + 1.5)
    answers = [caller.call("Keep") for _ in range(5)]

    def reply(which: int) -> int | None:
        caller.service.calls[which].reply([memoryview(bytes(40_000_000))])
        caller.wait()
        return answers[which].status

    assert [reply(k) for k in range(2)] == [None] * 2
    caller.wait(1)
    assert reply(2) is None
    caller.wait(PATIENCE + 1)
    assert reply(3) == 8 and f"has read nothing for 8 s; {MAX_WAITING} are kept for it then" in answers[3].text
    caller.send(window_update(1, 1000))
    assert reply(4) is None


def test_a_client_that_lets_much_wait_and_reads_nothing_is_let_go(caller: Caller) -> None:
    caller.send(settings((4, 0)))
    waiting(caller, 70_000_000)
    caller.wait(HOG - 2)
    assert caller.goaway() is None
    caller.wait(4)
    assert "nothing of the 70000005 bytes that wait was read for 30 seconds" in (caller.goaway() or (0, 0, ""))[2]
    assert caller.kernel.memory.send.used == 0


def test_a_window_that_stays_closed_ends_the_connection() -> None:
    caller = Caller(limits=Limits(send_timeout=100))
    caller.send(settings((4, 0)))
    caller.wait(500)  # nothing waits
    waiting(caller, 1000)
    for _ in range(3):
        caller.wait(90)
        caller.send(window_update(1, 1))
    assert caller.goaway() is None
    caller.wait(102)
    assert (caller.goaway() or (0, 0, ""))[1:] == (CALM, "nothing of the 1002 bytes that wait was read for 100 seconds")
    assert caller.kernel.memory.send.used == 0


def test_a_client_that_reads_too_slowly_for_what_waits() -> None:
    caller = Caller(limits=Limits(least_rate=1000))
    caller.send(settings((4, 0)))
    waiting(caller, 2_000_000)
    for _ in range(12):
        caller.wait(10)
        caller.send(window_update(0, 13_000) + window_update(1, 13_000))
    assert caller.goaway() is None
    for _ in range(14):
        caller.wait(10)
        caller.send(window_update(0, 9_000) + window_update(1, 9_000))
    assert "bytes wait, and less than 1000 a second are read" in (caller.goaway() or (0, 0, ""))[2]


def test_a_little_may_be_read_as_slowly_as_a_client_likes(caller: Caller) -> None:
    caller.send(settings((4, 0)))
    waiting(caller, 100_000)
    for _ in range(60):
        caller.wait(60)
        caller.send(window_update(1, 1))
    assert caller.goaway() is None


def test_requests_that_do_not_come(caller: Caller) -> None:
    """Between one and two time-outs after their beginning; what comes at the least rate may take as long as it takes."""
    head, begun, slow, fast = (caller.begin("Keep") for _ in range(4))
    chat, quiet = caller.begin("Chat"), caller.begin("Chat")
    for id in (begun, slow, fast, chat):
        caller.send(data(id, message(bytes(900_000))[:20_000]))
    for _ in range(13):
        caller.send(data(slow, bytes(5000)) + data(fast, bytes(15_000)))
        caller.wait(10)
    ended = {id: answer.status for id, answer in caller.answers.items()}
    assert ended == {head: 4, begun: 4, slow: 4, fast: None, chat: 4, quiet: None}
    assert caller.answers[head].text == "the request has not come within 60 seconds"
    keep = caller.call("Keep")
    caller.wait(1000)
    assert keep.status is None and caller.answers[quiet].status is None  # those that have come are waited for


def test_a_connection_without_calls_is_retired_in_the_end() -> None:
    caller = Caller(limits=Limits(idle=100))
    id = caller.begin("Chat")
    caller.wait(300)
    assert caller.goaway() is None
    caller.cancel(id)
    caller.wait(99)
    assert caller.goaway() is None
    caller.wait(4)
    assert (caller.goaway() or (0, 1, ""))[1] == NO_ERROR and caller.transport.eof


def test_what_held_calls_keep_back_is_counted(caller: Caller) -> None:
    id = caller.begin("Chat")
    caller.service.chats[0].call.hold()
    caller.send(data(id, bytes(300_000)))
    caller.wait(1.5)
    assert receive(caller).used == 300_000
    caller.transport.abort()
    assert receive(caller).used == 0


def test_more_connections_than_there_may_be_ask_for_health_alone(caller: Caller) -> None:
    caller.kernel.memory.crowd.most = 1
    caller.server.meanings.methods[b"/pkg.Svc/Keep"].category = "health"
    others = [Caller(like=caller, greet=k < PROBES) for k in range(PROBES + 1)]
    assert caller.call(payload=b"x").status == 0  # who is there is served
    probe = others[0]
    answer = probe.call(payload=b"x")
    assert answer.status == 8 and answer.text.endswith("one more can ask for health alone")
    probe.call("Keep")
    assert len(caller.service.calls) == 2
    assert [one.transport.aborted for one in others] == [False] * PROBES + [True]


def test_many_calls_of_all_together_leave_few_to_each(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CROWD", 50)
    monkeypatch.setattr(server, "FEW", 10)
    monkeypatch.setattr(protocol, "FEW", 10)
    other = Caller(like=caller)
    ids = [caller.begin("Keep") for _ in range(51)]
    caller.wait(1.5)
    caller.begin("Keep")
    assert caller.answers[103].reset == REFUSED
    assert other.call(payload=b"x").status == 0
    assert Caller(like=caller).peer.http.history.limit == 10
    for id in ids:
        caller.cancel(id)
    caller.wait(1.5)
    assert caller.call(payload=b"x").status == 0 and caller.peer.http.history.limit == MAX_STREAMS


def test_answer_that_is_too_large(caller: Caller) -> None:
    answer = caller.call("Keep")
    piece = memoryview(bytes(2**20))
    caller.service.calls[0].reply([piece] * 2048)
    caller.wait()
    assert answer.status == 8 and answer.text == f"the answer's message of {2**31} bytes is larger than {MAX_MESSAGE}"


# --- messages out of bytes


def account(limit: int = 2**40) -> Account:
    return Account(limit, "--memory-limit-receive")


def assembled(pieces: list[bytes]) -> list[bytes]:
    assembling, result = Assembly(account()), []
    for piece in pieces:
        at = 0
        while at < len(piece):
            at = assembling.feed(piece, at, len(piece))
            if assembling.message is not None:
                result.append(bytes(assembling.fetch()))
    assert assembling.is_empty
    return result


def test_assembly_of_any_split() -> None:
    chance = random.Random(5)
    sizes = [0, 1, 5, 6, LARGE - 1, LARGE, LARGE + 1, 100_000, 0]
    payloads = [chance.randbytes(size) for size in sizes]
    whole = b"".join(map(message, payloads))
    assert assembled([whole]) == payloads
    for _ in range(100):
        cuts = sorted([1, 3, 5, 7, *chance.sample(range(len(whole)), 10)])
        assert assembled([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]) == payloads


def test_large_message_ends_on_a_boundary_and_belongs_to_nobody_else() -> None:
    for size in (LARGE, LARGE + 3, 1_000_003):
        assembling = Assembly(account())
        buffer = bytearray(message(bytes(size)))
        assert assembling.feed(memoryview(buffer), 0, len(buffer)) == len(buffer)
        memory = assembling.fetch()
        assert isinstance(memory, MessageMemory) and memory.shape == (size,) and memory.flags.writeable
        assert (memory.ctypes.data + size) % ALIGNMENT == 0
        buffer[5] = 1
        memory[-1] = 2
        assert memory[0] == 0 and buffer[-1] == 0


@pytest.mark.parametrize("left", [None, 5 * BELIEVED])
@pytest.mark.parametrize("size", [RESERVE // 2, 2 * RESERVE])
def test_of_a_message_that_has_begun_little_is_reserved(size: int, left: int | None) -> None:
    """A megabyte until as much has come, and then no more than the account has left."""
    counted = account()
    if left is not None:
        counted.take(counted.limit - left)
    assembling = Assembly(counted)
    assembling.feed(struct.pack(">BI", 0, size), 0, 5)
    piece = bytes(48 * 1024)
    for _ in range(4 * BELIEVED // len(piece)):
        assembling.feed(piece, 0, len(piece))
        at = assembling.at
        if at <= BELIEVED:
            assert len(assembling.view) <= BELIEVED
        elif left is not None:
            assert len(assembling.view) <= max(left, 2 * at + len(piece))
        else:
            assert len(assembling.view) == min(size, RESERVE)
    assembling.give_back()


def test_memory_is_reserved_within_bounds_only() -> None:
    assembling = Assembly(account())
    size = 5 * RESERVE // 2
    head = struct.pack(">BI", 0, size)
    assembling.feed(head, 0, 5)
    sizes = {len(assembling.view)}
    piece, at = memoryview(np.ones(RESERVE // 4, np.uint8)), 0
    while assembling.message is None:
        part = piece[: size - at]
        assert assembling.feed(part, 0, len(part)) == len(part)
        at += len(part)
        sizes.add(len(assembling.view))
    assert sizes - {0} == {assembly.SMALL, RESERVE, 2 * RESERVE, size}
    assert assembling.lent == size
    memory = assembling.fetch()
    assert isinstance(memory, MessageMemory) and memory.all() and (memory.ctypes.data + size) % ALIGNMENT == 0


def test_memory_that_grows_is_moved() -> None:
    growing = assembly.Growing(0)
    first = growing.grow(3 * LARGE)
    first[:] = 7
    del first
    memory = growing.grow(5 * LARGE)
    assert isinstance(memory.base, MappedMemory)
    assert (memory[: 3 * LARGE] == 7).all() and not memory[3 * LARGE :].any()


def receive(caller: Caller) -> Account:
    return caller.kernel.memory.receive


@pytest.mark.parametrize("end", ["answered", "cancelled", "lost", "cut off", "too many"])
def test_what_is_received_is_counted_until_its_answer(caller: Caller, end: str) -> None:
    id = caller.begin("Keep")
    payload = message(bytes(300_000))
    caller.send(data(id, payload[:60_000]))
    assert receive(caller).used == 0  # as most are
    caller.send(data(id, payload[60_000:200_000]))
    assert receive(caller).used == 300_000
    if end == "answered":
        caller.send(data(id, payload[200_000:], end=True))
        assert receive(caller).used == 300_000
        caller.service.calls[0].reply(b"x")
    elif end == "cancelled":
        caller.cancel(id)
    elif end == "lost":
        caller.transport.abort()
    elif end == "cut off":
        caller.send(data(id, end=True))
    else:
        caller.send(data(id, payload[200_000:] + message(b"x")))
    assert receive(caller).used == 0


def test_more_than_the_account_has_is_refused_when_it_comes(caller: Caller) -> None:
    """By what has come, not by what was announced: an announcement costs nothing."""
    receive(caller).limit = 10_000_000
    caller.server.most = 2**31 - 1
    first, second, third = (caller.begin("Keep") for _ in range(3))
    for id in (first, second, third):
        caller.send(data(id, message(bytes(8_000_000))[:1000]))
    assert receive(caller).used == 0

    def send(id: int, size: int) -> None:
        for _ in range(size // 100_000):
            caller.send(data(id, bytes(100_000)))

    send(first, 3_900_000)
    send(second, 3_900_000)
    send(third, 3_900_000)
    answer = caller.answers[third]
    assert answer.status == 8 and "that --memory-limit-receive allows for its clients; try again later" in answer.text
    assert receive(caller).refused == 1 and receive(caller).used < 10_000_000
    caller.cancel(first)
    assert caller.answers[second].status is None
    assert outcome(caller.call(payload=b"x")) == (0, "", [b"x"])


def test_messages_have_limits() -> None:
    caller = Caller(limits=Limits(message_size=100_000))
    caller.call("Keep", payload=bytes(100_000))
    assert len(caller.service.messages[0]) == 100_000
    answer = caller.call(raw=struct.pack(">BI", 0, 100_001))
    assert (answer.status, answer.text) == (8, "a message of 100001 bytes; the largest that is taken has 100000")
    answer = caller.call(raw=message(gzip.compress(bytes(100_001)), compressed=True), **{"grpc-encoding": "gzip"})
    assert (answer.status, answer.text) == (8, "a message of more than 100000 bytes, unpacked; larger ones are not taken")
    caller.server.meanings.methods[b"/pkg.Svc/Keep"].most = 1000
    answer = caller.call("Keep", raw=struct.pack(">BI", 0, 1001))
    assert (answer.status, answer.text) == (8, "a message of 1001 bytes; the largest that is taken has 1000")


def test_no_memory_for_a_message(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> MessageMemory:
        raise MemoryError

    monkeypatch.setattr(assembly, "aligned", fail)
    monkeypatch.setattr(compression, "aligned", fail)
    monkeypatch.setattr(assembly.Growing, "grow", fail)
    answer = caller.call(payload=bytes(50_000))
    assert outcome(answer) == (8, "there is no memory for the request, of which 0 of 50000 bytes have come", [])
    for times, more in ((50, ", of which 0 of 5 bytes before it have come"), (2000, "")):  # unpacked here, and elsewhere
        packed = gzip.compress(random.Random(1).randbytes(1000) * times)
        answer = caller.call(raw=message(packed, compressed=True), **{"grpc-encoding": "gzip"})
        caller.wait(0.1)
        assert outcome(answer) == (8, f"there is no memory for the request{more}", [])
    assert outcome(caller.call(payload=b"x")) == (0, "", [b"x"])


def test_assembly_that_is_filled_directly() -> None:
    assembling = Assembly(account())
    assert assembling.space() is None
    assembling.feed(message(b"x" * 50_000)[:1000], 0, 1000)
    space = assembling.space()
    assert space is not None and len(space) == 50_005 - 1000
    space[:] = b"x" * len(space)
    assembling.filled(len(space) - 1)
    assert assembling.message is None and assembling.progress == "49999 of 50000 bytes"
    assembling.filled(1)
    assert bytes(assembling.fetch()) == b"x" * 50_000 and assembling.space() is None


def test_large_message_is_received_into_its_memory(caller: Caller) -> None:
    payload = os.urandom(500_000)
    id = caller.begin("Keep")
    frames = data(id, message(payload), end=True)
    caller.send(frames[:100])
    space = caller.peer.get_buffer(-1)
    assert len(space) == assembly.SMALL - (100 - 9 - 5)  # until there is more to put there
    caller.send(frames[100:100_000])
    assert len(caller.peer.get_buffer(-1)) == len(payload) - (100_000 - 9 - 5)
    caller.send(frames[100_000:])
    assert bytes(caller.service.messages[0]) == payload


# --- compression


def test_compressed_requests(caller: Caller) -> None:
    payload = b"hello" * 100
    for coding, packed in (("gzip", gzip.compress(payload)), ("deflate", zlib.compress(payload))):
        fields = {"grpc-encoding": coding}
        assert outcome(caller.call(raw=message(packed, compressed=True), **fields)) == (0, "", [payload])
        assert outcome(caller.call(payload=b"plain", **fields)) == (0, "", [b"plain"])


def test_large_compressed_request_is_unpacked_elsewhere(caller: Caller) -> None:
    payload = os.urandom(ON_LOOP + 1)
    caller.send(settings((4, 2**20)) + window_update(0, 2**20))
    answer = caller.call(raw=message(gzip.compress(payload), compressed=True), **{"grpc-encoding": "gzip"})
    assert not answer.ended
    caller.wait(0.01)
    assert outcome(answer) == (0, "", [payload]) and isinstance(caller.service.messages[0], MessageMemory)


def test_order_of_a_stream_with_large_compressed_messages(caller: Caller) -> None:
    id = caller.begin("Chat", **{"grpc-encoding": "gzip"})
    large = os.urandom(ON_LOOP + 1)
    packed = message(gzip.compress(large), compressed=True)
    caller.send(data(id, packed + message(b"a") + packed + message(b"b"), end=True))
    chat = caller.service.chats[0]
    assert chat.messages == []
    caller.wait(0.01)
    assert [bytes(got) for got in chat.messages] == [large, b"a", large, b"b"] and chat.closed == 1


def test_held_stream_with_a_message_that_is_being_unpacked(caller: Caller) -> None:
    id = caller.begin("Chat", **{"grpc-encoding": "gzip"})
    chat = caller.service.chats[0]
    large = os.urandom(ON_LOOP + 1)
    caller.send(data(id, message(gzip.compress(large), compressed=True) + message(b"a")))
    chat.call.hold()
    chat.call.unhold()
    assert chat.messages == []
    chat.hold_after = 1
    caller.wait(0.01)
    assert len(chat.messages) == 1
    chat.call.unhold()
    assert chat.messages[1:] == [b"a"]


def test_cancelled_while_a_message_is_being_unpacked(caller: Caller) -> None:
    id = caller.begin(**{"grpc-encoding": "gzip"})
    caller.send(data(id, message(gzip.compress(os.urandom(ON_LOOP + 1)), compressed=True), end=True))
    caller.cancel(id)
    caller.wait(0.01)
    assert not caller.service.calls and caller.peer.http.bodies.kept == 0


def test_unpacking_takes_what_the_account_has(caller: Caller) -> None:
    """Six times 100 KB that become 100 MB: as many as there is memory for, a portion at a time, and it is given back."""
    bomb = message(gzip.compress(bytes(100_000_000)), compressed=True)
    receive(caller).limit = 7 * PORTION
    caller.server.most = 2**31 - 1
    answers = [caller.call("Keep", raw=bomb, **{"grpc-encoding": "gzip"}) for _ in range(2)]
    caller.wait(0.1)
    assert sorted(answer.status or 0 for answer in answers) == [0, 8]
    assert [len(one) for one in caller.service.messages] == [100_000_000]
    assert 0 <= receive(caller).used - 6 * PORTION < 1_000_000  # besides the message as it came
    caller.service.calls[0].reply(b"")
    assert receive(caller).used == 0


@pytest.mark.parametrize("size", [SEVERAL - 1, SEVERAL, SEVERAL + 1, 5_000_003, 40_000_000])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_is_unpacked_ends_on_a_boundary_and_is_not_in_memory_twice(size: int, coding: str) -> None:
    payload = np.arange(size // 4 + 1, dtype=np.int32).tobytes()[:size]
    packed = gzip.compress(payload, 1) if coding == "gzip" else zlib.compress(payload, 1)
    memory = unpacked(packed, coding, 2**31)
    assert isinstance(memory, MessageMemory) and memory.flags.writeable and memory.tobytes() == payload
    assert (memory.ctypes.data + size) % ALIGNMENT == 0
    tensor = np.ndarray((10,), np.int8, memory)
    assert tensor[3:].base is tensor  # as with other messages: see MessageMemory


@pytest.mark.parametrize("lie", range(0, 64, 7))
def test_a_gzip_that_lies_about_its_size_is_placed_anew(lie: int) -> None:
    payload = bytes(range(256)) * 8000
    unpacker = compression.Unpacker(gzip.compress(payload), "gzip", 2**31)
    unpacker._growing.offset = ALIGNMENT - lie
    memory = unpacker.go_on(2**31)
    assert isinstance(memory, MessageMemory) and memory.tobytes() == payload
    assert (memory.ctypes.data + len(payload)) % ALIGNMENT == 0


def test_little_is_unpacked_on_the_loop(caller: Caller) -> None:
    """A message of 8 KiB may become eight million bytes."""
    answer = caller.call(raw=message(gzip.compress(bytes(PORTION_ON_LOOP)), compressed=True), **{"grpc-encoding": "gzip"})
    assert caller.service.messages and answer.status is None
    caller.call(raw=message(gzip.compress(bytes(2 * PORTION_ON_LOOP + 2 * PART)), compressed=True), **{"grpc-encoding": "gzip"})
    assert len(caller.service.messages) == 1
    caller.wait(0.1)
    assert len(caller.service.messages) == 2


@pytest.mark.parametrize("size", [10, ON_LOOP + 1])
def test_compressed_request_that_cannot_be_read(caller: Caller, size: int) -> None:
    answer = caller.call(raw=message(b"x" * size, compressed=True), **{"grpc-encoding": "gzip"})
    caller.wait(0.01)
    assert answer.status == 13 and answer.text.startswith("a message that is no gzip: ")


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (b"", "it is cut off"),
        (gzip.compress(b"abc", mtime=0)[:-1], "it is cut off"),
        (gzip.compress(b"abc", mtime=0) + b"x", "there are bytes behind its end"),
        (zlib.compress(b"abc"), "incorrect header check"),
    ],
)
def test_broken_gzip(packed: bytes, words: str) -> None:
    with pytest.raises(MessageError, match=words) as error:
        unpacked(packed, "gzip", 1000)
    assert error.value.status == 13


def test_unpacking_is_bounded() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(MessageError, match="more than 1000000 bytes") as error:
        unpacked(bomb, "gzip", 1_000_000)
    assert error.value.status == 8
    assert len(unpacked(bomb, "gzip", 50_000_000)) == 50_000_000
    assert bytes(unpacked(gzip.compress(b"a" * 1000), "gzip", 1000)) == b"a" * 1000


@pytest.mark.parametrize(
    ("level", "offer", "coding"),
    [
        ("low", "identity,deflate,gzip", "gzip"),
        ("medium", "identity, deflate, gzip", "deflate"),
        ("high", "gzip", "gzip"),
        ("high", "deflate", "deflate"),
        ("high", "identity", ""),
        ("high", "", ""),
        ("none", "gzip", ""),
    ],
)
def test_compressed_answers(level: str, offer: str, coding: str) -> None:
    caller = Caller(compression=level)
    answer = caller.call(payload=b"a" * 1000, **{"grpc-accept-encoding": offer})
    assert answer.head.get("grpc-encoding", "") == coding and answer.status == 0
    ((flag, packed),) = answer.messages
    assert flag == bool(coding)
    if coding:
        assert zlib.decompress(packed, 47) == b"a" * 1000
    answer = caller.call(payload=b"abc", **{"grpc-accept-encoding": offer})
    assert answer.messages == [(0, b"abc")]  # it would only become longer


def test_only_inferences_are_compressed() -> None:
    caller = Caller(compression="high")
    answer = caller.call("Keep", **{"grpc-accept-encoding": "gzip"})
    caller.service.calls[0].reply(b"a" * 1000)
    caller.read()
    assert answer.messages == [(0, b"a" * 1000)]


def test_order_of_compressed_answers() -> None:
    caller = Caller(compression="low")
    id = caller.begin("Chat", **{"grpc-accept-encoding": "gzip"})
    call = caller.service.chats[0].call
    large = bytes(ON_LOOP + 1)
    for payload in (large, b"a" * 100, large, b"b" * 100):
        call.send([memoryview(payload)])
    call.finish(5, "done")
    call.send(b"late")
    caller.wait(0.01)
    answer = caller.answers[id]
    assert [zlib.decompress(packed, 47) for _, packed in answer.messages] == [large, b"a" * 100, large, b"b" * 100]
    assert (answer.status, answer.text) == (5, "done")


def test_failed_compression_sends_the_message_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller(compression="low")
    answer = caller.call("Method", payload=b"a", **{"grpc-accept-encoding": "gzip"})

    def fail(*_: Any) -> bytes:
        raise MemoryError

    monkeypatch.setattr(compression.Compression, "packed", fail)
    answer = caller.call(payload=bytes(ON_LOOP + 1), **{"grpc-accept-encoding": "gzip"})
    caller.send(window_update(0, 2**20) + window_update(3, 2**20))
    caller.wait(0.01)
    assert answer.messages == [(0, bytes(ON_LOOP + 1))] and answer.status == 0


# --- status messages


@pytest.mark.parametrize("text", ["", "plain", "100 %", " edges ", "  ", "ä€😀", "a\nb\tc\r", "\x00\x7f", "\ud800", "~ }|{"])
def test_status_messages_survive(text: str) -> None:
    from urllib.parse import unquote

    value = escaped(text)
    assert unquote(value.decode()) == text.replace("\ud800", "?") and value.strip() == value
    assert all(0x20 <= byte <= 0x7E for byte in value)


def test_long_status_messages_are_cut_off() -> None:
    assert shortened("x" * MAX_TEXT, None) == "x" * MAX_TEXT
    cut = shortened("x" * (MAX_TEXT + 1), 2**24)
    assert cut == "x" * (MAX_TEXT - 3) + "..."
    cut = shortened("€" * 5000, None)
    assert cut.endswith("€...") and MAX_TEXT - 9 <= len(escaped(cut)) <= MAX_TEXT
    assert len(escaped(shortened("ä" * 5000, 2000))) <= 2000 - 512
    assert shortened("abc", 100) == "..."


def test_client_with_a_small_limit_gets_a_shorter_message() -> None:
    caller = Caller(greet=False)
    caller.send(PREFACE + settings((6, 1000)) + settings(ack=True))
    answer = caller.call("Keep")
    caller.service.calls[0].fail(ServingError(Code.INTERNAL, "y" * 2000))
    caller.read()
    assert answer.text == "y" * 485 + "..."


# --- the transport's back-pressure


# --- one client's turn of the loop


def read(caller: Caller, payload: bytes) -> None:
    """Have the server read `payload` at once, and nothing else happen."""
    buffer = caller.peer.get_buffer(-1)
    buffer[: len(payload)] = payload
    caller.peer.buffer_updated(len(payload))


def turn_of(caller: Caller) -> None:
    """Let the loop go round once."""
    caller.kernel.loop.call_soon(caller.kernel.loop.stop)
    caller.kernel.loop.run_forever()


def test_a_client_that_sends_more_than_a_turns_work_is_read_from_when_that_is_done(caller: Caller) -> None:
    for k in range(0, 600, 2):
        caller.answers[k + 1] = Answer()
    read(caller, b"".join(request(k + 1) + data(k + 1, message(b"x"), end=True) for k in range(0, 600, 2)))
    most = len(A_TURNS_FRAMES) // 2
    assert len(caller.service.messages) == most and caller.transport.paused
    for turn in range(2, 6):
        turn_of(caller)
        assert len(caller.service.messages) == min(300, turn * most)
    assert not caller.transport.paused
    caller.read()
    assert all(outcome(answer) == (0, "", [b"x"]) for answer in caller.answers.values())
    turn_of(caller)
    read(caller, window_update(0, 1) * 1000)
    caller.transport.abort()  # what waits has nobody any more
    caller.kernel.loop.run_until_complete(asyncio.sleep(0))
    assert caller.peer.http.later is None


FLOODS = {
    "window updates": window_update(0, 1) * 5000,
    "calls": b"".join(request(2 * k + 1) + data(2 * k + 1, message(b"x"), end=True) for k in range(300)),
    "messages": request(1, **{":path": "/pkg.Svc/Chat"}) + data(1, message(b"") * 3000, end=True),
    "messages of many streams": b"".join(
        request(2 * k + 1, **{":path": "/pkg.Svc/Chat"}) + data(2 * k + 1, message(b"") * 50, end=True) for k in range(30)
    ),
    "long messages": b"".join(
        [request(1, **{":path": "/pkg.Svc/Keep"}) + data(1, message(bytes(4 * 2**20 - 100))[:5])]
        + [data(1, bytes(16 * 1024))] * 200
    ),
}


@pytest.mark.parametrize("what", FLOODS)
def test_what_16_connections_are_sent_is_done_some_in_a_turn(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """For all of them together, as long as they like to send; and a client that asks for little does not wait for them."""
    modest = Caller()
    clients = [Caller(like=modest) for _ in range(16)]
    left = dict.fromkeys(clients, FLOODS[what])
    spend, done = Turns.spend, [0]

    def counted(turns: Turns, units: int) -> bool:
        done[0] += units
        return spend(turns, units)

    monkeypatch.setattr(Turns, "spend", counted)
    turns = 0
    while left or any(client.peer.http.later is not None for client in clients):
        done[0] = 0
        for client in list(left):
            for _ in range(32):  # so often does uvloop read from one connection
                if client.transport.paused or not left[client]:
                    break
                buffer = client.peer.get_buffer(-1)
                count = min(len(buffer), len(left[client]))
                buffer[:count] = left[client][:count]
                left[client] = left[client][count:]
                client.peer.buffer_updated(count)
            if not left[client]:
                del left[client]
        assert done[0] < 6 * TURN
        turns += 1
        assert outcome(modest.call(payload=b"x")) == (0, "", [b"x"])
        turn_of(modest)
    assert turns > 5
    for client in clients:
        client.transport.abort()
    modest.kernel.loop.run_until_complete(asyncio.sleep(0))


def test_where_what_is_done_takes_long_less_is_done_in_a_turn() -> None:
    """Memory that was never used may take a hundred times as long as other: its pages come from the system."""
    now, called = [0.0], []
    turns = Turns(SimpleNamespace(call_soon=called.append), lambda: now[0])  # type: ignore[arg-type]
    assert turns.spend(1) and turns.spend(1)
    now[0] += TURNS_SECONDS
    assert not turns.spend(1) and not turns.roomy and len(turns.view) == turns.portion == LITTLE and not turns.free
    (next_turn,) = called
    next_turn()
    assert turns.roomy and len(turns.view) == READ_SIZE and turns.spend(1)


def test_where_hundreds_ask_for_little_at_once_some_wait_for_another_turn() -> None:
    """Each has its call begun with the others who came with it, or first thing in a turn soon after; the order stays."""
    modest = Caller()
    clients = [Caller(like=modest) for _ in range(300)]
    turn_of(modest)
    now, server = [0.0], modest.server
    server.turns._clock = lambda: now[0]
    method = server.meanings.methods[b"/pkg.Svc/Method"]
    handler = method.handler

    def slow(call: Call, message: Any) -> None:
        now[0] += 0.0001
        handler(call, message)

    method.handler = slow
    for client in clients:
        client.answers[1] = Answer()
        read(client, request(1) + data(1, message(b"x"), end=True))
    at_once = FREE_READS + round(MOST_SECONDS / 0.0001)
    assert len(modest.service.messages) == pytest.approx(at_once, abs=2)
    assert [client.transport.paused for client in clients] == sorted(client.transport.paused for client in clients)
    turns = 0
    while any(client.transport.paused for client in clients):
        before = now[0]
        turn_of(modest)
        assert now[0] - before <= TURNS_SECONDS
        turns += 1
    for client in clients:
        client.read()
        assert outcome(client.answers[1]) == (0, "", [b"x"])
    assert 3 < turns < 12


def test_who_has_sent_much_waits_unread_where_the_turns_work_is_done() -> None:
    """However many they are: what they have sent is not looked at. Who has sent little has his answer all the same."""
    modest = Caller()
    clients = [Caller(like=modest) for _ in range(20)]
    turn_of(modest)
    modest.server.turns.spend(TURN)
    for client in clients:
        client.answers.update((2 * k + 1, Answer()) for k in range(20))
        buffer = client.peer.get_buffer(-1)
        buffer[:] = b"".join(request(2 * k + 1) + data(2 * k + 1, message(b"x"), end=True) for k in range(20))[: len(buffer)]
        client.peer.buffer_updated(len(buffer))
    assert not modest.service.messages and all(client.transport.paused for client in clients)
    read(modest, request(1) + data(1, message(b"y"), end=True))
    assert modest.service.messages == [b"y"] and not modest.transport.paused
    for _ in range(20):
        turn_of(modest)
    assert len(modest.service.messages) > 3 * len(clients) and not any(client.transport.paused for client in clients)


def test_the_deadlines_of_many_calls_are_told_some_in_a_turn() -> None:
    told: list[int] = []
    armed: list[float] = []
    deadlines = Deadlines(armed.append)

    class Waiting:
        def expired(self) -> None:
            told.append(1)

    for _ in range(3 * TOLD_AT_ONCE):
        deadlines.add(Waiting(), 10.0, 0.0)
    for turn in range(1, 4):
        deadlines.expire(20.0)
        assert len(told) == turn * TOLD_AT_ONCE
    assert armed[1:] == [0.0, 0.0] and not deadlines._moments and not deadlines._calls


def test_a_stream_of_tiny_messages_is_taken_a_few_at_a_time(caller: Caller) -> None:
    """Each costs much more than its five bytes."""
    chat = caller.begin("Chat")
    payload = data(chat, message(b"") * 1000, end=True)
    read(caller, payload)
    taken = caller.service.chats[0].messages
    for turn in range(1, 64):
        assert len(taken) == min(1000, turn * MESSAGES)
        turn_of(caller)
    caller.read()
    assert len(taken) == 1000 and caller.service.chats[0].closed == 1
    assert caller.answers[chat].status == 0


def test_a_stream_that_is_held_or_cancelled_between_its_turns(caller: Caller) -> None:
    first, second = caller.begin("Chat"), caller.begin("Chat")
    chats = caller.service.chats
    chats[0].hold_after = MESSAGES
    read(caller, data(first, message(b"") * 200) + data(second, message(b"") * 200))
    caller.cancel(second)
    caller.wait()
    assert [len(chat.messages) for chat in chats] == [MESSAGES, MESSAGES]
    chats[0].call.unhold()
    for _ in range(200 // MESSAGES + 1):
        turn_of(caller)
    assert [len(chat.messages) for chat in chats] == [200, MESSAGES]
    assert not caller.peer.http.bodies.kept


def test_wrong_requests_and_resets_end_a_connection(caller: Caller) -> None:
    """A call that is answered with the client's fault, and reset as well, costs the server most and the client nothing."""
    for k in range(USELESS_BURST + 1):
        assert caller.goaway() is None
        caller.call("None")
        caller.cancel(2 * k + 1)
    _, code, text = caller.goaway() or (0, 0, "")
    assert code == CALM and "RST_STREAM" in text


def test_transport_that_takes_nothing(caller: Caller) -> None:
    caller.send(settings((4, 2**30)) + window_update(0, 2**30))
    caller.transport.limit = 1_000_000
    answer = caller.call("Keep")
    payload = memoryview(os.urandom(5_000_000))
    caller.service.calls[0].reply([payload])
    assert caller.transport.buffered < 2_000_000 and caller.peer.http.outgoing.queued > 3_000_000
    for _ in range(10):
        caller.transport.drain()
    caller.read()
    assert outcome(answer) == (0, "", [bytes(payload)])


def test_small_answers_while_the_transport_takes_nothing(caller: Caller) -> None:
    caller.transport.limit = -1
    caller.call()
    answer = caller.call(payload=b"x")
    assert not answer.ended and not caller.transport.paused
    caller.transport.limit = None
    caller.transport.drain()
    caller.read()
    assert outcome(answer) == (0, "", [b"x"])


def test_client_that_never_reads_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller(keepalive=Keepalive(max_strikes=0))
    monkeypatch.setattr(protocol, "MAX_WAITING", 50)
    caller.transport.limit = -1
    caller.call()
    for _ in range(60):
        caller.send(ping())
    assert caller.transport.paused and len(caller.peer.http.outgoing.out) <= 60
    caller.transport.limit = None
    caller.transport.drain()
    assert not caller.transport.paused
    caller.read()
    assert sum(frame.kind == PING for frame in caller.frames) == 60


def test_client_that_takes_nothing_for_too_long(caller: Caller) -> None:
    caller.transport.limit = -1
    caller.call("Keep")
    caller.call()
    caller.wait(STALLED - 2)
    caller.transport.buffered -= 1  # it has taken one byte
    caller.wait(STALLED - 2)
    assert not caller.transport.aborted
    caller.wait(4)
    assert caller.transport.aborted and len(caller.kernel.cancelled) == 1


# --- PINGs and age


def pulse(**options: Any) -> Pulse:
    return Pulse(Keepalive(**options), 0.0)


def test_pulse_of_a_silent_client() -> None:
    beat = pulse(time=10, timeout=5).beat
    assert beat(9, 0, 0, 1) is Action.NOTHING
    assert beat(10, 0, 0, 1) is Action.PING
    assert beat(14, 0, 0, 1) is Action.NOTHING
    assert beat(15, 0, 0, 1) is Action.CLOSE


def test_pulse_of_a_client_that_answers() -> None:
    silent = pulse(time=10, timeout=5)
    assert silent.beat(10, 0, 0, 1) is Action.PING
    silent.received_pong()
    assert silent.beat(19, 10.5, 0, 1) is Action.NOTHING
    assert silent.beat(20.5, 10.5, 0, 1) is Action.PING
    assert silent.beat(26, 21, 0, 1) is Action.NOTHING  # something came, which is as good as an answer
    assert silent.beat(40, 21, 0, 1) is Action.NOTHING  # two PINGs without data are all that is allowed
    assert silent.beat(50, 21, 1, 1) is Action.PING


def test_pulse_without_calls() -> None:
    assert pulse(time=10).beat(100, 0, 0, 0) is Action.NOTHING
    assert pulse(time=10, permit_without_calls=True).beat(100, 0, 0, 0) is Action.PING


def test_pings_without_end() -> None:
    silent = pulse(time=10, max_pings_without_data=0)
    for k in range(1, 20):
        assert silent.beat(10 * k, 0, 0, 1) is Action.PING
        silent.received_pong()


def test_received_pings() -> None:
    strict = pulse(min_recv_interval=300)
    assert [strict.received_ping(now, 0, 1) for now in (0, 1, 2, 3)] == [True, True, True, False]
    patient = pulse(min_recv_interval=300)
    assert all(patient.received_ping(now, 0, 1) for now in (0, 300, 600, 900, 1200))
    fed = pulse(min_recv_interval=300)
    assert all(fed.received_ping(now, now, 1) for now in range(100))
    idle = pulse(min_recv_interval=1)
    assert [idle.received_ping(now, 0, 0) for now in (0, 10, 20, 30)] == [True, True, True, False]
    assert pulse().received_ping(IDLE_INTERVAL, 0, 0)
    permitted = pulse(min_recv_interval=1, permit_without_calls=True)
    assert all(permitted.received_ping(now, 0, 0) for now in range(100))
    any_number = pulse(max_strikes=0)
    assert all(any_number.received_ping(0, 0, 1) for _ in range(100))


def test_age() -> None:
    old = Pulse(Keepalive(max_age=100, age_grace=10), 0.0, 0.1)
    assert old.beat(109, 109, 0, 1) is Action.NOTHING
    assert old.beat(111, 109, 0, 1) is Action.RETIRE
    assert old.beat(112, 109, 0, 1) is Action.NOTHING
    assert old.beat(120.5, 109, 0, 1) is Action.END
    assert Pulse(Keepalive(max_age=100), 0.0).beat(1e9, 1e9, 0, 1) is Action.RETIRE


def test_too_many_pings(caller: Caller) -> None:
    caller.call("Keep")
    for _ in range(3):
        caller.send(ping())
    assert caller.goaway() is None
    caller.send(ping())
    assert caller.goaway() == (1, CALM, "too_many_pings") and caller.transport.eof
    assert len(caller.kernel.cancelled) == 1


def test_dead_client_is_noticed() -> None:
    caller = Caller(keepalive=Keepalive(time=10, timeout=5))
    caller.call("Keep")
    caller.wait(11.5)
    assert caller.pings() == 1
    caller.wait(6)
    assert caller.transport.aborted and len(caller.kernel.cancelled) == 1


def test_living_client_is_kept() -> None:
    caller = Caller(keepalive=Keepalive(time=10, timeout=5, max_pings_without_data=0))
    caller.call("Keep")
    for k in range(1, 5):
        caller.wait(11.3)
        assert caller.pings() == k
        caller.send(ping(lifetime.PING, ack=True))
    caller.wait(5)
    assert not caller.transport.aborted


def test_old_connection_is_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime.random, "uniform", lambda low, high: high)
    caller = Caller(keepalive=Keepalive(max_age=100, age_grace=30))
    caller.call("Keep")
    caller.wait(111)
    assert caller.goaway() == (2**31 - 1, NO_ERROR, "max_age")
    assert outcome(caller.call(payload=b"x")) == (0, "", [b"x"])
    caller.wait(GOODBYE + 1.2)
    assert caller.goaway() == (3, NO_ERROR, "") and not caller.transport.eof
    caller.wait(30)
    assert caller.goaway() == (3, NO_ERROR, "max_age") and caller.transport.eof and len(caller.kernel.cancelled) == 1


# --- time-outs of the beginning and the end


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE, PREFACE + settings((4, 1))[:12]])
def test_client_that_does_not_begin(sent: bytes) -> None:
    caller = Caller(greet=False)
    caller.send(sent)
    caller.wait(HANDSHAKE - 1.5)
    assert caller.goaway() is None
    caller.wait(3)
    assert caller.goaway() == (0, PROTOCOL, "no connection preface within 30 seconds")
    caller.wait(LINGER + 1.2)
    assert caller.transport.aborted and not caller.server.connections


def test_client_that_ignores_settings() -> None:
    caller = Caller(greet=False)
    caller.send(PREFACE + settings())
    caller.call("Keep")
    caller.wait(HANDSHAKE + 1.2)
    assert caller.goaway() == (1, SETTINGS_TIMEOUT, "no answer to SETTINGS within 30 seconds")


def test_refused_client_is_let_read_why(caller: Caller) -> None:
    caller.send(data(0, b"x"))
    assert caller.goaway() is not None and caller.transport.eof and not caller.transport.closed
    caller.send(b"whatever" * 1000)
    caller.wait(LINGER + 1.2)
    assert caller.transport.aborted


def test_transport_that_has_no_half_close() -> None:
    transport = FakeTransport()
    transport.can_eof = False
    caller = Caller(transport=transport)
    caller.send(data(0, b"x"))
    assert caller.goaway() is not None and transport.closed


# --- drain


def drained(caller: Caller) -> asyncio.Task[None]:
    task = caller.kernel.loop.create_task(caller.server.drain())
    caller.wait()
    return task


def test_a_retiring_server_says_so_and_goes_on(caller: Caller) -> None:
    """GOAWAY at once; what the client sends before it knows is awaited and served, and its streams go on."""
    caller.begin("Chat")
    caller.wait()
    assert not caller.peer.busy, "a stream with nothing on it is waited for by nobody"
    caller.server.retire()
    caller.wait()
    assert caller.goaway() == (2**31 - 1, NO_ERROR, "the server is shutting down")
    question = caller.frames[-1].payload
    assert caller.peer.busy, "a call may be under way to us"
    assert caller.service.chats[0].closed == 0
    answer = caller.call("Keep")
    assert caller.peer.busy and caller.server.busy
    caller.service.calls[0].reply(b"done")
    caller.wait()
    assert outcome(answer) == (0, "", [b"done"]) and caller.peer.busy
    caller.send(ping(question, ack=True))
    assert not caller.peer.busy, "the client has read that it is to go"
    other = protocol.Peer(caller.server)
    transport = FakeTransport()
    transport.peer = other
    other.connection_made(transport)
    assert b"the server" not in b"".join(transport.written) and not transport.eof
    caller.server.retire()
    assert caller.service.chats[0].closed == 0


def test_drain_of_an_idle_client(caller: Caller) -> None:
    task = drained(caller)
    assert caller.goaway() == (2**31 - 1, NO_ERROR, "the server is shutting down") and not caller.transport.eof
    caller.send(ping(caller.frames[-1].payload, ack=True))
    assert caller.goaway() == (0, NO_ERROR, "") and caller.transport.eof and not task.done()
    caller.peer.connection_lost(None)
    caller.wait()
    assert task.done()


def test_drain_waits_for_calls(caller: Caller) -> None:
    answer = caller.call("Keep")
    id = caller.begin("Chat")
    caller.service.chats[0].ends = False
    task = drained(caller)
    assert caller.service.chats[0].closed == 1 and caller.server.draining
    caller.wait(GOODBYE + 1.2)  # the client does not answer
    assert caller.goaway() == (3, NO_ERROR, "")
    caller.service.calls[0].reply(b"done")
    caller.wait()
    assert outcome(answer) == (0, "", [b"done"]) and not caller.transport.eof
    caller.service.chats[0].call.finish(14, "going")
    caller.wait()
    assert caller.answers[id].status == 14 and caller.transport.eof
    caller.wait(LINGER + 1.2)
    assert caller.transport.aborted and task.done()


def test_client_that_comes_during_the_drain(caller: Caller) -> None:
    drained(caller)
    other = protocol.Peer(caller.server)
    transport = FakeTransport()
    transport.peer = other
    other.connection_made(transport)
    assert transport.eof and b"the server" not in b"".join(transport.written)


def test_slow_client_gets_its_answer_before_the_connection_ends(caller: Caller) -> None:
    caller.send(settings((4, 2**20)) + window_update(0, 2**20))
    answer = caller.call("Keep")
    drained(caller)
    caller.wait(GOODBYE + 1.2)
    caller.transport.limit = 2**20
    caller.service.calls[0].reply(bytes(500_000))
    caller.wait()
    assert outcome(answer)[0] == 0 and caller.transport.eof
    for _ in range(20):
        caller.wait(STALLED / 2)
        caller.transport.buffered -= 1000
    assert not caller.transport.aborted
    caller.wait(STALLED + 2)
    assert caller.transport.aborted


def test_abort(caller: Caller) -> None:
    caller.call("Keep", **{"grpc-timeout": "5S"})
    caller.server.abort()
    assert caller.transport.aborted and len(caller.kernel.cancelled) == 1 and not caller.server.connections


# --- flags


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    options.add_options(parser)
    return parser.parse_args(arguments)


def test_defaults_of_the_flags() -> None:
    defaults = parsed()
    assert (defaults.allow_grpc, defaults.grpc_address, defaults.grpc_port) == (True, "0.0.0.0", 8001)
    assert options.keepalive(defaults) == Keepalive() and options.limits(defaults) == Limits()
    assert defaults.grpc_restricted_protocol == {} and frontend_options.tls_context(defaults, "grpc", ("h2",)) is None


def test_flags() -> None:
    given = parsed(
        "--allow-grpc=false", "--grpc-port=0", "--grpc-address=unix:/x", "--grpc-infer-response-compression-level=high",
        "--grpc-keepalive-time=1500", "--grpc-keepalive-timeout=2147483647", "--grpc-keepalive-permit-without-calls",
        "--grpc-http2-max-pings-without-data=0", "--grpc-http2-min-recv-ping-interval-without-data=0",
        "--grpc-http2-max-ping-strikes=7", "--grpc-max-connection-age=60000", "--grpc-max-connection-age-grace=5",
        "--grpc-restricted-protocol=health,metadata:a=b", "--grpc-restricted-protocol=inference:c=d",
    )  # fmt: skip
    assert not given.allow_grpc and given.grpc_infer_response_compression_level == "high"
    assert options.keepalive(given) == Keepalive(1.5, math.inf, True, 0, 0.0, 7, 60.0, 0.005)
    assert given.grpc_restricted_protocol == {"health": ("a", "b"), "metadata": ("a", "b"), "inference": ("c", "d")}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--grpc-port=70000", "'70000' is not a port: 0 to 65535"),
        ("--grpc-address=unix:", "lacks the path of the socket"),
        ("--grpc-keepalive-time=0", "'0' is no number of milliseconds"),
        ("--grpc-keepalive-time=-5", "'-5' is no number of milliseconds"),
        ("--grpc-http2-max-ping-strikes=x", "'x' is no integer of at least 0"),
        ("--grpc-header-forward-pattern=(", "'(' is not a regular expression"),
        ("--grpc-infer-response-compression-level=best", "invalid choice: 'best'"),
        ("--allow-grpc=maybe", "'maybe' is not a boolean"),
    ],
)
def test_wrong_flags(argument: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=words.replace("(", r"\(")):
        parsed(argument)


def test_wrong_restriction(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--grpc-restricted-protocol=nothing:a=b")
    assert "--grpc-restricted-protocol 'nothing:a=b': there is no category 'nothing'" in capsys.readouterr().err


def test_tls_without_files() -> None:
    with pytest.raises(ServingError, match="TLS wants a server certificate"):
        frontend_options.tls_context(parsed("--grpc-use-ssl"), "grpc", ("h2",))
    with pytest.raises(ServingError, match="TLS"):
        frontend_options.tls_context(parsed("--grpc-use-ssl-mutual", "--grpc-server-cert=/nowhere"), "grpc", ("h2",))

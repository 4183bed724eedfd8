"""A call that is ended at any stage, from any side: told once, answered once at most, and nothing is left of it."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from frontends.callers import Caller, close_loops, message
from frontends.wires import CANCEL, NO_ERROR, data, rst_stream, settings, window_update

from kernel import Code, ServingError
from kernel_grpc.rpc.compression import LEVELS, ON_LOOP, UNPACKED_ON_LOOP
from kernel_grpc.rpc.patience import MAX_WAITING

NOISE = random.Random(1).randbytes(2 * ON_LOOP)
PACKED = message(gzip.compress(NOISE), compressed=True)


@pytest.fixture(autouse=True)
def loops() -> Iterator[None]:
    yield
    close_loops()


def partly(payload: bytes, *, end: bool = False) -> Callable[[Caller, int], None]:
    return lambda caller, id: caller.send(data(id, payload, end=end))


def answering(caller: Caller, id: int) -> None:
    """Let a stream have sent a part of an answer that the client has no window for."""
    partly(message(b"x"))(caller, id)
    call: Any = caller.peer.http.outgoing.streams[id]
    call.send(b"first")
    call.send(bytes(200_000))


def packing(caller: Caller, id: int) -> None:
    """Let a stream be packing an answer, with another one and its end behind it."""
    partly(message(b"x"))(caller, id)
    call: Any = caller.peer.http.outgoing.streams[id]
    for payload in (NOISE, b"more"):
        call.send(payload)


STAGES: dict[str, tuple[str, Callable[[Caller, int], None]]] = {
    "begun": ("Keep", lambda caller, id: None),
    "a part of the prefix": ("Keep", partly(b"\0\0\0")),
    "a part of the message": ("Keep", partly(message(b"abcdef")[:8])),
    "a part of a large message": ("Keep", partly(message(bytes(100_000))[:50_000])),
    "all but the end": ("Keep", partly(message(b"abc"))),
    "handed over": ("Keep", partly(message(b"abc"), end=True)),
    "unpacking": ("Keep", partly(PACKED, end=True)),
    "a stream": ("Chat", lambda caller, id: None),
    "a stream with a part of a message": ("Chat", partly(message(b"a") + message(b"b")[:3])),
    "a stream that unpacks": ("Chat", partly(PACKED + message(b"a"))),
    "a stream that answers": ("Chat", answering),
    "a stream that packs": ("Chat", packing),
}


def lose(caller: Caller, id: int) -> None:
    caller.peer.connection_lost(None)


def finish(caller: Caller, id: int) -> None:
    call: Any = caller.peer.http.outgoing.streams[id]
    call.request = call.on_cancel = None
    call.give_up(13, "given up")
    caller.wait()


ENDS: dict[str, Callable[[Caller, int], None]] = {
    "cancelled": lambda caller, id: caller.cancel(id),
    "lost": lose,
    "deadline": lambda caller, id: caller.wait(1.1),
    "failure of the connection": lambda caller, id: caller.send(data(0)),
    "abort": lambda caller, id: caller.server.abort(),
    "given up": finish,
    "a wrong frame": lambda caller, id: caller.send(window_update(id, 0)),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("stage", STAGES)
def test_an_end_at_any_stage(stage: str, how: str) -> None:
    caller = Caller(compression="low")
    name, prepare = STAGES[stage]
    id = caller.begin(name, **{"grpc-encoding": "gzip", "grpc-accept-encoding": "gzip" * (stage == "a stream that packs"),
                               "grpc-timeout": "1S"})  # fmt: skip
    for chat in caller.service.chats:
        chat.ends = False
    prepare(caller, id)
    http = caller.peer.http
    call: Any = http.outgoing.streams[id]
    ENDS[how](caller, id)
    kept = len(caller.service.calls)  # which a message makes that is unpacked before the deadline
    assert call.done and id not in http.outgoing.streams and http.bodies.kept == http.outgoing.queued == 0
    assert call.request is call.on_cancel is call.on_writable is None
    assert not any(caller.server.deadlines._calls.values())
    frames = len(caller.answers[id].frames)
    call.reply(b"late")
    call.send(b"late")
    call.finish(5, "late")
    call.fail(ServingError(Code.INTERNAL, "late"))
    call.unhold()
    alive = how in ("cancelled", "deadline", "given up", "a wrong frame")
    if alive:
        caller.send(settings((4, 2**20)) + window_update(0, 2**20))
        if how in ("deadline", "given up") and not call.ended:
            caller.send(data(id, message(b"late")))
    caller.wait(3)  # past the deadline, and whatever threads were at it
    assert len(caller.answers[id].frames) == frames
    told = len(caller.kernel.cancelled) + sum(chat.cancelled for chat in caller.service.chats)
    assert told == (0 if how == "given up" else max(kept, len(caller.service.chats)))
    assert len(caller.service.calls) == kept
    answer = caller.answers[id]
    assert answer.status == {"deadline": 4, "given up": 13}.get(how)
    if answer.status is not None and not call.ended:
        assert answer.reset == NO_ERROR
    if alive:
        assert caller.goaway() is None and caller.call(payload=b"next").status == 0


def test_an_end_that_crosses_the_answer() -> None:
    caller = Caller()
    answer = caller.call(payload=b"x")
    caller.send(rst_stream(1, CANCEL) + window_update(1, 10))
    assert answer.status == 0 and caller.goaway() is None and not caller.kernel.cancelled


def test_half_close_before_the_message_is_unpacked() -> None:
    caller = Caller()
    id = caller.begin(**{"grpc-encoding": "gzip"})
    caller.send(data(id, PACKED))
    caller.send(data(id, end=True))
    caller.send(window_update(0, 2**20) + window_update(id, 2**20))
    assert not caller.service.calls
    caller.wait(0.1)
    assert caller.answers[id].messages == [(0, NOISE)] and caller.answers[id].status == 0


def test_several_messages_although_the_first_is_being_unpacked() -> None:
    caller = Caller()
    answer = caller.call(raw=PACKED + message(b"second"), **{"grpc-encoding": "gzip"})
    caller.wait(0.1)
    assert answer.status == 12 and "more than one message" in answer.text and not caller.service.calls


@pytest.mark.parametrize("size", [0, 1])
def test_empty_messages_compressed(size: int) -> None:
    caller = Caller()
    answer = caller.call(raw=message(gzip.compress(b"a" * size), compressed=True), **{"grpc-encoding": "gzip"})
    assert (answer.status, answer.messages) == (0, [(0, b"a" * size)])


def test_compressed_message_without_bytes() -> None:
    caller = Caller()
    assert "it is cut off" in caller.call(raw=b"\1\0\0\0\0", **{"grpc-encoding": "gzip"}).text


def test_what_is_unpacked_on_the_loop_is_little() -> None:
    """A bomb of 64 KB unpacks to 64 MB: that is not for the loop, which others wait for."""
    bomb = gzip.compress(bytes(30_000_000))
    assert UNPACKED_ON_LOOP < len(bomb) < ON_LOOP
    caller = Caller()
    id = caller.begin("Keep", **{"grpc-encoding": "gzip"})
    caller.send(data(id, message(bomb, compressed=True), end=True))
    assert not caller.service.calls
    assert caller.call(payload=b"others").status == 0
    caller.wait(0.1)
    assert len(caller.service.calls) == 2 and len(caller.service.messages[1]) == 30_000_000


def test_what_waits_behind_a_message_that_is_packed_is_bounded() -> None:
    assert LEVELS["low"][1]
    caller = Caller(compression="low")
    caller.begin("Chat", **{"grpc-accept-encoding": "gzip"})
    chat = caller.service.chats[0]
    rooms: list[bool] = []
    chat.call.on_writable = lambda: rooms.append(chat.call.writable)
    chat.call.send(NOISE)
    assert not chat.call.writable  # a model that can wait should
    caller.wait(0.1)
    assert chat.call.writable and rooms == [True]
    chat.call.send(NOISE)
    piece = memoryview(bytes(2**24))
    for _ in range(MAX_WAITING // 2**24 + 1):
        chat.call.send([piece])
    caller.wait(0.1)
    assert caller.answers[1].status == 8 and "wait to be compressed" in caller.answers[1].text
    assert chat.cancelled == 1 and not caller.peer.http.outgoing.streams

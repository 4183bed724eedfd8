"""What is fuzzed: parsers of bytes that strangers send, each with what must hold whatever comes.

A target takes bytes and returns a word for how that went, by which the fuzzer tells whether an input was something new. What it
raises is a violation. Where somebody else's parser of the same language can be had, both have to agree.
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory as SharedMemoryObject
from typing import Any

import hpack
from frontends.fakes import Client, FakeKernel
from frontends.wires import PREFACE, Wire, data, ping, request, rst_stream, settings, window_update
from fuzz import far_end
from google.protobuf.message import DecodeError

from kernel import ServingError, SharedMemory, TraceSettings
from kernel.config import ConfigErrors
from kernel.config.read import _read_text
from kernel_grpc.http2.blocks import Blocks
from kernel_grpc.http2.errors import ConnectionFailure
from kernel_grpc.inference.wire import split
from kernel_grpc.schemas import grpc_service_pb2 as pb
from kernel_http.connection.heads import HeadError, parse_head
from kernel_http.inference.body import decode
from kernel_python.process import wire

__all__ = ["TARGETS", "Target"]


@dataclass(frozen=True)
class Target:
    """`run`: takes an input. `seeds`: inputs to begin with, beside the corpus. `words`: what inputs are made of."""

    run: Callable[[bytes], str]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()


def config(data: bytes) -> str:
    """config.pbtxt is read, or every mistake has words and, where it has one, a place in the file."""
    try:
        message, _ = _read_text(data, "config.pbtxt")
    except ConfigErrors as errors:
        lines = data.count(b"\n") + data.count(b"\r") + 1
        for error in errors.errors:
            assert error.line is None or 1 <= error.line <= lines, f"line {error.line} of {lines}"
        return f"{len(errors.errors) > 1} {errors.errors[0].detail[:24]}"
    return "read " + " ".join(sorted(field.name for field, _ in message.ListFields()))


#: What `marshal` reads sets and dicts by, with and without the mark of what is referred to later.
KEYED = tuple(bytes([code | mark]) for code in b"<>{" for mark in (0, 0x80))


#: What `marshal` makes memory for before any of it has come: as much as the four bytes after it say.
HUGE = re.compile(rb"[(\[<>l\xa8\xdb\xbc\xbe\xec]")


def modest(data: bytes) -> bytes:
    """Return a child's words without the upper half of what `HUGE` announces: one input took half a second, or all memory."""
    words, at = bytearray(data), 0
    while found := HUGE.search(words, at):
        at = found.end()
        words[at + 2 : at + 4] = bytes(len(words[at + 2 : at + 4]))
    return bytes(words)


def child(data: bytes) -> str:
    """What a child says comes out as it went in, however it is cut; what can't be a message is an error, never a wrong answer."""
    data = modest(data)
    at = 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        if length > 1 << 14:
            return "long"  # memory is made for what was announced; the child is our own
        at += 4 + length
    if b"r" in data and any(code in data for code in KEYED):
        return "perhaps a key that holds itself"  # `marshal` would hash it for ever; see the law of wire.py
    try:
        messages = wire.messages_in(data)
    except (ValueError, EOFError, TypeError, wire.struct.error) as error:
        return type(error).__name__
    if not messages:
        return "nothing"
    frames, came, at = wire.Frames(), [], 0
    while at < len(data) and len(data) < 1 << 16:
        space = frames.space()
        count = min(len(space), 1 + at % 13, len(data) - at)
        space[:count] = data[at : at + count]
        try:
            came += frames.came(count)
        except (ValueError, EOFError, TypeError):
            return "cut off"
        at += count
    assert repr(came) == repr(messages) or len(came) < len(messages), "cut differently, it says something else"
    return f"{len(messages)} {type(messages[0]).__name__}"


def head(data: bytes) -> str:
    """A request's head is read or refused with a status; a length that it says is a length."""
    try:
        found = parse_head(data)
    except HeadError as error:
        assert error.status == 0 or 400 <= error.status < 600, error.status
        return f"{error.status} {error.message[:20]}"
    assert found.content_length >= -1
    assert not (found.path.startswith("/v2") and ("/../" in found.path and "%" in found.path)) or b".." in data
    return f"{found.method} {found.http10} {found.close} {found.content_length > 0}"


def http(data: bytes) -> str:
    """However the bytes are cut, the answers are the same; nothing is raised, nothing is written after the end."""
    cut = 1 + len(data) % 7
    whole, pieces = Client(FakeKernel()), Client(FakeKernel())
    whole.send(data)
    for at in range(0, len(data), cut):
        pieces.send(data[at : at + cut])
    first, second = whole.take(), pieces.take()
    assert first == second, f"{first[:200]!r} whole, {second[:200]!r} in pieces"
    return first[:40].decode("latin-1")


def body(data: bytes) -> str:
    """JSON is read as Python's own parser does, or refused; what both read is the same."""
    try:
        expected: Any = json.loads(data, parse_constant=_refuse, object_pairs_hook=_single)
    except (ValueError, RecursionError):
        expected = _refuse
    try:
        found = decode(data, 1 << 16)
    except ServingError as error:
        return error.message[:30]
    if expected is not _refuse and isinstance(expected, dict) and _plain(expected):
        assert found == expected, f"{found!r} is read, Python's own parser reads {expected!r}"
    return f"read {type(found).__name__} {len(found)}"


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _single(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two members of one name counts, parsers see differently."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("doubled")
    return dict(pairs)


def _plain(value: Any, depth: int = 0) -> bool:
    """Whether the value has nothing on which parsers may differ: doubled members are lost by then, numbers may be too large."""
    if depth > 50:
        return False
    if isinstance(value, dict):
        return all(_plain(one, depth + 1) for one in value.values())
    if isinstance(value, list):
        return all(_plain(one, depth + 1) for one in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def blocks(data: bytes) -> str:
    """Header blocks say what the library `hpack` reads in them, or end the connection."""
    ours, theirs = Blocks(), hpack.Decoder(2**16)
    theirs.max_allowed_table_size = 4096
    count = 0
    for block in data.split(b"\xff\xfe"):
        try:
            fields = ours._read(block)[0]
        except (ConnectionFailure, IndexError, ValueError) as error:
            return type(error).__name__
        try:
            expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            return "they refuse it"
        assert [tuple(field[:2]) for field in fields] == expected, f"{fields} is read, the library reads {expected}"
        count += len(fields)
    return f"read {count}"


def frames(data: bytes) -> str:
    """Frames are taken, or end the connection with one GOAWAY; cut anywhere the server says the same."""
    cut = 1 + len(data) % 11
    whole, pieces = Wire(), Wire()
    whole.send(data)
    pieces.send(*(data[at : at + cut] for at in range(0, len(data), cut)))
    assert whole.connection.ending.closed == pieces.connection.ending.closed, "it ends, or doesn't, as it is cut"
    assert {id: stream.data for id, stream in whole.opened.items()} == {id: one.data for id, one in pieces.opened.items()}
    failure = whole.connection.ending.failure
    return f"{len(whole.opened)} {failure[1][:30] if failure else ''}"


def infer(data: bytes) -> str:
    """What is told apart by hand is the message that the library reads."""
    parts = split(data, 1000)
    if parts is None:
        return "not by hand"
    names, options, tensors, raws = parts
    assert 0 <= names <= options <= tensors <= len(data)
    try:
        message = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return "broken"
    assert list(message.raw_input_contents) == [bytes(raw) for raw in raws]
    record = pb.ModelInferRequest.FromString(data[:tensors])
    assert record.id == message.id and len(record.inputs) == len(message.inputs)
    return f"{len(message.inputs)} {len(raws)}"


SHARED = SharedMemory(True)
OBJECT = f"fuzz_object_{os.getpid()}"


def shared(data: bytes) -> str:
    """No key leads to anything but the one object that is there, and nothing beyond its end is registered.

    Lines: key, offset, byte size.
    """
    key, *numbers = data.decode("utf-8", "surrogateescape").split("\n")
    offset, size = ([int(text) for text in numbers[:2] if re.fullmatch(r"-?[0-9]{1,25}", text, re.ASCII)] + [0, 1])[:2]
    try:
        SHARED.register("fuzz", key, offset, size)
    except (ServingError, UnicodeError) as error:
        words = str(error).replace(key, "KEY") if key else str(error)
        return re.sub(r"\d+", "0", words)[:100]
    SHARED.unregister("fuzz")
    assert key.lstrip("/") == there().name.lstrip("/"), f"{key!r} was opened"
    assert 0 <= offset < offset + size <= there().size, f"{size} bytes from {offset} on were registered"
    return "opened"


@functools.cache
def there() -> SharedMemoryObject:
    """Return the one object that there is."""
    there = SharedMemoryObject(OBJECT, create=True, size=4096)
    atexit.register(there.unlink)
    return there


def trace(data: bytes) -> str:
    """Trace settings are taken or refused in words; what stands is what can be at work."""
    trace_settings = TraceSettings(lambda name: True)
    try:
        text = data.decode()
        parts = [part.split("\x1f") for part in text.split("\n")]
        trace_settings.update({name: values for name, *values in parts})
    except UnicodeError:
        return "no text"
    except ServingError as error:
        return re.sub(r"\d+", "0", error.message)[:60]
    shown = trace_settings.shown()
    assert int(str(shown["trace_rate"])) >= 0 and int(str(shown["trace_count"])) >= -1
    return "taken"


CONFIG = (
    b'backend: "python" max_batch_size: 4\ninput [ { name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]\n'
    b"dynamic_batching { preferred_batch_size: [ 2 ] default_queue_policy { timeout_action: REJECT } }\n",
    b'parameters { key: "a" value: { string_value: "b\\n\\x41" } } # comment\nversion_policy: { specific { versions: [1, 2] } }',
)
HEADS = (
    b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v2/models/types/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v2/models/types/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"POST /v2/models/types/infer HTTP/1.0\r\nInference-Header-Content-Length: 1\r\nConnection: keep-alive\r\n\r\n",
)
BODY = b'{"id":"a","inputs":[{"name":"X","datatype":"FP32","shape":[2],"data":[1.5,-2e3]}],"parameters":{"x":true,"y":null}}'
FRAMES = (
    request(1) + data(1, b"abc", end=True) + ping() + settings((4, 100)),
    request(1) + rst_stream(1) + request(3, end=True) + window_update(0, 5),
)
BLOCKS = (b"\x82\x86\x84\x41\x0fwww.example.com", b"\x40\x01a\x01b\xff\xfe\xbe")
TRACES = (b"trace_rate\x1f10\ntrace_level\x1fTIMESTAMPS",)
MESSAGE = pb.ModelInferRequest(model_name="m", id="7", raw_input_contents=[b"abcd", b""])
MESSAGE.inputs.add(name="X", datatype="FP32", shape=[1])

CONFIG_WORDS = b"{ } [ ] : \" \\ # , ; < > input dims: -1 1e9 0x7 name: key: true TYPE_FP32".split()
JSON_WORDS = b"{ } [ ] , : \" \\u0041 \\ud800 NaN 1e400 -0 0.1 true null 18446744073709551615".split()
HEAD_WORDS = (b"\r\n", b": ", b"Content-Length", b"Host", b"%2e%2e/", b"HTTP/1.1", b"\0", b"Expect", b"\n", b"Transfer-Encoding")
SHARED_WORDS = (b"/", b"..", b"\0", b".", b"\n", OBJECT.encode(), b"/dev/shm/", b"-1", b"4096", b"18446744073709551615")
TARGETS: dict[str, Target] = {
    "config": Target(config, CONFIG, (*CONFIG_WORDS, b"\n")),
    "child": Target(child, (wire.frame((1, wire.GREETING, {"a": 1})), wire.frame((13, 1, 0.5)) * 2), (b"(", b"r\0\0\0\0")),
    "head": Target(head, HEADS[:2], HEAD_WORDS),
    "http": Target(http, HEADS, (b"\r\n\r\n", b"Transfer-Encoding: chunked", b"0\r\n\r\n", *HEADS)),
    "body": Target(body, (BODY, b"{}"), tuple(JSON_WORDS)),
    "blocks": Target(blocks, BLOCKS, (b"\xff\xfe", b"\x3f\xe1\x1f")),
    "frames": Target(frames, FRAMES, (PREFACE, *FRAMES, settings(), window_update(1, 2**31 - 1))),
    "infer": Target(infer, (MESSAGE.SerializeToString(),), (b"\x0a\x01m", b"\x3a\x04abcd", b"\x2a", b"\xff\xff\xff\xff\x0f")),
    "shared": Target(shared, (b"/%b\n0\n64" % OBJECT.encode(), b"../../etc/passwd", b"nothing\n1\n1"), SHARED_WORDS),
    "far end": Target(far_end.calls, far_end.CALLS, far_end.CALLS_WORDS),
    "answers": Target(far_end.answers, far_end.ANSWERS, (b"\x32\x04abcd", b"\x2a", b"\x18\x02", b"BYTES", b"\xff\xff\xff\x0f")),
    "trace": Target(trace, TRACES, (b"\x1f", b"\n", b"trace_file", b"trace_count", b"trace_level", b"-1")),
}

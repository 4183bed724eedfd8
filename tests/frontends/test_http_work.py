"""Twice the bytes, at most two and a half times the work: of the parsers of heads, chunks and JSON, whatever they are sent.

Work is counted in instructions of the interpreter and in bytes that are allocated at a time. What a regular expression does is
not seen by that; so the texts are so long that quadratic work within one would take hours.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from frontends.fakes import Client, request
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import ServingError
from kernel_http.connection.bodies import ChunkedBody, ChunkError, Oversize
from kernel_http.connection.heads import Head, HeadError, parse_head
from kernel_http.connection.routes import ROUTES
from kernel_http.inference.body import decode
from kernel_http.json.errors import read_again
from kernel_http.json.large import IN_DATA, decode_large, weight_above

#: What does not grow with the input: instructions, bytes.
INSTRUCTIONS = 2000
MEMORY = 256 * 1024

GROWTH = 2.5
REFUSED = (ServingError, HeadError, ChunkError, Oversize, ValueError, RecursionError)

JSON_PIECES = [
    b"[", b"]", b"{", b"}", b'"', b"\\", b'\\"', b"\\\\", b",", b":", b" ", b"1", b"-", b"0.1", b"e", b"1e9", b"1e999", b"NaN",
    b"null", b'"a"', b'"a":', b'"data":[', b'"inputs":[', b"\\ud800", b"\\u12", b"\xff", "é".encode(), b"\x00", b"\n", b"1,",
    b"[1],", b"{}", b'"",',
]  # fmt: skip
CHUNK_PIECES = [
    b"1\r\nx\r\n", b"1;a=b\r\nx\r\n", b"10\r\n" + b"y" * 16 + b"\r\n", b"0001\r\nx\r\n",
    b"1;" + b"e" * 200 + b"\r\nx\r\n",
]  # fmt: skip
FIELD_PIECES = [
    b"a:\r\n", b"Accept-Encoding: gzip, deflate\r\n", b"Connection: a, b\r\n", b"a: " + b"b" * 90 + b"\r\n", b"a: b,c,d\r\n",
]  # fmt: skip


def instructions_of(function: Callable[[], Any]) -> int:
    """Return how many instructions of the interpreter it takes. The second of two calls counts: some things happen once."""
    traced(function)
    return traced(function)


def traced(function: Callable[[], Any]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(*REFUSED):
            function()
    finally:
        sys.settrace(before)
    return count


def memory_of(function: Callable[[], Any]) -> int:
    """Return how many bytes it has allocated at most at a time."""
    tracemalloc.start()
    try:
        with suppress(*REFUSED):
            function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def held(function: Callable[[bytes], Any], make: Callable[[int], bytes], size: int) -> None:
    once, twice = make(size), make(2 * size)
    assert instructions_of(lambda: function(twice)) <= GROWTH * instructions_of(lambda: function(once)) + INSTRUCTIONS
    assert memory_of(lambda: function(twice)) <= GROWTH * memory_of(lambda: function(once)) + MEMORY


def repeated(pieces: list[bytes], start: bytes = b"", end: bytes = b"") -> Callable[[int], bytes]:
    unit = b"".join(pieces)
    return lambda size: start + unit * (size // len(unit)) + end


READERS: dict[str, Callable[[bytes], Any]] = {
    "decode": lambda data: decode(data, 2**20),
    "read_again": read_again,
    "decode_large": lambda data: decode_large(data, 2**20, lambda value, text: False, dict, cut=IN_DATA),
    "weight_above": lambda data: weight_above(data, 100),
}


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=40, deadline=None)
@given(
    unit=st.lists(st.sampled_from(JSON_PIECES), min_size=1, max_size=4),
    start=st.sampled_from([b"", b"[", b'{"a":', b'{"a":"', b'[NaN,"', b'{"inputs":[{"data":[', b'[NaN,0.']),
    end=st.sampled_from([b"", b"]", b"}", b'"', b"x", b']}]}', b"1e400"]),
)
@example(unit=[b"1"], start=b"[NaN,0.", end=b"]")
@example(unit=[b"\\"], start=b'[NaN,"', end=b"")
@example(unit=[b'\\"'], start=b'[NaN,"', end=b"x")
@example(unit=[b"[1],"], start=b"[", end=b"")
@example(unit=[b'"",'], start=b"[NaN,", end=b"x")
def test_json(reader: str, unit: list[bytes], start: bytes, end: bytes) -> None:
    held(READERS[reader], repeated(unit, start, end), 20_000)
    with suppress(*REFUSED):
        READERS[reader](repeated(unit, start, end)(400_000))


@settings(max_examples=40, deadline=None)
@given(unit=st.lists(st.sampled_from(CHUNK_PIECES), min_size=1, max_size=4), read=st.sampled_from([1, 7, 100, 65536]))
def test_chunks(unit: list[bytes], read: int) -> None:
    def fed(data: bytes) -> None:
        body = ChunkedBody(Head(b""), 2**20, 2**20)
        whole = bytearray(data)
        at = 0
        while at < len(whole):
            end = min(at + read, len(whole))
            while at < end:
                at = body.feed(whole, at, end)
        body.parts()

    held(fed, repeated(unit), 3000)


@settings(max_examples=40, deadline=None)
@given(unit=st.lists(st.sampled_from(FIELD_PIECES), min_size=1, max_size=4))
def test_heads(unit: list[bytes]) -> None:
    held(parse_head, repeated(unit, b"GET /v2 HTTP/1.1\r\nHost: a\r\n", b"\r\n"), 8000)


@pytest.mark.parametrize("value", [b",", b"gzip,", b";", b"q=", b"a" * 10, b"gzip;q=0.5,"])
@pytest.mark.parametrize("name", [b"Accept-Encoding", b"Connection", b"Transfer-Encoding", b"X"])
def test_one_long_field(name: bytes, value: bytes) -> None:
    def make(size: int) -> bytes:
        return b"GET /v2 HTTP/1.1\r\nHost: a\r\n" + name + b": " + value * (size // len(value)) + b"\r\n\r\n"

    held(parse_head, make, 16_000)
    assert instructions_of(lambda: parse_head(make(60_000))) < 20_000


@pytest.mark.parametrize("piece", [b"/", b"a", b"%41", b"/v2/models", b"?"])
def test_one_long_path(piece: bytes) -> None:
    held(parse_head, lambda size: b"GET /v2/models/" + piece * (size // len(piece)) + b" HTTP/1.1\r\nHost: a\r\n\r\n", 16_000)


def test_no_route_tries_a_character_of_a_name_twice() -> None:
    """Each of two dozen would, of a name of 60 KB: 12 ms for one request."""
    assert not [route.pattern for route in ROUTES if re.search(r"\][+*](?!\+)", route.pattern)]


def test_what_operations_take_is_counted() -> None:
    """So that a client which asks for many of them gets some in a turn of the loop, not all."""
    client = Client()
    client.server.spend = spent = Recorder()
    for path, method in (("/v2/models/stats", "GET"), ("/v2/logging", "GET"), ("/v2/repository/index", "POST")):
        client.ask(request(method, path))
        assert spent and spent.pop() > 2
    assert client.ask(request("GET", "/v2/health/live")).status == 200 and not spent


class Recorder(list[int]):
    def __call__(self, units: int) -> None:
        self.append(units)


def test_broken_json_is_let_go() -> None:
    """What is raised keeps no text, not even until the collector comes."""
    gc.collect()
    gc.disable()
    try:
        for text in (b'{"a":}', '{"\u00e9":}'.encode(), b"[1 2]", b"nope"):
            with suppress(ServingError):
                read_again(text)
        assert not [one for one in gc.get_objects() if isinstance(one, json.JSONDecodeError)]
    finally:
        gc.enable()

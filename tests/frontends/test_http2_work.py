"""HTTP/2, HPACK and gRPC's framing: twice the bytes are at most two and a half times the work, whatever they are."""

from __future__ import annotations

import gzip
import os
from typing import Any

import pytest
from frontends.callers import Caller, close_loops, message
from frontends.wires import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PADDED,
    PREFACE,
    REQUEST,
    Wire,
    block,
    data,
    frame,
    ping,
    request,
    rst_stream,
    settings,
    window_update,
)
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from work import instructions, is_linear

from kernel_grpc.http2 import fields
from kernel_grpc.http2.blocks import Blocks
from kernel_grpc.http2.errors import ConnectionFailure
from kernel_grpc.rpc.compression import unpacked

#: What may be sent again and again: count -> bytes.
PIECES: dict[str, Any] = {
    "window updates": lambda count: window_update(0, 1) * count,
    "window updates of a stream": lambda count: window_update(1, 1) * count,
    "window updates that are late": lambda count: window_update(3, 1) * count,
    "pings": lambda count: ping() * count,
    "settings": lambda count: settings((4, 65535)) * count,
    "entries of settings": lambda count: settings(*[(9, k) for k in range(count)]),
    "data by the byte": lambda count: data(1, b"x") * count,
    "padding": lambda count: frame(DATA, PADDED, 1, b"\x01x\0") * count,
    "empty data": lambda count: data(1) * count,
    "one long frame": lambda count: data(1, bytes(100 * count)),
    "unknown frames": lambda count: frame(0x99, 0, 0, bytes(20)) * count,
    "calls": lambda count: b"".join(request(5 + 2 * k, end=True) for k in range(count)),
    "calls of one block each": lambda count: b"".join(request(5 + 2 * k, end=True, k=str(k)) for k in range(count)),
    "resets": lambda count: b"".join(request(5 + 2 * k) + rst_stream(5 + 2 * k) for k in range(count)),
    "provoked resets": lambda count: b"".join(request(5 + 2 * k) + window_update(5 + 2 * k, 0) for k in range(count)),
    "fields": lambda count: frame(HEADERS, END_HEADERS | END_STREAM, 5, block([*REQUEST, *[("k", "v")] * count])),
    "continuation": lambda count: frame(HEADERS, END_STREAM, 5, block(REQUEST))
    + frame(CONTINUATION, 0, 5, b"") * (count // 20)
    + frame(CONTINUATION, END_HEADERS, 5, b""),
    "gaps": lambda count: b"".join(request(5 + 4 * k, end=True) for k in range(count)),
}  # fmt: skip


@pytest.mark.parametrize("what", PIECES)
@pytest.mark.parametrize("size", [1, 16, 10**9], ids=lambda size: f"by {size}")
def test_frames(what: str, size: int) -> None:
    """In one read, and in many."""

    def send(payload: bytes) -> None:
        wire = Wire()
        wire.send(request(1) + request(3, end=True))
        wire.opened[3].end(b"\x88")
        wire.frames()
        wire.send(*[payload[at : at + size] for at in range(0, len(payload), size)])

    few = 200 if size > 1 else 40
    once, twice = PIECES[what](few), PIECES[what](2 * few)
    assert is_linear(send, once, twice)


#: A turn's frames at their dearest, in instructions of ours: a header list that is longer than allowed. What a call's method does
#: comes besides.
DEAREST = 350_000


@pytest.mark.parametrize("what", PIECES)
def test_one_turn_of_the_loop(what: str) -> None:
    """However much has come in one read, one turn's work on it has a bound."""
    wire = Wire()
    wire.send(request(1) + request(3, end=True))
    wire.opened[3].end(b"\x88")
    wire.frames()
    payload = PIECES[what](3000)
    assert instructions(lambda: wire.connection.receive(payload, wire.now)) < DEAREST


BLOCKS: dict[str, Any] = {
    "indexed": lambda count: b"\x90" * count,
    "literals": lambda count: b"\x00\x01a\x01b" * count,
    "entries that push others out": lambda count: b"\x40\x01a\x01b" * count,
    "a long text": lambda count: b"\x00\x01a\x7f" + number(100 * count - 127) + b"x" * (100 * count),
    "a long text of Huffman's": lambda count: b"\x00\x01a\xff" + number(5 * count * 3 - 127) + b"\x1c\x71\xc7" * (5 * count),
    "metadata": lambda count: block([(f"k{k}", "v") for k in range(count)]),
}  # fmt: skip


def number(value: int) -> bytes:
    groups = bytearray()
    while value >= 128:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


@pytest.mark.parametrize("what", BLOCKS)
def test_header_blocks(what: str) -> None:
    def decode(payload: bytes) -> None:
        fields._WELL_FORMED.clear()
        Blocks().decode(payload)

    assert is_linear(decode, BLOCKS[what](200), BLOCKS[what](400))


@examples(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_header_blocks_of_any_bytes(payload: bytes) -> None:
    """None costs more than so much a byte: at most an entry that pushes others out, of two bytes."""

    def decode() -> None:
        try:
            Blocks().decode(payload)
        except ConnectionFailure:
            pass

    assert instructions(decode) <= 600 + 200 * len(payload)


@examples(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([piece(3) for piece in PIECES.values()] + [b"\0", b"\xff", b"\1\2\3"]), max_size=10))
def test_frames_of_any_kind(pieces: list[bytes]) -> None:
    """Whatever comes one after the other, a byte costs no more than so much."""
    wire = Wire()
    wire.send(request(1))
    payload = b"".join(pieces)
    assert instructions(lambda: wire.send(payload)) <= 3000 + 150 * len(payload)


# --- messages


@pytest.mark.parametrize("size", [1, 7, 10**9], ids=lambda size: f"by {size}")
@pytest.mark.parametrize("kind", ["one message", "many messages"])
def test_messages(kind: str, size: int) -> None:
    def send(count: int) -> None:
        caller = Caller()
        id = caller.begin("Chat")
        body = message(bytes(10 * count)) if kind == "one message" else message(b"abcde") * count
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        caller.send(b"".join(data(id, piece) for piece in pieces))
        close_loops()

    assert is_linear(send, 60, 120)


def test_unpacking() -> None:
    """In its size packed, and unpacked."""
    packed = [gzip.compress(os.urandom(size)) for size in (3_000_000, 6_000_000)]
    assert is_linear(lambda payload: unpacked(payload, "gzip", 2**31), *packed)
    packed = [gzip.compress(bytes(size)) for size in (30_000_000, 60_000_000)]
    assert is_linear(lambda payload: unpacked(payload, "gzip", 2**31), *packed)


def test_the_preface_by_the_byte() -> None:
    wire = Wire(greet=False)
    payload = PREFACE + settings()
    assert instructions(lambda: wire.send(*[payload[k : k + 1] for k in range(len(payload))])) < 200 * len(payload)

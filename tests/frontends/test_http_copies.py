"""Nothing large is copied, joined or decoded at a time, on the loop or beside it: the loop would wait for that."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
from typing import Any

import numpy as np
import pytest
from frontends.fakes import Client, infer, parse, tensor
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import ServingError
from kernel_http.connection import bodies, compression
from kernel_http.connection.bodies import Body, ChunkedBody
from kernel_http.connection.compression import compressed, decompressed
from kernel_http.connection.heads import CHUNKED, Head
from kernel_http.inference import encode, reader
from kernel_http.json.arrays import PIECE, json_of, json_pieces
from kernel_http.operations import admin

MB = 1024 * 1024


def head_of(length: int, split: int | None = None) -> Head:
    head = Head(b"")
    head.content_length = length
    head.json_length = split
    return head


@pytest.mark.parametrize("split", [None, MB // 2])
def test_large_json_is_handed_over_as_it_lies(split: int | None) -> None:
    body = Body(head_of(MB, split), 4 * MB, bytearray(64))
    bottom = body._buffer
    body.feed(bytearray(MB), 0, MB)
    assert body.parts()[0] is bottom
    small = Body(head_of(100), 4 * MB, bytearray(64))
    small.feed(bytearray(100), 0, 100)
    assert type(small.parts()[0]) is bytes


@pytest.mark.parametrize("split", [None, 0, 10, MB, 2 * MB, 3 * MB])
def test_what_came_in_chunks_is_too(split: int | None) -> None:
    body = ChunkedBody(head_of(CHUNKED, split), 4 * MB, 4 * MB)
    content = np.random.default_rng(1).bytes(2 * MB)
    chunks = bytearray(b"%x\r\n%b\r\n" % (MB + 5, content[: MB + 5]) + b"%x\r\n%b\r\n0\r\n\r\n" % (MB - 5, content[MB + 5 :]))
    at = 0
    while not body.complete:
        at = body.feed(chunks, at, min(at + 65_536, len(chunks)))
    first, tail = body.parts()
    end = 2 * MB if split is None else min(split, 2 * MB)
    assert (bytes(first), bytes(tail)) == (content[:end], content[end:])
    assert tail is body.tail
    assert first is body.content or end <= bodies.COPIED


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 80), st.integers(0, 90))
def test_what_is_unpacked_lands_in_two_parts(content: bytes, split: int, limit: int, cut: int) -> None:
    packed = gzip.compress(content, mtime=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "PIECE", 7)
        parts = packed[:cut], memoryview(bytearray(packed[cut:]))
        if len(content) > limit:
            with pytest.raises(ServingError, match="exceeds the maximum allowed input size"):
                decompressed(parts, limit, split)
        else:
            assert decompressed(parts, limit, split) == (content[:split], content[split:])
        with pytest.raises(ServingError, match=r"exceeds|bytes behind its end"):
            decompressed((packed, b"x"), limit, split)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_what_is_packed_is_what_was_to_be_sent(parts: list[bytes]) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % sum(map(len, parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "PIECE", 16)
        payload = compressed([head, *parts], "gzip")
    whole = payload if isinstance(payload, bytes) else b"".join(payload)
    start, _, body = whole.partition(b"\r\n\r\n")
    assert gzip.decompress(body) == b"".join(parts)
    assert start.endswith(b"Content-Encoding: gzip\r\nContent-Length: %d" % len(body))


@settings(max_examples=300, deadline=None)
@given(st.text("Az0+/=\n é", max_size=30))
@example("QQ==QQ==")
@example("QUJD" * 6 + "QQ==")
@example("QUJD" * 4 + "Q===")
@example("QUJD" * 2 + "=")
def test_base64_is_read_in_pieces(text: str) -> None:
    def outcome(decode: Any, text: Any) -> Any:
        try:
            return decode(text)
        except (binascii.Error, ValueError):
            return None

    data = text.encode()
    expected = outcome(lambda text: base64.b64decode(text, validate=True), text)
    for size in (1, 3, 8, 100):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert outcome(lambda pieces: admin.decoded_base64(pieces, len(data)), pieces) == expected


def test_a_large_answer_in_json_is_never_one_piece() -> None:
    array = np.arange(5 * PIECE // 2, dtype=np.float32)
    pieces = json_pieces("Y", "FP32", array)
    assert len(pieces) == 4 and b"".join(pieces) == json_of("Y", "FP32", array)
    assert json.loads(b"".join(pieces)) == array.tolist()


@pytest.mark.parametrize("coding", ["", "Accept-Encoding: gzip"])
def test_large_answers_of_both_kinds_are_sent_in_pieces(coding: str) -> None:
    """JSON data, binary data and strings, in one answer."""
    client = Client()
    count = 3 * encode.VALUES_ON_LOOP
    floats = np.arange(count, dtype=np.float32)
    inputs = [
        tensor("IN_FP32", "FP32", [count], binary_data_size=4 * count),
        tensor("IN_INT32", "INT32", [2], [1, 2]),
        tensor("IN_BYTES", "BYTES", [2], ["a", "bc"]),
    ]
    binary = [{"name": f"OUT_{one}", "parameters": {"binary_data": True}} for one in ("INT32", "BYTES")]
    outputs = [{"name": "OUT_FP32"}, *binary]
    text = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    headers = [f"Inference-Header-Content-Length: {len(text)}", coding]
    client.send(infer("types", text + floats.tobytes(), *filter(None, headers)))
    client.kernel.loop.run_jobs()
    (response,) = parse(client.take())
    assert response.status == 200
    body = gzip.decompress(response.body) if coding else response.body
    size = int(response.headers["Inference-Header-Content-Length"])
    (first,) = [one for one in json.loads(body[:size])["outputs"] if one["name"] == "OUT_FP32"]
    assert first["data"] == floats.tolist()
    assert body[size:] == b"\1\0\0\0\2\0\0\0" + b"\1\0\0\0a\2\0\0\0bc"


def test_a_large_tensor_that_is_not_aligned_is_copied_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "COPIED", 1000)
    client = Client()
    inputs = [tensor("IN_UINT8", "UINT8", [1], binary_data_size=1), tensor("IN_FP32", "FP32", [300], binary_data_size=1200)]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    floats = np.arange(300, dtype=np.float32).tobytes()
    client.send(infer("types", text + b"\7" + floats, f"Inference-Header-Content-Length: {len(text)}"))
    assert client.take() == b"" and len(client.kernel.loop.jobs) == 1
    client.kernel.loop.run_jobs()
    (response,) = parse(client.take())
    assert floats in response.body

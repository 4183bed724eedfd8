"""Compressed requests and answers (http_protocol 7; reported case BC51)."""

from __future__ import annotations

import gzip
import json
import zlib

import numpy as np
import pytest
from frontends.fakes import Client, add_sub, infer, parse, request, tensor

from kernel_http.connection.compression import accepted

X = {"inputs": [tensor("X", "FP32", [1, 2], [1, 2])]}
BODY = json.dumps(X).encode()
PACK = {"gzip": gzip.compress, "deflate": zlib.compress, "GZIP": gzip.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.mark.parametrize("coding", PACK)
def test_requests(client: Client, coding: str) -> None:
    packed = PACK[coding](BODY)
    for _ in range(2):
        response = client.ask(infer("batch8", packed, f"Content-Encoding: {coding}"))
        assert response.json["outputs"][0]["data"] == [1.0, 2.0]
        assert "Content-Encoding" not in response.headers


@pytest.mark.parametrize("coding", ["", "identity"])
def test_identity(client: Client, coding: str) -> None:
    assert client.ask(infer("batch8", X, f"Content-Encoding: {coding}")).status == 200


@pytest.mark.parametrize("count", [2, 4000])
def test_header_length_is_that_of_what_was_compressed(client: Client, count: int) -> None:
    head = json.dumps({"inputs": [tensor("IN_FP32", "FP32", [count], binary_data_size=4 * count)],
                       "parameters": {"binary_data_output": True}}).encode()  # fmt: skip
    tail = np.arange(count, dtype=np.float32).tobytes()
    length = f"Inference-Header-Content-Length: {len(head)}"
    packed = gzip.compress(head + tail)
    response = client.ask(infer("types", packed, length, "Content-Encoding: gzip"))
    assert response.body.endswith(tail)
    assert client.kernel.requests[-1].inputs["IN_FP32"].array.flags.writeable
    response = client.ask(infer("types", packed, length, "Content-Encoding: gzip", "Accept-Encoding: deflate"))
    whole = zlib.decompress(response.body)
    size = int(response.headers["Inference-Header-Content-Length"])
    assert whole[size:] == tail and json.loads(whole[:size])["outputs"][0]["shape"] == [count]
    response = client.ask(infer("types", packed, "Inference-Header-Content-Length: 99999", "Content-Encoding: gzip"))
    assert response.error == f"inference header size should be in range (0, {len(head + tail)}), got: 99999"


def test_compressed_raw_request(client: Client) -> None:
    packed = zlib.compress(np.array([1, 2], np.float32).tobytes())
    response = client.ask(infer("multi", packed, "Inference-Header-Content-Length: 0", "Content-Encoding: deflate"))
    assert response.status == 200 and response.body.endswith(np.array([1, 2], np.float32).tobytes())


@pytest.mark.parametrize("coding", ["br", "gzip, deflate", "x-gzip"])
def test_unsupported(client: Client, coding: str) -> None:
    response = client.ask(infer("batch8", X, f"Content-Encoding: {coding}"))
    assert (response.status, response.error) == (501, "Unsupported compression type")
    assert response.headers["Accept-Encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (BODY, "the compressed request can't be read: Error -3 while decompressing data: incorrect header check"),
        (gzip.compress(BODY, mtime=0)[:-10], "the compressed request can't be read: it is cut off"),
        (gzip.compress(BODY, mtime=0) + b"xx", "the compressed request can't be read: there are bytes behind its end"),
        (b"", "nothing to be decompressed"),
    ],
)
def test_corrupt(client: Client, body: bytes, words: str) -> None:
    response = client.ask(infer("batch8", body, "Content-Encoding: gzip"))
    assert (response.status, response.error) == (400, words)
    assert client.ask(infer("batch8", X)).status == 200


def test_bounded(client: Client) -> None:
    client = Client(max_input_size=1000)
    words = (
        "the decompressed request exceeds the maximum allowed input size of 1000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    for size in (1001, 500_000):
        response = client.ask(infer("batch8", gzip.compress(b" " * size), "Content-Encoding: gzip"))
        assert (response.status, response.error) == (400, words)
    assert client.ask(infer("batch8", gzip.compress(BODY.ljust(1000)), "Content-Encoding: gzip")).status == 200


def test_checks_come_first(client: Client) -> None:
    assert client.ask(infer("nope", b"?", "Content-Encoding: gzip")).status == 404
    assert client.ask(infer("gen", b"?", "Content-Encoding: br")).error.startswith("HTTP end point doesn't")


@pytest.mark.parametrize("coding", UNPACK)
def test_answers(client: Client, coding: str) -> None:
    plain = client.ask(infer("batch8", X))
    response = client.ask(infer("batch8", X, f"Accept-Encoding: {coding}"))
    assert response.names == ["Content-Type", "Content-Encoding", "Content-Length"]
    assert response.headers["Content-Encoding"] == coding
    assert UNPACK[coding](response.body) == plain.body


def test_large_binary_answer(client: Client) -> None:
    array = np.zeros(50_000, np.float32)
    body = {"inputs": [tensor("IN_FP32", "FP32", [50_000], array.tolist())], "parameters": {"binary_data_output": True}}
    response = client.ask(infer("types", body, "Accept-Encoding: gzip"))
    assert len(response.body) < 10_000 and gzip.decompress(response.body).endswith(array.tobytes())


def huge(client: Client) -> None:
    array = np.zeros(100_000, np.float32)
    body = {"inputs": [tensor("IN_FP32", "FP32", [100_000], array.tolist())], "parameters": {"binary_data_output": True}}
    client.send(infer("types", body, "Accept-Encoding: gzip"))
    client.kernel.loop.run_jobs()  # reads it


def test_huge_answers_are_compressed_elsewhere_and_keep_their_place(client: Client) -> None:
    huge(client)
    client.send(infer("batch8", X))
    assert client.take() == b""
    client.kernel.loop.run_jobs()
    first, second = parse(client.take())
    assert len(gzip.decompress(first.body)) > 400_000 and second.json["outputs"][0]["data"] == [1.0, 2.0]


def test_huge_answers_of_who_has_gone_or_that_fail(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    huge(client)
    client.lose()
    client.kernel.loop.run_jobs()
    assert client.take() == b""
    other = Client()
    monkeypatch.setattr("kernel_http.inference.answers.compressed", lambda payload, coding: 1 / 0)
    huge(other)
    other.kernel.loop.run_jobs()
    (response,) = parse(other.take())
    assert (response.status, response.error) == (500, "the response can't be compressed: ZeroDivisionError: division by zero")


def test_errors_and_other_answers_are_never_compressed(client: Client) -> None:
    for message in (
        infer("batch8", b"{", "Accept-Encoding: gzip"),
        infer("nope", X, "Accept-Encoding: gzip"),
        request("GET", "/v2", b"", "Accept-Encoding: gzip"),
        infer("types", {"inputs": [tensor("IN_FP32", "FP32", [1], [1])],
                        "outputs": [{"name": "OUT_FP32", "parameters": {"classification": 1}}]}),
        request("POST", "/v2/models/multi/generate", b'{"X":[1,2]}', "Accept-Encoding: gzip"),
    ):  # fmt: skip
        response = client.ask(message)
        assert "Content-Encoding" not in response.headers and response.json


def test_known_requests_beside_compressed_ones(client: Client) -> None:
    """What the connection remembers of plain requests has nothing to do with the others."""
    plain = add_sub([1, 2, 3, 4], [1, 1, 1, 1])
    wanted = plain.replace(b"Host: test\r\n", b"Host: test\r\nAccept-Encoding: gzip\r\n")
    client.send(plain + wanted + plain + wanted + plain)
    one, two, three, four, five = parse(client.take())
    assert one.body == three.body == five.body == gzip.decompress(two.body) == gzip.decompress(four.body)


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip ;q=0.3,deflate; q=0.9", "deflate"),
        ("identity, gzip", ""),
        ("identity;q=0.5, gzip;q=0.6", "gzip"),
        ("gzip;q=0", ""),
        ("gzip;q=x", ""),
        ("gzip;q=nan, deflate;q=0.1", "deflate"),
        ("br, *, gzip;q=0.1", "gzip"),
        ("*", ""),
        ("", ""),
        (",;,", ""),
        ("GZIP", "gzip"),
    ],
)
def test_accept_encoding(header: str, coding: str) -> None:
    assert accepted(header) == coding

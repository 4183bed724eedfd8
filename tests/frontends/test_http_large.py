"""Large JSON: read on another thread, with work in proportion to its size, a limit on its values, and the words of small JSON."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import tracemalloc
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from frontends.fakes import Client, Spec, config, infer, parse, request, tensor

from kernel import MemoryBudget, ServingError, pack_bytes
from kernel_http.inference.body import decode as decode_body
from kernel_http.json import arrays, large
from kernel_http.json.arrays import TEXT_PIECE
from kernel_http.json.errors import first_wins, read_again
from kernel_http.json.large import (
    CALL_VALUES,
    IN_DATA,
    LARGE,
    ONE_CALL,
    SLOW_CALL,
    LongArray,
    decode_large,
    weight_above,
)
from kernel_http.json.text import PIECE, WINDOW
from kernel_http.operations import admin

COUNT = 100_000


def flat(text: str, count: int = COUNT, datatype: str = "FP32") -> bytes:
    return (
        f'{{"inputs":[{{"name":"IN_{datatype}","datatype":"{datatype}","shape":[{count}],"data":[{text}]}}],'
        '"parameters":{"binary_data_output":true}}'
    ).encode()


def read(data: bytes, limit: int = 2**20) -> Any:
    return decode_large(data, limit, lambda value, text: text.count(b'"a"') > 1, first_wins, cut=IN_DATA)


@pytest.fixture
def client() -> Client:
    return Client()


# --- off the loop


def test_a_large_request_is_read_on_another_thread_and_keeps_its_place(client: Client) -> None:
    client.send(infer("types", flat(",".join(["1.5"] * COUNT))))
    client.send(request("GET", "/v2/health/live"))
    assert client.take() == b"" and len(client.kernel.loop.jobs) == 1
    client.kernel.loop.run_jobs()
    first, second = parse(client.take())
    assert first.body.endswith(np.full(COUNT, 1.5, np.float32).tobytes())
    assert second.body == b""


def test_nobody_is_asked_for_a_client_that_has_gone_meanwhile(client: Client) -> None:
    client.send(infer("types", flat(",".join(["1.5"] * COUNT))))
    client.lose()
    client.kernel.loop.run_jobs()
    assert not client.kernel.requests


def test_generate_reads_large_bodies_there_too(client: Client) -> None:
    client.send(request("POST", "/v2/models/multi/generate", b'{"X":[1,2]' + b" " * LARGE + b"}"))
    assert client.take() == b""
    client.kernel.loop.run_jobs()
    (response,) = parse(client.take())
    assert response.json["Y"] == [1.0, 2.0]


def test_many_strings_are_unpacked_there(client: Client) -> None:
    tail = b"\x01\x00\x00\x00a" * 20_000
    inputs = [tensor("IN_BYTES", "BYTES", [20_000], binary_data_size=len(tail))]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    message = infer("types", text + tail, f"Inference-Header-Content-Length: {len(text)}")
    for _ in range(2):  # the second is not repeated from what was learned of the first
        client.send(message)
        assert client.take() == b""
        client.kernel.loop.run_jobs()
        assert client.take() == b""
        client.kernel.loop.run_jobs()  # and packed again
        (response,) = parse(client.take())
        assert response.body.endswith(tail)


def test_what_is_packed_is_unpacked_there_and_counted(client: Client) -> None:
    packed = gzip.compress(flat(",".join(map(str, np.random.default_rng(1).integers(0, 10**6, COUNT)))))
    client.send(infer("types", packed, "Content-Encoding: gzip"))
    account = client.kernel.memory.receive
    assert account.used >= 64 * 1024 * 1024
    client.kernel.loop.run_jobs()
    assert parse(client.take())[0].status == 200
    assert account.used == 0


def test_what_is_packed_is_refused_where_there_is_no_memory_for_it(client: Client) -> None:
    client.kernel.memory = MemoryBudget(1024 * 1024, 1024 * 1024)
    response = client.ask(infer("types", gzip.compress(b" " * 10_000_000), "Content-Encoding: gzip"))
    assert response.status == 503
    assert "--memory-limit-receive" in response.error
    assert client.kernel.memory.receive.used == 0


# --- flat arrays, piece by piece


@pytest.mark.parametrize(
    ("datatype", "item"), [("FP32", "-1.5e2"), ("FP64", "0.1"), ("INT64", "-7"), ("UINT8", "255"), ("BOOL", "true"), ("FP32",
    "NaN")]
)
def test_a_flat_array_is_read_as_a_short_one_is(client: Client, datatype: str, item: str) -> None:
    long = client.ask(infer("types", flat(",".join([item] * COUNT), COUNT, datatype))).body
    short = client.ask(infer("types", flat(",".join([item] * 4), 4, datatype))).body
    size = len(np.zeros(4, {"FP32": "f4", "FP64": "f8", "INT64": "i8", "UINT8": "u1", "BOOL": "?"}[datatype]).tobytes())
    assert long[-size * COUNT // 4 :] == short[-size:] * (COUNT // 4)


def test_no_more_than_a_piece_of_it_is_objects() -> None:
    data = b'{"inputs":[{"data":[%b]}]}' % b",".join([b"1"] * 500_000)
    numbers = read(data)["inputs"][0]["data"]
    assert isinstance(numbers, LongArray)
    sizes = [len(piece) for piece in numbers.pieces()]
    assert sum(sizes) == numbers.count() == 500_000
    assert max(sizes) <= PIECE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1," * 99_999 + "1.", "failed to parse the request JSON buffer: Miss fraction part in number. at {end}"),
        ("1," * 99_999 + "tru", "failed to parse the request JSON buffer: Invalid value. at {end}"),
        ("1," * 99_999 + '"a"', "attempt to access JSON non-number as double (input 'IN_FP32', element 99999 is"),
        ("1," * 99_999 + "true", "attempt to access JSON non-number as double (input 'IN_FP32', element 99999 is true)"),
        ("1," * 99_999, "failed to parse the request JSON buffer: Missing a name for"),
        ("1," * 99_998 + "1", "expected 100000 elements, got 99999"),
    ],
)
def test_mistakes_in_it_are_told_at_their_place(client: Client, text: str, words: str) -> None:
    body = flat(text)
    wanted = words.format(end=body.index(b"]}],"))
    if text.endswith(","):
        wanted = "Invalid value. at"
    response = client.ask(infer("types", body))
    assert response.status == 400
    assert wanted in response.error


def test_a_mistake_behind_a_flat_array_is_told_at_its_place(client: Client) -> None:
    body = flat(",".join(["1"] * COUNT))[:-1] + b' "a":1}'
    place = body.index(b' "a":1') + 1
    assert client.ask(infer("types", body)).error.endswith(f"after an object member. at {place}")


def test_numbers_within_strings_are_no_arrays() -> None:
    text = '"data":[' + "1," * 100_000 + "1]"
    assert read(json.dumps({"a": text}).encode()) == {"a": text}


def test_the_end_of_another_name_is_no_data() -> None:
    numbers = [1] * 100_000
    assert read(json.dumps({'a"data': numbers}).encode()) == {'a"data': numbers}


def test_an_input_called_data_is_read_by_generate(client: Client) -> None:
    client.kernel.add(config("flat", [Spec("data", "FP32", (-1,))], [Spec("Y", "FP32", (-1,))]))
    body = json.dumps({"data": [1.5] * COUNT}).encode()
    client.send(request("POST", "/v2/models/flat/generate", body))
    client.kernel.loop.run_jobs()
    assert len(client.kernel.requests[0].inputs["data"].array) == COUNT


def test_of_equal_names_the_first_counts() -> None:
    data = b'{"a":1,"a":2,"inputs":[{"data":[%b]}]}' % b",".join([b"1"] * 100_000)
    assert read(data)["a"] == 1


# --- limits


@pytest.mark.parametrize("body", [b"[" + b"[1]," * 1000 + b"1]", b"[" + b"1," * 4001 + b"1]"])
def test_values_have_a_limit(body: bytes) -> None:
    assert weight_above(body, 4000)
    assert not weight_above(body, 6000)
    with pytest.raises(ServingError, match="has more values than the 4000 that --max-request-values allows"):
        read(body, 4000)


def test_what_looks_like_values_within_strings_is_not_counted() -> None:
    text = json.dumps({"text": '[{,"\\' * 10_000, "other": ",,,"}).encode()
    assert not weight_above(text, 20)


def test_too_many_strings_are_refused(client: Client) -> None:
    client.kernel.memory.values = 10_000
    tail = bytes(4 * 20_000)
    inputs = [tensor("IN_BYTES", "BYTES", [20_000], binary_data_size=len(tail))]
    text = json.dumps({"inputs": inputs}).encode()
    response = client.ask(infer("types", text + tail, f"Inference-Header-Content-Length: {len(text)}"))
    assert response.status == 400
    assert "20000 strings" in response.error and "--max-request-values" in response.error


# --- broken JSON


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":NaN,"b":0.' + b"1" * 200_000 + b"}",
        b'[NaN,"' + b"x" * 2_000_000 + b'"]',
        b'[NaN,"' + b"\\n" * 1_000_000 + b'"]',
    ],
)
def test_what_is_read_again_takes_time_in_proportion(data: bytes) -> None:
    """Quadratic, each would take hours."""
    read_again(data)


@pytest.mark.parametrize("inner", [b'"' + b"x" * 2_000_000 + b'"', b'"' + b'\\"' * 1_000_000 + b'"', b"[" * 50 + b"1" + b"]" *
50])
def test_a_comma_that_lacks_behind_something_long(inner: bytes) -> None:
    with pytest.raises(ServingError, match=f"Missing a comma or ']' after an array element. at {len(inner) + 7}"):
        read_again(b'{"a":[' + inner + b" 1]}")
    with pytest.raises(ServingError, match=f"Missing a comma or '}}' after an object member. at {len(inner) + 6}"):
        read_again(b'{"a":' + inner + b" 1}")


@pytest.mark.parametrize("data", [b'[NaN,"' + b"x" * 2_000_000 + b'"]', b'{"a":["' + b"x" * 2_000_000 + b'" 1]}'])
def test_broken_json_takes_no_more_than_three_times_its_size(data: bytes) -> None:
    """The text that has come is one of the three."""
    tracemalloc.start()
    try:
        with contextlib.suppress(ServingError):
            read(memoryview(bytearray(data)))  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 3 * len(data) + 1024 * 1024


def in_data(text: str) -> bytes:
    return b'{"inputs":[{"name":"IN_BYTES","datatype":"BYTES","shape":[1],"data":[%b]}]}' % text.encode()


LONG = {
    "one string": (in_data('"' + "x" * (ONE_CALL + 1) + '"'), f"has {ONE_CALL + 3} bytes in one value of 'data', more than the"),
    "a list of strings": (in_data('["' + "x" * ONE_CALL + '"]'), f"has {ONE_CALL + 4} bytes in one value of 'data', more than"),
    "another string": (b'{"inputs":[],"a":"' + b"x" * ONE_CALL + b'"}', "bytes in what stands outside of 'data', more than the"),
    "broken": (in_data('["' + "x" * 5_000_000 + '" 1]'), "malformed: expected ',' or ']' at 5000073 (NaN and infinities are"),
    "a broken string": (in_data('"' + "x" * 5_000_000 + '\\z"'), "Invalid escape character in string. at"),
    "no UTF-8": (in_data('["' + "x" * 5_000_000 + '"]').replace(b"xx", b"x\xff", 1), "UTF-8"),
    "nested": (b'{"a":"' + b"x" * 5_000_000 + b'","b":' + b"[" * 50_000, "JSON nesting depth exceeds maximum allowed"),
    "equal names": (b'{"a":"' + b"x" * 5_000_000 + b'","inputs":[],"id":"a","id":"b"}', "may have members of equal names"),
    "NaN": (b'{"a":NaN,"b":"' + b"x" * 5_000_000 + b'"}', "JSON is malformed: invalid character at 5 (NaN and infinities are"),
}


@pytest.mark.parametrize("what", LONG)
def test_no_decoder_gets_more_at_a_time_than_others_can_wait_for(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """One call of a decoder holds the interpreter until it returns, on whatever thread."""
    body, words = LONG[what]
    most = {"fast": 0, "slow": 0}

    def measured(kind: str, call: Any) -> Any:
        def measure(data: Any, **more: Any) -> Any:
            most[kind] = max(most[kind], len(data))
            return call(data, **more)

        return measure

    monkeypatch.setattr(large, "_decode", measured("fast", large._decode))
    monkeypatch.setattr(json, "loads", measured("slow", json.loads))
    with pytest.raises(ServingError) as told:
        for array in long_arrays(decode_body(body, 1 << 20)):
            list(array.pieces())
    message = told.value.message.replace("utf-8", "UTF-8")  # as releases of the decoder spell it
    assert words in message
    assert most["fast"] <= ONE_CALL and most["slow"] <= SLOW_CALL


def test_values_of_one_call_have_a_limit_of_their_own() -> None:
    """Elsewhere than in 'data', and within one of its lists; there the others are read in pieces."""
    with pytest.raises(ServingError, match=f"more values in what stands outside of 'data' than the {CALL_VALUES} that are taken"):
        decode_body(b'{"inputs":[],"a":[' + b"1," * CALL_VALUES + b"1]}", 1 << 20)
    row = '["' + '","'.join(["abc"] * (CALL_VALUES // 3)) + '"]'
    (array,) = long_arrays(decode_body(in_data(",".join([row] * 3)), 1 << 20))
    assert sum(len(item) for piece in array.pieces() for item in piece) == CALL_VALUES // 3 * 3
    (array,) = long_arrays(decode_body(in_data('["' + '","'.join(["abc"] * CALL_VALUES) + '"]'), 1 << 20))
    with pytest.raises(ServingError, match=f"more values in one value of 'data' than the {CALL_VALUES} that are taken there"):
        list(array.pieces())


def long_arrays(record: Any) -> list[LongArray]:
    return [item["data"] for item in record["inputs"] if isinstance(item["data"], LongArray)]


def test_a_long_string_is_read() -> None:
    text = "x" * (ONE_CALL - 100)
    (array,) = long_arrays(decode_body(in_data(f'"{text}"'), 1 << 20))
    assert list(array.pieces()) == [[text.encode()]]
    (array,) = long_arrays(decode_body(in_data(f'["{text[:-100]}"]'), 1 << 20))
    assert list(array.pieces()) == [[[text[:-100]]]]


def test_a_number_too_large_is_found_behind_long_ones() -> None:
    with pytest.raises(ServingError, match=r"Number too big to be stored in double\. at 3006"):
        read_again(b'{"a":[' + b"1" * 2999 + b",1e400]}")


# --- large answers


def test_a_large_answer_is_made_into_text_on_another_thread_and_keeps_its_place(client: Client) -> None:
    tail = np.arange(COUNT, dtype=np.float32)
    tail[7] = np.nan
    text = json.dumps({"inputs": [tensor("IN_FP32", "FP32", [COUNT], binary_data_size=4 * COUNT)]}).encode()
    client.send(infer("types", text + tail.tobytes(), f"Inference-Header-Content-Length: {len(text)}"))
    client.send(request("GET", "/v2/health/live"))
    assert client.take() == b""
    client.kernel.loop.run_jobs()
    first, second = parse(client.take())
    assert np.array_equal(first.json["outputs"][0]["data"], tail, equal_nan=True)
    assert second.body == b""


@pytest.mark.parametrize("binary", [False, True])
def test_long_strings_are_put_together_on_another_thread(client: Client, monkeypatch: pytest.MonkeyPatch, binary: bool) -> None:
    """Made into text in one call, a string of 16 MB held the loop for 35 ms."""
    items = ["é" * 200_000, "", "a€" * 300_000, *["\"ü" * 10_000] * 30, "x", "𝄞" * 100_001, "z"]
    longest = 0

    def encode(value: Any) -> bytes:
        nonlocal longest
        longest = max(longest, len(value if isinstance(value, str) else "".join(value)))
        return msgspec.json.encode(value)

    monkeypatch.setattr(arrays, "_encode", encode)
    tail = pack_bytes(np.array([item.encode() for item in items], object))
    inputs = [tensor("IN_BYTES", "BYTES", [len(items)], binary_data_size=len(tail))]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": binary}}).encode()
    client.send(infer("types", text + tail, f"Inference-Header-Content-Length: {len(text)}"))
    client.send(request("GET", "/v2/health/live"))
    client.kernel.loop.run_jobs()
    assert client.kernel.loop.jobs and client.take() == b"", "it is read on a thread, and answered on one"
    client.kernel.loop.run_jobs()
    first, _ = parse(client.take())
    if binary:
        assert first.body.endswith(tail)
    else:
        assert first.json["outputs"][0]["data"] == items
        assert longest <= TEXT_PIECE


def test_what_is_no_text_is_named_by_its_index() -> None:
    items = [b"a" * TEXT_PIECE, b"b", b"c" * TEXT_PIECE + b"dd", b"e", b"f" * 2 * TEXT_PIECE + b"\xc3"]
    with pytest.raises(ServingError, match=r"element 4\)"):
        arrays.json_pieces("Y", "BYTES", np.array(items, object))
    with pytest.raises(ServingError, match=r"element 3\)"):
        arrays.json_pieces("Y", "BYTES", np.array([*items[:3], b"\xff", b"g"], object))
    assert arrays.json_pieces("Y", "BYTES", np.array([], object)) == [b"[", b"]"]


def test_an_answer_that_fails_there_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"inputs": [tensor("IN_FP32", "FP32", [COUNT], binary_data_size=4 * COUNT)]}).encode()
    client.send(infer("types", text + bytes(4 * COUNT), f"Inference-Header-Content-Length: {len(text)}"))
    monkeypatch.setattr("kernel_http.inference.encode.json_pieces", lambda *args: 1 / 0)
    client.kernel.loop.run_jobs()
    (response,) = parse(client.take())
    assert (response.status, response.error) == (500, "the response can't be encoded: ZeroDivisionError: division by zero")


# --- loads


def test_a_large_load_is_read_on_another_thread(client: Client) -> None:
    body = {"parameters": {"config": "{}", "file:1/model.py": "eA==", "file:1/data": "AAAA" * 100_000}}
    client.send(request("POST", "/v2/repository/models/m/load", json.dumps(body).encode()))
    assert not client.kernel.loop.tasks
    client.kernel.loop.run_jobs()
    client.kernel.loop.run_tasks()
    assert parse(client.take())[0].status == 200
    (call,) = [call for call in client.kernel.calls if call[0] == "load"]
    assert b"x" in repr(call).encode()


@pytest.mark.parametrize("slash", ["/", "\\/"])
def test_the_files_of_a_load_are_read_in_pieces(client: Client, monkeypatch: pytest.MonkeyPatch, slash: str) -> None:
    """40 MB of base64 in one call of the decoder held the interpreter for 28 ms."""
    calls = {"json": 0, "base64": 0}

    def decoded(data: Any) -> Any:
        calls["json"] = max(calls["json"], len(data))
        return msgspec.json.decode(data)

    def unpacked(data: Any, **more: Any) -> bytes:
        calls["base64"] = max(calls["base64"], len(data))
        return base64.b64decode(data, **more)

    monkeypatch.setattr(large, "_decode", decoded)
    monkeypatch.setattr(admin, "base64", SimpleNamespace(b64decode=unpacked))
    contents = {f"{k}/data": bytes(range(256)) * size for k, size in enumerate((0, 17, 40, 20_000, 13_001))}
    config = "# é " + "x" * 10_000
    files = {f"file:{name}": base64.b64encode(data).decode() for name, data in contents.items()}
    text = json.dumps({"parameters": {"config": config, **files}}).encode()
    text = text.replace(b"+/", f"+{slash}".encode())
    client.send(request("POST", "/v2/repository/models/m/load", text))
    client.kernel.loop.run_jobs()
    client.kernel.loop.run_tasks()
    (response,) = parse(client.take())
    assert response.status == 200 and client.kernel.calls == [("load", "m", config, contents)]
    assert calls["json"] <= WINDOW + 2 and calls["base64"] <= WINDOW + 4


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ('"file:a":"' + "A" * 5001 + "=" + "A" * 70_000 + '"', "Unable to parse 'file:a': it is not base64 ("),
        ('"file:a":"' + "A" * 5000 + "\\z" + "A" * 70_000 + '"', "Invalid escape character in string. at 5025"),
        ('"file:a":"' + "A" * 80_000, "failed to parse the request JSON buffer"),
        ('"x":"' + "A" * 80_000 + '"', "unexpected error on creating Triton parameter"),
        ('"config":{"a":"' + "A" * 80_000 + '"}', "Unable to parse 'config': attempt to access JSON non-string as string"),
    ],
)
def test_mistakes_in_a_large_load(client: Client, member: str, words: str) -> None:
    client.send(request("POST", "/v2/repository/models/m/load", f'{{"parameters":{{{member}}}}}'.encode()))
    client.kernel.loop.run_jobs()
    client.kernel.loop.run_tasks()
    (response,) = parse(client.take())
    assert words in response.error


def test_a_load_of_too_many_values_is_refused(client: Client) -> None:
    client.kernel.memory.values = 10_000
    body = b'{"parameters":{"a":[' + b"1," * 50_000 + b"1]}}"
    client.send(request("POST", "/v2/repository/models/m/load", body))
    client.kernel.loop.run_jobs()
    client.kernel.loop.run_tasks()
    (response,) = parse(client.take())
    assert response.status == 400
    assert "--max-request-values" in response.error

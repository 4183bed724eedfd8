"""Long arrays of JSON, cut into pieces: whatever is cut means what the whole means, and no call is about much of it."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kernel import ServingError
from kernel_http.json import large, text
from kernel_http.json.arrays import array_of
from kernel_http.json.errors import first_wins, read_again
from kernel_http.json.large import IN_DATA, LongArray, _without_collector, decode_large
from kernel_http.json.text import PIECE, FlatArray, Text, array_at

SIGNS = [
    "[", "]", ",", "1", "-2.5", "true", "null", "NaN", '"a,]"', '"\\""', '"[[1"', '"', "\\", " ", "\n", "{}", "é", '"é"',
    "[1,2]", "],[",
]  # fmt: skip


def flattened(value: Any) -> list[Any]:
    return [one for item in value for one in flattened(item)] if type(value) is list else [value]


def held(data: bytes, least: int = 0) -> str:
    """Compare what is made of an array in pieces of a few bytes with what it says; return what it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE", 7)
        patch.setattr(text, "WINDOW", 13)
        patch.setattr(large, "LONG_STRING", 14)
        return _held(data, least)


def _held(data: bytes, least: int) -> str:
    whole = Text(data)
    found = array_at(whole, 1, least)
    if found is None:
        return "left"
    assert data[found.end : found.end + 1] == b"]"
    array = LongArray(whole, found)
    try:
        expected = flattened(json.loads(data[: found.end + 1]))
    except ValueError:
        with pytest.raises(ServingError):
            list(array.pieces())
        return "broken"
    got = [item.decode() if type(item) is bytes else item for piece in array.pieces() for item in flattened(piece)]
    assert repr(got) == repr(expected)
    if array.nested:
        assert [item for piece in array.pieces() for item in piece] == json.loads(data[: found.end + 1])
        return "nested"
    if not array.strings:
        assert array.count() == len(got)
    return "lists" if found.lists else "strings" if found.strings else "flat"


@settings(max_examples=1500, deadline=None)
@given(st.lists(st.sampled_from(SIGNS), max_size=24), st.integers(0, 6))
@example(["1", "[", ",", "1", "]", ",", "[", "1", ",", "1", "]", "]"], 0)
@example(["[", "]", ",", "[", "1", "]", "]"], 0)
@example(["[", "1", ",", "]", ",", "[", "2", "]", "]"], 0)
@example(["[", "1", "]", "[", "2", "]", "]"], 0)
@example(["[", "1", "]", " ", "2", "]"], 0)
@example(['"a,]"', ",", '"\\""', "1", "]"], 2)
def test_whatever_it_is(signs: list[str], least: int) -> None:
    held(f"[{''.join(signs)}".encode(), least)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from(["", " ", "\n  "]), st.integers(0, 99))
def test_lists_of_equal_lengths(shape: list[int], blank: str, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-1000, 1000, shape).tolist()
    written = json.dumps(values).replace(",", f"{blank},").replace("[", f"{blank}[{blank}").replace("]", f"{blank}]").lstrip()
    assert held(written.encode()) == ("lists" if len(shape) > 1 else "flat")


def test_any_blanks_may_stand_between_lists() -> None:
    many = " " * 300
    assert held(f"[[1]{many},{many}[{many}2],[3]]".encode()) == "lists"
    assert held(f"[[1],{many}3]".encode()) == "nested"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text('a",[]\\é\n', max_size=20), min_size=1, max_size=8), st.booleans())
def test_strings(items: list[str], ascii: bool) -> None:
    assert held(json.dumps(items, ensure_ascii=ascii).encode(), 1) == "strings"


@pytest.mark.parametrize("value", [[[1], [1, 2]], [[1, 2], [3]], [[1], 2], [1, [2]], [[], [1]], [[]], [[[1], [2]], [[3]]]])
def test_lists_of_other_lengths_are_read_as_they_are(value: Any) -> None:
    """Those who flatten them tell where they are irregular."""
    assert held(json.dumps(value).encode()) == "nested"


ITEMS = st.integers() | st.text('a",[]\\é\n😀', max_size=20)


@settings(max_examples=300, deadline=None)
@given(st.recursive(ITEMS, lambda inner: st.lists(inner, max_size=4), max_leaves=40), st.booleans())
def test_lists_of_any_form(value: Any, ascii: bool) -> None:
    held(json.dumps([value, [1]], ensure_ascii=ascii).encode())


BROKEN = [b"", b"\\u", b"\\ud800", b"\\udc00", b"\\x", b"\x80", b"\xf0\x9f", b"\n"]


@settings(deadline=None)
@given(st.text('ab\\"é😀\n\x7f', max_size=40), st.booleans(), st.integers(0, 40), st.sampled_from(BROKEN))
@example(content="\\\\aaa😀\\", ascii=False, place=7, broken=b"\x80")
@example(content="\\\\\\aaa😀", ascii=False, place=7, broken=b"\x80")
def test_long_strings_are_read_in_pieces(content: str, ascii: bool, place: int, broken: bytes) -> None:
    """As whole ones are; broken ones are told in the same words at the same place."""
    before, behind = (json.dumps(part, ensure_ascii=ascii)[1:-1].encode() for part in (content[:place], content[place:]))
    data = b'["' + before + broken + behind + b'"]'
    assume(Text(data).past_string(2) == len(data) - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "WINDOW", 13)
        array = LongArray(Text(data), FlatArray(Text(data), 1, len(data) - 1, strings=True))
        try:
            (expected,) = read_again(data)
        except ServingError as error:
            with pytest.raises(ServingError) as told:
                array._string(2)
            assert told.value.message == error.message
        else:
            assert array._string(2) == expected.encode()


def test_a_mistake_within_lists_is_told_at_its_place() -> None:
    data = b'{"inputs":[{"data":[[1,2],[3,4],[5,6.],[7,8]' + b",[9,1]" * 20_000 + b"]}]}"
    array = decode_large(data, 2**20, lambda value, text: False, first_wins, cut=IN_DATA)["inputs"][0]["data"]
    assert isinstance(array, LongArray)
    with pytest.raises(ServingError, match=f"Miss fraction part in number. at {data.index(b'6.') + 2}"):
        list(array.pieces())


def test_lists_of_any_number_are_read_as_flat_ones_are() -> None:
    """`--max-request-values` bounds objects, and of these arrays there are no more than of a piece at a time."""
    data = b'{"inputs":[{"data":[%b]}]}' % b",".join([b"[[1,2],[3,4]]"] * 50_000)
    numbers = decode_large(data, 1000, lambda value, text: False, first_wins, cut=IN_DATA)["inputs"][0]["data"]
    array = array_of("X", "INT32", (50_000, 2, 2), 200_000, numbers)
    assert isinstance(array, np.ndarray) and array.tolist() == [[[1, 2], [3, 4]]] * 50_000
    assert max(map(len, numbers.pieces())) <= PIECE
    with pytest.raises(ServingError, match="has more values than the 1000 that --max-request-values allows"):
        decode_large(data.replace(b"4", b"4,5", 1), 1000, lambda value, text: False, first_wins, cut=IN_DATA)


def test_strings_are_read_in_pieces_and_counted() -> None:
    items = ["a,b", "é", "", 'x"y', "z"] * 5000
    data = json.dumps({"inputs": [{"data": [*items[:20_000], "z" * 300_000]}]}).encode()
    got = decode_large(data, 100_000, lambda value, text: False, first_wins, cut=IN_DATA)["inputs"][0]["data"]
    assert isinstance(got, LongArray)
    assert sum(map(len, got.pieces())) == 20_001


def test_no_call_of_a_decoder_is_about_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    decode = large._decode

    def counted(data: Any) -> Any:
        sizes.append(len(data))
        return decode(data)

    monkeypatch.setattr(large, "_decode", counted)
    for item in (b"1.5", b"[1,2]", b"[[1],[2]]", b'"abc"', b'"a,\\"]"'):
        data = b'{"inputs":[{"data":[%b]}]}' % b",".join([item] * 200_000)
        array = decode_large(data, 2**20, lambda value, text: False, first_wins, cut=IN_DATA)["inputs"][0]["data"]
        for _ in array.pieces():
            pass
    assert max(sizes) <= PIECE + 64


def test_the_search_for_garbage_goes_on_when_the_last_has_read() -> None:
    inside, leave = threading.Barrier(3), threading.Event()

    def read() -> None:
        with _without_collector():
            inside.wait(10)
            leave.wait(10)

    assert gc.isenabled()
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    with pytest.raises(ZeroDivisionError), _without_collector():
        1 / 0  # noqa: B018
    assert not gc.isenabled()
    leave.set()
    for thread in threads:
        thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        with _without_collector():
            pass
        assert not gc.isenabled()  # as it was found
    finally:
        gc.enable()

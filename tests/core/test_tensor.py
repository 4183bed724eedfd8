"""Tensors in memory and on the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.tensor import DATATYPES, PIECE, Tensor, as_bytes_array, copy_bytes, datatype_of, pack_bytes, unpack_bytes


def test_every_datatype_but_bf16_comes_back_from_its_dtype() -> None:
    for name, dtype in DATATYPES.items():
        assert datatype_of(dtype) == ("UINT16" if name == "BF16" else name)


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", ">f4", "V8"])
def test_dtypes_that_are_no_tensor(dtype: str) -> None:
    assert datatype_of(np.dtype(dtype)) is None


@pytest.mark.parametrize("dtype", ["<U3", "S3"])
def test_string_dtypes_are_bytes(dtype: str) -> None:
    assert datatype_of(np.dtype(dtype)) == "BYTES"


def test_as_bytes_array_makes_bytes_of_everything() -> None:
    array = np.array([["é", b"\xff\x00"], [None, 7]], dtype=object)
    made = as_bytes_array(array)
    assert made.shape == (2, 2)
    assert made.tolist() == [["é".encode(), b"\xff\x00"], [b"None", b"7"]]
    assert array[0, 0] == "é"


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_bytes_go_round(items: list[bytes]) -> None:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    assert unpack_bytes(pack_bytes(array)) == items
    for most in range(len(items) + 2):
        assert unpack_bytes(pack_bytes(array), most) == items[: most + 1]


def test_cut_off_bytes_say_where() -> None:
    whole = pack_bytes(np.array([b"abc", b"defg"], dtype=object))
    with pytest.raises(ValueError) as caught:
        unpack_bytes(whole[:-1])
    assert caught.value.args == ("data", 4, 3)
    with pytest.raises(ValueError) as caught:
        unpack_bytes(whole[:9])
    assert caught.value.args == ("length", 2)


class Watched:
    """A buffer that knows how much of it was copied at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.most = 0

    def __getitem__(self, part: slice) -> bytes:
        self.most = max(self.most, part.stop - part.start)
        return self.data[part]


@pytest.mark.parametrize("size", [0, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_no_more_than_a_piece_is_copied_at_a_time(size: int) -> None:
    """One copy of 64 MB holds the interpreter for 30 ms, on whatever thread."""
    watched = Watched(bytes(range(256)) * (size // 256 + 2))
    assert copy_bytes(watched, 3, 3 + size) == watched.data[3 : 3 + size]  # type: ignore[arg-type]
    assert watched.most <= PIECE


def test_long_strings_are_the_same_as_short_ones() -> None:
    items = [b"", b"x" * (2 * PIECE), b"y", b"z" * PIECE]
    array = np.empty(len(items), dtype=object)
    array[:] = items
    whole = pack_bytes(array)
    assert unpack_bytes(whole) == unpack_bytes(bytearray(whole)) == unpack_bytes(memoryview(whole)) == items
    with pytest.raises(ValueError) as caught:
        unpack_bytes(whole[:-1])
    assert caught.value.args == ("data", PIECE, PIECE - 1)


def test_repr_names_shape_and_type() -> None:
    assert repr(Tensor("X", "FP32", np.zeros((2, 3), np.float32))) == "Tensor('X', FP32, shape=[2, 3])"

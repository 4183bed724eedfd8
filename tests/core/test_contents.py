"""What tensors are made of: strings on the wire, their number, sizes, and the words where they don't fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernel import Code, ServingError, size_mismatch, stand_in, strings_of, unpacked

MODEL: Any = SimpleNamespace(name="m")
WORDS = ServingError(Code.INVALID_ARG, "the fault")


def test_strings_come_from_their_place() -> None:
    tail = b"junk" + b"\2\0\0\0ab" + b"\0\0\0\0" + b"more"
    items = unpacked("X", "m", "", tail, 4, 10)
    assert items == [b"ab", b""]
    array = strings_of(items, "X", MODEL, (2, 1), "")
    assert array.shape == (2, 1)
    assert array.tolist() == [[b"ab"], [b""]]
    assert strings_of([], "X", MODEL, (3, 0), "").shape == (3, 0)


@pytest.mark.parametrize(
    ("tail", "id", "words"),
    [
        (
            b"\1\0",
            "",
            "[request id: <id_unknown>] incomplete string length indicator for inference input 'X' for model 'm', expecting "
            "4 bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            b"\1\0\0\0a\7\0\0",
            "i",
            "[request id: i] incomplete string length indicator for inference input 'X' for model 'm', expecting "
            "4 bytes but only 3 bytes available. Please make sure the string length indicator is in one buffer.",
        ),
        (
            b"\5\0\0\0ab",
            "i",
            "incomplete string data for inference input 'X', expecting string of length 5 but only 2 bytes available",
        ),
    ],
)
def test_strings_cut_off(tail: bytes, id: str, words: str) -> None:
    with pytest.raises(ServingError) as caught:
        unpacked("X", "m", id, bytearray(tail), 0, len(tail))
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, words)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "[request id: i] expected 2 string elements for inference input 'X' for model 'm', got 1"),
        (4, "[request id: i] unexpected number of string elements 3 for inference input 'X' for model 'm', expecting 2"),
    ],
)
def test_another_number_of_strings(count: int, words: str) -> None:
    with pytest.raises(ServingError) as caught:
        strings_of([b"a"] * count, "X", MODEL, (1, 2), "i")
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, words)


def test_sizes() -> None:
    error = size_mismatch("X", "m", "", 8, 4)
    assert error.code is Code.INVALID_ARG
    assert error.message == (
        "[request id: <id_unknown>] input byte size mismatch for input 'X' for model 'm'. Expected 8, got 4"
    )
    assert size_mismatch("X", "m", "i", 8, 4).message.startswith("[request id: i] ")


def test_a_stand_in_takes_no_memory() -> None:
    array = stand_in("FP64", (2**40, 3), WORDS)
    assert (array.shape, array.dtype, array.base.size) == ((2**40, 3), np.float64, 1)
    with pytest.raises(ServingError, match=r"^the fault$"):
        stand_in("FP64", (2**40, 2**40), WORDS)

"""Tensors as people write them, both ways."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from kernel import DATATYPES, ServingError, Tensor, TensorSpec
from kernel.cli.values import as_json, read_tensor


def read(datatype: str, text: str) -> Tensor:
    return read_tensor(TensorSpec("X", datatype, (-1,)), text)


@pytest.mark.parametrize(
    ("datatype", "text", "wanted"),
    [
        ("FP32", "[1, 2.5]", [1.0, 2.5]),
        ("FP64", "3", [3.0]),
        ("FP16", "[[1], [2]]", [[1.0], [2.0]]),
        ("INT8", "[-128, 127]", [-128, 127]),
        ("UINT64", f"[{2**64 - 1}]", [2**64 - 1]),
        ("BOOL", "[[true, false]]", [[True, False]]),
        ("BYTES", '["a", "ä"]', [b"a", "ä".encode()]),
        ("BYTES", "just words", [b"just words"]),
        ("BYTES", '"quoted"', [b"quoted"]),
        ("INT32", "[]", []),
        ("INT32", "[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]", [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
        ("INT32", "[[], []]", [[], []]),
    ],
)
def test_json(datatype: str, text: str, wanted: list[object]) -> None:
    tensor = read(datatype, text)
    assert tensor.array.tolist() == wanted
    assert tensor.array.dtype == DATATYPES[datatype]
    assert tensor.datatype == datatype


def test_shape_of_empty_lists() -> None:
    assert read("INT32", "[[], []]").shape == (2, 0)
    assert read("INT32", "[]").shape == (0,)


def test_bf16_is_rounded_to_the_nearest() -> None:
    bits = read("BF16", "[1.0, 1.00390625, 1.01171875, -2.5]").array
    assert bits.dtype == np.uint16
    assert as_json(Tensor("X", "BF16", bits))["data"] == [1.0, 1.0, 1.015625, -2.5]


@pytest.mark.parametrize(
    ("datatype", "text", "words"),
    [
        ("FP32", "[1,", r"^input 'X': not JSON: "),
        ("FP32", "one", r"^input 'X': not JSON: "),
        ("FP32", '["1"]', r"^input 'X': \"1\" is no FP32 \(a number\)$"),
        ("FP32", "[true]", r"^input 'X': true is no FP32"),
        ("INT8", "[128]", r"^input 'X': 128 is no INT8 \(an integer from -128 to 127\)$"),
        ("UINT8", "[-1]", r"^input 'X': -1 is no UINT8 \(an integer from 0 to 255\)$"),
        ("INT32", "[1.0]", r"^input 'X': 1.0 is no INT32"),
        ("BOOL", "[1]", r"^input 'X': 1 is no BOOL \(true or false\)$"),
        ("BYTES", "[1]", r"^input 'X': 1 is no BYTES \(a string\)$"),
        ("INT32", "[[1], [2, 3]]", r"^input 'X': the lists in it have different lengths or depths, so it has no shape$"),
        ("INT32", "[1, [2]]", r"^input 'X': the lists in it have different lengths or depths"),
        ("INT32", "[null]", r"^input 'X': null is no INT32"),
        ("FP32", "@/nowhere/x.npy", r"^input 'X': can't read /nowhere/x.npy: No such file or directory$"),
    ],
)
def test_mistakes(datatype: str, text: str, words: str) -> None:
    with pytest.raises(ServingError, match=words):
        read(datatype, text)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.int32).reshape(2, 3), np.asfortranarray(np.eye(3)), np.float32([[1]])])
def test_npy(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)
    tensor = read("INT32", f"@{tmp_path}/x.npy")
    np.testing.assert_array_equal(tensor.array, array)
    assert tensor.array.flags.c_contiguous


def test_npy_of_strings_and_of_foreign_byte_order(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([["a", "b"]]))
    assert read("BYTES", f"@{tmp_path}/s.npy").array.tolist() == [[b"a", b"b"]]
    np.save(tmp_path / "b.npy", np.array([1, 2], dtype=">i4"))
    tensor = read("INT32", f"@{tmp_path}/b.npy")
    assert (tensor.datatype, tensor.array.tolist()) == ("INT32", [1, 2])


def test_npy_that_would_run_code_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ServingError, match=r"input 'X': can't read .*o\.npy"):
        read("FP32", f"@{tmp_path}/o.npy")


def test_npy_for_bf16(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([0x3F80], dtype=np.uint16))
    assert read("BF16", f"@{tmp_path}/x.npy").datatype == "BF16"
    assert read("FP32", f"@{tmp_path}/x.npy").datatype == "UINT16"  # the model's check will say what it wants


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[[1, 2]]")
    assert read("INT64", f"@{tmp_path}/x.json").shape == (1, 2)
    (tmp_path / "x.png").write_bytes(b"\x89PNG\xff")
    assert read("BYTES", f"@{tmp_path}/x.png").array.tolist() == [b"\x89PNG\xff"]
    with pytest.raises(ServingError, match=r"x\.png is neither a \.npy nor a \.json file$"):
        read("UINT8", f"@{tmp_path}/x.png")


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("[1, 2]"))
    assert read("INT32", "@-").array.tolist() == [1, 2]


def test_output() -> None:
    array = np.array([[1.5, np.nan], [np.inf, -np.inf]], np.float32)
    shown = as_json(Tensor("Y", "FP32", array))
    assert shown == {"name": "Y", "datatype": "FP32", "shape": [2, 2], "data": [1.5, "NaN", "Infinity", "-Infinity"]}
    strings = np.array([b"ok", b"\xff"], dtype=object)
    assert as_json(Tensor("S", "BYTES", strings))["data"] == ["ok", {"base64": "/w=="}]
    assert json.dumps(as_json(Tensor("B", "BOOL", np.array([True]))))

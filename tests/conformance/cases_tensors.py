"""Inference, tensors: datatypes, amounts of data, shared memory; on both wires and in all ways to say it.

The models are those of tests/reference, where the same servers' answers are compared with the real Triton's; what stands here
is the contract's word. `unless` says where a wire differs, and why a case isn't asked in some way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .asks import Ask, Case, Part, Refused, Tensor, Want
from .words import BYTE_SIZE, expected, with_id, wrong

__all__ = ["MEMORY_CASES", "TENSOR_CASES"]

X = Tensor("X", "FP32", (1, 2), (1.0, 2.0))
Y = Tensor("Y", "FP32", (1, 2), (1.0, 2.0))
A = Tensor("A", "INT32", (1, 2), (1, 2))
B = Tensor("B", "INT32", (1, 2), (3, 4))
SUM = Tensor("SUM", "INT32", (1, 2), (4, 6))
DIFFERENCE = Tensor("DIFFERENCE", "INT32", (1, 2), (-2, -2))

NO_TEXT = "JSON has no such numbers"
NO_JSON = "only text can be said in JSON"

# --- datatypes -------------------------------------------------------------------------------------------------------


def datatype(name: str, *values: Any, unless: Mapping[str, Any] | None = None) -> Case:
    given = Tensor(f"IN_{name}", name, (len(values),), values)
    return Case(f"{name}", Ask("types", (given,)), (Tensor(f"OUT_{name}", name, (len(values),), values),), unless or {})


def half(name: str, model: str, input: str, output: str) -> Case:
    """A datatype that JSON can't carry and that has no field of typed contents."""
    values = (1.5, -2.0)
    unless = {
        "http json": wrong(
            f"receiving {name} data via JSON is not supported. Please use the binary data format for input {input}"
        ),
        "grpc typed": wrong(
            f"unexpected explicit tensor data for input tensor '{input}' for model '{model}' of type 'FP32', "
            f"expected datatype '{name}'"
        ),
    }
    gives = (Tensor(output, name, (2,), values),)
    return Case(f"BC55: {name}", Ask(model, (Tensor(input, name, (2,), values),)), gives, unless)


def whole(name: str, value: int, low: int, high: int) -> Case:
    """An integer that the datatype can't hold."""
    field = "uint" if name.startswith("U") else "int"
    given = Tensor(f"IN_{name}", name, (2,), (0, value))
    binary = "there are no such bytes"
    unless: dict[str, Any] = dict.fromkeys(("http binary", "grpc raw", "http client", "grpc client"), binary)
    unless["grpc typed"] = wrong(
        f"unexpected explicit tensor data for input tensor 'IN_{name}' for model 'types': element 1 of '{field}_contents' is "
        f"{value}, {name} holds {low} to {high}"
    )
    return Case(
        f"{name} out of range: {value}",
        Ask("types", (given,)),
        wrong(f"Unable to parse 'data': ...'IN_{name}'...element 1 is {value}...{name} holds {low} to {high}..."),
        unless,
    )


DATATYPES = [
    datatype("BOOL", True, False),
    datatype("INT8", -128, 127),
    datatype("INT16", -(2**15), 2**15 - 1),
    datatype("INT32", -(2**31), 2**31 - 1),
    datatype("INT64", -(2**63), 2**53 + 1, 2**63 - 1),
    datatype("UINT8", 0, 255),
    datatype("UINT16", 0, 2**16 - 1),
    datatype("UINT32", 0, 2**32 - 1),
    datatype("UINT64", 0, 2**53 + 1, 2**64 - 1),
    datatype("FP32", 1.0, 2.5, 0.10000000149011612, 1.000000013351432e-10, -0.0),
    datatype("FP64", 0.1, 1e300, 5e-324, -1.0),
    half("FP16", "types", "IN_FP16", "OUT_FP16"),
    half("BF16", "bf16", "X", "Y"),
    datatype("BYTES", b"a", b"", "\u00e9\U0001f600".encode(), b'nul\x00 "quoted" \\ \n\t/\x7f', b"tail\x00\x00"),
    Case(
        "BC56: bytes that are no UTF-8",
        Ask("types", (Tensor("IN_BYTES", "BYTES", (4,), (b"\xff\xfe\x00", b"", b"\x00", b"z")),)),
        (Tensor("OUT_BYTES", "BYTES", (4,), (b"\xff\xfe\x00", b"", b"\x00", b"z")),),
        {"http json": NO_JSON},
    ),
    Case(
        "not finite",
        Ask("types", (Tensor("IN_FP32", "FP32", (2,), (float("inf"), float("-inf"))),)),
        (Tensor("OUT_FP32", "FP32", (2,), (float("inf"), float("-inf"))),),
        {"http json": NO_TEXT},
    ),
    whole("INT8", 128, -128, 127),
    whole("INT8", -129, -128, 127),
    whole("INT16", 70000, -32768, 32767),
    whole("UINT8", 300, 0, 255),
    whole("UINT16", 65536, 0, 65535),
    Case("no elements", Ask("types", (Tensor("IN_INT32", "INT32", (0,)),)), (Tensor("OUT_INT32", "INT32", (0,)),)),
    Case("no strings", Ask("types", (Tensor("IN_BYTES", "BYTES", (0,)),)), (Tensor("OUT_BYTES", "BYTES", (0,)),)),
    Case(
        "several at once",
        Ask(
            "types",
            (
                Tensor("IN_FP64", "FP64", (1,), (0.5,)),
                Tensor("IN_BOOL", "BOOL", (1,), (True,)),
                Tensor("IN_BYTES", "BYTES", (1,), (b"x",)),
            ),
        ),
        (
            Tensor("OUT_BOOL", "BOOL", (1,), (True,)),
            Tensor("OUT_FP64", "FP64", (1,), (0.5,)),
            Tensor("OUT_BYTES", "BYTES", (1,), (b"x",)),
        ),
    ),
]

# --- amounts of data: BC52 -------------------------------------------------------------------------------------------

FEW = "expected {} string elements for inference input 'IN_BYTES' for model 'types', got {}"
MANY = "unexpected number of string elements {} for inference input 'IN_BYTES' for model 'types', expecting {}"
PARSED = "Unable to parse 'data': Shape does not match true shape of 'data' field..."


def amount(name: str, shape: int, *values: int) -> Case:
    given = Tensor("IN_INT32", "INT32", (shape,), values)
    told = with_id(BYTE_SIZE.format("IN_INT32", "types", 4 * shape, 4 * len(values)))
    return Case(
        f"BC52: {name}",
        Ask("types", (given,)),
        told,
        {"http json": wrong(f"{PARSED}'IN_INT32'...{shape}...{len(values)}...")},
    )


def texts(name: str, shape: int, told: Refused, *values: bytes) -> Case:
    return Case(f"BC52: {name}", Ask("types", (Tensor("IN_BYTES", "BYTES", (shape,), values),)), told)


def cut_off(name: str, data: bytes, told: Refused) -> Case:
    unless = dict.fromkeys(("http json", "grpc typed"), "only bytes can be cut off")
    return Case(name, Ask("types", (Tensor("IN_BYTES", "BYTES", (1,), data=data),)), told, unless)


AMOUNTS = [
    amount("too few elements", 3, 1, 2),
    amount("too many elements", 1, 1, 2),
    Case(
        "BC52: elements for none",
        Ask("types", (Tensor("IN_INT32", "INT32", (0,), (1,)),)),
        with_id(BYTE_SIZE.format("IN_INT32", "types", 0, 4)),
        {"http json": (Tensor("OUT_INT32", "INT32", (0,)),)},  # JSON data of an empty tensor is ignored
    ),
    texts("too few strings", 3, with_id(FEW.format(3, 2)), b"a", b"b"),
    texts("too many strings", 1, with_id(MANY.format(2, 1)), b"a", b"b"),
    cut_off(
        "strings, cut off in a length",
        b"\x01\x00",
        with_id(
            "incomplete string length indicator for inference input 'IN_BYTES' for model 'types', expecting 4 bytes but only 2 "
            "bytes available. Please make sure the string length indicator is in one buffer."
        ),
    ),
    cut_off(
        "strings, cut off in an element",
        b"\x05\x00\x00\x00ab",
        wrong(
            "incomplete string data for inference input 'IN_BYTES', expecting string of length 5 but only 2 bytes available"
        ),
    ),
]

TENSOR_CASES = [*DATATYPES, *AMOUNTS]

# --- shared memory: one region called `memory`, of 256 bytes, and none called `nope` ---------------------------------


def source(
    name: str, part: Part, gives: Any, *, shape: tuple[int, ...] = (1, 2), values: Any = (1.0, 2.0), unless: Any = None
) -> Case:
    return Case(
        f"input from memory: {name}", Ask("batch8", (Tensor("X", "FP32", shape, values, part),)), gives, unless or {}
    )


def target(name: str, part: Part, gives: Any, code: int = 0) -> Case:
    return Case(f"output to memory: {name}", Ask("batch8", (X,), (Want("Y", code, part),)), gives)


OFFSET = wrong("Invalid offset for shared memory region: 'memory'")
SIZE = wrong("Invalid offset + byte size for shared memory region: 'memory'")
UNKNOWN = wrong("Unable to find shared memory region: 'nope'", "NOT_FOUND")


def outside(part: Part) -> Tensor:
    """An output that lies in memory."""
    return Tensor("Y", "FP32", (1, 2), (1.0, 2.0), part)


MEMORY_CASES = [
    source("right", Part(8), (Y,)),
    source("with an offset", Part(8, 100), (Y,)),
    source("at the very end", Part(8, 248), (Y,)),
    source("unknown region", Part(8, 0, "nope"), UNKNOWN, values=None),
    source("no bytes", Part(0), SIZE, values=None),
    source("offset at the end", Part(8, 256), OFFSET, values=None),
    source("offset beyond", Part(8, 300), OFFSET, values=None),
    source("size beyond", Part(8, 249), SIZE, values=None),
    source(
        "too few bytes",
        Part(4),
        with_id("input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 4"),
        values=None,
    ),
    source(
        "too many bytes",
        Part(16),
        with_id("input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 16"),
        values=None,
    ),
    source("wrong shape", Part(12), with_id(expected("[1,3]")), shape=(1, 3), values=None),
    Case(
        "input from memory: one of two",
        Ask("two", (Tensor("A", "INT32", (1, 2), (1, 2), Part(8, 16)), B)),
        (SUM, DIFFERENCE),
    ),
    Case(
        "input from memory: strings",
        Ask("types", (Tensor("IN_BYTES", "BYTES", (2,), (b"ab", b"\xff"), Part(11)),)),
        (Tensor("OUT_BYTES", "BYTES", (2,), (b"ab", b"\xff")),),
        {"http json": NO_JSON},
    ),
    Case(
        "input and output in memory: FP16",
        Ask("types", (Tensor("IN_FP16", "FP16", (2,), (1.5, 2.0), Part(4)),), (Want("OUT_FP16", 0, Part(4, 8)),)),
        (Tensor("OUT_FP16", "FP16", (2,), (1.5, 2.0), Part(4, 8)),),
    ),
    target("right", Part(8, 64), (outside(Part(8, 64)),)),
    target("with room", Part(100, 128), (outside(Part(8, 128)),)),
    target("unknown region", Part(8, 0, "nope"), UNKNOWN),
    target(
        "too small",
        Part(7, 64),
        wrong(
            "shared memory size specified with the request for output 'Y' (7 bytes) should be at least 8 bytes "
            "to hold the results",
            "INTERNAL",
        ),
    ),
    target("offset beyond", Part(8, 300), OFFSET),
    target("size beyond", Part(8, 249), SIZE),
    Case(
        "output to memory and classes",
        Ask("batch8", (X,), (Want("Y", 1, Part(8)),)),
        wrong("Output can't set both 'shared_memory_region' and 'classification'"),
        {
            "grpc": wrong("output can't set both 'shared_memory_region' and 'classification'"),
            "http client": "the library forbids it",
            "grpc client": "the same",
        },
    ),
    Case(
        "output to memory: one of two",
        Ask("two", (A, B), (Want("SUM", 0, Part(8)), Want("DIFFERENCE"))),
        (Tensor("SUM", "INT32", (1, 2), (4, 6), Part(8)), DIFFERENCE),
    ),
    Case("output to memory: an ensemble", Ask("ensemble", (X,), (Want("Y", 0, Part(8)),)), (outside(Part(8)),)),
]

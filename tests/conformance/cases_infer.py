"""Inference: what is asked and what comes of it, on both wires and in all ways to say it.

The models are those of tests/reference, where the same servers' answers are compared with the real Triton's; what stands here
is the contract's word. `unless` says where a wire differs, and why a case isn't asked in some way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .asks import Ask, Case, Part, Refused, Tensor, Want

__all__ = ["CASES", "MEMORY_CASES"]

X = Tensor("X", "FP32", (1, 2), (1.0, 2.0))
Y = Tensor("Y", "FP32", (1, 2), (1.0, 2.0))
A = Tensor("A", "INT32", (1, 2), (1, 2))
B = Tensor("B", "INT32", (1, 2), (3, 4))
SUM = Tensor("SUM", "INT32", (1, 2), (4, 6))
DIFFERENCE = Tensor("DIFFERENCE", "INT32", (1, 2), (-2, -2))
MULTI = Tensor("X", "FP32", (2,), (1.0, 2.0))

NO_TEXT = "JSON has no such numbers"
NO_JSON = "only text can be said in JSON"


def wrong(message: str, code: str = "INVALID_ARG") -> Refused:
    return Refused(code, message)


def with_id(message: str, id: str = "<id_unknown>") -> Refused:
    return wrong(f"[request id: {id}] {message}")


# --- datatypes -----------------------------------------------------------------------------------------------------------


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
    unless: dict[str, Any] = {way: binary for way in ("http binary", "grpc raw", "http client", "grpc client")}
    unless["grpc typed"] = wrong(
        f"unexpected explicit tensor data for input tensor 'IN_{name}' for model 'types': element 1 of '{field}_contents' is "
        f"{value}, {name} holds {low} to {high}"
    )
    return Case(f"{name} out of range: {value}", Ask("types", (given,)), wrong(f"Unable to parse 'data': ...'IN_{name}'...element 1 is {value}...{name} holds {low} to {high}..."), unless)


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
        Ask("types", (Tensor("IN_FP64", "FP64", (1,), (0.5,)), Tensor("IN_BOOL", "BOOL", (1,), (True,)), Tensor("IN_BYTES", "BYTES", (1,), (b"x",)))),
        (Tensor("OUT_BOOL", "BOOL", (1,), (True,)), Tensor("OUT_FP64", "FP64", (1,), (0.5,)), Tensor("OUT_BYTES", "BYTES", (1,), (b"x",))),
    ),
]

# --- names, versions, shapes, batches ---------------------------------------------------------------------------------------

NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def batch8(name: str, gives: Any, *inputs: Tensor, unless: Mapping[str, Any] | None = None, **more: Any) -> Case:
    return Case(name, Ask("batch8", inputs, **more), gives, unless or {})


def sized(*shape: int, datatype: str = "FP32") -> Tensor:
    """An input of that shape with as many elements."""
    count = 1
    for each in shape:
        count *= each
    return Tensor("X", datatype, shape, (1.0,) * count)


def expected(got: str, wanted: str = "[-1,2]", model: str = "batch8", note: str = NOTE, input: str = "X") -> str:
    return f"unexpected shape for input '{input}' for model '{model}'. Expected {wanted}, got {got}. {note}"


def missing(counts: str, got: str, missing: str, model: str) -> str:
    return f"expected {counts} for model '{model}'. Got input(s) {got}, but missing required input(s) {missing}. Please provide all required input(s)."


SHAPES = [
    batch8("a batch of one", (Y,), X),
    batch8("a batch of eight", (Tensor("Y", "FP32", (8, 2), (1.0,) * 16),), sized(8, 2)),
    batch8("a batch too large", with_id("inference request batch-size must be <= 8 for 'batch8'", "big"), sized(9, 2), id="big"),
    batch8("a batch of none", with_id("input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 0"), sized(0, 2),
           unless={"http json": with_id("input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 0")}),
    batch8("no batch dimension", with_id(expected("[2]")), sized(2)),
    batch8("wrong inner dimension", with_id(expected("[1,3]"), "i"), sized(1, 3), id="i"),
    batch8("rank too high", with_id(expected("[1,2,1]")), sized(1, 2, 1)),
    batch8("no shape", with_id("input 'X' has no shape but model requires batch dimension for 'batch8'"), Tensor("X", "FP32", (), (1.0,))),
    Case("wrong shape without a batch", Ask("multi", (Tensor("X", "FP32", (3,), (1.0, 2.0, 3.0)),)), with_id(expected("[3]", "[2]", "multi", "")), version="3"),
    batch8("another datatype", with_id("inference input 'X' data-type is 'FP64', but model 'batch8' expects 'FP32'"), sized(1, 2, datatype="FP64")),
    batch8(
        "unknown datatype",
        with_id("inference input 'X' data-type is '<invalid>', but model 'batch8' expects 'FP32'"),
        Tensor("X", "FOO", (1, 2), (1.0, 2.0)),
        unless={"http": wrong("invalid datatype for input X"), "grpc typed": wrong("unexpected explicit tensor data for input tensor 'X' for model 'batch8' of type 'FP32', expected datatype '<invalid>'")},
    ),
    batch8("unknown input", with_id(missing("1 inputs but got 2 inputs", "['NOPE','X']", "[]", "batch8")), X, Tensor("NOPE", "FP32", (1, 2), (1.0, 2.0))),
    Case("unknown input, any number allowed", Ask("types", (Tensor("NOPE", "INT32", (1,), (1,)),)), wrong("unexpected inference input 'NOPE' for model 'types'")),
    batch8("an input twice", with_id("input 'X' already exists in request", "q"), X, X, id="q"),
    batch8("no inputs", with_id(missing("1 inputs but got 0 inputs", "[]", "['X']", "batch8"))),
    Case("an input is missing", Ask("two", (A,), id="r"), with_id(missing("2 inputs but got 1 inputs", "['A']", "['B']", "two"), "r")),
    Case("batch sizes differ", Ask("two", (A, Tensor("B", "INT32", (2, 2), (1, 2, 3, 4)))), with_id("input 'B' batch size does not match other inputs for 'two'")),
    Case("optional inputs absent", Ask("optional", (Tensor("A", "INT32", (1, 1), (1,)),)), (Tensor("SUM", "INT32", (1, 1), (101,)),)),
    Case("an optional input given", Ask("optional", (Tensor("A", "INT32", (1, 1), (1,)), Tensor("B", "INT32", (1, 1), (20,)))), (Tensor("SUM", "INT32", (1, 1), (21,)),)),
    Case("the required input absent", Ask("optional", (Tensor("B", "INT32", (1, 1), (1,)),)), with_id(missing("number of inputs between 1 and 3 but got 1 inputs", "['B']", "['A']", "optional"))),
    Case("no inputs, all of them optional", Ask("types"), ()),
    Case("the newest version", Ask("multi", (MULTI,), id="abc"), (Tensor("Y", "FP32", (2,), (3.0, 6.0)),), version="3"),
    Case("a version", Ask("multi", (MULTI,), version="1"), (Tensor("Y", "FP32", (2,), (1.0, 2.0)),)),
    Case("an unknown version", Ask("multi", (MULTI,), version="2"), wrong("Request for unknown model: 'multi' version 2 is not found", "NOT_FOUND")),
    Case("an unknown model", Ask("nope", (X,)), wrong("Request for unknown model: 'nope' is not found", "NOT_FOUND")),
    Case("a model that isn't loaded", Ask("versions", (MULTI,)), wrong("Request for unknown model: 'versions' is not found", "NOT_FOUND")),
    Case(
        "BC60: a decoupled model",
        Ask("decoupled", (Tensor("N", "INT32", (1,), (1,)),)),
        wrong("HTTP end point doesn't support models with decoupled transaction policy", "UNSUPPORTED"),
        {"grpc": wrong("ModelInfer RPC doesn't support models with decoupled transaction policy", "UNSUPPORTED")},
    ),
    Case("reshape", Ask("reshape", (Tensor("S", "FP32", (2, 1), (1.0, 2.0)), Tensor("Q", "FP32", (2, 4), tuple(map(float, range(8)))))),
         (Tensor("SEEN", "BYTES", (2, 1), (b"...",) * 2), Tensor("Q_OUT", "FP32", (2, 4), tuple(map(float, range(8)))))),
    batch8("an id of its own", (Y,), X, id='\u00e4 "id"'),
]

# --- amounts of data: BC52 ---------------------------------------------------------------------------------------------------

MISMATCH = "input byte size mismatch for input '{}' for model 'types'. Expected {}, got {}"
FEW = "expected {} string elements for inference input 'IN_BYTES' for model 'types', got {}"
MANY = "unexpected number of string elements {} for inference input 'IN_BYTES' for model 'types', expecting {}"
PARSED = "Unable to parse 'data': Shape does not match true shape of 'data' field..."


def amount(name: str, shape: int, *values: int) -> Case:
    given = Tensor("IN_INT32", "INT32", (shape,), values)
    told = with_id(MISMATCH.format("IN_INT32", 4 * shape, 4 * len(values)))
    return Case(f"BC52: {name}", Ask("types", (given,)), told, {"http json": wrong(f"{PARSED}'IN_INT32'...{shape}...{len(values)}...")})


def texts(name: str, shape: int, told: Refused, *values: bytes) -> Case:
    return Case(f"BC52: {name}", Ask("types", (Tensor("IN_BYTES", "BYTES", (shape,), values),)), told)


def cut_off(name: str, data: bytes, told: Refused) -> Case:
    unless = {way: "only bytes can be cut off" for way in ("http json", "grpc typed")}
    return Case(name, Ask("types", (Tensor("IN_BYTES", "BYTES", (1,), data=data),)), told, unless)


AMOUNTS = [
    amount("too few elements", 3, 1, 2),
    amount("too many elements", 1, 1, 2),
    Case(
        "BC52: elements for none",
        Ask("types", (Tensor("IN_INT32", "INT32", (0,), (1,)),)),
        with_id(MISMATCH.format("IN_INT32", 0, 4)),
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
    batch8(
        "no data",
        wrong("Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But no field is set"),
        Tensor("X", "FP32", (1, 2), None),
        unless={"grpc": wrong("unable to find data for input tensor 'X' for model 'batch8' in request.")},
    ),
]

# --- outputs -----------------------------------------------------------------------------------------------------------------


def labels(name: str, wants: tuple[Want, ...], values: tuple[float, ...], gives: Any, rows: int = 1) -> Case:
    given = Tensor("X", "FP32", (rows, len(values) // rows), values)
    return Case(name, Ask("labels", (given,), wants), gives)


OUTPUTS = [
    Case("all outputs", Ask("two", (A, B)), (SUM, DIFFERENCE)),
    Case("one output", Ask("two", (A, B), (Want("DIFFERENCE"),)), (DIFFERENCE,)),
    Case("outputs in another order", Ask("two", (A, B), (Want("DIFFERENCE"), Want("SUM"))), (SUM, DIFFERENCE)),
    Case("an output twice", Ask("two", (A, B), (Want("SUM"), Want("SUM"))), (SUM,)),
    Case("unknown output", Ask("two", (A, B), (Want("NOPE"),)), wrong("unexpected inference output 'NOPE' for model 'two'")),
    Case("an output that isn't produced", Ask("types", (), (Want("OUT_INT32"),)), ()),
    labels("classes with labels", (Want("NAMED", 2),), (1.0, 4.0, 4.0), (Tensor("NAMED", "BYTES", (1, 2), (b"4.000000:1:dog", b"4.000000:2")),)),
    labels("classes of each row", (Want("WHOLE", 1),), (1.0, 2.0, 4.0, 3.0), (Tensor("WHOLE", "BYTES", (2, 1), (b"2:1", b"4:0")),), 2),
    labels("more classes than there are", (Want("WHOLE", 9),), (1.0, 2.0), (Tensor("WHOLE", "BYTES", (1, 2), (b"2:1", b"1:0")),)),
    labels("classes and values", (Want("SMALL", 1), Want("WHOLE")), (1.0, 2.0), (Tensor("WHOLE", "INT32", (1, 2), (1, 2)), Tensor("SMALL", "BYTES", (1, 1), (b"2:1",)))),
    labels("classes of FP16", (Want("HALF", 1),), (1.0, 2.0), wrong("class result not available for output due to unsupported type 'FP16'")),
]

# --- parameters ----------------------------------------------------------------------------------------------------------------


def told(name: str, sent: Mapping[str, Any], *, unless: Mapping[str, Any] | None = None, id: str = "", **seen: Any) -> Case:
    """Ask the model that tells what its request carries. `seen`: what it has to tell but for the usual."""
    usual = {"request_id": id, "correlation_id": 0, "flags": 0, "timeout": 0, "parameters": {}}
    ask = Ask("curious", (Tensor("X", "FP32", (1, 1), (1.0,)),), (Want("REQUEST"),), id, parameters=sent)
    text = json.dumps({**usual, **seen}).encode()
    return Case(f"parameters: {name}", ask, (Tensor("REQUEST", "BYTES", (1, 1), (text,)),), unless or {})


def bad(name: str, sent: Mapping[str, Any], http: str, grpc: str) -> Case:
    ask = Ask("curious", (Tensor("X", "FP32", (1, 1), (1.0,)),), (Want("REQUEST"),), parameters=sent)
    unless: dict[str, Any] = {"grpc": wrong(grpc), "http client": "the library says it itself", "grpc client": "the same"}
    return Case(f"parameters: {name}", ask, wrong(http), unless)


def mistyped(name: str, sent: Mapping[str, Any], http: str, grpc: str) -> Case:
    (key,) = sent
    return bad(name, sent, f"Unable to parse '{key}': attempt to access JSON {http}...", f"invalid value type for '{key}' parameter, expected {grpc}.")


UNSIGNED = "non-unsigned-integer as unsigned-integer"
CUSTOM = {"s": "text", "e": "", "i": -5, "z": 0, "large": 2**53 + 1, "b": True, "n": False, "f": 1.5}

PARAMETERS = [
    told("none", {}),
    told("BC59: of every type", CUSTOM, id="with id", parameters=CUSTOM),
    told("sequence number and flags", {"sequence_id": 42, "sequence_start": True, "sequence_end": True}, correlation_id=42, flags=3),
    told("sequence name", {"sequence_id": "abc", "sequence_start": True}, correlation_id="abc", flags=1),
    told("sequence flags that are false", {"sequence_id": 1, "sequence_start": False, "sequence_end": True}, correlation_id=1, flags=2),
    told("priority and time-out", {"priority": 3, "timeout": 1000}, timeout=1000),
    bad(
        "BC59: reserved",
        {"triton_x": 1},
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: triton_enable_empty_final_response",
    ),
    mistyped("sequence number a bool", {"sequence_id": True}, "non-string as string", "int64_param or string_param"),
    mistyped("sequence number a float", {"sequence_id": 1.5}, "non-string as string", "int64_param or string_param"),
    mistyped("sequence start a number", {"sequence_start": 1}, "non-boolean as boolean", "bool_param"),
    mistyped("sequence end a string", {"sequence_end": "true"}, "non-boolean as boolean", "bool_param"),
    mistyped("priority a string", {"priority": "1"}, UNSIGNED, "int64_param or uint64_param"),
    mistyped("time-out a string", {"timeout": "1"}, UNSIGNED, "int64_param"),
    mistyped("time-out a float", {"timeout": 1.5}, UNSIGNED, "int64_param"),
    told(
        "a negative time-out",
        {"timeout": -1},
        timeout=2**64 - 1,
        unless={"http": wrong(f"Unable to parse 'timeout': attempt to access JSON {UNSIGNED}..."), "http client": "the library says it itself"},
    ),
]

# --- what models do --------------------------------------------------------------------------------------------------------------


def behave(what: str, gives: Any, **more: Any) -> Case:
    return Case(f"the model: {what}", Ask("behave", (Tensor("WHAT", "BYTES", (1,), (what.encode(),)),), **more), gives)


OUT = Tensor("OUT", "FP32", (1,), (1.0,))

MODELS = [
    *(
        behave(code, Refused(code, f'a {code} "error"'))
        for code in "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
    ),
    behave("default_code", Refused("INTERNAL", "no code given")),
    behave("raise_value_error", Refused("INTERNAL", "Failed to process the request(s) for model 'behave_0', message: ValueError: wrong value\n\nAt:\n..."), id="x"),
    behave("return_too_few", Refused("INTERNAL", "...behave_0...")),
    behave("nothing", ()),
    behave("send", (OUT,)),
    behave("send_error", Refused("NOT_FOUND", "sent")),
    behave("empty_strings", (Tensor("TEXT", "BYTES", (0,)),)),
    Case("an ensemble", Ask("ensemble", (X,), id="e"), (Y,)),
    Case("an ensemble, output named", Ask("ensemble", (X,), (Want("Y"),)), (Y,)),
    Case("an ensemble, unknown output", Ask("ensemble", (X,), (Want("N"),)), wrong("unexpected inference output 'N' for model 'ensemble'")),
    Case("an ensemble, no inputs", Ask("ensemble"), with_id(missing("1 inputs but got 0 inputs", "[]", "['X']", "ensemble"))),
    Case("an ensemble whose step fails", Ask("ensemble_failing", (Tensor("WHAT", "BYTES", (1,), (b"then:UNAVAILABLE",)),)),
         Refused("UNAVAILABLE", "in ensemble 'ensemble_failing', step 1 (model 'behave'): a UNAVAILABLE \"error\"")),
]

CASES = [*DATATYPES, *SHAPES, *AMOUNTS, *OUTPUTS, *PARAMETERS, *MODELS]

# --- shared memory: one region called `memory`, of 256 bytes, and none called `nope` ----------------------------------------------


def source(name: str, part: Part, gives: Any, *, shape: tuple[int, ...] = (1, 2), values: Any = (1.0, 2.0), unless: Any = None) -> Case:
    return Case(f"input from memory: {name}", Ask("batch8", (Tensor("X", "FP32", shape, values, part),)), gives, unless or {})


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
    source("too few bytes", Part(4), with_id("input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 4"), values=None),
    source("too many bytes", Part(16), with_id("input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 16"), values=None),
    source("wrong shape", Part(12), with_id(expected("[1,3]")), shape=(1, 3), values=None),
    Case("input from memory: one of two", Ask("two", (Tensor("A", "INT32", (1, 2), (1, 2), Part(8, 16)), B)), (SUM, DIFFERENCE)),
    Case("input from memory: strings", Ask("types", (Tensor("IN_BYTES", "BYTES", (2,), (b"ab", b"\xff"), Part(11)),)), (Tensor("OUT_BYTES", "BYTES", (2,), (b"ab", b"\xff")),),
         {"http json": NO_JSON}),
    Case("input and output in memory: FP16", Ask("types", (Tensor("IN_FP16", "FP16", (2,), (1.5, 2.0), Part(4)),), (Want("OUT_FP16", 0, Part(4, 8)),)),
         (Tensor("OUT_FP16", "FP16", (2,), (1.5, 2.0), Part(4, 8)),)),
    target("right", Part(8, 64), (outside(Part(8, 64)),)),
    target("with room", Part(100, 128), (outside(Part(8, 128)),)),
    target("unknown region", Part(8, 0, "nope"), UNKNOWN),
    target("too small", Part(7, 64), wrong("shared memory size specified with the request for output 'Y' (7 bytes) should be at least 8 bytes to hold the results", "INTERNAL")),
    target("offset beyond", Part(8, 300), OFFSET),
    target("size beyond", Part(8, 249), SIZE),
    Case("output to memory and classes", Ask("batch8", (X,), (Want("Y", 1, Part(8)),)), wrong("Output can't set both 'shared_memory_region' and 'classification'"),
         {"grpc": wrong("output can't set both 'shared_memory_region' and 'classification'"), "http client": "the library forbids it", "grpc client": "the same"}),
    Case("output to memory: one of two", Ask("two", (A, B), (Want("SUM", 0, Part(8)), Want("DIFFERENCE"))), (Tensor("SUM", "INT32", (1, 2), (4, 6), Part(8)), DIFFERENCE)),
    Case("output to memory: an ensemble", Ask("ensemble", (X,), (Want("Y", 0, Part(8)),)), (outside(Part(8)),)),
]

"""Inference, requests: models and versions, shapes and batches, outputs, parameters, what models do; as in cases_tensors.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .asks import Ask, Case, Refused, Tensor, Want
from .cases_tensors import DIFFERENCE, SUM, A, B, X, Y
from .words import expected, missing, with_id, wrong

__all__ = ["REQUEST_CASES"]

MULTI = Tensor("X", "FP32", (2,), (1.0, 2.0))

# --- names, versions, shapes, batches --------------------------------------------------------------------------------


def batch8(name: str, gives: Any, *inputs: Tensor, unless: Mapping[str, Any] | None = None, **more: Any) -> Case:
    return Case(name, Ask("batch8", inputs, **more), gives, unless or {})


def sized(*shape: int, datatype: str = "FP32") -> Tensor:
    """An input of that shape with as many elements."""
    count = 1
    for each in shape:
        count *= each
    return Tensor("X", datatype, shape, (1.0,) * count)


SHAPES = [
    batch8("a batch of one", (Y,), X),
    batch8("a batch of eight", (Tensor("Y", "FP32", (8, 2), (1.0,) * 16),), sized(8, 2)),
    batch8(
        "a batch too large",
        with_id("inference request batch-size must be <= 8 for 'batch8'", "big"),
        sized(9, 2),
        id="big",
    ),
    batch8(
        "a batch of none",
        with_id("input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 0"),
        sized(0, 2),
        unless={"http json": with_id("input byte size mismatch for input 'X' for model 'batch8'. Expected 8, got 0")},
    ),
    batch8("no batch dimension", with_id(expected("[2]")), sized(2)),
    batch8("wrong inner dimension", with_id(expected("[1,3]"), "i"), sized(1, 3), id="i"),
    batch8("rank too high", with_id(expected("[1,2,1]")), sized(1, 2, 1)),
    batch8(
        "no shape",
        with_id("input 'X' has no shape but model requires batch dimension for 'batch8'"),
        Tensor("X", "FP32", (), (1.0,)),
    ),
    Case(
        "wrong shape without a batch",
        Ask("multi", (Tensor("X", "FP32", (3,), (1.0, 2.0, 3.0)),)),
        with_id(expected("[3]", "[2]", "multi", "")),
        version="3",
    ),
    batch8(
        "another datatype",
        with_id("inference input 'X' data-type is 'FP64', but model 'batch8' expects 'FP32'"),
        sized(1, 2, datatype="FP64"),
    ),
    batch8(
        "unknown datatype",
        with_id("inference input 'X' data-type is '<invalid>', but model 'batch8' expects 'FP32'"),
        Tensor("X", "FOO", (1, 2), (1.0, 2.0)),
        unless={
            "http": wrong("invalid datatype for input X ('FOO')"),
            "grpc typed": wrong(
                "unexpected explicit tensor data for input tensor 'X' for model 'batch8' of type 'FP32', "
                "expected datatype '<invalid>'"
            ),
        },
    ),
    batch8(
        "unknown input",
        with_id(missing("1 inputs but got 2 inputs", "['NOPE','X']", "[]", "batch8")),
        X,
        Tensor("NOPE", "FP32", (1, 2), (1.0, 2.0)),
    ),
    Case(
        "unknown input, any number allowed",
        Ask("types", (Tensor("NOPE", "INT32", (1,), (1,)),)),
        wrong("unexpected inference input 'NOPE' for model 'types'"),
    ),
    batch8("an input twice", with_id("input 'X' already exists in request", "q"), X, X, id="q"),
    batch8("no inputs", with_id(missing("1 inputs but got 0 inputs", "[]", "['X']", "batch8"))),
    Case(
        "an input is missing",
        Ask("two", (A,), id="r"),
        with_id(missing("2 inputs but got 1 inputs", "['A']", "['B']", "two"), "r"),
    ),
    Case(
        "batch sizes differ",
        Ask("two", (A, Tensor("B", "INT32", (2, 2), (1, 2, 3, 4)))),
        with_id("input 'B' batch size does not match other inputs for 'two'"),
    ),
    Case(
        "optional inputs absent",
        Ask("optional", (Tensor("A", "INT32", (1, 1), (1,)),)),
        (Tensor("SUM", "INT32", (1, 1), (101,)),),
    ),
    Case(
        "an optional input given",
        Ask("optional", (Tensor("A", "INT32", (1, 1), (1,)), Tensor("B", "INT32", (1, 1), (20,)))),
        (Tensor("SUM", "INT32", (1, 1), (21,)),),
    ),
    Case(
        "the required input absent",
        Ask("optional", (Tensor("B", "INT32", (1, 1), (1,)),)),
        with_id(missing("number of inputs between 1 and 3 but got 1 inputs", "['B']", "['A']", "optional")),
    ),
    Case("no inputs, all of them optional", Ask("types"), ()),
    Case("the newest version", Ask("multi", (MULTI,), id="abc"), (Tensor("Y", "FP32", (2,), (3.0, 6.0)),), version="3"),
    Case("a version", Ask("multi", (MULTI,), version="1"), (Tensor("Y", "FP32", (2,), (1.0, 2.0)),)),
    Case(
        "an unknown version",
        Ask("multi", (MULTI,), version="2"),
        wrong("Request for unknown model: 'multi' version 2 is not found", "NOT_FOUND"),
    ),
    Case("an unknown model", Ask("nope", (X,)), wrong("Request for unknown model: 'nope' is not found", "NOT_FOUND")),
    Case(
        "a model that isn't loaded",
        Ask("versions", (MULTI,)),
        wrong("Request for unknown model: 'versions' is not found", "NOT_FOUND"),
    ),
    Case(
        "BC60: a decoupled model",
        Ask("decoupled", (Tensor("N", "INT32", (1,), (1,)),)),
        wrong("HTTP end point doesn't support models with decoupled transaction policy", "UNSUPPORTED"),
        {"grpc": wrong("ModelInfer RPC doesn't support models with decoupled transaction policy", "UNSUPPORTED")},
    ),
    Case(
        "reshape",
        Ask(
            "reshape",
            (Tensor("S", "FP32", (2, 1), (1.0, 2.0)), Tensor("Q", "FP32", (2, 4), tuple(map(float, range(8))))),
        ),
        (Tensor("SEEN", "BYTES", (2, 1), (b"...",) * 2), Tensor("Q_OUT", "FP32", (2, 4), tuple(map(float, range(8))))),
    ),
    batch8("an id of its own", (Y,), X, id='\u00e4 "id"'),
    batch8(
        "no data",
        wrong(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But no field is set (input 'X')"
        ),
        Tensor("X", "FP32", (1, 2), None),
        unless={"grpc": wrong("unable to find data for input tensor 'X' for model 'batch8' in request.")},
    ),
]

# --- outputs ---------------------------------------------------------------------------------------------------------


def labels(name: str, wants: tuple[Want, ...], values: tuple[float, ...], gives: Any, rows: int = 1) -> Case:
    given = Tensor("X", "FP32", (rows, len(values) // rows), values)
    return Case(name, Ask("labels", (given,), wants), gives)


OUTPUTS = [
    Case("all outputs", Ask("two", (A, B)), (SUM, DIFFERENCE)),
    Case("one output", Ask("two", (A, B), (Want("DIFFERENCE"),)), (DIFFERENCE,)),
    Case("outputs in another order", Ask("two", (A, B), (Want("DIFFERENCE"), Want("SUM"))), (SUM, DIFFERENCE)),
    Case("an output twice", Ask("two", (A, B), (Want("SUM"), Want("SUM"))), (SUM,)),
    Case(
        "unknown output",
        Ask("two", (A, B), (Want("NOPE"),)),
        wrong("unexpected inference output 'NOPE' for model 'two'"),
    ),
    Case("an output that isn't produced", Ask("types", (), (Want("OUT_INT32"),)), ()),
    labels(
        "classes with labels",
        (Want("NAMED", 2),),
        (1.0, 4.0, 4.0),
        (Tensor("NAMED", "BYTES", (1, 2), (b"4.000000:1:dog", b"4.000000:2")),),
    ),
    labels(
        "classes of each row",
        (Want("WHOLE", 1),),
        (1.0, 2.0, 4.0, 3.0),
        (Tensor("WHOLE", "BYTES", (2, 1), (b"2:1", b"4:0")),),
        2,
    ),
    labels(
        "more classes than there are",
        (Want("WHOLE", 9),),
        (1.0, 2.0),
        (Tensor("WHOLE", "BYTES", (1, 2), (b"2:1", b"1:0")),),
    ),
    labels(
        "classes and values",
        (Want("SMALL", 1), Want("WHOLE")),
        (1.0, 2.0),
        (Tensor("WHOLE", "INT32", (1, 2), (1, 2)), Tensor("SMALL", "BYTES", (1, 1), (b"2:1",))),
    ),
    labels(
        "classes of FP16",
        (Want("HALF", 1),),
        (1.0, 2.0),
        wrong("class result not available for output due to unsupported type 'FP16'"),
    ),
]

# --- parameters ------------------------------------------------------------------------------------------------------


def told(
    name: str, sent: Mapping[str, Any], *, unless: Mapping[str, Any] | None = None, id: str = "", **seen: Any
) -> Case:
    """Ask the model that tells what its request carries. `seen`: what it has to tell but for the usual."""
    usual = {"request_id": id, "correlation_id": 0, "flags": 0, "timeout": 0, "parameters": {}}
    ask = Ask("curious", (Tensor("X", "FP32", (1, 1), (1.0,)),), (Want("REQUEST"),), id, parameters=sent)
    text = json.dumps({**usual, **seen}).encode()
    return Case(f"parameters: {name}", ask, (Tensor("REQUEST", "BYTES", (1, 1), (text,)),), unless or {})


def bad(name: str, sent: Mapping[str, Any], http: str, grpc: str) -> Case:
    ask = Ask("curious", (Tensor("X", "FP32", (1, 1), (1.0,)),), (Want("REQUEST"),), parameters=sent)
    unless: dict[str, Any] = {
        "grpc": wrong(grpc),
        "http client": "the library says it itself",
        "grpc client": "the same",
    }
    return Case(f"parameters: {name}", ask, wrong(http), unless)


def mistyped(name: str, sent: Mapping[str, Any], http: str, grpc: str) -> Case:
    (key,) = sent
    return bad(
        name,
        sent,
        f"Unable to parse '{key}': attempt to access JSON {http}...",
        f"invalid value type for '{key}' parameter, expected {grpc}.",
    )


UNSIGNED = "non-unsigned-integer as unsigned-integer"
CUSTOM = {"s": "text", "e": "", "i": -5, "z": 0, "large": 2**53 + 1, "b": True, "n": False, "f": 1.5}

PARAMETERS = [
    told("none", {}),
    told("BC59: of every type", CUSTOM, id="with id", parameters=CUSTOM),
    told(
        "sequence number and flags",
        {"sequence_id": 42, "sequence_start": True, "sequence_end": True},
        correlation_id=42,
        flags=3,
    ),
    told("sequence name", {"sequence_id": "abc", "sequence_start": True}, correlation_id="abc", flags=1),
    told(
        "sequence flags that are false",
        {"sequence_id": 1, "sequence_start": False, "sequence_end": True},
        correlation_id=1,
        flags=2,
    ),
    told("priority and time-out", {"priority": 3, "timeout": 1000}, timeout=1000),
    bad(
        "BC59: reserved",
        {"triton_x": 1},
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        "'triton_' are allowed: triton_enable_empty_final_response",
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
        unless={
            "http": wrong(f"Unable to parse 'timeout': attempt to access JSON {UNSIGNED}..."),
            "http client": "the library says it itself",
        },
    ),
]

# --- what models do --------------------------------------------------------------------------------------------------


def behave(what: str, gives: Any, **more: Any) -> Case:
    return Case(f"the model: {what}", Ask("behave", (Tensor("WHAT", "BYTES", (1,), (what.encode(),)),), **more), gives)


OUT = Tensor("OUT", "FP32", (1,), (1.0,))

MODELS = [
    *(
        behave(code, Refused(code, f'a {code} "error"'))
        for code in "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()
    ),
    behave("default_code", Refused("INTERNAL", "no code given")),
    behave(
        "raise_value_error",
        Refused(
            "INTERNAL",
            "Failed to process the request(s) for model 'behave_0', message: ValueError: wrong value\n\nAt:\n...",
        ),
        id="x",
    ),
    behave("return_too_few", Refused("INTERNAL", "...behave_0...")),
    behave("nothing", ()),
    behave("send", (OUT,)),
    behave("send_error", Refused("NOT_FOUND", "sent")),
    behave("empty_strings", (Tensor("TEXT", "BYTES", (0,)),)),
    Case("an ensemble", Ask("ensemble", (X,), id="e"), (Y,)),
    Case("an ensemble, output named", Ask("ensemble", (X,), (Want("Y"),)), (Y,)),
    Case(
        "an ensemble, unknown output",
        Ask("ensemble", (X,), (Want("N"),)),
        wrong("unexpected inference output 'N' for model 'ensemble'"),
    ),
    Case(
        "an ensemble, no inputs",
        Ask("ensemble"),
        with_id(missing("1 inputs but got 0 inputs", "[]", "['X']", "ensemble")),
    ),
    Case(
        "an ensemble whose step fails",
        Ask("ensemble_failing", (Tensor("WHAT", "BYTES", (1,), (b"then:UNAVAILABLE",)),)),
        Refused("UNAVAILABLE", "in ensemble 'ensemble_failing', step 1 (model 'behave'): a UNAVAILABLE \"error\""),
    ),
]

REQUEST_CASES = [*SHAPES, *OUTPUTS, *PARAMETERS, *MODELS]

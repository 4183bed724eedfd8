"""What is asked of both servers by ModelInfer: tensors in both forms, parameters, outputs, models that do what they shouldn't.

All of it goes to servers that loaded models/plain; no case depends on another one.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any

import grpc

from .messages_grpc import FIELD, Kind, X, floats, infer, output, request, strings, tensor, typed
from .wire_grpc import Call

__all__ = ["INFERENCE"]

A = typed("A", "INT32", [1, 2], [1, 2])
B = typed("B", "INT32", [1, 2], [3, 4])


def types(name: str, datatype: str, shape: list[int], contents: Any = None, *data: bytes) -> Call:
    return infer(name, "types", [tensor(f"IN_{datatype}", datatype, shape, contents)], (), data)


#: Datatype -> some elements as typed contents, and their bytes.
SAMPLES: dict[str, tuple[list[Any], bytes]] = {
    "BOOL": ([True, False], b"\x01\x00"),
    "INT8": ([-128, 127], b"\x80\x7f"),
    "INT16": ([-32768, 32767], struct.pack("<2h", -32768, 32767)),
    "INT32": ([-(2**31), 2**31 - 1], struct.pack("<2i", -(2**31), 2**31 - 1)),
    "INT64": ([-(2**63), 2**63 - 1], struct.pack("<2q", -(2**63), 2**63 - 1)),
    "UINT8": ([0, 255], b"\x00\xff"),
    "UINT16": ([0, 65535], struct.pack("<2H", 0, 65535)),
    "UINT32": ([0, 2**32 - 1], struct.pack("<2I", 0, 2**32 - 1)),
    "UINT64": ([0, 2**64 - 1], struct.pack("<2Q", 0, 2**64 - 1)),
    "FP32": ([0.1, float("nan")], floats(0.1, float("nan"))),
    "FP64": ([0.1, float("-inf")], struct.pack("<2d", 0.1, float("-inf"))),
    "BYTES": ([b"ab", b"\xff\x00"], strings(b"ab", b"\xff\x00")),
}
#: Something in each field of the typed contents.
ONE: dict[str, list[Any]] = {
    "bool": [True], "int": [1], "int64": [1], "uint": [1], "uint64": [1], "fp32": [1], "fp64": [1], "bytes": [b"a"],
}  # fmt: skip

TENSORS = [
    *(types(f"typed {name}", name, [2], {FIELD[name]: elements}) for name, (elements, _) in SAMPLES.items()),
    *(types(f"raw {name}", name, [2], None, data) for name, (_, data) in SAMPLES.items()),
    types("raw FP16", "FP16", [2], None, b"\x00\x3c\x00\xc0"),
    infer("raw BF16", "bf16", [tensor("X", "BF16", [2])], (), [b"\x80\x3f\x00\xc0"]),
    *(
        types(f"{field}_contents for {name}", name, [1], {field: ONE[field]})
        for name in (*FIELD, "FP16")
        for field in ONE
        if field != FIELD.get(name)
    ),
    infer("fp32_contents for BF16", "bf16", [tensor("X", "BF16", [1], {"fp32": [1]})]),
    types("INT8 truncates", "INT8", [1], {"int": [300]}),
    types("INT16 truncates", "INT16", [1], {"int": [-70000]}),
    types("UINT8 truncates", "UINT8", [1], {"uint": [256]}),
    types("UINT16 truncates", "UINT16", [1], {"uint": [65536]}),
    types("two fields, the right one first", "INT32", [1], {"int": [1], "bytes": [b"x"]}),
    types("two fields, the right one last", "FP32", [1], {"bool": [True], "fp32": [1]}),
    types("two fields, both of them wrong", "FP32", [1], {"int": [1], "bytes": [b"x"]}),
    types("contents with nothing in them", "INT32", [1], {}),
    types("contents with nothing in them, nothing wanted", "INT32", [0], {}),
    types("raw data of nothing", "INT32", [0], None, b""),
    types("raw strings of nothing", "BYTES", [0], None, b""),
    types("typed strings, empty and not UTF-8", "BYTES", [4], {"bytes": [b"", b"\xff\xfe\x00", b"a\x00", b""]}),
    types("raw strings, empty and not UTF-8", "BYTES", [4], None, strings(b"", b"\xff\xfe\x00", b"a\x00", b"")),
    types("too few typed elements", "INT32", [3], {"int": [1, 2]}),
    types("too many typed elements", "INT32", [1], {"int": [1, 2]}),
    types("too few raw bytes", "INT32", [3], None, b"12345678"),
    types("too many raw bytes", "INT32", [1], None, b"12345678"),
    types("raw bytes that are no whole elements", "INT32", [1], None, b"123"),
    infer("wrong size, with an id", "batch8", [tensor("X", "FP32", [1, 2])], (), [floats(1)], id="z"),
    types("too few typed strings", "BYTES", [3], {"bytes": [b"a", b"b"]}),
    types("too many typed strings", "BYTES", [1], {"bytes": [b"a", b"b"]}),
    types("too few raw strings", "BYTES", [2], None, strings(b"a")),
    types("too many raw strings", "BYTES", [1], None, strings(b"a", b"b")),
    types("raw strings, cut off in a length", "BYTES", [2], None, strings(b"a") + b"\x01\x00"),
    types("raw strings, cut off in an element", "BYTES", [1], None, b"\x05\x00\x00\x00ab"),
    types("neither raw nor typed", "INT32", [1]),
    infer("one typed, one neither", "two", [A, tensor("B", "INT32", [1, 2])]),
    infer("raw and typed for one input", "batch8", [X], (), [floats(1, 2)]),
    infer("raw for one, typed for the other", "two", [A, tensor("B", "INT32", [1, 2])], (), [struct.pack("<2i", 1, 2)]),
    infer("raw for the first, typed for the second", "two", [tensor("A", "INT32", [1, 2]), B], (), [b"12345678"]),
    infer("contents with nothing in them, and raw", "batch8", [tensor("X", "FP32", [1, 2], {})], (), [floats(1, 2)]),
    infer("more raw entries than inputs", "batch8", [tensor("X", "FP32", [1, 2])], (), [floats(1, 2), b"more"]),
    infer(
        "fewer raw entries than inputs",
        "two",
        [tensor("A", "INT32", [1, 2]), tensor("B", "INT32", [1, 2])],
        (),
        [b"12345678"],
    ),
    infer("raw entries without inputs", "types", [], (), [b"1234"]),
    infer(
        "two raw entries in the order of the inputs",
        "two",
        [tensor("B", "INT32", [1, 2]), tensor("A", "INT32", [1, 2])],
        (),
        [struct.pack("<2i", 1, 2), struct.pack("<2i", 30, 40)],
    ),
    types("a large tensor", "UINT8", [6 * 2**20], None, bytes(range(256)) * (6 * 2**12)),
]


def shaped(name: str, shape: list[int], model: str = "batch8", data: bytes | None = None, **given: Any) -> Call:
    """Return a request of that shape, with as much data as that would be."""
    size = 4 * abs(prod(shape))
    return infer(name, model, [tensor("X", "FP32", shape)], (), [bytes(size) if data is None else data], **given)


CHECKS = [
    types("unknown datatype, raw", "FOO", [1], None, b"1234"),
    infer("unknown datatype", "batch8", [tensor("X", "FOO", [1, 2])], (), [floats(1, 2)]),
    infer("unknown datatype, typed", "batch8", [tensor("X", "FOO", [1, 2], {"fp32": [1, 2]})]),
    infer("datatype in lower case", "batch8", [tensor("X", "fp32", [1, 2])], (), [floats(1, 2)]),
    infer("no datatype", "batch8", [tensor("X", "", [1, 2])], (), [floats(1, 2)]),
    infer("datatype as in a config", "batch8", [tensor("X", "TYPE_FP32", [1, 2])], (), [floats(1, 2)]),
    infer("another datatype", "batch8", [typed("X", "INT32", [1, 2], [1, 2])]),
    infer("another datatype, raw, with an id", "batch8", [tensor("X", "FP64", [1, 2])], (), [bytes(16)], id="7"),
    shaped("size -1", [1, -1]),
    shaped("size -1, with an id", [1, -1], id="q"),
    shaped("size -1 of the batch", [-1, 2]),
    shaped("size -2", [1, -2]),
    shaped("only -1", [-1], "multi"),
    shaped("batch dimension missing", [2]),
    shaped("no shape", []),
    shaped("no shape, no batch dimension", [], "multi"),
    shaped("batch of none", [0, 2], data=b""),
    shaped("batch too large", [9, 2]),
    shaped("batch too large, with an id", [9, 2], id="big"),
    shaped("full batch", [8, 2]),
    shaped("wrong inner dimension", [1, 3]),
    shaped("rank too high", [1, 2, 1]),
    shaped("rank too high, no batch dimension", [2, 1], "multi"),
    shaped("a shape of more elements than there can be", [2**62, 2**62], data=b""),
    infer("batches differ", "two", [A, typed("B", "INT32", [2, 2], [1, 2, 3, 4])]),
    infer("no inputs", "batch8"),
    infer("no inputs, all optional", "types"),
    infer("an input is missing", "two", [A]),
    infer("an input is missing, with an id", "two", [B], id="r"),
    infer("unknown input", "types", [typed("NOPE", "INT32", [1], [1])]),
    infer("unknown input beside the right one", "batch8", [X, typed("NOPE", "FP32", [1, 2], [1, 2])]),
    infer("input without a name", "batch8", [typed("", "FP32", [1, 2], [1, 2])]),
    infer("doubled input", "batch8", [X, X]),
    infer("doubled input, with an id", "batch8", [X, X], id="q"),
    infer("unknown input parameters", "batch8", [typed("X", "FP32", [1, 2], [1, 2], what=1)]),
    infer("optional inputs absent", "optional", [typed("A", "INT32", [1, 1], [1])]),
    infer("optional input given", "optional", [typed("A", "INT32", [1, 1], [1]), typed("B", "INT32", [1, 1], [2])]),
    infer("required input absent", "optional", [typed("B", "INT32", [1, 1], [2])]),
    infer("reshape", "reshape", [typed("S", "FP32", [2, 1], [1, 2]), typed("Q", "FP32", [2, 4], range(8))]),
    infer("to a decoupled model", "decoupled", [typed("N", "INT32", [1], [1])]),
    infer("to a decoupled model, nothing right", "decoupled", [typed("X", "FP64", [-1], [1])], triton_x=1),
    infer("to an unknown model", "nope", [X]),
    infer("to a model without a name", "", [X]),
    infer("to a version", "multi", [typed("X", "FP32", [2], [1, 2])], version="1"),
    infer("to the latest version", "multi", [typed("X", "FP32", [2], [1, 2])], id="abc"),
    infer("to an unknown version", "multi", [typed("X", "FP32", [2], [1, 2])], version="2"),
    infer("to version -1", "multi", [typed("X", "FP32", [2], [1, 2])], version="-1"),
    infer("to version 0", "multi", [typed("X", "FP32", [2], [1, 2])], version="0"),
    infer("to a version that is a word", "multi", [typed("X", "FP32", [2], [1, 2])], version="abc"),
    infer("to a version of another model", "nope", [X], version="abc"),
    Call("gRPC: bytes that are no message", "ModelInfer", (b"\xff\xff\xff",)),
    Call("gRPC: an empty message", "ModelInfer", (b"",)),
    Call(
        "gRPC: a message with an unknown field",
        "ModelInfer",
        (request("batch8", [X]).SerializeToString() + b"\xf8\x7f\x01",),
    ),
    infer("an id with special characters", "batch8", [X], id='ä"\n'),
    infer("a long id", "batch8", [X], id="x" * 1000),
]

OUTPUTS = [
    infer("one output", "two", [A, B], ["DIFFERENCE"]),
    infer("outputs in another order", "two", [A, B], ["DIFFERENCE", "SUM"]),
    infer("unknown output", "two", [A, B], ["NOPE"]),
    infer("output without a name", "two", [A, B], [""]),
    infer("doubled output", "two", [A, B], ["SUM", "SUM"]),
    infer("requested output not produced", "types", [], ["OUT_INT32"]),
    infer("unknown output parameters", "two", [A, B], [output("SUM", what=1, binary_data=False)]),
    infer(
        "classes with labels",
        "labels",
        [typed("X", "FP32", [1, 6], [1, 4, 4, 2, -1, 3.5])],
        [output("NAMED", classification=3)],
    ),
    infer(
        "classes of each row", "labels", [typed("X", "FP32", [2, 2], [1, 2, 4, 3])], [output("WHOLE", classification=1)]
    ),
    infer(
        "more classes than there are",
        "labels",
        [typed("X", "FP32", [1, 2], [1, 2])],
        [output("NAMED", classification=9)],
    ),
    infer(
        "classes and values",
        "labels",
        [typed("X", "FP32", [1, 2], [1, 2])],
        [output("NAMED", classification=1), "WHOLE"],
    ),
    infer("no classes", "batch8", [X], [output("Y", classification=0)]),
    infer("classes without a batch", "multi", [typed("X", "FP32", [2], [1, 2])], [output("Y", classification=1)]),
    infer("classes, a negative number", "batch8", [X], [output("Y", classification=-1)]),
    infer("classes, a string", "batch8", [X], [output("Y", classification="1")]),
    infer("classes, a bool", "batch8", [X], [output("Y", classification=True)]),
    infer("classes, unsigned", "batch8", [X], [output("Y", classification=Kind("uint64", 1))]),
    infer("classes, nothing", "batch8", [X], [output("Y", classification=Kind(""))]),
    infer("classes of FP16", "labels", [typed("X", "FP32", [1, 2], [1, 2])], [output("HALF", classification=1)]),
    infer("classes of an unknown output", "batch8", [X], [output("N", classification="1")]),
]


def curious(name: str, **given: Any) -> Call:
    """Ask the model that tells what its request carries."""
    return infer(f"parameters: {name}", "curious", [typed("X", "FP32", [1, 1], [1])], ["REQUEST"], **given)


PARAMETERS = [
    curious("none"),
    curious("a string, an id", s="text", id="with id"),
    curious("an empty string", s=""),
    curious("an integer", i=-(2**63)),
    curious("a bool", b=True),
    curious("a float", f=1.5),
    curious("an unsigned integer", u=Kind("uint64", 7)),
    curious("a large unsigned integer", u=Kind("uint64", 2**64 - 1)),
    curious("nothing", n=Kind("")),
    curious("binary_data_output is like any other", binary_data_output=True),
    curious("reserved", triton_x=1),
    curious("reserved, of no type", triton_x=Kind("")),
    curious("empty final response", triton_enable_empty_final_response=True),
    curious("empty final response, a string", triton_enable_empty_final_response="true"),
    curious("empty final response, an integer", triton_enable_empty_final_response=1),
    curious("sequence number", sequence_id=42),
    curious("sequence number and flags", sequence_id=42, sequence_start=True, sequence_end=True),
    curious("sequence number negative", sequence_id=-1),
    curious("sequence number unsigned", sequence_id=Kind("uint64", 2**63)),
    curious("sequence number 0", sequence_id=0),
    curious("sequence name", sequence_id="abc"),
    curious("sequence name empty", sequence_id=""),
    curious("sequence number a bool", sequence_id=True),
    curious("sequence number a float", sequence_id=1.0),
    curious("sequence number nothing", sequence_id=Kind("")),
    curious("sequence start false", sequence_start=False),
    curious("sequence start a number", sequence_start=1),
    curious("sequence end a string", sequence_end="true"),
    curious("priority", priority=3),
    curious("priority unsigned", priority=Kind("uint64", 3)),
    curious("priority negative", priority=-1),
    curious("priority a string", priority="1"),
    curious("priority a float", priority=1.0),
    curious("time-out", timeout=1000),
    curious("time-out negative", timeout=-1),
    curious("time-out unsigned", timeout=Kind("uint64", 5)),
    curious("time-out a string", timeout="5"),
    infer(
        "headers aren't forwarded",
        "curious",
        [typed("X", "FP32", [1, 1], [1])],
        ["REQUEST"],
        call={"metadata": (("x-user", "me"),)},
    ),
]

BEHAVIOUR = [
    *(
        infer(f"behave: {what}", "behave", [typed("WHAT", "BYTES", [1], [what.encode()])], id=request_id)
        for what, request_id in (
            *(
                (name, "")
                for name in (
                    "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED"
                ).split()
            ),
            ("default_code", "x"),
            ("raise_value_error", "x"),
            ("raise_deep", ""),
            ("return_int", ""),
            ("return_too_few", ""),
            ("nothing", ""),
            ("undeclared", ""),
            ("other_type", ""),
            ("other_shape", ""),
            ("other_order", ""),
            ("twice", ""),
            ("not_finite", ""),
            ("strings", ""),
            ("empty_strings", ""),
            ("strided", ""),
            ("error_and_outputs", ""),
            ("send", ""),
            ("send_error", ""),
        )
    ),
    infer("ensemble", "ensemble", [X], id="e"),
    infer("ensemble, output named", "ensemble", [X], ["Y"]),
    infer("ensemble, unknown output", "ensemble", [X], ["N"]),
    infer("ensemble, an input is missing", "ensemble"),
    infer("ensemble with sequence parameters", "ensemble", [X], sequence_id=7, sequence_start=True),
    infer("ensemble with a sequence name", "ensemble", [X], sequence_id="abc", sequence_end=True),
    infer(
        "ensemble, first step answers an error",
        "ensemble_failing",
        [typed("WHAT", "BYTES", [1], [b"NOT_FOUND"])],
        id="f",
    ),
    infer(
        "ensemble, second step raises", "ensemble_failing", [typed("WHAT", "BYTES", [1], [b"then:raise_value_error"])]
    ),
]

COMPRESSION = [
    infer("gzip request", "batch8", [X], call={"compression": grpc.Compression.Gzip}),
    infer("deflate request", "batch8", [X], call={"compression": grpc.Compression.Deflate}),
    types("gzip request, large", "UINT8", [100000], None, bytes(100000)),
]

INFERENCE = [*TENSORS, *CHECKS, *OUTPUTS, *PARAMETERS, *BEHAVIOUR, *COMPRESSION]

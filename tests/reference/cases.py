"""What is asked of both servers: data, in the order in which it is sent.

`PLAIN` goes to servers that loaded all of models/plain at start; hardly any case depends on another one there. `EXPLICIT` goes
to servers in explicit model control mode and tells one story: each case stands on the state that those before it made.
"""

from __future__ import annotations

import base64
import gzip
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from .wire import Case

__all__ = ["EXPLICIT", "PLAIN"]

GET, POST = "GET", "POST"
LENGTH = "Inference-Header-Content-Length"


def encode(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def tensor(name: str, datatype: str, shape: Sequence[Any], data: Any = None, **parameters: Any) -> dict[str, Any]:
    """Return an element of a request's `inputs`."""
    result: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if parameters:
        result["parameters"] = parameters
    if data is not None:
        result["data"] = data
    return result


def post(name: str, path: str, document: Any = None, **more: Any) -> Case:
    """Return a POST; `document` is sent as JSON, or as it is when it is bytes."""
    body = b"" if document is None else document if isinstance(document, bytes) else encode(document)
    return Case(name, POST, path, body=body, **more)


def infer(name: str, model: str, inputs: Any, outputs: Any = None, version: str = "", **top: Any) -> Case:
    """Return an inference request in JSON. `top` goes into the request object."""
    document = {**top, "inputs": inputs}
    if outputs is not None:
        document["outputs"] = outputs
    return post(name, infer_path(model, version), document)


def binary(
    name: str,
    model: str,
    document: Any,
    tail: bytes,
    header: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Case:
    """Return an inference request with binary data. `header` replaces the true length of the JSON part."""
    head = document if isinstance(document, bytes) else encode(document)
    length = {LENGTH: str(len(head)) if header is None else header}
    return Case(name, POST, infer_path(model), headers={**length, **(headers or {})}, body=head + tail)


def infer_path(model: str, version: str = "") -> str:
    return f"/v2/models/{model}/versions/{version}/infer" if version else f"/v2/models/{model}/infer"


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def packed(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


X = tensor("X", "FP32", [1, 2], [1, 2])
AB = [tensor("A", "INT32", [1, 2], [1, 2]), tensor("B", "INT32", [1, 2], [3, 4])]
BINARY = {"binary_data": True}

# --- transport -------------------------------------------------------------------------------------------------------

TRANSPORT = [
    Case("unknown path", path="/v2/nothing"),
    Case("root", path="/"),
    Case("trailing slash", path="/v2/"),
    Case("models without a name", path="/v2/models"),
    Case("health without a kind", path="/v2/health"),
    Case("version that isn't digits", path="/v2/models/multi/versions/abc"),
    Case("query string is ignored", path="/v2/models/multi/ready?x=1"),
    Case("percent encoding isn't decoded", path="/v2/models/mul%74i/ready"),
    Case("double slash", path="/v2//health/live"),
    Case(
        "header names in any case", POST, infer_path("batch8"), {"content-TYPE": "text/plain"}, encode({"inputs": [X]})
    ),
    Case("unknown headers", headers={"X-Nothing": "1", "Cookie": "a=b"}, path="/v2/health/live"),
    Case(
        "HTTP/1.0",
        raw=b"GET /v2/models/multi/ready HTTP/1.0\r\nHost: x\r\n\r\n",
    ),
    Case(
        "chunked request body",
        raw=b"POST /v2/models/batch8/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"".join(
            f"{len(part):x}\r\n".encode() + part + b"\r\n"
            for part in (encode({"inputs": [X]})[:10], encode({"inputs": [X]})[10:])
        )
        + b"0\r\n\r\n",
    ),
    Case("not HTTP", raw=b"hello there\r\n\r\n"),
    Case("lower-case method", raw=b"get /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"),
]

# --- health, metadata, config, ready -----------------------------------------------------------------------------------

METADATA = [
    Case("live", path="/v2/health/live"),
    Case("ready", path="/v2/health/ready"),
    Case("live by POST", POST, "/v2/health/live"),
    Case("live by HEAD", "HEAD", "/v2/health/live"),
    Case("ready by PUT", "PUT", "/v2/health/ready"),
    Case("server metadata", path="/v2"),
    Case("server metadata by POST", POST, "/v2"),
    Case("server metadata by DELETE", "DELETE", "/v2"),
    *(
        Case(f"metadata of {model}", path=f"/v2/models/{model}")
        for model in (
            "types bf16 batch8 dynamic8 multi text1 variable2 reshape optional two behave decoupled completed "
            "ensemble ensemble_two ensemble_optional"
        ).split()
    ),
    Case("metadata of a version", path="/v2/models/multi/versions/1"),
    Case("metadata of a version outside the policy", path="/v2/models/multi/versions/2"),
    Case("metadata of an unknown version", path="/v2/models/multi/versions/77"),
    Case("metadata of version 0", path="/v2/models/multi/versions/0"),
    Case("metadata of a version with a leading zero", path="/v2/models/multi/versions/01"),
    Case("metadata of a version beyond 64 bits", path="/v2/models/multi/versions/99999999999999999999"),
    Case("metadata of an unknown model", path="/v2/models/nope"),
    Case("metadata by POST", POST, "/v2/models/multi"),
    *(
        Case(f"config of {model}", path=f"/v2/models/{model}/config", unordered=r".*\.(input_map|output_map)\.")
        for model in "types batch8 dynamic8 multi reshape optional decoupled completed curious ensemble ensemble_two".split()
    ),
    Case("config of a version", path="/v2/models/multi/versions/3/config"),
    Case("config of an unknown model", path="/v2/models/nope/config"),
    Case("config of an unknown version", path="/v2/models/multi/versions/2/config"),
    Case("config by POST", POST, "/v2/models/multi/config"),
    Case("model ready", path="/v2/models/multi/ready"),
    Case("version ready", path="/v2/models/multi/versions/1/ready"),
    Case("ensemble ready", path="/v2/models/ensemble/ready"),
    Case("unknown version ready", path="/v2/models/multi/versions/2/ready"),
    Case("unknown model ready", path="/v2/models/nope/ready"),
    Case("version beyond 64 bits ready", path="/v2/models/multi/versions/99999999999999999999/ready"),
    Case("model ready by POST", POST, "/v2/models/multi/ready"),
    Case("model ready by HEAD", "HEAD", "/v2/models/multi/ready"),
]

# --- inference in JSON ---------------------------------------------------------------------------------------------------

JSON_DATA = [
    infer("BOOL and id", "types", [tensor("IN_BOOL", "BOOL", [2], [True, False])], id="abc"),
    infer("BOOL from numbers", "types", [tensor("IN_BOOL", "BOOL", [1], [1])]),
    infer("BOOL from a string", "types", [tensor("IN_BOOL", "BOOL", [1], ["true"])]),
    infer("UINT8 limits", "types", [tensor("IN_UINT8", "UINT8", [2], [0, 255])]),
    infer("UINT8 out of range", "types", [tensor("IN_UINT8", "UINT8", [2], [255, 256])]),
    infer("UINT8 negative", "types", [tensor("IN_UINT8", "UINT8", [1], [-1])]),
    infer("UINT16", "types", [tensor("IN_UINT16", "UINT16", [2], [0, 65535])]),
    infer("UINT32", "types", [tensor("IN_UINT32", "UINT32", [2], [0, 2**32 - 1])]),
    infer("UINT64", "types", [tensor("IN_UINT64", "UINT64", [3], [0, 2**53 + 1, 2**64 - 1])]),
    infer("UINT64 out of range", "types", [tensor("IN_UINT64", "UINT64", [1], [2**64])]),
    infer("INT8", "types", [tensor("IN_INT8", "INT8", [2], [-128, 127])]),
    infer("INT8 out of range", "types", [tensor("IN_INT8", "INT8", [1], [128])]),
    infer("INT16", "types", [tensor("IN_INT16", "INT16", [2], [-32768, 32767])]),
    infer("INT32", "types", [tensor("IN_INT32", "INT32", [2], [-(2**31), 2**31 - 1])]),
    infer("INT32 from a float", "types", [tensor("IN_INT32", "INT32", [1], [1.0])]),
    infer("INT32 from a string", "types", [tensor("IN_INT32", "INT32", [1], ["1"])]),
    infer("INT32 from null", "types", [tensor("IN_INT32", "INT32", [1], [None])]),
    infer("INT32 from a bool", "types", [tensor("IN_INT32", "INT32", [1], [True])]),
    infer("INT64", "types", [tensor("IN_INT64", "INT64", [3], [-(2**63), 2**53 + 1, 2**63 - 1])]),
    infer("INT64 out of range", "types", [tensor("IN_INT64", "INT64", [1], [2**63])]),
    infer("FP32", "types", [tensor("IN_FP32", "FP32", [5], [1, 2.5, 0.1, 1e-10, 16777217])]),
    infer("FP32 large and small", "types", [tensor("IN_FP32", "FP32", [4], [1e20, -1e-30, 3.4e38, -0.0])]),
    infer("FP32 beyond its range", "types", [tensor("IN_FP32", "FP32", [1], [1e39])]),
    infer("FP32 from a string", "types", [tensor("IN_FP32", "FP32", [1], ["1"])]),
    infer("FP32 from null", "types", [tensor("IN_FP32", "FP32", [1], [None])]),
    infer("FP32 from a bool", "types", [tensor("IN_FP32", "FP32", [1], [True])]),
    infer("FP64", "types", [tensor("IN_FP64", "FP64", [4], [0.1, 1e300, 5e-324, 1])]),
    post(
        "FP32 NaN literal",
        infer_path("types"),
        b'{"inputs":[{"name":"IN_FP32","datatype":"FP32","shape":[1],"data":[NaN]}]}',
    ),
    infer("FP16", "types", [tensor("IN_FP16", "FP16", [1], [1.5])]),
    infer("BF16", "bf16", [tensor("X", "BF16", [1], [1.5])]),
    infer("BYTES", "types", [tensor("IN_BYTES", "BYTES", [4], ["a", "", "é😀", 'nul\x00 "quoted" \\ \n\t/\x7f'])]),
    infer("BYTES from a number", "types", [tensor("IN_BYTES", "BYTES", [1], [5])]),
    infer("BYTES, too few", "types", [tensor("IN_BYTES", "BYTES", [3], ["a", "b"])]),
    infer("BYTES, too many", "types", [tensor("IN_BYTES", "BYTES", [1], ["a", "b"])]),
    infer("nested data", "types", [tensor("IN_INT32", "INT32", [4], [[1, 2], [3, 4]])]),
    infer("ragged data of the right size", "types", [tensor("IN_INT32", "INT32", [3], [[1, 2], [3]])]),
    infer("nested data with a batch", "batch8", [tensor("X", "FP32", [2, 2], [[1, 2], [3, 4]])]),
    infer("flat data with a batch", "batch8", [tensor("X", "FP32", [2, 2], [1, 2, 3, 4])]),
    infer("too few elements", "types", [tensor("IN_INT32", "INT32", [3], [1, 2])]),
    infer("too many elements", "types", [tensor("IN_INT32", "INT32", [1], [1, 2])]),
    infer("data isn't an array", "types", [tensor("IN_INT32", "INT32", [1], 5)]),
    infer("data is an object", "types", [tensor("IN_INT32", "INT32", [1], {"a": 1})]),
    infer("empty tensor", "types", [tensor("IN_INT32", "INT32", [0], [])]),
    infer("empty string tensor", "types", [tensor("IN_BYTES", "BYTES", [0], [])]),
    infer(
        "all types at once",
        "types",
        [
            tensor("IN_FP64", "FP64", [1], [0.5]),
            tensor("IN_BOOL", "BOOL", [1], [True]),
            tensor("IN_INT64", "INT64", [2], [1, 2]),
            tensor("IN_BYTES", "BYTES", [1], ["x"]),
        ],
    ),
    infer("no inputs, all optional", "types", []),
]

BODIES = [
    post("empty body", infer_path("types")),
    post("not JSON", infer_path("types"), b"not json"),
    post("cut-off JSON", infer_path("types"), b'{"inputs":[{"name":'),
    post("trailing comma", infer_path("types"), b'{"inputs":[],}'),
    post("text behind the JSON", infer_path("types"), b'{"inputs":[]} x'),
    post("a list", infer_path("types"), []),
    post("a number", infer_path("types"), 5),
    post("an empty object", infer_path("types"), {}),
    post("inputs is a number", infer_path("types"), {"inputs": 5}),
    post("inputs is an object", infer_path("types"), {"inputs": {"name": "X"}}),
    post("inputs is null", infer_path("types"), {"inputs": None}),
    post("an input is a number", infer_path("types"), {"inputs": [5]}),
    post("an input is null", infer_path("batch8"), {"inputs": [X, None]}),
    post("an output is null", infer_path("batch8"), {"inputs": [X], "outputs": [None]}),
    post("outputs is an object", infer_path("types"), {"inputs": [], "outputs": {}}),
    post("unknown keys", infer_path("batch8"), {"what": 1, "inputs": [{**X, "more": None}]}),
    post("doubled key", infer_path("batch8"), b'{"id":"a","id":"b","inputs":[' + encode(X) + b"]}"),
    infer("id is a number", "batch8", [X], id=5),
    infer("id is null", "batch8", [X], id=None),
    infer("id is empty", "batch8", [X], id=""),
    infer("id with special characters", "batch8", [X], id='ä"\n'),
    post("input without a name", infer_path("types"), {"inputs": [{"datatype": "INT32", "shape": [1], "data": [1]}]}),
    post(
        "input without a datatype", infer_path("batch8"), {"inputs": [{"name": "X", "shape": [1, 2], "data": [1, 2]}]}
    ),
    post(
        "input without a shape", infer_path("batch8"), {"inputs": [{"name": "X", "datatype": "FP32", "data": [1, 2]}]}
    ),
    post("name is a number", infer_path("batch8"), {"inputs": [{**X, "name": 5}]}),
    post("datatype is a number", infer_path("batch8"), {"inputs": [{**X, "datatype": 5}]}),
    post("shape is a number", infer_path("batch8"), {"inputs": [{**X, "shape": 2}]}),
    infer("unknown datatype", "types", [tensor("IN_INT32", "FOO", [1], [1])]),
    infer("datatype in lower case", "types", [tensor("IN_INT32", "int32", [1], [1])]),
    infer("another datatype", "types", [tensor("IN_INT32", "INT64", [1], [1])]),
    infer("another datatype with a batch and id", "batch8", [tensor("X", "FP64", [1, 2], [1, 2])], id="7"),
    infer("rank too high", "types", [tensor("IN_INT32", "INT32", [1, 1], [1])]),
    infer("negative shape", "types", [tensor("IN_INT32", "INT32", [-1], [1])]),
    infer("shape with a float", "types", [tensor("IN_INT32", "INT32", [1.0], [1])]),
    infer("shape with a string", "types", [tensor("IN_INT32", "INT32", ["1"], [1])]),
    infer("shape of nothing", "types", [tensor("IN_INT32", "INT32", [], [1])]),
    infer("batch dimension missing", "batch8", [tensor("X", "FP32", [2], [1, 2])]),
    infer("batch of shape nothing", "batch8", [tensor("X", "FP32", [], [1])]),
    infer("batch too large", "batch8", [tensor("X", "FP32", [9, 2], list(range(18)))]),
    infer("batch too large with id", "batch8", [tensor("X", "FP32", [9, 2], list(range(18)))], id="big"),
    infer("batch of none", "batch8", [tensor("X", "FP32", [0, 2], [])]),
    infer("wrong inner dimension", "batch8", [tensor("X", "FP32", [1, 3], [1, 2, 3])]),
    infer("batches differ", "two", [tensor("A", "INT32", [1, 2], [1, 2]), tensor("B", "INT32", [2, 2], [1, 2, 3, 4])]),
    infer("no inputs", "batch8", []),
    infer("an input is missing", "two", [AB[0]]),
    infer("an input is missing, with id", "two", [AB[1]], id="r"),
    infer("a required input among optional ones is missing", "optional", [tensor("B", "INT32", [1, 1], [1])]),
    infer("unknown input", "types", [tensor("NOPE", "INT32", [1], [1])]),
    infer("unknown input beside the right one", "batch8", [X, {**X, "name": "NOPE"}]),
    infer("doubled input", "batch8", [X, X]),
    infer("doubled input with id", "batch8", [X, X], id="q"),
    infer("no data", "batch8", [tensor("X", "FP32", [1, 2])]),
    infer("data and binary size", "batch8", [tensor("X", "FP32", [1, 2], [1, 2], binary_data_size=8)]),
    infer("input parameters not an object", "batch8", [{**X, "parameters": 5}]),
    infer("unknown input parameters", "batch8", [{**X, "parameters": {"what": 1}}]),
    infer("to a decoupled model", "decoupled", [tensor("N", "INT32", [1], [1])]),
    infer("to an unknown model", "nope", [X]),
    infer("to a version", "multi", [tensor("X", "FP32", [2], [1, 2])], version="1"),
    infer("to the latest version", "multi", [tensor("X", "FP32", [2], [1, 2])]),
    infer("to an unknown version", "multi", [tensor("X", "FP32", [2], [1, 2])], version="2"),
    infer("to a version beyond 64 bits", "multi", [X], version="99999999999999999999"),
    Case("infer by GET", path=infer_path("multi")),
    Case("infer by PUT of an unknown model", "PUT", infer_path("nope")),
    infer("reshape", "reshape", [tensor("S", "FP32", [2, 1], [1, 2]), tensor("Q", "FP32", [2, 4], list(range(8)))]),
    infer(
        "reshape, the inner shape",
        "reshape",
        [tensor("S", "FP32", [1, 1], [1]), tensor("Q", "FP32", [1, 2, 2], [1, 2, 3, 4])],
    ),
    infer("optional inputs absent", "optional", [tensor("A", "INT32", [1, 1], [1])]),
    infer("optional input given", "optional", [tensor("A", "INT32", [1, 1], [1]), tensor("B", "INT32", [1, 1], [2])]),
    infer("completed configuration", "completed", [tensor("X", "FP32", [2, 3], [1, 2, 3, 4, 5, 6])]),
    infer("dynamic batching", "dynamic8", [tensor("X", "FP32", [2, 1], [1, 2])]),
]

OUTPUTS = [
    infer("one output", "two", AB, [{"name": "DIFFERENCE"}]),
    infer("outputs in another order", "two", AB, [{"name": "DIFFERENCE"}, {"name": "SUM"}]),
    infer("outputs empty", "two", AB, []),
    infer("unknown output", "two", AB, [{"name": "NOPE"}]),
    infer("output without a name", "two", AB, [{}]),
    infer("output name is a number", "two", AB, [{"name": 5}]),
    infer("doubled output", "two", AB, [{"name": "SUM"}, {"name": "SUM"}]),
    infer("requested output not produced", "types", [], [{"name": "OUT_INT32"}]),
    infer("binary_data of one output", "two", AB, [{"name": "SUM", "parameters": BINARY}, {"name": "DIFFERENCE"}]),
    infer("binary_data false", "two", AB, [{"name": "SUM", "parameters": {"binary_data": False}}]),
    infer("binary_data is a number", "two", AB, [{"name": "SUM", "parameters": {"binary_data": 1}}]),
    infer("binary_data_output", "two", AB, parameters={"binary_data_output": True}),
    infer(
        "binary_data_output and listed outputs", "two", AB, [{"name": "SUM"}], parameters={"binary_data_output": True}
    ),
    infer("binary_data_output is a number", "two", AB, parameters={"binary_data_output": 1}),
    infer("binary BYTES", "text1", [tensor("X", "BYTES", [1], ["é"])], [{"name": "Y", "parameters": BINARY}]),
    infer(
        "binary of an empty output",
        "types",
        [tensor("IN_INT32", "INT32", [0], [])],
        parameters={"binary_data_output": True},
    ),
    infer("unknown output parameters", "two", AB, [{"name": "SUM", "parameters": {"what": 1}}]),
    infer("output parameters not an object", "two", AB, [{"name": "SUM", "parameters": 5}]),
]

# --- inference with binary data ------------------------------------------------------------------------------------------


def sized(name: str, datatype: str, shape: Sequence[int], size: int) -> dict[str, Any]:
    return {"inputs": [tensor(name, datatype, shape, binary_data_size=size)]}


def both(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "parameters": {"binary_data_output": True}}


BINARY_DATA = [
    binary("binary both ways", "batch8", both(sized("X", "FP32", [1, 2], 8)), floats(1, 2)),
    binary("binary in, JSON out", "batch8", sized("X", "FP32", [2, 2], 16), floats(1, 2, 3, 4)),
    binary("FP16 both ways", "types", both(sized("IN_FP16", "FP16", [2], 4)), b"\x00\x3c\x00\xc0"),
    binary("FP16 in, JSON out", "types", sized("IN_FP16", "FP16", [2], 4), b"\x00\x3c\x00\xc0"),
    binary("BF16 both ways", "bf16", both(sized("X", "BF16", [2], 4)), b"\x80\x3f\x00\xc0"),
    binary("BF16 in, JSON out", "bf16", sized("X", "BF16", [2], 4), b"\x80\x3f\x00\xc0"),
    binary("BOOL both ways", "types", both(sized("IN_BOOL", "BOOL", [3], 3)), b"\x01\x00\x01"),
    binary("INT8 both ways", "types", both(sized("IN_INT8", "INT8", [2], 2)), b"\x80\x7f"),
    binary("UINT64 both ways", "types", both(sized("IN_UINT64", "UINT64", [1], 8)), b"\xff" * 8),
    binary("FP64 both ways", "types", both(sized("IN_FP64", "FP64", [1], 8)), struct.pack("<d", 0.1)),
    binary("BYTES both ways", "types", both(sized("IN_BYTES", "BYTES", [3], 18)), packed(b"ab", b"", b"\xff\xfe\x00z")),
    binary("BYTES in, JSON out", "types", sized("IN_BYTES", "BYTES", [2], 11), packed(b"ab", b"c")),
    binary(
        "FP32 NaN and infinity", "types", both(sized("IN_FP32", "FP32", [2], 8)), floats(float("nan"), float("inf"))
    ),
    binary("FP32 NaN to JSON", "types", sized("IN_FP32", "FP32", [1], 4), floats(float("nan"))),
    binary(
        "two inputs in the order of the array",
        "two",
        {
            "inputs": [
                tensor("B", "INT32", [1, 2], binary_data_size=8),
                tensor("A", "INT32", [1, 2], binary_data_size=8),
            ]
        },
        struct.pack("<4i", 1, 2, 30, 40),
    ),
    binary(
        "one binary and one JSON input",
        "two",
        {"inputs": [AB[0], tensor("B", "INT32", [1, 2], binary_data_size=8)]},
        struct.pack("<2i", 5, 6),
    ),
    binary("empty tensor of no bytes", "types", both(sized("IN_INT32", "INT32", [0], 0)), b""),
    binary("too few bytes", "batch8", sized("X", "FP32", [1, 2], 8), floats(1)),
    binary("bytes left over", "batch8", sized("X", "FP32", [1, 2], 8), floats(1, 2, 3)),
    binary("size too small for the shape", "batch8", sized("X", "FP32", [1, 2], 4), floats(1)),
    binary("size too large for the shape", "batch8", {**sized("X", "FP32", [1, 2], 12), "id": "z"}, floats(1, 2, 3)),
    binary("negative size", "batch8", sized("X", "FP32", [1, 2], -8), floats(1, 2)),
    binary("size is a string", "batch8", {"inputs": [tensor("X", "FP32", [1, 2], binary_data_size="8")]}, floats(1, 2)),
    binary("BYTES, cut-off length", "types", sized("IN_BYTES", "BYTES", [2], 7), packed(b"a") + b"\x01\x00"),
    binary("BYTES, cut-off payload", "types", sized("IN_BYTES", "BYTES", [1], 6), b"\x05\x00\x00\x00ab"),
    binary("BYTES, binary too few", "types", sized("IN_BYTES", "BYTES", [2], 5), packed(b"a")),
    binary("BYTES, binary too many", "types", sized("IN_BYTES", "BYTES", [1], 10), packed(b"a", b"b")),
    binary("header length beyond the body", "batch8", encode({"inputs": [X]}), b"", header="100000"),
    binary("header length negative", "batch8", encode({"inputs": [X]}), b"", header="-5"),
    binary("header length isn't a number", "batch8", encode({"inputs": [X]}), b"", header="abc"),
    binary("header length too short", "batch8", encode({"inputs": [X]}), b"", header="10"),
    binary("header length with bytes but no binary input", "batch8", {"inputs": [X]}, b"more"),
    binary("raw request", "multi", b"", floats(1, 2), header="0"),
    binary("raw request to a batching model", "batch8", b"", floats(1, 2), header="0"),
    binary("raw request, variable dimension", "dynamic8", b"", floats(1, 2, 3), header="0"),
    binary("raw request, two variable dimensions", "variable2", b"", floats(1, 2, 3), header="0"),
    binary("raw request of a string", "text1", b"", b"\xc3\xa9 and more", header="0"),
    binary("raw request of a string to other shape", "types", b"", b"abc", header="0"),
    binary("raw request, two inputs", "two", b"", b"abcd", header="0"),
    binary("raw request, wrong size", "multi", b"", floats(1, 2, 3), header="0"),
    binary("raw request, empty", "multi", b"", b"", header="0"),
    Case(
        "unsupported content encoding", POST, infer_path("batch8"), {"Content-Encoding": "br"}, encode({"inputs": [X]})
    ),
    Case(
        "identity content encoding",
        POST,
        infer_path("batch8"),
        {"Content-Encoding": "identity"},
        encode({"inputs": [X]}),
    ),
]

# --- classes, compression --------------------------------------------------------------------------------------------------


def classes(name: str, output: str, count: Any, data: Sequence[float], shape: Sequence[int] = ()) -> Case:
    inputs = [tensor("X", "FP32", shape or [1, len(data)], data)]
    return infer(name, "labels", inputs, [{"name": output, "parameters": {"classification": count}}])


SCORES = [1, 4, 4, 2, -1, 3.5]
CLASSES = [
    classes("classes with labels", "NAMED", 3, SCORES),
    classes("more classes than there are", "NAMED", 100, SCORES),
    classes("no classes", "NAMED", 0, SCORES),
    classes("classes of each row", "NAMED", 2, SCORES, [2, 3]),
    classes("classes of large and small numbers", "NAMED", 2, [1e20, 1e-9]),
    classes("classes of INT32", "WHOLE", 3, SCORES),
    classes("classes of UINT8", "SMALL", 2, [1, 200, 3]),
    classes("classes of a matrix of FP64", "GRID", 4, SCORES),
    classes("classes of FP16", "HALF", 2, SCORES),
    classes("classes of BOOL", "TRUTH", 2, SCORES),
    classes("classes, a negative number", "NAMED", -1, SCORES),
    classes("classes, a string", "NAMED", "1", SCORES),
    infer(
        "classes in binary",
        "labels",
        [tensor("X", "FP32", [1, 2], [1, 2])],
        [{"name": "NAMED", "parameters": {"classification": 2, **BINARY}}],
    ),
    infer("classes without a batch", "multi", [tensor("X", "FP32", [2], [1, 2])],
          [{"name": "Y", "parameters": {"classification": 1}}]),
]  # fmt: skip


def coded(name: str, body: bytes, **headers: str) -> Case:
    """Return a request to batch8; `headers`: their names with underscores."""
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    return Case(name, POST, infer_path("batch8"), names, body)


PLAIN_BODY = encode({"inputs": [X]})
BINARY_HEAD = encode(both(sized("X", "FP32", [1, 2], 8)))
COMPRESSION = [
    coded("gzip request", gzip.compress(PLAIN_BODY), Content_Encoding="gzip"),
    coded("deflate request", zlib.compress(PLAIN_BODY), Content_Encoding="deflate"),
    coded("gzip called deflate", gzip.compress(PLAIN_BODY), Content_Encoding="deflate"),
    coded("no encoding by name", PLAIN_BODY, Content_Encoding=""),
    coded("two encodings", PLAIN_BODY, Content_Encoding="gzip, deflate"),
    coded("not compressed at all", PLAIN_BODY, Content_Encoding="gzip"),
    coded("compressed and cut off", gzip.compress(PLAIN_BODY)[:-10], Content_Encoding="gzip"),
    coded("compressed, nothing", b"", Content_Encoding="gzip"),
    Case(
        "compressed binary both ways",
        POST,
        infer_path("batch8"),
        {"Content-Encoding": "gzip", "Accept-Encoding": "deflate", LENGTH: str(len(BINARY_HEAD))},
        gzip.compress(BINARY_HEAD + floats(1, 2)),
    ),
    *(
        coded(f"accepts {text}", PLAIN_BODY, Accept_Encoding=text)
        for text in (
            "gzip", "deflate", "identity", "br", "*", "deflate, gzip", "identity, gzip", "gzip;q=0.5, deflate;q=0.8",
            "gzip;q=0", "gzip;q=x", "br, gzip;q=0.1", "identity;q=0.5, gzip;q=0.4",
        )
    ),
    coded("an error to who accepts gzip", b"{", Accept_Encoding="gzip"),
    Case("metadata to who accepts gzip", headers={"Accept-Encoding": "gzip"}, path="/v2/models/multi"),
]  # fmt: skip

# --- generate --------------------------------------------------------------------------------------------------------------


def generate(name: str, model: str, document: Any, *, stream: bool = False, **headers: str) -> Case:
    body = document if isinstance(document, bytes) else encode(document)
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    return Case(name, POST, f"/v2/models/{model}/generate{'_stream' * stream}", names, body)


def talk(name: str, script: str, **members: Any) -> list[Case]:
    """Ask for both, the one response and the stream."""
    document = {"SCRIPT": script, **members}
    return [
        generate(f"generate, {name}", "talk", document),
        generate(f"generate_stream, {name}", "talk", document, stream=True),
    ]


GENERATE = [
    *talk("one response", "hello"),
    *talk("two responses", "hello you"),
    *talk("no response", ""),
    *talk("an error", "error:NOT_FOUND"),
    *talk("an error first", "error:UNAVAILABLE hello"),
    *talk("an error later", "hello error:NOT_FOUND you"),
    *talk("what JSON can't carry", "half"),
    *talk("what JSON can't carry, later", "a half b"),
    *talk("no outputs", "nothing", id="me"),
    *talk("an empty output", "empty"),
    *talk("a matrix", "grid"),
    *talk("two outputs", "both", id="me"),
    *talk("what the request was", "request", id="me", stream=True, triton_x=1, sequence_id=7, f=1.5, timeout=-1),
    *talk("tensors of variable size", "request", X=[1, 2, 3]),
    *talk("a matrix from a list", "request", GRID=[1, 2, 3, 4]),
    *talk("an empty matrix", "request", GRID=[]),
    *talk("a list that makes no matrix", "request", GRID=[1, 2, 3]),
    *talk("a scalar that makes no matrix", "request", GRID=5),
    *talk("nested lists", "request", X=[[1, 2]]),
    *talk("a string for a number", "request", X="a"),
    *talk("null for a number", "request", X=None),
    *talk("a parameter that is null", "request", p=None),
    *talk("a parameter that is a list", "request", p=[1]),
    *talk("id is a number", "request", id=5),
    *talk("parameters", "request", parameters={"a": 1, "id": "z"}),
    *talk("parameters is a number", "request", parameters=5),
    *talk("an input given twice", "request", parameters={"SCRIPT": "hello"}),
    *talk("parameters in parameters", "request", parameters={"parameters": {}}),
    generate("generate, inputs in parameters", "talk", {"parameters": {"SCRIPT": "request", "a": 1}}),
    generate("generate, a doubled input", "talk", b'{"SCRIPT":"a","SCRIPT":"b"}'),
    generate("generate, nothing", "talk", b""),
    generate("generate, not JSON", "talk", b"nope"),
    generate("generate, a list", "talk", []),
    generate("generate, an empty object", "talk", {}),
    generate("generate, compressed", "talk", b"?", Content_Encoding="gzip"),
    generate("generate, accepts gzip", "talk", {"SCRIPT": "hello"}, Accept_Encoding="gzip"),
    generate("generate, all types", "types", {"IN_INT32": 1, "IN_FP32": [1, 2.5, 0.1], "IN_BOOL": True, "IN_BYTES": ["a", "é"],
                                              "IN_FP64": 1, "IN_UINT64": 2**64 - 1}),
    generate("generate, FP16", "types", {"IN_FP16": 1}),
    generate("generate, INT8 out of range", "types", {"IN_INT8": 128}),
    generate("generate, BYTES from a number", "types", {"IN_BYTES": [5]}),
    generate("generate, a batch of two", "batch8", {"X": [1, 2, 3, 4]}),
    generate("generate, no whole batch", "batch8", {"X": [1, 2, 3]}),
    generate("generate_stream, a normal model", "batch8", {"X": [1, 2]}, stream=True),
    generate("generate, two variable dimensions", "variable2", {"X": [1, 2]}),
    generate("generate, reshape", "reshape", {"S": [1], "Q": [1, 2, 3, 4]}),
    generate("generate, an input is missing", "two", {"A": [1, 2]}),
    generate("generate, of an ensemble", "ensemble", {"X": [1, 2]}),
    generate("generate, the model raises", "behave", {"WHAT": "raise_value_error"}),
    generate("generate_stream, the model raises", "behave", {"WHAT": "raise_value_error"}, stream=True),
    generate("generate, an unknown model", "nope", {}),
    generate("generate_stream, an unknown model", "nope", {}, stream=True),
    generate("generate, a version", "multi/versions/1", {"X": [1, 2]}),
    generate("generate, an unknown version", "multi/versions/2", {"X": [1, 2]}),
    Case("generate by GET", path="/v2/models/talk/generate"),
]  # fmt: skip

# --- parameters ----------------------------------------------------------------------------------------------------------


def curious(name: str, parameters: Any, **top: Any) -> Case:
    """Ask the model that tells what its request carries."""
    return infer(
        name, "curious", [tensor("X", "FP32", [1, 1], [1])], [{"name": "REQUEST"}], parameters=parameters, **top
    )


PARAMETERS = [
    infer("arguments of initialize", "curious", [tensor("X", "FP32", [1, 1], [1])], [{"name": "ARGS"}]),
    infer("all inputs of a batching model absent", "curious", [], [{"name": "REQUEST"}]),
    curious("no parameters", {}),
    curious("parameters of every type", {"s": "text", "i": -5, "b": True, "f": 1.5, "z": 0, "e": ""}, id="with id"),
    curious("parameter larger than 64 bits", {"i": 2**63}),
    curious("parameter null", {"a": None}),
    curious("parameter array", {"a": [1]}),
    curious("parameter object", {"a": {"z": 1}}),
    curious("reserved parameter", {"triton_x": 1}),
    curious("parameters is a list", []),
    curious("parameters is a number", 5),
    curious("parameters is null", None),
    curious("sequence number and flags", {"sequence_id": 42, "sequence_start": True, "sequence_end": True}),
    curious("sequence name", {"sequence_id": "abc"}),
    curious("sequence number negative", {"sequence_id": -1}),
    curious("sequence number a float", {"sequence_id": 1.5}),
    curious("sequence start is a number", {"sequence_start": 1}),
    curious("priority and time-out", {"priority": 3, "timeout": 1000}),
    curious("priority is a string", {"priority": "1"}),
    curious("time-out negative", {"timeout": -1}),
    curious("time-out is a float", {"timeout": 1.5}),
    Case(
        "headers aren't forwarded",
        POST,
        infer_path("curious"),
        {"X-User": "me"},
        encode({"inputs": [tensor("X", "FP32", [1, 1], [1])], "outputs": [{"name": "REQUEST"}]}),
    ),
]

# --- what models do --------------------------------------------------------------------------------------------------------


def behave(what: str) -> Case:
    return infer(f"behave: {what}", "behave", [tensor("WHAT", "BYTES", [1], [what])])


BEHAVIOUR = [
    *(
        behave(what)
        for what in (
            "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED default_code "
            "raise_value_error raise_deep raise_model_exception raise_without_words return_int return_tuple return_too_few "
            "return_too_many return_string nothing undeclared other_type other_shape other_order twice not_finite strings "
            "fixed_strings empty_strings unicode_array complex_array strided scalar error_and_outputs send "
            "send_at_once send_error bad_calls bad_questions metrics no_such_method"
        ).split()
    ),
]


def bls(model: str, callee: str, datatype: str = "FP32", shape: Sequence[int] = (1, 2)) -> Case:
    inputs = [
        tensor("MODEL", "BYTES", [1], [callee]),
        tensor("X", datatype, [2], [1, 2]),
    ]
    return infer(f"{model} calls {callee or 'nothing'}", model, inputs)


CALLS = [
    bls(model, callee)
    for model in ("bls_sync", "bls_async")
    for callee in ("multi", "multi>Y", "multi>NOPE", "batch8", "two", "behave", "nope", "", "decoupled", "bls_sync")
]

ENSEMBLES = [
    infer("ensemble", "ensemble", [tensor("X", "FP32", [2, 2], [1, 2, 3, 4])], id="e"),
    infer("ensemble, output named", "ensemble", [X], [{"name": "Y"}]),
    infer("ensemble, binary output", "ensemble", [X], [{"name": "Y", "parameters": BINARY}]),
    infer("ensemble, unknown output", "ensemble", [X], [{"name": "N"}]),
    infer("ensemble, missing input", "ensemble", []),
    infer("ensemble, wrong shape", "ensemble", [tensor("X", "FP32", [1, 3], [1, 2, 3])]),
    infer("ensemble, batch too large", "ensemble", [tensor("X", "FP32", [9, 2], list(range(18)))]),
    infer("ensemble, wrong type", "ensemble", [tensor("X", "INT32", [1, 2], [1, 2])]),
    infer("ensemble, two outputs", "ensemble_two", AB),
    infer("ensemble, one of two outputs", "ensemble_two", AB, [{"name": "TWICE_A"}]),
    infer("ensemble with sequence parameters", "ensemble", [X], parameters={"sequence_id": 7, "sequence_start": True}),
    infer(
        "ensemble, optional input given",
        "ensemble_optional",
        [tensor("A", "INT32", [1, 1], [1]), tensor("B", "INT32", [1, 1], [2])],
    ),
    infer("ensemble, optional input absent", "ensemble_optional", [tensor("A", "INT32", [1, 1], [1])]),
    *(
        infer(f"ensemble, {title}", "ensemble_failing", [tensor("WHAT", "BYTES", [1], [what])], id=request_id)
        for title, what, request_id in (
            ("both steps work", "then:send", ""),
            ("first step answers an error", "NOT_FOUND", ""),
            ("second step answers an error", "then:UNAVAILABLE", "x"),
            ("first step raises", "raise_value_error", ""),
            ("second step raises", "then:raise_value_error", ""),
            ("a tensor between steps is missing", "nothing", ""),
            ("a tensor between steps has the wrong shape", "strings", ""),
            ("the last output is missing", "then:nothing", ""),
        )
    ),
]

# --- statistics ------------------------------------------------------------------------------------------------------------

#: Durations and times are a matter of chance. The reference counts a request after it has answered it.
CHANCE = (r"(?:.*\.)?ns", r".*last_inference")


def stats(name: str, path: str) -> Case:
    return Case(name, path=path, mask=CHANCE, wait_s=0.1)


def counted(name: str, first: float, rows: int = 1, model: str = "counted") -> Case:
    return infer(name, model, [tensor("X", "FP32", [rows, 2], [first] * (2 * rows))])


STATISTICS = [
    stats("statistics before the first request", "/v2/models/counted/stats"),
    counted("counted: one row", 1),
    counted("counted: three rows", 1, 3),
    counted("counted: three rows again", 1, 3),
    stats("statistics of successes", "/v2/models/counted/stats"),
    counted("counted: refused", 1, 9),
    stats("statistics after a refusal", "/v2/models/counted/stats"),
    counted("counted: an exception", -200),
    stats("statistics after an exception", "/v2/models/counted/stats"),
    counted("counted: an error answer", -1),
    stats("statistics after an error answer", "/v2/models/counted/stats"),
    counted("counted: an ensemble", 1, 2, "counted_ensemble"),
    stats("statistics of an ensemble", "/v2/models/counted_ensemble/stats"),
    stats("statistics of its steps", "/v2/models/counted/stats"),
    counted("counted: a failing ensemble", -200, 1, "counted_ensemble"),
    stats("statistics of a failed ensemble", "/v2/models/counted_ensemble/stats"),
    stats("statistics of a version", "/v2/models/multi/versions/1/stats"),
    stats("statistics of several versions", "/v2/models/multi/stats"),
    Case("statistics of an unknown model", path="/v2/models/nope/stats"),
    Case("statistics of an unknown version", path="/v2/models/multi/versions/2/stats"),
    Case("statistics by POST", POST, "/v2/models/counted/stats"),
    Case("statistics of all by POST", POST, "/v2/models/stats"),
]

REPOSITORY_PLAIN = [
    post("index", "/v2/repository/index"),
    post("index of what is ready", "/v2/repository/index", {"ready": True}),
    post("index with another repository's name", "/v2/repository/some/index"),
    post("index, ready isn't a bool", "/v2/repository/index", {"ready": 5}),
    post("index, body isn't JSON", "/v2/repository/index", b"x"),
    Case("index by GET", path="/v2/repository/index"),
    post("load without explicit mode", "/v2/repository/models/batch8/load"),
    post("unload without explicit mode", "/v2/repository/models/batch8/unload"),
    Case("load by GET", path="/v2/repository/models/batch8/load"),
    post("load with a repository's name", "/v2/repository/some/models/batch8/load"),
    post("unload with a repository's name", "/v2/repository/some/models/batch8/unload"),
]

PLAIN = [
    *TRANSPORT,
    *METADATA,
    *JSON_DATA,
    *BODIES,
    *OUTPUTS,
    *BINARY_DATA,
    *CLASSES,
    *COMPRESSION,
    *GENERATE,
    *PARAMETERS,
    *BEHAVIOUR,
    *CALLS,
    *ENSEMBLES,
    *STATISTICS,
    *REPOSITORY_PLAIN,
]

# --- explicit mode: load, unload, index, in one story ------------------------------------------------------------------------

FP32_2 = tensor("X", "FP32", [2], [1, 2])
OTHER_CONFIG = {
    "backend": "python",
    "max_batch_size": 4,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [2]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}],
}
#: The reference takes another file for another model only where the configuration differs too.
FILE_CONFIG = {**OTHER_CONFIG, "max_batch_size": 5}
BROKEN_CONFIG = {**OTHER_CONFIG, "max_batch_size": 6}
TWICE = b"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy() * 2)]) for x in inputs]
"""


def load(name: str, model: str, parameters: Any = None) -> Case:
    document = None if parameters is None else {"parameters": parameters}
    return post(name, f"/v2/repository/models/{model}/load", document, settle=True)


def unload(name: str, model: str, parameters: Any = None) -> Case:
    document = None if parameters is None else {"parameters": parameters}
    return post(name, f"/v2/repository/models/{model}/unload", document, settle=True)


def index(name: str) -> Case:
    return post(name, "/v2/repository/index")


def broken(model: str) -> Case:
    return load(f"load {model}", model)


def file(content: bytes) -> str:
    return base64.b64encode(content).decode()


EXPLICIT = [
    index("explicit: index at the start"),
    Case("explicit: ready at the start", path="/v2/health/ready"),
    Case("explicit: metadata of what isn't loaded", path="/v2/models/later"),
    Case("explicit: model ready of what isn't loaded", path="/v2/models/later/ready"),
    infer("explicit: infer what isn't loaded", "later", [FP32_2]),
    load("load", "later"),
    infer("infer what was loaded", "later", [FP32_2]),
    load("load again", "later"),
    unload("unload", "later"),
    index("index after unload"),
    Case("ready after unload", path="/v2/health/ready"),
    Case("metadata after unload", path="/v2/models/later"),
    Case("metadata of a version after unload", path="/v2/models/later/versions/1"),
    Case("config after unload", path="/v2/models/later/config"),
    Case("statistics after unload", path="/v2/models/later/stats"),
    Case("model ready after unload", path="/v2/models/later/ready"),
    infer("infer after unload", "later", [FP32_2]),
    infer("infer a version after unload", "later", [FP32_2], version="1"),
    unload("unload again", "later"),
    unload("unload an unknown model", "nope"),
    load("load an unknown model", "nope"),
    load("load with an unknown parameter", "later", {"what": "x"}),
    load("load with a parameter that isn't a string", "later", {"config": 5}),
    load("load with a configuration", "later", {"config": json.dumps(OTHER_CONFIG)}),
    Case("config after load with a configuration", path="/v2/models/later/config"),
    infer("infer after load with a configuration", "later", [X]),
    load("load with a broken configuration", "later", {"config": "{"}),
    load("load with a wrong configuration", "later", {"config": json.dumps({**OTHER_CONFIG, "max_batch_size": -1})}),
    infer("infer after a failed load", "later", [X]),
    load("load with a file but no configuration", "later", {"file:1/model.py": file(TWICE)}),
    load("load with a file", "later", {"config": json.dumps(FILE_CONFIG), "file:1/model.py": file(TWICE)}),
    infer("infer after load with a file", "later", [X]),
    load(
        "load with a file that isn't Python",
        "later",
        {"config": json.dumps(BROKEN_CONFIG), "file:1/model.py": file(b"class TritonPythonModel(:\n")},
    ),
    infer("infer after load with a broken file", "later", [X]),
    load("load from the repository again", "later"),
    infer("infer after load from the repository", "later", [FP32_2]),
    load("load several versions", "versions"),
    Case("metadata, the latest version", path="/v2/models/versions"),
    load("load all versions", "versions", {"config": json.dumps({**OTHER_CONFIG, "version_policy": {"all": {}}})}),
    Case("metadata, all versions", path="/v2/models/versions"),
    index("index of several versions"),
    load(
        "load fewer versions",
        "versions",
        {"config": json.dumps({**OTHER_CONFIG, "version_policy": {"specific": {"versions": [2]}}})},
    ),
    Case("metadata, fewer versions", path="/v2/models/versions"),
    Case("metadata of a version that was loaded once", path="/v2/models/versions/versions/10"),
    index("index of fewer versions"),
    broken("no_version"),
    broken("initialize_fails"),
    load("load initialize_fails again", "initialize_fails"),
    broken("no_class"),
    broken("no_module"),
    broken("no_execute"),
    broken("bad_config"),
    broken("bad_name"),
    broken("bad_batching"),
    broken("bad_input"),
    broken("bad_backend"),
    broken("bad_group"),
    broken("ensemble_no_model"),
    broken("ensemble_type"),
    broken("ensemble_shape"),
    broken("ensemble_tensor"),
    broken("ensemble_unused"),
    broken("ensemble_version"),
    index("index of what failed"),
    Case("ready after failures", path="/v2/health/ready"),
    Case("metadata of what failed", path="/v2/models/initialize_fails"),
    infer("infer what failed", "initialize_fails", [FP32_2]),
    infer("infer a version of what failed", "initialize_fails", [FP32_2], version="1"),
    load("load an ensemble", "outer"),
    infer("infer the ensemble", "outer", [FP32_2]),
    infer("infer the step", "inner", [FP32_2]),
    unload("unload the step", "inner"),
    Case("ensemble ready without its step", path="/v2/models/outer/ready"),
    infer("infer the ensemble without its step", "outer", [FP32_2]),
    load("load the step", "inner"),
    infer("infer the ensemble with its step again", "outer", [FP32_2]),
    unload("unload the ensemble alone", "outer"),
    infer("infer the step without the ensemble", "inner", [FP32_2]),
    load("load the ensemble again", "outer"),
    unload("unload the ensemble with its dependents", "outer", {"unload_dependents": True}),
    unload("unload with a parameter that isn't a bool", "outer", {"unload_dependents": 1}),
    index("index at the end"),
]

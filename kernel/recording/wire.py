"""An inference as KServe's protocol has it over HTTP, seen by who asks: a recorded request as a body, a body as an answer. Pure.

What comes is believed of nobody: an answer that does not fit together is an error that says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from kernel.errors import Code, ServingError, clipped
from kernel.recording.form import Told
from kernel.tensor import DATATYPES, Array, Tensor, as_bytes_array, pack_bytes, unpack_bytes

__all__ = ["CODES", "LENGTH", "MOST_DIMENSIONS", "answer_of", "body_of", "of_bytes", "path_of"]

#: The header that says how long the JSON in front of binary data is.
LENGTH = "Inference-Header-Content-Length"

#: What a status of HTTP stands for, as far as that can be said.
CODES = {400: "INVALID_ARG", 404: "NOT_FOUND", 500: "INTERNAL", 501: "UNSUPPORTED", 503: "UNAVAILABLE"}

MOST_DIMENSIONS = 64


def path_of(model: str, version: str = "") -> str:
    """Return where a model is asked. `version`: "" for the newest."""
    of_version = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='', errors='surrogatepass')}{of_version}/infer"


def body_of(told: Told) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body that ask what was asked, all tensors in binary form."""
    parameters: dict[str, Any] = {**told.parameters}
    if told.correlation_id:
        parameters |= {"sequence_id": told.correlation_id}
        parameters |= {"sequence_start": bool(told.flags & 1), "sequence_end": bool(told.flags & 2)}
    if told.priority:
        parameters["priority"] = told.priority
    if told.timeout_us:
        parameters["timeout"] = told.timeout_us
    data = [pack_bytes(one.array) if one.datatype == "BYTES" else one.array.tobytes() for one in told.inputs]
    inputs = [
        {"name": one.name, "shape": list(one.shape), "datatype": one.datatype, "parameters": {"binary_data_size": len(content)}}
        for one, content in zip(told.inputs, data)
    ]
    head: dict[str, Any] = {"id": told.id} if told.id else {}
    if told.outputs is None:
        parameters["binary_data_output"] = True
    else:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in told.outputs]
    head |= {"parameters": parameters, "inputs": inputs}
    text = msgspec.json.encode(head)
    headers = {"Content-Type": "application/octet-stream", LENGTH: str(len(text))}
    return headers, b"".join([text, *data])


def answer_of(status: int, headers: Mapping[str, str], body: bytes) -> list[Tensor]:
    """Return the outputs of an answer. `headers`: by lower-case name. Raises ServingError: what it says, or why it is none."""
    length = headers.get(LENGTH.lower(), "")
    if length and not (length.isascii() and length.isdigit() and int(length) <= len(body)):
        raise _none(f"its {LENGTH} is '{clipped(length)}', its body has {len(body)} bytes")
    head, rest = (body[: int(length)], memoryview(body)[int(length) :]) if length else (body, memoryview(b""))
    try:
        told = msgspec.json.decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if status != 200:
            told = {"error": head[:1024].decode("utf-8", "replace")}
        else:
            raise _none(f"it is no JSON: {error}") from None
    if status != 200:
        words = told.get("error") if isinstance(told, dict) else None
        code = Code[CODES.get(status, "UNKNOWN")]
        raise ServingError(code, words if isinstance(words, str) else f"HTTP status {status}")
    outputs = told.get("outputs") if isinstance(told, dict) else None
    if not isinstance(outputs, list):
        raise _none("it has no outputs")
    found = []
    for one in outputs:
        try:
            tensor, rest = _tensor(one, rest)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise _none(f"output {clipped(str(one))}: {type(error).__name__}: {error}") from None
        found.append(tensor)
    return found


def _tensor(one: Any, rest: memoryview) -> tuple[Tensor, memoryview]:
    """Return an output, and what is left of the binary data."""
    name, datatype, shape = str(one["name"]), str(one["datatype"]), [int(size) for size in one["shape"]]
    if datatype not in DATATYPES or len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise ValueError(f"there is no {clipped(datatype)}{shape[:MOST_DIMENSIONS]}")
    size, count = (one.get("parameters") or {}).get("binary_data_size"), math.prod(shape)
    if size is None:
        array = _of_json(datatype, one["data"], count)
    else:
        if not 0 <= size <= len(rest):
            raise ValueError(f"it has {size} bytes of {len(rest)}")
        array = of_bytes(datatype, rest[:size], count)
        rest = rest[size:]
    return Tensor(name, datatype, array.reshape(shape)), rest


def of_bytes(datatype: str, data: memoryview, count: int) -> Array:
    """Return `count` elements in their wire form. Raises ValueError."""
    if datatype != "BYTES":
        return np.frombuffer(data, DATATYPES[datatype])
    items = np.array([*unpack_bytes(data, count), None], dtype=object)[:-1]
    return items


def _of_json(datatype: str, data: Any, count: int) -> Array:
    items: list[Any] = data
    while items and isinstance(items[0], list):
        items = [inner for item in items for inner in item]
    if len(items) != count:
        raise ValueError(f"it has {len(items)} elements, its shape says {count}")
    if datatype == "BYTES":
        return as_bytes_array(np.array([*items, None], dtype=object)[:-1])
    if datatype == "BF16":
        raise ValueError("BF16 has no form in JSON")
    return np.array(items, DATATYPES[datatype])


def _none(why: str) -> ServingError:
    return ServingError(Code.UNKNOWN, f"the answer is none of the protocol: {why}")

"""An inference response as bytes: status line, headers, JSON, binary tails (docs/contract/http_protocol.md, 3.1 and 4).

All that depends on the outputs' names, datatypes and shapes alone is built once per model and signature and kept. Large
arrays are sent from where they lie: a response's memory belongs to the front end once it has been handed over.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import msgspec
import numpy as np

from kernel import InferenceResponse, Span, Tensor, is_much_text, pack_bytes
from kernel_http.connection import replies
from kernel_http.json.arrays import json_of, json_pieces

__all__ = ["LargeAnswer", "Replies", "encode", "encode_shared"]

_encode = msgspec.json.Encoder().encode

#: How many signatures are kept for a model.
SIGNATURES = 256

#: An output of more values than this is not made into text on the loop.
VALUES_ON_LOOP = 16 * 1024

#: Responses above this size are written as several buffers without joining them.
LARGE = 64 * 1024

BINARY_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
)
JSON_HEAD = replies.STATUS_LINES[200] + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Replies:
    """The replies of one loaded model that are known already: all of each but its data."""

    __slots__ = ("known", "name", "version")

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.known: dict[tuple[Any, ...], Reply] = {}


class Reply:
    """What is the same in all responses with such outputs.

    `pieces`: the JSON around what differs: before the first output's part, between the parts, behind the last. The part of an
    output is its JSON data, or its number of bytes. `binary[i]`: whether output i is sent in binary; None where its data is
    `shared`: in shared memory. `fixed`: head and JSON, where all outputs are binary and have a fixed size; `size`: of the whole
    response then.
    """

    __slots__ = ("binary", "fixed", "pieces", "size")

    def __init__(
        self, start: bytes, outputs: list[Tensor], binary: bool | frozenset[str], shared: Container[str] = ()
    ) -> None:
        self.fixed: bytes | None = None
        self.size = 0
        self.binary: list[bool | None] = [
            None if tensor.name in shared else binary is True or (binary is not False and tensor.name in binary)
            for tensor in outputs
        ]
        self.pieces = [start]
        close = b"]}"
        for tensor, is_binary in zip(outputs, self.binary, strict=True):
            self.pieces[-1] += b'{"name":%b,"datatype":%b,"shape":%b,' % (
                _encode(tensor.name),
                _encode(tensor.datatype),
                _encode(tensor.array.shape),
            )
            if is_binary is None:
                self.pieces[-1] = self.pieces[-1][:-1]
                self.pieces.append(b"},")
            elif is_binary:
                self.pieces[-1] += b'"parameters":{"binary_data_size":'
                self.pieces.append(b"}},")
            else:
                self.pieces[-1] += b'"data":'
                self.pieces.append(b"},")
        if outputs:
            self.pieces[-1] = self.pieces[-1][:-1] + close
        else:
            self.pieces[-1] += close
        if outputs and all(self.binary) and not any(tensor.datatype == "BYTES" for tensor in outputs):
            sizes = [tensor.array.nbytes for tensor in outputs]
            if sum(sizes):
                json = self.joined([b"%d" % size for size in sizes])
                self.fixed = BINARY_HEAD % (len(json), len(json) + sum(sizes)) + json
                self.size = len(self.fixed) + sum(sizes)

    def joined(self, specials: list[bytes]) -> bytes:
        """Return the JSON part, given each output's JSON data or its number of bytes."""
        parts = [b""] * (2 * len(specials) + 1)
        parts[::2] = self.pieces
        parts[1::2] = specials
        return b"".join(parts)


class LargeAnswer(Exception):
    """There are too many values in the outputs to be made into text on the loop."""


def encode(
    response: InferenceResponse, binary: bool | frozenset[str], kept: Replies, on_loop: bool = True
) -> replies.Payload:
    """Return the whole response. `binary`: True for all outputs, or the names of those that are sent in binary.

    Raises ServingError(INVALID_ARG) where JSON can't carry an output, and LargeAnswer, unless it is called on another thread.
    """
    outputs = response.outputs
    parameters = response.parameters
    if response.id or (parameters and not _repeats(parameters)):
        reply = Reply(_start(response, kept), outputs, binary)
    else:
        signature: list[Any] = [binary]
        for tensor in outputs:
            signature += (tensor.name, tensor.datatype, tensor.array.shape)
        if parameters:  # such as those that every answer of an ensemble has
            signature += (None, *parameters, *map(type, parameters.values()), *parameters.values())
        key = tuple(signature)
        known = kept.known.get(key)
        reply = known if known is not None else _learn(key, response, binary, kept)
    fixed = reply.fixed
    if fixed is None:
        large = _is_large(reply, outputs)
        if on_loop and large:
            raise LargeAnswer
        return _variable(reply, outputs, large)
    if reply.size <= LARGE:
        payload = b"".join([fixed, *[tensor.array.tobytes() for tensor in outputs]])
        assert len(payload) == reply.size, "an output's array is not of its datatype"
        return payload
    views = [_view(tensor) for tensor in outputs]
    assert len(fixed) + sum(map(len, views)) == reply.size, "an output's array is not of its datatype"
    return [fixed, *views]


def encode_shared(
    response: InferenceResponse,
    binary: bool | frozenset[str],
    kept: Replies,
    spans: Mapping[str, Span],
    on_loop: bool = True,
) -> replies.Payload:
    """Write the outputs that `spans` names to shared memory, and return the response with the others.

    Raises ServingError where a span is too small, or its client has shrunk it, and as `encode` does.
    """
    reply = Reply(_start(response, kept), response.outputs, binary, spans)
    large = _is_large(reply, response.outputs)
    if on_loop and large:
        raise LargeAnswer
    for tensor in response.outputs:
        span = spans.get(tensor.name)
        if span is None:
            continue
        span.write_output(tensor.name, pack_bytes(tensor.array) if tensor.datatype == "BYTES" else _view(tensor))
    return _variable(reply, response.outputs, large)


def _is_large(reply: Reply, outputs: list[Tensor]) -> bool:
    """Whether making the outputs into text, or strings into bytes, would take long."""
    for tensor, is_binary in zip(outputs, reply.binary):
        if tensor.datatype == "BYTES":
            if is_binary is not None and is_much_text(tensor.array):
                return True
        elif is_binary is False and tensor.array.size > VALUES_ON_LOOP:
            return True
    return False


def _repeats(parameters: Mapping[str, Any]) -> bool:
    """Whether other responses may well have the same parameters, and keys can tell them apart."""
    for value in parameters.values():
        if value is not True and value is not False and (value or type(value) is not int):
            return False
    return True


def _learn(key: tuple[Any, ...], response: InferenceResponse, binary: bool | frozenset[str], kept: Replies) -> Reply:
    reply = Reply(_start(response, kept), response.outputs, binary)
    if len(kept.known) >= SIGNATURES:
        kept.known.clear()
    kept.known[key] = reply
    return reply


def _start(response: InferenceResponse, kept: Replies) -> bytes:
    """Return the JSON up to the first output."""
    start = b"{"
    if response.id:
        start += b'"id":%b,' % _encode(response.id)
    start += b'"model_name":%b,"model_version":%b,' % (_encode(kept.name), _encode(kept.version))
    if response.parameters:
        start += b'"parameters":%b,' % _encode(response.parameters)
    return start + b'"outputs":['


def _variable(reply: Reply, outputs: list[Tensor], large: bool) -> replies.Payload:
    """Return a response some part of which depends on the outputs' values. `large`: to make it takes long."""
    if large:
        return _in_pieces(reply, outputs)
    specials: list[bytes] = []
    tails: list[bytes | memoryview] = []
    size = 0
    for tensor, is_binary in zip(outputs, reply.binary, strict=True):
        if is_binary is None:
            specials.append(b"")
            continue
        if not is_binary:
            specials.append(json_of(tensor.name, tensor.datatype, tensor.array))
            continue
        data = pack_bytes(tensor.array) if tensor.datatype == "BYTES" else _view(tensor)
        specials.append(b"%d" % len(data))
        tails.append(data)
        size += len(data)
    json = reply.joined(specials)
    if not size:
        return replies.reply(200, json, json=True)
    head = BINARY_HEAD % (len(json), len(json) + size)
    if size > LARGE:
        return [head + json, *tails]
    return b"".join([head, json, *tails])


def _in_pieces(reply: Reply, outputs: list[Tensor]) -> replies.Payload:
    """As `_variable` does, where there is much JSON: it is copied nowhere as a whole."""
    json: list[bytes | memoryview] = [reply.pieces[0]]
    tails: list[bytes | memoryview] = []
    for tensor, is_binary, behind in zip(outputs, reply.binary, reply.pieces[1:], strict=True):
        if is_binary is False:
            json += json_pieces(tensor.name, tensor.datatype, tensor.array)
        elif is_binary:
            tails.append(pack_bytes(tensor.array) if tensor.datatype == "BYTES" else _view(tensor))
            json.append(b"%d" % len(tails[-1]))
        json.append(behind)
    length, size = sum(map(len, json)), sum(map(len, tails))
    head = BINARY_HEAD % (length, length + size) if size else JSON_HEAD % length
    return [head, *json, *tails]


def _view(tensor: Tensor) -> bytes | memoryview:
    """Return the bytes of an output, without a copy where its elements lie in order."""
    array = tensor.array
    if not array.size:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

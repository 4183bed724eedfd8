"""An inference response on the wire: a ModelInferResponse, alone or within a ModelStreamInferResponse (contract 3.3 and 4).

Written by hand: all that depends on the outputs' names, datatypes and shapes alone is built once per model and signature and
kept; the data comes behind it, always raw. Large arrays are sent from where they lie: a response's memory belongs to the front
end once it has been handed over.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from kernel import Code, InferenceResponse, Model, ServingError, Tensor, is_much_text, pack_bytes
from kernel_grpc.inference.limited import is_limited
from kernel_grpc.inference.parameters import encoded
from kernel_grpc.inference.wire import field, varint

__all__ = ["LargeAnswer", "Payload", "Replies", "Reply", "data_of", "encode", "error_message", "joined", "nothing_more",
           "streamed"]  # fmt: skip

Payload = bytes | list[bytes | memoryview]

#: How many signatures are kept for a model.
SIGNATURES = 256

#: Responses above this size are several buffers that nobody joins.
LARGE = 64 * 1024

#: The largest message that there may be.
LIMIT = 2**31 - 1

#: Field 4 of ModelInferResponse, `parameters`, as each streamed response has it: whether it is the last.
FINAL = {final: encoded(4, {"triton_final_response": final}) for final in (False, True)}


class LargeAnswer(Exception):
    """A response is more work than is done on the loop: it has to be encoded on a thread."""


class Replies:
    """The replies of one loaded model that are known already: all of each but its data.

    `limited`: they may be large by the model's config, so that not all that are asked for are made at once (shares.py).
    `largest`: about the bytes of the largest so far, 0 before there was one. `shares`: those of connections in the model.
    """

    __slots__ = ("known", "largest", "limited", "model", "shares", "start")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.limited = is_limited(model)
        self.largest = 0
        self.shares: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.start = field(1, model.name) + field(2, str(model.version))
        self.known: dict[tuple[Any, ...], Reply] = {}


class Reply:
    """The unchanging parts of a response of one signature.

    `prefix`: all that comes before the data, where there is no id and no parameter. `last`: the same as the last response of
    a stream. `outputs`: what `prefix` says of the outputs. `heads`: what comes before each output's data, None where that
    depends on its size. `size`: of the data with their heads, -1 where it is not fixed. `is_small`: fixed, and to be joined.
    """

    __slots__ = ("heads", "is_small", "last", "outputs", "prefix", "size")

    def __init__(self, start: bytes, outputs: list[Tensor], sunk: Collection[str]) -> None:
        self.outputs = b"".join(map(_described, outputs))
        self.prefix = start + self.outputs
        self.heads: list[bytes | None] = []
        self.size = 0
        for tensor in outputs:
            if tensor.datatype == "BYTES" and tensor.name not in sunk:
                self.heads.append(None)
                self.size = -1
                continue
            size = 0 if tensor.name in sunk else tensor.array.nbytes
            head = b"\x32" + varint(size)  # 6 raw_output_contents
            self.heads.append(head)
            if self.size >= 0:
                self.size += len(head) + size
        self.last = b""
        self.is_small = 0 <= self.size <= LARGE and not sunk
        if self.is_small:
            inner = start + FINAL[True] + self.outputs
            self.last = b"\x12" + varint(len(inner) + self.size) + inner


def _described(tensor: Tensor) -> bytes:
    """Return an output as field 5 of ModelInferResponse, without its data."""
    sizes = b"".join(map(varint, tensor.array.shape))
    inner = field(1, tensor.name) + field(2, tensor.datatype) + field(3, sizes)
    return b"\x2a" + varint(len(inner)) + inner


def encode(response: InferenceResponse, replies: Replies, sunk: Collection[str] = (), on_loop: bool = True) -> Payload:
    """Return a ModelInferResponse. `sunk`: outputs whose data has gone into shared memory.

    Raises ServingError; LargeAnswer where it is much work and `on_loop`.
    """
    outputs = response.outputs
    reply = _reply(outputs, replies, sunk)
    if response.id or response.parameters:
        prefix = replies.start + _special(response) + reply.outputs
    else:
        prefix = reply.prefix
    if reply.is_small:
        return _small(prefix, reply, outputs)
    data, size = _data(reply, outputs, sunk, on_loop)
    replies.largest = max(replies.largest, size)
    return joined(prefix, data, size)


def streamed(
    response: InferenceResponse,
    replies: Replies,
    final: bool,
    prefixes: dict[Reply, bytes] | None,
    sunk: Collection[str] = (),
    on_loop: bool = True,
) -> Payload:
    """Return a ModelStreamInferResponse. Raises ServingError; LargeAnswer where it is much work and `on_loop`.

    `prefixes`: where a request whose responses are many keeps what they have in common.
    """
    outputs = response.outputs
    reply = _reply(outputs, replies, sunk)
    if not reply.is_small:
        data, size = _data(reply, outputs, sunk, on_loop)
        replies.largest = max(replies.largest, size)
        return joined(_stream_prefix(response, replies, reply, final, size), data, size)
    if response.parameters:
        prefix = _stream_prefix(response, replies, reply, final, reply.size)
    elif final:
        prefix = _stream_prefix(response, replies, reply, True, reply.size) if response.id else reply.last
    else:
        known = prefixes.get(reply) if prefixes is not None else None
        if known is None:
            known = _stream_prefix(response, replies, reply, False, reply.size)
            if prefixes is not None:
                prefixes[reply] = known
        prefix = known
    return _small(prefix, reply, outputs)


def _stream_prefix(response: InferenceResponse, replies: Replies, reply: Reply, final: bool, size: int) -> bytes:
    inner = replies.start + _special(response) + FINAL[final] + reply.outputs
    return b"\x12" + varint(len(inner) + size) + inner


def nothing_more(name: str, version: str, id: str) -> bytes:
    """Return the streamed response that only says: this was the last. Name and version are the request's own."""
    inner = field(1, name) + field(2, version) + field(3, id) + FINAL[True]
    return b"\x12" + varint(len(inner)) + inner


def error_message(text: str, name: str, version: str, id: str, final: bool | None) -> bytes:
    """Return the streamed response that carries an error.

    `final`: whether it is the request's last response; None, and nothing but an id, for a request that was not accepted.
    """
    inner = field(3, id)
    if final is not None:
        inner = field(1, name) + field(2, version) + inner + FINAL[final]
    return field(1, text) + b"\x12" + varint(len(inner)) + inner


def _special(response: InferenceResponse) -> bytes:
    """Return id and parameters of a response."""
    id = response.id.encode()
    special = b"\x1a" + varint(len(id)) + id if id else id
    return special + encoded(4, response.parameters) if response.parameters else special


def _reply(outputs: list[Tensor], replies: Replies, sunk: Collection[str]) -> Reply:
    if sunk:
        return Reply(replies.start, outputs, sunk)
    signature: list[Any] = []
    for tensor in outputs:
        signature += (tensor.name, tensor.datatype, tensor.array.shape)
    key = tuple(signature)
    reply = replies.known.get(key)
    if reply is None:
        if len(replies.known) >= SIGNATURES:
            replies.known.clear()
        reply = replies.known[key] = Reply(replies.start, outputs, ())
        if reply.size >= 0:  # else nobody knows before it is encoded, which may take a while
            replies.largest = max(replies.largest, reply.size, 1)
    return reply


def _small(prefix: bytes, reply: Reply, outputs: list[Tensor]) -> bytes:
    """Return a whole message of a fixed size that is worth joining: what `joined` makes of `_data`, in fewer steps."""
    pieces = [prefix]
    for head, tensor in zip(reply.heads, outputs):
        pieces += (head, tensor.array.tobytes())  # type: ignore[arg-type]
    payload = b"".join(pieces)
    assert len(payload) == len(prefix) + reply.size, "an output's array is not of its datatype"
    return payload


def _data(
    reply: Reply, outputs: list[Tensor], sunk: Collection[str], on_loop: bool = True
) -> tuple[list[bytes | memoryview], int]:
    """Return the raw data of the outputs with their heads, and their size in all. Raises LargeAnswer on the loop."""
    if on_loop and any(is_much_text(one.array) for one in outputs if one.datatype == "BYTES"):
        raise LargeAnswer
    pieces: list[bytes | memoryview] = []
    for head, tensor in zip(reply.heads, outputs):
        data = b"" if tensor.name in sunk else data_of(tensor)
        pieces += (b"\x32" + varint(len(data)) if head is None else head, data)
    return pieces, sum(map(len, pieces))


def joined(prefix: bytes, data: list[bytes | memoryview], size: int) -> Payload:
    """Return a whole message; a large one is left in pieces. Raises ServingError where it is larger than any may be."""
    total = len(prefix) + size
    if total <= LARGE:
        return b"".join((prefix, *data))
    if total > LIMIT:
        raise ServingError(
            Code.INTERNAL, f"the response has {total} bytes, a gRPC message can have no more than {LIMIT}; use shared memory"
        )
    return [prefix, *data]


def data_of(tensor: Tensor) -> bytes | memoryview:
    """Return the bytes of an output, without a copy where its elements lie in order."""
    array = tensor.array
    if not array.size:
        return b""
    if tensor.datatype == "BYTES":
        return pack_bytes(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

"""What a gRPC call asks and was answered, request by request, so that each can be asked again and compared. Pure.

What can't be compared says why by a word (NotCompared). `messages` has the protocol's messages, as protobuf makes them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from kernel.errors import Code, ServingError
from kernel.recording import code_of, outputs_of, streamed_of
from kernel.shadow.calls import BEGIN, Packed, SeenCall, TooMuch, messages_of
from kernel.tensor import Tensor

__all__ = ["PATHS", "Asked", "Given", "NotCompared", "answers_of", "asked_of", "failed_as", "model_of"]

UNARY, STREAM = (f"/inference.GRPCInferenceService/{name}" for name in ("ModelInfer", "ModelStreamInfer"))
PATHS = frozenset((UNARY, STREAM))

#: Statuses that say something of that moment, and nothing of the request: cancelled, deadline, exhausted, unavailable.
_OF_THE_MOMENT = frozenset({1, 4, 8, 14})

#: The outputs of each response, or why there are none.
Given = list[list[Tensor]] | ServingError


class NotCompared(Exception):
    """A call that is not compared. `args[0]`: the word for why."""


@dataclass(frozen=True)
class Asked:
    """One request of a call. `expected`: what the upstream has answered."""

    model: str
    id: str
    message: bytes
    expected: Given


def model_of(request: Packed) -> str:
    """Return the name of the model that a call is for, from the begin of its request; "?" where it does not stand there."""
    begin = bytes(request.body[5 : 5 + BEGIN])
    if request.body[:1] == b"\1":
        try:
            begin = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(begin, BEGIN)
        except zlib.error:
            begin = b""
    if len(begin) < 3 or begin[0] != 0x0A:  # its first field
        return "?"
    size, at = begin[1], 2
    if size > 127:
        size, at = size & 127 | begin[2] << 7, 3
    return begin[at : at + size].decode("utf-8", "replace") or "?"


def asked_of(messages: Any, call: SeenCall) -> list[Asked]:
    """Return the requests of a call with their answers. Raises NotCompared."""
    if call.cut:
        raise NotCompared("too large")
    if call.status in _OF_THE_MOMENT:
        raise NotCompared("upstream busy")
    if not call.request.ended:
        raise NotCompared("ended early")
    try:
        parts = messages_of(call.request)
        requests = [messages.ModelInferRequest.FromString(one) for one in parts]
    except TooMuch:
        raise NotCompared("too large") from None
    except (DecodeError, ServingError):
        raise NotCompared("not understood") from None
    if any("sequence_id" in one.parameters for one in requests):
        raise NotCompared("sequence")  # one request of it alone would be answered otherwise
    if any("shared_memory_region" in tensor.parameters for one in requests for tensor in (*one.inputs, *one.outputs)):
        raise NotCompared("shared memory")
    given = _given(messages, call, [one.id for one in requests])
    return [Asked(one.model_name, one.id, part, answer) for one, part, answer in zip(requests, parts, given)]


def _given(messages: Any, call: SeenCall, ids: Sequence[str]) -> list[Given]:
    """Return what each request was answered."""
    try:
        answers = messages_of(call.answer)
        if call.path == UNARY:
            if len(ids) != 1 or (not call.status and len(answers) != 1):
                raise NotCompared("not understood")
            return [ServingError(code_of(call.status), call.words) if call.status else [outputs_of(messages, answers[0])[1]]]
        responses = [streamed_of(messages, one) for one in answers]
    except TooMuch:
        raise NotCompared("too large") from None
    except ServingError:
        raise NotCompared("not understood") from None
    if len(ids) == 1:
        return [_of_stream(call.words) if call.status else _together([one for _, one in responses])]
    if call.status:
        raise NotCompared("ended early")
    if "" in ids or len(set(ids)) < len(ids):
        raise NotCompared("stream without ids")  # it can't be said which answer is whose
    every: dict[str, list[list[Tensor] | ServingError | None]] = {id: [] for id in ids}
    for whose, one in responses:
        if whose in every:
            every[whose].append(one)
    return [_together(each) for each in every.values()]


def failed_as(path: str, error: ServingError) -> ServingError:
    """Return what a candidate's failure says; on a stream no code, which it has only where its client had asked for that."""
    return error if path == UNARY or error.code is Code.UNAVAILABLE else _of_stream(error.message)


def _of_stream(words: str) -> ServingError:
    return ServingError(Code.UNKNOWN, words)


def answers_of(messages: Any, path: str, answers: Sequence[bytes]) -> Given:
    """Return what a candidate has answered. Raises ServingError for what is no answer."""
    if path == UNARY:
        return [outputs_of(messages, one)[1] for one in answers]
    return _together([streamed_of(messages, one)[1] for one in answers])


def _together(responses: Sequence[list[Tensor] | ServingError | None]) -> Given:
    """Return the responses to one request as one: an error is all that matters; one that is only the last says nothing."""
    found = []
    for one in responses:
        if isinstance(one, ServingError):
            return _of_stream(one.message)
        if one is not None:
            found.append(one)
    return found

"""What replicas say to each other about requests, and how it is written: MessagePack, and tensors as the bytes that they are.

In the body the tensors lie one after another, each at a multiple of ALIGNED bytes. Knows no socket and no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from kernel.errors import Code, Overloaded, Reason, ServingError
from kernel.requests import InferenceRequest, InferenceResponse
from kernel.tensor import DATATYPES, Tensor, pack_bytes, unpack_bytes

__all__ = [
    "Answered",
    "AskWaits",
    "Bye",
    "Drop",
    "Form",
    "Hand",
    "Hello",
    "Keeps",
    "LoadTold",
    "Refused",
    "Waits",
    "answer_of",
    "hand_of",
    "read",
    "response_of",
    "tensors_of",
    "write",
]

ALIGNED = 16
_PADDING = bytes(ALIGNED)

#: A tensor's name, datatype, shape and bytes.
TensorHead = tuple[str, str, list[int], int]
#: Of an execution: it began, its input was there, its output, it ended.
Times = tuple[float, float, float, float]


class Hand(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Execute this request. `number`: of those that were handed over on this way. `deadline`: on the clock that all processes of
    a host share. `context`: of its trace, None where it is not traced. `call`: a model has made it. The rest as InferenceRequest
    says.
    """

    number: int
    model: str
    version: int
    id: str
    inputs: list[TensorHead]
    outputs: list[str] | None
    parameters: dict[str, Any] | None
    priority: int
    timeout_us: int
    deadline: float | None
    correlation_id: int | str
    flags: int
    context: str | None
    call: bool = False


class Drop(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Nobody waits for that request any more."""

    number: int


class LoadTold(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """What the sender has to do, as Reported says, of all models that have something to do."""

    seen: int
    shared: float
    waits: dict[str, float]


class Answered(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """A response to request `number`; `outputs`: None where there is none. `code`: "" or that of an error. `times`: of the
    execution, where it is known. `spent`: seconds since the request came. The last three: as LoadTold says, `wait` of this model.
    """

    number: int
    final: bool
    outputs: list[TensorHead] | None
    parameters: dict[str, Any] | None
    code: str
    message: str
    reason: str
    overloaded: bool
    times: Times | None
    spent: float
    seen: int
    shared: float
    wait: float


class Refused(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """That request has not begun here, and is not going to. `seen`: as LoadTold says."""

    number: int
    seen: int


class Bye(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """The sender takes no more requests; it answers those that it has."""


class Keeps(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """The sender has these sequences, by model and id, which are not its own by the hash, or of which others may think that they
    have them; and none besides that are not its own. `began`: when, each, on the clock of `deadline`.
    """

    sequences: list[tuple[str, int | str]]
    began: list[float] = []


class Hello(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """The sender takes sequences from now on: it knows what the others keep."""


class AskWaits(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """What does request `number` wait for, which `giver` has handed over to the one that is asked?"""

    giver: str
    number: int


class Waits(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """It can't go on before these have their answers, which the one that was asked has handed over: to whom, by which number, and
    the models whose executions wait for that, one for the next. None: it may go on.
    """

    giver: str
    number: int
    behind: list[tuple[str, int, list[str]]] | None


Form = Hand | Drop | LoadTold | Answered | Refused | Bye | Keeps | Hello | AskWaits | Waits


def _builtin(value: Any) -> Any:
    """Return what a model or a plugin has put among parameters as a value of a built-in type."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value)


write = msgspec.msgpack.Encoder(enc_hook=_builtin).encode
read = msgspec.msgpack.Decoder(Form).decode

#: What values of parameters are as wires have them.
_PLAIN = (str, int, float, bool)
_read_parameters = msgspec.msgpack.Decoder(dict[str, Any]).decode


def _readable(parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return parameters of a response as the other end can read them. Raises TypeError and the like where it can't."""
    for key, value in (parameters or {}).items():
        if type(key) is not str or type(value) not in _PLAIN:
            return _read_parameters(write(parameters))
    return parameters


def _written(tensors: Iterable[Tensor]) -> tuple[list[TensorHead], list[bytes | memoryview]]:
    """Return the heads of tensors, and what the body consists of."""
    heads: list[TensorHead] = []
    body: list[bytes | memoryview] = []
    for tensor in tensors:
        array = tensor.array
        data: bytes | memoryview
        if tensor.datatype == "BYTES":
            data = pack_bytes(array)
        elif array.nbytes:
            if array.dtype != (dtype := DATATYPES[tensor.datatype]):  # a mistake of the model's, but one that has a value
                array = array.astype(dtype)
            data = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        else:
            data = b""
        size = len(data)
        heads.append((tensor.name, tensor.datatype, list(array.shape), size))
        body.append(data)
        if size % ALIGNED:
            body.append(_PADDING[size % ALIGNED :])
    return heads, body


def tensors_of(heads: Sequence[TensorHead], body: memoryview) -> list[Tensor]:
    """Return the tensors of a message, whose memory is that of `body`."""
    tensors = []
    at = 0
    for name, datatype, shape, size in heads:
        data = body[at : at + size]
        at += size + -size % ALIGNED
        if datatype == "BYTES":
            items = unpack_bytes(data)
            array: Any = np.empty(len(items), np.object_)
            array[:] = items
            array = array.reshape(shape)
        else:
            array = np.frombuffer(data, DATATYPES[datatype]).reshape(shape) if size else np.empty(shape, DATATYPES[datatype])
        tensors.append(Tensor(name, datatype, array))
    return tensors


def hand_of(number: int, request: InferenceRequest, version: int) -> tuple[bytes, list[bytes | memoryview]]:
    """Return head and body of the message that hands a request over. Raises TypeError and the like for what can't be written."""
    heads, body = _written(request.inputs.values())
    trace = request.trace
    head = Hand(
        number,
        request.model_name,
        version,
        request.id,
        heads,
        None if request.requested_outputs is None else list(request.requested_outputs),
        None if not request.parameters else dict(request.parameters),
        request.priority,
        request.timeout_us,
        request.deadline,
        request.correlation_id,
        request.flags,
        None if trace is None else getattr(trace, "context", None) or "",
        request.parent is not None,
    )
    return write(head), body


def answer_of(
    number: int,
    response: InferenceResponse | None,
    final: bool,
    times: Times | None,
    load: tuple[float, int, float, float],
) -> tuple[bytes, list[bytes | memoryview]]:
    """Return head and body of the message that answers a request. `load`: `spent` and what follows it in Answered. Raises
    TypeError and the like for what can't be written, which no error is.
    """
    error = None if response is None else response.error
    if response is None:
        return write(Answered(number, final, None, None, "", "", "", False, times, *load)), []
    if error is not None:
        message = error.message.encode("utf-8", "backslashreplace").decode()  # a file's name may have halves of surrogates
        why = error.code.name, message, error.reason.name, isinstance(error, Overloaded)
        return write(Answered(number, final, [], None, *why, times, *load)), []
    heads, body = _written(response.outputs)
    return write(Answered(number, final, heads, _readable(response.parameters), "", "", "", False, times, *load)), body


def response_of(answer: Answered, body: memoryview) -> InferenceResponse | None:
    """Return the response that an answer brings."""
    if answer.outputs is None:
        return None
    if answer.overloaded:
        return InferenceResponse([], Overloaded(answer.message))
    if answer.code:
        return InferenceResponse([], ServingError(Code[answer.code], answer.message, Reason[answer.reason]))
    return InferenceResponse(tensors_of(answer.outputs, body), None, answer.parameters)

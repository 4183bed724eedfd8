"""pb_utils.InferenceResponse and TritonError, and their way to and from the core (contract: python_backend, 1.6, 1.7).

`answers` turns the responses of one execution into the core's, copying what others could still see.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from sys import getrefcount
from typing import Any, Protocol

from kernel import Code, InferenceRequest, Reason, ServingError
from kernel import InferenceResponse as CoreResponse
from kernel import Tensor as CoreTensor
from kernel_python.api.copies import COPIES
from kernel_python.api.memory import SMALL, Handover, hand_over
from kernel_python.api.tensors import Tensor, received
from kernel_python.calling import Instance
from kernel_python.faults import ErrorCode, TritonModelException, incompatible

__all__ = ["InferenceResponse", "TritonError", "answer_of", "answers", "checked_parameters", "response_of", "small_answer"]

log = logging.getLogger("kernel_python")

OUTPUT = Handover("output")
_NONE: tuple[Tensor, ...] = ()
_new = object.__new__


class TritonError:
    """What a model answers instead of outputs: a message and a code."""

    __slots__ = ("_code", "_message")
    __module__ = "c_python_backend_utils"

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(message, (str, bytes)) or not isinstance(code, ErrorCode):
            given = (message,) if code is ErrorCode.INTERNAL else (message, code)
            raise incompatible(
                "__init__",
                "c_python_backend_utils.TritonError(message: str, code: c_python_backend_utils.TritonError.__ErrorCode"
                " = <__ErrorCode.INTERNAL: 1>)",
                given,
            )
        self._message = message if isinstance(message, str) else message.decode()
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code


setattr(TritonError, "__ErrorCode", ErrorCode)  # as its qualified name says


class InferenceResponse:
    """`InferenceResponse(output_tensors=[], error=None, parameters=None)`. With `error`, the tensors are ignored."""

    __slots__ = ("_error", "_parameters", "_tensors")
    __module__ = "c_python_backend_utils"

    _tensors: Sequence[Tensor]
    _error: TritonError | None
    _parameters: dict[str, Any] | None

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = _NONE,
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        # A list of our own: the model may go on using, or change, the one it gave.
        tensors = list(output_tensors) if isinstance(output_tensors, (list, tuple)) else None
        if tensors is None or (error is not None and not isinstance(error, TritonError)) or unknown:
            raise _mismatch(output_tensors, error, parameters, unknown)
        for tensor in tensors:
            if type(tensor) is not Tensor and not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise _mismatch(output_tensors, error, parameters, unknown)
        self._tensors = tensors
        self._error = error
        self._parameters = None if parameters is None else checked_parameters(parameters)

    def output_tensors(self) -> list[Tensor]:
        """Return the tensors, in order."""
        return list(self._tensors)

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, None where there is none."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as a JSON string, `"{}"` for none."""
        return json.dumps(self._parameters or {})


def _mismatch(tensors: Any, error: Any, parameters: Any, unknown: Mapping[str, Any]) -> TypeError:
    named = {"error": error, "parameters": parameters}
    return incompatible(
        "__init__",
        "c_python_backend_utils.InferenceResponse(output_tensors: List[c_python_backend_utils.Tensor] = [], "
        "error: c_python_backend_utils.TritonError = None, parameters: object = None)",
        () if tensors is _NONE else (tensors,),
        {key: value for key, value in named.items() if value is not None} | dict(unknown),
    )


def checked_parameters(parameters: Any) -> dict[str, Any]:
    """Return a copy of the parameters, or raise TritonModelException in the reference's words (spec, 1.4)."""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters)


# -- to the core -------------------------------------------------------------------------------------------------------


def answers(
    instance: Instance, requests: Sequence[InferenceRequest], result: list[InferenceResponse]
) -> list[CoreResponse]:
    """Return the core's responses for those that `execute` has returned, one a request.

    Called with `result` in one local variable of the caller: `execute` is over, so who else holds it may use it again.
    """
    out = []
    for index, request in enumerate(requests):
        response = result[index]
        out.append(answer_of(instance, request, response, getrefcount(result) + getrefcount(response), OUTPUT))
    return out


class Executed(Protocol):
    """A request as `execute` has received it."""

    _core: InferenceRequest
    _sender: Any
    _release: int


def small_answer(request: Executed, result: Any) -> CoreResponse | None:
    """Return what `answers` would for the one request (as received) of an execution, from what `execute` has returned: a list
    with one response of nothing but small arrays that are wanted. None for everything else.

    It is here because most answers are so, and `answers` takes 110 instructions more of 410 for them: it counts who else sees the
    arrays, and looks up what is wanted, kept and declared. Small arrays are copied whoever else may see them.
    """
    if type(result) is not list or len(result) != 1 or request._sender is not None or request._release:
        return None
    response = result[0]
    if type(response) is not InferenceResponse or response._error is not None:
        return None
    wanted = request._core.wanted
    outputs = []
    for tensor in response._tensors:
        array, name, datatype = tensor._array, tensor._name, tensor._datatype
        if array.nbytes > SMALL or datatype == "BYTES" or name not in wanted:
            return None
        outputs.append(CoreTensor(name, datatype, array.copy()))
    COPIES.small += len(outputs)
    return CoreResponse(outputs, None, response._parameters)


def answer_of(
    instance: Instance, request: InferenceRequest, response: InferenceResponse, holders: int, handover: Handover
) -> CoreResponse:
    """Return the core's response for one; `holders`: the reference count of `response` at its handover."""
    error = response._error
    if error is not None:
        code = Code[error._code.name]
        return CoreResponse([], error=ServingError(code, error._message, Reason.BACKEND))
    wanted = request.wanted
    outputs = []
    for tensor in response._tensors:
        name = tensor._name
        if name in wanted:
            array = tensor._array
            if array.nbytes <= SMALL and tensor._datatype != "BYTES" and not instance.lends:
                COPIES.small += 1
                array = array.copy()
            else:
                del array
                array = hand_over(tensor, holders, handover, request.inputs, instance.lends)
            outputs.append(CoreTensor(name, tensor._datatype, array))
        elif name not in instance.outputs:
            _undeclared(instance, tensor, outputs)
    return CoreResponse(outputs, parameters=response._parameters)


def _undeclared(instance: Instance, tensor: Tensor, outputs: list[CoreTensor]) -> None:
    """Pass on an output that the config lacks where the core is strict and has the words for it.

    Elsewhere say once that it goes nowhere; the reference drops it without a word (spec, 1.6).
    """
    name = tensor._name
    if instance.strict:
        outputs.append(CoreTensor(name, tensor._datatype, tensor._array))
    elif name not in instance.undeclared:
        instance.undeclared.add(name)
        log.warning(
            "model '%s' returned a tensor '%s' that is no output in its config (%s): it is dropped",
            instance.model_name,
            name,
            ", ".join(sorted(instance.outputs)) or "it has none",
        )


# -- from the core -----------------------------------------------------------------------------------------------------


def response_of(core: CoreResponse, zero_copy: bool) -> InferenceResponse:
    """Return the response that a model receives: its arrays are those of the callee, which has given them away."""
    response: InferenceResponse = _new(InferenceResponse)
    response._tensors = tensors = []
    for tensor in core.outputs:  # a comprehension would have a frame of its own, and most have one output
        tensors.append(received(tensor, zero_copy))
    response._parameters = core.parameters
    error = core.error
    response._error = None if error is None else error_of(error.code, error.message)
    return response


def error_of(code: Code, message: str) -> TritonError:
    return TritonError(message, ErrorCode[code.name])

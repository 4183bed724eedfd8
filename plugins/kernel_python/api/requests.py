"""pb_utils.InferenceRequest as a model makes it for a BLS call: its arguments and their checks (contract: python_backend, 1.4).

How the call is made is the business of bls.py; what `execute` receives is in received.py.
"""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Mapping, Sequence
from sys import getrefcount
from typing import Any

from kernel_python.api import bls
from kernel_python.api.iterator import ResponseIterator
from kernel_python.api.preferred import PreferredMemory
from kernel_python.api.responses import InferenceResponse, checked_parameters
from kernel_python.api.sender import InferenceResponseSender
from kernel_python.api.tensors import Tensor
from kernel_python.calling import EXECUTION
from kernel_python.faults import TritonModelException, as_text, incompatible

__all__ = ["InferenceRequest", "InferenceTrace"]

_MISSING: Any = object()
_made_in = EXECUTION.get
_ZERO, _LATEST = 0, -1  # compared by identity: 0.0 and False are equal to 0, and are for `_init` to look at
_SIGNATURE = (
    "c_python_backend_utils.InferenceRequest(request_id: str = '', correlation_id: object = 0, inputs: "
    "List[triton::backend::python::PbTensor], requested_output_names: List[str], model_name: str, model_version: int = -1, "
    "flags: int = 0, timeout: int = 0, preferred_memory: c_python_backend_utils.PreferredMemory = <default>, trace: "
    "c_python_backend_utils.InferenceTrace = <none>, parameters: object = None)"
)


class InferenceTrace:
    """What a request carries of a trace; give it to a BLS request to continue the trace."""

    __slots__ = ("_trace",)
    __module__ = "c_python_backend_utils"

    def __init__(self, trace: Any = None) -> None:
        self._trace = trace

    def get_context(self) -> str | None:
        """Return the context that the client gave, as JSON, None where there is none."""
        context = getattr(self._trace, "context", None)
        return context if isinstance(context, str) else None


class InferenceRequest:
    """A request to another model: `exec` and `async_exec` send it. Nothing is inherited from the request being executed.

    An empty `requested_output_names` stands for all outputs; `model_version` -1 for the latest. It remembers the execution that
    it was made in: the call may be left to a thread that knows of none.
    """

    __slots__ = (
        "_correlation",
        "_flags",
        "_id",
        "_inputs",
        "_memory",
        "_model",
        "_outputs",
        "_parameters",
        "_site",
        "_timeout",
        "_trace",
        "_version",
    )
    __module__ = "c_python_backend_utils"

    _correlation: int | str
    _inputs: list[Tensor]
    _outputs: list[str]
    _memory: PreferredMemory | None
    _trace: InferenceTrace | None
    _parameters: dict[str, Any] | None

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = _MISSING,
        requested_output_names: Sequence[str] = _MISSING,
        model_name: str = _MISSING,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        if (
            type(model_name) is str
            and type(inputs) is list
            and type(requested_output_names) is list
            and request_id == ""
            and correlation_id is _ZERO
            and flags is _ZERO
            and timeout is _ZERO
            and model_version is _LATEST
            and preferred_memory is None
            and trace is None
            and parameters is None
            and not unknown
        ):
            for tensor in inputs:
                if type(tensor) is not Tensor:
                    break
            else:
                for name in requested_output_names:
                    if type(name) is not str or not name:
                        break
                else:  # what nearly every call looks like
                    self._model = model_name
                    self._inputs = inputs.copy()
                    self._outputs = requested_output_names.copy()
                    self._id = ""
                    self._correlation = self._flags = self._timeout = 0
                    self._version = -1
                    self._memory = self._trace = self._parameters = None
                    self._site = _made_in(None)
                    return
        self._init(locals())

    def _init(self, given: dict[str, Any]) -> None:
        """Look closer at arguments that are not just tensors, names and a model. `given`: the arguments, by name."""
        request_id, model_name, model_version = given["request_id"], given["model_name"], given["model_version"]
        inputs, requested_output_names = given["inputs"], given["requested_output_names"]
        correlation_id, trace, preferred_memory = given["correlation_id"], given["trace"], given["preferred_memory"]
        try:
            if given["unknown"] or correlation_id is None or not _are_of_their_types(given):
                raise TypeError
            self._id = request_id if type(request_id) is str else as_text(request_id)
            self._model = model_name if type(model_name) is str else as_text(model_name)
            self._inputs = list(inputs)
            for tensor in inputs:
                if type(tensor) is not Tensor:
                    self._check_input(tensor)
            self._outputs = list(requested_output_names)
            for name in requested_output_names:
                if type(name) is not str or not name:
                    self._check_output(name)
            self._version = operator.index(model_version)
            self._flags = _unsigned(given["flags"])
            self._timeout = _unsigned(given["timeout"])
        except TypeError:
            raise incompatible("__init__", _SIGNATURE, (), _given(given)) from None
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        self._correlation = correlation_id
        self._memory = preferred_memory
        self._trace = trace
        parameters = given["parameters"]
        self._parameters = None if parameters is None else checked_parameters(parameters)
        self._site = _made_in(None)

    def _check_input(self, tensor: Any) -> None:
        if tensor is None:
            raise self._empty("Input tensor")
        if not isinstance(tensor, Tensor):
            raise TypeError

    def _check_output(self, name: Any) -> None:
        if not isinstance(name, (str, bytes)):
            raise TypeError
        if not name:
            raise self._empty("Requested output name")
        self._outputs = [one.decode() if isinstance(one, bytes) else one for one in self._outputs]

    def _empty(self, what: str) -> TritonModelException:
        return TritonModelException(
            f"{what} for request with id '{self._id}' and model name '{self._model}' should not be empty."
        )

    # -- what it says --------------------------------------------------------------------------------------------------

    def inputs(self) -> list[Tensor]:
        """Return the input tensors."""
        return list(self._inputs)

    def request_id(self) -> str:
        """Return the id, "" for none."""
        return self._id

    def correlation_id(self) -> int | str:
        """Return the id of the sequence, 0 for none."""
        return self._correlation

    def flags(self) -> int:
        """Return the sequence flags: START 1, END 2."""
        return self._flags

    def set_flags(self, *args: int) -> None:
        """Set the sequence flags."""
        self._set_flags(self._only_number("set_flags", args))

    def _set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """Return the time-out in microseconds, 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """Return the parameters as a JSON string, `"{}"` for none."""
        return json.dumps(self._parameters or {})

    def requested_output_names(self) -> set[str]:
        """Return the names of the outputs that are asked for."""
        return set(self._outputs)

    def trace(self) -> InferenceTrace:
        return self._trace or InferenceTrace()

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return False

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of the request's responses; the same each time."""
        raise TritonModelException(
            "Only a request that was received has a response sender, not one that the model made."
        )

    def set_release_flags(self, *args: int) -> None:
        """Say what becomes of the request when `execute` returns."""
        self._release_as(self._only_number("set_release_flags", args))

    def _only_number(self, function: str, args: tuple[int, ...]) -> int:
        try:
            (number,) = args
            return _unsigned(number)
        except (TypeError, ValueError):
            signature = "(self: c_python_backend_utils.InferenceRequest, arg0: int) -> None"
            raise incompatible(function, signature, (self, *args)) from None

    def _release_as(self, flags: int) -> None:
        """A request that the model made is released to nobody."""

    # -- the call ------------------------------------------------------------------------------------------------------

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Call the model and return its response, maybe an error; with `decoupled`, an iterator of responses, at once."""
        if decoupled is not False and decoupled is not True:
            raise self._bad_call("exec", decoupled)
        holders = getrefcount(self)
        call = self._as_call()
        return bls.call_and_iterate(call, holders) if decoupled else bls.call(call, holders)

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """Call the model; awaiting the future gives what `exec` would return. Only inside of `async def`."""
        if decoupled is not False and decoupled is not True:
            raise self._bad_call("async_exec", decoupled)
        holders = getrefcount(self)
        call = self._as_call()
        return bls.call_async_and_iterate(call, holders) if decoupled else bls.call_async(call, holders)

    def _bad_call(self, function: str, decoupled: Any) -> TypeError:
        signature = "(self: c_python_backend_utils.InferenceRequest, decoupled: bool = False) -> object"
        return incompatible(function, signature, (self,), {"decoupled": decoupled})

    def _as_call(self) -> InferenceRequest:
        return self


#: Arguments of a request that only need to be of a type; None is what an optional one is by default.
_TYPES: dict[str, tuple[type, ...]] = {
    "request_id": (str, bytes),
    "model_name": (str, bytes),
    "inputs": (list, tuple),
    "requested_output_names": (list, tuple),
    "trace": (InferenceTrace, type(None)),
    "preferred_memory": (PreferredMemory, type(None)),
}


def _are_of_their_types(given: Mapping[str, Any]) -> bool:
    return all(isinstance(given[name], types) for name, types in _TYPES.items())


def _unsigned(value: int) -> int:
    number = operator.index(value)
    if number < 0:
        raise TypeError
    return number


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were given, for the error message."""
    defaults = {"request_id": "", "correlation_id": 0, "model_version": -1, "flags": 0, "timeout": 0}
    given = {
        key: value
        for key, value in arguments.items()
        if key not in ("self", "unknown", "tensor", "name")
        and value is not _MISSING
        and (key not in defaults or value != defaults[key])
        and (value is not None or key == "inputs" or key == "requested_output_names" or key == "model_name")
    }
    unknown: dict[str, Any] = arguments["unknown"]
    return given | unknown

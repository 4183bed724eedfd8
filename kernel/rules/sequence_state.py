"""What the requests of a sequence carry besides what the client sent: control tensors, and the state that the core keeps. Pure.

State goes round: what a model writes to an output is its input with the sequence's next request. Kept arrays are never written to
and handed out read-only, which tells whoever wants to write to take a copy; so initial values are shared by all sequences.
(Contract: scheduling, section 5.5; model_config, section 6.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from kernel.config import ModelConfig, SequenceControl, SequenceState
from kernel.errors import Code, Reason, ServingError
from kernel.requests import InferenceRequest, InferenceResponse
from kernel.tensor import DATATYPES, Array, Tensor

__all__ = ["END", "START", "Controls", "StateValues", "States", "null_inputs", "zeros"]

START, END = 1, 2

#: The state of one sequence: input name -> array.
StateValues: TypeAlias = "dict[str, Array]"


# -- controls ----------------------------------------------------------------------------------------------------------


class Controls:
    """The control tensors of one model."""

    def __init__(self, config: ModelConfig) -> None:
        batching = config.sequence_batching
        assert batching is not None
        self._model = config.name
        self._shape = (1, 1) if config.max_batch_size else (1,)
        self._flags: list[tuple[int, Tensor, Tensor]] = []  # flag (0: always true), tensors for false and true
        self._absent: list[Tensor] = []  # the controls of a null request, which fills an empty slot; CORRID aside
        self.corrid: SequenceControl | None = None
        for control in batching.controls:
            if control.kind == "CORRID":
                self.corrid = control
                continue
            false, true = (self._constant(control, value) for value in control.values)
            flag = {"START": START, "END": END, "READY": 0}[control.kind]
            self._flags.append((flag, false, true))
            self._absent.append(false)

    def _constant(self, control: SequenceControl, value: float) -> Tensor:
        array = np.full(self._shape, value, DATATYPES[control.datatype])
        array.flags.writeable = False
        return Tensor(control.name, control.datatype, array)

    def refusal(self, request: InferenceRequest) -> ServingError | None:
        """Return why the request's correlation id can't be given to the model."""
        control = self.corrid
        if control is None:
            return None
        id = request.correlation_id
        given = "BYTES" if isinstance(id, str) else "UINT64"
        if (given == "BYTES") != (control.datatype == "BYTES"):
            return ServingError(
                Code.INVALID_ARG,
                f"{request.log_id}sequence batching control '{control.name}' data-type is '{given}', but model "
                f"'{self._model}' expects '{control.datatype}'",
            )
        if not isinstance(id, str):
            limits = np.iinfo(DATATYPES[control.datatype])
            if not limits.min <= id <= limits.max:
                return ServingError(
                    Code.INVALID_ARG,
                    f"{request.log_id}correlation ID {id} does not fit sequence batching control '{control.name}' of model "
                    f"'{self._model}', which is {control.datatype} ({limits.min} to {limits.max})",
                )
        return None

    def add(self, request: InferenceRequest) -> None:
        """Give the request the tensors that say where in its sequence it stands."""
        inputs = request.inputs
        for flag, false, true in self._flags:
            said = true if not flag or request.flags & flag else false
            inputs[said.name] = said
        if self.corrid is not None:
            inputs[self.corrid.name] = self._correlation(self.corrid, request.correlation_id)

    def _correlation(self, control: SequenceControl, id: int | str) -> Tensor:
        array: Array
        if control.datatype == "BYTES":
            array = np.empty(self._shape, np.object_)
            array.fill(str(id).encode())
        else:
            array = np.full(self._shape, id, DATATYPES[control.datatype])
        return Tensor(control.name, control.datatype, array)

    def add_absent(self, inputs: dict[str, Tensor]) -> None:
        """Say that there is no request."""
        for tensor in self._absent:
            inputs[tensor.name] = tensor
        if self.corrid is not None:
            inputs[self.corrid.name] = self._correlation(self.corrid, "" if self.corrid.datatype == "BYTES" else 0)


def null_inputs(pattern: Mapping[str, Tensor], controls: Controls) -> dict[str, Tensor]:
    """Return inputs as the pattern's, all zeros, that stand for no request."""
    inputs = {name: Tensor(name, one.datatype, zeros(one.datatype, one.array.shape)) for name, one in pattern.items()}
    controls.add_absent(inputs)
    return inputs


def zeros(datatype: str, shape: Sequence[int]) -> Array:
    """Return an array of what stands for nothing: zeros, or empty strings."""
    if datatype == "BYTES":
        array = np.empty(tuple(shape), np.object_)
        array.fill(b"")
        return array
    return np.zeros(tuple(shape), DATATYPES[datatype])


# -- state -------------------------------------------------------------------------------------------------------------


class States:
    """The implicit state of one model: how it begins, how it is given and taken."""

    def __init__(self, config: ModelConfig, initial: Mapping[str, Array]) -> None:
        """`initial`: the values at the start of a sequence, by the name of the input."""
        batching = config.sequence_batching
        assert batching is not None
        self._model = config.name
        self._rows = (1,) if config.max_batch_size else ()
        self._specs = {state.output_name: state for state in batching.states}
        self._datatypes = {state.input_name: state.datatype for state in batching.states}
        self._initial = dict(initial)
        self._outputs = frozenset(spec.name for spec in config.outputs)
        self.names = frozenset(self._specs)

    def fresh(self) -> StateValues:
        """Return the state of a sequence that begins."""
        return dict(self._initial)

    def give(self, request: InferenceRequest, memory: StateValues) -> None:
        """Add the state to the inputs of a request."""
        for name, array in memory.items():
            request.inputs[name] = Tensor(name, self._datatypes[name], array)

    def take(self, request: InferenceRequest, response: InferenceResponse, memory: StateValues) -> None:
        """Move what the model wrote of its state from the response to `memory`; what clients asked for stays there, too.

        A response whose state does not fit becomes the error that says so, and the state stays as it was.
        """
        requested = request.requested_outputs or self._outputs
        left: list[Tensor] = []
        written: StateValues = {}
        for tensor in response.outputs:
            state = self._specs.get(tensor.name)
            if state is None:
                left.append(tensor)
                continue
            problem = self._mistake(state, tensor)
            if problem:
                response.outputs = []
                response.error = ServingError(Code.INTERNAL, f"{request.log_id}{problem}", Reason.BACKEND)
                return
            shared = tensor.name in requested
            if shared:
                left.append(tensor)
            written[state.input_name] = _kept(tensor.array, shared)
        response.outputs = left
        memory.update(written)

    def _mistake(self, state: SequenceState, tensor: Tensor) -> str:
        if tensor.datatype != state.datatype:
            return (
                f"state output '{tensor.name}' of model '{self._model}' is {tensor.datatype}, its config declares "
                f"{state.datatype}"
            )
        shape, rows = tensor.array.shape, self._rows
        own = shape[len(rows) :]
        fits = shape[: len(rows)] == rows and len(own) == len(state.dims)
        if not fits or any(want not in (-1, size) for size, want in zip(own, state.dims)):
            wanted = list(rows + state.dims)
            return f"state output '{tensor.name}' of model '{self._model}' has shape {list(shape)}, its config declares {wanted}"
        return ""


def _kept(array: Array, shared: bool) -> Array:
    """Return the array to keep: nobody else can write to it, and it keeps no larger one alive."""
    base = array.base
    if shared or (isinstance(base, np.ndarray) and base.nbytes > array.nbytes):
        array = array.copy()
    kept = array.view()
    kept.flags.writeable = False
    return kept

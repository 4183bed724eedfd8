"""The records of sequence batching: strategy, control tensors, implicit state.

Made of a message that has been filled in and checked (check_sequence.py). Defaults that the config does not show are put in here:
the direct strategy where none is given, as many candidates as rows fit into a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel.config.datatypes import datatype
from kernel.config.model_config_pb2 import ModelConfig as Message
from kernel.config.model_config_pb2 import ModelSequenceBatching

__all__ = ["SequenceBatching", "SequenceControl", "SequenceState", "sequence_batching"]


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """A control tensor. `values` stand for false and true; of CORRID there are none."""

    name: str
    kind: str  # START, END, READY or CORRID
    datatype: str
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A piece of implicit state: what the model writes to `output_name` is given to it as `input_name` with the next request.

    `initial_dims`: of the initial value, without variable ones. `file`: where its bytes are, in the model's folder
    `initial_state`; "" for zeros.
    """

    input_name: str
    output_name: str
    datatype: str
    dims: tuple[int, ...]
    initial_dims: tuple[int, ...]
    file: str = ""


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    """`slots`: sequences that an instance holds at a time. `minimum_slot_utilization` counts for direct, `preferred_batch_size`
    and `preserve_ordering` for oldest. `iterative`: each request is a sequence, which goes on as long as the model says so.
    """

    oldest: bool
    slots: int
    idle_us: int
    max_queue_delay_us: int = 0
    minimum_slot_utilization: float = 0.0
    preferred_batch_size: tuple[int, ...] = ()
    preserve_ordering: bool = False
    iterative: bool = False
    controls: tuple[SequenceControl, ...] = ()
    states: tuple[SequenceState, ...] = ()


def sequence_batching(message: Message) -> SequenceBatching | None:
    """Return the record of a message's sequence batching, None where it has none."""
    if not message.HasField("sequence_batching"):
        return None
    batching = message.sequence_batching
    controls = tuple(_control(tensor.name, control) for tensor in batching.control_input for control in tensor.control)
    states = tuple(_state(state) for state in batching.state)
    rows = max(1, message.max_batch_size)
    if batching.HasField("oldest"):
        oldest = batching.oldest
        return SequenceBatching(
            oldest=True,
            slots=oldest.max_candidate_sequences if oldest.max_candidate_sequences > 0 else rows,
            idle_us=batching.max_sequence_idle_microseconds,
            max_queue_delay_us=oldest.max_queue_delay_microseconds,
            preferred_batch_size=tuple(sorted(oldest.preferred_batch_size)),
            preserve_ordering=oldest.preserve_ordering,
            iterative=batching.iterative_sequence,
            controls=controls,
            states=states,
        )
    return SequenceBatching(
        oldest=False,
        slots=rows,
        idle_us=batching.max_sequence_idle_microseconds,
        max_queue_delay_us=batching.direct.max_queue_delay_microseconds,
        minimum_slot_utilization=batching.direct.minimum_slot_utilization,
        iterative=batching.iterative_sequence,
        controls=controls,
        states=states,
    )


def _control(name: str, control: ModelSequenceBatching.Control) -> SequenceControl:
    kind = ModelSequenceBatching.Control.Kind.Name(control.kind).removeprefix("CONTROL_SEQUENCE_")
    if kind == "CORRID":
        return SequenceControl(name, kind, datatype(control.data_type))
    for field, type_ in (("int32_false_true", "INT32"), ("fp32_false_true", "FP32"), ("bool_false_true", "BOOL")):
        if values := tuple(getattr(control, field)):
            return SequenceControl(name, kind, type_, values)
    raise AssertionError("a control without values is refused")


def _state(state: ModelSequenceBatching.State) -> SequenceState:
    dims = tuple(state.dims)
    initial = state.initial_state[0] if state.initial_state else None
    return SequenceState(
        state.input_name,
        state.output_name,
        datatype(state.data_type),
        dims,
        tuple(initial.dims) if initial is not None else tuple(1 if size == -1 else size for size in dims),
        initial.data_file if initial is not None else "",
    )

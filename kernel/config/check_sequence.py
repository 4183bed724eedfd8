"""The rules about sequence batching: strategies, control tensors, state and its initial values.

Strategies and controls are stage A, initial state is stage B (contract: model_config, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from kernel.config.check_batching import check_preferred_sizes
from kernel.config.datatypes import datatype
from kernel.config.errors import listed
from kernel.config.model_config_pb2 import DataType, ModelSequenceBatching
from kernel.config.paths import data_file
from kernel.config.positions import Path
from kernel.config.report import Report
from kernel.tensor import DATATYPES

__all__ = ["check_initial_states", "check_sequence_batching"]

_CHOICES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_CORRID = "CONTROL_SEQUENCE_CORRID"


def check_sequence_batching(report: Report) -> None:
    """Check `sequence_batching`: its strategy, its controls and its state."""
    message, name = report.message, report.name
    if not message.HasField("sequence_batching"):
        return
    batching = message.sequence_batching
    at: Path = ("sequence_batching",)
    if batching.HasField("direct"):
        utilization = batching.direct.minimum_slot_utilization
        if not 0.0 <= utilization <= 1.0:
            words = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}"
            report.fail("A", (*at, "direct", "minimum_slot_utilization"), words, f"got {utilization:g}")
    if batching.HasField("oldest"):
        where = (*at, "oldest", "preferred_batch_size")
        check_preferred_sizes(
            report, batching.oldest.preferred_batch_size, where, "sequence batching preferred batch size"
        )
    _check_controls(report, (*at, "control_input"))


def _check_controls(report: Report, at: Path) -> None:
    name = report.name
    tensors: dict[str, str] = {}  # name of a control tensor -> its kind
    kinds: dict[str, str] = {}  # kind -> name of its tensor
    for index, tensor in enumerate(report.message.sequence_batching.control_input):
        here = (*at, index)
        if not tensor.name:
            report.fail("A", here, f"sequence batching control tensor must have a name for {name}")
        for nth, control in enumerate(tensor.control):
            where = (*here, "control", nth)
            kind = ModelSequenceBatching.Control.Kind.Name(control.kind)
            if tensor.name and tensor.name in tensors:
                words = (
                    f"sequence batching control tensor '{tensor.name}' is specified for multiple control"
                    f" kinds for {name}"
                )
                report.fail("A", (*where, "kind"), words, f"got {tensors[tensor.name]} and {kind}")
            elif kind in kinds:
                words = f"sequence batching specifies multiple {kind} tensors for {name}"
                report.fail("A", (*where, "kind"), words, f"got {listed([kinds[kind], tensor.name])}")
            tensors.setdefault(tensor.name, kind)
            kinds.setdefault(kind, tensor.name)
            if kind == _CORRID:
                _check_correlation(report, control, where)
            else:
                _check_flag(report, control, kind, where)


def _check_flag(report: Report, control: Any, kind: str, at: Path) -> None:
    suffix = f"for {kind} for {report.name}"
    given = [choice for choice in _CHOICES if len(getattr(control, choice))]
    if not given:
        words = (
            f"sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' {suffix}"
        )
        report.fail("A", at, words)
    elif len(given) > 1:
        words = (
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and"
            f" 'bool_false_true' {suffix}"
        )
        report.fail("A", (*at, given[1]), words, f"got {listed(given)}")
    elif len(getattr(control, given[0])) != 2:
        words = f"sequence batching control '{given[0]}' must have exactly 2 entries {suffix}"
        report.fail("A", (*at, given[0]), words, f"got {list(getattr(control, given[0]))}")


def _check_correlation(report: Report, control: Any, at: Path) -> None:
    name = DataType.Name(control.data_type)
    if name not in _CORRELATION_TYPES:
        words = (
            f"unexpected data type for control {_CORRID} for {report.name}. Allowed data types are"
            " TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
        report.fail("A", (*at, "data_type"), words, f"got {name}")
    for choice in _CHOICES:
        if len(getattr(control, choice)):
            words = (
                "sequence batching must not specify either 'int32_false_true' nor 'fp32_false_true' for"
                f" {_CORRID} for {report.name}"
            )
            report.fail("A", (*at, choice), words, f"got '{choice}'")


def check_initial_states(report: Report) -> None:
    """Check the first values of state, and the files that they come from."""
    for index, state in enumerate(report.message.sequence_batching.state):
        at: Path = ("sequence_batching", "state", index, "initial_state")
        who = state.input_name
        if len(state.initial_state) > 1:
            words = f"initial_state field for state input '{who}' must contain exactly one or zero element."
            report.fail("B", (*at, 1), f"{words} Found '{len(state.initial_state)}' elements.")
        for nth, initial in enumerate(state.initial_state[:1]):
            _check_initial_state(report, state, initial, (*at, nth))


def _check_initial_state(report: Report, state: Any, initial: Any, at: Path) -> None:
    who = state.input_name
    if initial.data_type != state.data_type:
        words = f"The data type used for 'initial_state' field of state '{who}' does not match the state data type."
        report.fail(
            "B", (*at, "data_type"), words, f"{DataType.Name(initial.data_type)} != {DataType.Name(state.data_type)}"
        )
    if not initial.name:
        report.fail("B", at, f"Field 'name' must be set when using initial_state for state input '{who}'.")
    if len(initial.dims) != len(state.dims):
        words = (
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state"
            f" input '{who}'."
        )
        report.fail("B", (*at, "dims"), f"{words} {len(initial.dims)} != {len(state.dims)}")
    else:
        _check_initial_dims(report, who, initial.dims, state.dims, at)
    kind = initial.WhichOneof("state_data")
    if kind is None:
        words = f"initial_state setting expects state'{who}' to have state_data set"
        report.fail("B", at, words, "set one of 'zero_data', 'data_file'")
    elif kind == "data_file":
        _check_data_file(report, initial, at)


def _check_initial_dims(report: Report, who: str, dims: Sequence[int], wanted: Sequence[int], at: Path) -> None:
    for index, (ours, theirs) in enumerate(zip(dims, wanted, strict=True)):
        where = (*at, "dims", index)
        if ours < 0:
            report.fail(
                "B",
                where,
                f"'initial_state' field for state input name '{who}' contains variable dimensions.",
                f"got {list(dims)}",
            )
        elif theirs != -1 and ours != theirs:
            words = (
                f"'initial_state' dim for input name '{who}' doesn't match 'state' dim description. {ours} != {theirs}"
            )
            report.fail("B", where, words, f"got {list(dims)} for {list(wanted)}")


def _check_data_file(report: Report, initial: Any, at: Path) -> None:
    dtype = DATATYPES.get(datatype(initial.data_type))
    path = data_file(report, "initial_state", initial.data_file, (*at, "data_file"))
    if path is None or dtype is None:
        return
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        report.fail("B", (*at, "data_file"), f"failed to open text file for read {path}: {reason}")
        return
    wanted = prod(initial.dims) * dtype.itemsize
    if dtype.kind != "O" and min(initial.dims, default=1) >= 0 and size < wanted:
        words = f"initial_state setting expects {wanted} bytes, but the data provided from {path}only has {size} bytes."
        report.fail("B", (*at, "data_file"), words)

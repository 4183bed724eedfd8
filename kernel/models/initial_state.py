"""What the state of a model's sequences is at their start: zeros, or what its config says lies in a file of the model's folder.

Read once, when the model is loaded. What becomes of it is sequence_state.py's. (Contract: model_config, section 6.)
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from kernel.config import ModelConfig, SequenceState
from kernel.errors import Code, ServingError
from kernel.rules import zeros
from kernel.tensor import DATATYPES, Array, unpack_bytes

__all__ = ["initial_values"]


def initial_values(config: ModelConfig, model_folder: Path) -> dict[str, Array]:
    """Return the value that each state input has at the start of a sequence. Reads files; raises ServingError."""
    values: dict[str, Array] = {}
    batching = config.sequence_batching
    for state in batching.states if batching is not None else ():
        shape = ((1,) if config.max_batch_size else ()) + state.initial_dims
        if state.file:
            value = _read(state, shape, model_folder / "initial_state" / state.file)
        else:
            value = zeros(state.datatype, shape)
        value.flags.writeable = False
        values[state.input_name] = value
    return values


def _read(state: SequenceState, shape: tuple[int, ...], path: Path) -> Array:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ServingError(Code.INTERNAL, f"failed to open text file for read {path}: {reason}") from error
    count = prod(shape)
    if state.datatype == "BYTES":
        try:
            strings = unpack_bytes(data)
        except ValueError as error:
            raise ServingError(
                Code.INVALID_ARG, f"initial_state of state '{state.input_name}' in {path}: {error}"
            ) from error
        if len(strings) < count:
            words = f"initial_state setting expects {count} strings for state '{state.input_name}', but {path} has {len(strings)}"
            raise ServingError(Code.INVALID_ARG, words)
        array = np.empty(count, np.object_)
        array[:] = strings[:count]
        return array.reshape(shape)
    dtype = DATATYPES[state.datatype]
    if len(data) < count * dtype.itemsize:
        words = (
            f"initial_state setting expects {count * dtype.itemsize} bytes, but the data provided from {path}only has "
            f"{len(data)} bytes."
        )
        raise ServingError(Code.INVALID_ARG, words)
    return np.frombuffer(data, dtype, count).reshape(shape).copy()

"""Raw binary requests: the whole body is the one input's data; its shape follows from the config and the size."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel import DATATYPES, Code, ServingError, Tensor

if TYPE_CHECKING:
    from kernel import Model

__all__ = ["raw_inputs"]

_PREFIX = "[request id: <id_unknown>] "


def raw_inputs(model: Model, tail: Any, limit: int, *, announced: bool) -> dict[str, Tensor]:
    """Return the one input. Raises ServingError(INVALID_ARG). `announced`: a header says that there is no JSON part."""
    config = model.config
    if len(config.inputs) != 1:
        raise ServingError(
            Code.INVALID_ARG,
            f"{_PREFIX}Raw request must only have 1 input (found 1) to be deduced but got {len(config.inputs)} inputs "
            f"in '{model.name}' model configuration",
        )
    size = len(tail)
    if not size and not announced:  # a client's mistake, though the reference takes it for an empty tensor
        raise ServingError(
            Code.INVALID_ARG,
            f"failed to parse the request JSON buffer: The document is empty. at 0 (a request to model '{model.name}' "
            "without a body; a raw request of an empty tensor says so with 'Inference-Header-Content-Length: 0')",
        )
    if size > limit:
        raise ServingError(
            Code.INVALID_ARG,
            f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit.",
        )
    spec = config.inputs[0]
    dims = list(spec.dims)
    batch = [1] if config.max_batch_size > 0 else []
    if spec.datatype == "BYTES":
        if dims != [1]:
            raise ServingError(
                Code.INVALID_ARG,
                f"{_PREFIX}For BYTE datatype raw input '{spec.name}', the model must have input shape [1]",
            )
        strings = np.empty((*batch, 1), np.object_)
        strings[...] = bytes(tail)
        return {spec.name: Tensor(spec.name, "BYTES", strings)}
    if dims.count(-1) > 1:
        raise ServingError(
            Code.INVALID_ARG,
            f"{_PREFIX}The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension",
        )
    dtype = DATATYPES[spec.datatype]
    if -1 in dims:
        others = prod(dim for dim in dims if dim != -1) * dtype.itemsize
        dims[dims.index(-1)] = size // others if others else 0
    shape = (*batch, *dims)
    expected = prod(shape) * dtype.itemsize
    if expected != size:
        raise ServingError(
            Code.INVALID_ARG,
            f"{_PREFIX}input byte size mismatch for input 'raw_input' for model '{model.name}'. "
            f"Expected {expected}, got {size}",
        )
    array = np.ndarray(shape, dtype, tail) if size else np.empty(shape, dtype)
    return {spec.name: Tensor(spec.name, spec.datatype, array)}

"""Fills in what a config leaves out from what the model file says: inputs, outputs, batch size, batcher.

The rules are those of the reference's backend; what the config says itself is kept, and checked afterwards (agreement.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kernel import ConfigErrors, ModelConfig, TensorSpec, with_changes
from kernel_onnx.agreement import check_names, made_inputs
from kernel_onnx.signature import ModelTensor, Signature

__all__ = ["DEFAULT_MAX_BATCH_SIZE", "completed", "is_complete"]

log = logging.getLogger("kernel_onnx")

DEFAULT_MAX_BATCH_SIZE = 4


def is_complete(config: ModelConfig) -> bool:
    """True when the model file need not be asked: there are inputs and outputs, and each has its datatype and dims."""
    specs = (*config.inputs, *config.outputs)
    return bool(config.inputs and config.outputs) and all(spec.dims and spec.datatype != "INVALID" for spec in specs)


def completed(config: ModelConfig, signature: Signature, default_max_batch_size: int) -> ModelConfig:
    """Return the config with what the model can tell. Raises ConfigErrors where the two can't be brought together."""
    check_names(config, signature)
    batch_size = config.max_batch_size
    batcher = False
    if not (config.inputs and config.outputs):
        for tensor in signature.outputs.values():
            problem = None if config.outputs else tensor.unserved(config.name)
            if problem is not None:
                raise problem
        if _may_batch(signature):
            if not batch_size and not _whole_shapes(config, signature):
                batch_size = max(default_max_batch_size, 0)
                log.warning(
                    "model '%s': max_batch_size is set to %d, since all inputs and outputs have a variable first dimension "
                    "and its config sets none",
                    config.name,
                    batch_size,
                )
            choice = config.message.WhichOneof("scheduling_choice")
            batcher = batch_size > 1 and choice is None
        elif batch_size:
            raise ConfigErrors([_no_batching(config, signature)])
    made = set(made_inputs(config.message))
    inputs = {name: tensor for name, tensor in signature.inputs.items() if name not in made}
    known = {**signature.inputs, **signature.initializers}

    def change(message: Any) -> None:
        message.max_batch_size = batch_size
        if batcher:
            message.dynamic_batching.SetInParent()
        if not message.input:
            for name in inputs:
                message.input.add(name=name)
        if not message.output:
            kept = {spec.name for spec in config.kept_outputs}
            for name in signature.outputs:
                if name not in kept:
                    message.output.add(name=name)
        for io in message.input:
            _fill(io, known[io.name], batch_size)
        for io in message.output:
            _fill(io, signature.outputs[io.name], batch_size)

    return with_changes(config, change)


def _may_batch(signature: Signature) -> bool:
    tensors = (*signature.inputs.values(), *signature.outputs.values())
    return bool(signature.inputs) and all(tensor.dims and tensor.dims[0] == -1 for tensor in tensors)


def _whole_shapes(config: ModelConfig, signature: Signature) -> bool:
    """True when the config has written out shapes with their first dimension: it has chosen not to batch."""
    pairs: Iterable[tuple[TensorSpec, ModelTensor | None]] = (
        *((spec, signature.inputs.get(spec.name)) for spec in config.inputs),
        *((spec, signature.outputs.get(spec.name)) for spec in config.outputs),
    )
    return any(
        tensor is not None and tensor.dims is not None and spec.dims and len(spec.dims) == len(tensor.dims)
        for spec, tensor in pairs
    )


def _no_batching(config: ModelConfig, signature: Signature) -> Any:
    tensors = (*signature.inputs.values(), *signature.outputs.values())
    fixed = [f"'{one.name}' has shape {one.shape}" for one in tensors if not one.dims or one.dims[0] != -1]
    words = (
        f"autofill failed for model '{config.name}': model does not support batching while non-zero max_batch_size is "
        "specified"
    )
    reason = "; ".join(fixed) or "the model has no inputs"
    return config.error(
        words,
        f"got {config.max_batch_size}, and the first dimension has to be variable: {reason}",
        at=("max_batch_size",),
    )


def _fill(io: Any, tensor: ModelTensor, batch_size: int) -> None:
    """Fill in the datatype and the dims of one input or output, where it has none."""
    if not io.data_type:
        datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
        io.data_type = io.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_name[f"TYPE_{datatype}"].number
    if io.dims:
        return
    if tensor.dims is None:
        io.dims.append(-1)
        log.warning("the model file doesn't say which shape '%s' has; its dims are taken to be [ -1 ]", tensor.name)
        return
    # A config can't say 0.
    io.dims.extend(size or -1 for size in (tensor.dims[1:] if batch_size else tensor.dims))
    if not io.dims:
        io.dims.append(1)  # nor that there are none: the model sees [batch], or a scalar
        if batch_size:
            io.reshape.SetInParent()

"""Does a config agree with the model file it is for? Names, datatypes and shapes of inputs and outputs. Pure.

The words are the reference's (its backend `onnxruntime`); all disagreements are found at once, each with its place in the
config, what the config says and what the model has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kernel import ConfigError, ConfigErrors, ModelConfig, TensorSpec
from kernel_onnx.signature import ModelTensor, Signature

__all__ = ["check_agreement", "check_names"]


def check_agreement(config: ModelConfig, signature: Signature) -> None:
    """Raise ConfigErrors with every way in which the config contradicts the model, or ServingError(UNSUPPORTED)."""
    check_names(config, signature)
    errors: list[ConfigError] = []
    errors += _count(config, signature)
    scattered = {name for made in config.message.batch_output for name in made.target_name}
    known = {**signature.initializers, **signature.inputs}
    for index, spec in enumerate(config.inputs):
        tensor = known[spec.name]
        problem = _optional(config, spec, signature) or _datatype(config, spec, tensor, "input")
        if problem is None and spec.allow_ragged_batch:
            problem = _ragged(config, spec, tensor)
        elif problem is None:
            problem = _dims(config, spec, tensor, exact=False)
        if problem is not None:
            errors.append(config.error(*problem, at=("input", index)))
    for index, spec in enumerate(config.outputs):
        tensor = signature.outputs[spec.name]
        problem = _datatype(config, spec, tensor, "output")
        if problem is None and spec.name not in scattered:
            problem = _dims(config, spec, tensor, exact=True)
        if problem is not None:
            errors.append(config.error(*problem, at=("output", index)))
    errors += _sequence(config, signature)
    if errors:
        raise ConfigErrors(errors)


Problem = tuple[str, str]


def check_names(config: ModelConfig, signature: Signature) -> None:
    """Raise ConfigErrors for names that the model doesn't have, ServingError(UNSUPPORTED) for tensors that can't be served."""
    errors: list[ConfigError] = []
    inputs = {**signature.inputs, **signature.initializers}
    for kind, specs, known, allowed in (
        ("input", config.inputs, inputs, signature.inputs),
        ("output", config.outputs, signature.outputs, signature.outputs),
    ):
        for index, spec in enumerate(specs):
            if spec.name not in known:
                words = f"unexpected inference {kind} '{spec.name}', allowed {kind}s are: {', '.join(allowed)}"
                errors.append(config.error(words, f"for model '{config.name}'", at=(kind, index, "name")))
    if errors:
        raise ConfigErrors(errors)
    needed: list[ModelTensor] = list(signature.inputs.values())
    needed += [inputs[spec.name] for spec in config.inputs if spec.name not in signature.inputs]
    needed += [signature.outputs[spec.name] for spec in config.outputs]
    for tensor in needed:
        problem = tensor.unserved(config.name)
        if problem is not None:
            raise problem


def made_inputs(message: Any) -> list[str]:
    """Return the names of the inputs that no request brings: made of the batch, or by the sequence batcher."""
    names = [name for made in message.batch_input for name in made.target_name]
    names += [control.name for control in message.sequence_batching.control_input]
    names += [state.input_name for state in message.sequence_batching.state]
    return names


def _sequence(config: ModelConfig, signature: Signature) -> Iterable[ConfigError]:
    """Yield what is wrong with the control tensors and the state that the core gives and takes."""
    batching = config.message.sequence_batching
    fields = [("control_input", index, "name") for index in range(len(batching.control_input))]
    fields += [("state", index, "input_name") for index in range(len(batching.state))]
    named = dict(zip((*(one.name for one in batching.control_input), *(one.input_name for one in batching.state)), fields))
    groups = [(spec, named[spec.name], signature.inputs, "input") for spec in config.added_inputs]
    groups += [
        (spec, ("state", index, "output_name"), signature.outputs, "output") for index, spec in enumerate(config.kept_outputs)
    ]
    for spec, field, tensors, kind in groups:
        tensor = tensors.get(spec.name)
        problem: Problem | None
        if tensor is None:
            what = "sequence control" if field[0] == "control_input" else f"state {kind}"
            words = f"configuration specified {what} '{spec.name}', but model does not provide that {kind}"
            problem = words, f"{kind}s of model '{config.name}' are: {', '.join(tensors)}"
        else:
            problem = _datatype(config, spec, tensor, kind) or _dims(config, spec, tensor, exact=False)
        if problem is not None:
            yield config.error(*problem, at=("sequence_batching", *field))


def _count(config: ModelConfig, signature: Signature) -> Iterable[ConfigError]:
    made = made_inputs(config.message)
    given = [spec.name for spec in config.inputs if not spec.optional and spec.name in signature.inputs]
    given += [name for name in made if name in signature.inputs]
    for index, one in enumerate(config.message.batch_input):
        for nth, name in enumerate(one.target_name):
            if name not in signature.inputs:
                words = f"unexpected inference input '{name}', allowed inputs are: {', '.join(signature.inputs)}"
                yield config.error(words, f"for model '{config.name}'", at=("batch_input", index, "target_name", nth))
    missing = [name for name in signature.inputs if name not in given and name not in _optional_names(config)]
    if missing:
        words = (
            f"unable to load model '{config.name}', configuration expects {len(given)} inputs, model provides "
            f"{len(signature.inputs)}"
        )
        yield config.error(words, f"missing are {_listed(signature.inputs, missing)}", at=("input",))


def _optional_names(config: ModelConfig) -> set[str]:
    return {spec.name for spec in config.inputs if spec.optional}


def _optional(config: ModelConfig, spec: TensorSpec, signature: Signature) -> Problem | None:
    """Only weights that a request may override can be left out, and those have no batch dimension."""
    overrides = spec.name in signature.initializers
    if not spec.optional:
        if not overrides:
            return None
        words = f"unable to load model '{config.name}', input '{spec.name}' is an initializer of the model"
        return words, "a request may override it or leave it out: set optional: true"
    if config.max_batch_size:
        words = (
            f"unable to load model '{config.name}', optional input '{spec.name}' is not supported for models that support "
            "batching"
        )
        return words, f"got max_batch_size {config.max_batch_size}"
    if not overrides:
        words = f"unable to load model '{config.name}', input '{spec.name}' is optional in the configuration"
        allowed = ", ".join(signature.initializers) or "none"
        return words, f"the model can't do without it; inputs that may be left out are its initializers: {allowed}"
    return None


def _datatype(config: ModelConfig, spec: TensorSpec, tensor: ModelTensor, kind: str) -> Problem | None:
    if spec.datatype == tensor.datatype:
        return None
    words = (
        f"unable to load model '{config.name}', configuration expects datatype {_type(spec.datatype)} for {kind} "
        f"'{spec.name}', model provides {_type(tensor.datatype)}"
    )
    return words, f"the model has {tensor.onnx_type}"


def _type(datatype: str) -> str:
    return f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}"


def _ragged(config: ModelConfig, spec: TensorSpec, tensor: ModelTensor) -> Problem | None:
    if tensor.dims in (None, (-1,)):
        return None
    words = (
        f"unable to load model '{config.name}', configuration expects model provides input with shape [-1] for ragged input "
        f"'{spec.name}', model provides {tensor.shape}"
    )
    return words, ""


def _dims(config: ModelConfig, spec: TensorSpec, tensor: ModelTensor, *, exact: bool) -> Problem | None:
    """`exact`: outputs are what the model says; of an input the config may allow less than the model takes."""
    dims = spec.dims if spec.reshape is None else spec.reshape
    shape = tensor.dims
    who = f"model '{config.name}', tensor '{spec.name}'"
    if shape is None:
        return None
    if config.max_batch_size:
        if not shape or shape[0] != -1:
            words = (
                f"{who}: for the model to support batching the shape should have at least 1 dimension and the first dimension "
                f"must be -1; but shape expected by the model is {tensor.shape}"
            )
            return words, f"got max_batch_size {config.max_batch_size}; with 0 the dims are the whole shape"
        full = (-1, *dims)
        if _fits(full, shape, exact):
            return None
        words = (
            f"{who}: the model expects {len(shape)} dimensions (shape {tensor.shape}) but the model configuration specifies "
            f"{len(full)} dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor "
            f"shape, making complete shape {_shape(full)})"
        )
        return words, ""
    if not shape:
        if all(size == 1 for size in dims):
            return None
        words = (
            f"unable to load model '{config.name}', scalar tensor '{spec.name}', should only provide 1 in the model "
            f"configuration when the model doesn't support batching. Model configuration provided: {_shape(dims)}."
        )
        return words, ""
    if _fits(dims, shape, exact):
        return None
    words = (
        f"{who}: the model expects {len(shape)} dimensions (shape {tensor.shape}) but the model configuration specifies "
        f"{len(dims)} dimensions (shape {_shape(dims)})"
    )
    return words, ""


def _fits(dims: tuple[int, ...], shape: tuple[int, ...], exact: bool) -> bool:
    if len(dims) != len(shape):
        return False
    for ours, theirs in zip(dims, shape):
        if theirs == -1 and not exact:
            continue
        # A config can't say 0: a dimension that is always empty varies, as far as it can tell.
        if ours != theirs and not (ours == -1 and theirs == 0):
            return False
    return True


def _shape(dims: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"


def _listed(tensors: Mapping[str, ModelTensor], names: Iterable[str]) -> str:
    return ", ".join(f"'{name}' ({tensors[name].onnx_type}, shape {tensors[name].shape})" for name in names)

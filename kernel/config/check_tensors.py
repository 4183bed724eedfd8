"""The rules about inputs and outputs: names, types, dims, reshape, and the tensors that are made from a batch.

All of stage B (contract: model_config, sections 2 and 8): the reference finds these while it loads a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from kernel.config.errors import did_you_mean, listed
from kernel.config.model_config_pb2 import BatchInput, BatchOutput, DataType, ModelInput
from kernel.config.positions import Path
from kernel.config.report import Report

__all__ = ["check_batch_tensors", "check_tensors"]

_DIM = "must be integer >= 1, or -1 to indicate a variable-size dimension"


def check_tensors(report: Report) -> None:
    """Check the names, datatypes, dims and reshapes of all inputs and outputs."""
    both: tuple[tuple[str, Sequence[Any]], ...] = (("input", report.message.input), ("output", report.message.output))
    for kind, tensors in both:
        first: dict[str, int] = {}
        for index, io in enumerate(tensors):
            _check_one(report, kind, io, (kind, index))
            if io.name and first.setdefault(io.name, index) != index:
                # The reference accepts this and then can't tell which of the two a request means.
                words = f"model {kind} '{io.name}' is specified more than once for {report.name}"
                report.fail("B", (kind, index, "name"), words, f"{kind}[{first[io.name]}] has the same name")


def _check_one(report: Report, kind: str, io: Any, at: Path) -> None:
    suffix = f" for {report.name}"
    who = f"model {kind} '{io.name}'"
    if not io.name:
        report.fail("B", at, f"model {kind} must specify 'name'{suffix}")
        who = f"model {kind}"
    if io.data_type == 0 and not report.partial:
        types = [DataType.Name(number) for number in range(1, 15)]
        report.fail("B", at, f"{who} must specify 'data_type'{suffix}", f"one of {', '.join(types)}")
    if not io.dims and not report.partial:
        detail = "scalars are not supported, write dims: [ 1 ]; the batch dimension is not part of dims"
        report.fail("B", at, f"{who} must specify 'dims'{suffix}", detail)
    for index, dim in enumerate(io.dims):
        if dim < 1 and dim != -1:
            report.fail("B", (*at, "dims", index), f"{who} dimension {_DIM}{suffix}", f"got {dim} in {list(io.dims)}")
    if io.HasField("reshape"):
        _check_reshape(report, who, io, at)
    if isinstance(io, ModelInput) and io.format != ModelInput.FORMAT_NONE and len(io.dims) != 3:
        report.fail(
            "B",
            (*at, "format"),
            f"model input NHWC/NCHW require 3 dims{suffix}",
            f"'{io.name}' has dims {list(io.dims)}",
        )
    if io.is_shape_tensor:
        words = f"shape tensors are only supported for TensorRT platform{suffix}"
        report.fail("B", (*at, "is_shape_tensor"), words, f"got is_shape_tensor for {kind} '{io.name}'")
    if io.is_non_linear_format_io:
        words = f"Non-linear IO format is only supported for the TensorRT platform{suffix}"
        report.fail("B", (*at, "is_non_linear_format_io"), words, f"got is_non_linear_format_io for {kind} '{io.name}'")


def _check_reshape(report: Report, who: str, io: Any, at: Path) -> None:
    suffix = f" for {report.name}"
    dims, shape = list(io.dims), list(io.reshape.shape)
    where = (*at, "reshape")
    if not shape and report.message.max_batch_size == 0:
        words = f"{who} cannot have empty reshape for non-batching model as scalar tensors are not supported{suffix}"
        report.fail("B", where, words, f"got dims {dims} and max_batch_size 0")
        return
    wrong = [index for index, dim in enumerate(shape) if dim < 1 and dim != -1]
    for index in wrong:
        report.fail(
            "B", (*where, "shape", index), f"{who} reshape dimensions {_DIM}{suffix}", f"got {shape[index]} in {shape}"
        )
    if wrong or not dims or any(dim < 1 and dim != -1 for dim in dims):
        return
    got = f"got dims {dims} and reshape {shape}"
    if (-1 in dims) != (-1 in shape):  # for the reference one of them has no size, so they differ in it
        report.fail("B", where, f"{who} has different size for dims and reshape{suffix}", got)
        return
    if dims.count(-1) != shape.count(-1):
        report.fail(
            "B", where, f"{who} has different number of variable-size dimensions for dims and reshape{suffix}", got
        )
        return
    ours, theirs = _fixed_sizes(dims), _fixed_sizes(shape)
    if ours != theirs:
        between = (
            f": {ours} and {theirs} elements between the variable-size ones"
            if -1 in dims
            else f": {ours[0]} and {theirs[0]} elements"
        )
        report.fail("B", where, f"{who} has different size for dims and reshape{suffix}", got + between)


def _fixed_sizes(dims: Sequence[int]) -> list[int]:
    """Return the products of the runs of fixed dimensions: before, between and after the variable ones."""
    runs: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            runs.append([])
        else:
            runs[-1].append(dim)
    return [prod(run) for run in runs]


def check_batch_tensors(report: Report) -> None:
    """Check `batch_input` and `batch_output`: tensors that say how a batch is put together."""
    message = report.message
    inputs = [io.name for io in message.input]
    outputs = [io.name for io in message.output]
    for index, made in enumerate(message.batch_input):
        at: Path = ("batch_input", index)
        if len(made.source_input) != 1:
            words = (
                f"batch input kind '{BatchInput.Kind.Name(made.kind)}' expects 1 source input, got"
                f" {len(made.source_input)}"
            )
            report.fail("B", (*at, "source_input"), words)
        if DataType.Name(made.data_type) not in ("TYPE_INT32", "TYPE_FP32"):
            words = "batch input data type must be TYPE_INT32 or TYPE_FP32"
            report.fail("B", (*at, "data_type"), words, f"got {DataType.Name(made.data_type)}")
        _check_sources(report, made.source_input, inputs, at)
    targets: set[str] = set()
    for index, split in enumerate(message.batch_output):
        at = ("batch_output", index)
        if len(split.source_input) != 1:
            kind = BatchOutput.Kind.Name(split.kind)
            words = f"batch output kind '{kind}' expects 1 source input, got {len(split.source_input)}"
            report.fail("B", (*at, "source_input"), words)
        _check_sources(report, split.source_input, inputs, at)
        for nth, target in enumerate(split.target_name):
            if target not in outputs:
                words = f"unknown target output name '{target}'"
                report.fail(
                    "B",
                    (*at, "target_name", nth),
                    words,
                    f"outputs are {listed(outputs)}{did_you_mean(target, outputs)}",
                )
            if target in targets:
                report.fail(
                    "B", (*at, "target_name", nth), f"target output name '{target}' can only be specified once"
                )
            targets.add(target)


def _check_sources(report: Report, sources: Sequence[str], inputs: list[str], at: Path) -> None:
    for nth, source in enumerate(sources):
        if source not in inputs:
            words = f"unknown source input name '{source}'"
            report.fail(
                "B", (*at, "source_input", nth), words, f"inputs are {listed(inputs)}{did_you_mean(source, inputs)}"
            )

"""What of a model differs here from Triton, is refused, or costs time: by its config and its files, which are not run.

The rules are those of any backend; what a backend alone knows of its models it says itself (`advise`). Each finding has the place
of what it was found by: what stands in no file is not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel.cli.check import Found
from kernel.config import ConfigError, ConfigSource, Key, Message, ModelConfig, read_message
from kernel.errors import ServingError
from kernel.interfaces import Backend, Finding

__all__ = ["COSTS", "DIFFERS", "REFUSED", "findings_of"]

FieldPath = tuple[str | int | Key, ...]
REFUSED, DIFFERS, COSTS = "refused", "differs", "costs"

BATCHER = "write the rule in Python, as a batcher (docs/batching.md)"
ON_TRITON = "or leave it to a Triton: backend \"remote\" (docs/remote.md)"
IN_PYTHON = "load it in a model.py (backend \"python\")"
#: Backends of Triton's that are not here -> what to do instead.
INSTEAD = {
    "tensorrt": "serve the ONNX file that the plan was built of, with gpu_execution_accelerator \"tensorrt\" (docs/onnx.md)",
    "pytorch": f"export it to ONNX, or {IN_PYTHON}, with torch.jit.load",
    "tensorflow": f"convert it to ONNX with tf2onnx, or {IN_PYTHON}",
    "openvino": "serve its ONNX file with cpu_execution_accelerator \"openvino\" (docs/onnx.md)",
}

#: What Triton tells a backend by, besides what `kernel.config` knows.
FILES = {"model.savedmodel": "tensorflow", "model.graphdef": "tensorflow", "model.dali": "dali"}

#: Fields that are read and change nothing, but with a backend that heeds them -> what they are for at Triton, what to do.
WITHOUT_EFFECT = {
    "optimization.graph": ("the level of a backend's graph optimization", "leave it out"),
    "optimization.priority": ("the priority of CUDA streams", "leave it out; for requests there is priority_levels"),
    "optimization.cuda": ("CUDA graphs and streams of TensorRT", "leave it out"),
    "optimization.execution_accelerators": ("accelerators of a backend", "have the model choose where it computes"),
    "optimization.input_pinned_memory": ("copies by pinned memory", "leave it out"),
    "optimization.output_pinned_memory": ("copies by pinned memory", "leave it out"),
    "optimization.gather_kernel_buffer_threshold": ("how inputs are gathered on GPUs", "leave it out"),
    "optimization.eager_batching": ("input of the next batch while one runs", "leave it out"),
    "model_operations": ("libraries of custom operators", "load them in the model"),
    "model_repository_agents": ("agents that check or change files before a load", "do what they do before the server starts"),
    "cc_model_filenames": ("a file for each CUDA compute capability", "name the one file by default_model_filename"),
}
#: The same, of each instance group.
OF_GROUPS = {
    "secondary_devices": ("devices beside the GPU, such as NVDLA", "leave it out"),
    "host_policy": ("NUMA nodes and cores by --host-policy", "pin the server, by taskset or numactl"),
}

BATCH_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
#: Where Triton looks for a library that forms batches.
STRATEGY_FILE = "batchstrategy.so"


def findings_of(
    found: Found, backends: Mapping[str, Backend], *, config_name: str = "", cached: bool | None = None
) -> list[Finding]:
    """Return what there is to tell of a model, what can't be served first. `cached`: whether the server has a cache, if known."""
    warned = [Finding(DIFFERS, "config", "", words) for words in found.warnings]
    try:
        message, source = read_message(found.here.path, config_name=config_name)
    except (ServingError, OSError):  # which is among the errors
        return [*(_refusal(error, found, None) for error in found.errors), *warned]
    told = [*(_refusal(error, found, source) for error in found.errors), *warned]
    told += _of_files(found.here.path, message, source)
    config = found.config
    if config is None or config.is_elsewhere:
        return told  # of the rest a server elsewhere tells
    backend = backends[config.served_by]
    if not config.is_ensemble:
        told += _without_effect(message, source, config, getattr(backend, "heeds", ()))
        told += _batching(found, source, config)
    if cached is False and message.response_cache.enable:
        words = "its answers are to be kept, and no cache is asked for by the line"
        remedy = "add --cache-config=local,size=BYTES (docs/caching.md)"
        told += _at(source, COSTS, "no-cache", ("response_cache",), words, remedy)
    advise = getattr(backend, "advise", None)
    if advise is not None:
        told += advise(config, found.here.path, found.versions, found.choice)
    return told


def _at(source: ConfigSource, severity: str, rule: str, at: FieldPath, what: str, remedy: str) -> list[Finding]:
    """Return a finding at a field of the file; none where the field doesn't stand there."""
    placed = source.error(what, "", at)
    return [Finding.of(severity, rule, placed, remedy)] if placed.line is not None else []


# -- refused ---------------------------------------------------------------------------------------------------------------


def _refusal(error: ServingError, found: Found, source: ConfigSource | None) -> Finding:
    where = str(found.here.path)
    if not isinstance(error, ConfigError):
        return Finding(REFUSED, "check", where, error.message.removeprefix(f"{where}: "))
    remedy = error.detail if error.words else ""
    if error.field == "backend" and found.config is None:
        name, file = _unserved(error, found.here.path)
        if name:
            if error.line is None and source is not None:  # the platform says it, in the older way
                error = source.error(error.words, error.detail, ("platform",))
            remedy = f"{INSTEAD.get(name, f'if a library for Python does the same, {IN_PYTHON}')}, {ON_TRITON}"
            placed = Finding.of(REFUSED, "backend", error, remedy)
            return replace(placed, place=str(file)) if file is not None else placed
    if error.words.startswith("ModuleNotFoundError"):
        remedy = f"install it, or give the model an environment that has it by EXECUTION_ENV_PATH ({remedy})"
    return Finding.of(REFUSED, "check", error, remedy)


def _unserved(error: ConfigError, folder: Path) -> tuple[str, Path | None]:
    """Return the backend that isn't here, "" where that is not what is wrong; and the file that it is told by, if one tells."""
    if "unable to find backend library" in error.words:
        return error.words.partition("'")[2].partition("'")[0], None
    for name, backend in FILES.items():
        for file in sorted(folder.glob(f"[0-9]*/{name}")):
            return backend, file
    return "", None


# -- differs ---------------------------------------------------------------------------------------------------------------


def _of_files(folder: Path, message: Message, source: ConfigSource) -> Iterator[Finding]:
    """Tell of native code that Triton would load from the model's folder."""
    with suppress(OSError):
        for file in sorted({*folder.glob("*.so"), *folder.glob("[0-9]*/*.so")}):
            if file.name.startswith("libtriton_"):
                words = "a backend's library, which Triton would load: backends are Python plugins here"
                yield Finding(DIFFERS, "native-backend", str(file), words, f"{IN_PYTHON}, {ON_TRITON}")
            elif file.name == STRATEGY_FILE:
                words = "a library that forms batches at Triton is not loaded: the rule of dynamic_batching decides"
                yield Finding(DIFFERS, "batch-strategy", str(file), words, BATCHER)
    if BATCH_STRATEGY in message.parameters:
        words = f"{BATCH_STRATEGY} names a library that forms batches, which is not loaded here"
        at = ("parameters", Key(BATCH_STRATEGY))
        yield from _at(source, DIFFERS, "batch-strategy", at, words, BATCHER)


def _without_effect(message: Any, source: ConfigSource, config: ModelConfig, heeds: Any) -> Iterator[Finding]:
    """Tell of fields that stand in the file and change nothing here."""
    for name, (what, remedy) in WITHOUT_EFFECT.items():
        path = tuple(name.split("."))
        if name not in heeds and _is_set(message, path):
            words = f"{name} ({what}) has no effect with backend '{config.backend}' here"
            yield from _at(source, DIFFERS, "without-effect", path, words, remedy)
    for index, group in enumerate(message.instance_group):
        for name, (what, remedy) in OF_GROUPS.items():
            if _is_set(group, (name,)):
                words = f"{name} ({what}) has no effect here"
                yield from _at(source, DIFFERS, "without-effect", ("instance_group", index, name), words, remedy)


def _is_set(message: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        set_here = {field.name: value for field, value in message.ListFields()}
        if name not in set_here:
            return False
        message = set_here[name]
    return True


# -- costs -----------------------------------------------------------------------------------------------------------------


def _batching(found: Found, source: ConfigSource, config: ModelConfig) -> Iterator[Finding]:
    """Tell of requests that are executed one by one although the model could take several."""
    if config.dynamic_batching or config.sequence_batching or found.unsure or config.backend == "remote":
        return  # nothing to tell, not known before the load, or the far end's business
    if config.max_batch_size > 1:
        words = f"it takes {config.max_batch_size} rows at a time, and each request is an execution of its own"
        yield from _at(source, COSTS, "no-batching", ("max_batch_size",), words, "add dynamic_batching { } (docs/batching.md)")
    specs = (*config.inputs, *config.outputs)
    if config.max_batch_size == 0 and specs and all(spec.dims[:1] == (-1,) for spec in specs):
        words = "all its tensors begin with a dimension of any size, but max_batch_size is 0: requests can't share an execution"
        remedy = "where that is the batch, leave it out of dims, and add max_batch_size and dynamic_batching { }"
        yield from _at(source, COSTS, "no-batching", ("input", 0, "dims"), words, remedy)

"""What a config says about how its model is run: threads, mode, graph level, memory, sharing. Pure: asks no onnxruntime.

The parameters have the names that Triton's backend gives them. All mistakes are found at once, each with its place.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel import ConfigError, ConfigErrors, Key, ModelConfig

__all__ = ["RunSettings", "as_boolean", "read_settings", "warn_of_near_misses"]

log = logging.getLogger("kernel_onnx")

#: Names of parameters that are read here or by providers.py; near misses are warned of.
KNOWN = (
    "intra_op_thread_count inter_op_thread_count execution_mode enable_mem_arena enable_mem_pattern "
    "share_session_between_instances memory.enable_memory_arena_shrinkage session.use_device_allocator_for_initializers "
    "session.intra_op.allow_spinning session.inter_op.allow_spinning cudnn_conv_algo_search gpu_mem_limit "
    "arena_extend_strategy do_copy_in_default_stream placement"
).split()

#: Parameters with these prefixes go to the session as they are, and those to each run.
SESSION_PREFIXES = ("session.", "ep.", "optimization.")
RUN_PREFIXES = ("memory.",)

#: `optimization { graph { level } }` of the reference -> names of onnxruntime's levels.
GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
EVERYTHING = "ORT_ENABLE_ALL"

#: Threads that spin while they wait for work would take the processor from the event loop and from other models.
DEFAULT_ENTRIES = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
_PLACEMENTS = ("thread", "loop")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """`intra_op_threads`, `inter_op_threads`: 0 lets onnxruntime choose. `memory_arena`, `memory_pattern`: None for its default.

    `session_entries`, `run_entries`: config entries of sessions and of runs. `placement`: "thread" or "loop". `shared_threads`:
    the numbers of threads of the pools that all sessions share, None where each session has its own.
    """

    intra_op_threads: int
    inter_op_threads: int
    parallel: bool
    graph_level: str
    memory_arena: bool | None
    memory_pattern: bool | None
    share_session: bool
    session_entries: Mapping[str, str]
    run_entries: Mapping[str, str]
    op_libraries: tuple[str, ...]
    placement: str
    shared_threads: tuple[int, int] | None = None


def read_settings(config: ModelConfig, shared_threads: tuple[int, int] | None = None) -> RunSettings:
    """Return the settings. Raises ConfigErrors with every parameter that has a wrong value."""
    errors: list[ConfigError] = []
    parameters = config.parameters

    def value(key: str, read: Callable[[str], Any], wanted: str) -> Any:
        text = parameters.get(key)
        if text is None:
            return None
        try:
            return read(text)
        except ValueError:
            at = ("parameters", Key(key), "value", "string_value")
            words = f"parameter '{key}' of model '{config.name}' is '{text}'"
            errors.append(config.error(words, f"wanted {wanted}", at=at))
            return None

    settings = RunSettings(
        intra_op_threads=value("intra_op_thread_count", _count, "a number of threads, 0 for one a core") or 0,
        inter_op_threads=value("inter_op_thread_count", _count, "a number of threads, 0 for one a core") or 0,
        parallel=bool(value("execution_mode", _mode, "0 (sequential) or 1 (parallel)")),
        graph_level=GRAPH_LEVELS.get(config.message.optimization.graph.level, EVERYTHING),
        memory_arena=value("enable_mem_arena", as_boolean, "1 or 0"),
        memory_pattern=value("enable_mem_pattern", as_boolean, "1 or 0"),
        share_session=bool(value("share_session_between_instances", as_boolean, "true or false")),
        session_entries={**DEFAULT_ENTRIES, **_with_prefix(parameters, SESSION_PREFIXES)},
        run_entries=_with_prefix(parameters, RUN_PREFIXES),
        op_libraries=tuple(config.message.model_operations.op_library_filename),
        placement=value("placement", _placement, "one of 'thread', 'loop'") or "thread",
        shared_threads=shared_threads,
    )
    if errors:
        raise ConfigErrors(errors)
    return settings


def warn_of_near_misses(config: ModelConfig) -> None:
    """Tell of parameters that nobody reads and whose names are nearly those of some that are read."""
    for key in config.parameters.keys() - set(KNOWN):
        if not key.startswith(SESSION_PREFIXES + RUN_PREFIXES):
            for near in difflib.get_close_matches(key.lower(), KNOWN, n=1, cutoff=0.85):
                log.warning("model '%s': nothing reads the parameter '%s'; did you mean '%s'?", config.name, key, near)


def as_boolean(text: str) -> bool:
    """Return what Triton's backends take for a boolean. Raises ValueError."""
    lower = text.strip().lower()
    if lower in ("1", "true"):
        return True
    if lower in ("0", "false"):
        return False
    raise ValueError(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"\s*-?[0-9]{1,5}\s*", text, re.ASCII):
        raise ValueError(text)
    return max(int(text), 0)  # as the reference, for which less than 1 is the default


def _mode(text: str) -> bool:
    if text.strip() not in ("0", "1"):
        raise ValueError(text)
    return text.strip() == "1"


def _placement(text: str) -> str:
    if text.lower() not in _PLACEMENTS:
        raise ValueError(text)
    return text.lower()


def _with_prefix(parameters: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in parameters.items() if key.startswith(prefixes)}

"""Sessions of onnxruntime: where a model's file lies, how a session is made of it, and who shares one.

An instance owns its session, or a share of the one of its group (parameter `share_session_between_instances`); the last one's
end frees it.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from kernel import Code, InstanceContext, ModelConfig, ServingError
from kernel_onnx.providers import CPU, CUDA, providers, require
from kernel_onnx.runtime import SEVERITY, failure, load, share_threads
from kernel_onnx.settings import RunSettings
from kernel_onnx.signature import Signature, read_signature

__all__ = ["Session", "SharedSessions", "model_file", "open_session"]

log = logging.getLogger("kernel_onnx")

#: How a file begins that stands for one that Git LFS has not fetched.
_POINTER = b"version https://git-lfs.github.com/spec/"

DEFAULT_FILENAME = "model.onnx"


class Session:
    """A loaded model: `runtime` is the module onnxruntime, `inner` its InferenceSession."""

    __slots__ = ("__weakref__", "file", "inner", "runtime", "signature")

    def __init__(self, runtime: Any, inner: Any, file: Path, signature: Signature) -> None:
        self.runtime = runtime
        self.inner = inner
        self.file = file
        self.signature = signature


def model_file(config: ModelConfig, version_folder: Path) -> Path:
    """Return the path of the model's file, which may lie in a folder of its name with what belongs to it.

    Raises ServingError(UNAVAILABLE) where there is none.
    """
    path = version_folder.absolute() / (config.default_model_filename or DEFAULT_FILENAME)
    if path.is_dir():
        path = path / DEFAULT_FILENAME
    if not path.is_file():
        raise ServingError(Code.UNAVAILABLE, f"unable to find '{path}' for model instance '{config.name}'")
    return path


def open_session(
    config: ModelConfig,
    settings: RunSettings,
    folders: tuple[Path, Path],
    kind: str,
    device_id: int,
    instance: str,
    *,
    to_look: bool = False,
) -> Session:
    """Load the model. `folders`: the model's and the version's. `to_look`: only to see what the file says, as quick as can be.

    Raises ServingError that names the file and the cause.
    """
    file = model_file(config, folders[1])
    if _is_pointer(file):
        words = f"failed to load {file} for model '{config.name}': it is a pointer of Git LFS and not the model itself"
        raise ServingError(Code.INTERNAL, f"{words}; 'git lfs pull' fetches that")
    runtime = load(config.name)
    wanted = providers(config, kind, device_id)
    require(config, wanted, runtime.get_available_providers(), instance)
    options = _options(runtime, settings, folders[0], to_look)
    if any(name == CUDA for name, _ in wanted) and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # those that came as Python packages
    try:
        # Without "fallback" it fails where it would otherwise print something and compute elsewhere.
        inner = runtime.InferenceSession(str(file), options, providers=wanted, enable_fallback=0)
    except Exception as error:
        raise failure(error, f"while loading {file} for model '{config.name}'") from error
    if hasattr(inner, "disable_fallback"):
        inner.disable_fallback()
    missing = [name for name, _ in wanted if name not in (CPU, *inner.get_providers())]
    if missing:
        raise ServingError(
            Code.UNAVAILABLE,
            f"instance '{instance}' of model '{config.name}' can't use onnxruntime's {missing[0]}: its libraries can't be "
            f"loaded, are those that onnxruntime {runtime.__version__} needs installed (CUDA, cuDNN)?",
        )
    return Session(runtime, inner, file, read_signature(inner, file))


def _is_pointer(file: Path) -> bool:
    """Whether a file stands for one that Git LFS has not fetched."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(_POINTER)) == _POINTER
    except OSError:
        return False  # onnxruntime has the last word


def _options(runtime: Any, settings: RunSettings, model_folder: Path, to_look: bool) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 2 if log.isEnabledFor(logging.DEBUG) else SEVERITY
    level = "ORT_DISABLE_ALL" if to_look else settings.graph_level
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
    if to_look:
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.disable_prepacking", "1")
    else:
        if settings.shared_threads is None:
            options.intra_op_num_threads = settings.intra_op_threads
            options.inter_op_num_threads = settings.inter_op_threads
        else:
            share_threads(runtime, settings.shared_threads)
            options.use_per_session_threads = False
        if settings.parallel:
            options.execution_mode = runtime.ExecutionMode.ORT_PARALLEL
        if settings.memory_arena is not None:
            options.enable_cpu_mem_arena = settings.memory_arena
        if settings.memory_pattern is not None:
            options.enable_mem_pattern = settings.memory_pattern
        for key, value in settings.session_entries.items():
            options.add_session_config_entry(key, value)
    for library in settings.op_libraries:
        beside = model_folder / library
        try:
            options.register_custom_ops_library(str(beside if beside.is_file() else library))
        except Exception as error:
            raise failure(error, f"while loading the custom operators of '{library}'") from error
    return options


class SharedSessions:
    """The sessions that instances of one group share, for one backend. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[int, str, int], _Entry] = {}

    def take(self, context: InstanceContext, settings: RunSettings) -> tuple[Session, object]:
        """Return the session of the instance's group, made by the first that asks, and what to give back."""
        config = context.config
        # By the identity of the config: a reload has another one. The entry holds it, so that no other gets its number.
        key = (id(config), context.instance_name.rpartition("_")[0], context.device_id)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(key, config)
            entry.users += 1
        try:
            with entry.lock:
                if entry.session is None:
                    entry.session = instance_session(context, settings)
                return entry.session, entry
        except BaseException:
            self.give_back(entry)
            raise

    def give_back(self, entry: object) -> None:
        """End one instance's share."""
        assert isinstance(entry, _Entry)
        with self._lock:
            entry.users -= 1
            if not entry.users:
                del self._entries[entry.key]
                entry.session = None


class _Entry:
    __slots__ = ("config", "key", "lock", "session", "users")

    def __init__(self, key: tuple[int, str, int], config: ModelConfig) -> None:
        self.key = key
        self.config = config
        self.users = 0
        self.session: Session | None = None
        self.lock = threading.Lock()


def instance_session(context: InstanceContext, settings: RunSettings) -> Session:
    """Return a session for the instance."""
    folders = (context.model_folder, context.version_folder)
    return open_session(context.config, settings, folders, context.kind, context.device_id, context.instance_name)

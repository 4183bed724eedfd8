"""onnxruntime itself: imported by the first model that needs it, and its exceptions in the reference's words.

The only file that imports the package, so that the plugin is there where the package isn't.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import threading
from pathlib import Path
from typing import Any

from kernel import Code, ServingError, how_to_install

__all__ = ["SEVERITY", "failure", "has_cuda", "installed", "load", "share_threads", "terminated"]

log = logging.getLogger("kernel_onnx")

#: What the runtime may write to stderr by itself: only what ends the process. Errors go where an answer or a load goes.
SEVERITY = 4
_FORM = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
_TERMINATED = "Exiting due to terminate flag being set to true"


def installed(model: str) -> None:
    """Refuse a model where onnxruntime isn't installed, without importing it. Raises ServingError(UNAVAILABLE)."""
    try:
        found = importlib.util.find_spec("onnxruntime") is not None
    except ValueError:  # a module without a spec stands for it
        found = False
    if not found:
        raise _missing(model)


def has_cuda() -> bool:
    """Whether the installed onnxruntime is one for GPUs. Looks at its files only: nothing is imported for this."""
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except ValueError:
        return False
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return any(True for folder in folders for _ in Path(folder, "capi").glob("*onnxruntime_providers_cuda.*"))


def load(model: str) -> Any:
    """Return the module `onnxruntime`. Raises ServingError(UNAVAILABLE) that says why there is none for `model`."""
    try:
        import onnxruntime
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime":
            raise _missing(model) from None
        raise ServingError(
            Code.UNAVAILABLE, f"model '{model}' needs onnxruntime, which is installed but can't be imported: {error}"
        ) from error
    if not hasattr(onnxruntime, "InferenceSession"):  # a folder of that name, or what an uninstall has left
        raise ServingError(
            Code.UNAVAILABLE,
            f"model '{model}' needs onnxruntime, but what is imported by that name is something else: "
            f"{getattr(onnxruntime, '__file__', None) or list(onnxruntime.__path__)}",
        )
    return onnxruntime


_shared_threads: list[tuple[int, int]] = []  # of this process, once there are some
_making = threading.Lock()


def share_threads(runtime: Any, sizes: tuple[int, int]) -> None:
    """Have the pools of threads that all sessions of the process may share, within and between operators; once and for all."""
    with _making:
        if not _shared_threads:
            try:
                runtime.set_global_thread_pool_sizes(*sizes)
            except Exception as error:  # somebody else in the process has them already
                log.warning("the global thread pools of onnxruntime stay as they are: %s", str(error).strip())
            _shared_threads.append(sizes)
        elif _shared_threads[0] != sizes:
            log.warning(
                "the global thread pools of onnxruntime have %d and %d threads in this process, which asks for %d and %d now",
                *_shared_threads[0],
                *sizes,
            )
            _shared_threads[0] = sizes  # it is said once


def _missing(model: str) -> ServingError:
    return ServingError(
        Code.UNAVAILABLE, f"model '{model}' needs onnxruntime, which is not installed: {how_to_install('onnx')}"
    )


def failure(error: BaseException, what: str) -> ServingError:
    """Return what onnxruntime raised as `onnx runtime error <code>: <its text>`, and `what` it was about."""
    text = str(error)
    found = _FORM.fullmatch(text)
    if found is not None:
        return ServingError(Code.INTERNAL, f"onnx runtime error {found[1]}: {found[2].strip()} ({what})")
    return ServingError(Code.INTERNAL, f"onnx runtime error: {type(error).__name__}: {text.strip()} ({what})")


def terminated(error: BaseException) -> bool:
    """Whether a run ended because it was told to."""
    return _TERMINATED in str(error)

"""Could the model's `execute` ever wait in the middle, in a synchronous call or for a coroutine? Read from its source.

A model on the loop that waits needs a greenlet around every execution, which costs as much as a small model computes; one that
can't wait is called directly. In doubt the answer is yes. Where it was no and proves wrong (the call hides in a library that was
imported meanwhile), that one call is refused with the reason, and the model is run in a greenlet from then on.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["may_wait"]

#: `exec(…)`, or the iterator of a decoupled call, or the load of a model; or `execute` could return a coroutine to be awaited.
_WAITS = re.compile(rb"\b(exec|decoupled|load_model|async\s+def|await)\b")
_FILES = 500
_OURS = ("kernel_python", "kernel_model_", "triton_python_backend_utils", "c_python_backend_utils")

_others: tuple[int, bool] = (0, False)


def may_wait(model_folder: Path) -> bool:
    """Return False only where neither the files in the model's folder nor a library that knows pb_utils can make it wait."""
    return _library_may() or _mentions(model_folder)


def _mentions(folder: Path) -> bool:
    try:
        files = sorted(folder.rglob("*.py"))  # those of all versions
        return len(files) > _FILES or any(_WAITS.search(file.read_bytes()) for file in files)
    except OSError:
        return True


def _library_may() -> bool:
    """Whether a module that is no model's has imported triton_python_backend_utils; looked up anew when modules have come."""
    global _others
    count = len(sys.modules)
    if _others[0] != count:
        utils = sys.modules.get("triton_python_backend_utils")
        known = [utils, getattr(utils, "InferenceRequest", utils), getattr(utils, "load_model", utils)]
        found = utils is not None and any(
            any(value is one for one in known for value in dict(vars(module)).values())
            for name, module in sys.modules.copy().items()  # a copy: other threads import models meanwhile, which changes it
            if hasattr(module, "__dict__") and not name.startswith(_OURS)
        )
        _others = (count, found)
    return _others[1]

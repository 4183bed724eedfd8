"""What `import kernel` gives in a child: the core's records, from the core's own files, and nothing of its machinery.

Only files of the core that import no more than numpy are used. `Kernel` and the like are here for annotations; the object that
stands for the kernel at run time is the one of remote.py.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import os
from typing import Any

#: file of the core -> the names it gives
_NAMES = {
    "errors": "Code Reason ServingError",
    "circles.wait_view": "WaitView",
    "tensor": "DATATYPES Tensor as_bytes_array datatype_of pack_bytes unpack_bytes",
    "requests.request": "Batch InferenceRequest InferenceResponse log_ids RequestState RESCHEDULED",
}

for _file, _names in _NAMES.items():
    _module = importlib.import_module(f"kernel.{_file}")
    globals().update({name: getattr(_module, name) for name in _names.split()})


class Placement(enum.Enum):
    """Where `execute` runs, as seen from within: never on a loop of the kernel's."""

    LOOP = "loop"
    TASK = "task"
    THREAD = "thread"
    THREAD_TASK = "thread_task"


Kernel = Model = Result = Any

#: Of a room whose other files need more than is here.
_core = os.path.dirname(os.path.dirname(str(importlib.import_module("kernel.requests.request").__file__)))
_spec = importlib.util.spec_from_file_location("kernel.own_loop", os.path.join(_core, "instances", "own_loop.py"))
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
OwnLoop = _module.OwnLoop

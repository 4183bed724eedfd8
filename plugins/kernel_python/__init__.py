"""kernel_python: serves Triton's python models (`model.py` with a TritonPythonModel), in this process and in others.

Found through the entry-point group `kernel`. What models import is the top-level module `triton_python_backend_utils`.
"""

from __future__ import annotations

import kernel_python.api.builtin  # noqa: F401 - `import c_python_backend_utils` works
from kernel import Backend, Kernel, hookimpl
from kernel_python.api.calibration import calibrate
from kernel_python.api.copies import COPIES
from kernel_python.backend import PythonBackend

__all__ = ["COPIES", "PythonBackend", "register_backends"]

calibrate()


@hookimpl
def register_backends(kernel: Kernel) -> dict[str, Backend]:
    return {"python": PythonBackend(kernel)}

"""kernel_onnx: serves ONNX models with onnxruntime, as Triton's backend `onnxruntime` does.

Registers without onnxruntime, which comes with the extra `onnx`; only a model that needs it can't be loaded then.
"""

from __future__ import annotations

from kernel import Backend, Kernel, hookimpl
from kernel_onnx.backend import OnnxBackend

__all__ = ["OnnxBackend", "register_backends"]


@hookimpl
def register_backends(kernel: Kernel) -> dict[str, Backend]:
    return {"onnxruntime": OnnxBackend(kernel)}

"""The one list of all RPCs that a server has: inference, those of admin.py and what it collects, health, reflection."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kernel import steered
from kernel_grpc.inference.gated import GatedInference, GatedStream
from kernel_grpc.inference.infer import Inference
from kernel_grpc.inference.stream import InferStream
from kernel_grpc.options import limits
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.limits import Limits
from kernel_grpc.rpc.methods import Method
from kernel_grpc.services import admin, health, reflection
from kernel_grpc.services.gated import gated
from kernel_grpc.services.on_demand import on_demand
from kernel_grpc.services.paths import triton

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["inference_methods", "methods"]


def methods(kernel: Kernel, options: argparse.Namespace) -> list[Method]:
    """Return every method that there is, one a path."""
    found = [
        *inference_methods(kernel, limits(options)),
        *admin.methods(steered(kernel), options),
        *health.methods(steered(kernel)),
        *reflection.methods(),
    ]
    if kernel.options.on_demand:
        found = on_demand(kernel, found)
    return found if kernel.gate is None else gated(found)


def inference_methods(kernel: Kernel, limits: Limits | None = None) -> list[Method]:
    """Return ModelInfer and ModelStreamInfer. `limits`: of their requests."""
    inference = Inference(kernel, limits) if kernel.gate is None else GatedInference(kernel, limits)

    def open_stream(call: Call) -> InferStream:
        return GatedStream(inference, call) if isinstance(inference, GatedInference) else InferStream(inference, call)

    return [
        Method(path=triton("ModelInfer"), category="inference", streaming=False, handler=inference.infer),
        Method(path=triton("ModelStreamInfer"), category="inference", streaming=True, handler=open_stream),
    ]

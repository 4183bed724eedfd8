"""Ensembles: the graph of `ensemble_scheduling` as a backend. (Contract: scheduling, section 6.)

A step runs as soon as its input tensors are there; one that contributes to no wanted output does not run; what goes to
several takers is copied for all but the last.

Where this differs from the reference, on purpose: the error of a step names the step, after the reference's prefix; when a
step lacks an input, the error also says which step succeeded without producing it. A final output that no step produced is
left out of the answer, as in the reference: to leave out an output is a model's right, and an error would break clients of
ensembles whose branches are optional. But the reference drops it silently, and a client should be told: the answer then has
a parameter `warning` that names output and step, and the log says it once per ensemble and output. Sequence parameters are
given once per response, outputs in the config's order.
"""

from __future__ import annotations

from kernel import Backend, Kernel, hookimpl
from kernel_ensemble.executor import EnsembleBackend

__all__ = ["EnsembleBackend", "register_backends"]


@hookimpl
def register_backends(kernel: Kernel) -> dict[str, Backend]:
    return {EnsembleBackend.name: EnsembleBackend(kernel)}

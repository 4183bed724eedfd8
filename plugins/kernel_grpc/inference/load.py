"""How much of a model's instances is at work, as a client is told that asks for it. Few do, so nothing is counted for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_grpc.rpc.load_report import load_report

if TYPE_CHECKING:
    from kernel import Model

__all__ = ["load_of"]


def load_of(model: Model, form: str) -> bytes:
    """Return the report of a model's load, as a field of a header block.

    Its utilization: executions that are under way and those that wait, of those that its instances take at a time; a model that
    batches executes as many requests at once as its `max_batch_size` says.
    """
    scheduler = model.scheduler
    instances = scheduler.instances
    capacity = sum(instance.capacity for instance in instances)
    executing = sum(instance.outstanding for instance in instances)
    pending = scheduler.pending
    together = max(1, model.config.max_batch_size) if model.config.dynamic_batching is not None else 1
    utilization = (executing + pending / together) / capacity if capacity else float(bool(pending))
    return load_report(form, utilization, {"executing": executing, "pending": pending})

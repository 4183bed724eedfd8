"""What an ONNX model's config shows that costs time: pools of more threads than there are cores. Opens no model file."""

from __future__ import annotations

from collections.abc import Iterator

from kernel import Finding, Key, ModelConfig, usable_cores
from kernel_onnx.settings import RunSettings

__all__ = ["advice"]


def advice(config: ModelConfig, settings: RunSettings) -> Iterator[Finding]:
    """Return what there is to tell; `settings`: what the model's config says, and whether pools are shared by all."""
    if settings.shared_threads is not None:
        return
    cores = usable_cores()
    instances = sum(group.count for group in config.instance_groups if group.kind == "CPU")
    pools = min(instances, 1) if settings.share_session else instances
    threads = settings.intra_op_threads or cores
    if pools * threads <= cores:
        return
    for at in (("parameters", Key("intra_op_thread_count")), ("instance_group", 0, "count")):
        words = f"{pools} instances with {threads} threads each are {pools * threads} threads on {cores} cores"
        placed = config.error(words, at=at)
        if placed.line is not None:
            least = max(1, cores // pools)
            remedy = f"intra_op_thread_count \"{least}\", share_session_between_instances, or fewer instances (docs/onnx.md)"
            yield Finding.of("costs", "oversubscribed", placed, remedy)
            return

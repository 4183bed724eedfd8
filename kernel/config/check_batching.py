"""The rules about dynamic batching: sizes, priorities, what can't be had together.

All of stage A (contract: model_config, section 5).
"""

from __future__ import annotations

from collections.abc import Iterable

from kernel.config.model_config_pb2 import ModelQueuePolicy
from kernel.config.positions import Key, Path
from kernel.config.report import Report

__all__ = ["check_dynamic_batching", "check_preferred_sizes"]


def check_dynamic_batching(report: Report) -> None:
    """Check `dynamic_batching`: sizes, priority levels and the policies of their queues."""
    message, name = report.message, report.name
    if not message.HasField("dynamic_batching"):
        return
    batching = message.dynamic_batching
    at: Path = ("dynamic_batching",)
    if message.max_batch_size == 0:
        report.warn(
            at, f"dynamic_batching of model '{name}' has no effect: max_batch_size is 0, requests run one at a time"
        )
    check_preferred_sizes(
        report, batching.preferred_batch_size, (*at, "preferred_batch_size"), "dynamic batching preferred size"
    )
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            words = f"default priority level must be in range [1, {levels}] for {name}"
            report.fail("A", (*at, "default_priority_level"), words, f"got {batching.default_priority_level}")
        for level in sorted(batching.priority_queue_policy):
            if not 1 <= level <= levels:
                words = f"priority queue policy must have priority level in range [1, {levels}] for {name}"
                report.fail("A", (*at, "priority_queue_policy", Key(str(level))), words, f"got {level}")
    if batching.preserve_ordering:
        _check_ordering(report, at)


def _check_ordering(report: Report, at: Path) -> None:
    batching, name = report.message.dynamic_batching, report.name
    if batching.priority_levels > 1:
        words = f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
        report.fail("A", (*at, "priority_levels"), words, f"got {batching.priority_levels}")
    policies: list[tuple[Path, ModelQueuePolicy]] = [((*at, "default_queue_policy"), batching.default_queue_policy)]
    for level, policy in sorted(batching.priority_queue_policy.items()):
        policies.append(((*at, "priority_queue_policy", Key(str(level)), "value"), policy))
    for where, policy in policies:
        # Without a time-out the action never happens, and the reference lets it pass.
        if policy.default_timeout_microseconds and policy.timeout_action == ModelQueuePolicy.DELAY:
            words = f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}"
            report.fail("A", (*where, "timeout_action"), words, "wanted REJECT")


def check_preferred_sizes(report: Report, sizes: Iterable[int], at: Path, who: str) -> None:
    """Note the sizes that no batch can have. `who` begins the reference's words."""
    limit = report.message.max_batch_size
    for index, size in enumerate(sizes):
        if size <= 0:
            report.fail("A", (*at, index), f"{who} must be positive for {report.name}", f"got {size}")
        elif size > limit >= 0:
            words = f"{who} must be <= max batch size for {report.name}"
            report.fail("A", (*at, index), words, f"got {size}, max_batch_size is {limit}")

"""The rules about instance groups and what they need to run (contract: model_config, sections 4 and 11). Ensembles have none."""

from __future__ import annotations

from kernel.config.elsewhere import elsewhere
from kernel.config.model_config_pb2 import ModelInstanceGroup
from kernel.config.positions import Path
from kernel.config.report import Report

__all__ = ["MAX_INSTANCES", "check_instance_groups", "check_rate_limiter"]

#: The most instances that one model may ask for, those of all its groups and GPUs together. Each has a thread or a process and
#: files of its own; far more than this would end in what the system runs out of first, after a minute of starting them.
MAX_INSTANCES = 1024

#: What the reference prints as the least CUDA compute capability it works with.
_COMPUTE = "6.000000"

#: The reference looks at resources only where it limits them; then it refuses this, and so do we (rate_limiter.py).
_ONLY_LIMITED = "It can't be loaded with --rate-limit=execution_count."


def check_instance_groups(report: Report) -> None:
    """Check the kinds, counts and GPUs of each `instance_group`."""
    message = report.message
    if message.platform == "ensemble" or message.HasField("ensemble_scheduling"):
        return
    _check_number(report)
    for index, group in enumerate(message.instance_group):
        at: Path = ("instance_group", index)
        who = f"instance group {group.name} of model {report.name}"
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        if group.kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL):
            if group.gpus:
                words = f"{who} has kind {kind} but specifies one or more GPUs"
                report.fail("B", (*at, "gpus"), words, f"got gpus {list(group.gpus)}; {_usable(report)}")
        elif elsewhere(message):
            pass  # the GPUs are another machine's
        elif not report.gpus and not group.gpus:
            report.fail(
                "B", (*at, "kind"), f"{who} has kind KIND_GPU but no GPUs are available", "use KIND_CPU or KIND_AUTO"
            )
        else:
            for nth, gpu in enumerate(group.gpus):
                if gpu not in report.gpus:
                    words = (
                        f"{who} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum"
                        " required CUDA"
                        f" compute compatibility of {_COMPUTE} are: {', '.join(map(str, report.gpus))}"
                    )
                    detail = "" if report.gpus else "there are none; use KIND_CPU or KIND_AUTO"
                    report.fail("B", (*at, "gpus", nth), words, detail)
        if group.profile and message.backend != "tensorrt":
            platform = f"{message.platform} " if message.platform else ""
            words = f"{who} and platform {platform}specifies profile field which is only supported for TensorRT models"
            report.fail("B", (*at, "profile"), words)


def _check_number(report: Report) -> None:
    """Refuse more instances than can be had, at the group with which they get too many."""
    total = 0
    for index, group in enumerate(report.message.instance_group):
        count = max(group.count, 1) * max(len(group.gpus), 1)
        total += count
        if total > MAX_INSTANCES:
            words = f"instance group {group.name} of model {report.name} asks for {count} instances"
            others = f", which makes {total}" if total > count else ""
            report.fail("B", ("instance_group", index, "count"), words + others, f"a model may have {MAX_INSTANCES} at most")
            return


def _usable(report: Report) -> str:
    return f"usable GPUs are {', '.join(map(str, report.gpus))}" if report.gpus else "no GPUs are available"


def check_rate_limiter(report: Report) -> None:
    """Warn of a resource that all devices share in one group and not in another."""
    scopes: dict[str, bool] = {}
    for index, group in enumerate(report.message.instance_group):
        for nth, resource in enumerate(group.rate_limiter.resources):
            is_global = getattr(resource, "global")
            if scopes.setdefault(resource.name, is_global) != is_global:
                words = (
                    f'Resource "{resource.name}" is present as both global and device-specific resource'
                    " in the model configuration."
                )
                report.warn(("instance_group", index, "rate_limiter", "resources", nth), f"{words} {_ONLY_LIMITED}")

"""Threads that a model in the server has left behind when it was unloaded: in a process of its own they would end with it.

Looked for a moment after `finalize`, and told only when they are there some seconds later, too. On the kernel's loop, and nothing
is asked while a model serves.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from types import FrameType

from kernel import WaitView
from kernel_python.calling import Instance

__all__ = ["look_later"]

log = logging.getLogger("kernel_python")

#: When it is looked first after `finalize`, which keeps the instance no longer; then until it is told; seconds.
MOMENT_SECONDS, PATIENCE_SECONDS = 0.5, 4.5


def look_later(instance: Instance) -> None:
    """The instance has been finalized. Any thread."""
    with contextlib.suppress(RuntimeError):  # the kernel has stopped
        instance.kernel.call_soon(_begin, instance)


def _begin(instance: Instance) -> None:
    instance.kernel.loop.call_later(MOMENT_SECONDS, _look, instance)


def _look(instance: Instance) -> None:
    if _left(instance):
        instance.kernel.loop.call_later(PATIENCE_SECONDS, _tell, instance)


def _tell(instance: Instance) -> None:
    left = _left(instance)
    if not left:
        return
    file, line = left[0].f_code.co_filename, left[0].f_lineno
    reason = instance.kernel.supervision.conduct.stayed(instance.model_name, len(left), f"{Path(file).name}:{line}", file)
    if reason is not None:
        log.warning(
            "model '%s' %s; `finalize` has to end them, or a process of its own, which it gets when it is loaded next unless its "
            "config says otherwise",
            instance.model_name,
            reason,
        )


def _left(instance: Instance) -> list[FrameType]:
    """Return of each thread that is in the instance's code the innermost frame there."""
    found = []
    for top in WaitView.innermost().values():
        frame: FrameType | None = top
        while frame is not None and frame.f_globals.get("__kernel_instance__") is not instance:
            frame = frame.f_back
        if frame is not None:
            found.append(frame)
    return found

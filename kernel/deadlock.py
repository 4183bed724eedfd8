"""Would this request wait for ever? Pure: looks at who runs what, changes nothing.

A request of a model to a model whose instances are all held by executions that can't end before this very request is
answered would never run. The reference hangs there; we refuse and spell the cycle out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel.request import InferenceRequest, RequestState

if TYPE_CHECKING:
    from kernel.batch import Batch
    from kernel.scheduler import Scheduler

__all__ = ["circular_wait"]


def circular_wait(request: InferenceRequest, target: Scheduler) -> list[str] | None:
    """Return the names of the models of the cycle, `request`'s target last, or None when the request can be served.

    Called when `target` has no free instance. An execution is stuck if it made this request (directly or through others), or
    if it waits in a synchronous call for a request that is queued at a model whose executions are all stuck.
    """
    batch = request.parent
    if batch is not None and batch.requests and batch.requests[0].parent is None:
        # Most calls are those of a client's request: there is but one execution that waits for this one.
        for instance in target.instances:
            oldest = next(iter(instance.running), None)
            if oldest is not None and oldest is not batch and oldest.blocked_on is None:
                return None
    ancestors: dict[Batch, None] = {}
    while batch is not None and batch not in ancestors:
        ancestors[batch] = None
        batch = batch.requests[0].parent if batch.requests else None
    if not ancestors or not _stuck(target, ancestors, set()):
        return None
    path = [execution.instance.scheduler.name for execution in reversed(ancestors)]
    return [*path, target.name]


def _stuck(target: Scheduler, ancestors: dict[Batch, None], seen: set[Scheduler]) -> bool:
    if target in seen:
        return True
    seen.add(target)
    running = 0
    for instance in target.instances:
        if len(instance.running) < instance.capacity:
            claim = instance.claim
            if claim is None or not claim.would_starve(lambda one: one in ancestors or _blocked(one, ancestors, seen)):
                return False
            running += 1  # it is free, but what it needs is held
            continue
        begun = [one for one in instance.running if one.started] if instance.runs else None
        for execution in begun or instance.running:  # what waits in a thread's inbox goes when those before it do
            running += 1
            if execution in ancestors:
                continue
            if not _blocked(execution, ancestors, seen):
                return False
    return running > 0


def _blocked(execution: Batch, ancestors: dict[Batch, None], seen: set[Scheduler]) -> bool:
    """True when an execution can't go on before a call is answered that is stuck itself."""
    child = execution.blocked_on
    return child is not None and _waits(child, ancestors, seen)


def _waits(request: InferenceRequest, ancestors: dict[Batch, None], seen: set[Scheduler]) -> bool:
    """True when the request is queued at a model that is stuck, or executed by what is itself: an execution that waits, or an
    ensemble all of whose steps do."""
    if request.state is RequestState.PENDING:
        return request.model is not None and _stuck(request.model.scheduler, ancestors, seen)
    batch = request.batch
    if batch is None:
        return False
    if batch in ancestors:
        return True
    if not batch.started and not batch.instance.inline:  # handed to a thread that has not come to it
        return _stuck(request.model.scheduler, ancestors, seen)
    if batch.instance.only_calls:
        return bool(batch.children) and all(_waits(child, ancestors, seen) for child in batch.children or ())
    return _blocked(batch, ancestors, seen)

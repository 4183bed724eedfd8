"""Would this request wait for ever? Pure: looks at who runs what, changes nothing.

A request of a model to a model whose instances are all held by executions that can't end before this very request is
answered would never run. The reference hangs there; we refuse and spell the cycle out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kernel.requests.request import InferenceRequest, RequestState

if TYPE_CHECKING:
    from kernel.requests.request import Batch

__all__ = ["circular_wait"]


class Target(Protocol):
    """A model's scheduler, as it is looked at here: its name, and its instances with what each executes."""

    name: str

    @property
    def instances(self) -> Sequence[Any]: ...


def circular_wait(request: InferenceRequest, target: Target) -> list[str] | None:
    """Return the names of the models of the cycle, `request`'s target last, or None when the request can be served.

    Called when `target` has no free instance. An execution is stuck if it made this request (directly or through others), or
    if it waits in a synchronous call for a request that is queued at a model whose executions are all stuck.
    """
    batch = request.parent
    if batch is not None and len(batch.requests) == 1 and batch.requests[0].parent is None:
        # Most calls are those of a client's request: there is but one execution that waits for this one.
        for instance in target.instances:
            oldest = next(iter(instance.running), None)
            if oldest is not None and oldest is not batch and oldest.blocked_on is None:
                return None
    ancestors = _ancestors(batch)
    if not ancestors or not _stuck(target, ancestors, {}):
        return None
    path = [target.name]
    while batch is not None:
        path.append(batch.instance.scheduler.name)
        batch = batch.requests[0].parent if batch.requests else None
    return path[::-1]


def _ancestors(batch: Batch | None) -> dict[Batch, None]:
    """Return the executions that wait for what `batch` calls: itself, and those that have made its requests.

    Where its requests may be answered one by one, we can't tell for which of them it calls: the first one stands for all.
    """
    found: dict[Batch, None] = {}
    after = [batch]
    for one in after:
        if one is not None and one not in found:
            found[one] = None
            after += [request.parent for request in (one.requests if one.instance.undivided else one.requests[:1])]
    return found


def _stuck(target: Target, ancestors: dict[Batch, None], seen: dict[Target, bool]) -> bool:
    """True when no execution of `target` can end. `seen`: what is known of others, those under way counting as stuck."""
    known = seen.get(target)
    if known is None:
        seen[target] = True
        known = seen[target] = _all_held(target, ancestors, seen)
    return known


def _all_held(target: Target, ancestors: dict[Batch, None], seen: dict[Target, bool]) -> bool:
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


def _blocked(execution: Batch, ancestors: dict[Batch, None], seen: dict[Target, bool]) -> bool:
    """True when an execution can't go on before a call is answered that is stuck itself."""
    child = execution.blocked_on
    return child is not None and _waits(child, ancestors, seen)


def _waits(request: InferenceRequest, ancestors: dict[Batch, None], seen: dict[Target, bool]) -> bool:
    """True when the request is queued at a model that is stuck, or executed by what is itself: an execution that waits, or an
    ensemble all of whose steps do."""
    while True:  # down a chain of calls, which may be long
        if request.state is RequestState.PENDING:
            return request.model is not None and _stuck(request.model.scheduler, ancestors, seen)
        batch = request.batch
        if batch is None:
            return False
        instance = batch.instance
        if not batch.started and not instance.inline:  # handed to a thread that has not come to it
            return _stuck(request.model.scheduler, ancestors, seen)
        if instance.only_calls:
            return bool(batch.children) and all(_waits(child, ancestors, seen) for child in batch.children or ())
        if not instance.undivided:
            return False  # it may be answered while other parts of its execution wait
        if batch in ancestors:
            return True
        if batch.blocked_on is None:
            return False
        request = batch.blocked_on

"""Who holds a request that has no final answer: the queue, an execution and the line where it stands, a call, a sender.

Reads the state of schedulers and instances, and says in words what it means.
"""

from __future__ import annotations

import gc
import threading
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kernel.circles.wait_view import WaitView
from kernel.instances import AsyncInstance, LoopInstance, ModelInstance, all_gone
from kernel.models import Model
from kernel.requests import Batch, InferenceRequest, RequestState
from kernel.server import Kernel
from kernel.testing.frames import frames_of_task, place_of, stack

__all__ = ["awaits_sender", "executing", "explain", "unanswered"]

CALLS = 8  # how far down the calls of calls are told


def unanswered(kernel: Kernel) -> list[InferenceRequest]:
    """Return the requests without a final answer that nobody's execution has made, in the order of their models."""
    return [request for model in kernel.models() for request in _accepted(model) if request.parent is None]


def awaits_sender(kernel: Kernel) -> bool:
    """Whether there is a request that can be answered only by code outside of its execution."""
    return any(model.scheduler.life.open for model in kernel.models())


def explain(kernel: Kernel, folders: Sequence[Path]) -> list[str]:
    """Return a line for each request without an answer, and lines with more indent for the calls that it waits for."""
    return [line for request in unanswered(kernel) for line in _told(request, folders, 0)]


def executing(kernel: Kernel, folders: Sequence[Path]) -> list[str]:
    """Return a line for each execution that goes on though nobody waits for an answer of it."""
    return [
        f"  instance '{instance.name}' executes for nobody, {_where(instance, batch, folders)}"
        for model in kernel.models()
        for instance in model.scheduler.instances
        for batch in instance.running
        if all_gone(batch)
    ]


def _accepted(model: Model) -> Iterator[InferenceRequest]:
    scheduler = model.scheduler
    seen = set()
    executing = [request for one in scheduler.instances for batch in one.running for request in batch.requests]
    for request in (*executing, *scheduler.life.open, *scheduler.queue):
        if request.state is not RequestState.RELEASED and id(request) not in seen:
            seen.add(id(request))
            yield request


def _told(request: InferenceRequest, folders: Sequence[Path], depth: int) -> Iterator[str]:
    indent = "  " * (depth + 1)
    name = f"request '{request.id}'" if request.id else "a request"
    yield f"{indent}{name} to model '{request.model_name}' {_state(request, folders)}"
    batch = request.batch
    if batch is not None and batch.children and depth < CALLS:
        for child in sorted(batch.children, key=lambda one: one.enqueued):
            yield from _told(child, folders, depth + 1)


def _state(request: InferenceRequest, folders: Sequence[Path]) -> str:
    scheduler = request.model.scheduler
    batch = request.batch
    if request.state is RequestState.PENDING or batch is None:
        busy = [instance.name for instance in scheduler.instances if instance.running]
        behind = f"behind what {', '.join(busy)} {'executes' if len(busy) == 1 else 'execute'}" if busy else "with nobody at work"
        return f"waits in the queue, {behind}"
    instance = batch.instance
    if batch not in instance.running:
        return f"was executed by '{instance.name}', but {_sender(request, folders)}"
    if not batch.started:
        return f"was handed to '{instance.name}', which has not begun with it"
    others = len(batch.requests) - 1
    together = f" together with {others} other{'s' if others > 1 else ''}" if others else ""
    return f"is executed by '{instance.name}'{together}, {_where(instance, batch, folders)}"


def _where(instance: ModelInstance, batch: Batch, folders: Sequence[Path]) -> str:
    frames: list[types.FrameType] = []
    if isinstance(instance, AsyncInstance):
        for task in instance._tasks:
            coroutine: Any = task.get_coro()
            if coroutine.cr_frame is not None and coroutine.cr_frame.f_locals.get("batch") is batch:
                frames = frames_of_task(task)
    elif isinstance(instance, LoopInstance):
        greenlet = instance._greenlet
        frames = list(stack(greenlet.gr_frame)) if greenlet is not None else []
    elif instance.waits_only:
        return "which waits for its steps"
    else:
        current = WaitView.innermost()
        for thread in threading.enumerate():
            if thread.name == instance.name and thread.ident in current:
                frames = list(stack(current[thread.ident]))
    return f"which stands at {place_of(frames, folders)}" if frames else "which runs outside of this process"


def _sender(request: InferenceRequest, folders: Sequence[Path]) -> str:
    holder = _holder(request)
    kept = f"; it is kept in {holder}" if holder else ""
    return f"its response sender has not sent the final flag{kept}"


def _holder(request: InferenceRequest) -> str:
    """Return what of the model refers to the request's sender, as far as the collector can tell."""
    senders = [one for one in gc.get_referrers(request) if type(one).__name__ == "InferenceResponseSender"]
    seen: set[int] = {id(senders)}
    pending: list[Any] = list(senders)
    for _ in range(64):
        if not pending:
            return ""
        one = pending.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        for referrer in gc.get_referrers(one):
            if referrer is pending or isinstance(referrer, types.FrameType):
                continue
            kind = type(referrer)
            if kind.__module__.startswith("kernel_model_"):
                names = [name for name, value in vars(referrer).items() if value is one] if hasattr(referrer, "__dict__") else []
                return f"{kind.__name__}.{names[0]}" if names else f"a {kind.__name__}"
            if isinstance(referrer, (dict, list, tuple, set)) or kind.__name__ in ("deque", "InferenceRequest"):
                pending.append(referrer)
    return ""

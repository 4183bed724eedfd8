"""What does an execution wait for? Read from where its instance runs: a task, a thread, a process that is asked.

For who suspects a circle of calls (lookout.py); nothing of it is on a request's way. How a thread or a task is read is
said in wait_view.py. On the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kernel.circles.deadlock import Facts
from kernel.circles.wait_view import WaitView
from kernel.instances import AsyncInstance, ModelInstance, RemoteInstance, ThreadInstance, ThreadTaskInstance
from kernel.requests import InferenceRequest

if TYPE_CHECKING:
    from kernel.requests import Batch

__all__ = ["AwaitedHere", "Awaiting"]

INSTANCE = "__kernel_instance__"  # a global of every module that is a model's own


class Awaiting(Facts):
    """What can be known at one moment. `told`: called once somebody elsewhere has said what was asked, which sets `asked`."""

    def __init__(self, told: Callable[[], None]) -> None:
        self.asked = False
        self._told = told
        self._view = WaitView()
        self._known: dict[Batch, Sequence[InferenceRequest] | None] = {}
        self._tasks: dict[Batch, asyncio.Task[Any]] = {}
        self._elsewhere: dict[Any, Sequence[Any] | None] = {}
        self._indexed: set[ModelInstance] = set()

    def awaited(self, batch: Batch) -> Sequence[InferenceRequest] | None:
        if batch not in self._known:
            self._known[batch] = self._look_at(batch)
        return self._known[batch]

    def _look_at(self, batch: Batch) -> Sequence[InferenceRequest] | None:
        instance = batch.instance
        if isinstance(instance, ThreadTaskInstance) and (standing := self._view.of_thread(_thread_of(instance))) is not None:
            return standing  # the loop of all its executions
        if isinstance(instance, AsyncInstance):
            task = self._task_of(instance, batch)
            return None if task is None else self._view.of_task(task)
        if isinstance(instance, ThreadInstance):
            return self._view.of_thread(_thread_of(instance))
        holding = self.holding(instance)
        if holding is not None:
            return (holding,)
        said = super().awaited(batch)
        if said is None and isinstance(instance, RemoteInstance) and hasattr(instance.executor, "awaited"):
            said = instance.executor.awaited(batch, self._told)
            self.asked = self.asked or said is None
        return said

    def holding(self, instance: Any) -> InferenceRequest | None:
        if isinstance(instance, ThreadTaskInstance):
            calls = self._view.of_thread(_thread_of(instance))
            return calls[0] if calls is not None and len(calls) == 1 else None
        if isinstance(instance, RemoteInstance) and hasattr(instance.executor, "holding"):
            call: InferenceRequest | None = instance.executor.holding()
            return call
        return None

    def elsewhere(self, one: Any) -> Sequence[Any] | None:
        if one not in self._elsewhere:
            awaited = partial(one.model.scheduler.awaited, one) if isinstance(one, InferenceRequest) else one.awaited
            said = self._elsewhere[one] = awaited(self._told)
            self.asked = self.asked or said is None
        return self._elsewhere[one]

    def may_give_up(self) -> bool:
        """Whether a time-out of a model's own will end the waiting of a task that was looked at."""
        return any(self._view.ends_in_time(task) for batch, task in self._tasks.items() if self._known.get(batch))

    @staticmethod
    def place_of(batch: Batch) -> str:
        """Return where an execution is, as `file:line`: in code of a model's own if there is any; "" where nobody can see it."""
        instance = batch.instance
        if isinstance(instance, AsyncInstance):
            task = Awaiting(_nobody)._task_of(instance, batch)
            frames = [] if task is None else WaitView.frames_of_task(task)
            if isinstance(instance, ThreadTaskInstance) and getattr(task and task.get_coro(), "cr_running", False):
                frames = WaitView.frames_of(WaitView.innermost().get(_thread_of(instance)))  # it holds the loop
        elif isinstance(instance, ThreadInstance):
            frames = WaitView.frames_of(WaitView.innermost().get(_thread_of(instance)))
        elif isinstance(instance, RemoteInstance):
            place: str = instance.executor.place(batch) if hasattr(instance.executor, "place") else ""
            return place
        else:
            frames = WaitView.frames_of(getattr(getattr(instance, "_greenlet", None), "gr_frame", None))
        return WaitView.place_in(frames, lambda frame: INSTANCE in frame.f_globals)

    def _task_of(self, instance: AsyncInstance, batch: Batch) -> asyncio.Task[Any] | None:
        if instance not in self._indexed:
            self._indexed.add(instance)
            for task in list(instance._tasks):
                frame = getattr(task.get_coro(), "cr_frame", None)
                if frame is not None:
                    self._tasks[frame.f_locals["batch"]] = task
        return self._tasks.get(batch)


class AwaitedHere(Awaiting):
    """For who asks for another replica: what others have is where the search ends here."""

    def elsewhere(self, one: Any) -> Sequence[Any] | None:
        return ()


def _nobody() -> None:
    """Is told nothing."""


def _thread_of(instance: ThreadInstance | ThreadTaskInstance) -> int:
    return instance._thread._thread.ident or 0

"""The watchdog: a thread that notices when the event loop is held, says by whom, and notes what it has seen of the models.

It asks the loop for a sign of life and looks at the stack of the loop's thread while none comes. Requests pay nothing for it:
whose code runs is read out of the stack. What it says is decided in holding.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from kernel.circles.wait_view import WaitView
from kernel.instances import HELD_SECONDS, AsyncInstance, LoopInstance, ModelInstance, TaskInstance, ThreadInstance
from kernel.rules import BUSY_SHARE, Blocked, Held, Holding, Notice, Sight, WatchdogRules

if TYPE_CHECKING:
    from kernel.models import Model
    from kernel.server import Kernel

__all__ = ["Watchdog"]

log = logging.getLogger("kernel")

PERIOD = 0.02  # seconds between two looks: who holds the loop has to be seen twice before that is over
LATE = 0.025  # by which a look may be late without anything being thought of it; seconds

#: The functions in which an execution runs -> their local variable that is the instance. All of them have a `batch`.
_EXECUTIONS: dict[CodeType, str] = {
    AsyncInstance._run.__code__: "self",
    LoopInstance.start.__code__: "self",
    LoopInstance._execute_all.__code__: "self",
    ThreadInstance._serve.__code__: "self",
}

#: A global of every module that is a model's own: an object with `model_name` and `name`, of the instance. Code that no execution
#: is on the stack of (a task that a model has made) is known by it.
INSTANCE = "__kernel_instance__"


class Watchdog:
    """Watches over the loop of one `kernel`, on a thread of its own, from `start` to `stop`; both are called on the loop.

    A loop that has been held for 2 s is logged with the model, the place in its code and the stack, and again every 30 s while
    that lasts; so is code that has kept all other threads from the interpreter for 0.25 s. An `async def execute` that has held
    the loop for 0.1 s is warned of, and counted (`StatisticsCounter.held`). A model that nobody has placed on the loop leaves it
    when it has held it for 0.05 s twice. Requests pay nothing for it.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._rules = WatchdogRules()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop
        self._thread = 0
        self._waited: Callable[[], float] = float
        self._clock = time.monotonic
        self._moves: set[asyncio.Task[None]] = set()
        self._answer: float | None = None  # when the loop gave the last sign

    def start(self) -> None:
        """Begin to look, 50 times a second. Raises RuntimeError where no loop runs."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waited = _waiting_clock(threading.get_native_id())
        threading.Thread(target=self._run, name="kernel-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Look no more; the thread ends within 0.02 s."""
        self._stopped = True

    def _run(self) -> None:
        cpu = _processor_clock(self._thread)
        self._answer = 0.0  # nothing has been asked
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while not self._stopped:
                began, busy, loop_busy = self._clock(), time.process_time(), cpu()
                time.sleep(PERIOD)
                now = self._clock()
                late = now - began - PERIOD
                fair = late <= LATE
                if not fair:
                    busy, loop_busy = time.process_time() - busy, cpu() - loop_busy
                    fair = loop_busy >= BUSY_SHARE * late  # it was the loop's thread that kept us waiting
                    own, others = self._sights()
                    self._tell(self._rules.slept(late, busy, loop_busy, own, others))
                self._look(now, fair)

    def _look(self, now: float, fair: bool) -> None:
        answer = self._answer
        if answer is not None:
            self._tell(self._rules.looked(now, answer, None))
        else:
            self._tell(self._rules.looked(now, None, self._sights(others=False)[0], fair, self._waited()))
        if answer is not None:
            self._answer = None
            self._rules.asked(now)
            self._loop.call_soon_threadsafe(self._alive)

    def _alive(self) -> None:
        self._answer = self._clock()

    def _sights(self, others: bool = True) -> tuple[Sight | None, list[Sight]]:
        """Return what the loop's thread is busy with, and what others are that run the code of models."""
        frames = WaitView.innermost()
        own = frames.pop(self._thread, None)
        found = [sight for frame in frames.values() if (sight := sight_of(frame)).model] if others else []
        return None if own is None else sight_of(own), found

    def _tell(self, notices: list[Notice]) -> None:
        for notice in notices:
            if isinstance(notice, Holding):
                self._say_holding(notice)
            else:
                self._loop.call_soon_threadsafe(self._note, notice)

    def _say_holding(self, notice: Holding) -> None:
        """Log what holds the loop at this moment, from this thread."""
        sight = notice.sight
        by = f" by model '{sight.model}'" if sight.model else ""
        stack = sight.stack
        text = "".join(stack.format()) if isinstance(stack, traceback.StackSummary) else None
        _warn("loop held for %.0f s%s at %s; nobody else is served meanwhile", notice.seconds, by, sight.place, stack=text)

    def _note(self, notice: Held | Blocked) -> None:
        """Count what was seen, on the loop."""
        sight = notice.sight
        model, instance = self._whose(sight)
        if model is None or instance is None:
            return
        free = model.placement_choice is not None and not model.placement_choice.asked  # where it runs is for us to say
        if isinstance(notice, Blocked):
            self._blocked(notice, free)
        elif isinstance(instance, TaskInstance):  # what the loop calls itself is measured, and asked for
            if notice.seconds >= HELD_SECONDS:
                instance.warn_held(notice.seconds, sight.place)
            if free:
                self._held(model, notice)

    def _held(self, model: Model, notice: Held) -> None:
        """A model that nobody has placed on the loop leaves it when it has held it twice."""
        sight = notice.sight
        reason = self._kernel.supervision.conduct.held(model.name, notice.seconds, sight.place, sight.file)
        if reason is None:
            return
        if model.config.sequence_batching is not None:
            log.warning("model '%s' has %s; it stays where it is as long as it is loaded, for its sequences", model.name, reason)
            return
        log.warning(
            "model '%s' has %s; its instances are made anew on threads of their own, where they hold up nobody "
            '(parameters { key: "placement" value { string_value: "loop" } } in its config keeps them on the loop)',
            model.name,
            reason,
        )
        task = self._loop.create_task(model.leave_loop(reason))
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    def _blocked(self, notice: Blocked, free: bool) -> None:
        """A model keeps the interpreter: only another process is out of its reach."""
        sight = notice.sight
        reason = self._kernel.supervision.conduct.blocked(sight.model, notice.seconds, sight.place, sight.file)
        if reason is not None:
            then = (
                "it gets a process of its own when it is loaded next"
                if free
                else 'parameters { key: "placement" value { string_value: "process" } } in its config keeps it from that'
            )
            log.warning("model '%s' has %s, by code that does not release Python's lock; %s", sight.model, reason, then)

    def _whose(self, sight: Sight) -> tuple[Model | None, ModelInstance | None]:
        """Return the model version and the instance that were seen, None where they are gone."""
        for model in self._kernel.models():
            if model.name == sight.model:
                for instance in model.scheduler.instances:
                    if instance.name == sight.instance:
                        return model, instance
        return None, None


def sight_of(frame: FrameType) -> Sight:
    """Return what a thread is busy with whose innermost frame is `frame`: the innermost execution, or code of a model's own."""
    stack = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
    stack.reverse()
    place, file = _shown(frame), frame.f_code.co_filename
    running: Any = None
    work: object = frame
    model = instance_name = ""
    current: FrameType | None = frame
    while current is not None:
        name = _EXECUTIONS.get(current.f_code)
        if name is not None and (batch := current.f_locals.get("batch")) is not None:
            instance: ModelInstance = current.f_locals[name]
            if instance.owner is not None:
                return Sight(batch, instance.owner.name, instance.name, place, file, stack)
        found = current.f_globals.get(INSTANCE)
        if found is not None:
            if running is None:
                running, place, file = found, _shown(current), current.f_code.co_filename
                model, instance_name = str(running.model_name), str(running.name)
            if found is running:
                work = current  # the outermost of its frames: it goes on while it calls this and that
        current = current.f_back
    return Sight(work, model, instance_name, place, file, stack)


def _shown(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _warn(message: str, *args: object, stack: str | None) -> None:
    """Log a warning with a stack that is not our own."""
    if log.isEnabledFor(logging.WARNING):
        line = sys._getframe(1).f_lineno
        log.handle(log.makeRecord(log.name, logging.WARNING, __file__, line, message, args, None, sinfo=stack))


def _waiting_clock(thread: int) -> Callable[[], float]:
    """Return a function that says how many seconds a thread has waited for a processor; 0.0 where the system can't tell."""

    def waited() -> float:
        try:
            with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    return waited


def _processor_clock(thread: int) -> Callable[[], float]:
    """Return a function that says how many seconds of processor time a thread has used; 0.0 where the system can't tell."""
    try:
        clock = time.pthread_getcpuclockid(thread)
    except (AttributeError, OSError):
        return float
    return lambda: time.clock_gettime(clock)

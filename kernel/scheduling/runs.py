"""Runs: instances off the loop are handed more than they can begin at once. When to hand over, and when to take back.

To wake a thread for one request gets in the way of reading the next: so a burst is gathered first, for as long as it grows and
not for long. A process gets in nobody's way: it is handed a burst in pieces while that comes in, and both have work. A run that
turns out slow is taken back: what waits behind its first execution may be another instance's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kernel.instances import Mailbox, ModelInstance
from kernel.requests import Batch

__all__ = ["PIECE", "RUN_PATIENCE", "Runs"]

RUN_PATIENCE = 0.002  # after which a thread that has not come back is looked at
GATHER_TURNS = 2  # turns of the loop that a burst for a thread may go on, while more of it comes in each …
GATHER_SECONDS = 0.0003  # … and they are short: where large bodies are read meanwhile, the thread had better begin
PIECE = 6  # requests of a burst for a process that it is handed while more come in


class RunsOwner(Protocol):
    """The scheduler, as its runs need it."""

    def put_back(self, instance: ModelInstance, batches: list[Batch]) -> None: ...

    def dispatch(self) -> None: ...


class Runs:
    """The runs of one model's instances, and the burst that is to become the next one. On the loop."""

    def __init__(
        self, scheduler: RunsOwner, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], mailbox: Mailbox
    ) -> None:
        self._scheduler = scheduler
        self._loop = loop
        self._clock = clock
        self._mailbox = mailbox
        self.piece = 0  # at how many that wait they are handed over while more come in; 0: a burst is handed over when it is over
        self._gathers = True  # a burst is gathered for longer than a turn
        self._guarded: set[ModelInstance] = set()
        self._began = 0.0  # when the burst on its way began
        self._turns = 0  # of the loop that it has been waited for
        self._seen = 0  # how many of it were there at the last of them

    # -- before: the burst ---------------------------------------------------------------------------------------------

    def suit(self, apart: bool, one_by_one: bool) -> None:
        """`apart`: all instances execute beside this process. `one_by_one`: each request is an execution of its own."""
        self._gathers = not apart
        self.piece = PIECE if apart and one_by_one else 0

    def begin(self, now: float) -> None:
        """A burst begins with a request that has just come."""
        self._began = now
        self._turns = self._seen = 0

    def grows(self, size: int) -> bool:
        """Whether to wait another turn of the loop. `size`: how many wait now; more of them may be in the sockets."""
        if self._gathers and self._turns < GATHER_TURNS and size > self._seen and self._clock() - self._began < GATHER_SECONDS:
            self._turns += 1
            self._seen = size
            return True
        return False

    # -- after: the run ------------------------------------------------------------------------------------------------

    def guard(self, instance: ModelInstance) -> None:
        """Look after the run that an instance has been handed."""
        if instance not in self._guarded:
            self._guarded.add(instance)
            self._look_later(instance)

    def _look_later(self, instance: ModelInstance) -> None:
        self._loop.call_later(RUN_PATIENCE, self._look_after, instance, next(iter(instance.running), None))

    def _look_after(self, instance: ModelInstance, oldest: Batch | None) -> None:
        """A run should be over by now: fetch what is finished, and take back what waits behind an execution that is slow."""
        self._mailbox.drain()  # `guarded` is still set, so that what this starts arms no second look
        if instance.outstanding < 2:
            self._guarded.discard(instance)
        elif next(iter(instance.running)) is oldest:
            self._guarded.discard(instance)
            self.take_back(instance)
            self._scheduler.dispatch()
        else:
            self._look_later(instance)

    def take_back(self, instance: ModelInstance) -> None:
        """Have what an instance was handed and has not begun wait again."""
        self._scheduler.put_back(instance, instance.take_back())
        # Between the last look and the taking the thread may have finished one, seen that more was to do, and not woken us.
        self._mailbox.drain()

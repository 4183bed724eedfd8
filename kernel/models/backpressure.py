"""Backpressure: whether one more request that waits for a model would be of use, and who may send one where it would not.

The law: the order of the queue is left as it is, and a client with nothing in flight is never asked to wait. A front end asks for
a client that sends a request while others of its own wait: where as many wait as keep all instances busy for two rounds, one more
would only stand in front of those of other clients. So clients that have much to send take turns, one for each answer that is
given. A queue with a limit, time-outs or priorities is left alone: its config says who may wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from kernel.requests import InferenceRequest
from kernel.scheduling import Scheduler

__all__ = ["Backpressure"]

LEAST = 8  # requests that may wait in any case
TURNS = 64  # clients that are let in within one turn of the loop


class Backpressure:
    """In front of one model version. On the loop. `open`: everybody is let in from now on. `on_open`: what is called then, once,
    by who keeps others waiting on grounds of his own.
    """

    def __init__(self, scheduler: Scheduler, loop: asyncio.AbstractEventLoop) -> None:
        self.open = False
        self.on_open: dict[Hashable, Callable[[], None]] = {}
        self._scheduler = scheduler
        self._loop = loop
        self._waiting: dict[Hashable, Callable[[], None]] = {}  # in their order
        self._answered = 0  # since somebody was let in
        self._scheduled = False

    @property
    def crowded(self) -> bool:
        """Whether enough requests wait already."""
        queue = self._scheduler.queue
        size = queue.size
        if size < LEAST or self.open or not queue.no_policy:
            return False
        rule = queue.rule
        rows = 1 if rule is None else rule.largest
        return size >= 2 * rows * sum([instance.limit for instance in self._scheduler.instances])

    def wait(self, client: Hashable, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is the turn of `client` to send one more request, after all others who wait. Never at once."""
        life = self._scheduler.life
        if not self._waiting:
            self._answered = 0
            life.on_release = (*life.on_release, self._released)
        self._waiting[client] = go_on

    def forget(self, client: Hashable) -> None:
        """The client does not wait any more."""
        if self._waiting.pop(client, None) is not None and not self._waiting:
            self._rest()

    def let_all_in(self) -> None:
        """Let everybody in who waits, or comes."""
        self.open = True
        while self._waiting:
            self._let_in()
        while self.on_open:
            self.on_open.popitem()[1]()

    def _released(self, request: InferenceRequest) -> None:
        self._answered += 1
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Let one client in for each answer that was given; more, while too few wait."""
        self._scheduled = False
        for _ in range(TURNS):
            if not self._waiting or not (self._answered or not self.crowded):
                return
            self._answered -= self._answered > 0
            self._let_in()
        if self._waiting:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def _let_in(self) -> None:
        client = next(iter(self._waiting))
        go_on = self._waiting.pop(client)
        if not self._waiting:
            self._rest()
        go_on()

    def _rest(self) -> None:
        """Nobody waits: ask for no answers until somebody does."""
        life = self._scheduler.life
        life.on_release = tuple(stage for stage in life.on_release if stage != self._released)

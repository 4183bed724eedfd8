"""Answers the requests of executions that last longer than they may (`--execution-timeout`), with the place in the model's code.

Looks now and then at what is executed, and only where some model has a limit: requests pay nothing. What is executed in this
process goes on, as nobody can end it: its instance is busy until it returns. A process of its own, in which nothing is executed
any more but what lasts GIVEN_UP times as long as it may, is ended, and begins anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from kernel.circles.awaiting import Awaiting
from kernel.config import ModelConfig, execution_limit_of
from kernel.errors import Code, Reason, ServingError
from kernel.requests import Batch, RequestState

__all__ = ["Overtime", "overdue"]

log = logging.getLogger("kernel")

LONGEST_PERIOD, SHARE = 1.0, 0.25  # seconds between two looks; of the limit, where that is less
GIVEN_UP = 2.0  # times the limit


class Overtime:
    """The executions of one kernel. `default`: seconds, for models that don't say otherwise; 0.0 for no limit. On the loop."""

    def __init__(self, default: float, clock: Callable[[], float], follow: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._default = default
        self._clock = clock
        self._follow = follow
        self._limits: dict[Any, float] = {}  # models that serve and have one
        self._looking = False

    def limit_of(self, config: ModelConfig) -> float:
        """Return for how many seconds an execution of such a model may last, 0.0 for any number. Raises ServingError."""
        return execution_limit_of(config.parameters, self._default)

    def know(self, model: Any) -> None:
        """Look after the executions of a model version from now on, if there is a limit for them."""
        limit = self.limit_of(model.config)
        if limit and not model.config.is_ensemble:  # an ensemble's steps have limits of their own
            self._limits[model] = limit
            if not self._looking:
                self._looking = True
                self._follow(self._run())

    async def _run(self) -> None:
        try:
            while self._limits:
                await asyncio.sleep(min(LONGEST_PERIOD, SHARE * min(self._limits.values())))
                try:
                    self._look()
                except Exception:
                    log.exception("executions could not be looked after")
        finally:
            self._looking = False

    def _look(self) -> None:
        now = self._clock()
        for model, limit in list(self._limits.items()):
            scheduler = model.scheduler
            if model.closed:
                del self._limits[model]
                continue
            for instance in (*scheduler.instances, *scheduler.pool.leaving):
                late = overdue(instance.running, now, limit)
                for batch in late:
                    _answer(scheduler, batch, now, limit)
                if late:
                    _end_stuck(instance, now, limit)


def overdue(running: Iterable[Batch], now: float, limit: float) -> list[Batch]:
    """Return the executions that have gone on for `limit` seconds, or more."""
    return [batch for batch in running if batch.started and not batch.ended and now - batch.started >= limit]


def _end_stuck(instance: Any, now: float, limit: float) -> None:
    """End an instance's process, if all that has begun in it goes on although its requests were answered long ago."""
    end = getattr(instance.executor, "end", None)
    begun = [batch for batch in instance.running if batch.started and not batch.ended]
    if end is None or len(overdue(begun, now, GIVEN_UP * limit)) < len(begun):
        return
    place = Awaiting.place_of(begun[0])
    lasted = f"{now - begun[0].started:.3f} s, of {limit:g} s that it may"
    end(f"an execution has lasted for {lasted} (execution_timeout){f', and is at {place}' if place else ''}")


def _answer(scheduler: Any, batch: Batch, now: float, limit: float) -> None:
    waiting = [request for request in batch.requests if request.state is not RequestState.RELEASED]
    if not waiting:
        return
    place = Awaiting.place_of(batch)
    at = f", is at {place}" if place else ""
    for request in waiting:
        words = (
            f"{request.log_id}execution of model '{scheduler.name}', instance '{batch.instance.name}', has lasted for "
            f"{now - batch.started:.3f} s, of {limit:g} s that it may (execution_timeout){at}"
        )
        scheduler.cancel(request, ServingError(Code.UNAVAILABLE, words, Reason.CANCELED))

"""Who decides what goes together into a batch of one model: a plugin's batcher, or the core's rule (batching.py).

A plugin's batcher is not trusted: each choice of it is checked. Where it is none that can be executed, or requests would wait and
nobody would look at them again, the core's rule decides instead and the log says why. Other models pay nothing for that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Protocol

from kernel.interfaces import Batcher
from kernel.requests import InferenceRequest
from kernel.rules import BatchRule, Left, RequestQueue, fits

__all__ = ["Decider", "chosen_by", "held_back", "number_of_environment"]

log = logging.getLogger("kernel")

#: The requests, or how many from the front; when to look again; and why these go now.
Decision = tuple[int | list[InferenceRequest], float | None, Left | None]


class Decider(Protocol):
    """What a scheduler asks. `largest`: the rows of a batch that would not grow any more."""

    @property
    def largest(self) -> int: ...

    def decide(self, waiting: RequestQueue, now: float) -> Decision:
        """Return the requests to execute now, or how many from the front; or nothing, and when to look again."""


class _Chosen:
    """Asks a plugin's batcher; where its choice is wrong, the core's rule."""

    def __init__(self, batcher: Batcher, rule: BatchRule, model: str) -> None:
        self._batcher = batcher
        self._rule = rule
        self._model = model
        self._told: set[str] = set()
        self.largest = rule.max_batch_size

    def decide(self, waiting: RequestQueue, now: float) -> Decision:
        if not waiting:
            return 0, None, None
        try:
            chosen, when = self._batcher.choose(waiting, now)
            problem = self._problem(chosen, when, waiting, now)
        except Exception as error:
            problem = f"failed: {type(error).__name__}: {error}"
        if not problem:
            return list(chosen), when, Left.CHOSEN
        if problem not in self._told and len(self._told) < 10:  # each once, ten at most: words may name a number
            self._told.add(problem)
            name = type(self._batcher).__name__
            log.error("batcher %s of model '%s' %s; the core's own rule decides instead", name, self._model, problem)
        return self._rule.decide(waiting, now)

    def _problem(self, chosen: Sequence[Any], when: float | None, waiting: RequestQueue, now: float) -> str:
        """Return what is wrong with a choice, "" for nothing."""
        if not chosen:
            if when is None:
                return "chose nothing and didn't say when to look again, although requests wait"
            return "" if when > now else "chose nothing and wants to look again at a time that has passed"
        if any(request not in waiting for request in chosen):
            return "chose a request that doesn't wait"
        if len(set(chosen)) < len(chosen):
            return "chose a request twice"
        rows = sum(request.batch_size for request in chosen)
        if rows > self._rule.max_batch_size:
            return f"chose {rows} rows, and max_batch_size is {self._rule.max_batch_size}"
        rule = self._rule
        if (rule.equal_shapes or rule.same_inputs) and not all(fits(chosen[0], other, rule) for other in chosen[1:]):
            return "chose requests that can't go into one batch: their inputs or shapes differ (allow_ragged_batch)"
        return ""


class _HeldBack:
    """Lets nothing go until so many wait, once; a debugging aid of the reference (scheduling, section 13)."""

    def __init__(self, decider: Decider, count: int) -> None:
        self._decider = decider
        self._missing = count
        self.largest = decider.largest

    def decide(self, waiting: RequestQueue, now: float) -> Decision:
        if len(waiting) < self._missing:
            return 0, None, None
        self._missing = 0
        return self._decider.decide(waiting, now)


def chosen_by(batcher: Batcher, rule: BatchRule, model: str) -> Decider:
    """Return what asks a plugin's batcher, and `rule` where that gives no answer."""
    return _Chosen(batcher, rule, model)


def held_back(decider: Decider) -> Decider:
    """Return the decider as $TRITONSERVER_DELAY_SCHEDULER wants it: itself where that is not set."""
    count = number_of_environment("TRITONSERVER_DELAY_SCHEDULER")
    return _HeldBack(decider, count) if count > 0 else decider


def number_of_environment(name: str) -> int:
    """Return the number that an environment variable holds, 0 where it holds none."""
    try:
        return int(os.environ.get(name, "0"))
    except ValueError:
        log.warning("%s is %r, wanted a number", name, os.environ[name])
        return 0

"""What there is and what became of it lately, for who looks all the time: states, latencies, calls. Looks, changes nothing.

It is read off what the registry and the history keep anyway, at the moment of the question; a repository is not looked at for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from kernel.interfaces import Record
from kernel.models import Model
from kernel.observability import CALLER
from kernel.registry import ModelIndex

__all__ = ["ObservedCalls", "known", "observed_calls", "recent", "states"]


@dataclass(frozen=True, slots=True)
class ObservedCalls:
    """How often, among the newest requests, one model has called another: by `exec`, or as a step of an ensemble.

    `caller`, `model`: their names. `count`: how many calls.
    """

    caller: str
    model: str
    count: int


def known(kernel: Any) -> list[str]:
    """Return the names of the models that the kernel has had to do with, without a look at the repositories."""
    return sorted(kernel._registry.catalog.entries)


def states(kernel: Any, name: str) -> list[ModelIndex]:
    """Return the lines of the model of that name as `index` does, without a look at the repositories."""
    lines: list[ModelIndex] = kernel._registry.catalog.states(name)
    return lines


def recent(kernel: Any, model: Model, count: int, since: float = 0.0) -> list[Record]:
    """Return the records of a model's newest requests, as far as they succeeded and were answered after the moment `since`.

    `model`: the version. `count`: how many requests at most; some thousands are kept of all models together. On the loop.
    """
    scheduler = model.scheduler
    scheduler.statistics.settle()
    return [] if scheduler.life.history is None else scheduler.life.history.newest(count, since)


def observed_calls(kernel: Any) -> list[ObservedCalls]:
    """Return which models have called which, and how often, among the newest requests that are kept. On the loop.

    A call of an instance that has gone is nobody's.
    """
    alive = kernel._registry.catalog.alive()
    for model in alive:
        model.scheduler.statistics.settle()
    records = kernel.supervision.history.records()
    calls = Counter((record[CALLER][0], kept.model) for kept, record in records if record[CALLER] is not None)
    if not calls:
        return []
    callers = {instance.name: model.name for model in alive for instance in model.scheduler.instances}
    found: Counter[tuple[str, str]] = Counter()
    for (caller, name), count in calls.items():
        if caller in callers:
            found[callers[caller], name] += count
    return [ObservedCalls(*names, count) for names, count in sorted(found.items())]

"""Instances that are warmed up before they take requests: past the queue, and out of everybody's order.

What they execute is said by whoever warms them up (models/warmup.py); here a scheduler knows which they are, and who is to be
told that an execution has ended. A stage of lifecycle.py, while there is any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from kernel.instances import ModelInstance, Owner
from kernel.requests import Batch
from kernel.scheduling.lifecycle import Lifecycle

__all__ = ["Warmups"]


class Warmup(Protocol):
    """Who warms an instance up."""

    def look(self, instance: ModelInstance) -> None:
        """An execution has ended."""

    def give_up(self, instance: ModelInstance) -> None:
        """Wait no longer for what the instance executes: nobody is going to be served."""


class Warmups:
    """The instances of one model that are warmed up, each with who does that."""

    def __init__(self, life: Lifecycle) -> None:
        self._life = life
        self._by_instance: dict[ModelInstance, Warmup] = {}

    def __iter__(self) -> Iterator[ModelInstance]:
        return iter(self._by_instance)

    def begin(self, instance: ModelInstance, owner: Owner, by: Warmup) -> None:
        """Let an instance execute what it is given, before it takes requests; `by` looks when that has ended."""
        instance.owner = owner
        instance.in_warmup = True
        self._by_instance[instance] = by
        self._choose()

    def end(self, instance: ModelInstance) -> None:
        """The instance may take requests."""
        instance.in_warmup = False
        del self._by_instance[instance]
        self._choose()

    def give_up(self) -> None:
        """Nobody is going to be served."""
        for instance, by in list(self._by_instance.items()):
            by.give_up(instance)

    def _choose(self) -> None:
        others = tuple(stage for stage in self._life.on_result if stage != self._ended)
        self._life.on_result = (*others, self._ended) if self._by_instance else others
        self._life.choose()

    def _ended(self, batch: Batch, result: Any) -> Any:
        """The stage: an execution has ended, and its requests may have had their answers before."""
        by = self._by_instance.get(batch.instance)
        if by is not None:
            by.look(batch.instance)
        return result

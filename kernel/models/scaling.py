"""How much of a model version's instances is at work, and how many it is to have of them where that follows its load.

The law: the number is the rule's (rules/autoscaling.py), the exchange the model's own; here one is told what the other sees, and
carries out what it says. Looks at what the scheduler has, costs a request nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kernel.config import AutoscaleLimits, ModelConfig, autoscale_between, autoscale_of
from kernel.instances import LoopInstance
from kernel.interfaces import Workers
from kernel.rules import Autoscaler, ScaleLoad, ScaleRule, SequenceRule

if TYPE_CHECKING:
    from kernel.models.model import Model

__all__ = ["FleetScaling", "InstanceScaling", "load_of", "scaling_of", "utilization"]

log = logging.getLogger("kernel")

#: Which share of what an instance takes at a time it is to have in flight, where its config does not say how much.
SHARE = 0.7

RATE_LIMITED = "executions wait for resources of the rate limiter, which more instances would wait for as well"
ON_THE_LOOP = "its instances run on the event loop, one at a time however many there are (parameter placement)"


def load_of(model: Model, now: float) -> ScaleLoad:
    """Return what a model version's instances have to do."""
    scheduler = model.scheduler
    queue, instances = scheduler.queue, scheduler.instances
    if queue.bound:
        in_flight = queue.sequences
        # Elsewhere a request waits for those before it in its sequence.
        busy = in_flight > SequenceRule.of(model.config).slots * len(instances)
    else:
        at_work = (*instances, *scheduler.pool.leaving)
        executing = sum(len(batch.requests) for instance in at_work for batch in instance.running)
        in_flight = queue.size + executing + len(scheduler.life.open)
        # Elsewhere a request waits for company.
        busy = all(instance.outstanding >= instance.capacity for instance in instances)
    since = scheduler.waiting_since() if busy else None
    held = ""
    if scheduler.pool.why_waiting():
        held = RATE_LIMITED
    elif instances and all(isinstance(one, LoopInstance) and not one.executor.may_wait for one in instances):
        held = ON_THE_LOOP
    return ScaleLoad(len(instances), in_flight, 0.0 if since is None else max(0.0, now - since), held)


def utilization(model: Model) -> float:
    """Return which share of the executions that the instances may have at a time they have, from 0.0 to 1.0.

    Of workers behind one executor: which share of what they take at a time they have in flight.
    """
    instances = model.scheduler.instances
    if (fleet := fleet_of(model)) is not None:
        room = fleet.serving * _target_elsewhere(model.config) / SHARE
    else:
        room = sum(instance.capacity for instance in instances)
    running = sum(len(instance.running) for instance in instances)
    return min(1.0, running / room) if room else float(running > 0)


def _room_of(model: Model) -> int:
    """Return how many requests, or sequences, one instance takes at a time."""
    scheduler = model.scheduler
    if scheduler.queue.bound:
        return SequenceRule.of(model.config).slots
    rule = scheduler.rule
    return scheduler.instances[0].capacity * (1 if rule is None else rule.largest)


class InstanceScaling:
    """Has a model version, which serves, have as many instances as `limits` and its load ask for. On the loop."""

    def __init__(self, model: Model, limits: AutoscaleLimits, clock: Callable[[], float]) -> None:
        self._model = model
        self._clock = clock
        target = limits.target or SHARE * _room_of(model)
        rule = ScaleRule(limits.least, limits.most, target, limits.queue_age, limits.cooldown)
        self.scaler = Autoscaler(rule, len(model.scheduler.instances), clock())
        self._under_way: asyncio.Task[None] | None = None

    @property
    def current(self) -> int:
        """How many there are."""
        return len(self._model.scheduler.instances)

    def look(self, now: float) -> None:
        """Look at the load, and begin what follows from it. To be called several times a second."""
        load = load_of(self._model, now)
        decision = self.scaler.look(load, now)
        if decision.wanted != load.current and self._under_way is None:
            self._under_way = asyncio.ensure_future(self._become(decision.wanted, decision.reason))

    async def _become(self, wanted: int, reason: str) -> None:
        model, before = self._model, len(self._model.scheduler.instances)
        try:
            problem = await model.scale(wanted)
            there = len(model.scheduler.instances)
            if problem:
                log.warning("model '%s' keeps its %d instances, %d were wanted: %s", model.name, there, wanted, problem)
                self.scaler.failed(there, problem, self._clock())
            else:
                log.info("model '%s' has %d instances, it had %d (%s)", model.name, there, before, reason)
                self.scaler.succeeded()
        finally:
            self._under_way = None


class FleetScaling:
    """Has there be as many workers behind the one executor of a model version as its load asks for. On the loop."""

    def __init__(self, model: Model, fleet: Workers, clock: Callable[[], float]) -> None:
        self._model = model
        self._fleet = fleet
        limits = autoscale_between(fleet.least, fleet.most, model.config.parameters)
        rule = ScaleRule(fleet.least, fleet.most, _target_elsewhere(model.config), cooldown=limits.cooldown)
        self.scaler = Autoscaler(rule, fleet.size, clock())

    @property
    def current(self) -> int:
        """How many there are."""
        return self._fleet.serving

    def look(self, now: float) -> None:
        """Look at the load, and have the fleet see to what follows from it. To be called several times a second."""
        fleet = self._fleet
        before, in_flight = fleet.size, load_of(self._model, now).in_flight
        decision = self.scaler.look(ScaleLoad(fleet.serving, in_flight), now)  # how long they wait there nobody tells
        if decision.wanted != before:
            fleet.resize(decision.wanted)
            name = self._model.name
            log.info("model '%s' is to have %d workers, %d were wanted (%s)", name, fleet.size, before, decision.reason)


def _target_elsewhere(config: ModelConfig) -> float:
    """Return how many requests one worker is to have in flight, which has all instances that the config says. It doesn't know how
    they batch.
    """
    limits = autoscale_between(1, 1, config.parameters)
    if limits.target is not None:
        return limits.target
    count = sum(one.count * max(1, len(one.gpus)) for one in config.instance_groups)
    return SHARE * max(1, count) * int(config.parameters.get("max_concurrency", "1"))


def fleet_of(model: Model) -> Workers | None:
    """Return the workers behind a model version's executor, None where it executes by itself."""
    executors = (instance.executor for instance in model.scheduler.instances)
    return next((found for one in executors if (found := getattr(one, "fleet", None)) is not None), None)


def scaling_of(model: Model, clock: Callable[[], float]) -> InstanceScaling | FleetScaling | None:
    """Return what has a number follow the load of a model version that serves, None where it is fixed."""
    if (fleet := fleet_of(model)) is not None:
        return FleetScaling(model, fleet, clock) if fleet.least < fleet.most else None
    limits = autoscale_of(model.config.parameters)
    return None if limits is None else InstanceScaling(model, limits, clock)

"""How many instances models have, are to have, and why: has that follow the load where a config asks for it, and tells it.

Looks four times a second, and only while some model's number follows its load, or somebody has asked in the last minutes: who
autoscales this server from outside asks now and then, and is told averages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel.models import FleetScaling, InstanceScaling, Model, load_of, scaling_of, utilization

__all__ = ["ModelScale", "Scaling", "ServerScale", "scale", "together"]

log = logging.getLogger("kernel")

LOOK_SECONDS = 0.25

#: Over how many seconds what is told is averaged, and for how many it is looked after somebody has asked.
AVERAGED = 10.0
ASKED = 300.0

FIXED = "its config has no autoscale_max"


@dataclass(frozen=True, slots=True)
class ModelScale:
    """The instances of `version` of model `name`: `current` serve, `wanted` are to, from `min` to `max`; `reason`: why, in words.

    `queue_age`: seconds that the oldest request waits though all instances are busy. `in_flight`: requests that wait or execute,
    sequences where it has those; `utilization`: the share of executions that may be under way at a time and are, 0.0 to 1.0:
    both averaged over ten seconds, as far as it has been looked.
    """

    name: str
    version: int
    current: int
    wanted: int
    min: int
    max: int
    queue_age: float
    in_flight: float
    utilization: float
    reason: str


@dataclass(frozen=True, slots=True)
class ServerScale:
    """The same of the server: `current` replicas serve, `wanted` are to, from `min` to `max`; `reason`: why, in words.

    `queue_age`: seconds, the highest of its models. `in_flight`: requests of all models but ensembles, whose steps count.
    `utilization`: the highest share of its models, or that of the time in which the event loop works, where that is higher.
    `models`: by name and version.
    """

    current: int
    wanted: int
    min: int
    max: int
    queue_age: float
    in_flight: float
    utilization: float
    reason: str
    models: Sequence[ModelScale]


class _Averages:
    """What has been seen of something in the last seconds: numbers, each a mean."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Sequence[float]]] = deque()

    def add(self, now: float, values: Sequence[float]) -> None:
        seen = self._seen
        seen.append((now, values))
        while seen[0][0] < now - AVERAGED:
            seen.popleft()

    def means(self) -> list[float]:
        return [round(sum(column) / len(column), 3) for column in zip(*(values for _, values in self._seen))]


class _LoopShare:
    """For which share of the time the thread has worked that asks: the loop's."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None  # when, and the thread's seconds by then

    def since_last(self, now: float) -> float:
        worked, last = time.thread_time(), self._last
        self._last = now, worked
        return min(1.0, (worked - last[1]) / (now - last[0])) if last is not None and now > last[0] else 0.0


class Scaling:
    """Of the models of one kernel. `models()`: those that serve; `follow` has a coroutine run. On the loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        models: Callable[[], Sequence[Model]],
        follow: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._clock = clock
        self._models = models
        self._follow = follow
        self._scaled: dict[Model, InstanceScaling | FleetScaling] = {}
        self._averages: dict[Model | None, _Averages] = {}  # None: of the server
        self._asked = -ASKED + clock()
        self._looking = False
        self._told_share, self._asked_share = _LoopShare(), _LoopShare()

    def know(self, model: Model) -> None:
        """Have the number of a model version's instances follow its load from now on, if its config asks for that."""
        scaled = scaling_of(model, self._clock)
        if scaled is not None:
            self._scaled[model] = scaled
            self._begin()

    def report(self) -> ServerScale:
        """Return how it stands."""
        now = self._clock()
        if not (self._looking and now - self._asked < ASKED):
            self._averages.clear()
            self._look_at_all(now)
        self._asked = now
        self._begin()
        there = self._models()
        for model in there:
            if model not in self._averages:
                self._look_at(model, now)
        lines = [self._line(model, now) for model in there]
        in_flight, used = self._averages[None].means()
        age = max((line.queue_age for line in lines), default=0.0)
        return ServerScale(1, 1, 1, 1, age, in_flight, used, "it has no replicas (--replicas)", lines)

    def _line(self, model: Model, now: float) -> ModelScale:
        load = load_of(model, now)
        in_flight, used = self._averages[model].means()
        scaled = self._scaled.get(model)
        age = round(load.queue_age, 3)
        line = ModelScale(
            model.name, model.version, load.current, load.current, load.current, load.current, age, in_flight, used, FIXED
        )
        if scaled is None:
            return line
        rule, decision = scaled.scaler.rule, scaled.scaler.decision
        return replace(
            line, current=scaled.current, wanted=decision.wanted, min=rule.least, max=rule.most, reason=decision.reason
        )

    def at_work(self) -> tuple[float, float]:
        """Return which share of what it can do the server does, now, and for how many seconds its oldest request waits in vain.

        For one who asks several times a second: the loop's share is that since the last time.
        """
        now, share, age = self._clock(), 0.0, 0.0
        for model in self._models():
            if not model.config.is_ensemble:
                share, age = max(share, utilization(model)), max(age, load_of(model, now).queue_age)
        return max(share, self._asked_share.since_last(now)), age

    # -- looking -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._looking:
            self._looking = True
            self._follow(self._run())

    async def _run(self) -> None:
        try:
            while self._scaled or self._clock() - self._asked < ASKED:
                await asyncio.sleep(LOOK_SECONDS)
                now = self._clock()
                for model in [model for model in self._scaled if model.closed]:
                    del self._scaled[model]
                serving = self._models()
                for model, scaled in self._scaled.items():
                    if model in serving:
                        try:
                            scaled.look(now)
                        except Exception:
                            log.exception("how many instances model '%s' is to have could not be said", model.name)
                if now - self._asked < ASKED:
                    self._look_at_all(now)
        finally:
            self._looking = False

    def _look_at_all(self, now: float) -> None:
        serving = self._models()
        for model in self._averages.keys() - {None, *serving}:
            del self._averages[model]
        in_flight = used = 0.0
        for model in serving:
            own_flight, own_use = self._look_at(model, now)
            if not model.config.is_ensemble:
                in_flight, used = in_flight + own_flight, max(used, own_use)
        self._averages.setdefault(None, _Averages()).add(now, (in_flight, max(used, self._told_share.since_last(now))))

    def _look_at(self, model: Model, now: float) -> tuple[float, float]:
        seen = load_of(model, now).in_flight, utilization(model)
        self._averages.setdefault(model, _Averages()).add(now, seen)
        return seen


def scale(kernel: Any) -> ServerScale:
    """Return how many instances each model has and is to have, how many replicas the server, and what follows from which load.

    What is averaged is so from the first call on, for five minutes after the last. On the loop.
    """
    report: ServerScale = kernel.supervision.scaling.report()
    return report


def together(reports: Sequence[ServerScale]) -> ServerScale:
    """Return what several replicas have told as of one server: numbers add up, the oldest request is the oldest of all."""
    lines: dict[tuple[str, int], list[ModelScale]] = {}
    for report in reports:
        for line in report.models:
            lines.setdefault((line.name, line.version), []).append(line)
    count = len(reports)
    return ServerScale(
        count,
        count,
        count,
        count,
        max(report.queue_age for report in reports),
        round(sum(report.in_flight for report in reports), 3),
        round(sum(report.utilization for report in reports) / count, 3),
        "the number of its replicas is fixed (--replicas)",
        [_one(there) for _, there in sorted(lines.items())],
    )


def _one(lines: Sequence[ModelScale]) -> ModelScale:
    current = sum(line.current for line in lines)
    used = sum(line.utilization * line.current for line in lines) / current if current else 0.0
    return replace(
        lines[0],
        current=current,
        wanted=sum(line.wanted for line in lines),
        min=sum(line.min for line in lines),
        max=sum(line.max for line in lines),
        queue_age=max(line.queue_age for line in lines),
        in_flight=round(sum(line.in_flight for line in lines), 3),
        utilization=round(used, 3),
        reason="; ".join(dict.fromkeys(line.reason for line in lines)),
    )

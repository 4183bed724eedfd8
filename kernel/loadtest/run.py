"""One measurement: loads one after the other on one target, or on two in turns, window by window until the windows are alike."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernel.loadtest.load import ClosedLoop, Load, OpenLoop, Plain, RunningLoad, Sequences, Source
from kernel.loadtest.report import Result
from kernel.loadtest.target import LoadTarget
from kernel.loadtest.windows import LOOKED_AT, Window, steady
from kernel.simulation import Arrivals, read_arrivals
from kernel.tensor import Tensor

__all__ = ["Plan", "Told", "measure"]

FEWEST = 5  # answers that a window has, unless they take very long
LONGEST = 30.0  # seconds that it then goes on at most, for an answer
RAMP = 0.25  # part of a window that passes before one of a round begins
DRAIN = 10.0  # seconds that answers are waited for at the end
STEP = 0.1  # seconds between two looks at the progress

#: Is told what goes on, and which part of it is done at most.
Told = Callable[[str, float], None]

Requests = Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Plan:
    """How it is measured. Times are in seconds.

    `warm_up`: before the first window; `tolerance`: by which windows may differ that are alike; `most`: windows after which it is
    told as not steady; `lanes`: sequences at a time in an open loop, `length`: requests of each, where the inputs do not say.
    """

    warm_up: float = 1.0
    window: float = 1.0
    most: int = 10
    tolerance: float = 0.1
    seed: int = 0
    lanes: int = 4
    length: int = 20

    @property
    def seconds(self) -> float:
        """How long one load takes at most, if its answers do not take longer than a window."""
        return self.warm_up + self.most * (self.window + FEWEST)


async def measure(
    targets: Sequence[LoadTarget], loads: Sequence[Load], datasets: Sequence[Sequence[Requests]], plan: Plan, told: Told,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[Result]]:  # fmt: skip
    """Return for each load what became of it on each target. `datasets`: of each target; more than one are sequences.

    `clock()`: the time in seconds, which the loop has to keep.
    """
    found = []
    for number, load in enumerate(loads):

        def shown(words: str, part: float, number: int = number) -> None:
            told(words, (number + part) / len(loads))

        ways = [_Way(target, load, requests, plan, clock) for target, requests in zip(targets, datasets)]
        if len(ways) == 1:
            results = [await _continuous(ways[0], plan, shown)]
        else:
            results = await _in_turns(ways, plan, shown)
        found.append(results)
        if not any(one.latencies.size for one in results):
            break  # more of it would not be answered, either
    return found


class _Way:
    """One load on one target. What is sent is made once."""

    def __init__(
        self, target: LoadTarget, load: Load, datasets: Sequence[Requests], plan: Plan, clock: Callable[[], float]
    ) -> None:
        self.target = target
        self.load = load
        self.windows: list[Window] = []
        self._datasets = datasets
        self._plan = plan
        self._clock = clock
        self._plain = Plain([target.encode(one, {}) for one in datasets[0]]) if not target.model.stateful else None
        self._rounds = 0

    def traffic(self, seconds: float) -> RunningLoad:
        """Return new traffic, for so many seconds at most."""
        load = self.load
        self._rounds += 1
        count = load.clients if isinstance(load, ClosedLoop) else self._plan.lanes
        sources: list[Source] = [self._plain] * count if self._plain is not None else [self._sequences(k) for k in range(count)]
        moments = self._moments(load, seconds) if isinstance(load, OpenLoop) else None
        return RunningLoad(self.target, sources, moments=moments, free=self._plain is not None, clock=self._clock)

    def _sequences(self, number: int) -> Sequences:
        requests = self._datasets[number % len(self._datasets)]
        length = len(requests) if len(self._datasets) > 1 else self._plan.length
        return Sequences(self.target, requests, length)

    def _moments(self, load: OpenLoop, seconds: float) -> NDArray[np.float64]:
        seconds = max(seconds, 2 / load.rate)
        drawn = read_arrivals(f"{load.kind}:{load.rate!r},{seconds!r}", self._plan.seed + self._rounds)
        assert isinstance(drawn, Arrivals)
        return drawn.offsets

    def result(self) -> Result:
        offered = self.load.rate if isinstance(self.load, OpenLoop) else 0.0
        alike = steady(self.windows, self._plan.tolerance)
        return Result(self.target.address, self.load.label, tuple(self.windows), alike, offered)

    @property
    def over(self) -> bool:
        """Whether further windows would say nothing new."""
        last = self.windows[-1]
        if last.errors and not last.latencies.size:
            return True
        return steady(self.windows, self._plan.tolerance) or len(self.windows) >= self._plan.most


async def _continuous(way: _Way, plan: Plan, told: Told) -> Result:
    """Measure windows without a break."""
    traffic = way.traffic(plan.seconds)
    traffic.start()
    try:
        label = way.load.label
        await _pass(plan.warm_up, lambda part: told(f"{label}: warm-up", 0.0))
        while True:
            count = len(way.windows)
            words = f"{label}: window {count + 1}{_so_far(way)}"
            way.windows.append(await _window(traffic, plan, told, words, count, 1.0))
            if way.over or traffic.exhausted:
                break
    finally:
        await traffic.stop(DRAIN)
    return way.result()


async def _in_turns(ways: Sequence[_Way], plan: Plan, told: Told) -> list[Result]:
    """Measure one window of each in turn, alone; what differs from time to time then differs for all."""
    while True:
        for number, way in enumerate(ways):
            count = len(way.windows)
            words = f"{way.load.label}: round {count + 1}, {way.target.address}{_so_far(way)}"
            traffic = way.traffic(plan.warm_up + plan.window + LONGEST)
            traffic.start()
            try:
                await _pass(plan.warm_up if not count else RAMP * plan.window, lambda part: None)
                way.windows.append(
                    await _window(traffic, plan, told, words, count + number / len(ways), 1 / len(ways))
                )
            finally:
                await traffic.stop(DRAIN)
        if all(way.over for way in ways) or any(_silent(way) for way in ways):
            return [way.result() for way in ways]


def _silent(way: _Way) -> bool:
    return not way.windows[-1].latencies.size


async def _window(traffic: RunningLoad, plan: Plan, told: Told, words: str, before: float, share: float) -> Window:
    """Measure one window. `before`: windows that have been, `share`: what this one counts for."""
    mark = traffic.mark()
    await _pass(plan.window, lambda part: told(words, _part(before + share * part, plan)))
    waited = 0.0
    while traffic.answered() < FEWEST and waited < LONGEST and not (traffic.exhausted and not traffic.waiting):
        await asyncio.sleep(STEP)
        waited += STEP
    return traffic.window(mark)


async def _pass(seconds: float, told: Callable[[float], None]) -> None:
    steps = max(1, math.ceil(seconds / STEP))
    for number in range(steps):
        told(number / steps)
        await asyncio.sleep(seconds / steps)


def _part(windows: float, plan: Plan) -> float:
    """Return which part is done: more than the first ones may not be needed."""
    return min(1.0, windows / (LOOKED_AT if windows < LOOKED_AT else plan.most))


def _so_far(way: _Way) -> str:
    return f", {way.windows[-1].rate:.0f} a second" if way.windows else ""

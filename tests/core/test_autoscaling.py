"""How many workers there are to be: the rule alone, against loads of minutes and days on a time that is told.

Workers are counted as what they do: each answers one request at a time, which takes a second over its rate; new ones come after
their start-up, those that go finish what they have. The ideal has just as many as the load needs at each moment, all busy; the
target is that seven tenths of them are.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from kernel.errors import ServingError
from kernel.rules import Autoscaler, ScaleLoad, ScaleRule

LOOK = 0.25  # seconds between two looks


@dataclass
class Course:
    """What has happened. `wanted`: each decision with its moment. Seconds of workers: `had`, and `ideal`ly."""

    wanted: list[tuple[float, int]] = field(default_factory=list)
    ages: list[tuple[float, float]] = field(default_factory=list)
    had: float = 0.0
    ideal: float = 0.0
    answered: float = 0.0

    @property
    def changes(self) -> list[tuple[float, int]]:
        return [after for before, after in pairwise(self.wanted) if before[1] != after[1]]

    @property
    def flaps(self) -> int:
        """How often it has grown after it had shrunk."""
        numbers = [self.wanted[0][1], *(number for _, number in self.changes)]
        signs = [after > before for before, after in pairwise(numbers)]
        return sum(second and not first for first, second in pairwise(signs))

    def reached(self, number: int, since: float) -> float:
        """Return after how many seconds so many were wanted."""
        return next(now for now, wanted in self.wanted if now >= since and wanted >= number) - since

    def oldest(self, begin: float, end: float) -> float:
        return max(age for now, age in self.ages if begin <= now < end)


def live(
    rule: ScaleRule, load: Callable[[float], float], seconds: float, *, service: float = 0.1, start: float = 2.0, seed: int = 0
) -> Course:
    """Live through a load: `load(now)` requests a second, which come by chance; a worker takes `service` for each."""
    chance = random.Random(seed)
    rate = 1 / service
    scaler = Autoscaler(rule, rule.least, 0.0)
    course = Course()
    coming: list[float] = []  # moments at which workers are there
    current, waiting, credit = rule.least, deque[float](), 0.0
    executing = 0.0
    for tick in range(round(seconds / LOOK)):
        now = tick * LOOK
        arrived = load(now) * LOOK
        arrived = max(0.0, chance.gauss(arrived, math.sqrt(arrived))) if arrived else 0.0
        credit += arrived
        while credit >= 1:
            credit -= 1
            waiting.append(now)
        able = current * rate * LOOK
        done = 0
        while waiting and done < able:
            waiting.popleft()
            done += 1
        executing = min(current, done * service / LOOK)
        course.answered += done
        current += sum(moment <= now for moment in coming)
        coming = [moment for moment in coming if moment > now]
        age = now - waiting[0] if waiting else 0.0
        wanted = scaler.look(ScaleLoad(current, executing + len(waiting), age), now).wanted
        there = current + len(coming)
        if wanted > there:
            coming += [now + start] * (wanted - there)
        elif wanted < current:
            current = wanted
        course.wanted.append((now, wanted))
        course.ages.append((now, age))
        course.had += (current + len(coming)) * LOOK
        course.ideal += max(rule.least, load(now) * service) * LOOK
    assert all(rule.least <= wanted <= rule.most for _, wanted in course.wanted)
    return course


def test_a_spike_is_met_within_seconds_and_let_go_after_the_cooldown() -> None:
    rule = ScaleRule(1, 16, cooldown=30.0)
    course = live(rule, lambda now: 80.0 if 60 <= now < 180 else 2.0, 400)
    # 80 a second of a tenth of a second each are 8 workers' work.
    assert course.reached(2, 60) <= 1.0
    assert course.reached(8, 60) <= 4.0  # three doublings
    assert course.oldest(75, 180) <= rule.queue_age + 2 * LOOK  # from 15 s on nobody waits for longer than he may
    last = course.wanted[-1][1]
    assert last == rule.least and next(now for now, wanted in course.changes if wanted == last) <= 180 + 2 * 30
    assert course.flaps == 0


def test_a_ramp_is_followed() -> None:
    rule = ScaleRule(1, 20, cooldown=30.0)
    course = live(rule, lambda now: now / 6, 600)  # to 100 a second within ten minutes
    assert course.flaps == 0
    assert course.oldest(0, 600) <= 1.0
    assert 10 <= course.wanted[-1][1] <= 17
    assert course.ideal / course.had >= 0.55


def test_a_day() -> None:
    rule = ScaleRule(2, 30, cooldown=300.0)

    def load(now: float) -> float:
        return 110 - 100 * math.cos(2 * math.pi * now / 86_400)  # 10 to 210 a second

    course = live(rule, load, 86_400, start=5.0)
    assert course.oldest(0, 86_400) <= 1.0
    assert course.flaps <= 2
    assert course.ideal / course.had >= 0.55
    assert max(wanted for _, wanted in course.wanted) <= 36


@pytest.mark.parametrize("period", [4.0, 20.0, 60.0, 70.0, 90.0])
def test_a_load_that_flaps_does_not_make_the_number_flap(period: float) -> None:
    rule = ScaleRule(1, 10, cooldown=30.0)
    course = live(rule, lambda now: 60.0 if now % period < period / 2 else 1.0, 1800)
    assert course.flaps <= 2, course.changes


def test_a_load_that_flaps_slowly_is_followed_and_no_oftener_than_it_flaps() -> None:
    rule = ScaleRule(1, 10, cooldown=30.0)
    course = live(rule, lambda now: 60.0 if now % 600 < 300 else 1.0, 6000)
    assert 5 <= course.flaps <= 10
    assert course.ideal / course.had >= 0.55


def test_chance_alone_changes_nothing() -> None:
    for seed in range(5):
        course = live(ScaleRule(1, 20, cooldown=30.0), lambda now: 55.0, 3600, seed=seed)
        settled = [number for now, number in course.changes if now > 60]
        assert len(settled) <= 4 and course.flaps <= 1, course.changes


def test_no_more_than_the_most_and_back_to_the_least_when_idle() -> None:
    rule = ScaleRule(2, 4, cooldown=10.0)
    course = live(rule, lambda now: 1000.0 if now < 20 else 0.0, 2000)
    assert max(wanted for _, wanted in course.wanted) == 4
    assert course.wanted[-1][1] == 2 and len(course.changes) <= 3


# -- what it says --------------------------------------------------------------------------------------------------------------


def feed(scaler: Autoscaler, load: ScaleLoad, begin: float, end: float) -> str:
    """Have it look at the same load for a while; return the reason of the last decision that changed something, or the last."""
    told = ""
    for tick in range(round((end - begin) / LOOK)):
        decision = scaler.look(load, begin + tick * LOOK)
        told = decision.reason if "->" in decision.reason or not told else told
    return told


def test_reasons() -> None:
    scaler = Autoscaler(ScaleRule(1, 8, target=2.0, cooldown=10.0), 1, 0.0)
    assert scaler.look(ScaleLoad(1, 6.0), 0.0).reason == "1 -> 2: 6 in flight, of 2 for each"
    assert scaler.look(ScaleLoad(1, 6.0), 0.25).reason == "6 in flight, of 2 for each; the last change has to show first"
    assert scaler.look(ScaleLoad(2, 6.0), 1.0).reason == "2 -> 3: 6 in flight, of 2 for each"
    assert feed(scaler, ScaleLoad(3, 0.0), 2.0, 30.0) == "2 -> 1: 1 would have done for 10 s"
    waits = scaler.look(ScaleLoad(1, 1.0, queue_age=0.75), 40.0)
    assert (waits.wanted, waits.reason) == (2, "1 -> 2: a request has waited for 0.75 s, of 0.5 s that it may")


def test_where_more_would_be_of_no_use_there_are_no_more() -> None:
    scaler = Autoscaler(ScaleRule(1, 8), 1, 0.0)
    decision = scaler.look(ScaleLoad(1, 6.0, held="its executions wait for resources"), 0.0)
    assert decision.wanted == 1 and decision.reason == "6 in flight, of 0.7 for each, but its executions wait for resources"


def test_who_is_on_his_way_is_given_time() -> None:
    scaler = Autoscaler(ScaleRule(1, 8, target=100.0), 1, 0.0)
    assert scaler.look(ScaleLoad(1, 3.0, queue_age=0.6), 0.0).wanted == 2
    assert scaler.look(ScaleLoad(1, 3.0, queue_age=9.0), 9.0).wanted == 2  # the second one is not there yet
    assert scaler.look(ScaleLoad(2, 3.0, queue_age=9.0), 10.0).wanted == 4


def test_a_worker_that_can_not_be_had_is_tried_again_later_and_later() -> None:
    scaler = Autoscaler(ScaleRule(1, 8), 1, 0.0)
    tried = []
    for tick in range(480):
        now = tick * LOOK
        if scaler.look(ScaleLoad(1, 1.4), now).wanted == 2:
            tried.append(now)
            scaler.failed(1, "no memory", now)
            assert scaler.decision.reason == "no more could be had: no memory"
    assert tried == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0]
    scaler.succeeded()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 3), "between 0 and 3 workers were asked for, wanted 1 <= least <= most"),
        ((3, 2), "between 3 and 2 workers were asked for, wanted 1 <= least <= most"),
        ((1, 2, 0.0), "the target is 0 requests in flight for each worker, wanted more than 0"),
        ((1, 2, 1.0, 0.0), "the queue age is 0 s and the cooldown 60 s, wanted > 0 and >= 0"),
    ],
)
def test_what_makes_no_sense(arguments: tuple[float, ...], words: str) -> None:
    with pytest.raises(ServingError, match=words):
        ScaleRule(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [5e-324, 1e-300, 1e308])
def test_any_target_has_an_answer(target: float) -> None:
    scaler = Autoscaler(ScaleRule(1, 4, target), 1, 0.0)
    for k in range(1, 100):
        decision = scaler.look(ScaleLoad(scaler.decision.wanted, 5.0), k * LOOK)
    assert decision.wanted == (1 if target > 1 else 4) and len(decision.reason) < 200

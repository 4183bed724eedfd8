"""Who holds the loop, and what is said of it, look by look; and whose code the watchdog sees in a stack."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel.models.conduct import Conduct
from kernel.rules.holding import Blocked, Held, Holding, Notice, Sight, WatchdogRules
from kernel.watchdog import PERIOD, sight_of

ONE, TWO = Sight("first batch", "one", "one_0", "model.py:9"), Sight("second batch", "two", "two_0", "model.py:4")
NOBODY = Sight("the loop's own")


def looks(*steps: tuple[float, float | None, Sight | None]) -> list[Notice]:
    """Ask at 10.0, look at each step; return all that is said."""
    rules = WatchdogRules()
    assert rules.looked(9.95, None, ONE) == []  # nothing has been asked
    rules.asked(10.0)
    return [notice for step in steps for notice in rules.looked(*step)]


def test_who_was_seen_at_one_thing_twice_has_held_the_loop_since_it_was_asked() -> None:
    assert looks((10.05, None, ONE), (10.1, None, ONE), (10.15, 10.12, None)) == [Held(pytest.approx(0.12), ONE)]


def test_who_was_seen_once_is_not_blamed() -> None:
    assert looks((10.05, None, ONE), (10.1, 10.07, None)) == []
    assert looks((10.05, 10.01, None), (10.1, None, ONE)) == []
    again = Sight("third batch", "one", "one_0", "model.py:9")
    assert looks((10.05, None, ONE), (10.1, None, again), (10.15, None, TWO), (10.2, 10.2, None)) == []


def test_one_after_the_other() -> None:
    said = looks((10.05, None, ONE), (10.15, None, ONE), (10.2, None, TWO), (10.3, None, TWO), (10.4, 10.36, None))
    assert said == [Held(pytest.approx(0.15), ONE), Held(pytest.approx(0.16), TWO)]


def test_what_lasts_is_told_after_two_seconds_and_then_every_thirty() -> None:
    steps = [(10.0 + 0.5 * step, None, ONE if step < 100 else TWO) for step in range(1, 200)]
    said = [notice for notice in looks(*steps) if isinstance(notice, Holding)]
    told = [(notice.seconds, notice.sight.model) for notice in said]
    assert told == [(2.0, "one"), (32.0, "one"), (62.0, "two"), (92.0, "two")]


def test_after_a_sign_everything_begins_anew() -> None:
    rules = WatchdogRules()
    rules.asked(10.0)
    for now in (11.0, 12.0):
        said = rules.looked(now, None, NOBODY)
    assert said == [Holding(2.0, NOBODY)]
    assert rules.looked(13.0, 12.5, None) == [Held(2.5, NOBODY)]
    rules.asked(13.0)
    assert rules.looked(14.0, None, NOBODY) == []
    assert rules.looked(15.0, None, NOBODY) == [Holding(2.0, NOBODY)]


@pytest.mark.parametrize(
    ("late", "busy", "loop_busy", "own", "others", "said"),
    [
        (0.3, 0.3, 0.28, ONE, [], [Blocked(0.3, ONE)]),
        (0.3, 0.3, 0.28, ONE, [TWO], [Blocked(0.3, ONE)]),  # the loop's thread has computed: the other could not
        (0.3, 0.3, 0.01, NOBODY, [TWO], [Blocked(0.3, TWO)]),
        (0.3, 0.3, 0.01, NOBODY, [ONE, TWO], []),
        (0.3, 0.3, 0.28, NOBODY, [], []),  # our own
        (0.3, 0.05, 0.05, ONE, [], []),  # the machine was short of time, or asleep
        (0.2, 0.2, 0.2, ONE, [], []),
    ],
)
def test_who_keeps_the_interpreter(
    late: float, busy: float, loop_busy: float, own: Sight, others: list[Sight], said: list[Notice]
) -> None:
    assert WatchdogRules().slept(late, busy, loop_busy, own, others) == said


def test_a_machine_that_was_asleep_has_held_nothing() -> None:
    rules = WatchdogRules()
    rules.asked(10.0)
    assert rules.slept(3600.0, 0.01, 0.0, NOBODY, []) == []
    assert rules.looked(3610.1, None, NOBODY) == []


def test_what_is_nobodys_fault_is_not_counted() -> None:
    rules = WatchdogRules()
    rules.asked(10.0)
    rules.looked(10.05, None, ONE, waited=5.0)
    rules.looked(10.1, None, ONE, waited=5.04)  # for a processor
    assert rules.looked(10.15, 10.12, None) == [Held(pytest.approx(0.08), ONE)]
    rules.asked(20.0)
    rules.looked(20.05, None, ONE, waited=6.0)
    rules.looked(20.15, None, ONE, waited=6.11)
    assert rules.looked(20.2, 20.16, None) == []
    rules.asked(30.0)
    rules.looked(30.05, None, ONE)
    rules.looked(30.3, None, ONE, fair=False)  # another thread had the interpreter
    assert rules.looked(30.35, 30.31, None) == []
    rules.asked(40.0)
    rules.looked(40.05, None, ONE)
    rules.looked(40.3, None, ONE, fair=False)
    rules.looked(40.35, None, ONE)
    assert rules.looked(40.4, 40.38, None) == [Held(pytest.approx(0.08), ONE)]


def test_who_holds_the_loop_twice_within_a_minute_has_to_leave_it(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.touch()
    now = 100.0
    conduct = Conduct(lambda: now)
    assert conduct.held("m", 0.2, "model.py:9", str(file)) is None
    now = 161.0
    assert conduct.held("m", 0.2, "model.py:9", str(file)) is None
    assert conduct.held("other", 0.2, "model.py:9", str(file)) is None
    assert conduct.must_leave_loop("m") is None
    now = 200.0
    reason = "held the event loop twice, for 62 ms at model.py:9 the second time"
    assert conduct.held("m", 0.062, "model.py:9", str(file)) == reason
    assert (conduct.must_leave_loop("m"), conduct.must_leave_loop("other")) == (reason, None)
    assert conduct.held("m", 0.3, "model.py:9", str(file)) is None  # is known
    os.utime(file, (1, 1))
    assert conduct.must_leave_loop("m") is None  # it is other code now


def test_who_keeps_the_interpreter_has_to_leave_the_process(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.touch()
    conduct = Conduct(lambda: 0.0)
    reason = "kept the interpreter from everybody else for 400 ms at model.py:9"
    assert conduct.blocked("m", 0.4, "model.py:9", str(file)) == reason
    assert conduct.blocked("m", 0.5, "model.py:9", str(file)) is None
    assert (conduct.must_isolate("m"), conduct.must_leave_loop("m")) == (reason, None)
    file.unlink()
    assert conduct.must_isolate("m") is None


def test_code_of_a_model_is_known_without_an_execution_on_the_stack() -> None:
    """As in a task that the model has made itself."""
    module = {"__kernel_instance__": SimpleNamespace(model_name="m", name="m_0"), "look": lambda: sight_of(sys._getframe())}
    exec(compile("def inner():\n    return look()\n\ndef outer():\n    return inner()", "/where/ever/model.py", "exec"), module)
    sight = module["outer"]()
    assert (sight.model, sight.instance, sight.place) == ("m", "m_0", "model.py:2")
    assert sight.work.f_code.co_name == "outer"
    assert isinstance(sight.stack, traceback.StackSummary)
    assert [frame.name for frame in sight.stack][-3:] == ["outer", "inner", "<lambda>"]


def test_what_is_nobodys_has_a_place() -> None:
    sight = sight_of(sys._getframe())
    assert (sight.model, sight.instance, sight.place.split(":")[0]) == ("", "", "test_holding.py")


@pytest.mark.parametrize("step", range(10))
def test_seventy_milliseconds_are_seen_however_they_fall_between_the_looks(step: int) -> None:
    begin = 1.0 + PERIOD * step / 10
    end = begin + 0.0701
    rules, asked, said, now = WatchdogRules(), 0.0, [], 1.0 - 3 * PERIOD
    while now < end + 3 * PERIOD:
        answered = end if begin <= asked < end else asked
        held = answered > now
        said += rules.looked(now, None if held else answered, ONE if held else None)
        if not held:
            rules.asked(now)
            asked = now
        now += PERIOD
    assert [type(one) for one in said] == [Held]

"""Who makes room for whom: the rule alone, on a time that is told."""

from __future__ import annotations

import pytest

from kernel.rules import Budget, Resident, idle_for_long, retry_seconds, who_goes

A, B, C = Resident("a", used=1.0), Resident("b", used=2.0), Resident("c", used=3.0)


def test_the_least_recently_used_ones_go_as_far_as_they_must() -> None:
    assert who_goes([C, A, B], Budget(models=4), 1, 0, 0, 0.0) == []
    assert who_goes([C, A, B], Budget(models=3), 1, 0, 0, 0.0) == ["a"]
    assert who_goes([C, A, B], Budget(models=2), 1, 0, 0, 0.0) == ["a", "b"]
    assert who_goes([C, A, B], Budget(), 1, 0, 10**12, 0.0) == []


def test_bytes() -> None:
    sized = [Resident("a", 1.0, size=100), Resident("b", 2.0, size=300), Resident("c", 3.0, size=300)]
    budget = Budget(size=1000)
    assert who_goes(sized, budget, 1, 200, 800, 0.0) == []
    assert who_goes(sized, budget, 1, 300, 800, 0.0) == ["a"]
    assert who_goes(sized, budget, 1, 301, 800, 0.0) == ["a", "b"]
    # Nobody knows what the first one takes: it goes, and then it is looked again.
    assert who_goes([A, B, C], budget, 1, 0, 1500, 0.0) == ["a"]


def test_who_is_busy_goes_only_where_nobody_else_can_and_after_a_while() -> None:
    busy = [Resident("a", 1.0, busy=True), Resident("b", 2.0, busy=True)]
    assert who_goes([*busy, C], Budget(models=3), 1, 0, 0, 0.0) == ["c"]
    assert who_goes(busy, Budget(models=2), 1, 0, 0, 0.0) is None
    assert who_goes(busy, Budget(models=2), 1, 0, 0, 1.0) == ["a"]
    # What would be lost with it stays.
    lasting = [Resident("a", 1.0, busy=True, open=True), Resident("b", 2.0, busy=True)]
    assert who_goes(lasting, Budget(models=2), 1, 0, 0, 1.0) == ["b"]
    assert who_goes(lasting[:1], Budget(models=1), 1, 0, 0, 1.0) is None


def test_who_is_held_never_goes_and_is_not_waited_for() -> None:
    held = [Resident("a", 1.0, held=True), Resident("b", 2.0, held=True)]
    assert who_goes([*held, C], Budget(models=2), 1, 0, 0, 0.0) == ["c"]
    assert who_goes(held, Budget(models=2), 1, 0, 0, 0.0) == []
    assert who_goes(held, Budget(models=2), 2, 0, 0, 0.0) is None  # another one is on its way, and may go then


def test_what_an_ensemble_consists_of_counts_as_the_ensemble() -> None:
    whole = [Resident("whole", 5.0), Resident("part", 1.0, part=True), Resident("other", 1.0, part=True)]
    assert who_goes([*whole, C], Budget(models=3), 1, 0, 0, 0.0) == []
    assert who_goes([*whole, C], Budget(models=2), 1, 0, 0, 0.0) == ["c"]
    assert who_goes([*whole, C], Budget(models=1), 1, 0, 0, 0.0) == ["c", "whole"]


def test_idle() -> None:
    there = [
        Resident("short", 10.0, idle_limit=5.0),
        Resident("long", 10.0, idle_limit=50.0),
        Resident("any", 0.0),
        Resident("busy", 0.0, busy=True, idle_limit=5.0),
        Resident("held", 0.0, held=True, idle_limit=5.0),
    ]
    assert idle_for_long(there, 14.9) == []
    assert idle_for_long(there, 15.0) == ["short"]
    assert idle_for_long(there, 60.0) == ["short", "long"]


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1.0), (2, 2.0), (4, 8.0), (7, 60.0), (10_000, 60.0)])
def test_retries(failures: int, seconds: float) -> None:
    assert retry_seconds(failures) == seconds

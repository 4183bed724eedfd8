"""What becomes of sequences whose instance has lost what it knew of them: those of a process that has died (sequencing.py)."""

from __future__ import annotations

import pytest
from stateful import END, START

from kernel import InferenceRequest
from kernel.rules.batching import BatchRule
from kernel.rules.sequencing import Sequencer, SequenceRule


def sequencer(oldest: bool) -> Sequencer:
    rule = SequenceRule(oldest, 2, 1.0, 0.0, 0.0, False, False, BatchRule(4, frozenset(), 4, 0.0, (), False))
    made = Sequencer(rule, "m")
    made.enter("i", 0.0)
    return made


def push(made: Sequencer, correlation: int, name: str, flags: int = 0) -> InferenceRequest:
    request = InferenceRequest("m", {}, lambda response, final: None, "", name, correlation_id=correlation, flags=flags)
    assert not made.check(request)
    made.push(request, 0.0)
    return request


@pytest.mark.parametrize("oldest", [False, True])
def test_what_had_begun_is_over_and_what_had_not_goes_on(oldest: bool) -> None:
    made = sequencer(oldest)
    first = push(made, 1, "1a", START)
    assert [one for one in made.take("i", 0.0)[0] if one] == [first]
    made.executed(first, False, 0.0)
    made.answered(first, 0.0)
    waiting = [push(made, 1, "1b"), push(made, 1, "1c")]
    again = push(made, 1, "1d", START)
    fresh = push(made, 2, "2a", START)
    queued = push(made, 3, "3a", START)
    assert made.lose("i", 0.0) == waiting
    taken = [one for one in made.take("i", 0.0)[0] if one]
    assert sorted(one.id for one in taken) == ["1d", "2a"]
    assert set(taken) == {again, fresh}
    for one in taken:
        made.executed(one, False, 0.0)
        made.answered(one, 0.0)
    assert made.lose("i", 0.0) == []  # they are over, though nothing of them waited: the backlog has their slot
    assert made.take("i", 0.0)[0] == [queued]
    assert not made.knows(push_free(1)) and not made.knows(push_free(2)) and made.knows(push_free(3))


@pytest.mark.parametrize("oldest", [False, True])
def test_one_that_is_executed_meanwhile_ends_with_that(oldest: bool) -> None:
    made = sequencer(oldest)
    first = push(made, 1, "1a", START)
    made.take("i", 0.0)
    behind = push(made, 1, "1b", END)
    assert made.lose("i", 0.0) == [behind]
    assert made.occupied("i") == 1
    made.executed(first, False, 0.0)
    made.answered(first, 0.0)
    assert (made.occupied("i"), made.size, made.alive) == (0, 0, 0)


def push_free(correlation: int) -> InferenceRequest:
    return InferenceRequest("m", {}, lambda response, final: None, correlation_id=correlation)

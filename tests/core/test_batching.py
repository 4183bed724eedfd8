"""The batcher's rule as a table: who waits, what is decided. Pure."""

from __future__ import annotations

import numpy as np
import pytest

from kernel.requests.request import InferenceRequest
from kernel.rules import BatchRule, Left
from kernel.tensor import Tensor


def rule(
    limit: int = 8, preferred: tuple[int, ...] = (), delay: float = 0.0, equal: tuple[str, ...] = (), same: bool = False
) -> BatchRule:
    sizes = frozenset(preferred) or frozenset({limit})
    return BatchRule(limit, sizes, max(sizes), delay, equal, same)


def waiting(rows: list[int], enqueued: float = 0.0) -> list[InferenceRequest]:
    requests = []
    for count in rows:
        one = InferenceRequest("m", {}, lambda response, final: None)
        one.batch_size, one.enqueued = count, enqueued
        requests.append(one)
    return requests


@pytest.mark.parametrize(
    ("rows", "now", "how", "expected"),
    [
        ([], 0.0, rule(), (0, None)),
        ([1], 0.0, rule(), (1, None)),  # no delay: nobody waits for company
        ([1] * 8, 0.0, rule(), (8, None)),
        ([1] * 12, 0.0, rule(), (8, None)),
        ([3, 3, 3], 0.0, rule(), (2, None)),  # rows count, not requests
        ([9 - 1, 1], 0.0, rule(), (1, None)),
        ([1], 0.0, rule(delay=0.3), (0, 0.3)),
        ([1, 1], 0.1, rule(delay=0.3), (0, 0.3)),
        ([1, 1], 0.3, rule(delay=0.3), (2, None)),
        ([3, 3, 3], 0.0, rule(delay=0.3), (2, None)),  # the third doesn't fit: go now
        ([1] * 4, 0.0, rule(preferred=(4,), delay=0.5), (4, None)),
        ([1] * 5, 0.0, rule(preferred=(4,), delay=0.5), (4, None)),
        ([1] * 6, 0.0, rule(preferred=(4,)), (4, None)),
        ([1] * 2, 0.0, rule(preferred=(4,)), (2, None)),
        ([1] * 5, 0.5, rule(preferred=(4,), delay=0.5), (5, None)),  # late: whatever there is
        ([3, 3], 0.0, rule(preferred=(4,), delay=0.5), (1, None)),  # would pass all preferred sizes: what there is before
        ([2, 4, 1], 0.0, rule(preferred=(2, 6), delay=0.5), (2, None)),
        ([1], 0.0, rule(limit=1, delay=0.1), (1, None)),  # no company can come
    ],
)
def test_decision(rows: list[int], now: float, how: BatchRule, expected: tuple[int, float | None]) -> None:
    assert how.decide(waiting(rows), now)[:2] == expected


@pytest.mark.parametrize(
    ("rows", "now", "how", "why"),
    [
        ([1], 0.0, rule(), Left.FREE),
        ([1] * 8, 0.0, rule(), Left.FULL),
        ([1] * 12, 0.0, rule(delay=0.3), Left.FULL),
        ([3, 3, 3], 0.0, rule(delay=0.3), Left.FULL),
        ([1, 1], 0.3, rule(delay=0.3), Left.DELAY),
        ([1] * 4, 0.0, rule(preferred=(4,), delay=0.5), Left.PREFERRED),
        ([1] * 8, 0.0, rule(preferred=(4,), delay=0.5), Left.PREFERRED),
        ([1] * 9, 0.0, rule(preferred=(4, 8), delay=0.5), Left.FULL),
        ([1] * 8, 0.5, rule(preferred=(4,), delay=0.5), Left.FULL),
        ([3, 3], 0.0, rule(preferred=(4,), delay=0.5), Left.PREFERRED),
        ([1], 0.0, rule(delay=0.3), None),
        ([], 0.0, rule(), None),
    ],
)
def test_why_a_batch_leaves(rows: list[int], now: float, how: BatchRule, why: Left | None) -> None:
    assert how.decide(waiting(rows), now)[2] is why


def test_one_that_has_to_leave_another_behind_says_so() -> None:
    requests = shaped({"X": (1, 2)}, {"X": (1, 3)})
    assert rule(equal=("X",), delay=0.3).decide(requests, 0.0) == (1, None, Left.UNLIKE)


def shaped(*inputs: dict[str, tuple[int, ...]]) -> list[InferenceRequest]:
    requests = waiting([1] * len(inputs))
    for request, shapes in zip(requests, inputs):
        request.inputs = {name: Tensor(name, "FP32", np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    return requests


def test_different_shapes_are_never_mixed_nor_reordered() -> None:
    requests = shaped({"X": (1, 2)}, {"X": (1, 2)}, {"X": (1, 3)}, {"X": (1, 2)})
    how = rule(equal=("X",), delay=0.3)
    assert how.decide(requests, 0.0)[:2] == (2, None)
    assert how.decide(requests[2:], 0.0)[:2] == (1, None)
    assert how.decide(requests[3:], 0.0)[:2] == (0, 0.3)


def test_only_the_batch_dimension_may_differ() -> None:
    requests = shaped({"X": (1, 2)}, {"X": (3, 2)})
    requests[1].batch_size = 3
    assert rule(equal=("X",)).decide(requests, 0.0)[:2] == (2, None)


def test_ragged_inputs_may_differ() -> None:
    assert rule().decide(shaped({"X": (1, 2)}, {"X": (1, 3)}), 0.0)[:2] == (2, None)


def test_requests_with_other_optional_inputs_are_not_mixed() -> None:
    one, two = {"A": (1, 1)}, {"A": (1, 1), "B": (1, 1)}
    requests = shaped(one, one, two, two)
    assert rule(same=True).decide(requests, 0.0)[:2] == (2, None)
    assert rule(same=True).decide(requests[2:], 0.0)[:2] == (2, None)


def test_the_oldest_decides_even_where_it_is_not_the_first() -> None:
    requests = waiting([1, 1])
    requests[0].enqueued, requests[1].enqueued = 5.0, 1.0
    assert rule(delay=4.5).decide(requests, 5.0)[:2] == (0, 5.5)
    assert rule(delay=4.5).decide(requests, 5.5)[:2] == (2, None)

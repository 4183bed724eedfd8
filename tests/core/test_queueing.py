"""The queue: order, size limit, time-outs, places given back. Pure: no loop, `now` is a number."""

from __future__ import annotations

import itertools
import math

import pytest

from kernel.config import QueuePolicy
from kernel.errors import Code, ServingError
from kernel.requests.request import InferenceRequest, RequestState
from kernel.rules.queueing import RequestQueue

ORDER = itertools.count(1)


def request(name: str, priority: int = 0, timeout_us: int = 0) -> InferenceRequest:
    made = InferenceRequest("m", {}, lambda response, final: None, id=name, priority=priority, timeout_us=timeout_us)
    made.state = RequestState.PENDING
    made.order = next(ORDER)
    return made


def push(queue: RequestQueue, *requests: InferenceRequest, now: float = 0.0) -> None:
    for one in requests:
        queue.push(one, now)


def ids(requests: object) -> list[str]:
    return [one.id for one in requests]  # type: ignore[attr-defined]


def test_first_come_first_served_and_priority_ignored_without_levels() -> None:
    queue = RequestQueue()
    push(queue, request("a"), request("b", priority=1), request("c"))
    assert ids(queue) == ["a", "b", "c"]
    assert queue.take_first(1)[0].id == "a"
    assert ids(queue.take_first(5)) == ["b", "c"]
    assert len(queue) == 0


def test_levels_are_strict_and_unknown_priorities_take_the_default() -> None:
    queue = RequestQueue(levels=3, default_level=2)
    push(queue, request("low", 3), request("zero", 0), request("high", 1), request("beyond", 9), request("mid", 2))
    assert ids(queue) == ["high", "zero", "beyond", "mid", "low"]
    assert not queue.no_policy


def test_a_full_level_refuses_and_a_place_is_free_again_at_once() -> None:
    queue = RequestQueue(default_policy=QueuePolicy(max_queue_size=2))
    first, second = request("a"), request("b")
    push(queue, first, second)
    with pytest.raises(ServingError) as caught:
        queue.push(request("c"), 0.0)
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.message == "[request id: c] Exceeds maximum queue size"
    assert queue.remove(first)
    assert not queue.remove(first)
    queue.push(request("d"), 0.0)
    assert ids(queue) == ["b", "d"]


def test_the_limit_counts_per_level() -> None:
    queue = RequestQueue(2, 1, QueuePolicy(), {1: QueuePolicy(max_queue_size=1)})
    push(queue, request("a", 1), request("b", 2), request("c", 2))
    with pytest.raises(ServingError):
        queue.push(request("d", 1), 0.0)
    assert len(queue) == 3


@pytest.mark.parametrize(
    ("default_us", "override", "own_us", "expires"),
    [
        (300_000, False, 0, 0.3),
        (300_000, False, 100_000, 0.3),
        (300_000, True, 100_000, 0.1),
        (300_000, True, 5_000_000, 0.3),  # may only shorten (BC24)
        (300_000, True, 0, 0.3),
        (0, True, 100_000, None),  # with no default there is nothing to override
    ],
)
def test_time_out_and_its_override(default_us: int, override: bool, own_us: int, expires: float | None) -> None:
    queue = RequestQueue(
        default_policy=QueuePolicy(default_timeout_us=default_us, allow_timeout_override=override)
    )
    one = request("a", timeout_us=own_us)
    queue.push(one, 10.0)
    assert one.expires == (None if expires is None else pytest.approx(10.0 + expires))
    assert queue.next_expiry() == one.expires


def test_reject_takes_the_expired_out_and_delay_puts_them_behind() -> None:
    reject = RequestQueue(default_policy=QueuePolicy(default_timeout_us=1_000_000))
    push(reject, request("a"), now=0.0)
    push(reject, request("b"), now=0.5)
    assert reject.expire(0.99) == []
    assert ids(reject.expire(1.0)) == ["a"]
    assert ids(reject) == ["b"]

    delay = RequestQueue(default_policy=QueuePolicy("DELAY", default_timeout_us=1_000_000))
    push(delay, request("a"), now=0.0)
    push(delay, request("b"), now=0.5)
    assert delay.expire(1.0) == []
    assert ids(delay) == ["b", "a"]
    assert delay.expire(100.0) == []  # b is overtaken too, nobody is ever rejected
    assert ids(delay) == ["a", "b"]
    assert len(delay) == 2
    assert delay.next_expiry() is None


def test_what_was_taken_or_removed_does_not_expire() -> None:
    queue = RequestQueue(default_policy=QueuePolicy(default_timeout_us=1_000_000))
    taken, removed, left = request("a"), request("b"), request("c")
    push(queue, taken, removed, left)
    assert queue.take_first(1)[0] is taken
    queue.remove(removed)
    assert ids(queue.expire(5.0)) == ["c"]
    assert len(queue) == 0


def test_pushed_back_requests_come_first_again() -> None:
    queue = RequestQueue()
    push(queue, request("a"), request("b"), request("c"))
    queue.push_back(queue.take_first(2))
    assert ids(queue) == ["a", "b", "c"]
    assert len(queue) == 3


def test_stale_time_outs_are_forgotten() -> None:
    queue = RequestQueue(default_policy=QueuePolicy(default_timeout_us=60_000_000))
    for _ in range(10_000):
        one = request("x")
        queue.push(one, 0.0)
        queue.take_first(1)[0]
    assert len(queue._expiries) < 200  # not ten thousand answered requests with their tensors


def test_every_second_of_a_long_queue_may_leave() -> None:
    queue = RequestQueue()
    requests = [request(str(index)) for index in range(100_000)]
    push(queue, *requests)
    for one in requests[::2]:
        assert queue.remove(one)
    assert len(queue) == 50_000
    assert [queue.take_first(1)[0] for _ in range(50_000)] == requests[1::2]


def test_whether_to_ask_for_room_and_for_time_outs_is_known_before() -> None:
    plain, limited = RequestQueue(), RequestQueue(0, 0, QueuePolicy(max_queue_size=3))
    assert plain.room == math.inf and not plain.timed and limited.room == 3 and not limited.timed
    assert RequestQueue(0, 0, QueuePolicy(default_timeout_us=1)).timed
    levels = RequestQueue(3, 2, None, {1: QueuePolicy(max_queue_size=2), 3: QueuePolicy(default_timeout_us=5)})
    assert levels.room == math.inf and not levels.timed, "nobody has come to those levels yet"
    for priority in (1, 3):
        push(levels, request("p", priority))
    assert levels.room == 2 and levels.timed
    waiting = [request(name) for name in "abc"]
    push(limited, *waiting)
    assert limited.is_full(request("d")) and list(limited) == waiting
    assert limited.take_first(2) == waiting[:2] and list(limited) == waiting[2:] and limited.size == 1

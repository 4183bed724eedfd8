"""Queues under random policies and histories: against a queue so plain that it must be right, and in a kernel in virtual time.

Places, order and time-outs are what the policy of each level says, whoever is cancelled or expires; every request gets one final
answer, at the moment that is due to it; the counters add up; nothing is left behind.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Client, TestBackend, run, sleeping, write_repository

from kernel import InferenceRequest, Kernel, Reason, RequestState, ServingError
from kernel.config import QueuePolicy
from kernel.requests.request import Batch
from kernel.rules.queueing import RequestQueue

policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(["REJECT", "DELAY"]),
    default_timeout_us=st.sampled_from([0, 20_000, 50_000, 70_000]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 1, 3]),
)


@dataclass(frozen=True)
class Rules:
    """What the config of one model says about its queue."""

    levels: int
    default_level: int
    default: QueuePolicy
    own: dict[int, QueuePolicy]

    def level(self, priority: int) -> int:
        return priority if 0 < priority <= self.levels else max(self.default_level, 1)

    def policy(self, priority: int) -> QueuePolicy:
        return self.own.get(self.level(priority), self.default)

    def timeout(self, priority: int, own_us: int) -> float | None:
        """Return after how many seconds a request expires, None: never."""
        policy = self.policy(priority)
        if not policy.default_timeout_us:
            return None
        shorter = policy.allow_timeout_override and 0 < own_us < policy.default_timeout_us
        return (own_us if shorter else policy.default_timeout_us) / 1e6

    def text(self) -> str:
        text = f"priority_levels: {self.levels} default_priority_level: {self.default_level}\n" if self.levels else ""
        text += "default_queue_policy { " + _text(self.default) + " }\n"
        for level, policy in self.own.items():
            text += f"priority_queue_policy {{ key: {level} value {{ {_text(policy)} }} }}\n"
        return text


def _text(policy: QueuePolicy) -> str:
    return (
        f"timeout_action: {policy.timeout_action} default_timeout_microseconds: {policy.default_timeout_us} "
        f"allow_timeout_override: {str(policy.allow_timeout_override).lower()} max_queue_size: {policy.max_queue_size}"
    )


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    levels = draw(st.sampled_from([0, 1, 2, 3]))
    own = draw(st.dictionaries(st.integers(1, levels), policies, max_size=levels)) if levels else {}
    return Rules(levels, draw(st.integers(1, levels)) if levels else 0, draw(policies), own)


# -- the queue alone -----------------------------------------------------------------------------------------------------


class Plain:
    """The waiting requests in one list; every question is answered by looking at all of them."""

    def __init__(self, how: Rules) -> None:
        self.how = how
        self.waiting: list[InferenceRequest] = []
        self.expires: dict[InferenceRequest, float | None] = {}
        self.delayed: dict[InferenceRequest, int] = {}  # since which of the expiries
        self.count = itertools.count(1)

    def _rank(self, request: InferenceRequest) -> tuple[int, int, int]:
        return self.how.level(request.priority), self.delayed.get(request, 0), request.order

    def order(self) -> list[InferenceRequest]:
        return sorted(self.waiting, key=self._rank)

    def push(self, request: InferenceRequest, now: float) -> bool:
        limit = self.how.policy(request.priority).max_queue_size
        level = self.how.level(request.priority)
        if limit and sum(self.how.level(one.priority) == level for one in self.waiting) >= limit:
            return False
        self.waiting.append(request)
        timeout = self.how.timeout(request.priority, request.timeout_us)
        self.expires[request] = None if timeout is None else now + timeout
        return True

    def gone(self, requests: list[InferenceRequest]) -> None:
        self.waiting = [request for request in self.waiting if request not in requests]

    def expire(self, now: float) -> set[InferenceRequest]:
        """Those that a DELAY policy puts behind go there in the order in which they expire; here each is alone at its moment."""
        rejected = set()
        late = [one for one in self.waiting if (when := self.expires[one]) is not None and when <= now]
        for request in late:
            self.expires[request] = None
            if self.how.policy(request.priority).timeout_action == "REJECT":
                rejected.add(request)
        self.gone(list(rejected))
        return rejected

    def next(self) -> float | None:
        return min((when for one in self.waiting if (when := self.expires[one]) is not None), default=None)


pushes = st.tuples(st.just("push"), st.integers(0, 5), st.sampled_from([0, 0, 10_000, 30_000, 900_000]))
operations = st.lists(
    st.one_of(
        pushes,
        pushes,
        pushes,
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("one")),
        st.tuples(st.just("remove"), st.integers(0, 40)),
        st.tuples(st.just("pick"), st.integers(0, 40), st.integers(1, 3)),
        st.tuples(st.just("back"), st.integers(1, 5)),
        st.tuples(st.just("time"), st.sampled_from([0.001, 0.011, 0.031, 0.1])),
    ),
    min_size=15,  # short ones never come to what is interesting
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(how=rules(), history=operations)
def test_the_queue_is_a_list_that_is_quick(how: Rules, history: list[Any]) -> None:
    queue = RequestQueue(how.levels, how.default_level, how.default, how.own)
    plain = Plain(how)
    now = 1.0
    order = itertools.count(1)
    for step in history:
        match step:
            case "push", priority, timeout_us:
                now += 1e-6  # no two at once: ties have no order that matters
                request = InferenceRequest("m", {}, _ignore, priority=priority, timeout_us=timeout_us)
                request.state, request.order, request.enqueued = RequestState.PENDING, next(order), now
                full = queue.is_full(request)
                try:
                    queue.push(request, now)
                    pushed = True
                except ServingError as error:
                    pushed = False
                    assert "Exceeds maximum queue size" in error.message and error.reason is Reason.REJECTED
                assert plain.push(request, now) is pushed is not full
            case "take", count:
                expected = plain.order()[:count]
                assert queue.take_first(count) == expected
                plain.gone(expected)
            case "one",:
                if plain.waiting:
                    expected = plain.order()[:1]
                    assert queue.take_first(1) == expected
                    plain.gone(expected)
            case "remove", index:
                if plain.waiting:
                    request = plain.waiting[index % len(plain.waiting)]
                    assert queue.remove(request)
                    assert not queue.remove(request)
                    assert request not in queue
                    plain.gone([request])
            case "pick", index, count:
                chosen = plain.order()[index : index + count]
                assert queue.pick(list(chosen)) == chosen
                plain.gone(chosen)
            case "back", count:
                taken = queue.take_first(count)
                queue.push_back(taken)
            case "time", seconds:
                until = now + seconds
                while (when := plain.next()) is not None and when <= until:
                    told = queue.next_expiry()
                    assert told is not None and told <= when  # never late
                    number = next(plain.count)
                    delayed = [one for one in plain.waiting if plain.expires[one] == when]
                    assert set(queue.expire(when)) == plain.expire(when)
                    plain.delayed.update(dict.fromkeys((one for one in delayed if one in plain.waiting), number))
                now = until
                assert queue.expire(now) == []
        assert list(queue) == plain.order()
        assert len(queue) == len(plain.waiting)
        assert all(request in queue for request in plain.waiting)
        since = min((one.enqueued for one in plain.waiting), default=None)
        assert (queue.waiting_since() is None) is (since is None)
        assert len(queue._expiries) <= 2 * len(queue) + 64 + sum(step[0] == "push" for step in history)
    queue.take_first(1000)
    assert list(queue) == [] and not any(level.waiting or level.delayed for level in queue._levels)


def _ignore(response: object, final: bool) -> None:
    pass


# -- in a kernel ---------------------------------------------------------------------------------------------------------

sends = st.tuples(
    st.just("send"), st.integers(1, 3), st.integers(0, 4), st.sampled_from([0, 0, 10_000, 30_000]), st.booleans()
)
histories = st.lists(
    st.one_of(
        sends,
        sends,
        sends,
        st.tuples(st.just("advance"), st.sampled_from([0.0, 0.0103, 0.0307, 0.1])),
        st.tuples(st.just("cancel"), st.integers(0, 40)),
    ),
    min_size=15,
    max_size=50,
)


class World:
    """A model, what was sent to it, and what its scheduler has done."""

    def __init__(self, how: Rules, kernel: Kernel) -> None:
        self.how = how
        self.scheduler = kernel.model("m").scheduler
        self.clock = kernel.clock
        self.client = Client(kernel)
        self.started: dict[InferenceRequest, float] = {}
        start = self.scheduler.start

        def spy(instance: Any, batch: Batch, now: float) -> None:
            self.look(batch)
            start(instance, batch, now)

        self.scheduler.start = spy  # type: ignore[method-assign]

    def expires(self, request: InferenceRequest) -> float | None:
        timeout = self.how.timeout(request.priority, request.timeout_us)
        return None if timeout is None else request.enqueued + timeout

    def look(self, batch: Batch) -> None:
        """What is about to be executed had to be next; what waits on was less urgent."""
        now = self.clock()
        assert batch.size == sum(request.batch_size for request in batch.requests) <= 4
        ranks = [self.rank(request, now) for request in batch.requests]
        assert ranks == sorted(ranks)
        assert all(self.rank(other, now) >= ranks[-1] for other in self.scheduler.queue)
        for request in batch.requests:
            when = self.expires(request)
            assert when is None or now < when or self.how.policy(request.priority).timeout_action == "DELAY"
            self.started[request] = now

    def rank(self, request: InferenceRequest, now: float) -> tuple[int, float, float]:
        """By level, overtaken ones last; among those, in the order in which they expired."""
        when = self.expires(request)
        overtaken = when is not None and when <= now
        return self.how.level(request.priority), when if when is not None and overtaken else 0.0, request.enqueued

    def check_limits(self) -> None:
        waiting = [self.how.level(request.priority) for request in self.scheduler.queue]
        for level in set(waiting):
            limit = self.how.policy(level).max_queue_size
            assert not limit or waiting.count(level) <= limit


@settings(deadline=None, max_examples=100)
@given(
    how=rules(),
    delay_us=st.sampled_from([0, 0, 15_000]),
    preferred=st.sampled_from([2, 4]),
    instances=st.integers(1, 2),
    history=histories,
)
def test_whatever_happens_each_gets_what_its_policy_says(
    how: Rules, delay_us: int, preferred: int, instances: int, history: list[Any]
) -> None:
    config = BASE.replace("count: 1", f"count: {instances}") + (
        f"max_batch_size: 4\ndynamic_batching {{ preferred_batch_size: [ {preferred} ] "
        f"max_queue_delay_microseconds: {delay_us}\n{how.text()} }}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder), config, how, history))


async def story(folder: Path, config: str, how: Rules, history: list[Any]) -> None:
    write_repository(folder, {"m": config})
    async with Kernel(folder, plugins=[TestBackend({"m": sleeping(0.0251)})]) as kernel:
        world = World(how, kernel)
        client = world.client
        names = itertools.count()
        cancelled: set[str] = set()
        for step in history:
            match step:
                case "send", rows, priority, timeout_us, pause:
                    name = str(next(names))
                    client.send("m", name, np.zeros((rows, 2)), priority=priority, timeout_us=timeout_us)
                    if pause:
                        await asyncio.sleep(1e-5)
                case "advance", seconds:
                    await asyncio.sleep(seconds)
                case "cancel", index:
                    name = str(index)
                    if name in client.requests and not client.answers[name]:
                        cancelled.add(name)
                        kernel.cancel(client.requests[name])
            world.check_limits()
        await asyncio.sleep(60)
        assert world.scheduler.queue.size == world.scheduler.in_flight == world.scheduler.pending == 0
        statistics = kernel.statistics("m")[0]
        counts = dict.fromkeys(("ok", "timeout", "full", "cancelled"), 0)
        for name, request in client.requests.items():
            when, words = client.outcome(name)  # asserts that there is one final answer
            if words == "ok":
                counts["ok"] += 1
                assert request in world.started and name not in cancelled
            elif words == "Request timeout expired":
                counts["timeout"] += 1
                expires = world.expires(request)
                assert expires is not None and abs(when + 1000.0 - expires) < 2e-6  # on time, to the microsecond
                assert how.policy(request.priority).timeout_action == "REJECT" and request not in world.started
            elif words.endswith("Exceeds maximum queue size"):
                counts["full"] += 1
                assert how.policy(request.priority).max_queue_size and request not in world.started
            else:
                counts["cancelled"] += 1
                assert name in cancelled
        assert statistics.success.count == counts["ok"]
        assert statistics.failures["REJECTED"] == counts["timeout"]
        assert statistics.failures["CANCELED"] == counts["cancelled"] == len(cancelled)
        assert statistics.fail.count == counts["timeout"] + counts["cancelled"]
        assert world.scheduler.statistics.refused == counts["full"]

"""The rate limiter's rules by themselves: what there is, who may start, and that nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import ServingError
from kernel.rules.rate_limiter import CREDIT, GLOBAL, Contender, RateLimiter, Resource, ResourceLimit, needs_of

R: Resource = (0, "R")


class Instance:
    """A contender that wants to start as long as it is told to."""

    def __init__(self, limiter: RateLimiter, needs: dict[Resource, int] | int = 1, priority: int = 1) -> None:
        self.limiter = limiter
        self.wants, self.urgent, self.looked = True, False, 0
        needs = {R: needs} if isinstance(needs, int) else needs
        self.contender = Contender(limiter, needs, priority, lambda: self.wants, lambda: self.urgent, self.look)
        limiter.enter(self.contender)

    def look(self) -> None:
        self.looked += 1

    def may(self) -> bool:
        """Whether it may start; if not, it waits."""
        if self.limiter.may_start(self.contender):
            return True
        self.limiter.wait(self.contender)
        return False

    def start(self) -> object:
        assert self.may()
        execution = object()
        self.limiter.start(self.contender, execution)
        return execution


# -- what there is ----------------------------------------------------------------------------------------------------------


def test_by_default_there_is_what_the_largest_needs() -> None:
    limiter = RateLimiter()
    small, large = Instance(limiter, 1), Instance(limiter, 4)
    assert limiter.capacity(R) == 4
    limiter.leave(large.contender)
    assert limiter.capacity(R) == 1
    limiter.leave(small.contender)
    assert limiter.capacity(R) == 0


@pytest.mark.parametrize(
    ("limits", "device", "there"),
    [
        (["r:5"], 0, 5),  # without case
        (["R:5"], 7, 5),  # on every device
        (["R:5:1"], 0, 2),  # on another one
        (["R:5:1"], 1, 5),
        (["R:5:1", "R:7"], 1, 5),  # the very device goes before the others
        (["R:7", "R:5:1"], 0, 7),
        (["R:5", "R:6"], 0, 6),  # the last goes before the first
        (["R:5:1"], GLOBAL, 5),  # what all devices share has none
        (["S:5"], 0, 2),
    ],
)
def test_what_the_server_was_told_goes_before(limits: list[str], device: int, there: int) -> None:
    limiter = RateLimiter([ResourceLimit.parse(text) for text in limits])
    Instance(limiter, {(device, "R"): 2})
    assert limiter.capacity((device, "R")) == there


@pytest.mark.parametrize("text", ["", "R", ":1", "R:", "R:x", "R:-1", "R:1:x", "R:1:-2", "R:1:2:3", "R:1.5"])
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form <resource_name>:<count>"):
        ResourceLimit.parse(text)


def test_needs_of_a_group() -> None:
    resources = [("A", False, 2), ("B", True, 1), ("A", False, 3), ("N", False, 0)]
    assert needs_of(resources, 4) == {(4, "A"): 3, (GLOBAL, "B"): 1}


def test_what_could_never_start_is_refused() -> None:
    limiter = RateLimiter([ResourceLimit("R", 2)])
    limiter.check([{R: 2}])
    with pytest.raises(ServingError) as caught:
        limiter.check([{R: 1}, {R: 3}])
    assert caught.value.message == (
        'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model instances, '
        "the minimum required count is 3"
    )


@pytest.mark.parametrize("first", [0, GLOBAL])
def test_what_all_share_is_no_device_s(first: int) -> None:
    limiter = RateLimiter()
    both = [{(first, "R"): 1}, {(GLOBAL if first == 0 else 0, "R"): 1}]
    words = 'Resource "R" is present as both global and device-specific resource in the model configuration.'
    with pytest.raises(ServingError, match=words):
        limiter.check(both)
    Instance(limiter, both[0])
    with pytest.raises(ServingError, match=words):
        limiter.check(both[1:])
    limiter.check([{(GLOBAL, "other"): 1}])


def test_devices_have_their_own() -> None:
    limiter = RateLimiter()
    one, other = Instance(limiter, {(0, "R"): 1}), Instance(limiter, {(1, "R"): 1})
    one.start()
    other.start()


# -- whose turn it is -------------------------------------------------------------------------------------------------------


def test_who_needs_nothing_never_waits() -> None:
    limiter = RateLimiter()
    nothing, waiting = Instance(limiter, {}), Instance(limiter)
    held = Instance(limiter).start()
    assert not waiting.may() and nothing.may()
    limiter.finish(held)
    assert waiting.may()


def test_who_waits_keeps_others_from_what_it_needs() -> None:
    limiter = RateLimiter()
    small, large, other = Instance(limiter, 1), Instance(limiter, 4), Instance(limiter, {R: 1, (0, "S"): 1})
    apart = Instance(limiter, {(0, "T"): 1})
    held = small.start()
    assert not large.may()
    assert not other.may(), "three are there, but the large one has had less"
    assert apart.may(), "of that, the large one wants nothing"
    limiter.finish(held)
    assert next(limiter.ready()) is large.contender


def test_the_ready_come_in_the_order_of_what_they_have_had() -> None:
    limiter = RateLimiter()
    first, second, third = (Instance(limiter) for _ in range(3))
    limiter.finish(first.start())
    limiter.finish(first.start())
    limiter.finish(second.start())
    held = Instance(limiter).start()
    for one in (first, second, third):
        assert not one.may()
    limiter.finish(held)
    order = []
    for contender in limiter.ready():
        order.append(contender)
        execution = object()
        limiter.start(contender, execution)
        limiter.finish(execution)
    assert order == [third.contender, second.contender, first.contender]
    assert not limiter.waiting


def test_who_does_not_want_any_more_stands_in_nobody_s_way() -> None:
    limiter = RateLimiter()
    small, large, last = Instance(limiter, 1), Instance(limiter, 4), Instance(limiter, 1)
    limiter.finish(last.start())
    small.start()
    assert not large.may() and not last.may()
    large.wants = False
    assert last.may()
    assert list(limiter.waiting) == [last.contender]


def test_who_is_told_and_does_not_start_is_not_waited_for() -> None:
    """Its batch is not full yet."""
    limiter = RateLimiter()
    held = Instance(limiter).start()
    first, second = Instance(limiter), Instance(limiter)
    assert not first.may() and not second.may()
    limiter.finish(held)
    assert list(limiter.ready()) == [first.contender, second.contender]


def test_what_an_execution_waits_for_goes_past_those_that_wait() -> None:
    limiter = RateLimiter()
    caller, large, called = Instance(limiter, 1), Instance(limiter, 4), Instance(limiter, 1)
    limiter.finish(called.start())
    caller.start()
    assert not large.may() and not called.may()
    called.urgent = True
    assert called.may()


def test_a_priority_is_a_share() -> None:
    limiter = RateLimiter()
    instances = [Instance(limiter, priority=priority) for priority in (0, 1, 2, 4)]
    counts = dict.fromkeys(instances, 0)
    execution = instances[0].start()
    for one in instances:
        one.may()
    for _ in range(110):
        limiter.finish(execution)
        contender = next(limiter.ready())
        (one,) = [one for one in instances if one.contender is contender]
        counts[one] += 1
        execution = one.start()
        one.may()
    assert [round(count / 10) for count in counts.values()] == [4, 4, 2, 1]


def test_who_comes_late_catches_up_only_so_far() -> None:
    limiter = RateLimiter()
    old, late = Instance(limiter), Instance(limiter)
    for _ in range(10 * CREDIT):
        limiter.finish(old.start())
    execution = old.start()
    turns = []
    for _ in range(2 * CREDIT):
        assert not old.may() and not late.may()
        limiter.finish(execution)
        contender = next(limiter.ready())
        turns.append(contender is late.contender)
        limiter.start(contender, execution := object())
    assert turns[: CREDIT - 1] == [True] * (CREDIT - 1)
    assert 0 < turns.count(False), "the one that was there first gets its turns again"


def test_who_leaves_gives_everything_back() -> None:
    limiter = RateLimiter()
    one, other = Instance(limiter), Instance(limiter)
    one.start()
    assert not other.may()
    limiter.leave(one.contender)
    assert other.may() and not limiter.holding and not limiter.held(R)


# -- random histories -------------------------------------------------------------------------------------------------------

NAMES = "ABC"
needs = st.dictionaries(st.sampled_from([(0, name) for name in NAMES]), st.integers(1, 3), max_size=3)
steps = st.lists(st.tuples(st.sampled_from(["want", "want", "finish", "forget"]), st.integers(0, 9)), max_size=80)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(needs, st.integers(0, 4)), min_size=1, max_size=5), steps, st.booleans())
def test_never_more_than_there_is_and_nobody_is_forgotten(
    members: list[tuple[dict[Resource, int], int]], history: list[tuple[str, int]], limited: bool
) -> None:
    limiter = RateLimiter([ResourceLimit("A", 4)] if limited else ())
    instances = [Instance(limiter, dict(needs), priority) for needs, priority in members]
    running: dict[object, Instance] = {}
    wanting: dict[Instance, int] = {}

    def start(one: Instance) -> None:
        running[one.start()] = one
        wanting.pop(one, None)
        one.wants = one in wanting
        for resource in [(0, name) for name in NAMES]:
            held = sum(other.contender.needs.get(resource, 0) for other in running.values())
            assert held == limiter.held(resource) <= limiter.capacity(resource)

    def pump() -> None:
        for contender in limiter.ready():
            start(next(one for one in instances if one.contender is contender))

    for one in instances:
        one.wants = False
    for what, index in history:
        if what == "want":
            one = instances[index % len(instances)]
            if one not in wanting and one not in running.values():
                wanting[one] = one.wants = True
                if one.may():
                    start(one)
        elif what == "finish" and running:
            execution = list(running)[index % len(running)]
            del running[execution]
            limiter.finish(execution)
        elif what == "forget" and wanting:
            one = list(wanting)[index % len(wanting)]
            del wanting[one]
            one.wants = False
        pump()
        # Whoever waits, waits for something that is held, or behind somebody who does.
        assert not wanting or running
    for _ in range(len(instances) + 1):
        for execution in list(running):
            del running[execution]
            limiter.finish(execution)
            pump()
    assert not wanting and not running and not limiter.holding and not limiter.waiting
    assert all(not limiter.held((0, name)) for name in NAMES)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(needs.filter(bool), st.integers(0, 3)), min_size=2, max_size=4))
def test_nobody_starves_however_much_the_others_want(members: list[tuple[dict[Resource, int], int]]) -> None:
    """All want all the time: each gets its turn again and again."""
    limiter = RateLimiter()
    instances = [Instance(limiter, dict(needs), priority) for needs, priority in members]
    counts = dict.fromkeys(instances, 0)
    running: list[tuple[object, Instance]] = []
    for turn in range(120):
        for one in instances[turn % len(instances) :] + instances[: turn % len(instances)]:
            if one not in [other for _, other in running] and one.may():
                running.append((one.start(), one))
                counts[one] += 1
        execution, _ = running.pop(0)
        limiter.finish(execution)
    assert min(counts.values()) >= 3, counts

"""The books of a simulated server: what every scheduler that there ever was has taken in, given out and counted.

Looked at when nothing is on its way any more. Reads what the core keeps for itself: a leak has no public name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kernel.observability.statistics import StatisticsCounter
from kernel.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["look_at_books", "watched_schedulers"]

_there: list[Scheduler] = []


@contextlib.contextmanager
def watched_schedulers(world: World) -> Iterator[None]:
    """Count what comes to each scheduler that is made meanwhile."""
    init, enqueue, failed = Scheduler.__init__, Scheduler.enqueue, StatisticsCounter.failed

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        self.arrived = self.doubled = 0
        _there.append(self)
        init(self, *args, **kwargs)

    def arrived(self: Any, request: Any) -> None:
        self.arrived += 1
        enqueue(self, request)

    def counted(self: StatisticsCounter, reason: Any, seconds: float, times: int = 1) -> None:
        if times > 1:
            _doubled[id(self)] = _doubled.get(id(self), 0) + times - 1
        failed(self, reason, seconds, times)

    _there.clear()
    _doubled: dict[int, int] = {}
    world.doubled = _doubled
    Scheduler.__init__ = made  # type: ignore[method-assign]
    Scheduler.enqueue = arrived  # type: ignore[method-assign]
    StatisticsCounter.failed = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Scheduler.__init__, Scheduler.enqueue = init, enqueue  # type: ignore[method-assign]
        StatisticsCounter.failed = failed  # type: ignore[method-assign]
        _there.clear()


def look_at_books(world: World) -> None:
    kernel: Any = world.kernel
    for scheduler in _there:
        _look(world, scheduler)
    world.expect(not kernel.inflight(), f"requests are in flight: {kernel.inflight()[:2]}")
    world.expect(kernel.turn.depth == 0 and not kernel.turn.cant_wait, "an execution is thought to go on")
    world.expect(kernel.memory.receive.used == kernel.memory.send.used == 0, "memory is not given back")
    world.expect(not world.going_on, "a sequence executes for ever")
    if kernel.supervision.limits is not None:
        limiter = kernel.supervision.limits.limiter
        world.expect(not limiter.holding and not any(limiter._held.values()), "resources are not given back")


def _look(world: World, scheduler: Any) -> None:
    plan = world.plans[scheduler.name]
    life, queue = scheduler.life, scheduler.queue
    expect = world.expect
    counts = scheduler.in_flight, scheduler.pending, len(queue), queue.size
    expect(counts == (0, 0, 0, 0), f"requests are left: in flight, pending, queue {counts}", plan)
    there = (*scheduler.instances, *scheduler.pool.leaving)
    expect(not any(instance.running or instance.outstanding for instance in there), "an instance is busy for ever", plan)
    expect(not scheduler.pool.leaving, "an instance is leaving for ever", plan)
    expect(not life.open and not life.ordering, "an answer is owed for ever", plan)
    expect(not life._touched, "an execution is remembered for ever", plan)
    expect(life.deadlines.due(world.loop.now) is None, "a deadline has passed over", plan)
    if plan.sequential:
        sequencer = queue._sequencer
        expect(not sequencer.alive and not sequencer._sequence_of and not sequencer.backlogged, "a sequence is left", plan)
        expect(not queue._memories, "a sequence's state is left", plan)
    if getattr(scheduler.pool, "_urgent", None):
        world.broken("a call is urgent for ever", plan)
    statistics = scheduler.statistics
    statistics.settle()
    fails = statistics.fail - world.doubled.get(id(statistics), 0)
    counted = statistics.success - statistics.hits + fails + statistics.refused
    expect(
        counted == scheduler.arrived,
        f"{scheduler.arrived} requests have come; success {statistics.success}, of them {statistics.hits} kept, "
        f"fail {fails}, refused {statistics.refused}",
        plan,
    )
    expect(statistics.fail == sum(statistics.failures.values()), "failures don't add up", plan)
    rows = sum(size * int(times[0]) for size, times in statistics.batches.items())
    executions = sum(int(times[0]) for times in statistics.batches.values())
    expect(executions == statistics.execution_count, f"{executions} executions by size, {statistics.execution_count}", plan)
    expect(rows >= 0, "rows", plan)

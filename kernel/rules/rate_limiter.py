"""Who may execute now, where executions need resources of which there are only so many. Pure: no clock, no loop.

The law: what is held of a resource never exceeds what there is when it is taken; whoever may start next is who will then have had
the least (`priority × executions`, that one included; of equals the one with the larger share, then who came first), and who
waits for resources keeps others from taking them first, so nobody waits for ever. An instance says what it needs as a Contender;
the scheduler (limited_pool.py) asks, takes and gives back. (Contract: scheduling, section 7.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernel.errors import Code, ServingError

__all__ = ["Contender", "RateLimiter", "Resource", "ResourceLimit", "needs_of"]

#: Stands for the device of a resource that all devices share.
GLOBAL = -1

#: A device, or GLOBAL, and a name.
Resource = tuple[int, str]

#: By how many executions one who comes late may be behind the others and still catch up: enough that the shares come out right,
#: not so many that a model that slept, or has just been loaded, keeps all others from executing until it has had as many as they.
CREDIT = 64


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """How much there is of a resource, whatever the models say: on one device, or (None) wherever it is asked for."""

    name: str
    count: int
    device: int | None = None

    @classmethod
    def parse(cls, text: str) -> ResourceLimit:
        """Read `<name>:<count>[:<device>]`, as `--rate-limit-resource` has it. Raises ValueError with what is wrong."""
        match = re.fullmatch(r"([^:]+):([0-9]{1,9})(?::([0-9]{1,9}))?", text)
        if match is None:
            raise ValueError(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
                f"Got {text} — "
                f"'{text}' is not of the form <resource_name>:<count> or <resource_name>:<count>:<device>, "
                "with a count and a device that are integers of at least 0"
            )
        name, count, device = match.groups()
        return cls(name, int(count), None if device is None else int(device))

    def meets(self, resource: Resource) -> bool:
        """Whether this is said of `resource`. Names are compared without case; what all devices share has none."""
        device, name = resource
        return name.casefold() == self.name.casefold() and (device == GLOBAL or self.device in (None, device))


def needs_of(resources: Iterable[tuple[str, bool, int]], device: int) -> dict[Resource, int]:
    """Return how much of which resource an instance on `device` holds while it executes; `resources` as in its group."""
    needs: dict[Resource, int] = {}
    for name, is_global, count in resources:
        resource = (GLOBAL if is_global else device, name)
        needs[resource] = max(count, needs.get(resource, 0))
    return {resource: count for resource, count in needs.items() if count}


class Contender:
    """An instance as the limiter sees it: it contends for resources with the others.

    `rank`: its priority times its executions, the next one included; who has the lowest is the next. With those so far alone all
    would begin as equals, and who has the smallest share would be ahead of it by one execution for ever. `step`: its priority.
    `wants`: whether it would start an execution if it might. `urgent`: whether somebody who executes waits for that: what that
    one holds, others may be waiting for. `look`: called when it may start.
    """

    __slots__ = ("limiter", "look", "needs", "rank", "since", "step", "urgent", "wants")

    def __init__(
        self,
        limiter: RateLimiter,
        needs: Mapping[Resource, int],
        priority: int,
        wants: Callable[[], bool],
        urgent: Callable[[], bool],
        look: Callable[[], None],
    ) -> None:
        self.limiter = limiter
        self.needs = needs
        self.step = max(1, priority)
        self.wants = wants
        self.urgent = urgent
        self.look = look
        self.rank = self.step
        self.since = 0  # position in the order of arrival among those who wait

    def would_starve(self, stuck: Callable[[Any], bool]) -> bool:
        """Whether it could not start even if all executions had ended but those that are `stuck`."""
        limiter = self.limiter
        for resource, count in self.needs.items():
            held = sum(
                other.needs[resource]
                for execution, other in limiter.holding.items()
                if resource in other.needs and stuck(execution)
            )
            if held and held + count > limiter.capacity(resource):
                return True
        return False


class RateLimiter:
    """The resources of one kernel. `holding`: the executions that hold some, and for whom. `waiting`: who can't start yet."""

    def __init__(self, limits: Sequence[ResourceLimit] = ()) -> None:
        self._limits = tuple(limits)
        self._members: dict[Contender, None] = {}
        self._capacity: dict[Resource, int] = {}
        self._held: dict[Resource, int] = {}
        self._arrivals = 0
        self.holding: dict[object, Contender] = {}
        self.waiting: dict[Contender, None] = {}

    # -- what there is -------------------------------------------------------------------------------------------------

    def check(self, needs: Sequence[Mapping[Resource, int]]) -> None:
        """Refuse what could never start, or contradicts what is loaded. Raises ServingError in the reference's words."""
        largest = dict(self._largest())
        for one in needs:
            for resource, count in one.items():
                largest[resource] = max(count, largest.get(resource, 0))
        shared = {name for device, name in largest if device == GLOBAL}
        for one in needs:
            for device, name in one:
                if name in shared and any(other == name and where != GLOBAL for where, other in largest):
                    raise ServingError(
                        Code.INVALID_ARG,
                        f'Resource "{name}" is present as both global and device-specific resource in the model configuration.',
                    )
                limit = self._limit((device, name))
                if limit is not None and limit < largest[device, name]:
                    raise ServingError(
                        Code.INVALID_ARG,
                        f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more model '
                        f"instances, the minimum required count is {largest[device, name]}",
                    )

    def enter(self, contender: Contender) -> None:
        """Let an instance take part."""
        self._members[contender] = None
        self._measure()

    def leave(self, contender: Contender) -> None:
        """Let an instance go, with what its executions still hold."""
        self._members.pop(contender, None)
        self.waiting.pop(contender, None)
        for execution in [execution for execution, other in self.holding.items() if other is contender]:
            self.finish(execution)
        self._measure()

    def capacity(self, resource: Resource) -> int:
        """Return how much there is of a resource: what the server was told, or the most that one instance needs."""
        return self._capacity.get(resource, 0)

    def held(self, resource: Resource) -> int:
        return self._held.get(resource, 0)

    def _limit(self, resource: Resource) -> int | None:
        """Return what the server was told; what was said of the very device, and what was said last, goes before the rest."""
        met = [limit for limit in self._limits if limit.meets(resource)]
        met.sort(key=lambda limit: limit.device is not None)
        return met[-1].count if met else None

    def _largest(self) -> dict[Resource, int]:
        largest: dict[Resource, int] = {}
        for contender in self._members:
            for resource, count in contender.needs.items():
                largest[resource] = max(count, largest.get(resource, 0))
        return largest

    def _measure(self) -> None:
        self._capacity = {}
        for resource, count in self._largest().items():
            limit = self._limit(resource)
            self._capacity[resource] = count if limit is None else limit

    # -- whose turn it is ----------------------------------------------------------------------------------------------

    def may_start(self, contender: Contender) -> bool:
        """Whether what it needs is there, and nobody waits for any of it whose turn is before."""
        needs = contender.needs
        for resource, count in needs.items():
            if self.held(resource) + count > self.capacity(resource):
                return False
        if not needs or contender.urgent():
            return True
        for other in list(self.waiting):
            if other is contender or other.look == contender.look:
                continue  # instances of one model execute the same requests: it doesn't matter which begins
            if _before(other, contender) and not needs.keys().isdisjoint(other.needs):
                if other.wants():
                    return False
                del self.waiting[other]  # it wanted to start when it was entered, and doesn't any more
        return True

    def wait(self, contender: Contender) -> None:
        """Note that it wants to start and may not; it is told when it may (`ready`)."""
        if contender in self.waiting:
            return
        self._arrivals += 1
        contender.since = self._arrivals
        rivals = [
            other.rank
            for group in (self.waiting, self.holding.values())
            for other in group
            if other is not contender and not contender.needs.keys().isdisjoint(other.needs)
        ]
        if rivals:
            contender.rank = max(contender.rank, min(rivals) - CREDIT * contender.step)
        self.waiting[contender] = None

    def start(self, contender: Contender, execution: object) -> None:
        """Take what it needs, until `finish`."""
        self.waiting.pop(contender, None)
        contender.since = 0
        contender.rank += contender.step
        if contender.needs:
            self.holding[execution] = contender
            for resource, count in contender.needs.items():
                self._held[resource] = self.held(resource) + count

    def finish(self, execution: object) -> None:
        """Give back what an execution holds, if it holds anything."""
        contender = self.holding.pop(execution, None)
        if contender is None:
            return
        for resource, count in contender.needs.items():
            self._held[resource] -= count
            if not self._held[resource]:
                del self._held[resource]

    def ready(self) -> Iterator[Contender]:
        """Yield those who wait and may start, in order. Whoever gets one lets it look, before asking for the next."""
        for contender in sorted(self.waiting, key=lambda one: (one.rank, one.step, one.since)):
            if contender not in self.waiting:
                continue
            if not contender.wants():
                del self.waiting[contender]
            elif self.may_start(contender):
                del self.waiting[contender]  # if it does not start after all, it is not to stand in the way of the next
                yield contender


def _before(one: Contender, other: Contender) -> bool:
    return (one.rank, one.step, one.since) < (other.rank, other.step, other.since or one.since + 1)

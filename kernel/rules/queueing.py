"""The waiting requests of one model, in the order in which they may be taken. Pure: `now` is an argument.

The law: priority level first, within a level first come first served, within a level those that a DELAY policy has
overtaken come last. Whoever is cancelled or expires leaves the queue at once. Each operation costs the same whether
ten or a hundred thousand wait.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import chain

from kernel.config import QueuePolicy
from kernel.errors import Code, Reason, ServingError
from kernel.requests import InferenceRequest

__all__ = ["RequestQueue"]

SLACK = 64  # time-outs of requests that have left, kept at most beyond twice as many as wait


class _Level:
    """One priority level. An OrderedDict keeps the order, and is left in constant time.

    All that wait have the same time-out, but for those that chose a shorter one: so they expire in the order of the line, and
    its head says when that is. What expires out of turn is in the queue's heap.
    """

    __slots__ = ("delayed", "limit", "may_override", "number", "rejects", "timeout", "timeout_us", "waiting")

    def __init__(self, number: int, policy: QueuePolicy) -> None:
        self.number = number
        self.limit = policy.max_queue_size
        self.timeout_us = policy.default_timeout_us
        self.timeout = policy.default_timeout_us / 1e6
        self.may_override = policy.allow_timeout_override
        self.rejects = policy.timeout_action == "REJECT"
        self.waiting: OrderedDict[InferenceRequest, None] = OrderedDict()
        self.delayed: OrderedDict[InferenceRequest, None] = OrderedDict()

    def is_shortened_by(self, request: InferenceRequest) -> bool:
        """Whether the request's own time-out holds, not the level's."""
        return self.may_override and 0 < request.timeout_us < self.timeout_us

    @property
    def is_full(self) -> bool:
        return bool(self.limit) and len(self.waiting) + len(self.delayed) >= self.limit


def _by_number(level: _Level) -> int:
    return level.number


class RequestQueue:
    """Queue of pending requests with priority levels, a size limit and time-outs.

    `levels` 0 means no priorities: one level, the request's priority is ignored. With levels, a priority of 0 or above the
    number of levels means `default_level` (reference behaviour). `no_policy`: neither time-outs, nor limits, nor priorities
    apply; then work may be handed over early. `timed`: somebody may have waited too long one day. `room`: while fewer wait than
    this, no level is full.
    """

    __slots__ = (
        "_count", "_default", "_expiries", "_levels", "_line", "_numbers", "_one_line", "_policies", "_policy", "no_policy",
        "room", "size", "timed",
    )  # fmt: skip

    def __init__(
        self,
        levels: int = 0,
        default_level: int = 0,
        default_policy: QueuePolicy | None = None,
        policies: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        self._policy = default_policy or QueuePolicy()
        self._policies = (policies or {}) if levels else {}
        self._count = levels
        self._default = max(default_level, 1)
        self._levels: list[_Level] = []  # those that somebody has come to, the most urgent first
        self._numbers: dict[int, _Level] = {}
        self.timed = False
        self.room = math.inf
        self._line = self._make(self._default).waiting
        self._one_line = levels <= 1 and not self.timed  # then all who wait are in `_line`, in their order
        self._expiries: list[tuple[float, int, InferenceRequest]] = []  # of those that expire out of turn; some are stale
        self.no_policy = levels <= 1 and not (self._levels[0].limit or self._levels[0].timeout)
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[InferenceRequest]:
        """Yield the waiting requests in the order in which they may be taken."""
        if self._one_line:
            return iter(self._line)
        return chain.from_iterable(self._lines())

    def __contains__(self, request: object) -> bool:
        assert isinstance(request, InferenceRequest), request
        level = self._level(request)
        return request in level.waiting or request in level.delayed

    def push(self, request: InferenceRequest, now: float) -> None:
        """Append `request`. Raises ServingError(UNAVAILABLE) when its level is full.

        The time-out is the level's default, or the request's own where the policy allows it and it is the shorter.
        """
        if self.no_policy:
            self._line[request] = None
            self.size += 1
            return
        priority = request.priority
        level = self._numbers.get(priority if 0 < priority <= self._count else self._default) or self._level(request)
        waiting, limit, timeout = level.waiting, level.limit, level.timeout
        if limit and len(waiting) + len(level.delayed) >= limit:
            raise ServingError(Code.UNAVAILABLE, f"{request.log_id}Exceeds maximum queue size", Reason.REJECTED)
        waiting[request] = None
        self.size += 1
        if timeout:
            if level.is_shortened_by(request):
                request.expires = now + request.timeout_us / 1e6
                heapq.heappush(self._expiries, (request.expires, request.order, request))
            else:
                request.expires = now + timeout

    def level_of(self, request: InferenceRequest) -> int:
        """Return the number of the level in which a request waits; the lower go first."""
        return request.priority if 0 < request.priority <= self._count else self._default

    def patience_of(self, request: InferenceRequest) -> float:
        """Return for how many seconds a request that comes now may wait before it is rejected, 0.0 for any time."""
        if self.no_policy:
            return 0.0
        level = self._level(request)
        if not level.rejects:
            return 0.0
        return request.timeout_us / 1e6 if level.is_shortened_by(request) else level.timeout

    @property
    def delays(self) -> bool:
        """Whether some that have waited too long are overtaken by those behind them."""
        policies = (self._policy, *self._policies.values())
        return any(policy.default_timeout_us and policy.timeout_action != "REJECT" for policy in policies)

    def is_full(self, request: InferenceRequest) -> bool:
        """Whether `push` would refuse the request."""
        return not self.no_policy and self._level(request).is_full

    def push_back(self, requests: list[InferenceRequest]) -> None:
        """Put requests that were taken, but not begun, back where they came from: in front of their level, in this order."""
        for request in reversed(requests):
            level = self._level(request)
            overtaken = level.timeout and request.expires is None
            line = level.delayed if overtaken else level.waiting
            line[request] = None
            line.move_to_end(request, last=False)
            if request.expires is not None:
                heapq.heappush(self._expiries, (request.expires, request.order, request))
        self.size += len(requests)

    def take_first(self, count: int) -> list[InferenceRequest]:
        """Remove and return the first `count` requests."""
        if self._one_line and count <= self.size:
            self.size -= count
            pop = self._line.popitem
            return [pop(last=False)[0]] if count == 1 else [pop(last=False)[0] for _ in range(count)]
        taken: list[InferenceRequest] = []
        for line in self._lines():
            missing = count - len(taken)
            if missing >= len(line):
                taken += line
                line.clear()
            else:
                pop = line.popitem
                taken += [pop(last=False)[0] for _ in range(missing)]
                break
        self.size -= len(taken)
        if self._expiries:
            self._sweep()
        return taken

    def pick(self, requests: list[InferenceRequest]) -> list[InferenceRequest]:
        """Remove these requests, wherever they stand, and return them."""
        for request in requests:
            self.remove(request)
        return requests

    def remove(self, request: InferenceRequest) -> bool:
        """Take `request` out, wherever it stands; False when it isn't waiting here."""
        level = self._level(request)
        for line in (level.waiting, level.delayed):
            if request in line:
                del line[request]
                self.size -= 1
                if self._expiries:
                    self._sweep()
                return True
        return False

    def expire(self, now: float) -> list[InferenceRequest]:
        """Return the requests whose time-out has passed and that are to be rejected, removed from the queue.

        Where the policy says DELAY they stay, behind all others of their level, and never expire again.
        """
        late: list[tuple[float, int, InferenceRequest]] = []
        heap = self._expiries
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)
            waiting = self._level(entry[2]).waiting
            if entry[2] in waiting:
                del waiting[entry[2]]
                late.append(entry)
        for level in self._levels:
            if level.timeout:
                waiting = level.waiting
                while waiting and (request := next(iter(waiting))).expires is not None and request.expires <= now:
                    del waiting[request]
                    late.append((request.expires, request.order, request))
        rejected: list[InferenceRequest] = []
        late.sort()
        for _, _, request in late:
            level = self._level(request)
            request.expires = None
            if level.rejects:
                rejected.append(request)
            else:
                level.delayed[request] = None
        self.size -= len(rejected)
        return rejected

    def next_expiry(self) -> float | None:
        """Return when `expire` has to be called at the latest, or None. May be early, never late."""
        earliest = self._expiries[0][0] if self._expiries else None
        for level in self._levels:
            if level.timeout and level.waiting:
                expires = next(iter(level.waiting)).expires
                if earliest is None or (expires is not None and expires < earliest):
                    earliest = expires
        return earliest

    def waiting_since(self) -> float | None:
        """Return when the first of each line was enqueued, the earliest of them; None while nobody waits."""
        return min((next(iter(line)).enqueued for line in self._lines()), default=None)

    def _lines(self) -> list[OrderedDict[InferenceRequest, None]]:
        """Return the lines in which somebody waits, in the order in which they are served."""
        return [line for level in self._levels for line in (level.waiting, level.delayed) if line]

    def _level(self, request: InferenceRequest) -> _Level:
        number = self.level_of(request)
        return self._numbers.get(number) or self._make(number)

    def _make(self, number: int) -> _Level:
        """Return a level that nobody has come to before: a config may say that there are millions."""
        level = self._numbers[number] = _Level(number, self._policies.get(number, self._policy))
        self.timed = self.timed or bool(level.timeout)
        if level.limit:
            self.room = min(self.room, level.limit)
        insort(self._levels, level, key=_by_number)
        return level

    def _sweep(self) -> None:
        """Drop the entries of requests that have left once most of the heap is theirs: an entry keeps its request alive."""
        if len(self._expiries) > 2 * self.size + SLACK:
            self._expiries = [entry for entry in self._expiries if entry[2] in self._level(entry[2]).waiting]
            heapq.heapify(self._expiries)

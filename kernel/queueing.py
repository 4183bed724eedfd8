"""The waiting requests of one model, in the order in which they may be taken. Pure: `now` is an argument.

The law: priority level first, within a level first come first served, within a level those that a DELAY policy has
overtaken come last. Whoever is cancelled or expires gives its place back at once. Each operation costs the same whether
ten or a hundred thousand wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from kernel.config import QueuePolicy
from kernel.errors import Code, Reason, ServingError
from kernel.request import InferenceRequest, RequestState

__all__ = ["RequestQueue"]


class _Level:
    """One priority level. An OrderedDict keeps the order and gives a place back in constant time."""

    __slots__ = ("delayed", "limit", "may_override", "rejects", "timeout", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.limit = policy.max_queue_size
        self.timeout = policy.default_timeout_us / 1e6
        self.may_override = policy.allow_timeout_override
        self.rejects = policy.timeout_action == "REJECT"
        self.waiting: OrderedDict[InferenceRequest, None] = OrderedDict()
        self.delayed: OrderedDict[InferenceRequest, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.delayed)

    @property
    def is_full(self) -> bool:
        return bool(self.limit) and len(self) >= self.limit


class RequestQueue:
    """Queue of pending requests with priority levels, a size limit and time-outs.

    `levels` 0 means no priorities: one level, the request's priority is ignored. With levels, a priority of 0 or above the
    number of levels means `default_level` (reference behaviour).
    """

    __slots__ = ("_default", "_expiries", "_levels", "_line", "_timed", "plain", "size")

    def __init__(
        self,
        levels: int = 0,
        default_level: int = 0,
        default_policy: QueuePolicy | None = None,
        policies: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        default = default_policy or QueuePolicy()
        policies = policies or {}
        if levels:
            self._levels = [_Level(policies.get(level, default)) for level in range(1, levels + 1)]
        else:
            self._levels = [_Level(default)]
        self._default = max(default_level, 1) - 1
        self.size = 0
        self._expiries: list[tuple[float, int, InferenceRequest]] = []
        self._timed = 0  # entries of _expiries that still wait
        #: True when neither time-outs, nor limits, nor priorities apply: then work may be handed over early.
        self._line = self._levels[0].waiting  # all there is then
        self.plain = len(self._levels) == 1 and not self._levels[0].limit and not self._levels[0].timeout

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[InferenceRequest]:
        """Yield the waiting requests in the order in which they may be taken."""
        for level in self._levels:
            yield from level.waiting
            yield from level.delayed

    def push(self, request: InferenceRequest, now: float) -> None:
        """Append `request`. Raises ServingError(UNAVAILABLE) when its level is full.

        The time-out is the level's default, or the request's own where the policy allows it and it is the shorter.
        """
        if self.plain:
            self._line[request] = None
            self.size += 1
            return
        level = self._level(request)
        if level.is_full:
            raise ServingError(Code.UNAVAILABLE, f"{request.log_id}Exceeds maximum queue size", Reason.REJECTED)
        level.waiting[request] = None
        self.size += 1
        timeout = level.timeout
        if timeout:
            own = request.timeout_us / 1e6
            if level.may_override and 0 < own < timeout:
                timeout = own
            request.expires = now + timeout
            heapq.heappush(self._expiries, (request.expires, request.order, request))
            self._timed += 1

    def is_full(self, request: InferenceRequest) -> bool:
        """Whether `push` would refuse the request."""
        return not self.plain and self._level(request).is_full

    def push_back(self, requests: list[InferenceRequest]) -> None:
        """Put requests that were taken, but not begun, back where they came from: in front of their level, in this order."""
        for request in reversed(requests):
            level = self._level(request)
            level.waiting[request] = None
            level.waiting.move_to_end(request, last=False)
            self.size += 1
            if request.expires is not None:
                heapq.heappush(self._expiries, (request.expires, request.order, request))
                self._timed += 1

    def take(self, count: int) -> list[InferenceRequest]:
        """Remove and return the first `count` requests."""
        taken: list[InferenceRequest] = []
        for level in self._levels:
            for line in (level.waiting, level.delayed):
                while line and len(taken) < count:
                    taken.append(line.popitem(last=False)[0])
        self.size -= len(taken)
        if self._expiries:
            self._timed -= sum(request.expires is not None for request in taken)
            self._sweep(taken)
        return taken

    def take_one(self) -> InferenceRequest:
        """Remove and return the first request; the queue isn't empty."""
        if self.plain:
            self.size -= 1
            return self._line.popitem(last=False)[0]
        return self.take(1)[0]

    def remove(self, request: InferenceRequest) -> bool:
        """Take `request` out, wherever it stands; False when it isn't waiting here."""
        level = self._level(request)
        for line in (level.waiting, level.delayed):
            if request in line:
                del line[request]
                self.size -= 1
                if request.expires is not None:
                    self._timed -= 1
                    self._sweep([request])
                return True
        return False

    def expire(self, now: float) -> list[InferenceRequest]:
        """Return the requests whose time-out has passed and that are to be rejected, removed from the queue.

        Where the policy says DELAY they stay, behind all others of their level, and never expire again.
        """
        rejected: list[InferenceRequest] = []
        heap = self._expiries
        while heap and heap[0][0] <= now:
            request = heapq.heappop(heap)[2]
            if request.expires is None or request.state is not RequestState.PENDING:
                continue
            level = self._level(request)
            if request not in level.waiting:
                continue
            self._timed -= 1
            request.expires = None
            del level.waiting[request]
            if level.rejects:
                self.size -= 1
                rejected.append(request)
            else:
                level.delayed[request] = None
        return rejected

    def next_expiry(self) -> float | None:
        """Return when `expire` has to be called at the latest, or None. May be early, never late."""
        return self._expiries[0][0] if self._expiries else None

    def _level(self, request: InferenceRequest) -> _Level:
        levels = self._levels
        if len(levels) == 1:
            return levels[0]
        priority = request.priority
        return levels[priority - 1 if 0 < priority <= len(levels) else self._default]

    def _sweep(self, gone: list[InferenceRequest]) -> None:
        """Forget the time-outs of those that left; rebuild the heap once most of it is stale, so that it stays small."""
        for request in gone:
            request.expires = None
        if len(self._expiries) > 2 * self._timed + 64:
            self._expiries = [entry for entry in self._expiries if entry[2].expires is not None]
            heapq.heapify(self._expiries)

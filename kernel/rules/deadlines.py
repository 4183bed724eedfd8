"""The deadlines of one model's requests: who is due, and when to look again. Pure: `now` is an argument.

The law: a request that has its answer is not kept alive by its deadline for longer than a few others live. Answered ones
stay in the heap until they are due or most of it is stale; then it is built anew. Knows nothing of what being late means.
"""

from __future__ import annotations

import heapq

from kernel.requests import InferenceRequest, RequestState

__all__ = ["Deadlines"]

RELEASED = RequestState.RELEASED

SLACK = 64  # answered requests that are kept at most beyond as many as are alive


class Deadlines:
    """The requests that have a deadline and no final answer yet, the earliest first."""

    __slots__ = ("_alive", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, InferenceRequest]] = []
        self._alive = 0

    def __len__(self) -> int:
        return self._alive

    def add(self, request: InferenceRequest) -> None:
        """Take up a request that has a deadline."""
        assert request.deadline is not None
        heapq.heappush(self._heap, (request.deadline, request.order, request))
        self._alive += 1

    def released(self) -> None:
        """Take note that one of the requests has just been given its final answer."""
        self._alive -= 1
        if len(self._heap) > 2 * self._alive + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].state is not RELEASED]
            heapq.heapify(self._heap)

    def due(self, now: float) -> InferenceRequest | None:
        """Return a request without an answer whose deadline has passed; the caller gives it one. None: there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            request = heapq.heappop(heap)[2]
            if request.state is not RELEASED:
                return request
        return None

    def next(self) -> float | None:
        """Return when to ask again at the latest, or None. May be early, never late."""
        return self._heap[0][0] if self._heap else None

"""Answers in the order in which their executions began: `preserve_ordering` of a dynamic batcher. A stage of lifecycle.py.

The law: an execution's own answer goes out when all requests that began before it have theirs. Answers that are none of an
execution (a deadline, a cancelled client) do not wait, and hold nobody up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from kernel.instances import ModelInstance
from kernel.requests import Batch, InferenceRequest, InferenceResponse, RequestState

__all__ = ["Ordering"]

PENDING, RELEASED = RequestState.PENDING, RequestState.RELEASED


class Ordering:
    """The requests of one model that have begun, in that order, until they are released by `release`."""

    def __init__(self, release: Callable[[InferenceRequest, InferenceResponse | None], None]) -> None:
        self._release = release
        self._begun: deque[InferenceRequest] = deque()
        self._outcomes: dict[InferenceRequest, InferenceResponse] = {}  # answers that wait for those before them

    def __iter__(self) -> Iterator[InferenceRequest]:
        return iter(self._begun)

    def __len__(self) -> int:
        return len(self._begun)

    def holds(self, request: InferenceRequest) -> bool:
        """Whether there is an answer to the request, which waits for those before it."""
        return request in self._outcomes

    def started(self, instance: ModelInstance, batch: Batch) -> None:
        """An execution begins. That of a warmup is in nobody's order."""
        if not instance.in_warmup:
            self._begun.extend(batch.requests)

    def put_back(self) -> None:
        """Executions have not begun after all: their requests are PENDING again."""
        self._begun = deque(request for request in self._begun if request.state is not PENDING)

    def answer(self, request: InferenceRequest, response: InferenceResponse) -> None:
        """Release with the model's own answer, when those that began before have theirs. The first one is it."""
        if request.batch is not None and request.batch.instance.in_warmup:
            self._release(request, response)
            return
        if request not in self._outcomes:  # a sender may have answered before the execution has, or twice
            self._outcomes[request] = response
            self._let_out()

    def released(self, request: InferenceRequest) -> None:
        """A request has its final answer."""
        self._outcomes.pop(request, None)
        if self._begun and self._begun[0].state is RELEASED:
            self._let_out()

    def _let_out(self) -> None:
        """Release those in front that have an answer; those that were released otherwise just leave."""
        begun = self._begun
        while begun:
            head = begun[0]
            if head.state is not RELEASED:
                outcome = self._outcomes.pop(head, None)
                if outcome is None:
                    return
                begun.popleft()
                self._release(head, outcome)
            else:
                begun.popleft()

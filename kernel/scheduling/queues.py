"""Which of the waiting requests an instance is to execute next: one by one, or as a rule puts them together.

The law: the order is the queue's (queueing.py), what goes together the rule's (batching.py) or a plugin's (batchers.py); here
both become batches for one instance. Looks at how much the instance has, changes nothing about it. The third kind, which knows
sequences, is sequences.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kernel.config import ModelConfig
from kernel.instances import ModelInstance
from kernel.requests import Batch, InferenceRequest, RequestState
from kernel.rules import BatchRule, RequestQueue, WaitReason
from kernel.scheduling.batchers import Decider

__all__ = ["BatchingQueue", "Queue"]

Taken = tuple[Sequence[Batch], float | None]


class Queue(RequestQueue):
    """A queue of requests that are executed one by one."""

    __slots__ = ()

    #: Whether a request may be executed by one instance only.
    bound = False
    #: By what batches are formed; None where each request is one.
    rule: Decider | None = None
    #: Why a request is refused that has waited too long.
    expiry_words = "Request timeout expired"

    def take(self, instance: ModelInstance, now: float) -> Taken:
        """Take out what `instance` is to execute now; or nothing, and when to look again. Somebody waits, and it has room.

        An instance that may be handed more than it can begin gets all that it may have, each as an execution of its own.
        """
        if not instance.alone:
            requests = self.take_first(1)
            return (Batch(requests, requests[0].batch_size),), None
        count = min(self.size, instance.limit - len(instance.running))
        return [Batch([request], request.batch_size) for request in self.take_first(count)], None

    def withdraw(self, request: InferenceRequest) -> Sequence[InferenceRequest]:
        """Take out a request that is given up; return those that can't be executed without it: none."""
        self.remove(request)
        return ()

    def put_back(self, requests: Sequence[InferenceRequest], now: float) -> None:
        """Have what was taken, and has not begun, wait again in front of all others."""
        self.push_back([request for request in requests if request.state is RequestState.PENDING])

    @property
    def immediate(self) -> bool:
        """Whether a request that waits alone is executed as soon as an instance is free."""
        return True

    # -- what a queue of sequences has more to say to ------------------------------------------------------------------

    #: How many sequences are running, of which more requests may come although nothing waits and no sequence may begin.
    sequences = 0

    #: Whether there are sequences that have not ended.
    has_sequences = False

    def continues(self, request: InferenceRequest) -> bool:
        """Whether a request is accepted although nothing new is: it goes on with something that was accepted before."""
        return False

    def check(self, request: InferenceRequest) -> None:
        """Raise ServingError for a request that has no business here."""

    def is_ready(self, instance: ModelInstance) -> bool:
        """Whether there is anything that `instance` might execute."""
        return self.size > 0

    def enter(self, instance: ModelInstance, now: float) -> None:
        """An instance takes requests from now on."""

    def retire(self, instance: ModelInstance) -> None:
        """An instance is on its way out."""

    def lose(self, instance: ModelInstance) -> Sequence[InferenceRequest]:
        """What an instance had kept is lost; return what can't be executed without it, taken out."""
        return ()

    def leave(self, instance: ModelInstance) -> bool:
        """Let an instance go that executes nothing; False where there is more to come for it."""
        return True

    def close(self, silence: float | None) -> None:
        """Nothing new comes; where `silence` is given: but to what has begun, until that is silent for so many seconds."""

    def why_waiting(self, request: InferenceRequest) -> WaitReason | None:
        """Return why a request waits where that is neither busy instances nor its batch, else None."""
        return None


class BatchingQueue(Queue):
    """A queue of requests that are executed together, as `rule` says."""

    __slots__ = ("rule",)

    def __init__(self, config: ModelConfig) -> None:
        batching = config.dynamic_batching
        assert batching is not None
        super().__init__(
            batching.priority_levels,
            batching.default_priority_level,
            batching.default_queue_policy,
            batching.priority_queue_policy,
        )
        self.rule: Decider = BatchRule.of(config)

    @property
    def immediate(self) -> bool:
        return isinstance(self.rule, BatchRule) and not self.rule.delay

    def take(self, instance: ModelInstance, now: float) -> Taken:
        rule = self.rule
        count, again, why = rule.decide(self, now)
        if not count:
            return (), again
        if len(instance.running) >= instance.capacity and self._rows(count) < rule.largest:
            return (), None  # only full batches may lie ready in a run: smaller ones grow while the instance is busy
        requests = self.take_first(count) if isinstance(count, int) else self.pick(count)
        batch = Batch(requests, sum([request.batch_size for request in requests]))
        batch.why = why
        return (batch,), None

    def _rows(self, count: int | list[InferenceRequest]) -> int:
        return sum(one.batch_size for one in (islice(self, count) if isinstance(count, int) else count))

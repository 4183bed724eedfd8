"""The rule of the dynamic batcher: how many waiting requests to execute now, or when to look again. Pure.

Follows the reference's batcher (scheduling, section 3): preferred sizes at once, otherwise wait for company until the
oldest has waited long enough; never mix what doesn't fit into one batch; never reorder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernel.config import ModelConfig
from kernel.requests import InferenceRequest
from kernel.rules.reasons import Left

__all__ = ["BatchRule", "fits"]


_FREE, _FULL, _PREFERRED, _DELAY, _UNLIKE = Left.FREE, Left.FULL, Left.PREFERRED, Left.DELAY, Left.UNLIKE


@dataclass(frozen=True, slots=True)
class BatchRule:
    """What a model's config says about batches. Sizes count rows; `delay` is in seconds.

    `equal_shapes`: the inputs whose shapes must agree within a batch; empty where all dims are fixed.
    `same_inputs`: some inputs are optional, so requests of one batch must bring the same set.
    """

    max_batch_size: int
    preferred: frozenset[int]
    largest: int
    delay: float
    equal_shapes: tuple[str, ...]
    same_inputs: bool

    @classmethod
    def of(cls, config: ModelConfig) -> BatchRule:
        """Return the rule of a config that has `dynamic_batching`."""
        batching = config.dynamic_batching
        assert batching is not None
        return cls.with_sizes(config, batching.preferred_batch_size, batching.max_queue_delay_us)

    @classmethod
    def with_sizes(cls, config: ModelConfig, sizes: Iterable[int], delay_us: int, varying: Iterable[str] = ()) -> BatchRule:
        """Return the rule of a config that prefers batches of `sizes`. `varying`: inputs of variable size beside its own."""
        limit = max(config.max_batch_size, 1)
        preferred = frozenset(sizes if config.max_batch_size else ()) or frozenset({limit})
        own = (spec.name for spec in config.inputs if -1 in spec.dims and not spec.allow_ragged_batch)
        return cls(
            max_batch_size=limit,
            preferred=preferred,
            largest=max(preferred),
            delay=delay_us / 1e6,
            equal_shapes=(*own, *varying),
            same_inputs=any(spec.optional for spec in config.inputs),
        )

    def decide(self, waiting: Iterable[InferenceRequest], now: float) -> tuple[int, float | None, Left | None]:
        """Return `(count, None, why)`: execute the first `count` requests now; or `(0, when, None)`: look again then, or on an
        arrival. `(0, None, None)` means that nothing waits.
        """
        first = next(iter(waiting), None)
        if first is None:
            return 0, None, None
        count, best, full = _fill(waiting, first, self)
        # Priorities and time-outs put requests out of their order of arrival: the oldest need not be the first.
        due = _oldest(waiting, first, count) + self.delay if self.delay else now
        late = self.delay > 0 and now >= due
        if best and not late:
            return best, None, full if full is _FULL and best == count else _PREFERRED
        if full is not None or late or not self.delay:
            return count, None, full or (_DELAY if late else _FREE)
        return 0, due, None


def _fill(waiting: Iterable[InferenceRequest], first: InferenceRequest, rule: BatchRule) -> tuple[int, int, Left | None]:
    """Return how many from the front go into one batch, the most of them that make a preferred size (0: none do), and why no
    company can make the batch larger; None where it can.
    """
    count = total = best = 0
    checks = bool(rule.equal_shapes) or rule.same_inputs
    largest, limit, preferred = rule.largest, rule.max_batch_size, rule.preferred
    for request in waiting:
        after = total + request.batch_size
        if after > largest and count:
            best = best or count
            if after > limit:
                return count, best, _FULL
        if checks and count and not fits(first, request, rule):
            return count, best, _UNLIKE
        count += 1
        total = after
        if after in preferred:
            best = count
        if after >= limit:
            return count, best, _FULL
    return count, best, _PREFERRED if total >= largest else None


def _oldest(waiting: Iterable[InferenceRequest], first: InferenceRequest, count: int) -> float:
    """Return when the oldest of the first `count` requests came."""
    oldest = first.enqueued
    if count > 1:
        for index, request in enumerate(waiting):
            if index == count:
                break
            if request.enqueued < oldest:
                oldest = request.enqueued
    return oldest


def fits(first: InferenceRequest, other: InferenceRequest, rule: BatchRule) -> bool:
    """Whether two requests may be in one batch: they bring the same inputs, with shapes that differ in their rows at most."""
    if rule.same_inputs and first.inputs.keys() != other.inputs.keys():
        return False
    for name in rule.equal_shapes:
        one, two = first.inputs.get(name), other.inputs.get(name)
        if one is None or two is None:
            if one is not two:
                return False
        elif one.array.shape[1:] != two.array.shape[1:]:
            return False
    return True

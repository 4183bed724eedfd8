"""Of which models not all answers that one connection asks for are made at once (shares.py).

The law: where a config says who may wait, and for how long, the queue has to see all requests as soon as they come. It is looked
at once for each model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernel import ServingError, answers_little

if TYPE_CHECKING:
    from kernel import Host, Model, ModelConfig

__all__ = ["is_limited"]


def is_limited(model: Model) -> bool:
    """Whether not all answers of a model that are asked for are made at once: they may be large, and no queue has a say."""
    return not (answers_little(model) or any(map(has_say, configs_of(model.kernel, model.config))))


def has_say(config: ModelConfig) -> bool:
    """Whether a model's queue has limits, time-outs, priorities or sequences: it has to see all requests as soon as they come."""
    batching = config.dynamic_batching
    if batching is None:
        return config.sequence_batching is not None
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    return batching.priority_levels > 1 or any(one.max_queue_size or one.default_timeout_us for one in policies)


def configs_of(kernel: Host, config: ModelConfig) -> Iterator[ModelConfig]:
    """Yield the config of a model and, of an ensemble, those of all that it consists of, as far as they are there."""
    yield config
    for step in config.ensemble or ():
        try:
            model = kernel.model(step.model_name, step.model_version if step.model_version > 0 else "")
        except ServingError:
            continue  # it is for the ensemble to say that
        yield from configs_of(kernel, model.config)

"""How many answers to one connection are made at a time: few, as long as nobody knows how large they become.

The law: what has begun is answered, and its answer is in memory until the client takes it, who may never do so. So as many begin
as a model's config, or its largest answer so far, says to be little together. Pure, but for what it remembers of configs.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from kernel.tensor import DATATYPES

if TYPE_CHECKING:
    from kernel.models import Model

__all__ = ["ANSWERS_AT_ONCE", "ANSWER_BYTES_AHEAD", "answers_little", "made_at_once"]

#: How many requests of a connection are in flight where nothing says how large their answers are, and where these are large.
ANSWERS_AT_ONCE = 8

#: What the answers of one connection that are in flight should come to at most, where answers are large; bytes.
ANSWER_BYTES_AHEAD = 64 * 1024 * 1024

#: An answer of fewer bytes is little, as binary data; as JSON, it may be eight times as long.
LITTLE = 128 * 1024

_little: WeakKeyDictionary[Model, bool] = WeakKeyDictionary()


def answers_little(model: Model) -> bool:
    """Whether all that a model answers is little by its config, whatever it is asked; looked at once for each."""
    little = _little.get(model)
    if little is None:
        little = _little[model] = _answers_little(model)
    return little


def made_at_once(model: Model, largest: int) -> int:
    """Return how many answers of a model may be made at a time for one connection, where they are not little by its config: as
    many as it makes together in any case. `largest`: the bytes of its largest answer so far, 0 where it has given none.
    """
    return max(ANSWERS_AT_ONCE, model.config.max_batch_size, ANSWER_BYTES_AHEAD // largest if largest else 0)


def _answers_little(model: Model) -> bool:
    config = model.config
    size = 0
    for spec in config.outputs:
        if spec.datatype == "BYTES" or min(spec.dims, default=0) < 0:
            return False
        size += prod(spec.dims) * DATATYPES[spec.datatype].itemsize
    return bool(config.outputs) and not config.decoupled and size * max(1, config.max_batch_size) <= LITTLE

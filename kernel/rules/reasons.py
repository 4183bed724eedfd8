"""Why requests wait, and why batches leave the queue: what rules and schedulers note, and explanations tell. Values only.

The law: who decides notes a value, the words stand in it; nobody reads words to find out what was meant.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Left", "WaitReason"]


class Left(enum.Enum):
    """Why a batch left the queue; the values go on after "as"."""

    FREE = "an instance was free"
    FULL = "it was full"
    PREFERRED = "a preferred size was reached"
    DELAY = "the delay was over"
    UNLIKE = "the next request does not go into the same batch"
    CHOSEN = "the model's batcher chose it"


@dataclass(frozen=True, slots=True)
class WaitReason:
    """What a request waits for that is neither busy instances nor its batch, in words: `now` while it does, `then` afterwards,
    which goes on after "waited 5 ms".
    """

    now: str
    then: str

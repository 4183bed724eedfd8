"""Makes recorded requests of the records that the history keeps. Pure, and many at a time: each costs next to nothing.

What stands in a record says kernel.interfaces; nothing else is asked of the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from kernel.interfaces import Record
from kernel.observability import FailedRequest
from kernel.recording.form import RecordedError, RecordedRequest, Told
from kernel.rules import Left

__all__ = ["of_failure", "of_records"]

_WORDS: dict[Any, str] = {None: "", **{left: left.value for left in Left}}


def of_records(model: str, version: int, records: Sequence[Record], offset: float) -> list[Told]:
    """Return what is told of requests that succeeded. `offset`: what makes their moments seconds since the epoch."""
    rows, enqueued, started, _, _, ended, answered, ids, instances, whys, callers = zip(*records)
    came, begun = np.array(enqueued), np.array(started)
    called: Iterable[Any] = repeat(None)
    if any(callers):
        called = [None if caller is None else (caller[0], caller[1] + offset) for caller in callers]
    return list(
        map(
            RecordedRequest[Any],
            repeat(model),
            repeat(version),
            (came + offset).round(6).tolist(),
            (begun - came).round(9).tolist(),
            (np.array(ended) - begun).round(9).tolist(),
            (np.array(answered) - came).round(9).tolist(),
            ids,
            rows,
            instances,
            _lefts(whys),
            called,
        )
    )


def _lefts(whys: Sequence[Any]) -> list[str]:
    kinds = set(map(type, whys))
    if kinds <= {type(None), Left}:
        return list(map(_WORDS.__getitem__, whys))
    # Words of their own; those of several requests by request can't be told apart any more.
    return [why if type(why) is str else "" if type(why) is dict else _WORDS.get(why, "") for why in whys]


def of_failure(model: str, version: int, failure: FailedRequest, offset: float) -> Told:
    """Return what is told of a request that failed, or was refused."""
    came = failure.enqueued or failure.answered
    begun = failure.started or failure.answered
    return RecordedRequest[Any](
        model, version, came + offset, begun - came, (failure.ended or failure.answered) - begun, failure.answered - came,
        failure.id, instance=failure.instance, error=RecordedError(failure.code, failure.words),
    )  # fmt: skip

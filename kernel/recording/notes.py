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
from kernel.rules import Left, WaitReason

__all__ = ["of_failure", "of_records"]

#: Not as RecordedRequest[Tensor], which takes four times as long to make one.
_told: Any = RecordedRequest

_WORDS: dict[Any, str] = {None: "", **{left: left.value for left in Left}}


def of_records(model: str, version: int, records: Sequence[Record], offset: float) -> list[Told]:
    """Return what is told of requests that succeeded. `offset`: what makes their moments seconds since the epoch."""
    rows, enqueued, started, _, _, ended, answered, ids, instances, whys, callers = zip(*records)
    moments = np.array((enqueued, started, ended, answered))
    moments[1:] -= moments[[0, 1, 0]]  # from here on durations
    moments[0] += offset
    came, waited, executed, seconds = moments.round(9).tolist()
    called: Iterable[Any] = repeat(None)
    if any(callers):
        called = [None if caller is None else (caller[0], caller[1] + offset) for caller in callers]
    return list(
        map(
            _told,
            repeat(model),
            repeat(version),
            came,
            waited,
            executed,
            seconds,
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
    return list(map(_words, whys))


def _words(why: Any) -> str:
    if type(why) is WaitReason:
        return why.then
    return "" if type(why) is dict else _WORDS.get(why, "")  # whose of several requests, a record does not say any more


def of_failure(model: str, version: int, failure: FailedRequest, offset: float) -> Told:
    """Return what is told of a request that failed, or was refused."""
    came = failure.enqueued or failure.answered
    begun = failure.started or failure.answered
    found: Told = RecordedRequest(
        model, version, came + offset, begun - came, (failure.ended or failure.answered) - begun, failure.answered - came,
        failure.id, instance=failure.instance, error=RecordedError(failure.code, failure.words),
    )  # fmt: skip
    return found

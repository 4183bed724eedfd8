"""Makes of the records that the history keeps what is recorded of them. Pure; many at a time cost next to nothing each.

What stands in a record says kernel.interfaces; nothing else is asked of the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from kernel.interfaces import Record
from kernel.observability import FailedRequest
from kernel.recording.form import RecordedError, RecordedRequest, RecordedRun, Told
from kernel.rules import Left, WaitReason

__all__ = ["of_failure", "of_record", "run_of"]

_WORDS: dict[Any, str] = {None: "", **{left: left.value for left in Left}}


def of_record(model: str, version: int, record: Record, offset: float) -> Told:
    """Return what is told of a request that succeeded. `offset`: what makes its moments seconds since the epoch."""
    rows, enqueued, started, _, _, ended, answered, id, instance, why, caller = record
    found: Told = RecordedRequest(
        model, version, enqueued + offset, round(started - enqueued, 9), round(ended - started, 9), round(answered - enqueued, 9),
        id, rows, instance, _words(why), None if caller is None else (caller[0], caller[1] + offset),
    )  # fmt: skip
    return found


def run_of(model: str, version: int, records: Sequence[Record], offset: float) -> tuple[RecordedRun, bytes]:
    """Return the same of one or more that are written together, and their times as `times.npy` has them."""
    rows, enqueued, started, _, _, ended, answered, ids, instances, whys, callers = zip(*records)
    count = len(rows)
    times = np.fromiter(chain(enqueued, started, ended, answered), np.float64, 4 * count).reshape(4, count)
    times[1:] -= times[[0, 1, 0]]  # from here on durations
    times[0] += offset
    called = None
    if any(callers):
        called = [None if caller is None else (caller[0], caller[1] + offset) for caller in callers]
    lefts = _together(_lefts(whys))
    run = RecordedRun(count, model, version, _together(ids), _together(rows), _together(instances), lefts, called)
    return run, times.tobytes()


def _together(values: Sequence[Any]) -> Any:
    """Return the one value that all have, or all of them."""
    first = values[0]
    return first if values.count(first) == len(values) else list(values)


def _lefts(whys: Sequence[Any]) -> Sequence[str]:
    first = whys[0]
    if whys.count(first) == len(whys):
        return (_words(first),) * len(whys)
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

"""What the page shows of a model version at a moment, in as few numbers as will do; quantiles of latencies. Looks only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel import Model, Record

__all__ = ["AGE", "COUNTED", "QUANTILES", "Figures", "figures_of", "latencies", "quantiles", "sendable", "weighted_quantiles"]

#: Counts since the load: requests that succeeded, failed, were refused, rows that were executed, executions, answers of the
#: cache. Then of this moment: requests that wait, that are executed, and for how many milliseconds the oldest has waited.
Figures = tuple[int, ...]

#: How many of them are counts, and where those of this moment stand.
COUNTED = 6
PENDING, RUNNING, AGE = 6, 7, 8

#: Which are shown.
QUANTILES = (0.5, 0.9, 0.99)


def figures_of(model: Model, now: float, before: Figures | None = None) -> Figures:
    """Return the figures of a model that is READY. `now`: on the kernel's clock. `before`: those of an earlier look, which are
    returned as they are where nothing has happened since.

    Nothing is added up for it, which would cost more than all the rest where there are many models.
    """
    scheduler = model.scheduler
    counter = scheduler.statistics
    alone, rows = counter.unsettled()
    running = 0
    for instance in scheduler.instances:
        for batch in instance.running:
            running += len(batch.requests)
    pending = scheduler.pending
    success, executions = counter.success + alone, counter.execution_count + alone
    counts = (success, counter.fail, counter.refused, executions, counter.hits, pending, running)
    if before is not None and not pending and counts == (*before[:3], *before[4:8]):
        return before
    for size, times in counter.batches.items():
        rows += size * int(times[0])
    since = scheduler.waiting_since() if pending else None
    age = 0 if since is None else max(0, int((now - since) * 1e3))
    return success, counter.fail, counter.refused, rows, executions, counter.hits, pending, running, age


def latencies(records: Iterable[Record]) -> list[float]:
    """Return how long requests took from their arrival to their answer, in milliseconds, ascending."""
    return sorted((record[6] - record[1]) * 1e3 for record in records)


def quantiles(values: Sequence[float]) -> list[float]:
    """Return QUANTILES of values that are ascending, to three digits."""
    last = len(values) - 1
    return [float(f"{values[min(last, int(share * len(values)))]:.3g}") for share in QUANTILES]


def weighted_quantiles(values: Sequence[tuple[float, float]]) -> list[float] | None:
    """Return QUANTILES of values that are ascending, each with its weight; None of none. To three digits."""
    if not values:
        return None
    total = sum(weight for _, weight in values)
    found, passed, at = [], 0.0, 0
    for share in QUANTILES:
        while passed + values[at][1] < share * total and at < len(values) - 1:
            passed += values[at][1]
            at += 1
        found.append(float(f"{values[at][0]:.3g}"))
    return found


def sendable(text: str) -> str:
    """Return a text that came from models or files with what UTF-8 can't carry escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()

"""What `kernel bench` has measured, in lines: a table of all loads, a histogram of the last, and what has to be known of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kernel.cli.chart import Chart, bars
from kernel.cli.table import columns
from kernel.loadtest import Result, histogram, ratios

__all__ = ["milliseconds", "report"]

PERCENTILES = (50, 90, 95, 99)
REASONS = 10  # why requests failed, that are shown


def report(names: Sequence[str], notes: Sequence[str], results: Sequence[Sequence[Result]]) -> Iterator[str]:
    """Return the report. `names`: of the targets; `notes`: of what was sent; `results`: of each load on each target."""
    letters = "AB" if len(names) > 1 else ""
    yield from (f"{letter}: {name}" for letter, name in zip(letters, names)) if letters else names
    yield from notes
    yield ""
    yield from _table(results, letters)
    for number, row in enumerate(results):
        for letter, result in zip(letters or " ", row):
            whose = f"{letter} at {result.load}" if letters else result.load
            yield from (f"{whose}: {note}" for note in result.notes)
            for words, count in result.errors.most_common(REASONS):
                yield f"{whose}: {count} failed: {words}"
        if number == len(results) - 1:
            for letter, result in zip(letters or " ", row):
                yield from _histogram(result, f" of {letter}" if letters else "")


def _table(results: Sequence[Sequence[Result]], letters: str) -> Iterator[str]:
    several = any(one.firsts.size for row in results for one in row)
    head = ["load", *(["target"] if letters else []), "requests/s", "mean", *(f"p{one}" for one in PERCENTILES), "max", "failed"]
    rows = [[*head, "first p50", "first p99", "responses/s"] if several else head]
    for row in results:
        for letter, result in zip(letters or " ", row):
            rows.append([result.load, *([letter] if letters else []), *_cells(result, several)])
        if len(row) == 2:
            found = list(ratios(*row).values())  # of the rate, then of the percentiles
            middle, span = [f"{one.middle:.2f}" for one in found], [f"{one.low:.2f}–{one.high:.2f}" for one in found]
            rows += [["", "B/A", *middle[:1], "", *middle[1:]], ["", "rounds", *span[:1], "", *span[1:]]] if found else []
    yield from columns(rows, gap="   ")


def _cells(result: Result, several: bool) -> list[str]:
    found = result.latencies
    if not found.size:
        return ["0", *["-"] * (len(PERCENTILES) + 2), str(result.errors.total())]
    times = [float(found.mean()), *(result.latency(one) for one in PERCENTILES), float(found.max())]
    rate = f"{result.rate:.0f}" if result.rate >= 100 else f"{result.rate:.3g}"
    cells = [rate, *map(milliseconds, times), str(result.errors.total())]
    if several and result.firsts.size:
        firsts = sorted(result.firsts)
        cells += [milliseconds(firsts[math.ceil(part * len(firsts)) - 1]) for part in (0.5, 0.99)] + [f"{result.responses:.0f}"]
    return cells


def _histogram(result: Result, whose: str) -> Iterator[str]:
    found = histogram(result.latencies)
    if not found.counts:
        return
    rows = [(f"– {milliseconds(edge)}", float(count), str(count)) for edge, count in zip(found.edges[1:], found.counts)]
    yield ""
    yield from bars(Chart(f"latencies{whose} at {result.load}", rows))


def milliseconds(seconds: float) -> str:
    """Return a duration as people read it."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    shown = seconds * 1e3
    return f"{shown:.0f} ms" if shown >= 100 else f"{shown:.3g} ms"

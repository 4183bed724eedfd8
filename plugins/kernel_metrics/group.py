"""The page of several replicas: sums, or each replica's own series with a label of its own.

What is counted is summed, exactly: counters, histograms, the counts and sums of summaries, and gauges of what there is, also
those that models have made. What is a longest time, or a share, is not; nor is what is the machine's. Quantiles can't be told
from those of each; but the counts in buckets that they come from are summed, and all replicas have the same buckets, so the
quantiles of all are those that one process with all requests would show. Pure but for class GroupPage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from kernel import Code, ServingError, clipped
from kernel_metrics.observing import quantiles_of
from kernel_metrics.text import COUNTS, number

__all__ = ["GroupPage", "labelled_by_replica", "merged"]

_TOPIC = "metrics"

#: Families of which the largest is shown: of times, and of what happens at each replica once.
LARGEST = ("kernel_queue_oldest_seconds", "nv_model_load_duration_secs")
#: Of which the mean is: shares of caches that are equally large.
MEAN = ("nv_cache_util",)
#: Of the machine: every replica says the same, but for the moment at which it has looked.
MACHINE = ("nv_cpu_", "nv_gpu_", "nv_energy_consumption", "nv_pinned_memory_pool_total_bytes")


class GroupPage:
    """The page of the replica whose own one `own` makes. `group`: what stands for all replicas (`kernel.steered`)."""

    def __init__(self, own: Callable[[], Awaitable[bytes]], group: Any) -> None:
        self._own = own
        self._group = group
        group.answer(_TOPIC, self._told)

    async def make(self, query: str) -> bytes:
        """Return the page of all; with `replica=all` in the query each one's series, with `replica=1` those of one.

        Raises ServingError where one does not answer, and where there is none of that number.
        """
        pages = dict(map(_read, [await self._told(b""), *await self._group.ask(_TOPIC, b"")]))
        wanted = parse_qs(query, keep_blank_values=True).get("replica")
        if wanted is None:
            own = pages.pop(self._group.replica)
            return (await asyncio.to_thread(merged, [own, *pages.values()])).encode()
        shown = {k: page for k, page in sorted(pages.items()) if {"", "all", str(k)} & set(wanted)}
        if not shown:  # an empty page would pass for one of a server without models
            numbers = ", ".join(map(str, sorted(pages)))
            words = f"there is no replica '{clipped(wanted[-1], 40)}', only {numbers}, and 'all' for the series of each"
            raise ServingError(Code.NOT_FOUND, words)
        return (await asyncio.to_thread(labelled_by_replica, shown)).encode()

    async def _told(self, data: bytes) -> bytes:
        return f"{self._group.replica}\n".encode() + await self._own()


def _read(answer: bytes) -> tuple[int, str]:
    index, _, page = answer.decode().partition("\n")
    return int(index), page


class _Family:
    """A family of a page: its two lines of comment, its series -> their values as they are written; of a summary also the series
    without a quantile -> the counts of all.
    """

    def __init__(self, head: str) -> None:
        self.head = head
        _, _, self.name, self.kind = head.rpartition("\n")[2].split(" ")
        self.series: dict[str, list[str]] = {}
        self.counts: dict[str, dict[int, int]] = {}

    def count(self, line: str) -> None:
        """Add what `counts_line` has written."""
        series, _, pairs = line.removeprefix(COUNTS).rpartition(" ")
        counts = self.counts.setdefault(series, {})
        for pair in pairs.split(",") if pairs else ():
            bucket, count = map(int, pair.split(":"))
            counts[bucket] = counts.get(bucket, 0) + count


def _families(pages: Iterable[str]) -> list[_Family]:
    """Return the families of all pages, each once, in the order of the first page that has it."""
    found: dict[str, _Family] = {}
    for page in pages:
        family: _Family | None = None
        help = ""
        for line in page.splitlines():
            if line.startswith("# HELP "):
                help = line
            elif line.startswith("# TYPE "):
                new = _Family(f"{help}\n{line}")
                family = found.setdefault(new.name, new)
            elif line.startswith(COUNTS):
                if family is not None:
                    family.count(line)
            elif family is not None and line:
                series, _, value = line.rpartition(" ")
                family.series.setdefault(series, []).append(value)
    return list(found.values())


def merged(pages: Sequence[str]) -> str:
    """Return the page of all. The first is that whose figures of the machine are shown."""
    lines = []
    for family in _families(pages):
        lines.append(family.head)
        lines += [f"{series} {_together(family, series, values)}" for series, values in family.series.items()]
    return "".join(f"{line}\n" for line in lines)


def _together(family: _Family, series: str, values: Sequence[str]) -> str:
    if len(values) == 1 or family.name.startswith(MACHINE):
        return values[0]
    if family.kind == "summary" and series.startswith(f"{family.name}{{"):
        own, _, quantile = series.removesuffix('"}').rpartition('quantile="')
        counts = family.counts[f"{own.removesuffix(',')}}}".removesuffix("{}")]
        return number(quantiles_of(counts, [float(quantile)])[0])
    numbers: list[float] = [int(value) if value.isdecimal() else float(value) for value in values]
    if family.name in LARGEST:
        return number(max(numbers))
    total = sum(numbers)
    return number(total / len(numbers) if family.name in MEAN else total)


def labelled_by_replica(pages: Mapping[int, str]) -> str:
    """Return one page with all series of all replicas, each with the label `replica`."""
    labelled = ["".join(f"{_labelled(line, k)}\n" for line in page.splitlines()) for k, page in pages.items()]
    lines = []
    for family in _families(labelled):
        lines.append(family.head)
        lines += [f"{series} {value}" for series, values in family.series.items() for value in values]
    return "".join(f"{line}\n" for line in lines)


def _labelled(line: str, replica: int) -> str:
    if line.startswith("#") or not line:
        return line
    series, _, value = line.rpartition(" ")
    if series.endswith("}"):
        return f'{series[:-1]},replica="{replica}"}} {value}'
    return f'{series}{{replica="{replica}"}} {value}'

"""The page: all families in their order, as bytes. Reads everything at the moment of the scrape.

A large page is made in pieces, and between two of them the loop serves requests; two scrapes at a time get the same page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from kernel import FamilySnapshot, Kernel, MetricKind, Model
from kernel_metrics.gpus import Gpus
from kernel_metrics.lag import LoopLag
from kernel_metrics.machine import Machine
from kernel_metrics.models import ModelFamilies, ModelSeries, first_response_bounds
from kernel_metrics.observing import RequestObserver
from kernel_metrics.options import MetricsSettings
from kernel_metrics.text import Family, histogram_lines, labelled, number

__all__ = ["Page"]

PINNED = ("nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes")
CACHE = (
    ("nv_cache_util", "Cache utilization [0.0 - 1.0]"),
    ("nv_cache_num_entries", "Number of responses stored in response cache"),
    ("nv_cache_num_hits", "Number of cache hits in response cache"),
    ("nv_cache_num_misses", "Number of cache misses in response cache"),
    ("nv_cache_num_lookups", "Number of cache lookups in response cache"),
    ("nv_cache_num_evictions", "Number of cache evictions in response cache"),
    ("nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds"),
    ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds"),
)
LAG = "kernel_loop_lag_seconds"

#: The families of the server itself, but for those of the machine: name, kind, HELP text.
SERVER = (
    (PINNED[0], "gauge", "Pinned memory pool total memory size, in bytes"),
    (PINNED[1], "gauge", "Pinned memory pool used memory size, in bytes"),
    *((name, "gauge", text) for name, text in CACHE),
    (LAG, "histogram", "How late the timers of the event loop were"),
)

#: How long the page may be worked at before the loop gets its turn.
PIECE_SECONDS = 0.001


class Page:
    """Makes the page of one kernel, whose requests it has observed from now on. `lag`: what to show of the loop, if anything.
    `counts`: with what quantiles of several pages are made of.
    """

    def __init__(
        self,
        kernel: Kernel,
        settings: MetricsSettings | None = None,
        lag: LoopLag | None = None,
        machine: Machine | None = None,
        counts: bool = False,
    ) -> None:
        self._counts = counts
        settings = settings or MetricsSettings()
        self._kernel = kernel
        self._settings = settings
        self._lag = lag
        gpus = Gpus.find() if settings.gpu and machine is None else None
        self._machine = machine or Machine(cpu=settings.cpu, gpus=gpus, interval=settings.interval)
        self._families = ModelFamilies()
        self._making: asyncio.Task[bytes] | None = None
        self._server = {name: Family(name, kind, text) for name, kind, text in SERVER}
        self._lag_lines = histogram_lines(LAG, "", lag.histogram.bounds) if lag is not None else []
        own = (*self._families.by_name, *self._server, *(family.name for family in self._machine.families))
        kernel.custom_metrics.reserved.update(own)
        kernel.observe(self._observer)

    def _observer(self, model: Model) -> RequestObserver:
        """Return the observer of a model version, and keep its series with the model, whose life they share."""
        settings = self._settings
        first_ms = first_response_bounds(model) if settings.histogram_latencies else None
        observer = RequestObserver(model.decoupled, summaries=settings.summary_latencies, first_ms=first_ms)
        model.attachments[self] = ModelSeries(model, observer, self._families, settings, self._counts)
        return observer

    async def make(self) -> bytes:
        """Return the page."""
        if self._making is None:
            self._making = self._kernel.loop.create_task(self._make())
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, _: object) -> None:
        self._making = None

    async def _make(self) -> bytes:
        clock = self._kernel.clock
        self._families.clear()  # of a page that wasn't finished
        await self._machine.refresh(clock())
        began = clock()
        for model in self._kernel.models():
            series = model.attachments.get(self)
            if isinstance(series, ModelSeries):  # gone where it was unloaded meanwhile
                series.add(clock())
            if clock() - began > PIECE_SECONDS:
                await asyncio.sleep(0)
                began = clock()
        lines: list[str] = []
        for part in self._parts():
            lines += part()
            if clock() - began > PIECE_SECONDS:
                await asyncio.sleep(0)
                began = clock()
        return ("\n".join(lines) + "\n").encode()

    def _parts(self) -> Iterable[Callable[[], list[str]]]:
        """Yield what gives the lines, part by part, in the order of the page."""
        yield from (family.take for family in self._families.first)
        yield self._pinned_lines
        yield self._machine.lines
        yield self._cache_lines
        yield from (family.take for family in self._families.then)
        yield self._lag_values
        yield from (partial(_custom_lines, family) for family in self._kernel.custom_metrics.snapshot())

    def _pinned_lines(self) -> list[str]:
        """There is no such pool here; the reference shows its size even where it has nothing to pin."""
        return [*self._one(PINNED[0], self._settings.pinned_bytes), *self._one(PINNED[1], 0)]

    def _cache_lines(self) -> list[str]:
        """What the response cache has done, where there is one. The reference has left all but the first at 0."""
        cache = self._kernel.cache
        if cache is None:
            return []
        figures = cache.figures()
        usage = figures.usage
        values: tuple[float, ...] = (
            usage.used / usage.size if usage.size else 0.0,
            usage.entries,
            figures.hits,
            figures.misses,
            figures.lookups,
            usage.evictions,
            int(figures.lookup_seconds * 1e6),
            int(figures.insertion_seconds * 1e6),
        )
        return [line for (name, _), value in zip(CACHE, values) for line in self._one(name, value)]

    def _one(self, name: str, value: float) -> list[str]:
        """Return the lines of a family with one series without labels."""
        family = self._server[name]
        family.add("", value)
        return family.take()

    def _lag_values(self) -> list[str]:
        if self._lag is None:
            return []
        family = self._server[LAG]
        family.lines += [before + number(value) for before, value in zip(self._lag_lines, self._lag.histogram.values())]
        return family.take()


def _custom_lines(snapshot: FamilySnapshot) -> list[str]:
    """Return the lines of a family that models have made."""
    family = Family(snapshot.name, snapshot.kind.name.lower(), snapshot.help)
    for one in snapshot.series:
        labels = labelled(dict(one.labels))
        if snapshot.kind is MetricKind.HISTOGRAM:
            befores = histogram_lines(family.name, labels, one.bounds)
            values = (one.counts[-1], one.value, *one.counts)
            family.lines += [before + number(value) for before, value in zip(befores, values)]
        else:
            family.add(labels, one.value)
    return family.take()

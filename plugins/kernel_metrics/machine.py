"""Figures of the machine: CPU and memory from /proc, GPUs from NVML where its library is installed.

What is not there isn't shown: other systems than Linux have no /proc, most machines no GPU. Reading takes its time, so it is done
on a thread, and not more often than every `interval` seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from kernel_metrics.gpus import Gpus
from kernel_metrics.text import Family, labelled

__all__ = ["Machine"]

log = logging.getLogger("kernel.metrics")

PROC = Path("/proc")


class Machine:
    """Reads the figures and adds them to their families. `cpu`, `gpus`: whether, and what to ask."""

    def __init__(self, *, cpu: bool, gpus: Gpus | None, interval: float, proc: Path = PROC) -> None:
        self._cpu = cpu
        self._gpus = gpus
        self._interval = interval
        self._proc = proc
        self._busy_and_all: tuple[int, int] | None = None
        self._read_at: float | None = None
        self._reading: asyncio.Future[None] | None = None
        self._utilization = Family("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]")
        self._total = Family("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes")
        self._used = Family("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes")
        self._figures: dict[str, float] = {}
        self._gpu_figures: list[tuple[str, dict[str, float]]] = []
        self._gpu_families = [
            Family(f"nv_{name}", "counter" if name == "energy_consumption" else "gauge", text)
            for name, text in Gpus.FIGURES.items()
        ]
        #: In the order of the page.
        self.families = (*self._gpu_families, self._utilization, self._total, self._used)

    async def refresh(self, now: float) -> None:
        """See to it that the figures are not older than the interval."""
        if not self._cpu and self._gpus is None:
            return
        if self._read_at is None or now - self._read_at >= self._interval:
            self._read_at = now
            await asyncio.to_thread(self.read)

    def read(self) -> None:
        """Read everything once. Any thread, one at a time."""
        if self._cpu:
            self._guarded(self._read_cpu)
            self._guarded(self._read_memory)
        if self._gpus is not None:
            self._gpu_figures = self._gpus.read()

    def _guarded(self, read: Callable[[], None]) -> None:
        try:
            read()
        except (OSError, ValueError, LookupError) as error:
            log.warning("no CPU metrics: /proc can't be read as expected: %s: %s", type(error).__name__, error)
            self._cpu = False

    def _read_cpu(self) -> None:
        """The share of time since the last reading in which the processors were neither idle nor waiting for the disk."""
        path = self._proc / "stat"
        if not path.exists():
            return
        with path.open() as file:
            first = file.readline().split()
        user, nice, system, idle, waiting, *interrupts = map(int, first[1:9])
        every = user + nice + system + idle + waiting + sum(interrupts)
        busy = every - idle - waiting
        before, self._busy_and_all = self._busy_and_all, (busy, every)
        if before is None:
            self._figures["utilization"] = busy / every if every else 0.0
        elif every > before[1]:
            self._figures["utilization"] = max(0.0, (busy - before[0]) / (every - before[1]))

    def _read_memory(self) -> None:
        path = self._proc / "meminfo"
        if not path.exists():
            return
        fields = (line.split() for line in path.read_text().splitlines())
        kib = {field[0].rstrip(":"): int(field[1]) for field in fields if len(field) > 1}
        self._figures["total"] = kib["MemTotal"] * 1024
        self._figures["used"] = (kib["MemTotal"] - kib["MemAvailable"]) * 1024

    def lines(self) -> list[str]:
        """Return the lines of the page, GPUs first."""
        for uuid, figures in self._gpu_figures:
            labels = labelled({"gpu_uuid": uuid})
            for family, name in zip(self._gpu_families, Gpus.FIGURES):
                if name in figures:
                    family.add(labels, figures[name])
        for name, family in (("utilization", self._utilization), ("total", self._total), ("used", self._used)):
            if name in self._figures:
                family.add("", self._figures[name])
        return [line for family in self.families for line in family.take()]

"""Custom metrics, as seen from a child: what stands for `Kernel.custom_metrics` there.

Families and metrics are in the server, under numbers that are given here. What is counted goes there as it is counted, unless it
could be refused: then it is asked, and the server answers with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from kernel_python.api.metrics import MetricKind
from kernel_python.process import wire

__all__ = ["CustomMetrics"]


class Channel(Protocol):
    """Where messages to the server go; channel.py has it."""

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message, and what was put down before."""


class Kernel(Protocol):
    """The kernel, as far as metrics need it; remote.py has it. `numbers`: for what the server and we speak of."""

    @property
    def numbers(self) -> Iterator[int]: ...

    @property
    def channel(self) -> Channel: ...

    def ask(self, what: str, *arguments: Any) -> Any:
        """Return what the server answers; raises the ServingError that it answers with."""


class CustomMetrics:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def family(self, name: str, help: str, kind: int) -> Family:
        """Open a family. Raises ServingError."""
        number = next(self.kernel.numbers)
        self.kernel.ask("metric_family", number, name, help, kind)
        return Family(self.kernel, number, MetricKind(kind))


class Family:
    __slots__ = ("_number", "closed", "kernel", "kind")

    def __init__(self, kernel: Kernel, number: int, kind: MetricKind) -> None:
        self.kernel = kernel
        self._number = number
        self.kind = kind
        self.closed = False

    def metric(self, labels: Mapping[str, str], bounds: Sequence[float] | None = None) -> Metric:
        """Return the metric of these labels. Raises ServingError."""
        number = next(self.kernel.numbers)
        self.kernel.ask("metric", number, self._number, dict(labels), None if bounds is None else list(bounds))
        return Metric(self, number)

    def close(self) -> None:
        """Hold the family no more."""
        if not self.closed:
            self.closed = True
            self.kernel.channel.send((wire.CLOSED_FAMILY, self._number))


class Metric:
    __slots__ = ("_number", "family")

    def __init__(self, family: Family, number: int) -> None:
        self.family = family
        self._number = number

    def increment(self, value: float) -> None:
        kind = self.family.kind
        self._count("increment", value, kind is MetricKind.GAUGE or (kind is MetricKind.COUNTER and not value < 0))

    def set(self, value: float) -> None:
        self._count("set", value, self.family.kind is MetricKind.GAUGE)

    def observe(self, value: float) -> None:
        self._count("observe", value, self.family.kind is MetricKind.HISTOGRAM)

    def value(self) -> float:
        return float(self.family.kernel.ask("metric_value", self._number))

    def _count(self, how: str, value: float, surely: bool) -> None:
        kernel = self.family.kernel
        if surely:
            kernel.channel.send((wire.COUNTED, self._number, how, value))
        else:
            kernel.ask("metric_count", self._number, how, value)

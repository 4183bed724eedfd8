"""The custom metrics of one child, as the server keeps them: by the numbers that the child knows them under. On the loop.

What a child counts is told in passing; only what makes something, or may fail, is a question. When the child is gone, so are its
families.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernel import CustomMetrics, Metric, MetricFamily, MetricKind

__all__ = ["Counting"]


class Counting:
    def __init__(self, metrics: CustomMetrics) -> None:
        self._metrics = metrics
        self._families: dict[int, MetricFamily] = {}
        self._series: dict[int, tuple[int, Metric]] = {}  # number of a metric -> its family's number, the metric

    # -- questions; they raise ServingError ----------------------------------------------------------------------------

    def family(self, number: int, name: str, help: str, kind: int) -> None:
        """Open a family, known as `number` from now on."""
        self._families[number] = self._metrics.family(name, help, MetricKind(kind))

    def metric(self, number: int, family: int, labels: dict[str, str], bounds: Sequence[float] | None) -> None:
        """Make a metric of a family, known as `number` from now on."""
        self._series[number] = family, self._families[family].metric(labels, bounds)

    def value(self, number: int) -> float:
        return self._series[number][1].value()

    def count(self, number: int, how: str, value: float) -> None:
        """Do `increment`, `set` or `observe`."""
        metric = self._series[number][1]
        if how == "increment":
            metric.increment(value)
        elif how == "set":
            metric.set(value)
        else:
            metric.observe(value)

    # -- in passing ----------------------------------------------------------------------------------------------------

    def counted(self, number: int, how: str, value: float) -> None:
        """As `count`, by a child that knows that nothing stands against it."""
        if number in self._series:  # the child may count in a metric whose family it has closed
            self.count(number, how, value)

    def closed(self, family: int) -> None:
        """The child holds a family no more."""
        self._families.pop(family).close()
        for number in [one for one, (of, _) in self._series.items() if of == family]:
            del self._series[number]

    def end(self) -> None:
        """The child is gone."""
        families, self._families = self._families, {}
        self._series.clear()
        for family in families.values():
            family.close()

    def answer(self, what: str, arguments: tuple[Any, ...]) -> Any:
        """Answer one of the questions above."""
        return QUESTIONS[what](self, *arguments)


QUESTIONS: dict[str, Callable[..., Any]] = {
    "metric_family": Counting.family,
    "metric": Counting.metric,
    "metric_value": Counting.value,
    "metric_count": Counting.count,
}

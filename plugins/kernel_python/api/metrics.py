"""pb_utils.MetricFamily and its metrics: what a model counts of its own (contract: python_backend, 1.10).

The rules of metrics are the core's (`Kernel.custom_metrics`, in a child what stands for it); here are the model's objects, their
lives, and the reference's words. A family lives as long as the model holds it, and its series as long as the family.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kernel import ServingError
from kernel_python.calling import Instance, calling_instance
from kernel_python.faults import PybindEnum, TritonModelException, as_text, asked_in_vain, incompatible

if TYPE_CHECKING:
    from kernel import Metric as CoreMetric

__all__ = ["Metric", "MetricFamily", "MetricKind"]

_MISSING: Any = object()
_SIGNATURE = "c_python_backend_utils.MetricFamily(name: str, description: str, kind: c_python_backend_utils.MetricKind)"
_GONE = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
    "deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class MetricKind(PybindEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


MetricKind.__module__ = "c_python_backend_utils"


class MetricFamily:
    """`MetricFamily(name, description, kind)`: metrics of one name. Keep it: its metrics are of no use without it.

    A family of the same name and kind, of whichever model, is shared. Raises TritonModelException for a name that is none or is
    taken by another kind.
    """

    __slots__ = ("_family", "_instance")
    __module__ = "c_python_backend_utils"

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(
        self, name: str = _MISSING, description: str = _MISSING, kind: MetricKind = _MISSING, *rest: Any, **unknown: Any
    ) -> None:
        texts = isinstance(name, (str, bytes)) and isinstance(description, (str, bytes))
        if not texts or not isinstance(kind, MetricKind) or rest or unknown:
            given = [one for one in (name, description, kind, *rest) if one is not _MISSING]
            raise incompatible("__init__", _SIGNATURE, given, unknown)
        instance = self._instance = calling_instance("MetricFamily", anybody=True)
        try:
            self._family = instance.kernel.custom_metrics.family(as_text(name), as_text(description), int(kind))
        except ServingError as error:
            raise asked_in_vain("Error when creating MetricFamily", instance.name, error) from None

    def Metric(self, labels: Any = None, buckets: Any = None) -> Metric:
        """Return the metric of these labels, a dictionary; `buckets`: the upper bounds of a histogram's, ascending."""
        instance, family = self._instance, self._family
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        histogram = int(family.kind) == MetricKind.HISTOGRAM.value
        if histogram and buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        if not histogram and buckets is not None:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        try:
            bounds = None if buckets is None else [_number(bound) for bound in buckets]
        except (TypeError, ValueError):
            raise TritonModelException(f"Failed to create metric. Buckets must be numbers, found {buckets}.") from None
        texts = {_label(key): _value(key, value) for key, value in (labels or {}).items()}
        try:
            return Metric(instance, family.metric(texts, bounds))
        except ServingError as error:
            raise asked_in_vain("Error when creating Metric", instance.name, error) from None

    def __del__(self) -> None:
        family = getattr(self, "_family", None)
        if family is not None:
            family.close()


class Metric:
    """One metric: a counter, a gauge or a histogram, by its family's kind."""

    __slots__ = ("_instance", "_metric")
    __module__ = "c_python_backend_utils"

    def __init__(self, instance: Instance, metric: CoreMetric) -> None:
        self._instance = instance
        self._metric = metric

    def increment(self, *args: float) -> None:
        """Add to a counter, or to a gauge, where it may be less than nothing."""
        self._do("increment", "Failed to increment metric value", self._metric.increment, args)

    def set(self, *args: float) -> None:
        """Set a gauge."""
        self._do("set", "Failed to set metric value", self._metric.set, args)

    def observe(self, *args: float) -> None:
        """Count a value in a histogram."""
        self._do("observe", "Failed to observe metric value", self._metric.observe, args)

    def value(self) -> float:
        """Return what a counter or a gauge stands at."""
        self._must_live("Failed to get metric value")
        try:
            return float(self._metric.value())
        except ServingError as error:
            raise asked_in_vain("Failed to get metric value", self._instance.name, error) from None

    def _do(self, function: str, failed: str, act: Any, args: tuple[Any, ...]) -> None:
        try:
            (value,) = args
            number = _number(value)
        except (TypeError, ValueError):
            signature = "(self: c_python_backend_utils.Metric, arg0: float) -> None"
            raise incompatible(function, signature, (self, *args)) from None
        self._must_live(failed)
        try:
            act(number)
        except ServingError as error:
            raise asked_in_vain(failed, self._instance.name, error) from None

    def _must_live(self, failed: str) -> None:
        if self._metric.family.closed:
            raise TritonModelException(f"{failed}: {_GONE}")


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _label(key: Any) -> str:
    return as_text(key) if isinstance(key, (str, bytes)) else str(key)


def _value(key: Any, value: Any) -> str:
    """Return a label's value as text: what is none, as JSON."""
    if isinstance(value, (str, bytes)):
        return as_text(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        raise TritonModelException(
            f"Failed to create metric. Labels must have values of type str, found {type(value)} for label '{key}'."
        ) from None

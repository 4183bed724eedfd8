"""The registry of the metrics that models make: shared by name and labels, gone with the last holder, exact under any history."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import CustomMetrics, MetricKind, ServingError

COUNTER, GAUGE, HISTOGRAM = MetricKind


def told(function: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(ServingError) as caught:
        function(*args)
    return f"{caught.value.code.name}: {caught.value.message}"


def values(metrics: CustomMetrics) -> dict[tuple[str, Any], float]:
    return {(family.name, one.labels): one.value for family in metrics.snapshot() for one in family.series}


def test_holders_of_one_name_share_its_series() -> None:
    metrics = CustomMetrics()
    first, second = metrics.family("hits", "first's words", COUNTER), metrics.family("hits", "other words", COUNTER)
    first.metric({"b": "2", "a": "1"}).increment(2)
    second.metric({"a": "1", "b": "2"}).increment(0.5)
    second.metric({}).increment(1)
    (family,) = metrics.snapshot()
    assert (family.name, family.help, family.kind) == ("hits", "first's words", COUNTER)
    assert values(metrics) == {("hits", (("a", "1"), ("b", "2"))): 2.5, ("hits", ()): 1}
    assert first.metric({"a": "1", "b": "2"}).value() == 2.5


def test_a_series_goes_with_the_last_holder_that_has_asked_for_it() -> None:
    metrics = CustomMetrics()
    first, second = metrics.family("m", "", GAUGE), metrics.family("m", "", GAUGE)
    both, one = first.metric({"of": "both"}), first.metric({"of": "one"})
    first.metric({"of": "one"})  # asked for again, held once
    second.metric({"of": "both"}).set(3)
    first.close()
    first.close()
    assert values(metrics) == {("m", (("of", "both"),)): 3}
    assert "has been deleted" in told(both.set, 1.0) and "has been deleted" in told(one.value)
    assert "has been deleted" in told(first.metric, {})
    second.close()
    assert metrics.snapshot() == []
    assert metrics.family("m", "", COUNTER).kind is COUNTER, "nobody holds the name any more"


def test_a_histogram_counts_upwards() -> None:
    metrics = CustomMetrics()
    family = metrics.family("h", "", HISTOGRAM)
    histogram = family.metric({}, [1, 2.5, 10, math.inf])
    for value in (2.5, 50, 0.5, 1):
        histogram.observe(value)
    family.metric({}, [7]).observe(7)  # the buckets are those of the first who asks
    ((one,),) = (family.series for family in metrics.snapshot())
    assert (one.bounds, one.counts, one.value) == ((1, 2.5, 10), (2, 3, 4, 5), 61)
    family.metric({"no": "bounds"}, []).observe(math.nan)
    assert metrics.snapshot()[0].series[1].counts == (1,)


@pytest.mark.parametrize("name", ["", "1a", "a b", "__a", "ä", "a-b", "a\n"])
def test_names_that_are_none(name: str) -> None:
    metrics = CustomMetrics()
    assert told(metrics.family, name, "", COUNTER).startswith(f"INVALID_ARG: Invalid metric name '{name}'")
    family = metrics.family("a:b_1", "", COUNTER)
    assert told(family.metric, {name: "x"}).startswith(f"INVALID_ARG: Invalid label name '{name}'")
    assert "Invalid label name 'a:b'" in told(family.metric, {"a:b": "x"})


def test_a_name_has_one_kind_and_one_owner() -> None:
    metrics = CustomMetrics()
    metrics.reserved.add("nv_inference_count")
    metrics.family("a", "", COUNTER)
    words = "INVALID_ARG: Family name already exists with different type: 'a' is a COUNTER, not a GAUGE"
    assert told(metrics.family, "a", "", GAUGE) == words
    assert "'nv_inference_count' is that of one of the server's own metrics" in told(
        metrics.family, "nv_inference_count", "", COUNTER
    )


def test_what_a_kind_cannot_do() -> None:
    metrics = CustomMetrics()
    counter = metrics.family("c", "", COUNTER).metric({})
    gauge = metrics.family("g", "", GAUGE).metric({})
    histogram = metrics.family("h", "", HISTOGRAM).metric({}, [1.0])
    monotonic = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
    assert told(counter.increment, -1.0) == f"INVALID_ARG: {monotonic}"
    for metric, kind, call, what in (
        (counter, "COUNTER", counter.set, "Set"),
        (counter, "COUNTER", counter.observe, "Observe"),
        (gauge, "GAUGE", gauge.observe, "Observe"),
        (histogram, "HISTOGRAM", histogram.increment, "Increment"),
        (histogram, "HISTOGRAM", histogram.set, "Set"),
    ):
        assert told(call, 1.0) == f"UNSUPPORTED: TRITONSERVER_METRIC_KIND_{kind} does not support {what}", metric
    assert told(histogram.value) == "UNSUPPORTED: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"
    gauge.set(5)
    gauge.increment(-7)
    assert gauge.value() == -2 and counter.value() == 0


def test_bounds_have_to_fit() -> None:
    metrics = CustomMetrics()
    family = metrics.family("h", "", HISTOGRAM)
    for bounds in ([3.0, 1.0], [1.0, 1.0], [math.nan], [1.0, math.nan, 2.0]):
        assert "Bucket Boundaries must be strictly sorted" in told(family.metric, {}, bounds)
    assert "Bucket boundaries not found" in told(family.metric, {})
    assert "Invalid label name 'le' in a HISTOGRAM of family 'h'" in told(family.metric, {"le": "x"}, [1.0])
    assert "Unexpected args found in gauge" in told(metrics.family("g", "", GAUGE).metric, {}, [1.0])
    assert metrics.snapshot() == []


def test_threads_lose_nothing() -> None:
    metrics = CustomMetrics()

    def work() -> None:
        counter = metrics.family("c", "", COUNTER).metric({"a": "b"})
        for _ in range(2000):
            counter.increment(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(metrics) == {("c", (("a", "b"),)): 8000}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("open close count count count".split()), st.integers(0, 5), st.integers(0, 2))))
def test_any_history_adds_up(history: list[tuple[str, int, int]]) -> None:
    """Against a model of one dictionary: series -> (who holds it, its value)."""
    metrics = CustomMetrics()
    holders: list[tuple[str, Any]] = []
    expected: dict[tuple[str, int], tuple[set[int], float]] = {}
    for act, who, label in history:
        if act == "open":
            name = f"family_{who % 2}"
            holders.append((name, metrics.family(name, "", COUNTER)))
        elif who < len(holders):
            name, family = holders[who]
            if family.closed:
                continue
            if act == "close":
                family.close()
                for key in [key for key, (by, _) in expected.items() if who in by]:
                    expected[key][0].discard(who)
                    if not expected[key][0]:
                        del expected[key]
            else:
                family.metric({"label": str(label)}).increment(1)
                by, value = expected.get((name, label), (set(), 0))
                expected[name, label] = (by | {who}, value + 1)
    shown = {(name, int(labels[0][1])): value for (name, labels), value in values(metrics).items()}
    assert shown == {key: value for key, (_, value) in expected.items()}
    for _, family in holders:
        family.close()
    assert metrics.snapshot() == []

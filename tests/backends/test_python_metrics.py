"""Custom metrics of models, wherever they run: each call, each misuse, and when a series goes (contract: python_backend, 1.10).

The words were compared with what Triton 2.51 says; where it aborts instead, with its source.
"""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from telling import TEXT, until

import triton_python_backend_utils as pb_utils
from kernel import Kernel, MetricKind

HEAD = """
MF = pb_utils.MetricFamily
def tell(requests, value):
    return [pb_utils.InferenceResponse([pb_utils.Tensor("S", np.array([json.dumps(value)], dtype=object))]) for _ in requests]
def said(function, *args, **named):
    try:
        function(*args, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def model(body: str, rest: str = "", define: str = "def") -> str:
    lines = "\n        ".join(body.strip().splitlines())
    return f"{HEAD}\nclass TritonPythonModel:\n    {define} execute(self, requests):\n        {lines}\n{rest}"


@pytest.fixture(params=["loop", "thread", "process"])
def placement(request: Any) -> str:
    return str(request.param)


async def ask(kernel: Kernel, helpers: Any, name: str = "a", value: Any = (1.0,)) -> Any:
    answer = await helpers.ask(kernel, name, value)
    return json.loads(answer[0]) if isinstance(answer, list) else answer


def shown(kernel: Kernel) -> dict[str, Any]:
    """Return `name{labels}` -> value, and of histograms (sum, counts)."""
    out: dict[str, Any] = {}
    for family in kernel.custom_metrics.snapshot():
        for one in family.series:
            labels = ",".join(f"{key}={value}" for key, value in one.labels)
            value = (one.value, one.bounds, one.counts) if family.kind is MetricKind.HISTOGRAM else one.value
            out[f"{family.name}{{{labels}}}"] = value
    return out


@pytest.mark.parametrize("define", ["def", "async def"])
def test_all_kinds(repo: Any, helpers: Any, placement: str, define: str) -> None:
    rest = """
    def initialize(self, args):
        self.counters = MF(name="hits", description="How often", kind=MF.COUNTER)
        self.hits = self.counters.Metric(labels={"model": "a", "n": 2, "t": True})
        self.gauges = MF("level", "", MF.GAUGE)
        self.level = self.gauges.Metric()
        self.histograms = MF("sizes", "How large", MF.HISTOGRAM)
        self.sizes = self.histograms.Metric({"x": "y"}, [1, 2.5])
        self.level.set(40)
"""
    body = """
self.hits.increment(1)
self.hits.increment(np.float32(0.5))
self.counters.Metric({"model": "other"}).increment(3)
self.level.increment(-7)
self.level.increment(2)
self.sizes.observe(2)
self.sizes.observe(50)
same = self.counters.Metric({"t": "true", "n": "2", "model": "a"})
return tell(requests, [self.hits.value(), same.value(), self.level.value()])
"""
    repo.add("a", model(body, rest, define), io=TEXT, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        answers = [await ask(kernel, helpers), await ask(kernel, helpers)]
        (hits, *_) = kernel.custom_metrics.snapshot()
        return answers, shown(kernel), (hits.name, hits.help, hits.kind)

    answers, series, head = repo.run(main)
    assert answers == [[1.5, 1.5, 35], [3, 3, 30]]
    assert series == {
        "hits{model=a,n=2,t=true}": 3,
        "hits{model=other}": 6,
        "level{}": 30,
        "sizes{x=y}": (104, (1, 2.5), (0, 2, 4)),
    }
    assert head == ("hits", "How often", MetricKind.COUNTER)


def test_models_share_a_family_of_the_same_name(repo: Any, helpers: Any) -> None:
    rest = """
    def initialize(self, args):
        self.family = MF("shared", args["model_name"], MF.COUNTER)
        self.metric = self.family.Metric({"to": "all"})
"""
    body = "self.metric.increment(1)\nreturn tell(requests, self.metric.value())"
    for name, where in (("a", "loop"), ("b", "thread"), ("c", "process")):
        repo.add(name, model(body, rest), io=TEXT, count=2, parameters={"placement": where})

    async def main(kernel: Kernel) -> Any:
        answers = [await ask(kernel, helpers, name) for name in "abcabc"]
        return answers, shown(kernel)

    answers, series = repo.run(main)
    assert answers == [1, 2, 3, 4, 5, 6]
    assert series == {"shared{to=all}": 6}


def test_misuse(repo: Any, helpers: Any, placement: str) -> None:
    rest = """
    def initialize(self, args):
        self.c = MF("c", "", MF.COUNTER)
        self.g = MF("g", "", MF.GAUGE)
        self.h = MF("h", "", MF.HISTOGRAM)
        self.metrics = self.c.Metric(), self.g.Metric(), self.h.Metric(buckets=[1])
"""
    body = """
c, g, h = self.metrics
gone = MF("gone", "", MF.GAUGE).Metric()
return tell(requests, {
    "name": said(MF, "no name", "", MF.COUNTER),
    "kind": said(MF, "c", "", MF.GAUGE),
    "labels": said(self.c.Metric, [1]),
    "labels text": said(self.c.Metric, labels="x"),
    "label name": said(self.c.Metric, {1: "x"}),
    "label value": said(self.c.Metric, {"x": object}),
    "buckets": said(self.h.Metric, {}, (1, 2)),
    "buckets text": said(self.c.Metric, {}, "x"),
    "no buckets": said(self.h.Metric),
    "buckets of others": said(self.c.Metric, {}, [1]),
    "bucket order": said(self.h.Metric, {"a": "b"}, [3, 1]),
    "bucket type": said(self.h.Metric, {"a": "c"}, ["x"]),
    "negative": said(c.increment, -1),
    "set": [said(c.set, 1), said(g.set, 1), said(h.set, 1)],
    "observe": [said(c.observe, 1), said(g.observe, 1), said(h.observe, 1)],
    "increment": [said(c.increment, 1), said(g.increment, -1), said(h.increment, 1)],
    "value": said(h.value),
    "gone": [said(gone.set, 1), said(gone.increment, 1), said(gone.observe, 1), said(gone.value)],
    "after": [c.value(), g.value()],
})
"""
    repo.add("a", model(body, rest), io=TEXT, parameters={"placement": placement})
    got = repo.run(lambda kernel: ask(kernel, helpers))
    of = "TritonModelException: {}: Failed to process the request for model 'a_0_0', message: {}"
    new, make = "Error when creating MetricFamily", "Error when creating Metric"
    kind = "TRITONSERVER_METRIC_KIND_"
    gone = (
        "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
        "deleted AFTER its corresponding 'Metric' objects have been deleted."
    )
    verbs = ("set", "increment", "observe", "get")
    assert got.pop("name").startswith(of.format(new, "Invalid metric name 'no name'"))
    assert got.pop("kind").startswith(of.format(new, "Family name already exists with different type: 'c' is a COUNTER"))
    assert got.pop("label name").startswith(of.format(make, "Invalid label name '1'"))
    assert got.pop("bucket order").startswith(of.format(make, "Bucket Boundaries must be strictly sorted: [3.0, 1.0]"))
    create = "TritonModelException: Failed to create metric. "
    assert got == {
        "labels": create + "Labels must be a dictionary.",
        "labels text": create + "Labels must be a dictionary.",
        "label value": create + "Labels must have values of type str, found <class 'type'> for label 'x'.",
        "buckets": create + "Buckets must be a list.",
        "buckets text": create + "Buckets must be a list.",
        "no buckets": create + "Missing required buckets.",
        "buckets of others": create + "Unexpected buckets found.",
        "bucket type": create + "Buckets must be numbers, found ['x'].",
        "negative": of.format(
            "Failed to increment metric value", f"{kind}COUNTER can only be incremented monotonically by non-negative values."
        ),
        "set": [
            of.format("Failed to set metric value", f"{kind}COUNTER does not support Set"),
            None,
            of.format("Failed to set metric value", f"{kind}HISTOGRAM does not support Set"),
        ],
        "observe": [
            of.format("Failed to observe metric value", f"{kind}COUNTER does not support Observe"),
            of.format("Failed to observe metric value", f"{kind}GAUGE does not support Observe"),
            None,
        ],
        "increment": [
            None,
            None,
            of.format("Failed to increment metric value", f"{kind}HISTOGRAM does not support Increment"),
        ],
        "value": of.format("Failed to get metric value", f"{kind}HISTOGRAM does not support Value"),
        "gone": [f"TritonModelException: Failed to {verb} metric value: {gone}" for verb in verbs],
        "after": [1, 0],
    }


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (("a", "b"), "'a', 'b'"),
        (("a", "b", 1), "'a', 'b', 1"),
        ((1, "b", pb_utils.MetricFamily.GAUGE), "1, 'b', <MetricKind.GAUGE: 1>"),
        (("a", None, pb_utils.MetricFamily.GAUGE), "'a', None, <MetricKind.GAUGE: 1>"),
    ],
)
def test_a_family_of_something_else_is_refused(args: tuple[Any, ...], shown: str) -> None:
    with pytest.raises(TypeError) as caught:
        pb_utils.MetricFamily(*args)
    assert str(caught.value) == (
        "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
        "    1. c_python_backend_utils.MetricFamily(name: str, description: str, kind: c_python_backend_utils.MetricKind)\n\n"
        f"Invoked with: {shown}"
    )


def test_a_value_that_is_no_number_is_refused(repo: Any, helpers: Any, placement: str) -> None:
    body = """
family = MF("g", "", MF.GAUGE)
metric = family.Metric()
return tell(requests, [said(metric.increment, "1"), said(metric.set), said(metric.observe, None), metric.value()])
"""
    repo.add("a", model(body), io=TEXT, parameters={"placement": placement})
    *texts, value = repo.run(lambda kernel: ask(kernel, helpers))
    for text, function, given in zip(texts, ("increment", "set", "observe"), (", '1'", "", ", None")):
        head, _, invoked = text.partition("\n\nInvoked with: ")
        assert head == (
            f"TypeError: {function}(): incompatible function arguments. The following argument types are supported:\n"
            "    1. (self: c_python_backend_utils.Metric, arg0: float) -> None"
        )
        assert invoked.startswith("<c_python_backend_utils.Metric object at 0x")
        assert invoked.partition(">")[2] == given
    assert value == 0


def test_a_series_lives_as_long_as_its_family(repo: Any, helpers: Any, placement: str) -> None:
    body = """
if requests[0].request_id() == "make":
    self.family = MF("f", "", MF.COUNTER)
    self.family.Metric({"a": "b"}).increment(1)
elif requests[0].request_id() == "drop":
    self.family = None
return tell(requests, None)
"""
    repo.add("a", model(body), io=TEXT, parameters={"placement": placement})

    async def main(kernel: Kernel) -> Any:
        seen = []
        for what, wanted in (("make", 1), ("look", 1), ("drop", 0), ("make", 1)):
            await helpers.ask(kernel, "a", id=what)
            gc.collect()
            await until(lambda wanted=wanted: len(shown(kernel)) == wanted)  # a child says so in passing
            seen.append(shown(kernel))
        return seen

    there = {"f{a=b}": 1}
    assert repo.run(main) == [there, there, {}, there]


def test_unload_takes_the_series_along(repo: Any, helpers: Any, placement: str) -> None:
    rest = """
    def initialize(self, args):
        self.metric = FAMILY.Metric()
"""
    code = model("self.metric.increment(1)\nreturn tell(requests, None)", rest)
    code = code.replace("class Triton", 'FAMILY = MF("of_the_module", "", MF.COUNTER)\nclass Triton')
    repo.add("a", code, io=TEXT, parameters={"placement": placement})

    async def main(kernel: Kernel) -> None:
        await ask(kernel, helpers)
        assert shown(kernel) == {"of_the_module{}": 1}
        kernel.unload("a")

        def gone() -> bool:
            gc.collect()
            return not shown(kernel)

        await until(gone)

    repo.run(main, control_mode="explicit", load_models=["a"])


def test_a_child_that_dies_takes_its_series_along(repo: Any, helpers: Any) -> None:
    rest = """
    def initialize(self, args):
        self.family = MF("f", "", MF.COUNTER)
        self.metric = self.family.Metric()
"""
    body = """
import os
self.metric.increment(1)
if pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0] < 0:
    os._exit(3)
return tell(requests, self.metric.value())
"""
    repo.add("a", model(body, rest), io=TEXT, parameters={"placement": "process"})

    async def main(kernel: Kernel) -> Any:
        before = [await ask(kernel, helpers), await ask(kernel, helpers)]
        assert "Stub process" in await helpers.ask(kernel, "a", (-1.0,))
        return before, await ask(kernel, helpers), shown(kernel)

    assert repo.run(main) == ([1, 2], 1, {"f{}": 1})


def test_metrics_need_a_model(repo: Any) -> None:
    with pytest.raises(pb_utils.TritonModelException, match="MetricFamily can only be used by the code of a model"):
        pb_utils.MetricFamily("a", "", pb_utils.MetricFamily.GAUGE)
    assert repr(pb_utils.MetricFamily.HISTOGRAM) == "<MetricKind.HISTOGRAM: 2>"
    assert [int(kind) for kind in (pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE)] == [0, 1]

"""The metrics page of several replicas: sums, or series with a label of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kernel import Code, ServingError
from kernel_metrics.group import GroupPage, labelled_by_replica, merged
from kernel_metrics.observing import Summary
from kernel_metrics.text import Family, counts_line, number, summary_lines

FIRST = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a b",version="1"} 9007199254740993
nv_inference_request_success{model="only } here",version="1"} 5
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.25
# HELP nv_cache_util Cache utilization [0.0 - 1.0]
# TYPE nv_cache_util gauge
nv_cache_util 0.5
# HELP kernel_queue_oldest_seconds How long
# TYPE kernel_queue_oldest_seconds gauge
kernel_queue_oldest_seconds{model="a b",version="1"} 0.5
# HELP kernel_queue_seconds Time
# TYPE kernel_queue_seconds histogram
kernel_queue_seconds_count{model="a b",version="1"} 3
kernel_queue_seconds_sum{model="a b",version="1"} 0.25
kernel_queue_seconds_bucket{model="a b",version="1",le="0.1"} 1
kernel_queue_seconds_bucket{model="a b",version="1",le="+Inf"} 3
# HELP nv_inference_request_summary_us Summary
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{model="a b",version="1"} 3
nv_inference_request_summary_us_sum{model="a b",version="1"} 30
nv_inference_request_summary_us{model="a b",version="1",quantile="0.5"} 10
nv_inference_request_summary_us{model="a b",version="1",quantile="0.9"} 10
# COUNTS nv_inference_request_summary_us{model="a b",version="1"} 232:3
"""

SECOND = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a b",version="1"} 2
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.75
# HELP nv_cache_util Cache utilization [0.0 - 1.0]
# TYPE nv_cache_util gauge
nv_cache_util 0.25
# HELP kernel_queue_oldest_seconds How long
# TYPE kernel_queue_oldest_seconds gauge
kernel_queue_oldest_seconds{model="a b",version="1"} 1.5
# HELP kernel_queue_seconds Time
# TYPE kernel_queue_seconds histogram
kernel_queue_seconds_count{model="a b",version="1"} 4
kernel_queue_seconds_sum{model="a b",version="1"} 0.5
kernel_queue_seconds_bucket{model="a b",version="1",le="0.1"} 4
kernel_queue_seconds_bucket{model="a b",version="1",le="+Inf"} 4
# HELP nv_inference_request_summary_us Summary
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{model="a b",version="1"} 4
nv_inference_request_summary_us_sum{model="a b",version="1"} 44
nv_inference_request_summary_us{model="a b",version="1",quantile="0.5"} 100
nv_inference_request_summary_us{model="a b",version="1",quantile="0.9"} 1000
# COUNTS nv_inference_request_summary_us{model="a b",version="1"} 463:3,695:1
# HELP own A gauge that a model of the second replica alone has made
# TYPE own gauge
own 7
"""

BOTH = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="a b",version="1"} 9007199254740995
nv_inference_request_success{model="only } here",version="1"} 5
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.25
# HELP nv_cache_util Cache utilization [0.0 - 1.0]
# TYPE nv_cache_util gauge
nv_cache_util 0.375
# HELP kernel_queue_oldest_seconds How long
# TYPE kernel_queue_oldest_seconds gauge
kernel_queue_oldest_seconds{model="a b",version="1"} 1.5
# HELP kernel_queue_seconds Time
# TYPE kernel_queue_seconds histogram
kernel_queue_seconds_count{model="a b",version="1"} 7
kernel_queue_seconds_sum{model="a b",version="1"} 0.75
kernel_queue_seconds_bucket{model="a b",version="1",le="0.1"} 5
kernel_queue_seconds_bucket{model="a b",version="1",le="+Inf"} 7
# HELP nv_inference_request_summary_us Summary
# TYPE nv_inference_request_summary_us summary
nv_inference_request_summary_us_count{model="a b",version="1"} 7
nv_inference_request_summary_us_sum{model="a b",version="1"} 74
nv_inference_request_summary_us{model="a b",version="1",quantile="0.5"} 100
nv_inference_request_summary_us{model="a b",version="1",quantile="0.9"} 1003
# HELP own A gauge that a model of the second replica alone has made
# TYPE own gauge
own 7
"""


def test_what_is_counted_is_summed_exactly() -> None:
    assert merged([FIRST, SECOND]) == BOTH
    alone = "".join(line for line in FIRST.splitlines(True) if not line.startswith("# COUNTS "))
    assert merged([FIRST]) == alone  # as it was


@given(st.lists(st.lists(st.integers(0, 10**7), max_size=40), min_size=2, max_size=4))
def test_quantiles_of_all_are_those_of_one_with_all_requests(values: list[list[int]]) -> None:
    wanted = (0.0, 0.5, 0.9, 0.99, 1.0)
    together = Summary()
    for some in values:
        for value in some:
            together.add(value, 100.0)
    pages = []
    for some in values:
        own = Summary()
        for value in some:
            own.add(value, 100.0)
        family = Family("us", "summary", "Summary")
        found = [own.count, own.sum, *own.quantiles(wanted, 130.0)]
        family.lines += [before + number(one) for before, one in zip(summary_lines("us", 'model="m"', wanted), found)]
        family.lines.append(counts_line("us", 'model="m"', own.counts(130.0)))
        pages.append("\n".join(family.take()) + "\n")
    lines = merged(pages).splitlines()[2:]
    assert [line.rpartition(" ")[2] for line in lines] == [
        number(value) for value in (together.count, together.sum, *together.quantiles(wanted, 130.0))
    ]


def test_each_replica_has_its_own_series_on_request() -> None:
    page = labelled_by_replica({0: FIRST, 1: SECOND})
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert found["nv_cpu_utilization", ("replica", "0")] == 0.25 and found["nv_cpu_utilization", ("replica", "1")] == 0.75
    assert found["own", ("replica", "1")] == 7
    assert found["nv_inference_request_success_total", ("model", "only } here"), ("replica", "0"), ("version", "1")] == 5
    assert page.count("# TYPE nv_cpu_utilization") == 1
    assert len(found) == sum(not line.startswith("#") for line in (FIRST + SECOND).splitlines())


class FakeGroup:
    """Two replicas, of which this is the second."""

    replica = 1
    error: ServingError | None = None

    def answer(self, topic: str, handler: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.handler = handler

    async def ask(self, topic: str, data: bytes) -> list[bytes]:
        if self.error is not None:
            raise self.error
        return [b"0\n" + FIRST.encode()]


def test_the_query_says_which_page_it_is() -> None:
    async def own() -> bytes:
        return SECOND.encode()

    async def main() -> None:
        group = FakeGroup()
        page = GroupPage(own, group)
        both = (await page.make("")).decode()
        assert "nv_cpu_utilization 0.75\n" in both and 'version="1"} 9007199254740995\n' in both
        assert await group.handler(b"") == b"1\n" + SECOND.encode()
        for query in ("replica=all", "replica"):
            assert (await page.make(query)).decode() == labelled_by_replica({0: FIRST, 1: SECOND})
        assert (await page.make("x=1&replica=0")).decode() == labelled_by_replica({0: FIRST})
        for query in ("replica=7", "replica=x"):
            with pytest.raises(ServingError, match=r"there is no replica '[7x]', only 0, 1, and 'all'") as caught:
                await page.make(query)
            assert caught.value.code is Code.NOT_FOUND
        group.error = ServingError(Code.UNAVAILABLE, "replica 0 has ended")
        with pytest.raises(ServingError, match="replica 0 has ended"):
            await page.make("")

    asyncio.run(main())

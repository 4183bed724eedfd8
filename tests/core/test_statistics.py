"""What is counted of a model version: the table of the contract (observability, section 1.2), and what observers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Behaviour, Client, TestBackend, answer, run, sleeping, write_repository

from kernel import (
    Batch,
    Code,
    InferenceRequest,
    InferenceResponse,
    Kernel,
    Model,
    Reason,
    Record,
    Result,
    ServingError,
    StatisticsCounter,
)
from kernel.observability.statistics import FOLD

pytestmark = pytest.mark.usefixtures("either_way")

BATCHING = BASE + "max_batch_size: 8\ndynamic_batching { }\n"
DECOUPLED = BASE + "model_transaction_policy { decoupled: true }\n"


class Told:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[tuple[float, ...]] = []  # their numbers
        self.first: list[float] = []
        self.looks: list[tuple[bool, float]] = []

    def answered(self, records: Sequence[Record]) -> None:
        self.records += [record[:7] for record in records]

    def first_response(self, seconds: float) -> None:
        self.first.append(seconds)

    def looked_up(self, hit: bool, seconds: float, now: float) -> None:
        self.looks.append((hit, seconds))


@asynccontextmanager
async def serving(
    folder: Path, models: Mapping[str, str], behaviours: Mapping[str, Behaviour] | None = None
) -> AsyncIterator[tuple[Client, dict[str, Told]]]:
    """Serve models, each with an observer."""
    told: dict[str, Told] = {}
    write_repository(folder, models)
    kernel = Kernel(folder, plugins=[TestBackend(behaviours or {})], control_mode="explicit", load_models=["*"])
    async with kernel:
        kernel.observe(lambda model: told.setdefault(model.name, Told()))
        yield Client(kernel), told


def counts(kernel: Kernel, name: str) -> dict[str, Any]:
    """Return what is not 0 of a model's statistics, durations as their counts."""
    (record,) = kernel.statistics(name)
    found: dict[str, Any] = {
        "inferences": record.inference_count,
        "executions": record.execution_count,
        "success": record.success.count,
        "fail": record.fail.count,
        "queue": record.queue.count,
        "compute": record.compute_infer.count,
        "hits": record.cache_hit.count,
        "misses": record.cache_miss.count,
        **record.failures,
    }
    found = {name: value for name, value in found.items() if value}
    if record.batch_stats:
        found["batches"] = {rows: durations[0].count for rows, durations in record.batch_stats.items()}
    return found


# -- what bumps what ---------------------------------------------------------------------------------------------------


def test_answered_requests(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BATCHING}, {"m": sleeping(0.5)}) as (client, _):
            client.send("m", "a", [[1], [2]])
            await asyncio.sleep(0.1)
            client.send("m", "b", [[1], [2]])
            client.send("m", "c", [[1]])
            await asyncio.sleep(2)
            assert counts(client.kernel, "m") == {
                "inferences": 5, "executions": 2, "success": 3, "queue": 3, "compute": 3, "batches": {2: 1, 3: 1},
            }  # fmt: skip
            (record,) = client.kernel.statistics("m")
            assert record.success.ns == 500_000_000 + 2 * 900_000_000
            assert record.queue.ns == 2 * 400_000_000, "of the two that waited"
            assert record.compute_infer.ns == 3 * 500_000_000, "a sum over requests"
            assert record.batch_stats[3][1].ns == 500_000_000, "a sum over executions"

    run(main())


def test_an_exception(tmp_path: Path) -> None:
    def fails(batch: Batch) -> Result:
        raise ValueError("not today")

    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": fails}) as (client, _):
            client.send("m", "a")
            assert counts(client.kernel, "m") == {"executions": 1, "fail": 1, "BACKEND": 1, "batches": {1: 1}}
            assert client.kernel.statistics("m")[0].last_inference_ms == 0

    run(main())


def test_an_error_as_the_answer_is_a_failure(tmp_path: Path) -> None:
    """The reference counts a success; what is right was decided otherwise."""

    def tells(batch: Batch) -> Result:
        return [InferenceResponse.failure(Code.INTERNAL, "not this one")]

    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": tells}) as (client, _):
            client.send("m", "a")
            assert counts(client.kernel, "m") == {"executions": 1, "fail": 1, "BACKEND": 1, "batches": {1: 1}}

    run(main())


def test_what_was_never_accepted_counts_nowhere_but_as_refused(tmp_path: Path) -> None:
    config = BATCHING.replace("{ }", "{ default_queue_policy { max_queue_size: 1 } }")

    async def main() -> None:
        async with serving(tmp_path, {"m": config}, {"m": sleeping(1.0)}) as (client, _):
            client.send("m", "another rank", [1.0])
            client.send("m", "first", [[1.0]])
            await asyncio.sleep(0.1)
            client.send("m", "waits", [[1.0]])
            client.send("m", "one too many", [[1.0]])
            assert "Exceeds maximum queue size" in client.outcome("one too many")[1]
            assert counts(client.kernel, "m") == {}
            assert client.kernel.model("m").scheduler.statistics.refused == 1, "validation is not the scheduler's"
            await asyncio.sleep(5)
            assert counts(client.kernel, "m")["success"] == 2

    run(main())


def test_time_outs_and_cancellations(tmp_path: Path) -> None:
    policy = "{ default_queue_policy { default_timeout_microseconds: 200000 } }"
    config = BATCHING.replace("max_batch_size: 8", "max_batch_size: 1").replace("{ }", policy)

    async def main() -> None:
        async with serving(tmp_path, {"m": config}, {"m": sleeping(1.0)}) as (client, told):
            kernel = client.kernel
            client.send("m", "runs", [[1.0]])
            await asyncio.sleep(0.1)
            client.send("m", "late", [[1.0]])
            gone = client.send("m", "gone", [[1.0]])
            scheduler = kernel.model("m").scheduler
            assert (scheduler.pending, scheduler.in_flight, scheduler.waiting_since()) == (2, 3, 1000.1)
            kernel.cancel(gone)
            assert scheduler.pending == 1
            await asyncio.sleep(0.5)
            assert (scheduler.pending, scheduler.waiting_since()) == (0, None)
            kernel.cancel(client.requests["runs"])
            await asyncio.sleep(1)
            found = counts(kernel, "m")
            assert (found["fail"], found["REJECTED"], found["CANCELED"]) == (3, 1, 2)
            assert "success" not in found and "inferences" not in found
            assert told["m"].records == []

    run(main())


def test_the_gauge_of_waiting_requests(tmp_path: Path) -> None:
    """BC71: five at once, one runs, four wait; down to none at the end, and one less when one of them is cancelled."""

    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as (client, _):
            scheduler = client.kernel.model("m").scheduler
            for name in "abcde":
                client.send("m", name)
            await asyncio.sleep(0.3)
            assert (scheduler.pending, scheduler.in_flight) == (4, 5)
            client.kernel.cancel(client.requests["d"])
            assert (scheduler.pending, scheduler.in_flight) == (3, 4)
            assert scheduler.waiting_since() == 1000.0
            await asyncio.sleep(2)
            assert scheduler.pending == 1
            await asyncio.sleep(10)
            assert (scheduler.pending, scheduler.in_flight, scheduler.waiting_since()) == (0, 0, None)

    run(main())


def test_a_reload_begins_at_nothing_and_what_has_not_changed_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}) as (client, _):
            kernel = client.kernel
            client.send("m", "a")
            await kernel.load("m")
            assert counts(kernel, "m")["success"] == 1, "nothing had changed"
            (tmp_path / "m" / "config.pbtxt").write_text(BASE + 'parameters { key: "k" value { string_value: "v" } }\n')
            await kernel.load("m")
            assert counts(kernel, "m") == {}
            kernel.unload("m")
            with pytest.raises(ServingError, match="requested model 'm' is not available"):
                kernel.statistics("m")

    run(main())


# -- observers ---------------------------------------------------------------------------------------------------------


def test_an_observer_is_told_of_each_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"alone": BASE, "batched": BATCHING}, {"batched": sleeping(0.5)}) as (client, told):
            client.send("alone", "a")
            client.send("batched", "b", [[1.0], [2.0]])
            await asyncio.sleep(0.1)
            client.send("batched", "c", [[1.0]])
            client.send("batched", "d", [[1.0]])
            await asyncio.sleep(2)
            for model in client.kernel.models():
                model.scheduler.statistics.settle()
            assert told["alone"].records == [(1, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0)]
            assert told["batched"].records == [
                (2, 1000.0, 1000.0, 1000.0, 1000.5, 1000.5, 1000.5),
                (1, 1000.1, 1000.5, 1000.5, 1001.0, 1001.0, 1001.0),
                (1, 1000.1, 1000.5, 1000.5, 1001.0, 1001.0, 1001.0),
            ]

    run(main())


def test_the_first_response_of_a_decoupled_model(tmp_path: Path) -> None:
    async def streams(batch: Batch) -> Result:
        (request,) = batch.requests
        kernel: Kernel = request.model.kernel
        for _ in range(3):
            await asyncio.sleep(0.25)
            kernel.send(request, answer(request), False)
        kernel.send(request, None, True)
        return None

    async def nothing(batch: Batch) -> Result:
        (request,) = batch.requests
        request.model.kernel.send(request, None, True)
        return None

    models = {"m": DECOUPLED, "empty": DECOUPLED}
    behaviours: dict[str, Behaviour] = {"m": streams, "empty": nothing}

    async def main() -> None:
        async with serving(tmp_path, models, behaviours) as (client, told):
            client.send("m", "a")
            client.send("empty", "b")
            await asyncio.sleep(2)
            assert told["m"].first == [0.25], "once a request"
            assert told["empty"].first == [], "no response, no time to the first one"
            assert counts(client.kernel, "m")["success"] == 1

    run(main())


def test_observers_come_with_each_version_that_is_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}) as (client, told):
            kernel = client.kernel
            asked: list[Model] = []

            def ask(model: Model) -> None:
                asked.append(model)  # and wants none

            kernel.observe(ask)
            first = kernel.model("m")
            assert asked == [first]
            (tmp_path / "m" / "config.pbtxt").write_text(BASE + 'parameters { key: "k" value { string_value: "v" } }\n')
            await kernel.load("m")
            second = kernel.model("m")
            assert asked == [first, second] and second is not first
            assert second.scheduler.statistics.observers == (told["m"],)
            assert first.load_seconds == 0.0

    run(main())


def test_a_load_has_taken_no_time_before_it_is_over(tmp_path: Path) -> None:
    """Nor less than none: the metrics of a model are shown while it is loaded, too."""
    seen: list[float] = []

    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        async with Kernel(tmp_path, plugins=[TestBackend({})], control_mode="explicit") as kernel:
            kernel.observe(lambda model: seen.append(model.load_seconds))
            await asyncio.sleep(5.0)
            await kernel.load("m")

    run(main())
    assert set(seen) == {0.0}


def test_the_cache(tmp_path: Path) -> None:
    """A hit counts as a success that computed nothing; a miss as what it is, besides its execution."""
    counter, told = StatisticsCounter(), Told()
    counter.observers = (told,)
    counter.missed(0.25, 11.0)
    batch = batch_of(1, 10.0, 10.25, 10.5, 10.75, 11.0)
    counter.answered_alone(batch.requests[0], batch, 11.0)
    counter.hit(batch_of(1, 20.0, 0.0, 0.0, 0.0, 0.0).requests[0], 20.5, 20.75)
    counter.settle()
    record = counter.snapshot("m", 1, 0.0)
    assert (record.success.count, record.success.ns) == (2, 1_750_000_000)
    assert (record.queue.count, record.queue.ns) == (2, 750_000_000)
    assert (record.compute_infer.count, record.inference_count, record.execution_count) == (1, 1, 1)
    assert (record.cache_hit.count, record.cache_hit.ns) == (1, 250_000_000)
    assert (record.cache_miss.count, record.cache_miss.ns) == (1, 250_000_000)
    assert record.last_inference_ms == 11_000, "a hit leaves it as it was"
    assert sorted(told.looks) == [(False, 0.25), (True, 0.25)]
    assert sorted(told.records) == [
        (0, 20.0, 20.5, 20.75, 20.75, 20.75, 20.75),
        (1, 10.0, 10.25, 10.5, 10.75, 11.0, 11.0),
    ]


def batch_of(rows: int, enqueued: float, *times: float, requests: int = 1) -> Batch:
    batch = Batch([], rows * requests)
    for _ in range(requests):
        request = InferenceRequest("m", {}, lambda response, final: None)
        request.enqueued, request.batch_size = enqueued, rows
        batch.requests.append(request)
    batch.started, batch.input_ended, batch.output_started, batch.ended = times
    batch.instance = SimpleNamespace(name="m_0_0")
    return batch


moments = st.lists(st.integers(0, 1000), min_size=5, max_size=5).map(lambda times: [time / 8 for time in sorted(times)])
TOGETHER = 2  # requests in a batch
ways = st.sampled_from(["alone", "one by one", "together"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ways, st.integers(1, 9), moments), max_size=40), st.integers(0, 3))
def test_sums_are_those_of_the_records(requests: list[tuple[str, int, list[float]]], repeat: int) -> None:
    """Whichever way a request is counted, and however often what was noted is added up."""
    counter, told = StatisticsCounter(), Told()
    counter.observers = (told,)
    requests = requests * (repeat * FOLD // 40 + 1)
    for number, (way, rows, (enqueued, *times)) in enumerate(requests):
        batch = batch_of(rows, enqueued, *times, requests=TOGETHER if way == "together" else 1)
        if way == "alone":
            counter.answered_alone(batch.requests[0], batch, batch.ended)
        elif way == "together":
            counter.answered(batch, batch.ended)
        else:
            counter.executed(batch)
            counter.succeeded(batch.requests[0], batch, batch.ended)
        if number % 100 == 99:
            counter.settle()
    record = counter.snapshot("m", 1, 0.0)
    assert record.execution_count == len(requests)
    more = sum(way == "together" for way, *_ in requests) * (TOGETHER - 1)
    assert len(told.records) == len(requests) + more == record.success.count
    assert record.inference_count == sum(each[0] for each in told.records)
    assert record.success.ns == round(sum(each[6] - each[1] for each in told.records) * 1e9)
    assert record.queue.ns == round(sum(each[2] - each[1] for each in told.records) * 1e9)
    assert record.compute_input.ns == round(sum(each[3] - each[2] for each in told.records) * 1e9)
    assert record.compute_infer.ns == round(sum(each[4] - each[3] for each in told.records) * 1e9)
    assert record.compute_output.ns == round(sum(each[5] - each[4] for each in told.records) * 1e9)
    assert sum(rows * durations[0].count for rows, durations in record.batch_stats.items()) == record.inference_count


def test_nothing_is_kept_while_nobody_looks() -> None:
    counter = StatisticsCounter()
    for _ in range(3 * FOLD):
        batch = batch_of(1, 0.0, 0.0, 0.0, 0.0, 0.0)
        counter.succeeded(batch.requests[0], batch, 0.0)
    assert counter._records == []
    assert counter.failures == dict.fromkeys(Reason, 0)


# -- responses ---------------------------------------------------------------------------------------------------------


def test_responses_that_a_backend_reports(tmp_path: Path) -> None:
    """By their place in the request; what has no outputs has computed none, what was cancelled neither."""
    kernel_of: list[Kernel] = []

    async def reports(batch: Batch) -> Result:
        (request,), (kernel,) = batch.requests, kernel_of
        now, report = kernel.clock(), kernel.report_response
        kernel.send(request, answer(request), False)
        report(request, 0, started=now, output_started=now + 0.5, ended=now + 0.75)
        if request.id == "b":
            failed, given_up = ServingError(Code.INTERNAL, "no"), ServingError(Code.CANCELLED, "no")
            report(request, 1, started=now, output_started=now + 1, ended=now + 2, error=failed)
            report(request, 2, started=now, ended=now + 4, error=given_up)
        report(request, 1, started=now, ended=now + 0.125)
        kernel.send(request, None, True)
        return [None]

    async def main() -> None:
        async with serving(tmp_path, {"m": DECOUPLED, "n": DECOUPLED}, {"m": reports}) as (client, _):
            kernel = client.kernel
            kernel_of.append(kernel)
            client.send("m", "a")
            client.send("m", "b")
            await asyncio.sleep(1)
            (record,) = kernel.statistics("m")
            found = {
                index: {name: (one.count, one.ns / 1e9) for name, one in times.items() if one.count}
                for index, times in record.response_stats.items()
            }
            assert found == {
                "0": {"compute_infer": (2, 1.0), "compute_output": (2, 0.5), "success": (2, 1.5)},
                "1": {"compute_infer": (1, 1.0), "compute_output": (1, 1.0), "fail": (1, 2.0), "empty_response": (2, 0.25)},
                "2": {"cancel": (1, 4.0)},
            }
            assert [*record.response_stats["2"]] == [
                "compute_infer", "compute_output", "success", "fail", "empty_response", "cancel",
            ]  # fmt: skip
            assert (record.success.count, record.fail.count) == (2, 0), "requests are counted as ever"
            (other,) = kernel.statistics("n")
            assert other.response_stats == {}, "who reports none has none"

    run(main())

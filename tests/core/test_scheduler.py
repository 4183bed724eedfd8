"""The scheduler on virtual time: what happens when, told as timelines. Times are exact seconds since the start."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from virtual import BASE, Behaviour, Client, TestBackend, answer, echo, run, sleeping, write_repository

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, Reason, Result, ServingError, Tensor

pytestmark = pytest.mark.usefixtures("either_way")

BATCHING = BASE + "max_batch_size: 8\n"


@asynccontextmanager
async def serving(
    folder: Path, models: Mapping[str, str], behaviours: Mapping[str, Behaviour] | None = None
) -> AsyncIterator[tuple[Client, TestBackend]]:
    backend = TestBackend(behaviours or {})
    write_repository(folder, models)
    async with Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"]) as kernel:
        client = Client(kernel)
        yield client, backend
        for model in kernel.models():
            assert model.scheduler.in_flight == 0 or not kernel.accepting, "requests are left behind"
            assert model.scheduler.pending == 0


def test_a_request_is_answered_with_name_version_and_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}) as (client, _):
            client.send("m", "r1", [1, 2])
            (when, response, final), *rest = client.answers["r1"]
            assert rest == [] and final and when == 0
            assert response is not None
            assert (response.model_name, response.model_version, response.id) == ("m", "1", "r1")
            assert response["Y"].tolist() == [1, 2]

    run(main())


def test_one_at_a_time_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as (client, backend):
            for name in "abc":
                client.send("m", name)
            await asyncio.sleep(10)
            assert client.outcomes() == {"a": (1, "ok"), "b": (2, "ok"), "c": (3, "ok")}
            assert backend.executions("m") == [["a"], ["b"], ["c"]]  # never merged without dynamic_batching

    run(main())


def test_instances_share_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        config = BASE.replace("count: 1", "count: 2")
        async with serving(tmp_path, {"m": config}, {"m": sleeping(1.0)}) as (client, _):
            for name in "abc":
                client.send("m", name)
            await asyncio.sleep(10)
            assert client.outcomes() == {"a": (1, "ok"), "b": (1, "ok"), "c": (2, "ok")}

    run(main())


# -- batches -----------------------------------------------------------------------------------------------------------


def test_backlog_is_batched_without_a_delay(tmp_path: Path) -> None:
    """BC25: 1 then 8."""

    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { }"}
        async with serving(tmp_path, models, {"m": sleeping(0.2)}) as (client, backend):
            client.send("m", "0", [[1]])
            await asyncio.sleep(0.1)
            for index in range(1, 9):
                client.send("m", str(index), [[index]])
            await asyncio.sleep(1)
            assert [len(ids) for ids in backend.executions("m")] == [1, 8]
            assert client.outcome("8") == (0.4, "ok")

    run(main())


def test_an_instance_with_room_for_another_execution_takes_a_batch_that_is_not_full(tmp_path: Path) -> None:
    async def main() -> None:
        room = 'parameters { key: "max_concurrency" value { string_value: "2" } }\n'
        async with serving(tmp_path, {"m": BATCHING + room + "dynamic_batching { }"}, {"m": sleeping(1.0)}) as (client, backend):
            client.send("m", "0", [[0]])
            await asyncio.sleep(0.1)
            client.send("m", "1", [[1]])
            await asyncio.sleep(0.1)
            client.send("m", "2", [[2]])  # waits: two is all there is room for
            await asyncio.sleep(3)
            assert backend.executions("m") == [["0"], ["1"], ["2"]]
            assert client.outcomes() == {"0": (1.0, "ok"), "1": (1.1, "ok"), "2": (2.0, "ok")}

    run(main())


def test_one_turn_of_the_loop_is_one_batch(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { }"}
        async with serving(tmp_path, models) as (client, backend):
            for index in range(9):
                client.send("m", str(index), [[index]])
            await asyncio.sleep(1)
            assert [len(ids) for ids in backend.executions("m")] == [8, 1]

    run(main())


@pytest.mark.parametrize(
    ("count", "executions", "last"),
    [(1, [1], 0.5), (4, [4], 0.0), (5, [4, 1], 0.5), (6, [4, 2], 0.5)],
)
def test_preferred_size_goes_at_once_the_rest_waits_for_the_delay(
    tmp_path: Path, count: int, executions: list[int], last: float
) -> None:
    """BC26."""

    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 500000 }"}
        async with serving(tmp_path, models) as (client, backend):
            for index in range(count):
                client.send("m", str(index), [[index]])
            await asyncio.sleep(5)
            assert [len(ids) for ids in backend.executions("m")] == executions
            assert client.outcome("0") == (last if count < 4 else 0.0, "ok")
            assert client.outcome(str(count - 1)) == (last, "ok")

    run(main())


def test_rows_count_against_the_maximum(tmp_path: Path) -> None:
    """BC27: three requests of three rows."""

    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { max_queue_delay_microseconds: 300000 }"}
        sizes: list[int] = []

        def execute(batch: Batch) -> Result:
            sizes.append(sum(len(request.inputs["X"].array) for request in batch.requests))
            assert batch.size == sizes[-1]
            return echo(batch)  # type: ignore[return-value]

        async with serving(tmp_path, models, {"m": execute}) as (client, _):
            for name in "abc":
                client.send("m", name, [[1], [2], [3]])
            await asyncio.sleep(1)
            assert sizes == [6, 3]
            assert client.outcomes() == {"a": (0, "ok"), "b": (0, "ok"), "c": (0.3, "ok")}

    run(main())


def test_max_batch_size_1_never_waits_for_company(tmp_path: Path) -> None:
    """BC28."""

    async def main() -> None:
        config = BASE + "max_batch_size: 1 dynamic_batching { max_queue_delay_microseconds: 100000 }"
        async with serving(tmp_path, {"m": config}) as (client, backend):
            for name in "abc":
                client.send("m", name, [[1]])
            await asyncio.sleep(1)
            assert client.outcomes() == dict.fromkeys("abc", (0, "ok"))
            assert backend.executions("m") == [["a"], ["b"], ["c"]]

    run(main())


def test_parameters_stay_with_their_request(tmp_path: Path) -> None:
    """BC30."""

    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { max_queue_delay_microseconds: 300000 }"}

        def execute(batch: Batch) -> Result:
            assert len(batch.requests) == 2
            return [
                InferenceResponse([], parameters={"seen": (request.parameters or {})["k"]}) for request in batch.requests
            ]

        async with serving(tmp_path, models, {"m": execute}) as (client, _):
            client.send("m", "a", [[1]], parameters={"k": "v1"})
            client.send("m", "b", [[1]], parameters={"k": "v2"})
            await asyncio.sleep(1)
            for name, value in (("a", "v1"), ("b", "v2")):
                response = client.answers[name][0][1]
                assert response is not None and response.parameters == {"seen": value}

    run(main())


def test_rows_go_back_to_whom_they_belong(tmp_path: Path) -> None:
    """BC31: a model that concatenates, computes and splits back; 30 requests of 1 to 4 rows."""

    async def main() -> None:
        models = {"m": BASE + "max_batch_size: 40 dynamic_batching { max_queue_delay_microseconds: 400000 }"}

        def execute(batch: Batch) -> Result:
            doubled = batch.gather("X") * 2
            return [InferenceResponse([tensor]) for tensor in batch.scatter("Y", "FP32", doubled)]

        async with serving(tmp_path, models, {"m": execute}) as (client, backend):
            for index in range(30):
                client.send("m", str(index), np.full((1 + index % 4, 1), index))
            await asyncio.sleep(2)
            assert len(backend.executions("m")) < 30
            for index in range(30):
                response = client.answers[str(index)][0][1]
                assert response is not None
                assert response["Y"].tolist() == [[2.0 * index]] * (1 + index % 4)

    run(main())


def test_other_shapes_are_other_batches(tmp_path: Path) -> None:
    """BC32; and the order is kept: 2,2,3,2 -> executions of 2,1,1."""

    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { max_queue_delay_microseconds: 300000 }"}
        async with serving(tmp_path, models) as (client, backend):
            for name, width in (("a", 2), ("b", 2), ("c", 3), ("d", 2)):
                client.send("m", name, [[0] * width])
            await asyncio.sleep(1)
            assert backend.executions("m") == [["a", "b"], ["c"], ["d"]]

    run(main())


def test_preserve_ordering_holds_back_the_faster(tmp_path: Path) -> None:
    async def main() -> None:
        models = {
            "m": BASE.replace("count: 1", "count: 2")
            + "max_batch_size: 1 dynamic_batching { preserve_ordering: true }"
        }

        async def execute(batch: Batch) -> Result:
            await asyncio.sleep(float(batch.requests[0].inputs["X"].array.flat[0]))
            return echo(batch)  # type: ignore[return-value]

        async with serving(tmp_path, models, {"m": execute}) as (client, _):
            client.send("m", "slow", [[0.4]])
            client.send("m", "fast", [[0.1]])
            await asyncio.sleep(2)
            assert client.outcomes() == {"slow": (0.4, "ok"), "fast": (0.4, "ok")}
            # A cancelled head does not hold the others back.
            client.send("m", "gone", [[1.0]])
            client.send("m", "next", [[0.1]])
            await asyncio.sleep(0.5)
            client.kernel.cancel(client.requests["gone"])
            assert client.outcome("next") == (2.5, "ok")
            await asyncio.sleep(2)

    run(main())


def test_the_first_answer_is_the_one_also_while_it_waits_for_others(tmp_path: Path) -> None:
    async def main() -> None:
        models = {
            "m": BASE.replace("count: 1", "count: 2") + "max_batch_size: 1 dynamic_batching { preserve_ordering: true }"
        }

        async def execute(batch: Batch) -> Result:
            (request,) = batch.requests
            if request.id == "slow":
                await asyncio.sleep(1)
                return echo(batch)  # type: ignore[return-value]
            client.kernel.send(request, answer(request), True)
            client.kernel.send(request, InferenceResponse.failure(Code.UNKNOWN, "twice"), True)
            raise ServingError(Code.INTERNAL, "and a third time")

        async with serving(tmp_path, models, {"m": execute}) as (client, _):
            client.send("m", "slow", [[1]])
            client.send("m", "fast", [[1]])
            await asyncio.sleep(2)
            assert client.outcomes() == {"slow": (1, "ok"), "fast": (1, "ok")}
            (statistics,) = client.kernel.statistics("m")
            assert (statistics.success.count, statistics.fail.count) == (2, 0)

    run(main())


# -- queue policies ----------------------------------------------------------------------------------------------------


LIMITED = BATCHING.replace("max_batch_size: 8", "max_batch_size: 1")


def test_expired_entries_give_their_place_back(tmp_path: Path) -> None:
    """BC23, staggered: 0 runs for a second; 1, 2, 3 time out after 0.3 s; 4 runs at 1.0 s; 5 times out behind it."""

    async def main() -> None:
        models = {
            "m": LIMITED
            + "dynamic_batching { default_queue_policy { default_timeout_microseconds: 300000 max_queue_size: 2 } }"
        }
        async with serving(tmp_path, models, {"m": sleeping(1.0)}) as (client, _):
            for index in range(6):
                client.send("m", str(index), [[1]])
                await asyncio.sleep(0.2)
            await asyncio.sleep(5)
            expired = "Request timeout expired"
            assert client.outcomes() == {
                "0": (1.0, "ok"),
                "1": (0.5, expired),
                "2": (0.7, expired),
                "3": (0.9, expired),
                "4": (2.0, "ok"),
                "5": (1.3, expired),
            }
            statistics = client.kernel.statistics("m")[0]
            assert statistics.fail.count == 4 and statistics.failures["REJECTED"] == 4

    run(main())


def test_six_at_once_one_runs_two_wait_three_are_refused(tmp_path: Path) -> None:
    """BC23, at once."""

    async def main() -> None:
        models = {
            "m": LIMITED
            + "dynamic_batching { default_queue_policy { default_timeout_microseconds: 300000 max_queue_size: 2 } }"
        }
        async with serving(tmp_path, models, {"m": sleeping(1.0)}) as (client, _):
            client.send("m", "0", [[1]])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for index in range(1, 6):
                client.send("m", str(index), [[1]])
            await asyncio.sleep(5)
            full = "Exceeds maximum queue size"
            assert client.outcomes() == {
                "0": (1.0, "ok"),
                "1": (0.3, "Request timeout expired"),
                "2": (0.3, "Request timeout expired"),
                **{str(index): (0.0, f"[request id: {index}] {full}") for index in (3, 4, 5)},
            }
            # Refused as queue full: in no statistic.
            assert client.kernel.statistics("m")[0].fail.count == 2

    run(main())


def test_a_request_may_shorten_its_time_out_but_not_lengthen_it(tmp_path: Path) -> None:
    """BC24."""

    async def main() -> None:
        policy = "default_timeout_microseconds: 300000 allow_timeout_override: true"
        models = {"m": LIMITED + f"dynamic_batching {{ default_queue_policy {{ {policy} }} }}"}
        async with serving(tmp_path, models, {"m": sleeping(1.0)}) as (client, _):
            client.send("m", "A", [[1]])
            client.send("m", "B", [[1]], timeout_us=100_000)
            client.send("m", "C", [[1]], timeout_us=5_000_000)
            await asyncio.sleep(3)
            expired = "Request timeout expired"
            assert client.outcomes() == {"A": (1.0, "ok"), "B": (0.1, expired), "C": (0.3, expired)}

    run(main())


def test_the_time_out_parameter_does_nothing_without_a_policy(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as (client, _):
            client.send("m", "a")
            client.send("m", "b", timeout_us=100_000)
            await asyncio.sleep(3)
            assert client.outcome("b") == (2.0, "ok")

    run(main())


def test_priorities(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": LIMITED + "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"}
        async with serving(tmp_path, models, {"m": sleeping(1.0)}) as (client, backend):
            client.send("m", "first", [[1]])
            await asyncio.sleep(0.5)
            client.send("m", "low", [[1]], priority=2)
            client.send("m", "default", [[1]])
            client.send("m", "high", [[1]], priority=1)
            await asyncio.sleep(9)
            assert backend.executions("m") == [["first"], ["high"], ["low"], ["default"]]

    run(main())


def test_the_delayed_go_behind_the_others_of_their_level(tmp_path: Path) -> None:
    """A time-out with DELAY: behind a fresher one of the same level, before any of a lower one, and never refused."""

    async def main() -> None:
        policy = "timeout_action: DELAY default_timeout_microseconds: 300000 allow_timeout_override: true"
        batching = f"priority_levels: 2 default_priority_level: 1 default_queue_policy {{ {policy} }}"
        models = {"m": LIMITED + f"dynamic_batching {{ {batching} }}"}
        async with serving(tmp_path, models, {"m": sleeping(1.0)}) as (client, backend):
            client.send("m", "first", [[1]])
            await asyncio.sleep(0.1)
            client.send("m", "lower", [[1]], priority=2)
            client.send("m", "later", [[1]])
            client.send("m", "sooner", [[1]], timeout_us=100_000)
            await asyncio.sleep(0.8)
            client.send("m", "fresh", [[1]])
            await asyncio.sleep(9)
            assert backend.executions("m") == [["first"], ["fresh"], ["sooner"], ["later"], ["lower"]]
            assert {words for _, words in client.outcomes().values()} == {"ok"}

    run(main())


def test_each_level_has_its_own_policy(tmp_path: Path) -> None:
    async def main() -> None:
        own = "default_timeout_microseconds: 200000 max_queue_size: 1"
        batching = (
            "priority_levels: 2 default_priority_level: 2 default_queue_policy { default_timeout_microseconds: 500000 } "
            f"priority_queue_policy {{ key: 1 value {{ {own} }} }}"
        )
        models = {"m": LIMITED + f"dynamic_batching {{ {batching} }}"}
        async with serving(tmp_path, models, {"m": sleeping(1.0)}) as (client, _):
            client.send("m", "first", [[1]])
            await asyncio.sleep(0.1)
            for name in ("a", "b"):
                client.send("m", f"low {name}", [[1]], priority=2)
                client.send("m", f"high {name}", [[1]], priority=1)
            await asyncio.sleep(9)
            assert client.outcomes() == {
                "first": (1.0, "ok"),
                "low a": (0.6, "Request timeout expired"),
                "high a": (0.3, "Request timeout expired"),
                "low b": (0.6, "Request timeout expired"),
                "high b": (0.1, "[request id: high b] Exceeds maximum queue size"),
            }

    run(main())


# -- cancellation and deadlines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_cancel_one_of_three_queued(tmp_path: Path, gone: str) -> None:
    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { max_queue_delay_microseconds: 500000 }"}
        async with serving(tmp_path, models) as (client, backend):
            for name in "abc":
                client.send("m", name, [[1]])
            await asyncio.sleep(0.1)
            client.kernel.cancel(client.requests[gone])
            await asyncio.sleep(1)
            left = [name for name in "abc" if name != gone]
            assert backend.executions("m") == [left]
            assert client.outcomes() == {
                gone: (0.1, f"[request id: {gone}] Request cancelled"),
                **dict.fromkeys(left, (0.5, "ok")),
            }
            statistics = client.kernel.statistics("m")[0]
            assert statistics.failures["CANCELED"] == 1 and statistics.success.count == 2

    run(main())


def test_cancel_one_of_three_executing(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { max_queue_delay_microseconds: 100000 }"}
        seen: list[bool] = []

        async def execute(batch: Batch) -> Result:
            await asyncio.sleep(1.0)
            seen.extend(request.is_cancelled for request in batch.requests)
            return [None if request.is_cancelled else answer(request) for request in batch.requests]

        async with serving(tmp_path, models, {"m": execute}) as (client, _):
            for name in "abc":
                client.send("m", name, [[1]])
            await asyncio.sleep(0.5)
            client.kernel.cancel(client.requests["b"])
            await asyncio.sleep(2)
            assert seen == [False, True, False]
            assert client.outcomes() == {
                "a": (1.1, "ok"),
                "b": (0.5, "[request id: b] Request cancelled"),
                "c": (1.1, "ok"),
            }

    run(main())


def test_cancelling_twice_or_after_the_answer_does_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as (client, _):
            client.send("m", "a")
            client.kernel.cancel(client.requests["a"])
            client.kernel.cancel(client.requests["a"])
            client.send("m", "b")
            await asyncio.sleep(3)
            client.kernel.cancel(client.requests["b"])
            # a was cancelled before its task had begun: nothing was executed for it.
            assert client.outcomes() == {"a": (0, "[request id: a] Request cancelled"), "b": (1, "ok")}

    run(main())


def test_a_deadline_passes_while_queued_and_while_executing(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as (client, backend):
            client.send("m", "running", deadline=1000.5)
            client.send("m", "waiting", deadline=1000.25)
            client.send("m", "patient", deadline=1009.0)
            await asyncio.sleep(5)
            assert client.outcome("running") == (
                0.5,
                "[request id: running] deadline of the request to model 'm' passed after 0.500 s while it was executing",
            )
            assert client.outcome("waiting") == (
                0.25,
                "[request id: waiting] deadline of the request to model 'm' passed after 0.250 s while it was queued",
            )
            assert client.outcome("patient") == (2.0, "ok")  # the instance was held until 1.0
            assert backend.executions("m") == [["running"], ["patient"]]
            failures = client.kernel.statistics("m")[0].failures
            assert (failures["REJECTED"], failures["CANCELED"]) == (1, 1)

    run(main())


def test_a_burst_is_refused_only_for_what_has_to_wait(tmp_path: Path) -> None:
    """BC23, all at once: one runs, two wait, the others are refused."""

    async def main() -> None:
        policy = "dynamic_batching { default_queue_policy { max_queue_size: 2 } } max_batch_size: 1"
        async with serving(tmp_path, {"m": BASE + policy}, {"m": sleeping(1)}) as (client, backend):
            for index in range(6):
                client.send("m", str(index), [[1.0]])
            await asyncio.sleep(5)
            refused = (0, "[request id: {}] Exceeds maximum queue size")
            expected = {"0": (1, "ok"), "1": (2, "ok"), "2": (3, "ok")}
            expected |= {str(index): (0, refused[1].format(index)) for index in (3, 4, 5)}
            assert client.outcomes() == expected
            assert backend.executions("m") == [["0"], ["1"], ["2"]]

    run(main())


def test_a_deadline_does_not_cost_a_turn_of_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}) as (client, _):
            client.send("m", "at once", deadline=client.kernel.clock() + 1)
            assert client.outcome("at once") == (0, "ok")
            client.send("m", "late", deadline=client.kernel.clock() - 1)
            await asyncio.sleep(0)
            assert "deadline of the request to model 'm' passed" in client.outcome("late")[1]

    run(main())


def test_a_deadline_passes_during_an_execution_that_began_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1)}) as (client, _):
            client.send("m", "slow", deadline=client.kernel.clock() + 0.25)
            await asyncio.sleep(2)
            when, words = client.outcome("slow")
            assert when == 0.25 and words.endswith("passed after 0.250 s while it was executing")

    run(main())


def test_answered_requests_with_far_deadlines_are_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}) as (client, _):
            for index in range(1000):
                client.send("m", str(index), deadline=5000.0)
            await asyncio.sleep(1)
            client.requests.clear()
            gc.collect()
            assert sum(isinstance(one, InferenceRequest) for one in gc.get_objects()) < 200

    run(main())


def test_a_storm_of_time_outs_leaves_nothing_behind(tmp_path: Path) -> None:
    """BC34: generous requests before and after a storm of impatient ones take the same time."""

    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(0.005)}) as (client, _):
            loop = client.kernel.loop

            async def phase(count: int, limit: float) -> tuple[int, float]:
                began = loop.time()
                calls = [client.kernel.infer("m", {"X": np.zeros(1, np.float32)}, timeout=limit) for _ in range(count)]
                results = await asyncio.gather(*calls, return_exceptions=True)
                return sum(not isinstance(result, Exception) for result in results), loop.time() - began

            first = await phase(100, 60.0)
            storm = await phase(300, 0.01)
            third = await phase(100, 60.0)
            assert first[0] == third[0] == 100
            assert storm[0] <= 2
            assert third[1] == pytest.approx(first[1], rel=0.05)

    run(main())


# -- models that misbehave ---------------------------------------------------------------------------------------------


def failing(batch: Batch) -> Result:
    raise ValueError("no luck")


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (failing, "model 'm' failed: ValueError: no luck"),
        (lambda batch: [], "the executor of model 'm' returned 0 responses for 1 requests"),
        (lambda batch: [answer(batch.requests[0])] * 3, "the executor of model 'm' returned 3 responses for 1 requests"),
        (lambda batch: 7, "model 'm' failed: TypeError: its executor returned int, not a list of responses"),
        (lambda batch: ["x"], "model 'm' failed: TypeError: its executor returned str where a response was wanted"),
        (lambda batch: (object(),), "model 'm' failed: TypeError: its executor returned object where a response was wanted"),
        (
            lambda batch: [InferenceResponse.failure(Code.NOT_FOUND, "not here")],
            "not here",
        ),
    ],
)
def test_every_request_gets_an_answer_whatever_execute_does(tmp_path: Path, behaviour: Behaviour, words: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": behaviour}) as (client, _):
            client.send("m", "a")
            client.send("m", "b")
            await asyncio.sleep(1)
            assert client.outcomes() == {"a": (0, words), "b": (0, words)}
            statistics = client.kernel.statistics("m")[0]
            assert (statistics.success.count, statistics.fail.count, statistics.execution_count) == (0, 2, 2)
            assert statistics.failures["BACKEND"] == 2

    run(main())


def test_system_exit_of_a_model_does_not_end_the_server(tmp_path: Path) -> None:
    def leave(batch: Batch) -> Result:
        raise SystemExit(3)

    async def main() -> None:
        async with serving(tmp_path, {"m": BASE, "n": BASE}, {"m": leave}) as (client, _):
            client.send("m", "a")
            client.send("n", "b")
            await asyncio.sleep(1)
            assert client.outcomes() == {"a": (0, "model 'm' failed: SystemExit: 3"), "b": (0, "ok")}

    run(main())


def test_a_receiver_that_fails_harms_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}) as (client, _):
            bad = client.send("m", "bad", deadline=1005.0)

            def respond(response: InferenceResponse | None, final: bool) -> None:
                raise OSError("the client is gone")

            bad.respond = respond
            client.send("m", "good")
            await asyncio.sleep(1)
            assert client.outcome("good") == (0, "ok")
            del client.answers["bad"]

    run(main())


# -- calls of models ---------------------------------------------------------------------------------------------------


def calling(kernel_of: list[Kernel], target: str, then: float = 0.0) -> Behaviour:
    """Return a behaviour that calls `target` with its own input and answers with what it got."""

    async def execute(batch: Batch) -> Result:
        responses: list[InferenceResponse | None] = []
        for request in batch.requests:
            future: asyncio.Future[InferenceResponse] = kernel_of[0].loop.create_future()
            child = type(request)(
                target,
                {"X": Tensor("X", "FP32", request.inputs["X"].array.copy())},
                lambda response, final, future=future: future.done() or future.set_result(response),
                parent=batch,
                id=f"{request.id}>",
            )
            kernel_of[0].submit(child)
            response = await future
            await asyncio.sleep(then)
            responses.append(
                InferenceResponse([], error=response.error) if response.error else answer(request, Y=response["Y"])
            )
        return responses

    return execute


def test_a_call_of_oneself_with_one_instance_is_refused_at_once(tmp_path: Path) -> None:
    """BC15: the reference hangs."""
    kernels: list[Kernel] = []

    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": calling(kernels, "m")}) as (client, _):
            kernels.append(client.kernel)
            client.send("m", "a")
            await asyncio.sleep(1)
            when, words = client.outcome("a")
            assert when == 0
            assert "request to model 'm' could only wait for itself" in words and "m -> m" in words

    run(main())


def test_two_models_that_call_each_other_are_refused_with_the_cycle(tmp_path: Path) -> None:
    kernels: list[Kernel] = []

    async def main() -> None:
        behaviours = {"p": calling(kernels, "q"), "q": calling(kernels, "p")}
        async with serving(tmp_path, {"p": BASE, "q": BASE}, behaviours) as (client, backend):
            kernels.append(client.kernel)
            client.send("p", "a")
            await asyncio.sleep(1)
            assert "p -> q -> p" in client.outcome("a")[1]
            assert backend.executions("q") == [["a>"]]

    run(main())


def test_a_call_that_has_to_wait_for_others_is_not_refused(tmp_path: Path) -> None:
    kernels: list[Kernel] = []

    async def main() -> None:
        behaviours = {"outer": calling(kernels, "inner"), "inner": sleeping(1.0)}
        async with serving(tmp_path, {"outer": BASE, "inner": BASE}, behaviours) as (client, _):
            kernels.append(client.kernel)
            client.send("inner", "other")
            client.send("outer", "a")
            await asyncio.sleep(5)
            assert client.outcomes() == {"other": (1, "ok"), "a": (2, "ok")}

    run(main())


def test_cancelling_the_parent_cancels_its_calls(tmp_path: Path) -> None:
    kernels: list[Kernel] = []

    async def main() -> None:
        behaviours = {"outer": calling(kernels, "inner"), "inner": sleeping(5.0)}
        models = {"outer": BASE + 'parameters { key: "max_concurrency" value { string_value: "4" } }', "inner": BASE}
        async with serving(tmp_path, models, behaviours) as (client, backend):
            kernels.append(client.kernel)
            client.send("outer", "a")
            client.send("outer", "b")
            await asyncio.sleep(1)
            client.kernel.cancel(client.requests["b"])  # its call is queued at inner
            client.kernel.cancel(client.requests["a"])  # its call is executing
            await asyncio.sleep(20)
            assert backend.executions("inner") == [["a>"]]
            assert client.kernel.statistics("inner")[0].failures["CANCELED"] == 2

    run(main())


# -- unload, reload, shutdown ------------------------------------------------------------------------------------------


def test_unload_with_requests_in_flight_finishes_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as (client, backend):
            client.send("m", "a")
            client.send("m", "b")
            client.kernel.unload("m")
            client.send("m", "late")
            assert client.outcome("late") == (0, "Request for unknown model: 'm' has no available versions")
            assert client.kernel.index()[0].state == "UNLOADING"
            assert not client.kernel.is_ready()
            await asyncio.sleep(5)
            assert client.outcome("a") == (1, "ok") and client.outcome("b") == (2, "ok")
            assert (client.kernel.index()[0].state, client.kernel.index()[0].reason) == ("UNAVAILABLE", "unloaded")
            assert client.kernel.is_ready()
            assert backend.log[-1] == (1002.0, "finalize", "m_0_0")

    run(main())


def test_reload_under_traffic_fails_nobody(tmp_path: Path) -> None:
    """BC65."""

    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as (client, backend):
            client.send("m", "old")
            (tmp_path / "m" / "1" / "new_file").write_text("x")
            await client.kernel.load("m")
            client.send("m", "new")
            await asyncio.sleep(5)
            assert client.outcomes() == {"old": (1, "ok"), "new": (1, "ok")}  # side by side: the old copy finishes
            assert [what for _, what, _ in backend.log].count("initialize") == 2
            assert [what for _, what, _ in backend.log].count("finalize") == 1
            await client.kernel.load("m")  # nothing has changed
            assert [what for _, what, _ in backend.log].count("initialize") == 2

    run(main())


def test_a_failing_reload_leaves_the_old_one_serving(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}) as (client, _):
            (tmp_path / "m" / "config.pbtxt").write_text(BASE.replace("dims", "dim"))
            with pytest.raises(ServingError) as caught:
                await client.kernel.load("m")
            assert caught.value.message.startswith("failed to load 'm', failed to poll from model repository")
            assert "config.pbtxt:3:" in caught.value.message and "'dims'" in caught.value.message
            client.send("m", "a")
            assert client.outcome("a") == (0, "ok")
            assert client.kernel.is_ready()

    run(main())


def test_shutdown_with_a_full_queue_finishes_what_it_can(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": BASE}, {"m": sleeping(1.0)}) as (client, _):
            for index in range(5):
                client.send("m", str(index))
            stopping = asyncio.ensure_future(client.kernel.stop(2.5))
            await asyncio.sleep(0)
            client.send("m", "late")
            await stopping
            stopped = "Server is stopping, "
            assert client.outcome("0") == (1, "ok")
            assert client.outcome("1") == (2, "ok")
            for index in (2, 3, 4):
                when, words = client.outcome(str(index))
                assert when == 2.5 and words.startswith(stopped)
            assert client.outcome("late")[1] == (
                "[request id: late] Server is stopping, scheduler for model has stopped accepting new inference requests"
            )

    run(main())


def test_calls_of_accepted_requests_are_served_during_shutdown(tmp_path: Path) -> None:
    """Nothing already accepted is lost: the model in flight may still call others."""
    kernels: list[Kernel] = []

    async def late_call(batch: Batch) -> Result:
        await asyncio.sleep(1.0)
        return await calling(kernels, "inner")(batch)  # type: ignore[misc, no-any-return]

    async def main() -> None:
        async with serving(tmp_path, {"outer": BASE, "inner": BASE}, {"outer": late_call}) as (client, _):
            kernels.append(client.kernel)
            client.send("outer", "a")
            await client.kernel.stop(10)
            assert client.outcome("a") == (1, "ok")

    run(main())


# -- embedding ---------------------------------------------------------------------------------------------------------


def test_infer_copies_raises_and_cancels(tmp_path: Path) -> None:
    def in_place(batch: Batch) -> Result:
        for request in batch.requests:
            request.inputs["X"].array *= 2
        return echo(batch)  # type: ignore[return-value]

    async def main() -> None:
        async with serving(tmp_path, {"m": BASE, "slow": BASE}, {"m": in_place, "slow": sleeping(1.0)}) as (client, _):
            kernel = client.kernel
            mine = np.array([1, 2], np.float32)
            response = await kernel.infer("m", {"X": mine}, id="me")
            assert response["Y"].tolist() == [2, 4] and mine.tolist() == [1, 2] and response.id == "me"
            with pytest.raises(KeyError, match=r"no output 'Z' in the response; it has \['Y'\]"):
                response["Z"]
            with pytest.raises(ServingError, match="Request for unknown model: 'nope' is not found"):
                await kernel.infer("nope", {"X": mine})
            with pytest.raises(ServingError, match="input 'X' of model 'm' has numpy dtype 'complex128'"):
                await kernel.infer("m", {"X": np.array([1j])})
            with pytest.raises(ServingError, match=r"passed after 0\.100 s while it was executing"):
                await kernel.infer("slow", {"X": mine}, timeout=0.1)
            call = kernel.infer("slow", {"X": mine})
            await asyncio.sleep(0.1)
            call.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert kernel.statistics("slow")[0].failures["CANCELED"] == 2
            await asyncio.sleep(3)

    run(main())


def decoupled(count: int) -> Behaviour:
    async def execute(batch: Batch) -> Result:
        kernel = batch.instance.executor.context.kernel
        request = batch.requests[0]
        for index in range(count):
            await asyncio.sleep(0.1)
            kernel.send(request, answer(request, Y=[index]), False)
        kernel.send(request, None, True)
        kernel.send(request, answer(request, Y=[99]), False)  # after the final: goes nowhere
        return None

    return execute


def test_stream_yields_responses_as_they_come(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": BASE + "model_transaction_policy { decoupled: true }"}
        async with serving(tmp_path, models, {"m": decoupled(3)}) as (client, _):
            x = {"X": np.zeros(1, np.float32)}
            seen = [(client.kernel.loop.time() - 1000, r["Y"].item()) async for r in client.kernel.stream("m", x)]
            assert seen == [(pytest.approx(0.1), 0), (pytest.approx(0.2), 1), (pytest.approx(0.3), 2)]
            with pytest.raises(ServingError, match=r"model 'm' gave 3 responses where exactly one was wanted"):
                await client.kernel.infer("m", x)
            assert client.kernel.statistics("m")[0].success.count == 2

    run(main())


def test_times_of_a_request_that_a_sender_has_answered_before_execute_returns(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": BASE + "model_transaction_policy { decoupled: true }"}
        async with serving(tmp_path, models, {"m": decoupled(3)}) as (client, _):
            async for _ in client.kernel.stream("m", {"X": np.zeros(1, np.float32)}):
                pass
            one = client.kernel.statistics("m")[0]
            times = [one.success, one.queue, one.compute_input, one.compute_infer, one.compute_output]
            assert [round(duration.ns / 1e6) for duration in times] == [300, 0, 0, 300, 0]

    run(main())


def test_leaving_a_stream_cancels_it(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": BASE + "model_transaction_policy { decoupled: true }"}
        async with serving(tmp_path, models, {"m": decoupled(50)}) as (client, _):
            stream = client.kernel.stream("m", {"X": np.zeros(1, np.float32)})
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]
            assert client.kernel.model("m").scheduler.in_flight == 0
            await asyncio.sleep(10)

    run(main())


# -- statistics --------------------------------------------------------------------------------------------------------


def test_statistics_of_a_batch(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": BATCHING + "dynamic_batching { max_queue_delay_microseconds: 500000 }"}

        async def execute(batch: Batch) -> Result:
            batch.input_ended = batch.started + 0.1
            await asyncio.sleep(1.0)
            batch.output_started = batch.started + 0.7
            return echo(batch)  # type: ignore[return-value]

        async with serving(tmp_path, models, {"m": execute}) as (client, _):
            client.send("m", "a", [[1], [2]])
            client.send("m", "b", [[1]])
            await asyncio.sleep(5)
            s = client.kernel.statistics("m")[0]
            assert (s.inference_count, s.execution_count) == (3, 1)
            counts = {name: getattr(s, name) for name in ("success", "queue", "compute_input", "compute_infer", "compute_output")}
            assert {name: (value.count, round(value.ns / 1e6)) for name, value in counts.items()} == {
                "success": (2, 3000),
                "queue": (2, 1000),
                "compute_input": (2, 200),
                "compute_infer": (2, 1200),
                "compute_output": (2, 600),
            }
            assert {size: [(d.count, round(d.ns / 1e6)) for d in row] for size, row in s.batch_stats.items()} == {
                3: [(1, 100), (1, 600), (1, 300)]
            }
            assert s.failures == {reason.value: 0 for reason in Reason}

    run(main())


def test_failures_keep_the_order_too(tmp_path: Path) -> None:
    async def main() -> None:
        models = {
            "m": BASE.replace("count: 1", "count: 2") + "max_batch_size: 1 dynamic_batching { preserve_ordering: true }"
        }

        async def execute(batch: Batch) -> Result:
            if batch.requests[0].id == "bad":
                raise ValueError("boom")
            await asyncio.sleep(10)
            return echo(batch)  # type: ignore[return-value]

        async with serving(tmp_path, models, {"m": execute}) as (client, _):
            client.send("m", "slow", [[1]])
            client.send("m", "bad", [[1]])
            await asyncio.sleep(20)
            assert client.outcomes() == {"slow": (10, "ok"), "bad": (10, "model 'm' failed: ValueError: boom")}

    run(main())


@pytest.mark.parametrize("timed", ["deadline", "policy"])
def test_answered_requests_do_not_keep_their_tensors(tmp_path: Path, timed: str) -> None:
    async def main() -> None:
        policy = "default_queue_policy { default_timeout_microseconds: 3600000000 }" if timed == "policy" else ""
        models = {"m": f"{BASE} max_batch_size: 1 dynamic_batching {{ {policy} }}"}
        async with serving(tmp_path, models) as (client, _):
            deadline = 4600.0 if timed == "deadline" else None
            for index in range(60):
                client.send("m", str(index), np.zeros((1, 1000)), deadline=deadline)
            await asyncio.sleep(1)
            client.answers.clear()
            assert sum(len(request.inputs) for request in client.requests.values()) == 0

    run(main())

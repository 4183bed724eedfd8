"""Rate-limited models on virtual time: who executes beside whom, in what order, and that all is given back."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Behaviour, Client, TestBackend, echo, run, sleeping, write_repository

from kernel import Batch, InferenceRequest, InferenceResponse, Kernel, Result, ServingError, Tensor
from kernel.scheduling.limited_pool import LimitedPool

HEAD = BASE[: BASE.index("instance_group")]


def group(
    resources: Mapping[str, int] | None = None, priority: int = 0, count: int = 1, shared: bool = False, more: str = ""
) -> str:
    listed = ", ".join(
        f'{{ name: "{name}" count: {amount} global: {str(shared).lower()} }}' for name, amount in (resources or {}).items()
    )
    return f"{{ kind: KIND_CPU count: {count} rate_limiter {{ resources [ {listed} ] priority: {priority} }} {more} }}"


def model(*groups: str) -> str:
    return HEAD + f"instance_group [ {', '.join(groups)} ]\n"


@asynccontextmanager
async def serving(
    folder: Path, models: Mapping[str, str], behaviours: Mapping[str, Behaviour] | None = None, limits: tuple[str, ...] = (),
    **options: Any,
) -> AsyncIterator[tuple[Client, TestBackend]]:  # fmt: skip
    backend = TestBackend(behaviours or {})
    write_repository(folder, models)
    options = {"control_mode": "explicit", "load_models": ["*"], "rate_limit": "execution_count", **options}
    async with Kernel(folder, plugins=[backend], rate_limit_resources=limits, **options) as kernel:
        yield Client(kernel), backend
        for one in kernel.models():
            assert (one.scheduler.in_flight, one.scheduler.pending) == (0, 0), "requests are left behind"
    if kernel.supervision.limits is not None:
        limiter = kernel.supervision.limits.limiter
        assert not limiter.holding and not limiter._held and not limiter._members and not limiter.waiting


def test_two_models_that_need_the_same_take_turns(tmp_path: Path) -> None:
    async def main() -> None:
        models = {name: model(group({"R": 1})) for name in "ab"}
        async with serving(tmp_path, models, dict.fromkeys("ab", sleeping(1.0))) as (client, backend):
            for k in range(3):
                client.send("a", f"a{k}")
                client.send("b", f"b{k}")
            await asyncio.sleep(20)
            order = [ids[0] for _, name, ids in backend.log if name in "ab"]
            assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]
            assert client.outcome("b2") == (6.0, "ok")

    run(main())


def test_without_a_limit_what_the_config_says_is_ignored(tmp_path: Path) -> None:
    async def main() -> None:
        both = model(group({"R": 1}), group({"R": 1}, shared=True))
        models = {"a": model(group({"R": 1})), "b": model(group({"R": 1})), "both": both}
        behaviours = dict.fromkeys(models, sleeping(1.0))
        async with serving(tmp_path, models, behaviours, rate_limit="off") as (client, _):
            for name in models:
                client.send(name, name)
            await asyncio.sleep(20)
            assert {when for when, _ in client.outcomes().values()} == {1.0}
            assert not isinstance(client.kernel.model("a").scheduler.pool, LimitedPool)

    run(main())


def test_as_many_at_a_time_as_there_is(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"small": model(group({"R": 1}, count=2)), "large": model(group({"R": 2}))}
        async with serving(tmp_path, models, dict.fromkeys(models, sleeping(1.0)), ("r:2",)) as (client, _):
            for k in range(4):
                client.send("small", str(k))
            client.send("large", "large")
            await asyncio.sleep(20)
            # Two small ones; the large one has had less than they and comes before the others.
            assert [client.outcome(one)[0] for one in ("0", "1", "large", "2", "3")] == [1.0, 1.0, 2.0, 3.0, 3.0]

    run(main())


def test_priorities_are_shares(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"a": model(group({"R": 1}, priority=1)), "b": model(group({"R": 1}, priority=3))}
        async with serving(tmp_path, models, dict.fromkeys(models, sleeping(1.0))) as (client, backend):
            for k in range(40):
                client.send("a", f"a{k}")
                client.send("b", f"b{k}")
            await asyncio.sleep(24.5)
            counts = [len(backend.executions(name)) for name in "ab"]
            assert sum(counts) == 25 and abs(counts[0] - 3 * counts[1]) <= 3, counts
            await asyncio.sleep(100)

    run(main())


async def keep_busy(kernel: Kernel, model: str, clients: int, pause: float) -> None:
    """Have `clients` ask one after the other for ever, each `pause` seconds after its last answer."""

    async def ask() -> None:
        while True:
            await kernel.infer(model, {"X": np.ones(1, np.float32)})
            await asyncio.sleep(pause)

    await asyncio.gather(*(ask() for _ in range(clients)))


@settings(deadline=None, max_examples=60)
@given(
    priorities=st.lists(st.integers(0, 5), min_size=2, max_size=4),
    seconds=st.lists(st.sampled_from([0.5, 1.0, 1.7]), min_size=4, max_size=4),
    counts=st.lists(st.integers(1, 2), min_size=4, max_size=4),
    clients=st.integers(3, 8),
    pause=st.sampled_from([0.0, 0.01, 0.2]),
    backwards=st.booleans(),
)
def test_shares_of_models_that_are_always_busy(
    priorities: list[int], seconds: list[float], counts: list[int], clients: int, pause: float, backwards: bool
) -> None:
    """At no time is a model ahead of its share by more than an execution, and soon all have theirs within a tenth."""

    async def main(folder: Path) -> None:
        names = "abcd"[: len(priorities)]
        models, weights = {}, {}
        for name, priority, count in zip(names, priorities, counts):
            models[name] = model(group({"R": 2}, priority=priority, count=count))
            weights[name] = count / max(1, priority)
        behaviours = {name: sleeping(duration) for name, duration in zip(names, seconds)}
        async with serving(folder, models, behaviours, ("R:3",)) as (client, backend):
            order = reversed(names) if backwards else names
            tasks = [asyncio.ensure_future(keep_busy(client.kernel, name, clients, pause)) for name in order]
            await asyncio.sleep(200)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(10)
            had = dict.fromkeys(names, 0)
            executions = [name for when, name, _ in backend.log if when < 200]
            for number, name in enumerate(executions, 1):
                had[name] += 1
                share = number * weights[name] / sum(weights.values())
                assert had[name] <= share + sum(counts), f"{had} of {number}"
            for name, number in had.items():
                share = len(executions) * weights[name] / sum(weights.values())
                assert abs(number - share) <= max(2, 0.1 * share), f"{had} of {len(executions)}, {name} wants {share}"

    with tempfile.TemporaryDirectory() as folder:
        run(main(Path(folder)))


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("later", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("limits", [("R:4", "S:2"), ()])
def test_two_to_one_as_a_client_measures_it(order: str, later: float, limits: tuple[str, ...], tmp_path: Path) -> None:
    """Each has eight requests in flight until one has sent eighty; the other sends one more, and all that were sent count.

    So a model that is ahead of its share by a single execution is found out: 80 to 45 is no longer two to one within a tenth.
    """

    async def main() -> None:
        sent = dict.fromkeys(order, 0)
        done = asyncio.Event()

        async def send(name: str) -> None:
            places = asyncio.Semaphore(8)
            asked = []

            async def ask() -> None:
                await client.kernel.infer(name, {"X": np.ones(1, np.float32)})
                places.release()

            while not done.is_set():
                await places.acquire()
                sent[name] += 1
                if sent[name] == 80:
                    done.set()
                asked.append(asyncio.ensure_future(ask()))
                await asyncio.sleep(0.0001)
            await asyncio.gather(*asked)

        models = {"a": model(group({"R": 4})), "b": model(group({"R": 2, "S": 2}, priority=2))}
        async with serving(tmp_path, models, dict.fromkeys("ab", sleeping(0.1)), limits) as (client, _):
            first = asyncio.ensure_future(send(order[0]))
            await asyncio.sleep(later)
            await asyncio.gather(first, send(order[1]))
            assert sent["a"] == 80 and 1.8 < sent["a"] / sent["b"] <= 2.2, sent

    run(main())


def test_among_the_instances_of_a_model_the_one_with_the_fewest_executions_is_next(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[str] = []

        async def execute(batch: Batch) -> Result:
            seen.append(batch.instance.name)
            await asyncio.sleep(0.1)
            return echo(batch)  # type: ignore[return-value]

        models = {"m": model(group(priority=1), group(priority=2))}
        async with serving(tmp_path, models, {"m": execute}) as (client, _):
            for k in range(9):
                client.send("m", str(k))
                await asyncio.sleep(1)
            assert sorted(seen) == ["m_0_0"] * 6 + ["m_1_0"] * 3

    run(main())


def test_a_large_one_is_not_starved_by_small_ones(tmp_path: Path) -> None:
    """Each small execution has its successor waiting when it ends, and there is never a moment when all is free by itself."""

    async def main() -> None:
        models = {"a": model(group({"R": 1})), "b": model(group({"R": 1})), "large": model(group({"R": 2}))}
        behaviours = {"a": sleeping(1.0), "b": sleeping(1.5), "large": sleeping(1.0)}
        async with serving(tmp_path, models, behaviours) as (client, _):
            for k in range(50):
                client.send("a", f"a{k}")
                client.send("b", f"b{k}")
            await asyncio.sleep(0.1)
            client.send("large", "large")
            await asyncio.sleep(0.1)
            await asyncio.sleep(200)
            assert client.outcome("large")[0] <= 4.0

    run(main())


def test_what_is_cancelled_does_not_hold_up_those_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"hold": model(group({"R": 1})), "large": model(group({"R": 4})), "small": model(group({"R": 1}))}
        behaviours = {"hold": sleeping(100.0), "large": sleeping(1.0), "small": sleeping(1.0)}
        async with serving(tmp_path, models, behaviours) as (client, _):
            client.send("hold", "hold")
            client.send("large", "large")
            await asyncio.sleep(1)
            client.send("small", "small")
            await asyncio.sleep(1)
            assert not client.answers["small"]
            client.kernel.cancel(client.requests["large"])
            await asyncio.sleep(2)
            assert client.outcome("small") == (3.0, "ok")
            await asyncio.sleep(200)

    run(main())


def test_a_deadline_that_passes_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        models = {name: model(group({"R": 1})) for name in "ab"}
        async with serving(tmp_path, models, {"a": sleeping(5.0)}) as (client, _):
            client.send("a", "a")
            client.send("b", "late", deadline=client.kernel.clock() + 1.0)
            client.send("b", "b")
            await asyncio.sleep(10)
            when, words = client.outcome("late")
            assert when == 1.0 and "while it was queued" in words
            assert client.outcome("b") == (5.0, "ok")

    run(main())


def test_a_batch_that_is_not_full_yet_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        batching = "max_batch_size: 4\ndynamic_batching { max_queue_delay_microseconds: 5000000 }\n"
        models = {"a": model(group({"R": 1})), "b": model(group({"R": 1})) + batching}
        async with serving(tmp_path, models, dict.fromkeys(models, sleeping(1.0))) as (client, _):
            client.send("b", "b", [[1.0]])
            await asyncio.sleep(0.5)
            client.send("a", "a")
            await asyncio.sleep(3)
            assert client.outcome("a") == (1.5, "ok")
            await asyncio.sleep(10)
            assert client.outcome("b") == (6.0, "ok")

    run(main())


def test_an_execution_that_fails_gives_back_what_it_held(tmp_path: Path) -> None:
    async def main() -> None:
        def fail(batch: Batch) -> Result:
            raise ValueError("boom")

        models = {name: model(group({"R": 1})) for name in "ab"}
        async with serving(tmp_path, models, {"a": fail}) as (client, _):
            client.send("a", "a")
            client.send("b", "b")
            await asyncio.sleep(1)
            assert "boom" in client.outcome("a")[1] and client.outcome("b")[1] == "ok"

    run(main())


# -- loads ------------------------------------------------------------------------------------------------------------------


def test_what_could_never_be_scheduled_is_not_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": model(group({"R": 1}), group({"R": 3}))}
        async with serving(tmp_path, models, limits=("R:2",), load_models=[]) as (client, backend):
            with pytest.raises(ServingError) as caught:
                await client.kernel.load("m")
            assert caught.value.message == (
                "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: Resource count for \"R\" is "
                "limited to 2 which will prevent scheduling of one or more model instances, the minimum required count is 3;\n"
            )
            assert not backend.log, "no instance was made"

    run(main())


def test_global_and_of_a_device(tmp_path: Path) -> None:
    async def main() -> None:
        models = {
            "both": model(group({"R": 1}), group({"R": 1}, shared=True)),
            "device": model(group({"R": 1})),
            "shared": model(group({"R": 1}, shared=True)),
        }
        words = 'Resource "R" is present as both global and device-specific resource in the model configuration.'
        async with serving(tmp_path, models, load_models=[]) as (client, _):
            kernel = client.kernel
            with pytest.raises(ServingError, match=words):
                await kernel.load("both")
            await kernel.load("device")
            with pytest.raises(ServingError, match=words):
                await kernel.load("shared")
            kernel.unload("device")
            await asyncio.sleep(1)
            await kernel.load("shared")
            # Two that come at once and contradict each other: one of them is told.
            kernel.unload("shared")
            await asyncio.sleep(1)
            told = await asyncio.gather(kernel.load("shared"), kernel.load("device"), return_exceptions=True)
            assert [isinstance(one, ServingError) and words in one.message for one in told].count(True) == 1

    run(main())


def test_a_larger_one_that_comes_brings_room_and_takes_it_along(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"small": model(group({"R": 1}, count=2)), "large": model(group({"R": 2}))}
        async with serving(tmp_path, models, dict.fromkeys(models, sleeping(1.0)), load_models=["small"]) as (client, _):
            kernel = client.kernel

            async def ask(first: str, second: str) -> list[float]:
                began = kernel.loop.time() - 1000.0
                client.send("small", first)
                client.send("small", second)
                await asyncio.sleep(5)
                return [client.outcome(one)[0] - began for one in (first, second)]

            assert await ask("1", "2") == [1.0, 2.0]
            await kernel.load("large")
            assert await ask("3", "4") == [1.0, 1.0]
            kernel.unload("large")
            await asyncio.sleep(1)
            assert await ask("5", "6") == [1.0, 2.0]

    run(main())


def test_other_instance_groups_of_a_model_that_serves(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"a": model(group({"R": 1})), "b": model(group({"R": 1}))}
        async with serving(tmp_path, models, dict.fromkeys(models, sleeping(1.0)), ("R:2",)) as (client, _):
            for k in range(6):
                client.send("a", str(k))
            write_repository(tmp_path, {"a": model(group({"R": 2}))})
            await client.kernel.load("a")
            client.send("b", "b")
            await asyncio.sleep(20)
            assert all(words == "ok" for _, words in client.outcomes().values())
            write_repository(tmp_path, {"a": model(group({"R": 3}))})
            with pytest.raises(ServingError, match="is limited to 2"):
                await client.kernel.load("a")
            client.send("a", "again")
            await asyncio.sleep(5)
            assert client.outcome("again")[1] == "ok"

    run(main())


# -- calls ------------------------------------------------------------------------------------------------------------------


def calling(place: dict[str, Kernel], name: str, seconds: float = 0.0) -> Behaviour:
    async def execute(batch: Batch) -> Result:
        await asyncio.sleep(seconds)
        kernel = place["kernel"]
        done: asyncio.Future[InferenceResponse | None] = kernel.loop.create_future()
        tensor = Tensor("X", "FP32", np.ones(1, np.float32))
        child = InferenceRequest(name, {"X": tensor}, lambda response, final: done.set_result(response), parent=batch)
        batch.blocked_on = child
        kernel.submit(child)
        return [await done]

    return execute


def test_a_call_of_a_model_that_needs_what_the_caller_holds_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        place: dict[str, Kernel] = {}
        models = {"outer": model(group({"R": 1})), "inner": model(group({"R": 1}))}
        async with serving(tmp_path, models, {"outer": calling(place, "inner")}) as (client, _):
            place["kernel"] = client.kernel
            client.send("outer", "r")
            await asyncio.sleep(1)
            when, words = client.outcome("r")
            assert when == 0 and "request to model 'inner' could only wait for itself: what it needs of 'R' is held by" in words
            assert "(outer -> inner)" in words and "--rate-limit-resource" in words

    run(main())


class Call(asyncio.Future[InferenceResponse | None]):
    """The future of an answer, as a backend has it: it names the request."""

    request: InferenceRequest


def test_calls_that_are_awaited_and_need_what_their_makers_hold_are_refused(tmp_path: Path) -> None:
    """Each of the two is stuck by the resources of both."""

    async def main() -> None:
        place: dict[str, Kernel] = {}

        async def execute(batch: Batch) -> Result:
            await asyncio.sleep(0.01)  # both are in
            done = Call()
            tensor = Tensor("X", "FP32", np.ones(1, np.float32))
            call = InferenceRequest("inner", {"X": tensor}, lambda response, final: done.set_result(response), parent=batch)
            done.request = call
            place["kernel"].submit(call)
            return [await done]

        models = {"outer": model(group({"R": 1}, count=2)), "inner": model(group({"R": 2}))}
        async with serving(tmp_path, models, {"outer": execute}, ("R:3",)) as (client, _):
            place["kernel"] = client.kernel
            client.send("outer", "a")
            client.send("outer", "b")
            await asyncio.sleep(1)
            outcomes = [words for _, words in client.outcomes().values()]
            (refused,) = [words for words in outcomes if words != "ok"]
            assert "request to model 'inner' could only wait for itself: what it needs of 'R' is held by" in refused
            assert "(outer -> inner)" in refused

    run(main())


def test_a_call_goes_past_those_that_wait_for_what_its_maker_holds(tmp_path: Path) -> None:
    """Else the caller, the called and the one between would wait for one another."""

    async def main() -> None:
        place: dict[str, Kernel] = {}
        models = {"outer": model(group({"R": 1})), "inner": model(group({"R": 1})), "large": model(group({"R": 2}))}
        behaviours = {"outer": calling(place, "inner", 1.0), "inner": sleeping(1.0)}
        async with serving(tmp_path, models, behaviours) as (client, _):
            place["kernel"] = client.kernel
            client.send("inner", "before")
            await asyncio.sleep(2)
            client.send("outer", "r")
            client.send("large", "large")
            await asyncio.sleep(10)
            assert client.outcome("r") == (4.0, "ok") and client.outcome("large") == (4.0, "ok")

    run(main())


# -- sequences, and instances that are there for nothing --------------------------------------------------------------------

SEQUENCES = "sequence_batching { %s }\n"


@pytest.mark.parametrize("strategy", ["oldest { max_candidate_sequences: 2 }", "direct { }"])
def test_sequences_take_turns_with_others(tmp_path: Path, strategy: str) -> None:
    async def main() -> None:
        models = {"s": model(group({"R": 1}, count=2)) + SEQUENCES % strategy, "m": model(group({"R": 1}))}
        running: list[str] = []

        async def execute(batch: Batch) -> Result:
            running.append(batch.instance.name)
            assert len(running) == 1, running
            await asyncio.sleep(1.0)
            running.pop()
            return echo(batch)  # type: ignore[return-value]

        async with serving(tmp_path, models, dict.fromkeys(models, execute)) as (client, _):
            for k in range(3):
                for sequence in (1, 2):
                    flags = (1 if k == 0 else 0) | (2 if k == 2 else 0)
                    client.send("s", f"{sequence}-{k}", correlation_id=sequence, flags=flags)
                client.send("m", f"m{k}")
            await asyncio.sleep(20)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            for name in ("1-", "2-", "m"):
                times = [client.outcome(f"{name}{k}")[0] for k in range(3)]
                assert times == sorted(times) and times[-1] <= 9.0
            assert client.outcome("m2")[0] <= 8.0, "it has its turns among them"

    run(main())


def test_a_model_of_passive_instances_alone_refuses_at_once(tmp_path: Path) -> None:
    """The reference ends with a segmentation fault."""

    async def main() -> None:
        models = {"m": model(group(more="passive: true", count=2))}
        async with serving(tmp_path, models, rate_limit="off") as (client, backend):
            assert [name for _, what, name in backend.log if what == "initialize"] == ["m_0_0", "m_0_1"]
            client.send("m", "r")
            words = "[request id: r] model 'm' has only instances that take no requests (instance_group.passive)"
            assert client.outcome("r") == (0, words)
            write_repository(tmp_path, {"m": model(group(more="passive: true"), group())})
            await client.kernel.load("m")
            client.send("m", "s")
            assert client.outcome("s")[1] == "ok"
            assert [name for _, what, name in backend.log if what == "finalize"] == ["m_0_1"]
            write_repository(tmp_path, {"m": model(group(more="passive: true"))})
            await client.kernel.load("m")
            client.send("m", "t")
            assert "take no requests" in client.outcome("t")[1]
        ended = [name for _, what, name in backend.log if what == "finalize"]
        made = [name for _, what, name in backend.log if what == "initialize"]
        assert sorted(ended) == sorted(made)

    run(main())


def test_passive_instances_need_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        models = {"m": model(group({"R": 9}, more="passive: true"), group({"R": 1}))}
        async with serving(tmp_path, models, limits=("R:1",)) as (client, _):
            client.send("m", "r")
            assert client.outcome("r")[1] == "ok"

    run(main())


# -- random histories -------------------------------------------------------------------------------------------------------

amounts = st.dictionaries(st.sampled_from("RS"), st.integers(0, 3), max_size=2)
groups = st.lists(st.tuples(amounts, st.integers(0, 3), st.integers(1, 2)), min_size=1, max_size=2)
configs = st.lists(
    st.tuples(
        groups,
        st.sampled_from([0, 0, 2, 4]),
        st.integers(1, 2),
        st.sampled_from([0.0, 0.01, 0.3]),
        st.booleans(),
        st.sampled_from(["", "", "", "oldest { max_candidate_sequences: 2 }", "direct { }"]),
    ),
    min_size=1,
    max_size=3,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 29), st.sampled_from([None, None, 0.2])),
        st.tuples(st.just("send"), st.integers(0, 29), st.sampled_from([None, None, 0.2])),
        st.tuples(st.just("advance"), st.sampled_from([0.0, 0.005, 0.1, 1.0])),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("unload"), st.integers(0, 2)),
        st.tuples(st.just("load"), st.integers(0, 2)),
    ),
    min_size=4,
    max_size=50,
)


@settings(deadline=None, max_examples=80)
@given(configs, steps, st.sampled_from([(), ("R:3",), ("R:4", "S:3:0")]))
def test_bounds_answers_and_what_is_left(models: list[Any], history: list[Any], limits: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder), models, history, limits))


async def story(folder: Path, models: list[Any], history: list[Any], limits: tuple[str, ...]) -> None:
    broken: list[str] = []
    holding: dict[object, dict[str, int]] = {}
    place: dict[str, Kernel] = {}
    needs = {f"m{k}_{g}": amounts for k, (groups, *_) in enumerate(models) for g, (amounts, *_) in enumerate(groups)}

    most = {name: max(amounts.get(name, 0) for amounts in needs.values()) for name in "RS"}
    most.update((limit[0], int(limit[2])) for limit in limits)

    def behaviour(seconds: float, fails: bool) -> Behaviour:
        async def execute(batch: Batch) -> Result:
            holding[batch] = needs[batch.instance.name.rpartition("_")[0]]
            for name in "RS":
                held = sum(amounts.get(name, 0) for amounts in holding.values())
                if held > most[name]:
                    broken.append(f"{held} of {name} are held, there are {most[name]}")
            try:
                await asyncio.sleep(seconds)
                if fails:
                    raise ValueError("planned")
                return echo(batch)  # type: ignore[return-value]
            finally:
                del holding[batch]

        return execute

    texts, behaviours = {}, {}
    for k, (groups, rows, concurrency, seconds, fails, strategy) in enumerate(models):
        text = model(*(group(amounts, priority, count) for amounts, priority, count in groups))
        text += f'parameters {{ key: "max_concurrency" value {{ string_value: "{concurrency}" }} }}\n'
        if rows:
            text += f"max_batch_size: {rows}\n"
        if strategy:
            text += SEQUENCES % f"{strategy} max_sequence_idle_microseconds: 500000"
        elif rows:
            text += "dynamic_batching { max_queue_delay_microseconds: 3000 }\n"
        texts[f"m{k}"], behaviours[f"m{k}"] = text, behaviour(seconds, fails)
    async with serving(folder, texts, behaviours, limits) as (client, _):
        kernel = place["kernel"] = client.kernel
        sent: list[str] = []
        for step in history:
            match step:
                case "send", index, patience:
                    k = index % len(models)
                    deadline = None if patience is None else kernel.clock() + patience
                    sent.append(str(len(sent)))
                    sequence = {"correlation_id": 1 + index % 5, "flags": (1, 3, 0, 2)[index % 4]} if models[k][5] else {}
                    client.send(f"m{k}", sent[-1], [[1.0]] if models[k][1] else [1.0], deadline=deadline, **sequence)
                case "advance", seconds:
                    await asyncio.sleep(seconds)
                case "cancel", index:
                    if sent:
                        kernel.cancel(client.requests[sent[index % len(sent)]])
                case "unload", index:
                    kernel.unload(f"m{index % len(models)}")
                case "load", index:
                    await kernel.load(f"m{index % len(models)}")
        await asyncio.sleep(120)
        assert not broken
        for id in sent:
            client.outcome(id)  # asserts that there is one final answer
        limiter = kernel.supervision.limits.limiter  # type: ignore[union-attr]
        assert not limiter.holding and not limiter._held and not holding
        assert not [contender for contender in limiter.waiting if contender.wants()]

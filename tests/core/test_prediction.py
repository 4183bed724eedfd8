"""A request whose deadline can't be met is refused at once: the rule alone, and in front of a model."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BASE, Client, TestBackend, run, sleeping, write_repository

from kernel import Code, InferenceRequest, Kernel, Overloaded, Reason, ServingError
from kernel.config.refuse_late import parse
from kernel.models.prediction_stage import PredictionStage
from kernel.rules.prediction import ExecutionTime, earliest_start

ON = 'parameters { key: "refuse_late" value { string_value: "%s" } }\n'
BATCHING = "max_batch_size: 4\ndynamic_batching {%s}\n"


# -- the rule ------------------------------------------------------------------------------------------------------------


def test_when_an_execution_may_begin_at_the_earliest() -> None:
    def starts(begun: list[float], places: int) -> list[float]:
        return [earliest_start(10.0, 2.0, begun, places, nth) for nth in range(1, 6)]

    assert starts([], 1) == [10.0, 12.0, 14.0, 16.0, 18.0]
    assert starts([9.5], 1) == [11.5, 13.5, 15.5, 17.5, 19.5]
    assert starts([9.5], 2) == [10.0, 11.5, 12.0, 13.5, 14.0]
    assert starts([9.5, 8.5], 2) == [10.5, 11.5, 12.5, 13.5, 14.5]
    assert starts([1.0], 1) == [10.0, 12.0, 14.0, 16.0, 18.0]  # it lasts longer than others, and may end at any moment


@given(st.lists(st.floats(0, 2), max_size=4), st.integers(1, 4), st.integers(1, 12))
def test_it_is_what_instances_do_that_pause_for_nothing(ages: list[float], places: int, nth: int) -> None:
    begun = [10.0 - age for age in ages[:places]]
    free = [one + 2.0 for one in begun] + [10.0] * (places - len(begun))
    for _ in range(nth):
        start = min(free)
        free[free.index(start)] = start + 2.0
    assert earliest_start(10.0, 2.0, begun, places, nth) == pytest.approx(start)


def test_the_average_moves() -> None:
    duration = ExecutionTime()
    duration.measured(1.0)
    assert duration.seconds == 1.0
    duration.measured(9.0)
    assert duration.seconds == 5.0
    for _ in range(8):
        duration.measured(0.5)
    assert duration.seconds == 0.5


# -- in front of a model ---------------------------------------------------------------------------------------------------


def serving(folder: Path, models: dict[str, str], seconds: float = 1.0, **options: Any) -> Kernel:
    backend = TestBackend(dict.fromkeys(models, sleeping(seconds)))
    return Kernel(write_repository(folder, models), plugins=[backend], **options)


async def measured(client: Client, model: str = "m") -> float:
    """Have one request executed, so that it is known how long that takes; return when the next one may be sent."""
    client.send(model, "first", [[1.0]] if client.kernel.model(model).config.max_batch_size else [1.0])
    await asyncio.sleep(1.5)
    return client.kernel.clock()


def refusals(client: Client) -> list[str]:
    return [id for id, (_, said) in client.outcomes().items() if "by prediction" in said]


@pytest.mark.parametrize("how", ["parameter", "flag"])
def test_who_can_t_be_in_time_is_refused_at_once(tmp_path: Path, how: str) -> None:
    """Three executions of a second each are in front of the fourth, which has three."""

    async def main() -> None:
        text, options = (ON % "on" + BASE, {}) if how == "parameter" else (BASE, {"refuse_late": 0.0})
        async with serving(tmp_path, {"m": text}, **options) as kernel:
            client = Client(kernel)
            now = await measured(client)
            for index in range(3):
                client.send("m", str(index), deadline=now + 3.01)
            client.send("m", "late", deadline=now + 3.5)
            client.send("m", "patient", deadline=now + 4.01)
            client.send("m", "no deadline")
            await asyncio.sleep(0)
            when, said = client.outcome("late")
            assert when == 1.5 and said == (
                "[request id: late] the request to model 'm' has its deadline in 3.5 s, and by prediction would begin in 3 s at "
                "the earliest: 2 rows wait in front, and an execution lasts 1 s (refuse_late); try again later"
            )
            error = client.requests["late"].error
            assert isinstance(error, Overloaded) and (error.code, error.reason) == (Code.UNAVAILABLE, Reason.REJECTED)
            await asyncio.sleep(10)
            assert {id: said for id, (_, said) in client.outcomes().items() if id != "late"} == dict.fromkeys(
                ["first", "0", "1", "2", "patient", "no deadline"], "ok"
            )

    run(main())


def test_a_timeout_is_a_deadline_there(tmp_path: Path) -> None:
    """HTTP knows no other. Without prediction it is what it is to Triton's default scheduler: nothing."""

    async def main() -> None:
        async with serving(tmp_path, {"m": ON % "on" + BASE, "off": BASE}) as kernel:
            client = Client(kernel)
            await measured(client)
            for model in ("m", "off"):
                for index in range(3):
                    client.send(model, f"{model}{index}", timeout_us=2_000_000)
            await asyncio.sleep(10)
            assert refusals(client) == ["m2"]
            assert [client.outcome(f"off{index}")[1] for index in range(3)] == ["ok"] * 3

    run(main())


def test_a_headroom_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"m": ON % "off" + BASE, "n": ON % "0.25" + BASE}, refuse_late=0.0) as kernel:
            client = Client(kernel)
            now = await measured(client, "n")
            for model in ("m", "n"):
                client.send(model, f"{model} 1", deadline=now + 9)
                client.send(model, f"{model} 2", deadline=now + 2.6)
                client.send(model, f"{model} 3", deadline=now + 2.7)
            await asyncio.sleep(10)
            assert refusals(client) == ["n 2"]
            assert kernel.model("m").enqueue == kernel.model("m").scheduler.enqueue  # its parameter goes before the flag

    run(main())


def test_batches_are_taken_to_be_full(tmp_path: Path) -> None:
    """Seven rows behind one that executes are two executions of four: the eighth is in the second, the ninth in the third."""

    async def main() -> None:
        async with serving(tmp_path, {"m": ON % "on" + BASE + BATCHING % ""}) as kernel:
            client = Client(kernel)
            now = await measured(client)
            client.send("m", "executing", [[1.0]])
            await asyncio.sleep(0.01)
            for index in range(9):
                client.send("m", str(index), [[1.0]], deadline=now + 3.001)
            await asyncio.sleep(10)
            assert refusals(client) == ["8"]
            assert {client.outcome(str(index))[1] for index in range(8)} == {"ok"}

    run(main())


def test_more_urgent_requests_have_fewer_in_front(tmp_path: Path) -> None:
    async def main() -> None:
        text = ON % "on" + BASE + "max_batch_size: 1\n dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
        async with serving(tmp_path, {"m": text}) as kernel:
            client = Client(kernel)
            now = await measured(client)
            for index in range(4):
                client.send("m", str(index), [[1.0]])
            await asyncio.sleep(0.01)
            client.send("m", "urgent", [[1.0]], priority=1, deadline=now + 2.5)
            client.send("m", "not urgent", [[1.0]], priority=2, deadline=now + 2.5)
            await asyncio.sleep(10)
            assert refusals(client) == ["not urgent"] and client.outcome("urgent") == (3.5, "ok")

    run(main())


def test_a_queue_s_own_time_out_is_looked_at(tmp_path: Path) -> None:
    async def main() -> None:
        policy = "default_queue_policy { default_timeout_microseconds: 1500000 }"
        async with serving(tmp_path, {"m": ON % "on" + BASE + "max_batch_size: 1\n dynamic_batching {" + policy + "}"}) as kernel:
            client = Client(kernel)
            await measured(client)
            for index in range(3):
                client.send("m", str(index), [[1.0]])
            await asyncio.sleep(10)
            assert refusals(client) == ["2"]
            assert "may wait for 1.5 s (its queue's time-out)" in client.outcome("2")[1]

    run(main())


def test_a_model_that_was_slow_once_is_measured_anew(tmp_path: Path) -> None:
    """Else nobody would be let in for ever whose time is shorter than that."""

    async def main() -> None:
        waits = iter([60.0] + [1.0] * 100)

        async def execute(batch: Any) -> Any:
            return await sleeping(next(waits))(batch)  # type: ignore[misc]

        repository = write_repository(tmp_path, {"m": ON % "on" + BASE})
        async with Kernel(repository, plugins=[TestBackend({"m": execute})]) as kernel:
            client = Client(kernel)
            client.send("m", "slow")
            await asyncio.sleep(100)
            for round in range(40):
                for index in range(2):
                    client.send("m", f"{round} {index}", deadline=kernel.clock() + 3.0)
                await asyncio.sleep(5)
            late = refusals(client)
            assert late and late == [f"{round} 1" for round in range(len(late))] and len(late) == 8

    run(main())


def test_calls_of_accepted_requests_are_never_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, {"outer": BASE, "m": ON % "on" + BASE}) as kernel:
            client = Client(kernel)
            now = await measured(client)
            request = client.send("outer", "outer")
            await asyncio.sleep(0)
            client.send("m", "0")
            client.send("m", "call", parent=request.batch, deadline=now + 0.5)
            await asyncio.sleep(5)
            assert refusals(client) == [] and "deadline" in client.outcome("call")[1]

    run(main())


def test_the_books_balance(tmp_path: Path) -> None:
    async def main() -> None:
        queue = "max_batch_size: 2 dynamic_batching { default_queue_policy { max_queue_size: 4 } }"
        async with serving(tmp_path, {"m": f"{ON % 'on'}{BASE}{queue}"}) as kernel:
            client = Client(kernel)
            stage: PredictionStage = kernel.model("m").enqueue.__self__  # type: ignore[attr-defined]
            assert isinstance(stage, PredictionStage)
            for round in range(4):
                for index in range(12):
                    deadline = kernel.clock() + index / 4 if index % 3 else None
                    client.send("m", f"{round}.{index}", [[1.0]] * (1 + index % 2), deadline=deadline)
                await asyncio.sleep(0.5)
                kernel.cancel(client.requests[f"{round}.0"])
                await asyncio.sleep(10)
                assert not stage._inside and not any(stage._rows.values())
            assert len(client.outcomes()) == 48 and refusals(client)

    run(main())


def test_where_it_is_not_asked_for_or_nothing_is_foretold_nobody_looks(tmp_path: Path) -> None:
    async def main() -> None:
        delay = "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 10 }"
        models = {
            "decoupled": BASE + "model_transaction_policy { decoupled: true }",
            "overtaken": BASE + BATCHING % delay,
            "sequences": BASE + "sequence_batching { }",
            "off": ON % "off" + BASE,
        }
        async with serving(tmp_path, models, refuse_late=0.0) as kernel:
            for name in models:
                model = kernel.model(name)
                assert model.enqueue == model.scheduler.enqueue
                assert not any("Prediction" in repr(one) for one in model.scheduler.life.on_release)

    run(main())


@pytest.mark.parametrize("value", ["1", "-1", "0.x", "", "yes", "1e-3"])
def test_what_can_t_be(tmp_path: Path, value: str) -> None:
    async def main() -> str:
        async with serving(tmp_path, {"m": ON % value + BASE}, exit_on_error=False) as kernel:
            return str(kernel.index()[0].reason)

    wanted = "wanted 'on', 'off', or a headroom from 0 to below 1, such as 0.1"
    assert f"parameter 'refuse_late' of model 'm' is '{value}' — {wanted}" in run(main())
    with pytest.raises(ValueError, match="is not 'on', 'off', or a headroom"):
        parse(value)
    with pytest.raises(ServingError, match="wanted a headroom from 0 to below 1, or None"):
        Kernel(tmp_path, refuse_late=1.0)


# -- nobody is refused who would have been served ------------------------------------------------------------------------------


class Sent:
    def __init__(self, after: float, time: float | None, rows: int) -> None:
        self.after, self.time, self.rows = after, time, rows

    def __repr__(self) -> str:
        return f"Sent({self.after}, {self.time}, {self.rows})"


MOMENTS = st.integers(0, 40).map(lambda tenths: tenths / 10)
SENT = st.builds(Sent, MOMENTS, st.none() | MOMENTS, st.integers(1, 3))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["", "preferred_batch_size: [ 4 ]", "preferred_batch_size: [ 2 ]", "max_queue_delay_microseconds: 300000"]),
    st.integers(1, 3),
    st.lists(SENT, min_size=2, max_size=10),
)
def test_nobody_is_refused_who_would_have_been_served(batching: str, count: int, sent: list[Sent]) -> None:
    """Executions last a second each. Who is refused is let in by another run that is the same up to there, and is late."""

    async def main(folder: Path, let_in: int | None) -> dict[str, tuple[float, str]]:
        batches = BATCHING % batching if batching else "max_batch_size: 4\n"
        text = ON % "on" + BASE.replace("count: 1", f"count: {count}") + batches
        async with serving(folder, {"m": text}) as kernel:
            client = Client(kernel)
            stage: PredictionStage = kernel.model("m").enqueue.__self__  # type: ignore[attr-defined]
            await measured(client)
            too_late = stage._too_late

            def unless(request: InferenceRequest, *rest: Any) -> str:
                return "" if request.id == str(let_in) else too_late(request, *rest)

            stage._too_late = unless  # type: ignore[method-assign]
            for index, one in enumerate(sent):
                await asyncio.sleep(one.after / 4)
                deadline = None if one.time is None else kernel.clock() + one.time
                client.send("m", str(index), [[1.0]] * one.rows, deadline=deadline)
            await asyncio.sleep(60)
            return client.outcomes()

    with tempfile.TemporaryDirectory() as name:
        outcomes = run(main(Path(name) / "all", None))
        for id in [id for id, (_, said) in outcomes.items() if "by prediction" in said]:
            _, said = run(main(Path(name) / id, int(id)))[id]
            assert said.startswith(f"[request id: {id}] deadline of the request to model 'm' passed"), (id, said)

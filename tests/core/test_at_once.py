"""Executions that begin the moment their request comes: what is left afterwards, whatever happened meanwhile.

Everything here runs twice: without greenlets and the output check, and with both (`either_way` in conftest.py).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from virtual import BASE, Behaviour, Client, TestBackend, answer, echo, run, sleeping, write_repository

from kernel import Batch, Code, InferenceRequest, InferenceResponse, Kernel, RequestState, ServingError, Tensor
from kernel.instances.turn import CALLS_SECONDS, STREAK, Turn
from kernel.requests.request import LATER, nobody
from kernel.scheduling.runs import RUN_PATIENCE

pytestmark = pytest.mark.usefixtures("either_way")

X = Tensor("X", "FP32", np.ones(1, np.float32))


def serve(folder: Path, behaviours: dict[str, Behaviour], test: Any, config: str = BASE) -> None:
    """Serve a model for each behaviour and await `test(client)`."""

    async def main() -> None:
        write_repository(folder, dict.fromkeys(behaviours, config))
        async with Kernel(folder, plugins=[TestBackend(behaviours)]) as kernel:
            await test(Client(kernel))
            for model in kernel.models():
                assert_idle(model.scheduler)
            assert kernel.turn.depth == 0

    run(main())


def assert_idle(scheduler: Any) -> None:
    (instance,) = scheduler.instances
    assert (scheduler.in_flight, scheduler.pending, instance.outstanding, instance.running) == (0, 0, 0, {})


def call(batch: Batch, model: str, answers: list[Any]) -> InferenceRequest:
    """Call a model from an execution."""
    kernel = batch.instance.executor.context.kernel
    child = InferenceRequest(model, {"X": X}, lambda response, final: answers.append(response), parent=batch)
    kernel.submit(child)
    return child


def test_many_one_after_another_leave_nothing_behind(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for number in range(100):
            request = client.send("m", str(number), [number])
            ((_, response, final),) = client.answers[str(number)]  # already: nobody was in front of it
            assert final and response is not None and response["Y"].tolist() == [number]
            assert (response.id, response.model_name, response.model_version) == (str(number), "m", "1")
            assert request.state is RequestState.RELEASED and request.counted
            assert request.batch is None and request.inputs == {} and request.respond is nobody
        statistics = client.kernel.model("m").statistics()
        assert (statistics.inference_count, statistics.execution_count) == (100, 100)
        assert (statistics.success.count, statistics.fail.count) == (100, 0)

    serve(tmp_path, {"m": echo}, test)


def test_a_call_leaves_its_parent_when_it_is_answered(tmp_path: Path) -> None:
    seen: list[Any] = []

    def caller(batch: Batch) -> Any:
        answers: list[Any] = []
        child = call(batch, "m", answers)
        seen.append((answers[0].error, child.parent, batch.children or set()))
        return echo(batch)

    async def test(client: Client) -> None:
        client.send("caller", "a")
        assert client.outcome("a") == (0, "ok")
        assert seen == [(None, None, set())]

    serve(tmp_path, {"caller": caller, "m": echo}, test)


def test_a_call_that_outlives_its_parent_is_cancelled(tmp_path: Path) -> None:
    answers: list[Any] = []

    def caller(batch: Batch) -> Any:
        call(batch, "slow", answers)
        return echo(batch)  # without having waited for it

    async def test(client: Client) -> None:
        client.send("caller", "a")
        assert client.outcome("a") == (0, "ok")
        assert [response.error.message for response in answers] == ["[request id: <id_unknown>] Request cancelled"]
        await asyncio.sleep(20)

    serve(tmp_path, {"caller": caller, "slow": sleeping(10.0)}, test)


def test_an_answer_that_comes_later_is_its_parents_child(tmp_path: Path) -> None:
    """The called model returns without an answer, to send it later; then nobody waits for that any more."""
    answers: list[Any] = []
    children: list[InferenceRequest] = []

    async def caller(batch: Batch) -> Any:
        children.append(call(batch, "later", answers))
        await asyncio.sleep(100)
        return echo(batch)

    async def test(client: Client) -> None:
        request = client.send("caller", "a")
        await asyncio.sleep(1)
        assert not answers and children[0].state is RequestState.EXECUTING
        client.kernel.cancel(request)
        assert client.outcome("a")[1] == "[request id: a] Request cancelled"
        assert [response.error.code for response in answers] == [Code.CANCELLED]
        await asyncio.sleep(200)

    serve(tmp_path, {"caller": caller, "later": lambda batch: [None]}, test)


def test_a_request_that_is_cancelled_while_it_executes(tmp_path: Path) -> None:
    def cancels(batch: Batch) -> Any:
        batch.instance.executor.context.kernel.cancel(batch.requests[0])
        return echo(batch)

    async def test(client: Client) -> None:
        client.send("m", "a")
        assert client.outcome("a") == (0, "[request id: a] Request cancelled")
        statistics = client.kernel.model("m").statistics()
        assert (statistics.success.count, statistics.fail.count, statistics.execution_count) == (0, 1, 1)

    serve(tmp_path, {"m": cancels}, test)


def test_a_request_that_is_answered_while_it_executes(tmp_path: Path) -> None:
    def sends(batch: Batch) -> Any:
        request = batch.requests[0]
        batch.instance.executor.context.kernel.send(request, answer(request, Y=[7]), True)
        return echo(batch)

    async def test(client: Client) -> None:
        client.send("m", "a")
        ((_, response, _),) = client.answers["a"]
        assert response is not None and response["Y"].tolist() == [7]
        statistics = client.kernel.model("m").statistics()
        assert (statistics.success.count, statistics.execution_count) == (1, 1)

    serve(tmp_path, {"m": sends}, test)


def test_what_comes_meanwhile_is_executed_afterwards(tmp_path: Path) -> None:
    clients: list[Client] = []

    def meanwhile(batch: Batch) -> Any:
        if batch.requests[0].id == "a":
            clients[0].send("m", "b")
            assert clients[0].answers["b"] == []
        return echo(batch)

    async def test(client: Client) -> None:
        clients.append(client)
        client.send("m", "a")
        assert client.outcome("a") == client.outcome("b") == (0, "ok")

    serve(tmp_path, {"m": meanwhile}, test)


def test_a_model_that_is_stopped_while_it_executes_is_drained(tmp_path: Path) -> None:
    ended: list[Any] = []

    def waits(batch: Batch) -> Any:
        """Wait for the end of an execution from inside of it: the coroutine has begun to wait before it is over."""
        scheduler = batch.instance.owner
        scheduler.stop()
        coroutine = scheduler.drain.wait()
        future = coroutine.send(None)
        future._asyncio_future_blocking = False  # as a task does that has seen it
        ended.append((coroutine, future))
        return echo(batch)

    async def test(client: Client) -> None:
        client.send("m", "a")
        assert client.outcome("a") == (0, "ok")
        await asyncio.sleep(0)
        ((coroutine, future),) = ended
        assert future.done()
        coroutine.close()
        client.send("m", "b")
        assert "stopped accepting new inference requests" in client.outcome("b")[1]

    serve(tmp_path, {"m": waits}, test)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda batch: [InferenceResponse([], error=ServingError(Code.INTERNAL, "no"))], "no"),
        (lambda batch: [answer(batch.requests[0])] * 2, "returned 2 responses for 1 requests"),
        (lambda batch: ["text"], "its executor returned str where a response was wanted"),
        (lambda batch: 1 / 0, "model 'm' failed: ZeroDivisionError: division by zero"),
    ],
    ids=["error", "two", "text", "raises"],
)
def test_other_ends(tmp_path: Path, given: Any, words: str) -> None:
    async def test(client: Client) -> None:
        for name in "ab":
            client.send("m", name)
            assert words in client.outcome(name)[1]
        statistics = client.kernel.model("m").statistics()
        assert (statistics.success.count, statistics.fail.count, statistics.execution_count) == (0, 2, 2)

    serve(tmp_path, {"m": given}, test)


def test_a_receiver_that_fails_is_told_of_and_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def respond(response: InferenceResponse | None, final: bool) -> None:
        raise KeyError("gone")

    async def test(client: Client) -> None:
        client.kernel.submit(InferenceRequest("m", {"X": X}, respond, id="a"))
        assert "[request id: a] the receiver of an answer of model 'm' failed" in caplog.text
        client.send("m", "b")
        assert client.outcome("b") == (0, "ok")

    serve(tmp_path, {"m": echo}, test)


def test_many_executions_within_executions(tmp_path: Path) -> None:
    """More than may be nested: the rest has to wait for its turn, and the next ones nest again."""
    depths: list[int] = []

    def behaviour(number: int) -> Behaviour:
        def nests(batch: Batch) -> Any:
            kernel = batch.instance.executor.context.kernel
            depths.append(kernel.turn.depth)
            kernel.submit(InferenceRequest(f"m{number + 1}", {"X": X}, nobody))
            return echo(batch)

        return echo if number == 19 else nests

    async def test(client: Client) -> None:
        for name in "ab":
            depths.clear()
            client.send("m0", name)
            await asyncio.sleep(1)
            assert client.outcome(name)[1] == "ok"
            assert depths[:16] == [*range(1, 17)] and depths[16] < 2 and len(depths) == 19

    serve(tmp_path, {f"m{number}": behaviour(number) for number in range(20)}, test)


def test_who_hears_of_an_answer_may_make_the_next_request(tmp_path: Path) -> None:
    """However many follow one another: they nest so deep and no deeper."""
    answered, depth, deepest = 0, 0, 0

    async def test(client: Client) -> None:
        kernel = client.kernel

        def respond(response: InferenceResponse | None, final: bool) -> None:
            nonlocal answered, depth, deepest
            answered += 1
            depth += 1
            deepest = max(deepest, depth)
            if answered < 3000:
                kernel.submit(InferenceRequest("m", {"X": X}, respond))
            depth -= 1

        kernel.submit(InferenceRequest("m", {"X": X}, respond))
        await asyncio.sleep(1)
        assert answered == 3000 and deepest < 40

    serve(tmp_path, {"m": echo}, test)


def test_calls_that_take_no_time_let_others_have_their_turn(tmp_path: Path) -> None:
    """On virtual time the clock stands still: a model that calls until it is cancelled does hear of that."""
    made = 0

    async def polls(batch: Batch) -> Any:
        nonlocal made
        while not batch.requests[0].is_cancelled:
            await called(batch.instance.executor.context.kernel, batch)
            made += 1
        return echo(batch)

    async def test(client: Client) -> None:
        request = client.send("polls", "a")
        for _ in range(3):
            await asyncio.sleep(0)
        client.kernel.cancel(request)
        await asyncio.sleep(1)
        assert client.outcome("a")[1] == "[request id: a] Request cancelled"
        assert STREAK <= made < 10 * STREAK

    serve(tmp_path, {"polls": polls, "m": echo}, test)


ENSEMBLE = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling {
  step [
    { model_name: "a" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "t" } },
    { model_name: "b" model_version: -1 input_map { key: "X" value: "t" } output_map { key: "Y" value: "Y" } }
  ]
}
"""


def test_an_ensembles_times_are_those_of_its_steps(tmp_path: Path) -> None:
    """Also of steps whose backend does not say when it had its input and began its output."""

    async def main() -> None:
        write_repository(tmp_path, {"a": BASE, "b": BASE, "e": ENSEMBLE})
        async with Kernel(tmp_path, plugins=[TestBackend({"a": sleeping(0.5), "b": sleeping(0.25)})]) as kernel:
            client = Client(kernel)
            client.send("e", "1")
            await asyncio.sleep(10)
            assert client.outcome("1") == (0.75, "ok")
            statistics = kernel.model("e").statistics()
            times = statistics.compute_input.ns, statistics.compute_infer.ns, statistics.compute_output.ns
            assert times == (0, 750_000_000, 0) and statistics.success.ns == 750_000_000
            assert [duration.ns for duration in statistics.batch_stats[1]] == [0, 750_000_000, 0]

    run(main())


class FakeLoop:
    def __init__(self) -> None:
        self.soon: list[Any] = []

    def call_soon(self, callback: Any) -> None:
        self.soon.append(callback)


def test_a_turn_is_over_when_its_time_is_and_begins_anew_when_others_have_had_theirs() -> None:
    loop = FakeLoop()
    turn = Turn(loop)  # type: ignore[arg-type]
    assert turn.begin(5.0)
    assert turn.ends == 5.0 + CALLS_SECONDS
    assert not turn.begin(5.1) and len(loop.soon) == 1
    loop.soon.pop()()
    assert turn.begin(5.2) and turn.ends == 5.2 + CALLS_SECONDS


def called(kernel: Kernel, batch: Batch) -> asyncio.Future[None]:
    """Call the model `m` from an execution; the future is done when it has answered."""
    future: asyncio.Future[None] = kernel.loop.create_future()
    kernel.submit(InferenceRequest("m", {"X": X}, lambda *_: future.set_result(None), parent=batch))
    return future


def test_calls_without_end_let_others_have_their_turn(tmp_path: Path) -> None:
    others: list[int] = []
    made = 0

    async def caller(batch: Batch) -> Any:
        nonlocal made
        kernel = batch.instance.executor.context.kernel
        kernel.loop.call_soon(lambda: others.append(made))
        while not others:
            await called(kernel, batch)
            made += 1
        return echo(batch)

    async def test(client: Client) -> None:
        loop, clock = client.kernel.loop, [0.0]

        def ticking() -> float:
            clock[0] += CALLS_SECONDS / 100
            return loop.time() + clock[0]

        client.kernel.model("m").scheduler.clock = ticking
        client.send("caller", "a")
        await asyncio.sleep(1)
        assert client.outcome("a")[1] == "ok"
        assert 10 < others[0] <= 100

    serve(tmp_path, {"caller": caller, "m": echo}, test)


def test_a_run_is_looked_after_by_one_timer(tmp_path: Path) -> None:
    """What starts while a run is looked at does not have it looked at twice from then on."""
    looks: list[float] = []

    async def test(client: Client) -> None:
        scheduler, loop = client.kernel.model("m").scheduler, client.kernel.loop
        (instance,) = scheduler.instances
        started: list[Batch] = []
        instance.start = lambda batch: started.append(batch) or LATER  # type: ignore[method-assign]
        instance.runs, instance.limit = True, 3

        def drain() -> None:
            looks.append(round(loop.time() - 1000.0, 6))
            batch = started.pop(0)
            instance.finished(batch, echo(batch))

        scheduler._runs._mailbox = SimpleNamespace(drain=drain)  # type: ignore[assignment]
        for name in "abcdefg":
            client.send("m", name)
        await asyncio.sleep(1)
        begun = looks[0] - RUN_PATIENCE
        assert looks == [round(begun + number * RUN_PATIENCE, 6) for number in range(1, 7)]
        drain()  # the last one is no run any more
        assert {outcome for _, outcome in client.outcomes().values()} == {"ok"}

    serve(tmp_path, {"m": sleeping(0.0)}, test)


def test_what_waits_for_a_thread_is_handed_over_when_its_run_is_counted(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def test(client: Client) -> None:
        kernel = client.kernel
        scheduler = kernel.model("m").scheduler
        (instance,) = scheduler.instances
        started: list[Batch] = []
        meanwhile: list[Batch] = []

        def start(batch: Batch) -> object:
            started.append(batch)
            if kernel.mailbox.draining:
                meanwhile.append(batch)
            return LATER

        instance.start = start  # type: ignore[method-assign]
        instance.limit, scheduler.pool.inline = 3, False
        for name in "abcdefgh":
            client.send("m", name)
        await asyncio.sleep(1)
        while started:
            sizes.append(len(started))
            for batch in started:
                kernel.mailbox.leave((instance.finished, (batch, echo(batch))))
            started.clear()
            kernel.mailbox.drain()
        assert {outcome for _, outcome in client.outcomes().values()} == {"ok"}
        assert sizes == [3, 3, 2] and meanwhile == []

    serve(tmp_path, {"m": sleeping(0.0)}, test)

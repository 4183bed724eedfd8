"""Sequences that ask for more, are given up, or whose model goes: iterative executions, cancellation, unload, shutdown."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stateful import CONTROLS, END, START, STATE, config, send, serving
from virtual import answer, run, sleeping

from kernel import RESCHEDULED, Batch, Code, InferenceRequest, InferenceResponse, Result, ServingError, Tensor

DIRECT, OLDEST = "direct { }", "oldest { max_candidate_sequences: 4 }"
HOUR = " max_sequence_idle_microseconds: 3600000000"
ITERATIVE = "iterative_sequence: true"
NEEDS_START = "must specify the START flag"


class Iterating:
    """A model that asks for three executions of each request, of `seconds` each, and sees what it is given each time."""

    def __init__(self, seconds: float = 0.0, turns: int = 3) -> None:
        self.seconds = seconds
        self.turns = turns
        self.done: dict[str, int] = {}
        self.seen: list[tuple[str, Any, int, int]] = []

    async def execute(self, batch: Batch) -> Result:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return [self.one(request) for request in batch.requests]

    def one(self, request: InferenceRequest) -> InferenceResponse:
        if not request.id:
            return InferenceResponse([])  # a null request
        self.seen.append((request.id, request.correlation_id, request.flags, int(request.inputs["START"].array.item())))
        assert not request.inputs["X"].array.flags.writeable
        done = self.done[request.id] = self.done.get(request.id, 0) + 1
        if done < self.turns:
            return RESCHEDULED  # type: ignore[no-any-return]
        return answer(request, Y=[[done]])


# -- iterative -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_a_request_is_executed_as_often_as_the_model_asks(tmp_path: Path, strategy: str) -> None:
    model = Iterating()

    async def main() -> None:
        text = config(2, f"{strategy} {ITERATIVE}", CONTROLS)
        async with serving(tmp_path, text, model.execute) as (client, _):
            send(client, "a")
            await asyncio.sleep(0.1)
            send(client, "b")
            await asyncio.sleep(0.1)
            assert client.outcomes() == {"a": (0, "ok"), "b": (0.1, "ok")}
            (first, *_), second = model.seen[0][1:], model.seen[3][1]
            assert first != second  # each request is a sequence of its own
            assert model.seen[:3] == [("a", first, 1, 1), ("a", first, 0, 0), ("a", first, 0, 0)]
            counted = client.kernel.statistics("m")[0]
            # Each execution counts. (The reference counts one failure besides, for the request that ends the sequence.)
            assert (counted.inference_count, counted.execution_count) == (6, 6)
            assert (counted.success.count, counted.queue.count, counted.fail.count) == (6, 6, 0)
            assert not client.kernel.model("m").scheduler.queue._sequencer.alive  # type: ignore[attr-defined]

    run(main())


def test_iterations_of_several_requests_are_batched_and_the_slot_goes_on_to_the_next(tmp_path: Path) -> None:
    model = Iterating(0.1)

    async def main() -> None:
        async with serving(tmp_path, config(2, ITERATIVE, CONTROLS), model.execute) as (client, backend):
            for name in "abc":
                send(client, name)
            await asyncio.sleep(5)
            assert backend.executions("m") == [["a", "b"]] * 3 + [["c"]] * 3
            assert client.outcomes() == {"a": (0.3, "ok"), "b": (0.3, "ok"), "c": (0.6, "ok")}

    run(main())


def test_an_id_needs_its_start_also_here(tmp_path: Path) -> None:
    model = Iterating()

    async def main() -> None:
        async with serving(tmp_path, config(1, ITERATIVE, CONTROLS), model.execute) as (client, _):
            send(client, "none", 7)
            send(client, "with", 7, START)
            await asyncio.sleep(1)
            assert NEEDS_START in client.outcome("none")[1]
            assert client.outcome("with")[1] == "ok"
            assert model.seen[0][:2] == ("with", 7)
            send(client, "over", 7)
            assert NEEDS_START in client.outcome("over")[1]  # the sequence has ended with its request

    run(main())


def test_an_iteration_slower_than_the_idle_limit_is_not_idle(tmp_path: Path) -> None:
    model = Iterating(2.5)

    async def main() -> None:
        async with serving(tmp_path, config(1, ITERATIVE, CONTROLS), model.execute) as (client, _):
            send(client, "a")
            await asyncio.sleep(20)
            assert client.outcome("a") == (7.5, "ok")

    run(main())


def test_state_goes_round_from_iteration_to_iteration(tmp_path: Path) -> None:
    async def counting(batch: Batch) -> Result:
        (request,) = batch.requests
        state = request.inputs["S"].array
        if state[0, 0] == 3:
            return [answer(request, Y=state)]
        client_gone.append(int(state[0, 0]))
        request.model.kernel.send(request, InferenceResponse([Tensor("S_NEXT", "INT32", state + 1)]), False)
        return [RESCHEDULED]

    client_gone: list[int] = []

    async def main() -> None:
        text = config(1, ITERATIVE, CONTROLS + STATE) + "model_transaction_policy { decoupled: true }"
        async with serving(tmp_path, text, counting) as (client, _):
            send(client, "a")
            await asyncio.sleep(1)
            assert client_gone == [0, 1, 2]
            assert client.outcome("a")[1] == "ok"
            assert len(client.answers["a"]) == 4

    run(main())


def test_a_cancelled_request_is_executed_no_more(tmp_path: Path) -> None:
    model = Iterating(1.0, turns=100)

    async def main() -> None:
        async with serving(tmp_path, config(1, ITERATIVE, CONTROLS), model.execute) as (client, _):
            request = send(client, "a")
            send(client, "b", deadline=client.kernel.clock() + 4.5)
            await asyncio.sleep(2.5)
            client.kernel.cancel(request)
            await asyncio.sleep(9)
            assert client.outcome("a") == (2.5, "[request id: a] Request cancelled")
            assert [id for id, *_ in model.seen] == ["a", "a", "a", "b", "b"]
            assert "deadline of the request" in client.outcome("b")[1]
            assert client.outcome("b")[0] == 4.5

    run(main())


def test_rescheduled_where_nothing_is_iterative_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(), lambda batch: [RESCHEDULED]) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(1)
            assert client.outcome("a")[1].startswith("model 'm' failed: TypeError: its executor returned object")

    run(main())


# -- cancellation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_what_waits_behind_a_cancelled_request_goes_with_it(tmp_path: Path, strategy: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, strategy.replace("4", "1"), CONTROLS), sleeping(1.0)) as (client, _):
            requests = [send(client, name, 1, START if name == "a" else 0) for name in "abcd"]
            send(client, "other", 2, START)
            await asyncio.sleep(0.5)
            client.kernel.cancel(requests[2])
            send(client, "e", 1)
            await asyncio.sleep(9)
            behind = "[request id: d] Request cancelled: a request before it in its sequence was given up"
            assert client.outcome("a") == (1, "ok")
            assert client.outcome("b") == (2, "ok")  # those before it go on
            assert client.outcome("c") == (0.5, "[request id: c] Request cancelled")
            assert client.outcome("d") == (0.5, behind)
            assert NEEDS_START in client.outcome("e")[1]
            assert client.outcome("other")[0] == 3  # at once, without a time-out of the sequence that is gone
            assert client.kernel.statistics("m")[0].failures["CANCELED"] == 2

    run(main())


def test_a_sequence_whose_only_waiting_request_is_cancelled_frees_its_slot(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT + HOUR, CONTROLS), sleeping(1.0)) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(2)
            request = send(client, "b", 1)
            send(client, "other", 2, START)
            client.kernel.cancel(request)
            await asyncio.sleep(9)
            assert client.outcome("other") == (3, "ok")

    run(main())


def test_cancelled_in_the_backlog(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT, CONTROLS), sleeping(1.0)) as (client, _):
            send(client, "a", 1, START)
            first = send(client, "b1", 2, START)
            send(client, "b2", 2)
            send(client, "c", 3, START)
            client.kernel.cancel(first)
            assert client.kernel.model("m").scheduler.pending == 2
            await asyncio.sleep(9)
            assert {name: words[:9] for name, (_, words) in client.outcomes().items()} == {
                "a": "ok", "b1": "[request ", "b2": "[request ", "c": "ok"
            }  # fmt: skip

    run(main())


def test_a_request_that_is_cancelled_while_it_executes_leaves_its_sequence_as_it_is(tmp_path: Path) -> None:
    """As the reference does: what has begun is not undone, and the client goes on if it likes."""

    async def counting(batch: Batch) -> Result:
        await asyncio.sleep(1.0)
        (request,) = batch.requests
        state = request.inputs["S"].array
        response = answer(request, Y=state)
        response.outputs.append(Tensor("S_NEXT", "INT32", state + 1))
        return [response]

    async def main() -> None:
        idle = "direct { } max_sequence_idle_microseconds: 60000000"
        async with serving(tmp_path, config(1, idle, CONTROLS + STATE), counting) as (client, _):
            send(client, "a", 1, START)
            await asyncio.sleep(1.5)
            request = send(client, "b", 1)
            await asyncio.sleep(0.5)
            client.kernel.cancel(request)
            send(client, "c", 1)
            await asyncio.sleep(9)
            response = client.answers["c"][0][1]
            assert response is not None and response["Y"].tolist() == [[2, 2]]

    run(main())


def test_a_deadline_that_passes_in_the_queue_ends_the_sequence(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT, CONTROLS), sleeping(1.0)) as (client, _):
            send(client, "a", 1, START)
            send(client, "b", 1, deadline=client.kernel.clock() + 0.3)
            send(client, "c", 1)
            await asyncio.sleep(5)
            assert client.outcome("a") == (1, "ok")
            assert client.outcome("b")[0] == 0.3 and "deadline" in client.outcome("b")[1]
            assert client.outcome("c")[0] == 0.3 and "was given up" in client.outcome("c")[1]

    run(main())


# -- unload, reload, shutdown ------------------------------------------------------------------------------------------------


def test_an_unload_finishes_what_waits_and_forgets_the_sequences(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT + HOUR, CONTROLS), sleeping(1.0)) as (client, backend):
            send(client, "a", 1, START)
            send(client, "b", 1)
            send(client, "c", 2, START)
            client.kernel.unload("m")
            send(client, "late", 1)
            await asyncio.sleep(5)
            assert [client.outcome(name) for name in "abc"] == [(1, "ok"), (2, "ok"), (3, "ok")]
            assert "has no available versions" in client.outcome("late")[1]
            assert backend.log[-1] == (1003.0, "finalize", "m_0_0")  # at once: no more requests can come

    run(main())


def test_a_reload_begins_sequences_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT, CONTROLS), sleeping(1.0)) as (client, _):
            send(client, "a", 1, START)
            (tmp_path / "m" / "config.pbtxt").write_text(config(2, DIRECT, CONTROLS))
            await client.kernel.load("m")
            send(client, "b", 1)
            send(client, "c", 1, START)
            await asyncio.sleep(5)
            assert client.outcome("a") == (1, "ok")
            assert NEEDS_START in client.outcome("b")[1]
            assert client.outcome("c")[1] == "ok"

    run(main())


def test_a_server_that_stops_lets_running_sequences_end(tmp_path: Path) -> None:
    async def main() -> None:
        idle = "direct { } max_sequence_idle_microseconds: 5000000"
        async with serving(tmp_path, config(2, idle, CONTROLS), sleeping(0.1)) as (client, backend):
            send(client, "a", 1, START)
            send(client, "b", 2, START)
            await asyncio.sleep(1)
            stopping = asyncio.ensure_future(client.kernel.stop())
            await asyncio.sleep(1)
            send(client, "new", 3, START)
            send(client, "a2", 1)
            await asyncio.sleep(1)
            send(client, "a3", 1, END)
            assert not stopping.done()
            await stopping
            assert client.outcome("a3") == (3.1, "ok")
            assert client.outcome("new") == (
                2,
                "[request id: new] Server is stopping, scheduler for model has stopped accepting new inference requests",
            )
            assert backend.log[-1] == (1003.1, "finalize", "m_0_0")  # b was silent for too long

    run(main())


def test_silent_sequences_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    """However long they may be silent else; one whose request is executed may go on when that has its answer."""

    async def main() -> None:
        async with serving(tmp_path, config(2, DIRECT + HOUR, CONTROLS), sleeping(5.0)) as (client, backend):
            send(client, "a", 1, START)
            await asyncio.sleep(10)
            send(client, "b", 2, START)
            await asyncio.sleep(1)
            stopping = asyncio.ensure_future(client.kernel.stop(60.0))
            await asyncio.sleep(5)
            send(client, "a2", 1)
            send(client, "b2", 2, END)
            await stopping
            assert client.outcome("b2") == (21, "ok")
            assert "stopped accepting" in client.outcome("a2")[1]
            assert backend.log[-1] == (1021.0, "finalize", "m_0_0")

    run(main())


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_a_kernel_that_retires_begins_no_sequence_and_lets_those_that_run_go_on(tmp_path: Path, strategy: str) -> None:
    """For as long as their model says, until `silence` says otherwise."""

    async def main() -> None:
        minute = f"{strategy} max_sequence_idle_microseconds: 60000000"
        async with serving(tmp_path, config(2, minute, CONTROLS), sleeping(0.0)) as (client, _):
            scheduler = client.kernel.model("m").scheduler
            send(client, "a", 1, START)
            await asyncio.sleep(1)
            client.kernel.retire()
            send(client, "c", 3, START | END)
            client.kernel.retire(math.inf)
            send(client, "b", 2, START)
            await asyncio.sleep(50)
            send(client, "a2", 1)
            await asyncio.sleep(59)
            assert client.outcome("a2")[1] == client.outcome("c")[1] == "ok" and "stopped accepting" in client.outcome("b")[1]
            assert not scheduler.is_idle
            client.kernel.retire(2.0)  # it has a second left
            await scheduler.drain.wait()
            assert client.kernel.loop.time() == pytest.approx(1111.0)

    run(main())


@pytest.mark.parametrize("strategy", [DIRECT, OLDEST])
def test_a_sequence_that_nobody_goes_on_with_ends_at_a_stop(tmp_path: Path, strategy: str) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(2, strategy + HOUR, CONTROLS), sleeping(0.0)) as (client, backend):
            send(client, "a", 1, START)
            await asyncio.sleep(10)
            await client.kernel.stop(60.0)
            assert backend.log[-1] == (1012.0, "finalize", "m_0_0")

    run(main())


def test_a_server_that_stops_has_only_so_much_patience(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT + HOUR, CONTROLS), sleeping(4.0)) as (client, _):
            send(client, "a", 1, START)
            send(client, "b", 1)
            send(client, "c", 2, START)
            await client.kernel.stop(5.0)
            assert client.outcome("a") == (4, "ok")
            words = "Server is stopping, request to model 'm' was given up"
            assert client.outcome("b") == (5, words)
            assert client.outcome("c") == (5, words)

    run(main())


def test_an_instance_that_goes_keeps_its_sequences_to_their_end(tmp_path: Path) -> None:
    async def main() -> None:
        idle = "direct { } max_sequence_idle_microseconds: 5000000"
        async with serving(tmp_path, config(1, idle, CONTROLS, count=2), sleeping(0.1)) as (client, backend):
            send(client, "a", 1, START)
            send(client, "b", 2, START)
            await asyncio.sleep(1)
            (tmp_path / "m" / "config.pbtxt").write_text(config(1, idle, CONTROLS, count=1))
            await client.kernel.load("m")
            send(client, "c", 3, START)
            send(client, "b2", 2)
            await asyncio.sleep(1)
            assert client.outcome("b2") == (1.1, "ok")
            assert not [entry for entry in backend.log if entry[1] == "finalize"]
            send(client, "b3", 2, END)
            send(client, "a2", 1, END)
            await asyncio.sleep(1)
            assert [entry[2] for entry in backend.log if entry[1] == "finalize"] == ["m_0_1"]
            assert client.outcome("c") == (2.2, "ok")

    run(main())


def test_more_instances_take_what_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT + HOUR, CONTROLS), sleeping(0.1)) as (client, _):
            send(client, "a", 1, START)
            send(client, "b", 2, START)
            await asyncio.sleep(1)
            (tmp_path / "m" / "config.pbtxt").write_text(config(1, DIRECT + HOUR, CONTROLS, count=2))
            await client.kernel.load("m")
            await asyncio.sleep(1)
            assert client.outcome("b") == (1.1, "ok")
            client.kernel.unload("m")

    run(main())


# -- faults, and other ways in -----------------------------------------------------------------------------------------------


def test_a_failed_execution_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    def counting(batch: Batch) -> Result:
        (request,) = batch.requests
        if request.id == "b":
            raise ServingError(Code.INTERNAL, "planned")
        state = request.inputs["S"].array
        response = answer(request, Y=state)
        response.outputs.append(Tensor("S_NEXT", "INT32", state + 1))
        return [response]

    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT, CONTROLS + STATE), counting) as (client, _):
            for name in "abc":
                send(client, name, 1, START if name == "a" else 0)
            await asyncio.sleep(0.1)
            assert client.outcome("b")[1] == "planned"
            response = client.answers["c"][0][1]
            assert response is not None and response["Y"].tolist() == [[1, 1]]

    run(main())


def test_the_app_may_send_the_next_request_the_moment_it_has_an_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(2, DIRECT, CONTROLS)) as (client, _):
            kernel = client.kernel
            for index in range(50):
                flags = START if not index else END if index == 49 else 0
                response = await kernel.infer("m", {"X": np.ones((1, 1), np.float32)}, correlation_id=1, flags=flags)
                assert response["Y"].tolist() == [[1]]
            assert not kernel.model("m").scheduler.queue._sequencer.alive  # type: ignore[attr-defined]

    run(main())


@pytest.mark.parametrize("values", [(3, 0), (2, 2)])
def test_the_references_variables_hold_the_first_executions_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: tuple[int, int]
) -> None:
    """Contract: scheduling, section 13."""
    placed, backlogged = values
    monkeypatch.setenv("TRITONSERVER_DELAY_SCHEDULER", str(placed))
    monkeypatch.setenv("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", str(backlogged))

    async def main() -> None:
        async with serving(tmp_path, config(2, DIRECT, CONTROLS)) as (client, backend):

            async def later(name: str, id: int, flags: int = 0) -> None:
                send(client, name, id, flags)
                await asyncio.sleep(0.1)

            await later("a1", 1, START)
            await later("b1", 2, START)
            if backlogged:
                await later("c1", 3, START)
                assert not backend.executions("m")
                await later("c2", 3)
            else:
                await later("a2", 1)
            assert backend.executions("m")[0] == ["a1", "b1"]
            await later("a3", 1)
            assert backend.executions("m")[-1] == ["a3"]  # once, and then as always
            await asyncio.sleep(5)

    run(main())


def test_who_asks_is_told_what_a_request_waits_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, config(1, DIRECT, CONTROLS), sleeping(1.0)) as (client, _):
            requests = [
                send(client, name, id, flags)
                for name, id, flags in (("a", 1, START), ("b", 1, 0), ("c", 2, START), ("d", 3, START | END))
            ]
            await asyncio.sleep(0.5)
            scheduler = client.kernel.model("m").scheduler
            reasons = [scheduler.queue.why_waiting(request) for request in requests[1:]]
            assert [reason and reason.now for reason in reasons] == [
                "for the request of sequence 1 that is executing",
                "sequence 2 is in the backlog: all slots are taken",
                "sequence 3 is in the backlog: all slots are taken",
            ]
            await asyncio.sleep(9)

    run(main())

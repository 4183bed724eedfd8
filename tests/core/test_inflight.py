"""What `Kernel.inflight` tells of requests on virtual time: whose they are, for how long, and why they have no answer yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from virtual import BASE, Behaviour, Client, TestBackend, echo, run, sleeping, write_repository

from kernel import Batch, InferenceRequest, InflightRequest, Kernel, RequestState, Result, Tensor, peer_name

pytestmark = pytest.mark.usefixtures("either_way")

BATCHING = BASE + "max_batch_size: 8\n"


def looked_at(
    folder: Path,
    models: dict[str, str],
    behaviours: dict[str, Behaviour],
    story: Callable[[Kernel, Client], Awaitable[None]],
) -> dict[str, InflightRequest]:
    """Return what is told, by request id, after `story`; nothing is left once time has passed."""

    async def main() -> dict[str, InflightRequest]:
        write_repository(folder, models)
        async with Kernel(folder, plugins=[TestBackend(behaviours)], control_mode="explicit", load_models=["*"]) as kernel:
            await story(kernel, Client(kernel))
            found = kernel.inflight()
            assert found == sorted(found, key=lambda one: -one.age)
            assert found == list(kernel.each_inflight())
            each = kernel.each_inflight()
            await asyncio.sleep(100)
            assert kernel.inflight() == list(each) == []  # they have their answers
        return {one.id: one for one in found}

    return run(main())


def test_what_executes_and_what_waits_behind_it(tmp_path: Path) -> None:
    async def story(kernel: Kernel, client: Client) -> None:
        client.send("m", "a")
        await asyncio.sleep(1)
        client.send("m", "b", deadline=kernel.clock() + 60, priority=0, correlation_id=7)
        client.send("m", "c")
        await asyncio.sleep(0.5)

    found = looked_at(tmp_path, {"m": BASE}, {"m": sleeping(5.0)}, story)
    assert list(found) == ["a", "b", "c"]
    a, b, c = found.values()
    assert (a.model, a.version, a.state, a.age, a.owner, a.client) == ("m", 1, "EXECUTING", 1.5, "instance 'm_0_0'", "the app")
    assert (a.why, a.deadline) == ("it is executed, for 1.500 s", None)
    assert (b.state, b.age, b.owner, b.deadline) == ("PENDING", 0.5, "the queue of model 'm'", pytest.approx(59.5))
    assert b.why == "all instances are busy (1 execution, the oldest for 1.500 s)" and b.correlation_id == 7
    assert c.why == "all instances are busy (1 execution, the oldest for 1.500 s); 1 request in front of it"


def test_a_batch_that_may_grow(tmp_path: Path) -> None:
    async def story(kernel: Kernel, client: Client) -> None:
        client.send("m", "a", [[1], [2]])
        await asyncio.sleep(0.5)

    config = BATCHING + "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1000000 }"
    (a,) = looked_at(tmp_path, {"m": config}, {}, story).values()
    assert (a.state, a.batch_size, a.why) == ("PENDING", 2, "for a larger batch: 1 request in the queue, wanted 4 rows")


def test_the_time_of_a_policy_is_a_deadline_too(tmp_path: Path) -> None:
    async def story(kernel: Kernel, client: Client) -> None:
        client.send("m", "a", [[1]])
        client.send("m", "b", [[1]])
        await asyncio.sleep(1)

    policy = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 3000000 } }"
    found = looked_at(tmp_path, {"m": BATCHING.replace("8", "1") + policy}, {"m": sleeping(50.0)}, story)
    assert found["b"].deadline == pytest.approx(2.0)


def test_calls_name_their_caller_and_callers_their_calls(tmp_path: Path) -> None:
    kernels: list[Kernel] = []

    async def execute(batch: Batch) -> Result:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        call = InferenceRequest(
            "inner",
            {"X": Tensor("X", "FP32", np.ones(1, np.float32))},
            lambda response, final: done.set_result(response),
            id="call",
            parent=batch,
        )
        if batch.requests[0].id == "blocked":
            batch.blocked_on = call
        kernels[0].submit(call)
        await done
        batch.blocked_on = None
        return echo(batch)

    for id, why in (
        ("free", "its execution, for 2.000 s, has called model 'inner' (request 'call')"),
        ("blocked", "its execution waits for model 'inner' (request 'call')"),
    ):

        async def story(kernel: Kernel, client: Client, id: str = id) -> None:
            kernels[:] = [kernel]
            client.send("outer", id)
            await asyncio.sleep(2)

        models = {"outer": BASE, "inner": BASE}
        found = looked_at(tmp_path / id, models, {"outer": execute, "inner": sleeping(5.0)}, story)
        assert found[id].why == why
        assert found["call"].client == f"model 'outer', instance 'outer_0_0', request '{id}'"


def test_what_a_sender_has_still_to_answer(tmp_path: Path) -> None:
    async def story(kernel: Kernel, client: Client) -> None:
        request = client.send("m", "a")
        await asyncio.sleep(2)
        asyncio.get_running_loop().call_later(5, kernel.send, request, None, True)

    decoupled = BASE + "model_transaction_policy { decoupled: true }\n"
    (a,) = looked_at(tmp_path, {"m": decoupled}, {"m": lambda batch: None}, story).values()
    assert (a.state, a.why) == ("EXECUTING", "its execution ended 2.000 s ago; a sender has still to answer it")


def test_an_answer_that_is_held_back(tmp_path: Path) -> None:
    async def execute(batch: Batch) -> Result:
        await asyncio.sleep(5.0 if batch.requests[0].id == "a" else 1.0)
        return echo(batch)

    async def story(kernel: Kernel, client: Client) -> None:
        client.send("m", "a", [[1]])
        client.send("m", "b", [[1]])
        await asyncio.sleep(2)

    config = BATCHING.replace("8", "1").replace("count: 1", "count: 2") + "dynamic_batching { preserve_ordering: true }"
    found = looked_at(tmp_path, {"m": config}, {"m": execute}, story)
    assert found["b"].why == "its answer is there, and waits for those of requests before it (preserve_ordering)"


def test_sequences(tmp_path: Path) -> None:
    async def story(kernel: Kernel, client: Client) -> None:
        client.send("m", "a1", [[1]], correlation_id=1, flags=1)
        client.send("m", "a2", [[1]], correlation_id=1)
        client.send("m", "b1", [[1]], correlation_id=2, flags=1)
        await asyncio.sleep(1)

    config = BATCHING.replace("8", "1") + "sequence_batching { max_sequence_idle_microseconds: 9000000 }"
    found = looked_at(tmp_path, {"m": config}, {"m": sleeping(3.0)}, story)
    assert found["a2"].why == "for the request of sequence 1 that is executing"
    assert found["b1"].why == "sequence 2 is in the backlog: all slots are taken"


def test_who_waits_is_asked_through_all_continuations(tmp_path: Path) -> None:
    class Connection:
        client = "HTTP 10.0.0.1:5"

        def respond(self, response: Any, final: bool) -> None:
            pass

    async def story(kernel: Kernel, client: Client) -> None:
        kernel.trace_settings.update({})  # nothing is traced, and nothing stands in front
        tensor = Tensor("X", "FP32", np.ones((1, 1), np.float32))
        kernel.submit(InferenceRequest("m", {"X": tensor}, Connection().respond, id="a"))
        await asyncio.sleep(1)

    reshaping = """
    backend: "test" max_batch_size: 8
    input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
    output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
    instance_group [ { kind: KIND_CPU count: 1 } ]
    """
    found = looked_at(tmp_path, {"m": reshaping}, {"m": sleeping(3.0)}, story)
    assert found["a"].client == "HTTP 10.0.0.1:5"
    assert RequestState[found["a"].state] is RequestState.EXECUTING


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (("127.0.0.1", 80), "127.0.0.1:80"),
        (("::1", 80, 0, 0), "[::1]:80"),
        ("", "by a Unix socket"),
        (None, "by a Unix socket"),
        ("/run/x", "/run/x"),
    ],
)
def test_names_of_peers(peer: object, name: str) -> None:
    assert peer_name(peer) == name

"""Instances whose work is done elsewhere (kernel/remote.py): runs, going down and coming up, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from virtual import BASE, Client, answer, run, write_repository

from kernel import (
    Batch,
    Code,
    InferenceRequest,
    InstanceContext,
    Kernel,
    ModelConfig,
    Placement,
    RemoteOwner,
    ServingError,
    hookimpl,
)
from kernel.scheduling.runs import PIECE


class Elsewhere:
    """A RemoteExecutor that does what a test tells it. `handed`: what it was given and has not ended, in order."""

    placement = Placement.REMOTE
    capacity = 1
    may_wait = True

    def __init__(self, context: InstanceContext) -> None:
        self.kernel = context.kernel
        self.handed: list[Batch] = []
        self.log: list[str] = []
        self.instance: RemoteOwner

    def attach(self, instance: RemoteOwner) -> None:
        self.instance = instance

    def execute(self, batch: Batch) -> None:
        if not self.handed:
            batch.started = self.kernel.clock()
        self.handed.append(batch)

    def finish(self, result: Callable[[Batch], Any] = lambda batch: [answer(one) for one in batch.requests]) -> None:
        """End the oldest execution, which took a microsecond."""
        batch = self.handed.pop(0)
        batch.started = self.kernel.clock() - 1e-6
        batch.input_ended = batch.output_started = batch.ended = self.kernel.clock()
        if self.handed:
            self.handed[0].started = batch.ended
        self.instance.finished(batch, result(batch))

    def take_back(self) -> list[Batch]:
        taken, self.handed = self.handed[1:], self.handed[:1]
        return taken

    def cancelled(self, batch: Batch, request: InferenceRequest) -> None:
        assert batch in self.handed
        self.log.append(f"cancelled {request.id}")

    def finalize(self) -> None:
        raise AssertionError("close is called instead")

    async def close(self) -> None:
        self.log.append("close")

    def kill(self) -> None:
        self.log.append("kill")


class Backend:
    name = "test"
    creates_on_loop = True

    def __init__(self) -> None:
        self.made: list[Elsewhere] = []

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        return

    def create(self, context: InstanceContext) -> Elsewhere:
        self.made.append(Elsewhere(context))
        return self.made[-1]

    @hookimpl
    def register_backends(self, kernel: Kernel) -> Mapping[str, Any]:
        return {"test": self}


def serve(
    folder: Path, main: Callable[[Kernel, Client, list[Elsewhere]], Coroutine[Any, Any, None]], count: int = 1
) -> list[Elsewhere]:
    """Serve a model with `count` instances and run `main`; return the instances' executors."""
    backend = Backend()
    write_repository(folder, {"a": BASE.replace("count: 1", f"count: {count}")})

    async def served() -> None:
        async with Kernel(folder, plugins=[backend], drain_seconds=1.0) as kernel:
            await main(kernel, Client(kernel), backend.made)

    run(served())
    return backend.made


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def ids(executor: Elsewhere) -> list[str]:
    return [request.id for batch in executor.handed for request in batch.requests]


def test_runs_grow_with_the_speed_of_executions(tmp_path: Path) -> None:
    async def main(kernel: Kernel, client: Client, executors: list[Elsewhere]) -> None:
        (executor,) = executors
        for number in range(30):
            client.send("a", str(number))
        await turns()
        assert ids(executor) == ["0"]  # nobody knows how long one takes
        executor.finish()
        await turns()
        assert ids(executor) == [str(number) for number in range(1, 30)]
        assert kernel.model("a").scheduler.pending == 28
        while executor.handed:
            executor.finish()
        assert all(text == "ok" for _, text in client.outcomes().values())

    serve(tmp_path, main)


def test_what_cannot_be_handed_over_has_its_answer(tmp_path: Path) -> None:
    async def main(kernel: Kernel, client: Client, executors: list[Elsewhere]) -> None:
        (executor,) = executors
        taken = executor.execute

        def refuse(batch: Batch) -> None:
            raise ValueError("no way there")

        executor.execute = refuse  # type: ignore[method-assign]
        for name in "abc":
            client.send("a", name)
        await turns()
        assert {text for _, text in client.outcomes().values()} == {"model 'a' failed: ValueError: no way there"}
        executor.execute = taken  # type: ignore[method-assign]
        client.send("a", "d")
        await turns()
        executor.finish()
        assert client.outcomes()["d"][1] == "ok"

    serve(tmp_path, main)


def test_a_burst_is_handed_over_in_pieces_while_it_comes_in(tmp_path: Path) -> None:
    """Its executions take nothing from this process, so they begin while more is read: nothing is gathered for a turn."""

    async def main(kernel: Kernel, client: Client, executors: list[Elsewhere]) -> None:
        (executor,) = executors
        client.send("a", "warm")
        await turns()
        executor.finish()
        handed = []
        for number in range(2 * PIECE + 2):
            client.send("a", str(number))
            handed.append(len(ids(executor)))
        assert handed == [1] * PIECE + [PIECE + 1] * PIECE + [2 * PIECE + 1] * 2
        await asyncio.sleep(0)
        assert len(ids(executor)) == 2 * PIECE + 2, "the rest goes when the turn is over"
        while executor.handed:
            executor.finish()
        assert all(text == "ok" for _, text in client.outcomes().values())

    serve(tmp_path, main)


def test_a_run_without_progress_is_taken_back(tmp_path: Path) -> None:
    async def main(kernel: Kernel, client: Client, executors: list[Elsewhere]) -> None:
        first, second = executors
        for number in range(2):
            client.send("a", f"warm {number}")
        await turns()
        first.finish()
        second.finish()
        for number in range(4):
            client.send("a", str(number))
        await turns()
        assert (ids(first), ids(second)) == (["0", "2"], ["1", "3"])
        second.finish()
        second.finish()
        await asyncio.sleep(0.01)
        assert (ids(first), ids(second)) == (["0"], ["2"])
        second.finish()
        first.finish()
        assert all(text == "ok" for _, text in client.outcomes().values())

    serve(tmp_path, main, count=2)


def test_the_executor_hears_of_cancellation(tmp_path: Path) -> None:
    async def main(kernel: Kernel, client: Client, executors: list[Elsewhere]) -> None:
        (executor,) = executors
        request = client.send("a", "1")
        waiting = client.send("a", "2")
        await turns()
        kernel.cancel(request)
        kernel.cancel(waiting)
        kernel.cancel(request)
        assert executor.log == ["cancelled 1"]
        executor.finish()
        assert client.outcomes() == {id: (0.0, f"[request id: {id}] Request cancelled") for id in "12"}

    serve(tmp_path, main)


def test_down_and_up(tmp_path: Path) -> None:
    """What had begun fails, what had not waits, in its order and in front; the model is not ready meanwhile."""

    async def main(kernel: Kernel, client: Client, executors: list[Elsewhere]) -> None:
        (executor,) = executors
        client.send("a", "warm")
        await turns()
        executor.finish()
        for id in "123":
            client.send("a", id)
        await turns()
        assert ids(executor) == ["1", "2", "3"]
        assert kernel.is_model_ready("a")
        executor.instance.down()
        assert not kernel.is_model_ready("a")
        assert not kernel.is_ready()
        executor.instance.give_back(executor.take_back())
        executor.finish(lambda batch: ServingError(Code.INTERNAL, "it died"))
        client.send("a", "4")
        await asyncio.sleep(5)
        assert not executor.handed
        executor.instance.up()
        assert kernel.is_model_ready("a")
        assert kernel.is_ready()
        await turns()
        for _ in range(3):
            executor.finish()
            await turns()
        assert client.outcome("1") == (0.0, "it died")
        assert [client.outcome(id)[1] for id in "234"] == ["ok"] * 3
        assert kernel.statistics("a")[0].fail.count == 1

    serve(tmp_path, main)


def test_hopeless(tmp_path: Path) -> None:
    """Only where no instance is left; those that wait, and those that come, are told at once."""

    async def main(kernel: Kernel, client: Client, executors: list[Elsewhere]) -> None:
        first, second = executors
        problem = ServingError(Code.UNAVAILABLE, "no weights")
        first.instance.down()
        first.instance.hopeless(problem)
        client.send("a", "1")
        await turns()
        second.finish()
        second.instance.down()
        client.send("a", "2")
        await asyncio.sleep(1)
        assert not client.answers["2"]
        second.instance.hopeless(problem)
        client.send("a", "3")
        assert client.outcome("1") == (0.0, "ok")
        assert client.outcome("2") == (1.0, "[request id: 2] no weights")
        assert client.outcome("3") == (1.0, "[request id: 3] no weights")
        assert kernel.statistics("a")[0].failures["REJECTED"] == 1  # the other was never accepted
        first.instance.up()
        client.send("a", "4")
        await turns()
        first.finish()
        assert client.outcome("4") == (1.0, "ok")
        assert not kernel.is_model_ready("a")

    serve(tmp_path, main, count=2)


@pytest.mark.parametrize("busy", [False, True])
def test_close(tmp_path: Path, busy: bool) -> None:
    async def main(kernel: Kernel, client: Client, executors: list[Elsewhere]) -> None:
        if busy:
            client.send("a", "1")
            await turns()

    (executor,) = serve(tmp_path, main)
    assert executor.log == (["cancelled 1", "kill", "close"] if busy else ["close"])

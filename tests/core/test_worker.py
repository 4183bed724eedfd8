"""Instances on threads and in greenlets: real threads, but no sleeping - every wait is for an event."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvloop
from virtual import BASE, answer, write_repository

from kernel import (
    Batch,
    Code,
    InferenceRequest,
    InferenceResponse,
    InstanceContext,
    Kernel,
    ModelConfig,
    Placement,
    Result,
    Tensor,
    hookimpl,
    nobody,
)
from kernel.instances.blocked_call import BlockedCall
from kernel.instances.mailbox import Mailbox
from kernel.instances.on_thread import ThreadInstance
from kernel.instances.run_length import RUN_LIMIT, RunLength
from kernel.scheduling import runs

X = {"X": np.array([1.0], np.float32)}


class Executor:
    may_wait = True
    def __init__(self, placement: Placement, execute: Callable[[Kernel, Batch], Any], context: InstanceContext) -> None:
        self.placement = placement
        self.capacity = 1
        self.kernel = context.kernel
        self.made_on = threading.get_ident()
        self.finalized_on = 0
        self.behaviour = execute

    def execute(self, batch: Batch) -> Any:
        return self.behaviour(self.kernel, batch)

    def finalize(self) -> None:
        self.finalized_on = threading.get_ident()


class Backend:
    name = "test"
    creates_on_loop = False

    def __init__(self, models: Mapping[str, tuple[Placement, Callable[[Kernel, Batch], Any]]]) -> None:
        self.models = models
        self.made: dict[str, Executor] = {}
        self.equip: Callable[[Executor], object] = lambda executor: None  # before the instance looks at it

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        return

    def create(self, context: InstanceContext) -> Executor:
        executor = self.made[context.instance_name] = Executor(*self.models[context.config.name], context)
        self.equip(executor)
        return executor

    @hookimpl
    def register_backends(self, kernel: Kernel) -> Mapping[str, Any]:
        return {"test": self}


def serve(folder: Path, models: Mapping[str, tuple[Placement, Callable[[Kernel, Batch], Any]]]) -> tuple[Kernel, Backend]:
    backend = Backend(models)
    write_repository(folder, dict.fromkeys(models, BASE))
    return Kernel(folder, plugins=[backend], control_mode="explicit", load_models=["*"]), backend


def request(kernel: Kernel, model: str, value: float = 1.0, parent: Batch | None = None) -> tuple[InferenceRequest, list[Any]]:
    answers: list[Any] = []
    tensor = Tensor("X", "FP32", np.array([value], np.float32))
    made = InferenceRequest(model, {"X": tensor}, lambda response, final: answers.append((response, final)), parent=parent)
    return made, answers


async def until(done: Callable[[], bool]) -> None:
    """Turn the loop until something that a thread is about to do has been done."""
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - the condition comes about in a thread
            await asyncio.sleep(0)


def call(target: str) -> Callable[[Kernel, Batch], Result]:
    """Return a behaviour that calls `target` and waits for its answer in the middle of execute."""

    def execute(kernel: Kernel, batch: Batch) -> Result:
        child, answers = request(kernel, target, parent=batch)
        kernel.wait(child, batch)
        ((response, final),) = answers
        assert final
        return [response if response.error else answer(batch.requests[0], Y=response["Y"] + 1)]

    return execute


def echo(kernel: Kernel, batch: Batch) -> Result:
    return [answer(one) for one in batch.requests]


@pytest.mark.parametrize("inner", [Placement.LOOP, Placement.THREAD])
@pytest.mark.parametrize("outer", [Placement.LOOP, Placement.THREAD])
def test_synchronous_calls_between_placements(tmp_path: Path, outer: Placement, inner: Placement) -> None:
    async def main() -> None:
        kernel, _ = serve(
            tmp_path, {"a": (outer, call("b")), "b": (outer, call("c")), "c": (inner, echo)}
        )
        async with kernel:
            responses = await asyncio.gather(*(kernel.infer("a", X) for _ in range(20)))
            assert [response["Y"].tolist() for response in responses] == [[3.0]] * 20

    asyncio.run(main())


@pytest.mark.parametrize("placement", [Placement.LOOP, Placement.THREAD])
def test_a_call_of_oneself_is_refused_not_hung(tmp_path: Path, placement: Placement) -> None:
    async def main() -> None:
        kernel, _ = serve(tmp_path, {"a": (placement, call("b")), "b": (placement, call("a"))})
        async with kernel:
            async with asyncio.timeout(10):
                with pytest.raises(Exception, match="a -> b -> a"):
                    await kernel.infer("a", X)
                with pytest.raises(Exception, match="a -> b -> a"):
                    await kernel.infer("a", X)

    asyncio.run(main())


@pytest.mark.parametrize("placement", [Placement.LOOP, Placement.THREAD])
def test_two_that_wait_for_each_other_are_not_hung(tmp_path: Path, placement: Placement) -> None:
    """a -> b and b -> a from two clients at the same time: whoever closes the circle is refused, the other goes on."""

    async def main() -> None:
        gate = asyncio.Event()
        entered: list[str] = []

        def crossing(target: str) -> Callable[[Kernel, Batch], Result]:
            inner = call(target)

            def execute(kernel: Kernel, batch: Batch) -> Result:
                if batch.requests[0].parent is not None:
                    return [answer(batch.requests[0])]
                entered.append(target)

                def step(wake: Callable[[], None]) -> None:
                    asyncio.ensure_future(gate.wait()).add_done_callback(lambda _: wake())

                kernel.wait_for(step)  # until both are in
                return inner(kernel, batch)

            return execute

        kernel, _ = serve(tmp_path, {"a": (placement, crossing("b")), "b": (placement, crossing("a"))})
        async with kernel:
            calls = [kernel.infer("a", X), kernel.infer("b", X)]
            await until(lambda: len(entered) == 2)
            gate.set()
            async with asyncio.timeout(10):
                results = await asyncio.gather(*calls, return_exceptions=True)
            refused = [result for result in results if isinstance(result, Exception)]
            assert len(refused) == 1 and "could only wait for itself" in str(refused[0])
            served = [result for result in results if isinstance(result, InferenceResponse)]
            assert len(served) == 1

    asyncio.run(main())


def test_waiting_on_the_loop_outside_an_execution_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        kernel, _ = serve(tmp_path, {"m": (Placement.LOOP, echo)})
        async with kernel:
            with pytest.raises(RuntimeError, match="would block the event loop"):
                kernel.wait(request(kernel, "m")[0])

    asyncio.run(main())


def test_the_loop_goes_on_while_a_model_waits_in_the_middle_of_execute(tmp_path: Path) -> None:
    async def main() -> None:
        wakes: list[Callable[[], None]] = []

        def execute(kernel: Kernel, batch: Batch) -> Result:
            kernel.wait_for(wakes.append)
            return [answer(batch.requests[0])]

        kernel, _ = serve(tmp_path, {"m": (Placement.LOOP, execute), "n": (Placement.LOOP, echo)})
        async with kernel:
            waiting = kernel.infer("m", X)
            assert (await kernel.infer("n", X))["Y"].tolist() == [1.0]
            assert not waiting.done()
            wakes[0]()
            wakes[0]()  # waking twice is waking once
            assert (await waiting)["Y"].tolist() == [1.0]

    asyncio.run(main())


def test_one_thread_makes_executes_and_finalizes(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[int] = []

        def execute(kernel: Kernel, batch: Batch) -> Result:
            seen.append(threading.get_ident())
            return [answer(batch.requests[0])]

        kernel, backend = serve(tmp_path, {"m": (Placement.THREAD, execute)})
        async with kernel:
            await asyncio.gather(*(kernel.infer("m", X) for _ in range(5)))
        executor = backend.made["m_0_0"]
        assert set(seen) == {executor.made_on} == {executor.finalized_on}
        assert executor.made_on != threading.get_ident()

    asyncio.run(main())


@pytest.mark.parametrize("placement", [Placement.TASK, Placement.THREAD_TASK])
def test_awaitables_run_on_the_kernels_loop_or_on_their_own(tmp_path: Path, placement: Placement) -> None:
    async def main() -> None:
        threads: list[int] = []

        async def execute(kernel: Kernel, batch: Batch) -> Result:
            await asyncio.sleep(0)
            threads.append(threading.get_ident())
            return [answer(batch.requests[0])]

        kernel, backend = serve(tmp_path, {"m": (placement, execute)})
        async with kernel:
            assert (await kernel.infer("m", X))["Y"].tolist() == [1.0]
        on_loop = threads == [threading.get_ident()]
        assert on_loop is (placement is Placement.TASK)
        assert backend.made["m_0_0"].finalized_on

    asyncio.run(main())


def test_a_run_is_measured_and_what_is_cancelled_in_it_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many quick executions are handed over at once; one that nobody waits for any more is not executed."""
    monkeypatch.setattr(runs, "RUN_PATIENCE", 60.0)  # on a busy machine the run may be looked at, and be taken back

    async def main() -> None:
        executed: list[float] = []
        enter, leave = threading.Event(), threading.Event()

        def execute(kernel: Kernel, batch: Batch) -> Result:
            value = batch.requests[0].inputs["X"].array.item()
            executed.append(value)
            if value == -1:
                enter.set()
                leave.wait(10)
            return [answer(batch.requests[0])]

        kernel, _ = serve(tmp_path, {"m": (Placement.THREAD, execute)})
        async with kernel:
            for _ in range(50):
                await kernel.infer("m", X)
            instance = kernel.model("m").scheduler.instances[0]
            assert instance.limit > 1, "quick executions did not make a run"
            blocker, _ = request(kernel, "m", -1)
            others = [request(kernel, "m", 10 + index) for index in range(3)]
            for one in (blocker, *(other for other, _ in others)):
                kernel.submit(one)
            await until(lambda: enter.is_set() and instance.outstanding > 1)
            kernel.cancel(others[1][0])
            leave.set()
            await until(lambda: all(answers for _, answers in others))
            assert executed[-3:] == [-1, 10, 12]

    asyncio.run(main())


def test_what_waits_behind_a_slow_execution_is_taken_back(tmp_path: Path) -> None:
    """A run that does not come back is cut short: its rest goes to whoever is free."""

    async def main() -> None:
        stuck, leave = threading.Event(), threading.Event()
        ran_on: dict[float, int] = {}

        def execute(kernel: Kernel, batch: Batch) -> Result:
            value = batch.requests[0].inputs["X"].array.item()
            ran_on[value] = threading.get_ident()
            if value == -1:
                stuck.set()
                leave.wait(10)
            return [answer(batch.requests[0])]

        write_repository(tmp_path, {"m": BASE.replace("count: 1", "count: 2")})
        backend = Backend({"m": (Placement.THREAD, execute)})
        async with Kernel(tmp_path, plugins=[backend], control_mode="explicit", load_models=["m"]) as kernel:
            for _ in range(50):
                await asyncio.gather(kernel.infer("m", X), kernel.infer("m", X))
            slow = kernel.infer("m", {"X": np.array([-1], np.float32)})
            others = [kernel.infer("m", {"X": np.array([10 + index], np.float32)}) for index in range(8)]
            await until(stuck.is_set)
            async with asyncio.timeout(5):  # long before the slow one lets go
                await asyncio.gather(*others)
            assert not slow.done()
            assert len({ran_on[10.0 + index] for index in range(8)} - {ran_on[-1.0]}) == 1
            leave.set()
            await slow

    asyncio.run(main())


def test_mailbox_wakes_the_loop_once_for_many_and_loses_none() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        wakes = 0
        original = loop.call_soon_threadsafe

        def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return original(*args, **kwargs)

        loop.call_soon_threadsafe = counting  # type: ignore[method-assign]
        mailbox = Mailbox(loop)
        got: list[tuple[int, int]] = []
        threads = [
            threading.Thread(target=lambda n=n: [mailbox.post(got.append, (n, i)) for i in range(1000)]) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # the loop stands still meanwhile
        await until(lambda: len(got) == 4000)
        assert wakes == 1
        for number in range(4):
            assert [index for n, index in got if n == number] == list(range(1000))
        mailbox.closed = True
        with pytest.raises(RuntimeError, match="the kernel has stopped"):
            mailbox.post(print)

    asyncio.run(main())


def test_a_failing_call_from_a_thread_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        got: list[int] = []
        mailbox.leave((lambda: 1 / 0, ()))
        mailbox.leave((got.append, (1,)))
        mailbox.drain()
        assert got == [1]

    asyncio.run(main())
    assert "ZeroDivisionError" in caplog.text


def test_what_was_put_off_is_done_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        got: list[int] = []

        def cancelled() -> None:
            mailbox.after(lambda: 1 / 0)
            mailbox.after(lambda: got.append(2))
            raise asyncio.CancelledError

        mailbox.leave((cancelled, ()))
        mailbox.leave((got.append, (1,)))
        mailbox.drain()
        assert got == [1, 2] and not mailbox.draining

    asyncio.run(main())
    assert "CancelledError" in caplog.text and "ZeroDivisionError" in caplog.text


def test_an_answer_for_a_blocked_thread_is_handed_over_once() -> None:
    got: list[tuple[Any, bool]] = []
    call = BlockedCall(lambda response, final: got.append((response, final)))
    call(InferenceResponse([]), False)
    first, second = InferenceResponse([]), InferenceResponse([])
    threads = [threading.Thread(target=call, args=(response, True)) for response in (first, second) for _ in range(8)]
    for thread in threads:
        thread.start()
    call.wait()
    for thread in threads:
        thread.join()
    assert [final for _, final in got] == [False, True]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["good", "another output", "an error", "an exception"])
def test_an_answer_means_the_same_by_the_loop_and_straight_from_its_thread(kind: str, strict: bool, tmp_path: Path) -> None:
    """`ThreadInstance._hand_over` ~ `release`: to a thread that waits, from a model on a thread; all others go by the loop."""

    def execute(kernel: Kernel, batch: Batch) -> Result:
        (one,) = batch.requests
        if kind == "an exception":
            raise ValueError("boom")
        if kind == "an error":
            return [InferenceResponse.failure(Code.NOT_FOUND, "no")]
        return [answer(one, Y=[1], other=[2]) if kind == "another output" else answer(one)]

    async def asked(outer: Placement, inner: Placement) -> Any:
        seen: list[Any] = []

        def caller(kernel: Kernel, batch: Batch) -> Result:
            child, answers = request(kernel, "b", 41.0, parent=batch)
            child.id = "7"
            response = kernel.wait(child, batch)
            for one in (response, *(one for one, _ in answers)):
                assert one is not None
                error = one.error and (one.error.code, one.error.message)
                seen.append((one.model_name, one.model_version, one.id, [tensor.name for tensor in one.outputs], error))
            return [answer(batch.requests[0])]

        kernel, _ = serve(tmp_path, {"a": (outer, caller), "b": (inner, execute)})
        kernel.strict_outputs = strict
        async with kernel:
            await kernel.infer("a", X)
            statistics = kernel.model("b").scheduler.statistics
            statistics.settle()
            return seen, statistics.success, statistics.fail, statistics.execution_count

    ways = [(outer, inner) for outer in (Placement.THREAD, Placement.LOOP) for inner in (Placement.THREAD, Placement.LOOP)]
    first, *others = [asyncio.run(asked(*way)) for way in ways]
    assert others == [first] * 3


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("inner", [Placement.LOOP, Placement.THREAD])
@pytest.mark.parametrize("outer", [Placement.LOOP, Placement.THREAD])
def test_who_waits_gets_the_response_whether_or_not_somebody_else_does(
    tmp_path: Path, outer: Placement, inner: Placement, heard: bool
) -> None:
    async def main() -> None:
        def caller(kernel: Kernel, batch: Batch) -> Result:
            child, answers = request(kernel, "b", 41.0, parent=batch)
            if not heard:
                child.respond = nobody
            response = kernel.wait(child, batch)
            assert response is not None and response.error is None
            assert answers == ([(response, True)] if heard else [])
            return [answer(batch.requests[0], Y=response["Y"] + 1)]

        kernel, _ = serve(tmp_path, {"a": (outer, caller), "b": (inner, echo)})
        async with kernel:
            assert (await kernel.infer("a", X))["Y"].tolist() == [42.0]

    asyncio.run(main())


def test_a_thread_gets_its_answer_while_the_loop_does_the_books(tmp_path: Path) -> None:
    """The worker hands the answer over itself; statistics and instance are in order when the loop has had its turn."""

    async def main() -> None:
        handed: list[int] = []

        def caller(kernel: Kernel, batch: Batch) -> Result:
            for _ in range(3):
                child, _ = request(kernel, "b", parent=batch)
                child.respond = lambda response, final: handed.append(threading.get_ident())
                kernel.wait(child, batch)
            return [answer(batch.requests[0])]

        kernel, backend = serve(tmp_path, {"a": (Placement.THREAD, caller), "b": (Placement.THREAD, echo)})
        async with kernel:
            await kernel.infer("a", X)
            assert set(handed) == {backend.made["b_0_0"].made_on}  # not the loop's thread
            scheduler = kernel.model("b").scheduler
            await until(lambda: scheduler.is_idle)
            assert kernel.statistics("b")[0].success.count == 3
            assert (scheduler.in_flight, scheduler.pending) == (0, 0)

    asyncio.run(main())


def test_a_cancelled_call_of_a_blocked_thread_is_answered_once(tmp_path: Path) -> None:
    async def main() -> None:
        enter, leave = threading.Event(), threading.Event()
        got: list[Any] = []

        def slow(kernel: Kernel, batch: Batch) -> Result:
            enter.set()
            leave.wait(10)
            return [answer(batch.requests[0])]

        def caller(kernel: Kernel, batch: Batch) -> Result:
            child, answers = request(kernel, "b", parent=batch)
            kernel.wait(child, batch)
            got.extend(answers)
            return [answer(batch.requests[0])]

        kernel, _ = serve(tmp_path, {"a": (Placement.THREAD, caller), "b": (Placement.THREAD, slow)})
        async with kernel:
            outer, answers = request(kernel, "a")
            kernel.submit(outer)
            await until(enter.is_set)
            kernel.cancel(outer)  # and with it the call that executes
            leave.set()
            await until(lambda: kernel.model("a").scheduler.is_idle and kernel.model("b").scheduler.is_idle)
            assert len(answers) == 1
            ((response, final),) = got
            assert final and "Request cancelled" in response.error.message

    asyncio.run(main())


def test_circles_are_refused_also_where_calls_wait_in_a_threads_inbox(tmp_path: Path) -> None:
    """Quick models are handed runs: a call that waits in an inbox behind its own caller would wait for ever."""

    async def main() -> None:
        def execute(kernel: Kernel, batch: Batch) -> Result:
            if batch.requests[0].inputs["X"].array.item() == 2:
                child, answers = request(kernel, "a", parent=batch)
                kernel.wait(child, batch)
                ((response, _),) = answers
                return [response if response.error else answer(batch.requests[0])]
            return [answer(batch.requests[0])]

        kernel, _ = serve(tmp_path, {"a": (Placement.THREAD, execute)})
        async with kernel:
            for _ in range(50):
                await kernel.infer("a", X)
            assert kernel.model("a").scheduler.instances[0].limit > 1
            two = {"X": np.array([2.0], np.float32)}
            async with asyncio.timeout(10):
                results = await asyncio.gather(
                    kernel.infer("a", two), kernel.infer("a", X), kernel.infer("a", two), return_exceptions=True
                )
            assert ["could only wait for itself" in str(result) for result in results] == [True, False, True]

    asyncio.run(main())


@pytest.mark.parametrize("placement", [Placement.LOOP, Placement.THREAD])
def test_circles_are_refused_also_where_who_waits_is_served_by_who_waits(tmp_path: Path, placement: Placement) -> None:
    """`b` waits for `c`, which executes but waits for `a`, whose one instance calls `b` at last: nobody can go on."""

    async def main() -> None:
        held: list[Callable[[], None]] = []

        def first(kernel: Kernel, batch: Batch) -> Result:
            if batch.requests[0].inputs["X"].array.item() == 41:
                kernel.wait_for(held.append)
                return call("b")(kernel, batch)
            return echo(kernel, batch)

        models = {"a": (placement, first), "b": (placement, call("c")), "c": (placement, call("a"))}
        kernel, _ = serve(tmp_path, models)
        async with kernel:
            outer, answers = request(kernel, "a", 41.0)
            kernel.submit(outer)
            await until(lambda: bool(held))
            through, others = request(kernel, "b")
            kernel.submit(through)
            await until(lambda: kernel.model("a").scheduler.pending == 1)
            held[0]()
            await until(lambda: bool(answers and others))
            ((response, _),) = answers
            assert "request to model 'b' could only wait for itself" in response.error.message
            assert "(a -> b)" in response.error.message
            ((response, _),) = others
            assert response.error is None

    asyncio.run(main())


def batch_in_pairs(model: Path) -> None:
    """Have a model execute two requests at a time, whatever the time until there are two."""
    batching = "max_batch_size: 2 dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }"
    (model / "config.pbtxt").write_text(BASE + batching)


def calling_pair(got: list[Any]) -> Callable[[Kernel, Batch], Result]:
    """Return a behaviour that answers a batch of two after a call of "q", whose answers go to `got`."""

    def execute(kernel: Kernel, batch: Batch) -> Result:
        assert len(batch.requests) == 2
        child, answers = request(kernel, "q", parent=batch)
        kernel.wait(child, batch)
        got.extend(answers)
        return echo(kernel, batch)

    return execute


@pytest.mark.parametrize("placement", [Placement.LOOP, Placement.THREAD])
def test_circles_are_refused_also_where_a_batch_has_several_callers(tmp_path: Path, placement: Placement) -> None:
    """The batch calls the model of its second request's caller, which waits for that very batch."""

    async def main() -> None:
        got: list[Any] = []

        def caller(kernel: Kernel, batch: Batch) -> Result:
            child, answers = request(kernel, "m", parent=batch)
            child.inputs["X"].array.shape = (1, 1)
            kernel.wait(child, batch)
            ((response, _),) = answers
            assert response.error is None
            return echo(kernel, batch)

        kernel, _ = serve(tmp_path, {"m": (placement, calling_pair(got)), "p": (placement, caller), "q": (placement, caller)})
        batch_in_pairs(tmp_path / "m")
        async with kernel:
            async with asyncio.timeout(10):
                await asyncio.gather(kernel.infer("p", X), kernel.infer("q", X))
            ((response, _),) = got
            assert "request to model 'q' could only wait for itself" in response.error.message

    asyncio.run(main())


@pytest.mark.parametrize("first", ["client", "call"])
def test_circles_are_refused_whichever_request_of_a_batch_closes_them(tmp_path: Path, first: str) -> None:
    """A batch of a client's request and of a call: it calls the model that waits for it, which does so as a task."""

    async def main() -> None:
        got: list[Any] = []

        async def caller(kernel: Kernel, batch: Batch) -> Result:
            child, _ = request(kernel, "m", parent=batch)
            child.inputs["X"].array.shape = (1, 1)
            answered = asyncio.Event()
            child.respond = lambda response, final: answered.set()
            kernel.submit(child)
            await answered.wait()
            return echo(kernel, batch)

        kernel, _ = serve(tmp_path, {"m": (Placement.THREAD, calling_pair(got)), "q": (Placement.TASK, caller)})
        batch_in_pairs(tmp_path / "m")
        async with kernel:
            scheduler = kernel.model("m").scheduler
            own = {"X": np.ones((1, 1), np.float32)}
            sends = [lambda: kernel.infer("m", own), lambda: kernel.infer("q", X)]
            tasks = []
            for count, send in enumerate(sends if first == "client" else sends[::-1], 1):
                tasks.append(asyncio.ensure_future(send()))
                await until(lambda count=count: scheduler.in_flight == count)  # type: ignore[misc]
            async with asyncio.timeout(10):
                await asyncio.gather(*tasks)
            ((response, _),) = got
            assert "request to model 'q' could only wait for itself" in response.error.message

    asyncio.run(main())


def test_a_batch_whose_requests_are_answered_one_by_one_is_no_circle(tmp_path: Path) -> None:
    """The task that answers the first request calls `q`, which waits for the second: another task answers that."""

    async def main() -> None:
        called, answer_second = asyncio.Event(), asyncio.Event()
        got: list[Any] = []

        async def batched(kernel: Kernel, batch: Batch) -> Result:
            first, second = batch.requests

            async def one() -> None:
                child, _ = request(kernel, "q", parent=batch)
                over = asyncio.Event()
                child.respond = lambda response, final: (got.append(response), over.set())
                kernel.submit(child)
                called.set()
                await over.wait()
                kernel.send(first, answer(first), True)

            async def other() -> None:
                await answer_second.wait()
                kernel.send(second, answer(second), True)

            await asyncio.gather(one(), other())
            return [None, None]

        def caller(kernel: Kernel, batch: Batch) -> Result:
            if batch.requests[0].parent is None:
                child, _ = request(kernel, "m", parent=batch)
                child.inputs["X"].array.shape = (1, 1)
                kernel.wait(child, batch)
            return echo(kernel, batch)

        kernel, _ = serve(tmp_path, {"m": (Placement.TASK, batched), "q": (Placement.THREAD, caller)})
        batch_in_pairs(tmp_path / "m")
        async with kernel:
            scheduler = kernel.model("m").scheduler
            tasks = [asyncio.ensure_future(kernel.infer("m", {"X": np.ones((1, 1), np.float32)}))]
            await until(lambda: scheduler.in_flight == 1)
            tasks.append(asyncio.ensure_future(kernel.infer("q", X)))
            async with asyncio.timeout(10):
                await called.wait()
                answer_second.set()
                await asyncio.gather(*tasks)
            assert [response.error for response in got] == [None]

    asyncio.run(main())


def test_what_is_taken_back_keeps_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        stuck, leave = threading.Event(), threading.Event()
        order: list[float] = []

        def execute(kernel: Kernel, batch: Batch) -> Result:
            value = batch.requests[0].inputs["X"].array.item()
            if value == 100:
                stuck.set()
                leave.wait(10)
            order.append(value)
            return [answer(batch.requests[0])]

        kernel, _ = serve(tmp_path, {"m": (Placement.THREAD, execute)})
        async with kernel:
            for _ in range(50):
                await kernel.infer("m", X)
            order.clear()
            calls = [kernel.infer("m", {"X": np.array([100.0 + index], np.float32)}) for index in range(8)]
            await until(stuck.is_set)
            await until(lambda: kernel.model("m").scheduler.queue.size == 7)  # taken back
            leave.set()
            await asyncio.gather(*calls)
            assert order == [100.0 + index for index in range(8)]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("batches", "seconds", "first", "after"),
    [
        (True, 1 / 8192, 8, 8),  # as many as make a millisecond, in either case
        (False, 1 / 8192, 8, 8),
        (True, 1 / 1024, 2, 2),
        (False, 1 / 1024, 1, 1),
        (True, 1 / 128, 2, 1),  # nobody knows yet how long it takes; then it was taken back
        (False, 1 / 128, 1, 1),
    ],
)
def test_a_batch_lies_ready_behind_a_short_one(batches: bool, seconds: float, first: int, after: int) -> None:
    """Of a model that gathers batches, that is; what is slow gets its next one when it is done."""
    instance = bare_instance(batches)

    def learn(took: float) -> None:
        instance.length.learn(took)
        instance.fit()

    learn(seconds)
    assert instance.limit == first
    assert instance.take_back() == []
    assert instance.limit == 1
    learn(seconds)
    assert instance.limit == after
    for _ in range(100):  # the estimate is the fastest of the recent executions, and grows slowly
        learn(1 / 128)
    assert instance.limit == 1


def test_the_length_of_runs_is_set_anew_when_executions_take_another_time() -> None:
    length = RunLength()
    assert length.now == 1
    assert length.learn(0.0001) and length.now == 10
    assert not length.learn(0.00011) and length.now == 10, "within a fifth of it nothing is set"
    assert length.learn(0.00001) and length.now == 100
    assert length.learn(0.0) and length.now == RUN_LIMIT
    length.forget()
    assert length.now == 1 and length.learn(0.01) and length.now == 1


def bare_instance(batches: bool) -> ThreadInstance:
    """Return an instance whose thread does nothing, and whose scheduler listens to nobody."""
    thread = SimpleNamespace(inbox=deque(), put=None, serve=None)
    executor: Any = SimpleNamespace(capacity=1, execute=None)
    instance = ThreadInstance("m_0", executor, lambda: 0.0, thread, None)  # type: ignore[arg-type]
    rule = object() if batches else None
    instance.owner = SimpleNamespace(rule=rule)  # type: ignore[assignment]
    instance.runs = True
    return instance




def test_an_executor_on_a_thread_hears_of_cancellation_where_it_wants_to(tmp_path: Path) -> None:
    """On the loop, while its thread is in the middle of the execution: so it can end what goes on there."""

    async def main() -> None:
        entered, leave = threading.Event(), threading.Event()

        def execute(kernel: Kernel, batch: Batch) -> Result:
            entered.set()
            assert leave.wait(10)
            return echo(kernel, batch)

        kernel, backend = serve(tmp_path, {"m": (Placement.THREAD, execute)})
        heard: list[tuple[Batch, InferenceRequest, int]] = []

        def cancelled(batch: Batch, request: InferenceRequest) -> None:
            heard.append((batch, request, threading.get_ident()))
            leave.set()

        backend.equip = lambda executor: setattr(executor, "cancelled", cancelled)
        async with kernel:
            one, answers = request(kernel, "m")
            kernel.submit(one)
            await until(entered.is_set)
            (batch,) = kernel.model("m").scheduler.instances[0].running
            kernel.cancel(one)
            assert heard == [(batch, one, threading.get_ident())]
            ((response, final),) = answers
            assert final and response.error.code is Code.CANCELLED
            assert (await kernel.infer("m", X))["Y"].tolist() == [1.0]

    asyncio.run(main())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files where Linux lists them")
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_kernel_that_has_stopped_leaves_no_files(tmp_path: Path, new_loop: Callable[[], Any]) -> None:
    async def main() -> None:
        gc.collect()  # what other tests have left
        before = files()
        for number in range(3):
            kernel, _ = serve(tmp_path / str(number), {"m": (Placement.THREAD, echo)})
            async with kernel:
                await kernel.infer("m", X)
                assert files() - before
                threads = [instance._thread._thread for instance in kernel.model("m").scheduler.instances]  # type: ignore[attr-defined]
            for thread in threads:
                thread.join(10)
            assert len(files() - before) <= number + 1  # with the kernel goes what threads might still write to
        del kernel, threads
        gc.collect()
        assert files() == before

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def files() -> set[int]:
    """Return the numbers of this process's open files, without that of the listing itself."""
    numbers = {int(name) for name in os.listdir("/proc/self/fd")}
    return {number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")}


def test_a_request_that_comes_alone_after_another_goes_straight_to_its_thread(tmp_path: Path) -> None:
    """What comes in bursts is still gathered: a thread that is woken for its first request gets in the way of the others."""

    async def main() -> None:
        kernel, _ = serve(tmp_path, {"m": (Placement.THREAD, echo)})
        async with kernel:
            scheduler = kernel.model("m").scheduler

            def submit() -> tuple[Any, list[Any], bool]:
                made, answers = request(kernel, "m")
                kernel.submit(made)
                return made, answers, not scheduler.queue.size

            async def answered(*lists: list[Any]) -> None:
                async with asyncio.timeout(10):
                    while not all(lists):  # noqa: ASYNC110 - the condition comes about in a thread
                        await asyncio.sleep(0)

            _, answers, straight = submit()
            assert not straight  # more may come
            await answered(answers)
            for _ in range(3):  # it came alone, and so do these
                _, answers, straight = submit()
                assert straight
                await answered(answers)
            burst = [submit() for _ in range(4)]
            assert [straight for _, _, straight in burst] == [True, False, False, False]
            await answered(*(answers for _, answers, _ in burst))
            again = [submit() for _ in range(2)]  # after a burst, another may come
            assert [straight for _, _, straight in again] == [False, False]
            await answered(*(answers for _, answers, _ in again))

    asyncio.run(main())

"""ONNX models that fail, are cancelled, run side by side, share a session, go and come back."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnx_models import (
    BATCHES,
    CPU,
    LOOP,
    SCALE,
    SHARED,
    OnnxRepo,
    ask,
    executions,
    graph,
    node,
    rows,
    tensor,
    unary,
    until,
)

from kernel import Kernel, Placement


@pytest.fixture
def repo(tmp_path: Path) -> OnnxRepo:
    return OnnxRepo(tmp_path / "models")


# -- errors and ends -------------------------------------------------------------------------------------------------------


def test_a_run_that_fails_fails_its_batch_only(repo: OnnxRepo) -> None:
    """Two inputs whose variable dimensions have to agree, which no config can say."""
    model = graph(
        [node("Add", ["A", "B"], ["Y"])], {"A": ("FP32", ["n", "a"]), "B": ("FP32", ["n", "b"])}, {"Y": ("FP32", ["n", "c"])}
    )
    repo.add("m", model, BATCHES % 5_000_000)

    async def main(kernel: Kernel) -> None:
        def inputs(a: int, b: int) -> dict[str, Any]:
            return {"A": np.ones((4, a), np.float32), "B": np.ones((4, b), np.float32)}

        bad = [ask(kernel, "m", inputs(2, 3)) for _ in range(2)]
        good = [ask(kernel, "m", inputs(2, 2)) for _ in range(2)]
        answers = await asyncio.gather(*bad, *good)
        for answer in answers[:2]:
            assert answer.startswith("INTERNAL: onnx runtime error ")
            assert "while running Add node" in answer and answer.endswith("(model 'm', instance 'm_0_0')")
        assert [answer["Y"].shape for answer in answers[2:]] == [(4, 2)] * 2
        statistics = kernel.statistics("m")[0]
        assert (statistics.success.count, statistics.fail.count) == (2, 2)

    repo.run(main)


def endless() -> onnx.ModelProto:
    """A model that multiplies N times: as long as one likes."""
    body = helper.make_graph(
        [node("MatMul", ["v", "M"], ["w"]), node("Identity", ["c"], ["d"])], "body",
        [tensor("i", ("INT64", [])), tensor("c", ("BOOL", [])), tensor("v", ("FP32", [60, 60]))],
        [tensor("d", ("BOOL", [])), tensor("w", ("FP32", [60, 60]))],
    )  # fmt: skip
    return graph(
        [node("Loop", ["N", "T", "V"], ["Y"], body=body)], {"N": ("INT64", [])}, {"Y": ("FP32", [60, 60])},
        {"T": np.array(True), "V": np.eye(60, dtype=np.float32), "M": np.eye(60, dtype=np.float32)},
    )  # fmt: skip


FOREVER = {"N": np.array([10**9])}
ONCE = {"N": np.array([1])}


@pytest.mark.parametrize("how", ["cancel", "deadline", "stop"])
def test_a_run_that_nobody_waits_for_is_ended(repo: OnnxRepo, how: str) -> None:
    repo.add("m", endless(), CPU + 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }')

    async def main(kernel: Kernel) -> None:
        (instance,) = kernel.model("m").scheduler.instances
        waiting = kernel.infer("m", FOREVER, timeout=0.05 if how == "deadline" else None)
        await until(lambda: instance.executor._current is not None)
        began = time.monotonic()
        if how == "cancel":
            waiting.cancel()
        elif how == "stop":
            await kernel.stop(0.0)
        await asyncio.wait([waiting])
        await until(lambda: not instance.outstanding)  # the thread is back: without the end it would compute for hours
        if how != "stop":
            assert (await ask(kernel, "m", ONCE))["Y"].tolist() == np.eye(60).tolist()
        assert time.monotonic() - began < 10

    repo.run(main)


def test_a_run_goes_on_while_one_of_its_requests_is_waited_for(repo: OnnxRepo) -> None:
    repo.add("m", SCALE, BATCHES % 5_000_000)
    entered, leave = threading.Event(), threading.Event()
    run = ort.InferenceSession.run

    def held(self: Any, *args: Any) -> Any:
        entered.set()
        assert leave.wait(10)
        return run(self, *args)

    async def main(kernel: Kernel) -> None:
        one, two = kernel.infer("m", {"X": rows(*range(4))}), kernel.infer("m", {"X": rows(*range(4))})
        await until(entered.is_set)
        one.cancel()
        leave.set()
        assert (await two)["Y"].shape == (4, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ort.InferenceSession, "run", held)
        repo.run(main)


# -- sessions and instances --------------------------------------------------------------------------------------------------


def test_instances_run_at_the_same_time(repo: OnnxRepo) -> None:
    one_thread = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
    for name, more in (("own", ""), ("shared", SHARED)):
        repo.add(name, endless(), f'backend: "onnxruntime" instance_group {{ kind: KIND_CPU count: 2 }} {one_thread} {more}')

    async def main(kernel: Kernel) -> None:
        for name in ("own", "shared"):
            instances = kernel.model(name).scheduler.instances
            sessions: list[Any] = [instance.executor._session.inner for instance in instances]
            assert (sessions[0] is sessions[1]) == (name == "shared")
            calls = [kernel.infer(name, FOREVER) for _ in instances]
            await until(lambda both=instances: all(one.executor._current is not None for one in both))
            calls[0].cancel()  # ends one run, also where both are of one session
            await until(lambda both=instances: sum(one.outstanding for one in both) == 1)
            assert not calls[1].done()
            calls[1].cancel()
            await until(lambda both=instances: not any(one.outstanding for one in both))

    repo.run(main)


@pytest.mark.parametrize("more", ["", SHARED], ids=["own", "shared"])
def test_unloading_frees_the_session(repo: OnnxRepo, more: str) -> None:
    repo.add("m", SCALE, f'backend: "onnxruntime" max_batch_size: 8 {more}')

    async def main(kernel: Kernel) -> None:
        await kernel.load("m")
        answer = await ask(kernel, "m", {"X": rows(1, 2)})
        sessions = [weakref.ref(one.executor._session.inner) for one in kernel.model("m").scheduler.instances]
        model = weakref.ref(kernel.model("m"))
        kernel.unload("m")
        await until(lambda: kernel.index()[0].state == "UNAVAILABLE")
        await asyncio.sleep(0)
        gc.collect()
        assert [session() for session in sessions] == [None, None], model()
        assert answer["Y"].tolist() == [[3, 3], [6, 6]]  # outlives it

    repo.run(main, control_mode="explicit")


def test_a_reload_serves_the_new_file(repo: OnnxRepo) -> None:
    """Also where sessions are shared: a new load has its own."""
    repo.add("m", SCALE, f'backend: "onnxruntime" max_batch_size: 8 {SHARED}')

    async def main(kernel: Kernel) -> None:
        await kernel.load("m")
        assert (await ask(kernel, "m", {"X": rows(1)}))["Y"].tolist() == [[3, 3]]
        await kernel.load("m", config='{"backend": "onnxruntime", "max_batch_size": 2}', files={"1/model.onnx": NEGATE})
        assert (await ask(kernel, "m", {"X": rows(1)}))["Y"].tolist() == [[-1, -1]]
        with pytest.raises(Exception, match="onnx runtime error 7"):
            await kernel.load("m", config='{"backend": "onnxruntime"}', files={"1/model.onnx": b"rubbish" * 9})
        assert (await ask(kernel, "m", {"X": rows(1)}))["Y"].tolist() == [[-1, -1]]

    repo.run(main, control_mode="explicit")


NEGATE = unary("Neg", "FP32", ["n", 2]).SerializeToString()


def test_a_failed_instance_leaves_no_share_behind(repo: OnnxRepo) -> None:
    io = 'input { name: "X" data_type: TYPE_FP16 dims: [ 2 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }'
    repo.add("m", SCALE, f'backend: "onnxruntime" max_batch_size: 8 {SHARED} {io}')

    async def main(kernel: Kernel) -> None:
        with pytest.raises(Exception, match="configuration expects datatype TYPE_FP16 for input 'X'"):
            await kernel.load("m")
        backend: Any = kernel._registry.loader._backends["onnxruntime"]
        assert not backend._shared._entries

    repo.run(main, control_mode="explicit")


def test_a_small_model_may_run_on_the_loop(repo: OnnxRepo) -> None:
    repo.add("m", SCALE, BATCHES % 0 + LOOP)

    async def main(kernel: Kernel) -> None:
        (instance,) = kernel.model("m").scheduler.instances
        assert instance.executor.placement is Placement.LOOP and instance.inline
        answers = await asyncio.gather(*(ask(kernel, "m", {"X": rows(k)}) for k in range(6)))
        assert [answer["Y"][0, 0] for answer in answers] == [0, 3, 6, 9, 12, 15]
        assert executions(kernel, "m") == 1

    repo.run(main)

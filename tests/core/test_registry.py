"""What is loaded and how it comes and goes: failures, reloads, unloads and shutdown in each other's way. In virtual time."""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from virtual import BASE, Behaviour, Client, TestBackend, TestExecutor, answer, echo, run, sleeping, write_repository

from kernel import (
    Batch,
    Code,
    InferenceRequest,
    InferenceResponse,
    InstanceContext,
    Kernel,
    Result,
    ServingError,
    Tensor,
)

X = {"X": np.ones(1, np.float32)}


class Breaking(TestBackend):
    """Fails to make the versions of `broken`; `delay` virtual seconds pass with nothing made."""

    def __init__(self, behaviours: Mapping[str, Behaviour] | None = None, broken: tuple[int, ...] = ()) -> None:
        super().__init__(behaviours or {})
        self.broken = broken

    def create(self, context: InstanceContext) -> TestExecutor:
        if context.version in self.broken:
            raise ServingError(Code.INTERNAL, f"version {context.version} is broken")
        return super().create(context)


def kernel_of(folder: Path, backend: TestBackend, *models: str) -> Kernel:
    return Kernel(folder, plugins=[backend], control_mode="explicit", load_models=models or ["*"])


def test_a_failed_load_takes_nothing_away(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        async with kernel_of(tmp_path, Breaking(broken=(2,))) as kernel:
            (tmp_path / "m" / "2").mkdir()
            with pytest.raises(ServingError, match=r"load failed for model 'm': version 2 is at UNAVAILABLE state: Internal"):
                await kernel.load("m")
            assert kernel.versions("m") == [1]
            assert (await kernel.infer("m", X))["Y"].tolist() == [1.0]
            states = [(line.version, line.state, line.reason) for line in kernel.index()]
            assert states == [("1", "READY", ""), ("2", "UNAVAILABLE", "Internal: version 2 is broken")]

    run(main())


def test_a_good_load_lets_the_unselected_version_go(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        async with kernel_of(tmp_path, TestBackend({})) as kernel:
            (tmp_path / "m" / "2").mkdir()
            await kernel.load("m")
            assert kernel.versions("m") == [2]
            await asyncio.sleep(1)
            assert [(line.version, line.state, line.reason) for line in kernel.index()] == [
                ("1", "UNAVAILABLE", "unloaded"),
                ("2", "READY", ""),
            ]

    run(main())


def test_shutdown_finishes_what_was_unloaded_before(tmp_path: Path) -> None:
    """A request of a model that is unloading still calls others, and gets its answer before the time is over."""
    kernels: list[Kernel] = []

    async def calling(batch: Batch) -> Result:
        await asyncio.sleep(1)
        done: asyncio.Future[InferenceResponse] = kernels[0].loop.create_future()
        child = InferenceRequest(
            "callee", {"X": Tensor("X", "FP32", np.ones(1, np.float32))}, lambda r, final: done.set_result(r), parent=batch
        )
        kernels[0].submit(child)
        response = await done
        return [InferenceResponse([], error=response.error) if response.error else answer(batch.requests[0])]

    async def main() -> None:
        write_repository(tmp_path, {"stuck": BASE, "caller": BASE, "callee": BASE})
        backend = TestBackend({"stuck": sleeping(100), "caller": calling, "callee": echo})
        kernel = kernel_of(tmp_path, backend)
        kernels.append(kernel)
        await kernel.start()
        client = Client(kernel)
        client.send("stuck", "a")
        client.send("caller", "b")
        await asyncio.sleep(0.1)
        kernel.unload("stuck")
        kernel.unload("caller")
        await kernel.stop(5.0)
        assert client.outcome("b") == (1.0, "ok")
        assert client.outcome("a") == (5.1, "Server is stopping, request to model 'stuck' was given up")

    run(main())


def test_unload_during_shutdown_waits_no_longer_and_finalizes_once(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        backend = TestBackend({"m": sleeping(2)})
        kernel = kernel_of(tmp_path, backend)
        await kernel.start()
        client = Client(kernel)
        client.send("m", "a")
        stopping = asyncio.ensure_future(kernel.stop(30))
        await asyncio.sleep(0.1)
        kernel.unload("m")
        await stopping
        assert client.outcome("a") == (2.0, "ok")
        assert kernel.loop.time() == pytest.approx(1002.0)
        assert [what for _, what, _ in backend.log].count("finalize") == 1

    run(main())


def test_a_retiring_kernel_serves_and_loads_nothing_new(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE, "n": BASE})
        async with kernel_of(tmp_path, TestBackend({}), "m") as kernel:
            assert kernel.is_ready()
            kernel.retire()
            assert not kernel.is_ready() and kernel.live and kernel.is_model_ready("m")
            assert (await kernel.infer("m", X))["Y"].tolist() == [1.0]
            with pytest.raises(ServingError, match=r"^Server exiting$"):
                await kernel.load("n")

    run(main())


def test_stop_before_start_does_nothing(tmp_path: Path) -> None:
    run(Kernel(write_repository(tmp_path, {"m": BASE}), plugins=[TestBackend({})]).stop())


def test_unknown_models_name_near_ones_however_many_ask(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"resnet": BASE})
        async with kernel_of(tmp_path, TestBackend({})) as kernel:
            results = await asyncio.gather(*(kernel.load("resnett") for _ in range(3)), return_exceptions=True)
            for error in results:
                assert isinstance(error, ServingError) and error.code is Code.NOT_FOUND
                assert error.message.startswith("failed to load 'resnett', failed to poll from model repository")
                assert "did you mean 'resnet'?" in error.message
            assert [line.name for line in kernel.index()] == ["resnet"]

    run(main())


def test_loads_of_one_model_at_a_time_end_with_the_newest_files(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        async with kernel_of(tmp_path, TestBackend({})) as kernel:
            first = asyncio.ensure_future(kernel.load("m"))
            (tmp_path / "m" / "config.pbtxt").write_text(BASE + "max_batch_size: 4")
            second = asyncio.ensure_future(kernel.load("m"))
            await asyncio.gather(first, second)
            assert kernel.model("m").config.max_batch_size == 4

    run(main())


CONFIG = {
    "backend": "test",
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    "version_policy": {"all": {}},
    "instance_group": [{"kind": "KIND_CPU"}],
}


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def temporary() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("kernel-model-*"))


def test_files_of_an_override_stay_as_long_as_a_version_serves_from_them(tmp_path: Path) -> None:
    async def main() -> None:
        before = temporary()
        write_repository(tmp_path, {"other": BASE})
        async with kernel_of(tmp_path, Breaking(broken=(2,))) as kernel:
            with pytest.raises(ServingError, match="version 2 is broken"):
                await kernel.load("m", config=json.dumps(CONFIG), files={"1/a": b"1", "2/a": b"2"})
            assert kernel.versions("m") == []
            await asyncio.sleep(1)
            assert temporary() == before, "version 1 came up beside a broken one, and has gone again"
            await kernel.load("m", config=json.dumps(CONFIG), files={"1/a": b"1"})
            assert kernel.versions("m") == [1]
            assert (kernel.model("m").version_folder / "a").read_bytes() == b"1"
            with pytest.raises(ServingError, match="version 2 is broken"):
                await kernel.load("n", config=json.dumps(CONFIG), files={"2/a": b"2"})
            ensemble = {
                "platform": "ensemble",
                "input": CONFIG["input"],
                "output": CONFIG["output"],
                "ensemble_scheduling": {
                    "step": [
                        {"model_name": "none", "model_version": -1, "input_map": {"X": "X"}, "output_map": {"Y": "Y"}}
                    ]
                },
            }
            with pytest.raises(ServingError, match="none"):
                await kernel.load("e", config=json.dumps(ensemble), files={"1/x": b""})
            assert len(temporary() - before) == 1
        assert temporary() == before

    run(main())


def test_a_replaced_model_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE})
        async with kernel_of(tmp_path, TestBackend({})) as kernel:
            await kernel.infer("m", X)
            old = id(kernel.model("m"))
            (tmp_path / "m" / "1" / "x").write_text("x")
            await kernel.load("m")
            await asyncio.sleep(1)
            gc.collect()
            from kernel import Model

            assert old not in {id(one) for one in gc.get_objects() if type(one) is Model and one.state.value == "READY"}
            assert len([one for one in gc.get_objects() if type(one) is Model and one.kernel is kernel]) == 1

    run(main())


class Gated(TestBackend):
    """Makes its executors on threads, when `gate` is open. For a real loop."""

    creates_on_loop = False

    def __init__(self) -> None:
        super().__init__({})
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def create(self, context: InstanceContext) -> TestExecutor:
        self.entered.set()
        assert self.gate.wait(10)
        return super().create(context)

    def count(self, what: str) -> int:
        return [entry for _, entry, _ in self.log].count(what)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - the condition comes about in a thread
            await asyncio.sleep(0)


def test_a_load_that_is_given_up_is_not_left_loading(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE, "slow": BASE})
        backend = Gated()
        async with kernel_of(tmp_path, backend, "m") as kernel:
            backend.gate.clear()
            backend.entered.clear()
            loading = asyncio.ensure_future(kernel.load("slow"))
            await until(backend.entered.is_set)
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            (line,) = [line for line in kernel.index() if line.name == "slow"]
            assert (line.state, line.reason) == ("UNAVAILABLE", "Cancelled: the load was given up")
            backend.gate.set()
            await until(lambda: backend.count("finalize") == 1)  # what came up too late
            await kernel.load("slow")
            assert (await kernel.infer("slow", X))["Y"].tolist() == [1.0]
        assert backend.count("initialize") == backend.count("finalize") == 3

    asyncio.run(main())


def test_a_load_under_way_at_shutdown_serves_nothing_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {"m": BASE, "slow": BASE})
        backend = Gated()
        kernel = kernel_of(tmp_path, backend, "m")
        await kernel.start()
        backend.gate.clear()
        backend.entered.clear()
        loading = asyncio.ensure_future(kernel.load("slow"))
        await until(backend.entered.is_set)
        await kernel.stop(0.0)
        backend.gate.set()
        with pytest.raises(ServingError, match="Server exiting"):
            await loading
        assert kernel.models() == []
        await until(lambda: backend.count("finalize") == 2)

    asyncio.run(main())

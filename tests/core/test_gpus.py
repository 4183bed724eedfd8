"""Which GPUs there are, and what configs make of them. The driver is a fake: no test needs a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from virtual import BASE, TestBackend, TestExecutor, echo, run, write_repository

from kernel import ConfigErrors, InstanceContext, Kernel
from kernel.config import read_config
from kernel.models.gpus import usable_gpus, without_gpus

# -- the driver --------------------------------------------------------------------------------------------------------


class Driver:
    """CUDA's driver library with GPUs of some compute capabilities; a call named in `failing` returns an error."""

    def __init__(self, *capabilities: tuple[int, int], failing: str = "") -> None:
        self.capabilities = capabilities
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 100 if name == self.failing else self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> int:
        if name == "cuDeviceGetCount":
            arguments[0]._obj.value = len(self.capabilities)
        elif name == "cuDeviceGet":
            arguments[0]._obj.value = arguments[1] + 40  # a handle, not the id
        elif name == "cuDeviceGetAttribute":
            result, which, device = arguments
            result._obj.value = self.capabilities[device.value - 40][{75: 0, 76: 1}[which]]
        else:
            assert name == "cuInit" and arguments == (0,)
        return 0


@pytest.mark.parametrize(
    ("driver", "gpus"),
    [
        (Driver(), ()),
        (Driver((9, 0)), (0,)),
        (Driver((5, 2), (6, 0), (6, 1), (3, 7), (10, 0)), (1, 2, 4)),
        (Driver((9, 0), failing="cuInit"), ()),
        (Driver((9, 0), failing="cuDeviceGetCount"), ()),
        (Driver((9, 0), failing="cuDeviceGet"), ()),
        (Driver((9, 0), failing="cuDeviceGetAttribute"), ()),
    ],
    ids=["none", "one", "old ones among them", "no device", "no count", "no handle", "no attribute"],
)
def test_the_driver_says_which_gpus_there_are(driver: Driver, gpus: tuple[int, ...]) -> None:
    def library(name: str) -> Driver:
        assert name == "libcuda.so.1"
        return driver

    assert usable_gpus(library) == gpus


def test_without_a_driver_there_are_no_gpus() -> None:
    def library(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    assert usable_gpus(library) == ()


# -- configs -----------------------------------------------------------------------------------------------------------


def kinds(tmp_path: Path, text: str, *, cpu_backends: tuple[str, ...] = ()) -> list[tuple[str, tuple[int, ...]]]:
    folder = tmp_path / "m"
    folder.mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_text('backend: "python"\n' + text)
    config = read_config(folder, gpus=(0, 1, 3), cpu_backends=cpu_backends)
    return [(group.kind, group.gpus) for group in config.instance_groups]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", [("GPU", (0, 1, 3))]),
        ("instance_group { count: 2 }", [("GPU", (0, 1, 3))]),
        ("instance_group { gpus: [ 1 ] }", [("GPU", (1,))]),
        ("instance_group { kind: KIND_GPU }", [("GPU", (0, 1, 3))]),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_MODEL }", [("CPU", ()), ("MODEL", ())]),
    ],
)
def test_where_there_are_gpus_they_are_the_default(tmp_path: Path, text: str, found: list[Any]) -> None:
    assert kinds(tmp_path, text) == found


def test_a_backend_that_uses_no_gpu_gets_the_cpu_unless_told(tmp_path: Path) -> None:
    assert kinds(tmp_path, "", cpu_backends=("python",)) == [("CPU", ())]
    assert kinds(tmp_path, "instance_group { kind: KIND_GPU }", cpu_backends=("python",)) == [("GPU", (0, 1, 3))]
    assert kinds(tmp_path, "", cpu_backends=("onnxruntime",)) == [("GPU", (0, 1, 3))]


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match=r"invalid or unsupported gpu id 2\. .* of 6\.000000 are: 0, 1, 3"):
        kinds(tmp_path, "instance_group { kind: KIND_GPU gpus: [ 0, 2 ] }")


def test_backends_say_themselves_that_they_use_none() -> None:
    backends = {"silent": object(), "cpu": SimpleNamespace(uses_gpus=False), "gpu": SimpleNamespace(uses_gpus=True)}
    assert without_gpus(backends) == ["cpu"]


# -- instances ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uses_gpus", [True, False])
def test_a_group_has_its_count_of_instances_on_each_gpu(tmp_path: Path, uses_gpus: bool) -> None:
    text = BASE.replace("instance_group [ { kind: KIND_CPU count: 1 } ]", "instance_group { count: 2 }")
    assert text != BASE
    backend = TestBackend({})
    backend.uses_gpus = uses_gpus  # type: ignore[attr-defined]
    made: list[tuple[str, str, int]] = []

    def create(context: InstanceContext) -> TestExecutor:
        made.append((context.instance_name, context.kind, context.device_id))
        return TestExecutor(echo, context, [])

    backend.create = create  # type: ignore[method-assign]

    async def main() -> None:
        async with Kernel(write_repository(tmp_path, {"m": text}), plugins=[backend], gpus=(0, 2)) as kernel:
            assert kernel.gpus == (0, 2)

    run(main())
    devices = [(kind, device) for _, kind, device in made]
    assert devices == ([("GPU", 0), ("GPU", 2)] * 2 if uses_gpus else [("CPU", 0)] * 2)
    assert len({name for name, _, _ in made}) == len(made)

"""What is behind a failed load is kept: for embedders as `__cause__`, for people as lines, in every placement."""

from __future__ import annotations

import asyncio
import gc
import io
import weakref
from pathlib import Path

import pytest

from kernel import Failure, Kernel, ModelError, Reload, ServingError
from kernel.cli.watch import Console

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PLACED = 'parameters {{ key: "placement" value {{ string_value: "{}" }} }}'
MODEL = """\
class TritonPythonModel:
    def initialize(self, args):
        import weights
        try:
            weights.find("w")
        except KeyError as error:
            raise RuntimeError("no weights today") from error

    def execute(self, requests):
        return []
"""
WEIGHTS = """\
def find(name):
    try:
        int(name)
    except ValueError:
        return {}[name]
"""


def write(folder: Path, placement: str, model: str = MODEL) -> Path:
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "config.pbtxt").write_text(CONFIG + PLACED.format(placement))
    (folder / "m" / "1" / "model.py").write_text(model)
    (folder / "m" / "1" / "weights.py").write_text(WEIGHTS)
    return folder / "m" / "1"


@pytest.mark.parametrize("placement", ["loop", "thread", "process"])
def test_the_whole_chain(placement: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    version = write(tmp_path, placement)

    async def main() -> tuple[ServingError, Failure]:
        async with Kernel(tmp_path, control_mode="explicit") as kernel:
            with pytest.raises(ServingError) as caught:
                await kernel.load("m")
            return caught.value, kernel.failures()["m"]

    error, failure = asyncio.run(main())
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    lines = record.table.splitlines()  # type: ignore[attr-defined]  # below the line of the log
    assert lines[0].startswith(f"    {version}/model.py:7")
    assert lines[1] == '                    raise RuntimeError("no weights today") from error'
    assert lines[-5:] == [f"    {line}" for line in failure.causes]

    # What clients are told is the reference's: the model's exception alone, and where.
    words = f"Internal: RuntimeError: no weights today\n\nAt:\n  {version}/model.py(7): initialize\n"
    assert error.message == f"load failed for model 'm': version 1 is at UNAVAILABLE state: {words};\n"

    assert failure.message == words
    assert failure.place is not None and str(failure.place).startswith(f"{version}/model.py:7")
    assert failure.causes == (
        "caused by KeyError: 'w'",
        f"  {version}/weights.py:5 in find",
        f"  {version}/model.py:5 in initialize",
        "caused by ValueError: invalid literal for int() with base 10: 'w'",
        f"  {version}/weights.py:3 in find",
    )

    first = error.__cause__
    assert first is not None and first.__cause__ is not None
    if placement == "process":
        assert isinstance(first, ModelError) and isinstance(first.__cause__, ModelError)
        assert (first.kind, first.text) == ("RuntimeError", "no weights today")
        assert str(first.__cause__) == "KeyError: 'w'"
        assert [frame[:3] for frame in first.__cause__.frames] == [
            (f"{version}/weights.py", 5, "find"),
            (f"{version}/model.py", 5, "initialize"),
        ]
    else:
        assert isinstance(first, RuntimeError) and isinstance(first.__cause__, KeyError)


def test_at_the_start(tmp_path: Path) -> None:
    write(tmp_path, "thread")

    async def main() -> None:
        async with Kernel(tmp_path):
            raise AssertionError("it has started")

    with pytest.raises(ServingError, match="failed to load all models") as caught:
        asyncio.run(main())
    error: BaseException | None = caught.value
    names = []
    while error is not None:
        names.append(type(error).__name__)
        error = error.__cause__
    assert names == ["StartFailed", "LoadFailed", "RuntimeError", "KeyError"]


@pytest.mark.parametrize(
    ("code", "causes"),
    [
        ("import weights\nx = 1 / 0\n" + MODEL, ()),  # what the message says itself is not told again
        (MODEL.replace(" from error", " from None"), ()),
        ("class TritonPythonModel:\n    pass\n", ()),
    ],
)
def test_no_causes(code: str, causes: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, "thread", code)

    async def main() -> tuple[str, ...]:
        async with Kernel(tmp_path, exit_on_error=False) as kernel:
            return kernel.failures()["m"].causes

    assert asyncio.run(main()) == causes


def test_a_failed_load_keeps_nothing_of_the_model(tmp_path: Path) -> None:
    """Exceptions hold frames, and these what the model has made, weights say: the kernel keeps lines only."""
    made: list[weakref.ref[object]] = []
    code = MODEL.replace("import weights\n", "import weights\n        self.large = args['made'](self)\n")
    write(tmp_path, "thread", code.replace("args['made']", "__import__('builtins').kernel_test_made"))

    import builtins

    builtins.kernel_test_made = lambda model: made.append(weakref.ref(model))  # type: ignore[attr-defined]
    try:

        async def main() -> None:
            async with Kernel(tmp_path, exit_on_error=False) as kernel:
                assert kernel.failures()["m"].causes
                assert len(made) == 1
                for _ in range(500):
                    gc.collect()
                    if made[0]() is None:
                        return
                    await asyncio.sleep(0.01)  # until the instance's thread has come to its end
                raise AssertionError("the model is kept")

        asyncio.run(main())
    finally:
        del builtins.kernel_test_made  # type: ignore[attr-defined]


def test_while_watching(tmp_path: Path) -> None:
    """The console shows the line, with a mark, and all that is behind it."""
    version = write(tmp_path, "thread")
    console = io.StringIO()

    async def main() -> None:
        async with Kernel(tmp_path, exit_on_error=False) as kernel:
            told: asyncio.Queue[Reload] = asyncio.Queue()
            kernel.watch(told.put_nowait)
            reload = await told.get()
            Console(console)(reload)
            assert reload.causes == kernel.failures()["m"].causes

    asyncio.run(main())
    assert console.getvalue().splitlines()[1:] == [
        f"  {version}/model.py:7:13",
        '                  raise RuntimeError("no weights today") from error',
        "                  ^",
        "  Internal: RuntimeError: no weights today",
        "  At:",
        f"    {version}/model.py(7): initialize",
        "  caused by KeyError: 'w'",
        f"    {version}/weights.py:5 in find",
        f"    {version}/model.py:5 in initialize",
        "  caused by ValueError: invalid literal for int() with base 10: 'w'",
        f"    {version}/weights.py:3 in find",
    ]

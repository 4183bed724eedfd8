"""`--watch`: what is saved is served within a second, half a save is nothing, and mistakes are told once. In virtual time."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live import ENSEMBLE, Answering, Slowly, model, said, write
from virtual import BASE, Client, run, sleeping

from kernel import Kernel, ServingError
from kernel.cli.watch import Console
from kernel.registry.watching import Reload, log_reload
from kernel.repository.places import SourcePlace

MODES = {
    "none": {"control_mode": "none"},
    "poll": {"control_mode": "poll"},
    "explicit": {"control_mode": "explicit", "load_models": ["*"]},
}


def serve(folder: Path, *, mode: str = "none", backend: Answering | None = None, **options: Any) -> Kernel:
    return Kernel(folder, plugins=[backend or Answering()], **(MODES[mode] | options))


@pytest.fixture
def told() -> list[Reload]:
    return []


@pytest.mark.parametrize("mode", MODES)
def test_a_save_is_served_within_a_second(tmp_path: Path, mode: str, told: list[Reload]) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with serve(tmp_path, mode=mode) as kernel:
            kernel.watch(told.append)
            for value in (2, 3):
                write(tmp_path / "m" / "1" / "answer", str(value))
                await asyncio.sleep(0.7)
                assert await said(kernel, "m") == value
            assert [(one.name, one.changed, one.versions, one.problem) for one in told] == [
                ("m", ("1/answer",), (1,), "")
            ] * 2

    run(main())


def test_mistakes_are_told_once_and_the_old_serves(tmp_path: Path, told: list[Reload]) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with serve(tmp_path) as kernel:
            kernel.watch(told.append)
            write(tmp_path / "m" / "1" / "answer", "not a number")
            await asyncio.sleep(20)
            assert await said(kernel, "m") == 1 and kernel.is_ready()
            assert [one.problem for one in told] == ["Internal: not a number"]
            write(tmp_path / "m" / "1" / "answer", "still not")
            write(tmp_path / "m" / "config.pbtxt", BASE + "max_batch_sizes: 1\n")
            await asyncio.sleep(20)
            assert len(told) == 2 and told[1].changed == ("1/answer", "config.pbtxt")
            assert "no field 'max_batch_sizes'" in told[1].problem
            assert told[1].place is not None and str(told[1].place) == f"{tmp_path}/m/config.pbtxt:6:1"
            model(tmp_path, "m", 5)
            await asyncio.sleep(1)
            assert await said(kernel, "m") == 5
            assert (told[2].problem, told[2].versions) == ("", (1,))

    run(main())


def test_what_has_failed_at_the_start(tmp_path: Path, told: list[Reload]) -> None:
    async def main() -> None:
        model(tmp_path, "m", "nothing yet")
        model(tmp_path, "n", 1, config="back")
        async with serve(tmp_path, exit_on_error=False) as kernel:
            kernel.watch(told.append)
            await asyncio.sleep(1)
            assert sorted((one.name, one.changed, one.versions) for one in told) == [("m", (), ()), ("n", (), ())]
            write(tmp_path / "m" / "1" / "answer", "1")
            write(tmp_path / "n" / "config.pbtxt", BASE)
            await asyncio.sleep(1)
            assert (await said(kernel, "m"), await said(kernel, "n")) == (1, 1) and kernel.is_ready()

    run(main())


def test_half_a_save_is_nothing(tmp_path: Path, told: list[Reload]) -> None:
    """As long as the files go on changing from look to look, nothing is loaded."""

    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with serve(tmp_path, backend=backend) as kernel:
            kernel.watch(told.append)
            for k in range(20):
                write(tmp_path / "m" / "1" / "answer", "half a number" if k < 19 else "2")
                await asyncio.sleep(0.19)
            await asyncio.sleep(1)
            assert await said(kernel, "m") == 2
            assert backend.count("refused") == 0 and len(told) == 1

    run(main())


def test_what_is_no_save(tmp_path: Path, told: list[Reload]) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with serve(tmp_path) as kernel:
            kernel.watch(told.append)
            for name in ("1/__pycache__/x.pyc", "1/.answer.swp", "1/answer~", "1/4913"):
                write(tmp_path / "m" / name, "")
            await asyncio.sleep(5)
            assert told == []
            (tmp_path / "m").rename(tmp_path / ".m")  # as when a branch is changed
            await asyncio.sleep(0.1)
            (tmp_path / ".m").rename(tmp_path / "m")
            await asyncio.sleep(5)
            assert told == [] and await said(kernel, "m") == 1

    run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_folder_that_has_gone(tmp_path: Path, mode: str, told: list[Reload], caplog: pytest.LogCaptureFixture) -> None:
    """Where all models are served it is unloaded, and loaded when it is back; elsewhere it serves on, and that is told, once."""
    console = io.StringIO()

    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "n", 1)
        async with serve(tmp_path, mode=mode, poll_seconds=1000) as kernel:
            kernel.watch(told.append)
            (tmp_path / "m").rename(tmp_path / ".m")
            await asyncio.sleep(5)
            serves = () if mode == "none" else (1,)
            assert [(one.name, one.versions, one.problem, one.gone) for one in told] == [("m", serves, "", True)]
            assert kernel.is_model_ready("m") is bool(serves) and kernel.is_ready()
            (tmp_path / ".m").rename(tmp_path / "m")
            write(tmp_path / "m" / "1" / "answer", "2")
            await asyncio.sleep(2)
            assert await said(kernel, "m") == 2 and len(told) == 2 and not told[1].gone
            (tmp_path / "m").rename(tmp_path / ".m")
            await asyncio.sleep(5)
            assert len(told) == 3 and told[2].gone

    run(main())
    Console(console)(told[0])
    log_reload(told[0])
    goes_on = {"none": "it is unloaded"}.get(mode, "version 1, as it was, goes on serving")
    assert console.getvalue()[9:] == f"m: its folder is gone: {goes_on}\n"
    serves = {"none": "nothing"}.get(mode, "version 1")
    assert caplog.records[-1].getMessage() == f"the folder of model 'm' is gone: {serves} serves"


def test_a_new_model_is_loaded_where_all_are(tmp_path: Path, told: list[Reload]) -> None:
    """Whoever starts another model while the server runs need not start that again; its mistakes are told, too."""

    async def main() -> None:
        model(tmp_path / "models", "m", 1)
        async with serve(tmp_path / "models") as kernel:
            kernel.watch(told.append)
            model(tmp_path / "models", "new", "nothing yet")
            await asyncio.sleep(5)
            assert [(one.name, one.versions, one.problem) for one in told] == [("new", (), "Internal: nothing yet")]
            write(tmp_path / "models" / "new" / "1" / "answer", "7")
            await asyncio.sleep(1)
            assert await said(kernel, "new") == 7
            assert [(one.name, one.changed, one.versions) for one in told[1:]] == [("new", ("1/answer",), (1,))]
            (tmp_path / "models").rename(tmp_path / "away")  # the repository itself: what there is goes on
            await asyncio.sleep(5)
            assert len(told) == 2 and await said(kernel, "new") == 7

    run(main())


@pytest.mark.parametrize("mode", ["poll", "explicit"])
def test_in_other_modes_new_models_are_not_the_watchers_business(tmp_path: Path, told: list[Reload], mode: str) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with serve(tmp_path, mode=mode) as kernel:
            kernel.watch(told.append)
            model(tmp_path, "new", 1)
            await asyncio.sleep(5)  # less than a poll
            assert told == [] and not kernel.is_model_ready("new")

    run(main())


def test_only_what_is_wanted_is_watched(tmp_path: Path, told: list[Reload]) -> None:
    async def main() -> None:
        for name in ("a", "b", "c"):
            model(tmp_path, name, 1)
        async with serve(tmp_path, mode="explicit", load_models=["a", "b"]) as kernel:
            kernel.watch(told.append)
            kernel.unload("b")
            for name in ("a", "b", "c"):
                write(tmp_path / name / "1" / "answer", "2")
            await asyncio.sleep(2)
            assert [one.name for one in told] == ["a"]
            assert [one.name for one in kernel.models()] == ["a"]

    run(main())


def test_an_override_outlasts_a_save(tmp_path: Path, told: list[Reload]) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with serve(tmp_path, mode="explicit") as kernel:
            kernel.watch(told.append)
            shown = kernel.model("m").config.as_dict() | {"parameters": {"a": {"string_value": "b"}}}
            await kernel.load("m", config=json.dumps(shown))
            write(tmp_path / "m" / "1" / "answer", "2")
            await asyncio.sleep(1)
            assert await said(kernel, "m") == 2 and kernel.model("m").config.parameters == {"a": "b"}
            await kernel.load("m", config=json.dumps(shown), files={"1/answer": b"9"})
            write(tmp_path / "m" / "1" / "answer", "3")
            await asyncio.sleep(1)
            assert await said(kernel, "m") == 9 and len(told) == 1

    run(main())


def test_ensembles_are_saved_with_their_models(tmp_path: Path, told: list[Reload]) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "n", 2)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        async with serve(tmp_path) as kernel:
            kernel.watch(told.append)
            write(tmp_path / "m" / "1" / "answer", "3")
            await asyncio.sleep(1)
            assert await said(kernel, "e") == 3
            write(tmp_path / "e" / "config.pbtxt", ENSEMBLE % "n")
            await asyncio.sleep(1)
            assert await said(kernel, "e") == 2
            assert [one.name for one in told] == ["m", "e"]

    run(main())


def test_no_request_fails_and_a_slow_load_holds_up_nobody(tmp_path: Path, told: list[Reload]) -> None:
    async def main() -> None:
        model(tmp_path, "slow", 1)
        model(tmp_path, "m", 1)
        async with serve(tmp_path, backend=Answering({"slow": sleeping(0.5)})) as kernel:
            kernel.watch(told.append)
            Slowly(kernel, slow=7)
            client = Client(kernel)
            for k in range(200):
                if k % 30 == 10:
                    for name in ("m", "slow"):
                        write(tmp_path / name / "1" / "answer", "broken" if k % 60 == 40 else str(k))
                client.send("slow", f"slow {k}")
                client.send("m", f"m {k}")
                await asyncio.sleep(0.1)
            await asyncio.sleep(200)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert [one.name for one in told if one.name == "m"] == ["m"] * 7
            assert 2 <= len([one for one in told if one.name == "slow"]) <= 4

    run(main())


def test_a_report_that_fails_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)

        def fail(reload: Reload) -> None:
            raise ValueError("no console")

        async with serve(tmp_path) as kernel:
            kernel.watch(fail)
            for value in (2, 3):
                write(tmp_path / "m" / "1" / "answer", str(value))
                await asyncio.sleep(1)
                assert await said(kernel, "m") == value

    run(main())
    assert [record.message for record in caplog.records] == ["the report of the reload of model 'm' failed"] * 2


def test_there_have_to_be_models(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="the kernel has not been started, or has been stopped"):
        serve(tmp_path).watch()


# -- what is shown -----------------------------------------------------------------------------------------------------

PLACE = SourcePlace("/r/m/1/model.py", 7, 5, "b = (2,\n    ^")
SHOWN: list[tuple[Reload, str]] = [
    (
        Reload("m", ("1/model.py",), (1, 3), "Internal: SyntaxError: '(' was never closed\n\nAt:\n", PLACE),
        "m: 1/model.py changed: NOT LOADED, version 1, 3, as it was, goes on serving\n"
        "  /r/m/1/model.py:7:5\n      b = (2,\n          ^\n  Internal: SyntaxError: '(' was never closed\n  At:\n",
    ),
    (
        Reload("m", ("1/model.py",), (1, 3), "", None, 0.256),
        "m: 1/model.py changed: version 1, 3 is served again, after 0.26 s\n",
    ),
    (Reload("m", ("1/model.py",), (1,), "", None, 0.001), "m: 1/model.py changed: version 1 is served, after 0.00 s\n"),
    (Reload("n", (), (), "gone"), "n: at the start: NOT LOADED, nothing is served until it is mended\n  gone\n"),
    (Reload("n", tuple("abcde"), (1,)), "n: a, b, c and 2 more changed: version 1 is served again, after 0.00 s\n"),
]


def test_the_console() -> None:
    stream = io.StringIO()
    console = Console(stream)
    for reload, text in SHOWN:
        console(reload)
        time, _, rest = stream.getvalue().partition(" ")
        assert len(time.split(":")) == 3
        assert rest == text
        stream.seek(0)
        stream.truncate()


@pytest.mark.parametrize(
    ("reload", "words"),
    [
        (SHOWN[0][0], "model 'm' is not loaded (1/model.py), version 1, 3 serves: /r/m/1/model.py:7:5: Internal: SyntaxError"),
        (SHOWN[1][0], "model 'm' is reloaded (1/model.py): version 1, 3 serves, after 0.26 s"),
        (SHOWN[3][0], "model 'n' is not loaded (at the start), nothing serves: gone"),
    ],
)
def test_the_log(reload: Reload, words: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kernel")
    show: Callable[[Reload], None] = log_reload
    show(reload)
    (record,) = caplog.records
    assert record.message.startswith(words)

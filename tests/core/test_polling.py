"""Control mode `poll`: what appears, changes, goes and comes back on disk, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from live import ENSEMBLE, Answering, Slowly, X, model, said, states, write
from virtual import BASE, Client, TestBackend, TestExecutor, run, sleeping, write_repository

from kernel import Code, InstanceContext, Kernel, ServingError
from kernel.repository.repository import ModelFolder


def polling(*folders: Path, backend: TestBackend | None = None, **options: Any) -> Kernel:
    return Kernel(*folders, plugins=[backend or Answering()], control_mode="poll", poll_seconds=15, **options)


def test_what_appears_changes_and_goes(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with polling(tmp_path) as kernel:
            model(tmp_path, "new", 5)
            write(tmp_path / "m" / "1" / "answer", "2")
            await asyncio.sleep(14)
            assert await said(kernel, "m") == 1
            assert states(kernel) == {"m/1": "READY", "new": ""}
            await asyncio.sleep(2)
            assert (await said(kernel, "m"), await said(kernel, "new")) == (2, 5)
            (tmp_path / "new" / "1" / "answer").unlink()
            (tmp_path / "new" / "1").rmdir()
            (tmp_path / "new" / "config.pbtxt").unlink()
            (tmp_path / "new").rmdir()
            await asyncio.sleep(15)
            assert states(kernel) == {"m/1": "READY"}
            with pytest.raises(ServingError, match="Request for unknown model: 'new' has no available versions"):
                await kernel.infer("new", X)
            assert kernel.is_ready()
            model(tmp_path, "new", 6)
            await asyncio.sleep(15)
            assert await said(kernel, "new") == 6

    run(main())


def test_loads_on_request_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with polling(tmp_path) as kernel:
            words = r"explicit model load / unload is not allowed if polling is enabled \(.* is 'poll', wanted is 'explicit'"
            with pytest.raises(ServingError, match=words) as caught:
                await kernel.load("m")
            assert caught.value.code is Code.UNAVAILABLE
            with pytest.raises(ServingError, match=words):
                kernel.unload("m")

    run(main())


def test_no_polls(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with Kernel(tmp_path, plugins=[Answering()], control_mode="poll", poll_seconds=0) as kernel:
            model(tmp_path, "m", 2)
            await asyncio.sleep(1000)
            assert await said(kernel, "m") == 1

    run(main())
    with pytest.raises(ServingError, match="poll_seconds is -1, wanted at least 0"):
        Kernel(tmp_path, control_mode="poll", poll_seconds=-1)


@pytest.mark.parametrize("path", ["1/__pycache__/model.pyc", "1/.answer.swp", ".git/HEAD", "1/answer~", "config.pbtxt.bak"])
def test_what_is_no_change(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with polling(tmp_path, backend=backend) as kernel:
            await said(kernel, "m")
            write(tmp_path / "m" / path, "x")
            await asyncio.sleep(60)
            assert backend.count("initialize") == 1
            assert kernel.statistics("m")[0].inference_count == 1

    run(main())


def test_a_comment_in_the_config_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with polling(tmp_path, backend=backend) as kernel:
            await said(kernel, "m")
            write(tmp_path / "m" / "config.pbtxt", f"# no news\n{BASE}")
            await asyncio.sleep(60)
            assert backend.count("initialize") == 1
            assert kernel.statistics("m")[0].inference_count == 1

    run(main())


def test_a_failing_change_keeps_the_old_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with polling(tmp_path, backend=backend) as kernel:
            write(tmp_path / "m" / "1" / "answer", "not today")
            await asyncio.sleep(15 * 20 + 1)
            assert await said(kernel, "m") == 1 and kernel.is_ready()
            lines = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
            assert lines == [
                "model 'm' is not loaded, version 1 goes on serving: load failed for model 'm': version 1 is at "
                "UNAVAILABLE state: Internal: not today;\n"
            ]
            assert backend.count("refused") == 5  # at polls 1, 2, 4, 8 and 16
            write(tmp_path / "m" / "1" / "answer", "2")
            await asyncio.sleep(15)
            assert await said(kernel, "m") == 2

    run(main())


def test_a_model_heals_by_itself(tmp_path: Path) -> None:
    """What failed for a reason outside of its folder is tried again."""
    away = True

    class Moody(Answering):
        def create(self, context: InstanceContext) -> TestExecutor:
            if away:
                raise ServingError(Code.UNAVAILABLE, "the database is away")
            return super().create(context)

    async def main() -> None:
        nonlocal away
        model(tmp_path, "m", 1)
        async with polling(tmp_path, backend=Moody(), exit_on_error=False) as kernel:
            await asyncio.sleep(16)
            assert states(kernel) == {"m/1": "UNAVAILABLE Unavailable: the database is away"}
            assert not kernel.is_ready()
            away = False
            await asyncio.sleep(30)
            assert await said(kernel, "m") == 1 and kernel.is_ready()

    run(main())


def test_a_half_written_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with polling(tmp_path) as kernel:
            write(tmp_path / "half" / "config.pbtxt", BASE[:-20])
            (tmp_path / "half" / "1").mkdir()
            await asyncio.sleep(16)
            assert states(kernel)["half"].startswith("UNAVAILABLE")
            assert "config.pbtxt:5" in states(kernel)["half"]
            assert [record.levelname for record in caplog.records].count("ERROR") == 1
            assert kernel.is_ready(), "what has never been loaded makes nothing worse"
            model(tmp_path, "half", 7)
            await asyncio.sleep(15)
            assert await said(kernel, "half") == 7
            assert [record.levelname for record in caplog.records].count("ERROR") == 1

    run(main())


def test_a_look_that_fails_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        model(one, "a", 1)
        model(two, "b", 2)
        async with polling(one, two) as kernel:
            two.rename(tmp_path / "away")
            write(one / "a" / "1" / "answer", "3")
            await asyncio.sleep(100)
            assert (await said(kernel, "a"), await said(kernel, "b")) == (1, 2)
            assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
                f"failed to poll the model repositories, what is loaded stays as it is: failed to stat file {two}"
            ]
            (tmp_path / "away").rename(two)
            await asyncio.sleep(15)
            assert (await said(kernel, "a"), await said(kernel, "b")) == (3, 2)

    run(main())


def test_a_folder_that_can_not_be_read_has_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = ModelFolder.look

    def locked(path: Path) -> ModelFolder:
        if path.name == "m":
            raise PermissionError(13, "Permission denied")
        return look(path)

    async def main() -> None:
        model(tmp_path, "m", 1)
        async with polling(tmp_path) as kernel:
            monkeypatch.setattr(ModelFolder, "look", locked)
            await asyncio.sleep(100)
            assert await said(kernel, "m") == 1 and kernel.is_ready()
            (words,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
            assert f"failed to read model directory {tmp_path / 'm'}: Permission denied" in words
            monkeypatch.undo()
            await asyncio.sleep(16)
            assert kernel.statistics("m")[0].inference_count == 1

    run(main())


def test_one_name_in_two_repositories(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        model(one, "m", 1)
        model(one, "other", 9)
        model(one, "e", 0, config=ENSEMBLE % "m")
        two.mkdir()
        async with polling(one, two) as kernel:
            assert await said(kernel, "e") == 1
            model(two, "m", 2)
            await asyncio.sleep(16)
            assert states(kernel) == {
                "m": "UNAVAILABLE model appears in two or more repositories",
                "e/1": "UNAVAILABLE unloaded",
                "other/1": "READY",
            }
            assert [line.name for line in kernel.index(ready=True)] == ["other"]
            with pytest.raises(ServingError, match="Request for unknown model: 'm' has no available versions"):
                await kernel.infer("m", X)
            await asyncio.sleep(60)
            (words,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
            assert words.startswith("failed to poll model 'm': not unique across all model repositories")
            assert str(one / "m") in words and str(two / "m") in words
            (one / "m").rename(tmp_path / "away")
            await asyncio.sleep(16)
            assert (await said(kernel, "m"), await said(kernel, "e")) == (2, 2)

    run(main())


def test_one_name_in_two_repositories_from_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        model(one, "m", 1)
        model(two, "m", 2)
        with pytest.raises(ServingError, match=r"failed to load all models\n  m: .*not unique across all model repositories"):
            await polling(one, two).start()
        async with polling(one, two, exit_on_error=False) as kernel:
            assert states(kernel) == {"m": "UNAVAILABLE model appears in two or more repositories"}
            with pytest.raises(ServingError, match="Request for unknown model: 'm' is not found"):
                await kernel.infer("m", X)
            (two / "m").rename(tmp_path / "away")
            await asyncio.sleep(16)
            assert await said(kernel, "m") == 1

    run(main())


def test_ensembles_follow_their_models(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "inner", 0, config=ENSEMBLE % "m")
        model(tmp_path, "outer", 0, config=ENSEMBLE % "inner")
        async with polling(tmp_path) as kernel:
            before = kernel.model("outer")
            write(tmp_path / "m" / "1" / "answer", "2")
            await asyncio.sleep(16)
            assert await said(kernel, "outer") == 2
            assert kernel.model("outer") is not before, "an ensemble is made anew with its models"
            (tmp_path / "m").rename(tmp_path / ".away")
            await asyncio.sleep(16)
            assert states(kernel) == {"inner/1": "UNAVAILABLE unloaded", "outer/1": "UNAVAILABLE unloaded"}
            assert kernel.is_ready()
            (tmp_path / ".away").rename(tmp_path / "m")
            await asyncio.sleep(16)
            assert await said(kernel, "outer") == 2

    run(main())


def test_an_ensemble_changes_its_model_while_the_old_one_goes(tmp_path: Path) -> None:
    """In one poll: no request to the ensemble fails."""

    async def main() -> None:
        model(tmp_path, "old", 1)
        model(tmp_path, "e", 0, config=ENSEMBLE % "old")
        async with polling(tmp_path) as kernel:
            client = Client(kernel)
            model(tmp_path, "new", 2)
            write(tmp_path / "e" / "config.pbtxt", ENSEMBLE % "new")
            (tmp_path / "old").rename(tmp_path / ".old")
            for k in range(200):
                client.send("e", str(k))
                await asyncio.sleep(0.1)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert await said(kernel, "e") == 2
            assert states(kernel) == {"e/1": "READY", "new/1": "READY"}

    run(main())


def test_an_ensemble_whose_model_no_longer_fits(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        async with polling(tmp_path) as kernel:
            other = BASE.replace('name: "X" data_type: TYPE_FP32', 'name: "X" data_type: TYPE_INT8')
            write(tmp_path / "m" / "config.pbtxt", other)
            await asyncio.sleep(16)
            line = states(kernel)["e/1"]
            assert line.startswith("UNAVAILABLE load failed for model 'e'") and "TYPE_INT8" in line
            write(tmp_path / "m" / "config.pbtxt", BASE)
            await asyncio.sleep(16)
            assert await said(kernel, "e") == 1 and states(kernel) == {"e/1": "READY", "m/1": "READY"}

    run(main())


def test_a_half_written_ensemble_does_not_go_when_its_model_changes(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        async with polling(tmp_path) as kernel:
            write(tmp_path / "e" / "config.pbtxt", (ENSEMBLE % "m")[:-20])
            write(tmp_path / "m" / "1" / "answer", "2")
            await asyncio.sleep(16)
            assert await said(kernel, "e") == 2

    run(main())


def test_versions_come_and_go_with_their_folders(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1, config=BASE + "version_policy { latest { num_versions: 2 } }")
        backend = Answering()
        async with polling(tmp_path, backend=backend) as kernel:
            await said(kernel, "m")
            for version in (2, 3):
                write(tmp_path / "m" / str(version) / "answer", str(version))
                await asyncio.sleep(16)
                assert await said(kernel, "m") == version
            assert states(kernel) == {"m/1": "UNAVAILABLE unloaded", "m/2": "READY", "m/3": "READY"}
            (tmp_path / "m" / "3").rename(tmp_path / ".3")
            await asyncio.sleep(16)
            assert kernel.versions("m") == [1, 2] and await said(kernel, "m") == 2
            assert kernel.statistics("m", 2)[0].inference_count == 2, "version 2 was never touched"
            write(tmp_path / "m" / "config.pbtxt", BASE + "version_policy { specific { versions: [ 9 ] } }")
            await asyncio.sleep(16)
            assert kernel.versions("m") == [1, 2], "a policy that selects nothing takes nothing away"
            assert backend.count("initialize") == 4

    run(main())


def test_a_request_in_flight_finishes_on_the_copy_it_began_on(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering({"m": sleeping(40)})
        async with polling(tmp_path, backend=backend) as kernel:
            client = Client(kernel)
            client.send("m", "a")
            old = kernel.model("m")
            write(tmp_path / "m" / "1" / "answer", "2")
            await asyncio.sleep(16)
            assert kernel.model("m") is not old and kernel.is_ready()
            assert backend.count("finalize") == 0
            await asyncio.sleep(30)
            assert client.outcome("a") == (40.0, "ok")
            assert backend.count("finalize") == 1

    run(main())


def test_a_model_that_writes_into_its_folder_is_not_reloaded_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Writing(Answering):
        def create(self, context: InstanceContext) -> TestExecutor:
            (context.version_folder / "engine.cache").write_text("x" * self.count("initialize"))
            return super().create(context)

    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Writing()
        async with polling(tmp_path, backend=backend) as kernel:
            await asyncio.sleep(15 * 10)
            assert backend.count("initialize") <= 4
            (words,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
            assert "writes '1/engine.cache' into its own folder whenever it is loaded" in words
            write(tmp_path / "m" / "1" / "answer", "2")
            await asyncio.sleep(16)
            assert await said(kernel, "m") == 2

    run(main())


def test_a_poll_during_a_load_leaves_it_alone(tmp_path: Path) -> None:
    """A load that takes longer than the time between polls is not begun again, and holds up nobody else."""

    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with polling(tmp_path, backend=backend) as kernel:
            Slowly(kernel, slow=100)
            model(tmp_path, "slow", 1)
            await asyncio.sleep(20)
            assert states(kernel)["slow/1"] == "LOADING" and not kernel.is_ready()
            model(tmp_path, "m", 2)
            await asyncio.sleep(16)
            assert await said(kernel, "m") == 2
            assert states(kernel)["slow/1"] == "LOADING"
            await asyncio.sleep(100)
            assert await said(kernel, "slow") == 1 and kernel.is_ready()
            assert backend.count("initialize") == 3

    run(main())


def test_the_stop_ends_polls_and_what_they_load(tmp_path: Path) -> None:
    async def main() -> None:
        write_repository(tmp_path, {})
        kernel = polling(tmp_path)
        await kernel.start()
        Slowly(kernel, m=1e6)
        model(tmp_path, "m", 1)
        await asyncio.sleep(16)
        assert states(kernel) == {"m/1": "LOADING"}
        await kernel.stop(0)
        await asyncio.sleep(60)
        assert kernel.models() == []

    run(main())

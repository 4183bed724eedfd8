"""Loads and unloads on request: overrides, what has not changed, versions, related models, in virtual time."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from live import ENSEMBLE, Answering, Slowly, X, model, said, states, write
from virtual import BASE, Client, TestBackend, TestExecutor, run, sleeping

from kernel import Code, InstanceContext, Kernel, ServingError
from kernel.repository.overrides import OverrideFolder

CONFIG: dict[str, Any] = {
    "backend": "test",
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    "instance_group": [{"kind": "KIND_CPU"}],
}
POLICY = BASE + "version_policy { %s }"


def explicit(*folders: Path, load: tuple[str, ...] = (), backend: TestBackend | None = None, **options: Any) -> Kernel:
    return Kernel(*folders, plugins=[backend or Answering()], control_mode="explicit", load_models=load, **options)


def config(**changes: Any) -> str:
    return json.dumps(CONFIG | changes)


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def temporary() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("kernel-model-*"))


# -- overrides ---------------------------------------------------------------------------------------------------------


def test_a_config_override_lasts_until_the_next_plain_load(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",)) as kernel:
            await kernel.load("m", config=config(max_batch_size=8))
            assert kernel.model("m").config.max_batch_size == 8
            assert kernel.model("m").config.source.kind == "override"
            assert float((await kernel.infer("m", {"X": X["X"].reshape(1, 1)}))["Y"][0]) == 1
            await kernel.load("m")
            assert kernel.model("m").config.max_batch_size == 0
            assert kernel.model("m").config.source.kind == "file"

    run(main())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"config": {}}, "the config of a load is of type dict, wanted JSON as a str, such as json.dumps(...) makes"),
        ({"files": [1]}, "what is given as the files of a load is of type list, wanted a mapping of paths to contents"),
        ({"files": {1: b""}}, "the path 1 of a file of a load is of type int, wanted a str, such as '1/model.py'"),
        ({"files": {"1/m.py": ""}}, "the content of the file '1/m.py' of a load is of type str, wanted bytes"),
    ],
)
def test_an_override_of_the_wrong_type_is_told_the_right_one(tmp_path: Path, given: Any, words: str) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",)) as kernel:
            with pytest.raises(ServingError) as caught:
                await kernel.load("m", **{"config": config(), **given})
            assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, words)

    run(main())


@pytest.mark.parametrize("text", ["{", '{"backnd": "test"}', '{"max_batch_size": "many"}', '[1]'])
def test_a_broken_override_changes_nothing(tmp_path: Path, text: str) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",)) as kernel:
            before = kernel.model("m")
            with pytest.raises(ServingError, match=r"^failed to load 'm', failed to poll from model repository: ") as caught:
                await kernel.load("m", config=text)
            assert caught.value.code is Code.INTERNAL
            assert kernel.model("m") is before and kernel.is_ready()
            await kernel.load("m")
            assert kernel.model("m") is before

    run(main())


def test_files_and_back(tmp_path: Path) -> None:
    async def main() -> None:
        before = temporary()
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",)) as kernel:
            await kernel.load("m", config=config(), files={"7/answer": b"70"})
            assert kernel.versions("m") == [7] and await said(kernel, "m") == 70
            await asyncio.sleep(1)
            assert states(kernel) == {"m/1": "UNAVAILABLE unloaded", "m/7": "READY"}
            assert len(temporary() - before) == 1
            await kernel.load("m", config=config(), files={"7/answer": b"71", "labels.txt": b""})
            assert await said(kernel, "m") == 71
            await asyncio.sleep(1)
            assert len(temporary() - before) == 1, "the files of the first request have gone with what lived on them"
            await kernel.load("m")
            assert kernel.versions("m") == [1] and await said(kernel, "m") == 1
            await asyncio.sleep(1)
            assert temporary() == before

    run(main())


def test_many_files_are_not_removed_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 000 of them, which a load over HTTP may bring, held it for 1.3 s."""
    removed: list[tuple[int, bool]] = []
    remove = OverrideFolder.remove

    def watched(files: OverrideFolder) -> None:
        removed.append((files.count, threading.current_thread() is threading.main_thread()))
        remove(files)

    monkeypatch.setattr(OverrideFolder, "remove", watched)

    async def main() -> None:
        before = temporary()
        async with Kernel(tmp_path, plugins=[Answering()], control_mode="explicit") as kernel:
            for count in (1, 500):
                files = {"1/answer": b"1", **{f"1/{number}": b"" for number in range(count)}}
                await kernel.load("m", config=config(), files=files)
                await kernel.unload("m")
            await asyncio.sleep(1)
            assert sorted(removed) == [(2, True), (501, False)]
            assert temporary() == before

    asyncio.run(main())


def test_files_stay_as_long_as_a_request_may_need_them(tmp_path: Path) -> None:
    async def main() -> None:
        before = temporary()
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, backend=Answering({"m": sleeping(10)})) as kernel:
            await kernel.load("m", config=config(), files={"1/answer": b"1"})
            client = Client(kernel)
            client.send("m", "a")
            await kernel.load("m")
            await asyncio.sleep(1)
            assert len(temporary() - before) == 1
            await asyncio.sleep(10)
            assert client.outcome("a") == (10.0, "ok") and temporary() == before

    run(main())


def test_a_model_that_is_in_no_repository(tmp_path: Path) -> None:
    async def main() -> None:
        async with explicit(tmp_path) as kernel:
            await kernel.load("fresh", config=config(), files={"1/answer": b"5"})
            assert await said(kernel, "fresh") == 5 and kernel.is_ready()
            assert states(kernel) == {}, "the index lists what is in the repositories (reference behaviour)"
            words = "failed to load 'fresh', failed to poll from model repository: model not found in any model repository"
            with pytest.raises(ServingError, match=words):
                await kernel.load("fresh")
            assert await said(kernel, "fresh") == 5
            kernel.unload("fresh")
            with pytest.raises(ServingError, match="Request for unknown model: 'fresh' has no available versions"):
                await kernel.infer("fresh", X)

    run(main())


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"1/answer": b"1"}, "files were given for model 'm' without a 'config'; with files the config is mandatory"),
        (
            {"file:../1/answer": b"1"},
            "Invalid file parameter 'file:../1/answer' with normalized path '../1/answer' must stay within model directory.",
        ),
        ({"labels": b""}, "at least one version must be available under the version policy of model 'm'"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    async def main() -> None:
        before = temporary()
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",)) as kernel:
            with pytest.raises(ServingError, match=re.escape(words)):
                await kernel.load("m", config=None if "mandatory" in words else config(), files=files)
            assert await said(kernel, "m") == 1 and temporary() == before

    run(main())


@pytest.mark.parametrize("deep", ["a/" * 33 + "x", "a/" * 1000 + "x", "/".join("ab" * 700)], ids=["33", "1000", "1400"])
def test_files_that_lie_too_deep_leave_nothing(tmp_path: Path, deep: str) -> None:
    """To make, look through or remove such folders would call itself too often."""

    async def main() -> None:
        before = temporary()
        async with explicit(tmp_path) as kernel:
            with pytest.raises(ServingError, match="must not be more than 32 folders deep") as caught:
                await kernel.load("m", config=config(), files={deep: b"", "1/answer": b"1"})
            assert len(caught.value.message) < 1000
            assert temporary() == before

    run(main())


@pytest.mark.parametrize("error", [RecursionError, MemoryError, KeyboardInterrupt])
def test_nothing_stays_whatever_goes_wrong(tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    before = temporary()
    monkeypatch.setattr("kernel.repository.overrides.ModelFolder.look", fail)
    with pytest.raises(error):
        OverrideFolder("m", {"1/answer": b"1"})
    assert temporary() == before


@pytest.mark.parametrize("name", ["../m", "a/b", "..", ""])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with explicit(tmp_path) as kernel:
            with pytest.raises(ServingError, match="model name must not contain path traversal characters") as caught:
                await kernel.load(name, config=config(), files={"1/answer": b"1"})
            assert caught.value.code is Code.INVALID_ARG

    run(main())


@pytest.mark.parametrize("name", ["...", "model..1"])
def test_names_with_dots_that_lead_nowhere(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with explicit(tmp_path) as kernel:
            await kernel.load(name, config=config(), files={"file:/1/answer": b"3"})
            assert await said(kernel, name) == 3

    run(main())


# -- what has not changed ----------------------------------------------------------------------------------------------


def test_an_unchanged_model_keeps_its_statistics(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with explicit(tmp_path, load=("m",), backend=backend) as kernel:
            await said(kernel, "m")
            write(tmp_path / "m" / "1" / "__pycache__" / "x.pyc", "")
            write(tmp_path / "m" / "1" / ".answer.swp", "")
            for _ in range(3):
                await kernel.load("m")
            assert backend.count("initialize") == 1
            assert kernel.statistics("m")[0].inference_count == 1
            write(tmp_path / "m" / "1" / "helper", "")
            await kernel.load("m")
            assert backend.count("initialize") == 2
            assert kernel.statistics("m")[0].inference_count == 0

    run(main())


def test_versions_on_the_fly(tmp_path: Path) -> None:
    """What stays selected stays as it is; what is not selected any more goes, what is new comes."""

    async def main() -> None:
        for version in (1, 2, 3):
            model(tmp_path, "m", version, version, POLICY % "all {}")
        backend = Answering()
        async with explicit(tmp_path, load=("m",), backend=backend) as kernel:
            for version in (1, 2, 3):
                assert await said(kernel, "m", version) == version
            write(tmp_path / "m" / "config.pbtxt", POLICY % "specific { versions: [ 1, 3 ] }")
            await kernel.load("m")
            assert kernel.versions("m") == [1, 3]
            assert states(kernel)["m/2"] == "UNLOADING"
            assert not kernel.is_ready()
            await asyncio.sleep(1)
            assert states(kernel)["m/2"] == "UNAVAILABLE unloaded" and kernel.is_ready()
            with pytest.raises(ServingError, match="version 2 is not at ready state"):
                await kernel.infer("m", X, version=2)
            write(tmp_path / "m" / "config.pbtxt", POLICY % "latest { num_versions: 2 }")
            await kernel.load("m")
            assert kernel.versions("m") == [2, 3]
            counts = {record.version: record.inference_count for record in kernel.statistics("m")}
            assert counts == {2: 0, 3: 1}
            assert kernel.model("m", 3).config.version_policy.num_versions == 2, "the config that is shown is the new one"
            assert backend.count("initialize") == 4

    run(main())


def test_only_the_changed_version_is_made_anew(tmp_path: Path) -> None:
    async def main() -> None:
        for version in (1, 2):
            model(tmp_path, "m", version, version, POLICY % "all {}")
        async with explicit(tmp_path, load=("m",)) as kernel:
            await said(kernel, "m", 1)
            write(tmp_path / "m" / "2" / "answer", "22")
            await kernel.load("m")
            assert await said(kernel, "m") == 22
            assert kernel.statistics("m", 1)[0].inference_count == 1

    run(main())


def test_a_load_is_all_or_nothing_over_its_versions(tmp_path: Path) -> None:
    """The error lists what failed; what came up beside it goes again, and the next load tries all of it."""

    async def main() -> None:
        model(tmp_path, "m", 1, 1, POLICY % "all {}")
        model(tmp_path, "m", "no weights", 2, POLICY % "all {}")
        model(tmp_path, "m", "no luck", 3, POLICY % "all {}")
        backend = Answering()
        async with explicit(tmp_path, backend=backend) as kernel:
            words = (
                "load failed for model 'm': version 2 is at UNAVAILABLE state: Internal: no weights;\n"
                "version 3 is at UNAVAILABLE state: Internal: no luck;\n"
            )
            for _ in range(2):
                with pytest.raises(ServingError, match=f"^{words}$") as caught:
                    await kernel.load("m")
                assert caught.value.code is Code.INVALID_ARG
                assert states(kernel)["m/1"] == "UNLOADING"
                await asyncio.sleep(1)
            with pytest.raises(ServingError, match=r"^Request for unknown model: 'm' has no available versions$"):
                await kernel.infer("m", X)
            with pytest.raises(ServingError, match=r"^Request for unknown model: 'm' version 1 is not at ready state$"):
                await kernel.infer("m", X, version=1)
            assert states(kernel) == {
                "m/1": "UNAVAILABLE unloaded",
                "m/2": "UNAVAILABLE Internal: no weights",
                "m/3": "UNAVAILABLE Internal: no luck",
            }
            assert not kernel.is_ready()
            assert (backend.count("initialize"), backend.count("refused"), backend.count("finalize")) == (2, 4, 2)
            write(tmp_path / "m" / "2" / "answer", "2")
            write(tmp_path / "m" / "3" / "answer", "3")
            await kernel.load("m")
            assert await said(kernel, "m") == 3 and kernel.is_ready() and kernel.versions("m") == [1, 2, 3]

    run(main())


def test_a_reload_with_one_broken_version_leaves_the_old_ones(tmp_path: Path) -> None:
    async def main() -> None:
        for number in (1, 2):
            model(tmp_path, "m", number, number, POLICY % "all {}")
        backend = Answering()
        async with explicit(tmp_path, load=("m",), backend=backend) as kernel:
            old = [kernel.model("m", 1), kernel.model("m", 2)]
            write(tmp_path / "m" / "2" / "answer", "20")
            model(tmp_path, "m", "broken", 3, POLICY % "all {}")
            model(tmp_path, "m", 4, 4, POLICY % "all {}")
            with pytest.raises(ServingError, match=r"^load failed for model 'm': version 3 is at UNAVAILABLE state"):
                await kernel.load("m")
            await asyncio.sleep(1)
            assert [kernel.model("m", 1), kernel.model("m", 2)] == old and await said(kernel, "m") == 2
            assert states(kernel) == {
                "m/1": "READY",
                "m/2": "READY",
                "m/3": "UNAVAILABLE Internal: broken",
                "m/4": "UNAVAILABLE unloaded",
            }
            assert backend.count("finalize") == 2, "of what came up and was turned away"
            write(tmp_path / "m" / "3" / "answer", "3")
            await kernel.load("m")
            assert kernel.model("m", 1) is old[0] and await said(kernel, "m") == 4 and kernel.is_ready()

    run(main())


def test_a_failed_version_that_is_not_selected_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", "broken", 2)
        async with explicit(tmp_path) as kernel:
            with pytest.raises(ServingError, match="broken"):
                await kernel.load("m")
            model(tmp_path, "m", 3, 3)
            await kernel.load("m")
            assert states(kernel) == {"m/2": "UNAVAILABLE unloaded", "m/3": "READY"} and kernel.is_ready()

    run(main())


def test_the_old_copy_serves_until_the_new_one_is_ready(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering({"m": sleeping(3)})
        async with explicit(tmp_path, load=("m",), backend=backend) as kernel:
            old = kernel.model("m")
            Slowly(kernel, m=9.5)
            client = Client(kernel)
            write(tmp_path / "m" / "1" / "answer", "2")
            loading = asyncio.ensure_future(kernel.load("m"))
            for k in range(20):
                client.send("m", str(k))
                assert kernel.is_model_ready("m") and kernel.is_ready()
                assert states(kernel) == {"m/1": "READY"}
                await asyncio.sleep(1)
            await loading
            assert kernel.model("m") is not old
            await asyncio.sleep(60)
            assert {words for _, words in client.outcomes().values()} == {"ok"}
            assert old.statistics().success.count == 10, "those that came before the swap"
            assert backend.count("finalize") == 1

    run(main())


def test_a_model_that_is_still_loading(tmp_path: Path) -> None:
    """BC69: refused at once, whatever is asked."""

    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path) as kernel:
            Slowly(kernel, m=10)
            loading = asyncio.ensure_future(kernel.load("m"))
            await asyncio.sleep(1)
            assert states(kernel) == {"m/1": "LOADING"}
            assert not kernel.is_model_ready("m") and not kernel.is_ready()
            with pytest.raises(ServingError, match="Request for unknown model: 'm' has no available versions"):
                await kernel.infer("m", X)
            with pytest.raises(ServingError, match="Request for unknown model: 'm' version 1 is not at ready state"):
                await kernel.infer("m", X, version=1)
            await loading
            assert await said(kernel, "m") == 1

    run(main())


# -- the order of operations -------------------------------------------------------------------------------------------


def test_an_unload_during_a_load_comes_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        backend = Answering()
        async with explicit(tmp_path, backend=backend) as kernel:
            Slowly(kernel, m=3)
            first = asyncio.ensure_future(kernel.load("m"))
            await asyncio.sleep(1)
            kernel.unload("m")
            await first
            await asyncio.sleep(1)
            assert states(kernel) == {"m/1": "UNAVAILABLE unloaded"}
            first = asyncio.ensure_future(kernel.load("m"))
            await asyncio.sleep(1)
            kernel.unload("m")
            second = asyncio.ensure_future(kernel.load("m"))
            await asyncio.gather(first, second)
            assert states(kernel) == {"m/1": "READY"}
        assert backend.count("initialize") == backend.count("finalize") == 3

    run(main())


def test_loads_and_unloads_of_a_model_take_their_turns_as_they_came(tmp_path: Path) -> None:
    """Also those that come in one turn of the loop; replicas get the same ones, and are to have the same in the end."""
    model(tmp_path, "m", 1)

    async def main() -> None:
        async with explicit(tmp_path, backend=Answering()) as kernel:

            async def unload() -> None:
                await kernel.unload("m")

            for last, state in ((kernel.load("m"), "READY"), (unload(), "UNAVAILABLE unloaded")):
                steps = [kernel.load("m"), unload(), kernel.load("m"), unload(), last]
                await asyncio.gather(*steps)
                assert states(kernel) == {"m/1": state}

    run(main())


def test_an_unload_during_a_reload_ends_the_old_copy_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",)) as kernel:
            Slowly(kernel, m=3)
            write(tmp_path / "m" / "1" / "answer", "2")
            loading = asyncio.ensure_future(kernel.load("m"))
            await asyncio.sleep(1)
            kernel.unload("m")
            with pytest.raises(ServingError, match="Request for unknown model: 'm' has no available versions"):
                await kernel.infer("m", X)
            await loading
            await asyncio.sleep(1)
            assert states(kernel) == {"m/1": "UNAVAILABLE unloaded"} and kernel.models() == []

    run(main())


def test_unloaded_twice_while_requests_are_in_flight(tmp_path: Path) -> None:
    """UNLOADING lasts until the last copy has gone."""

    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",), backend=Answering({"m": sleeping(10)})) as kernel:
            client = Client(kernel)
            client.send("m", "a")
            kernel.unload("m")
            await kernel.load("m")
            await asyncio.sleep(5)
            client.send("m", "b")
            kernel.unload("m")
            await asyncio.sleep(6)
            assert client.outcome("a") == (10.0, "ok")
            assert states(kernel) == {"m/1": "UNLOADING"} and not kernel.is_ready()
            await asyncio.sleep(5)
            assert client.outcome("b") == (15.0, "ok")
            assert states(kernel) == {"m/1": "UNAVAILABLE unloaded"} and kernel.is_ready()

    run(main())


def test_related_models_take_turns_and_others_do_not_wait(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        model(tmp_path, "f", 0, config=ENSEMBLE % "e")
        model(tmp_path, "alone", 4)
        async with explicit(tmp_path) as kernel:
            Slowly(kernel, m=5, e=5)
            loop = kernel.loop
            ended: dict[str, float] = {}

            async def load(name: str) -> None:
                await kernel.load(name)
                ended[name] = round(loop.time() - 1000, 3)

            await asyncio.gather(load("f"), load("m"), load("e"), load("alone"))
            assert ended == {"alone": 0.0, "m": 5.0, "f": 10.0, "e": 10.0}
            assert await said(kernel, "f") == 1
            write(tmp_path / "m" / "1" / "answer", "2")
            reload = asyncio.ensure_future(kernel.load("m"))
            await asyncio.sleep(1)
            kernel.unload("e")
            again = asyncio.ensure_future(kernel.load("f"))
            await asyncio.gather(reload, again)
            assert await said(kernel, "f") == 2

    run(main())


def test_many_operations_at_once_end_where_the_last_left_off(tmp_path: Path) -> None:
    async def main() -> None:
        for name in ("a", "b"):
            model(tmp_path, name, 1)
        model(tmp_path, "ea", 0, config=ENSEMBLE % "a")
        model(tmp_path, "eb", 0, config=ENSEMBLE % "b")
        second = ', { model_name: "eb" model_version: -1 input_map { key: "X" value: "M" } output_map { key: "Y" value: "Y" } }'
        model(tmp_path, "all", 0, config=(ENSEMBLE % "ea").replace('value: "Y" } }', f'value: "M" }} }}{second}'))
        async with explicit(tmp_path) as kernel:
            Slowly(kernel, a=3, b=2)
            loads = []
            for _ in range(5):
                for name in ("all", "ea", "b", "a", "eb"):
                    loads.append(asyncio.ensure_future(kernel.load(name)))
                    kernel.unload(name, dependents=True)
            loads += [asyncio.ensure_future(kernel.load(name)) for name in ("b", "all")]
            await asyncio.gather(*loads, return_exceptions=True)
            await asyncio.sleep(1)
            assert {name: state for name, state in states(kernel).items() if state != "READY"} == {}
            assert await said(kernel, "all") == 1

    run(main())


def test_a_model_that_loads_itself_while_it_is_loaded(tmp_path: Path) -> None:
    """Or an ensemble of which it is a part: it would wait for itself. Another model is no problem."""

    async def main() -> None:
        for name in ("m", "n"):
            model(tmp_path, name, 1)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        async with explicit(tmp_path) as kernel:
            Slowly(kernel, m=5)
            loading = asyncio.ensure_future(kernel.load("m"))
            await asyncio.sleep(1)
            for name in ("m", "e"):
                words = "a related model 'm' to a load/unload request is currently loading or unloading"
                with pytest.raises(ServingError, match=words) as caught:
                    await kernel.load(name, within="m")
                assert caught.value.code is Code.UNAVAILABLE
            await kernel.load("n", within="m")
            assert kernel.loop.time() == 1001.0
            await loading

    run(main())


# -- ensembles ---------------------------------------------------------------------------------------------------------


def test_bc44_a_step_is_unloaded_and_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        async with explicit(tmp_path, load=("e",)) as kernel:
            assert await said(kernel, "e") == 1
            kernel.unload("m")
            await asyncio.sleep(1)
            assert states(kernel) == {"e/1": "UNAVAILABLE unloaded", "m/1": "UNAVAILABLE unloaded"}
            assert kernel.is_ready() and not kernel.is_model_ready("e")
            await kernel.load("m")
            assert await said(kernel, "e") == 1
            kernel.unload("m")
            await kernel.load("e")
            assert await said(kernel, "e") == 1, "an ensemble brings its models along"
            kernel.unload("m")
            kernel.unload("e")
            await kernel.load("m")
            assert not kernel.is_model_ready("e"), "somebody asked for its unload"

    run(main())


def test_bc45_the_load_of_an_ensemble_leaves_what_has_not_changed(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        backend = Answering()
        async with explicit(tmp_path, load=("m",), backend=backend) as kernel:
            await said(kernel, "m")
            write(tmp_path / "m" / "1" / "__pycache__" / "x.pyc", "")
            await kernel.load("e")
            await kernel.load("e")
            assert backend.count("initialize") == 1
            assert kernel.statistics("m")[0].inference_count == 1
            before = kernel.model("e")
            write(tmp_path / "m" / "1" / "answer", "2")
            await kernel.load("e")
            assert await said(kernel, "e") == 2 and kernel.model("e") is not before

    run(main())


def test_an_ensemble_leaves_the_overrides_of_its_models(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "n", 2)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        model(tmp_path, "f", 0, config=ENSEMBLE % "n")
        async with explicit(tmp_path) as kernel:
            await kernel.load("m", config=config(version_policy={"specific": {"versions": [1]}}))
            await kernel.load("n", config=config(), files={"5/answer": b"50"})
            await kernel.load("e")
            await kernel.load("f")
            assert kernel.model("m").config.version_policy.kind == "specific"
            assert await said(kernel, "f") == 50

    run(main())


def test_unload_with_dependents_takes_only_what_came_along(tmp_path: Path) -> None:
    async def main() -> None:
        for name in ("asked", "along", "shared"):
            model(tmp_path, name, 1)
        steps = [
            f'{{ model_name: "{name}" model_version: -1 input_map {{ key: "X" value: "X" }} '
            f'output_map {{ key: "Y" value: "{output}" }} }}'
            for name, output in (("asked", "Y"), ("along", "Z"), ("shared", "W"))
        ]
        outputs = 'output [ { name: "Z" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "W" data_type: TYPE_FP32 dims: [ -1 ] } ]'
        head = (ENSEMBLE % "x").split("ensemble_scheduling")[0] + outputs
        text = f"{head}\nensemble_scheduling {{ step [ {', '.join(steps)} ] }}"
        model(tmp_path, "e", 0, config=text)
        model(tmp_path, "other", 0, config=ENSEMBLE % "shared")
        async with explicit(tmp_path) as kernel:
            for name in ("asked", "e", "other"):
                await kernel.load(name)
            kernel.unload("e")
            await asyncio.sleep(1)
            assert [one.name for one in kernel.models()] == ["along", "asked", "other", "shared"]
            await kernel.load("e")
            kernel.unload("e", dependents=True)
            assert [one.name for one in kernel.models()] == ["asked", "other", "shared"]
            kernel.unload("other", dependents=True)
            assert [one.name for one in kernel.models()] == ["asked"]

    run(main())


def test_an_ensemble_that_was_asked_for_too_early(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", "broken")
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        async with explicit(tmp_path) as kernel:
            words = (
                "load failed for model 'e': ensemble 'e' depends on 'm' which has no loaded version. "
                "Model 'm' loading failed with error: Internal: broken; "
                r".* \(.*/config.pbtxt:6:17\)"
            )
            with pytest.raises(ServingError, match=words):
                await kernel.load("e")
            write(tmp_path / "m" / "1" / "answer", "1")
            await kernel.load("m")
            assert await said(kernel, "e") == 1 and kernel.is_ready()

    run(main())


def test_a_request_in_flight_through_an_ensemble_meets_one_copy_of_each_step(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        model(tmp_path, "e", 0, config=ENSEMBLE % "m")
        async with explicit(tmp_path, load=("e",), backend=Answering({"m": sleeping(3)})) as kernel:
            client = Client(kernel)
            for k in range(30):
                client.send("e", str(k))
                if k % 5 == 4:
                    write(tmp_path / "m" / "1" / "answer", str(k))
                    await kernel.load("m")
                await asyncio.sleep(0.5)
            await asyncio.sleep(120)
            assert {words for _, words in client.outcomes().values()} == {"ok"}

    run(main())


# -- what failed, what is nowhere, what is twice -----------------------------------------------------------------------


def test_the_unload_of_a_failed_model_makes_the_server_ready(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", "broken")
        async with explicit(tmp_path) as kernel:
            with pytest.raises(ServingError, match="broken"):
                await kernel.load("m")
            assert not kernel.is_ready()
            kernel.unload("m")
            assert states(kernel) == {"m/1": "UNAVAILABLE unloaded"} and kernel.is_ready()

    run(main())


def test_a_policy_that_selects_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        write(tmp_path / "m" / "config.pbtxt", BASE)
        async with explicit(tmp_path) as kernel:
            words = "load failed for model 'm': .*at least one version must be available under the version policy of model 'm'"
            with pytest.raises(ServingError, match=words) as caught:
                await kernel.load("m")
            assert caught.value.code is Code.INVALID_ARG
            assert not kernel.is_ready()
            write(tmp_path / "m" / "1" / "answer", "1")
            await kernel.load("m")
            assert kernel.is_ready() and await said(kernel, "m") == 1

    run(main())


def test_a_folder_that_has_gone_takes_nothing_away(tmp_path: Path) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",)) as kernel:
            (tmp_path / "m").rename(tmp_path / ".m")
            with pytest.raises(ServingError, match="failed to load 'm', failed to poll from model repository"):
                await kernel.load("m")
            assert await said(kernel, "m") == 1 and kernel.is_ready() and states(kernel) == {}
            (tmp_path / ".m").rename(tmp_path / "m")
            await kernel.load("m")
            assert kernel.statistics("m")[0].inference_count == 1

    run(main())


def test_one_name_in_two_repositories(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        model(one, "m", 1)
        model(two, "m", 2)
        model(one, "n", 3)
        async with explicit(one, two, load=("n",)) as kernel:
            assert states(kernel) == {"m": "UNAVAILABLE model appears in two or more repositories", "n/1": "READY"}
            words = "failed to load 'm', failed to poll from model repository: failed to poll model 'm': not unique across all"
            with pytest.raises(ServingError, match=words) as caught:
                await kernel.load("m")
            assert caught.value.code is Code.INTERNAL and kernel.is_ready()
            model(two, "n", 4)
            with pytest.raises(ServingError, match="not unique across all model repositories"):
                await kernel.load("n")
            assert await said(kernel, "n") == 3 and states(kernel)["n/1"] == "READY"
            (one / "m").rename(one / ".m")
            await kernel.load("m")
            assert await said(kernel, "m") == 2

    run(main())


# -- namespaces, and trying again --------------------------------------------------------------------------------------


def test_namespaces(tmp_path: Path) -> None:
    """One name in two repositories: two models; which one is meant, only an ensemble beside one of them knows."""

    async def main() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        for folder, value in ((one, 1), (two, 2)):
            model(folder, "same", value)
            write(folder / f"over_{folder.name}" / "config.pbtxt", ENSEMBLE % "same")
            (folder / f"over_{folder.name}" / "1").mkdir()
        model(two, "alone", 3)
        write(one / "far" / "config.pbtxt", ENSEMBLE % "alone")
        (one / "far" / "1").mkdir()
        async with Kernel(one, two, plugins=[Answering()], namespacing=True) as kernel:
            assert [await said(kernel, name) for name in ("over_one", "over_two", "alone", "far")] == [1, 2, 3, 3]
            words = (
                "There are 2 identifiers of model 'same' in global map, model namespace must be provided to resolve ambiguity. "
                f"They are {one}::same and {two}::same"
            )
            with pytest.raises(ServingError, match=f"^{re.escape(words)}$") as caught:
                await kernel.infer("same", X)
            assert caught.value.code is Code.INVALID_ARG and not kernel.is_model_ready("same")
            assert [await said(kernel, f"{folder}::same") for folder in (one, two)] == [1, 2]
            assert [line.name for line in kernel.index()].count("same") == 2 and kernel.is_ready()
            step = kernel.model("over_two").config.message.ensemble_scheduling.step[0]
            assert step.model_namespace == str(two)

    run(main())


def test_a_name_stands_for_all_its_namespaces(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        model(one, "same", 1)
        model(two, "same", 2)
        async with explicit(one, two, namespacing=True) as kernel:
            await kernel.load("same")
            assert [await said(kernel, f"{folder}::same") for folder in (one, two)] == [1, 2]
            kernel.unload("same")
            await asyncio.sleep(1)
            assert [(line.name, line.state, line.reason) for line in kernel.index()] == [("same", "UNAVAILABLE", "unloaded")] * 2
            write(two / "same" / "1" / "answer", "broken")
            with pytest.raises(ServingError, match=f"load failed for model '{two}::same'"):
                await kernel.load("same")
            assert await said(kernel, f"{one}::same") == 1

    run(main())


class Flaky(Answering):
    """Fails `times` times before it makes an instance."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def create(self, context: InstanceContext) -> TestExecutor:
        if self.times:
            self.times -= 1
            raise ServingError(Code.INTERNAL, f"{self.times} more")
        return super().create(context)


def test_a_load_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        model(tmp_path, "m", 1)
        async with explicit(tmp_path, load=("m",), backend=Flaky(2), load_retries=2) as kernel:
            assert await said(kernel, "m") == 1
        again = "model 'm' version 1 failed to load and is tried again, {} times at most: Internal: {} more"
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            again.format(2, 1),
            again.format(1, 0),
        ]
        async with explicit(tmp_path, backend=Flaky(2), load_retries=1) as kernel:
            with pytest.raises(ServingError, match="0 more"):
                await kernel.load("m")

    run(main())


def test_an_unload_at_any_turn_of_a_load_of_what_has_not_changed(tmp_path: Path) -> None:
    """The load has succeeded, or was told that the model goes; never that something is wrong inside."""
    model(tmp_path, "a", 1)

    async def main(turns: int) -> int:
        async with explicit(tmp_path, load=("a",)) as kernel:
            load = asyncio.ensure_future(kernel.load("a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            begun = not load.done()
            kernel.unload("a")
            await load
            await asyncio.sleep(1)
            assert not kernel.is_model_ready("a")
            return begun

    turns = 1  # before, the load has not begun
    while run(main(turns)):
        turns += 1
    assert turns > 3


def test_a_name_that_no_model_has_is_shown_in_part(tmp_path: Path) -> None:
    async def main() -> None:
        async with explicit(tmp_path, backend=Answering()) as kernel:
            with pytest.raises(ServingError) as caught:
                kernel.model("n\n" * 30_000)
            message = caught.value.message
            assert len(message) < 600 and "\n" not in message and "(60000 characters)' is not found" in message

    run(main())

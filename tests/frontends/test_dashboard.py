"""The live page without a browser: what is told as it happens, what is asked for, and the files that are sent."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from virtual import BASE, Behaviour, Client, TestBackend, run, sleeping, write_repository

from kernel import Kernel, ServingError
from kernel_dashboard import add_options, register_sites
from kernel_dashboard.assets import FOLDER, assets
from kernel_dashboard.feed import MOST_READERS, MOST_WAITING, SLICE
from kernel_dashboard.figures import quantiles, weighted_quantiles
from kernel_dashboard.site import Dashboard

BATCHING = BASE + "max_batch_size: 8\ndynamic_batching { }\n"


class Reader:
    """Keeps what it is told. `behind`: bytes that it has not taken."""

    def __init__(self) -> None:
        self.is_gone = False
        self.waiting = 0
        self.pieces: list[bytes] = []
        self.ended = False

    def send(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def end(self) -> None:
        self.ended = self.is_gone = True

    def take(self) -> list[tuple[str, Any]]:
        """Return the events since the last call."""
        text, self.pieces = b"".join(self.pieces).decode(), []
        found = [re.fullmatch(r"event: (\w+)\ndata: (.*)", one) for one in text.split("\n\n") if one]
        return [(one[1], json.loads(one[2])) for one in found if one is not None]

    def rows(self) -> dict[str, Any]:
        """Return the rows among the events, the last of each name."""
        return {row[0]: row for name, value in self.take() if name == "rows" for row in value}


Story = Callable[[Kernel, Dashboard, Client], Awaitable[None]]


def told(folder: Path, models: dict[str, str], story: Story, behaviours: dict[str, Behaviour] | None = None) -> None:
    async def main() -> None:
        write_repository(folder, models)
        plugins = [TestBackend(behaviours or {})]
        async with Kernel(folder, plugins=plugins, exit_on_error=False, control_mode="explicit", load_models=["*"]) as kernel:
            site = Dashboard(kernel, "me", control=False)
            await story(kernel, site, Client(kernel))
            site.close()

    run(main())


def test_what_is_told(tmp_path: Path) -> None:
    async def story(kernel: Kernel, site: Dashboard, client: Client) -> None:
        reader = Reader()
        site.follow("", reader)  # type: ignore[arg-type]
        events = dict(reader.take())
        assert events["hello"]["server"] == "me" and events["hello"]["mode"] == "explicit" and events["history"] == []
        rows = {row[0]: row for row in events["rows"]}
        assert rows["m"][1:4] == ["1", "READY", ""] and rows["m"][4] == [0] * 9
        assert rows["bad"][2] == "UNAVAILABLE" and "config.pbtxt:1:10" in rows["bad"][3] and rows["bad"][4] is None
        assert events["round"][11:] == [1, 2, 1]
        await asyncio.sleep(3.5)
        assert [name for name, _ in reader.take()] == ["round"] * 3  # nothing has changed
        for number in range(3):
            client.send("m", str(number))
        await asyncio.sleep(1)
        events = dict(reader.take())
        assert [row[0] for row in events["rows"]] == ["m"]
        assert events["round"][7:10] == [2, 1, 500]  # waiting, executed, for how long the oldest has waited
        await asyncio.sleep(20)
        await asyncio.sleep(0)
        row = reader.rows()["m"]
        assert row[4][0] == 3 and row[5] is not None
        await kernel.unload("m")
        await asyncio.sleep(1.5)
        assert reader.rows()["m"][2:5] == ["UNAVAILABLE", "unloaded", None]

    told(tmp_path, {"m": BASE, "bad": "backend: 7"}, story, {"m": sleeping(5.0)})


def test_latencies_and_batches_of_a_second(tmp_path: Path) -> None:
    async def story(kernel: Kernel, site: Dashboard, client: Client) -> None:
        reader = Reader()
        site.follow("", reader)  # type: ignore[arg-type]
        reader.take()
        for number in range(16):
            client.send("m", str(number), [[1.0]])
        await asyncio.sleep(1.1)
        (row,) = [row for name, value in reader.take() if name == "rows" for row in value]
        assert row[4][:5] == [16, 0, 0, 16, 2]
        assert row[5] == [200, 200, 200]  # eight were executed behind the other eight
        await asyncio.sleep(1)
        (last,) = [value for name, value in reader.take() if name == "round"]
        assert last[10] is None and last[1] == 16  # nobody was answered in the last second

    told(tmp_path, {"m": BATCHING}, story, {"m": sleeping(0.1)})


def test_nothing_is_looked_at_while_nobody_looks(tmp_path: Path) -> None:
    async def story(kernel: Kernel, site: Dashboard, client: Client) -> None:
        looks: list[float] = []
        known = kernel.known

        def counted() -> Any:
            looks.append(kernel.clock())
            return known()

        kernel.known = counted  # type: ignore[method-assign, assignment]
        await asyncio.sleep(10)
        assert not looks
        readers = [Reader(), Reader(), Reader()]
        for reader in readers:
            site.follow("", reader)  # type: ignore[arg-type]
        await asyncio.sleep(3.5)
        assert len(looks) == 4  # one producer for all
        for reader in readers:
            reader.is_gone = True
        await asyncio.sleep(10)
        assert len(looks) == 4
        again = Reader()
        site.follow("", again)  # type: ignore[arg-type]
        events = dict(again.take())
        assert len(events["history"]) == 4 and {row[0] for row in events["rows"]} == {"m"}

    told(tmp_path, {"m": BASE}, story)


def test_many_models_are_looked_at_a_few_at_a_time(tmp_path: Path) -> None:
    names = [f"m{number:03}" for number in range(3 * SLICE + 1)]

    async def story(kernel: Kernel, site: Dashboard, client: Client) -> None:
        states = kernel.states
        turns: dict[float, int] = {}

        def counted(name: str) -> Any:
            turns[kernel.clock()] = turns.get(kernel.clock(), 0) + 1
            return states(name)

        kernel.states = counted  # type: ignore[method-assign, assignment]
        reader = Reader()
        site.follow("", reader)  # type: ignore[arg-type]
        await asyncio.sleep(0.5)
        assert list(turns.values()) == [SLICE, SLICE, SLICE, 1]
        assert sorted(reader.rows()) == names

    told(tmp_path, dict.fromkeys(names, BASE), story)


def test_who_takes_nothing_is_told_everything_later(tmp_path: Path) -> None:
    async def story(kernel: Kernel, site: Dashboard, client: Client) -> None:
        slow, other = Reader(), Reader()
        site.follow("", slow)  # type: ignore[arg-type]
        site.follow("", other)  # type: ignore[arg-type]
        slow.waiting = MOST_WAITING + 1
        await asyncio.sleep(5)
        slow.take()
        await asyncio.sleep(5)
        assert slow.take() == [] and len(other.take()) >= 10
        slow.waiting = 0
        await asyncio.sleep(2)
        assert [name for name, _ in slow.take()][:3] == ["hello", "history", "rows"]

    told(tmp_path, {"m": BASE}, story)


def test_the_end_and_how_many(tmp_path: Path) -> None:
    async def story(kernel: Kernel, site: Dashboard, client: Client) -> None:
        readers = [Reader() for _ in range(MOST_READERS)]
        for reader in readers:
            site.follow("", reader)  # type: ignore[arg-type]
        with pytest.raises(ServingError, match="64 look at this page already"):
            site.follow("", Reader())  # type: ignore[arg-type]
        readers[3].is_gone = True
        site.follow("", Reader())  # type: ignore[arg-type]
        site.close()
        assert all(reader.ended or reader is readers[3] for reader in readers)
        with pytest.raises(ServingError, match="about to stop"):
            site.follow("", Reader())  # type: ignore[arg-type]

    told(tmp_path, {"m": BASE}, story)


def test_what_is_asked_for(tmp_path: Path) -> None:
    ensemble = """platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step { model_name: "m" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } }
"""

    async def story(kernel: Kernel, site: Dashboard, client: Client) -> None:
        def asked(path: str) -> Any:
            return json.loads(site.document(f"/dashboard/{path}").body)

        client.send("e", "slow one")
        client.send("m", "behind it")
        await asyncio.sleep(1)
        found = {(one["id"], one["model"]) for one in asked("inflight")}
        assert found == {("slow one", "e"), ("slow one", "m"), ("behind it", "m")}
        await asyncio.sleep(20)
        assert asked("inflight") == []
        (first, second) = asked("slowest")
        assert {first["id"], second["id"]} == {"slow one", "behind it"} and first["intervals"][0]["words"]
        assert asked("failed") == []
        edge = {"from": "e", "to": "m", "step": True, "calls": 1}
        nodes = [{"name": "e", "ready": True, "ensemble": True}, {"name": "m", "ready": True, "ensemble": False}]
        assert asked("graph") == {"nodes": nodes, "edges": [edge]}
        model = asked("model/m")
        assert model["failure"] is None and model["states"] == [["1", "READY", ""]]
        (version,) = model["versions"]
        assert ["backend", "test", "file", 2] in version["config"] and version["success"] == 2
        assert version["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1], "optional": False}]
        failure = asked("model/bad")["failure"]
        assert (failure["line"], failure["source"].splitlines()[0].strip()) == (2, "max_batch_size: true")
        assert failure["place"].endswith("/bad/config.pbtxt:2:17")
        with pytest.raises(ServingError, match="knows no model 'a/b'"):
            site.document("/dashboard/model/a%2Fb")
        with pytest.raises(ServingError, match=r"has no file '/dashboard/no\.js'"):
            site.document("/dashboard/no.js")

    bad = 'backend: "test"\nmax_batch_size: true\n'
    told(tmp_path, {"m": BASE, "e": ensemble, "bad": bad}, story, {"m": sleeping(3.0)})


def test_quantiles_have_weights() -> None:
    assert weighted_quantiles([]) is None
    assert weighted_quantiles([(float(value), 1.0) for value in range(1, 101)]) == [50.0, 90.0, 99.0]
    assert weighted_quantiles([(1.0, 98.0), (100.0, 2.0)]) == [1.0, 1.0, 100.0]
    assert weighted_quantiles([(0.123456, 1.0)]) == quantiles([0.123456]) == [0.123] * 3
    assert quantiles([float(value) for value in range(100)]) == [50.0, 90.0, 99.0]


# --- the files


def test_the_files_are_small_and_ask_for_nothing_from_elsewhere() -> None:
    found = assets()
    assert sum(len(document.packed) for document in found.values()) < 120_000
    assert {f"/dashboard/{path.name}" for path in FOLDER.iterdir()} - found.keys() == {"/dashboard/index.html"}
    for path, document in found.items():
        elsewhere = set(re.findall(r"https?://[^\s\"'`)]+", document.body.decode())) - {"http://www.w3.org/2000/svg"}
        assert not elsewhere, path
        fields = dict(document.fields)
        policy = fields["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|eval\(|new Function", document.body.decode()), path


def test_a_wheel_has_the_files() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["package-data"]["kernel_dashboard"] == ["assets/*"]
    assert not [path for path in FOLDER.iterdir() if path.is_dir()]


def test_the_page_has_no_script_or_style_in_it() -> None:
    text = assets()["/"].body.decode()
    assert re.findall(r"<script[^>]*>", text) == ['<script type="module" src="dashboard/app.js">']
    assert "<style" not in text and not re.search(r"\son\w+=|style=", text)


def test_flags(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    kernel = Kernel(tmp_path)
    assert register_sites(kernel, parser.parse_args(["--dashboard=false"])) == []
    assert register_sites(kernel, argparse.Namespace()) == []  # an app that has its own flags
    (site,) = register_sites(kernel, parser.parse_args([]))
    assert site.controls is False
    (site,) = register_sites(kernel, parser.parse_args(["--dashboard-control"]))
    assert site.controls is True

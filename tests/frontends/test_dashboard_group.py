"""The live page of several replicas: sums of what all see, whoever is asked; what is told of one that does not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from frontends.test_dashboard import Reader
from virtual import BASE, Client, TestBackend, run, sleeping, write_repository

from kernel import AskOthers, Code, Kernel, ServingError
from kernel.server.together import join
from kernel_dashboard.feed import MOST_WAITING
from kernel_dashboard.group import merged, merged_details, summed
from kernel_dashboard.looking import Seen
from kernel_dashboard.site import Dashboard

Handler = Callable[[bytes], Awaitable[bytes]]


class Hub:
    """What replicas of one process are to one another. `silent`: those that do not answer."""

    def __init__(self) -> None:
        self.handlers: dict[int, dict[str, Handler]] = {}
        self.silent: set[int] = set()

    def peers(self, index: int) -> Any:
        return Peers(self, index)


class Peers:
    others_ready, number = True, None

    def __init__(self, hub: Hub, index: int) -> None:
        self.hub, self.index = hub, index
        hub.handlers[index] = {}

    def answer(self, topic: str, handler: Handler) -> None:
        self.hub.handlers[self.index][topic] = handler

    async def ask(self, topic: str, data: bytes) -> list[bytes]:
        others = [number for number in sorted(self.hub.handlers) if number != self.index]
        for number in others:
            if number in self.hub.silent:
                await asyncio.sleep(5)
                raise ServingError(Code.UNAVAILABLE, f"replica {number} says nothing")
        return [await self.hub.handlers[number][topic](data) for number in others]


Story = Callable[[Hub, list[Kernel], list[Dashboard], list[Client]], Awaitable[None]]


def told(folder: Path, models: dict[str, str], story: Story, replicas: int = 2, **behaviours: Any) -> None:
    async def main() -> None:
        write_repository(folder, models)
        hub = Hub()

        def kernel() -> Kernel:
            return Kernel(folder, plugins=[TestBackend(behaviours)], control_mode="explicit", load_models=["*"])

        async with AsyncExitStack() as stack:
            kernels = [await stack.enter_async_context(kernel()) for _ in range(replicas)]
            for number, one in enumerate(kernels):
                join(one, hub.peers(number))
            sites = [Dashboard(one, "me", control=False) for one in kernels]
            await story(hub, kernels, sites, [Client(one) for one in kernels])
            for site in sites:
                site.close()

    run(main())


async def asked(site: Dashboard, path: str) -> Any:
    """Return a document that others are asked for, as a front end does."""
    try:
        return json.loads(site.document(path).body)
    except AskOthers as others:
        found: list[Any] = []
        done = asyncio.Event()

        def again() -> None:
            found.append(json.loads(site.document(path).body))
            done.set()

        others.wait(again)
        await done.wait()
        return found[0]


def test_sums_of_all_replicas(tmp_path: Path) -> None:
    async def story(hub: Hub, kernels: list[Kernel], sites: list[Dashboard], clients: list[Client]) -> None:
        reader = Reader()
        sites[1].follow("", reader)  # type: ignore[arg-type]
        await asyncio.sleep(1)
        events = reader.take()
        assert dict(events)["hello"]["replica"] == 1
        assert [value for name, value in events if name == "group"][-1] == {"replicas": [0, 1], "trouble": ""}
        (row,) = dict(events)["rows"]
        assert row[:4] == ["m", "1", "READY", ""] and row[4] == [0] * 9
        for number in range(3):
            clients[0].send("m", f"a{number}")
        for number in range(2):
            clients[1].send("m", f"b{number}")
        await asyncio.sleep(1.2)
        assert reader.rows()["m"][4][6:8] == [3, 2]  # three wait, one is executed at each
        await asyncio.sleep(20)
        events = reader.take()
        (*_, last) = [value for name, value in events if name == "round"]
        rows = [row for name, value in events if name == "rows" for row in value]
        assert last[1] == 5 and last[7:9] == [0, 0] and last[11:] == [1, 1, 0]
        assert rows[-1][4][0] == 5 and rows[-1][5] is not None
        (version,) = (await asked(sites[1], "/dashboard/model/m"))["versions"]
        assert version["success"] == 5 and sum(count for _, count, *_ in version["batches"]) == 5
        assert [one["name"].split(" of ")[1] for one in version["instances"]] == ["replica 1", "replica 0"]
        assert await asked(sites[0], "/dashboard/inflight") == []

    told(tmp_path, {"m": BASE}, story, m=sleeping(2.0))


def test_one_that_does_not_answer_and_one_that_is_gone(tmp_path: Path) -> None:
    async def story(hub: Hub, kernels: list[Kernel], sites: list[Dashboard], clients: list[Client]) -> None:
        reader = Reader()
        sites[0].follow("", reader)  # type: ignore[arg-type]
        clients[1].send("m", "b")
        await asyncio.sleep(3)
        assert reader.rows()["m"][4][0] == 1
        hub.silent.add(1)
        clients[0].send("m", "a")
        await asyncio.sleep(14)
        events = dict(reader.take())
        assert events["group"] == {"replicas": [0, 1], "trouble": "replica 1 says nothing"}
        assert events["rows"][-1][4][0] == 2  # what it has told last holds
        late = Reader()
        sites[0].follow("", late)  # type: ignore[arg-type]
        assert dict(late.take())["group"]["trouble"]
        hub.silent.clear()
        del hub.handlers[1]
        await asyncio.sleep(12)
        events = reader.take()  # type: ignore[assignment]
        assert dict(events)["group"] == {"replicas": [0], "trouble": ""}
        rounds = [value for name, value in events if name == "round"]  # type: ignore[str-unpack]
        assert {one[1] for one in rounds} == {rounds[0][1]}  # counts of all never fall
        assert [row[4][0] for name, value in events if name == "rows" for row in value][-1] == 1  # type: ignore[str-unpack]

    told(tmp_path, {"m": BASE}, story, m=sleeping(0.1))


def test_a_model_that_one_has_not(tmp_path: Path) -> None:
    async def story(hub: Hub, kernels: list[Kernel], sites: list[Dashboard], clients: list[Client]) -> None:
        reader = Reader()
        sites[0].follow("", reader)  # type: ignore[arg-type]
        await asyncio.sleep(1)
        reader.take()
        await kernels[1].unload("m")
        await asyncio.sleep(2)
        events = reader.take()
        rows = [row for name, value in events if name == "rows" for row in value]
        assert rows[-1][:4] == ["m", "1", "UNAVAILABLE", "unloaded"] and rows[-1][4] is not None
        await kernels[0].unload("m")
        await asyncio.sleep(2)
        assert reader.rows()["m"][2:5] == ["UNAVAILABLE", "unloaded", None]
        with pytest.raises(ServingError, match="knows no model"):
            sites[0].document("/dashboard/model/none")

    told(tmp_path, {"m": BASE}, story)


def test_each_page_is_told_of_all_latencies(tmp_path: Path) -> None:
    """Pages at two replicas ask a third: what one had been told of was not told to the other."""

    async def story(hub: Hub, kernels: list[Kernel], sites: list[Dashboard], clients: list[Client]) -> None:
        readers = [Reader(), Reader()]
        for site, reader in zip((sites[0], sites[2]), readers):
            site.follow("", reader)  # type: ignore[arg-type]
        await asyncio.sleep(2)
        clients[1].send("m", "b")
        await asyncio.sleep(3)
        rows = [reader.rows()["m"] for reader in readers]
        assert [row[4][0] for row in rows] == [1, 1] and [row[5] for row in rows] == [[100, 100, 100]] * 2

    told(tmp_path, {"m": BASE}, story, replicas=3, m=sleeping(0.1))


def test_who_was_behind_is_not_told_of_what_is_gone(tmp_path: Path) -> None:
    """A name that is not loaded here, and then is at another replica: who is told everything at that very moment is told once."""

    async def story(hub: Hub, kernels: list[Kernel], sites: list[Dashboard], clients: list[Client]) -> None:
        write_repository(tmp_path, {"late": "backend: 7"})
        for kernel in kernels:
            with pytest.raises(ServingError):
                await kernel.load("late")
        reader = Reader()
        sites[0].follow("", reader)  # type: ignore[arg-type]
        await asyncio.sleep(2.5)
        assert ["late", ""] in [row[:2] for row in dict(reader.take())["rows"]]
        reader.waiting = MOST_WAITING + 1
        await asyncio.sleep(1.2)  # a round is told of, and so it is behind
        write_repository(tmp_path, {"late": BASE})
        await kernels[1].load("late")
        told_of = sites[0]._feed._send
        sites[0]._feed._send = lambda piece: (  # type: ignore[method-assign]
            setattr(reader, "waiting", 0) if piece.startswith(b"event: gone") else None, told_of(piece)
        )  # fmt: skip
        await asyncio.sleep(3)
        last = {tuple(row[:2]): row for name, value in reader.take() if name == "rows" for row in value}
        assert ("late", "1") in last and ("late", "") not in last

    told(tmp_path, {"m": BASE}, story)


def test_how_figures_become_one() -> None:
    def seen(state: str = "READY", reason: str = "", figures: tuple[int, ...] | None = (1, 2, 3, 4, 5, 6, 7, 8, 9)) -> Seen:
        return Seen("m", "1", state, reason, figures)

    assert summed([(1, 2, 3, 4, 5, 6, 7, 8, 9), (10, 0, 0, 0, 0, 0, 0, 0, 50)]) == (11, 2, 3, 4, 5, 6, 7, 8, 50)
    assert merged({0: seen(), 2: seen()}, 2) == ("READY", "", (2, 4, 6, 8, 10, 12, 14, 16, 9))
    assert merged({0: seen()}, 2)[:2] == ("UNAVAILABLE", "it is not loaded at every replica")
    assert merged({0: seen(), 2: seen("LOADING", "slow", None)}, 2) == ("LOADING", "replica 2: slow", seen().figures)
    assert merged({1: seen("UNAVAILABLE", "unloaded", None)}, 1) == ("UNAVAILABLE", "unloaded", None)


def test_how_details_become_one() -> None:
    def of(success: int, batches: list[list[float]], failure: Any = None, version: str = "1") -> dict[str, Any]:
        one = {"version": version, "load_seconds": success, "instances": [{"name": "m_0"}], "batches": batches,
               "spent": {"queue": 1.5}, "success": success, "hits": 0, "failures": {"OTHER": success}}  # fmt: skip
        return {"name": "m", "failure": failure, "versions": [one]}

    alone = of(1, [])
    assert merged_details({0: alone}) is alone
    found = merged_details({1: of(2, [[1, 2, 0.5], [8, 1, 1.0]]), 0: of(5, [[1, 1, 0.25], [4, 1, 1.0]], {"message": "no"})})
    (version,) = found["versions"]
    assert version["batches"] == [[1, 3, 0.75], [4, 1, 1.0], [8, 1, 1.0]]
    assert version["success"] == version["failures"]["OTHER"] == 7
    assert version["load_seconds"] == 5 and version["spent"] == {"queue": 3.0} and found["failure"] == {"message": "no"}
    assert [one["name"] for one in version["instances"]] == ["m_0 of replica 1", "m_0 of replica 0"]
    assert [one["version"] for one in merged_details({0: of(1, []), 1: of(1, [], version="2")})["versions"]] == ["1", "2"]

"""What tasks and threads wait for, as it is read off their stacks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel.circles.wait_view import WaitView
from kernel.registry.progress import _places
from kernel.testing.threads import Threads

ROOT = Path(__file__).parents[2]


async def _timed(way: str, until: asyncio.Event) -> None:
    async with asyncio.timeout(5.0 if way == "timed" else None):
        if way == "over":
            async with asyncio.timeout(5.0) as over:
                await asyncio.sleep(0)
            assert over.when() is not None
        await until.wait()


@pytest.mark.parametrize("way", ["timed", "over", "without"])
def test_a_time_out_is_read_off_what_a_task_holds(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is over, or has no time, ends nothing. However much the process holds besides, as little is looked at."""
    looked = 0

    def count(one: Any) -> list[Any]:
        nonlocal looked
        looked += 1
        return referents(one)

    async def main() -> bool:
        until = asyncio.Event()
        until.heap = [[k] for k in range(100_000)]  # type: ignore[attr-defined]
        task = asyncio.create_task(_timed(way, until))
        for _ in range(3):
            await asyncio.sleep(0)
        ends = WaitView.ends_in_time(task)
        until.set()
        await task
        return ends

    referents = gc.get_referents
    monkeypatch.setattr(gc, "get_referents", count)
    assert asyncio.run(main()) is (way == "timed")
    assert looked < 100


class Body:
    """What a thread has in hand."""


@pytest.mark.parametrize(
    "look",
    [
        lambda ident: WaitView().of_thread(ident),
        lambda ident: WaitView()._handed(concurrent.futures.Future()),
        lambda ident: Threads().look((), False),
        lambda ident: _places([Path("/nowhere")]),
    ],
    ids=["thread", "future", "testing", "loads"],
)
def test_a_look_keeps_nothing_of_what_threads_have_in_hand(look: Callable[[int], object]) -> None:
    """Not even until the collector comes: a look that had its own frame among those it saw was a circle."""
    kept: list[weakref.ref[Body]] = []
    holds, go = threading.Event(), threading.Event()

    def work() -> None:
        body = Body()
        kept.append(weakref.ref(body))
        holds.set()
        go.wait()

    thread = threading.Thread(target=work)
    gc.disable()
    try:
        thread.start()
        holds.wait()
        look(thread.ident or 0)
        go.set()
        thread.join()
        assert kept[0]() is None
    finally:
        gc.enable()


def test_the_frames_of_threads_are_taken_in_one_place() -> None:
    """There the calling thread's own is left out; who takes them otherwise keeps them, as a circle."""
    code = [file for folder in ("kernel", "plugins") for file in (ROOT / folder).rglob("*.py")]
    assert [file.name for file in code if "_current_frames(" in file.read_text()] == ["wait_view.py"]

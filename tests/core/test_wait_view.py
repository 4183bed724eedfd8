"""What tasks and threads wait for, as it is read off their stacks."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from kernel.circles.wait_view import WaitView


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

"""What a server that stops in the middle of an execution leaves behind: nothing, and nobody who waits for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

from virtual import BASE, Client, TestBackend, echo, run, write_repository

from kernel import Batch, Kernel, Result


def test_an_unload_that_waits_for_a_left_execution_ends_with_the_server(tmp_path: Path) -> None:
    """Also what wakes the execution, too late, does no harm: `run` fails where a call-back does."""

    async def main() -> None:
        def execute(batch: Batch) -> Result:
            kernel.wait_for(lambda wake: kernel.loop.call_later(10, wake))
            return echo(batch)  # type: ignore[return-value]

        write_repository(tmp_path, {"m": BASE})
        backend = TestBackend({"m": execute})
        async with Kernel(
            tmp_path, plugins=[backend], control_mode="explicit", load_models=["*"], drain_seconds=1
        ) as kernel:
            client = Client(kernel)
            client.send("m", "r")
            kernel.unload("m")
            await asyncio.sleep(1)
        when, words = client.outcome("r")
        assert when == 2 and "was given up" in words
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(20)

    run(main())

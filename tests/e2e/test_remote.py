"""Remote models whose far ends are processes that stop, are killed, or hang under load: who fails, and with what."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np

from kernel import Kernel, ServingError

from .serving import Server, write_model

#: Takes two milliseconds, so that there is always something in flight.
SLOW = """\
    async def execute(self, requests):
        import asyncio
        await asyncio.sleep(0.002)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
X = {"X": np.arange(3, dtype=np.float32)}
WORKERS = 8


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Far:
    """A far end that is started again on its port."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.port = free_port()
        self.starts = 0
        write_model(folder / name, "m", SLOW, more='parameters { key: "max_concurrency" value { string_value: "64" } }')
        self.server = self._start()

    def _start(self) -> Server:
        self.starts += 1
        log = self.folder / f"{self.name}-{self.starts}.log"
        return Server(log, [self.folder / self.name, f"--grpc-port={self.port}", "--reuse-grpc-port=true"])

    def again(self) -> None:
        self.server.process.wait(30)
        self.server = self._start()

    def end(self) -> None:
        if self.server.process.poll() is None:
            self.server.process.send_signal(signal.SIGCONT)
            self.server.process.kill()
        self.server.process.wait(30)


class Load:
    """Requests without a pause. `failed`: words of errors; `done`: how many were right."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.failed: Counter[str] = Counter()
        self.done = 0
        self.stop = False
        self.workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]

    async def _work(self) -> None:
        while not self.stop:
            try:
                response = await self.kernel.infer("m", X)
                assert response["Y"].tolist() == [0, 1, 2]
                self.done += 1
            except ServingError as error:
                self.failed[error.message] += 1

    async def goes_on(self, count: int = 100) -> None:
        """Return once so many more were right."""
        until = self.done + count
        while self.done < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        self.stop = True
        await asyncio.gather(*self.workers)


@contextlib.asynccontextmanager
async def loaded(folder: Path, more: str = "") -> AsyncIterator[tuple[list[Far], Kernel, Load]]:
    """Two far ends, a kernel in front of them, and load on it."""
    fars = [Far(folder, name) for name in ("a", "b")]
    try:
        for far in fars:
            await asyncio.to_thread(far.server.wait_started)
        (folder / "near/m/1").mkdir(parents=True)
        endpoints = ",".join(f"127.0.0.1:{far.port}" for far in fars)
        text = f'backend: "remote" parameters {{ key: "endpoints" value {{ string_value: "{endpoints}" }} }} {more}'
        (folder / "near/m/config.pbtxt").write_text(text)
        async with asyncio.timeout(90), Kernel(folder / "near") as kernel:
            load = Load(kernel)
            await load.goes_on()
            yield fars, kernel, load
            await load.end()
    finally:
        for far in fars:
            far.end()


def test_a_far_end_that_stops_in_good_order_costs_no_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with loaded(tmp_path) as (fars, _, load):
            for far in fars:
                far.server.signal()
                await asyncio.to_thread(far.again)
                await asyncio.to_thread(far.server.wait_started)
                await load.goes_on()
                await asyncio.sleep(1)
            assert not load.failed, load.failed

    asyncio.run(main())


def test_a_far_end_that_is_killed_costs_what_was_in_flight_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with loaded(tmp_path) as (fars, _, load):
            fars[0].server.signal(signal.SIGKILL)
            await load.goes_on(500)
            assert sum(load.failed.values()) <= WORKERS
            where = f"endpoint 127.0.0.1:{fars[0].port} "
            assert all(words.startswith(where + "has closed the connection") for words in load.failed), load.failed
            before = sum(load.failed.values())
            await asyncio.to_thread(fars[0].again)
            await asyncio.to_thread(fars[0].server.wait_started)
            await asyncio.sleep(3)
            fars[1].server.signal(signal.SIGKILL)  # so the first one has to be back
            await load.goes_on(500)
            assert sum(load.failed.values()) - before <= WORKERS

    asyncio.run(main())


def test_where_a_request_may_be_executed_twice_a_killed_far_end_costs_none(tmp_path: Path) -> None:
    async def main() -> None:
        idempotent = 'parameters { key: "idempotent" value { string_value: "true" } }'
        async with loaded(tmp_path, idempotent) as (fars, _, load):
            fars[0].server.signal(signal.SIGKILL)
            await load.goes_on(500)
            assert not load.failed, load.failed

    asyncio.run(main())


def test_a_far_end_that_hangs_for_a_while_costs_time_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with loaded(tmp_path) as (fars, _, load):
            fars[0].server.signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)
            done = load.done
            await load.goes_on(100)  # by the other one, as far as workers are left
            assert load.done > done
            fars[0].server.signal(signal.SIGCONT)
            await load.goes_on(500)
            assert not load.failed, load.failed

    asyncio.run(main())

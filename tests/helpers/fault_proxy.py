"""A TCP proxy with the faults of a line: delay and jitter, loss as TCP shows it, and partitions. On an asyncio loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

__all__ = ["FaultProxy"]

#: Seconds after which TCP sends again what was lost, at first.
AGAIN = 0.2


class FaultProxy:
    """Passes connections on to `127.0.0.1:port`. `delay`, `jitter`: seconds each way; `loss`: which part of the pieces is lost.

    What is lost comes later, and what is behind it, too. `port`: its own, once it has started.
    """

    def __init__(self, port: int, delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0, seed: int = 1) -> None:
        self.port = 0
        self._to = port
        self._delay, self._jitter, self._loss = delay, jitter, loss
        self._rng = random.Random(seed)
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """From now on nothing arrives, either way."""
        self._whole.clear()

    def mend(self) -> None:
        """What was sent arrives."""
        self._whole.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            self._run(lambda source=source, sink=sink: self._pass_on(source, sink))  # type: ignore[misc]

    def _run(self, make: Callable[[], object]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(make())  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Pass on what comes, in order and when it is due."""
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._run(lambda: self._write(due, sink))
        loop, last = asyncio.get_running_loop(), 0.0
        while data := await self._read(source):
            last = max(last, loop.time() + self._wait())
            due.put_nowait((last, data))
        due.put_nowait((last, b""))

    async def _read(self, source: asyncio.StreamReader) -> bytes:
        try:
            return await source.read(65536)
        except OSError:
            return b""

    async def _write(self, due: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        try:
            while True:
                time, data = await due.get()
                await asyncio.sleep(time - asyncio.get_running_loop().time())
                await self._whole.wait()
                if not data:
                    break
                sink.write(data)
        finally:
            sink.close()

    def _wait(self) -> float:
        wait, again = self._delay + self._rng.uniform(-self._jitter, self._jitter), AGAIN
        while self._rng.random() < self._loss:
            wait, again = wait + again, 2 * again
        return wait

"""gRPC calls for commands that wait on threads: a plugin's channel, on a loop of its own. Bounded in memory and in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from kernel.errors import Code, ServingError
from kernel.loadtest import open_channel
from kernel.recording import code_of

__all__ = ["SERVICE", "GrpcCalls"]

SERVICE = "/inference.GRPCInferenceService/"

#: How long may be waited besides what a call may take, which the channel looks after; seconds.
PATIENCE = 5.0

T = TypeVar("T")


class GrpcCalls:
    """Calls of one server. `messages`: those of the protocol. Any thread, until `close`."""

    def __init__(self, url: str, headers: Mapping[str, str], most: int) -> None:
        """`url`: such as grpc://localhost:8001; `most`: bytes that the answers to one call may have. Raises ServingError."""
        self.url = url
        self._most = most
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kernel-grpc-calls", daemon=True)
        self._thread.start()
        try:
            self._channel = self._on_loop(lambda: open_channel(url, headers))
        except BaseException:
            self._end()
            raise
        self.messages: Any = self._channel.messages

    def call(self, method: str, message: bytes, timeout: float) -> list[bytes]:
        """Return all messages of the answer. Raises ServingError: what the status says, or why there is no answer."""
        answer: Future[list[bytes]] = Future()
        found: list[bytes] = []
        size = 0

        def came(data: bytes) -> None:
            nonlocal size
            size += len(data)
            if size <= self._most:
                found.append(data)
            else:
                found.clear()

        def ended(status: int, words: str) -> None:
            if status:
                answer.set_exception(ServingError(code_of(status), words))
            elif size > self._most:
                answer.set_exception(ServingError(Code.UNAVAILABLE, f"{self.url} answers with more than {self._most} bytes"))
            else:
                answer.set_result(found)

        self._loop.call_soon_threadsafe(self._channel.call, method, message, timeout, came, ended)
        try:
            return answer.result(timeout + PATIENCE)
        except TimeoutError:
            raise ServingError(Code.UNAVAILABLE, f"{self.url} has not answered within {timeout:g} s") from None

    def close(self) -> None:
        self._on_loop(self._channel.close)
        self._end()

    def _on_loop(self, make: Callable[[], T]) -> T:
        async def made() -> T:
            return make()

        return asyncio.run_coroutine_threadsafe(made(), self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

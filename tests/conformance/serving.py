"""Serves a repository in this process: a kernel on a thread of its own, with its real front ends at real ports.

There are two pairs of front ends on one kernel: open ones, and guarded ones with restricted categories and forwarded headers.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from kernel import Kernel

__all__ = ["GUARDS", "Ports", "Served"]

LOCAL = (
    "--http-address=127.0.0.1",
    "--http-port=0",
    "--grpc-address=127.0.0.1",
    "--grpc-port=0",
    "--allow-metrics=false",
    "--id=conformance",
)

#: What the guarded front ends restrict and forward.
GUARDS = (
    "--http-restricted-api=model-repository,health:admin=secret",
    "--http-restricted-api=statistics,trace,logging,shared-memory:other=x",
    "--grpc-restricted-protocol=model-repository,health:admin=secret",
    "--grpc-restricted-protocol=statistics,trace,logging,shared-memory:other=x",
    "--http-header-forward-pattern=^x-",
    "--grpc-header-forward-pattern=^x-",
)


class Ports:
    """Where a pair of front ends listens."""

    def __init__(self, frontends: Sequence[Any]) -> None:
        found = {each.address.partition(":")[0]: int(each.address.rpartition(":")[2]) for each in frontends}
        self.http, self.grpc = found["http"], found["grpc"]


class Served:
    """A kernel that serves until `stop`. Models to be loaded at start are named; the others wait for their load."""

    def __init__(self, repository: Path, models: Sequence[str]) -> None:
        self._repository = repository
        self._models = models
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="conformance")
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        try:
            async with Kernel(
                self._repository,
                control_mode="explicit",
                load_models=self._models,
                backend_config={"python": {"shared-modules": "conformance_probe"}},  # in which tests look into models
            ) as self.kernel:
                opened = self._frontends()
                guarded = self._frontends(*GUARDS)
                for frontend in (*opened, *guarded):
                    await frontend.start()
                self.open, self.guarded = Ports(opened), Ports(guarded)
                self._started.set()
                await self._ended.wait()
                for frontend in (*opened, *guarded):
                    await frontend.stop()
        except BaseException as error:
            self._failure = error
            self._started.set()
            raise

    def _frontends(self, *flags: str) -> list[Any]:
        parser = argparse.ArgumentParser()
        self.kernel.plugins.add_options(parser)
        parser.add_argument("--id")
        options = parser.parse_args([*LOCAL, *flags])
        return list(self.kernel.plugins.frontends(self.kernel, options))

    def call(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns on the kernel's loop."""

        async def called() -> Any:
            result = function()
            return await result if isinstance(result, Awaitable) else result

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

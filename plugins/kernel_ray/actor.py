"""What runs in an actor: a kernel with one model, on a loop and a thread of its own, that answers gRPC at a port of the node.

Ray calls the methods of `KernelActor`, some at a time, each on a thread. Whoever has the secret may ask the kernel, and nobody
else: whatever it can do asks for that metadata.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from kernel import CATEGORIES, Code, Kernel, ServingError, tune_collector, tune_process
from kernel_ray.files import Listing, keep, listing, stamp_of

__all__ = ["HEADER", "KernelActor", "Order", "Started"]

#: The metadata that has the secret; gRPC's restricted protocols have this in front of their key.
HEADER = "kernel-ray"

#: Seconds that the end of a kernel may take beyond what is in flight.
STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Order:
    """What an actor is to serve. `config`: JSON. `folder`: where the model's files lie for who orders it; `files`: what they are;
    `ship`: they are to be carried in any case.

    `backends`: settings by backend. `secret`: of HEADER. `limit`: bytes of a message.
    """

    model: str
    version: int
    config: str
    folder: str
    files: Listing
    ship: bool
    backends: Mapping[str, Mapping[str, str]]
    secret: str
    limit: int


@dataclass(frozen=True, slots=True)
class Started:
    """Where an actor serves, and the model's complete config as a protobuf message; or why it doesn't, and the code for that."""

    host: str = ""
    port: int = 0
    config: bytes = b""
    pid: int = 0
    problem: str = ""
    code: str = ""


class KernelActor:
    """One kernel. `host`: the node's address. Without a coroutine among its methods: Ray would run all on one loop then."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._serving: _Serving | None = None

    def needs(self, order: Order) -> bool:
        """Return whether the model's files have to be sent: they don't lie at the same path."""
        try:
            folder = Path(order.folder)
            there = folder.name == order.model and stamp_of(listing(folder, order.version)) == stamp_of(order.files)
        except OSError:
            there = False
        return order.ship or not there

    def start(self, order: Order, contents: Mapping[str, bytes] | None) -> Started:
        """Load the model and serve it; `contents`: its files, None where they are at the same path."""
        try:
            folder = Path(order.folder)
            if contents is not None:
                folder = keep(order.model, order.version, order.files, contents)
        except OSError as error:
            return Started(problem=f"its files can't be kept on node {self._host}: {error}", code="Internal")
        self._serving = _Serving(order, folder, self._host)
        return self._serving.started.result()

    def wait(self) -> str:
        """Return when the kernel has ended: why, "" where it was told to."""
        assert self._serving is not None
        self._serving.over.wait()
        return self._serving.problem

    def stop(self, seconds: float) -> None:
        """End the kernel: what is in flight has so many seconds."""
        if self._serving is not None:
            self._serving.stop(seconds)


class _Serving:
    """The kernel on its thread. `started`: how that has ended; `over`, `problem`: it has ended, and why."""

    def __init__(self, order: Order, folder: Path, host: str) -> None:
        self.started: concurrent.futures.Future[Started] = concurrent.futures.Future()
        self.over = threading.Event()
        self.problem = ""
        self._order = order
        self._folder = folder
        self._host = host
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._seconds = 0.0
        threading.Thread(target=self._run, name="kernel", daemon=True).start()

    def stop(self, seconds: float) -> None:
        """End it; returns when that has been done."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            self._seconds = seconds
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(stop.set)
            self.over.wait(seconds + STOP_SECONDS)

    def _run(self) -> None:
        tune_process()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # told to whoever waits, as nobody else sees this thread's
            self.problem = f"{type(error).__name__}: {error}"
            if not self.started.done():
                code = error.code if isinstance(error, ServingError) else Code.INTERNAL
                words = error.message if isinstance(error, ServingError) else self.problem
                self.started.set_result(Started(problem=words.strip(), code=code.value))
        finally:
            self.over.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        order = self._order
        kernel = Kernel(
            self._folder.parent,
            control_mode="explicit",
            backend_config={name: dict(settings) for name, settings in order.backends.items()},
            memory_limit_receive=order.limit,
            allow_client_shm=False,
        )
        async with kernel:
            await _load(kernel, order)
            (frontend,) = kernel.plugins.frontends(kernel, _options(kernel, self._host, order.secret))
            await frontend.start()
            tune_collector()
            port = urlsplit(frontend.address).port or 0
            config = kernel.model(order.model, order.version).config.message.SerializeToString()
            self.started.set_result(Started(self._host, port, config, os.getpid()))
            await self._stop.wait()
            kernel.retire()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await frontend.drain()
            await frontend.stop()
            await kernel.stop(1.0)


async def _load(kernel: Kernel, order: Order) -> None:
    """Load the model. Raises ServingError with the reason alone, to which who has ordered it adds what fails of it."""
    try:
        await kernel.load(order.model, config=order.config)
    except ServingError as error:
        reason = next((one.reason for one in kernel.index() if one.name == order.model and one.reason), "")
        code = next((code for code in Code if reason.startswith(f"{code.value}: ")), None)
        if code is None:
            raise
        raise ServingError(code, reason.removeprefix(f"{code.value}: ")) from error


def _options(kernel: Kernel, host: str, secret: str) -> argparse.Namespace:
    """Return the options of front ends: gRPC alone, at any port of the node, for who has the secret."""
    parser = argparse.ArgumentParser()
    kernel.plugins.add_options(parser)
    address = f"[{host}]" if ":" in host else host
    given = [
        "--allow-http=false",
        "--allow-metrics=false",
        f"--grpc-address={address}",
        "--grpc-port=0",
        f"--grpc-restricted-protocol={','.join(CATEGORIES)}:{HEADER}={secret}",
    ]
    return parser.parse_args(given)

"""What the live page costs a server with many models at full load, while somebody looks.

    python bench/dashboard.py [--models 1000] [--rounds 6] [--seconds 5]

One process has a kernel with so many models of a backend that answers at once, and the HTTP front end with the page. Another
sends requests to all models in turn, by eight connections, 16 at a time on each, without a pause. A third one follows the
events, or does not, some seconds at a time. What is told: requests for each second of the server's processor time, without
and with, as medians of all rounds; which share of its thread's processor time the producer takes, and how long it holds the
loop in one go; how late a timer of the loop is, p99. Wanted: a share of at most 1 %, at most 1 ms of lag. A busy machine
disturbs all but the share.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from kernel import (
    Batch,
    InferenceResponse,
    InstanceContext,
    Kernel,
    ModelConfig,
    Placement,
    Result,
    Tensor,
    hookimpl,
)
from kernel_dashboard.feed import Feed

CONFIG = """backend: "now"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
BEAT = 0.002

ASK = """
import select, socket, sys
port, models = map(int, sys.argv[1:])
body = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}'
form = b"POST /v2/models/model_%04d/infer HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: %d\\r\\n\\r\\n%b"
asked = [form % (number, len(body), body) for number in range(models)] * 2
connections = {socket.create_connection(("127.0.0.1", port)): [0, number * models // 8] for number in range(8)}
for connection, state in connections.items():
    connection.sendall(b"".join(asked[state[1] : state[1] + 16]))
while True:
    for connection in select.select(connections, [], [])[0]:
        state = connections[connection]
        state[0] += connection.recv(1 << 20).count(b"HTTP/1.1 ")
        if state[0] >= 16:
            state[:] = [state[0] - 16, (state[1] + 16) % models]
            connection.sendall(b"".join(asked[state[1] : state[1] + 16]))
"""

FOLLOW = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.sendall(b"GET /dashboard/events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    while connection.recv(1 << 16):
        pass
"""


class Executor:
    placement, capacity, may_wait = Placement.LOOP, 1, False

    def execute(self, batch: Batch) -> Result:
        return [InferenceResponse([Tensor("Y", "FP32", one.inputs["X"].array)]) for one in batch.requests]

    def finalize(self) -> None: ...


class Now:
    """A backend whose models answer at once."""

    name, creates_on_loop = "now", True

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Any) -> None: ...

    def create(self, context: InstanceContext) -> Executor:
        return Executor()

    @hookimpl
    def register_backends(self) -> Mapping[str, Any]:
        return {"now": self}


class Timed:
    """How long methods of a class hold the loop, each time; seconds of the thread's processor time. One within another is a
    part of that.
    """

    def __init__(self, cls: type, *names: str) -> None:
        self.taken: list[float] = []
        self.calls = dict.fromkeys(names, 0)
        self._within = False
        for name in names:
            setattr(cls, name, self._timed(name, getattr(cls, name)))

    def _timed(self, name: str, method: Any) -> Any:
        def timed(*args: Any) -> Any:
            self.calls[name] += 1
            if self._within:
                return method(*args)
            self._within, began = True, time.thread_time()
            try:
                return method(*args)
            finally:
                self._within = False
                self.taken.append(time.thread_time() - began)

        return timed


async def loaded(kernel: Kernel, seconds: float) -> tuple[float, list[float]]:
    """Return requests for each second of processor time, and how late each beat of a timer was; seconds."""
    late: list[float] = []
    due = time.monotonic() + BEAT

    def beat() -> None:
        nonlocal due
        late.append(time.monotonic() - due)
        due = time.monotonic() + BEAT
        kernel.loop.call_later(BEAT, beat)

    timer = kernel.loop.call_later(BEAT, beat)
    count, began = answered(kernel), time.process_time()
    await asyncio.sleep(seconds)
    took = time.process_time() - began
    timer.cancel()
    return (answered(kernel) - count) / took, late


def answered(kernel: Kernel) -> int:
    return sum(one.success.count for one in kernel.statistics())


def client(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", *arguments])


async def measure(models: int, rounds: int, seconds: float) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        names = [f"model_{number:04}" for number in range(models)]
        for name in names:
            (Path(folder) / name / "1").mkdir(parents=True)
            (Path(folder) / name / "config.pbtxt").write_text(CONFIG)
        async with Kernel(folder, plugins=[Now()]) as kernel:
            parser = argparse.ArgumentParser()
            kernel.plugins.add_options(parser)
            flags = ["--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false"]
            (frontend,) = kernel.plugins.frontends(kernel, parser.parse_args(flags))
            await frontend.start()
            port = frontend.address.rpartition(":")[2]
            gc.collect()
            gc.freeze()  # as kernel serve does
            gc.set_threshold(25_000, 50, 100)
            producer = Timed(Feed, "_begin", "_work")
            busy = 0.0  # seconds of the thread's processor time while somebody looked
            rates: dict[bool, list[float]] = {False: [], True: []}
            lags: dict[bool, list[float]] = {False: [], True: []}
            asking = client(ASK, port, str(models))
            await loaded(kernel, 2 * seconds)
            for number in range(2 * rounds):
                looked = number % 4 in (1, 2)
                began = time.thread_time()
                following = client(FOLLOW, port) if looked else None
                if looked:
                    await asyncio.sleep(1.5)  # it has begun
                rate, late = await loaded(kernel, seconds)
                rates[looked].append(rate)
                lags[looked] += late
                if following is not None:
                    following.kill()
                    following.wait()
                    await asyncio.sleep(1.5)
                    busy += time.thread_time() - began
            asking.kill()
            asking.wait()
            await frontend.stop()
    share = statistics.median(rates[True]) / statistics.median(rates[False]) - 1
    p99 = {looked: statistics.quantiles(lags[looked], n=100)[98] * 1e3 for looked in lags}
    taken = sorted(one * 1e3 for one in producer.taken)
    looks = producer.calls["_begin"]
    print(f"{models} models, {statistics.median(rates[False]):,.0f} requests for each second of processor time")
    print(f"  requests while somebody looks: {share:+.2%}")
    print(f"  p99 of the loop's lag: {p99[False]:.2f} ms, while somebody looks {p99[True]:.2f} ms")
    told = f"median {statistics.median(taken):.2f} ms, p99 {taken[int(len(taken) * 0.99)]:.2f} ms, most {taken[-1]:.2f} ms"
    part = sum(taken) / 1e3 / busy
    each = f"{sum(taken) / (looks or 1):.0f} ms a round"
    print(f"  the producer's share: {part:.2%} ({looks} rounds, {each}); in one go: {told}")
    return part <= 0.01 and p99[True] - p99[False] <= 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000, metavar="N", help="how many models (default 1000)")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="how long each time (default 5)")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="how often it is looked, and not (default 6)")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return 0 if runner.run(measure(options.models, options.rounds, options.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())

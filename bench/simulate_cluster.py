"""What becomes of latency as servers get more: a simulated cluster, to a million requests a second on one core of yours.

    python bench/simulate_cluster.py [--only NAME] [--share S]

Virtual time, one seed, no threads: the same run gives the same table. What is real: each server is a Kernel with its scheduler,
which executes a model; each balancer keeps what kernel_remote keeps of its endpoints (`Standing`), and asks the same rule
(`choose`) where a request goes. What is told, as figures: how long a request takes of a server's loop and of a balancer's, which
requests pass one after another; what an execution takes; the way through the network, with chance. What is not there: bytes,
sockets, the interpreter's pauses.

Requests come by chance (Poisson), each at a balancer drawn at random. A row lives through a slice of time, `seconds`, of which
the first fifth is not counted; every request of it is lived through, none is extrapolated. `--share 0.1` lives a tenth of each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from kernel import Batch, InferenceRequest, InferenceResponse, Kernel, ModelConfig, Placement, Tensor, hookimpl  # noqa: E402
from kernel.testing import run  # noqa: E402
from kernel_remote.choice import Standing, choose  # noqa: E402

#: Seconds of its loop that a request takes of a server, and of a balancer, which receives and sends it. Rough: docs/scale.md.
SERVER = 30e-6
BALANCER = 60e-6

#: Seconds through the network, one way: the least, and the mean of what chance adds. Machines of one zone.
WAY, CHANCE = 100e-6, 20e-6

#: A batch of `MOST` takes `FULL` seconds, of which a part is for each request.
MOST, FIXED, EACH = 32, 4e-3, 0.1e-3
FULL = FIXED + MOST * EACH
INSTANCES = 2

WARM = 0.2  # of a slice, that is not counted
PATIENCE = 5.0  # virtual seconds after the last request

CONFIG = """
backend: "simulated"
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
{more}
"""


@dataclass(frozen=True)
class Scenario:
    """One row. `rate`: requests a second. `work`: "loop", a model that takes no time beside its server's loop, or "batch", with
    two instances that execute up to 32 requests at a time, for 4 ms and 0.1 ms each. `rule`: "choose" with reports of load,
    "blind" without, "random", or "least": whoever has reported the least. `slow`: servers whose work takes twice as long.
    """

    name: str
    rate: float
    servers: int
    balancers: int
    seconds: float
    work: str = "loop"
    rule: str = "choose"
    slow: int = 0
    server: float = SERVER
    balancer: float = BALANCER
    seed: int = 1


@dataclass(frozen=True)
class Result:
    """What came of one row. Latencies in seconds, of those counted; `busiest`, `mean`: shares of what
    servers' loops, or the instances of their models, could do at the most.
    """

    sent: int
    answered: int
    failed: int
    p50: float
    p99: float
    p999: float
    mean: float
    busiest: float


class _Executor:
    def __init__(self, backend: _Backend) -> None:
        self.may_wait = False
        self.capacity = 1
        self.placement = Placement.TASK if backend.work == "batch" else Placement.LOOP
        self.execute: Callable[[Batch], Any] = backend.batch if backend.work == "batch" else _executed

    def finalize(self) -> None:
        return


def _executed(batch: Batch) -> list[InferenceResponse]:
    return [InferenceResponse([Tensor("Y", "FP32", request.inputs["X"].array)]) for request in batch.requests]


class _Backend:
    """Serves the model of one server. `worked`: seconds that its instances have to work at the least for what they were given."""

    name = "simulated"
    creates_on_loop = True

    def __init__(self, work: str, factor: float) -> None:
        self.work = work
        self.factor = factor
        self.worked = 0.0

    async def batch(self, batch: Batch) -> list[InferenceResponse]:
        seconds = (FIXED + EACH * len(batch.requests)) * self.factor
        self.worked += FULL / MOST * len(batch.requests) * self.factor
        await asyncio.sleep(seconds)
        return _executed(batch)

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        return

    def create(self, context: Any) -> _Executor:
        return _Executor(self)

    @hookimpl
    def register_backends(self, kernel: Kernel) -> Mapping[str, Any]:
        return {"simulated": self}


class _Loop:
    """One core that takes requests one after another. `worked`: seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cost: float) -> None:
        self._loop = loop
        self._cost = cost
        self._free = 0.0
        self.worked = 0.0

    def take(self, then: Callable[[], None]) -> None:
        self._free = max(self._loop.time(), self._free) + self._cost
        self.worked += self._cost
        self._loop.call_at(self._free, then)


class _Server:
    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, scenario: Scenario, index: int) -> None:
        factor = 2.0 if index < scenario.slow else 1.0
        self.backend = _Backend(scenario.work, factor)
        self.gate = _Loop(loop, scenario.server * (factor if scenario.work == "loop" else 1.0))
        self.kernel = Kernel(folder, plugins=[self.backend])

    def load(self) -> float:
        """As kernel_grpc reports it (inference/load.py)."""
        model = self.kernel.model("m")
        instances = model.scheduler.instances
        together = max(1, model.config.max_batch_size)
        executing = sum(instance.outstanding for instance in instances)
        return (executing + model.scheduler.pending / together) / len(instances)

    def used(self, seconds: float) -> float:
        busy = self.backend.worked / INSTANCES if self.backend.work == "batch" else self.gate.worked
        return busy / seconds


class _Balancer:
    def __init__(self, loop: asyncio.AbstractEventLoop, scenario: Scenario) -> None:
        self.gate = _Loop(loop, scenario.balancer)
        self.standings = [Standing(f"server {index}:8001") for index in range(scenario.servers)]
        self.place = {one: index for index, one in enumerate(self.standings)}


class _Trip:
    """One request, from a balancer and back to it."""

    __slots__ = ("balancer", "began", "counted", "load", "server", "standing", "world")

    def __init__(self, world: _World, balancer: _Balancer, began: float, counted: bool) -> None:
        self.world = world
        self.balancer = balancer
        self.began = began
        self.counted = counted
        self.load = 0.0

    def send(self) -> None:
        world = self.world
        standing = self.standing = world.pick(self.balancer)
        standing.outstanding += 1
        self.server = world.servers[self.balancer.place[standing]]
        world.loop.call_later(world.way(), self.arrive)

    def arrive(self) -> None:
        self.server.gate.take(self.submit)

    def submit(self) -> None:
        self.server.kernel.submit(InferenceRequest("m", {"X": self.world.tensor}, self.respond))

    def respond(self, response: InferenceResponse | None, final: bool) -> None:
        world = self.world
        if response is None or response.error is not None:
            world.failed += 1
        if world.reports:
            self.load = self.server.load()
        world.loop.call_later(world.way(), self.back)

    def back(self) -> None:
        world, standing = self.world, self.standing
        now = world.loop.time()
        standing.outstanding -= 1
        standing.succeeded(now)
        if world.reports:
            standing.report(self.load, now)
        world.answered += 1
        if self.counted:
            world.latencies.append(now - self.began)


class _World:
    def __init__(self, loop: asyncio.AbstractEventLoop, scenario: Scenario, folder: Path) -> None:
        batch = scenario.work == "batch"
        more = f"max_batch_size: {MOST} dynamic_batching {{ }}" if batch else ""
        (folder / "m" / "1").mkdir(parents=True)
        (folder / "m" / "config.pbtxt").write_text(CONFIG.format(instances=INSTANCES if batch else 1, more=more))
        self.loop = loop
        self.scenario = scenario
        self.chance = random.Random(scenario.seed)
        self.servers = [_Server(loop, folder, scenario, index) for index in range(scenario.servers)]
        self.balancers = [_Balancer(loop, scenario) for _ in range(scenario.balancers)]
        self.reports = scenario.rule in ("choose", "least")
        self.tensor = Tensor("X", "FP32", np.ones((1, 1) if batch else (1,), np.float32))
        self.sent = self.answered = self.failed = 0
        self.latencies: list[float] = []

    def way(self) -> float:
        return WAY + self.chance.expovariate(1 / CHANCE)

    def pick(self, balancer: _Balancer) -> Standing:
        standings, now = balancer.standings, self.loop.time()
        rule = self.scenario.rule
        if rule == "random":
            return standings[int(self.chance.random() * len(standings))]
        if rule == "least":
            return min(standings, key=lambda one: one.load(now))
        found = choose(standings, now, self.chance.random)
        assert found is not None
        return found

    async def live(self) -> Result:
        """Start the servers, send what the slice has, and wait for the answers."""
        for server in self.servers:
            await server.kernel.start()
        scenario = self.scenario
        began = self.loop.time()
        warm, end = began + WARM * scenario.seconds, began + scenario.seconds
        over = self.loop.create_future()

        def come(at: float) -> None:
            if at >= end:
                over.set_result(None)
                return
            self.sent += 1
            balancer = self.balancers[int(self.chance.random() * len(self.balancers))]
            balancer.gate.take(_Trip(self, balancer, at, at >= warm).send)
            following = at + self.chance.expovariate(scenario.rate)
            self.loop.call_at(following, come, following)

        come(began)
        await over
        used = [server.used(scenario.seconds) for server in self.servers]
        for _ in range(round(PATIENCE / 0.05)):
            if self.answered == self.sent:
                break
            await asyncio.sleep(0.05)
        for server in self.servers:
            await server.kernel.stop(1.0)
        return self._result(used)

    def _result(self, used: Sequence[float]) -> Result:
        found = sorted(self.latencies)

        def quantile(share: float) -> float:
            return found[min(len(found) - 1, int(share * len(found)))] if found else float("nan")

        mean, busiest = sum(used) / len(used), max(used)
        return Result(self.sent, self.answered, self.failed, quantile(0.5), quantile(0.99), quantile(0.999), mean, busiest)


def simulate(scenario: Scenario) -> Result:
    """Live through one row."""
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as name:

        async def main() -> Result:
            return await _World(asyncio.get_running_loop(), scenario, Path(name)).live()

        return run(main())


#: Servers of 33 thousand requests a second, balancers of 17 thousand, both to six tenths; then what each choice of these does.
SCENARIOS = (
    Scenario("10 thousand a second", 1e4, 1, 1, 2.0),
    Scenario("100 thousand", 1e5, 5, 10, 0.5),
    Scenario("1 million", 1e6, 50, 100, 0.1),
    Scenario("1 million, servers to nine tenths", 1e6, 34, 100, 0.1),
    Scenario("1 million, balancers to nine tenths", 1e6, 50, 67, 0.1),
    Scenario("batches, 10 thousand", 1e4, 2, 1, 2.0, "batch"),
    Scenario("batches, 100 thousand", 1e5, 20, 10, 0.5, "batch"),
    Scenario("batches, 1 million", 1e6, 200, 100, 0.1, "batch"),
    Scenario("batches, drawn at random", 1e5, 20, 10, 0.5, "batch", "random"),
    Scenario("batches, no reports", 1e5, 20, 10, 0.5, "batch", "blind"),
    Scenario("batches, whoever reports the least", 1e5, 20, 10, 0.5, "batch", "least"),
    Scenario("one of 20 slow", 1e5, 20, 10, 0.5, "batch", slow=1),
    Scenario("one of 20 slow, no reports", 1e5, 20, 10, 0.5, "batch", "blind", slow=1),
    Scenario("one of 20 slow, at random", 1e5, 20, 10, 0.5, "batch", "random", slow=1),
    Scenario("one of 20 slow, 100 balancers", 1e5, 20, 100, 0.5, "batch", slow=1),
    Scenario("one of 20 slow, 100 balancers, no reports", 1e5, 20, 100, 0.5, "batch", "blind", slow=1),
    Scenario("one of 5 slow, on the loop", 8e4, 5, 10, 0.5, slow=1),
    Scenario("one of 5 slow, on the loop, 100 balancers", 8e4, 5, 100, 0.5, slow=1),
)

HEAD = "| | requests/s | servers | balancers | requests | p50, ms | p99, ms | p99.9, ms | servers busy | busiest |"
LINE = "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"


def row(scenario: Scenario, result: Result) -> str:
    """Return a line of the table."""
    times = " | ".join(f"{seconds * 1e3:.2f}" for seconds in (result.p50, result.p99, result.p999))
    lost = "" if result.answered == result.sent and not result.failed else f" ({result.sent - result.answered} unanswered)"
    counts = f"{scenario.rate:.0f} | {scenario.servers} | {scenario.balancers} | {result.sent}{lost}"
    return f"| {scenario.name} | {counts} | {times} | {result.mean:.0%} | {result.busiest:.0%} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="the rows whose names contain this")
    parser.add_argument("--share", type=float, default=1.0, help="of each slice (default 1.0)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(HEAD + "\n" + LINE)
    wrong = 0
    for scenario in SCENARIOS:
        if options.only not in scenario.name:
            continue
        began = time.monotonic()
        result = simulate(replace(scenario, seconds=scenario.seconds * options.share, seed=options.seed))
        wrong += result.failed + result.sent - result.answered
        print(row(scenario, result), flush=True)
        print(f"{scenario.name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())

"""Remote models over lines as they are: delay and jitter, loss as TCP shows it, a partition, resets. In virtual time.

A line of 20 ms and 5 ms of jitter each way, where one segment in a hundred is lost: what is behind it waits until it was sent
again, for 0.2 seconds and twice as long each further time. Requests are answered or refused in time, and nobody is asked who
can't answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from network import Far, Line, Network, run_network

from kernel import Kernel

from .test_remote_kernels import IDEMPOTENT, X, echo, loaded_without_asking, near, outcome

__all__ = ["loaded_without_asking"]  # the fixture

DELAY, JITTER, LOSS, AGAIN = 0.020, 0.005, 0.01, 0.2
LATE = 0.005  # seconds by which a deadline may be missed


class Rough(Line):
    """Such a line. What is lost holds up what is behind it, either way."""

    def __init__(self, loop: Network, listener: Callable[[], object], rng: random.Random) -> None:
        self._rng = rng
        self._until = 0.0
        super().__init__(loop, listener)

    @property  # type: ignore[override]
    def delay(self) -> float:
        now, rng = self.loop.time(), self._rng
        wait, again = rng.uniform(DELAY - JITTER, DELAY + JITTER), AGAIN
        while rng.random() < LOSS:
            wait, again = wait + again, 2 * again
        self._until = max(self._until, now + wait if again > AGAIN else 0.0)
        return max(wait, self._until - now)

    @delay.setter
    def delay(self, seconds: float) -> None: ...


class Traffic:
    """Requests without a pause, a hundred a second. `late`: by how much deadlines were missed; `said`: what came of requests."""

    def __init__(self, network: Network, kernel: Kernel, limit: float) -> None:
        self.network = network
        self.kernel = kernel
        self.limit = limit
        self.late = 0.0
        self.said: list[tuple[float, str]] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def flow(self, seconds: float) -> None:
        for _ in range(int(seconds * 100)):
            task = asyncio.create_task(self._ask())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
            await asyncio.sleep(0.01)

    async def _ask(self) -> None:
        begun = self.network.time()
        said = await outcome(self.kernel.infer("m", X, timeout=self.limit))
        self.late = max(self.late, self.network.time() - begun - self.limit)
        self.said.append((begun, said))

    async def end(self) -> None:
        await asyncio.gather(*self._asking)


def rough(network: Network, host: str, far: Far, rng: random.Random) -> Rough:
    line = network.lines[host, 8001] = Rough(network, far, rng)
    return line


@pytest.mark.parametrize("seed", range(5))
def test_delay_and_loss_cost_time_alone(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    random.seed(seed)

    async def main(network: Network) -> None:
        for host in "ab":
            rough(network, host, Far(echo), rng)
        async with near(tmp_path) as kernel:
            patient, hasty = Traffic(network, kernel, 10.0), Traffic(network, kernel, 0.1)
            await asyncio.gather(patient.flow(20), hasty.flow(20))
            await patient.end()
            await hasty.end()
            assert {said for _, said in patient.said} == {"ok"} and len(patient.said) == 2000
            assert patient.late <= LATE and hasty.late <= LATE
            words = Counter(said == "ok" or "deadline of the request to model 'm' passed" in said for _, said in hasty.said)
            assert set(words) == {True}
            assert sum(said == "ok" for _, said in hasty.said) > 1000

    run_network(main)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_partition_of_ten_seconds_is_gone_round_and_over_soon(
    tmp_path: Path, seed: int, idempotent: bool, resets: bool
) -> None:
    """`resets`: the far end has given the connections up meanwhile, as TCP does in the end."""
    rng = random.Random(seed)
    random.seed(seed)

    async def main(network: Network) -> None:
        fars = {host: Far(echo) for host in "ab"}
        lines = {host: rough(network, host, far, rng) for host, far in fars.items()}
        async with near(tmp_path, more=IDEMPOTENT * idempotent) as kernel:
            traffic = Traffic(network, kernel, 3.0)
            await traffic.flow(5)
            cut = network.time()
            lines["a"].cut()
            await traffic.flow(10)
            mended = network.time()
            if resets:
                for end in [end for end in lines["a"].connections if not end.closing]:
                    end.close()
                    end.other.close()
            lines["a"].mend()
            before = len(fars["a"].requests)
            await traffic.flow(2)
            assert len(fars["a"].requests) > before, "asked again within two seconds"
            await traffic.flow(8)
            await traffic.end()
            assert traffic.late <= LATE
            failed = [(begun - cut, said) for begun, said in traffic.said if said != "ok"]
            assert all(-0.5 < begun < 1.02 or begun > mended - cut - 0.5 for begun, _ in failed), failed[-5:]
            assert all("deadline of the request" in said or "endpoint a:8001 " in said for _, said in failed), failed[:5]
            assert len(failed) < 150

    run_network(main)


def test_where_all_are_cut_off_each_request_ends_with_its_deadline(tmp_path: Path) -> None:
    rng = random.Random(1)

    async def main(network: Network) -> None:
        lines = [rough(network, host, Far(echo), rng) for host in "ab"]
        async with near(tmp_path) as kernel:
            traffic = Traffic(network, kernel, 1.0)
            await traffic.flow(2)
            for line in lines:
                line.cut()
            await traffic.flow(10)
            for line in lines:
                line.mend()
            mended = network.time()
            await traffic.flow(5)
            await traffic.end()
            assert traffic.late <= LATE and len(traffic.said) == 1700
            assert {said for begun, said in traffic.said if begun > mended + 2} == {"ok"}
            refused = {said for begun, said in traffic.said if said != "ok"}
            assert all("deadline of the request" in said or "endpoint " in said for said in refused), refused

    run_network(main)

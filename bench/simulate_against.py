"""Is what `kernel simulate` says what happens? The same arrivals, live and simulated: batch sizes and latencies side by side.

    python bench/simulate_against.py [--only NAME] [--runs N] [--seconds S]

A server executes a model that sleeps for 4 ms and 1 ms for each row, on two instances with the dynamic batcher. A client sends it
requests over HTTP at moments that it has drawn before: by chance at one rate, at a rate that grows, and in bursts. When each was
sent is kept, and these moments are simulated; executions cost what those of the same run have cost, as the server has recorded
them (`--record`), and each request costs its loop EFFORT, which wakes within WAKE.

Compared are the sizes of batches, by the largest distance of the two distributions (Kolmogorov), p50 and p99. Wanted: a distance
of at most 0.1, p50 within 10 %, p99 within 25 %; exits with 1 where the median of the runs is not. Server and client need a core
each, and the machine has to be quiet: what takes the processor from either of them is not simulated. A run takes what `--seconds`
says, and 3 s: all three traffics 5 times some 4 minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import servers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kernel.simulation import Arrivals, Cost, Measured, read_arrivals, simulate
from kernel.simulation.recorded import recorded_times

MODEL = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        time.sleep(0.004 + 0.001 * sum(len(one) for one in tensors))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", one)]) for one in tensors]
"""
CONFIG = """\
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 2 }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 5000 }
parameters { key: "placement" value { string_value: "thread" } }
"""
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}).encode()
REQUEST = b"POST /v2/models/work/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)

#: Two instances with full batches can do 1300 requests a second.
TRAFFICS = ("chance", "ramp", "bursts")
DISTANCE, P50, P99 = 0.1, 0.10, 0.25

EFFORT = 40e-6  # seconds of the loop for a request; the answer's part of it is simulated as if it came first
WAKE = 100e-6  # seconds until an idle server has noticed a request, in which others of the same burst come

WARM = 100  # requests before each run, which are not counted


def offsets_of(traffic: str, seconds: float, seed: int) -> np.ndarray:
    """Return when requests are to be sent, in seconds from the start."""
    if traffic == "chance":
        return read_arrivals(f"poisson:500,{seconds}", seed).offsets
    if traffic == "ramp":
        return read_arrivals(f"ramp:50-900,{seconds}", seed).offsets
    starts = read_arrivals(f"poisson:40,{seconds}", seed).offsets
    sizes = np.random.default_rng(seed).integers(1, 16, len(starts))
    return np.sort(np.concatenate([np.full(size, start) for size, start in zip(sizes, starts)]))


@dataclass(frozen=True)
class Seen:
    """`batches`: rows -> executions. `p50`, `p99`: seconds."""

    batches: Mapping[int, int]
    p50: float
    p99: float


class Client:
    """Sends requests over as many connections as there are requests at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self) -> tuple[float, float]:
        """Send one request; return when, and how long the answer took."""
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        clock = asyncio.get_running_loop().time
        began = clock()
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        took = clock() - began
        self._free.append((reader, writer))
        return began, took

    async def live(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send a request at each of these moments; return when they were sent, and how long their answers took."""
        loop = asyncio.get_running_loop()
        began = loop.time() + 0.05
        tasks = []
        for offset in offsets:
            late = began + offset - loop.time()
            if late > 0:
                await asyncio.sleep(late)
            tasks.append(asyncio.ensure_future(self.send()))
        told = sorted(await asyncio.gather(*tasks))
        for _, writer in self._free:
            writer.close()
        moments, latencies = map(np.array, zip(*told))
        return moments - moments[0], latencies


@dataclass(frozen=True)
class Live:
    """A run: when requests were sent and how long their answers took, in seconds, and between which moments of the epoch."""

    moments: np.ndarray
    latencies: np.ndarray
    between: tuple[float, float]


def run(port: int, offsets: np.ndarray) -> Live:
    """Send requests at these moments, and some before them that are not counted."""
    asyncio.run(Client(port).live(np.arange(WARM) * 0.003))
    began = time.time()
    moments, latencies = asyncio.run(Client(port).live(offsets))
    return Live(moments, latencies, (began, time.time()))


def simulated(live: Live, repository: Path, recording: Path) -> tuple[Seen, Seen]:
    """Return what there was of a run, and what is simulated of the same requests."""
    times = recorded_times(str(recording), "work", live.between)
    p50, p99 = (float(np.percentile(live.latencies, percent)) for percent in (50, 99))
    result = simulate(str(repository), "work", Arrivals(live.moments), _Known(Measured.of(times)), effort=EFFORT, wake=WAKE)
    there = {rows: len(seconds) for rows, seconds in times.items()}
    return Seen(there, p50, p99), Seen(result.works[0].batches, result.latency(50), result.latency(99))


class _Known:
    calls: frozenset[object] = frozenset()
    models: frozenset[str] = frozenset()
    """What executions of the model have cost."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost

    def of(self, model: str) -> Cost:
        return self._cost


def distance(one: Mapping[int, int], other: Mapping[int, int]) -> float:
    """Return the largest difference of the shares of executions that have at most so many rows."""
    sizes = sorted({*one, *other})
    shares = [np.cumsum([each.get(size, 0) for size in sizes]) / sum(each.values()) for each in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def compare(traffic: str, runs: int, seconds: float, folder: Path) -> list[tuple[float, float, float]]:
    """Return how far away each run of a traffic is: distance of batch sizes, p50, p99."""
    repository, recording = folder / "models", folder / "recording.zip"
    model = repository / "work"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(MODEL)
    (model / "config.pbtxt").write_text(CONFIG)
    server = servers.start("default", repository, "--record", str(recording))
    try:
        lives = [run(server.port, offsets_of(traffic, seconds, seed)) for seed in range(runs)]
    finally:
        server.stop()
    found = []
    for live in lives:
        there, as_if = simulated(live, repository, recording)
        apart = distance(there.batches, as_if.batches)
        found.append((apart, as_if.p50 / there.p50 - 1, as_if.p99 / there.p99 - 1))
        times = [f"{1e3 * one:6.2f} ms" for one in (there.p50, as_if.p50, there.p99, as_if.p99)]
        print(f"{traffic:8} {len(live.moments):8}  {apart:8.3f}  {times[0]} {times[1]}  {times[2]} {times[3]}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=TRAFFICS, help="one traffic (default: all)")
    parser.add_argument("--runs", type=int, default=5, help="of each traffic (default 5)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run (default 10)")
    options = parser.parse_args()
    far = []
    titles = f"{'p50 live':>9} {'simulated':>9}  {'p99 live':>9} {'simulated':>9}"
    print(f"{'traffic':8} {'requests':>8}  {'distance':>8}  {titles}")
    for traffic in [options.only] if options.only else TRAFFICS:
        with tempfile.TemporaryDirectory() as folder:
            found = compare(traffic, options.runs, options.seconds, Path(folder))
        apart, p50, p99 = (statistics.median(column) for column in zip(*found))
        print(f"{traffic:8} {'median':>8}  {apart:8.3f}  {'p50':>9} {p50:+9.1%}  {'p99':>9} {p99:+9.1%}", flush=True)
        if apart > DISTANCE or abs(p50) > P50 or abs(p99) > P99:
            far.append(traffic)
    print(f"too far away: {', '.join(far)}" if far else "near enough")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())

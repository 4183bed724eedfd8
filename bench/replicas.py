"""What two replicas on two cores are worth to a model that computes in Python: throughput against one replica.

    python bench/replicas.py [--rounds N] [--seconds S] [--placement loop|thread|auto]

A model computes for a millisecond or two in the interpreter. It is asked by 32 HTTP connections (wrk) and by one gRPC connection
with 32 streams (h2load), all of which one replica has, so that half has to be handed over. Servers with one and with two
replicas stand side by side and are asked by turns; medians of the rounds. Wanted: 1.8 times as much with connections, 1.6 times
with one connection. The generators take some of the two cores, too, and the machine has to be quiet: what two servers give that
know nothing of each other, with 16 connections each, is what it can give at most. The last column says what would be were each
replica alone on a core: requests for a second of processor time of the busiest. Look at that on a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import h2load
import servers
import wrk

MODEL = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            number = 0
            for k in range({count}):
                number += k & 7
            x = pb_utils.get_input_tensor_by_name(request, "X")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())]))
        return responses
"""
CONFIG = """\
backend: "python"
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
{placement}
"""
PLACEMENT = 'parameters {{ key: "placement" value {{ string_value: "{}" }} }}'
COUNT = 30_000  # turns of the loop, of which each takes some 50 ns
INPUTS = {"X": ([4], [1.0, 2.0, 3.0, 4.0])}
CONNECTIONS = wrk.Load("work", INPUTS, 32)
STREAMS = h2load.GrpcLoad("work", INPUTS, 1, 32)
APART = 0  # instead of a number of replicas: two servers
SETTLES = 2.0  # seconds in which the group's spare process starts, once the replicas serve
WANTED = {"32 HTTP connections": 1.8, "1 gRPC connection, 32 streams": 1.6}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of load, for each figure")
    parser.add_argument("--placement", choices=("loop", "thread", "auto"), default="auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as name:
        found = measure(Path(name), options.placement, options.rounds, options.seconds)
    print("| | one replica, 1/s | two, 1/s | times | wanted | by processor time |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    good = True
    for load, wanted in WANTED.items():
        one, two = found[load, 1], found[load, 2]
        times, by_time = (statistics.median(b[k] / a[k] for a, b in zip(one, two)) for k in (0, 1))
        rates = [statistics.median(rate for rate, _ in each) for each in (one, two)]
        print(f"| {load} | {rates[0]:.0f} | {rates[1]:.0f} | {times:.2f} | {wanted} | {by_time:.2f} |")
        good = good and times >= wanted
        if apart := found.get((load, APART)):
            times = statistics.median(b[0] / a[0] for a, b in zip(one, apart))
            rate = statistics.median(rate for rate, _ in apart)
            print(f"| the same, two servers | {rates[0]:.0f} | {rate:.0f} | {times:.2f} | | |")
    return int(not good)


def measure(folder: Path, placement: str, rounds: int, seconds: float) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Return, by load and number of replicas, the rates of each round: a second, and a second of the busiest replica's time."""
    model = folder / "models/work"
    (model / "1").mkdir(parents=True)
    (model / "1/model.py").write_text(MODEL.format(count=COUNT))
    (model / "config.pbtxt").write_text(CONFIG.format(placement="" if placement == "auto" else PLACEMENT.format(placement)))
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    started = []
    try:
        for count in (1, 2, APART):
            started.append(servers.start(f"{count}-replicas", folder / "models", f"--replicas={count or 1}"))
        one, two, other = started
        time.sleep(SETTLES)
        for _ in range(rounds):
            for load in WANTED:
                for count, server in ((1, one), (2, two)):
                    before = busy(server.process.pid)
                    if load.endswith("streams"):
                        rate = h2load.run(server.grpc_port, STREAMS, seconds, folder)
                    else:
                        rate = wrk.run(server.port, CONNECTIONS, seconds, folder).per_second
                    took = max(now - before.get(pid, 0.0) for pid, now in busy(server.process.pid).items())
                    found.setdefault((load, count), []).append((rate, rate * max(1, round(seconds)) / took))
                if not load.endswith("streams"):
                    rate = together([one.port, other.port], seconds, folder)
                    found.setdefault((load, APART), []).append((rate, 0.0))
    finally:
        for server in started:
            server.stop()
    return found


def together(ports: list[int], seconds: float, folder: Path) -> float:
    """Return the rate of several servers under load at the same time, each with its share of the connections."""
    share = replace(CONNECTIONS, connections=CONNECTIONS.connections // len(ports))

    def run(port: int) -> float:
        place = folder / str(port)
        place.mkdir(exist_ok=True)
        return wrk.run(port, share, seconds, place).per_second

    with ThreadPoolExecutor(len(ports)) as pool:
        return sum(pool.map(run, ports))


def busy(leader: int) -> dict[int, float]:
    """Return how many seconds of processor time a server's processes have had."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:  # its session
                found[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


if __name__ == "__main__":
    raise SystemExit(main())

"""What a remote hop costs: the same gRPC call to a server directly, and through another one whose model is remote.

    python bench/remote.py [--rounds N] [--seconds S] [--far triton] [--faults]

The far end serves `add_sub` on its loop (with `--far triton`: the real Triton, as it is); in front of it stands ours with a model
of the backend `remote`. h2load asks both by turns, with one call at a time, which tells how long one takes on average, and with
32 at a time, which tells how many there are a second. Medians of the rounds. Needs `h2load`.

The server that is asked has a processor of its own, in both ways. Who asks has another one, which it shares with the far end
where there are only two: passing a call on takes two servers, and on two processors they are never alone. `part` is the part of
the direct rate that is left. It says nothing on a machine with other work; `by time` does, roughly: it is the processor time that
the far end takes for a call when it is asked directly, by that which ours takes to pass one on, so the part that is left where
nobody has to share.

`--faults` asks two far ends through proxies that make lines bad (20 ms and 5 ms of jitter each way, 1 % of the pieces lost). One
is cut off for ten seconds. It prints by how much deadlines of a second were missed, how long after the cut the last request was
made that failed, and how long after it was mended that far end was asked again. A busy machine adds to the first figure.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import h2load
import numpy as np
import servers

from kernel import Kernel, ServingError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from fault_proxy import FaultProxy

MODEL = "add_sub"
INPUTS = {"A": ([4], [1.0, 2.0, 3.0, 4.0]), "B": ([4], [1.0, 2.0, 3.0, 4.0])}
AT_A_TIME = (1, 32)

#: Microseconds that a hop may add, and the least part of the direct rate at 32 at a time.
ADDED_US = 150.0
PART = 0.6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of load, for each figure")
    parser.add_argument("--far", choices=("loop", "triton"), default="loop")
    parser.add_argument("--faults", action="store_true", help="over bad lines instead")
    options = parser.parse_args()
    if options.faults:
        return asyncio.run(over_bad_lines())
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as name:
        rates = measure(Path(name), options.far, options.rounds, options.seconds)
    found = {key: [statistics.median(figures) for figures in zip(*all)] for key, all in rates.items()}
    print("| at a time | direct, 1/s | through ours, 1/s | part | by time | added, µs |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for streams in AT_A_TIME:
        (direct, alone), (through, passing) = found["direct", streams], found["through", streams]
        added = f"{1e6 / through - 1e6 / direct:.0f}" if streams == 1 else ""
        print(f"| {streams} | {direct:.0f} | {through:.0f} | {through / direct:.2f} | {alone / passing:.2f} | {added} |")
    slow = 1e6 / found["through", 1][0] - 1e6 / found["direct", 1][0] > ADDED_US
    return int(slow or found["through", 32][0] < PART * found["direct", 32][0])


def place(server: servers.Server, processor: int) -> None:
    """Give all threads of a server one processor."""
    for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {processor})


def seconds_of(server: servers.Server) -> float:
    """Return the processor time that a server has taken."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(server: servers.Server, load: h2load.GrpcLoad, seconds: float, folder: Path) -> tuple[float, float]:
    """Return the rate, and the processor time of the server for a call."""
    before = seconds_of(server)
    rate = h2load.run(server.grpc_port, load, seconds, folder)
    return rate, (seconds_of(server) - before) / (rate * max(1, round(seconds)))


def measure(folder: Path, kind: str, rounds: int, seconds: float) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Return the rates of each round, and the processor time for a call, by way and calls at a time."""
    first, second, *more = sorted(os.sched_getaffinity(0))
    far_models = servers.copy_models(folder / "far", placement=None if kind == "triton" else "loop")
    for other in far_models.iterdir():
        if other.name != MODEL:
            shutil.rmtree(other)
    far = servers.start(kind, far_models)
    rates: dict[tuple[str, int], list[tuple[float, float]]] = {}
    try:
        model = folder / "near" / MODEL
        (model / "1").mkdir(parents=True)
        endpoint = f'{{ key: "endpoints" value {{ string_value: "127.0.0.1:{far.grpc_port}" }} }}'
        (model / "config.pbtxt").write_text(f'backend: "remote" parameters {endpoint}\n')
        near = servers.start("remote", folder / "near")
        try:
            for _ in range(rounds):
                for streams in AT_A_TIME:
                    load = h2load.GrpcLoad(MODEL, INPUTS, 1, streams)
                    place(far, first)
                    os.sched_setaffinity(0, {second})  # and so h2load, which is started from here
                    rates.setdefault(("direct", streams), []).append(ask(far, load, seconds, folder))
                    place(near, first)
                    place(far, second)
                    os.sched_setaffinity(0, {more[0] if more else second})
                    rates.setdefault(("through", streams), []).append(ask(near, load, seconds, folder))
        finally:
            near.stop()
    finally:
        far.stop()
    return rates


#: A request's deadline, how often there is one, and how long the parts of the run are, in seconds.
LIMIT, EVERY, BEFORE, CUT, BEHIND = 1.0, 0.01, 5.0, 10.0, 5.0


async def over_bad_lines() -> int:
    """Print what a partition costs, and return whether that is more than it may be."""
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as name:
        folder = Path(name)
        models = [servers.copy_models(folder / host, placement="loop") for host in "ab"]
        fars = [await asyncio.to_thread(servers.start, "loop", one) for one in models]
        proxies = [FaultProxy(far.grpc_port, 0.02, 0.005, 0.01, seed) for seed, far in enumerate(fars)]
        try:
            for proxy in proxies:
                await proxy.start()
            (folder / "near" / MODEL / "1").mkdir(parents=True)
            endpoints = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
            text = f'backend: "remote" parameters {{ key: "endpoints" value {{ string_value: "{endpoints}" }} }}\n'
            (folder / "near" / MODEL / "config.pbtxt").write_text(text)
            async with Kernel(folder / "near") as kernel:
                return await cut_off(kernel, proxies[0])
        finally:
            for proxy in proxies:
                await proxy.stop()
            for far in fars:
                far.stop()


async def cut_off(kernel: Kernel, proxy: FaultProxy) -> int:
    inputs = {name: np.array(values, np.float32) for name, (_, values) in INPUTS.items()}
    loop, late, failed, asking = asyncio.get_running_loop(), [0.0], [0.0], set()
    began = loop.time() + BEFORE
    standing = next(iter(kernel.model(MODEL).scheduler.instances)).executor.standings[0]
    back = math.inf

    async def ask() -> None:
        at = loop.time()
        try:
            await kernel.infer(MODEL, inputs, timeout=LIMIT)
        except ServingError:
            failed.append(at - began)
        late.append(loop.time() - at - LIMIT)

    for number in range(int((BEFORE + CUT + BEHIND) / EVERY)):
        at = began - BEFORE + number * EVERY
        await asyncio.sleep(at - loop.time())
        if at < began <= at + EVERY:
            proxy.cut()
        elif at < began + CUT <= at + EVERY:
            proxy.mend()
        elif at > began + CUT and standing.outstanding and not standing.ejected(loop.time()):
            back = min(back, at - began - CUT)
        task = asyncio.create_task(ask())
        asking.add(task)
        task.add_done_callback(asking.discard)
    await asyncio.gather(*asking)
    ejected = max([one for one in failed if 0 <= one < CUT - LIMIT], default=0.0)
    print("| deadlines missed by, ms | failed | the last one after, s | asked again after, s |\n| ---: | ---: | ---: | ---: |")
    print(f"| {1000 * max(late):.1f} | {len(failed) - 1} | {ejected:.2f} | {back:.2f} |")
    return int(max(late) > 0.005 or ejected > 1.0 or back > 2.0)


if __name__ == "__main__":
    raise SystemExit(main())

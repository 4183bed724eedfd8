"""A model with placement `ray` against a plain Ray actor and Ray Serve: calls a second, and how long one takes.

    python bench/ray.py [--rounds 5] [--seconds 2] [--flight 32] [--json FILE]

All execute the same line, `y = x * 2`, in one actor on a cluster of this machine, and are asked by one process that awaits:

kernel      `await kernel.infer("m", {"X": x})`, whose model has placement `ray` (tensors that are the caller's are copied)
actor       `await actor.infer.remote(x)`, a plain Ray actor with an `async` method
sync        the same, and the method is not `async`
serve       `await handle.infer.remote(x)`, a Ray Serve deployment by its handle, without HTTP; where ray[serve] is installed

The first figure is answers a second with `--flight` calls in flight, the second the median of calls one after the other. Small is
16 floats, large 4 MB each way. The kinds take turns in each round, and figures are medians of rounds: only ratios mean something.
Wanted: 10 times the throughput of either actor with small tensors, and at least that of Serve with large ones.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib.util
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

# This file is called `ray`, too.
sys.path = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]

import numpy as np  # noqa: E402
import uvloop  # noqa: E402

from kernel import Kernel  # noqa: E402

os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import ray  # noqa: E402

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: "placement" value { string_value: "ray" } }
parameters { key: "max_concurrency" value { string_value: "64" } }
"""
SIZES = {"small": 16, "large": 1_000_000}
WANTED = {("small", "actor"): 10.0, ("small", "sync"): 10.0, ("large", "serve"): 1.0}

Ask = Callable[[np.ndarray], Awaitable[Any]]


class Doubler:
    """What actors of Ray's own are made of."""

    async def infer(self, x: np.ndarray) -> np.ndarray:
        return x * 2


class PlainDoubler:
    """Likewise."""

    def infer(self, x: np.ndarray) -> np.ndarray:
        return x * 2


async def throughput(ask: Ask, x: np.ndarray, flight: int, seconds: float) -> float:
    """Return answers a second with so many calls in flight."""
    ends = time.perf_counter() + seconds
    done = 0

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < ends:
            await ask(x)
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(flight)))
    return done / (time.perf_counter() - began)


async def latency(ask: Ask, x: np.ndarray, seconds: float) -> float:
    """Return the median of calls one after the other, in milliseconds."""
    ends = time.perf_counter() + seconds
    took = []
    while time.perf_counter() < ends or not took:
        began = time.perf_counter()
        await ask(x)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def served() -> Ask | None:
    """Return what asks a deployment of Ray Serve, None where that isn't installed."""
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("fastapi") is None:
        return None
    try:
        from ray import serve
    except ImportError:
        return None
    serve.start(logging_config={"enable_access_log": False}, proxy_location="Disabled")
    deployment = serve.deployment(Doubler, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.5})
    handle = serve.run(deployment.bind(), route_prefix=None)

    async def ask(x: np.ndarray) -> Any:
        return await handle.infer.remote(x)

    return ask


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    actor = ray.remote(Doubler).options(num_cpus=0.5, max_concurrency=1000).remote()
    plain = ray.remote(PlainDoubler).options(num_cpus=0.5).remote()
    async with Kernel(folder) as kernel:

        async def kernel_ask(x: np.ndarray) -> Any:
            return (await kernel.infer("m", {"X": x}))["Y"]

        async def actor_ask(x: np.ndarray) -> Any:
            return await actor.infer.remote(x)

        async def plain_ask(x: np.ndarray) -> Any:
            return await plain.infer.remote(x)

        kinds: dict[str, Ask] = {"kernel": kernel_ask, "actor": actor_ask, "sync": plain_ask}
        serve = served()
        if serve is not None:
            kinds["serve"] = serve
        rounds: dict[tuple[str, str, str], list[float]] = {}
        for size, count in SIZES.items():
            x = np.arange(count, dtype=np.float32)
            for ask in kinds.values():
                assert np.array_equal(await ask(x), x * 2)
                await throughput(ask, x, 8, 0.5)
            flight = options.flight if size == "small" else min(options.flight, 4)
            for _ in range(options.rounds):
                for kind, ask in kinds.items():
                    rate = await throughput(ask, x, flight, options.seconds)
                    rounds.setdefault((size, kind, "rate"), []).append(rate)
                    rounds.setdefault((size, kind, "ms"), []).append(await latency(ask, x, options.seconds / 4))
    return report(rounds, list(kinds))


def report(rounds: dict[tuple[str, str, str], list[float]], kinds: list[str]) -> dict[str, Any]:
    """Print a table, and return it."""
    found: dict[str, Any] = {}
    print(f"{'':8} {'':8} {'a second':>10} {'p50 ms':>8} {'kernel is':>10} {'wanted':>8}")
    for size in SIZES:
        for kind in kinds:
            rate, ms = (statistics.median(rounds[size, kind, what]) for what in ("rate", "ms"))
            ratios = [ours / other for ours, other in zip(rounds[size, "kernel", "rate"], rounds[size, kind, "rate"])]
            ratio = statistics.median(ratios)
            wanted = WANTED.get((size, kind))
            shown = "" if kind == "kernel" else f"{ratio:.2f} x"
            print(f"{size:8} {kind:8} {rate:10.0f} {ms:8.3f} {shown:>10} {'' if wanted is None else f'{wanted:g} x':>8}")
            found[f"{size} {kind}"] = {"rate": rate, "p50_ms": ms, "kernel_is": ratio, "wanted": wanted}
    if "serve" not in kinds:
        print("Ray Serve is not installed: pip install 'ray[serve]'")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--flight", type=int, default=32, help="calls in flight (default 32; large tensors: 4 at most)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    set_option = ctypes.CDLL(None).mallopt  # as `kernel serve` does: large tensors are not in new pages each time
    set_option(-3, 32 * 1024 * 1024)
    set_option(-1, 128 * 1024 * 1024)
    with tempfile.TemporaryDirectory(prefix="kernel-ray") as name:
        folder = Path(name) / "models"
        (folder / "m/1").mkdir(parents=True)
        (folder / "m/config.pbtxt").write_text(CONFIG)
        (folder / "m/1/model.py").write_text(MODEL)
        ray.init(
            num_cpus=4, include_dashboard=False, object_store_memory=500_000_000, log_to_driver=False, namespace="kernel",
            logging_level=logging.ERROR, _temp_dir=f"{name}/ray",
        )  # fmt: skip
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(measure(options, folder))
        finally:
            ray.shutdown()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

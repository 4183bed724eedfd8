"""Measure the core in process, through the public names of `kernel` alone: no sockets, no HTTP.

    python bench/core.py [--requests N] [--only WHAT ...] [--json FILE]

`calls`: how many microseconds the core takes for a request whose execution costs nothing, by the size of the burst in which the
requests come; and how many for a BLS call of a model that does nothing, from a model on the loop and from one on a thread.

`queues`, in processor time: a request in bursts of 32 to a model with priorities and queue policies, with and without what the
measuring itself costs (making requests and answers); and the same behind 100 and behind 100 000 that wait, also when half of
what comes is cancelled or times out long after (queues.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import queues
from servers import MODELS, PLACED

from kernel import (
    Backend,
    Batch,
    InferenceRequest,
    InferenceResponse,
    InstanceContext,
    Kernel,
    ModelConfig,
    Placement,
    Tensor,
    hookimpl,
)

ROUNDS = 5
BATCH_SIZES = (1, 8, 32)
NULL_CONFIG = """
backend: "null"
max_batch_size: 32
dynamic_batching { }
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
ROW = np.ones((1, 4), np.float32)


class NullExecutor:
    """Answers at once with what it was given."""

    placement = Placement.LOOP
    capacity = 1
    may_wait = False

    def execute(self, batch: Batch) -> list[InferenceResponse]:
        return [InferenceResponse([Tensor("Y", "FP32", request.inputs["X"].array)]) for request in batch.requests]

    def finalize(self) -> None:
        pass


class NullBackend:
    """The backend `null`: what is left is the core's own time."""

    name = "null"
    creates_on_loop = True

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        pass

    def create(self, context: InstanceContext) -> NullExecutor:
        return NullExecutor()


class NullPlugin:
    """A plugin of this process only: no entry point."""

    @hookimpl
    def register_backends(self) -> Mapping[str, Backend]:
        return {"null": NullBackend()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000, help="for each figure and round (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=("calls", "queues"), default=("calls", "queues"), metavar="WHAT")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as name:
        if "calls" in options.only:
            figures |= asyncio.run(measure(make_repository(Path(name) / "calls"), options.requests))
        if "queues" in options.only:
            figures |= queues.measure(Path(name) / "queues", ROUNDS, options.requests)
    print("| in process | µs |\n| --- | --- |")
    for what, microseconds in figures.items():
        print(f"| {what} | {microseconds:.2f} |")
    if options.json:
        options.json.write_text(json.dumps({"figures": figures}, indent=1) + "\n")
    return 0


def make_repository(folder: Path) -> Path:
    """Make a repository with the null model, and the models that time their calls of `identity`, which is on the loop."""
    (folder / "null" / "1").mkdir(parents=True)
    (folder / "null" / "config.pbtxt").write_text(NULL_CONFIG)
    for name, source, on_loop in (
        ("identity", "identity", True),
        ("timed_async", "timed_async", True),
        ("timed_exec", "timed_exec", True),
        ("timed_exec_thread", "timed_exec", False),
    ):
        shutil.copytree(MODELS / source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        if on_loop:
            with (folder / name / "config.pbtxt").open("a") as file:
                file.write(PLACED.format("loop"))
    return folder


async def measure(repository: Path, count: int) -> dict[str, float]:
    """Return microseconds by what was measured: the median of the rounds, which take turns."""
    rounds: dict[str, list[float]] = {}
    async with Kernel(repository, plugins=[NullPlugin()]) as kernel:
        for _ in range(ROUNDS):
            for size in BATCH_SIZES:
                rounds.setdefault(f"request, in bursts of {size}", []).append(await per_request(kernel, size, count))
            rounds.setdefault("awaited infer(), one at a time", []).append(await per_infer(kernel, count // 2))
            for what, model in (
                ("BLS call: async on the loop", "timed_async"),
                ("BLS call: sync on the loop", "timed_exec"),
                ("BLS call: sync on a thread", "timed_exec_thread"),
            ):
                calls = np.array([count // 10], np.float32)
                response = await kernel.infer(model, {"X": calls})
                rounds.setdefault(what, []).append(float(response["Y"][0]))
    return {what: statistics.median(values) for what, values in rounds.items()}


async def per_request(kernel: Kernel, size: int, count: int) -> float:
    """Submit bursts of `size` requests, each when the one before is answered; return microseconds a request."""
    loop = asyncio.get_running_loop()
    missing = 0
    done: asyncio.Future[None]

    def respond(response: InferenceResponse | None, final: bool) -> None:
        nonlocal missing
        assert response is not None and response.error is None and final, response
        missing -= 1
        if not missing:
            done.set_result(None)

    start = time.perf_counter()
    for _ in range(count // size):
        missing, done = size, loop.create_future()
        for _ in range(size):
            kernel.submit(InferenceRequest("null", {"X": Tensor("X", "FP32", ROW)}, respond))
        await done
    return (time.perf_counter() - start) / (count // size * size) * 1e6


async def per_infer(kernel: Kernel, count: int) -> float:
    """Await one `kernel.infer()` after the other; return microseconds a call."""
    start = time.perf_counter()
    for _ in range(count):
        await kernel.infer("null", {"X": ROW})
    return (time.perf_counter() - start) / count * 1e6


if __name__ == "__main__":
    sys.exit(main())

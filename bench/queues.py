"""What queues and batches cost, in process: processor time by request, through the public names of `kernel` alone.

One model with three priority levels, limits and time-outs that requests may shorten, in batches of 32. Its executions end when
the measurement says so, which is how any number of requests can be kept waiting. Behind 100 and behind 100 000 the same is done:
64 requests come, 64 go; of those, 32 or all are executed and the others are cancelled, or time out, after a long wait. Time is
virtual (kernel.testing), so that it costs nothing to wait.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

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
from kernel.testing import run

__all__ = ["measure"]

CONFIG = """
backend: "held"
max_batch_size: 32
dynamic_batching {
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy {
    default_timeout_microseconds: 1000000000000
    allow_timeout_override: true
    max_queue_size: 1000000
  }
}
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
BATCH = 32
DEPTHS = (100, 100_000)
KINDS = ("executed", "half cancelled", "half timed out")
CYCLES = 600
ROW = np.ones((1, 4), np.float32)
URGENT, PATIENT = 1, 3  # priorities
STEP_S = 0.001  # of virtual time, in which BATCH requests time out


def respond(response: InferenceResponse | None, final: bool) -> None:
    """Nobody looks at the answers."""


def request(priority: int, timeout_us: int = 0) -> InferenceRequest:
    inputs = {"X": Tensor("X", "FP32", ROW)}
    return InferenceRequest("held", inputs, respond, "", "", None, None, priority, timeout_us)


def answers(requests: Sequence[InferenceRequest]) -> list[InferenceResponse]:
    return [InferenceResponse([Tensor("Y", "FP32", one.inputs["X"].array)]) for one in requests]


class HeldExecutor:
    """Its execution ends when it is told to."""

    placement = Placement.CALLBACK
    capacity = 1
    may_wait = False

    def __init__(self, context: InstanceContext) -> None:
        self._clock = context.kernel.clock
        self.batch: Batch | None = None

    def execute(self, batch: Batch) -> None:
        batch.started = self._clock()
        self.batch = batch

    def finish(self) -> None:
        """End the execution, whereupon the next one starts."""
        batch, self.batch = self.batch, None
        assert batch is not None
        batch.ended = batch.started
        batch.instance.finished(batch, answers(batch.requests))

    def finalize(self) -> None:
        pass


class HeldBackend:
    """The backend `held`, and the plugin that gives it; of this process only."""

    name = "held"
    creates_on_loop = True
    executor: HeldExecutor

    def complete_config(self, config: ModelConfig, model_folder: Path, version_folder: Path) -> ModelConfig:
        return config

    def validate(self, config: ModelConfig, model_folder: Path, versions: Sequence[int]) -> None:
        pass

    def create(self, context: InstanceContext) -> HeldExecutor:
        self.executor = HeldExecutor(context)
        return self.executor

    @hookimpl
    def register_backends(self) -> Mapping[str, Backend]:
        return {"held": self}


def measure(repository: Path, rounds: int, count: int) -> dict[str, float]:
    """Return microseconds, and ratios, by what was measured: medians of the rounds, which take turns."""
    (repository / "held" / "1").mkdir(parents=True)
    (repository / "held" / "config.pbtxt").write_text(CONFIG)
    backend = HeldBackend()
    found: dict[str, list[float]] = {}

    async def main() -> None:
        async with Kernel(repository, plugins=[backend]) as kernel:
            await in_bursts(kernel, backend, BATCH * 10)
            for _ in range(rounds):
                whole, own = await in_bursts(kernel, backend, count), by_itself(count)
                found.setdefault("request, bursts of 32, priorities and policies", []).append(whole)
                found.setdefault("the same without making requests and answers", []).append(whole - own)
                for kind in KINDS:
                    few, many = [await behind(kernel, backend, depth, kind) for depth in DEPTHS]
                    found.setdefault(f"request behind 100, {kind}", []).append(few)
                    found.setdefault(f"request behind 100 000, {kind}", []).append(many)
                    found.setdefault(f"behind 100 000 / behind 100, {kind}", []).append(many / few)

    run(main())
    return {what: statistics.median(values) for what, values in found.items()}


async def in_bursts(kernel: Kernel, backend: HeldBackend, count: int) -> float:
    """Return microseconds a request, of bursts of 32 that find the model idle and are executed at once."""
    start = time.process_time()
    for _ in range(count // BATCH):
        for number in range(BATCH):
            kernel.submit(request(number & 3))
        await asyncio.sleep(0)
        backend.executor.finish()
    return (time.process_time() - start) / (count // BATCH * BATCH) * 1e6


def by_itself(count: int) -> float:
    """Return microseconds a request that the measuring takes of that."""
    start = time.process_time()
    for _ in range(count // BATCH):
        answers([request(number & 3) for number in range(BATCH)])
    return (time.process_time() - start) / (count // BATCH * BATCH) * 1e6


async def behind(kernel: Kernel, backend: HeldBackend, depth: int, kind: str) -> float:
    """Return microseconds a request, while `depth` others wait in front; see the top of the file."""
    executor = backend.executor
    leaving: deque[InferenceRequest] = deque()  # those that will not be executed, the oldest first
    patience_us = max(2, depth // 2 // BATCH) * int(STEP_S * 1e6) if kind == "half timed out" else 0
    kernel.submit(request(URGENT))
    await asyncio.sleep(STEP_S)

    def come() -> None:
        for _ in range(BATCH):
            kernel.submit(request(URGENT))
        for _ in range(BATCH):
            one = request(URGENT if kind == "executed" else PATIENT, patience_us)
            leaving.append(one)
            kernel.submit(one)

    for _ in range(max(1, depth // 2 // BATCH)):
        come()
        if patience_us:
            await asyncio.sleep(STEP_S)
    start = time.process_time()
    for _ in range(CYCLES):
        come()
        gone = [leaving.popleft() for _ in range(BATCH)]
        executor.finish()
        if kind == "executed":
            executor.finish()
        elif kind == "half cancelled":
            for one in gone:
                kernel.cancel(one)
        else:
            await asyncio.sleep(STEP_S)
    taken = time.process_time() - start
    while executor.batch is not None:  # until nobody waits any more
        executor.finish()
    return taken / (CYCLES * 2 * BATCH) * 1e6

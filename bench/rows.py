"""What is measured and how good it has to be: the rows of the table, as data.

A row gives a figure for each server; a target compares ours with the real Triton's, or with a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from h2load import GrpcLoad
from wrk import Load

__all__ = ["ROWS", "Row", "Target"]


@dataclass(frozen=True)
class Target:
    """`times`: the ratio of ours to the real Triton's has to be at least this (at most, where less is better).
    `limit`: the figure itself has to be below this."""

    times: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Row:
    """`kind`: how it is measured (run.py knows). `less_is_better` for durations and memory. `unit` of the figure.
    `targets`: by placement of the models. `model`: of a health row, the model that is kept busy; of a client row, what
    client.py does, and in how many processes; of a core row, which of core.py's figures it is."""

    key: str
    title: str
    kind: str
    unit: str
    targets: Mapping[str, Target]
    less_is_better: bool = False
    load: Load | GrpcLoad | None = None
    model: str = ""


X4 = {"X": ([4], [1.0, 2.0, 3.0, 4.0])}
AB4 = {"A": ([4], [1.0, 2.0, 3.0, 4.0]), "B": ([4], [5.0, 6.0, 7.0, 8.0])}
MEGABYTE = {"X": ([262144], [float(k % 251) for k in range(262144)])}
ROW256 = {"X": ([1, 256], [Random(256).gauss() for _ in range(256)])}


def rate(key: str, title: str, load: Load | GrpcLoad, **targets: float | None) -> Row:
    """Return a row of requests per second; a placement whose target is None is only shown."""
    return Row(key, title, "rate", "1/s", {name: Target(times=times) for name, times in targets.items()}, load=load)


def core(key: str, title: str, figure: str, limit: float, unit: str = "µs") -> Row:
    """Return a row of what core.py measures in process."""
    return Row(key, title, "core", unit, {"default": Target(limit=limit)}, less_is_better=True, model=figure)


REPEAT = GrpcLoad("repeat", {"N": ([1], [100])}, 1, 8, rpc="ModelStreamInfer", datatype="INT32", answers=100)

ROWS = [
    rate("add_sub", "add_sub, 4 floats, 32 connections", Load("add_sub", AB4, 32), default=2.5, loop=3, process=1.8),
    rate("identity", "identity, 4 floats, 32 connections", Load("identity", X4, 32), default=2, loop=2.5, process=None),
    Row(
        "latency",
        "identity, 4 floats, 1 connection, median",
        "latency",
        "µs",
        {"default": Target(times=1.1), "loop": Target(times=0.7), "process": Target(times=1.3)},
        less_is_better=True,
        load=Load("identity", X4, 1),
    ),
    Row(
        "latency-add_sub",
        "add_sub, 4 floats, 1 connection, median",
        "latency",
        "µs",
        {"process": Target(times=1.3)},
        less_is_better=True,
        load=Load("add_sub", AB4, 1),
    ),
    rate("megabyte-1", "identity, 1 MB, 1 connection", Load("identity", MEGABYTE, 1), default=2, loop=None, process=None),
    rate("megabyte-32", "identity, 1 MB, 32 connections", Load("identity", MEGABYTE, 32), default=2, loop=None, process=2),
    rate("dense", "dense, dynamically batched, 32 connections", Load("dense", ROW256, 32), default=1.3, loop=None),
    rate("chain_async", "10 chained async_exec, 32 connections", Load("chain_async", X4, 32), default=20, loop=30, process=12),
    rate("chain_exec", "10 chained exec, 32 connections", Load("chain_exec", X4, 32), default=2, loop=15, process=2),
    rate("fan_async", "16 concurrent async_exec, 32 connections", Load("fan_async", X4, 32), default=10, loop=15, process=None),
    Row(
        "scaling",
        "computing in pure Python, 2 instances on 2 cores, 8 connections",
        "scaling",
        "× one",
        {"process": Target(limit=1.8)},
        load=Load("work", X4, 8),
    ),
    rate("ensemble", "3-step ensemble, 32 connections", Load("ensemble3", X4, 32), default=4, loop=8),
    rate("grpc-add_sub", "gRPC add_sub, 4 floats, 32 in flight", GrpcLoad("add_sub", AB4, 4, 8), default=4, loop=5),
    rate("grpc-identity", "gRPC identity, 4 floats, 32 in flight", GrpcLoad("identity", X4, 4, 8), default=3.5, loop=4.5),
    Row(
        "grpc-client",
        "gRPC identity, tritonclient.grpc, one at a time",
        "client",
        "1/s",
        {"default": Target(times=1.5), "loop": Target()},
        model="unary",
    ),
    rate("grpc-megabyte", "gRPC identity, 1 MB, 32 in flight", GrpcLoad("identity", MEGABYTE, 4, 8), default=1.5, loop=None),
    Row(
        "grpc-stream",
        "gRPC stream, 100 responses a request, 8 in flight, tritonclient.grpc in 2 processes",
        "client",
        "1/s",
        {"default": Target(times=1.5), "loop": Target()},
        model="stream 2",
    ),
    Row(
        "grpc-stream-one",
        "the same, all 8 by one client process, which is its own limit",
        "client",
        "1/s",
        {"default": Target(), "loop": Target()},
        model="stream",
    ),
    rate("grpc-stream-bytes", "the same, a client that only counts bytes", REPEAT, default=4, loop=None),
    core("bls", "one async_exec in process, callee on the loop", "BLS call: async on the loop", 8),
    core(
        "core",
        "the core's own time for a request, batches of 32, priorities and policies",
        "the same without making requests and answers",
        2,
    ),
    *(
        core(
            f"queue-{kind.replace('half ', '').replace(' ', '-')}",
            f"a request behind 100 000 that wait, against one behind 100, {kind}",
            f"behind 100 000 / behind 100, {kind}",
            1.5,
            "×",
        )
        for kind in ("executed", "half cancelled", "half timed out")
    ),
    Row("ready", "ready to serve ten models", "ready", "s", {"default": Target(limit=1.5)}, less_is_better=True),
    Row(
        "memory",
        "memory (PSS) with ten small models",
        "memory",
        "MB",
        {"default": Target(limit=120)},
        less_is_better=True,
    ),
    Row(
        "health-sleep",
        "p99 of a health check, a model sleeps 200 ms",
        "health",
        "ms",
        {"default": Target(limit=5)},
        less_is_better=True,
        model="sleep",
    ),
    Row(
        "health-compute",
        "p99 of a health check, a model computes 200 ms",
        "health",
        "ms",
        {"default": Target(limit=15)},
        less_is_better=True,
        model="compute",
    ),
]

"""How many replicas there are to be: the flag, and what it can't be combined with."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

from kernel.cli.parser import Parser, positive, seconds
from kernel.replicas import Role

__all__ = ["add_group_flags", "check_group", "usable_cores"]

#: Where the kernel says how much of the machine's time this process's group may have: control groups of version 2.
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def add_group_flags(parser: Parser) -> None:
    parser.add_argument(
        "--replicas",
        type=replicas,
        default=1,
        metavar="N|auto",
        help="how many processes serve at the same ports, each with all models; auto: one for each core (default: 1)",
    )
    parser.add_argument(
        "--replica-hang-seconds",
        type=seconds,
        default=30,
        metavar="SECONDS",
        help="after how long without a sign of life, as it was stopped or its loop is held, a replica is killed and begins anew "
        "(default: 30; 0: never)",
    )
    parser.add_switch(
        "--replica-spare",
        True,
        "keep a process without models beside several replicas, about 40 MB, which takes the place of one that dies",
    )
    parser.add_argument("--replica", type=_role, help=argparse.SUPPRESS)  # a process of the group; given by the supervisor


def replicas(text: str) -> int:
    """Read a value of --replicas."""
    return usable_cores() if text.lower() == "auto" else positive(text)


def _role(text: str) -> Role:
    return Role.parse(text)


def usable_cores(cpu_max: Path = CPU_MAX) -> int:
    """Return on how many cores this process may run, and no fewer than one: by its affinity, and by its control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = cpu_max.read_text().split()
        if quota != "max":
            cores = min(cores, round(int(quota) / int(period)))
    return max(1, cores)


def check_group(parser: Parser, options: argparse.Namespace) -> None:
    """Refuse what several replicas can't do."""
    if options.replicas > 1 and options.watch:
        parser.error("--watch is for development, with one process: --replicas can't be combined with it")

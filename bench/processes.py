"""Measure what models in processes of their own cost to start and to keep: `bench/processes.py [--models N] [--json FILE]`.

Serves N small models, each in a child of this process, and prints how long it took until all were ready, and what memory each
child takes (proportional set size: a page that k processes share counts as a kth). Linux only. The exit code is 1 when a target
is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernel import Kernel

READY_S = 1.5
PSS_MB = 25.0

CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: "placement" value { string_value: "process" } }
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as folder:
        for number in range(options.models):
            model = Path(folder) / f"m{number}"
            (model / "1").mkdir(parents=True)
            (model / "config.pbtxt").write_text(CONFIG)
            (model / "1" / "model.py").write_text(MODEL)
        ready, sizes = asyncio.run(measure(folder, options.models))
    print(f"ready: {ready:.2f} s for {options.models} models (wanted: < {READY_S} for ten)")
    print(f"memory: {max(sizes):.1f} MB PSS at most for each child, {sum(sizes):.1f} in all (wanted: < {PSS_MB:g} each)")
    if options.json:
        options.json.write_text(json.dumps({"ready_s": ready, "pss_mb": sizes}))
    return 1 if ready >= READY_S or max(sizes) >= PSS_MB else 0


async def measure(folder: str, models: int) -> tuple[float, list[float]]:
    """Return the seconds until all are ready, and megabytes for each process that is there then."""
    start = time.monotonic()
    async with Kernel(folder) as kernel:
        ready = time.monotonic() - start
        for number in range(models):
            await kernel.infer(f"m{number}", {"X": np.ones(3, np.float32)})
        return ready, [pss(process) for process in descendants(os.getpid())]


def descendants(process: int) -> list[int]:
    """Return all that a process has started, and what that has."""
    children = [
        int(child)
        for task in os.listdir(f"/proc/{process}/task")
        for child in Path(f"/proc/{process}/task/{task}/children").read_text().split()
    ]
    return [one for child in children for one in (child, *descendants(child))]


def pss(process: int) -> float:
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no Pss in /proc/{process}/smaps_rollup")


if __name__ == "__main__":
    sys.exit(main())

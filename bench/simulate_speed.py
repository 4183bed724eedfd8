"""How many requests does `kernel simulate` go through in a second? `python bench/simulate_speed.py [--requests N] [--counted]`

The real scheduler does all of its work, so the speed depends on what the config has it do: each request alone, batches, several
instances, more than can be done. Seconds are the processor's, the best of three tries. `--counted`: processor instructions for
one request instead, by callgrind (valgrind); they are the same on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kernel.simulation import read_arrivals, read_costs, simulate

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
THREAD = 'parameters { key: "placement" value { string_value: "thread" } }'

#: Name -> more of the config, requests a second, what an execution costs.
CASES = {
    "no batching": (THREAD, 800, "1ms"),
    "on the loop": (THREAD.replace("thread", "loop"), 800, "1ms"),
    "dynamic batching": (
        THREAD + "max_batch_size: 16 dynamic_batching { max_queue_delay_microseconds: 5000 }", 2000, "2ms+0.3ms/row"
    ),
    "several instances": (THREAD + "instance_group { kind: KIND_CPU count: 4 }", 3000, "1ms"),
    "overload": (
        THREAD + "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 100 } }", 5000, "1ms"
    ),
}  # fmt: skip
FEW = 2000  # requests, where instructions are counted


def seconds(folder: Path, name: str, count: int) -> tuple[float, int]:
    """Return how long a simulation of about so many requests took, and how many there were."""
    more, rate, cost = CASES[name]
    model = folder / name.replace(" ", "_") / "m"
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "config.pbtxt").write_text(CONFIG + more)
    (model / "1" / "model.py").write_text("class TritonPythonModel:\n    def execute(self, requests): 1 / 0\n")
    result = simulate(str(model.parent), "m", read_arrivals(f"poisson:{rate},{count / rate}"), read_costs([cost]))
    return result.took, result.requests


def counted(name: str) -> float:
    """Return the processor instructions for one request: of many less those of few."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--dump-before=getsid", sys.executable]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run([*command, __file__, "--child", name], env=environment, capture_output=True, text=True, check=True)
        # Each call of getsid begins a part, which is written when the next one does.
        totals = []
        for part in sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:])):
            found = re.search(r"^(?:totals|summary): (\d+)", part.read_text(errors="replace"), re.MULTILINE)
            totals.append(int(found[1]) if found else 0)
    few, many = map(int, done.stdout.split())
    return (totals[2] - totals[1]) / (many - few)


def child(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seconds(Path(folder), name, FEW)
        os.getsid(0)
        few = seconds(Path(folder), name, FEW)[1]
        os.getsid(0)
        many = seconds(Path(folder), name, 3 * FEW)[1]
        os.getsid(0)
    print(few, many)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200_000, help="of each try (default 200000)")
    parser.add_argument("--counted", action="store_true", help="instructions for a request instead of requests a second")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return 0
    for name in CASES:
        if options.counted:
            print(f"{name:18} {counted(name):9.0f} instructions a request", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            took, count = min(seconds(Path(folder), name, options.requests) for _ in range(3))
        print(f"{name:18} {count / took:9.0f} requests a second   {count} in {took:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

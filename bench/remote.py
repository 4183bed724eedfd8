"""What a remote hop costs: the same gRPC call to a server directly, and through another one whose model is remote.

    python bench/remote.py [--rounds N] [--seconds S] [--far triton]

The far end serves `add_sub` on its loop (with `--far triton`: the real Triton, as it is); in front of it stands ours with a model
of the backend `remote`. h2load asks both by turns, with one call at a time, which tells how long one takes on average, and with
32 at a time, which tells how many there are a second. Medians of the rounds. Needs `h2load`, and says nothing on a machine with
other work.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

import h2load
import servers

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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as name:
        rates = measure(Path(name), options.far, options.rounds, options.seconds)
    found = {key: statistics.median(values) for key, values in rates.items()}
    print("| at a time | direct, 1/s | through ours, 1/s | part | added, µs |\n| ---: | ---: | ---: | ---: | ---: |")
    for streams in AT_A_TIME:
        direct, through = found["direct", streams], found["through", streams]
        added = f"{1e6 / through - 1e6 / direct:.0f}" if streams == 1 else ""
        print(f"| {streams} | {direct:.0f} | {through:.0f} | {through / direct:.2f} | {added} |")
    slow = 1e6 / found["through", 1] - 1e6 / found["direct", 1] > ADDED_US
    return int(slow or found["through", 32] < PART * found["direct", 32])


def measure(folder: Path, kind: str, rounds: int, seconds: float) -> dict[tuple[str, int], list[float]]:
    """Return the rates of each round, by way and calls at a time."""
    far_models = servers.copy_models(folder / "far", placement=None if kind == "triton" else "loop")
    for other in far_models.iterdir():
        if other.name != MODEL:
            shutil.rmtree(other)
    far = servers.start(kind, far_models)
    rates: dict[tuple[str, int], list[float]] = {}
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
                    for way, port in (("direct", far.grpc_port), ("through", near.grpc_port)):
                        rates.setdefault((way, streams), []).append(h2load.run(port, load, seconds, folder))
        finally:
            near.stop()
    finally:
        far.stop()
    return rates


if __name__ == "__main__":
    raise SystemExit(main())

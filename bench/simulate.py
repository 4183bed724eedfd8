"""Lives as many simulated histories of a server as there is time for: `python bench/simulate.py --seeds 10000 --jobs 2`.

Prints how many requests were simulated, and each violation with its seed and the command that replays it. The laws, and what may
go wrong in a history, are in tests/simulation. Exits with 1 where a law was broken.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]

SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories (default 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long, however many are left")
    parser.add_argument("--hash", action="store_true", help="print what came of each seed, to compare two runs")
    options = parser.parse_args()
    from simulation.world import Outcome, simulate

    began = time.monotonic()
    seeds = range(options.start, options.start + options.seeds)
    requests = executions = lived = 0
    broken: list[Outcome] = []
    counts: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(options.jobs) if options.jobs > 1 else _Here() as pool:
        for outcome in pool.imap_unordered(simulate, seeds, chunksize=8):
            lived += 1
            requests += outcome.requests
            executions += outcome.executions
            counts += outcome.counts
            if options.hash:
                print(outcome.seed, outcome.requests, outcome.executions, sorted(outcome.counts.items()))
            if outcome.violations:
                broken.append(outcome)
                if len(broken) <= SHOWN:
                    print(f"seed {outcome.seed}: python bench/simulate.py --start {outcome.seed} --seeds 1")
                    for violation in outcome.violations:
                        print(f"    {violation}", flush=True)
            if options.seconds and time.monotonic() - began > options.seconds:
                break
    seconds = time.monotonic() - began
    print(
        f"{lived} histories, {requests} requests, {executions} executions in {seconds:.1f} s "
        f"({requests / max(seconds, 1e-9):.0f} requests a second); {len(broken)} seeds with violations"
    )
    print("answers: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    return 1 if broken else 0


class _Here:
    """What a pool of processes is for one."""

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def imap_unordered(self, function, items, chunksize):  # type: ignore[no-untyped-def]
        return map(function, items)


if __name__ == "__main__":
    sys.exit(main())

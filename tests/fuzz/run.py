"""Feeds parsers with what a seed makes of good inputs: `make fuzz`, or `python tests/fuzz/run.py --seconds 60 --only http`.

Plain mutation, so that a second brings thousands of executions: inputs are cut, doubled, spliced and given words of their
language; one whose outcome is new is mutated on. What has violated a law is written to tests/fuzz/corpus/TARGET, made as short as
can be, and from then on is tried in every run of the tests. Exits with 1 then.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
if not __package__:  # run as a script
    sys.path[:1] = [str(HERE.parent), str(HERE.parent / "helpers")]

from fuzz.targets import TARGETS, Target  # noqa: E402

CORPUS = HERE / "corpus"
LONGEST = 4096
KEPT = 2000  # inputs that are mutated on
MEMORY = 4 << 30  # bytes of addresses: an input that asks for more is a violation, not the end of the machine


def kept(name: str) -> list[bytes]:
    """Return the inputs of a target's corpus, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


def mutated(rng: Random, target: Target, pool: list[bytes]) -> bytes:
    data = bytearray(rng.choice(pool))
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16, 64)))
        what = rng.random()
        if what < 0.2 and data:
            data[at : at + 1] = bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))])
        elif what < 0.35:
            del data[at:end]
        elif what < 0.45:
            data[at:at] = data[at:end] * rng.choice((1, 2, 20))
        elif what < 0.6:
            other = rng.choice(pool)
            start = rng.randint(0, len(other))
            data[at:end] = other[start : start + rng.choice((4, 40, 400))]
        elif what < 0.85 and target.words:
            data[at : rng.choice((at, end))] = rng.choice(target.words)
        elif at < len(data):
            data[at] ^= 1 << rng.randrange(8)
    return bytes(data[:LONGEST])


def shortened(data: bytes, fails: Callable[[bytes], bool]) -> bytes:
    """Return a part of an input that still fails, with nothing left to be taken out in one piece."""
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data):
            less = data[:at] + data[at + size :]
            if fails(less):
                data = less
            else:
                at += size
        size //= 2
    return data


def failure(target: Target, data: bytes) -> str:
    """Return how a target fails with an input, "" where it doesn't."""
    try:
        target.run(data)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fuzz(name: str, seconds: float, seed: int) -> tuple[int, int, str]:
    """Fuzz one target; return how many executions there were, how many outcomes, and the violation found, "" for none."""
    target, rng = TARGETS[name], Random(seed)
    pool = [*target.seeds, *kept(name)]
    seen: set[str] = set()
    executions = 0
    ends = time.monotonic() + seconds
    while executions % 8 or time.monotonic() < ends:
        data = mutated(rng, target, pool) if executions >= len(pool) else pool[executions]
        executions += 1
        try:
            outcome = target.run(data)
        except Exception as error:
            kind = type(error).__name__
            data = shortened(data, lambda less, kind=kind: failure(target, less).startswith(kind))  # type: ignore[misc]
            path = CORPUS / name / hashlib.sha256(data).hexdigest()[:12]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return executions, len(seen), f"{path}: {data[:200]!r}: {failure(target, data)}"
        if outcome not in seen and len(seen) < KEPT:
            seen.add(outcome)
            pool.append(data)
    return executions, len(seen), ""


def fuzz_all(names: list[str], seconds: float, seed: int, jobs: int) -> tuple[int, int]:
    """Fuzz targets in turn, each in `jobs` processes with seeds of their own; return how many executions and violations."""
    violations = total = 0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for name in names:
            runs = pool.starmap(fuzz, [(name, seconds / len(names), seed + job) for job in range(jobs)], chunksize=1)
            found = [violation for _, _, violation in runs if violation]
            executions, outcomes = sum(run[0] for run in runs), max(run[1] for run in runs)
            total += executions
            violations += bool(found)
            print(f"{name}: {executions} executions, {outcomes} outcomes {' '.join(found) or 'and no violation'}", flush=True)
    return total, violations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together (default 60)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what is drawn from (default: another one each time)")
    parser.add_argument("--only", default="", metavar="WORD", help="the targets whose names contain it")
    parser.add_argument("--jobs", type=int, default=1, help="processes for each target, each with the next seed (default 1)")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    names = [name for name in TARGETS if options.only in name]
    total, violations = fuzz_all(names, options.seconds, options.seed, options.jobs)
    print(f"{total} executions with seed {options.seed}, {violations} targets with violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

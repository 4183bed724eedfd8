"""What keys and limits cost: requests a second with them, as ratios to the same server without, in interleaved rounds.

    python bench/auth.py [--rounds 10] [--seconds 3]

Four servers of the same model run beside one another, and take turns: as it is; with `--auth-keys`, every request with a key;
the same with a key whose rate and concurrency are counted, for which nothing is wanted; with limits on what is in flight and on
connections. Needs wrk. Wanted: keys cost 2 % at most, limits 1 %. Only the median of the ratios means anything, and on a busy
machine not even that.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from servers import MODELS, copy_models, start
from wrk import HEADER, Load

KEYS = """[[client]]
name = "bench"
keys = ["sha256:{digest}"]
{counted}may = [{{ models = ["*"], categories = ["*"] }}]
"""
COUNTED = """\
rate = 1000000
burst = 1000000
concurrency = 10000
"""
LIMITS = ("--max-inflight=10000", "--max-connections=5000", "--max-connections-per-address=5000")
LOAD = Load("add_sub", {"A": ([4], [1.0, 2.0, 3.0, 4.0]), "B": ([4], [1.0, 1.0, 1.0, 1.0])}, 16)
WANTED = {"keys": 0.98, "counted keys": 0.0, "limits": 0.99}
SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["{header}"] = "{length}"
wrk.headers["Authorization"] = "Bearer bench"
file:close()
"""


def throughput(port: int, script: Path, seconds: float) -> float:
    """Requests a second; every answer has to be a success."""
    command = ["wrk", "-t1", f"-c{LOAD.connections}", f"-d{seconds:g}s", "-s", str(script), f"http://127.0.0.1:{port}{LOAD.path}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", told)
    if found is None or "Non-2xx" in told or "Socket errors" in told:
        raise SystemExit(f"the load failed:\n{told}")
    return float(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kernel-auth-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        digest = hashlib.sha256(b"bench").hexdigest()
        (folder / "keys.toml").write_text(KEYS.format(digest=digest, counted=""))
        (folder / "counted.toml").write_text(KEYS.format(digest=digest, counted=COUNTED))
        (folder / "body").write_bytes(LOAD.body())
        script = folder / "load.lua"
        script.write_text(SCRIPT.format(body=folder / "body", header=HEADER, length=len(LOAD.head())))
        local = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1")
        flags = {
            "plain": local,
            "keys": (*local, f"--auth-keys={folder / 'keys.toml'}"),
            "counted keys": (*local, f"--auth-keys={folder / 'counted.toml'}"),
            "limits": (*local, *LIMITS),
        }
        ports = {}
        for kind, given in flags.items():
            (folder / kind).mkdir()
            server = start("default", copy_models(folder / kind / "models", source=MODELS), *given)
            stack.callback(server.stop)
            ports[kind] = server.port
        rounds: dict[str, list[float]] = {kind: [] for kind in ports}
        for turn in range(options.rounds + 1):
            for kind, port in ports.items():
                figure = throughput(port, script, options.seconds)
                if turn:  # the first is to warm up
                    rounds[kind].append(figure)
    well = True
    print(f"plain: {statistics.median(rounds['plain']):.0f} requests a second")
    for kind, wanted in WANTED.items():
        ratios = [one / plain for one, plain in zip(rounds[kind], rounds["plain"], strict=True)]
        ratio = statistics.median(ratios)
        well = well and ratio >= wanted
        print(f"{kind}: {ratio:.3f} of that ({min(ratios):.3f} to {max(ratios):.3f}; wanted: {wanted or 'nothing'})")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

"""What keys and limits cost: requests a second with them, as ratios to the same server without, in interleaved rounds.

    python bench/auth.py [--rounds 10] [--seconds 3]
    python bench/auth.py --counted

Four servers of the same model run beside one another, and take turns: as it is; with `--auth-keys`, every request with a key;
the same with a key whose rate and concurrency are counted, for which nothing is wanted; with limits on what is in flight and on
connections. Needs wrk. Wanted: keys cost 2 % at most, limits 1 %. Only the median of the ratios means anything, and on a busy
machine not even that: there `--counted` tells more, which has callgrind count the server's processor instructions for each
request. Needs valgrind and h2load.
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

from servers import MODELS, Server, copy_models, start
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
CALLGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no")
COUNTED_REQUESTS = 4000
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
    command = [
        "wrk",
        "-t1",
        f"-c{LOAD.connections}",
        f"-d{seconds:g}s",
        "-s",
        str(script),
        f"http://127.0.0.1:{port}{LOAD.path}",
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", told)
    if found is None or "Non-2xx" in told or "Socket errors" in told:
        raise SystemExit(f"the load failed:\n{told}")
    return float(found[1])


def instructions(server: Server, folder: Path) -> float:
    """Processor instructions of the server for each request. It runs under callgrind."""
    (folder / "body").write_bytes(LOAD.body())
    fields = (f"{HEADER}: {len(LOAD.head())}", "Authorization: Bearer bench")
    command = [
        "h2load",
        "--h1",
        "-t1",
        f"-c{LOAD.connections}",
        f"-d{folder / 'body'}",
        *(f"-H{field}" for field in fields),
    ]

    def ask(requests: int) -> None:
        told = subprocess.run(
            [*command, f"-n{requests}", f"http://127.0.0.1:{server.port}{LOAD.path}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if f"{requests} succeeded" not in told:
            raise SystemExit(f"the load failed:\n{told}")

    def control(*words: str) -> None:
        subprocess.run(["callgrind_control", *words, str(server.process.pid)], capture_output=True, check=True)

    ask(COUNTED_REQUESTS // 4)
    control("-i", "on")
    ask(COUNTED_REQUESTS)
    control("-i", "off")
    control("-d")
    texts = (path.read_text() for path in folder.glob("callgrind.out.*"))
    totals = [int(total) for text in texts for total in re.findall(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)]
    return max(totals) / COUNTED_REQUESTS


def count(flags: dict[str, tuple[str, ...]], folder: Path) -> dict[str, float]:
    """Return the instructions for each request, by the kind of server."""
    found = {}
    for kind, given in flags.items():
        here = folder / kind
        here.mkdir()
        options = (*given, "--model-control-mode=explicit", f"--load-model={LOAD.model}")
        server = start("default", copy_models(here / "models", source=MODELS), *options, under=CALLGRIND)
        try:
            found[kind] = instructions(server, here)
        finally:
            server.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--counted", action="store_true", help="count instructions instead of time")
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
        if options.counted:
            found = count(flags, folder)
            print(f"plain: {found['plain']:.0f} instructions a request")
            for kind, wanted in WANTED.items():
                ratio = found["plain"] / found[kind]
                print(f"{kind}: {ratio:.3f} of that throughput by the count (wanted: {wanted or 'nothing'})")
            return 0 if all(found["plain"] / found[kind] >= wanted for kind, wanted in WANTED.items()) else 1
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

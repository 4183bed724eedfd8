"""Others' tools against a server of ours, those of them that are installed: `python scripts/outsiders.py [--seconds 20]`.

slowhttptest (slow heads, bodies and readers on a thousand connections), and testssl on the gRPC port with TLS (the protocols that
it offers). Prints a line for each; the exit code is 1 where one of them has found something.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from e2e.serving import REPOSITORY, Server, serving  # noqa: E402

SLOW = {"slow heads": ["-H"], "slow bodies": ["-B"], "slow readers": ["-X"]}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def slow(server: Server, kind: str, seconds: int) -> bool:
    path = "/metrics" if kind == "slow readers" else "/v2/models/add_sub/infer"
    load = ["-c", "1000", "-r", "200", "-i", "5", "-p", "2", "-l", str(seconds)]
    told = subprocess.run(
        ["slowhttptest", *SLOW[kind], *load, "-u", f"http://{server.url}{path}"],
        capture_output=True, text=True, timeout=seconds + 60,
    ).stdout  # fmt: skip
    lasts = re.findall(r"service available:\s+(\w+)", COLOURS.sub("", told))
    alive = server.request("GET", "/v2/health/live")[0] == 200
    print(f"{kind}: available {lasts.count('YES')} times of {len(lasts)}, health {'answers' if alive else 'does not answer'}")
    return bool(lasts) and "NO" not in lasts and alive


def protocols(folder: Path) -> bool:
    pair = ["-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", *pair]
    subprocess.run(made, check=True, capture_output=True)
    flags = ["--grpc-use-ssl=true", f"--grpc-server-cert={folder / 'cert'}", f"--grpc-server-key={folder / 'key'}"]
    with serving(folder, REPOSITORY, *flags) as server:
        found = re.search(r"Started GRPCInferenceService at [^ ]+:(\d+)", server.text())
        assert found
        told = subprocess.run(
            ["testssl", "--quiet", "--color", "0", "-p", f"127.0.0.1:{found[1]}"], capture_output=True, text=True, timeout=300
        ).stdout
    lines = [" ".join(line.split()) for line in told.splitlines() if re.match(r"\s*(SSLv|TLS )", line)]
    print("testssl: " + "; ".join(lines))
    return bool(lines) and not any(re.match(r"(SSLv\d|TLS 1|TLS 1\.1) offered", line) for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    well = True
    with tempfile.TemporaryDirectory(prefix="kernel-outsiders-") as name:
        folder = Path(name)
        if shutil.which("slowhttptest"):
            with serving(folder, REPOSITORY, "--allow-grpc=false") as server:
                for kind in SLOW:
                    well = slow(server, kind, options.seconds) and well
        else:
            print("slowhttptest is not installed")
        if shutil.which("testssl") and shutil.which("openssl"):
            well = protocols(folder) and well
        else:
            print("testssl is not installed")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

"""Load by `wrk`, and what came of it.

One case is one request, sent over and over by a number of connections. Every answer has to be a success and, before the load
starts, the right one: a figure for wrong answers is worth nothing. wrk is a Debian package: `apt-get install wrk`.
"""

from __future__ import annotations

import http.client
import json
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Load", "Result", "run", "verify"]

HEADER = "Inference-Header-Content-Length"

SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["{header}"] = "{length}"
file:close()

function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format(
      'RESULT {{"requests": %d, "microseconds": %d, "p50": %d, "failed": %d}}\\n',
      summary.requests, summary.duration, latency:percentile(50),
      e.connect + e.read + e.write + e.status + e.timeout))
end
"""


@dataclass(frozen=True)
class Load:
    """A request with binary FP32 inputs, whose outputs are asked for as binary too."""

    model: str
    inputs: dict[str, tuple[list[int], list[float]]]  # name -> shape, values
    connections: int

    def head(self) -> bytes:
        inputs = [
            {"name": name, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": 4 * len(values)}}
            for name, (shape, values) in self.inputs.items()
        ]
        return json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()

    def body(self) -> bytes:
        return self.head() + b"".join(struct.pack(f"<{len(v)}f", *v) for _, v in self.inputs.values())

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"


@dataclass(frozen=True)
class Result:
    per_second: float
    p50_us: float


def verify(port: int, load: Load) -> bytes:
    """Send the request once and return the answer's binary part. Raises RuntimeError when it isn't a success."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", load.path, load.body(), {HEADER: str(len(load.head()))})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{load.path}: {response.status} {answer[:500]!r}")
        return answer[int(response.headers[HEADER]) :]
    finally:
        connection.close()


def run(port: int, load: Load, seconds: float, folder: Path) -> Result:
    """Load the server for `seconds`. Raises RuntimeError when a single answer failed, or without wrk."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("wrk isn't installed; it is a Debian package: apt-get install wrk")
    body, script = folder / f"{load.model}.body", folder / f"{load.model}.lua"
    body.write_bytes(load.body())
    script.write_text(SCRIPT.format(body=body, header=HEADER, length=len(load.head())))
    url = f"http://127.0.0.1:{port}{load.path}"
    command = [wrk, "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s", "--timeout=30s", "-s", script, url]
    process = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    lines = [line for line in process.stdout.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not lines:
        raise RuntimeError(f"wrk failed: {process.stdout}{process.stderr}")
    result = json.loads(lines[0].removeprefix("RESULT "))
    if result["failed"] or not result["requests"]:
        raise RuntimeError(f"{load.path}: {result['failed']} of {result['requests']} answers failed\n{process.stdout}")
    return Result(result["requests"] / result["microseconds"] * 1e6, result["p50"])

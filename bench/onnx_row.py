"""Measure the ONNX classifier of the sample repository: served over HTTP, against onnxruntime alone with the same batches.

    python bench/onnx_row.py [--rounds N] [--seconds S] [--connections N] [--json FILE]

In each round `wrk` asks the server for a while; then one session, with the threads that the model's config gives an instance,
runs as many batches of each size as the server has formed, one after another, in random order. The ratio says what HTTP,
batching, scheduling and encoding cost on top of the network itself. Needs `wrk` and onnxruntime. The exit code is 1 when the
median of the rounds is below the target.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import servers
import wrk

REPOSITORY = servers.PROJECT / "docs" / "onnx_repository"
MODEL = "digits_cnn"
TARGET = 0.85
IMAGE = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), np.uint8)


@dataclass(frozen=True)
class ImageLoad(wrk.Load):
    """One image a request; scores come back as binary data, the label as text."""

    def head(self) -> bytes:
        image = {"name": "IMAGE", "datatype": "UINT8", "shape": list(IMAGE.shape)}
        image["parameters"] = {"binary_data_size": IMAGE.nbytes}
        outputs = [{"name": "LABEL"}, {"name": "SCORES", "parameters": {"binary_data": True}}]
        return json.dumps({"inputs": [image], "outputs": outputs}).encode()

    def body(self) -> bytes:
        return self.head() + IMAGE.tobytes()


def batches(port: int) -> dict[int, int]:
    """Return how many batches of each size the server has executed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/v2/models/{MODEL}/stats")
    (stats,) = json.loads(connection.getresponse().read())["model_stats"]
    connection.close()
    return {entry["batch_size"]: entry["compute_infer"]["count"] for entry in stats["batch_stats"]}


def alone(session: onnxruntime.InferenceSession, sizes: dict[int, int], seconds: float) -> float:
    """Return images a second of `session` with batches of those sizes, in those shares."""
    total = sum(sizes.values())
    order = [size for size, count in sizes.items() for _ in range(max(1, round(count * 200 / total)))]
    random.Random(0).shuffle(order)
    feeds = {size: {"IMAGE": np.repeat(IMAGE, size, axis=0)} for size in sizes}
    for feed in feeds.values():
        session.run(None, feed)
    images, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for size in order:
            session.run(None, feeds[size])
            images += size
    return images / (time.perf_counter() - began)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    file = str(REPOSITORY / MODEL / "1" / "model.onnx")
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    load = ImageLoad(MODEL, {}, options.connections)
    rounds = []
    with tempfile.TemporaryDirectory(prefix="kernel-bench-") as name:
        folder = Path(name)
        server = servers.start("default", servers.copy_models(folder / "models", source=REPOSITORY))
        try:
            wrk.verify(server.port, load)
            wrk.run(server.port, load, 1, folder)
            for _ in range(options.rounds):
                before = batches(server.port)
                served = wrk.run(server.port, load, options.seconds, folder).per_second
                sizes = {size: count - before.get(size, 0) for size, count in batches(server.port).items()}
                sizes = {size: count for size, count in sizes.items() if count}
                direct = alone(session, sizes, options.seconds)
                rows = sum(size * count for size, count in sizes.items()) / sum(sizes.values())
                rounds.append({"served": served, "alone": direct, "ratio": served / direct, "rows a batch": rows})
                print(f"served {served:6.0f}/s   alone {direct:6.0f}/s   {served / direct:.3f}   {rows:.1f} rows a batch")
        finally:
            server.stop()
    ratio = statistics.median(one["ratio"] for one in rounds)
    print(f"median {ratio:.3f}, wanted at least {TARGET}")
    if options.json is not None:
        options.json.write_text(json.dumps({"target": TARGET, "median": ratio, "rounds": rounds}, indent=2))
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())

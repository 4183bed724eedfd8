"""What Triton's own Python client gets out of a server: `python bench/client.py PORT KIND SECONDS [PROCESSES]` prints a figure.

KIND `unary`: calls of `identity` a second, one at a time. KIND `stream`: responses a second of `repeat`, 100 a request, with 8
requests in flight, all over one stream, or shared out to the streams of several client processes: one alone is a Python program
that has to take apart what comes, and is busy with that at 16 000 responses a second whatever serves them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import tritonclient.grpc as client

IN_FLIGHT = 8
RESPONSES = 100


def unary(port: int, seconds: float) -> float:
    server = client.InferenceServerClient(f"127.0.0.1:{port}")
    tensor = client.InferInput("X", [4], "FP32")
    tensor.set_data_from_numpy(np.array([1, 2, 3, 4], np.float32))
    for _ in range(200):
        server.infer("identity", [tensor])
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        for _ in range(50):
            server.infer("identity", [tensor])
        count += 50
    return count / (now - begin)


def stream(port: int, seconds: float, in_flight: int = IN_FLIGHT) -> float:
    server = client.InferenceServerClient(f"127.0.0.1:{port}")
    tensor = client.InferInput("N", [1], "INT32")
    tensor.set_data_from_numpy(np.array([RESPONSES], np.int32))
    over, idle = threading.Event(), threading.Event()
    count, ended = 0, 0
    problems: list[Any] = []

    def take(result: Any, error: Any) -> None:
        nonlocal count, ended
        if error is not None:
            problems.append(error)
            idle.set()
            return
        count += 1
        if result.get_response().parameters["triton_final_response"].bool_param:
            if over.is_set():
                ended += 1
                if ended == in_flight:
                    idle.set()
            else:
                server.async_stream_infer("repeat", [tensor])

    server.start_stream(take)
    for _ in range(in_flight):
        server.async_stream_infer("repeat", [tensor])
    time.sleep(0.5)
    first, begin = count, time.perf_counter()
    time.sleep(seconds)
    figure = (count - first) / (time.perf_counter() - begin)
    over.set()
    if not idle.wait(30) or problems:
        raise SystemExit(f"the stream failed: {problems or 'it did not end'}")
    server.stop_stream()
    return figure


def streams(port: int, seconds: float, processes: int) -> float:
    """Return what as many client processes get together, each with its share of the requests in flight."""
    command = [sys.executable, __file__, str(port), "share", str(seconds), str(processes)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    figures = [client.communicate()[0] for client in clients]
    if any(client.returncode for client in clients):
        raise SystemExit("a client failed")
    return sum(map(float, figures))


def main(port: int, kind: str, seconds: float, processes: int = 1) -> float:
    if kind == "unary":
        return unary(port, seconds)
    if kind == "share":
        return stream(port, seconds, IN_FLIGHT // processes)
    return stream(port, seconds) if processes == 1 else streams(port, seconds, processes)


if __name__ == "__main__":
    print(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), *map(int, sys.argv[4:])))

"""What Triton's own Python client gets out of a server: `python bench/client.py PORT KIND SECONDS` prints a figure.

KIND `unary`: calls of `identity` a second, one at a time. KIND `stream`: responses a second of `repeat` over one stream, 100
a request, with 8 requests in flight. A process of its own, so that the client has a core to itself.
"""

from __future__ import annotations

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


def stream(port: int, seconds: float) -> float:
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
                if ended == IN_FLIGHT:
                    idle.set()
            else:
                server.async_stream_infer("repeat", [tensor])

    server.start_stream(take)
    for _ in range(IN_FLIGHT):
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


if __name__ == "__main__":
    print({"unary": unary, "stream": stream}[sys.argv[2]](int(sys.argv[1]), float(sys.argv[3])))

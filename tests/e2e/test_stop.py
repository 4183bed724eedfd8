"""SIGTERM and SIGINT: nothing new, what is in flight is answered, the exit code tells how it went (lifecycle, section 8)."""

from __future__ import annotations

import http.client
import json
import queue
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from .serving import (
    BROKEN,
    ECHO,
    FINALIZED,
    FREE_PORTS,
    SLEEPER,
    SLOW_TO_LOAD,
    Server,
    run,
    serving,
    wait_until,
    write_model,
)
from .test_grpc_admin import grpc_url

EXPIRED = '"failed to stop server: Internal - Exit timeout expired. Exiting immediately."'


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def sleeping(server: Server, pool: ThreadPoolExecutor, folder: Path, seconds: float) -> Future[tuple[int, Any]]:
    """Send a request that takes so long; return its future once the model is at it."""
    future = pool.submit(server.infer, folder.name, seconds, 60.0)
    wait_until((folder / "1/started").exists)
    return future


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle(tmp_path: Path, number: signal.Signals) -> None:
    folder = write_model(tmp_path / "models", "echo", FINALIZED)
    with serving(tmp_path, tmp_path / "models") as server:
        server.infer("echo", 1.0)
        server.signal(number)
        assert server.wait() == 0
    assert (folder / "1/finalized").exists()
    assert "Traceback" not in server.text()


def test_request_in_flight_is_answered(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    folder = write_model(tmp_path / "models", "sleeper", SLEEPER)
    with serving(tmp_path, tmp_path / "models") as server:
        answer = sleeping(server, pool, folder, 1.5)
        server.signal()
        wait_until(lambda: refused(server))
        assert not answer.done(), "it took longer than the model to close the port"
        status, body = answer.result(10)
        assert (status, body["outputs"][0]["data"]) == (200, [1.5])
        assert server.wait() == 0
    assert "model versions that have in-flight inferences" in server.text()


def test_a_stop_that_is_told_twice_at_once_is_one(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """As `timeout` and make tell it, which send the signal to the process and to its group."""
    folder = write_model(tmp_path / "models", "sleeper", SLEEPER)
    with serving(tmp_path, tmp_path / "models") as server:
        answer = sleeping(server, pool, folder, 1.0)
        for _ in range(20):
            server.signal()
            time.sleep(0.0001)
        assert answer.result(10)[0] == 200
        assert server.wait() == 0
    assert "again" not in server.text()


def refused(server: Server) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), 1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_stopping_server_sees_its_clients_off(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    """Not ready at once; as long as something is in flight, open connections are served until their next answer.

    New ones are accepted for a moment. Who has an idle connection open does not hold up the end.
    """
    folder = write_model(tmp_path / "models", "sleeper", SLEEPER)
    write_model(tmp_path / "models", "echo")
    with serving(tmp_path, tmp_path / "models") as server:
        kept, silent = (http.client.HTTPConnection("127.0.0.1", server.port, timeout=10) for _ in range(2))
        for connection in (kept, silent):
            assert asked(connection, "GET", "/v2/health/ready") == (200, None)
        found = re.search(r"Started GRPCInferenceService at (127\.0\.0\.1:\d+)", server.text())
        assert found is not None
        with grpc.insecure_channel(found[1]) as channel:
            ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
            assert ready(b"") == b"\x08\x01"
            answer = sleeping(server, pool, folder, 2.0)
            server.signal()
            wait_until(lambda: "SIGTERM: stopping" in server.text())
            assert server.request("GET", "/v2/health/ready")[0] == 400, "the port is still open"
            assert server.request("GET", "/v2/health/live")[0] == 200
            assert ready(b"") == b""
            wait_until(lambda: refused(server), 3.0)
            body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [3.0]}]}
            assert asked(kept, "POST", "/v2/models/echo/infer", body) == (200, "close")
        assert not answer.done()
        assert answer.result(10)[0] == 200
        answered = time.monotonic()
        assert server.wait() == 0
        assert time.monotonic() - answered < 5, "an idle connection was waited for"
        silent.close()


def test_ports_stay_open_for_the_drain_delay(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    with serving(tmp_path, tmp_path / "models", "--drain-delay=2") as server:
        server.signal()
        began = time.monotonic()
        wait_until(lambda: "SIGTERM: stopping" in server.text())
        served = 0
        while time.monotonic() - began < 1.5:  # three times as long as without the flag
            assert server.request("GET", "/v2/health/ready")[0] == 400
            assert server.infer("echo", 3.0)[0] == 200
            served += 1
        assert served
        wait_until(lambda: refused(server), 5.0)
        assert server.wait() == 0


def test_a_drain_delay_that_leaves_no_time_for_what_is_in_flight(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo")
    done = run("serve", str(tmp_path / "models"), "--drain-delay=30")
    assert done.returncode == 1
    assert "--drain-delay 30 leaves nothing of --exit-timeout-secs 30 for what is in flight" in done.stderr


def asked(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> tuple[int, str | None]:
    """Return the status of the answer and what it says of the connection."""
    connection.request(method, path, None if body is None else json.dumps(body))
    response = connection.getresponse()
    response.read()
    return response.status, response.getheader("Connection")


def test_queued_requests_are_answered(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    folder = write_model(tmp_path / "models", "sleeper", SLEEPER)
    with serving(tmp_path, tmp_path / "models") as server:
        first = sleeping(server, pool, folder, 0.5)
        others = [pool.submit(server.infer, "sleeper", 0.0, 60.0) for _ in range(3)]
        wait_until(lambda: all(other.running() for other in others))
        time.sleep(0.2)  # for the requests to arrive
        server.signal()
        assert [future.result(10)[0] for future in (first, *others)] == [200] * 4
        assert server.wait() == 0


def test_limit(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    folder = write_model(tmp_path / "models", "sleeper", SLEEPER)
    with serving(tmp_path, tmp_path / "models", "--exit-timeout-secs=1") as server:
        answer = sleeping(server, pool, folder, 20.0)
        began = time.monotonic()
        server.signal()
        assert server.wait() == 1
        assert 0.9 < time.monotonic() - began < 4
        status, body = answer.result(10)
        assert status == 503
        assert "Server is stopping" in body["error"]
    assert EXPIRED in server.text()


SEQUENCES = """
sequence_batching {
  oldest { max_candidate_sequences: 8 }
  max_sequence_idle_microseconds: 3600000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
}
"""
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def one_of(sequence: int, **parameters: bool) -> dict[str, Any]:
    tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [3.0]}
    return {"parameters": {"sequence_id": sequence, **parameters}, "inputs": [tensor]}


def test_who_is_in_a_sequence_goes_on_to_its_end(tmp_path: Path) -> None:
    """On the connections that are open, with both protocols, longer than the ports are; nobody begins another one."""
    write_model(tmp_path / "models", "counts", more=SEQUENCES)
    path = "/v2/models/counts/infer"
    with serving(tmp_path, tmp_path / "models") as server, triton_grpc.InferenceServerClient(grpc_url(server)) as client:
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        given = triton_grpc.InferInput("X", [1], "FP32").set_data_from_numpy(np.array([3], np.float32))
        assert asked(kept, "POST", path, one_of(1, sequence_start=True)) == (200, None)
        client.infer("counts", [given], sequence_id=2, sequence_start=True)
        streamed: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: streamed.put((result, error)))
        client.async_stream_infer("counts", [given], sequence_id=3, sequence_start=True)
        assert streamed.get(timeout=10)[1] is None
        server.signal()
        wait_until(lambda: refused(server))
        for last in (False, True):
            assert asked(kept, "POST", path, one_of(1, sequence_end=last)) == (200, None)
            client.async_stream_infer("counts", [given], sequence_id=3, sequence_end=last)
            assert streamed.get(timeout=10)[1] is None
        assert asked(kept, "POST", path, one_of(4, sequence_start=True)) == (503, None)
        with pytest.raises(InferenceServerException, match=STOPPING):
            client.infer("counts", [given], sequence_id=5, sequence_start=True)
        assert server.process.poll() is None
        client.infer("counts", [given], sequence_id=2, sequence_end=True)
        assert server.wait() == 0
        assert "shutting down" in str(streamed.get(timeout=10)[1])
        kept.close()


def test_a_sequence_that_nobody_goes_on_with_does_not_make_a_stop_fail(tmp_path: Path) -> None:
    """It has the time that its model and the limit allow; then it is given up, and that is a clean end."""
    folder = write_model(tmp_path / "models", "counts", FINALIZED, more=SEQUENCES)
    with serving(tmp_path, tmp_path / "models", "--exit-timeout-secs=4") as server:
        assert server.request("POST", "/v2/models/counts/infer", one_of(1, sequence_start=True))[0] == 200
        began = time.monotonic()
        server.signal()
        assert server.wait() == 0
        assert time.monotonic() - began > 2
    assert (folder / "1/finalized").exists()


def test_second_signal(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    folder = write_model(tmp_path / "models", "sleeper", SLEEPER)
    with serving(tmp_path, tmp_path / "models") as server:
        answer = sleeping(server, pool, folder, 20.0)
        server.signal()
        wait_until(lambda: "SIGTERM: stopping" in server.text())
        time.sleep(0.2)  # at once it would be the same stop
        server.signal()
        began = time.monotonic()
        assert server.wait() == 1
        assert time.monotonic() - began < 10
        assert answer.exception(10) is not None or answer.result()[0] != 200


def test_while_loading(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models", "slow", SLOW_TO_LOAD)
    server = Server(tmp_path / "log", [tmp_path / "models", "--exit-timeout-secs=1"])
    try:
        wait_until((folder / "1/loading").exists)
        server.signal()
        assert server.wait() == 0
    finally:
        server.process.kill()
        server.process.wait()
    assert "Started HTTPService" not in server.text()


EXITS = """\
    async def execute(self, requests):
        import asyncio
        import sys

        async def leave():
            sys.exit(7)

        await asyncio.gather(leave(), asyncio.sleep(0.01))
"""

EXITS_AT_THE_END = (
    ECHO
    + """
    def finalize(self):
        raise SystemExit(5)
"""
)


def test_a_model_cannot_end_the_server(tmp_path: Path) -> None:
    """`sys.exit()` in a task that the model has made itself, and in finalize: the server lives on and stops with 0."""
    in_server = 'parameters { key: "placement" value { string_value: "loop" } }'
    for name, body in (("exits", EXITS), ("late", EXITS_AT_THE_END), ("echo", ECHO)):
        write_model(tmp_path / "models", name, body, more=in_server)
    with serving(tmp_path, tmp_path / "models") as server:
        for _ in range(2):
            status, body = server.infer("exits", 1.0)
            assert (status, "SystemExit: 7" in body["error"]) == (500, True)
        assert server.infer("echo", 1.0)[0] == 200
        server.signal()
        assert server.wait() == 0
    assert "model code has raised SystemExit(7) in a task of its own; the server goes on" in server.text()


HANGS_AT_THE_END = (
    ECHO
    + """
    def finalize(self):
        time.sleep(1000)
"""
)


def test_a_hanging_finalize_does_not_hold_up_a_failed_start(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "hangs", HANGS_AT_THE_END)
    write_model(tmp_path / "models", "broken", BROKEN)
    done = subprocess.run(
        [sys.executable, "-m", "kernel", "serve", str(tmp_path / "models"), *FREE_PORTS],
        capture_output=True,
        text=True,
        timeout=25,
    )
    assert done.returncode == 1
    assert "failed to load all models" in done.stderr


LEAVES = """\
    def execute(self, requests):
        import atexit
        import concurrent.futures
        import multiprocessing
        import threading
        value = int(requests[0].inputs()[0].as_numpy()[0])
        if value == 1:
            threading.Thread(target=time.sleep, args=(1000,), name="left", daemon=False).start()
        elif value == 2:
            process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
            process.start()
            (Path(__file__).parent / "pid").write_text(str(process.pid))
        elif value == 3:
            atexit.register(time.sleep, 1000)
        elif value == 4:
            self.pool = concurrent.futures.ThreadPoolExecutor()
            self.pool.submit(abs, 1).result()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""

LEAVES_TASKS = """\
    async def execute(self, requests):
        import asyncio

        async def stubborn():
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass

        self.task = asyncio.create_task(stubborn())
        await asyncio.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ((1, 2, 3), "thread 'left', process {pid}"),
        ((3,), "something that Python waits for at its end"),
        ((4,), ""),
    ],
)
def test_the_process_ends_whatever_models_have_left(tmp_path: Path, values: tuple[int, ...], left: str) -> None:
    placement = 'parameters { key: "placement" value { string_value: "thread" } }'
    folder = write_model(tmp_path / "models", "leaves", LEAVES, more=placement)
    with serving(tmp_path, tmp_path / "models") as server:
        for value in values:
            assert server.infer("leaves", float(value))[0] == 200
        began = time.monotonic()
        server.signal()
        assert server.wait() == 0
        assert time.monotonic() - began < (8 if left else 5)
        if 2 in values:
            pid = int((folder / "1/pid").read_text())
            wait_until(lambda: not Path(f"/proc/{pid}").exists())
            left = left.format(pid=pid)
        words = f"models have left behind what does not end by itself: {left}; ending without it"
        assert (words in server.text()) == bool(left)


def test_the_process_ends_whatever_tasks_models_have_left(tmp_path: Path) -> None:
    placement = 'parameters { key: "placement" value { string_value: "loop" } }'
    write_model(tmp_path / "models", "leaves", LEAVES_TASKS, more=placement)
    with serving(tmp_path, tmp_path / "models") as server:
        assert server.infer("leaves", 1.0)[0] == 200
        server.signal()
        assert server.wait() == 0
    assert "something that Python waits for at its end; ending without it" in server.text()


def test_infer_ends_whatever_the_model_has_left(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "leaves", LEAVES, more='parameters { key: "placement" value { string_value: "thread" } }')
    done = run("infer", tmp_path / "models", "leaves", "--input", "X=[1]")
    assert (done.returncode, json.loads(done.stdout)["outputs"][0]["data"]) == (0, [1.0])
    assert "models have left behind what does not end by itself: thread 'left'; ending without it" in done.stderr

"""The ASGI application in a Starlette app under uvicorn, with the unmodified clients and with clients that go."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from .serving import REPOSITORY, START_LIMIT_S, STOP_LIMIT_S, wait_until, write_model
from .test_aio_client import test_calls, test_infer_concurrently
from .test_client import (
    client,
    tensor,
    test_classification,
    test_compression,
    test_health,
    test_index,
    test_infer,
    test_infer_all_outputs,
    test_infer_strings,
    test_load_is_refused_without_explicit_mode,
    test_many_at_once,
    test_model_config,
    test_model_metadata,
    test_pipelines_read_real_digits,
    test_refusals,
    test_server_metadata,
)

#: The tests of the two clients run once more here, with this file's `url`.
__all__ = [
    "client",
    "test_calls",
    "test_classification",
    "test_compression",
    "test_health",
    "test_index",
    "test_infer",
    "test_infer_all_outputs",
    "test_infer_concurrently",
    "test_infer_strings",
    "test_load_is_refused_without_explicit_mode",
    "test_many_at_once",
    "test_model_config",
    "test_model_metadata",
    "test_pipelines_read_real_digits",
    "test_refusals",
    "test_server_metadata",
]

#: Waits for the end of its request and then leaves the file `cancelled`; `started` tells that it waits.
WAITER = """\
    async def execute(self, requests):
        import asyncio
        folder = Path(__file__).parent
        (folder / "started").touch()
        while not requests[0].is_cancelled():
            await asyncio.sleep(0.005)
        (folder / "cancelled").touch()
        return [None]
"""

#: Sends responses until its request is cancelled, and then leaves the file `cancelled`.
ENDLESS = """\
    async def execute(self, requests):
        import asyncio
        folder = Path(__file__).parent
        sender = requests[0].get_response_sender()
        while not requests[0].is_cancelled():
            y = pb_utils.Tensor("Y", np.zeros(100, np.float32))
            sender.send(pb_utils.InferenceResponse([y]))
            (folder / "started").touch()
            await asyncio.sleep(0.001)
        (folder / "cancelled").touch()
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

#: Takes a second, long enough to be told to stop meanwhile.
SLOW = """\
    async def execute(self, requests):
        import asyncio
        (Path(__file__).parent / "started").touch()
        await asyncio.sleep(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""


@contextmanager
def running(http: str, loop: str, repository: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run asgi_app.py; give its address. It must end well, and without a word."""
    app = Path(__file__).with_name("asgi_app.py")
    process = subprocess.Popen(
        [sys.executable, app, http, loop, repository], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, process.communicate()
        wait_until(lambda: is_open(address), START_LIMIT_S)
        yield address, process
        process.terminate()
        _, errors = process.communicate(timeout=STOP_LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in (0, -signal.SIGTERM) and not errors


def is_open(address: str) -> bool:
    try:
        return get(address, "/models/v2/health/ready")[0] == 200
    except OSError:
        return False


def get(address: str, path: str, method: str = "GET", body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        data = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method, path, data, headers, encode_chunked=headers.get("Transfer-Encoding") == "chunked")
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


@pytest.fixture(scope="module", params=["httptools-uvloop", "httptools-asyncio", "h11-uvloop", "h11-asyncio"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(*request.param.split("-"), REPOSITORY) as (address, _):
        yield address


@pytest.fixture(scope="module")
def url(address: str) -> str:
    return f"{address}/models"


def test_the_app_is_still_there(address: str) -> None:
    assert get(address, "/")[2] == b"hello"
    assert get(address, "/v2")[0] == 404
    status, headers, body = get(address, "/models/v2/nothing")
    assert (status, headers["content-type"], body) == (404, "text/plain", b'{"error":"Not Found"}')
    assert get(address, "/models/v2/models/add_sub/ready")[0] == 200
    assert get(address, "/models/v2/models/add%5Fsub/ready")[0] == 400
    assert get(address, "/models/v2", "HEAD")[::2] == (405, b"")


@pytest.mark.parametrize("prefix", ["of/me", "of/m%C3%A4%20e", "wrapped"])
def test_other_prefixes(address: str, prefix: str) -> None:
    with triton.InferenceServerClient(f"{address}/{prefix}") as other:
        a = np.arange(3, dtype=np.float32)
        result = other.infer("add_sub", [tensor("A", a), tensor("B", a, binary=False)])
        assert result.as_numpy("SUM").tolist() == [0, 2, 4]


@pytest.mark.parametrize("prefix", ["models", "wrapped"])
def test_generate_stream(address: str, prefix: str) -> None:
    path = f"/{prefix}/v2/models/repeat/generate_stream"
    status, headers, body = get(address, path, "POST", {"IN": [5, 6, 7], "DELAY_MS": 30})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert [json.loads(line.removeprefix("data: "))["OUT"] for line in body.decode().split("\n\n")[:-1]] == [5, 6, 7]
    assert get(address, path, "POST", {"IN": []})[::2] == (200, b"")
    assert get(address, path, "POST", {"IN": "x"})[0] == 400
    assert get(address, path.removesuffix("_stream"), "POST", {"IN": 7})[2].startswith(b'{"INDEX":0,"OUT":7')


def test_events_come_as_they_are_made(address: str) -> None:
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("POST", "/models/v2/models/repeat/generate_stream", json.dumps({"IN": [1] * 50, "DELAY_MS": 20}))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    assert not response.isclosed()
    connection.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies(address: str, chunked: bool) -> None:
    a = np.arange(2_000_000, dtype=np.float32)
    inputs = [{"name": name, "datatype": "FP32", "shape": [len(a)], "parameters": {"binary_data_size": a.nbytes}}
              for name in "AB"]  # fmt: skip
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    whole = head + 2 * a.tobytes()
    length = {"Inference-Header-Content-Length": str(len(head))}
    if chunked:
        pieces = iter([whole[at : at + 100_000] for at in range(0, len(whole), 100_000)])
        status, headers, body = get(
            address, "/models/v2/models/add_sub/infer", "POST", pieces, **length, **{"Transfer-Encoding": "chunked"}
        )
    else:
        status, headers, body = get(address, "/models/v2/models/add_sub/infer", "POST", whole, **length)
    assert status == 200
    total, difference = np.frombuffer(body[int(headers["inference-header-content-length"]) :], np.float32).reshape(2, -1)
    assert np.array_equal(total, 2 * a) and not difference.any()


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("waiting")
    write_model(folder, "waiter", WAITER)
    write_model(folder, "endless", ENDLESS, more="model_transaction_policy { decoupled: true }")
    write_model(folder, "slow", SLOW)
    return folder


X = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}


@pytest.mark.parametrize("prefix", ["models", "wrapped"])
@pytest.mark.parametrize("variant", ["httptools-uvloop", "h11-asyncio"])
def test_clients_that_go_and_a_server_that_stops(waiting: Path, variant: str, prefix: str) -> None:
    """Going cancels the request, also in the middle of its stream; a stop waits for what is in flight."""
    with running(*variant.split("-"), waiting) as (address, process):
        for model, path, body in (("waiter", "infer", X), ("endless", "generate_stream", {"X": 1})):
            (started, cancelled) = (waiting / model / "1" / name for name in ("started", "cancelled"))
            send(address, f"/{prefix}/v2/models/{model}/{path}", body, wait_for=started).close()
            wait_until(cancelled.exists)
            started.unlink()
            cancelled.unlink()
        started = waiting / "slow/1/started"
        connection = send(address, f"/{prefix}/v2/models/slow/infer", X, wait_for=started)
        process.terminate()
        answer = connection.makefile("rb").read()
        connection.close()
        started.unlink()
        assert answer.startswith(b"HTTP/1.1 200 OK") and b'"data":[1.0]' in answer


def send(address: str, path: str, body: object, *, wait_for: Path) -> socket.socket:
    """Send a request and return its connection once the model has begun."""
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    data = json.dumps(body).encode()
    connection.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data))
    wait_until(wait_for.exists)
    return connection

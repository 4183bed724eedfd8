"""The rest of HTTP with real clients: shared memory, settings that take effect, restrictions, TLS, Unix-domain sockets, and
clients that shut down their side.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import signal
import socket
import ssl
import stat
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import gevent.ssl
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
import uvloop
from certificates import Certificates, make_certificates
from tritonclient.utils import InferenceServerException

from kernel import Kernel

from .serving import Server, serving, wait_until, write_model

#: Logs one line of each kind for a request.
TALKER = """\
    def execute(self, requests):
        for log in ("log_info", "log_warn", "log_error", "log_verbose"):
            getattr(pb_utils.Logger, log)(f"{log} {requests[0].request_id()}")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""

#: Writes to its input, as models may.
SCRIBBLER = """\
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        x += 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
"""

LOAD = ("--model-control-mode=explicit", "--load-model=*")
ONLY_HTTP = "--allow-grpc=false"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certificates]:
    yield make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the models `talker`, `scribbler` and `add`, two of whose categories are restricted."""
    folder = tmp_path_factory.mktemp("rest")
    write_model(folder / "models", "talker", TALKER)
    write_model(folder / "models", "scribbler", SCRIBBLER)
    flags = ("--http-restricted-api=model-repository,statistics:admin-key=secret", "--trace-config=rate=9")
    with serving(folder, folder / "models", ONLY_HTTP, *LOAD, *flags) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url) as client:
        yield client


def given(array: np.ndarray) -> triton.InferInput:
    made = triton.InferInput("X", list(array.shape), "FP32")
    made.set_data_from_numpy(array)
    return made


# --- shared memory


def test_shared_memory(client: triton.InferenceServerClient) -> None:
    key = f"/kernel_test_{uuid.uuid4().hex}"
    data = np.arange(100, dtype=np.float32)
    region = shm.create_shared_memory_region("mine", key, 1024)
    try:
        client.register_system_shared_memory("mine", key, 1024)
        assert client.get_system_shared_memory_status() == [{"name": "mine", "key": key, "offset": 0, "byte_size": 1024}]
        shm.set_shared_memory_region(region, [data])
        source = triton.InferInput("X", [100], "FP32")
        source.set_shared_memory("mine", 400)
        target = triton.InferRequestedOutput("Y")
        target.set_shared_memory("mine", 400, offset=512)
        result = client.infer("scribbler", [source], outputs=[target])
        assert result.get_output("Y") == {"name": "Y", "datatype": "FP32", "shape": [100]}
        assert shm.get_contents_as_numpy(region, np.float32, [100], 512).tolist() == (data + 1).tolist()
        assert shm.get_contents_as_numpy(region, np.float32, [100]).tolist() == data.tolist()

        target.set_shared_memory("mine", 399, offset=512)
        with pytest.raises(InferenceServerException, match=r"output 'Y' \(399 bytes\) should be at least 400 bytes"):
            client.infer("scribbler", [source], outputs=[target])
        (counted,) = client.get_inference_statistics("scribbler", headers={"admin-key": "secret"})["model_stats"]
        assert counted["inference_stats"]["success"]["count"] == 2  # the model has done its part
        with pytest.raises(InferenceServerException, match="shared memory region 'mine' already in manager"):
            client.register_system_shared_memory("mine", key, 1024)
        client.unregister_system_shared_memory("mine")
        assert client.get_system_shared_memory_status() == []
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'mine'"):
            client.infer("scribbler", [source])
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(region)


def test_cuda_shared_memory_is_refused(client: triton.InferenceServerClient) -> None:
    assert client.get_cuda_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="failed to register shared memory region: invalid args"):
        client.register_cuda_shared_memory("r", b"A" * 86 + b"==", 0, 64)
    client.unregister_cuda_shared_memory()


def test_shared_memory_switched_off(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with serving(tmp_path, tmp_path / "models", ONLY_HTTP, "--allow-client-shm=false") as server:
        with triton.InferenceServerClient(server.url) as client:
            with pytest.raises(InferenceServerException, match="start the server with --allow-client-shm=true"):
                client.register_system_shared_memory("r", "/k", 64)


# --- settings


def test_trace_settings(client: triton.InferenceServerClient) -> None:
    assert client.get_trace_settings()["trace_rate"] == "9"
    assert client.update_trace_settings("talker", {"trace_rate": "5", "trace_count": "3"})["trace_rate"] == "5"
    assert client.get_trace_settings("scribbler")["trace_rate"] == "9"
    assert client.update_trace_settings("talker", {"trace_rate": None, "trace_count": None}) == client.get_trace_settings()
    with pytest.raises(InferenceServerException, match="trace file name is not given"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})


def test_log_settings_take_effect(server: Server, client: triton.InferenceServerClient) -> None:
    everything = {"log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0, "log_format": "default"}

    def logged(id: str) -> str:
        """Return the letters of the lines that the model's log calls for one request have come to."""
        client.infer("talker", [given(np.ones(1, np.float32))], request_id=id)
        lines = [line for line in server.text().splitlines() if line.endswith(f' {id}"')]
        return "".join(line.split()[1] if line[0].isdigit() else line[0] for line in lines)

    assert client.get_log_settings() == {"log_file": "", **everything}
    try:
        assert logged("first") == "IWE"
        changed = client.update_log_settings({"log_info": False, "log_error": False, "log_verbose_level": 1})
        assert changed == {"log_file": "", **everything, "log_info": False, "log_error": False, "log_verbose_level": 1}
        assert logged("second") == "WI"
        client.update_log_settings({"log_format": "ISO8601", "log_verbose_level": 0, "log_error": True})
        assert logged("third") == "WE"
        assert any(line.startswith("20") for line in server.text().splitlines())
        with pytest.raises(InferenceServerException, match="invalid argument for --log_format, got: x"):
            client.update_log_settings({"log_info": True, "log_format": "x"})
        assert logged("fourth") == "WE"
    finally:
        client.update_log_settings(everything)
    assert logged("fifth") == "IWE"


# --- restrictions


def test_restrictions(client: triton.InferenceServerClient) -> None:
    assert client.is_server_ready()
    key = {"Admin-Key": "secret"}
    for call in (client.get_model_repository_index, client.get_inference_statistics):
        assert call(headers=key)
        for headers in (None, {"Admin-Key": "guess"}):
            with pytest.raises(InferenceServerException, match="This API is restricted, expecting header 'admin-key'"):
                call(headers=headers)


# --- TLS


def test_tls(tmp_path: Path, files: Certificates) -> None:
    write_model(tmp_path / "models", "scribbler", SCRIBBLER)
    flags = (f"--http-server-cert={files.server}", f"--http-server-key={files.server_key}", f"--http-root-cert={files.ca}")
    server = Server(tmp_path / "log", [tmp_path / "models", ONLY_HTTP, "--http-use-ssl-mutual", *flags])
    try:
        wait_until(lambda: "Started HTTPSService at 127.0.0.1:" in server.text() or server.process.poll() is not None, 30)
        port = int(server.text().partition("HTTPSService at 127.0.0.1:")[2].partition('"')[0])
        options = {"ca_certs": files.ca, "certfile": files.client, "keyfile": files.client_key}
        url = f"localhost:{port}"
        with triton.InferenceServerClient(
            url, ssl=True, ssl_options=options, ssl_context_factory=gevent.ssl.create_default_context
        ) as client:
            assert client.is_server_ready()
            data = np.arange(500_000, dtype=np.float32)  # more than fits into one read
            assert client.infer("scribbler", [given(data)]).as_numpy("Y").tolist() == (data + 1).tolist()
        stranger = ssl.create_default_context(cafile=files.ca)
        connection = http.client.HTTPSConnection("localhost", port, context=stranger, timeout=10)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connection.request("GET", "/v2/health/live")
            connection.getresponse()
        connection.close()
    finally:
        server.process.terminate()
        assert server.wait() == 0, server.text()


def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    flags = ("--http-use-ssl", "--http-server-cert=/no", "--http-server-key=/no")
    server = Server(tmp_path / "log", [tmp_path / "models", ONLY_HTTP, *flags])
    assert server.wait() == 1
    assert (
        "error: creating server: Invalid argument - TLS can't use the server certificate '/no': No such file or directory"
        in server.text()
    )


# --- Unix-domain sockets


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self.path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def ask(path: Path, method: str, target: str, body: Any = None) -> tuple[int, bytes]:
    connection = UnixConnection(path)
    try:
        connection.request(method, target, None if body is None else json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_unix_socket(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "scribbler", SCRIBBLER)
    path = tmp_path / "http.sock"
    arguments = [tmp_path / "models", ONLY_HTTP, f"--http-address=unix:{path}"]
    for number in (signal.SIGKILL, signal.SIGTERM):  # the second finds what the first has left
        server = Server(tmp_path / f"log-{number}", arguments)
        try:
            wait_until(lambda server=server: "Started HTTPService" in server.text() or server.process.poll() is not None, 30)
            assert f'"Started HTTPService at unix:{path}"' in server.text(), server.text()
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
            status, answer = ask(path, "POST", "/v2/models/scribbler/infer", body)
            assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [2.0])
            second = Server(tmp_path / "log-second", arguments)
            assert second.wait() == 1
            assert f"Socket 'unix:{path}' already in use" in second.text()
            assert ask(path, "GET", "/v2/health/live") == (200, b"")
        finally:
            server.signal(number)
            server.wait()
    assert not path.exists()


# --- clients that shut down their side

#: Waits X seconds and notes in its version folder what has become of the request.
WAITER = """\
    async def execute(self, requests):
        import asyncio
        x = requests[0].inputs()[0].as_numpy()
        for _ in range(int(x[0] * 100)):
            await asyncio.sleep(0.01)
            if requests[0].is_cancelled():
                (Path(__file__).parent / "cancelled").touch()
                break
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)])]
"""


@pytest.fixture(params=["asyncio", "uvloop"])
def with_port(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[str, int], Awaitable[None]]], None]:
    """Run a test on a loop with a kernel that serves `waiter` at a TCP port and at a Unix-domain socket."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    write_model(tmp_path / "models", "waiter", WAITER)

    async def main(test: Callable[[str, int], Awaitable[None]]) -> None:
        from kernel_http import add_options, register_frontends

        async with Kernel(tmp_path / "models") as kernel:
            parser = argparse.ArgumentParser()
            add_options(parser)
            path = str(tmp_path / "s")
            for place in (["--http-address=127.0.0.1", "--http-port=0"], [f"--http-address=unix:{path}"]):
                (frontend,) = register_frontends(kernel, parser.parse_args(place))
                await frontend.start()
                try:
                    port = 0 if "unix" in place[0] else int(frontend.address.rpartition(":")[2])
                    await asyncio.wait_for(test("" if port else path, port), 20)
                finally:
                    await frontend.drain()
                    await frontend.stop()

    def run(test: Callable[[str, int], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(test))

    return run


def waiting(seconds: float) -> bytes:
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [seconds]}]}).encode()
    return b"POST /v2/models/waiter/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def connected(path: str, port: int) -> socket.socket:
    if port:
        return socket.create_connection(("127.0.0.1", port), 10)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(path)
    return connection


def read_all(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_who_shuts_down_its_side_gets_its_answers(with_port: Any) -> None:
    async def main(path: str, port: int) -> None:
        for requests, count in (
            (waiting(0), 1),
            (waiting(0.4), 1),
            (waiting(0.3) + waiting(0) + waiting(0.1), 3),
            (waiting(0) * 300, 300),  # more than may be in flight
        ):
            connection = connected(path, port)
            connection.sendall(requests)
            connection.shutdown(socket.SHUT_WR)
            answers = await asyncio.to_thread(read_all, connection)
            assert answers.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            assert answers.count(b"HTTP/1.1 200 OK\r\n") == answers.count(b'"model_name":"waiter"') == count

    with_port(main)


def test_who_has_gone_is_cancelled(with_port: Any, tmp_path: Path) -> None:
    noted = tmp_path / "models" / "waiter" / "1" / "cancelled"

    async def main(path: str, port: int) -> None:
        for shut_down_first in (False, True):
            connection = connected(path, port)
            connection.sendall(waiting(15))
            await asyncio.sleep(0.05)
            if shut_down_first:
                connection.shutdown(socket.SHUT_WR)
            connection.close()
            await asyncio.to_thread(wait_until, noted.exists, 0.35)
            noted.unlink()

    with_port(main)

"""Where the front end listens: Unix-domain sockets and their files, TLS, and what is wrong with either."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from certificates import Certificates, make_certificates
from frontends.fakes import FakeKernel, binary, parse, request, tensor

from kernel import ServingError
from kernel.listening import Listener, Place
from kernel_http import add_options, register_frontends

Run = Callable[[Callable[[], Awaitable[None]]], None]
LIVE = request("GET", "/v2/health/live")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_on_loop(function: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(function())  # type: ignore[arg-type]

    return run_on_loop


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certificates]:
    yield make_certificates(tmp_path_factory.mktemp("tls"))


def frontend(*arguments: str) -> Any:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser)
    kernel = FakeKernel()
    with contextlib.suppress(RuntimeError):
        kernel.loop = asyncio.get_running_loop()
    (made,) = register_frontends(kernel, parser.parse_args(arguments))
    return made


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> Any:
    """Send one request and return its response."""
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
    (response,) = parse(head + await reader.readexactly(length))
    return response


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


# --- Unix-domain sockets


def test_a_socket_comes_and_goes(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"

    async def main() -> None:
        server = frontend(f"--http-address=unix:{path}", "--http-port=1")
        await server.start()
        assert server.address == f"http://unix:{path}"
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        reader, writer = await asyncio.open_unix_connection(path)
        assert (await ask(reader, writer, LIVE)).status == 200
        await server.drain()
        assert not path.exists()
        assert await reader.read() == b""
        await close(writer)
        await server.stop()

    run(main)


def test_a_socket_that_was_left_behind_is_replaced(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))

    async def main() -> None:
        server = frontend(f"--http-address=unix:{path}")
        await server.start()
        reader, writer = await asyncio.open_unix_connection(path)
        assert (await ask(reader, writer, LIVE)).status == 200
        await close(writer)
        await server.stop()
        assert not path.exists()

    run(main)


def test_a_socket_in_use_is_refused_and_stays(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"

    async def main() -> None:
        first = frontend(f"--http-address=unix:{path}")
        await first.start()
        second = frontend(f"--http-address=unix:{path}")
        with pytest.raises(OSError) as caught:
            await second.start()
        assert str(caught.value) == f"failed to start HTTP service: Unavailable - Socket 'unix:{path}' already in use "
        await second.stop()
        reader, writer = await asyncio.open_unix_connection(path)
        assert (await ask(reader, writer, LIVE)).status == 200
        await close(writer)
        await first.stop()

    run(main)


def test_what_is_no_socket_is_left_alone(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")

    async def main() -> None:
        for place, reason in (
            (path, "there is a file of this name that is no socket"),
            (tmp_path / "nowhere" / "s", "No such file or directory"),
            (tmp_path / ("x" * 120), "AF_UNIX path too long"),
        ):
            server = frontend(f"--http-address=unix:{place}")
            with pytest.raises(OSError) as caught:
                await server.start()
            assert str(caught.value) == f"failed to start HTTP service: Unavailable - can't listen on 'unix:{place}': {reason}"

    run(main)
    assert path.read_text() == "data"


class Resolver:
    """A loop that finds no host."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def create_server(self, *args: Any, **options: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label empty or too long"), "label empty or too long"),
    ],
)
def test_a_host_that_is_not_found(error: Exception, reason: str) -> None:
    loop: Any = Resolver(error)
    with pytest.raises(OSError) as caught:
        asyncio.run(Listener(Place("nowhere", 8000), "HTTP").start(loop, asyncio.Protocol))
    assert str(caught.value) == f"failed to start HTTP service: Unavailable - can't listen on 'nowhere:8000': {reason}"


def test_another_s_socket_is_not_taken_away(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"

    async def main() -> None:
        server = frontend(f"--http-address=unix:{path}")
        await server.start()
        os.unlink(path)
        path.write_text("another's")
        await server.stop()
        assert path.read_text() == "another's"

    run(main)


def test_a_path_is_wanted() -> None:
    with pytest.raises(argparse.ArgumentError, match=r"'unix:' lacks the path of the socket, as in unix:/run/kernel\.sock"):
        frontend("--http-address=unix:")


# --- TLS


def test_https(run: Run, files: Certificates) -> None:
    """Small requests, and bodies that come in many reads."""

    async def main() -> None:
        flags = ("--http-address=127.0.0.1", "--http-port=0", "--http-use-ssl")
        server = frontend(*flags, f"--http-server-cert={files.server}", f"--http-server-key={files.server_key}")
        await server.start()
        assert server.address.startswith("https://127.0.0.1:")
        port = int(server.address.rpartition(":")[2])
        context = ssl.create_default_context(cafile=files.ca)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert (await ask(reader, writer, LIVE)).status == 200
        data = np.arange(300_000, dtype=np.float32)
        inputs = [tensor("IN_FP32", "FP32", [data.size], binary_data_size=data.nbytes)]
        for _ in range(3):
            response = await ask(reader, writer, binary("types", inputs, data.tobytes(), parameters={"binary_data_output": True}))
            assert response.body.endswith(data.tobytes())
        writer.write(LIVE * 50)
        answers = b"".join([await reader.readuntil(b"text/plain\r\n\r\n") for _ in range(50)])
        assert [response.status for response in parse(answers)] == [200] * 50
        await close(writer)

        reader, writer = await asyncio.open_connection("127.0.0.1", port)  # who speaks plain HTTP
        writer.write(LIVE)
        with contextlib.suppress(ConnectionResetError):
            assert not (await reader.read()).startswith(b"HTTP")
        await close(writer)
        await server.drain()
        await server.stop()

    run(main)


def test_mutual_tls(run: Run, files: Certificates) -> None:
    async def main() -> None:
        server = frontend(
            "--http-address=127.0.0.1", "--http-port=0", "--http-use-ssl-mutual", f"--http-server-cert={files.server}",
            f"--http-server-key={files.server_key}", f"--http-root-cert={files.ca}",
        )  # fmt: skip
        await server.start()
        port = int(server.address.rpartition(":")[2])
        known, stranger = ssl.create_default_context(cafile=files.ca), ssl.create_default_context(cafile=files.ca)
        known.load_cert_chain(files.client, files.client_key)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=known)
        assert (await ask(reader, writer, LIVE)).status == 200
        await close(writer)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=stranger)
            try:
                await ask(reader, writer, LIVE)
            finally:
                writer.transport.abort()
        await server.stop()

    run(main)


def test_tls_over_a_unix_socket(run: Run, files: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "https.sock"

    async def main() -> None:
        cert, key = f"--http-server-cert={files.server}", f"--http-server-key={files.server_key}"
        server = frontend(f"--http-address=unix:{path}", "--http-use-ssl=true", cert, key)
        await server.start()
        assert server.address == f"https://unix:{path}"
        context = ssl.create_default_context(cafile=files.ca)
        reader, writer = await asyncio.open_unix_connection(path, ssl=context, server_hostname="localhost")
        assert (await ask(reader, writer, LIVE)).status == 200
        await close(writer)
        await server.stop()

    run(main)


def test_bad_certificates(files: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="TLS wants a server certificate and its private key; the certificate is missing"):
        frontend("--http-use-ssl")
    with pytest.raises(ServingError, match=r"TLS can't use the private key '/nothing': No such file or directory"):
        frontend("--http-use-ssl", f"--http-server-cert={files.server}", "--http-server-key=/nothing")
    with pytest.raises(ServingError, match="mutual TLS wants the root certificates of the clients; there is no file with them"):
        frontend("--http-use-ssl-mutual", f"--http-server-cert={files.server}", f"--http-server-key={files.server_key}")
    assert frontend("--http-server-cert=/nothing").address == "http://0.0.0.0:8000"

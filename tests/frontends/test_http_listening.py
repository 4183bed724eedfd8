"""Where the front end listens: Unix-domain sockets and their files, TLS, and what is wrong with either."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import re
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
from kernel.frontends import listening
from kernel.frontends.listening import Endpoint, Listener
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

    async def getaddrinfo(self, *args: Any, **options: Any) -> None:
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
        asyncio.run(Listener(Endpoint("nowhere", 8000), "HTTP").start(loop, asyncio.Protocol))
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


# --- both families


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


both = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


async def reached(server: Any) -> list[str]:
    """Return at which addresses of this machine, with the server's port, it answers."""
    port = int(server.address.rpartition(":")[2])
    found = []
    for host in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            assert (await ask(reader, writer, LIVE)).status == 200
            found.append(host)
            await close(writer)
    return found


@both
@pytest.mark.parametrize(
    ("flag", "hosts", "shown"),
    [
        ((), ["127.0.0.1", "::1"], "0.0.0.0"),
        (("--http-address=0.0.0.0",), ["127.0.0.1", "::1"], "0.0.0.0"),
        (("--http-address=[::]",), ["127.0.0.1", "::1"], "[::]"),
        (("--http-address=::",), ["127.0.0.1", "::1"], "[::]"),
        (("--http-address=",), ["127.0.0.1", "::1"], ""),
        (("--http-address=ipv4:0.0.0.0",), ["127.0.0.1"], "0.0.0.0"),
        (("--http-address=ipv6:[::]",), ["::1"], "[::]"),
        (("--http-address=ipv6:::",), ["::1"], "[::]"),
        (("--http-address=127.0.0.1",), ["127.0.0.1"], "127.0.0.1"),
        (("--http-address=[::1]",), ["::1"], "[::1]"),
        (("--http-address=::1",), ["::1"], "[::1]"),
        (("--http-address=ipv6:[::1]",), ["::1"], "[::1]"),
    ],
)
def test_families(run: Run, flag: tuple[str, ...], hosts: list[str], shown: str) -> None:
    async def main() -> None:
        server = frontend(*flag, "--http-port=0")
        await server.start()
        assert await reached(server) == hosts
        assert server.address.rpartition(":")[0] == f"http://{shown}"
        await server.drain()
        assert await reached(server) == []
        await server.stop()

    run(main)


def test_a_machine_without_ipv6(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without(family: int = -1, *args: Any, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *args, **options)

    async def main() -> None:
        monkeypatch.setattr("kernel.frontends.listening.socket.socket", without)
        for flag in ("0.0.0.0", "[::]"):
            server = frontend(f"--http-address={flag}", "--http-port=0")
            await server.start()
            assert await reached(server) == ["127.0.0.1"]
            await server.stop()
        with pytest.raises(OSError) as caught:
            await frontend("--http-address=[::1]").start()
        assert str(caught.value) == (
            "failed to start HTTP service: Unavailable - can't listen on '[::1]:8000': Address family not supported by protocol"
        )

    run(main)


@both
def test_a_port_that_two_have_reserved_is_had_by_the_first_who_listens(run: Run) -> None:
    """A place that is bound and not listened at may be bound once more: a start that loads for long can't keep it from others."""

    async def main() -> None:
        first = frontend("--http-address=127.0.0.1", "--http-port=0")
        await first.reserve()
        port = first.address.rpartition(":")[2]
        second = frontend("--http-address=127.0.0.1", f"--http-port={port}")
        await second.reserve()
        await first.start()
        with pytest.raises(OSError) as caught:
            await second.start()
        assert str(caught.value) == f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{port}' already in use "
        await second.stop()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        assert (await ask(reader, writer, LIVE)).status == 200
        await close(writer)
        await first.stop()

    run(main)


@both
def test_a_port_that_is_taken_in_one_family_is_taken(run: Run) -> None:
    async def main() -> None:
        with socket.socket(socket.AF_INET6) as other:
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            other.bind(("::", 0))
            other.listen()
            port = other.getsockname()[1]
            server = frontend(f"--http-port={port}")
            with pytest.raises(OSError) as caught:
                await server.start()
            assert str(caught.value) == f"failed to start HTTP service: Unavailable - Socket '0.0.0.0:{port}' already in use "
            assert caught.value.errno == errno.EADDRINUSE
        await server.start()  # nothing of the first attempt is in its way
        await server.stop()

    run(main)


@both
def test_any_port_is_one_that_is_free_in_both(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real, tried = listening._bound_to, []

    def taken_twice(family: int, address: tuple[Any, ...], reuse_port: bool) -> socket.socket:
        tried.append((family, address[1]))
        if family == socket.AF_INET6 and len(tried) < 5:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return real(family, address, reuse_port)

    async def main() -> None:
        monkeypatch.setattr(listening, "_bound_to", taken_twice)
        server = frontend("--http-port=0")
        await server.start()
        assert await reached(server) == ["127.0.0.1", "::1"] and len(tried) == 6
        await server.stop()

    run(main)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("[::1", "'[::1' is no address; a port has a flag of its own, and IPv6 is written as ::1 or [::1]"),
        ("[::1]:8000", "'[::1]:8000' is no address; a port has a flag of its own, and IPv6 is written as ::1 or [::1]"),
        ("localhost:8000", "'localhost:8000' is no address; a port has a flag of its own, and IPv6 is written as ::1 or [::1]"),
        ("[localhost]", "'[localhost]' is no address: an IPv6 address belongs into the brackets, as in [::1]"),
        ("ipv4:[::1]", "'ipv4:[::1]' is no address: an IPv6 address belongs into the brackets, as in [::1]"),
        ("ipv6:127.0.0.1", "'ipv6:127.0.0.1' is no IPv6 address"),
        ("ipv4:localhost", "'ipv4:localhost' is no IPv4 address"),
    ],
)
def test_what_is_no_address(address: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=re.escape(words)):
        frontend(f"--http-address={address}")
    with pytest.raises(ValueError, match=re.escape(words)):
        Endpoint(address, 8000)


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

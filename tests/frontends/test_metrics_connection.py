"""The metrics port: bytes in, bytes out, as observed on the reference; its options; and who keeps it waiting."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from frontends.fakes import FakeTransport

from kernel import Crowd, CustomMetrics, MemoryBudget
from kernel.testing import run
from kernel_metrics import add_options, register_frontends
from kernel_metrics.connection import MAX_EMPTY, MAX_WAITING, PATIENCE, Connection, Server
from kernel_metrics.options import MetricsSettings, settings

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
PAGE = HEAD % 5 + b"page\n"
EMPTY = HEAD % 0
NOT_ALLOWED = (
    b'HTTP/1.1 405 Not Allowed\r\nContent-Length: 30\r\nContent-Type: text/plain\r\n\r\n{"error":"Method Not Allowed"}'
)


class Port:
    """A server of the page `page\\n` and its connections, on the loop that runs."""

    def __init__(self, page: Callable[[], Coroutine[Any, Any, bytes]] | None = None) -> None:
        self.made = 0
        self.server = Server(
            SimpleNamespace(loop=asyncio.get_running_loop(), memory=MemoryBudget(1, 1)), page or self.page
        )  # type: ignore[arg-type]

    async def page(self) -> bytes:
        self.made += 1
        await asyncio.sleep(0)
        return b"page\n"

    def connect(self) -> tuple[Connection, FakeTransport]:
        connection, transport = Connection(self.server), FakeTransport()
        connection.connection_made(transport)
        return connection, transport


async def ask(data: bytes, pieces: int = 1) -> FakeTransport:
    """Send `data` in so many pieces on a connection of its own; return its transport when all is quiet."""
    connection, transport = Port().connect()
    size = -(-len(data) // pieces)
    for start in range(0, len(data), size):
        if transport.closing:
            break
        connection.data_received(data[start : start + size])
    await asyncio.sleep(1)
    if transport.closing:
        connection.connection_lost(None)
    return transport


def request(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def answer(data: bytes, pieces: int = 1) -> tuple[bytes, bool]:
    """Return what comes back, and whether the connection was closed then."""

    async def main() -> tuple[bytes, bool]:
        transport = await ask(data, pieces)
        return bytes(transport.out), transport.closing

    return run(main())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("GET /metrics", PAGE),
        ("GET /metrics/", PAGE),
        ("GET /metrics?name=x", PAGE),
        ("GET http://x/metrics", PAGE),
        ("GET /", EMPTY),
        ("GET //metrics", EMPTY),
        ("GET /metrics/x", EMPTY),
        ("GET /v2/health/live", EMPTY),
        ("POST /metrics", NOT_ALLOWED),
        ("PUT /", NOT_ALLOWED),
        ("OPTIONS /metrics", NOT_ALLOWED),
        ("DELETE /metrics", NOT_ALLOWED),
        ("HEAD /metrics", NOT_ALLOWED.partition(b"{")[0]),  # the reference sends a body there, which is no HTTP
    ],
)
@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_what_is_asked(line: str, wanted: bytes, pieces: int) -> None:
    assert answer(request(line), pieces) == (wanted, False)


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_requests_in_a_row(pieces: int) -> None:
    data = request("GET /metrics") + request("GET /x", "Content-Length: 3") + b"abc" + request("GET /metrics")
    assert answer(data, pieces) == (PAGE + EMPTY + PAGE, False)


def test_the_end_of_a_connection() -> None:
    close = PAGE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert answer(request("GET /metrics", "Connection: close") + request("GET /metrics")) == (close, True)


def test_the_older_version() -> None:
    old = PAGE.replace(b"1.1", b"1.0")
    assert answer(b"GET /metrics HTTP/1.0\r\n\r\n") == (old, True)
    kept = old.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
    assert answer(b"GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n") == (kept, False)


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 20_000,
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + b"a" * 19_000,
    ],
)
def test_what_is_cut_off(data: bytes) -> None:
    assert answer(data)[1] is True


@pytest.mark.parametrize("pieces", [1, 40])
def test_endless_empty_lines_end_the_connection_as_on_the_http_port(pieces: int) -> None:
    assert answer(b"\r\n" * (MAX_EMPTY // 2) + b"\r\n", pieces) == (b"", True)
    asked = request("GET /metrics")
    assert answer(asked + b"\r\n" * 40, 1) == (PAGE, False)
    assert answer(b"\r\n" * (MAX_EMPTY // 2) + asked, pieces) == (PAGE, False)
    assert answer((b"\r\n" + asked) * 40, 40) == (PAGE * 40, False)


def test_more_than_anybody_needs_at_a_time() -> None:
    out, closed = answer(request("GET /") * (MAX_WAITING + 2))
    assert closed and len(out) <= (MAX_WAITING + 2) * len(EMPTY) + 100


def test_answers_wait_for_a_client_that_does_not_read() -> None:
    async def main() -> None:
        port = Port()
        connection, transport = port.connect()
        connection.data_received(request("GET /metrics") + request("GET /"))
        assert transport.paused
        connection.pause_writing()
        await asyncio.sleep(1)
        assert transport.out == PAGE, "the second one waits"
        connection.resume_writing()
        await asyncio.sleep(1)
        assert transport.out == PAGE + EMPTY and not transport.paused
        connection.pause_writing()
        connection.data_received(request("GET /metrics"))
        await asyncio.sleep(PATIENCE + 10)
        assert transport.aborted
        connection.connection_lost(None)

    run(main())


def test_a_client_that_does_not_finish_its_request() -> None:
    async def main() -> None:
        port = Port()
        slow, slow_transport = port.connect()
        idle, idle_transport = port.connect()
        idle.data_received(request("GET /metrics"))
        slow.data_received(request("GET /")[:-2])
        await asyncio.sleep(PATIENCE + 10)
        assert slow_transport.aborted and not idle_transport.aborted, "who sends nothing owes nothing"
        slow.connection_lost(None)
        idle.connection_lost(None)

    run(main())


def test_a_client_that_is_gone() -> None:
    async def main() -> None:
        port = Port()
        connection, transport = port.connect()
        connection.data_received(request("GET /metrics"))
        connection.connection_lost(ConnectionResetError())
        await asyncio.sleep(1)
        assert transport.out == b""
        assert not port.server.connections

    run(main())


def test_a_client_that_has_sent_all_it_will() -> None:
    async def main() -> None:
        connection, transport = Port().connect()
        connection.data_received(request("GET /metrics"))
        assert connection.eof_received() is True
        await asyncio.sleep(1)
        assert transport.out == PAGE and transport.closing
        connection.connection_lost(None)
        connection, transport = Port().connect()
        assert not connection.eof_received()
        connection.connection_lost(None)

    run(main())


def test_a_page_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> bytes:
        raise ValueError("no page today")

    async def main() -> None:
        connection, transport = Port(broken).connect()
        connection.data_received(request("GET /metrics"))
        await asyncio.sleep(1)
        assert transport.aborted and transport.out == b""
        connection.connection_lost(None)

    run(main())
    assert "the metrics page can't be made" in caplog.text


def test_drain() -> None:
    async def main() -> None:
        port = Port()
        idle, idle_transport = port.connect()
        busy, busy_transport = port.connect()
        busy.data_received(request("GET /metrics"))
        draining = asyncio.ensure_future(port.server.drain())
        await asyncio.sleep(0)
        assert idle_transport.closing and not busy_transport.closing
        idle.connection_lost(None)
        await asyncio.sleep(1)
        assert busy_transport.closing and busy_transport.out.startswith(b"HTTP/1.1 200 OK\r\n")
        assert not draining.done()
        busy.connection_lost(None)
        await draining
        late, late_transport = port.connect()
        assert late_transport.closing
        late.connection_lost(None)

    run(main())


# -- options -----------------------------------------------------------------------------------------------------------


class Mistake(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Mistake(message)


def options(*arguments: str) -> argparse.Namespace:
    parser = Parser()
    add_options(parser)
    return parser.parse_args(arguments)


def test_defaults() -> None:
    found = options()
    assert (found.allow_metrics, found.metrics_address, found.metrics_port) == (True, None, 8002)
    assert settings(found) == MetricsSettings()
    assert settings(found).pinned_bytes == 268435456 and settings(found).interval == 2.0


def test_settings() -> None:
    found = settings(
        options(
            "--metrics-config=counter_latencies=false", "--metrics-config", "summary_latencies=1",
            "--metrics-config=summary_quantiles=0.5:0.05, 0.75:.01,1:0", "--metrics-config=histogram_latencies=TRUE",
            "--metrics-interval-ms=500", "--allow-cpu-metrics=false", "--allow-gpu-metrics=0",
        )
    )  # fmt: skip
    assert (found.counter_latencies, found.summary_latencies, found.histogram_latencies) == (False, True, True)
    assert found.summary_quantiles == {0.5: 0.05, 0.75: 0.01, 1.0: 0.0}
    assert (found.interval, found.cpu, found.gpu) == (0.5, False, False)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--metrics-port=65536", "'65536' is not a port: 0 to 65535"),
        ("--metrics-interval-ms=0", "'0' is not a positive number of milliseconds"),
        ("--metrics-interval-ms=soon", "'soon' is not a positive number of milliseconds"),
        ("--allow-metrics=maybe", "'maybe' is not a boolean"),
        ("--metrics-config=summary_latencies", "'summary_latencies' is not of the form <setting>=<value>"),
        ("--metrics-config==", "'=' is not of the form <setting>=<value>"),
        ("--metrics-config=sumary_latencies=true", "unknown setting 'sumary_latencies'; did you mean summary_latencies?"),
        ("--metrics-config=x=1", "unknown setting 'x'; there are counter_latencies, summary_latencies, histogram_lat"),
        ("--metrics-config=summary_latencies=yes", "summary_latencies: invalid value for bool option: yes — 'yes' is not"),
        ("--metrics-config=summary_quantiles=0.5", "summary_quantiles '0.5' is not a quantile and its error"),
        ("--metrics-config=summary_quantiles=2:0.1", "summary_quantiles '2:0.1' is not a quantile and its error"),
        ("--metrics-config=summary_quantiles=0.5:0.1,", "summary_quantiles '' is not a quantile and its error"),
        ("--metrics-config=summary_quantiles=0.1.2:0", "summary_quantiles '0.1.2:0' is not a quantile and its error"),
    ],
)
def test_mistakes(argument: str, words: str) -> None:
    with pytest.raises(Mistake, match=words.replace("?", r"\?").replace("'", "'")):
        options(argument)


# -- the front end -----------------------------------------------------------------------------------------------------


class FakeKernel:
    """A kernel without models."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = self.loop.time
        self.asked: list[Any] = []
        self.observe = self.asked.append
        self.memory = MemoryBudget(1, 1)
        self.custom_metrics = CustomMetrics()
        self.cache = None

    def models(self) -> list[Any]:
        return []


@contextlib.contextmanager
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def frontend(*arguments: str, http_address: str = "127.0.0.1") -> Any:
    found = options(*arguments, "--allow-gpu-metrics=false", "--allow-cpu-metrics=false")
    found.http_address = http_address
    made = register_frontends(FakeKernel(), found)  # type: ignore[arg-type]
    return made[0] if made else None


def test_switched_off() -> None:
    async def main() -> None:
        assert frontend("--allow-metrics=false") is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "http_address", "wanted"),
    [
        ((), "127.0.0.1", "metrics://127.0.0.1:8002"),
        (("--metrics-address=::1",), "127.0.0.1", "metrics://[::1]:8002"),
        ((), "unix:/run/http.sock", "metrics://0.0.0.0:8002"),
        (("--metrics-address=unix:/run/m.sock",), "127.0.0.1", "metrics://unix:/run/m.sock"),
    ],
)
def test_where_it_listens(arguments: tuple[str, ...], http_address: str, wanted: str) -> None:
    async def main() -> None:
        assert frontend(*arguments, http_address=http_address).address == wanted

    asyncio.run(main())


def test_a_port_that_is_taken() -> None:
    async def main() -> None:
        with taken() as port:
            words = rf"failed to start Metrics service: Unavailable - Socket '127\.0\.0\.1:{port}' already in use "
            with pytest.raises(OSError, match=words):
                await frontend(f"--metrics-port={port}").start()

    asyncio.run(main())


def test_over_a_real_port() -> None:
    async def main() -> None:
        made = frontend("--metrics-port=0")
        await made.start()
        port = int(made.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request("GET /metrics", "Connection: close"))
        answered = await reader.read()
        assert answered.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n")
        assert b"# TYPE kernel_loop_lag_seconds histogram\n" in answered
        writer.close()
        await made.drain()
        await made.stop()

    asyncio.run(main())


@pytest.mark.parametrize(("idle", "closed"), [(599, False), (600, True)])
def test_an_idle_connection_is_closed(idle: int, closed: bool) -> None:
    async def main() -> bool:
        _, transport = Port().connect()
        info = bytes(52) + (idle * 1000).to_bytes(4, "little") + bytes(48)
        transport.extra["socket"] = SimpleNamespace(getsockopt=lambda *_: info)
        await asyncio.sleep(6)
        return transport.closing

    assert run(main()) is closed


def test_a_connection_too_many_is_closed() -> None:
    async def main() -> list[bool]:
        port = Port()
        port.server._crowd = Crowd(most_of_one=1)
        transports = []
        for _ in range(2):
            transport = FakeTransport()
            transport.extra["peername"] = ("10.0.0.1", 1)
            Connection(port.server).connection_made(transport)
            transports.append(transport)
        return [transport.closing for transport in transports]

    assert run(main()) == [False, True]

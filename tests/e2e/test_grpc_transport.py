"""The gRPC transport with real peers on real ports: grpcio's sync and aio clients and the h2 package, on both loops, with TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import pytest
import uvloop
from certificates import Certificates, make_certificates

from kernel import LogSettings, MemoryBudget
from kernel.frontends.tls import server_context
from kernel_grpc.rpc.calls import Call, open_call
from kernel_grpc.rpc.keepalive import Keepalive
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.protocol import Peer
from kernel_grpc.rpc.server import Server

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Running:
    """A server on a loop and a thread of its own. `cancelled`: requests that it was told to cancel."""

    def __init__(self, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        self.loop = loop
        self.cancelled: list[Any] = []
        self.kept: list[Call] = []
        kernel: Any = SimpleNamespace(loop=loop, clock=time.monotonic, cancel=self.cancelled.append, memory=MemoryBudget(),
                                      log_settings=LogSettings())  # fmt: skip
        methods = [
            Method("/pkg.Svc/Echo", lambda call, message: call.reply(payload(message)), category="inference"),
            Method("/pkg.Svc/Keep", self.keep),
            Method("/pkg.Svc/Chat", Chat, streaming=True),
            Method("/pkg.Svc/Count", Count, streaming=True),
        ]
        self.server = Server(kernel, methods, open_call, **options)
        self.port = 0

    def keep(self, call: Call, message: Any) -> None:
        call.request = "kept"
        self.kept.append(call)

    def on_loop(self, function: Callable[..., Any], *args: Any) -> Any:
        async def run() -> Any:
            result = function(*args)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Chat:
    """Sends back what comes."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def message(self, data: Any) -> None:
        self.call.send(payload(data))

    def half_closed(self) -> None:
        self.call.finish()


class Count:
    """Sends as many messages of 100 KB as the client takes, up to the number that it asks for."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.left = 0
        self.most = 0
        call.on_writable = self.go_on

    def message(self, data: Any) -> None:
        self.left = int(data)
        self.go_on()

    def half_closed(self) -> None:
        pass

    def go_on(self) -> None:
        while self.left and self.call.writable:
            self.left -= 1
            self.call.send(b"%8d" % self.left + bytes(100_000))
        self.most = max(self.most, self.call.queued)
        if not self.left:
            self.call.finish(0 if self.most < 2_000_000 else 2, f"{self.most} bytes have waited")


def payload(message: Any) -> Any:
    return message if type(message) is bytes else [message.data]


def run(loop_name: str, *, tls: Any = None, path: str = "", **options: Any) -> Iterator[Running]:
    loop = uvloop.new_event_loop() if loop_name == "uvloop" else asyncio.new_event_loop()
    running = Running(loop, **options)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> asyncio.Server:
        factory = lambda: Peer(running.server)  # noqa: E731
        if path:
            return await loop.create_unix_server(factory, path, ssl=tls)
        return await loop.create_server(factory, "127.0.0.1", 0, ssl=tls)

    async def close() -> None:
        listener.close()
        running.server.abort()
        await asyncio.sleep(0.05)

    listener = running.on_loop(listen)
    if not path:
        running.port = listener.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        running.on_loop(close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    yield from run(request.param)


@pytest.fixture
def channel(running: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(running.address, UNLIMITED) as channel:
        yield channel


def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 70_000, 5_000_000, 80_000_000])
def test_unary_of_any_size(channel: grpc.Channel, size: int) -> None:
    message = os.urandom(min(size, 5_000_000)) * max(1, size // 5_000_000)
    assert channel.unary_unary("/pkg.Svc/Echo")(message, timeout=60) == message


def test_many_calls_at_once(channel: grpc.Channel) -> None:
    echo = channel.unary_unary("/pkg.Svc/Echo")
    messages = [os.urandom(k * 37 % 100_000) for k in range(300)]
    futures = [echo.future(message, timeout=60) for message in messages]
    assert [future.result() for future in futures] == messages


def test_metadata_and_deadlines_that_differ(channel: grpc.Channel) -> None:
    echo = channel.unary_unary("/pkg.Svc/Echo")
    for k in range(200):
        assert echo(b"%d" % k, timeout=5 + k * 0.371, metadata=[("x-k", str(k)), ("x-bin", bytes((k, 0, 255)))]) == b"%d" % k


def test_streams(channel: grpc.Channel) -> None:
    chat = channel.stream_stream("/pkg.Svc/Chat")
    messages = [os.urandom(k * 997 % 50_000) for k in range(100)]
    assert list(chat(iter(messages), timeout=60)) == messages


def test_slow_reader_does_not_fill_memory(channel: grpc.Channel) -> None:
    answers = channel.stream_stream("/pkg.Svc/Count")(iter([b"300"]), timeout=60)
    for k, answer in enumerate(answers):
        assert int(answer[:8]) == 299 - k
        if k % 50 == 0:
            time.sleep(0.1)
    assert answers.code() is grpc.StatusCode.OK, answers.details()


def test_unknown_method(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as error:
        channel.unary_unary("/pkg.Svc/Nope")(b"")
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "unknown method '/pkg.Svc/Nope'")  # type: ignore[attr-defined]


def test_deadline_and_cancellation(running: Running, channel: grpc.Channel) -> None:
    keep = channel.unary_unary("/pkg.Svc/Keep")
    with pytest.raises(grpc.RpcError) as error:
        keep(b"", timeout=0.1)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
    wait_until(lambda: len(running.cancelled) == 1)
    future = keep.future(b"")
    wait_until(lambda: len(running.kept) == 2)
    future.cancel()
    wait_until(lambda: len(running.cancelled) == 2)
    keep.future(b"")
    wait_until(lambda: len(running.kept) == 3)
    channel.close()
    wait_until(lambda: len(running.cancelled) == 3)


@pytest.mark.parametrize("coding", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compression(coding: grpc.Compression) -> None:
    for running in run("uvloop", compression="medium"):
        with grpc.insecure_channel(running.address, UNLIMITED) as channel:
            echo = channel.unary_unary("/pkg.Svc/Echo")
            chat = channel.stream_stream("/pkg.Svc/Chat")
            for size in (0, 10, 1000, 1_000_000):
                message = b"compressible" * size
                assert echo(message, compression=coding, timeout=60) == message
                assert list(chat(iter([message, message]), compression=coding, timeout=60)) == [message, message]


async def aio(address: str) -> None:
    async with grpc.aio.insecure_channel(address, UNLIMITED) as channel:
        echo = channel.unary_unary("/pkg.Svc/Echo")
        messages = [os.urandom(k * 131 % 70_000) for k in range(200)]
        assert await asyncio.gather(*(echo(message, timeout=60) for message in messages)) == messages
        stream = channel.stream_stream("/pkg.Svc/Chat")()
        for message in messages[:20]:
            await stream.write(message)
            assert await stream.read() == message
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK


def test_aio_client(running: Running) -> None:
    asyncio.run(aio(running.address))


def test_drain(running: Running) -> None:
    """What runs is finished, the client gets its answer, and connects anew for the next call."""
    with grpc.insecure_channel(running.address) as channel:
        future = channel.unary_unary("/pkg.Svc/Keep").future(b"")
        wait_until(lambda: running.kept)
        drained = asyncio.run_coroutine_threadsafe(running.server.drain(), running.loop)
        time.sleep(0.1)
        assert not drained.done()
        running.on_loop(running.kept[0].reply, b"done")
        assert future.result(10) == b"done"
        drained.result(10)
        assert not running.server.connections


def test_keepalive_pings_of_the_client_are_counted() -> None:
    pings = [("grpc.keepalive_time_ms", 100), ("grpc.http2.max_pings_without_data", 0)]
    for running in run("uvloop", keepalive=Keepalive(min_recv_interval=300, max_strikes=2)):
        with grpc.insecure_channel(running.address, pings) as channel:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary("/pkg.Svc/Keep")(b"", timeout=10)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert "too_many_pings" in error.value.details() or running.cancelled  # type: ignore[attr-defined]
    for running in run("uvloop", keepalive=Keepalive(min_recv_interval=0.01, time=0.2, timeout=5, max_pings_without_data=0)):
        with grpc.insecure_channel(running.address, pings) as channel:
            future = channel.unary_unary("/pkg.Svc/Keep").future(b"", timeout=20)
            time.sleep(1.2)
            running.on_loop(running.kept[0].reply, b"still here")
            assert future.result() == b"still here"


def test_connection_age(running: Running) -> None:
    for other in run("asyncio", keepalive=Keepalive(max_age=0.2, age_grace=5)):
        with grpc.insecure_channel(other.address) as channel:
            echo = channel.unary_unary("/pkg.Svc/Echo")
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert echo(b"x", timeout=10) == b"x"


def test_unix_socket(tmp_path: Path) -> None:
    for _ in run("uvloop", path=str(tmp_path / "socket")):
        with grpc.insecure_channel(f"unix:{tmp_path}/socket", UNLIMITED) as channel:
            assert channel.unary_unary("/pkg.Svc/Echo")(bytes(1_000_000), timeout=30) == bytes(1_000_000)


# --- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def credentials(certificates: Certificates, client: str = "") -> grpc.ChannelCredentials:
    chain = Path(getattr(certificates, client)).read_bytes() if client else None
    key = Path(getattr(certificates, client + "_key")).read_bytes() if client else None
    return grpc.ssl_channel_credentials(Path(certificates.ca).read_bytes(), key, chain)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tls(certificates: Certificates, loop: str) -> None:
    context = server_context(certificates.server, certificates.server_key, alpn=["h2"])
    for running in run(loop, tls=context):
        with grpc.secure_channel(f"localhost:{running.port}", credentials(certificates), UNLIMITED) as channel:
            message = os.urandom(20_000_000)
            assert channel.unary_unary("/pkg.Svc/Echo")(message, timeout=60) == message
            assert list(channel.stream_stream("/pkg.Svc/Chat")(iter([b"a", b"b"]), timeout=60)) == [b"a", b"b"]


def test_mutual_tls(certificates: Certificates) -> None:
    context = server_context(certificates.server, certificates.server_key, certificates.ca, mutual=True, alpn=["h2"])
    for running in run("uvloop", tls=context):
        with grpc.secure_channel(f"localhost:{running.port}", credentials(certificates, "client")) as channel:
            assert channel.unary_unary("/pkg.Svc/Echo")(b"x", timeout=20) == b"x"
        for client in ("", "stranger"):
            with grpc.secure_channel(f"localhost:{running.port}", credentials(certificates, client)) as channel:
                with pytest.raises(grpc.RpcError) as error:
                    channel.unary_unary("/pkg.Svc/Echo")(b"x", timeout=5)
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


# --- other peers


def test_h2_package_as_client(running: Running) -> None:
    """Its state machine checks every frame that we send."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/pkg.Svc/Echo"),
            (":authority", "x"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        bodies: dict[int, bytes] = {}
        ended = 0
        for k in range(20):
            id = connection.get_next_available_stream_id()
            connection.send_headers(id, fields)
            connection.send_data(id, b"\0" + (k * 200).to_bytes(4, "big") + b"x" * (k * 200), end_stream=True)
            bodies[id] = b""
        sock.sendall(connection.data_to_send())
        while ended < 20:
            received = sock.recv(65536)
            assert received
            for event in connection.receive_data(received):
                if isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] += event.data  # type: ignore[index,operator]
                    connection.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
                elif isinstance(event, h2.events.StreamEnded):
                    ended += 1
            sock.sendall(connection.data_to_send())
        assert [len(body) for body in bodies.values()] == [5 + k * 200 for k in range(20)]
        connection.close_connection()
        sock.sendall(connection.data_to_send())


def test_http1_client_is_told(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while piece := sock.recv(4096):
            received += piece
        assert b"this is no HTTP/2" in received

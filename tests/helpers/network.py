"""A network in virtual time: connections between protocols of one loop, with a delay, and lines that are cut and mended.

`Network` is a loop whose `create_connection` reaches who listens there. Bytes arrive in order, after the line's delay; while a
line is cut nothing arrives, and what was sent arrives once it is mended. Nothing listens: refused. `Far` is a server of HTTP/2
that does what a test tells it, `serve` the gRPC front end of a kernel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from virtual import VirtualLoop

from kernel import Kernel
from kernel_grpc.http2 import Connection, Head, Stream, literal, response
from kernel_grpc.http2.errors import ErrorCode
from kernel_grpc.rpc.calls import open_call
from kernel_grpc.rpc.protocol import Peer
from kernel_grpc.rpc.server import Server
from kernel_grpc.services.methods import inference_methods

__all__ = ["Far", "Line", "Network", "Request", "run_network", "serve"]

T = TypeVar("T")


class Line:
    """What all connections to one address have in common. `delay`: seconds each way. `connections`: those that were made."""

    def __init__(self, loop: Network, listener: Callable[[], Any]) -> None:
        self.loop = loop
        self.listener = listener
        self.delay = 0.001
        self.is_cut = False
        self.refuses = False
        self.attempts = 0
        self.connections: list[End] = []
        self._mended = asyncio.Event()

    def cut(self) -> None:
        """From now on nothing arrives, either way."""
        self.is_cut = True
        self._mended.clear()

    def mend(self) -> None:
        """What was sent arrives."""
        self.is_cut = False
        self._mended.set()
        for end in self.connections:
            end.arrive_soon()
            end.other.arrive_soon()

    async def connect(self, near: Any) -> None:
        self.attempts += 1
        await asyncio.sleep(self.delay)
        if self.is_cut:
            await self._mended.wait()
        if self.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        far = self.listener()
        here, there = End(self, near), End(self, far)
        here.other, there.other = there, here
        self.connections.append(here)
        far.connection_made(there)
        near.connection_made(here)


class End:
    """One side's transport."""

    other: End

    def __init__(self, line: Line, protocol: Any) -> None:
        self.line = line
        self.protocol = protocol
        self.inbox: deque[bytes | None] = deque()  # that are on their way here; None: the end
        self.closing = self.paused = False

    # --- as asyncio does it

    def arrive_soon(self) -> None:
        for _ in range(len(self.inbox)):
            self.line.loop.call_later(self.line.delay, self._arrive)

    def _arrive(self) -> None:
        if self.line.is_cut or self.paused or not self.inbox or self.closing:
            return
        data = self.inbox.popleft()
        if data is None:
            self._lose()
        elif isinstance(self.protocol, asyncio.BufferedProtocol):
            while data:
                view: Any = self.protocol.get_buffer(-1)
                count = min(len(view), len(data))
                view[:count] = data[:count]
                data = data[count:]
                self.protocol.buffer_updated(count)
        else:
            self.protocol.data_received(data)

    def _lose(self) -> None:
        if not self.closing:
            self.closing = True
            self.line.loop.call_soon(self.protocol.connection_lost, None)

    def _send(self, data: bytes | None) -> None:
        self.other.inbox.append(data)
        self.line.loop.call_later(self.line.delay, self.other._arrive)

    # --- what protocols call

    def write(self, data: Any) -> None:
        if not self.closing:
            self._send(bytes(data))

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        if not self.closing:
            self._send(None)
            self._lose()

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.arrive_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 7)}.get(name, default)


class Network(VirtualLoop):
    """The loop. `lines`: by host and port."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[tuple[str, int], Line] = {}

    def listen(self, host: str, listener: Callable[[], Any], port: int = 8001) -> Line:
        """Have `listener()` make the protocol of each connection to `host:port`."""
        line = self.lines[host, port] = Line(self, listener)
        return line

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:  # type: ignore[override]
        line = self.lines.get((host, port))
        if line is None:
            raise ConnectionRefusedError(111, "Connection refused")
        near = protocol_factory()
        await line.connect(near)
        return near.transport, near


def run_network(main: Callable[[Network], Coroutine[Any, Any, T]]) -> T:
    """Run `main` on a fresh network; errors that nobody fetched fail the test."""
    problems: list[dict[str, Any]] = []

    async def started() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Network)
        return await main(loop)

    with asyncio.Runner(loop_factory=Network) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        result = runner.run(started())
    assert not problems, problems
    return result


def serve(network: Network, kernel: Kernel, host: str) -> tuple[Line, Server]:
    """Have a kernel answer gRPC at `host:8001`."""
    server = Server(kernel, inference_methods(kernel), open_call)
    return network.listen(host, lambda: Peer(server)), server


class Request(Stream):
    """A call that has come to a Far. `at`: when it was complete; `fields`: its header list; `body`: what was sent."""

    def __init__(self, far: _Peer, id: int, head: Head, ended: bool) -> None:
        super().__init__(far.http, id, ended)
        self.far = far
        self.fields = dict(head.fields)
        self.body = bytearray()
        self.code: int | None = None  # by which it was given up
        self.begun = False

    def received(self, data: Any, start: int, stop: int, ended: bool) -> None:
        self.body += data[start:stop]
        if ended:
            self.far.owner.requests.append(self)
            if self.far.owner.on_request is not None:
                self.far.owner.on_request(self)

    def aborted(self, code: int) -> None:
        self.code = code

    def answer(self, *messages: bytes, status: int = 0, text: str = "", trailers: bytes = b"") -> None:
        """Send messages and the status."""
        head = response(200, [(b"content-type", b"application/grpc")])
        if messages:
            self.say(*messages)
            head = b""
        self.end(head + literal(b"grpc-status", b"%d" % status) + literal(b"grpc-message", text.encode()) + trailers)
        self.far.flush()

    def say(self, *messages: bytes) -> None:
        """Send messages, and go on."""
        if not self.begun:
            self.begun = True
            self.send_headers(response(200, [(b"content-type", b"application/grpc")]))
        for message in messages:
            self.send_data([b"\0" + len(message).to_bytes(4, "big") + message], len(message) + 5)
        self.far.flush()

    def refuse(self, code: ErrorCode = ErrorCode.REFUSED_STREAM) -> None:
        self.reset(code)
        self.far.flush()


class _Peer(asyncio.Protocol):
    """One connection of a Far."""

    def __init__(self, owner: Far) -> None:
        self.owner = owner
        owner.peers.append(self)
        loop = asyncio.get_running_loop()
        self.http = Connection(lambda http, id, head, ended: Request(self, id, head, ended), loop.time(), max_streams=owner.most)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if not self.owner.silent:
            self.http.start()
            self.flush()

    def data_received(self, data: bytes) -> None:
        if self.owner.silent:
            return
        self.http.receive(data, asyncio.get_running_loop().time())
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.http.ending.lost()

    def flush(self) -> None:
        out, _ = self.http.outgoing.take()
        if out:
            self.transport.write(b"".join(out))

    def send(self, frames: bytes) -> None:
        self.http.outgoing.put(frames)
        self.flush()


class Far:
    """A far end. `requests`: the calls that have come. `silent`: takes connections, says nothing. `most`: streams at once."""

    def __init__(self, on_request: Callable[[Request], None] | None = None, most: int = 100) -> None:
        self.on_request = on_request
        self.most = most
        self.silent = False
        self.requests: list[Request] = []
        self.peers: list[_Peer] = []

    def __call__(self) -> _Peer:
        return _Peer(self)

"""One server takes over from another while requests go on all the time: none fails, and no connection is reset.

As where a cluster rolls: the old server is told to stop when the new one is ready, and who sends new connections learns some time
later that it isn't any more, within `--drain-delay`.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import hpack

from kernel_grpc.schemas import grpc_service_pb2 as pb

from .serving import ECHO, Server, serving, wait_until, write_model
from .test_grpc_admin import grpc_url
from .test_h2_cases import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Client,
    frame,
    headers,
    number,
    settings,
)

CLIENTS = 4
ENOUGH = 100  # requests of each client, before the stop and after the end
#: Seconds for which the old server takes new connections though it is not ready. Who makes none needs few; else as many as a busy
#: machine may take to notice that it is not ready, and beyond these LATE_SECONDS, in which new connections go on coming.
SHORT, LONG = 1, 8
LATE_SECONDS = 1.0

INFER = "/inference.GRPCInferenceService/ModelInfer"
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [3.0]}]})
MESSAGE = pb.ModelInferRequest(
    model_name="echo",
    inputs=[
        pb.ModelInferRequest.InferInputTensor(
            name="X", datatype="FP32", shape=[1], contents=pb.InferTensorContents(fp32_contents=[3.0])
        )
    ],
).SerializeToString()


class Clients:
    """Several that send one request after the other, each on a thread. `client`: a generator that yields after each answer.
    `counts`: how many each has had answered.
    """

    def __init__(self, client: Callable[[], Generator[None, None, None]]) -> None:
        self.failures: list[BaseException] = []
        self.counts = [0] * CLIENTS
        self._over = threading.Event()
        self._client = client
        self._threads = [threading.Thread(target=self._run, args=(k,)) for k in range(CLIENTS)]

    def _run(self, number: int) -> None:
        try:
            with closing(self._client()) as answers:
                for _ in answers:
                    self.counts[number] += 1
                    if self._over.is_set():
                        return
        except BaseException as error:
            self.failures.append(error)

    def go_on(self) -> None:
        """Return when each has had enough more."""
        before = list(self.counts)
        wait_until(
            lambda: self.failures or all(now - old >= ENOUGH for now, old in zip(self.counts, before, strict=True)), 120.0
        )
        assert not self.failures

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads)


@contextmanager
def two(folder: Path, delay: int = SHORT) -> Iterator[tuple[Server, Server]]:
    write_model(folder / "models", "echo", ECHO)
    with serving(folder, folder / "models", f"--drain-delay={delay}") as old, serving(folder, folder / "models") as new:
        yield old, new


def test_http(tmp_path: Path) -> None:
    """Each answer that is a connection's last says so, the connection ends without a reset, and new ones go elsewhere in time."""
    with two(tmp_path, LONG) as (old, new):
        where = old
        lasts: list[Server] = []

        def client() -> Generator[None, None, None]:
            while True:
                server = where
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                connection.connect()
                with closing(connection), connection.sock.dup() as watched:
                    last = False
                    while not last:
                        connection.request("POST", "/v2/models/echo/infer", BODY)
                        response = connection.getresponse()
                        assert (response.status, json.loads(response.read())["outputs"][0]["data"]) == (200, [3.0])
                        last = response.getheader("Connection") == "close"
                        yield
                    lasts.append(server)
                    watched.settimeout(60)
                    assert watched.recv(1) == b"", "something came behind the last answer"

        with Clients(client) as clients, socket.create_connection(("127.0.0.1", old.port), 60) as idle:
            clients.go_on()
            old.signal()
            wait_until(lambda: old.request("GET", "/v2/health/ready")[0] == 400)
            time.sleep(LATE_SECONDS)  # requests come meanwhile
            assert old.process.poll() is None
            where = new
            assert old.wait() == 0
            idle.settimeout(60)
            assert idle.recv(1) == b"", "a connection on which nothing was asked is ended, not reset"
            clients.go_on()
        assert clients.failures == []
        assert len(lasts) >= CLIENTS and set(lasts) == {old}


def test_grpc(tmp_path: Path) -> None:
    """A client that knows both addresses, grpcio's, goes from one to the other; it retries only what no server has begun."""
    with two(tmp_path) as (old, new):

        def client() -> Generator[None, None, None]:
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(f"ipv4:{grpc_url(old)},{grpc_url(new)}", options) as channel:
                infer = channel.unary_unary(INFER)
                while True:
                    answer = pb.ModelInferResponse.FromString(infer(MESSAGE, timeout=60))
                    assert answer.raw_output_contents == [b"\0\0\x40\x40"]
                    yield

        with Clients(client) as clients:
            clients.go_on()
            old.signal()
            assert old.wait() == 0
            clients.go_on()
        assert clients.failures == []


def test_grpc_is_told_before_its_connection_ends(tmp_path: Path) -> None:
    """On one connection, call after call: all are answered, then there is GOAWAY, and then an end that is no reset."""
    with two(tmp_path) as (old, _):
        port = int(grpc_url(old).rpartition(":")[2])
        ends: list[bytes] = []

        def client() -> Generator[None, None, None]:
            http2 = Http2(port, PREFACE + settings())
            with http2.sock:
                stream, waiting, seen = -1, False, set()
                while waiting or not {GOAWAY, PING} <= seen:  # the PING is how the server learns that we have read the GOAWAY
                    if not waiting and GOAWAY not in seen:
                        stream, waiting = stream + 2, True
                        http2.send(headers(stream, FIELDS) + frame(DATA, END_STREAM, stream, CALL))
                    received = http2.next()
                    assert received is not None, "the connection ended without a word"
                    kind, flags, of, payload = received
                    seen.add(kind)
                    assert kind != RST_STREAM
                    if kind in (PING, SETTINGS) and not flags & ACK:
                        http2.send(frame(kind, ACK, 0, payload if kind == PING else b""))
                    elif kind == DATA:
                        http2.send(number(WINDOW_UPDATE, 0, len(payload)))
                    elif kind == HEADERS and flags & END_STREAM:
                        assert of == stream and dict(http2.decoder.decode(payload))["grpc-status"] == "0"
                        waiting = False
                        yield
                    elif kind == HEADERS:
                        http2.decoder.decode(payload)
                while piece := http2.sock.recv(65536):  # a reset would be an error here
                    http2.rest += piece
                ends.append(http2.rest)

        with Clients(client) as clients:
            clients.go_on()
            old.signal()
            assert old.wait() == 0
            wait_until(lambda: clients.failures or len(ends) == CLIENTS)
        assert clients.failures == []


class Http2(Client):
    """A client that reads what it gets."""

    def __init__(self, port: int, sent: bytes) -> None:
        super().__init__(port, sent)
        self.decoder = hpack.Decoder()


FIELDS = [(name, INFER if name == ":path" else value) for name, value in REQUEST]
CALL = b"\0" + len(MESSAGE).to_bytes(4, "big") + MESSAGE

"""Short reads and writes under real processes: tiny buffers on both sides of both wires,
and on the channels to children.

A client sends a byte a segment and reads a few at a time. Every request has exactly one answer, with the bytes that others get.
"""

from __future__ import annotations

import json
import random
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.settings
import numpy as np
import pytest
from certificates import Certificates, make_certificates

from kernel_grpc.schemas import grpc_service_pb2 as pb

from . import small_buffers
from .serving import Server, serving, write_model
from .test_grpc_admin import grpc_url

PLACEMENTS = ("loop", "thread", "process")
COUNT = 12  # requests of one connection, all sent before any is answered
LARGE = 20_000  # elements, of one of them
LIMIT_S = 60.0


#: Answers with the parameter `text`, backwards: both ways it goes by the channel of the process, not by shared memory.
TELLS = """\
    def execute(self, requests):
        texts = [json.loads(request.parameters())["text"][::-1] for request in requests]
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(text)) for text in texts]
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("pieces")) as server:
        yield server


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Server]:
    files = (f"server-cert={certificates.server}", f"server-key={certificates.server_key}")
    flags = [f"--{wire}-{flag}" for wire in ("http", "grpc") for flag in ("use-ssl", *files)]
    with started(tmp_path_factory.mktemp("secure"), *flags) as server:
        yield server


@contextmanager
def started(folder: Path, *flags: str) -> Iterator[Server]:
    for placement in PLACEMENTS:
        more = f'parameters {{ key: "placement" value {{ string_value: "{placement}" }} }}'
        write_model(folder / "models", placement, more=more)
    write_model(folder / "models", "tells", "    import json\n" + TELLS.replace("json.", "self.json."), more=more)
    with serving(folder, folder / "models", *flags, program=(small_buffers.__file__,)) as server:
        yield server
        server.signal()
        assert server.wait() == 0
    assert "Traceback" not in server.text()


def connected(url: str) -> socket.socket:
    host, port = url.rsplit(":", 1)
    sock = socket.socket()
    small_buffers.smallest(sock)  # before it is connected: the window is agreed on then
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(LIMIT_S)
    sock.connect((host, int(port)))
    return sock


class Secured:
    """TLS on a socket. One thread may send while another one receives; a record is sent byte by byte, too."""

    def __init__(self, sock: socket.socket, authority: str, protocol: str) -> None:
        context = ssl.create_default_context(cafile=authority)
        context.set_alpn_protocols([protocol])
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")
        self._lock = threading.Lock()
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(self._out.read())
                self._in.write(sock.recv(7))
            else:
                break
        self._flush(self._out.read())

    def _flush(self, data: bytes) -> None:
        for at in range(0, len(data), size := 1 if len(data) < 1000 else 100):
            self._sock.sendall(data[at : at + size])

    def sendall(self, data: bytes) -> None:
        with self._lock:
            self._tls.write(data)
            sealed = self._out.read()
        self._flush(sealed)

    def recv(self, size: int) -> bytes:
        while piece := self._sock.recv(size):
            with self._lock:
                self._in.write(piece)
                try:
                    return self._tls.read(1 << 16)
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLZeroReturnError:
                    break
        return b""


def exchanged(sock: socket.socket | Secured, data: bytes, received: Callable[[bytes], bytes | None], seed: int) -> None:
    """Send bytes, most of them one by one, and read a few at a time, until `received` gives None; what it gives is sent, too."""
    rng = random.Random(seed)
    lock = threading.Lock()

    def send(data: bytes) -> None:
        with lock:
            at = 0
            while at < len(data):
                size = 1 if at < 2000 else rng.choice((1, 7, 700))
                sock.sendall(data[at : at + size])
                at += size

    sender = threading.Thread(target=send, args=(data,))
    sender.start()
    try:
        while True:
            piece = sock.recv(rng.choice((1, 2, 3, 5, 900)))
            assert piece, "the server has closed the connection"
            more = received(piece)
            if more is None:
                break
            if more:
                send(more)
    finally:
        sender.join(LIMIT_S)
    assert not sender.is_alive()


def numbers(k: int) -> np.ndarray:
    return np.arange(LARGE if k == COUNT // 2 else k + 1, dtype=np.float32) + k


def http_request(model: str, k: int) -> bytes:
    data = numbers(k).tobytes()
    if k % 2:
        tensor = {"name": "X", "datatype": "FP32", "shape": [k + 1], "data": numbers(k).tolist()}
        body, more = json.dumps({"id": str(k), "inputs": [tensor]}).encode(), ""
    else:
        tensor = {"name": "X", "datatype": "FP32", "shape": [len(data) // 4], "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"id": str(k), "inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        body, more = head + data, f"Inference-Header-Content-Length: {len(head)}\r\n"
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def http_answers(data: bytes) -> list[bytes]:
    """Return the answers that are complete."""
    answers = []
    while (end := data.find(b"\r\n\r\n") + 4) > 3:
        head = data[:end].lower()
        assert head.startswith(b"http/1.1 200 "), data[:200]
        stop = end + int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        if stop > len(data):
            break
        answers.append(data[:stop])
        data = data[stop:]
    assert len(answers) <= COUNT
    return answers


@pytest.mark.parametrize("model", PLACEMENTS)
def test_http(server: Server, model: str) -> None:
    requests = [http_request(model, k) for k in range(COUNT)]
    expected = []
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as sock:
        for request in requests:
            sock.sendall(request)
            answer = b""
            while not http_answers(answer):
                answer += sock.recv(1 << 20)
            expected.append(answer)
    came = bytearray()

    def received(piece: bytes) -> bytes | None:
        came.extend(piece)
        return None if len(came) >= sum(map(len, expected)) else b""

    with connected(server.url) as sock:
        exchanged(sock, b"".join(requests), received, len(model))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b"", "there is more than the answers"
    assert http_answers(bytes(came)) == expected
    for k in range(0, COUNT, 2):
        assert expected[k].endswith(numbers(k).tobytes())


def test_http_over_tls(secure: Server, certificates: Certificates) -> None:
    came = bytearray()

    def received(piece: bytes) -> bytes | None:
        came.extend(piece)
        return None if len(http_answers(bytes(came))) == COUNT else b""

    with connected(secure.url) as sock:
        requests = b"".join(http_request("process", k) for k in range(COUNT))
        exchanged(Secured(sock, certificates.ca, "http/1.1"), requests, received, 1)
    for k, answer in enumerate(http_answers(bytes(came))):
        assert b'"id":"%d"' % k in answer and (k % 2 or answer.endswith(numbers(k).tobytes()))


class GrpcClient:
    """Calls that are made at once. `answers`: what has come, by stream."""

    def __init__(self, path: str, calls: list[list[bytes]]) -> None:
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.connection.initiate_connection()
        self.answers: dict[int, bytearray] = {}
        self.statuses: dict[int, str] = {}
        self._waiting: dict[int, bytes] = {}
        self._ended: set[int] = set()
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a", "content-type": "application/grpc"}
        for messages in calls:
            stream = self.connection.get_next_available_stream_id()
            self.connection.send_headers(stream, [*fields.items(), ("te", "trailers")])
            self._waiting[stream] = b"".join(struct.pack(">BI", 0, len(one)) + one for one in messages)
            self.answers[stream] = bytearray()
        self._pump()

    def _pump(self) -> None:
        connection = self.connection
        for stream, data in list(self._waiting.items()):
            while data and (room := min(connection.local_flow_control_window(stream), connection.max_outbound_frame_size)):
                connection.send_data(stream, data[:room])
                data = self._waiting[stream] = data[room:]
            if not data:
                del self._waiting[stream]
                connection.end_stream(stream)

    def received(self, piece: bytes) -> bytes | None:
        for event in self.connection.receive_data(piece):
            match event:
                case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                    assert stream not in self._ended
                    self.answers[stream] += data
                    self.connection.acknowledge_received_data(length, stream)
                case h2.events.TrailersReceived(stream_id=stream, headers=headers) | h2.events.ResponseReceived(
                    stream_id=stream, headers=headers
                ):
                    for name, value in headers:
                        if bytes(name) == b"grpc-status":
                            assert stream not in self.statuses
                            self.statuses[stream] = bytes(value).decode()
                case h2.events.StreamEnded(stream_id=stream):
                    self._ended.add(stream)
                case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                    pytest.fail(str(event))
        self._pump()
        more = self.connection.data_to_send()
        return None if len(self._ended) == len(self.answers) else bytes(more)


def grpc_request(model: str, k: int) -> bytes:
    made = pb.ModelInferRequest(model_name=model, id=str(k))
    made.inputs.add(name="X", datatype="FP32", shape=[len(numbers(k))])
    if k % 2:
        made.inputs[0].contents.fp32_contents.extend(numbers(k).tolist())
    else:
        made.raw_input_contents.append(numbers(k).tobytes())
    data: bytes = made.SerializeToString()
    return data


@pytest.mark.parametrize("streaming", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize("model", PLACEMENTS)
def test_grpc(server: Server, model: str, streaming: bool) -> None:
    requests = [grpc_request(model, k) for k in range(COUNT)]
    method = "ModelStreamInfer" if streaming else "ModelInfer"
    client = GrpcClient(f"/inference.GRPCInferenceService/{method}", [requests] if streaming else [[one] for one in requests])
    with connected(grpc_url(server)) as sock:
        exchanged(sock, client.connection.data_to_send(), client.received, len(model))
    check(client, streaming)


def test_grpc_over_tls(secure: Server, certificates: Certificates) -> None:
    client = GrpcClient("/inference.GRPCInferenceService/ModelInfer", [[grpc_request("process", k)] for k in range(COUNT)])
    with connected(grpc_url(secure)) as sock:
        sent = client.connection.data_to_send()
        exchanged(Secured(sock, certificates.ca, "h2"), sent, client.received, 1)
    check(client, False)


def check(client: GrpcClient, streaming: bool) -> None:
    """Each request has its answer, once, and right."""
    assert set(client.statuses.values()) == {"0"} and client.statuses.keys() == client.answers.keys()
    came: list[pb.ModelInferResponse] = []
    for answer in client.answers.values():
        at = 0
        while at < len(answer):
            size = int.from_bytes(answer[at + 1 : at + 5], "big")
            data = bytes(answer[at + 5 : at + 5 + size])
            if streaming:
                came.append(pb.ModelStreamInferResponse.FromString(data).infer_response)
            else:
                came.append(pb.ModelInferResponse.FromString(data))
            at += 5 + size
    assert sorted(int(one.id) for one in came) == [*range(COUNT)]
    for one in came:
        assert one.raw_output_contents[0] == numbers(int(one.id)).tobytes()


def test_the_metrics_page(server: Server) -> None:
    found = re.search(r"Started Metrics Service at (\S+:\d+)", server.text())
    assert found is not None
    request = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
    came = bytearray()

    def received(piece: bytes) -> bytes | None:
        came.extend(piece)
        return None if len(http_answers(bytes(came))) == 3 else b""

    with connected(found[1]) as sock:
        exchanged(sock, 3 * request, received, 1)
    for answer in http_answers(bytes(came)):
        assert len(answer) > 10_000 and answer.endswith(b"\n")


def test_the_channel_of_a_process(server: Server) -> None:
    """Many messages at once, each of which is longer than its buffer."""

    def ask(k: int) -> tuple[int, str]:
        tensor = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
        body = {"inputs": [tensor], "parameters": {"text": text(k)}}
        status, answer = server.request("POST", "/v2/models/tells/infer", body, LIMIT_S)
        return status, answer["error"]

    def text(k: int) -> str:
        return "".join(random.Random(k).choices("abcdefgh", k=600 * k))  # an error says no more than 32 KiB

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(48)))
    assert answers == [(500, text(k)[::-1]) for k in range(48)]

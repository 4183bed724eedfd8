"""Small unauthenticated requests that hurt: how long the server stalls, what memory and processor time they cost it.

    python bench/attacks.py                     all rows, each against a server of its own
    python bench/attacks.py --only logging nan  those whose names contain one of these words
    python bench/attacks.py --url 127.0.0.1:8000 --pid 4711   against a server that runs (HTTP rows)

A row is a function that gets a Target and sends; it runs in a process of its own, so that only the server's time is measured.
Meanwhile `GET /v2/health/live` is asked again and again on one connection: "stall" is the longest that an answer took. "peak" is
what the server's memory grew by at most, "CPU" what processor time it used until the attack was over. On a busy machine a stall
is also the machine's: "own" is the longest without the time in which the loop's thread or who asks it had work and no processor
(Linux tells); what the server's other threads lacked while they held the interpreter is in it. What is wanted of each row is
wanted of that.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import multiprocessing
import os
import re
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The longest that an attack may take, in seconds; then it is ended.
PATIENCE = 60.0

MODEL = """import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        {body}
"""
ECHO = (
    "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', pb_utils.get_input_tensor_by_name(r, 'X').as_numpy())]) "
    "for r in requests]"
)
BLOB = (
    "return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.ones(int(pb_utils.get_input_tensor_by_name(r, 'X')"
    ".as_numpy()[0]), np.float32))]) for r in requests]"
)
CONFIG = """backend: "python"
input {{ name: "X" data_type: TYPE_{kind} dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_{out} dims: [ -1 ] }}
parameters {{ key: "PLACEMENT" value {{ string_value: "{placement}" }} }}
"""
INSTANCES = 64  # of `blobs`

#: Name -> code, datatypes of X and Y, placement.
MODELS = {
    "echo": (ECHO, "FP32", "FP32", "loop"),
    "ints": (ECHO, "INT64", "INT64", "loop"),
    "text": (ECHO, "STRING", "STRING", "loop"),
    "blob": (BLOB, "INT32", "FP32", "thread"),  # an answer of as many floats as X says
    "blobs": (BLOB, "INT32", "FP32", "thread"),  # many at a time
}


# -- the server --------------------------------------------------------------------------------------------------------------


@dataclass
class Target:
    """The server that is attacked. `http`, `grpc`, `metrics`: ports of 127.0.0.1; `pid`: of its process."""

    http: int
    grpc: int
    metrics: int
    pid: int
    tls: ssl.SSLContext | None = None  # by which HTTP is asked, None for none

    def connect(self, port: int | None = None) -> socket.socket:
        """Return a connection, of HTTP where no port is said."""
        return socket.create_connection(("127.0.0.1", port or self.http), timeout=PATIENCE)


def write_models(folder: Path) -> None:
    for name, (body, kind, out, placement) in MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL.format(body=body))
        count = f"instance_group {{ count: {INSTANCES} kind: KIND_CPU }}\n" if name == "blobs" else ""
        (folder / name / "config.pbtxt").write_text(CONFIG.format(kind=kind, out=out, placement=placement) + count)


#: What the flags for TLS name, and what those files are called.
TLS_FILES = {"server-cert": "cert", "server-key": "key", "root-cert": "cert"}


@contextlib.contextmanager
def certified() -> Iterator[list[str]]:
    """Make a certificate; give the flags of a server that has it."""
    with tempfile.TemporaryDirectory(prefix="kernel-attacks-") as folder:
        files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", *files]
        subprocess.run(command, check=True, capture_output=True)
        yield [
            f"--{wire}-{flag}"
            for wire in ("http", "grpc")
            for flag in ("use-ssl", *(f"{what}={folder}/{file}.pem" for what, file in TLS_FILES.items()))
        ]


@contextlib.contextmanager
def served(flags: Sequence[str] = (), tls: ssl.SSLContext | None = None) -> Iterator[Target]:
    """Start `kernel serve` with the models above; end it afterwards. `tls`: by which its HTTP is asked."""
    with tempfile.TemporaryDirectory(prefix="kernel-attacks-") as folder:
        write_models(Path(folder) / "models")
        with contextlib.ExitStack() as stack:
            ports = []
            for _ in range(3):
                sock = stack.enter_context(socket.socket())
                sock.bind(("127.0.0.1", 0))
                ports.append(sock.getsockname()[1])
        http, grpc, metrics = ports
        command = [
            str(Path(sys.executable).with_name("kernel")), "serve", f"{folder}/models", "--http-address=127.0.0.1",
            f"--http-port={http}", "--grpc-address=127.0.0.1", f"--grpc-port={grpc}", f"--metrics-port={metrics}",
            f"--log-file={folder}/log", *flags,
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            target = Target(http, grpc, metrics, process.pid, tls)
            for _ in range(600):
                with contextlib.suppress(OSError), Probe(target) as probe:
                    probe.ask()
                    break
                time.sleep(0.05)
            else:
                raise RuntimeError(Path(folder, "log").read_text())
            yield target
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


# -- what is measured ----------------------------------------------------------------------------------------------------------


class Probe:
    """One connection that asks whether the server lives."""

    def __init__(self, target: Target) -> None:
        sock = target.connect()
        self._sock = sock if target.tls is None else target.tls.wrap_socket(sock)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *exception: object) -> None:
        self._sock.close()

    def ask(self) -> float:
        """Ask once; return how many seconds the answer took."""
        start = time.monotonic()
        self._sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        if not self._sock.recv(4096):
            raise OSError("closed")
        return time.monotonic() - start


def memory(pid: int, what: str) -> int:
    """Return a figure of a process's memory in bytes: VmRSS, or VmHWM, the most since `forget_peak`."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def lacked(*pids: int) -> float:
    """Return for how many seconds the first threads of processes were to run, and had no processor; 0.0 where nobody tells."""
    with contextlib.suppress(OSError, IndexError):
        return sum(int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9
    return 0.0


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Figures:
    """What an attack did. `stall`, `own`, `cpu`, `seconds`: seconds; `peak`: bytes. `ended`: it came to its end in time."""

    stall: float
    own: float
    peak: int
    cpu: float
    seconds: float
    ended: bool


def measured(target: Target, attack: Callable[[Target], None]) -> Figures:
    """Run an attack in a process of its own, and watch the server meanwhile."""
    forget_peak(target.pid)
    before, cpu, start = memory(target.pid, "VmRSS"), processor_time(target.pid), time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=_quiet, args=(attack, target), daemon=True)
    stall = own = 0.0
    with Probe(target) as probe:
        process.start()
        with contextlib.suppress(OSError):
            while time.monotonic() - start < PATIENCE:
                running = process.is_alive()
                waited = lacked(target.pid, os.getpid())
                asked = probe.ask()
                stall = max(stall, asked)
                own = max(own, asked - (lacked(target.pid, os.getpid()) - waited))
                if not running:
                    break
                time.sleep(0.002)
    ended = not process.is_alive()
    process.kill()
    process.join()
    seconds = time.monotonic() - start
    return Figures(stall, own, max(memory(target.pid, "VmHWM") - before, 0), processor_time(target.pid) - cpu, seconds, ended)


def _quiet(attack: Callable[[Target], None], target: Target) -> None:
    with contextlib.suppress(OSError):  # refused and cut off is what is wanted
        attack(target)


# -- HTTP ------------------------------------------------------------------------------------------------------------------------


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Return a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def ask(target: Target, data: bytes, answers: int = 1) -> None:
    """Send on a connection of its own, and read until the answers are there or the server closes."""
    with target.connect() as sock:
        sock.sendall(data)
        read_answers(sock, answers)


def read_answers(sock: socket.socket, answers: int) -> None:
    file = sock.makefile("rb")
    for _ in range(answers):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = file.readline()
            if not line:
                return
            head += line
        found = re.search(rb"content-length: (\d+)", head.lower())
        left = int(found[1]) if found else 0
        while left > 0:
            left -= len(file.read(min(left, 1 << 20))) or left


def infer(data: str, shape: Sequence[int] = (1,), datatype: str = "FP32") -> bytes:
    inputs = f'{{"name":"X","datatype":"{datatype}","shape":{json.dumps(list(shape))},"data":{data}}}'
    return b'{"inputs":[' + inputs.encode() + b"]}"


def many(target: Target, count: int, data: bytes, answers: int = 1) -> None:
    """Send the same on many connections, and read then."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(target.connect()) for _ in range(count)]
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.sendall(data)
        for sock in socks:
            with contextlib.suppress(OSError):
                read_answers(sock, answers)


def logging_number(target: Target) -> None:
    ask(target, post("/v2/logging", b'{"a":NaN,"b":0.' + b"1" * 40_000 + b"}"))


def broken_nan(target: Target) -> None:
    ask(target, post("/v2/models/echo/infer", b'[NaN,"' + b"x" * 20_000_000 + b'"]'))


def broken_comma(target: Target) -> None:
    ask(target, post("/v2/models/echo/infer", b'{"a":["' + b"x" * 20_000_000 + b'" 1]}'))


def one_string(target: Target, size: int, text: str = "x") -> None:
    ask(target, post("/v2/models/text/infer", infer('["' + text * (size // len(text.encode())) + '"]', [1], "BYTES")))


def binary_string(target: Target, size: int, wanted: bool) -> None:
    """One string as binary data, and its answer as JSON or in the same way."""
    tail = size.to_bytes(4, "little") + b"x" * size
    inputs = {"name": "X", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(tail)}}
    text = json.dumps({"inputs": [inputs], "parameters": {"binary_data_output": wanted}}).encode()
    ask(target, post("/v2/models/text/infer", text + tail, f"Inference-Header-Content-Length: {len(text)}"))


def generate(target: Target) -> None:
    ask(target, post("/v2/models/ints/generate", b'{"X":[' + b"1," * 900_000 + b"1]}"))


def load_files(target: Target) -> None:
    """A model that comes with 40 MB of base64."""
    config = CONFIG.format(kind="FP32", out="FP32", placement="loop")
    code = MODEL.format(body=ECHO).encode()
    files = {"file:1/model.py": code, "file:1/data": os.urandom(30_000_000)}
    parameters = {"config": config} | {name: base64.b64encode(data).decode() for name, data in files.items()}
    ask(target, post("/v2/repository/models/new/load", json.dumps({"parameters": parameters}).encode()))


def odd_lists(target: Target) -> None:
    """Strings in lists of one, and numbers in lists of two lengths."""
    ask(target, post("/v2/models/text/infer", infer("[" + '["ab"],' * 140_000 + '["ab"]]', [140_001, 1], "BYTES")))
    ask(target, post("/v2/models/echo/infer", infer("[[1,2]," + "[1.23456789]," * 170_000 + "[1]]", [170_002, 1])))
    ask(target, post("/v2/models/echo/infer", infer("[[1]," + "1.23456789," * 1_000_000 + "1]", [1_000_002])))


def rank(target: Target) -> None:
    ask(target, post("/v2/models/echo/infer", infer("[1]", [2**62] * 200_000)))


def nested(target: Target) -> None:
    ask(target, post("/v2/models/echo/infer", infer("[" + "[1]," * 15_000_000 + "[1]]", [15_000_001, 1])))


def integers(target: Target) -> None:
    ask(target, post("/v2/models/ints/infer", infer("[" + "1," * 31_000_000 + "1]", [31_000_001], "INT64")))


def gzip_bomb(target: Target) -> None:
    packer = zlib.compressobj(9, wbits=31)
    body = packer.compress(b'{"inputs":[' + b"[1]," * 15_000_000 + b"1]}") + packer.flush()
    ask(target, post("/v2/models/echo/infer", body, "Content-Encoding: gzip"))


def strings(target: Target) -> None:
    tail = bytes(64 * 1024 * 1024)
    inputs = {"name": "X", "datatype": "BYTES", "shape": [len(tail) // 4], "parameters": {"binary_data_size": len(tail)}}
    text = json.dumps({"inputs": [inputs]}).encode()
    ask(target, post("/v2/models/text/infer", text + tail, f"Inference-Header-Content-Length: {len(text)}"))


def classes(target: Target, floats: int, count: int) -> None:
    outputs = [{"name": "Y", "parameters": {"classification": count}}]
    inputs = [{"name": "X", "datatype": "INT32", "shape": [1], "data": [floats]}]
    ask(target, post("/v2/models/blob/infer", json.dumps({"inputs": inputs, "outputs": outputs}).encode()))


def endless_body(target: Target, model: str) -> None:
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {2**40}\r\n"
    head += "Inference-Header-Content-Length: 1\r\n\r\n"
    with target.connect() as sock:
        sock.sendall(head.encode() + b"{")
        for _ in range(3 * 1024):
            sock.sendall(bytes(1024 * 1024))


def pipelined(target: Target) -> None:
    """64 answers of 16 MiB, which nobody reads for five seconds."""
    inputs = [{"name": "X", "datatype": "INT32", "shape": [1], "data": [4 * 1024 * 1024]}]
    record = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    with target.connect() as sock:
        sock.sendall(post("/v2/models/blob/infer", json.dumps(record).encode()) * 64)
        time.sleep(5)


def fields(target: Target) -> None:
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 12_000 + b"\r\n"
    many(target, 16, head * 8, 8)


def again(target: Target, port: int, piece: bytes, begin: bytes = b"", seconds: float = 4.0) -> None:
    """Send the same again and again on 16 connections, and read all that comes."""
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for _ in range(16):
            sock = stack.enter_context(target.connect(port))
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, [memoryview(begin + piece)])
        end = time.monotonic() + seconds
        while time.monotonic() < end and selector.get_map():
            for key, events in selector.select(0.05):
                sock, left = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                try:
                    if events & selectors.EVENT_READ and not sock.recv(1 << 18):
                        raise OSError("closed")
                    if events & selectors.EVENT_WRITE:
                        left[0] = left[0][sock.send(left[0][: 1 << 18]) :] or memoryview(piece)
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(sock)


def operations(target: Target, method: str, path: str, body: bytes = b"") -> None:
    """Pipelined requests, which are answered without a model."""
    line = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    again(target, target.http, (line.encode() + body) * 500)


def explanations(target: Target, asked: str) -> None:
    """Who asks why requests of an id took so long, of which there are thousands where it is `a`."""
    inputs = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
    request = post("/v2/models/echo/infer", json.dumps({"id": "a", "inputs": [inputs]}).encode())
    for _ in range(9):
        ask(target, request * 1000, 1000)
    operations(target, "GET", f"/v2/kernel/explain/id/{asked}")


def empty_lines(target: Target, port: int) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(target.connect(port)) for _ in range(16)]
        for _ in range(64):
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.sendall(b"\r\n" * 32_768)


def small_chunks(target: Target) -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    many(target, 16, head + b"1\r\nx\r\n" * 500_000 + b"0\r\n\r\n")


def large_bodies(target: Target) -> None:
    """16 bodies of 32 MB at once, of a shape that is refused."""
    inputs = {"name": "X", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 32 * MB}}
    text = json.dumps({"inputs": [inputs]}).encode()
    data = post("/v2/models/echo/infer", text + bytes(32 * MB), f"Inference-Header-Content-Length: {len(text)}")
    send_all([target.connect() for _ in range(16)], data)


def send_all(socks: Sequence[socket.socket], data: bytes) -> None:
    """Send the same on all of them at once, as far as they take it within ten seconds, and read what comes then."""
    with contextlib.ExitStack() as stack:
        for sock in socks:
            stack.enter_context(sock).settimeout(0.05)
        left = {sock: memoryview(data) for sock in socks}
        end = time.monotonic() + 10
        while left and time.monotonic() < end:
            for sock, view in list(left.items()):
                try:
                    left[sock] = view[sock.send(view[: 256 * 1024]) :]
                except TimeoutError:
                    continue
                except OSError:
                    left[sock] = view[:0]
                if not left[sock]:
                    del left[sock]
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.settimeout(0.01)
                while sock.recv(1 << 20):
                    pass


def metrics_flood(target: Target) -> None:
    data = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 60
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(target.connect(target.metrics)) for _ in range(32)]
        for sock in socks:
            sock.sendall(data)
        for sock in socks:
            with contextlib.suppress(OSError):
                read_answers(sock, 60)


def crowd(target: Target) -> None:
    """600 connections, each of which sends two small requests at once, ten times."""
    inputs = {"name": "X", "datatype": "INT32", "shape": [1], "data": [1]}
    data = post("/v2/models/blob/infer", json.dumps({"inputs": [inputs]}).encode()) * 2
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(target.connect()) for _ in range(600)]
        for _ in range(10):
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.sendall(data)
        time.sleep(2)


def slow_connections(target: Target) -> None:
    """A thousand connections, each with half a head."""
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            with contextlib.suppress(OSError):
                stack.enter_context(target.connect()).sendall(b"GET /v2/health/live HTTP/1.1\r\n")
        time.sleep(3)


# -- TLS ------------------------------------------------------------------------------------------------------------------------

NO_CHECKS = ssl.create_default_context()
NO_CHECKS.check_hostname = False
NO_CHECKS.verify_mode = ssl.CERT_NONE


def at_once(count: int, act: Callable[[], None]) -> None:
    """Call `act` on so many threads, and return when all have done it."""
    threads = [threading.Thread(target=act) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tls_handshakes(target: Target) -> None:
    """Handshakes on 64 connections at a time, again and again."""
    end = time.monotonic() + 4

    def shake() -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError), target.connect() as sock:
                NO_CHECKS.wrap_socket(sock).close()

    at_once(64, shake)


def tls_hellos(target: Target) -> None:
    """Handshakes that end when the server has signed."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        NO_CHECKS.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    hello, end = out.read(), time.monotonic() + 4
    while time.monotonic() < end:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for _ in range(200):
                stack.enter_context(target.connect()).sendall(hello)


def tls_begun(target: Target) -> None:
    """600 handshakes that never go on."""
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            with contextlib.suppress(OSError):
                stack.enter_context(target.connect()).sendall(b"\x16\x03\x01\x02\x00\x01")
        time.sleep(3)


def tls_chains(target: Target, port: int) -> None:
    """Handshakes on 16 connections, each with a chain of 250 certificates that nobody trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory(prefix="kernel-attacks-") as folder:
        key, cert = f"{folder}/key.pem", Path(folder, "cert.pem")
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=a", "-keyout", key]
        subprocess.run(["openssl", "req", "-x509", *kind, "-days", "2", "-out", str(cert)], check=True, capture_output=True)
        cert.write_text(cert.read_text() * 250)
        context.load_cert_chain(str(cert), key)
    end = time.monotonic() + 4

    def shake() -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError), target.connect(port) as sock:
                tls = context.wrap_socket(sock)
                tls.recv(1)  # in TLS 1.3, what the server thinks of the chain comes later
                tls.close()

    at_once(16, shake)


def tls_bytes(target: Target) -> None:
    """The beginnings of handshakes on 64 connections, byte by byte."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        NO_CHECKS.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(target.connect()) for _ in range(64)]
        for sock in socks:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in out.read()[:300]:
            for sock in socks:
                sock.sendall(bytes((byte,)))


def tls_records(target: Target) -> None:
    """Records of one byte, on 16 connections."""
    request = post("/v2/models/echo/infer", b"x" * 60_000)
    data = {sock: memoryview(_in_records(sock, request)) for sock in [target.connect() for _ in range(16)]}
    for sock in data:
        sock.settimeout(0.05)
    end = time.monotonic() + 20
    while data and time.monotonic() < end:
        for sock, left in list(data.items()):
            with contextlib.suppress(TimeoutError):
                data[sock] = left[sock.send(left[: 256 * 1024]) :]
            if not data[sock]:
                del data[sock]


def _in_records(sock: socket.socket, data: bytes) -> bytes:
    """Shake hands; return `data` as records of one byte."""
    come, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = NO_CHECKS.wrap_bio(come, out)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(out.read())
            come.write(sock.recv(65536))
    for byte in data:
        tls.write(bytes((byte,)))
    return out.read()


# -- gRPC ------------------------------------------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)) + bytes((0, 0, 0, 4, 1, 0, 0, 0, 0))
DATA, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 8, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def varint(number: int) -> bytes:
    groups = bytearray()
    while number >= 128:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def head(stream: int, method: str = "ModelInfer", *others: tuple[str, str]) -> bytes:
    """Return the HEADERS of a call, without the dynamic table."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", f"/inference.GRPCInferenceService/{method}")]
    fields += [(":authority", "a"), ("content-type", "application/grpc"), ("te", "trailers"), *others]
    texts = [text.encode() for pair in fields for text in (pair[0], pair[1])]
    block = b"".join((b"" if k % 2 else b"\0") + bytes((len(text),)) + text for k, text in enumerate(texts))
    return frame(HEADERS, END_HEADERS, stream, block)


def prefixed(message: bytes, *, packed: bool = False) -> bytes:
    return bytes((packed,)) + len(message).to_bytes(4, "big") + message


def tensor(datatype: str, shape: Sequence[int], *more: bytes) -> bytes:
    """Return an input X of a request; `more`: further fields."""
    sizes = b"".join(map(varint, shape))
    return field(5, field(1, b"X") + field(2, datatype.encode()) + field(3, sizes) + b"".join(more))


def send_body(sock: socket.socket, stream: int, body: bytes) -> None:
    """Send a message's bytes as a client does that keeps to the windows, and end the stream. Raises OSError where refused."""
    window, own, got = 16 * MB, 4 * MB, b""
    sent, view = 0, memoryview(body)
    sock.settimeout(PATIENCE)
    while sent < len(body):
        size = min(16 * 1024, window, own, len(body) - sent)
        if size > 0:
            last = END_STREAM if sent + size == len(body) else 0
            sock.sendall(frame(DATA, last, stream, bytes(view[sent : sent + size])))
            sent, window, own = sent + size, window - size, own - size
            if min(window, own) > MB:
                continue
        got += sock.recv(65536)
        while len(got) >= 9 and len(got) >= 9 + int.from_bytes(got[:3], "big"):
            size, kind, id = int.from_bytes(got[:3], "big"), got[3], int.from_bytes(got[5:9], "big")
            if kind == WINDOW_UPDATE and id == 0:
                window += int.from_bytes(got[9:13], "big")
            elif kind == WINDOW_UPDATE:
                own += int.from_bytes(got[9:13], "big")
            elif id == stream and kind in (RST_STREAM, HEADERS):
                raise OSError("refused")
            got = got[9 + size :]


def grpc_call(target: Target, message: bytes, *others: tuple[str, str], packed: bool = False) -> None:
    """Make one call, and wait a while for its answer."""
    with target.connect(target.grpc) as sock:
        sock.sendall(PREFACE + head(1, "ModelInfer", *others))
        send_body(sock, 1, prefixed(message, packed=packed))
        got = b""
        while len(got) < 9 or got[3] in (SETTINGS, WINDOW_UPDATE):  # until the answer begins
            got += sock.recv(65536) or b"\xff" * 9
            while len(got) >= 9 and got[3] in (SETTINGS, WINDOW_UPDATE):
                got = got[9 + int.from_bytes(got[:3], "big") :]


def grpc_rank(target: Target) -> None:
    grpc_call(target, field(1, b"echo") + tensor("FP32", [2**62] * 200_000) + field(7, b""))


def grpc_strings(target: Target) -> None:
    grpc_call(target, field(1, b"text") + tensor("BYTES", [16 * MB]) + field(7, bytes(64 * MB)))


def grpc_string(target: Target) -> None:
    size = 63 * MB
    grpc_call(target, field(1, b"text") + tensor("BYTES", [1]) + field(7, size.to_bytes(4, "little") + b"x" * size))


def grpc_integers(target: Target) -> None:
    contents = field(5, field(3, bytes(62_000_000)))
    grpc_call(target, field(1, b"ints") + tensor("INT64", [62_000_000], contents))


def grpc_parameters(target: Target) -> None:
    grpc_call(target, field(1, b"echo") + field(4, field(1, b"key") + field(2, b"\x08\x01")) * 1_300_000)


def grpc_unfinished(target: Target) -> None:
    with target.connect(target.grpc) as sock:
        sock.sendall(PREFACE + head(1))
        send_body(sock, 1, prefixed(bytes(1536 * MB))[:-1] + bytes(1))
        time.sleep(1)


def grpc_bombs(target: Target) -> None:
    packer = zlib.compressobj(9, wbits=31)
    body = b"".join(packer.compress(bytes(MB)) for _ in range(512)) + packer.flush()

    def call() -> None:
        grpc_call(target, body, ("grpc-encoding", "gzip"), packed=True)

    at_once(6, call)


def grpc_window(target: Target, model: bytes = b"blob") -> None:
    """140 answers of 16 MiB, for which there is no window."""
    request = field(1, model) + tensor("INT32", [1]) + field(7, (4 * MB).to_bytes(4, "little"))
    with target.connect(target.grpc) as sock:
        sock.sendall(PREFACE + frame(SETTINGS, 0, 0, (4).to_bytes(2, "big") + bytes(4)))
        for k in range(140):
            sock.sendall(head(2 * k + 1) + frame(DATA, END_STREAM, 2 * k + 1, prefixed(request)))
        time.sleep(10)


def grpc_load(target: Target) -> None:
    """A model that comes with 60 MB."""
    config = CONFIG.format(kind="FP32", out="FP32", placement="loop")
    given = [(b"config", 3, config.encode()), (b"file:1/model.py", 4, MODEL.format(body=ECHO).encode())]
    given.append((b"file:1/data", 4, os.urandom(60_000_000)))
    message = field(2, b"new") + b"".join(field(3, field(1, name) + field(2, field(kind, value))) for name, kind, value in given)
    with target.connect(target.grpc) as sock:
        sock.sendall(PREFACE + head(1, "RepositoryModelLoad"))
        send_body(sock, 1, prefixed(message))
        time.sleep(2)


def grpc_outputs(target: Target) -> None:
    grpc_call(target, field(1, b"echo") + b"\x32\0" * 8_500_000)


def grpc_raws(target: Target) -> None:
    grpc_call(target, field(1, b"echo") + b"\x3a\0" * 8_500_000)


def grpc_pending(target: Target) -> None:
    """40 000 calls on 400 connections, whose messages never end."""
    begun = bytes(1) + (100).to_bytes(4, "big") + bytes(50)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(target.connect(target.grpc)) for _ in range(400)]
        for sock in socks:
            sock.sendall(PREFACE)
        for k in range(100):
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.sendall(head(2 * k + 1) + frame(DATA, 0, 2 * k + 1, begun))
        time.sleep(3)


def grpc_deadlines(target: Target) -> None:
    """16 000 calls, whose messages never end, with one deadline."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(target.connect(target.grpc)) for _ in range(160)]
        for sock in socks:
            sock.sendall(PREFACE + b"".join(head(2 * k + 1, "ModelInfer", ("grpc-timeout", "2S")) for k in range(100)))
        time.sleep(4)


def grpc_crowd(target: Target) -> None:
    """600 connections, each of which sends two small calls at once, ten times."""
    request = field(1, b"blob") + tensor("INT32", [1]) + field(7, (1).to_bytes(4, "little"))
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(target.connect(target.grpc)) for _ in range(600)]
        for sock in socks:
            sock.sendall(PREFACE)
        for k in range(10):
            calls = (head(id) + frame(DATA, END_STREAM, id, prefixed(request)) for id in (4 * k + 1, 4 * k + 3))
            data = b"".join(calls)
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.sendall(data)
        time.sleep(2)


def flood(piece: Callable[[int], bytes], times: int, begin: bytes = b"") -> Callable[[Target], None]:
    """Return the attack that sends `begin`, then `piece` of 0, 1, 2 … joined, on 16 connections."""
    return lambda target: send_flood(target, begin + b"".join(map(piece, range(times))))


def send_flood(target: Target, data: bytes) -> None:
    send_all([target.connect(target.grpc) for _ in range(16)], PREFACE + data)


def grpc_bodies(target: Target) -> None:
    """16 messages at once, 16 calls each, as much as the windows take without being asked: 16 MB on each connection."""
    whole = b"".join(frame(DATA, 0, 2 * k + 1, bytes(16 * 1024)) for _ in range(64) for k in range(16))
    data = b"".join(head(2 * k + 1) + frame(DATA, 0, 2 * k + 1, bytes(1) + (64 * MB).to_bytes(4, "big")) for k in range(16))
    send_flood(target, data + whole[: 15 * MB])


def grpc_resets(k: int) -> bytes:
    return head(2 * k + 1) + frame(RST_STREAM, 0, 2 * k + 1, bytes(4))


def grpc_wrong(k: int) -> bytes:
    id = 2 * k + 1
    return head(id) + frame(DATA, END_STREAM, id, prefixed(b"\xff")) + frame(RST_STREAM, 0, id, bytes(4))


def grpc_unknown(k: int) -> bytes:
    return head(2 * k + 1, f"M{k:08d}") + frame(DATA, END_STREAM, 2 * k + 1, bytes(5))


def grpc_made_resets(k: int) -> bytes:
    return head(2 * k + 1) + frame(WINDOW_UPDATE, 0, 2 * k + 1, bytes(4))


def grpc_fields(k: int) -> bytes:
    return frame(HEADERS, END_HEADERS | END_STREAM, 2 * k + 1, b"\x90" * 1400 + b"\x00\x01k" + bytes((8,)) + b"%08d" % k)


def grpc_continuation(k: int) -> bytes:
    whole = head(2 * k + 1)[9:]
    first, last = frame(HEADERS, END_STREAM, 2 * k + 1, whole), frame(CONTINUATION, END_HEADERS, 2 * k + 1, b"")
    return first + frame(CONTINUATION, 0, 2 * k + 1, b"") * 62 + last


def grpc_credit(k: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1")


def grpc_settings(k: int) -> bytes:
    return frame(SETTINGS, 0, 0, bytes((0, 9, 0, 0, 0, 0)) * 10_000)


def grpc_messages(k: int) -> bytes:
    return frame(DATA, 0, 1, bytes(5 * 3000))


# -- the rows --------------------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """An attack, and what is wanted of the server meanwhile: the longest stall in seconds, the most memory in bytes."""

    name: str
    attack: Callable[[Target], None]
    stall: float
    peak: int
    tls: bool = False
    flags: Sequence[str] = ()  # more of the server's, without the dashes


MB = 1024 * 1024
EXPLICIT = ("model-control-mode=explicit", "load-model=*")

#: More rows, such as those of gRPC, are added here.
ROWS: list[Row] = [
    Row("logging: a number of 40 KB", logging_number, 0.020, 2 * MB),
    Row("broken JSON: NaN, a string of 20 MB", broken_nan, 0.020, 61 * MB),
    Row("broken JSON: a comma lacks behind 20 MB", broken_comma, 0.020, 61 * MB),
    Row("one string of 16 MB", lambda target: one_string(target, 16_000_000), 0.020, 160 * MB),
    Row("one string of 60 MB", lambda target: one_string(target, 60_000_000), 0.020, 181 * MB),
    Row("one string of 16 MB of escapes", lambda target: one_string(target, 16_000_000, "\\u00e9"), 0.020, 160 * MB),
    Row("one string of 16 MB, not ASCII", lambda target: one_string(target, 16_000_000, "é"), 0.020, 160 * MB),
    Row("one string of 63 MB as binary data", lambda target: binary_string(target, 63 * MB, True), 0.020, 260 * MB),
    Row("one string of 63 MB as binary data, JSON back", lambda target: binary_string(target, 63 * MB, False), 0.020, 260 * MB),
    Row("generate with 900 000 numbers", generate, 0.020, 64 * MB),
    Row("load with 40 MB of base64", load_files, 0.020, 160 * MB, flags=EXPLICIT),
    Row("unloads of unknown models, 16 connections", lambda target: operations(target, "POST", "/v2/repository/models/n/unload"),
        0.020, 16 * MB, flags=EXPLICIT),
    Row("lists of no form", odd_lists, 0.020, 181 * MB),
    Row("shape of 200 000 dimensions", rank, 0.020, 24 * MB),
    Row("60 MB of [[1],[1],...]", nested, 0.020, 181 * MB),
    Row("62 MB of integers", integers, 0.020, 187 * MB),
    Row("gzip of 60 KB to 60 MB of JSON", gzip_bomb, 0.020, 181 * MB),
    Row("64 MiB of empty strings", strings, 0.020, 193 * MB),
    Row("classification 2^63 of 8 MiB", lambda target: classes(target, 2 * MB, 2**63), 0.020, 200 * MB),
    # What a model has made of 256 MiB is given back by numpy at once, which holds the interpreter for 0.1 ms a megabyte.
    Row("one class of 256 MiB", lambda target: classes(target, 64 * MB, 1), 0.050, 800 * MB),
    Row("Content-Length of 1 TiB", lambda target: endless_body(target, "echo"), 0.020, MB),
    Row("Content-Length of 1 TiB, unknown model", lambda target: endless_body(target, "nobody"), 0.020, MB),
    Row("64 answers of 16 MiB, not read", pipelined, 0.020, 288 * MB),
    Row("12 000 header fields, 16 connections", fields, 0.020, 16 * MB),
    Row("names of 60 KB, 16 clients", lambda target: operations(target, "GET", "/v2/models/" + "a" * 60_000), 0.020, 160 * MB),
    Row("statistics, 16 connections", lambda target: operations(target, "GET", "/v2/models/stats"), 0.020, 16 * MB),
    Row("index, 16 connections", lambda target: operations(target, "POST", "/v2/repository/index"), 0.020, 16 * MB),
    Row("log settings, 16 connections", lambda target: operations(target, "POST", "/v2/logging", b"{}"), 0.020, 16 * MB),
    Row("unknown models, 16 connections", lambda target: operations(target, "POST", "/v2/models/n/infer", b""), 0.020, 16 * MB),
    Row("explanations of an id, 16 connections", lambda target: explanations(target, "a"), 0.020, 24 * MB),
    Row("explanations of no id, 16 connections", lambda target: explanations(target, "b"), 0.020, 24 * MB),
    Row("endless empty lines, 16 connections", lambda target: empty_lines(target, target.http), 0.020, 8 * MB),
    Row("endless empty lines, metrics, 16 connections", lambda target: empty_lines(target, target.metrics), 0.020, 8 * MB),
    Row("chunks of one byte, 16 connections", small_chunks, 0.020, 64 * MB),
    Row("16 bodies of 32 MB", large_bodies, 0.020, 1600 * MB),
    Row("GET /metrics, 32 connections", metrics_flood, 0.020, 16 * MB),
    Row("600 connections with small requests", crowd, 0.020, 64 * MB),
    Row("1 000 slow connections", slow_connections, 0.020, 16 * MB),
    Row("TLS: handshakes, 64 connections", tls_handshakes, 0.020, 64 * MB, tls=True),
    Row("TLS: handshakes that end in the middle", tls_hellos, 0.020, 64 * MB, tls=True),
    Row("TLS: 600 handshakes that don't go on", tls_begun, 0.020, 64 * MB, tls=True),
    Row("TLS: handshakes of single bytes, 64 connections", tls_bytes, 0.020, 64 * MB, tls=True),
    Row("TLS: chains of 250 certificates", lambda target: tls_chains(target, target.http), 0.020, 64 * MB, tls=True),
    Row("TLS: the same over gRPC", lambda target: tls_chains(target, target.grpc), 0.020, 64 * MB, tls=True),
    Row("TLS: records of one byte, 16 connections", tls_records, 0.020, 64 * MB, tls=True),
    Row("gRPC: shape of 200 000 dimensions", grpc_rank, 0.020, 8 * MB),
    Row("gRPC: 17 MB of empty outputs", grpc_outputs, 0.020, 52 * MB),
    Row("gRPC: 17 MB of empty raw contents", grpc_raws, 0.020, 52 * MB),
    Row("gRPC: 15 MB of parameters", grpc_parameters, 0.020, 46 * MB),
    Row("gRPC: 64 MiB of empty strings", grpc_strings, 0.020, 193 * MB),
    Row("gRPC: one string of 63 MB", grpc_string, 0.020, 260 * MB),
    Row("gRPC: 62 MB of integers", grpc_integers, 0.020, 1100 * MB),
    Row("gRPC: 1.5 GiB of an unfinished message", grpc_unfinished, 0.020, 1600 * MB),
    Row("gRPC: 256 unfinished messages on 16 connections", grpc_bodies, 0.020, 800 * MB),
    Row("gRPC: 6 messages of 0.5 MB for 512 MiB each", grpc_bombs, 0.020, 4096 * MB),
    Row("gRPC: load with 60 MB", grpc_load, 0.020, 200 * MB, flags=EXPLICIT),
    Row("gRPC: 40 000 calls that wait", grpc_pending, 0.020, 128 * MB),
    Row("gRPC: 16 000 calls with one deadline", grpc_deadlines, 0.020, 128 * MB),
    Row("gRPC: 600 connections with small calls", grpc_crowd, 0.020, 64 * MB),
    Row("gRPC: 140 answers of 16 MiB, no window", grpc_window, 0.020, 288 * MB),
    Row("gRPC: the same with 64 instances", lambda target: grpc_window(target, b"blobs"), 0.020, 288 * MB),
    Row("gRPC: WINDOW_UPDATE, 16 connections", flood(grpc_credit, 300_000), 0.020, 64 * MB),
    Row("gRPC: HEADERS of 1 400 fields, 16 connections", flood(grpc_fields, 1000), 0.020, 64 * MB),
    Row("gRPC: wrong requests and resets, 16 connections", flood(grpc_wrong, 20_000), 0.020, 64 * MB),
    Row("gRPC: unknown methods, 16 connections", flood(grpc_unknown, 20_000), 0.020, 64 * MB),
    Row("gRPC: rapid resets, 16 connections", flood(grpc_resets, 20_000), 0.020, 64 * MB),
    Row("gRPC: resets that are provoked, 16 connections", flood(grpc_made_resets, 20_000), 0.020, 64 * MB),
    Row("gRPC: SETTINGS of 10 000 entries, 16 connections", flood(grpc_settings, 100), 0.020, 64 * MB),
    Row("gRPC: CONTINUATION, 16 connections", flood(grpc_continuation, 3000), 0.020, 64 * MB),
    Row("gRPC: tiny messages, 16 streams", flood(grpc_messages, 200, head(1, "ModelStreamInfer")), 0.020, 256 * MB),
]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="rows whose names contain one of these words")
    parser.add_argument("--flags", nargs="*", default=[], metavar="FLAG", help="more flags of the server, without the dashes")
    parser.add_argument("--url", metavar="HOST:PORT", help="an HTTP port of 127.0.0.1 at which a server runs; with --pid")
    parser.add_argument("--pid", type=int, help="the process of that server")
    options = parser.parse_args(argv)
    print("| attack | stall ms | own ms | wanted | peak MB | wanted | CPU s | seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    worse = 0
    for row in ROWS:
        if not any(word in row.name for word in options.only):
            continue
        with contextlib.ExitStack() as stack:
            if options.url:
                target = Target(int(options.url.rpartition(":")[2]), 0, 0, options.pid)
            else:
                flags = [f"--{flag}" for flag in (*row.flags, *options.flags)]
                flags += stack.enter_context(certified()) if row.tls else []
                target = stack.enter_context(served(flags, NO_CHECKS if row.tls else None))
            found = measured(target, row.attack)
        worse += found.own > row.stall or found.peak > row.peak or not found.ended
        print(
            f"| {row.name} | {found.stall * 1000:.0f} | {found.own * 1000:.0f} | {row.stall * 1000:.0f} | {found.peak / MB:.0f} "
            f"| {row.peak / MB:.0f} | {found.cpu:.2f} | {found.seconds:.1f}{'' if found.ended else ' (ended)'} |",
            flush=True,
        )
    print(f"{worse} rows are not as wanted" if worse else "all as wanted")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

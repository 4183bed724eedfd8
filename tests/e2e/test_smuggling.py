"""Requests that can be read in two ways, sent straight and through nginx and haproxy: nobody's request is hidden in another's.

Whatever a proxy lets through, the server sees as many requests as the proxy has sent it, and the next client, whose request goes
over the same connection behind the proxy, gets the answer to its own. Between the proxy and the server stands a tap that counts
the answers. Where a proxy isn't installed its tests are skipped; the table of what the server does by itself always holds.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .serving import Server, serving, wait_until, write_model

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
LAST_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\n"
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"
#: What an attacker wants somebody else to get the answer of.
HIDDEN = b"GET /v2/models/hidden HTTP/1.1\r\nHost: a\r\n\r\n"
BOTH = b"Transfer-Encoding: chunked\r\nContent-Length: "


def coded(field: bytes, body: bytes = CHUNKS) -> bytes:
    return POST + field + b"\r\n\r\n" + body


def chunked(body: bytes) -> bytes:
    return coded(b"Transfer-Encoding: chunked", body)


def long(value: bytes, body: bytes = b"{}") -> bytes:
    return coded(b"Content-Length: " + value, body)


#: Name -> what is sent, and the statuses of the answers when LIVE comes behind it: 200, 200 where it is one request, and the next
#: one is served; 200 where the connection ends behind it; 400 or 501 where it is refused, and nothing is read after it; () where
#: that happens without a word.
SERVED, LAST, BAD, UNKNOWN, SILENT = (200, 200), (200,), (400,), (501,), ()
CASES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    # two lengths
    "CL.TE": (coded(BOTH + b"%d" % (5 + len(HIDDEN)), b"0\r\n\r\n" + HIDDEN), LAST),
    "TE.CL": (GET + BOTH + b"4\r\n\r\n%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n", LAST),
    "CL before TE": (coded(b"Content-Length: 5\r\nTransfer-Encoding: chunked"), LAST),
    "two equal CL": (coded(b"Content-Length: 2\r\nContent-Length: 2", b"{}"), BAD),
    "two different CL": (coded(b"Content-Length: 2\r\nContent-Length: 40", b"{}" + HIDDEN), BAD),
    "CL in a list": (long(b"2, 2"), BAD),
    "CL in a list of others": (long(b"2, 40", b"{}" + HIDDEN), BAD),
    # numbers that are none
    "CL +2": (long(b"+2"), BAD),
    "CL -2": (long(b"-2"), BAD),
    "CL 0x2": (long(b"0x2"), BAD),
    "CL 2.0": (long(b"2.0"), BAD),
    "CL 2e0": (long(b"2e0"), BAD),
    "CL 0_2": (long(b"0_2"), BAD),
    "CL 2;": (long(b"2;"), BAD),
    "CL 2 2": (long(b"2 2"), BAD),
    "CL empty": (long(b""), BAD),
    "CL 2^64 + 2": (long(b"%d" % (2**64 + 2)), BAD),
    "CL of 30 digits": (long(b"9" * 30), BAD),
    "CL in other digits": (long("\u0662".encode()), BAD),
    "CL with NUL": (long(b"2\0"), BAD),
    "CL with VT": (long(b"\x0b2"), BAD),
    "CL folded": (long(b"\r\n 2"), BAD),
    "CL 02": (long(b"02"), SERVED),
    "CL among spaces": (long(b"  2\t "), SERVED),
    "CL named in Connection": (coded(b"Connection: Content-Length\r\nContent-Length: 2", b"{}"), SERVED),
    "space before colon of CL": (coded(b"Content-Length : 2", b"{}"), BAD),
    # codings that some read as chunked, others not
    "TE": (coded(b"Transfer-Encoding: chunked"), SERVED),
    "TE in mixed case": (coded(b"tRANSFER-eNCODING: cHuNkEd"), SERVED),
    "TE behind a tab": (coded(b"Transfer-Encoding:\tchunked"), SERVED),
    "TE twice": (coded(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), BAD),
    "TE chunked, chunked": (coded(b"Transfer-Encoding: chunked, chunked"), BAD),
    "TE chunked, identity": (coded(b"Transfer-Encoding: chunked, identity"), BAD),
    "TE identity, then chunked": (coded(b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"), UNKNOWN),
    "TE chunked, then identity": (coded(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"), BAD),
    "TE chunked, then x": (coded(b"Transfer-Encoding: chunked\r\nTransfer-encoding: x"), BAD),
    "TE xchunked": (coded(b"Transfer-Encoding: xchunked"), UNKNOWN),
    "TE in quotes": (coded(b'Transfer-Encoding: "chunked"'), UNKNOWN),
    "TE with a parameter": (coded(b"Transfer-Encoding: chunked;q=1"), UNKNOWN),
    "TE ,chunked": (coded(b"Transfer-Encoding: ,chunked"), UNKNOWN),
    "TE chunked,": (coded(b"Transfer-Encoding: chunked,"), BAD),
    "TE empty": (coded(b"Transfer-Encoding:"), BAD),
    "TE empty, then chunked": (coded(b"Transfer-Encoding:\r\nTransfer-Encoding: chunked"), BAD),
    "TE with NUL": (coded(b"Transfer-Encoding: chunked\0"), BAD),
    "TE behind VT": (coded(b"Transfer-Encoding:\x0bchunked"), BAD),
    "TE before FF": (coded(b"Transfer-Encoding: chunked\x0c"), BAD),
    "TE behind a wide space": (coded(b"Transfer-Encoding: \xa0chunked"), UNKNOWN),
    "TE behind CR": (coded(b"Transfer-Encoding: \rchunked"), BAD),
    "TE folded": (coded(b"Transfer-Encoding:\r\n chunked"), BAD),
    "TE in a folded line": (coded(b"X: y\r\n Transfer-Encoding: chunked"), BAD),
    "space before TE's colon": (coded(b"Transfer-Encoding : chunked"), BAD),
    "space before TE": (coded(b" Transfer-Encoding: chunked"), BAD),
    "control character before TE": (coded(b"\x01Transfer-Encoding: chunked"), BAD),
    "TE behind a bare CR": (coded(b"X: y\rTransfer-Encoding: chunked"), BAD),
    "TE behind a bare LF": (coded(b"X: y\nTransfer-Encoding: chunked"), BAD),
    "TE of HTTP/1.0": (coded(b"Transfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0"), BAD),
    "TE of HTTP/1.0 that is kept": (
        coded(b"Connection: keep-alive\r\nTransfer-Encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0"),
        BAD,
    ),
    "TE with an upgrade": (coded(b"Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked"), SERVED),
    # chunks
    "chunk with an extension": (chunked(b"2;a=b\r\n{}\r\n0\r\n\r\n"), SERVED),
    "chunk with a quoted extension": (chunked(b'2;a="b;c"\r\n{}\r\n0\r\n\r\n'), SERVED),
    "chunk with CR LF in an extension": (chunked(b'2;a="\r\n"\r\n{}\r\n0\r\n\r\n'), BAD),
    "chunk with CR in an extension": (chunked(b"2;a\rb\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk with NUL in an extension": (chunked(b"2;\0\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk whose extension ends in LF": (chunked(b"2;a\n{}\r\n0\r\n\r\n"), BAD),
    "chunks that end in LF": (chunked(b"2\n{}\n0\n\n"), BAD),
    "chunk size behind a space": (chunked(b" 2\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk size before a space": (chunked(b"2 \r\n{}\r\n0\r\n\r\n"), SERVED),
    "chunk size 0x2": (chunked(b"0x2\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk size +2": (chunked(b"+2\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk size 0_2": (chunked(b"0_2\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk size 2,3": (chunked(b"2,3\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk size 2^64 + 2": (chunked(b"10000000000000002\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk size with zeros": (chunked(b"0002\r\n{}\r\n000\r\n\r\n"), SERVED),
    "chunk size in an empty line": (chunked(b"\r\n2\r\n{}\r\n0\r\n\r\n"), BAD),
    "chunk that goes on without CR LF": (chunked(b"2\r\n{}0\r\n\r\n"), BAD),
    "chunk that ends in two others": (chunked(b"2\r\n{}XX0\r\n\r\n"), BAD),
    "trailers": (chunked(b"2\r\n{}\r\n0\r\nX: y\r\n\r\n"), SERVED),
    "trailers with a length": (chunked(b"2\r\n{}\r\n0\r\nContent-Length: 50\r\n\r\n"), SERVED),
    "trailers with CR": (chunked(b"2\r\n{}\r\n0\r\nX: a\rb\r\n\r\n"), BAD),
    "trailers that are a request": (chunked(b"2\r\n{}\r\n0\r\n" + HIDDEN), BAD),
    "trailers that end in LF": (chunked(b"2\r\n{}\r\n0\r\n\n"), BAD),
    # lines and fields
    "bare LF": (b"GET /v2/health/live HTTP/1.1\nHost: a\n\n", SILENT),
    "bare LF in a field": (GET + b"X: a\n\n" + HIDDEN, BAD),
    "bare LF at the end": (GET + b"\n", BAD),
    "bare CR behind the request line": (b"GET /v2/health/live HTTP/1.1\rHost: a\r\n\r\n", SILENT),
    "CR CR LF": (GET + b"\r\r\n\r\n", BAD),
    "folded field": (GET + b"X: a\r\n b\r\n\r\n", BAD),
    "field folded by a tab": (GET + b"X: a\r\n\tb\r\n\r\n", BAD),
    "folded Host": (b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", BAD),
    "space before the first field": (b"GET /v2/health/live HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n", BAD),
    "NUL in a field": (GET + b"X: a\0b\r\n\r\n", BAD),
    "NUL in a name": (GET + b"X\0: b\r\n\r\n", BAD),
    "field without a colon": (GET + b"X\r\n\r\n", BAD),
    "field without a name": (GET + b": x\r\n\r\n", BAD),
    "name in other letters": (GET + b"X\xff: x\r\n\r\n", BAD),
    "two Hosts": (GET + b"Host: b\r\n\r\n", BAD),
    "no Host": (b"GET /v2/health/live HTTP/1.1\r\n\r\n", BAD),
    # request lines
    "absolute form": (b"GET http://b/v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n", SERVED),
    "two spaces": (b"GET  /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n", BAD),
    "two spaces before the version": (b"GET /v2/health/live  HTTP/1.1\r\nHost: a\r\n\r\n", BAD),
    "two versions": (b"GET /v2/health/live HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n", SILENT),
    "tab for a space": (b"GET\t/v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n", SILENT),
    "NUL in the path": (b"GET /v2/health/live\0 HTTP/1.1\r\nHost: a\r\n\r\n", BAD),
    "no version": (b"GET /v2/health/live\r\n\r\n", SILENT),
    "HTTP/1.2": (b"GET /v2/health/live HTTP/1.2\r\nHost: a\r\n\r\n", SILENT),
    "another protocol's name": (b"GET /v2/health/live RTSP/1.0\r\nHost: a\r\n\r\n", BAD),
    "HTTP/2 begins": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", SILENT),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", BAD),
    "empty lines before it": (b"\r\n\r\n" + LIVE, SERVED),
    # bodies where some expect none
    "GET with a body": (GET + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN, SERVED),
    "GET with chunks": (GET + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n", SERVED),
    "expected to be refused": (POST + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", SERVED),
}  # fmt: skip

ANSWER = re.compile(rb"HTTP/1\.[01] ([2-5][0-9]{2}) ")
LIMIT_S = 10.0
PATIENCE_S = 0.3  # with a proxy that waits for the rest of something


def statuses(answers: bytes) -> tuple[int, ...]:
    """The statuses of the answers; no body of this server has such a line in it."""
    return tuple(int(status) for status in ANSWER.findall(answers))


def exchange(sock: socket.socket, data: bytes, *, limit: float = LIMIT_S, half: bool = False) -> bytes:
    """Send all of it, then with `half` the end of it; return what comes until the other side closes, or the time is over."""
    came = b""
    with sock, contextlib.suppress(ConnectionError, TimeoutError):  # reset: not all was read of ours when it was closed
        sock.settimeout(limit)
        sock.sendall(data)
        if half:
            sock.shutdown(socket.SHUT_WR)
        while piece := sock.recv(65536):
            came += piece
    return came


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("smuggling")
    write_model(folder / "models", "hidden")
    with serving(folder, folder / "models", "--allow-grpc=false", "--allow-metrics=false") as server:
        yield server


@pytest.mark.parametrize("name", CASES)
def test_by_itself(name: str, server: Server) -> None:
    sent, expected = CASES[name]
    sock = socket.create_connection(("127.0.0.1", server.port))
    assert statuses(exchange(sock, sent + LIVE, half=True)) == expected


# -- behind proxies ------------------------------------------------------------------------------------------------------------


class Tap:
    """Passes bytes between a proxy and the server; `answers`: how many the server has given. Listens at `path`."""

    def __init__(self, path: str, port: int) -> None:
        self.answers = 0
        self.came = bytearray()
        self._port = port
        self._open: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(path)
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += near, far
                threading.Thread(target=self._pass, args=(near, far, self._asked), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, self._told), daemon=True).start()

    def _asked(self, piece: bytes) -> None:
        self.came += piece

    def _told(self, piece: bytes) -> None:
        self.answers += len(statuses(piece))  # the server writes each answer's head at once

    def _pass(self, source: socket.socket, target: socket.socket, note: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                note(piece)
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


NGINX = """daemon off;
pid {folder}/pid;
user root;
worker_processes 1;
error_log {folder}/errors;
events {{ }}
http {{
  log_format forwarded "{{$upstream_addr}} $status";
  access_log {folder}/log forwarded;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d;
  scgi_temp_path {folder}/e;
  upstream kernel {{ server unix:{folder}/tap; keepalive 1; }}
  server {{
    listen unix:{folder}/front;
    {more}
    location / {{
      proxy_pass http://kernel; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_next_upstream off;
    }}
  }}
}}
"""
HAPROXY = """global
  maxconn 100
  log stdout format raw local0
defaults
  mode http
  log global
  log-format "{{%s}} %ST"
  timeout connect 5s
  timeout client 5s
  timeout server 5s
  http-reuse always
  {more}
frontend front
  bind unix@{folder}/front
  default_backend kernel
backend kernel
  server kernel unix@{folder}/tap
"""
PROXIES = {
    "nginx": ("nginx", NGINX, ""),
    "nginx that passes on what it may": (
        "nginx",
        NGINX,
        "ignore_invalid_headers off; underscores_in_headers on; proxy_request_buffering off;",
    ),
    "haproxy": ("haproxy", HAPROXY, ""),
    "haproxy that takes invalid requests": ("haproxy", HAPROXY, "option accept-invalid-http-request"),
}


class Proxy:
    """A proxy in front of the server."""

    def __init__(self, kind: str, folder: str, port: int) -> None:
        program, config, more = PROXIES[kind]
        self.front = f"{folder}/front"
        self.tap = Tap(f"{folder}/tap", port)
        self._log = Path(folder, "log")
        Path(folder, "config").write_text(config.format(folder=folder, more=more))
        arguments = (
            ["-p", folder, "-c", f"{folder}/config"] if program == "nginx" else ["-f", f"{folder}/config", "-db"]
        )
        with Path(folder, "out").open("wb") as out:
            if program == "haproxy":
                self._log = Path(folder, "out")
            self._process = subprocess.Popen([program, *arguments], stdout=out, stderr=subprocess.STDOUT)
        wait_until(lambda: Path(self.front).exists() or self._process.poll() is not None)
        assert self._process.poll() is None, Path(folder, "out").read_text()

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(self.front)
        return sock

    def forwarded(self) -> int:
        """How many requests it has sent to the server, as its log says."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return sum(line.startswith("{") and not line.startswith(("{-}", "{-<NOSRV>}", "{<NOSRV>}")) for line in lines)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)
        self.tap.close()


@pytest.fixture(scope="module", params=PROXIES)
def proxy(request: pytest.FixtureRequest, server: Server) -> Iterator[Proxy]:
    if shutil.which(PROXIES[request.param][0]) is None:
        pytest.skip(f"{PROXIES[request.param][0]} is not installed")
    folder = tempfile.mkdtemp(prefix="kernel")  # short: the path of a socket may not be long
    proxy = Proxy(request.param, folder, server.port)
    try:
        yield proxy
    finally:
        proxy.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", CASES)
def test_behind_a_proxy(name: str, proxy: Proxy) -> None:
    sent, _ = CASES[name]
    before = proxy.tap.answers
    for behind in (b"", HIDDEN):
        exchange(proxy.connect(), sent + behind + LAST_LIVE, limit=PATIENCE_S)
        for _ in range(2):  # other clients, over the connection that the proxy has kept
            answer = exchange(proxy.connect(), LAST_LIVE)
            assert statuses(answer) == (200,) and b"Content-Length: 0" in answer.title(), answer
    end = time.monotonic() + LIMIT_S
    while proxy.forwarded() != proxy.tap.answers and time.monotonic() < end:
        time.sleep(0.01)  # the log is written a little later
    assert proxy.forwarded() == proxy.tap.answers > before, bytes(proxy.tap.came[-1000:])

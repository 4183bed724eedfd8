"""`kernel explain`: what it asks, what it prints, the trace that it writes; against a port of this test."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kernel import Explanation, Interval
from kernel.cli.explain import explain
from kernel.cli.perfetto import trace_of

EXECUTED = Interval("execute", 0.0, 0.02, "executed 20 ms")
CALL = Explanation("inner", 1, "", 1000.001, "ANSWERED", 0.02, (EXECUTED,), "inner_0", 1, "")
TOLD = Explanation(
    "outer", 1, "q", 1000.0, "ANSWERED", 0.026,
    (Interval("queue", 0.0, 0.005, "queued 5 ms"), Interval("execute", 0.005, 0.021, "executed 21 ms")), "outer_0", 1,
    "queued 5 ms; executed 21 ms", calls=(replace(CALL, words="executed 20 ms"),),
)  # fmt: skip


class Port(BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, str]]] = []
    status, body = 200, b""

    def do_GET(self) -> None:
        Port.asked.append((self.path, self.headers.get("x-api-key", "")))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Port.asked, Port.status = [], 200
    Port.body = json.dumps({"requests": [{**asdict(TOLD), "lines": TOLD.lines()}]}).encode()
    server = HTTPServer(("127.0.0.1", 0), Port)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_what_is_asked_and_printed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain([url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "request 'q' of model 'outer' version 1, 26 ms: queued 5 ms; executed 21 ms",
        "  a request of model 'inner' version 1, 20 ms: executed 20 ms",
    ]
    assert explain([f"http://{url}", "--id", "a/b c", "--header", "x-api-key: secret"]) == 0
    assert explain([url, "--slowest", "3"]) == explain([url, "--failed", "7", "--json"]) == 0
    assert Port.asked == [
        ("/v2/kernel/explain/slowest/10", ""), ("/v2/kernel/explain/id/a%2Fb%20c", "secret"),
        ("/v2/kernel/explain/slowest/3", ""), ("/v2/kernel/explain/failed/7", ""),
    ]  # fmt: skip
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["id"] == "q"
    Port.body = b'{"requests": []}'
    assert explain([url, "--id", "z"]) == 1
    assert capsys.readouterr().err == "no such request is known\n"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b'{"error": "a key is needed"}', "answers 401 Unauthorized: a key is needed"),
        (404, b"", "answers 404 Not Found"),
        (200, b"<html>", "can't be asked: JSONDecodeError"),
        (200, b"[1]", "answers 200 OK"),
    ],
)
def test_a_port_that_is_none_of_ours(url: str, status: int, body: bytes, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Port.status, Port.body = status, body
    assert explain([url]) == 1
    assert capsys.readouterr().err.startswith(f"error: http://{url} {words}")


def test_a_port_that_does_not_speak_http(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        url = f"127.0.0.1:{port.getsockname()[1]}"

        def greet() -> None:
            client, _ = port.accept()
            with client:
                client.recv(65536)
                client.sendall(b"\0\0\0\4\0\0\0\0\0")  # as gRPC does

        thread = threading.Thread(target=greet)
        thread.start()
        assert explain([url]) == 1
        thread.join()
    words = "it does not speak HTTP; wanted is the server's HTTP port, such as localhost:8000"
    assert capsys.readouterr().err == f"error: http://{url} can't be asked: {words}\n"


def test_mistakes(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(["ftp://x"]) == 1
    assert capsys.readouterr().err == "error: 'ftp://x' is no address, wanted is one such as http://localhost:8000\n"
    assert explain(["127.0.0.1:1"]) == 1
    assert "error: http://127.0.0.1:1 can't be asked: ConnectionRefusedError" in capsys.readouterr().err
    assert explain([url, "--header", "nothing"]) == 1
    assert capsys.readouterr().err == "error: --header 'nothing' is not of the form NAME: VALUE\n"
    assert explain([url, "--perfetto", str(tmp_path / "nowhere" / "trace.json")]) == 1
    assert "can't be written" in capsys.readouterr().err
    for wrong in ([url, "--slowest", "-1"], [url, "--slowest", "1", "--failed", "1"], []):
        with pytest.raises(SystemExit) as caught:
            explain(wrong)
        assert caught.value.code == 2


def test_a_trace(tmp_path: Path, url: str) -> None:
    file = tmp_path / "trace.json"
    assert explain([url, "--perfetto", str(file)]) == 0
    told = json.loads(file.read_text())
    assert told == trace_of([asdict(TOLD)])
    named = (event for event in told["traceEvents"] if event["name"] == "thread_name")
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in named}
    assert names == {(1, 0): "waiting", (1, 1): "outer_0", (2, 0): "waiting", (2, 2): "inner_0"}
    shown = [(names[one["pid"], one["tid"]], one["name"], one["dur"]) for one in told["traceEvents"] if one["ph"] == "X"]
    assert shown == [
        ("waiting", "q: queue", pytest.approx(5000)),
        ("outer_0", "q: execute", pytest.approx(21000)),
        ("inner_0", "inner: execute", pytest.approx(20000)),
    ]
    start, end = (one for one in told["traceEvents"] if one["ph"] in "sf")
    assert (start["pid"], start["tid"], end["pid"], end["tid"], start["id"]) == (1, 1, 2, 2, end["id"])
    assert start["ts"] == pytest.approx(1000.005e6) and end["ts"] == pytest.approx(1000.001e6)


@pytest.mark.parametrize("answer", [
    b'{"requests": 5}', b'{"requests": [1]}', b'{"requests": [{}]}', b'{"requests": [{"lines": [1]}]}', b"[" * 100_000, b"\xff",
    b'{"requests": null}', b"5", b"",
])  # fmt: skip
def test_what_another_server_says_is_told_as_that(
    url: str, answer: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Port.body = answer
    for more in ([], ["--json"], [f"--perfetto={tmp_path / 'trace'}"]):
        assert explain([url, *more]) == 1
        told = capsys.readouterr()
        assert told.err.startswith(f"error: http://{url} ") and not told.out


def test_addresses_and_ids_of_any_kind(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("http://[", "ftp://a", "localhost:99999", "localhost:x", ""):
        assert explain([wrong]) == 1
        assert capsys.readouterr().err.startswith("error: ")
    assert explain([url, "--id", "\udcff"]) == 0, "what a shell hands over is no UTF-8"
    assert Port.asked[-1][0] == "/v2/kernel/explain/id/%FF"

"""What is refused before anybody knows what it is a request for stands in the access log, on both wires."""

from __future__ import annotations

from typing import Any

import pytest
from frontends.callers import Caller, close_loops, message
from frontends.fakes import Client, infer, parse, request, tensor
from frontends.wires import data, frame

from kernel.observability import LogSettings
from kernel_http.connection.protocol import MAX_HEAD, SILENT
from kernel_http.connection.server import MAX_FIELDS


class Lines:
    """Stands in for the access log."""

    def __init__(self) -> None:
        self.refusals: list[tuple[Any, ...]] = []

    def refused(self, client: str, protocol: str, request: bytes | str, result: int | str, error: str) -> None:
        self.refusals.append((client, protocol, request, result, error))


def logged(kernel: Any) -> Lines:
    lines = Lines()
    kernel.log_settings = LogSettings(access=lines)  # type: ignore[arg-type]
    return lines


LONG = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n"
CODED = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n"
CHUNKS = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"


@pytest.mark.parametrize(
    ("sent", "first", "status", "words"),
    [
        (b"GET  /x HTTP/1.1\r\nHost: a\r\n\r\n", b"GET  /x HTTP/1.1", 400, "request line"),
        (b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET /x HTTP/1.1", 400, "2 fields Host"),
        (b"\x16\x03\x01\x02\x00", b"\x16\x03\x01\x02\x00", 0, "not HTTP"),
        (b"GET /x HTTP/1.1\r\nA: " + b"a" * MAX_HEAD, b"GET /x HTTP/1.1", 431, "head is too long"),
        (b"GET /x HTTP/1.1\r\n" + b"A: b\r\n" * MAX_FIELDS + b"\r\n", b"GET /x HTTP/1.1", 431, "fields"),
        (LONG, LONG.splitlines()[0], 413, "has 999999999999 bytes"),
        (CODED, CODED.splitlines()[0], 501, "Transfer-Encoding"),
        (CHUNKS, CHUNKS.splitlines()[0], 400, "chunked body can't be read"),
        (b"\r\n" * 100, b"", 0, "not HTTP"),
    ],
)
def test_http(sent: bytes, first: bytes, status: int, words: str) -> None:
    client = Client()
    client.transport.extra["peername"] = ("10.0.0.7", 5)
    lines = logged(client.kernel)
    client.send(sent)
    answers = parse(client.take())
    assert [one.status for one in answers] == ([status] if status else [])
    ((who, protocol, request, result, error),) = lines.refusals
    assert (who, protocol, result) == ("HTTP 10.0.0.7:5", "HTTP", status or SILENT)
    assert request.partition(b"\r\n")[0] == first and len(request) <= 1024 and words in error


def test_http_that_comes_too_slowly_or_is_thrown_away() -> None:
    client = Client()
    lines = logged(client.kernel)
    client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n{")
    client.kernel.loop.now += 3600.0
    client.server.sweep(client.kernel.loop.now)
    assert parse(client.take())[0].status == 408
    assert [(one[2][:28], one[3]) for one in lines.refusals] == [(b"POST /v2/models/m/infer HTTP", 408)]
    client = Client(max_input_size=1000)
    lines = logged(client.kernel)
    assert client.ask(infer("types", [tensor("IN_FP32", "FP32", [1000], data=[1.0] * 1000)])).status == 400
    assert [one[3] for one in lines.refusals] == [400]


def test_http_that_is_read_has_no_such_line() -> None:
    client = Client()
    lines = logged(client.kernel)
    assert client.ask(request("GET", "/nowhere")).status == 404
    assert client.ask(request("GET", "/v2/health/live")).status == 200
    client.lose()
    assert lines.refusals == []
    assert Client().ask(b"GET / HTTP/1.1\r\n\r\n").status == 400  # and without a log nothing is told


def test_grpc_connections_and_messages() -> None:
    try:
        caller = Caller()
        lines = logged(caller.kernel)
        id = caller.begin("Method")
        caller.send(data(id, message(b"abc")[:-1], end=True))
        assert caller.answers[id].status == 13
        ((_, protocol, path, code, error),) = lines.refusals
        assert (protocol, path, code) == ("GRPC", "/pkg.Svc/Method", "INTERNAL") and "cut off within a message" in error
        caller.send(frame(0, 0, 0, b"data on stream 0"))
        caller.transport.abort()
        assert [(one[2], one[3]) for one in lines.refusals[1:]] == [("", "PROTOCOL_ERROR")]
        caller = Caller()
        lines = logged(caller.kernel)
        caller.call(payload=b"x")
        caller.transport.abort()
        assert lines.refusals == []
    finally:
        close_loops()

"""The connection: framing, keep-alive, pipelining, flow control, time-outs, the client that goes, drain."""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any

import numpy as np
import pytest
from frontends.fakes import Client, FakeKernel, add_sub, binary, infer, parse, request, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import ANSWERS_AT_ONCE
from kernel_http.connection.bodies import RESERVE, Body
from kernel_http.connection.heads import Head
from kernel_http.connection.turns import MAX_PIPELINED

LIVE = request("GET", "/v2/health/live")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n\r\n"
ONE = {"inputs": [tensor("IN_INT32", "INT32", [1], [1])]}


@pytest.fixture
def client() -> Client:
    return Client()


def chunked(body: bytes, size: int) -> bytes:
    head = b"POST /v2/models/types/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def big(count: int = 50_000) -> bytes:
    tail = np.arange(count, dtype=np.float32).tobytes()
    return binary("types", [tensor("IN_FP32", "FP32", [count], binary_data_size=4 * count)], tail,
                  parameters={"binary_data_output": True})  # fmt: skip


STREAM = [
    add_sub([1, 2, 3, 4], [1, 1, 1, 1]),
    add_sub([1, 2, 3, 4], [1, 1, 1, 1]),
    LIVE,
    infer("types", ONE),
    chunked(json.dumps(ONE).encode(), 5),
    b"\r\n" + add_sub([4, 3, 2, 1], [0, 0, 0, 0]),
    add_sub([4, 3, 2, 1], [0, 0, 0, 0], id="x"),
    request("GET", "/nowhere"),
    infer("types", b"{"),
    big(),
    big(),
    infer("multi", np.array([1, 2], np.float32).tobytes(), "Inference-Header-Content-Length: 0"),
    request("POST", "/v2/models/types/infer", b""),
    infer("types", zlib.compress(json.dumps(ONE).encode()), "Content-Encoding: deflate", "Accept-Encoding: gzip"),
    request("POST", "/v2/models/multi/generate", b'{"X":[1,2]}'),
    request("POST", "/v2/models/multi/generate_stream", b'{"X":[1,2]}'),
    request("POST", "/v2/models/gen/generate_stream", b'{"X":[1,2]}'),
    LIVE,
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(STREAM), max_size=12), st.lists(st.integers(1, 3000), min_size=1, max_size=40))
def test_the_splits_of_the_stream_do_not_matter(messages: list[bytes], sizes: list[int]) -> None:
    data = b"".join(messages)
    whole = Client()
    whole.send(data)
    split = Client()
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        split.send(data[at : at + size])
        at, turn = at + size, turn + 1
    expected = whole.take()
    assert len(parse(expected)) == len(messages)
    assert split.take() == expected


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_noise_never_breaks_the_connection_object(noise: bytes, size: int) -> None:
    client = Client()
    for prefix in (
        b"",
        b"GET /v2 HTTP/1.1\r\nHost: a\r\n",
        b"POST /v2/models/types/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ):
        client = Client(client.kernel)
        data = prefix + noise
        for at in range(0, len(data), size):
            client.send(data[at : at + size])
        for response in parse(client.take()):
            assert response.status in (200, 400, 404, 405, 431, 501)


def test_byte_by_byte() -> None:
    for message in STREAM[:9]:
        whole, split = Client(), Client()
        whole.send(message)
        for at in range(len(message)):
            assert split.take() == b""
            split.send(message[at : at + 1])
        assert split.take() == whole.take() != b""


def test_a_cancellation_that_brings_others_answers_when_the_client_has_gone(client: Client) -> None:
    """As with preserve_ordering, where the answers behind a cancelled request may go out."""
    kernel = client.kernel
    kernel.hold = True
    client.send(infer("types", ONE) * 3)
    first, *others = kernel.held

    def cancel(request: Any, error: Any = None) -> None:
        kernel.cancelled.append(request)
        while request is first and others:
            kernel.finish(others.pop())

    kernel.cancel = cancel  # type: ignore[method-assign]
    client.lose()
    assert kernel.cancelled == kernel.held and client.take() == b""


# --- versions and the end of a connection


def test_http_10(client: Client) -> None:
    client.send(request("GET", "/v2/health/live", version="1.0"))
    assert client.take() == OK.replace(b"HTTP/1.1", b"HTTP/1.0") and client.transport.closing
    client = Client()
    client.send(request("GET", "/v2/health/live", b"", "Connection: Keep-Alive", version="1.0") * 2)
    first, second = parse(client.take())
    assert first.line == second.line == b"HTTP/1.0 200 OK" and first.headers["Connection"] == "keep-alive"
    assert not client.transport.closing


def test_connection_close(client: Client) -> None:
    client.send(LIVE + request("GET", "/v2/health/live", b"", "Connection: close") + LIVE)
    first, second = parse(client.take())
    assert "Connection" not in first.headers and second.headers["Connection"] == "close"
    assert client.transport.closing


def test_close_waits_for_the_answer() -> None:
    client = Client(kernel := FakeKernel())
    kernel.hold = True
    client.send(infer("types", ONE, "Connection: close"))
    assert not client.transport.closing
    kernel.finish(kernel.held[0])
    assert parse(client.take())[0].headers["Connection"] == "close" and client.transport.closing


def test_large_answers_of_an_http_10_client(client: Client) -> None:
    client.send(big().replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    (response,) = parse(client.take())
    assert response.line == b"HTTP/1.0 200 OK" and response.body.endswith(np.float32(49_999).tobytes())


def test_head_has_no_body(client: Client) -> None:
    client.send(request("HEAD", "/v2/health/live"))
    assert client.take() == b"HTTP/1.1 405 Not Allowed\r\nContent-Length: 30\r\nContent-Type: text/plain\r\n\r\n"


@pytest.mark.parametrize("noise", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /v2 HTTP/9.9\r\n\r\n", b"\0" * 10])
def test_what_is_not_http_is_closed_without_a_word(client: Client, noise: bytes) -> None:
    client.send(noise)
    assert client.take() == b"" and client.transport.closing


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"FOO /v2 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: abc\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: identity\r\n\r\n", 501),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nBad header\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1" + b"0" * 20 + b"\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 5000, 400),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 70_000, 431),
    ],
)
def test_bad_framing_is_answered_and_ends_the_connection(client: Client, message: bytes, status: int) -> None:
    client.send(LIVE + message + LIVE)
    first, second = parse(client.take())
    assert first.status == 200
    assert (second.status, second.headers["Connection"]) == (status, "close")
    assert client.transport.eof and not client.transport.closing  # what the client still sends is thrown away
    client.kernel.loop.now += 10
    client.server.sweep(client.kernel.loop.now)
    assert client.transport.aborted


@pytest.mark.parametrize("coding_first", [True, False])
@pytest.mark.parametrize("length", [0, 1, 50, 10_000])
def test_a_chunked_body_with_a_length_is_read_as_chunks_and_ends_the_connection(
    client: Client, length: int, coding_first: bool
) -> None:
    fields = [b"Transfer-Encoding: chunked", b"Content-Length: %d" % length]
    head = b"\r\n".join([b"POST /v2/models/types/infer HTTP/1.1", b"Host: a", *(fields if coding_first else fields[::-1])])
    smuggled = LIVE  # whoever went by the length may have meant this for somebody else
    body = json.dumps(ONE).encode()
    client.send(head + b"\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n" + smuggled)
    (response,) = parse(client.take())
    assert (response.status, response.headers["Connection"]) == (200, "close")
    assert client.transport.closing and len(client.kernel.requests) == 1


def test_http_10_knows_no_chunks(client: Client) -> None:
    client.send(b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + LIVE)
    (response,) = parse(client.take())
    assert (response.status, response.error) == (400, "HTTP/1.0 knows no Transfer-Encoding")


def test_noise_after_a_request_waits_for_its_answer() -> None:
    client = Client(kernel := FakeKernel())
    kernel.hold = True
    client.send(infer("types", ONE) + b"\0noise")
    assert not client.transport.closing
    kernel.finish(kernel.held[0])
    assert parse(client.take())[0].status == 200 and client.transport.closing


def test_upgrade_is_declined(client: Client) -> None:
    client.send(request("GET", "/v2/health/live", b"", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c") + LIVE)
    assert client.take() == OK * 2


def test_absolute_urls_and_queries(client: Client) -> None:
    client.send(request("GET", "http://host/v2/health/live") + request("GET", "/v2/health/live?a=b"))
    assert client.take() == OK * 2


# --- 100 Continue


def test_expect_continue(client: Client) -> None:
    head, _, body = infer("types", ONE, "Expect: 100-continue").partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    assert client.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    assert parse(client.take())[0].status == 200
    client.send(head + b"\r\n\r\n" + body)
    assert client.take().startswith(b"HTTP/1.1 200 OK")  # not needed: the body is there


def test_continue_waits_for_earlier_answers() -> None:
    client = Client(kernel := FakeKernel())
    kernel.hold = True
    head = infer("types", ONE, "Expect: 100-continue").partition(b"\r\n\r\n")[0]
    client.send(infer("types", ONE) + head + b"\r\n\r\n")
    assert client.take() == b""
    kernel.finish(kernel.held[0])
    assert client.take().endswith(b"]}HTTP/1.1 100 Continue\r\n\r\n")


# --- flow control


def test_too_many_pipelined_requests_wait_in_the_socket() -> None:
    client = Client(kernel := FakeKernel())
    kernel.hold = True
    client.send(add_sub([1] * 4, [1] * 4) * (3 * MAX_PIPELINED))
    assert len(kernel.held) == ANSWERS_AT_ONCE and client.transport.paused  # before it is known how large the answers are
    for number in range(3):
        kernel.finish(kernel.held[number])
    assert len(kernel.held) == MAX_PIPELINED + 3 and client.transport.paused
    kernel.finish(kernel.held[3])
    assert len(kernel.held) == MAX_PIPELINED + 4
    for number in range(4, 3 * MAX_PIPELINED):
        kernel.finish(kernel.held[number])
        client.send(b"")
    assert len(parse(client.take())) == 3 * MAX_PIPELINED and not client.transport.paused


def test_nothing_is_begun_while_answers_wait_for_the_client(client: Client) -> None:
    client.connection.pause_writing()
    client.send(LIVE)
    assert client.take() == b"" and client.transport.paused
    client.connection.resume_writing()
    assert client.take() == OK and not client.transport.paused


def test_a_client_that_does_not_read_is_cut_off(client: Client) -> None:
    client.transport.buffered = 1000
    client.connection.pause_writing()
    for buffered in (900, 800):
        client.transport.buffered = buffered
        client.kernel.loop.now += 31
        client.server.sweep(client.kernel.loop.now)
        assert not client.transport.aborted  # it reads, if slowly
    client.kernel.loop.now += 31
    client.server.sweep(client.kernel.loop.now)
    assert client.transport.aborted


# --- the client goes


def test_client_gone_cancels_what_runs() -> None:
    client = Client(kernel := FakeKernel())
    kernel.hold = True
    client.send(infer("types", ONE) * 2 + LIVE)
    client.lose()
    assert kernel.cancelled == kernel.held and len(kernel.held) == 2
    assert client.take() == b"" and not client.server.connections
    kernel.finish(kernel.held[0])  # too late: nobody is there
    assert client.take() == b""


def test_client_gone_after_the_answer_cancels_nothing(client: Client) -> None:
    client.send(infer("types", ONE))
    client.lose()
    assert not client.kernel.cancelled


# --- time-outs


@pytest.mark.parametrize("part", [b"GET /v2", infer("types", ONE)[:-3], chunked(b"{}", 1)[:-4], big()[:100_000]])
def test_a_request_that_does_not_arrive_is_cut_off(client: Client, part: bytes) -> None:
    client.send(part)
    loop = client.kernel.loop
    client.server.sweep(loop.now + 29)
    assert client.take() == b""
    loop.now += 31
    if len(part) > 65536:
        client.server.sweep(loop.now)  # it has made progress: it gets the time once more
        assert client.take() == b""
        loop.now += 31
    client.server.sweep(loop.now)
    (response,) = parse(client.take())
    assert (response.status, response.error) == (408, "the request did not arrive in time")
    client.send(part)
    assert client.take() == b""


def test_a_head_that_trickles_in_gets_no_more_time(client: Client) -> None:
    for at in range(31):
        client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n\r\n"[at : at + 1])
        client.kernel.loop.now += 1
    client.server.sweep(client.kernel.loop.now)
    assert parse(client.take())[0].status == 408


def test_idle_and_waiting_connections_are_left_alone() -> None:
    client = Client(kernel := FakeKernel())
    client.send(LIVE)
    client.take()
    kernel.hold = True
    client.send(infer("types", ONE)[:-1])
    client.send(infer("types", ONE)[-1:])
    kernel.loop.now += 1000
    client.server.sweep(kernel.loop.now)
    assert client.take() == b"" and not client.transport.closing


# --- memory


def test_a_length_alone_reserves_little() -> None:
    head = Head(b"")
    head.content_length = 2**50
    head.json_length = 100
    body = Body(head, 1000, bytearray(10))
    body.received(100)
    assert len(body.space()) == RESERVE


def test_a_body_grows_with_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_http.connection.bodies.RESERVE", 1000)
    client = Client()
    client.send(big())
    assert parse(client.take())[0].body.endswith(np.arange(50_000, dtype=np.float32).tobytes())


def test_a_body_that_nobody_reads_is_not_kept(client: Client) -> None:
    message = request("POST", "/nowhere", b"x" * 200_000)
    client.send(message[:100_000])
    body = client.connection._arrival.body
    assert isinstance(body, Body) and body.discard is client.server.buffer
    client.send(message[100_000:] + LIVE)
    first, second = parse(client.take())
    assert (first.status, second.status) == (404, 200)


def test_the_limit_is_not_for_a_binary_tail_that_comes_in_chunks() -> None:
    client = Client(max_input_size=300)
    head, _, body = big(1000).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    _, _, pieces = chunked(body, 999).partition(b"\r\n\r\n")
    client.send(b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", pieces]))
    (response,) = parse(client.take())
    assert response.status == 200 and response.body.endswith(np.float32(999).tobytes())


# --- drain


def test_drain() -> None:
    kernel = FakeKernel()
    idle = Client(kernel)
    busy, arriving = Client(kernel, server=idle.server), Client(kernel, server=idle.server)
    kernel.hold = True
    busy.send(infer("types", ONE) * 2)
    arriving.send(infer("types", ONE)[:-1])
    draining = idle.server.drain()

    async def run() -> None:
        kernel.loop.create_future = asyncio.get_running_loop().create_future  # type: ignore[attr-defined]
        task = asyncio.ensure_future(draining)
        await asyncio.sleep(0)
        assert idle.transport.closing and not busy.transport.closing and not arriving.transport.closing
        busy.send(LIVE)  # not taken any more
        for held in kernel.held[:2]:
            kernel.finish(held)
        first, second = parse(busy.take())
        assert "Connection" not in first.headers and second.headers["Connection"] == "close"
        assert busy.transport.closing
        arriving.send(infer("types", ONE)[-1:])
        kernel.finish(kernel.held[2])
        assert parse(arriving.take())[0].headers["Connection"] == "close" and arriving.transport.closing
        for client in (idle, busy, arriving):
            assert not task.done()
            client.lose()
        await task

    asyncio.run(run())


def test_a_retiring_server_answers_and_closes() -> None:
    """An idle connection is good for one more request; one that waits for an answer closes with it; who comes is served."""
    kernel = FakeKernel()
    idle = Client(kernel)
    waiting = Client(kernel, server=idle.server)
    message = add_sub([1, 2, 3, 4], [1, 1, 1, 1])
    assert "Connection" not in idle.ask(message).headers
    kernel.hold = True
    waiting.send(infer("types", ONE))
    assert waiting.connection.busy and not idle.connection.busy
    idle.server.retire()
    assert not idle.transport.closing and idle.server.busy
    kernel.finish(kernel.held[0])
    assert parse(waiting.take())[0].headers["Connection"] == "close" and waiting.transport.closing
    kernel.hold = False
    late = Client(kernel, server=idle.server)
    for client in (idle, late):
        answer = client.ask(message)
        assert (answer.status, answer.headers["Connection"]) == (200, "close") and client.transport.closing


def test_an_idle_client_does_not_keep_a_replaced_model(client: Client) -> None:
    message = add_sub([1, 2, 3, 4], [1, 1, 1, 1])
    assert client.ask(message).status == client.ask(message).status == 200
    assert client.connection.answers.layout is not None
    client.server.sweep(client.kernel.loop.now)
    assert client.connection.answers.layout is not None
    client.kernel.served["add_sub"] = {}
    client.server.sweep(client.kernel.loop.now)
    assert client.connection.answers.layout is None


def test_a_request_like_the_last_does_not_slip_past_the_drain(client: Client) -> None:
    message = add_sub([1, 2, 3, 4], [1, 1, 1, 1])
    assert client.ask(message).status == 200
    client.send(message[:20])  # arriving when the drain begins: still served, and the last
    client.server.retiring = client.server.draining = True
    client.connection.drain()
    client.send(message[20:] + message * 3)
    (answer,) = parse(client.take())
    assert answer.status == 200 and answer.headers["Connection"] == "close"
    assert client.transport.closing


def test_who_comes_during_the_drain_is_shown_out(client: Client) -> None:
    client.server.retiring = client.server.draining = True
    late = Client(client.kernel, server=client.server)
    assert late.transport.closing

"""Clients that end their side of the connection: some still wait for their answers, some have gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest
from frontends.fakes import Client, FakeKernel, add_sub, parse, request

from kernel import InferenceResponse
from kernel_http.connection.ended import PATIENCE, is_gone

ONE = add_sub([1, 2, 3, 4], [0, 0, 0, 0])


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection: the server's end and the client's."""
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def client(pair: tuple[socket.socket, socket.socket]) -> Client:
    """A client whose requests stay without an answer until the test gives one."""
    client = Client(FakeKernel())
    client.kernel.hold = True
    client.transport.extra["socket"] = pair[0]
    return client


def answered(client: Client, count: int) -> list[bytes]:
    """Finish all requests that are held; return the bodies, which must be as many."""
    held, client.kernel.held = client.kernel.held, []
    for item in held:
        client.kernel.finish(item)
    responses = parse(client.take())
    assert [response.status for response in responses] == [200] * count
    return [response.body for response in responses]


def test_nothing_to_wait_for_closes(client: Client) -> None:
    assert client.connection.eof_received() is False
    client.send(ONE[:-1])
    assert client.connection.eof_received() is False  # it will never be complete


def test_the_answer_comes_and_then_the_end(client: Client) -> None:
    client.send(ONE)
    assert client.connection.eof_received() is True
    assert not client.transport.closing
    (body,) = answered(client, 1)
    assert body.endswith(np.array([[1, 2, 3, 4]] * 2, np.float32).tobytes())
    assert client.transport.closing
    assert not client.transport.aborted


def test_all_answers_come_in_order_and_the_last_says_so(client: Client) -> None:
    client.send(ONE + request("GET", "/v2") + ONE + ONE[:20])
    assert client.connection.eof_received() is True
    held = client.kernel.held
    client.kernel.finish(held[1])
    assert client.take() == b""
    client.kernel.finish(held[0])
    first, second, third = parse(client.take())
    assert (first.status, second.json["name"], third.status) == (200, "triton", 200)
    assert ["Connection" in response.headers for response in (first, second, third)] == [False, False, True]
    assert client.transport.closing


def test_no_further_request_is_taken(client: Client) -> None:
    client.send(ONE)
    client.connection.eof_received()
    assert client.connection.eof_received() is True  # a loop may say it again
    client.connection.drain()
    assert not client.transport.closing
    answered(client, 1)


def test_an_answer_that_takes_long_is_begun_and_reads_the_same(client: Client) -> None:
    client.send(ONE + ONE)
    client.connection.eof_received()
    assert client.take() == b""
    client.kernel.loop.advance(PATIENCE)
    assert bytes(client.transport.out) == b"H"
    client.kernel.loop.advance(PATIENCE)
    assert bytes(client.transport.out) == b"HT"
    client.kernel.loop.advance(3600)
    assert bytes(client.transport.out) == b"HTTP/1.1 "  # and no more: the status isn't known
    client.kernel.finish(client.kernel.held.pop(0))
    client.kernel.loop.advance(3600)  # the next one's turn
    assert client.transport.out.endswith(b"H")
    answered(client, 2)


def test_an_answer_of_several_buffers(client: Client) -> None:
    data = np.arange(40_000, dtype=np.float32)
    head = b'{"inputs":[{"name":"IN_FP32","datatype":"FP32","shape":[40000],"parameters":{"binary_data_size":160000}}],'
    head += b'"parameters":{"binary_data_output":true}}'
    length = f"Inference-Header-Content-Length: {len(head)}"
    client.send(request("POST", "/v2/models/types/infer", head + data.tobytes(), length))
    client.connection.eof_received()
    client.kernel.loop.advance(PATIENCE)
    (body,) = answered(client, 1)
    assert body.endswith(data.tobytes())


def test_http_1_0(client: Client) -> None:
    client.send(ONE.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    client.connection.eof_received()
    client.kernel.loop.advance(3600)
    assert bytes(client.transport.out) == b"HTTP/1.0 "
    client.kernel.finish(client.kernel.held.pop())
    assert client.take().startswith(b"HTTP/1.0 200 OK\r\n")


def test_who_has_gone_is_noticed_and_its_requests_are_cancelled(
    client: Client, pair: tuple[socket.socket, socket.socket]
) -> None:
    client.send(ONE + ONE)
    client.connection.eof_received()
    pair[1].shutdown(socket.SHUT_WR)
    client.kernel.loop.advance(PATIENCE)
    assert not client.transport.aborted
    pair[1].close()
    client.kernel.loop.advance(PATIENCE)
    assert client.transport.aborted
    client.lose()
    assert client.kernel.cancelled == client.kernel.held
    client.kernel.loop.advance(3600)


def test_a_stream_that_has_begun_is_left_as_it_is(client: Client) -> None:
    client.send(request("POST", "/v2/models/gen/generate_stream", b'{"X":[1,2]}'))
    (held,) = client.kernel.held
    held.respond(InferenceResponse([], model_name="gen", model_version="1"), False)
    begun = client.take()
    assert begun.startswith(b"HTTP/1.1 200 OK\r\n")
    assert client.connection.eof_received() is True
    client.kernel.loop.advance(3600)
    assert client.take() == b""
    held.respond(InferenceResponse([], model_name="gen", model_version="1"), True)
    (response,) = parse(begun + client.take())
    assert response.body.count(b"data: ") == 2
    assert client.transport.closing


def test_tls_has_no_half_of_a_connection(client: Client) -> None:
    client.transport.extra["sslcontext"] = object()
    client.send(ONE)
    assert client.connection.eof_received() is False


def test_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    assert not is_gone(ours)
    theirs.send(b"data")
    theirs.shutdown(socket.SHUT_WR)
    assert not is_gone(ours)
    theirs.close()
    assert is_gone(ours)


@pytest.mark.parametrize("how", ["ends its side", "drain"])
def test_what_was_answered_in_this_turn_goes_out_before_the_end(how: str) -> None:
    client = Client()
    later: list[object] = []
    client.kernel.loop.call_soon = lambda callback, *args: later.append(callback)  # type: ignore[method-assign]
    client.send(request("GET", "/v2/health/live") * 3)
    assert len(parse(bytes(client.transport.out))) == 1
    if how == "drain":
        client.connection.drain()
        assert client.transport.closing
    else:
        assert client.connection.eof_received() is False
    assert len(parse(client.take())) == 3

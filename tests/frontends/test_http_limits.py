"""What one message, one connection and all together may hold: refused before it comes, counted while it does, given back."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from frontends.fakes import Client, FakeKernel, FakeLoop, Spec, binary, config, infer, parse, request, tensor

from kernel import ANSWERS_AT_ONCE, InferenceResponse, MemoryBudget, Tensor, answers_little
from kernel_http.connection.bodies import LINES, RESERVE, STEP, Body, ChunkedBody
from kernel_http.connection.heads import Head
from kernel_http.connection.protocol import ProbeConnection
from kernel_http.connection.routes import SMALL_BODY
from kernel_http.connection.server import READ_SIZE
from kernel_http.connection.turns import LITTLE, MAX_PIPELINED, PORTION, TURNS_BYTES, TURNS_SECONDS, Receiving

MB = 1024 * 1024
LIVE = request("GET", "/v2/health/live")


def head_of(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: a", *headers, "", ""]).encode()


def big(count: int) -> bytes:
    tail = np.arange(count, dtype=np.float32).tobytes()
    return binary("types", [tensor("IN_FP32", "FP32", [count], binary_data_size=4 * count)], tail,
                  parameters={"binary_data_output": True})  # fmt: skip


def small(receive: int = 4 * MB, send: int = 4 * MB) -> FakeKernel:
    kernel = FakeKernel()
    kernel.memory = MemoryBudget(receive, send)
    return kernel


# --- one message


@pytest.mark.parametrize(
    "path", ["/v2/models/types/infer", "/v2/models/nobody/infer", "/v2/logging", "/v2/repository/models/x/load", "/nowhere"]
)
@pytest.mark.parametrize("announced", [(), ("Inference-Header-Content-Length: 1",)])
def test_a_message_that_is_too_long_is_refused_before_it_comes(path: str, announced: tuple[str, ...]) -> None:
    client = Client(max_message_size=10 * MB)
    client.send(head_of(path, f"Content-Length: {2**40}", *announced))
    (response,) = parse(client.take())
    assert (response.status, response.headers["Connection"]) == (413, "close")
    assert f"has {2**40} bytes, more than the {10 * MB} that --http-max-message-size" in response.error
    client.send(bytes(MB))
    assert client.kernel.memory.receive.used == 0


def test_a_chunked_message_ends_there_too() -> None:
    client = Client(max_message_size=MB)
    client.send(head_of("/v2/models/types/infer", "Transfer-Encoding: chunked", "Inference-Header-Content-Length: 1"))
    for _ in range(17):
        client.send(b"10000\r\n" + bytes(65536) + b"\r\n")
    (response,) = parse(client.take())
    assert response.status == 413
    assert client.kernel.memory.receive.used == 0


def test_a_message_within_the_limit_is_served() -> None:
    client = Client(max_message_size=10 * MB)
    assert client.ask(big(2 * MB)).status == 200
    assert client.kernel.memory.receive.used == 0


@pytest.mark.parametrize(
    "path", ["/v2/logging", "/v2/trace/setting", "/v2/repository/index", "/v2/systemsharedmemory/region/x/register"]
)
@pytest.mark.parametrize("announced", [(), ("Inference-Header-Content-Length: 2",)])
def test_small_operations_take_small_bodies(path: str, announced: tuple[str, ...]) -> None:
    body = b"{}" + b" " * SMALL_BODY
    response = Client().ask(head_of(path, f"Content-Length: {len(body)}", *announced) + body)
    assert response.status == 400
    assert f"exceeds the maximum allowed input size of {SMALL_BODY} bytes" in response.error


# --- all together


def test_what_has_come_of_a_body_is_counted_until_its_answer() -> None:
    kernel = small()
    client = Client(kernel)
    message = big(MB // 2)
    client.send(message[: len(message) // 2])
    assert 0 < kernel.memory.receive.used <= 2 * STEP
    kernel.hold = True
    client.send(message[len(message) // 2 :])
    assert kernel.memory.receive.used >= 2 * MB - MemoryBudget.SMALL
    kernel.finish(kernel.held.pop())
    assert parse(client.take())[0].status == 200
    assert kernel.memory.receive.used == 0


@pytest.mark.parametrize("held", [False, True])
def test_it_is_given_back_when_the_client_goes(held: bool) -> None:
    kernel = small()
    client = Client(kernel)
    kernel.hold = True
    message = big(MB // 2)
    client.send(message if held else message[:-1])
    assert kernel.memory.receive.used
    client.lose()
    assert kernel.memory.receive.used == 0


def test_new_bodies_are_refused_where_the_budget_is_used_up_and_accepted_ones_are_served() -> None:
    kernel = small(3 * MB)
    kernel.hold = True
    first, second = Client(kernel), Client(kernel)
    first.send(big(MB // 2))
    second.send(big(MB // 2))
    (response,) = parse(second.take())
    assert response.status == 503
    assert "bytes that --memory-limit-receive allows for its clients; try again later" in response.error
    third = Client(kernel)
    third.send(LIVE)
    assert parse(third.take())[0].status == 200
    kernel.finish(kernel.held.pop())
    assert parse(first.take())[0].status == 200
    kernel.hold = False
    assert Client(kernel).ask(big(MB // 2)).status == 200


def test_a_full_budget_refuses_at_the_head_and_small_requests_are_served() -> None:
    kernel = small()
    kernel.memory.receive.add(4 * MB)
    client = Client(kernel)
    client.send(head_of("/v2/models/types/infer", f"Content-Length: {MB}"))
    assert parse(client.take())[0].status == 503
    assert Client(kernel).ask(infer("types", {"inputs": [tensor("IN_INT32", "INT32", [1], [1])]})).status == 200


def test_no_byte_is_copied_twice_while_a_body_grows() -> None:
    length = 8 * RESERVE
    head = Head(b"")
    head.content_length = length
    body = Body(head, length, bytearray(64))
    buffers = set()
    while not body.complete:
        space = body.space()
        buffers.add(id(body._buffer))
        body.received(len(space))
    assert len(buffers) <= 2


def test_of_a_body_that_grows_no_more_than_a_megabyte_is_copied_and_left_behind() -> None:
    head = Head(b"")
    head.content_length = 20 * MB
    body = Body(head, 20 * MB, bytearray(64))
    first = len(body._buffer)
    while not body.complete:
        body.received(len(body.space()))
    assert first <= MB and len(body.parts()[0]) == 20 * MB


# --- one connection, one turn


def test_lines_of_chunks_are_looked_at_some_at_a_time() -> None:
    head = Head(b"")
    body = ChunkedBody(head, MB, MB)
    data = bytearray(b"1\r\nx\r\n" * 10_000)
    at = body.feed(data, 0, len(data))
    assert at == LINES // 2 * 6
    steps = 1
    while at < len(data):
        at = body.feed(data, at, len(data))
        steps += 1
    assert steps == -(-20_000 // LINES)
    assert bytes(body.content) == b"x" * 10_000


def test_a_request_in_chunks_of_a_byte_is_served() -> None:
    text = json.dumps({"inputs": [tensor("IN_INT32", "INT32", [1], [1])]}).encode() + b" " * 5000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text)
    assert Client().ask(head_of("/v2/models/types/infer", "Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n").status == 200


class Turning(FakeLoop):
    """A loop whose turns a test takes itself."""

    def turn(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.call_later(0, callback, *args)

    def next_turn(self) -> bool:
        due = [timer for timer in self.timers if timer[0] <= self.now]
        for timer in due:
            self.timers.remove(timer)
            timer[1]()
        return bool(due)


def flooded(data: bytes) -> tuple[int, int]:
    """Have 16 connections send `data`, then somebody ask for health. Return the turns until he is answered, and all of them."""
    kernel = FakeKernel()
    kernel.loop = Turning()
    floods = [Client(kernel)]
    floods += [Client(kernel, server=floods[0].server) for _ in range(15)]
    for flood in floods:
        flood.send(data)
    probe = Client(kernel, server=floods[0].server)
    probe.send(LIVE)
    turns = answered = 0
    while True:
        if not answered and probe.transport.out:
            answered = turns
        if not kernel.loop.next_turn():
            return answered, turns
        turns += 1
        for flood in floods:
            flood.send(b"")


@pytest.mark.parametrize("chunked", [False, True])
def test_long_bodies_on_16_connections_are_received_some_in_a_turn(chunked: bool) -> None:
    """And who asks for little does not wait for them."""
    kernel = FakeKernel()
    kernel.loop = Turning()
    clients = [Client(kernel)]
    clients += [Client(kernel, server=clients[0].server) for _ in range(16)]
    *floods, probe = clients
    payload = b"%x\r\n%b\r\n0\r\n\r\n" % (2 * MB, bytes(2 * MB)) if chunked else bytes(2 * MB)
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {2 * MB}"
    payload = head_of("/v2/models/types/infer", length) + payload
    left = 16 * len(payload)
    for flood in floods:
        flood.waiting = payload
    turns = 0
    while left:
        for flood in floods:
            flood.send(b"")
        before, left = left, sum(len(flood.waiting) for flood in floods)
        assert 0 < before - left < TURNS_BYTES + PORTION + 16 * READ_SIZE
        turns += 1
        probe.send(LIVE)
        assert parse(probe.take())[0].status == 200
        kernel.loop.next_turn()
    assert turns > 8
    kernel.loop.run_jobs()
    while kernel.loop.next_turn():
        pass
    assert all(parse(flood.take())[0].status == 400 for flood in floods)


def test_where_receiving_takes_long_fewer_bytes_are_received_in_a_turn() -> None:
    """Memory that was never used may take a hundred times as long as other: its pages come from the system."""
    loop = Turning()
    receiving, reader = Receiving(loop, loop.time), Mock()  # type: ignore[arg-type]
    assert receiving.received(reader, LITTLE) and receiving.received(reader, LITTLE)
    loop.now += TURNS_SECONDS
    assert not receiving.received(reader, LITTLE) and receiving.portion == LITTLE
    loop.next_turn()
    reader.read_on.assert_called_once()
    assert receiving.received(reader, LITTLE) and receiving.portion == PORTION


def strings(count: int) -> bytes:
    """A request that is known when it comes again, with so many strings."""
    inputs = [tensor("IN_BYTES", "BYTES", [count], binary_data_size=4 * count)]
    return binary("types", inputs, bytes(4 * count), parameters={"binary_data_output": True})


@pytest.mark.parametrize(
    "data",
    [
        b"".join(b"GET /v2/health/live HTTP/1.1\r\nHost: %d\r\n\r\n" % number for number in range(1000)),
        head_of("/v2/models/types/infer", "Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n",
        infer("types", b'{"inputs":[' + b"[1]," * 7000 + b"1]}") * 2,
        request("POST", "/v2/models/multi/generate", b'{"X":[1,2]' + b" " * 20_000 + b"}"),
        request("POST", "/v2/logging", b"{}" + b" " * 20_000),
        strings(5000),
    ],
)
def test_a_flood_on_16_connections_lets_others_in_between(data: bytes) -> None:
    data *= -(-60_000 // len(data))
    answered, turns = flooded(data)
    assert answered <= 10 < turns


def test_a_flood_of_known_requests_lets_others_in_between() -> None:
    answered, turns = flooded(LIVE * 1000)
    assert answered <= 10 < turns


@pytest.mark.parametrize("count", [256, 12_000])
def test_fields_of_a_head_have_a_limit(count: int) -> None:
    client = Client()
    client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * count + b"\r\n")
    (response,) = parse(client.take())
    assert (response.status, response.error) == (431, "the request's head has more than 256 fields")


def test_endless_empty_lines_end_the_connection() -> None:
    client = Client()
    client.send(b"\r\n" * 30 + LIVE)
    assert parse(client.take())[0].status == 200
    client.send(b"\r\n" * 33 + LIVE)
    assert client.take() == b"" and client.transport.closing


def test_so_do_those_that_nothing_follows() -> None:
    client = Client()
    client.send(b"\r\n" * 32)
    assert not client.transport.closing
    client.send(b"\r\n" * 33)  # all that a read brings
    assert client.take() == b"" and client.transport.closing


def test_empty_lines_count_in_however_many_reads_they_come() -> None:
    client = Client()
    for _ in range(3):  # in front of each request anew
        for _ in range(32):
            client.send(b"\r\n")
        client.send(LIVE[:9])
        client.send(LIVE[9:])
        assert [response.status for response in parse(client.take())] == [200]
    for _ in range(32):
        client.send(b"\r\n")
    assert not client.transport.closing
    client.send(b"\r\n" + LIVE)
    assert client.take() == b"" and client.transport.closing


# --- as nginx


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"GET /v2 HTTP/1.1\r\n\r\n", "the request has no Host, wanted is one"),
        (b"GET /v2 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "the request has 2 fields Host, wanted is one"),
        (b"GET /v2 HTTP/1.0\r\nHost: a\r\nhost: a\r\n\r\n", "the request has 2 fields Host, wanted is one"),
        (b"GET /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0 knows no Transfer-Encoding"),
    ],
)
def test_heads_that_are_refused_as_nginx_does(head: bytes, words: str) -> None:
    client = Client()
    client.send(head + LIVE)
    (response,) = parse(client.take())
    assert (response.status, response.error, response.headers["Connection"]) == (400, words, "close")


def test_http_10_needs_no_host() -> None:
    assert Client().ask(b"GET /v2/health/live HTTP/1.0\r\n\r\n").status == 200


def test_a_cr_within_a_chunks_extension_is_refused() -> None:
    client = Client()
    client.send(head_of("/v2/models/types/infer", "Transfer-Encoding: chunked") + b"1;a\rb\r\nx\r\n0\r\n\r\n")
    (response,) = parse(client.take())
    assert (response.status, response.headers["Connection"]) == (400, "close")
    assert "there is a CR within a chunk's line" in response.error


# --- what clients do not take


class Stuck(Client):
    """A client that takes nothing of what is written."""

    def connect(self) -> None:
        transport = self.transport
        written = transport.writelines

        def writelines(buffers: list[Any]) -> None:
            written(buffers)
            transport.buffered += sum(map(len, buffers))
            self.connection.pause_writing()

        transport.writelines = writelines  # type: ignore[method-assign]

    def drain(self) -> None:
        self.transport.buffered = 0
        self.connection.resume_writing()


def stuck(kernel: FakeKernel, server: Any = None) -> Stuck:
    client = Stuck(kernel, server=server)
    client.connect()
    return client


def test_answers_that_wait_are_counted_until_they_are_taken() -> None:
    kernel = small(send=64 * MB)
    client = stuck(kernel)
    kernel.hold = True
    client.send(big(MB // 4) * 3)
    for request_ in reversed(kernel.held):  # the first comes last: the others wait for their turn
        kernel.finish(request_)
    assert kernel.memory.send.used >= 3 * MB
    client.drain()
    assert kernel.memory.send.used == 0


def test_they_are_given_back_when_the_client_goes() -> None:
    kernel = small(send=64 * MB)
    client = stuck(kernel)
    client.send(big(MB // 4))
    assert kernel.memory.send.used >= MB
    client.lose()
    assert kernel.memory.send.used == 0


def test_new_requests_are_refused_while_too_much_waits_and_health_is_told() -> None:
    kernel = small(receive=64 * MB, send=2 * MB)
    slow = stuck(kernel)
    other = Client(kernel, server=slow.server)
    add = infer("types", {"inputs": [tensor("IN_INT32", "INT32", [1], [1])], "parameters": {"binary_data_output": True}})
    assert other.ask(add).status == 200
    slow.send(big(MB))
    assert kernel.memory.send.full
    before = len(kernel.requests)
    for _ in range(2):
        response = other.ask(add)
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert "--memory-limit-send" in response.error
        assert other.ask(LIVE).status == 200
    assert len(kernel.requests) == before
    slow.drain()
    assert other.ask(add).status == 200


def test_all_accepted_requests_are_answered_above_the_limit() -> None:
    kernel = small(receive=64 * MB, send=2 * MB)
    slow = stuck(kernel)
    other = Client(kernel, server=slow.server)
    kernel.hold = True
    other.send(big(MB // 4))
    slow.send(big(MB))
    first, second = kernel.held
    kernel.finish(second)
    assert kernel.memory.send.full
    kernel.finish(first)
    assert parse(other.take())[0].status == 200


@pytest.mark.parametrize(("pressed", "cut"), [(False, False), (True, True)])
def test_a_slow_reader_has_to_go_where_memory_is_short(pressed: bool, cut: bool) -> None:
    kernel = small(receive=64 * MB, send=64 * MB)
    client = stuck(kernel)
    client.send(big(MB))
    if pressed:
        kernel.memory.send.add(32 * MB)
    for _ in range(8):
        kernel.loop.now += 10
        client.transport.buffered -= 260_000  # 26 KB/s
        client.server.sweep(kernel.loop.now)
    assert client.transport.aborted is cut


def test_no_answer_takes_longer_than_an_hour() -> None:
    kernel = small(receive=64 * MB, send=64 * MB)
    client = stuck(kernel)
    client.send(big(MB))
    for _ in range(3700):
        kernel.loop.now += 1
        client.transport.buffered -= 1000
        client.server.sweep(kernel.loop.now)
    assert client.transport.aborted


def test_a_slow_sender_has_to_go_where_memory_is_short() -> None:
    kernel = small(receive=8 * MB)
    client = Client(kernel)
    message = big(MB)
    client.send(message[:100_000])
    kernel.memory.receive.add(5 * MB)
    for step in range(6):
        kernel.loop.now += 10
        client.send(message[100_000 * (step + 1) : 100_000 * (step + 2)])
        client.server.sweep(kernel.loop.now)
    assert parse(client.take())[0].status == 408
    kernel.memory.receive.give_back(5 * MB)
    assert kernel.memory.receive.used == 0


# --- connections


def test_above_the_limit_one_may_ask_for_health_once() -> None:
    kernel = small()
    kernel.memory = MemoryBudget(4 * MB, 4 * MB, connections=(1, 0))
    first = Client(kernel)
    for message, status in ((LIVE, 200), (request("GET", "/v2/models/types/ready"), 200), (request("GET", "/v2"), 503)):
        probe = Client(kernel, server=first.server)
        assert isinstance(probe.connection, ProbeConnection)
        probe.send(message)
        (response,) = parse(probe.take())
        assert (response.status, response.headers["Connection"]) == (status, "close")
        assert probe.transport.closing
        probe.lose()
    assert first.ask(request("GET", "/v2")).status == 200
    first.lose()
    assert len(kernel.memory.crowd) == 0


def test_above_what_may_ask_for_health_connections_are_closed() -> None:
    kernel = small()
    kernel.memory = MemoryBudget(4 * MB, 4 * MB, connections=(1, 0))
    server = Client(kernel).server
    others = [Client(kernel, server=server) for _ in range(17)]
    assert [other.transport.closing for other in others] == [False] * 16 + [True]


def test_one_that_asks_for_nothing_has_to_go() -> None:
    kernel = small()
    kernel.memory = MemoryBudget(4 * MB, 4 * MB, connections=(1, 0))
    server = Client(kernel).server
    probe = Client(kernel, server=server)
    kernel.loop.advance(31)
    assert parse(probe.take())[0].status == 408


def test_an_idle_connection_is_closed() -> None:
    kernel = small()
    client = Client(kernel, idle_seconds=100)
    idle, looks = [0.0], []

    def getsockopt(*_: object) -> bytes:
        looks.append(kernel.loop.now)
        return bytes(52) + int(idle[0] * 1000).to_bytes(4, "little") + bytes(48)

    client.transport.extra["socket"] = SimpleNamespace(fileno=lambda: 10, getsockopt=getsockopt)
    for seconds, last in ((101, 40.0), (59, 99.0), (1, 100.0)):
        idle[0] = last
        assert not client.transport.closing
        kernel.loop.advance(seconds + 1)
    assert client.transport.closing
    assert len(looks) <= 5  # it is looked at when it may have been idle for so long


def test_one_that_waits_for_an_answer_is_not_idle() -> None:
    kernel = small()
    client = Client(kernel, idle_seconds=100)
    client.transport.extra["socket"] = SimpleNamespace(
        fileno=lambda: 10, getsockopt=lambda *_: bytes(52) + (10**6).to_bytes(4, "little") + bytes(48)
    )
    kernel.hold = True
    client.send(infer("types", {"inputs": [tensor("IN_INT32", "INT32", [1], [1])]}))
    kernel.loop.advance(500)
    assert not client.transport.closing


SUM = infer("add_sub", {"inputs": [tensor(name, "FP32", [4], [1.0] * 4) for name in ("INPUT0", "INPUT1")]})


def test_where_answers_are_large_fewer_are_in_flight_and_later_as_many_as_ever() -> None:
    kernel = small(receive=64 * MB, send=2**30)
    client = Client(kernel)
    server = client.server
    server.large(16 * MB)
    kernel.hold = True
    client.send(big(10) * 8)
    assert len(kernel.requests) == 4
    while kernel.held:
        kernel.finish(kernel.held.pop(0))
    assert len(parse(client.take())) == 8
    for _ in range(4):
        server.sweep(kernel.loop.now)
    client.send(SUM * 100)
    assert len(kernel.requests) == 8 + MAX_PIPELINED


def test_who_has_had_small_answers_may_not_have_as_many_large_ones() -> None:
    """How large they become nobody knows before they are made, but for those whose sizes a config says."""
    kernel = small(receive=64 * MB, send=2**30)
    client = Client(kernel)
    client.send(SUM * 20)
    assert client.connection.answers.ahead == MAX_PIPELINED
    kernel.hold = True
    client.send((big(10) + LIVE) * 64)
    assert len(kernel.held) <= ANSWERS_AT_ONCE
    while kernel.held:
        assert len(kernel.held) <= ANSWERS_AT_ONCE
        kernel.finish(kernel.held.pop(0))
        client.send(b"")
    assert len(parse(client.take())) == 148
    client.send(SUM * 63 + big(10) * 8)
    assert len([one for one in kernel.held if one.model.name == "types"]) <= 1


@pytest.mark.parametrize(
    ("outputs", "more", "little"),
    [
        ([Spec("Y", "FP32", (4, 8))], {}, True),
        ([Spec("Y", "FP32", (-1,))], {}, False),
        ([Spec("Y", "BYTES", (1,))], {}, False),
        ([Spec("Y", "INT8", (1024,)), Spec("Z", "FP64", (1024, 16))], {}, False),
        ([Spec("Y", "FP64", (1024,))], {"batch": 16}, True),
        ([Spec("Y", "FP64", (1024,))], {"batch": 17}, False),
        ([Spec("Y", "FP32", (1,))], {"decoupled": True}, False),
        ([], {}, False),
    ],
)
def test_whether_answers_are_little_says_the_config(outputs: list[Spec], more: dict[str, Any], little: bool) -> None:
    model = FakeKernel().add(config("new", [Spec("X", "FP32", (1,))], outputs, **more))
    assert answers_little(model) is answers_little(model) is little


def test_a_connection_whose_answers_are_large_has_few_requests_in_flight_from_the_beginning() -> None:
    """Sixty-four at once would hold as many answers, each in memory, of a client that may never take one."""
    kernel = small(receive=64 * MB, send=2**30)
    client = Client(kernel)
    kernel.hold = True
    client.send(big(5 * MB // 4) * 64)
    assert len(kernel.requests) == ANSWERS_AT_ONCE
    kernel.finish(kernel.held.pop(0))
    assert client.connection.answers.ahead == ANSWERS_AT_ONCE  # of five megabytes each
    while kernel.held:
        assert len(kernel.held) <= ANSWERS_AT_ONCE
        kernel.finish(kernel.held.pop(0))
        client.send(b"")
    assert len(parse(client.take())) == 64


def test_pieces_of_a_stream_that_wait_are_counted() -> None:
    kernel = small(receive=64 * MB, send=64 * MB)
    client = stuck(kernel)
    kernel.hold = True
    client.send(request("POST", "/v2/models/multi/generate_stream", b'{"X":[1,2]}'))
    client.connection.pause_writing()
    (held,) = kernel.held
    kernel.change = lambda response: InferenceResponse(
        [Tensor("Y", "BYTES", np.array([b"x" * MB], np.object_))], model_name="multi", model_version="3"
    )
    kernel.finish(held)
    assert kernel.memory.send.used >= MB
    client.lose()
    assert kernel.memory.send.used == 0

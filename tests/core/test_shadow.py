"""`kernel shadow`: bytes pass as they are, whatever becomes of either side; what is seen of them is compared."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import Code, ServingError
from kernel.cli.shadow import shadow as command
from kernel.recording import Tolerance
from kernel.shadow import Comparer, Mismatch, Proxy, Tee, frames
from kernel.shadow import exchanges as exchanges_module
from kernel.shadow import tee as tee_module
from kernel.shadow.exchanges import Exchange, Exchanges, Room
from kernel.shadow.proxy import CLIENT, CLOSED, UPSTREAM

# -- what is seen ----------------------------------------------------------------------------------------------------------

INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nyz"
IN_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\ny\r\n1\r\nz\r\n0\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
GET = b"GET /v2/health/ready HTTP/1.1\r\n\r\n"
UPGRADE = b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Seen:
    def __init__(self, room: int = 10_000) -> None:
        self.found: list[tuple[bytes, bytes]] = []
        self.room = Room(room)
        self.exchanges = Exchanges(self.room, lambda request: request.method == "POST", self.done)

    def done(self, exchange: Exchange) -> None:
        cut = exchange.request.cut, exchange.answer.cut
        self.found.append((b"cut", b"cut") if any(cut) else (bytes(exchange.request.body), bytes(exchange.answer.body)))
        self.room.free(exchange.size)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exchanges_are_found_however_the_bytes_come(data: st.DataObject) -> None:
    seen = Seen()
    there = [(INFER, ANSWER), (CHUNKED, IN_CHUNKS), (INFER, GO_ON + ANSWER), (GET, EMPTY)]
    kinds = data.draw(st.lists(st.sampled_from(there), max_size=5))
    for tell, whole in (
        (seen.exchanges.from_client, b"".join(ask for ask, _ in kinds)),
        (seen.exchanges.from_upstream, b"".join(answer for _, answer in kinds)),
    ):
        while whole:
            size = data.draw(st.integers(1, len(whole)))
            tell(whole[:size])
            whole = whole[size:]
    assert seen.found == [(b"abc", b"yz")] * sum(ask != GET for ask, _ in kinds) and not seen.exchanges.lost
    seen.exchanges.ended()
    assert seen.room.taken == 0


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"\x16\x03\x01\x02\x00", b""),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
        (b"HEAD / HTTP/1.1\r\n\r\n", ANSWER),
        (b"GET / HTTP/1.1" + UPGRADE, b"HTTP/1.1 101 Up" + UPGRADE + b"x"),
        (INFER, b"nonsense\r\n\r\n"),
        (INFER, ANSWER + ANSWER),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 300_000, b""),
        (GET * 2000, b""),
        (b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
    ],
)  # fmt: skip
def test_what_can_not_be_followed_is_let_go(asked: bytes, answered: bytes) -> None:
    seen = Seen()
    seen.exchanges.from_client(asked)
    seen.exchanges.from_upstream(answered)
    seen.exchanges.from_client(INFER)
    assert seen.exchanges.lost and seen.room.taken == 0
    assert len(seen.found) <= 1


def test_what_there_is_no_room_for_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, room in ((2, 10_000), (10_000, 4)):
        monkeypatch.setattr(exchanges_module, "MOST_BODY", most)
        seen = Seen(room)
        for _ in range(2):
            seen.exchanges.from_client(INFER)
            seen.exchanges.from_upstream(ANSWER)
        assert seen.found == [(b"cut", b"cut")] * 2 and seen.room.taken == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.one_of(st.binary(max_size=60), st.sampled_from([INFER, ANSWER, GET, GO_ON])))))
def test_no_bytes_make_it_fail(pieces: list[tuple[bool, bytes]]) -> None:
    seen = Seen(50)
    for of_client, piece in pieces:
        (seen.exchanges.from_client if of_client else seen.exchanges.from_upstream)(piece)
        assert 0 <= seen.room.taken <= 50
    seen.exchanges.ended()
    assert seen.room.taken == 0


def test_a_field_without_end_is_not_gathered() -> None:
    infer = b"POST /v2/models/m/infer HTTP/1.1\r\nX: "
    for asked, answered in ((infer, b""), (INFER, b"HTTP/1.1 200 OK\r\nX: ")):
        seen = Seen()
        seen.exchanges.from_client(asked)
        feed = seen.exchanges.from_upstream if answered else seen.exchanges.from_client
        feed(answered)
        for _ in range(exchanges_module.MOST_QUIET // 100_000 + 1):
            assert not seen.exchanges.lost
            feed(b"a" * 100_000)
        assert seen.exchanges.lost and seen.room.taken == 0


# -- what is compared ------------------------------------------------------------------------------------------------------

Asked = Callable[[str, Mapping[str, str], bytes], tuple[int, dict[str, str], bytes]]


def outputs(value: float) -> bytes:
    return json.dumps({"id": "7", "outputs": [{"name": "Y", "datatype": "FP32", "shape": [1], "data": [value]}]}).encode()


def message(first: str, body: bytes, *headers: str) -> bytes:
    return "\r\n".join([first, f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


def compared(
    status: int, answer: bytes, candidate: Asked | tuple[int, bytes], body: bytes = b"{}", *headers: str,
    target: str = "/v2/models/m/infer",
) -> tuple[dict[str, int], list[Mismatch]]:  # fmt: skip
    found: list[Mismatch] = []
    ask = candidate if callable(candidate) else lambda path, headers, body: (candidate[0], {}, candidate[1])
    comparer = Comparer(ask, found.append, 1.0, Tolerance())
    comparer.told(1, CLIENT, message(f"POST {target} HTTP/1.1", body))
    comparer.told(1, UPSTREAM, message(f"HTTP/1.1 {status} X", answer, *headers))
    comparer.told(1, CLOSED, b"")
    comparer.finish(30.0)
    tally = comparer.models.get("m")
    assert comparer._room.taken == 0 and not comparer._waiting
    return dict(tally.outcomes) if tally is not None else {}, found


NO = b'{"error":"no"}'


def test_each_is_judged() -> None:
    assert compared(200, outputs(1), (200, outputs(1))) == ({"same": 1}, [])
    words = "output 'Y': 1 of 1 elements differ; the worst one is 2.0 at [0], expected was 1.0"
    assert compared(200, outputs(1), (200, outputs(2))) == ({"differ": 1}, [Mismatch("m", "7", "Y", "1.0", "2.0", words)])
    assert compared(400, NO, (400, b'{"error":"other words"}')) == ({"same": 1}, [])
    for upstream, candidate, outcome, told in (
        ((200, outputs(1)), (500, NO), "failed", "it fails: INTERNAL: no"),
        ((400, NO), (200, outputs(1)), "differ", "it succeeds, expected was INVALID_ARG: no"),
        ((400, NO), (404, NO), "differ", "it fails otherwise: NOT_FOUND: no, expected was INVALID_ARG: no"),
        ((200, outputs(1)), (200, b"<html>"), "failed", "it fails: UNKNOWN: the answer is none of the protocol"),
    ):
        outcomes, (one,) = compared(*upstream, candidate)
        assert outcomes == {outcome: 1} and told in one.words


def test_what_says_nothing_is_not_compared() -> None:
    def gone(path: str, headers: Mapping[str, str], body: bytes) -> Any:
        raise ServingError(Code.UNAVAILABLE, "gone")

    def broken(path: str, headers: Mapping[str, str], body: bytes) -> Any:
        raise KeyError

    well = (200, outputs(1))
    assert compared(503, NO, well)[0] == {"upstream busy": 1}
    assert compared(200, b"<html>", well)[0] == {"not understood": 1}
    assert compared(*well, gone)[0] == {"candidate unreachable": 1}
    assert compared(*well, broken)[0] == {"not understood (KeyError)": 1}
    assert compared(*well, well, b'{"parameters":{"sequence_id":1}}')[0] == {"sequence": 1}
    assert compared(*well, well, b'{"shared_memory_region":"x"}')[0] == {"shared memory": 1}
    assert compared(*well, well, target="/v2/models/m/generate")[0] == {}
    assert compared(200, gzip.compress(outputs(1)), well, b"{}", "Content-Encoding: gzip")[0] == {"same": 1}
    assert compared(200, b"x", well, b"{}", "Content-Encoding: gzip")[0] == {"not understood": 1}
    assert compared(200, b"x", well, b"{}", "Content-Encoding: br")[0] == {"not understood": 1}


def test_the_candidate_is_asked_the_same() -> None:
    asked: list[tuple[str, Mapping[str, str], bytes]] = []

    def ask(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        asked.append((path, headers, body))
        return 200, {}, outputs(1)

    comparer = Comparer(ask, lambda one: None, 1.0, Tolerance())
    headers = ("Inference-Header-Content-Length: 2", "Authorization: Bearer secret", "Host: upstream")
    comparer.told(1, CLIENT, message("POST /v2/models/m/versions/3/infer HTTP/1.1", b"{}abc", *headers))
    comparer.told(1, UPSTREAM, message("HTTP/1.1 200 OK", outputs(1)))
    comparer.finish(30.0)
    assert asked == [("/v2/models/m/versions/3/infer", {"inference-header-content-length": "2"}, b"{}abc")]


def test_what_there_is_no_time_for_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.shadow.comparer.MOST_WAITING", 2)
    goes_on = threading.Event()

    def slow(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        goes_on.wait()
        return 200, {}, outputs(1)

    comparer = Comparer(slow, lambda one: None, 1.0, Tolerance())
    for _ in range(5):
        comparer.told(1, CLIENT, INFER)
        comparer.told(1, UPSTREAM, message("HTTP/1.1 200 OK", outputs(1)))
    goes_on.set()
    comparer.finish(30.0)
    assert comparer.models["m"].outcomes == {"same": 2, "no time": 3} and comparer._room.taken == 0


# -- what passes -----------------------------------------------------------------------------------------------------------


class Onlooker:
    def __init__(self) -> None:
        self.seen: dict[tuple[int, int], bytes] = {}

    def tell(self, connection: int, kind: int, data: bytes = b"") -> None:
        self.seen[connection, kind] = self.seen.get((connection, kind), b"") + data


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def passing(handler: Handler | None, use: Callable[[int, Onlooker], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Have `use(port, onlooker)` talk to `handler` through a proxy; None: nobody is there."""

    async def main() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                assert handler is not None
                await handler(reader, writer)
            finally:
                writer.close()

        upstream = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = upstream.sockets[0].getsockname()[1]
        if handler is None:
            upstream.close()
            await upstream.wait_closed()
        onlooker = Onlooker()
        proxy = Proxy("127.0.0.1", port, onlooker, **options)
        try:
            async with asyncio.timeout(60):
                await use(await proxy.start("127.0.0.1", 0), onlooker)
        finally:
            await proxy.stop(1.0)
            upstream.close()

    asyncio.run(main())


async def talk(port: int, data: bytes, end: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if end:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def test_bytes_pass_as_they_are() -> None:
    big = bytes(range(256)) * 8192

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()  # to the client's end, which passes, too
        writer.write(data[::-1])
        await writer.drain()

    async def use(port: int, onlooker: Onlooker) -> None:
        assert await talk(port, big, end=True) == big[::-1]
        assert await talk(port, b"\0not HTTP", end=True) == b"PTTH ton\0"
        assert onlooker.seen[1, CLIENT] == big and onlooker.seen[1, UPSTREAM] == big[::-1]
        assert onlooker.seen[2, CLOSED] == b""

    passing(answer, use)


def test_a_stream_passes_piece_by_piece() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first")
        assert await reader.readexactly(2) == b"ok"
        writer.write(b"second")

    async def use(port: int, onlooker: Onlooker) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(5) == b"first"
        writer.write(b"ok")
        assert await reader.read() == b"second"
        writer.close()

    passing(answer, use)


def test_who_does_not_read_keeps_the_upstream_from_sending() -> None:
    sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.read(1)
        for _ in range(400):
            writer.write(bytes(1024 * 1024))
            await writer.drain()
            sent += 1

    async def use(port: int, onlooker: Onlooker) -> None:
        onlooker.tell = lambda *told: None  # type: ignore[method-assign]
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"x")
        before = -1
        while sent != before:  # until nothing moves
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < 100  # what the system's own buffers hold
        writer.transport.abort()

    passing(answer, use)


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def test_an_upstream_that_is_not_there_is_told_as_that() -> None:
    async def use(port: int, onlooker: Onlooker) -> None:
        answer = await talk(port, INFER)
        assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert "can't be reached: " in body_of(answer)["error"] and "127.0.0.1:" in body_of(answer)["error"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.1)
        writer.write(INFER)  # who asks later is told as well
        assert (await reader.read()).startswith(b"HTTP/1.1 502 ")
        writer.close()

    passing(None, use)


def test_an_upstream_that_is_not_there_closes_other_protocols() -> None:
    async def use(port: int, onlooker: Onlooker) -> None:
        try:
            assert await talk(port, b"PRI * HTTP/2.0\r\n\r\n") == b""
        except ConnectionError:
            pass

    passing(None, use, speaks_http=False)


def test_an_upstream_that_dies_is_told_as_that() -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"abc")

    async def use(port: int, onlooker: Onlooker) -> None:
        answer = await talk(port, INFER)
        assert answer.startswith(b"HTTP/1.1 502 ") and "without an answer" in body_of(answer)["error"]

    passing(die, use)


def test_an_answer_that_is_cut_off_stays_cut_off() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"abc")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")

    async def use(port: int, onlooker: Onlooker) -> None:
        assert await talk(port, INFER) == b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"

    passing(cut, use)


def test_an_upstream_that_says_nothing_is_told_as_that() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use(port: int, onlooker: Onlooker) -> None:
        answer = await talk(port, INFER)
        assert answer.startswith(b"HTTP/1.1 504 Gateway Timeout\r\n")
        assert "has not answered within 0.2 s" in body_of(answer)["error"]

    passing(hang, use, timeout=0.2)


def test_a_client_that_goes_is_gone_for_the_upstream() -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(3)
        try:
            await reader.read()
        except ConnectionError:
            pass
        ended.set()

    async def use(port: int, onlooker: Onlooker) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"abc")
        await writer.drain()
        writer.transport.abort()
        await ended.wait()

    passing(answer, use)


# -- the copy --------------------------------------------------------------------------------------------------------------


def test_what_the_other_process_does_not_take_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tee_module, "MOST", 1_000_000)
    seen: list[tuple[int, int, int]] = []

    async def main() -> None:
        ours, theirs = socket.socketpair()
        _, tee = await asyncio.get_running_loop().create_connection(Tee, sock=ours)
        for _ in range(100):
            tee.tell(1, CLIENT, bytes(100_000))  # nobody reads
        tee.tell(2, CLIENT, bytes(1_000_000))
        tee.tell(1, CLOSED)
        reader, writer = await asyncio.open_connection(sock=theirs)
        tee.close()
        await frames(reader, lambda number, kind, data: seen.append((number, kind, len(data))))
        writer.close()
        await tee.ended.wait()
        tee.tell(3, CLIENT, b"x")  # nobody is there any more

    asyncio.run(main())
    of_first = [kind for number, kind, _ in seen if number == 1]
    assert 10 < len(of_first) < 60 and of_first[-2:] == [tee_module.GAP, CLOSED] and set(of_first[:-2]) == {CLIENT}
    assert [kind for number, kind, _ in seen if number == 2] == [tee_module.GAP]


# -- the command -----------------------------------------------------------------------------------------------------------


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    well = ["--upstream", "localhost:1", "--http-port", "0"]
    for arguments, words in (
        (well, "one of REPO and --candidate is wanted"),
        ([*well, "repo", "--candidate", "x"], "one of REPO and --candidate is wanted"),
        ([*well, "repo", "--grpc-port", "0"], "--upstream-grpc and --grpc-port go together"),
        ([*well, "repo", "--candidate-grpc", "x:1"], "--candidate-grpc goes together with --candidate and --upstream-grpc"),
        ([*well, "repo", "--sample", "0"], "'0' is no number above 0, 1 at most"),
        ([*well, "repo", "--http-port", "70000"], "a port is 65535 at most"),
        ([*well, "repo", "--relative", "-1"], "a tolerance below 0 is none"),
    ):
        with pytest.raises(SystemExit) as caught:
            command(arguments)
        assert caught.value.code == 2 and words in capsys.readouterr().err

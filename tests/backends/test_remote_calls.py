"""Calls to a far end in virtual time: connections that are few, refused, silent or gone; each call ends once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from network import Far, Network, Request, run_network

from kernel import MemoryBudget
from kernel_grpc.http2 import literal, response
from kernel_grpc.http2.errors import ErrorCode
from kernel_grpc.http2.frames import (
    DATA,
    PING,
    Setting,
    frame,
    goaway,
    header_frames,
    rst_stream,
    settings,
    window_update,
)
from kernel_remote.calls import Call, Kind, Outcome, head_of
from kernel_remote.choice import Standing
from kernel_remote.client import ClientConnection
from kernel_remote.endpoints import BACKOFF, CONNECT_TIMEOUT, Endpoint, Link
from kernel_remote.pulse import ANSWER, PATIENCE, QUIET, SELDOM, Action, Pulse
from kernel_remote.settings import Address
from kernel_remote.wire import PORTION

LINK = Link(Address("far", 8001), connections=2)


class Calls:
    """Makes calls, and notes what comes of them. `ends`: (seconds since the start, outcome), in order."""

    def __init__(self, network: Network, link: Link = LINK) -> None:
        self.network = network
        self.began = network.time()
        self.endpoint = Endpoint(link, network)
        self.messages: list[bytes] = []
        self.ends: list[tuple[float, Outcome]] = []

    @property
    def standing(self) -> Standing:
        return self.endpoint.standing

    def call(self, body: bytes = b"x", most: int = 2**32, ordered: bool = False, deadline: float | None = None) -> Call:
        call = Noted(Kind("/a/B", most=most, clock=self.network.time), [body], self.messages, self._ended)
        call.ordered, call.deadline = ordered, deadline
        self.endpoint.start(call)
        return call

    def _ended(self, outcome: Outcome) -> None:
        self.ends.append((round(self.network.time() - self.began, 3), outcome))


class Noted(Call):
    """A call of which is noted what comes."""

    def __init__(self, kind: Kind, pieces: list[bytes], messages: list[bytes], ended: Callable[[Outcome], None]) -> None:
        super().__init__(kind, pieces)
        self.message = messages.append  # type: ignore[method-assign]
        self.concluded = ended  # type: ignore[method-assign]


def echo(request: Request) -> None:
    request.answer(bytes(request.body[5:]))


def test_a_call_and_its_answer_take_one_connection_and_two_ways_each() -> None:
    async def main(network: Network) -> None:
        far = Far(echo)
        line = network.listen("far", far)
        calls = Calls(network)
        for number in range(50):
            calls.call(b"%d" % number)
        await asyncio.sleep(1)
        assert calls.messages == [b"%d" % number for number in range(50)]
        assert {outcome.status for _, outcome in calls.ends} == {0} and len(calls.ends) == 50
        assert line.attempts == len(line.connections) == 1
        assert {seconds for seconds, _ in calls.ends} == {0.004}  # there, its greeting, the call, the answer
        fields = far.requests[0].fields
        assert fields[b":path"] == b"/a/B" and fields[b":authority"] == b"far:8001" and fields[b":scheme"] == b"http"
        calls.endpoint.close()
        await asyncio.sleep(1)

    run_network(main)


def test_a_burst_of_calls_goes_out_in_portions_while_it_is_made() -> None:
    async def main(network: Network) -> None:
        far = Far(echo)
        network.listen("far", far)
        calls = Calls(network)
        calls.call()
        await asyncio.sleep(1)
        written: list[int] = []  # which call it was that was made at each write
        begun = 0
        transport = calls.endpoint._wires[0].transport
        write = transport.write

        def noted(data: bytes) -> None:
            written.append(begun)
            write(data)

        transport.write = noted
        for begun in range(1, 2 * PORTION + 5):  # noqa: B007 - noted above
            calls.call()
        assert written == [1, PORTION + 1, 2 * PORTION + 1]  # the first of all, as it may be the only one
        await asyncio.sleep(0)
        assert written[3:] == [2 * PORTION + 4]  # the rest at the end of the turn
        await asyncio.sleep(1)
        assert {outcome.status for _, outcome in calls.ends} == {0} and len(calls.ends) == 2 * PORTION + 5
        calls.endpoint.close()

    run_network(main)


def test_a_further_connection_is_made_where_streams_run_out_and_no_more_than_may_be() -> None:
    async def main(network: Network) -> None:
        far = Far(most=3)
        line = network.listen("far", far)
        calls = Calls(network)
        for _ in range(10):
            calls.call()
        await asyncio.sleep(1)
        assert len(far.peers) == 2 and len(far.requests) == 6  # two connections of three streams each
        for request in list(far.requests):
            request.answer(b"")
        await asyncio.sleep(1)
        assert len(far.requests) == 10 and len(line.connections) == 2
        for request in far.requests[6:]:
            request.answer(b"")
        await asyncio.sleep(1)
        assert [outcome.status for _, outcome in calls.ends] == [0] * 10
        calls.endpoint.close()

    run_network(main)


def test_what_is_ordered_stays_on_one_connection() -> None:
    async def main(network: Network) -> None:
        far = Far(most=2)
        network.listen("far", far)
        calls = Calls(network)
        for number in range(5):
            calls.call(b"%d" % number, ordered=True)
        calls.call(b"other")
        calls.call(b"other")
        await asyncio.sleep(1)
        assert [len([one for one in far.requests if one.far is peer]) for peer in far.peers] == [2, 2]
        while len(far.requests) < 7 or any(not one.done for one in far.requests):
            next(one for one in far.requests if not one.done).answer(b"")
            await asyncio.sleep(0.1)
        ordered = [request for request in far.requests if request.body[5:] != b"other"]
        assert [request.body[5:] for request in ordered] == [b"0", b"1", b"2", b"3", b"4"]
        assert {request.far for request in ordered} == {far.peers[0]}
        calls.endpoint.close()

    run_network(main)


def test_who_refuses_connections_is_not_asked_at_once_again() -> None:
    async def main(network: Network) -> None:
        far = Far(echo)
        line = network.listen("far", far)
        line.refuses = True
        calls = Calls(network)
        calls.call()
        calls.call()
        await asyncio.sleep(BACKOFF / 2)
        words = "endpoint far:8001 can't be connected to (Connection refused)"
        assert [outcome.message for _, outcome in calls.ends] == [words] * 2
        calls.call()
        assert len(calls.ends) == 3 and line.attempts == 1
        assert not any(outcome.processed or outcome.told for _, outcome in calls.ends)
        await asyncio.sleep(BACKOFF)
        line.refuses = False
        calls.call()
        await asyncio.sleep(1)
        assert calls.ends[-1][1].status == 0 and line.attempts == 2
        calls.endpoint.close()

    run_network(main)


def test_who_takes_a_connection_and_does_not_greet_is_given_up() -> None:
    async def main(network: Network) -> None:
        far = Far()
        far.silent = True
        network.listen("far", far)
        calls = Calls(network)
        calls.call()
        await asyncio.sleep(60)
        words = f"endpoint far:8001 can't be connected to within {CONNECT_TIMEOUT:g} s"
        assert calls.ends == [(CONNECT_TIMEOUT, Outcome(14, words, processed=False))]
        calls.endpoint.close()

    run_network(main)


def test_a_far_end_that_hangs_is_suspect_within_a_second_and_given_up_later() -> None:
    async def main(network: Network) -> None:
        far = Far(echo)
        network.listen("far", far)
        calls = Calls(network)
        calls.call()
        await asyncio.sleep(10)
        far.silent = True
        calls.began = network.time()
        calls.call()
        await asyncio.sleep(QUIET[0] + ANSWER - 0.01)
        assert not calls.standing.ejected(network.time())
        await asyncio.sleep(0.02)
        assert calls.standing.ejected(network.time())
        await asyncio.sleep(PATIENCE - ANSWER - 0.02)
        assert len(calls.ends) == 1  # the first one's
        await asyncio.sleep(0.02)
        assert calls.ends[1:] == [(QUIET[0] + PATIENCE, Outcome(14, "endpoint far:8001 has not answered a PING for 10 s"))]
        calls.endpoint.close()

    run_network(main)


def test_who_answers_again_is_no_longer_suspect_and_nothing_is_lost() -> None:
    async def main(network: Network) -> None:
        far = Far(echo)
        line = network.listen("far", far)
        calls = Calls(network)
        calls.call()
        await asyncio.sleep(1)
        line.cut()
        calls.call()
        await asyncio.sleep(8)
        assert calls.standing.ejected(network.time())
        line.mend()
        await asyncio.sleep(0.1)
        assert not calls.standing.ejected(network.time()) and len(calls.ends) == 2
        assert calls.ends[1][1].status == 0
        calls.endpoint.close()

    run_network(main)


def test_a_new_connection_ends_the_suspicion_of_an_old_one() -> None:
    """As where a middlebox has forgotten it: what goes on there is lost, what comes is not."""

    async def main(network: Network) -> None:
        far = Far(echo)
        line = network.listen("far", far)
        calls = Calls(network)
        calls.call()
        await asyncio.sleep(1)
        far.peers[0].data_received = lambda data: None  # type: ignore[method-assign]
        calls.call()
        await asyncio.sleep(QUIET[0] + ANSWER + 0.1)
        assert not calls.standing.ejected(network.time()) and len(line.connections) == 2
        calls.call()
        await asyncio.sleep(0.1)
        assert [outcome.status for _, outcome in calls.ends] == [0, 0]
        await asyncio.sleep(PATIENCE)
        assert [outcome.status for _, outcome in calls.ends] == [0, 0, 14]
        calls.endpoint.close()

    run_network(main)


def test_a_long_execution_is_asked_for_ever_more_seldom() -> None:
    async def main(network: Network) -> None:
        far = Far()
        network.listen("far", far)
        pings: list[float] = []
        calls = Calls(network)
        calls.call()
        await asyncio.sleep(0.1)
        far.peers[0].http.control.on_ping = pings.append
        begun = network.time()
        await asyncio.sleep(1000)
        assert len(pings) == 6
        gaps = [later - earlier for earlier, later in zip([begun, *pings], pings)]
        assert all(gap >= SELDOM for gap in gaps[3:])
        far.requests[0].answer(b"")
        await asyncio.sleep(1)
        assert calls.ends[0][1].status == 0
        await asyncio.sleep(10_000)
        assert len(pings) == 6, "nobody is asked while there are no calls"
        calls.endpoint.close()

    run_network(main)


def test_goaway_lets_what_it_names_go_on_and_sends_the_rest_elsewhere() -> None:
    async def main(network: Network) -> None:
        far = Far()
        line = network.listen("far", far)
        calls = Calls(network)
        for _ in range(3):
            calls.call()
        await asyncio.sleep(0.1)
        far.peers[0].send(goaway(3, ErrorCode.NO_ERROR, "restart"))
        await asyncio.sleep(0.1)
        words = "endpoint far:8001 it goes away (NO_ERROR: restart)"
        assert [outcome for _, outcome in calls.ends] == [Outcome(14, words, processed=False)]
        calls.call()
        await asyncio.sleep(0.1)
        assert len(line.connections) == 2
        for request in far.requests:
            request.answer(b"")
        await asyncio.sleep(0.1)
        assert [outcome.status for _, outcome in calls.ends] == [14, 0, 0, 0]
        assert line.connections[0].closing and not line.connections[1].closing
        calls.endpoint.close()

    run_network(main)


def test_a_block_may_begin_one_answer_and_end_another() -> None:
    """What blocks say is remembered by their bytes."""

    async def main(network: Network) -> None:
        far = Far()
        network.listen("far", far)
        calls = Calls(network)
        for _ in range(4):
            calls.call()
        await asyncio.sleep(0.1)
        block = response(200, [(b"content-type", b"application/grpc")]) + literal(b"grpc-status", b"0")
        for request, last in zip(far.requests, (False, True, False, True)):
            request.far.send(header_frames(request.id, block, end_stream=last))
        await asyncio.sleep(0.1)
        assert [outcome.status for _, outcome in calls.ends] == [0, 0]
        calls.endpoint.close()
        assert [outcome.status for _, outcome in calls.ends] == [0, 0, 14, 14]

    run_network(main)


def test_a_message_that_is_too_large_ends_its_call_before_it_has_come() -> None:
    async def main(network: Network) -> None:
        far = Far()
        network.listen("far", far)
        calls = Calls(network)
        calls.call(most=1000)
        calls.call(most=1000)
        await asyncio.sleep(0.1)
        far.requests[0].answer(bytes(1000))
        far.requests[1].say(bytes(2000))
        await asyncio.sleep(0.1)
        assert [outcome.message for _, outcome in calls.ends] == [
            "", "endpoint far:8001 answers with a message of 2000 bytes, 1000 are taken"
        ]  # fmt: skip
        assert far.requests[1].code == ErrorCode.CANCEL
        calls.endpoint.close()

    run_network(main)


def test_answers_that_are_not_complete_share_a_budget() -> None:
    async def main(network: Network) -> None:
        far = Far()
        network.listen("far", far)
        calls = Calls(network)
        account = calls.endpoint.account = MemoryBudget(1_100_000, 1).receive
        for _ in range(3):
            calls.call()
        await asyncio.sleep(0.1)
        for request in far.requests:
            message = bytes(600_000)
            request.say(b"")
            request.send_data([b"\0" + len(message).to_bytes(4, "big") + message[:400_000]], 400_005)
            request.far.flush()
            await asyncio.sleep(0.1)
        ((_, ended),) = calls.ends
        assert ended.status == 8 and "far:8001 answers with more than there is room for: the server" in ended.message
        assert ended.message.endswith("of the 1100000 bytes that --memory-limit-receive allows")
        assert far.requests[2].code == ErrorCode.CANCEL and account.used == 800_010
        far.requests[0].send_data([bytes(200_000)], 200_000)
        far.requests[0].end(literal(b"grpc-status", b"0"))
        far.requests[0].far.flush()
        await asyncio.sleep(0.1)
        assert calls.ends[-1][1].status == 0 and len(calls.messages[-1]) == 600_000
        assert account.used == 400_005
        calls.endpoint.close()
        assert account.used == 0 and len(calls.ends) == 3

    run_network(main)


def test_a_cancelled_call_is_reset_and_one_that_waits_is_never_sent() -> None:
    async def main(network: Network) -> None:
        far = Far(most=1)
        network.listen("far", far)
        calls = Calls(network, Link(LINK.address, connections=1))
        first, second, _ = calls.call(b"1"), calls.call(b"2"), calls.call(b"3")
        await asyncio.sleep(0.1)
        second.cancel()
        first.cancel()
        await asyncio.sleep(0.1)
        assert far.requests[0].code == ErrorCode.CANCEL
        assert [bytes(one.body[5:]) for one in far.requests] == [b"1", b"3"] and not calls.ends
        calls.endpoint.close()

    run_network(main)


def test_the_deadline_goes_along_less_what_a_call_has_waited() -> None:
    async def main(network: Network) -> None:
        far = Far(most=1)
        network.listen("far", far)
        calls = Calls(network, Link(LINK.address, connections=1))
        deadline = network.time() + 5
        for _ in range(2):
            calls.call(deadline=deadline)
        await asyncio.sleep(2)
        far.requests[0].answer(b"")
        await asyncio.sleep(0.1)
        assert [one.fields[b"grpc-timeout"] for one in far.requests] == [b"4998000u", b"2999000u"]
        calls.endpoint.close()

    run_network(main)


def test_a_closed_endpoint_ends_what_it_has_once() -> None:
    async def main(network: Network) -> None:
        far = Far(most=1)
        network.listen("far", far)
        calls = Calls(network, Link(LINK.address, connections=1))
        calls.call()
        calls.call()
        await asyncio.sleep(0.1)
        calls.endpoint.close()
        calls.call()
        await asyncio.sleep(10)
        assert [outcome.message for _, outcome in calls.ends] == ["endpoint far:8001 is no longer used"] * 3
        assert [outcome.processed for _, outcome in calls.ends] == [True, False, False]

    run_network(main)


@pytest.mark.parametrize("when", [0.0, 0.0005, 0.0015, 0.0025, 2.0, 6.0])
def test_an_endpoint_may_be_closed_while_it_is_connected_to(when: float) -> None:
    async def main(network: Network) -> None:
        far = Far()
        far.silent = True
        network.listen("far", far)
        calls = Calls(network)
        calls.call()
        await asyncio.sleep(when)
        calls.endpoint.close()
        await asyncio.sleep(60)
        assert len(calls.ends) == 1
        assert all(end.closing for line in network.lines.values() for end in line.connections)

    run_network(main)


# --- the pulse


def test_silence_has_two_steps() -> None:
    pulse = Pulse(0.0)
    assert pulse.look(0.0, True, 0) == (Action.NOTHING, QUIET[0])
    assert pulse.look(QUIET[0], True, 0) == (Action.PING, QUIET[0] + ANSWER)
    assert pulse.look(QUIET[0] + ANSWER, True, 0) == (Action.SUSPECT, QUIET[0] + PATIENCE) and pulse.suspect
    assert pulse.look(QUIET[0] + 5, True, 0) == (Action.NOTHING, QUIET[0] + PATIENCE)
    assert pulse.look(QUIET[0] + PATIENCE, False, 0)[0] is Action.GIVE_UP


def test_what_comes_ends_suspicion_and_answers_make_pings_frequent_again() -> None:
    pulse = Pulse(0.0)
    pulse.look(QUIET[0], True, 0)
    pulse.look(QUIET[0] + ANSWER, True, 0)
    assert pulse.heard(2.0) and not pulse.suspect and not pulse.heard(2.1)
    assert pulse.look(2.2, True, 0) == (Action.NOTHING, 2.1 + QUIET[1])
    assert pulse.look(2.2, True, 1) == (Action.NOTHING, 2.1 + QUIET[0])
    pulse.begin(7.0)
    assert pulse.look(7.0, True, 1) == (Action.NOTHING, 7.0 + QUIET[0]), "it was idle before"


def test_a_ping_of_the_far_end_is_answered() -> None:
    async def main(network: Network) -> None:
        far = Far()
        network.listen("far", far)
        pongs: list[bytes] = []
        calls = Calls(network)
        calls.call()
        await asyncio.sleep(0.1)
        far.peers[0].http.control.on_pong = pongs.append
        far.peers[0].send(frame(PING, 0, 0, b"12345678"))
        await asyncio.sleep(0.1)
        assert pongs == [b"12345678"]
        calls.endpoint.close()

    run_network(main)


# --- answers as a whole


def answers_to(ids: list[int], size: int, status: bytes, more: bytes = b"") -> bytes:
    """Return answers as most are: two header blocks that come again, and one message between them."""
    head = response(200, [(b"content-type", b"application/grpc")])
    said = b""
    for id in ids:
        message = b"\0" + size.to_bytes(4, "big") + bytes([id]) * size
        said += header_frames(id, head, end_stream=False) + frame(DATA, 0, id, message) + more
        said += header_frames(id, literal(b"grpc-status", status), end_stream=True)
    return said


@pytest.mark.parametrize("status", [b"0", b"13", b"x"])
@pytest.mark.parametrize("size", [0, 3, 500, 20_000])
def test_answers_say_the_same_in_whatever_pieces_they_come(size: int, status: bytes) -> None:
    """Those that have come whole are taken at once, the others frame by frame."""
    told = []
    for piece in (10**9, 1, 10, 700, 30_000):
        connection = ClientConnection(0.0)
        connection.start()
        connection.receive(settings({}), 0.0)
        messages: list[bytes] = []
        ends: list[Outcome] = []
        calls = [Noted(Kind("/a/B", most=10_000), [b"x"], messages, ends.append) for _ in range(100)]
        for call in calls:
            call.begin(connection, b"", "far")
        ids = [call.id for call in calls]
        calls[70].cancel()
        said = answers_to(ids[:40], size, status) + window_update(0, 5) + answers_to(ids[40:90], size, status)
        said += answers_to(ids[90:], size, status, frame(PING, 0, 0, bytes(8)))
        for at in range(0, len(said), piece):
            connection.receive(said[at : at + piece], 0.0)
            while connection.later is not None:
                connection.go_on(0.0)
        assert connection.ending.failure is None and not connection.outgoing.streams
        assert len(ends) == 99
        told.append((messages, ends, connection.bodies.recv_window))
    assert all(one == told[0] for one in told)
    assert len(told[0][0]) == (99 if size <= 10_000 else 0)


def test_a_table_that_changes_between_answers_is_minded() -> None:
    """What a block says depends on the table: bytes that have come before may say something else."""
    connection = ClientConnection(0.0)
    connection.start()
    connection.receive(settings({}), 0.0)
    ends: list[Outcome] = []
    calls = [Noted(Kind("/a/B"), [b"x"], [], ends.append) for _ in range(5)]
    for call in calls:
        call.begin(connection, b"", "far")
    entering = [b"\x40\x0bgrpc-status\x01%d" % status for status in (0, 5)]  # each is entry 62 of the table then
    for call, last in zip(calls, (entering[0], b"\xbe", b"\xbe", entering[1], b"\xbe")):
        said = header_frames(call.id, b"\x88", end_stream=False) + frame(DATA, 0, call.id, b"\0\0\0\0\1x")
        connection.receive(said + header_frames(call.id, last, end_stream=True), 0.0)
    assert [outcome.status for outcome in ends] == [0, 0, 0, 5, 5]


def test_who_keeps_a_smaller_table_is_told_that_none_is_used() -> None:
    """RFC 7541, section 4.2: who is not told may refuse the block, and with it the connection."""
    connection = ClientConnection(0.0)
    connection.start()
    connection.receive(settings({Setting.HEADER_TABLE_SIZE: 100}), 0.0)
    for number in range(3):
        connection.outgoing.take()
        Noted(Kind("/a/B"), [b"x"], [], lambda outcome: None).begin(connection, head_of("/a/B", False, "far", False), "far")
        block = b"".join(bytes(piece) for piece in connection.outgoing.take()[0])[9:]
        assert block.startswith(b"\x20\x83" if not number else b"\x83")


# --- whatever comes


def far_bytes(rng: random.Random) -> bytes:
    """What a far end may say to three calls, in an order of its own: answers, resets, the end, PINGs, credit."""
    head = response(200, [(b"content-type", b"application/grpc")])
    end = literal(b"grpc-status", rng.choice((b"0", b"0", b"13", b"x")))
    streams = []
    for stream_id in (1, 3, 5):
        sizes = [rng.choice((0, 3, 700)) for _ in range(rng.randrange(3))]
        body = b"".join(b"\0" + size.to_bytes(4, "big") + bytes(size) for size in sizes)
        cut = rng.randrange(len(body) + 1)
        parts = [
            header_frames(stream_id, head, end_stream=False),
            frame(DATA, 0, stream_id, body[:cut]),
            frame(DATA, 0, stream_id, body[cut:]),
            header_frames(stream_id, end, end_stream=True),
        ]
        if rng.random() < 0.2:
            parts[rng.randrange(4) :] = [rst_stream(stream_id, rng.choice(list(ErrorCode)))]
        streams.append(parts)
    said = [settings({})]
    while any(streams):
        said.append(rng.choice([parts for parts in streams if parts]).pop(0))
        if rng.random() < 0.1:
            away = goaway(rng.choice((0, 3, 5, 2**31 - 1)), ErrorCode.NO_ERROR)
            said.append(rng.choice((frame(PING, 0, 0, bytes(8)), window_update(0, 5), away)))
    return b"".join(said)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_a_far_end_says_each_call_ends_once(seed: int) -> None:
    for number in range(100):
        rng = random.Random(seed * 1000 + number)
        said = bytearray(far_bytes(rng))
        for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
            place = rng.randrange(len(said))
            change = rng.randrange(4)
            if change == 0:
                said[place] = rng.randrange(256)
            elif change == 1:
                del said[place : place + rng.randrange(1, 20)]
            elif change == 2:
                said[place:place] = rng.randbytes(rng.randrange(1, 20))
            else:
                del said[place:]
            if not said:
                break
        connection = ClientConnection(0.0)
        connection.start()
        outcomes: list[list[Outcome]] = [[], [], []]
        calls = [Noted(Kind("/a/B"), [b"x"], [], ended.append) for ended in outcomes]
        for call in calls:
            call.begin(connection, head_of("/a/B", False, "far", False), "far")
        if rng.random() < 0.2:
            calls.pop(1).cancel()
            outcomes.pop(1)
        at = 0
        while at < len(said):
            size = rng.choice((1, 5, 9, 60, 5000))
            connection.receive(bytes(said[at : at + size]), 0.0)
            while connection.later is not None:
                connection.go_on(0.0)
            at += size
        connection.gone = "has closed the connection"
        connection.ending.lost()
        assert [len(ended) for ended in outcomes] == [1] * len(calls), (seed, number)
        assert not connection.outgoing.streams
        for (outcome,) in outcomes:
            assert outcome.told or outcome.message.startswith("endpoint far ")

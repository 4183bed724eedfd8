"""Two that accept at one socket: who is there first does not have all that comes at once."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from typing import Any

import pytest
from virtual import run

from kernel.frontends import Connections
from kernel.frontends.accepting import MOST, NO_ROOM_SECONDS, PAUSE_SECONDS, SharedAcceptor
from kernel.frontends.connections import AT_ONCE


class Queue:
    """A listening socket that is none, which several accept at. `waiting`: how many have connected."""

    def __init__(self) -> None:
        self.waiting = 0
        self.error: OSError | None = None
        self.closed = 0

    def setblocking(self, flag: bool) -> None:
        return

    def accept(self) -> tuple[Any, str]:
        if self.error is not None:
            raise self.error
        if not self.waiting:
            raise BlockingIOError
        self.waiting -= 1
        return Queue(), "client"

    def close(self) -> None:
        self.closed += 1


class Loop:
    """The virtual loop, with readers that are called in their order, each turn, while anybody waits. `begun`: by acceptor."""

    def __init__(self, queue: Queue) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue = queue
        self.reader: Any = None
        self.begun = 0
        self.call_later, self.create_task = self.loop.call_later, self.loop.create_task

    def add_reader(self, sock: Any, callback: Any) -> None:
        self.reader = callback

    def remove_reader(self, sock: Any) -> None:
        assert self.reader is not None
        self.reader = None

    async def connect_accepted_socket(self, factory: Any, sock: Any, **_: Any) -> None:
        self.begun += 1


def two(queue: Queue) -> tuple[list[Loop], list[SharedAcceptor]]:
    loops = [Loop(queue), Loop(queue)]
    return loops, [SharedAcceptor(loop, queue, asyncio.Protocol, None, None) for loop in loops]  # type: ignore[arg-type]


async def turn(loops: list[Loop], times: int = 1, seconds: float = 0.0001) -> None:
    for _ in range(times):
        for loop in loops:
            if loop.reader is not None:
                loop.reader()
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("count", [2, 32, 33, 1000])
def test_each_has_a_share_of_what_comes_at_once(count: int) -> None:
    async def scenario() -> None:
        queue = Queue()
        loops, _ = two(queue)
        queue.waiting = count
        began = loops[0].loop.time()
        while queue.waiting:
            await turn(loops)
        assert loops[0].loop.time() - began < 0.013
        await turn(loops, 20)
        assert sum(loop.begun for loop in loops) == count
        assert abs(loops[0].begun - loops[1].begun) <= max(1, count // 8)
        queue.waiting = 1  # a single one is served at once, by whoever comes to it
        await turn(loops)
        assert sum(loop.begun for loop in loops) == count + 1

    run(scenario())


def test_one_that_is_alone_or_the_only_one_with_time_has_all() -> None:
    async def scenario() -> None:
        queue = Queue()
        loops, _ = two(queue)
        queue.waiting = 10 * MOST
        began = loops[0].loop.time()
        while queue.waiting:
            await turn(loops[:1])
        assert loops[0].loop.time() - began < 20 * PAUSE_SECONDS
        await turn(loops, 20)
        assert [loop.begun for loop in loops] == [10 * MOST, 0]

    run(scenario())


def test_where_the_system_has_no_room_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        queue = Queue()
        loops, acceptors = two(queue)
        queue.waiting, queue.error = 3, OSError(errno.EMFILE, "Too many open files")
        await turn(loops[:1], 50, 0.001)
        assert caplog.text.count("a connection can't be accepted: [Errno 24] Too many open files") == 1
        queue.error = None
        await asyncio.sleep(NO_ROOM_SECONDS)
        await turn(loops[:1], 50, 0.001)
        assert loops[0].begun == 3
        for acceptor in acceptors:
            acceptor.close()
        assert queue.closed == 2 and not any(loop.reader for loop in loops)
        queue.waiting = 1
        await asyncio.sleep(1.0)
        assert queue.waiting == 1

    run(scenario())


def test_connections_are_those_of_the_factory() -> None:
    """At a real socket; one that is closed while it accepts begins what it has accepted."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        made: list[asyncio.BaseTransport] = []

        class Echo(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

            def data_received(self, data: bytes) -> None:
                made[-1].write(data)  # type: ignore[attr-defined]

        listening = socket.create_server(("127.0.0.1", 0))
        acceptor = SharedAcceptor(loop, listening, Echo, None, None)
        port = listening.getsockname()[1]
        for data in (b"one", b"two"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            assert await reader.readexactly(3) == data
            writer.close()
            await writer.wait_closed()
        acceptor.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(scenario())


class Connection:
    busy = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def retire(self) -> None:
        self.told.append("retire")

    def drain(self) -> None:
        self.told.append("drain")

    def abort(self) -> None:
        self.told.append("abort")


def test_who_was_accepted_before_the_end_and_begins_behind_it_is_told() -> None:
    async def scenario() -> None:
        connections: Connections[Connection] = Connections(asyncio.get_running_loop(), lambda: 0.0, 1.0)
        found = []
        for flags in ((), ("retiring",), ("retiring", "refusing"), ("retiring", "refusing", "draining")):
            for flag in flags:
                setattr(connections, flag, True)
            found.append(Connection())
            connections.opened(found[-1])
            await asyncio.sleep(0)
        assert [one.told for one in found] == [[], [], ["retire"], ["drain"]]
        for one in found:
            connections.closed(one)

    run(scenario())


class Looked(Connections[Connection]):
    """Notes who is looked at."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop(), lambda: 0.0, 1.0)
        self.looked: list[Connection] = []

    def look_at(self, connection: Connection, now: float) -> None:
        self.looked.append(connection)


def test_many_connections_are_looked_at_some_in_a_turn() -> None:
    """Each once, and not those that have gone meanwhile."""

    async def scenario() -> None:
        connections = Looked()
        made = [Connection() for _ in range(2 * AT_ONCE + 10)]
        for one in made:
            connections.opened(one)
        connections.sweep(5.0)
        assert len(connections.looked) == AT_ONCE
        (gone,) = random.sample([one for one in made if one not in set(connections.looked)], 1)
        connections.closed(gone)
        await asyncio.sleep(0)
        assert len(connections.looked) in (2 * AT_ONCE - 1, 2 * AT_ONCE)
        await asyncio.sleep(0)
        assert len(connections.looked) == len(set(connections.looked)) == len(made) - 1 and gone not in connections.looked
        for one in made:
            connections.closed(one)

    run(scenario())


def test_who_is_accepted_and_has_not_begun_is_known() -> None:
    """A replica that leaves waits for them: it was not ready when they asked, as nobody seemed to be connected."""

    async def scenario() -> None:
        queue = Queue()
        loops, (acceptor, _) = two(queue)
        queue.waiting = 1
        assert not acceptor.beginning
        loops[0].reader()
        acceptor.close()
        assert acceptor.beginning and not loops[0].begun
        await asyncio.sleep(0.0001)
        assert not acceptor.beginning and loops[0].begun == 1

    run(scenario())

"""The spare of a group: when it is taken, what happens when it dies or hangs, and its own side of the channel."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from virtual import run

from kernel.replicas import SPARE, Role, Spares, take_place
from kernel.replicas.channel import receive, transmit
from kernel.replicas.messages import Become, Loaded, Message, Ping, Pong, Prepare, Waiting
from kernel.replicas.restart import QUIET_SECONDS


class Process:
    """One process, which does nothing by itself."""

    def __init__(self, index: int, on_message: Any, on_deaf: Any, on_exit: Any) -> None:
        self.pid = 100
        self.index = index
        self.tell: Callable[[Message], None] = on_message
        self.deaf: Callable[[], None] = on_deaf
        self.end: Callable[[int], None] = on_exit
        self.records: list[Message] = []
        self.signals: list[signal.Signals] = []
        self.stopped = False

    def send(self, record: Message, sockets: Sequence[socket.socket] = ()) -> None:
        self.records.append(record)

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def is_stopped(self) -> bool:
        return self.stopped


class World:
    """Spares over processes that are none. `heard`: what the supervisor was told."""

    def __init__(self, wanted: bool = True) -> None:
        self.processes: list[Process] = []
        self.heard: list[object] = []
        self.refuse = 0  # so many starts fail
        self.spares = Spares(asyncio.get_running_loop(), self._start, wanted)

    def _start(self, index: int, speaks: bool, *told: Any) -> Process:
        if self.refuse:
            self.refuse -= 1
            raise OSError("too many processes")
        self.processes.append(Process(index, *told))
        return self.processes[-1]

    def start(self, index: int) -> Process:
        process: Any = self.spares(index, False, self.heard.append, lambda: self.heard.append("deaf"), self.heard.append)
        return process  # type: ignore[no-any-return]


def test_the_spare_takes_a_place_and_what_it_says_from_then_on_is_a_replicas() -> None:
    async def main() -> None:
        world = World()
        first = world.start(0)
        world.spares.prepare(["one"])
        world.spares.prepare(["one"])
        first_again, spare = world.processes
        assert first_again is first and spare.index == SPARE and spare.records == [Prepare(["one"])]
        spare.tell(Waiting())
        assert world.start(2) is spare and spare.records[-1] == Become(2)
        spare.tell(Loaded())
        spare.deaf()
        spare.end(-9)
        assert world.heard == [Loaded(), "deaf", -9]
        assert world.start(3).index == 3  # from nothing, as there is none any more
        world.spares.prepare([])
        await asyncio.sleep(0)
        assert world.processes[-1].index == SPARE

    run(main())


def test_a_spare_that_dies_is_followed_by_another_but_not_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World()
        world.spares.prepare(["one"])
        world.processes[0].tell(Waiting())
        world.processes[0].deaf()
        world.processes[0].end(-9)
        world.spares.prepare(["one"])  # comes anyway
        assert len(world.processes) == 1
        world.refuse = 2
        await asyncio.sleep(QUIET_SECONDS * 4)
        assert len(world.processes) == 2 and world.processes[1].records == [Prepare(["one"])]
        for _ in range(8):  # dies of its imports, as a package is broken
            world.processes[-1].end(1)
            await asyncio.sleep(100)
        assert 8 < len(world.processes) < 12

    run(main())
    assert "the spare (process 100) has ended: SIGKILL; another one comes" in caplog.text
    assert "no spare can be started: too many processes" in caplog.text


def test_a_spare_that_hangs_is_killed() -> None:
    async def main() -> None:
        world = World()
        world.spares.look()
        world.spares.prepare([])
        spare = world.processes[0]
        for _ in range(20):
            world.spares.look()  # it imports
        spare.tell(Waiting())
        for _ in range(20):
            world.spares.look()
            spare.tell(Pong())
        assert not spare.signals and spare.records.count(Ping()) == 40
        for _ in range(5):
            world.spares.look()
        assert spare.signals == [signal.SIGKILL]

    run(main())


def test_a_spare_that_was_stopped_takes_no_place() -> None:
    async def main() -> None:
        world = World()
        world.spares.prepare([])
        world.processes[0].stopped = True
        assert world.start(1).index == 1
        assert world.processes[0].signals == [signal.SIGKILL]
        world.processes[0].end(-9)
        await asyncio.sleep(QUIET_SECONDS)
        assert [process.index for process in world.processes] == [SPARE, 1, SPARE]

    run(main())


def test_a_spare_that_is_dropped_is_gone() -> None:
    async def main() -> None:
        world = World()
        world.spares.prepare([])
        world.spares.drop()
        assert world.processes[0].signals == [signal.SIGKILL]
        world.processes[0].end(-9)
        world.refuse = 1
        world.spares.prepare([])
        world.spares.drop()
        await asyncio.sleep(100)
        assert len(world.processes) == 1

    run(main())


def test_where_none_is_wanted_there_is_none() -> None:
    async def main() -> None:
        world = World(wanted=False)
        world.spares.prepare([])
        assert not world.processes and world.start(0).index == 0

    run(main())


def test_a_spare_imports_and_calls_what_it_is_told_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr("colorsys.begin", lambda: called.append("begin"), raising=False)
    monkeypatch.setattr("colorsys.fail", lambda: 1 / 0, raising=False)
    ours, theirs = socket.socketpair()
    with ours:
        names = ["nobody.has_this", "colorsys:fail", "colorsys:nothing", "colorsys:begin", "wave"]
        for record in (Prepare(names), Ping(), Become(3), Ping()):
            transmit(ours, record)
        sys.modules.pop("wave", None)
        descriptor = theirs.detach()
        assert take_place(Role(SPARE, 4, descriptor, False)) == Role(3, 4, descriptor, False)
        assert "wave" in sys.modules and called == ["begin"]
        assert [receive(ours), receive(ours)] == [Waiting(), Pong()]
        with socket.socket(fileno=descriptor) as left:
            assert receive(left) == Ping()  # is the replica's to read


@pytest.mark.parametrize("record", [None, Ping()])
def test_a_spare_without_a_supervisor_ends(record: Message | None) -> None:
    ours, theirs = socket.socketpair()
    if record is not None:
        transmit(ours, record)
    ours.close()
    with pytest.raises(SystemExit):
        take_place(Role(SPARE, 4, theirs.detach(), False))

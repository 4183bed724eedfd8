"""The supervisor of a group of replicas: its rule of restarts; its decisions on virtual time, over processes that are none."""

from __future__ import annotations

import argparse
import asyncio
import errno
import re
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from virtual import run

from kernel import usable_cores
from kernel.cli import group
from kernel.cli.group_flags import add_group_flags, replicas
from kernel.cli.parser import Parser
from kernel.errors import ServingError
from kernel.observability import Duration, ModelStatistics
from kernel.registry import ModelIndex
from kernel.replicas import Member, Role, Supervisor
from kernel.replicas.channel import Channel
from kernel.replicas.messages import (
    Answer,
    Answers,
    Ask,
    Bind,
    Bound,
    Leave,
    Load,
    Loaded,
    Meet,
    Message,
    Now,
    Number,
    Open,
    Opened,
    OthersReady,
    Ping,
    Pong,
    Ready,
    Replace,
    Replaced,
    Told,
    Wanted,
)
from kernel.replicas.ports import Ports
from kernel.replicas.pulse import LOOKS, Pulse
from kernel.replicas.questions import Questions
from kernel.replicas.restart import FIRST_SECONDS, LONGEST_SECONDS, QUIET_SECONDS, STEADY_SECONDS, Backoff
from kernel.rules import ScaleRule
from kernel.server import together

LIMIT = 40.0


# -- the rule ----------------------------------------------------------------------------------------------------------


def test_who_has_served_begins_anew_at_once() -> None:
    backoff = Backoff()
    assert [backoff.delay(STEADY_SECONDS) for _ in range(20)] == [0.0] * 20
    assert backoff.delay(0.5) == 0.0  # one early death may be chance


def test_who_dies_early_again_and_again_waits_longer_each_time() -> None:
    backoff = Backoff()
    delays = [backoff.delay(0.01) for _ in range(40)]
    assert delays[:4] == [0.0, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS, 8 * FIRST_SECONDS]
    assert delays == sorted(delays) and delays[-1] == LONGEST_SECONDS
    assert backoff.delay(STEADY_SECONDS) == 0.0 and backoff.delay(0.01) == 0.0  # it has served: all is forgotten


def test_who_never_served_waits_from_the_first_time() -> None:
    backoff = Backoff()
    assert [backoff.delay(0.0) for _ in range(3)] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    for _ in range(5000):
        assert backoff.delay(0.0) <= LONGEST_SECONDS


# -- the group ---------------------------------------------------------------------------------------------------------


class FakeProcess:
    """One process, which does nothing by itself."""

    def __init__(self, pid: int, index: int, speaks: bool, on_message: Any, on_deaf: Any, on_exit: Any) -> None:
        self.pid = pid
        self.index = index
        self.speaks = speaks
        self.on_deaf = on_deaf
        self.tell: Callable[[Message], None] = on_message
        self.records: list[Message] = []
        self.peers: list[tuple[int, str]] = []  # whom it was given a socket to
        self.signals: list[signal.Signals] = []
        self.alive = True
        self.stopped = False
        self._on_exit = on_exit

    def send(self, record: Message, sockets: Sequence[socket.socket] = ()) -> None:
        if isinstance(record, Meet):
            assert len(sockets) == 1
            self.peers.append((record.index, record.name))
        else:
            self.records.append(record)

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def is_stopped(self) -> bool:
        return self.stopped

    def end(self, status: int) -> None:
        assert self.alive
        self.alive = False
        self._on_exit(status)


class FakePorts:
    """Sockets that are none. `error`: why there are none."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.error: OSError | None = None

    async def sockets(self, wanted: Bind) -> list[socket.socket]:
        self.calls.append(wanted)
        if self.error is not None:
            raise self.error
        return []

    def let_go(self) -> None:
        self.calls.append("let go")

    def close(self) -> None:
        self.calls.append("closed")


class World:
    """A supervisor over fake processes. `spares`: when there was to be one, and when none any more."""

    def __init__(self, count: int, refuse: int = 0, hang: float = 0.0, rule: ScaleRule | None = None) -> None:
        self.spares: list[object] = []
        self.up: list[FakeProcess] = []  # who have told that they serve
        self.processes: list[FakeProcess] = []
        self.ports = FakePorts()
        self.refuse = refuse  # so many starts fail
        self.started = asyncio.Event()  # there is another process
        self.loop = asyncio.get_running_loop()
        self.supervisor = Supervisor(self.loop, count, self, self.ports, LIMIT, hang, rule)  # type: ignore[arg-type]
        self.supervisor.begin()

    def prepare(self, modules: Sequence[str]) -> None:
        self.spares.append((self.loop.time(), [*modules]))

    def drop(self) -> None:
        self.spares.append("none")

    def look(self) -> None:
        pass

    def __call__(self, index: int, speaks: bool, *told: Any) -> FakeProcess:
        if self.refuse:
            self.refuse -= 1
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.started.set()
        process = FakeProcess(100 + len(self.processes), index, speaks, *told)
        self.processes.append(process)
        return process

    @property
    def alive(self) -> list[FakeProcess]:
        return [process for process in self.processes if process.alive]

    def serve(self) -> None:
        """Have all come up."""
        for process in self.processes:  # grows meanwhile
            process.tell(Loaded())
        for process in self.processes:
            assert process.records == [Open()]
            process.tell(Opened())


def test_the_first_loads_alone_and_all_open_together() -> None:
    async def main() -> None:
        world = World(3)
        assert [(process.index, process.speaks) for process in world.processes] == [(0, True)]
        world.processes[0].tell(Loaded())
        assert [(process.index, process.speaks) for process in world.processes] == [(0, True), (1, False), (2, False)]
        world.processes[2].tell(Loaded())
        assert not any(process.records for process in world.processes)
        world.processes[1].tell(Loaded())
        assert [process.records for process in world.processes] == [[Open()]] * 3
        for process in world.processes:
            assert not world.supervisor.served.done()
            process.tell(Opened())
        assert world.supervisor.served.done()

    run(main())


@pytest.mark.parametrize("first", [True, False])
def test_a_start_that_fails_ends_all_with_1(first: bool) -> None:
    async def main() -> None:
        world = World(3)
        if not first:
            world.processes[0].tell(Loaded())
        world.processes[-1].end(1)
        assert all(process.signals == [signal.SIGTERM] for process in world.alive)
        for process in world.alive:
            process.end(0)
        assert await world.supervisor.done == 1
        assert world.ports.calls == ["let go", "closed"]
        assert len(world.processes) == (1 if first else 3)

    run(main())


def test_a_start_that_is_killed_or_not_possible_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def killed() -> None:
        world = World(2)
        world.processes[0].end(-9)
        assert await world.supervisor.done == 1

    async def not_possible() -> None:
        world = World(2, refuse=1)
        assert await world.supervisor.done == 1

    run(killed())
    assert "replica 0 (process 100) has ended before it served: SIGKILL" in caplog.text
    run(not_possible())
    assert "replica 0 can't be started: [Errno 11] Resource temporarily unavailable" in caplog.text


def test_a_port_that_can_not_be_listened_at_ends_all() -> None:
    """Two services at one port: it is found out when the ports open."""

    async def main() -> None:
        world = World(3)
        for process in world.processes:  # grows meanwhile
            process.tell(Loaded())
        world.processes[2].end(1)
        assert [process.signals for process in world.alive] == [[signal.SIGTERM]] * 2
        for process in world.alive:
            process.end(1)
        assert await world.supervisor.done == 1 and len(world.processes) == 3

    run(main())


def test_who_dies_is_begun_anew_and_opens_by_itself() -> None:
    async def main() -> None:
        world = World(3)
        world.serve()
        await asyncio.sleep(10)
        world.started.clear()
        world.processes[1].end(-9)
        await world.started.wait()
        new = world.processes[3]
        assert (new.index, new.speaks) == (1, False)
        new.tell(Loaded())
        assert new.records == [Open()]  # the others serve: it waits for nobody
        assert [process.records for process in world.processes] == [[Open()]] * 4

    run(main())


def test_who_was_stopped_by_somebody_else_has_lost_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        await asyncio.sleep(10)
        world.started.clear()
        world.processes[1].end(0)
        await world.started.wait()

    run(main())
    (told,) = [record for record in caplog.records if "begins anew" in record.getMessage()]
    assert told.levelname == "WARNING" and "was stopped by somebody else, and has finished what it had" in told.getMessage()


def test_each_gets_a_channel_to_each_other_once() -> None:
    async def main() -> None:
        world = World(3)
        world.serve()
        await asyncio.sleep(10)
        pids = [str(process.pid) for process in world.processes]
        for k, process in enumerate(world.processes):
            assert sorted(process.peers) == [(j, pids[j]) for j in range(3) if j != k]
        world.started.clear()
        world.processes[1].end(-9)
        await world.started.wait()
        new = world.processes[3]
        assert not new.peers
        new.tell(Loaded())
        assert sorted(new.peers) == [(0, pids[0]), (2, pids[2])]
        assert world.processes[0].peers[-1] == world.processes[2].peers[-1] == (1, str(new.pid))

    run(main())


def test_who_dies_again_and_again_waits() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        began = []
        for _ in range(12):
            world.alive[-1].end(-11)
            before = world.loop.time()
            world.started.clear()
            await world.started.wait()
            began.append(world.loop.time() - before)
        assert began == sorted(began) and began[:2] == pytest.approx([0.0, 0.2]) and began[-1] == LONGEST_SECONDS
        assert len(world.alive) == 2

    run(main())


def test_a_restart_that_is_not_possible_is_tried_again() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.refuse = 3
        world.processes[0].end(-9)
        await asyncio.sleep(5)
        assert len(world.alive) == 2 and not world.refuse

    run(main())


def test_stop_ends_all_and_begins_none_anew() -> None:
    async def main() -> None:
        world = World(3)
        world.serve()
        world.processes[2].end(-9)  # to begin anew, if there were no stop
        world.supervisor.stop()
        world.supervisor.stop()
        assert [process.signals for process in world.alive] == [[signal.SIGTERM]] * 2
        assert world.ports.calls == ["let go"]
        world.processes[0].end(0)
        await asyncio.sleep(5)
        assert not world.supervisor.done.done() and len(world.processes) == 3
        world.processes[1].end(0)
        assert await world.supervisor.done == 0
        assert world.ports.calls == ["let go", "closed"]

    run(main())


def test_a_stop_while_they_load_opens_nobody() -> None:
    async def main() -> None:
        world = World(2)
        world.supervisor.stop()
        world.processes[0].tell(Loaded())
        assert len(world.processes) == 1 and not world.processes[0].records
        world.processes[0].end(0)
        assert await world.supervisor.done == 0

    run(main())


def test_one_that_does_not_end_cleanly_is_the_status_of_all() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.stop()
        world.processes[0].end(1)
        world.processes[1].end(0)
        assert await world.supervisor.done == 1

    run(main())


def test_one_that_does_not_end_is_killed() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.stop()
        world.processes[0].end(0)
        await asyncio.sleep(LIMIT - 0.1)
        assert world.processes[1].signals == [signal.SIGTERM]
        await asyncio.sleep(0.2)
        assert world.processes[1].signals == [signal.SIGTERM, signal.SIGKILL]
        world.processes[1].end(-9)
        assert await world.supervisor.done == 1

    run(main())


def test_one_that_was_suspended_goes_on_to_its_end() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.processes[1].stopped = True
        world.supervisor.stop()
        assert [process.signals for process in world.processes] == [[signal.SIGTERM], [signal.SIGTERM, signal.SIGCONT]]

    run(main())


def test_the_second_signal_ends_all_at_once() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.stop()
        world.supervisor.hurry()
        assert all(process.records[-1] == Now() for process in world.processes)
        world.processes[0].end(1)
        await asyncio.sleep(2)
        assert world.processes[1].signals == [signal.SIGTERM, signal.SIGKILL]  # it didn't hear
        world.processes[1].end(-9)
        assert await world.supervisor.done == 1

    run(main())


def test_one_without_its_channel_is_ended_and_begun_anew() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        dead, deaf = world.processes
        dead.on_deaf()
        dead.end(-9)  # a channel ends with its process: nothing more is to be done
        deaf.on_deaf()
        await asyncio.sleep(2)
        assert not dead.signals and deaf.signals == [signal.SIGTERM]

    run(main())


def test_a_port_that_can_not_be_had_is_told_to_who_asks() -> None:
    async def main() -> None:
        world = World(2)
        wanted = Bind(7, "HTTP", "127.0.0.1", 8000, False)
        world.processes[0].tell(wanted)
        await asyncio.sleep(0)
        world.ports.error = OSError("failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use ")
        world.ports.error.errno = errno.EADDRINUSE
        world.processes[0].tell(wanted)
        await asyncio.sleep(0)
        assert world.processes[0].records == [Bound(7, 0), Bound(7, 0, str(world.ports.error), errno.EADDRINUSE)]

    run(main())


# -- one after another -------------------------------------------------------------------------------------------------


def come_up(process: FakeProcess) -> None:
    process.tell(Loaded())
    assert process.records == [Open()]
    process.tell(Opened())


def test_each_leaves_when_its_successor_serves() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.reload()
        first, second, successor = world.processes
        assert successor.index == 0 and first.records == [Open()]  # serves as before
        successor.tell(Loaded())
        assert successor.records == [Open()] and first.records == [Open()]
        successor.tell(Opened())
        assert first.records == [Open(), Leave()] and len(world.processes) == 3
        first.end(0)
        assert world.processes[3].index == 1
        come_up(world.processes[3])
        assert second.records == [Open(), Leave()]
        second.end(0)
        await asyncio.sleep(100)
        assert world.alive == world.processes[2:4]
        world.supervisor.stop()
        for process in world.alive:
            process.end(0)
        assert await world.supervisor.done == 0

    run(main())


def numbers(process: FakeProcess) -> list[Number]:
    return [record for record in process.records if isinstance(record, Number)]


def opened(world: World) -> list[int]:
    """Return the replicas that were told to open and not to leave, by number."""
    return sorted(one.index for one in world.alive if Open() in one.records and Leave() not in one.records)


async def busy(world: World, share: float, seconds: float, age: float = 0.0) -> None:
    """Have each replica tell for a while how much it has to do; those that are started come up, who leaves ends."""
    for _ in range(round(seconds / 0.25)):
        for process in world.alive:
            if not process.records:
                process.tell(Loaded())
            if process.records[0] == Open() and process not in world.up:
                world.up.append(process)
                process.tell(Opened())
            if Leave() in process.records:
                process.end(0)
            elif numbers(process):
                process.tell(Load(share, age))
        await asyncio.sleep(0.25)


def test_the_number_follows_the_load_between_its_limits() -> None:
    async def main() -> None:
        world = World(1, rule=ScaleRule(1, 4, cooldown=30.0))
        await busy(world, 0.1, 5)
        assert opened(world) == [0] and numbers(world.processes[0])[-1].wanted == 1
        await busy(world, 1.0, 20)
        assert opened(world) == [0, 1, 2, 3] and len(world.processes) == 4
        told = numbers(world.processes[3])[-1]
        assert (told.current, told.wanted, told.least, told.most) == (4, 4, 1, 4)
        assert told.reason.endswith("6 were needed, 4 are the most")
        await busy(world, 0.4, 25)  # three are enough, but not for long yet
        assert opened(world) == [0, 1, 2, 3]
        await busy(world, 0.4, 15)
        assert opened(world) == [0, 1, 2] and len(world.processes) == 4
        await busy(world, 0.0, 100)
        assert opened(world) == [0] and world.alive == [world.processes[0]]
        await busy(world, 0.5, 5, age=2.0)  # little to do, and somebody waits all the same
        assert opened(world) == [0, 1, 2, 3]

    run(main())


def test_one_that_dies_begins_anew_and_one_that_is_too_many_does_not() -> None:
    async def main() -> None:
        world = World(1, rule=ScaleRule(1, 2, cooldown=10.0))
        await busy(world, 1.0, 5)
        assert opened(world) == [0, 1]
        world.processes[1].end(-9)
        await busy(world, 1.0, 5)
        assert opened(world) == [0, 1] and len(world.processes) == 3
        for _ in range(200):
            if Leave() in world.processes[2].records:
                break
            for process in world.alive:
                process.tell(Load(0.0, 0.0))
            await asyncio.sleep(0.25)
        world.processes[2].end(-9)  # while it was about to leave
        await busy(world, 0.0, 30)
        assert opened(world) == [0] and len(world.processes) == 3

    run(main())


def test_while_all_are_replaced_the_number_stays() -> None:
    async def main() -> None:
        world = World(1, rule=ScaleRule(1, 3, cooldown=10.0))
        await busy(world, 0.2, 2)
        world.supervisor.reload()
        for _ in range(20):
            world.processes[0].tell(Load(1.0, 0.0))
            await asyncio.sleep(0.25)
        assert len(world.processes) == 2
        await busy(world, 1.0, 10)
        assert opened(world) == [0, 1, 2]

    run(main())


def test_one_whose_successor_does_not_come_up_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.reload()
        world.processes[2].end(1)
        await asyncio.sleep(100)
        assert len(world.processes) == 3 and [process.records for process in world.alive] == [[Open()]] * 2
        world.refuse = 1
        world.supervisor.reload()
        assert len(world.alive) == 2
        world.supervisor.reload()  # and another time it works
        come_up(world.processes[3])
        assert world.processes[0].records[-1] == Leave()

    run(main())
    assert caplog.text.count("of replica 0 has not come up, so these of 2 replicas are not replaced: 0, 1") == 2


def test_one_that_dies_while_its_successor_loads_has_one_already() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.reload()
        world.processes[0].end(-9)
        await asyncio.sleep(100)
        assert len(world.processes) == 3
        come_up(world.processes[2])
        assert not any(Leave() in process.records for process in world.processes)
        come_up(world.processes[3])  # and the other one is replaced all the same
        assert world.processes[1].records[-1] == Leave() and world.processes[3].index == 1

    run(main())


def test_one_that_dies_as_its_successor_does_begins_anew_by_itself() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.reload()
        world.processes[0].end(-9)
        world.processes[2].end(1)
        await asyncio.sleep(10)
        assert [process.index for process in world.alive] == [1, 0]
        come_up(world.processes[3])
        await asyncio.sleep(10)
        assert len(world.processes) == 4  # that was the end of the reload

    run(main())


def test_who_asks_for_a_reload_is_replaced_last_and_told_before() -> None:
    async def main() -> None:
        world = World(3)
        world.serve()
        origin = world.processes[1]
        origin.tell(Replace(7))
        for number, index in ((3, 0), (4, 2), (5, 1)):
            assert origin.records == [Open()] and world.processes[number].index == index
            come_up(world.processes[number])
            if index != 1:
                world.processes[index].end(0)
        assert origin.records == [Open(), Replaced(7, 3), Leave()]
        origin.tell(Replace(8))
        assert isinstance(origin.records[-1], Replaced) and "at the moment" in origin.records[-1].message  # it leaves
        other = world.processes[3]
        other.tell(Replace(1))  # begins when the last of before has left
        assert len(world.processes) == 6
        origin.end(0)
        assert len(world.processes) == 7

    run(main())


def test_who_asks_for_a_reload_is_told_why_not() -> None:
    async def main() -> None:
        world = World(3)
        world.processes[0].tell(Replace(1))
        assert world.processes[0].records == [
            Replaced(1, 3, "UNAVAILABLE", "replicas are not replaced: they have not all served yet, or are about to end")
        ]
        world.processes[0].records.clear()
        world.serve()
        first, second, third = world.processes
        third.tell(Replace(1))
        second.tell(Replace(2))
        words = "they are being replaced at the moment, and 2 more come after the one that is loading"
        assert second.records[-1] == Replaced(2, 3, "UNAVAILABLE", f"replicas are not replaced: {words}")
        come_up(world.processes[3])
        first.end(0)
        world.processes[4].end(1)
        words = "the successor of replica 1 has not come up, so these of 3 replicas are not replaced: 1, 2; the log says why"
        assert third.records[-1] == Replaced(1, 3, "UNAVAILABLE", words)
        third.tell(Replace(2))
        world.supervisor.stop()
        assert third.records[-1] == Replaced(2, 3, "UNAVAILABLE", "the server stops")

    run(main())


def test_who_has_asked_for_a_reload_may_die() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.processes[1].tell(Replace(1))
        world.processes[1].end(-9)
        come_up(world.processes[2])
        await asyncio.sleep(1)
        come_up(world.processes[3])  # which has begun anew
        world.processes[0].end(0)
        come_up(world.processes[4])
        assert world.processes[3].records == [Open(), Leave()]
        world.processes[3].end(0)
        world.processes[4].tell(Replace(1))
        assert [process.index for process in world.processes] == [0, 1, 0, 1, 1, 0]

    run(main())


def test_a_signal_while_a_reload_was_asked_for_begins_it_anew() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.processes[0].tell(Replace(1))
        world.supervisor.reload()
        assert world.processes[2].index == 1
        come_up(world.processes[2])
        world.processes[1].end(0)
        come_up(world.processes[3])
        world.processes[2].end(0)
        come_up(world.processes[4])
        assert world.processes[0].records[-2:] == [Replaced(1, 2), Leave()]
        assert [process.index for process in world.processes] == [0, 1, 1, 1, 0]

    run(main())


# -- the spare, and who hangs ------------------------------------------------------------------------------------------


def test_there_is_a_spare_when_all_have_served_for_a_while() -> None:
    async def main() -> None:
        world = World(2)
        world.processes[0].tell(Loaded(["one", "two"]))
        world.processes[1].tell(Loaded(ahead=["three:begin"]))
        for process in world.processes:
            process.tell(Opened())
        began = world.loop.time()
        await asyncio.sleep(5)
        assert world.spares == [(pytest.approx(began + QUIET_SECONDS), ["one", "two", "three:begin"])]
        world.processes[1].end(-9)
        await asyncio.sleep(5)
        assert len(world.spares) == 1  # it loads
        world.processes[2].tell(Loaded())
        world.processes[2].tell(Opened())
        await asyncio.sleep(0.5)
        world.processes[2].end(-9)
        await asyncio.sleep(5)
        assert len(world.spares) == 1
        come_up(world.processes[3])
        await asyncio.sleep(5)
        assert len(world.spares) == 2
        world.supervisor.stop()
        assert world.spares[2:] == ["none"]

    run(main())


def test_there_is_no_spare_while_replicas_are_replaced() -> None:
    """It would have what lay on the disk before."""

    async def main() -> None:
        world = World(2)
        world.serve()
        await asyncio.sleep(5)
        assert len(world.spares) == 1
        world.supervisor.reload()
        assert world.spares[1:] == ["none"]
        await asyncio.sleep(5)
        come_up(world.processes[2])
        await asyncio.sleep(5)
        world.processes[0].end(0)
        await asyncio.sleep(5)
        come_up(world.processes[3])
        await asyncio.sleep(5)
        assert len(world.spares) == 2
        world.processes[1].end(0)
        await asyncio.sleep(5)
        assert len(world.spares) == 3
        world.supervisor.reload()
        world.processes[4].end(1)
        await asyncio.sleep(5)
        assert len(world.spares) == 5

    run(main())


def answer_pings(process: FakeProcess) -> None:
    while Ping() in process.records:
        process.records.remove(Ping())
        process.tell(Pong())


def test_who_gives_no_sign_of_life_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World(2, hang=20.0)
        await asyncio.sleep(100)  # it loads, however long
        assert not world.processes[0].signals
        for process in world.processes:
            process.tell(Loaded())
        for process in world.processes:
            process.tell(Opened())
        alive, hangs = world.processes
        for second in range(100):
            answer_pings(alive)
            if second < 50:
                answer_pings(hangs)
                assert not hangs.signals
            await asyncio.sleep(1)
        assert hangs.signals[0] == signal.SIGKILL and not alive.signals
        hangs.end(-9)
        await asyncio.sleep(1)
        new = world.processes[2]
        new.stopped = True  # while it loads
        await asyncio.sleep(30)
        assert new.signals[0] == signal.SIGKILL

    run(main())
    assert "replica 1 (process 101) has given no sign of life for 20 s, as its loop is held: it is killed" in caplog.text
    assert "replica 1 (process 102) has given no sign of life for 20 s, as it was stopped: it is killed" in caplog.text


def test_what_is_counted_are_looks() -> None:
    """A supervisor that was suspended has not looked meanwhile."""
    pulse = Pulse()
    assert [pulse.is_given_up() for _ in range(LOOKS + 1)] == [False] * LOOKS + [True]
    pulse.heard()
    assert not pulse.is_given_up() and not pulse.is_given_up(excused=True)
    assert [pulse.is_given_up() for _ in range(LOOKS)] == [False] * LOOKS


def test_who_leaves_is_asked_nothing_and_says_nothing_of_all() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.reload()
        come_up(world.processes[2])
        leaving, other, new = world.processes
        leaving.tell(Ready(False))
        other.tell(Ask(1, "topic", b"?"))
        assert Wanted(1, "topic", b"?") in new.records and leaving.records[-1] == Leave()
        assert not any(isinstance(record, OthersReady) for process in (other, new) for record in process.records)

    run(main())


def test_a_second_reload_begins_with_all_of_them() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.supervisor.reload()
        world.supervisor.reload()
        for number in range(2, 5):
            come_up(world.processes[number])
            next(process for process in world.alive if process.records[-1] == Leave()).end(0)
        await asyncio.sleep(100)
        assert [process.index for process in world.processes] == [0, 1, 0, 0, 1]

    run(main())


def test_who_can_not_meet_the_others_opens_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The supervisor has no descriptors left."""

    def none(*_: object) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        world = World(2)
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", none)
            world.serve()
        assert world.supervisor.served.done()

    run(main())
    assert "can't hand requests over to each other: [Errno 24] Too many open files" in caplog.text


def test_a_reload_waits_until_all_who_leave_have_left() -> None:
    async def main() -> None:
        world = World(3)
        world.serve()
        world.supervisor._resize(1, "test")
        world.supervisor.reload()
        for leaving in world.processes[1:3]:
            assert len(world.processes) == 3
            leaving.end(0)
        assert len(world.processes) == 4 and world.processes[3].index == 0

    run(main())


def test_there_is_no_reload_before_all_serve_or_after_a_stop() -> None:
    async def main() -> None:
        world = World(2)
        world.supervisor.reload()
        assert len(world.processes) == 1
        world.serve()
        world.supervisor.stop()
        world.supervisor.reload()
        assert len(world.processes) == 2

    run(main())


# -- what concerns all -------------------------------------------------------------------------------------------------


class Peer:
    """A replica that is none."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.records: list[Any] = []

    def send(self, record: Message) -> None:
        self.records.append(record)

    def take(self) -> Any:
        return self.records.pop(0)


def test_a_question_goes_to_the_others_and_a_change_to_all() -> None:
    questions: Questions[Peer] = Questions()
    peers = [Peer(k) for k in range(3)]
    questions.ask(peers[1], Ask(5, "topic", b"?"), peers)
    asked = [peers[0].take(), peers[2].take()]
    assert asked == [Wanted(1, "topic", b"?")] * 2 and not peers[1].records
    questions.told(peers[2], Told(1, b"two"))
    assert not peers[1].records
    questions.told(peers[0], Told(1, b"", "NOT_FOUND", "none"))
    assert peers[1].take() == Answers(5, [Answer(0, b"", "NOT_FOUND", "none"), Answer(2, b"two")])
    questions.ask(peers[1], Ask(6, "topic", b"!", "key"), peers)
    assert [peer.take() for peer in peers] == [Wanted(2, "topic", b"!")] * 3
    questions.told(peers[0], Told(1, b"once more"))  # of a question that is over: passed over


def test_who_is_alone_has_his_answer_at_once() -> None:
    questions: Questions[Peer] = Questions()
    peer = Peer(0)
    questions.ask(peer, Ask(1, "topic", b"?"), [peer])
    assert peer.take() == Answers(1, [])


def test_who_ends_is_waited_for_no_more() -> None:
    questions: Questions[Peer] = Questions()
    peers = [Peer(k) for k in range(3)]
    questions.ask(peers[0], Ask(1, "topic", b"!", "key"), peers)
    questions.ask(peers[1], Ask(1, "topic", b"?"), peers)
    for peer in peers:
        peer.records.clear()
    questions.gone(peers[1])
    questions.told(peers[0], Told(1))
    questions.told(peers[2], Told(1))
    assert peers[0].take() == Answers(1, [Answer(0), Answer(1, b"", "UNAVAILABLE", "replica 1 has ended"), Answer(2)])
    questions.told(peers[0], Told(2))
    questions.told(peers[2], Told(2))
    assert not any(peer.records for peer in peers)  # who asked has gone


def changed(questions: Questions[Peer], key: str, data: bytes, *, forget: bool = False, code: str = "") -> None:
    """Have one replica change something, with success or not."""
    peer = Peer(0)
    questions.ask(peer, Ask(1, "topic", data, key, forget), [peer])
    questions.told(peer, Told(peer.take().id, b"", code))
    assert peer.take() == Answers(1, [Answer(0, b"", code)])


def told_later(questions: Questions[Peer]) -> list[bytes]:
    """Return what one is told that begins later, in order."""
    late = Peer(9)
    over: list[None] = []
    questions.catch_up(late, lambda: over.append(None))
    asked = list(late.records)
    for record in asked:
        assert not over
        questions.told(late, Told(record.id, b"", "INTERNAL"))  # even where it can't: it is to open
    assert over == [None]
    return [record.data for record in asked]


def test_who_begins_later_is_told_the_last_change_of_each_key() -> None:
    questions: Questions[Peer] = Questions()
    assert told_later(questions) == []
    changed(questions, "model:a", b"load a")
    changed(questions, "model:b", b"load b")
    changed(questions, "model:c", b"load c", code="NOT_FOUND")  # nobody has done it
    changed(questions, "model:a", b"unload a")
    assert told_later(questions) == [b"load b", b"unload a"]
    changed(questions, "region:x", b"x")
    changed(questions, "region:y", b"y")
    changed(questions, "region:xy", b"xy")
    changed(questions, "region:x", b"no x", forget=True)
    assert told_later(questions) == [b"load b", b"unload a", b"y", b"xy"]
    changed(questions, "region:", b"no region", forget=True)
    assert told_later(questions) == [b"load b", b"unload a"]


def test_who_begins_during_a_change_is_told_of_it_and_does_not_wait_for_it() -> None:
    questions: Questions[Peer] = Questions()
    peer, late = Peer(0), Peer(1)
    questions.ask(peer, Ask(1, "topic", b"load", "model:a"), [peer])
    over: list[None] = []
    questions.catch_up(late, lambda: over.append(None))
    assert over and late.take().data == b"load"
    questions.told(peer, Told(1))
    assert told_later(questions) == [b"load"]


def test_what_is_over_late_is_told_in_the_order_in_which_it_came() -> None:
    """An unload is over sooner than the load before it, which nobody may be told to do once more then."""
    questions: Questions[Peer] = Questions()
    peer = Peer(0)
    came = [("load", "model:a"), ("unload", "model:a"), ("rate", "trace:rate"), ("level", "trace:level"), ("region", "region:x")]
    for number, (data, key) in enumerate(came):
        questions.ask(peer, Ask(number, "topic", data.encode(), key), [peer])
    questions.ask(peer, Ask(9, "topic", b"no region", "region:", forget=True), [peer])
    sent = {record.data: record.id for record in peer.records}
    questions.told(peer, Told(sent[b"unload"]))
    questions.told(peer, Told(sent[b"no region"]))
    questions.told(peer, Told(sent[b"level"]))
    late = Peer(1)
    questions.catch_up(late, lambda: None)
    assert [record.data for record in late.records] == [b"unload", b"rate", b"level"]
    for record in late.records:  # what one does again is no change of all
        questions.told(late, Told(record.id))
    for data in (b"load", b"rate", b"region"):
        questions.told(peer, Told(sent[data]))
    assert told_later(questions) == [b"unload", b"rate", b"level"]


def test_a_change_whose_client_has_gone_is_told_to_who_begins_meanwhile() -> None:
    questions: Questions[Peer] = Questions()
    origin, peer, late = Peer(0), Peer(1), Peer(2)
    questions.ask(origin, Ask(1, "topic", b"load", "model:a"), [origin, peer])
    questions.gone(origin)
    questions.catch_up(late, lambda: None)
    assert late.take().data == b"load"
    questions.told(peer, Told(1))
    assert told_later(questions) == [b"load"]


def test_who_begins_anew_has_caught_up_before_it_opens() -> None:
    async def main() -> None:
        world = World(2)
        world.serve()
        world.processes[0].tell(Ask(1, "topic", b"load", "model:a"))
        for process in world.processes:
            assert process.records[-1] == Wanted(1, "topic", b"load")
            process.tell(Told(1))
        assert world.processes[0].records[-1] == Answers(1, [Answer(0), Answer(1)])
        world.started.clear()
        await asyncio.sleep(5)
        world.processes[1].end(-9)
        await world.started.wait()
        new = world.processes[2]
        world.processes[0].tell(Ask(2, "topic", b"?"))
        assert world.processes[0].records[-1] == Answers(2, [])  # who still loads is not asked
        new.tell(Loaded())
        assert new.records == [Wanted(3, "topic", b"load")]
        new.tell(Told(3))
        assert new.records[1:] == [Open()]

    run(main())


def test_all_are_ready_where_each_is() -> None:
    async def main() -> None:
        world = World(3)
        world.serve()
        world.processes[1].tell(Ready(False))
        assert [process.records[1:] for process in world.processes] == [[OthersReady(False)], [], [OthersReady(False)]]
        world.processes[1].end(-9)  # who has gone says nothing any more
        assert [process.records[2:] for process in world.alive] == [[OthersReady(True)]] * 2

    run(main())


def test_statistics_of_all_are_sums() -> None:
    def of(k: int, **more: Any) -> ModelStatistics:
        times = {name: Duration(k, 10 * k) for name in together._DURATIONS}
        batches = {1: (Duration(k, k),) * 3, k: (Duration(1, 1),) * 3} if k > 1 else {1: (Duration(k, k),) * 3}
        return ModelStatistics("a", 1, 100 * k, k, k, **times, batch_stats=batches, failures={"OTHER": k}, **more)

    first = of(1, response_stats={"0": {"success": Duration(1, 1)}})
    second = of(2, response_stats={"0": {"success": Duration(2, 2), "fail": Duration(1, 1)}}, hop=Duration(1, 1))
    other = ModelStatistics("b", 1)
    (both, rest) = together.summed([[first], [second, other]])
    assert rest == other
    assert (both.last_inference_ms, both.inference_count, both.execution_count) == (200, 3, 3)
    assert all(getattr(both, name) == Duration(3, 30) for name in together._DURATIONS)
    assert both.batch_stats == {1: (Duration(3, 3),) * 3, 2: (Duration(1, 1),) * 3}
    assert both.response_stats == {"0": {"success": Duration(3, 3), "fail": Duration(1, 1)}}
    assert both.failures == {"OTHER": 3} and both.hop == Duration(1, 1)
    assert first.batch_stats == {1: (Duration(1, 1),) * 3}  # what came in is as it was


def test_an_index_of_all_says_what_is_not_everywhere() -> None:
    ready, away = ModelIndex("a", "1", "READY"), ModelIndex("a", "1", "UNAVAILABLE", "unloaded")
    assert together.joined([[ready], [ready]]) == [ready]
    assert together.joined([[ready], [away]]) == [away] == together.joined([[away], [ready]])
    missing = ModelIndex("a", "1", "UNAVAILABLE", "it is not loaded at every replica")
    assert together.joined([[ready], [ModelIndex("a")]]) == [missing] == together.joined([[ModelIndex("a")], [ready]])
    assert together.joined([[ModelIndex("a")], [ModelIndex("a")]]) == [ModelIndex("a")]


# -- what they say, over real sockets ----------------------------------------------------------------------------------


def test_records_and_sockets_come_through_in_order() -> None:
    """Also those that are larger than what the socket takes, and what comes behind them."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        left, right = socket.socketpair()
        told: list[tuple[Message, list[str]]] = []
        ended, all_told = loop.create_future(), asyncio.Event()
        large = "x" * 3_000_000

        def on_message(record: Message) -> None:
            names = []
            for one in channel.taken(record.sockets) if isinstance(record, Bound) else ():
                with one:
                    names.append(one.recv(10).decode())
            told.append((record, names))
            if len(told) == 15:
                all_told.set()

        channel = Channel(loop, right, on_message, lambda: ended.set_result(None))
        other = Channel(loop, left, lambda record: None, lambda: None)
        sent: list[Message] = []
        for k in range(5):
            pairs = [socket.socketpair() for _ in range(k)]
            for mine, _ in pairs:
                mine.send(str(k).encode())
            for record in (Bound(k, k), Bind(k, large, "", 0, True), Open()):
                other.send(record, [theirs for _, theirs in pairs] if isinstance(record, Bound) else ())
                sent.append(record)
            for pair in pairs:
                for one in pair:
                    one.close()
        await all_told.wait()
        assert [record for record, _ in told] == sent
        assert [names for record, names in told if isinstance(record, Bound)] == [[str(k)] * k for k in range(5)]
        other.close()
        await ended
        channel.send(Open())  # nobody is there: nothing happens

    asyncio.run(main())


def test_an_endpoint_is_bound_once_for_all(tmp_path: Path) -> None:
    async def main() -> None:
        ports = Ports(asyncio.get_running_loop())
        wanted = Bind(1, "HTTP", "127.0.0.1", 0, False)
        first = await ports.sockets(wanted)
        assert first == await ports.sockets(wanted) != []
        other = await ports.sockets(Bind(1, "GRPC", "127.0.0.1", 0, False))
        assert other[0].getsockname() != first[0].getsockname()
        path = tmp_path / "socket"
        await ports.sockets(Bind(1, "GRPC", f"unix:{path}", 0, False))
        first[0].listen()
        with pytest.raises(OSError, match=r"failed to start X service: Unavailable - Socket .* already in use "):
            await ports.sockets(Bind(1, "X", "127.0.0.1", first[0].getsockname()[1], False))
        ports.let_go()
        assert path.exists() and first[0].fileno() == -1  # replicas may still listen there
        with pytest.raises(OSError, match="the server stops"):
            await ports.sockets(wanted)
        ports.close()
        assert not path.exists()

    asyncio.run(main())


# -- the command line --------------------------------------------------------------------------------------------------


def test_auto_is_as_many_as_there_are_cores(tmp_path: Path) -> None:
    own = usable_cores([tmp_path / "absent"])
    assert own >= 1 and replicas("3") == 3 and replicas("auto") >= 1
    quota = tmp_path / "cpu.max"
    for text, wanted in (("max 100000", own), ("100000 100000", 1), ("10000 100000", 1), ("nonsense", own), ("1e9 1", own)):
        quota.write_text(text)
        assert usable_cores([quota]) == wanted
    files = [tmp_path / "quota", tmp_path / "period"]  # control groups of version 1
    for text, wanted in (("-1", own), ("100000", 1), ("20000", 1), ("", own)):
        files[0].write_text(f"{text}\n")
        files[1].write_text("100000\n")
        assert usable_cores([tmp_path / "absent"], files) == wanted


@pytest.mark.parametrize("text", ["0", "-1", "1025", "10000", "2.5", "many", ""])
def test_numbers_of_replicas_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="Invalid option value"):
        replicas(text)


@pytest.mark.parametrize("text", ["", "1,2", "0,2,0,1,5", "a,b,c,d", "0,2,987654,1"])
def test_a_role_that_somebody_else_has_given_is_refused(text: str) -> None:
    parser = Parser("kernel serve", "", "")
    add_group_flags(parser)
    with pytest.raises(SystemExit):
        parser.read([f"--replica={text}"])


def test_a_number_that_follows_the_load() -> None:
    found = replicas("2..4")
    assert (found, found.least, str(found)) == (4, 2, "4")
    assert (replicas("3").least, replicas("1..1").least) == (3, 1)
    assert replicas("1..auto") == replicas("auto") == replicas("auto..auto").least
    with pytest.raises(argparse.ArgumentTypeError, match=r"'4\.\.2' has more replicas at least than at most"):
        replicas("4..2")
    for text in ("0..2", "1..", "..", "1..x", "0", "1-3", "all"):
        with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"Got {text} — wanted is a number greater than 0")):
            replicas(text)


def test_a_role_comes_through_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    role = Role(2, 4, 17, True)
    assert Role.parse(str(role)) == role
    arguments = ["repository/", "--replicas", "4"]
    monkeypatch.setattr(group.sys, "orig_argv", ["python", "-X", "dev", "-m", "kernel", "serve", *arguments])
    monkeypatch.setattr(group.sys, "executable", "/bin/python")
    wanted = ["/bin/python", "-X", "dev", "-m", "kernel", "serve", *arguments, f"--replica={role}"]
    assert group._command(arguments, role) == wanted
    assert group._command(["x"], role) == ["/bin/python", "-P", "-m", "kernel", "serve", "x", f"--replica={role}"]


def test_a_replica_is_told_what_became_of_each_of_its_reloads() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        asked: asyncio.Queue[Message] = asyncio.Queue()
        ended = loop.create_future()
        channel = Channel(loop, ours, asked.put_nowait, lambda: None)
        member = Member(loop, Role(1, 2, theirs.detach(), False), lambda: ended.set_result(None), lambda: None)
        first, second = (loop.create_task(member.reload()) for _ in range(2))
        assert [await asked.get(), await asked.get()] == [Replace(1), Replace(2)]
        channel.send(Replaced(2, 3, "UNAVAILABLE", "not now"))
        channel.send(Replaced(1, 3))
        channel.send(Replaced(3, 3))  # nobody's
        assert await first == 3  # as many as there are by now
        with pytest.raises(ServingError, match="not now"):
            await second
        channel.close()
        await ended

    asyncio.run(main())


def test_what_is_left_of_a_long_record_is_not_copied() -> None:
    """The files of a model that is loaded go to all replicas: 100 MB of them took 9 s, the rest was copied after each piece."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        channel = Channel(asyncio.get_running_loop(), ours, lambda record: None, lambda: None)
        channel.send(Wanted(1, "t", b"x" * 4_000_000))
        (first, _), seen = channel._waiting[0], set()
        while channel._waiting:
            rest, _ = channel._waiting[0]
            assert rest.obj is first.obj
            seen.add(len(rest))
            await asyncio.get_running_loop().sock_recv(theirs, 1_000_000)
            await asyncio.sleep(0)
        assert len(seen) > 2, "it went in pieces"
        channel.close()
        theirs.close()

    asyncio.run(main())

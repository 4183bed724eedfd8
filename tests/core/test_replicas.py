"""The supervisor of a group of replicas: its rule of restarts; its decisions on virtual time, over processes that are none."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from virtual import run

from kernel.cli import group
from kernel.cli.group_flags import replicas, usable_cores
from kernel.replicas import Role, Supervisor
from kernel.replicas.channel import Channel
from kernel.replicas.messages import Bind, Bound, Loaded, Message, Now, Open, Opened
from kernel.replicas.ports import Ports
from kernel.replicas.restart import FIRST_SECONDS, LONGEST_SECONDS, STEADY_SECONDS, Backoff

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
        self.signals: list[signal.Signals] = []
        self.alive = True
        self._on_exit = on_exit

    def send(self, record: Message, sockets: Sequence[socket.socket] = ()) -> None:
        self.records.append(record)

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

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
    """A supervisor over fake processes."""

    def __init__(self, count: int, refuse: int = 0) -> None:
        self.processes: list[FakeProcess] = []
        self.ports = FakePorts()
        self.refuse = refuse  # so many starts fail
        self.started = asyncio.Event()  # there is another process
        self.loop = asyncio.get_running_loop()
        self.supervisor = Supervisor(self.loop, count, self.start, self.ports, LIMIT)  # type: ignore[arg-type]
        self.supervisor.begin()

    def start(self, index: int, speaks: bool, *told: Any) -> FakeProcess:
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
    own = usable_cores(tmp_path / "absent")
    assert own >= 1 and replicas("3") == 3 and replicas("auto") >= 1
    quota = tmp_path / "cpu.max"
    for text, wanted in (("max 100000", own), ("100000 100000", 1), ("10000 100000", 1), ("nonsense", own), ("1e9 1", own)):
        quota.write_text(text)
        assert usable_cores(quota) == wanted


def test_a_role_comes_through_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    role = Role(2, 4, 17, True)
    assert Role.parse(str(role)) == role
    arguments = ["repository/", "--replicas", "4"]
    monkeypatch.setattr(group.sys, "orig_argv", ["python", "-X", "dev", "-m", "kernel", "serve", *arguments])
    monkeypatch.setattr(group.sys, "executable", "/bin/python")
    wanted = ["/bin/python", "-X", "dev", "-m", "kernel", "serve", *arguments, f"--replica={role}"]
    assert group._command(arguments, role) == wanted
    assert group._command(["x"], role) == ["/bin/python", "-P", "-m", "kernel", "serve", "x", f"--replica={role}"]

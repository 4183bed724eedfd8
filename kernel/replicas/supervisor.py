"""The life of a group: the first replica loads, then the others, then all open; who dies begins anew; one end for all.

Knows processes by a protocol, and time by the loop. Every decision is made here, on the loop, when something is told: a record
has come, a process has ended, a timer has gone off, a signal. The first replica loads alone, so that what can't be loaded is told
once.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from kernel.replicas.messages import (
    Ask,
    Bind,
    Bound,
    Leave,
    Loaded,
    Message,
    Now,
    Open,
    Opened,
    OthersReady,
    Ready,
    Told,
)
from kernel.replicas.ports import Ports
from kernel.replicas.questions import Questions
from kernel.replicas.restart import Backoff

__all__ = ["Process", "Start", "Supervisor"]

log = logging.getLogger("kernel.serve")

#: How long a replica that was told to end at once may take.
HURRY_SECONDS = 1.5

#: How long a replica may live without its end of the channel.
DEAF_SECONDS = 1.0


class Process(Protocol):
    """A replica's process, which has been started."""

    pid: int

    def send(self, record: Message, sockets: Sequence[socket.socket] = ()) -> None:
        """Send it a record; one that has gone gets none."""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; one that has gone gets none."""


class Start(Protocol):
    """Starts processes."""

    def __call__(
        self, index: int, speaks: bool, on_message: Callable[[Message], None], on_deaf: Callable[[], None],
        on_exit: Callable[[int], None],
    ) -> Process:  # fmt: skip
        """Start replica `index`. `speaks`: it tells what is the same for all. What is given is called on the loop, never before
        this returns: `on_message(record)`; `on_deaf()`, when the channel has ended; `on_exit(status)`, once, as of Popen.
        Raises OSError.
        """


class State(enum.Enum):
    """How far a replica has come."""

    STARTING = enum.auto()
    LOADED = enum.auto()
    OPENING = enum.auto()
    OPEN = enum.auto()
    LEAVING = enum.auto()


class Replica:
    """One process, from its start to its end."""

    def __init__(self, index: int, began: float) -> None:
        self.index = index
        self.began = began
        self.process: Process
        self.state = State.STARTING
        self.opened_at: float | None = None
        self.replaces: Replica | None = None  # who leaves when this one is open
        self.ready = True  # as far as it has said
        self.others_ready = True  # as far as it was told

    def send(self, record: Message) -> None:
        """Send it a record; one that has gone gets none."""
        self.process.send(record)

    def __str__(self) -> str:
        return f"replica {self.index} (process {self.process.pid})"


class Supervisor:
    """A group of `count` replicas. `start` starts a process; `ports` has the sockets. `limit`: how many seconds a stop may take
    before processes are killed. `served`: set once all are open for the first time. `done`: the exit status, once all is over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int, start: Start, ports: Ports, limit: float) -> None:
        self.count = count
        self.served: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[int] = loop.create_future()
        self._loop = loop
        self._start = start
        self._ports = ports
        self._limit = limit
        self._alive: list[Replica] = []
        self._backoffs = [Backoff() for _ in range(count)]
        self._restarts: dict[int, asyncio.TimerHandle] = {}  # those who are to begin anew, by index
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions: Questions[Replica] = Questions()
        self._serving = False  # all have been open
        self._reloading: list[int] = []  # who are still to be replaced, by index
        self._stopping = False
        self._status = 0

    # -- the start -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first replica."""
        self._launch(0, speaks=True)

    def _launch(self, index: int, speaks: bool = False, replaces: Replica | None = None) -> None:
        self._restarts.pop(index, None)
        replica = Replica(index, self._loop.time())
        replica.replaces = replaces
        try:
            told, deaf, ended = (partial(each, replica) for each in (self._told, self._deaf, self._ended))
            replica.process = self._start(index, speaks, told, deaf, ended)
        except OSError as error:
            log.error("replica %d can't be started: %s", index, error)
            if replaces is None:
                self._not_started(index)
            else:
                self._not_replaced(replaces)
            return
        self._alive.append(replica)

    def _told(self, replica: Replica, record: Message) -> None:
        if isinstance(record, Bind):
            task = self._loop.create_task(self._bind(replica, record))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(record, Loaded):
            replica.state = State.LOADED
            self._loaded(replica)
        elif isinstance(record, Opened):
            replica.state = State.OPEN
            replica.opened_at = self._loop.time()
            self._opened(replica)
            self._tell_ready()
        elif isinstance(record, Ask):
            there = [one for one in self._alive if one.state not in (State.STARTING, State.LEAVING)]
            self._questions.ask(replica, record, there)
        elif isinstance(record, Told):
            self._questions.told(replica, record)
        elif isinstance(record, Ready):
            replica.ready = record.ready
            self._tell_ready()

    async def _bind(self, replica: Replica, wanted: Bind) -> None:
        try:
            sockets = await self._ports.sockets(wanted)
            replica.process.send(Bound(wanted.id, len(sockets)), sockets)
        except OSError as error:
            # What Listener has put into words has no `strerror`.
            replica.process.send(Bound(wanted.id, 0, error.strerror or str(error), error.errno or 0))

    def _loaded(self, replica: Replica) -> None:
        if self._stopping:
            return
        if self._serving:
            self._questions.catch_up(replica, partial(self._open, replica))
        elif replica.index == 0 and self.count > len(self._alive):
            for index in range(1, self.count):
                self._launch(index)
        if not self._serving and len(self._alive) == self.count and all(one.state is State.LOADED for one in self._alive):
            self._serving = True
            for one in self._alive:
                self._open(one)

    def _tell_ready(self) -> None:
        """Tell each replica whether all others that serve are ready, where that has changed."""
        for replica in self._alive:
            others = [one for one in self._alive if one is not replica and one.state is State.OPEN]
            ready = all(one.ready for one in others)
            if ready is not replica.others_ready:
                replica.others_ready = ready
                replica.send(OthersReady(ready))

    def _open(self, replica: Replica) -> None:
        if replica not in self._alive or self._stopping:
            return  # it has ended meanwhile
        replica.state = State.OPENING
        replica.process.send(Open())

    def _opened(self, replica: Replica) -> None:
        log.info("%s serves, %.1f s after its start", replica, self._loop.time() - replica.began)
        if replica.replaces is not None:
            self._leave(replica.replaces)
            replica.replaces = None
        if not self._stopping and not self.served.done() and all(one.state is State.OPEN for one in self._alive):
            self.served.set_result(None)

    # -- the end of one ------------------------------------------------------------------------------------------------

    def _deaf(self, replica: Replica) -> None:
        """A process without a channel knows nothing of the others any more; that of one that ends comes to its end, too."""

        def end() -> None:
            if replica in self._alive and not self._stopping:
                log.error("%s has lost its channel to the supervisor, as code of a model may have closed it", replica)
                replica.process.signal(signal.SIGTERM)

        self._loop.call_later(DEAF_SECONDS, end)

    def _ended(self, replica: Replica, status: int) -> None:
        self._alive.remove(replica)
        self._questions.gone(replica)
        self._tell_ready()
        successor = next((one for one in self._alive if one.replaces is replica), None)
        if self._stopping:
            self._status = self._status or int(status != 0)
            if status < 0:
                log.error("%s was ended by %s", replica, _cause(status))
            self._over()
        elif replica.state is State.LEAVING:
            log.log(logging.ERROR if status else logging.INFO, "%s has left: %s", replica, _cause(status))
            self._replace_next()
        elif replica.replaces is not None:
            log.error("%s has ended before it served: %s", replica, _cause(status))
            self._not_replaced(replica.replaces)
        elif successor is not None:
            log.error("%s has ended: %s; what it had in flight is lost, and its successor comes anyway", replica, _cause(status))
            successor.replaces = None
            self._reloading.clear()
        elif not self._serving:
            if status <= 0:  # else it has said why
                log.error("%s has ended before it served: %s", replica, _cause(status))
            self._not_started(replica.index)
        else:
            served = 0.0 if replica.opened_at is None else max(self._loop.time() - replica.opened_at, 1e-9)
            delay = self._backoffs[replica.index].delay(served)
            when = f"in {delay:.1f} s" if delay else "now"
            log.error("%s has ended: %s; what it had in flight is lost, and it begins anew %s", replica, _cause(status), when)
            self._restarts[replica.index] = self._loop.call_later(delay, self._launch, replica.index)

    def _not_started(self, index: int) -> None:
        """A replica couldn't be had: at the start that ends all, later it is tried again."""
        if self._serving:
            delay = self._backoffs[index].delay(0.0)
            self._restarts[index] = self._loop.call_later(delay, self._launch, index)
        else:
            self._status = 1
            self.stop()

    # -- one after another ---------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Replace all replicas, one after another: each leaves when its successor serves. What is under way then begins anew."""
        if not self.served.done() or self._stopping:
            log.warning("replicas are not replaced: they have not all served yet, or are about to end")
            return
        under_way = bool(self._reloading) or any(one.state is State.LEAVING or one.replaces for one in self._alive)
        self._reloading = list(range(self.count))
        log.info("%d replicas are replaced, one after another", self.count)
        if not under_way:
            self._replace_next()

    def _replace_next(self) -> None:
        while self._reloading:
            index = self._reloading.pop(0)
            old = next((one for one in self._alive if one.index == index and one.state is State.OPEN), None)
            if old is not None:  # else it begins anew at the moment
                self._launch(index, replaces=old)
                return

    def _leave(self, replica: Replica) -> None:
        replica.state = State.LEAVING
        replica.send(Leave())

    def _not_replaced(self, old: Replica) -> None:
        self._reloading.clear()
        log.error("%s goes on, and so do those after it: its successor has not come up", old)

    # -- the end of all ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End all replicas, each as `kernel serve` ends: not ready, then closed, then empty. Does nothing the second time."""
        if self._stopping:
            return
        self._stopping = True
        self._ports.let_go()
        for timer in self._restarts.values():
            timer.cancel()
        self.pass_on(signal.SIGTERM)
        self._loop.call_later(self._limit, self._kill)
        self._over()

    def hurry(self) -> None:
        """End all replicas at once, after `stop`."""
        self._status = 1
        for replica in self._alive:
            replica.process.send(Now())
        self._loop.call_later(HURRY_SECONDS, self._kill)

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to every replica."""
        for replica in self._alive:
            replica.process.signal(number)

    def _kill(self) -> None:
        for replica in self._alive:
            log.error("%s has not ended in time, and is killed", replica)
            self._status = 1
        self.pass_on(signal.SIGKILL)

    def _over(self) -> None:
        if not self._alive and not self.done.done():
            self._ports.close()
            self.done.set_result(self._status)


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"

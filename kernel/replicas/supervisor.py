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
    Ready,
    Replace,
    Replaced,
    Told,
)
from kernel.replicas.ports import Ports
from kernel.replicas.pulse import LOOKS, Pulse
from kernel.replicas.questions import Questions
from kernel.replicas.restart import QUIET_SECONDS, Backoff
from kernel.replicas.scaling import LOOK_SECONDS, GroupScaling
from kernel.rules import ScaleRule

__all__ = ["Process", "Start", "Starter", "Supervisor", "cause"]

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

    def is_stopped(self) -> bool:
        """Whether it was stopped, as by SIGSTOP."""


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


class Starter(Start, Protocol):
    """Starts replicas, and may have a process ready that becomes one."""

    def prepare(self, modules: Sequence[str]) -> None:
        """Get a process ready, which imports and calls these, as Prepare says, unless there is one."""

    def drop(self) -> None:
        """Have none ready any more."""

    def look(self) -> None:
        """See whether the one that is ready is still there. Called regularly."""


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
        self.pulse = Pulse()
        self.ready = True  # as far as it has said
        self.others_ready = True  # as far as it was told
        self.number: Number | None = None  # likewise

    def send(self, record: Message) -> None:
        """Send it a record; one that has gone gets none."""
        self.process.send(record)

    def __str__(self) -> str:
        return f"replica {self.index} (process {self.process.pid})"


class Supervisor:
    """A group of `count` replicas. `start` starts processes; `ports` has the sockets. `limit`: how many seconds a stop may take
    before processes are killed; `hang`: after how many without a sign of life a replica is, 0.0 for never. `rule`: by which the
    number follows the load from then on, None where it doesn't. `served`: set once all are open for the first time. `done`: the
    exit status, once all is over.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, count: int, start: Starter, ports: Ports, limit: float, hang: float = 0.0,
        rule: ScaleRule | None = None,
    ) -> None:  # fmt: skip
        self.count = count
        self.served: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[int] = loop.create_future()
        self._loop = loop
        self._start = start
        self._ports = ports
        self._limit = limit
        self._hang = hang
        self._scaling = None if rule is None else GroupScaling(rule, loop.time())
        self._alive: list[Replica] = []
        self._backoffs = [Backoff() for _ in range(count)]
        self._restarts: dict[int, asyncio.TimerHandle] = {}  # those who are to begin anew, by index
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions: Questions[Replica] = Questions()
        self._serving = False  # all have been open
        self._reloading: list[int] = []  # who are still to be replaced, by index
        self._coming: Replica | None = None  # who is about to replace one
        self._asked: tuple[Replica, int] | None = None  # who has asked for that, and is told what becomes of it
        self._modules: Sequence[str] = ()  # what a spare is to import
        self._ahead: set[str] = set()  # and to call
        self._quiet: asyncio.TimerHandle | None = None  # until when nothing must happen before there is a spare
        self._stopping = False
        self._status = 0

    # -- the start -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first replica."""
        self._launch(0, speaks=True)
        if self._hang:
            self._loop.call_later(self._hang / LOOKS, self._look)

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
                self._not_replaced(index)
            return
        self._alive.append(replica)
        if replaces is not None:
            self._coming = replica

    def _told(self, replica: Replica, record: Message) -> None:
        replica.pulse.heard()
        if isinstance(record, Bind):
            task = self._loop.create_task(self._bind(replica, record))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(record, Loaded):
            replica.state = State.LOADED
            self._modules = record.modules or self._modules
            self._ahead.update(record.ahead)
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
        elif isinstance(record, Replace):
            self._reload_asked(replica, record.id)
        elif isinstance(record, Load):
            if self._scaling is not None:
                self._scaling.heard(replica, record)
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
        for other in self._alive:
            if other.state not in (State.STARTING, State.LOADED):
                self._introduce(replica, other)
        replica.state = State.OPENING
        replica.process.send(Open())

    def _introduce(self, one: Replica, other: Replica) -> None:
        """Give two replicas a channel of their own, by which they hand requests over."""
        try:
            left, right = socket.socketpair()
            with left, right:
                one.process.send(Meet(other.index, str(other.process.pid), str(one.process.pid)), [left])
                other.process.send(Meet(one.index, str(one.process.pid), str(other.process.pid)), [right])
        except OSError as error:
            log.warning("%s and %s can't hand requests over to each other: %s", one, other, error)

    def _opened(self, replica: Replica) -> None:
        log.info("%s serves, %.1f s after its start", replica, self._loop.time() - replica.began)
        if replica is self._coming:
            self._coming = None
            old, replica.replaces = replica.replaces, None
            if old is None:
                self._replace_next()
            else:
                if self._asked is not None and self._asked[0] is old:
                    self._tell_asked()
                self._leave(old)
        if not self._stopping and not self.served.done() and all(one.state is State.OPEN for one in self._alive):
            self.served.set_result(None)
            if self._scaling is not None:
                self._scale(self._scaling)
        if replica.index >= self.count:  # there are to be fewer since it was started
            self._leave(replica)
        self._prepare_when_quiet()

    def _prepare_when_quiet(self) -> None:
        """Have a spare in a while, if all serve until then."""
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = self._loop.call_later(QUIET_SECONDS, self._prepare)

    def _prepare(self) -> None:
        self._quiet = None
        steady = not (self._stopping or self._reloading or self._coming) and len(self._alive) == self.count
        if steady and all(one.state is State.OPEN for one in self._alive):
            self._start.prepare([*self._modules, *sorted(self._ahead)])

    # -- how many ------------------------------------------------------------------------------------------------------

    def _scale(self, scaling: GroupScaling) -> None:
        """Look how many replicas there are to be, tell them, and see to it; again and again."""
        if self._stopping:
            return
        serving = [one for one in self._alive if one.state is State.OPEN and one.index < self.count]
        wanted = scaling.look(serving, self._loop.time())
        for replica in serving:
            if replica.number != scaling.told:
                replica.number = scaling.told
                replica.send(scaling.told)
        if wanted != self.count and self._coming is None and not self._reloading:  # else once all are replaced
            self._resize(wanted, scaling.told.reason)
        self._loop.call_later(LOOK_SECONDS, self._scale, scaling)

    def _resize(self, count: int, reason: str) -> None:
        """Have so many replicas from now on: start further ones, or have those of the highest numbers leave."""
        log.info("there are to be %d replicas, %d were (%s)", count, self.count, reason)
        before, self.count = self.count, count
        self._backoffs += [Backoff() for _ in range(len(self._backoffs), count)]
        for index in range(before, count):
            self._launch(index)
        for index in [index for index in self._restarts if index >= count]:
            self._restarts.pop(index).cancel()
        for replica in self._alive:
            if replica.index >= count and replica.state is State.OPEN:
                self._leave(replica)

    # -- who hangs -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Give up who gives no sign of life: its clients would wait for ever, and so would what concerns all."""
        for replica in self._alive:
            stopped = replica.process.is_stopped()
            if replica.pulse.is_given_up(excused=replica.state is State.STARTING and not stopped):
                found = "it was stopped" if stopped else "its loop is held"
                log.error("%s has given no sign of life for %g s, as %s: it is killed", replica, self._hang, found)
                replica.process.signal(signal.SIGKILL)
            else:
                replica.send(Ping())
        self._start.look()
        self._loop.call_later(self._hang / LOOKS, self._look)

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
        if self._asked is not None and self._asked[0] is replica:
            self._asked = None
        if self._stopping:
            self._status = self._status or int(status != 0)
            if status < 0:
                log.error("%s was ended by %s", replica, cause(status))
            self._over()
        elif replica.state is State.LEAVING:
            log.log(logging.ERROR if status else logging.INFO, "%s has left: %s", replica, cause(status))
            self._replace_next()
        elif replica is self._coming:
            log.error("%s has ended before it served: %s", replica, cause(status))
            self._not_replaced(replica.index)
            if replica.replaces is None:  # nobody serves in its place
                self._not_started(replica.index)
        elif self._coming is not None and self._coming.replaces is replica:
            log.error("%s has ended: %s; what it had in flight is lost, and its successor comes anyway", replica, cause(status))
            self._coming.replaces = None
        elif replica.index >= self.count:
            log.error("%s has ended: %s; there are to be fewer, and it does not begin anew", replica, cause(status))
        elif not self._serving or not (self.served.done() or replica.opened_at):  # as a port can't be had after all
            if status <= 0:  # else it has said why
                log.error("%s has ended before it served: %s", replica, cause(status))
            self._not_started(replica.index)
        else:
            self._begin_anew(replica, status)

    def _begin_anew(self, replica: Replica, status: int) -> None:
        served = 0.0 if replica.opened_at is None else max(self._loop.time() - replica.opened_at, 1e-9)
        delay = self._backoffs[replica.index].delay(served)
        when = f"in {delay:.1f} s" if delay else "now"
        how = f"before it served: {cause(status)}" if not served else f"{cause(status)}; what it had in flight is lost"
        if served and status == 0:  # somebody else has sent it SIGTERM
            log.warning("%s was stopped by somebody else, and has finished what it had; it begins anew %s", replica, when)
        else:
            log.error("%s has ended: %s, and it begins anew %s", replica, how, when)
        self._restarts[replica.index] = self._loop.call_later(delay, self._launch, replica.index)

    def _not_started(self, index: int) -> None:
        """A replica couldn't be had: at the start that ends all, later it is tried again."""
        if self.served.done():
            delay = self._backoffs[index].delay(0.0)
            self._restarts[index] = self._loop.call_later(delay, self._launch, index)
        else:
            self._status = 1
            self.stop()

    # -- one after another ---------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Replace all replicas, one after another: each leaves when its successor serves. What is under way then begins anew."""
        why = self._not_now()
        if why:
            log.warning("replicas are not replaced: %s", why)
        else:
            self._reload()

    def _reload_asked(self, origin: Replica, number: int) -> None:
        """Replace all for who asks for it, whose turn is the last: it has to tell its client."""
        why = self._not_now()
        if not why and (self._reloading or self._coming is not None or origin.state is not State.OPEN):
            why = f"they are being replaced at the moment, and {len(self._reloading)} more come after the one that is loading"
        if why:
            origin.send(Replaced(number, self.count, "UNAVAILABLE", f"replicas are not replaced: {why}"))
            return
        self._asked = origin, number
        self._reload()

    def _not_now(self) -> str:
        """Return why replicas can't be replaced, "" where they can."""
        return "" if self.served.done() and not self._stopping else "they have not all served yet, or are about to end"

    def _reload(self) -> None:
        self._reloading = list(range(self.count))
        if self._asked is not None:
            self._reloading.append(self._reloading.pop(self._asked[0].index))
        log.info("%d replicas are replaced, one after another", self.count)
        self._start.drop()  # it has what lay on the disk before
        self._replace_next()

    def _replace_next(self) -> None:
        """Replace the next one, unless something is under way that is followed by it."""
        if self._coming is not None or any(one.state is State.LEAVING for one in self._alive):
            return
        while self._reloading and not self._stopping:
            index = self._reloading.pop(0)
            old = next((one for one in self._alive if one.index == index and one.state is State.OPEN), None)
            if old is not None:  # else it begins anew at the moment
                self._launch(index, replaces=old)
                return
        self._prepare_when_quiet()

    def _leave(self, replica: Replica) -> None:
        replica.state = State.LEAVING
        replica.send(Leave())

    def _not_replaced(self, index: int) -> None:
        left = ", ".join(map(str, [index, *self._reloading]))
        self._reloading.clear()
        self._coming = None
        words = f"the successor of replica {index} has not come up, so these of {self.count} replicas are not replaced: {left}"
        log.error("%s", words)
        self._tell_asked("UNAVAILABLE", f"{words}; the log says why")
        self._prepare_when_quiet()

    def _tell_asked(self, code: str = "", message: str = "") -> None:
        if self._asked is not None:
            (origin, number), self._asked = self._asked, None
            origin.send(Replaced(number, self.count, code, message))

    # -- the end of all ------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End all replicas, each as `kernel serve` ends: not ready, then closed, then empty. Does nothing the second time."""
        if self._stopping:
            return
        self._stopping = True
        self._tell_asked("UNAVAILABLE", "the server stops")
        self._start.drop()
        self._ports.let_go()
        for timer in self._restarts.values():
            timer.cancel()
        self.pass_on(signal.SIGTERM)
        for replica in self._alive:
            if replica.process.is_stopped():  # it would heed that only then
                replica.process.signal(signal.SIGCONT)
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


def cause(status: int) -> str:
    """Return how a process has ended, in words. `status`: as of Popen."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"

"""The spare: a process with all of the server imported, no models and no role, which takes the place of a replica that has died.

Half a second of the processor's time goes into the interpreter and its imports, more than loading small models takes; who dies
under load would wait for that twice. A process that forks replicas instead would share its memory with them, but must not have
threads, which numpy starts as it is imported; and all replicas would draw the same random numbers. One spare is enough: a second
death within the time that the next one takes is begun anew from nothing, as without. What else a replica would wait for, such as
the process that those of models are forked from, the spare starts beforehand, where a replica has it. Whoever is to have what
lies on the disk today, as the successors of a reload, is begun anew from nothing, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kernel.replicas.channel import receive, transmit
from kernel.replicas.member import Role
from kernel.replicas.messages import Become, Message, Ping, Pong, Prepare, Waiting
from kernel.replicas.pulse import Pulse
from kernel.replicas.restart import QUIET_SECONDS, Backoff
from kernel.replicas.supervisor import Process, Start, cause

__all__ = ["SPARE", "Spares", "take_place"]

log = logging.getLogger("kernel.serve")

#: The index of who has none yet.
SPARE = -1


@dataclass(slots=True)
class _Callbacks:
    """What the supervisor wants to be told of a replica."""

    on_message: Callable[[Message], None]
    on_deaf: Callable[[], None]
    on_exit: Callable[[int], None]


@dataclass(slots=True, eq=False)
class _Spare:
    """A process that was started as a spare. `callbacks`: of the replica that it has become, None before."""

    began: float
    process: Process = field(init=False)
    pulse: Pulse = field(default_factory=Pulse)
    waits: bool = False  # it has said so
    callbacks: _Callbacks | None = None


class Spares:
    """Starts replicas, and keeps one process ahead once it was told to `prepare`, where one is `wanted`. `start` starts
    processes from nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Start, wanted: bool = True) -> None:
        self._loop = loop
        self._wanted = wanted
        self._start = start
        self._spare: _Spare | None = None
        self._backoff = Backoff()
        self._again: asyncio.TimerHandle | None = None

    def __call__(
        self, index: int, speaks: bool, on_message: Callable[[Message], None], on_deaf: Callable[[], None],
        on_exit: Callable[[int], None],
    ) -> Process:  # fmt: skip
        """As Start; the spare is taken, where there is one."""
        spare = self._spare
        if spare is not None and spare.process.is_stopped():
            self._give_up(spare)
            spare = None
        if spare is None:
            return self._start(index, speaks, on_message, on_deaf, on_exit)
        self._spare = None
        spare.callbacks = _Callbacks(on_message, on_deaf, on_exit)
        spare.process.send(Become(index))
        return spare.process

    def prepare(self, modules: Sequence[str]) -> None:
        """Have a spare, which imports and calls these, as Prepare says, unless there is one."""
        if not self._wanted or self._spare is not None or self._again is not None:
            return
        spare = _Spare(self._loop.time())
        told, deaf, ended = (partial(each, spare) for each in (self._told, self._deaf, self._ended))
        try:
            spare.process = self._start(SPARE, False, told, deaf, partial(ended, modules))
        except OSError as error:
            log.warning("no spare can be started: %s", error)
            self._prepare_later(0.0, modules)
            return
        self._spare = spare
        spare.process.send(Prepare([*modules]))

    def drop(self) -> None:
        """Have none any more."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._spare is not None:
            self._spare.process.signal(signal.SIGKILL)  # it has nothing that would have to be ended
            self._spare = None

    def look(self) -> None:
        """Give up one that has stopped; called regularly."""
        spare = self._spare
        if spare is None:
            return
        if spare.pulse.is_given_up(excused=not (spare.waits or spare.process.is_stopped())):
            self._give_up(spare)
        else:
            spare.process.send(Ping())

    def _give_up(self, spare: _Spare) -> None:
        log.warning("the spare (process %d) gives no sign of life, as if it had been stopped, and is killed", spare.process.pid)
        spare.process.signal(signal.SIGKILL)

    def _told(self, spare: _Spare, record: Message) -> None:
        spare.pulse.heard()
        if spare.callbacks is not None:
            spare.callbacks.on_message(record)
        elif isinstance(record, Waiting):
            spare.waits = True
            seconds = self._loop.time() - spare.began
            log.info("a spare (process %d) waits for a replica's place, %.1f s after its start", spare.process.pid, seconds)

    def _deaf(self, spare: _Spare) -> None:
        if spare.callbacks is not None:
            spare.callbacks.on_deaf()

    def _ended(self, spare: _Spare, modules: Sequence[str], status: int) -> None:
        if spare.callbacks is not None:
            spare.callbacks.on_exit(status)
        elif spare is self._spare:
            self._spare = None
            log.warning("the spare (process %d) has ended: %s; another one comes", spare.process.pid, cause(status))
            self._prepare_later(self._loop.time() - spare.began if spare.waits else 0.0, modules)

    def _prepare_later(self, lived: float, modules: Sequence[str]) -> None:
        def prepare() -> None:
            self._again = None
            self.prepare(modules)

        self._again = self._loop.call_later(max(QUIET_SECONDS, self._backoff.delay(lived)), prepare)


# -- the process itself ------------------------------------------------------------------------------------------------


def take_place(role: Role) -> Role:
    """Wait, as a spare, for a replica's place, and return its role. Ends the process when the supervisor has gone."""
    sock = socket.socket(fileno=role.descriptor)
    with contextlib.suppress(OSError):  # the supervisor has gone
        while (record := receive(sock)) is not None:
            if isinstance(record, Become):
                sock.detach()
                return replace(role, index=record.index)
            if isinstance(record, Prepare):
                for name in record.modules:
                    with contextlib.suppress(Exception):  # whoever needs it finds that out again
                        module, _, function = name.partition(":")
                        found = importlib.import_module(module)
                        if function:
                            getattr(found, function)()
                transmit(sock, Waiting())
            elif isinstance(record, Ping):
                transmit(sock, Pong())
    sock.close()
    sys.exit(0)

"""The replica's side: which it is, and what it and the supervisor tell each other.

A replica without its supervisor ends: it was to be one of several, and nobody would begin it anew, or end it.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from kernel.forking import guard, put_away
from kernel.frontends import Endpoint
from kernel.replicas.channel import Channel
from kernel.replicas.messages import Bind, Bound, Loaded, Message, Now, Open, Opened

__all__ = ["Member", "Role", "end_with_parent"]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Role:
    """Replica `index` of `count`. `descriptor`: of its end of the channel. `speaks`: it tells what is the same for all."""

    index: int
    count: int
    descriptor: int
    speaks: bool

    def __str__(self) -> str:
        return f"{self.index},{self.count},{self.descriptor},{int(self.speaks)}"

    @classmethod
    def parse(cls, text: str) -> Role:
        """Read what `str` has written. Raises ValueError."""
        index, count, descriptor, speaks = map(int, text.split(","))
        return cls(index, count, descriptor, bool(speaks))


class Member:
    """A replica's connection to its supervisor, from now on. On `loop`.

    `on_end()`: the supervisor has gone. `on_now()`: the end is to come at once.

    The core's own: `forked`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, role: Role, on_end: Callable[[], None], on_now: Callable[[], None]
    ) -> None:
        self.role = role
        self._loop = loop
        self._on_now = on_now
        self._open: asyncio.Future[None] = loop.create_future()
        self._binding: dict[int, asyncio.Future[list[socket.socket]]] = {}
        sock = socket.socket(fileno=role.descriptor)
        sock.set_inheritable(False)
        self._channel = Channel(loop, sock, self._told, on_end)
        guard(self)

    async def bind(self, service: str, endpoint: Endpoint, reuse_port: bool) -> list[socket.socket]:
        """Return the group's sockets of an endpoint, bound. Raises OSError as `Listener.reserve` does."""
        number = len(self._binding)
        bound: asyncio.Future[list[socket.socket]] = self._loop.create_future()
        self._binding[number] = bound
        self._channel.send(Bind(number, service, endpoint.written, endpoint.port, reuse_port))
        return await bound

    async def loaded(self) -> None:
        """Tell that all models are there; return when connections may be accepted."""
        self._channel.send(Loaded())
        await self._open

    def opened(self) -> None:
        """Tell that connections are accepted."""
        self._channel.send(Opened())

    def forked(self) -> None:
        """In a child that model code has forked: it is no replica."""
        put_away(self.role.descriptor)

    def _told(self, record: Message) -> None:
        if isinstance(record, Bound):
            bound = self._binding[record.id]
            if record.sockets:
                sockets = self._channel.taken(record.sockets)
                if bound.done():  # nobody waits any more
                    for one in sockets:
                        one.close()
                else:
                    bound.set_result(sockets)
            elif not bound.done():
                error = OSError(record.error)
                error.errno = record.errno or None
                bound.set_exception(error)
        elif isinstance(record, Open):
            if not self._open.done():
                self._open.set_result(None)
        elif isinstance(record, Now):
            self._on_now()


def end_with_parent() -> None:
    """Have the system send SIGTERM to this process when its parent ends, however that ends; where the system has that."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (AttributeError, OSError):
        return

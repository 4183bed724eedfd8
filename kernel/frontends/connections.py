"""What front ends that listen on a socket have in common: their open connections, the one timer that looks at these, the end.

Knows nothing of what is spoken on a connection. Everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from kernel.frontends.crowds import Access, Crowd
from kernel.frontends.listening import Bind, Listener
from kernel.interfaces import Host

__all__ = ["Connections", "ListeningFrontend", "peer_name"]

#: How many connections are looked at in one turn of the loop.
AT_ONCE = 512


class _Connection(Protocol):
    """What a connection can be told, and asked."""

    @property
    def busy(self) -> bool:
        """Whether something is under way on it that its client waits for."""

    def retire(self) -> None:
        """Let the client know, as far as that can be said, that it should go on elsewhere; serve it as before."""

    def drain(self) -> None:
        """Take nothing new, and close once what runs is over."""

    def abort(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=_Connection)


class Connections(Generic[C]):
    """The open connections of one front end. `retiring`: each of them should end soon, and is served until then. `refusing`:
    nobody listens any more. `draining`: no further work is taken.

    `loop`: the kernel's. `crowd`: those of all front ends (`Kernel.memory.crowd`), None where nobody counts. `now`: the clock
    by which they are looked at, every `seconds` while there are any. A connection has `busy`, `retire()`, `drain()` and
    `abort()`, which are called as the methods here are. A front end derives from this class, and writes `look_at`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float], seconds: float, crowd: Crowd | None = None
    ) -> None:
        self.now = now
        self.connections: set[C] = set()
        self.retiring = False
        self.refusing = False
        self.draining = False
        self._crowd = crowd
        self._loop = loop
        self._seconds = seconds
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    def opened(self, connection: C, transport: Any = None) -> Access:
        """Note a connection that a client has made, and say what it is let in for; one that is refused is to be aborted.

        `transport`: its, which says who it is; None: it is let in.
        """
        if self._crowd is not None and transport is not None:
            access = self._crowd.enter(connection, transport)
            if access is Access.REFUSED:
                return access
        else:
            access = Access.SERVED
        self.connections.add(connection)
        if self.refusing:  # it was accepted before, and is begun now
            self._loop.call_soon(connection.drain if self.draining else connection.retire)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._seconds, self._sweep)
        return access

    def closed(self, connection: C) -> None:
        """Note that a connection has come to its end."""
        self.connections.discard(connection)
        if self._crowd is not None:
            self._crowd.leave(connection)
        if not self.connections:
            if self._sweeper is not None:
                self._sweeper.cancel()
                self._sweeper = None
            if self._empty is not None and not self._empty.done():
                self._empty.set_result(None)

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(self._seconds, self._sweep)
        self.sweep(self.now())

    def sweep(self, now: float) -> None:
        """Look at all connections, some in a turn of the loop. `now`: a moment of the clock that was given."""
        self._look_at_some(list(self.connections), now)

    def _look_at_some(self, left: list[C], now: float) -> None:
        for connection in left[-AT_ONCE:]:
            if connection in self.connections:
                self.look_at(connection, now)
        del left[-AT_ONCE:]
        if left:
            self._loop.call_soon(self._look_at_some, left, now)

    def look_at(self, connection: C, now: float) -> None:
        """Do to a connection what time asks for. `now`: a moment, in seconds, of the clock that was given."""
        raise NotImplementedError

    def retire(self) -> None:
        """Tell the clients to go on elsewhere."""
        self.retiring = True
        for connection in list(self.connections):
            connection.retire()

    @property
    def busy(self) -> bool:
        """Whether a client waits for something."""
        return any(connection.busy for connection in self.connections)

    async def drain(self) -> None:
        """Have each connection finish what runs and close; return when none is left."""
        self.retiring = self.refusing = self.draining = True
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._empty = self._loop.create_future()
            await self._empty

    def abort(self) -> None:
        """Tear down every connection."""
        for connection in list(self.connections):
            connection.abort()


class ListeningFrontend:
    """A Frontend of `kernel` on a `listener`. `connections`: those that are open. `make`: the protocol object of a new one,
    which tells `connections` of itself; `scheme`: of its address. `open_to_all`: clients of other machines may change what is
    served, and nobody has been told to keep them from it.
    """

    def __init__(
        self,
        kernel: Host,
        listener: Listener,
        connections: Connections[C],
        make: Callable[[], asyncio.BaseProtocol],
        scheme: str,
        *,
        open_to_all: bool = False,
    ) -> None:
        self.open_to_all = open_to_all
        self._kernel = kernel
        self._listener = listener
        self._connections = connections
        self._make = make
        self._scheme = scheme

    async def reserve(self, bind: Bind | None = None) -> None:
        """Take the endpoint, at which nobody is listened to yet. Raises OSError as `start` does. `bind`: who binds instead."""
        await self._listener.reserve(self._kernel.loop, bind)

    async def start(self) -> None:
        """Listen. Raises OSError, in the reference's words when the endpoint is taken."""
        await self._listener.start(self._kernel.loop, self._make)

    def retire(self) -> None:
        """Have clients go on elsewhere: answers say so. All are served as before, also those that still come."""
        self._connections.retire()

    def refuse(self) -> None:
        """Stop listening."""
        self._listener.close()
        if self._connections.retiring:
            self._connections.refusing = True
            self._connections.retire()  # again, for those that were made since the first time

    @property
    def busy(self) -> bool:
        """Whether a client waits for something."""
        return self._connections.busy

    @property
    def connected(self) -> bool:
        """Whether any client is, or will be in a moment."""
        return bool(self._connections.connections) or self._listener.beginning

    async def drain(self) -> None:
        """Stop listening, finish what is in flight, close the connections; returns when none is left."""
        self._listener.close()
        await self._connections.drain()

    async def stop(self) -> None:
        """Close everything at once."""
        self._listener.close()
        self._connections.abort()

    @property
    def address(self) -> str:
        """Such as `http://0.0.0.0:8000`, or `grpc://unix:/run/kernel.sock`."""
        return f"{self._scheme}://{self._listener.endpoint}"


def peer_name(peer: object) -> str:
    """Return what a transport's `peername` says for people; of a Unix socket that is nothing."""
    if isinstance(peer, tuple) and len(peer) >= 2:
        host, port = peer[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(peer) if peer else "by a Unix socket"

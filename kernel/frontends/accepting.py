"""Accepts connections at a socket at which other processes accept, too: few at a time, so that each has a share of what comes.

Whoever accepts until nobody waits has them all, as it was the first to wake up, and half of what a client's pool sends would have
to be handed over. So one is accepted, after a millisecond two, then four, for as long as more wait: others have that time to
take some, and a thousand that come together are there in a dozen milliseconds all the same. Who is busy comes later, and has
fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

__all__ = ["SharedAcceptor"]

log = logging.getLogger("kernel")

#: How long others have after some were accepted, and how many are accepted at once at most.
PAUSE_SECONDS = 0.001
MOST = 128

#: How long nobody is accepted where the system has no room for one more.
NO_ROOM_SECONDS = 1.0


class SharedAcceptor:
    """Accepts at `sock`, which listens and is ours from now on. `factory`, `tls`, `handshake`: as of `loop.create_server`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        handshake: float | None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._factory = factory
        self._tls, self._handshake = tls, handshake
        self._count = 1  # how many are accepted next
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        loop.add_reader(sock, self._accept)

    @property
    def beginning(self) -> bool:
        """Whether a connection is accepted whose protocol object is not made yet."""
        return bool(self._tasks)

    def close(self) -> None:
        """Accept no more; what is accepted begins."""
        if self._timer is None:
            self._loop.remove_reader(self._sock)
        else:
            self._timer.cancel()
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(self._count):
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._count = 1
                if self._timer is not None:
                    self._timer = None
                    self._loop.add_reader(self._sock, self._accept)
                return
            except OSError as error:  # no descriptor, no memory
                log.error("a connection can't be accepted: %s; it is tried again in %.0f s", error, NO_ROOM_SECONDS)
                self._pause(NO_ROOM_SECONDS)
                return
            task = self._loop.create_task(self._begin(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._count = min(2 * self._count, MOST)
        self._pause(PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        if self._timer is None:
            self._loop.remove_reader(self._sock)
        self._timer = self._loop.call_later(seconds, self._accept)

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._tls, ssl_handshake_timeout=self._handshake
            )
        except (OSError, ssl.SSLError):  # it has gone, or can't shake hands
            with contextlib.suppress(OSError):
                connection.close()

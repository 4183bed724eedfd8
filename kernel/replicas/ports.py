"""Where the group listens: each endpoint is bound once, when the first replica asks for it, and shared with all others.

Nobody listens at a socket before a replica does. What stays open while any process has it is the same socket for all of them: who
has connected and was not accepted when one replica ends is accepted by another.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence

from kernel.frontends import Endpoint, Listener
from kernel.replicas.messages import Bind

__all__ = ["Ports"]

Key = tuple[str, str, int]


class Ports:
    """The listening sockets of a group, bound on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: dict[Key, Listener] = {}
        self._closed = False

    async def sockets(self, wanted: Bind) -> Sequence[socket.socket]:
        """Return the sockets of an endpoint, which stay ours. Raises OSError in the words of `Listener.reserve`."""
        key = (wanted.service, wanted.address, wanted.port)
        listener = self._listeners.get(key)
        if listener is None:
            listener = Listener(Endpoint(wanted.address, wanted.port), wanted.service, reuse_port=wanted.reuse_port)
            await listener.reserve(self._loop)
            self._listeners[key] = listener
        if self._closed:
            raise OSError(errno.ECANCELED, "the server stops")
        return listener.sockets

    def let_go(self) -> None:
        """Leave the sockets to the replicas: whoever connects when the last of them has closed its own is refused."""
        self._closed = True
        for listener in self._listeners.values():
            for one in listener.sockets:
                one.close()

    def close(self) -> None:
        """Close everything, and take away the files of Unix sockets."""
        self._closed = True
        for listener in self._listeners.values():
            listener.close()

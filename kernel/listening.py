"""Where a front end listens: a TCP port, or a Unix-domain socket (`unix:/path`), with TLS or without.

A socket's file that nobody listens on any more is replaced, one that is in use is refused, and our own is taken away at the end.
Knows nothing of what is spoken there. Problems are OSErrors whose text is ready for the log.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress

from kernel.forking import guard, put_away_sockets

__all__ = ["Listener", "Place"]

#: Connections that may wait to be accepted.
BACKLOG = 1024

#: How long a TLS handshake may take.
HANDSHAKE_SECONDS = 30.0

#: Who may connect to the socket: whoever may write to its file.
MODE = 0o660

UNIX = "unix:"


class Place:
    """An address and a port. `address`: of an interface, or `unix:/path`, which needs no port."""

    def __init__(self, address: str, port: int) -> None:
        self.path = address.removeprefix(UNIX) if address.startswith(UNIX) else ""
        self.host = address
        self.port = port

    def __str__(self) -> str:
        if self.path:
            return f"{UNIX}{self.path}"
        return f"{self.host}:{self.port}"

    @property
    def netloc(self) -> str:
        """The place as a URL has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host and not self.path else str(self)


class Listener:
    """Accepts connections from `start` to `close`. `place.port` is the real one once it has started.

    `service`: what the reference calls it in its words, such as "HTTP".
    """

    def __init__(
        self, place: Place, service: str, *, reuse_port: bool = False, tls: ssl.SSLContext | None = None
    ) -> None:
        self.place = place
        self._service = service
        self._reuse_port = reuse_port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._inode: tuple[int, int] | None = None  # of our socket's file
        self._names: list[object] = []  # of our sockets, and of the connections that they have accepted

    async def start(self, loop: asyncio.AbstractEventLoop, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Listen. Raises OSError, in the reference's words when the place is taken."""
        handshake = HANDSHAKE_SECONDS if self._tls is not None else None
        place = self.place
        try:
            if place.path:
                sock = self._bound(place.path)
                self._server = await loop.create_unix_server(
                    factory, sock=sock, backlog=BACKLOG, ssl=self._tls, ssl_handshake_timeout=handshake
                )
            else:
                self._server = await loop.create_server(
                    factory,
                    place.host,
                    place.port,
                    reuse_port=self._reuse_port or None,
                    backlog=BACKLOG,
                    ssl=self._tls,
                    ssl_handshake_timeout=handshake,
                )
                place.port = self._server.sockets[0].getsockname()[1]
            self._names = [sock.getsockname() for sock in self._server.sockets]
            guard(self)
        except UnicodeError as error:  # a host that no name server could be asked for
            raise self._failure(f"can't listen on '{place}': {error}") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason = f"Socket '{place}' already in use "
            else:
                cause = error.strerror or str(error)
                if error.errno and not isinstance(error, socket.gaierror):  # the resolver's numbers are its own
                    cause = os.strerror(error.errno)  # shorter than asyncio's
                reason = f"can't listen on '{place}': {cause}"
            failure = self._failure(reason)
            failure.errno = error.errno
            raise failure from error

    def _failure(self, reason: str) -> OSError:
        return OSError(f"failed to start {self._service} service: Unavailable - {reason}")

    def close(self) -> None:
        """Accept no more. Does nothing the second time."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        inode, self._inode = self._inode, None
        with suppress(OSError):
            if inode is not None and inode == _inode(self.place.path):
                os.unlink(self.place.path)

    def forked(self) -> None:
        """In a child, which would keep the place from the next server, and connections from their end."""
        put_away_sockets(self._names)

    def _bound(self, path: str) -> socket.socket:
        """Return a socket that is bound to `path` and doesn't listen yet."""
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.bind(path)
            self._inode = _inode(path)
            os.chmod(path, MODE)
        except BaseException:
            sock.close()
            raise
        return sock


def _inode(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _remove_stale(path: str) -> None:
    """Take away a socket's file that a server has left behind. Raises OSError where somebody listens, or it is no socket's."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError("there is a file of this name that is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # somebody listens, and is busy
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

"""Where a front end listens: a TCP port, or a Unix-domain socket (`unix:/path`), with TLS or without.

An endpoint may have several addresses (every interface: one of IPv4, one of IPv6); they share one port. One of a family that the
machine doesn't have is left out, as long as another is left. A socket's file that nobody listens on any more is replaced, one
that is in use is refused, and our own is taken away at the end. Knows nothing of what is spoken there. Problems are OSErrors
whose text is ready for the log.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from kernel.forking import guard, put_away_sockets
from kernel.frontends.accepting import SharedAcceptor
from kernel.frontends.addresses import Address, read_address
from kernel.frontends.restriction import is_local
from kernel.frontends.tls import Decrypted, RenewedContext

__all__ = ["Bind", "Endpoint", "Listener"]

#: Connections that may wait to be accepted.
BACKLOG = 1024

#: How long a TLS handshake may take.
HANDSHAKE_SECONDS = 30.0

#: How often it is looked whether the files of a certificate have changed.
RENEW_SECONDS = 30.0

#: Who may connect to the socket: whoever may write to its file.
MODE = 0o660

UNIX = "unix:"

#: What a bind says where the machine has no such family, or no such address.
ABSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)

#: How many free ports are tried, where any will do, until one is free at all addresses.
ATTEMPTS = 16

FAMILIES = {0: socket.AF_UNSPEC, 4: socket.AF_INET, 6: socket.AF_INET6}

#: A socket's family and what it is bound to.
Target = tuple[int, tuple[Any, ...]]


class Endpoint:
    """An address and a port. `address`: of an interface, as `127.0.0.1`, `[::1]` or `0.0.0.0` (every one, of both families), or
    `unix:/path`, which needs no port. `port`: 0 for any that is free.

    Raises ValueError for what is no address.
    """

    def __init__(self, address: str, port: int) -> None:
        self.written = address
        self.path = address.removeprefix(UNIX) if address.startswith(UNIX) else ""
        self.address = Address("") if self.path else read_address(address)
        self.port = port

    @property
    def is_public(self) -> bool:
        """Whether clients of other machines may reach it, as far as the address says."""
        return not (self.path or self.address.host == "localhost" or is_local((self.address.host,)))

    def __str__(self) -> str:
        """The endpoint as a URL has it."""
        return f"{UNIX}{self.path}" if self.path else self.address.with_port(self.port)


#: `bind(service, endpoint, reuse_port)` returns sockets that are bound to an endpoint. Raises OSError.
Bind = Callable[[str, Endpoint, bool], Awaitable[list[socket.socket]]]


class Listener:
    """Accepts connections at an `endpoint` from `start` to `close`. `endpoint.port` is the real one once it has started.

    `service`: what the reference calls it in its words, such as "HTTP". `reuse_port`: other processes may listen at the port,
    too. `tls`: the context of TLS, None for none.

    The core's own: `forked`.
    """

    def __init__(
        self, endpoint: Endpoint, service: str, *, reuse_port: bool = False, tls: ssl.SSLContext | None = None
    ) -> None:
        self.endpoint = endpoint
        self._service = service
        self._reuse_port = reuse_port
        self._tls = tls
        self._servers: list[asyncio.Server | SharedAcceptor] = []
        self._acceptors: list[SharedAcceptor] = []  # also when nobody listens any more
        self._shared = False  # others accept at our sockets, too
        self._renewing: asyncio.TimerHandle | None = None
        self._sockets: list[socket.socket] = []  # bound, and not listened at yet
        self._inode: tuple[int, int] | None = None  # of our socket's file
        self._names: list[object] = []  # of our sockets, and of the connections that they have accepted

    @property
    def beginning(self) -> bool:
        """Whether a connection is accepted whose protocol object is not made yet, as far as that is known."""
        return any(acceptor.beginning for acceptor in self._acceptors)

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """Those that are bound, and not listened at yet."""
        return self._sockets

    async def reserve(self, loop: asyncio.AbstractEventLoop, bind: Bind | None = None) -> None:
        """Bind, and don't listen yet: who comes is refused, and nobody else gets the endpoint. Raises OSError as `start` does.

        `bind`: who binds instead, and owns the file of a Unix socket; its errors are passed on as they are.
        """
        endpoint = self.endpoint
        with self._in_words() if bind is None else nullcontext():
            if bind is not None:
                self._sockets = await bind(self._service, endpoint, self._reuse_port)
                self._shared = True
            elif endpoint.path:
                self._sockets = [self._bound(endpoint.path)]
            else:
                self._sockets = _bound_together(await _targets(endpoint, loop), endpoint.port, self._reuse_port)
            if not endpoint.path:
                endpoint.port = self._sockets[0].getsockname()[1]
            self._names = [sock.getsockname() for sock in self._sockets]
            guard(self)

    async def start(self, loop: asyncio.AbstractEventLoop, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Listen. Raises OSError, in the reference's words when the endpoint is taken."""
        if not self._sockets:
            await self.reserve(loop)
        sockets, self._sockets = self._sockets, []
        with self._in_words():
            await self._listen(loop, factory, sockets)
        self._renew(loop)

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look from time to time whether there is another certificate."""
        if isinstance(self._tls, RenewedContext) and self._servers:
            self._tls.renew()
            self._renewing = loop.call_later(RENEW_SECONDS, self._renew, loop)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Put what goes wrong into the reference's words."""
        endpoint = self.endpoint
        try:
            yield
        except UnicodeError as error:  # a host that no name server could be asked for
            raise self._failure(f"can't listen on '{endpoint}': {error}") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason = f"Socket '{endpoint}' already in use "
            else:
                cause = error.strerror or str(error)
                if error.errno and not isinstance(error, socket.gaierror):  # the resolver's numbers are its own
                    cause = os.strerror(error.errno)  # shorter than asyncio's
                reason = f"can't listen on '{endpoint}': {cause}"
            failure = self._failure(reason)
            failure.errno = error.errno
            raise failure from error

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, factory: Callable[[], asyncio.BaseProtocol], sockets: Sequence[socket.socket]
    ) -> None:
        """Accept what comes at sockets that are bound; where one can't be listened at, all are closed."""
        handshake = HANDSHAKE_SECONDS if self._tls is not None else None
        make: Any = loop.create_unix_server if self.endpoint.path else loop.create_server
        if self._tls is not None:
            plain = factory

            def factory() -> asyncio.BaseProtocol:
                protocol = plain()
                return Decrypted(protocol) if isinstance(protocol, asyncio.BufferedProtocol) else protocol

        try:
            for sock in sockets:
                # Another server may have bound the same endpoint before either listened; uvloop raises nothing then.
                sock.listen(BACKLOG)
                if self._shared:
                    acceptor = SharedAcceptor(loop, sock, factory, self._tls, handshake)
                    self._acceptors.append(acceptor)
                    self._servers.append(acceptor)
                    continue
                self._servers.append(
                    await make(factory, sock=sock, backlog=BACKLOG, ssl=self._tls, ssl_handshake_timeout=handshake)
                )
        except BaseException:
            for sock in sockets[len(self._servers) :]:
                sock.close()
            self.close()
            raise

    def _failure(self, reason: str) -> OSError:
        return OSError(f"failed to start {self._service} service: Unavailable - {reason}")

    def close(self) -> None:
        """Accept no more. Does nothing the second time."""
        if self._renewing is not None:
            self._renewing.cancel()
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            sock.close()
        inode, self._inode = self._inode, None
        with suppress(OSError):
            if inode is not None and inode == _inode(self.endpoint.path):
                os.unlink(self.endpoint.path)

    def forked(self) -> None:
        """In a child, which would keep the endpoint from the next server, and connections from their end."""
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


async def _targets(endpoint: Endpoint, loop: asyncio.AbstractEventLoop) -> Sequence[Target]:
    """Return what an endpoint's address stands for. Raises OSError where it is a name that nobody knows."""
    host, version = endpoint.address
    if endpoint.address.everywhere:
        return [(socket.AF_INET, ("0.0.0.0", 0)), (socket.AF_INET6, ("::", 0))]
    family, kind = FAMILIES[version], socket.SOCK_STREAM
    try:
        found: Any = socket.getaddrinfo(host, 0, family, kind, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):  # a name, for which the resolver may have to ask others
        found = await loop.getaddrinfo(host, 0, family=family, type=kind, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((one[0], one[4]) for one in found))


def _bound_together(targets: Sequence[Target], port: int, reuse_port: bool) -> list[socket.socket]:
    """Return sockets bound to one port at all addresses that there are; to any port that is free at all of them where it is 0."""
    for attempt in range(ATTEMPTS):
        try:
            return _bound_to_all(targets, port, reuse_port)
        except OSError as error:
            if port or error.errno != errno.EADDRINUSE or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _bound_to_all(targets: Sequence[Target], port: int, reuse_port: bool) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in targets:
            try:
                sockets.append(_bound_to(family, (address[0], port, *address[2:]), reuse_port))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                absent = error
                continue
            port = sockets[0].getsockname()[1]
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise absent or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return sockets


def _bound_to(family: int, address: tuple[Any, ...], reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        sock.bind(address)
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

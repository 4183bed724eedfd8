"""How many connections clients may have, of all front ends together and of one address; and since when one has been idle.

Descriptors are kept back: when connections have taken the others, who comes may still ask for health, and the log says what to
do.
"""

from __future__ import annotations

import enum
import logging
import resource
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Access", "Crowd", "idle_seconds"]

log = logging.getLogger(__name__)

#: How many descriptors are kept back; the last of them for the server itself, which opens files, too.
KEPT = 32
LAST = 8

#: How many connections may ask for health where there are as many as there may be.
PROBES = 16

#: How often the log tells of it, in seconds.
TELL_SECONDS = 60.0

#: Where `struct tcp_info` of Linux has the milliseconds since the last data came, and how much of it is read; bytes.
_LAST_DATA = 52
_INFO_SIZE = 104


class Access(enum.Enum):
    """What a new connection is let in for."""

    SERVED = "served"
    PROBES = "probes"  # health alone
    REFUSED = "refused"


class Crowd:
    """The connections of all front ends of a kernel (`Kernel.memory.crowd`). `most`: how many connections there may be,
    `most_of_one`: how many of one address; 0: as many as there are descriptors. `files`: how many descriptors there may be,
    None: as the system says. `now`: the clock, in seconds, by which the log is not flooded.
    """

    def __init__(
        self, most: int = 0, most_of_one: int = 0, files: int | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if files is None else files
        self._now = now
        self._addresses: dict[object, str] = {}  # by connection
        self._of_one: dict[str, int] = {}
        self._told: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def enter(self, connection: object, transport: Any) -> Access:
        """Let a connection in. One that is not refused has to `leave`."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        access = self._access(address, transport.get_extra_info("socket"))
        if access is not Access.REFUSED:
            self._addresses[connection] = address
            self._of_one[address] = self._of_one.get(address, 0) + 1
        return access

    def leave(self, connection: object) -> None:
        """A connection has come to its end; nothing happens to one that was refused."""
        address = self._addresses.pop(connection, None)
        if address is None:
            return
        left = self._of_one[address] - 1
        if left:
            self._of_one[address] = left
        else:
            del self._of_one[address]

    def _access(self, address: str, sock: Any) -> Access:
        if self.most_of_one and address and self._of_one.get(address, 0) >= self.most_of_one:
            self._tell(
                f"{address} has {self.most_of_one} connections, as many as --max-connections-per-address allows; "
                "others from there are refused",
                "one",
            )
            return Access.REFUSED
        if self.most and len(self) >= self.most:
            self._tell(
                f"there are {len(self)} connections, as many as --max-connections allows; others may ask for health alone", "all"
            )
            return Access.PROBES if len(self) < self.most + PROBES else Access.REFUSED
        taken = sock.fileno() if sock is not None else -1
        if self.files > 2 * KEPT and taken >= self.files - KEPT:
            self._tell(
                f"nearly all of the {self.files} files that this process may have open are taken ({len(self)} connections of "
                "clients); others may ask for health alone. Raise the limit (ulimit -n, LimitNOFILE= of systemd), or set "
                "--max-connections, --max-connections-per-address or --http-idle-timeout",
                "files",
            )
            return Access.PROBES if taken < self.files - LAST else Access.REFUSED
        return Access.SERVED

    def _tell(self, message: str, kind: str) -> None:
        now = self._now()
        if now - self._told.get(kind, -TELL_SECONDS) >= TELL_SECONDS:
            self._told[kind] = now
            log.warning("%s", message)


def idle_seconds(transport: Any) -> float:
    """Return for how long nothing has come on a connection, as the system knows it; 0.0 where it doesn't say."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return 0.0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
        return float(struct.unpack_from("=I", info, _LAST_DATA)[0]) / 1000
    except (OSError, AttributeError, struct.error):  # a Unix-domain socket, another system
        return 0.0

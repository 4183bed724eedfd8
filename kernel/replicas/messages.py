"""What the supervisor and a replica say to each other: one record for each thing."""

from __future__ import annotations

import msgspec

__all__ = ["Bind", "Bound", "Loaded", "Message", "Now", "Open", "Opened"]


class Bind(msgspec.Struct, tag=True):
    """Replica: a front end wants to listen. `id` is its own, and comes back. Others as Endpoint and Listener say."""

    id: int
    service: str
    address: str
    port: int
    reuse_port: bool


class Bound(msgspec.Struct, tag=True):
    """Supervisor: so many sockets come along, or none and why. `errno`: 0 for none."""

    id: int
    sockets: int
    error: str = ""
    errno: int = 0


class Loaded(msgspec.Struct, tag=True):
    """Replica: all models are there that are to be at the start."""


class Open(msgspec.Struct, tag=True):
    """Supervisor: accept connections."""


class Opened(msgspec.Struct, tag=True):
    """Replica: connections are accepted."""


class Now(msgspec.Struct, tag=True):
    """Supervisor: whoever is still there ends at once."""


Message = Bind | Bound | Loaded | Open | Opened | Now

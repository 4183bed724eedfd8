"""How much memory front ends may hold for their clients: bytes that arrive or are unpacked, and bytes that wait to be sent.

One budget for the process, whatever wire they come on. Above it new work is refused, never what was accepted: who takes bytes for
something new asks, and is told no; what an accepted request needs is counted all the same. Only what is large is counted, so a
request as most are costs nothing; how much the others come to, the number of connections bounds. On the loop's thread: no lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kernel.errors import Code, ServingError
from kernel.frontends.crowds import Crowd

__all__ = ["Account", "MemoryBudget", "machine_memory", "machine_share"]

#: The part of the machine's memory that each direction may hold, where nobody says how much.
SHARE = 4

#: How many values of one request become objects, where nobody says how many.
VALUES = 1024 * 1024

#: Where a machine's size isn't known.
UNKNOWN = 4 * 1024**3

#: Where the kernel says what this process's group may use: control groups of version 2, and 1.
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Account:
    """One direction of the budget. `limit`, `used`: bytes. `refused`: how often somebody was told no. `flag`: sets the limit.

    Who takes bytes gives as many back, once.
    """

    __slots__ = ("_listeners", "_told", "flag", "limit", "refused", "used")

    def __init__(self, limit: int, flag: str) -> None:
        self.limit = limit
        self.flag = flag
        self.used = 0
        self.refused = 0
        self._listeners: list[Callable[[bool], None]] = []
        self._told = False  # the listeners know that it is full

    @property
    def full(self) -> bool:
        """Whether there is nothing left for anything new."""
        return self.used >= self.limit

    @property
    def left(self) -> int:
        """How many bytes there are left for anything new."""
        return max(0, self.limit - self.used)

    @property
    def pressed(self) -> bool:
        """Whether more than half is used, so that clients who are slow have to go first."""
        return 2 * self.used > self.limit

    def on_full(self, listener: Callable[[bool], None]) -> None:
        """Have `listener` told when it becomes full, and when a tenth of it is free again."""
        self._listeners.append(listener)

    def take(self, size: int) -> bool:
        """Take `size` bytes for something new. False, and nothing is taken: there are not so many left."""
        if self.used + size > self.limit:
            self.refused += 1
            return False
        self.used += size
        return True

    def add(self, size: int) -> None:
        """Count `size` bytes of something that was accepted, whether there are so many left or not."""
        self.used += size
        if self.used >= self.limit and not self._told:
            self._tell(True)

    def give_back(self, size: int) -> None:
        """`size` of the bytes that were taken or added are free again."""
        self.used -= size
        assert self.used >= 0, f"more bytes were given back to {self.flag} than were taken"
        if self._told and self.used <= self.limit * 0.9:
            self._tell(False)

    def _tell(self, full: bool) -> None:
        self._told = full
        for listener in self._listeners:
            listener(full)

    def refusal(self) -> ServingError:
        """Return the error for what is refused: HTTP's 503, gRPC's RESOURCE_EXHAUSTED."""
        return ServingError(
            Code.UNAVAILABLE,
            f"the server holds {self.used} of the {self.limit} bytes that {self.flag} allows for its clients; try again later",
        )


class MemoryBudget:
    """What all front ends of a kernel share (`Kernel.memory`). `receive`: bytes that arrive, are unpacked, or belong to a request
    that is not answered yet; `send`: bytes of answers that their clients have not taken yet.

    A limit of 0: a quarter of what this process may use of the machine's memory. `values`: how many objects may be made of one
    request: values of JSON, strings of tensors. Objects take far more memory than the bytes that they are made of, and time.
    `connections`: how many there may be, of all and of one address, 0 for no limit but that of descriptors; `crowd` counts them.
    """

    #: What a connection may hold of one message without being counted, in bytes.
    SMALL = 64 * 1024

    #: The most bytes, of shared memory or of a message, that a front end copies on the loop: what takes some milliseconds.
    COPIED = 8 * 1024 * 1024

    __slots__ = ("crowd", "receive", "send", "values")

    def __init__(self, receive: int = 0, send: int = 0, values: int = 0, connections: tuple[int, int] = (0, 0)) -> None:
        share = machine_share() if not (receive and send) else 0
        self.receive = Account(receive or share, "--memory-limit-receive")
        self.send = Account(send or share, "--memory-limit-send")
        self.values = values or VALUES
        self.crowd = Crowd(*connections)


def machine_share(processes: int = 1) -> int:
    """Return how many bytes each direction may hold by default, of each of so many processes that share the machine."""
    return machine_memory() // SHARE // processes


def machine_memory(cgroups: tuple[Path, ...] = CGROUPS) -> int:
    """Return how many bytes this process may use: what the machine has, or its control group's limit where that is less."""
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        size = 0
    found = size if size > 0 else UNKNOWN
    for path in cgroups:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) > 0:  # version 2 writes "max" where there is none, version 1 a huge number
            found = min(found, int(text))
    return found

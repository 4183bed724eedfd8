"""What all connections of one front end share: routes, heads seen before, the receive buffer, the one sweep timer.

One per front end and loop; everything here runs on the loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kernel import Connections
from kernel_http.connection import replies
from kernel_http.connection.exchange import ClientConnection, reply
from kernel_http.connection.heads import Forwarding, Head, HeadError, parse_head
from kernel_http.connection.outbox import Outbox
from kernel_http.connection.routes import Router
from kernel_http.connection.turns import QUANTUM, Receiving, Turns

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["IDLE_SECONDS", "MAX_MESSAGE_SIZE", "Server"]

#: Bounds of the memory of heads: how many, and how long one may be.
HEADS = 1024
HEAD_SIZE = 2048

#: The most fields that a head may have, and what it costs to learn one (turns.py).
MAX_FIELDS = 256
LEARNING = 3

#: The most that one read takes, in bytes, where it is not known what comes. What comes of a large body is copied out of this
#: buffer, the rest of it is received into memory of its own: a larger buffer would mean to copy more.
READ_SIZE = 64 * 1024

#: The largest body, all its parts counted; bytes. As large as a message of gRPC can be.
MAX_MESSAGE_SIZE = 2**31 - 1

#: A message that has begun must be complete within this many seconds; a large body must have grown by PROGRESS (arrival.py).
SLOW_CLIENT_SECONDS = 30.0
SWEEP_SECONDS = 1.0

#: How long a connection may be open without any request, by default.
IDLE_SECONDS = 600.0


class OpenConnection(Protocol):
    """What the server tells its connections, and asks them; Connection says what each is."""

    @property
    def busy(self) -> bool: ...

    def retire(self) -> None: ...

    def drain(self) -> None: ...

    def abort(self) -> None: ...

    def sweep(self, now: float, limit: float, /) -> None: ...


class Limits(NamedTuple):
    """What clients may take. `message`: the largest body, all its parts counted; `input`: the largest JSON part of one, or body
    without such; bytes. `slow`: how long a client may keep others waiting, `idle`: how long a connection may be idle (0: as long
    as it likes); seconds.
    """

    message: int
    input: int
    slow: float
    idle: float


class Server(Connections[OpenConnection], Turns):
    """The state shared by the connections of one front end."""

    def __init__(
        self,
        kernel: Kernel,
        router: Router,
        *,
        max_input_size: int,
        max_message_size: int = MAX_MESSAGE_SIZE,
        forward_pattern: str = "",
        slow_client_seconds: float = SLOW_CLIENT_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        Connections.__init__(self, kernel.loop, kernel.loop.time, SWEEP_SECONDS, kernel.memory.crowd)
        Turns.__init__(self, kernel.loop, kernel.clock)
        self.receiving = Receiving(kernel.loop, kernel.clock)
        self.kernel = kernel
        self.router = router
        message_size = min(max_message_size, kernel.memory.receive.limit)
        self.limits = Limits(message_size, max_input_size, slow_client_seconds, idle_seconds)
        kernel.memory.send.on_full(self._filled)
        self.outbox = Outbox(kernel.loop, self.spend)
        #: Every connection reads into this one; what is in it is used or copied before the next read.
        self.buffer = bytearray(READ_SIZE)
        self.view = memoryview(self.buffer)  # what transports are given: TLS slices it, and a bytearray's slice would be a copy
        self.heads: dict[bytes, Head] = {}
        self.refused_head = Head(b"")  # stands in the exchange of what is refused before it has a head
        self.refused_head.as_is = False
        self.refused_head.close = True
        self._forwarding = Forwarding(forward_pattern) if forward_pattern else None

    def _filled(self, full: bool) -> None:
        """Refuse requests to models where answers that nobody takes have used up the budget."""
        self.router.refuse(self._refuse_request if full else None)
        self.fill(full)

    def _refuse_request(self, connection: ClientConnection, head: Head, json: bytes, tail: Any) -> None:
        message = self.kernel.memory.send.refusal().message
        reply(connection, head, replies.error(503, message, json=False, headers=b"Retry-After: 1\r\n"))

    def limit_of(self, head: Head) -> int:
        """Return the largest JSON part, or body without one, that is kept of such a request."""
        return min(head.limit, self.limits.input)

    def too_long(self, length: int) -> str:
        """Say that a message is longer than any may be. `length`: of its body, in bytes."""
        return (
            f"the request's body has {length} bytes, more than the {self.limits.message} that --http-max-message-size and "
            "--memory-limit-receive allow"
        )

    def learn(self, block: bytes) -> Head:
        """Parse a head that isn't known yet, find its route and remember it. Raises HeadError."""
        fields = block.count(b"\n")
        self.units += LEARNING + fields // 4
        if self.units >= QUANTUM:
            self.spend(0)
        if fields > MAX_FIELDS:
            raise HeadError(431, f"the request's head has more than {MAX_FIELDS} fields")
        head = parse_head(block, self._forwarding)
        self.router.resolve(head)
        if head.limit > self.limits.input:
            head.limit = self.limits.input
        if len(block) <= HEAD_SIZE:
            if len(self.heads) >= HEADS:
                self.heads.clear()
            self.heads[block] = head
        else:
            self.spend(len(block) >> 10)
        return head

    def sweep(self, now: float) -> None:
        """Look at all connections."""
        self.ease()
        super().sweep(now)

    def look_at(self, connection: OpenConnection, now: float) -> None:
        """Cut off a client that is too slow."""
        connection.sweep(now, self.limits.slow)

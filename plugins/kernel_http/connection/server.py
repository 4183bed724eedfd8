"""What all connections of one front end share: routes, heads seen before, the receive buffer, the one sweep timer.

One per front end and loop; everything here runs on the loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel import Connections
from kernel_http.connection.heads import Forwarding, Head, parse_head
from kernel_http.connection.outbox import Outbox

if TYPE_CHECKING:
    from kernel import Kernel
    from kernel_http.connection.protocol import Connection
    from kernel_http.connection.routes import Router

__all__ = ["Server"]

#: Bounds of the memory of heads: how many, and how long one may be.
HEADS = 1024
HEAD_SIZE = 2048

#: What one read takes at most where it is not known what comes. Larger would only mean copying more of a large body.
READ_SIZE = 64 * 1024

#: A message that has begun must be complete within this many seconds, or, a body, grow on.
SLOW_CLIENT_SECONDS = 30.0
SWEEP_SECONDS = 1.0


class Server(Connections["Connection"]):
    """The state shared by the connections of one front end."""

    def __init__(
        self,
        kernel: Kernel,
        router: Router,
        *,
        max_input_size: int,
        forward_pattern: str = "",
        slow_client_seconds: float = SLOW_CLIENT_SECONDS,
    ) -> None:
        super().__init__(kernel.loop, kernel.loop.time, SWEEP_SECONDS)
        self.kernel = kernel
        self.router = router
        self.max_input_size = max_input_size
        self.outbox = Outbox(kernel.loop)
        #: Every connection reads into this one; what is in it is used or copied before the next read.
        self.buffer = bytearray(READ_SIZE)
        self.view = memoryview(self.buffer)  # TLS writes to slices of what it is given
        self.heads: dict[bytes, Head] = {}
        self.refused_head = Head(b"")
        self.refused_head.plain = False
        self.refused_head.close = True
        self._forwarding = Forwarding(forward_pattern) if forward_pattern else None
        self._slow_client_seconds = slow_client_seconds

    def learn(self, block: bytes) -> Head:
        """Parse a head that isn't known yet, find its route and remember it. Raises HeadError."""
        head = parse_head(block, self._forwarding)
        self.router.resolve(head)
        if len(block) <= HEAD_SIZE:
            if len(self.heads) >= HEADS:
                self.heads.clear()
            self.heads[block] = head
        return head

    def too_large(self, head: Head, length: int) -> str:
        """Say that a body exceeds `--http-max-input-size`; `length` is the whole body's."""
        limit = self.max_input_size
        if head.json_length == 0:
            text = f"Raw input has a byte_size ({length} bytes) that exceeds the maximum allowed value of {limit}"
        else:
            size = head.json_length if head.json_length is not None and 0 < head.json_length <= length else length
            text = f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit}"
        return f"{text} bytes. Use --http-max-input-size to increase the limit."

    def look_at(self, connection: Connection, now: float) -> None:
        """Cut off a client that is too slow."""
        connection.sweep(now, self._slow_client_seconds)

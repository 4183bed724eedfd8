"""What all connections of one front end share: routes, heads seen before, the receive buffer, the one sweep timer.

One per front end and loop; everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kernel_http.heads import Forwarding, Head, parse_head
from kernel_http.outbox import Outbox

if TYPE_CHECKING:
    from kernel import Kernel
    from kernel_http.protocol import Connection
    from kernel_http.routes import Router

__all__ = ["Server"]

#: Bounds of the memory of heads: how many, and how long one may be.
HEADS = 1024
HEAD_SIZE = 2048

#: What one read takes at most where it is not known what comes. Larger would only mean copying more of a large body.
READ_SIZE = 64 * 1024

#: A message that has begun must be complete within this many seconds, or, a body, grow on.
SLOW_CLIENT_SECONDS = 30.0
SWEEP_SECONDS = 1.0


class Server:
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
        self.kernel = kernel
        self.router = router
        self.max_input_size = max_input_size
        self.connections: set[Connection] = set()
        self.draining = False
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
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    def now(self) -> float:
        return self.kernel.loop.time()

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

    # --- connections

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self._sweeper is None:
            self._sweeper = self.kernel.loop.call_later(SWEEP_SECONDS, self._sweep)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            if self._sweeper is not None:
                self._sweeper.cancel()
                self._sweeper = None
            if self._empty is not None and not self._empty.done():
                self._empty.set_result(None)

    def _sweep(self) -> None:
        self._sweeper = self.kernel.loop.call_later(SWEEP_SECONDS, self._sweep)
        self.sweep(self.now())

    def sweep(self, now: float) -> None:
        """Cut off the clients that are too slow at `now`."""
        for connection in list(self.connections):
            connection.sweep(now, self._slow_client_seconds)

    async def drain(self) -> None:
        """Close each connection after the answers that it waits for; return when none is left."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            self._empty = self.kernel.loop.create_future()
            await self._empty

    def abort(self) -> None:
        """Tear down every connection."""
        for connection in list(self.connections):
            connection.abort()

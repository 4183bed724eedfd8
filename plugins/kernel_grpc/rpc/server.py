"""What all connections of one front end share: methods, heads seen before, the receive buffer, deadlines, the one sweep timer.

One per front end and loop; everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kernel import Connections
from kernel_grpc.http2 import Connection, Head, Stream
from kernel_grpc.rpc.deadlines import Deadlines
from kernel_grpc.rpc.keepalive import Keepalive
from kernel_grpc.rpc.meanings import Meanings
from kernel_grpc.rpc.metadata import Forwarding
from kernel_grpc.rpc.methods import Method

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["OpenCall", "Server"]

#: What one read takes at most where it does not go into a message directly.
READ_SIZE = 256 * 1024

#: Seconds between two looks at the connections, where no flag asks for more.
SWEEP = 1.0
FINEST_SWEEP = 0.01

#: `open_call(server, connection, stream_id, head, ended)` begins the call that a request asks for.
OpenCall = Callable[["Server", Connection, int, Head, bool], Stream]


class Served(Protocol):
    """One client's connection, as the server tells it what to do."""

    @property
    def busy(self) -> bool: ...

    def retire(self) -> None: ...

    def drain(self) -> None: ...

    def abort(self) -> None: ...

    def sweep(self, now: float) -> None:
        """Look what time does to the connection."""

    def end_turn(self) -> None:
        """Write what has waited for the end of this turn of the loop."""


class Server(Connections[Served]):
    """The state shared by the connections of one front end.

    `open`: opens the stream of a new request for http2, `open_call` with this server in front.
    """

    def __init__(
        self,
        kernel: Kernel,
        methods: Iterable[Method],
        open_call: OpenCall,
        *,
        keepalive: Keepalive | None = None,
        restrictions: Mapping[str, tuple[str, str]] | None = None,
        forward_pattern: str = "",
        compression: str = "none",
    ) -> None:
        """`restrictions`: category -> (key, value). `compression`: of inference responses, a key of LEVELS."""
        self.kernel = kernel
        self.open = partial(open_call, self)
        self.keepalive = keepalive or Keepalive()
        super().__init__(kernel.loop, kernel.clock, max(FINEST_SWEEP, min(SWEEP, self.keepalive.finest / 4)))
        self.meanings = Meanings(
            {method.path.encode(): method for method in methods},
            restrictions=restrictions,
            forwarding=Forwarding(forward_pattern) if forward_pattern else None,
            compression=compression,
        )
        self.deadlines = Deadlines(self._arm)
        #: Every connection reads into this one; what is in it is used or copied before the next read.
        self.view = memoryview(bytearray(READ_SIZE))
        self._scheduled: list[Served] = []
        self._timer: asyncio.TimerHandle | None = None

    # --- deadlines

    def _arm(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.kernel.loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.deadlines.expire(self.now())

    # --- the end of a turn

    def schedule(self, peer: Served) -> None:
        """Have what waits for `peer` written before this turn of the loop is over."""
        if not self._scheduled:
            self.kernel.loop.call_soon(self._end_turn)
        self._scheduled.append(peer)

    def _end_turn(self) -> None:
        scheduled, self._scheduled = self._scheduled, []
        for peer in scheduled:
            peer.end_turn()

    # --- connections

    def look_at(self, connection: Served, now: float) -> None:
        connection.sweep(now)

    def abort(self) -> None:
        super().abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

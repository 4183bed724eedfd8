"""What all connections of one front end share: methods, heads seen before, the receive buffer, deadlines, the one sweep timer.

One per front end and loop; everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kernel import Connections
from kernel_grpc.http2 import Connection, Head
from kernel_grpc.rpc.calls import Call
from kernel_grpc.rpc.deadlines import Deadlines
from kernel_grpc.rpc.keepalive import Keepalive
from kernel_grpc.rpc.meanings import Meaning, Meanings
from kernel_grpc.rpc.metadata import Forwarding
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.status import Status

if TYPE_CHECKING:
    from kernel import Kernel
    from kernel_grpc.rpc.protocol import Peer

__all__ = ["Server"]

#: What one read takes at most where it does not go into a message directly.
READ_SIZE = 256 * 1024

#: Seconds between two looks at the connections, where no flag asks for more.
SWEEP = 1.0
FINEST_SWEEP = 0.01

#: With this much waiting for one client, its new calls are refused.
MAX_QUEUED = 2 * 1024 * 1024 * 1024


class Server(Connections["Peer"]):
    """The state shared by the connections of one front end."""

    def __init__(
        self,
        kernel: Kernel,
        methods: Iterable[Method],
        *,
        keepalive: Keepalive | None = None,
        restrictions: Mapping[str, tuple[str, str]] | None = None,
        forward_pattern: str = "",
        compression: str = "none",
    ) -> None:
        """`restrictions`: category -> (key, value). `compression`: of inference responses, a key of LEVELS."""
        self.kernel = kernel
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
        self._refused = Meaning.refused(200, Status.RESOURCE_EXHAUSTED, f"more than {MAX_QUEUED} bytes wait for this client")
        self._scheduled: list[Peer] = []
        self._timer: asyncio.TimerHandle | None = None

    # --- calls

    def open(self, connection: Connection, id: int, head: Head, ended: bool) -> Call:
        """Begin the call that a request asks for; http2 calls this."""
        meaning = head.meaning
        if meaning is None:
            meaning = self.meanings(head)
        if connection.outgoing.queued > MAX_QUEUED:
            meaning = self._refused
        call = Call(self, connection, id, ended, head.content_length, meaning)
        if not meaning.plain:
            call.begin()
        return call

    def _arm(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.kernel.loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.deadlines.expire(self.now())

    # --- the end of a turn

    def schedule(self, peer: Peer) -> None:
        """Have what waits for `peer` written before this turn of the loop is over."""
        if not self._scheduled:
            self.kernel.loop.call_soon(self._end_turn)
        self._scheduled.append(peer)

    def _end_turn(self) -> None:
        scheduled, self._scheduled = self._scheduled, []
        for peer in scheduled:
            peer.end_turn()

    # --- connections

    def look_at(self, connection: Peer, now: float) -> None:
        connection.sweep(now)

    def abort(self) -> None:
        super().abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""What all connections of one front end share: methods, heads seen before, the receive buffer, deadlines, the one sweep timer.

One per front end and loop; everything here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kernel import Connections
from kernel_grpc.http2 import Connection, Head, Outgoing, Stream
from kernel_grpc.http2.connection import MAX_STREAMS
from kernel_grpc.rpc.deadlines import Deadlines
from kernel_grpc.rpc.keepalive import Keepalive
from kernel_grpc.rpc.limits import Limits
from kernel_grpc.rpc.meanings import Meanings
from kernel_grpc.rpc.metadata import Forwarding
from kernel_grpc.rpc.methods import Method
from kernel_grpc.rpc.turns import Turns

if TYPE_CHECKING:
    from kernel import Kernel

__all__ = ["OpenCall", "Server"]

#: Seconds between two looks at the connections, where no flag asks for more.
SWEEP = 1.0
FINEST_SWEEP = 0.01

#: Threads that unpack messages.
UNPACKERS = 2

#: With so many calls open, each connection begins no more than a FEW: a call takes a kilobyte from its first frame on.
CROWD = 200_000
FEW = 1000

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

    outgoing: Outgoing

    def limit_calls(self, most: int) -> None:
        """Have no more calls under way than `most`, but for those that are."""

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
        limits: Limits | None = None,
        meanings: Callable[..., Meanings] = Meanings,
    ) -> None:
        """`restrictions`: category -> (key, value). `compression`: of inference responses, a key of LEVELS."""
        self.kernel = kernel
        self.memory = kernel.memory
        self.limits = limits or Limits()
        #: The largest message that is taken: one that the process has no memory for is refused by its length.
        self.most = min(self.limits.message_size, self.memory.receive.limit)
        self.open = partial(open_call, self)
        self.keepalive = keepalive or Keepalive()
        super().__init__(kernel.loop, kernel.clock, max(FINEST_SWEEP, min(SWEEP, self.keepalive.finest / 4)), kernel.memory.crowd)
        self.meanings = meanings(
            {method.path.encode(): method for method in methods},
            restrictions=restrictions,
            forwarding=Forwarding(forward_pattern) if forward_pattern else None,
            compression=compression,
        )
        self.deadlines = Deadlines(self._arm)
        #: Few: what they copy holds the interpreter, for which the loop would have to wait.
        self.unpackers = ThreadPoolExecutor(UNPACKERS, thread_name_prefix="kernel-grpc-unpack")
        self.turns = Turns(kernel.loop, kernel.clock)
        self._scheduled: list[Served] = []
        self.crowded = False
        self._timer: asyncio.TimerHandle | None = None

    def note_refused(self, client: str, path: str, code: str, text: str) -> None:
        """Have it in the access log, where there is one, that something was refused that nobody could read."""
        access = self.kernel.log_settings.access
        if access is not None:
            access.refused(client, "GRPC", path, code, text)

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

    def sweep(self, now: float) -> None:
        """Look at all connections, and at how many calls they have together."""
        super().sweep(now)
        calls = sum(len(connection.outgoing.streams) for connection in self.connections)
        if self.crowded != (calls > (CROWD // 2 if self.crowded else CROWD)):
            self.crowded = not self.crowded
            for connection in self.connections:
                connection.limit_calls(FEW if self.crowded else MAX_STREAMS)

    def abort(self) -> None:
        super().abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

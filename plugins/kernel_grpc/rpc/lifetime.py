"""How a connection lives and ends: what it is waited for and how long, PINGs, age, the orderly close.

Looked at by the server's one sweep timer. A connection that ends has its last bytes sent first, and its client may read them
before the socket is torn down.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from kernel import MemoryBudget
from kernel_grpc.http2 import Connection, ErrorCode, Outgoing
from kernel_grpc.rpc.keepalive import Action, Keepalive, Pulse
from kernel_grpc.rpc.limits import Limits
from kernel_grpc.rpc.patience import HOG, LITTLE, MAX_WAITING, PATIENCE, Reading
from kernel_grpc.rpc.status import Status

if TYPE_CHECKING:
    from kernel_grpc.rpc.calls import Call

__all__ = ["Lifetime"]

log = logging.getLogger(__name__)

#: Seconds: for the client's preface and for its answer to our SETTINGS.
HANDSHAKE = 30.0

#: For its answer to the first GOAWAY of an orderly end.
GOODBYE = 1.0

#: For closing the connection, once all has been sent.
LINGER = 2.0

#: For taking a single byte of what is waiting for it.
STALLED = 120.0

PING = b"\x00alive?\x00"


class Lifetime:
    """The life of one connection, from `begin` on."""

    http: Connection
    outgoing: Outgoing  # of `http`
    transport: Any

    def begin(
        self,
        transport: Any,
        http: Connection,
        options: Keepalive,
        clock: Callable[[], float],
        limits: Limits,
        memory: MemoryBudget,
    ) -> None:
        now = clock()
        self.transport = transport
        self.http = http
        self.outgoing = http.outgoing
        self._clock = clock
        http.control.on_ping = self._on_ping
        http.control.on_pong = self._on_pong
        self._born = now
        self._pulse = Pulse(options, now, random.uniform(-0.1, 0.1))
        self._draining_since: float | None = None
        self._lingering = False  # all is said; what still comes is thrown away
        self._buffered = 0  # what the transport had not sent yet when it was looked at last
        self._idle_since = now  # since when it has sent nothing, although it should
        self._limits = limits
        self._memory = memory
        self._kept = 0  # what of `http.bodies.kept` is counted in the account
        self._called = now  # when a call was under way last
        self._looked = now  # when requests that don't come were looked for last
        self._old_id = 0  # the last call that had begun then
        self._reader = http.reading = Reading(now)
        self.outgoing.account = memory.send

    def flush(self) -> None:
        """Write what is there."""

    def retire(self, text: str = "the server is shutting down") -> None:
        """Let the calls that run finish, then close; the client begins no new ones here. `text`: why, for the client."""
        if self._draining_since is None:
            self._draining_since = self._clock()
            self.http.ending.drain(text)
            self.flush()
            self.close_if_over()

    def close_if_over(self) -> None:
        """Close once all is said. The client may still be sending: it is let read what it was sent (RFC 9113, section 5.4.1)."""
        ending = self.http.ending
        if self._lingering or not (ending.closed or ending.drained) or self.outgoing.out:
            return
        if ending.failure is not None:
            log.debug("a connection is closed with %s: %s", ending.failure[0].name, ending.failure[1])
        self._lingering = True
        ending.close()
        self._idle_since = self._clock()
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close at once: the calls end now, whenever the transport says so."""
        self.http.ending.lost()
        self.transport.abort()

    def limit_calls(self, most: int) -> None:
        """Have no more calls under way than `most`, but for those that are."""
        if self.http.history.final_id is None:
            self.http.history.limit = most

    # --- time

    def sweep(self, now: float) -> None:
        """Look what time does to this connection at `now`."""
        size = self.transport.get_write_buffer_size()
        if size < self._buffered or not (self._lingering or self.outgoing.held_up):
            self._idle_since = now
        self._buffered = size
        if now - self._idle_since >= (STALLED if size else LINGER):
            self.abort()
        elif not self.http.ending.closed:
            self._count_kept()
            self._look(now)
            self._look_at_reading(now)
            self._look_at_requests(now)
            if self.outgoing.out:
                self.flush()
            self.close_if_over()

    def _count_kept(self) -> None:
        """Count what held calls keep back; looked at now and then, as it is bounded by the windows."""
        kept, self._kept = self._kept, self.http.bodies.kept
        if self._kept > kept:
            self._memory.receive.add(self._kept - kept)
        else:
            self._memory.receive.give_back(kept - self._kept)

    def _look_at_reading(self, now: float) -> None:
        """End the connection of a client that does not take what waits for it: not at all, or too slowly for so much."""
        outgoing, limits, reading = self.outgoing, self._limits, self._reader
        queued, delivered = outgoing.queued, outgoing.delivered
        if not queued:
            reading.rest(delivered, now)
            return
        still = reading.still(delivered, now)
        slow = reading.is_slow(delivered, queued, now, limits.least_rate)
        patience = limits.send_timeout
        if queued > MAX_WAITING:
            patience = min(patience, HOG)
        if queued > 2 * limits.queue:
            patience = min(patience, PATIENCE)
        if queued > LITTLE and self._memory.send.full:
            patience = min(patience, PATIENCE)
        if still >= patience:
            text = f"nothing of the {queued} bytes that wait was read for {still:.0f} seconds"
        elif slow:
            text = f"{queued} bytes wait, and less than {limits.least_rate} a second are read"
        else:
            return
        self.http.ending.fail(ErrorCode.ENHANCE_YOUR_CALM, text)

    def _look_at_requests(self, now: float) -> None:
        """End the calls whose request does not come, and the connection that is not used."""
        limits, streams = self._limits, self.outgoing.streams
        if streams:
            self._called = now
        elif now - self._called >= limits.idle:
            self.retire("max_idle")
        if now - self._looked < limits.request_timeout:
            return
        least, self._looked = limits.least_rate * (now - self._looked), now
        old, self._old_id = self._old_id, self.http.history.last_id
        calls = cast("dict[int, Call]", streams)
        late = [call for id, call in calls.items() if call.is_late(least) and id <= old]  # all note how far they are
        for call in late:
            call.give_up(Status.DEADLINE_EXCEEDED, f"the request has not come within {limits.request_timeout:.0f} seconds")

    def _look(self, now: float) -> None:
        http, outgoing, ending = self.http, self.outgoing, self.http.ending
        if not http.control.acknowledged and now - self._born >= HANDSHAKE:
            if ending.greeted:
                ending.fail(ErrorCode.SETTINGS_TIMEOUT, f"no answer to SETTINGS within {HANDSHAKE:.0f} seconds")
            else:
                ending.fail(ErrorCode.PROTOCOL_ERROR, f"no connection preface within {HANDSHAKE:.0f} seconds")
            return
        if self._draining_since is not None and now - self._draining_since >= GOODBYE:
            ending.finish_drain()
        match self._pulse.beat(now, http.now, outgoing.sent, len(outgoing.streams)):
            case Action.PING:
                http.control.ping(PING)
            case Action.RETIRE:
                self.retire("max_age")
            case Action.CLOSE:
                log.debug("a client does not answer PINGs; its connection is closed")
                self.abort()
            case Action.END:
                ending.fail(ErrorCode.NO_ERROR, "max_age")

    def lost(self) -> None:
        """The connection has gone: what it held is free."""
        self._memory.receive.give_back(self._kept)
        self._kept = 0

    def _on_ping(self, now: float) -> None:
        outgoing = self.outgoing
        if not self._pulse.received_ping(now, outgoing.sent, len(outgoing.streams)):
            self.http.ending.fail(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def _on_pong(self, payload: bytes) -> None:
        if payload == PING:
            self._pulse.received_pong()

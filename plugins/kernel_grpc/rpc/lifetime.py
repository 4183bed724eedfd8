"""How a connection lives and ends: what it is waited for and how long, PINGs, age, the orderly close.

Looked at by the server's one sweep timer. A connection that ends has its last bytes sent first, and its client may read them
before the socket is torn down.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from kernel_grpc.http2 import Connection, ErrorCode, Outgoing
from kernel_grpc.rpc.keepalive import Action, Keepalive, Pulse

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

    def begin(self, transport: Any, http: Connection, options: Keepalive, clock: Callable[[], float]) -> None:
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
            self._look(now)
            if self.outgoing.out:
                self.flush()
            self.close_if_over()

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

    def _on_ping(self, now: float) -> None:
        outgoing = self.outgoing
        if not self._pulse.received_ping(now, outgoing.sent, len(outgoing.streams)):
            self.http.ending.fail(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")

    def _on_pong(self, payload: bytes) -> None:
        if payload == PING:
            self._pulse.received_pong()

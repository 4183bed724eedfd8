"""A connection to a far end on the loop: bytes between a transport and the client's side of HTTP/2, and the PINGs of its pulse.

Owns when is written: a call that is the only one at once, others together, in portions while a burst of them comes in and at the
end of the loop's turn. Knows no gRPC.
"""

from __future__ import annotations

import asyncio
import math
import os
from typing import Any, Protocol

from kernel_remote.client import ClientConnection
from kernel_remote.pulse import Action, Pulse
from kernel_remote.tls import cause_of

__all__ = ["CLOSED_BY_FAR_END", "Wire"]

CLOSED_BY_FAR_END = "has closed the connection"

#: Data of up to this size is written as one piece: joining it costs less than handing over many.
JOINED = 32 * 1024

#: So many pieces, which are requests, don't wait for the others of a burst. With those that are written at its end alone the far
#: end would have nothing to do while we make them, and we nothing while it answers.
PORTION = 8


class User(Protocol):
    """Who has made the connection, as it is told."""

    def changed(self, wire: Wire) -> None:
        """There may be room for further calls, none may be wanted any more, or a suspicion has begun or ended."""

    def lost(self, wire: Wire) -> None:
        """It has gone."""


class Wire(ClientConnection, asyncio.Protocol):
    """One connection."""

    def __init__(self, user: User, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        super().__init__(loop.time())
        self.pulse = Pulse(loop.time(), patience)
        self.lost = False
        self.user = user
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._later = False
        self.outgoing.on_output = self._output

    @property
    def healthy(self) -> bool:
        """Whether it may be given calls, now or when others have gone."""
        return self.usable and not self.pulse.suspect

    # --- the transport's calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.start()
        self.flush()

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        if self.pulse.heard(now) and self._timer is not None:
            self._timer.cancel()
            self._look()
        self.receive(data, now)
        self._after()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave(CLOSED_BY_FAR_END + (f" ({cause_of(error)})" if error else ""))

    def pause_writing(self) -> None:
        self.outgoing.hold_up(True)

    def resume_writing(self) -> None:
        self.outgoing.hold_up(False)
        self.flush()

    # --- what its user does

    def watch(self) -> None:
        """A call was begun: see to it that silence is noticed."""
        if self._timer is None:
            now = self._loop.time()
            self.pulse.begin(now)
            self._look_at(now)

    def left(self) -> None:
        if not self.lost:
            self.user.changed(self)

    def give_up(self, why: str) -> None:
        """End the connection at once, and with it what goes on."""
        if self.transport is not None:
            self.transport.abort()
        self._leave(why)

    # --- what comes in

    def _after(self) -> None:
        if self.outgoing.out:
            self.flush()
        ending = self.ending
        over = ending.closed or (ending.greeted and not self.usable and not self.outgoing.streams)
        if over and not self.lost:
            self.transport.close()
        elif self.later is not None and not self._later:
            self._later = True  # others have their turn first
            self.transport.pause_reading()
            self._loop.call_soon(self._go_on)
        self.user.changed(self)

    def _go_on(self) -> None:
        self._later = False
        if self.lost:
            return
        self.transport.resume_reading()
        self.go_on(self._loop.time())
        self._after()

    def _leave(self, why: str) -> None:
        if self.lost:
            return
        self.lost = True
        self.gone = why
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.user.lost(self)
        self.ending.lost()
        self.outgoing.out.clear()

    # --- what goes out

    def _output(self) -> None:
        outgoing = self.outgoing
        if len(outgoing.streams) < 2 or len(outgoing.out) >= PORTION:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write what may go, as long as the transport takes it."""
        outgoing = self.outgoing
        corked, outgoing.corked = outgoing.corked, True
        try:
            while not (outgoing.held_up or self.lost):
                if outgoing.can_pump:
                    outgoing.pump()
                if not outgoing.out:
                    break
                pieces, size = outgoing.take()
                if size <= JOINED:
                    self.transport.write(b"".join(pieces))
                else:
                    self.transport.writelines(pieces)
        finally:
            outgoing.corked = corked

    # --- silence

    def _look(self) -> None:
        self._timer = None
        self._look_at(self._loop.time())

    def _look_at(self, now: float) -> None:
        pulse = self.pulse
        action, again = pulse.look(now, bool(self.outgoing.streams), self.came)
        if action is Action.PING:
            self.control.ping(os.urandom(8))
            self.flush()
        elif action is Action.GIVE_UP:
            self.give_up(f"has not answered a PING for {pulse.patience:g} s")
            return
        if again < math.inf:
            self._timer = self._loop.call_later(max(0.0, again - now), self._look)
        if action is Action.SUSPECT:
            self.user.changed(self)

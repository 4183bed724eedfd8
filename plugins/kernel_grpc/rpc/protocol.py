"""A connection on the loop: bytes between a transport and http2.Connection.

Owns when is written (once for what one read has brought about, once for all other answers of a turn of the loop) and
back-pressure. Knows neither what the bytes mean (http2), nor when a connection has to end (Lifetime).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from kernel import Access, peer_name
from kernel_grpc.http2 import Connection, ErrorCode
from kernel_grpc.rpc.brake import Brake
from kernel_grpc.rpc.calls import Call, open_probe
from kernel_grpc.rpc.lifetime import Lifetime
from kernel_grpc.rpc.server import FEW, Server
from kernel_grpc.rpc.turns import BYTES, FEW_FRAMES, FRAME_UNITS, LITTLE, NOTED

__all__ = ["Peer"]

#: What is read is copied out of the shared buffer up to this size: slices of bytes are cheaper than views.
COPIED = 32 * 1024

#: Data up to this size is written as one piece: joining it costs less than handing over many.
JOINED = 32 * 1024

#: Data above this does not wait for the end of the turn.
BULK = 64 * 1024

#: How much the transport may hold before no more data is given to it.
HIGH_WATER = 1024 * 1024

#: How many frames may wait for a transport that takes nothing before nothing more is read from that client.
MAX_WAITING = 4096


class Peer(Lifetime, asyncio.BufferedProtocol):
    """The protocol object of one client connection; all on the loop's thread."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._turns = server.turns
        self.scheduled = False  # it will be flushed at the end of this turn
        self._direct = False  # the last `get_buffer` gave out a message's memory
        self._flushing = False
        self._reading = True
        self._later = False  # some of what was read waits for a further turn of the loop; nothing is read meanwhile

    # --- the transport's calls

    def connection_made(self, transport: Any) -> None:
        transport.set_write_buffer_limits(high=HIGH_WATER)
        server = self.server
        clock = server.now
        access = server.opened(self, transport)
        opens = partial(open_probe, server) if access is Access.PROBES else server.open
        http = Connection(opens, clock(), on_output=self.output)
        http.transport = transport
        self.begin(transport, http, server.keepalive, clock, server.limits, server.memory)
        http.ending.turns = server.turns
        self.brake = Brake(http.outgoing, server.limits.queue, server.turns)
        if access is Access.REFUSED:
            transport.abort()
            return
        http.start()
        self.flush()
        if server.crowded:
            self.limit_calls(FEW)
        if server.draining:
            self.drain()

    def connection_lost(self, exception: Exception | None) -> None:
        """The client has gone: nobody waits for the answers any more."""
        self.server.closed(self)
        http = self.http
        code, text = http.ending.failure or (ErrorCode.NO_ERROR, "")
        if code is not ErrorCode.NO_ERROR:
            self.server.note_refused(f"gRPC {peer_name(self.transport.get_extra_info('peername'))}", "", code.name, text)
        http.ending.lost()
        self.lost()
        self.brake.lost()
        http.later = None
        http.control.on_ping = http.control.on_pong = None
        self.outgoing.on_output = nothing
        self.outgoing.out.clear()

    def eof_received(self) -> bool | None:
        return None  # the transport closes itself; then `connection_lost` cancels what runs

    def get_buffer(self, sizehint: int) -> Any:
        space = self.http.space()
        self._direct = space is not None
        # A view: asyncio's TLS goes wrong with a bytearray.
        return self._turns.view if space is None else space[: self._turns.portion]

    def buffer_updated(self, count: int) -> None:
        http, turns = self.http, self._turns
        if self._direct:
            http.filled(count, self.server.now())
            if not turns.spend(count // BYTES):
                self._put_off()
        elif count < NOTED and turns.free:
            turns.free -= 1
            http.receive(bytes(turns.view[:count]), self.server.now())
            if http.frames > FEW_FRAMES and not turns.spend(self._work(count)):
                self._put_off()
        else:
            self._receive_much(count)
        if self.outgoing.out:
            self.flush()
        ending = http.ending
        if ending.closed or ending.draining:
            self.close_if_over()
        if http.later is not None:
            self._put_off()

    def _receive_much(self, count: int) -> None:
        """So many bytes have come, NOTED or more, or much has been done in this turn already."""
        http, turns = self.http, self._turns
        data = turns.view[:count]
        if turns.is_over(count):
            http.put_by(data)
            self._put_off(first=count < LITTLE)
            return
        http.receive(bytes(data) if count <= COPIED else data, self.server.now())
        if (count >= LITTLE or http.frames > FEW_FRAMES) and not turns.spend(count // BYTES + self._work(count)):
            self._put_off()

    def _work(self, size: int) -> int:
        """Return what the frames that were just received have taken, in units, besides their `size` bytes.

        Those that steer take little, and those of long messages no more than their bytes.
        """
        http = self.http
        steering = http.floods.spent
        return FRAME_UNITS * max(0, http.frames - steering - size // BYTES) + steering // 2

    # --- more than one turn's work

    def _put_off(self, *, first: bool = False) -> None:
        """More has come than is done for one client in one turn: nothing is read until that is done. `first`: it is little."""
        if not self._later:
            self._later = True
            self._turns.put_off(self, first=first)
            if self._reading:
                self.transport.pause_reading()

    def go_on(self) -> None:
        """Do some more of it."""
        http = self.http
        if http.later is not None:
            size = http.waiting
            http.go_on(self.server.now())
            self._turns.spend(self._work(size - http.waiting))
        if self.outgoing.out:
            self.flush()
        ending = http.ending
        if ending.closed or ending.draining:
            self.close_if_over()
        if http.later is not None and not ending.closed:
            self._turns.put_off(self)
            return
        self._later = False
        if self._reading and not self.transport.is_closing():
            self.transport.resume_reading()

    # --- the transport's calls about writing

    def pause_writing(self) -> None:
        self.outgoing.hold_up(True)

    def resume_writing(self) -> None:
        self.outgoing.hold_up(False)
        if not self._flushing:
            self.flush()
            self.close_if_over()
        if not self._reading and not self.outgoing.held_up:
            self._reading = True
            if not self._later:
                self.transport.resume_reading()

    # --- writing

    def output(self) -> None:
        """There is something to write that did not come about by reading.

        Where other calls are under way on this connection, their answers may come in this turn of the loop too, and one write
        for all of them is cheaper for both sides. The last one waits for nobody.
        """
        outgoing = self.outgoing
        if not outgoing.streams or outgoing.pending > BULK:
            if not self._flushing:
                self.flush()
                self.close_if_over()
        elif not self.scheduled:
            self.scheduled = True
            self.server.schedule(self)

    def flush(self) -> None:
        """Write what is there, and what may follow it."""
        outgoing = self.outgoing
        self._flushing = True
        try:
            while not outgoing.held_up:
                if outgoing.can_pump:
                    outgoing.pump()
                if not outgoing.out:
                    break
                out, size = outgoing.take()
                if len(out) == 1:
                    self.transport.write(out[0])
                elif size <= JOINED:
                    self.transport.write(b"".join(out))
                else:
                    self.transport.writelines(out)
        finally:
            self._flushing = False
        if outgoing.held_up and len(outgoing.out) > MAX_WAITING and self._reading:
            self._reading = False
            if not self._later:
                self.transport.pause_reading()

    def end_turn(self) -> None:
        self.scheduled = False
        if self.outgoing.out:
            self.flush()
            self.close_if_over()

    # --- the end

    @property
    def busy(self) -> bool:
        """Whether a call is under way that has an end of its own, or may be on its way to us, from a client that has not read yet
        that the connection ends. What waits on a stream, the kernel knows.
        """
        return self.http.ending.client_unaware or any(not call.is_stream for call in self._calls())

    def drain(self) -> None:
        """Finish the calls that run, then close."""
        for call in list(self._calls()):
            call.drain()
        self.retire()

    def _calls(self) -> Iterable[Call]:
        """Return the calls under way: the streams of a connection are what `Server.open` has made."""
        return cast("Iterable[Call]", self.outgoing.streams.values())


def nothing() -> None:
    """What is called when there is nobody left to tell."""

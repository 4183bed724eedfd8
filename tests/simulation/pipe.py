"""A connection without a socket: a transport as asyncio's are, between a protocol of the server and a client of the simulation.

Bytes go through it in pieces as large as the seed says, and as late. The client reads as slowly as it likes, resets in the
middle, or ends its own side only. The law: the protocol is called as asyncio calls it, and nothing that it wrote before it closed
is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Pipe"]

HIGH, LOW = 64 * 1024, 16 * 1024


class Client(Protocol):
    """Who stands at the other end."""

    def received(self, data: bytes) -> None:
        """Bytes of the server have come."""

    def ended(self) -> None:
        """The server sends nothing more, or the connection is gone."""


class Pipe:
    """The transport of one connection. `lag`: how large pieces are and how late they come, 0 for whole and at once."""

    def __init__(self, world: World, protocol: Any, client: Client, lag: int) -> None:
        self.world = world
        self.loop = world.loop
        self.rng = world.rng
        self.protocol = protocol
        self.client = client
        self.lag = lag
        self.inbox = bytearray()  # the client has sent it, the server has not read it
        self.outbox = bytearray()  # the server has written it, the client has not read it
        self.high, self.low = HIGH, LOW
        self.paused = self.closing = self.lost = self.held = False
        self.silent = self.has_slept = False  # the client reads nothing for now; has done so
        self.client_ended = self.server_ended = False  # nothing more comes from that side
        self._eof = False  # the server has said that itself
        self._told = False
        self._reading: Any = None
        self._sending: Any = None
        protocol.connection_made(self)

    # -- the client's side -----------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if not (self.lost or self.client_ended):
            self.inbox += data
            self._read_soon()

    def end(self) -> None:
        """The client sends nothing more, and reads on."""
        if not self.client_ended:
            self.client_ended = True
            self._read_soon()

    def reset(self) -> None:
        """The client is gone in the middle of whatever there was."""
        self._lose(ConnectionResetError("planned"))

    def listen(self) -> None:
        """The client reads again."""
        self.silent = False
        self._send_soon()

    # -- as asyncio does it ----------------------------------------------------------------------------------------------

    def _later(self, call: Any) -> Any:
        wait = self.rng.choice((0.0, 0.0, 0.0002, 0.003)) if self.lag else 0.0
        return self.loop.call_later(wait, call) if wait else self.loop.call_soon(call)

    def _piece(self, size: int) -> int:
        return min(size, self.rng.choice((1, 7, 100, 1400, 9000, size))) if self.lag else size

    def _read_soon(self) -> None:
        if self._reading is None and not (self.paused or self.closing or self.lost):
            self._reading = self._later(self._read)

    def _read(self) -> None:
        self._reading = None
        if self.paused or self.closing or self.lost:
            return
        if not self.inbox:
            if self.client_ended and not self.server_ended:
                self.server_ended = not self._call(self.protocol.eof_received)
                if self.server_ended:
                    self.close()
                self.paused = True  # there is nothing to read any more
            return
        buffer = self._call(self.protocol.get_buffer, -1)
        if buffer is None:
            return
        view = memoryview(buffer).cast("B")
        self.world.expect(len(view) > 0, "an empty buffer, which would mean the end of the stream")
        count = self._piece(min(len(view), len(self.inbox)))
        view[:count] = self.inbox[:count]
        del self.inbox[:count], view, buffer
        self._call(self.protocol.buffer_updated, count)
        if self.inbox or self.client_ended:
            self._read_soon()

    def _call(self, function: Any, *args: Any) -> Any:
        """Call the protocol; what it raises ends the connection."""
        try:
            return function(*args)
        except Exception as error:
            import traceback

            self.world.broken(f"a protocol has failed: {traceback.format_exception(error)[-3:]}")
            self._lose(error)
            return None

    def _send_soon(self) -> None:
        if self._sending is None and not (self.silent or self.lost):
            self._sending = self._later(self._send)

    def _send(self) -> None:
        self._sending = None
        if self.silent or self.lost:
            return
        count = self._piece(len(self.outbox))
        if count:
            data = bytes(self.outbox[:count])
            del self.outbox[:count]
            self.client.received(data)
        if self.held and len(self.outbox) <= self.low:
            self.held = False
            self._call(self.protocol.resume_writing)
        if self.outbox:
            self._send_soon()
        elif self.closing:
            self._lose(None)
        elif self.server_ended:
            self._tell()

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = self.closing = True
            self.inbox.clear()
            self.outbox.clear()
            self.loop.call_soon(self.protocol.connection_lost, error)
            self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self.loop.call_soon(self.client.ended)

    # -- what the protocol calls -----------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self.lost:
            return
        self.world.expect(not self._eof, "a write after write_eof")  # after close() asyncio sends what it still can
        self.outbox += data
        if len(self.outbox) > self.high and not self.held:
            self.held = True
            self._call(self.protocol.pause_writing)
        self._send_soon()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(bytes(piece) for piece in pieces))

    def write_eof(self) -> None:
        self.server_ended = self._eof = True
        self._send_soon()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.inbox.clear()
            if self.outbox:
                self._send_soon()
            else:
                self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.world.expect(not self.paused, "reading is paused twice")
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        if self.inbox or self.client_ended:
            self._read_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = HIGH if high is None else high
        self.low = self.high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self.outbox)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 7)}.get(name, default)



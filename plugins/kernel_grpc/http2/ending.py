"""The ends: of a stream that breaks a rule, and of a connection in good order, by failure or because the client has gone.

RFC 9113, sections 5.4 and 6.8. GOAWAY comes in two steps where there is time for it.
"""

from __future__ import annotations

from typing import Protocol

from kernel_grpc.http2.errors import ErrorCode, StreamFailure
from kernel_grpc.http2.floods import Floods
from kernel_grpc.http2.frames import MAX_STREAM_ID, goaway, ping
from kernel_grpc.http2.history import History
from kernel_grpc.http2.outgoing import Outgoing
from kernel_grpc.http2.stream import Stream

__all__ = ["DRAIN_PING", "Ending"]

#: What the PING carries that follows the first GOAWAY of an orderly end: once it is back, the client has seen that GOAWAY.
DRAIN_PING = b"\x00goaway\x00"

#: How much of a connection that has gone is let go of at once, in streams; bytes that wait in one count as more of them.
#: Each takes units of the turn of the loop; none are let go of where that has no room for more.
AT_ONCE = 64
STREAM_BYTES = 256 * 1024
STREAM_UNITS = 2

#: The most text of ours that goes into a GOAWAY.
MAX_TEXT = 256


class Turns(Protocol):
    """How much is done in a turn of the loop, for all connections together."""

    @property
    def roomy(self) -> bool:
        """Whether more may be done in this turn."""

    def spend(self, units: int) -> bool:
        """So much has been done."""

    def put_off(self, patient: Ending) -> None:
        """Have `patient.go_on()` called in a further turn."""


class Ending:
    """What ends a connection and its streams. `turns`: its user's; None: all is done at once."""

    turns: Turns | None = None

    def __init__(self, outgoing: Outgoing, history: History, floods: Floods) -> None:
        self._outgoing = outgoing
        self._history = history
        self._floods = floods
        self.closed = False  # nothing more is received
        self.greeted = False  # the client's SETTINGS have come
        self.draining = False
        self.failure: tuple[ErrorCode, str] | None = None  # why the connection could not go on
        self._lost = ErrorCode.CANCEL  # with what its streams are aborted

    def close(self) -> None:
        """Receive nothing more, not even the rest of what has come already."""
        self.closed = True
        self._floods.turn = 0

    def drain(self, text: str = "") -> None:
        """End the connection in good order: let the client know, then take no further stream, and finish those that run.

        Between the two steps what the client had sent without knowing still arrives (section 6.8). `drained` tells when no
        stream is left. Where the client's SETTINGS have not come yet, there is nothing to wait for.
        """
        if self.closed or self.draining:
            return
        self.draining = True
        if not self.greeted:
            self.finish_drain()
        else:
            self._outgoing.put(goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR, text) + ping(DRAIN_PING))

    def finish_drain(self) -> None:
        """Take the second step, because the client has answered, or because it does not."""
        if self._history.final_id is None and self.draining and not self.closed:
            self._outgoing.put(goaway(self._history.finish(), ErrorCode.NO_ERROR))

    @property
    def client_unaware(self) -> bool:
        """Whether the client may still be sending without knowing that the connection is about to end."""
        return self.draining and self._history.final_id is None and not self.closed

    @property
    def drained(self) -> bool:
        return self._history.final_id is not None and not self._outgoing.streams

    def fail(self, code: ErrorCode, text: str) -> None:
        """End the connection because of `text`; all its streams are aborted."""
        if self.closed:
            return
        outgoing = self._outgoing
        self.failure = code, text
        outgoing.out.append(goaway(max(0, self._history.last_id), code, text[:MAX_TEXT]))
        self.lost(code)
        if not outgoing.corked:
            outgoing.on_output()

    def lost(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """The connection has gone: abort all streams, receive nothing more. Where they are many, or much waits, some later."""
        self.close()
        streams, turns = self._outgoing.streams, self.turns
        if streams and turns is not None and not turns.roomy:
            self._lost = code
            turns.put_off(self)
            return
        left = AT_ONCE
        while streams:
            if left <= 0 and turns is not None:
                self._lost = code
                turns.put_off(self)
                break
            _, stream = streams.popitem()
            left -= 1 + stream.queued // STREAM_BYTES
            self.abort(stream, code)
        if turns is not None and left < AT_ONCE:
            turns.spend((AT_ONCE - left) * STREAM_UNITS)

    def go_on(self) -> None:
        """Abort some more."""
        self.lost(self._lost)

    def fail_stream(self, failure: StreamFailure) -> None:
        """Reset one stream because of a mistake of the client's. Raises ConnectionFailure when there were too many."""
        stream = self._outgoing.streams.pop(failure.stream_id, None)
        self._outgoing.reset(failure.stream_id, failure.code)
        if stream is not None:
            self.abort(stream, failure.code)
        self._floods.count_reset()

    def abort(self, stream: Stream, code: int) -> None:
        """Tell the user of a stream that has left the connection, unless it has nothing to say any more."""
        tell = not stream.done
        stream.done = True
        self._outgoing.drop(stream)
        if tell:
            stream.aborted(code)

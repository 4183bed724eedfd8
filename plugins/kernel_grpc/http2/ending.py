"""The ends: of a stream, and of a connection in good order, by failure or because the client has gone (RFC 9113, 5.4, 6.8).

GOAWAY comes in two steps where there is time for it. Frames that cost work and bring nothing, and streams that are reset, are
paid for from budgets: floods (CVE-2019-9512 to 9518), rapid resets (CVE-2023-44487) and resets that a client provokes
(CVE-2025-8671) end the connection.
"""

from __future__ import annotations

from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.floods import Budget
from kernel_grpc.http2.frames import MAX_STREAM_ID, goaway, ping
from kernel_grpc.http2.outgoing import Outgoing
from kernel_grpc.http2.stream import Stream

__all__ = ["DRAIN_PING", "RESET_BURST", "USELESS_BURST", "Ending"]

#: Frames that bring nothing: so many at once, and so many a second in the long run. What a client is sent pays them back, one
#: by one: a client that measures the line with a PING for every answer is no flood.
USELESS_BURST = 1000
USELESS_RATE = 100.0

#: Streams that are reset, by the client or for its mistakes.
RESET_BURST = 1000
RESET_RATE = 100.0

#: What the PING carries that follows the first GOAWAY of an orderly end: once it is back, the client has seen that GOAWAY.
DRAIN_PING = b"\x00goaway\x00"

#: The most text of ours that goes into a GOAWAY.
MAX_TEXT = 256


class Ending(Outgoing):
    """What ends streams and the connection. `now`: the time of what is being received."""

    def __init__(self, now: float) -> None:
        super().__init__()
        self.now = now
        self.closed = False  # nothing more is received
        self.greeted = False  # the client's SETTINGS have come
        self.last_id = -1  # the highest id of a stream that the client has opened
        self.draining = False
        self.final_id: int | None = None  # what is above this is ignored, as the last GOAWAY has said
        self.failure: tuple[ErrorCode, str] | None = None
        self._useless = Budget(USELESS_BURST, USELESS_RATE, now)
        self._resets = Budget(RESET_BURST, RESET_RATE, now)
        self._paid = 0  # the value of `sent` up to which both were paid back

    # --- budgets

    def useless(self, what: str, cost: int = 1) -> None:
        """Count a frame that brings nothing. Raises ConnectionFailure when there were too many."""
        self._pay_back()
        if not self._useless.spend(self.now, cost):
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, f"too many frames that ask for nothing, the last {what}")

    def count_reset(self) -> None:
        self._pay_back()
        if not self._resets.spend(self.now):
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")

    def _pay_back(self) -> None:
        if self.sent != self._paid:
            self._useless.refund(self.sent - self._paid)
            self._resets.refund(self.sent - self._paid)
            self._paid = self.sent

    # --- ends

    def ping(self, payload: bytes) -> None:
        """Send a PING of 8 bytes; `on_pong` will tell of its answer."""
        self.put(ping(payload))

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
            self.put(goaway(MAX_STREAM_ID, ErrorCode.NO_ERROR, text) + ping(DRAIN_PING))

    def finish_drain(self) -> None:
        """Take the second step, because the client has answered, or because it does not."""
        if self.final_id is None and self.draining and not self.closed:
            self.final_id = max(0, self.last_id)
            self.put(goaway(self.final_id, ErrorCode.NO_ERROR))

    @property
    def drained(self) -> bool:
        return self.final_id is not None and not self.streams

    def fail(self, code: ErrorCode, text: str) -> None:
        """End the connection because of `text`; all its streams are aborted."""
        if self.closed:
            return
        self.failure = code, text
        self.out.append(goaway(max(0, self.last_id), code, text[:MAX_TEXT]))
        self.lost(code)
        if not self.corked:
            self.on_output()

    def lost(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """The connection has gone: abort all streams, receive nothing more."""
        self.closed = True
        while self.streams:
            _, stream = self.streams.popitem()
            self._abort(stream, code)

    def fail_stream(self, failure: StreamFailure) -> None:
        """Reset one stream because of a mistake of the client's. Raises ConnectionFailure when there were too many."""
        stream = self.streams.pop(failure.stream_id, None)
        self.reset(failure.stream_id, failure.code)
        if stream is not None:
            self._abort(stream, failure.code)
        self.count_reset()

    def _abort(self, stream: Stream, code: int) -> None:
        """Tell the owner of a stream that has left the connection, unless it has nothing to say any more."""
        tell = not stream.done
        stream.done = True
        self.drop(stream)
        if tell:
            stream.aborted(code)

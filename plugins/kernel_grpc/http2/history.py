"""Which streams a client has opened, and what a frame means whose stream is not open (RFC 9113, section 5.1).

Knows ids only. A closed stream is remembered by how it was closed, as far as that makes a difference, and not for ever.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure

__all__ = ["REMEMBERED", "History"]

#: How many streams that we have reset are remembered: what their clients had sent before they knew is ignored. As many are
#: remembered that the client has reset.
REMEMBERED = 4096

#: Gaps in the client's numbers that are remembered.
GAPS = 64


class History:
    """The ids of one connection. `limit`: how many streams may be open at a time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.last_id = -1  # the highest that the client has opened
        self.final_id: int | None = None  # what is above this is ignored, as the last GOAWAY has said
        self.forgotten: OrderedDict[int, None] = OrderedDict()  # that we have reset, the oldest first
        self.cancelled: OrderedDict[int, None] = OrderedDict()  # that the client has reset, the oldest first
        self._gaps: deque[tuple[int, int]] = deque(maxlen=GAPS)  # that the client has left out, from and to

    def leave_gap(self, stream_id: int) -> None:
        """Note the ids that the client leaves out when it opens `stream_id`."""
        self._gaps.append((self.last_id + 2, stream_id - 2))

    def forget(self, stream_id: int) -> None:
        """Ignore from now on what may still come on a stream that we have reset."""
        self.forgotten[stream_id] = None
        if len(self.forgotten) > REMEMBERED:
            self.forgotten.popitem(last=False)

    def cancel(self, stream_id: int) -> None:
        """The client has reset a stream: nothing may come on it any more."""
        self.cancelled[stream_id] = None
        if len(self.cancelled) > REMEMBERED:
            self.cancelled.popitem(last=False)

    def finish(self) -> int:
        """Take no further stream; return the last one that is taken."""
        self.final_id = final = max(0, self.last_id)
        self.limit = 0  # so that a new stream is not opened without being looked at: it is ignored
        return final

    def must_be_known(self, stream_id: int, what: str) -> None:
        """Refuse a frame on a stream that was never opened."""
        if not stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"{what} on stream 0; it belongs on a stream")
        if self.final_id is not None and stream_id > self.final_id:
            return  # opened before the client knew our last GOAWAY, so it is ignored
        if stream_id > self.last_id or not stream_id & 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"{what} on stream {stream_id}, which was never opened")

    def must_be_no_gap(self, stream_id: int) -> None:
        """Refuse to open a stream that the client has left out: those with higher numbers are opened already."""
        if any(first <= stream_id <= last for first, last in self._gaps):
            text = f"stream {stream_id} is opened after stream {self.last_id}"
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, text)

    def must_be_late(self, stream_id: int, what: str) -> None:
        """Refuse a frame that wants an open stream and has none, unless its client could not know yet when it sent it."""
        self.must_be_known(stream_id, what)
        if stream_id in self.forgotten or (self.final_id is not None and stream_id > self.final_id):
            return
        if stream_id in self.cancelled:
            raise StreamFailure(stream_id, ErrorCode.STREAM_CLOSED, f"{what} on a stream that the client has reset")
        raise ConnectionFailure(ErrorCode.STREAM_CLOSED, f"{what} on stream {stream_id}, which is closed")

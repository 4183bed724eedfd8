"""DATA: to the streams that it belongs to, within the windows that the client was given (RFC 9113, sections 5.2 and 6.1).

Data goes to its stream as it comes, a frame may be as large as it likes. A user that holds back has it kept here and gives the
client no further credit, so what is kept is bounded by the windows: a stream's, and that of the connection for all together.
"""

from __future__ import annotations

from kernel_grpc.http2.ending import Ending
from kernel_grpc.http2.errors import ConnectionFailure, ErrorCode, StreamFailure
from kernel_grpc.http2.floods import Floods
from kernel_grpc.http2.frames import END_STREAM, PADDED
from kernel_grpc.http2.history import History
from kernel_grpc.http2.outgoing import Outgoing
from kernel_grpc.http2.stream import STREAM_WINDOW, Data, Kept, Stream

__all__ = ["CONNECTION_WINDOW", "Bodies"]

#: How much a client may send before it gets further credit: all streams together.
CONNECTION_WINDOW = 16 * 1024 * 1024

#: Credit is given when less than half of a window is left, so that one WINDOW_UPDATE stands for much.
CONNECTION_LOW = CONNECTION_WINDOW // 2
STREAM_LOW = STREAM_WINDOW // 2

#: Data of at least this size that is still to come may be received straight into its user's memory.
DIRECT = 32 * 1024


class Bodies:
    """What a connection does with data.

    Of a frame that isn't complete: `missing`: how much data is still to come; `skip`: the bytes behind it that nobody wants, such
    as padding, or a whole frame that means nothing. `kept`: the bytes that held streams keep back.
    """

    def __init__(self, outgoing: Outgoing, history: History, floods: Floods, ending: Ending) -> None:
        self._outgoing = outgoing
        self._streams = outgoing.streams
        self._history = history
        self._floods = floods
        self._ending = ending
        self.recv_window = CONNECTION_WINDOW
        self.kept = 0
        self.missing = 0
        self.skip = 0
        self._stream: Stream | None = None  # whose frame of data has come in part
        self._ends = False  # that frame is the stream's last
        self._handing: Stream | None = None  # to whom `hand_over` gives what was kept back

    # --- frames

    def data(self, flags: int, stream_id: int, data: Data, start: int, stop: int, length: int) -> None:
        """Take a DATA frame of `length` bytes, of which `data[start:stop]` have come."""
        self.recv_window -= length
        if self.recv_window < CONNECTION_LOW:
            if self.recv_window < 0:
                text = f"{-self.recv_window} bytes more than the connection's window of {CONNECTION_WINDOW} allows"
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, text)
            self._credit()
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended or flags & PADDED or stop - start < length:
            self._unusual_data(flags, stream_id, stream, data, start, stop, length)
            return
        stream.recv_window = window = stream.recv_window - length
        if window < 0:
            raise self._overflow(stream)
        sink = stream.sink
        if (
            sink is not None
            and not flags & END_STREAM
            and sink.at < (end := sink.at + length) < sink.end
            and not (stream.held or stream.done)
            and stream.kept is None
            and stream.left is None
        ):
            # The middle of a long message, by far the most of what comes: nobody needs to be told.
            sink.view[sink.at : end] = data[start:stop]
            sink.at = end
            if window < STREAM_LOW:
                self._credit_stream(stream)
            return
        ended = flags & END_STREAM == END_STREAM
        if not ended and not length:
            self._floods.useless("an empty DATA frame")
        if stream.left is not None:
            self.count(stream, length, ended)
        self.deliver(stream, data, start, stop, ended)

    def _unusual_data(
        self, flags: int, stream_id: int, stream: Stream | None, data: Data, start: int, stop: int, length: int
    ) -> None:
        """Take a DATA frame that is padded, not complete, or not welcome."""
        padding = 0
        self.skip = length - (stop - start)  # the rest of the frame, unless the stream wants it
        if flags & PADDED:
            if not length:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "a padded DATA frame without the length of its padding")
            padding = data[start]
            start += 1
            if padding >= length:
                text = f"{padding} bytes of padding in a DATA frame of {length}"
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, text)
        if stream is None:
            self._history.must_be_late(stream_id, "DATA")
            if not length:  # other data is paid for with the client's windows
                self._floods.useless("DATA")
            return
        if stream.ended:
            raise StreamFailure(stream_id, ErrorCode.STREAM_CLOSED, "DATA behind the end of the stream")
        stream.recv_window -= length
        if stream.recv_window < 0:
            raise self._overflow(stream)
        size = length - padding - (1 if flags & PADDED else 0)
        ends = flags & END_STREAM == END_STREAM
        if not size and not ends:
            self._floods.useless("an empty DATA frame")
        if stream.left is not None:
            self.count(stream, size, ends)
        here = min(size, stop - start)
        self.missing = size - here
        self.skip = padding - (stop - start - here)
        self._ends = ends
        self._stream = stream if self.missing else None
        stream.ended = ends  # set now, since its user may act before the rest of the frame has come
        if here or not size:
            self.deliver(stream, data, start, start + here, ends and not self.missing)

    def _overflow(self, stream: Stream) -> StreamFailure:
        text = f"{-stream.recv_window} bytes more than the stream's window of {STREAM_WINDOW} allows"
        return StreamFailure(stream.id, ErrorCode.FLOW_CONTROL_ERROR, text)

    def more(self, data: Data, size: int) -> int:
        """Take more of a frame that has begun; return up to where."""
        at = 0
        if self.missing:
            at = min(self.missing, size)
            self.missing -= at
            stream = self._stream
            if stream is not None:
                if not self.missing:
                    self._stream = None
                self.deliver(stream, data, 0, at, self._ends and not self.missing)
        skipped = min(self.skip, size - at)
        self.skip -= skipped
        return at + skipped

    def deliver(self, stream: Stream, data: Data, start: int, stop: int, ended: bool) -> None:
        """Give a stream what has come for it."""
        if ended:
            stream.ended = True
        if stream.done:
            return  # it has been answered, which the client didn't know when it sent this
        if stream.held or stream.kept is not None:
            self.keep_back(stream, data, start, stop, ended)
            return
        taken = stream.received(data, start, stop, ended)
        if taken is not None and not stream.done:
            self.keep_back(stream, data, taken, stop, ended)
        if stream.recv_window < STREAM_LOW and not ended:
            self._credit_stream(stream)

    def count(self, stream: Stream, size: int, ended: bool) -> None:
        """Count data against the announced content-length (section 8.1.1). Raises StreamFailure."""
        assert stream.left is not None
        stream.left -= size
        if stream.left < 0 or (ended and stream.left):
            text = f"{abs(stream.left)} bytes {'more' if stream.left < 0 else 'less'} than content-length says"
            raise StreamFailure(stream.id, ErrorCode.PROTOCOL_ERROR, text)

    def space(self) -> memoryview | None:
        """Return where what comes next may be received directly, or None. What was put there is announced with `filled`."""
        stream = self._stream
        if self.missing < DIRECT or stream is None or stream.held or stream.kept is not None or stream.done:
            return None
        space = stream.space()
        return None if space is None or len(space) < DIRECT else space[: self.missing]

    def filled(self, count: int, now: float) -> None:
        """`count` bytes were put into `space()`, at least one."""
        stream = self._stream
        assert stream is not None
        self._floods.now = now
        self._outgoing.corked = True
        try:
            self.missing -= count
            if not stream.done:
                stream.filled(count)
            if not self.missing:
                self._stream = None
                if self._ends:
                    self.deliver(stream, b"", 0, 0, True)
            elif stream.recv_window < STREAM_LOW:
                self._credit_stream(stream)
        finally:
            self._outgoing.corked = False

    # --- what is kept back, and credit

    def keep_back(self, stream: Stream, data: Data, start: int, stop: int, ended: bool) -> None:
        """Keep what has come for a stream whose user wants nothing more for the time being."""
        kept = stream.kept
        if kept is None:
            kept = stream.kept = Kept()
        kept.more += data[start:stop]
        kept.ended = ended
        self.kept += stop - start

    def hand_over(self, stream: Stream) -> None:
        """Give a stream what was kept back for it, until it holds again."""
        kept = stream.kept
        if kept is None or self._handing is stream:
            return
        before, self._handing = self._handing, stream
        try:
            while not stream.held and not stream.done and stream.kept is not None:
                if kept.at == len(kept.data):
                    kept.turn()
                size = len(kept.data)
                ended = kept.ended and not kept.more
                at, kept.at = kept.at, size
                self.kept -= size - at
                taken = stream.received(kept.data, at, size, ended)
                if stream.kept is not kept:
                    break  # its user has ended it, and what was kept is thrown away
                if taken is not None:
                    kept.at = taken
                    self.kept += size - taken
                elif not kept.more:
                    stream.kept = None
        finally:
            self._handing = before
        if not stream.done and not stream.ended and stream.recv_window < STREAM_LOW:
            self._credit_stream(stream)
        if self.recv_window < CONNECTION_LOW:
            self._credit()
        outgoing = self._outgoing
        if outgoing.out and not outgoing.corked:
            outgoing.on_output()

    def let_go(self, stream: Stream) -> None:
        """Throw away what was kept back for a stream that has left: had it used up the window, nothing else would give credit."""
        kept, stream.kept = stream.kept, None
        if kept is not None:
            self.kept -= kept.size
            if self.recv_window < CONNECTION_LOW and not self._ending.closed:
                self._credit()

    def _credit(self) -> None:
        """Let the client send more, all streams together."""
        credit = CONNECTION_WINDOW - self.recv_window - self.kept
        if credit >= CONNECTION_WINDOW // 4:
            self.recv_window += credit
            self._outgoing.give_credit(0, credit)

    def _credit_stream(self, stream: Stream) -> None:
        """Let the client send more on one stream. What is kept back counts as not received."""
        credit = STREAM_WINDOW - stream.recv_window - (0 if stream.kept is None else stream.kept.size)
        if credit >= STREAM_WINDOW // 4 and not stream.done:
            stream.recv_window += credit
            self._outgoing.give_credit(stream.id, credit)

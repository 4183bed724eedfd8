"""The server's side of a connection: of which parts it is made, and how it greets. What comes is read by reader.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kernel_grpc.http2.blocks import MAX_HEADER_LIST
from kernel_grpc.http2.bodies import CONNECTION_WINDOW
from kernel_grpc.http2.control import Control
from kernel_grpc.http2.fields import Head
from kernel_grpc.http2.frames import PREFACE, Setting, settings, window_update
from kernel_grpc.http2.heads import Heads
from kernel_grpc.http2.history import History
from kernel_grpc.http2.outgoing import DEFAULT_WINDOW, Outgoing, nothing
from kernel_grpc.http2.reader import MAX_FRAME_SIZE, FrameReader
from kernel_grpc.http2.stream import STREAM_WINDOW, Stream

__all__ = ["MAX_STREAMS", "Connection", "OpenStream"]

#: Streams that may be open at a time.
MAX_STREAMS = 10_000

#: `open_stream(connection, stream_id, head, ended)` makes the Stream of a new request, or answers it at once.
OpenStream = Callable[["Connection", int, Head, bool], Stream]


class Connection(FrameReader):
    """One connection from a client.

    `open_stream` gets a well-formed request's Head; whether its header list is `too_large` is for it to heed. `start` must be
    called once before anything is received.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        now: float,
        *,
        on_output: Callable[[], None] = nothing,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        history = History(max_streams)
        super().__init__(history, Outgoing(history, on_output), now, Control, partial(Heads, open_stream), PREFACE)

    def start(self) -> None:
        """Send the server's preface."""
        self.outgoing.put(
            settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: self.history.limit,
                    Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                    Setting.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
                    Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST,
                }
            )
            + window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        )

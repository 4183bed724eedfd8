"""HTTP/2 for servers (RFC 9113), without I/O: bytes in, streams told and bytes out. Knows nothing of gRPC.

Make a `Connection` with a function that opens streams, call `start`, feed it with `receive`, write what `outgoing.take` gives,
and say with `ending.lost` when the client has gone. Subclass `Stream` for what is to happen with requests.
"""

from __future__ import annotations

from kernel_grpc.http2.blocks import literal, response, status
from kernel_grpc.http2.connection import Connection, OpenStream
from kernel_grpc.http2.errors import ErrorCode
from kernel_grpc.http2.fields import Field, Head
from kernel_grpc.http2.outgoing import Outgoing
from kernel_grpc.http2.stream import Data, Sink, Stream

__all__ = [
    "Connection",
    "Data",
    "ErrorCode",
    "Field",
    "Head",
    "OpenStream",
    "Outgoing",
    "Sink",
    "Stream",
    "literal",
    "response",
    "status",
]

"""The bytes of frames (RFC 9113, sections 4 and 6): numbers and layouts. No state and no rules about order.

A frame is nine bytes and a payload. Reading them is a connection's; those that a server sends are made here.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping

from kernel_grpc.http2.errors import ErrorCode

__all__ = [
    "ACK",
    "CONTINUATION",
    "DATA",
    "END_HEADERS",
    "END_STREAM",
    "FRAME",
    "GOAWAY",
    "HEADERS",
    "HEADER_SIZE",
    "MAX_STREAM_ID",
    "MAX_WINDOW",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITY",
    "PRIORITY_FLAG",
    "PUSH_PROMISE",
    "RST_STREAM",
    "SETTING",
    "SETTINGS",
    "SETTINGS_ACK",
    "SMALLEST_FRAME_SIZE",
    "WINDOW_UPDATE",
    "Setting",
    "frame",
    "goaway",
    "header_frames",
    "ping",
    "rst_stream",
    "settings",
    "window_update",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

#: Frame types. Numbers and no enum: they are compared for every frame.
DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

#: Flags.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

MAX_WINDOW = MAX_STREAM_ID = 2**31 - 1

#: Every endpoint takes frames of this size (section 4.2).
SMALLEST_FRAME_SIZE = 16384

#: Length and type in one number, `length << 8 | type`; flags; stream id with the reserved bit.
FRAME = struct.Struct(">IBI")
HEADER_SIZE = FRAME.size

#: One entry of a SETTINGS frame.
SETTING = struct.Struct(">HI")


class Setting(enum.IntEnum):
    """Identifiers of section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one whole frame."""
    return FRAME.pack(len(payload) << 8 | kind, flags, stream_id) + payload


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def settings(values: Mapping[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in values.items()))


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + text.encode())


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def header_frames(stream_id: int, block: bytes, *, end_stream: bool, frame_size: int = SMALLEST_FRAME_SIZE) -> bytes:
    """Return a header block as HEADERS and, where it is too long for one frame, CONTINUATION frames."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= frame_size:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [frame(HEADERS, flags, stream_id, block[:frame_size])]
    for at in range(frame_size, len(block), frame_size):
        last = at + frame_size >= len(block)
        parts.append(frame(CONTINUATION, END_HEADERS if last else 0, stream_id, block[at : at + frame_size]))
    return b"".join(parts)

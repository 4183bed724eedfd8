"""What can be wrong with what a client sends (RFC 9113, sections 5.4 and 7): with the whole connection, or with one stream.

Raised where a rule is checked, caught by `Connection.receive`. A connection failure ends in GOAWAY, a stream
failure in RST_STREAM.
"""

from __future__ import annotations

import enum

__all__ = ["ConnectionFailure", "ErrorCode", "StreamFailure"]


class ErrorCode(enum.IntEnum):
    """The error codes of RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFailure(Exception):
    """The connection can't go on. `text` goes into the GOAWAY frame: what came and what was wanted."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamFailure(Exception):
    """One stream can't go on; the others can."""

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code
        self.text = text

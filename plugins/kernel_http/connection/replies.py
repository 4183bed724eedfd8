"""Complete HTTP responses as bytes: status lines, the headers the reference sends and in its order, error bodies.

Maps the kernel's error codes to HTTP statuses. Knows no connection, no route and no model.
"""

from __future__ import annotations

import math

import msgspec

from kernel import Code, Denial, Denied, Overloaded, ServingError

__all__ = [
    "CONTINUE",
    "EMPTY_JSON",
    "LAST_CHUNK",
    "OK_EMPTY",
    "REQUEST_ERROR",
    "adapt",
    "chunk",
    "chunked",
    "denied",
    "error",
    "error_body",
    "error_of",
    "json_reply",
    "moved",
    "page",
    "reply",
    "start_of",
    "status_of",
    "stream_head",
]

encode = msgspec.json.Encoder().encode

STATUS: dict[Code, int] = {
    Code.UNKNOWN: 400,
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.INVALID_ARG: 400,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.ALREADY_EXISTS: 400,
    Code.CANCELLED: 400,
}

#: What a gate's refusals are called.
DENIED: dict[Denial, int] = {Denial.UNKNOWN: 401, Denial.FORBIDDEN: 403, Denial.EXHAUSTED: 429}

#: Reason phrases as the reference sends them: 405 differs from the standard's.
PHRASES: dict[int, str] = {
    200: "OK",
    301: "Moved Permanently",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Not Allowed",
    408: "Request Timeout",
    413: "Payload Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}

STATUS_LINES: dict[int, bytes] = {code: f"HTTP/1.1 {code} {phrase}\r\n".encode() for code, phrase in PHRASES.items()}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

LAST_CHUNK = b"0\r\n\r\n"

Payload = bytes | list[bytes | memoryview]
"""One whole response: one bytes object, or buffers to be written one after the other (the first holds the head)."""


def reply(status: int, body: bytes = b"", *, json: bool, headers: bytes = b"") -> bytes:
    """Return a whole response. `json`: the handler had set its content type; otherwise the default, text/plain.

    The order of the two headers is the reference's. `headers`: further complete header lines, sent first.
    """
    head = STATUS_LINES[status] + headers
    if json:
        return head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    return head + b"Content-Length: %d\r\nContent-Type: text/plain\r\n\r\n%b" % (len(body), body)


def page(html: bytes, headers: bytes) -> bytes:
    """Return a 200 with a page. `headers`: further complete header lines."""
    kind = b"Content-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(html)
    return b"%b%b%b%b" % (STATUS_LINES[200], headers, kind, html)


def moved(location: str) -> bytes:
    """Return a 301. `location`: a path, relative to that of the request."""
    return reply(301, json=False, headers=f"Location: {location}\r\n".encode())


def start_of(http10: bool) -> bytes:
    """Return the bytes that every response begins with."""
    return b"HTTP/1.0 " if http10 else b"HTTP/1.1 "


def json_reply(value: object) -> bytes:
    """Return a 200 with `value` as compact JSON."""
    return reply(200, encode(value), json=True)


def chunked(status: int, content_type: bytes, body: bytes) -> bytes:
    """Return a whole response whose one body part is sent as a chunk."""
    return stream_head(status, content_type, chunked=True) + chunk(body) + LAST_CHUNK


def stream_head(status: int, content_type: bytes, *, chunked: bool, headers: bytes = b"") -> bytes:
    """Return the head of a response whose length isn't known. Not `chunked`: the connection's end is the body's.

    `headers`: further complete header lines.
    """
    coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    return b"%bContent-Type: %b\r\n%b%b\r\n" % (STATUS_LINES[status], content_type, headers, coding)


def chunk(data: bytes) -> bytes:
    """Return `data`, which isn't empty, as a chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def error_body(message: str) -> bytes:
    """Return the JSON that tells an error."""
    return encode({"error": _sendable(message)})


def error(status: int, message: str, *, json: bool, headers: bytes = b"") -> bytes:
    """Return an error response: `{"error":"<message>"}`."""
    return reply(status, error_body(message), json=json, headers=headers)


def error_of(exception: ServingError, *, json: bool) -> bytes:
    """Return the error response for a ServingError."""
    if isinstance(exception, Overloaded):
        return error(overload.status, exception.message, json=json, headers=b"Retry-After: 1\r\n")
    return error(status_of(exception.code), exception.message, json=json)


def denied(exception: Denied) -> bytes:
    """Return the response to a request that a gate has not let pass."""
    headers = b""
    if exception.denial is Denial.UNKNOWN:
        headers = b"WWW-Authenticate: Bearer\r\n"
    elif exception.retry_after:
        headers = b"Retry-After: %d\r\n" % math.ceil(exception.retry_after)  # whole seconds, as the header wants them
    return error(DENIED[exception.denial], exception.message, json=True, headers=headers)


class _Overload:
    """How it is told that there is too much to do: `status`, of all front ends of this process."""

    status = 503


overload = _Overload()


def status_of(code: Code) -> int:
    """Return the HTTP status that stands for `code` (docs/contract/http_protocol.md, 1.1)."""
    return STATUS[code]


def adapt(payload: Payload, *, http10: bool, close: bool, head_only: bool) -> Payload:
    """Change a response that can't go out as it is: to HTTP/1.0, the last one of a connection, or a HEAD request.

    An HTTP/1.0 client expects the connection to be closed, and is told when it is kept.
    """
    first, rest = (payload, []) if isinstance(payload, bytes) else (bytes(payload[0]), payload[1:])
    line, _, remainder = first.partition(b"\r\n")
    if http10:
        line = b"HTTP/1.0" + line[8:]
    if http10:
        connection = b"" if close else b"Connection: keep-alive\r\n"
    else:
        connection = b"Connection: close\r\n" if close else b""
    headers, _, body = remainder.partition(b"\r\n\r\n")
    first = b"%b\r\n%b\r\n%b\r\n" % (line, headers, connection)
    if head_only:
        return first
    first += body
    return [first, *rest] if rest else first


def _sendable(message: str) -> str:
    """Return the message with what UTF-8 can't carry (lone surrogates from a file name, say) escaped."""
    try:
        message.encode()
    except UnicodeEncodeError:
        return message.encode(errors="backslashreplace").decode()
    return message


OK_EMPTY = reply(200, json=False)
EMPTY_JSON = reply(200, json=True)
REQUEST_ERROR = reply(400, json=False)
